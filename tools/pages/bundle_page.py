"""A bundle as HTML: functions, tensors, collectives, kernels, and the plan, if any.

`programs` shows those of a run's folder; a run's page has them
(`pcp.training.observe.page_files`). Nothing is compiled or run, and all that stands in
a bundle is escaped.
"""

from collections.abc import Iterator
from functools import lru_cache
from html import escape
from pathlib import Path

from pcp.bundle import Bundle, Collective, TensorSpec
from pcp.errors import PcpError, counted
from pcp.passes.core.sizes import bytes_text
from pcp.tools.pages import plan
from pcp.tools.pages.plan_page import STYLE, parts, table
from pcp.tools.pages.program_lines import PROGRAM, Tensor, calls, reads
from pcp.tools.profile import ptx
from pcp.training.storage.run_folder import RunFolder

_KEPT = 64
"""Pages that are kept, by file and time: a reader asks again and again."""


def programs(run: Path) -> dict[str, str]:
    """What each bundle in a run's folder holds, by the file's name; HTML."""
    found = RunFolder(run).bundles
    return {path.stem: _page(path, path.stat().st_mtime_ns) for path in found}


@lru_cache(_KEPT)
def _page(path: Path, _: int) -> str:
    try:
        inside = list(content(Bundle.read(path), path.name))
    except (PcpError, OSError) as error:
        inside = [f"<p>{escape(str(error))}</p>"]
    return f"<style>{STYLE}</style>{''.join(inside)}"


def content(bundle: Bundle, title: str) -> Iterator[str]:
    """The parts of the page."""
    manifest = bundle.manifest
    size = sum(member.bytes for member in manifest.members.values())
    made_by = ", ".join(
        f"{name} {version}" for name, version in manifest.producer.items()
    )
    methods = [m for m in (manifest.optimizer, manifest.algorithm) if m is not None]
    said = ", ".join(
        [f"{manifest.mode} of @{manifest.entry}", *(m.kind for m in methods)]
    )
    yield (
        f"<p>{escape(said)}; {bytes_text(size)}; by {escape(made_by)}; "
        f"<code>sha256:{bundle.digest[:16]}</code></p>"
    )
    if manifest.programs:
        yield from parts(plan.of_bundle(bundle, title))
    else:
        yield "<p>One program for every worker: each holds all of it.</p>"
        yield from _tensors(bundle)
        yield from _collectives(bundle)
    yield from _functions(bundle)
    yield from _modules(bundle)


def _functions(bundle: Bundle) -> Iterator[str]:
    rows = [
        (
            name,
            counted(len(f.inputs), "tensor"),
            bytes_text(sum(t.nbytes for t in f.inputs)),
            counted(len(f.results), "tensor"),
            bytes_text(sum(t.nbytes for t in f.results)),
            str(len(f.donates) or ""),
        )
        for name, f in bundle.manifest.functions.items()
    ]
    titles = ("function", "takes", "#bytes", "gives", "#bytes", "#consumed")
    yield f"<h2>Functions</h2><div class='card'>{table(titles, rows)}</div>"


def _tensors(bundle: Bundle) -> Iterator[str]:
    """The inputs of all functions, each name once, the largest first."""
    lines, specs = reads(bundle), dict[Tensor, TensorSpec]()
    for function in bundle.manifest.functions.values():
        for spec in function.inputs:
            specs.setdefault((spec.role, spec.name), spec)
    rows = [
        (
            t.name,
            t.role,
            _type(t),
            lines.get((t.role, t.name), ""),
            bytes_text(t.nbytes),
        )
        for t in sorted(specs.values(), key=lambda t: -t.nbytes)
    ]
    titles = ("tensor", "role", "type", "first read at line", "#bytes")
    yield (
        f"<h2>Tensors <small class='soft'>lines of {PROGRAM}</small></h2>"
        f"<div class='card'>{table(titles, rows)}</div>"
    )


def _collectives(bundle: Bundle) -> Iterator[str]:
    found, lines = bundle.manifest.collectives, calls(bundle)
    if not found:
        return
    rows = [
        (
            name,
            " ".join(filter(None, [c.kind, c.reduction])),
            ", ".join(c.axes),
            _type(c),
            ", ".join(map(str, lines.get(name, ()))),
            bytes_text(c.bytes),
        )
        for name, c in found.items()
    ]
    titles = ("collective", "what", "axes", "type", "called at line", "#bytes")
    yield f"<h2>Collectives</h2><div class='card'>{table(titles, rows)}</div>"


def _modules(bundle: Bundle) -> Iterator[str]:
    """Each target's module and its kernels; of PTX what is known of each."""
    yield "<h2>Modules and their kernels</h2>"
    for name, module in bundle.manifest.modules.items():
        code = bundle.members[module.file]
        kernels = _kernels(code)
        yield (
            f"<details><summary><b>{escape(name)}</b> for {escape(module.target)}: "
            f"{escape(module.backend)}, runs on {escape(module.driver)}, "
            f"{bytes_text(len(code))}, {counted(len(kernels), 'kernel')}</summary>"
            f"<div class='card'>{table(('kernel', '#threads', 'remarks'), kernels)}"
            "</div></details>"
        )


def _kernels(code: bytes) -> list[tuple[str, str, str]]:
    known = ptx.kernels(code, assemble=False)
    if known:
        return [(k.name, str(k.threads), ", ".join(k.remarks)) for k in known]
    return [(name, "", "") for name in ptx.names(code)]


def _type(tensor: TensorSpec | Collective) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
