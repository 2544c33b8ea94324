"""The work of pcp-compile on one file: read, compile, write, say what was written."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pcp import whole_file
from pcp.compiler import driver, emission
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import Target, find
from pcp.dialect.bindings import ir
from pcp.dialect.context import read
from pcp.errors import UsageError
from pcp.signing import BUNDLE
from pcp.tools import kept_bundle
from pcp.tools.kept_bundle import Kept, Niche
from pcp.tools.support import hf_training
from pcp.tools.support.progress import doing
from pcp.tools.support.protection import signer

SUFFIXES = {"bundle": "pcp", "vmfb": "vmfb", "mlir": "mlir"}


def compile_file(
    flags: Namespace, options: CompileOptions, place: Niche | None = None
) -> str:
    """Compile the model and write what `flags.emit` names; returns what to say.

    A bundle that has a `place` is kept there.
    """
    options = options if place is None else place.listening
    # Before the slow part:
    targets = [find(name) for name in dict.fromkeys(options.target_names)]
    if flags.emit != "bundle" and len(targets) > 1:
        raise UsageError(f"--emit {flags.emit} writes one target, not {len(targets)}")
    named = [target.name for target in targets] if flags.target else ()
    by = signer(flags)
    if by is not None and flags.emit != "bundle":
        raise UsageError(f"--sign signs a bundle, and --emit {flags.emit} writes none")
    name = output_name(options.source, named, flags.emit)
    output = Path(flags.output or name)
    module = read_program(flags, options)
    if flags.emit == "mlir":
        _write(output, _text(module, options, targets).encode())
        return f"wrote {output}"
    what = f"compiling for {', '.join(t.name for t in targets)}"
    path = Path(flags.model or "")
    with doing(what, path.stat().st_size if path.is_file() else 1) as now:
        bundle = driver.compile(module, replace(options, timed=both(now, options)))
    if by is not None:
        bundle.signed(by.sign(BUNDLE, bundle.digest)).write(output)
    content = bundle.module() if flags.emit == "vmfb" else bundle.to_bytes()
    if by is None:
        _write(output, content)
    about = kept_bundle.about(bundle.manifest.mode, tuple(bundle.manifest.functions))
    kept = Kept(content, tuple(place.said) if place else (), name, about)
    if place is not None:
        place.put(kept)
    return kept_bundle.summary(kept, output)


def new_bundle(
    module: ir.Module,
    options: CompileOptions,
    place: Niche | None,
    timed: Callable[[str], None],
) -> bytes:
    """The bundle of a training run, which is kept if it has a place."""
    asked = options if place is None else place.listening
    bundle = driver.compile(module, replace(asked, timed=timed))
    content, manifest = bundle.to_bytes(), bundle.manifest
    if place is not None:
        name = output_name(options.source, options.target_names)
        about = kept_bundle.about(manifest.mode, tuple(manifest.functions))
        place.put(Kept(content, tuple(place.said), name, about))
    return content


def both(now: Callable[[str], None], options: CompileOptions) -> Callable[[str], None]:
    """Tells of each module that is made: on the terminal's line and as asked."""

    def tell(text: str) -> None:
        now(text)
        options.tell_time(text)

    return tell


def read_program(flags: Namespace, options: CompileOptions) -> ir.Module:
    """The model's file, or what is traced of a folder of transformers."""
    if (request := hf_training.requested(flags)) is None:
        return read(flags.model)
    training = options.mode in (None, "train")
    return hf_training.exported(request, training=training, seed=None).module


def _text(module: ir.Module, options: CompileOptions, targets: Sequence[Target]) -> str:
    """What IREE would be given; for a mesh, the programs of all devices."""
    program = driver.lower(module, options)
    if program.mesh is not None:
        return str(program.module)
    pairs = emission.tuned([(program.module, targets[0])], options.tuning)
    return emission.target_text(*pairs[0]).plain


def output_name(model: str, targets: Sequence[str], emit: str = "bundle") -> str:
    """`model.sm_90a.pcp` for one target, `model.pcp` for several."""
    stem = Path(model).stem
    middle = f".{find(targets[0]).file_name}" if len(targets) == 1 else ""
    return f"{stem}{middle}.{SUFFIXES[emit]}"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file.replacing(path, durable=True) as file:
        file.write(content)
