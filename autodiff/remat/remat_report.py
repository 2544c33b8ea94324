"""What pcp-remat did: on the function as an attribute, for people as JSON."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pcp import strict_json
from pcp.autodiff.remat.segments import Schedule
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError
from pcp.passes.analysis.storage import StorageGraph, StorageStep


@dataclass(frozen=True)
class Report:
    """Predicted peaks without arguments, in bytes, and FLOPs, before and after.

    `recomputed` counts the ops that run again by name and source location.
    """

    peak_bytes_before: int
    peak_bytes: int
    flops_before: int
    flops: int
    recomputed: Counter[tuple[str, str]]

    @staticmethod
    def of(
        whole: StorageGraph, schedule: Schedule | None, before: int, after: int
    ) -> "Report":
        """Of a function whose predicted peaks are `before` and `after`."""
        work = sum(n.flops for n in whole.nodes)
        again = work + (schedule.flops if schedule else 0)
        return Report(before, after, work, again, _recomputed(whole, schedule))

    def attribute(self) -> ir.Attribute:
        """`pcp.remat`, inside a context."""
        entries = {
            "peak_bytes_before": self.peak_bytes_before,
            "peak_bytes": self.peak_bytes,
            "flops_before": self.flops_before,
            "flops": self.flops,
            "recomputed_ops": self.recomputed.total(),
        }
        return ir.DictAttr.get({k: hlo.i64(v) for k, v in entries.items()})

    def write(self, path: str) -> None:
        """As JSON, with the ops that run again, the most frequent first."""
        ops = [
            {"op": op, "location": where, "times": times}
            for (op, where), times in self.recomputed.most_common()
        ]
        text = strict_json.dumps(
            {
                "peak_bytes_before": self.peak_bytes_before,
                "peak_bytes": self.peak_bytes,
                "peak_ratio": _ratio(self.peak_bytes, self.peak_bytes_before),
                "flops_before": self.flops_before,
                "flops": self.flops,
                "flops_ratio": _ratio(self.flops, self.flops_before),
                "recomputed": ops,
            },
            indent=1,
        )
        try:
            Path(path).write_text(text + "\n")
        except OSError as error:
            raise PassError(
                f"pcp-remat: report={path!r} cannot be written: {error.strerror}"
            ) from error


def _ratio(after: int, before: int) -> float:
    return round(after / before, 4) if before else 1.0


def _recomputed(
    whole: StorageGraph, schedule: Schedule | None
) -> Counter[tuple[str, str]]:
    originals = {n.results for n in whole.nodes}
    items = schedule.items if schedule else []
    clones = (
        i for i in items if isinstance(i, StorageStep) and i.results not in originals
    )
    ops = (whole.nodes[c.node].op for c in clones)
    return Counter((op.name, location_string(op.location)) for op in ops)
