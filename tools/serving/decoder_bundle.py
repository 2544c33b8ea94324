"""The bundle to serve of a folder of transformers: its program, compiled."""

import tempfile
from collections.abc import Sequence
from glob import escape
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.errors import UsageError
from pcp.frontends.decoders import families, program
from pcp.frontends.decoders.spec import Decoder
from pcp.frontends.decoders.stored import INTEGERS
from pcp.frontends.decoders.tensor_parallel import AXIS, layouts, layouts_of_weights
from pcp.manifest import TensorSpec
from pcp.mesh import Mesh
from pcp.serving import shards
from pcp.serving import weights as weight_files

PHASES = ("prefill:32,128", "decode:1,2,4,8")
CONTEXT = 1024


def compile_folder(
    folder: str | Path,
    phases: Sequence[str] = PHASES,
    context: int | Sequence[int] = (),
    *,
    ranks: int = 1,
    weights: str = "f32",
    targets: Sequence[str] = ("cpu",),
    **options: Any,
) -> Bundle:
    """Prefill and decode functions of a model for these targets, from config.json.

    `context` is how many positions a slot has, or several numbers, which give functions
    for each; left out, as many as the model has and at most 1024. The model is spread
    over `ranks` by tensor parallelism. The weights of products are `weights`: f32,
    bf16, f16, int8 or int4; those of integers are on one rank. `options` are fields of
    `CompileOptions`. Decoding gains from IREE's O3, which is the default here.
    """
    spec = families.read(folder)
    contexts = [context] if isinstance(context, int) else list(context)
    contexts = contexts or [min(CONTEXT, spec.positions)]
    wanted = program.phases(phases, contexts)
    options = {"opt_level": "O3", "source": str(folder), **options}
    options |= {"targets": tuple(targets), "mode": "forward", "entry": wanted[0].name}
    if ranks > 1 and weights in INTEGERS:
        raise UsageError(
            f"weights {weights} over {ranks} ranks: panels of integers are not cut; "
            "take bf16 or f16, or one rank"
        )
    flat = spec.kv_heads % ranks == 0
    module = program.build(spec, wanted, flat=flat, weights=weights)
    if ranks == 1:
        return driver.compile(module, CompileOptions(**options))
    cut: dict[str, object] = {}
    for phase in wanted:
        cut |= layouts(spec, ranks, phase)
    with tempfile.TemporaryDirectory(prefix="pcp-sharding-") as scratch:
        said = {escape(name): axes for name, axes in cut.items()}
        path = Path(scratch) / "sharding.json"
        path.write_text(strict_json.dumps({"tensors": said}))
        spread = {"mesh": f"{AXIS}={ranks}", "sharding": str(path), "inflight": 0}
        return driver.compile(module, CompileOptions(**options, **spread))


def parameters(spec: Decoder, ranks: int) -> list[TensorSpec]:
    """What a model's weights have to be, and how they are cut over ranks."""
    cut = layouts_of_weights(spec, ranks)
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


def check_weights(folder: str | Path, ranks: int) -> None:
    """`ConfigError` names tensors that a folder lacks, or that have another shape.

    Of a folder of `pcp shard` those of rank 0 are looked at.
    """
    wanted = parameters(families.read(folder), ranks)
    if ranks == 1:
        weight_files.views(weight_files.mapped(folder), wanted, folder)
        return
    part = shards.Part(Mesh("mesh", {AXIS: ranks}), 0)
    shards.check(shards.files(folder, part), wanted, folder, part)


def _whole(axes: tuple[tuple[str, ...], ...], rank: int) -> tuple[tuple[str, ...], ...]:
    """Later dimensions are whole."""
    return (*axes, *[()] * (rank - len(axes))) if axes else ()
