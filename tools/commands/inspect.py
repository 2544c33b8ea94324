"""pcp inspect: what a bundle holds, after checking that it is whole.

pcp inspect model.sm_90a.pcp
pcp inspect model.pcp --ir program > program.mlir
pcp inspect model.pcp --plan -o plan.html
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from pcp.bundle import (
    Bundle,
    Function,
    Manifest,
    Method,
    TensorSpec,
    manifest_bytes,
)
from pcp.errors import ConfigError, UsageError
from pcp.passes.core.sizes import bytes_text as _bytes
from pcp.runtime.program import threads
from pcp.tools.pages import plan
from pcp.tools.pages.plan_page import page
from pcp.tools.profile import ptx
from pcp.tools.support.command import Parser, run

PROG = "pcp inspect"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    if flags.output and not flags.plan:
        raise UsageError("-o goes with --plan; the rest is printed")
    if flags.plan:
        return _draw(flags.file, flags.output or Path("plan.html"))
    bundle = Bundle.read(flags.file)
    if flags.extract:
        for path in extract(bundle, flags.extract):
            print(path)
    elif flags.ir:
        print(bundle.ir(flags.ir), end="")
    elif flags.json:
        print(manifest_bytes(bundle.manifest).decode(), end="")
    else:
        print("\n".join(describe(bundle, flags.file, tensors=flags.tensors)))
    return 0


def parser() -> Parser:
    """Its flags."""
    about = (__doc__ or "").strip().splitlines()
    parser = Parser(prog=PROG, description=about[0], example="\n  ".join(about[2:]))
    add = parser.add_argument
    add("file", metavar="FILE.pcp", help="with --plan also partitioned MLIR")
    add("--tensors", action="store_true", help="every input and result, by name")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--json", action="store_true", help="the manifest as it is")
    one.add_argument("--ir", metavar="NAME", help="print ir/NAME.mlir")
    one.add_argument("--plan", action="store_true", help="who holds what, as a page")
    one.add_argument("--extract", metavar="DIR", type=Path, help="write all members")
    add("-o", dest="output", metavar="PAGE.html", type=Path, help="of --plan")
    return parser


def _draw(source: str, output: Path) -> int:
    """Write the page of a bundle with programs, or of partitioned MLIR."""
    if output.suffix not in (".html", ".htm"):
        raise UsageError(f"-o {output}: the plan is a page of HTML; name it *.html")
    if source.endswith((".mlir", ".mlirbc")):
        from pcp.dialect.context import read
        from pcp.tools.pages.plan_of_ir import of_module

        found = of_module(read(source), Path(source).name)
    else:
        found = plan.of_bundle(Bundle.read(source), Path(source).name)
    output.write_text(page(found))
    print(f"wrote {output}")
    return 0


def extract(bundle: Bundle, folder: Path) -> Iterator[Path]:
    """Write the manifest and the members under `folder`, which must not hold them."""
    contents = {"manifest.json": manifest_bytes(bundle.manifest)}
    for name, content in (contents | dict(bundle.members)).items():
        path = folder / name
        if path.exists():
            raise ConfigError(f"{path} is there already; extract to a new folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        yield path


# --- the summary -------------------------------------------------------------


def describe(bundle: Bundle, source: str, *, tensors: bool = False) -> Iterator[str]:
    """The lines that a person reads first."""
    manifest = bundle.manifest
    size = sum(member.bytes for member in manifest.members.values())
    made_by = ", ".join(f"{k} {v}" for k, v in manifest.producer.items())
    what = f"{manifest.mode} bundle of @{manifest.entry}"
    yield f"{source}: {what}, {_bytes(size)}, whole"
    yield f"digest      sha256:{bundle.digest}"
    yield f"made by     {made_by}"
    yield f"parameters  {_parameters(manifest)}"
    yield from _methods(manifest)
    for name, mesh in manifest.mesh.items():
        axes = ", ".join(
            f"{a}={'elastic' if n < 0 else n}" for a, n in mesh.axes.items()
        )
        yield f"mesh        {name}: {axes}"
    yield from _functions(manifest, tensors)
    yield from _collectives(manifest)
    if manifest.programs:
        yield from plan.lines(plan.of_bundle(bundle, source))
    yield from _modules(bundle)
    yield from _threads(manifest)
    ir = ", ".join(n[3:-5] for n in bundle.members if n.startswith("ir/"))
    yield f"ir          {ir or 'none'} (print one with --ir NAME)"


def _threads(manifest: Manifest) -> Iterator[str]:
    """With how many threads a member runs, and what its largest call costs."""
    members = [manifest.of_device(name) for name in manifest.programs] or [manifest]
    each = [list(member.functions.values()) for member in members]
    if count := max((f.work for functions in each for f in functions), default=0):
        ways = ("one" if threads.is_small(some) else "each core's" for some in each)
        many = " or ".join(dict.fromkeys(ways))
        yield f"threads     {many} of a CPU: {count:,} operations and bytes a call"


def _parameters(manifest: Manifest) -> str:
    count = sum(prod(p.shape) for p in manifest.parameters)
    kinds = ", ".join(
        sorted(
            {
                p.dtype + (f", masters of {p.compute}" if p.compute else "")
                for p in manifest.parameters
            }
        )
    )
    if not manifest.parameters:
        return "none"
    return f"{len(manifest.parameters)} tensors, {count:,} numbers ({kinds})"


def _methods(manifest: Manifest) -> Iterator[str]:
    for what in ("optimizer", "algorithm"):
        method: Method | None = getattr(manifest, what)
        if method is not None:
            hyper = " ".join(f"{k}={v}" for k, v in method.hyper.items())
            yield f"{what:<11} {method.kind} {hyper}".rstrip()
    if (plan := manifest.training) is not None:
        facts = plan.model_dump(exclude={"synchronize"}, exclude_defaults=True)
        said = " ".join(f"{k}={v}" for k, v in facts.items())
        yield f"{'exchange':<11} {plan.synchronize} {said}".rstrip()


def _functions(manifest: Manifest, tensors: bool) -> Iterator[str]:
    yield "functions"
    width = max(map(len, manifest.functions), default=0)
    for name, function in manifest.functions.items():
        flow = f"{_roles(function.inputs)} -> {_roles(function.results)}"
        donated = f"; consumes {len(function.donates)}" if function.donates else ""
        yield f"  {name:<{width}}  {flow}{donated}"
        if tensors:
            yield from _tensors(function)


def _roles(tensors: Sequence[TensorSpec]) -> str:
    counts = Counter(tensor.role for tensor in tensors)
    return ", ".join(f"{n} {role}" for role, n in counts.items()) or "nothing"


def _tensors(function: Function) -> Iterator[str]:
    for arrow, tensors in (("<-", function.inputs), ("->", function.results)):
        for i, t in enumerate(tensors):
            consumed = arrow == "<-" and i in function.donates
            note = " consumed" if consumed else ""
            yield f"    {arrow} {t.role:<8} {t.name}  {_type(t.shape, t.dtype)}{note}"


def _collectives(manifest: Manifest) -> Iterator[str]:
    if manifest.collectives:
        yield "collectives"
    for name, c in manifest.collectives.items():
        what = " ".join(filter(None, [c.kind, c.reduction]))
        over = f" over {','.join(c.axes)}" if c.axes else ""
        if "function" in c.attributes:  # of the host
            over = f" @{c.attributes['function']}"
        yield f"  {name}  {what}{over}  {_type(c.shape, c.dtype)}  {_bytes(c.bytes)}"


def _modules(bundle: Bundle) -> Iterator[str]:
    yield "modules"
    for target, module in bundle.manifest.modules.items():
        content = bundle.members[module.file]
        found = ptx.chips(content)
        code = f", PTX for {', '.join(found)}" if found else ""
        how = f"{module.backend}, runs on {module.driver}"
        yield f"  {target}  {how}, {_bytes(len(content))}{code}"


def _type(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
