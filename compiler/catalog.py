"""The only lists: every pcp pass by name, imported when it is asked for.

`register` adds a pass from outside.
"""

import functools
import re
from collections.abc import Iterator
from importlib import import_module

from pcp.dialect.bindings import PassManager, ir
from pcp.dialect.context import register_passes
from pcp.errors import ConfigError, PassError, nearest
from pcp.passes.core.base import CppPasses, Pass, Pipeline, parse_pipeline

PASSES: dict[str, str] = {
    "pcp-infer-roles": "pcp.passes.ingest.infer_roles:InferRoles",
    "pcp-lower-to-runtime": "pcp.passes.collectives.lower_to_runtime:LowerToRuntime",
    "pcp-lower-to-stablehlo-collectives": (
        "pcp.passes.collectives.lower_to_stablehlo_collectives:LowerToStablehloCollectives"
    ),
    "pcp-verify-inplace": "pcp.passes.verify.verify_inplace:VerifyInplace",
    "pcp-keep-carries": "pcp.passes.legalize.ownership.keep_carries:KeepCarries",
    "pcp-protect-arguments": (
        "pcp.passes.legalize.ownership.protect_arguments:ProtectArguments"
    ),
    "pcp-accumulate": "pcp.passes.training.accumulate:Accumulate",
    "pcp-expand-training": "pcp.passes.training.expand_training:ExpandTraining",
    "pcp-share-functions": "pcp.passes.simplify.share_functions:ShareFunctions",
    "pcp-split-functions": "pcp.passes.simplify.split_functions:SplitFunctions",
    "pcp-stack-updates": "pcp.passes.simplify.stack_updates:StackUpdates",
    "pcp-stack-arguments": "pcp.passes.simplify.stack_arguments:StackArguments",
    "pcp-strip-metadata": "pcp.passes.ingest.strip_metadata:StripMetadata",
    "pcp-assign-target": "pcp.passes.legalize.assign_target:AssignTarget",
    "pcp-batch-lookups": "pcp.passes.simplify.batch_lookups:BatchLookups",
    "pcp-expand-batch-dims": "pcp.passes.simplify.expand_batch_dims:ExpandBatchDims",
    "pcp-checkpoint-loops": "pcp.autodiff.loops.checkpoint_loops:CheckpointLoops",
    "pcp-demote-indices": "pcp.passes.legalize.demote_indices:DemoteIndices",
    "pcp-import": "pcp.passes.ingest.import_:Import",
    "pcp-bucket-collectives": (
        "pcp.passes.collectives.bucket_collectives:BucketCollectives"
    ),
    "pcp-compress-collectives": (
        "pcp.passes.collectives.compress_collectives:CompressCollectives"
    ),
    "pcp-overlap-collectives": (
        "pcp.passes.collectives.overlap_collectives:OverlapCollectives"
    ),
    "pcp-device-precision": "pcp.passes.legalize.device_precision:DevicePrecision",
    "pcp-inline-composites": "pcp.autodiff.passes.inline_composites:InlineComposites",
    "pcp-divide-late": "pcp.passes.simplify.divide_late:DivideLate",
    "pcp-expand-doubles": (
        "pcp.passes.legalize.functions.expand_doubles:ExpandDoubles"
    ),
    "pcp-expand-shader-functions": (
        "pcp.passes.legalize.devices.expand_shader_functions:ExpandShaderFunctions"
    ),
    "pcp-insert-reshards": "pcp.passes.sharding.insert_reshards:InsertReshards",
    "pcp-name-exchanges": "pcp.passes.collectives.name_exchanges:NameExchanges",
    "pcp-one-owner": "pcp.passes.sharding.one_owner:OneOwner",
    "pcp-partition": "pcp.passes.sharding.partition:Partition",
    "pcp-plan": "pcp.passes.planning.plan:Plan",
    "pcp-propagate-sharding": (
        "pcp.passes.sharding.propagate_sharding:PropagateSharding"
    ),
    "pcp-isolate-conversions": (
        "pcp.passes.legalize.isolate_conversions:IsolateConversions"
    ),
    "pcp-isolate-gathers": "pcp.passes.legalize.isolate_gathers:IsolateGathers",
    "pcp-isolate-sorts": "pcp.passes.legalize.devices.isolate_sorts:IsolateSorts",
    "pcp-spread-reductions": (
        "pcp.passes.legalize.devices.spread_reductions:SpreadReductions"
    ),
    "pcp-spread-scatters": (
        "pcp.passes.legalize.devices.spread_scatters:SpreadScatters"
    ),
    "pcp-unfold-transforms": (
        "pcp.passes.legalize.devices.unfold_transforms:UnfoldTransforms"
    ),
    "pcp-ungroup-convolutions": (
        "pcp.passes.legalize.devices.ungroup_convolutions:UngroupConvolutions"
    ),
    "pcp-widen-masks": "pcp.passes.legalize.devices.widen_masks:WidenMasks",
    "pcp-legalize": "pcp.passes.legalize.legalize:Legalize",
    "pcp-master-weights": "pcp.passes.training.master_weights:MasterWeights",
    "pcp-first-values": "pcp.passes.training.first_values:FirstValues",
    "pcp-freeze": "pcp.passes.training.freeze:Freeze",
    "pcp-lora": "pcp.passes.training.lora:Lora",
    "pcp-precision": "pcp.passes.training.precision:Precision",
    "pcp-roll-layers": "pcp.passes.simplify.roll_layers:RollLayers",
    "pcp-simplify": "pcp.passes.simplify.simplify:Simplify",
    "pcp-schedule": "pcp.passes.pipeline.schedule:SchedulePass",
    "pcp-lower-schedule": "pcp.passes.pipeline.lower_schedule:LowerSchedule",
    "pcp-kernels": "pcp.passes.kernels.own_kernels:OwnKernels",
    "pcp-promote-products": "pcp.passes.kernels.promote_products:PromoteProducts",
    "pcp-schedule-kernels": ("pcp.passes.kernels.schedule_kernels:ScheduleKernels"),
    "pcp-sink-products": "pcp.passes.kernels.sink_products:SinkProducts",
    "pcp-stage": "pcp.passes.pipeline.stage:Stage",
    "pcp-share-updates": "pcp.passes.sharding.zero:ShareUpdates",
    "pcp-split-batch": "pcp.passes.sharding.split_batch:SplitBatch",
    "pcp-split-contractions": (
        "pcp.passes.simplify.split_contractions:SplitContractions"
    ),
    "pcp-split-reductions": "pcp.passes.simplify.split_reductions:SplitReductions",
    "pcp-declare-grad": "pcp.autodiff.passes.declare_grad:DeclareGrad",
    "pcp-grad": "pcp.autodiff.passes.derivatives:Grad",
    "pcp-jvp": "pcp.autodiff.passes.derivatives:Jvp",
    "pcp-remat": "pcp.autodiff.remat.remat:Remat",
    "pcp-verify-owners": "pcp.passes.verify.verify_owners:VerifyOwners",
    "pcp-verify-plan": "pcp.passes.verify.verify_plan:VerifyPlan",
    "pcp-vjp": "pcp.autodiff.passes.derivatives:Vjp",
    "pcp-zero": "pcp.passes.sharding.zero:Zero",
}

# MLIR cannot list its own passes through the bindings. These are the ones worth
# suggesting; any other that the wheel has registered runs too.
MLIR_PASSES: dict[str, str] = {
    "canonicalize": "fold, and drop what is dead",
    "chlo-legalize-to-stablehlo": "CHLO to StableHLO (on func.func)",
    "cse": "merge equal pure ops",
    "inline": "inline calls",
    "loop-invariant-code-motion": "hoist what does not change out of loops",
    "remove-dead-values": "drop unused arguments, results and values",
    "sccp": "sparse conditional constant propagation",
    "stablehlo-canonicalize-dynamism": "constant dynamic ops to static (on func.func)",
    "stablehlo-complex-math-expander": "complex maths to real (on func.func)",
    "stablehlo-refine-shapes": "infer static shapes from static arguments",
    "strip-debuginfo": "drop locations",
    "symbol-dce": "drop unused private symbols",
    "symbol-privatize": "make symbols private",
}


_registered: dict[str, type[Pass]] = {}


def register(cls: type[Pass]) -> None:
    """Know a pass from outside by its name; again does nothing.

    `ConfigError` for a name that another pass has, and for `pcp-...`.
    """
    name = cls.name
    if not name or name.startswith("pcp-") or name in MLIR_PASSES:
        raise ConfigError(
            f"{cls.__name__}: name={name!r} must be a name of its own, and none of "
            "pcp's, pcp-..., nor of MLIR's passes"
        )
    if _registered.setdefault(name, cls) is not cls:
        raise ConfigError(f"pass {name} is already there, {_registered[name]}")


def names() -> list[str]:
    """The passes that are not MLIR's own."""
    return sorted([*PASSES, *_registered])


def known() -> list[str]:
    """Every name to suggest when one is unknown."""
    return sorted([*names(), *MLIR_PASSES])


def lookup(name: str) -> type[Pass] | None:
    """The class of a pcp pass, or None when it must be one of MLIR's own."""
    if name in _registered:
        return _registered[name]
    if (target := PASSES.get(name)) is None:
        if name.startswith("pcp-"):
            raise PassError(f"no pass named {name!r}.{nearest(name, PASSES)}")
        return None
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def summaries() -> Iterator[tuple[str, str]]:
    """Each known pass with its one line: pcp's from the docstrings, then MLIR's."""
    for name in names():
        cls = lookup(name)
        yield name, ((cls and cls.__doc__) or "").strip().partition("\n")[0]
    yield from sorted(MLIR_PASSES.items())


def pipeline(text: str) -> Pipeline:
    """Parse a pipeline string against this catalog, MLIR's own passes included."""
    parsed = parse_pipeline(text, lookup)
    for step in parsed.steps:
        if isinstance(step, CppPasses) and (problem := _rejected(step.text)):
            raise PassError(problem)
    return parsed


def step_text(name: str, options: str = "") -> str:
    """A pass flag (`--name=options`) as the pipeline string writes it.

    A pass of MLIR's that runs on functions is nested in `func.func(...)`, as
    mlir-opt does for flags.
    """
    text = f"{name}{{{options}}}" if options else name
    if lookup(name) is None and "restricted to 'func.func'" in (_rejected(text) or ""):
        return f"func.func({text})"
    return text


def _rejected(text: str) -> str | None:
    """Why MLIR cannot read a pipeline, or None when it can."""
    error = _error_of_mlir(text)
    return None if error is None else _explain(text, error)


@functools.cache
def _error_of_mlir(text: str) -> str | None:
    """What MLIR says of a pipeline of its passes; a context to ask it takes 6 ms."""
    register_passes()
    with ir.Context():
        try:
            PassManager.parse(f"builtin.module({text})")
        except ValueError as error:
            return str(error)
    return None


def _explain(text: str, error: str) -> str:
    unknown = re.search(r"'([^']*)' does not refer to a registered pass", error)
    if unknown is None:
        return f"{text!r}: {' '.join(error.split())}"
    name = unknown.group(1)
    if name in names():
        return f"{text!r}: {name} runs on the module; write it at the top level"
    return f"no pass named {name!r}.{nearest(name, known())}"
