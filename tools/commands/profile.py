"""pcp profile: where the time of a compiled function goes, dispatch by dispatch.

pcp profile model.pcp --function grad
pcp profile model.pcp --function grad -o grad.svg
pcp profile model.sm_90a.pcp --static
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pcp.bundle import Bundle
from pcp.errors import ConfigError, UsageError
from pcp.strict_json import dumps
from pcp.tools.profile import ptx, table
from pcp.tools.support.command import Parser, run

PROG = "pcp profile"
_CPU, _ONE_THREAD = "local-task", "local-sync"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    about = (__doc__ or "").strip().splitlines()
    parser = Parser(prog=PROG, description=about[0], example="\n  ".join(about[2:]))
    add = parser.add_argument
    add("file", metavar="FILE.pcp")
    add("--function", metavar="NAME", help="by default the entry of the bundle")
    add("--module", metavar="NAME", help="by default the first of the bundle")
    add("--device", help="of IREE; by default one thread for CPUs (local-sync)")
    add("--seconds", type=float, default=1.0, help="to measure for (default: 1)")
    add("--top", type=int, default=20, metavar="N", help="rows shown (default: 20)")
    add("--static", action="store_true", help="what stands in the PTX; runs nothing")
    add("--json", action="store_true", help="all rows, for programs")
    add("-o", dest="output", metavar="PICTURE", type=Path, help="also as a picture")
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    if flags.static and (flags.output or flags.device or flags.function):
        raise UsageError("--static runs nothing: without --function, --device and -o")
    if flags.seconds <= 0 or flags.top < 1:
        raise UsageError("--seconds and --top are larger than 0")
    bundle = Bundle.read(flags.file)
    lines = _static(bundle, flags) if flags.static else _measured(bundle, flags)
    for line in lines:
        print(line)
    return 0


def _static(bundle: Bundle, flags: Namespace) -> Iterator[str]:
    """The kernels of the bundle's PTX."""
    modules = bundle.manifest.modules
    wanted = [flags.module] if flags.module else list(modules)
    if unknown := [name for name in wanted if name not in modules]:
        known = ", ".join(modules)
        raise ConfigError(f"no module {unknown[0]!r}; there are {known}")
    found = [
        k for name in wanted for k in ptx.kernels(bundle.members[modules[name].file])
    ]
    if not found:
        targets = ", ".join(sorted({modules[name].target for name in wanted}))
        raise ConfigError(
            f"{flags.file} holds no PTX (its targets: {targets}); --static reads code "
            "for NVIDIA's GPUs, compile with --target sm_90a for example"
        )
    if flags.json:
        kernels = [asdict(k) | {"remarks": k.remarks} for k in found]
        yield dumps({"kernels": kernels}, indent=1)
        return
    yield from ptx.text(found)


def _measured(bundle: Bundle, flags: Namespace) -> Iterator[str]:
    """The dispatches of one function, run here."""
    # IREE's compiler and runtime, which --static does not need.
    from pcp.tools.profile import timing
    from pcp.tools.profile.dispatches import dispatches
    from pcp.tools.profile.programs import line, profiled
    from pcp.tools.profile.stand_in import stand_in

    found = profiled(bundle, flags.module)
    function = flags.function or bundle.manifest.entry
    device = flags.device or (_ONE_THREAD if found.driver == _CPU else found.driver)
    imports, cpu = stand_in(found.module), device == _ONE_THREAD
    # The machine may be busy for a while: the better of two moments counts.
    before = timing.peak() if cpu else None
    times = timing.measure(found.content, imports, function, device, flags.seconds)
    peak = before and before.best(timing.peak())
    known = dispatches(found.text, found.target)
    rows = [
        replace(row, op=line(bundle, row.line))
        for row in table.rows(times, known, peak)
    ]
    shown = rows[: flags.top]
    title = f"@{function} of {Path(flags.file).name} on {device}"
    if flags.output:
        table.draw(shown, title, flags.output)
    if flags.json:
        facts = {"function": function, "device": device, "ms": times.ms}
        facts["peak"] = asdict(peak) if peak else None
        yield dumps(facts | {"dispatches": table.as_json(rows)}, indent=1)
        return
    yield f"{title}: {times.ms:.3f} ms a call, {len(rows)} kernels"
    if peak:
        yield (
            f"peak of one thread, by numpy: {peak.flops / 1e9:.0f} GFLOP/s (product), "
            f"{peak.bytes / 1e9:.1f} GB/s (copy)"
        )
    if unknown := sum(row.name not in known for row in rows):
        yield f"{unknown} kernels are not in the program that the bundle holds"
    yield f"lines are those of: pcp inspect {flags.file} --ir program"
    yield from table.text(shown, function)
    if len(rows) > len(shown):
        rest = sum(row.ms for row in rows[len(shown) :])
        yield f"and {len(rows) - len(shown)} more: {rest:.3f} ms (--top N shows them)"
