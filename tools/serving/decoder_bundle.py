"""The bundle to serve of a folder of transformers: its program, compiled."""

import tempfile
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.errors import UsageError
from pcp.frontends.decoders import families, pipeline_parallel, program
from pcp.frontends.decoders.sampler import IN_PARTS
from pcp.frontends.decoders.spec import Decoder
from pcp.frontends.decoders.stored import INTEGERS
from pcp.frontends.decoders.tensor_parallel import layouts, layouts_of_weights
from pcp.manifest import TensorSpec
from pcp.mesh import Mesh
from pcp.serving import shards
from pcp.serving import weights as weight_files
from pcp.tools.serving.serving_mesh import PP, TP, sizes

PHASES = ("prefill:32,128", "decode:1,2,4,8")
CONTEXT = 1024


def compile_folder(
    folder: str | Path,
    phases: Sequence[str] = PHASES,
    context: int | Sequence[int] = (),
    *,
    mesh: Mapping[str, int] | None = None,
    weights: str = "f32",
    targets: Sequence[str] = ("cpu",),
    sampler: bool = False,
    **options: Any,
) -> Bundle:
    """Prefill and decode functions of a model for these targets, from config.json.

    `context` is how many positions a slot has, or several numbers, which give functions
    for each; left out, as many as the model has and at most 1024. The model is spread
    over `mesh`, by heads along its axis `tp` and by layers along `pp`. The weights of
    products are `weights`: f32, bf16, f16, int8 or int4; those of integers are not cut
    along `tp`. With `sampler` there are functions that draw tokens, too: not where
    `tp` cuts the vocabulary into unequal parts. `options` are fields
    of `CompileOptions`. Decoding gains from IREE's O3, which is the default here.
    """
    spec = families.read(folder)
    contexts = [context] if isinstance(context, int) else list(context)
    contexts = contexts or [min(CONTEXT, spec.positions)]
    wanted = program.phases(phases, contexts)
    options = {"opt_level": "O3", "source": str(folder), **options}
    options |= {"targets": tuple(targets), "mode": "forward", "entry": wanted[0].name}
    axes = {**(mesh or {})}
    members, stages = sizes(axes)
    if members > 1 and weights in INTEGERS:
        raise UsageError(
            f"weights {weights} over {TP}={members}: panels of integers are not cut; "
            f"take bf16 or f16, or stages ({PP}) alone"
        )
    of_layers = pipeline_parallel.of_layers(spec, stages) if stages > 1 else ()
    flat = spec.kv_heads % members == 0
    parts = _parts(spec, members) if sampler else 0
    made = {"weights": weights, "stages": of_layers, "parts": parts}
    module = program.build(spec, wanted, flat=flat, **made)
    if members * stages == 1:
        return driver.compile(module, CompileOptions(**options))
    options["mesh"] = ",".join(f"{axis}={n}" for axis, n in axes.items())
    if stages > 1:
        options |= {"microbatches": 1, "tied": spec.tied}
    if members == 1:
        return driver.compile(module, CompileOptions(**options, inflight=0))
    cut: dict[str, object] = {}
    for phase in wanted:
        cut |= layouts(spec, members, phase)
    if parts > 1:
        cut |= {name: ((), (TP,)) for name in IN_PARTS}
    with tempfile.TemporaryDirectory(prefix="pcp-sharding-") as scratch:
        said = {escape(name): axes for name, axes in cut.items()}
        path = Path(scratch) / "sharding.json"
        path.write_text(strict_json.dumps({"tensors": said}))
        spread = {"sharding": str(path), "inflight": 0}
        return driver.compile(module, CompileOptions(**options, **spread))


def _parts(spec: Decoder, members: int) -> int:
    """Of the vocabulary, where a program samples; 0 where it cannot."""
    if spec.tied:
        return 1
    return 0 if spec.vocabulary % members else members


def parameters(spec: Decoder, mesh: Mapping[str, int]) -> list[TensorSpec]:
    """What a model's weights have to be, and how they are cut over a mesh."""
    members, _ = sizes(mesh)
    cut = layouts_of_weights(spec, members) if members > 1 else {}
    return [
        TensorSpec(
            name=piece.name,
            role="frozen",
            shape=piece.shape,
            dtype="f32",
            sharding=_whole(cut.get(piece.name, ()), len(piece.shape)),
        )
        for piece in spec.pieces().values()
    ]


def of_ranks(spec: Decoder, mesh: Mesh) -> list[list[TensorSpec]]:
    """The weights that each rank has, of which it has the part of its place."""
    wanted = parameters(spec, mesh.axes)
    _, stages = sizes(mesh.axes)
    holders = pipeline_parallel.holders(spec, stages)
    places = [place.get(PP, 0) for place in mesh.members]
    return [[spec for spec in wanted if at in holders[spec.name]] for at in places]


def check_weights(folder: str | Path, mesh: Mapping[str, int]) -> None:
    """`ConfigError` names tensors that a folder lacks, or that have another shape.

    Of a folder of `pcp shard` those of rank 0 are looked at.
    """
    spec, axes = families.read(folder), {**mesh}
    if not axes:
        weight_files.views(weight_files.mapped(folder), parameters(spec, {}), folder)
        return
    part = shards.Part(Mesh("mesh", axes), 0)
    found = shards.files(folder, part)
    wanted = of_ranks(spec, part.mesh)[0] if found.cut else parameters(spec, axes)
    shards.check(found, wanted, folder, part)


def _whole(axes: tuple[tuple[str, ...], ...], rank: int) -> tuple[tuple[str, ...], ...]:
    """Later dimensions are whole."""
    return (*axes, *[()] * (rank - len(axes))) if axes else ()
