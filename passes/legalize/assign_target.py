"""`pcp-assign-target`: say in the IR what the module is compiled for.

The module gets `hal.device.targets`, which IREE reads. For most targets it is
an alias of the driver, and flags of IREE's say which chip (`compiler/targets.py`).
NVIDIA's Hopper chips are missing from those flags, so their description stands
here in full.
"""

from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.core.base import Pass

ROCM = ("gfx908", "gfx90a", "gfx942", "gfx1100")
CUDA = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89")


def _hopper(arch: str) -> str:
    """A device with compute capability 9.0.

    The figures are NVIDIA's for it: 227 KiB of shared memory a block, warps of
    32, 1024 threads a block, grids up to 2^31 - 1 by 65535 by 65535. PTX 8.4
    knows `sm_90a`. The matrix instructions are the ones of sm_80 that IREE can
    emit; Hopper runs them.
    """
    sync = "NV_MMA_SYNC_F32_16x8x16_F16", "NV_MMA_SYNC_F16_16x8x16_F16"
    bf16 = ("NV_MMA_SYNC_F32_16x8x16_BF16",)
    wmma = "NV_WMMA_F32_16x16x16_F16", "NV_WMMA_F16_16x16x16_F16"
    fields = {
        "compute": "fp64|fp32|fp16|int64|int32|int16|int8",
        "storage": "b64|b32|b16|b8",
        "subgroup": "shuffle|arithmetic",
        "dot": "dp4xi8toi32",
        "mma": "[" + ", ".join(f"<{name}>" for name in (*sync, *bf16, *wmma)) + "]",
        "subgroup_size_choices": "[32]",
        "max_workgroup_sizes": "[1024, 1024, 1024]",
        "max_thread_count_per_workgroup": "1024",
        "max_workgroup_memory_bytes": "232448",
        "max_workgroup_counts": "[2147483647, 65535, 65535]",
    }
    wgp = ", ".join(f"{key} = {value}" for key, value in fields.items())
    info = f'#iree_gpu.target<arch = "{arch}", features = "+ptx84", wgp = <{wgp}>>'
    target = (
        '#hal.executable.target<"cuda", "cuda-nvptx-fb", '
        f"{{iree_codegen.target_info = {info}}}>"
    )
    return f'#hal.device.target<"cuda", [{target}]> : !hal.device'


def _alias(driver: str) -> str:
    return f'#hal.device.alias<"{driver}"> : !hal.device'


DEVICES: dict[str, str] = {
    "cpu": _alias("local"),
    **dict.fromkeys(CUDA, _alias("cuda")),
    "sm_90": _hopper("sm_90"),
    "sm_90a": _hopper("sm_90a"),
    **dict.fromkeys(ROCM, _alias("hip")),
    "vulkan": _alias("vulkan"),
    "metal": _alias("metal"),
}
"""Target -> the element of `hal.device.targets`. `cpu:<name>` is a `cpu`."""


@dataclass(frozen=True)
class AssignTarget(Pass):
    """Say in the IR which device the module is compiled for.

    Assumes nothing; leaves `hal.device.targets` and `pcp.target` on the module,
    in place of what was there. Before and after `pcp-assign-target{target=gfx942}`:

        module { func.func @main(%x: tensor<4xf32>) ... }

        module attributes {
          hal.device.targets = [#hal.device.alias<"hip"> : !hal.device],
          pcp.target = "gfx942"
        } { func.func @main(%x: tensor<4xf32>) ... }
    """

    name = "pcp-assign-target"
    target: str

    def run(self, module: ir.Module) -> None:
        """Set the attributes, or refuse an unknown target."""
        assign_target(module, self.target)


def device_attribute(target: str) -> str:
    """The `hal.device.targets` element of a target, or `PassError`."""
    family, _, chip = target.partition(":")
    if family not in DEVICES or (chip and family != "cpu"):
        raise PassError(
            f"pcp-assign-target: unknown target {target!r} "
            f"(known: {', '.join(DEVICES)}, cpu:<llvm cpu>)." + nearest(target, DEVICES)
        )
    return DEVICES[family]


def assign_target(module: ir.Module, target: str) -> None:
    """Put the device of `target` on `module`."""
    attribute = device_attribute(target)
    context = module.context
    unregistered = context.allow_unregistered_dialects
    context.allow_unregistered_dialects = True  # `hal` is IREE's own
    try:
        with context:
            attributes = module.operation.attributes
            attributes["hal.device.targets"] = ir.Attribute.parse(f"[{attribute}]")
            attributes["pcp.target"] = ir.StringAttr.get(target)
    finally:
        context.allow_unregistered_dialects = unregistered
