"""`pcp-assign-target`: say in the IR what the module is compiled for.

The module gets `hal.device.targets`, which IREE reads. For most targets it is
an alias of the driver, and flags of IREE's say which chip (`compiler/targets.py`).
NVIDIA's chips from Hopper on are missing from those flags, so their description
stands here in full.
"""

from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.core.base import Pass

PROCESSORS = ("cpu", "aarch64")
"""Families of which a target may name a member: `cpu:<llvm cpu>`."""
ROCM = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200", "gfx1201")
CUDA = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89")


#: Chips of NVIDIA that IREE's flag does not know: the PTX that has them, and the shared
#: memory that a block may have, in bytes.
DESCRIBED = {
    "sm_90": (84, 232448),
    "sm_90a": (84, 232448),
    "sm_100": (86, 232448),
    "sm_100a": (86, 232448),
    "sm_120": (87, 101376),
    "sm_120a": (87, 101376),
}


def _described(arch: str) -> str:
    """A device of NVIDIA with compute capability 9.0 or later.

    The figures are NVIDIA's: warps of 32, 1024 threads a block, grids up to 2^31 - 1
    by 65535 by 65535. The matrix instructions are the ones of sm_80 that IREE can
    emit; later chips run them.
    """
    ptx, shared = DESCRIBED[arch]
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
        "max_workgroup_memory_bytes": str(shared),
        "max_workgroup_counts": "[2147483647, 65535, 65535]",
    }
    wgp = ", ".join(f"{key} = {value}" for key, value in fields.items())
    info = f'#iree_gpu.target<arch = "{arch}", features = "+ptx{ptx}", wgp = <{wgp}>>'
    target = (
        '#hal.executable.target<"cuda", "cuda-nvptx-fb", '
        f"{{iree_codegen.target_info = {info}}}>"
    )
    return f'#hal.device.target<"cuda", [{target}]> : !hal.device'


def _alias(driver: str) -> str:
    return f'#hal.device.alias<"{driver}"> : !hal.device'


DEVICES: dict[str, str] = {
    **dict.fromkeys(PROCESSORS, _alias("local")),
    **dict.fromkeys(CUDA, _alias("cuda")),
    **{arch: _described(arch) for arch in DESCRIBED},
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
    if family not in DEVICES or (chip and family not in PROCESSORS):
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
