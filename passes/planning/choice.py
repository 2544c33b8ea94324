"""The answer of a search: the plans that were judged, as a table and as plain data."""

from dataclasses import dataclass, field
from glob import escape
from typing import Any

from pcp.passes.core.sizes import bytes_text
from pcp.passes.planning.candidates import Candidate
from pcp.passes.planning.evaluation import BATCH, Judged, data_axes
from pcp.passes.planning.tensor_groups import SEQUENCE, Groups

WIDTH = 28


@dataclass(frozen=True)
class Choice:
    """What was judged, the fastest first, and the one to take.

    `impossible` says of meshes with stages why there is no plan. `tied` stages may use
    one parameter.
    """

    judged: tuple[Judged, ...]
    groups: Groups
    considered: int
    devices: tuple[str, ...]
    impossible: tuple[tuple[str, str], ...] = ()
    data: dict[str, int] = field(default_factory=dict)
    """The ranks of the tensors with a batch."""
    tied: bool = False

    @property
    def best(self) -> Judged:
        """The fastest that fits."""
        return next(j for j in self.judged if j.fits)

    # --- a table ---

    def lines(self) -> list[str]:
        """Predicted milliseconds, of them waiting, bytes sent and held."""
        titles = [self._title(j.candidate) for j in self.judged]
        width = max([WIDTH, *map(len, titles)])
        numbers = f"{'ms':>9} {'waiting':>9} {'sends':>10} {'holds':>10}"
        rows = [f"{'plan':{width}} {numbers}  devices"]
        for title, j in zip(titles, self.judged, strict=True):
            rows.append(f"{title:{width}} {self._line(j)}")
        rows += [f"{plan}: impossible: {why}" for plan, why in self.impossible]
        rows.append(f"{len(self.judged)} of {self.considered} plans judged")
        return rows + self._of_best()

    def _line(self, j: Judged) -> str:
        mark = "" if j.fits else f"  needs more memory than @{j.fullest} has"
        mark = "  <- taken" if j is self.best else mark
        ms, waiting = (1e3 * s for s in (j.cost.seconds, j.cost.waiting))
        sent, held = bytes_text(j.cost.sent), bytes_text(j.memory)
        count = f"{len(j.candidate.devices)} of {len(self.devices)}"
        return f"{ms:9.2f} {waiting:9.2f} {sent:>10} {held:>10}  {count}{mark}"

    def _of_best(self) -> list[str]:
        best, rows = self.best, []
        if left := [d for d in self.devices if d not in best.candidate.devices]:
            rows.append(f"left out: {', '.join(left)}")
        for axis, cut in self.describe(best.candidate).items():
            rows.append(f"cut along {axis}: {cut}")
        if best.alive:
            rows.append(f"microbatches alive by stage: {_list(best.alive)}")
        return rows

    def _title(self, candidate: Candidate) -> str:
        number = f" cut={_list(candidate.groups)}"
        return str(candidate) + (number if candidate.groups else "")

    def describe(self, candidate: Candidate) -> dict[str, str]:
        """By axis the parameters that it cuts, with their dimensions."""
        found: dict[str, list[str]] = {}
        for axis, _, group in candidate.cuts(self.groups):
            found.setdefault(axis, []).append(str(group))
        return {
            axis: "; ".join(said) for axis, said in found.items() if axis != SEQUENCE
        }

    # --- plain data ---

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON: seconds and bytes."""
        return {
            "plans": [self._plan(j) for j in self.judged],
            "impossible": [{"plan": p, "why": why} for p, why in self.impossible],
            "considered": self.considered,
        }

    def _plan(self, j: Judged) -> dict[str, Any]:
        c = j.candidate
        return {
            "plan": self._title(c),
            "taken": j is self.best,
            "fits": j.fits,
            "seconds": j.cost.seconds,
            "compute": j.cost.compute,
            "waiting": j.cost.waiting,
            "sent": j.cost.sent,
            "memory": j.held,
            "alive": list(j.alive),
            "bubble": j.bubble,
            "mesh": c.axes,
            "devices": list(c.devices),
            "flags": self.flags(c),
            "sharding": self.sharding(c),
        }

    def flags(self, candidate: Candidate) -> list[str] | None:
        """What asks `pcp-compile` for the plan, with `sharding` as a file besides.

        None where it does not lie on the cluster's first devices in their order.
        """
        c = candidate
        if c.devices != self.devices[: len(c.devices)]:
            return None
        axes = ",".join(f"{axis}={n}" for axis, n in c.axes.items())
        flags = ["--mesh", axes]
        if c.zero and c.dp > 1:
            flags += ["--zero", str(c.zero)]
        if c.split:
            flags += ["--split", f"{BATCH}={_list(c.split)}"]
        if c.pp > 1:
            flags += ["--microbatches", str(c.microbatches), "--schedule", c.schedule]
            flags += ["--tied"] if self.tied else []
        return flags

    def sharding(self, candidate: Candidate) -> dict[str, list[list[str]]]:
        """How tensors lie, as `--sharding` reads it; empty where `auto` does it."""
        cut = {
            escape(name): [[]] * d + [[axis]]
            for axis, _, group in candidate.cuts(self.groups)
            for name, d in group.cut.items()
        }
        data = data_axes(candidate)
        if cut and any(data):
            cut |= {
                escape(n): [list(a) for a in data[:rank]]
                for n, rank in self.data.items()
            }
        return cut


def _list(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
