"""What pcp can compile for: one row a target.

    cpu            the processor family of this machine, without extensions
    cpu:host       this very processor
    cpu:<name>     a processor by LLVM's name, e.g. cpu:znver4, cpu:x86-64-v3
    aarch64        ARM under Linux, aarch64:<name> by LLVM's name, e.g. neoverse-v2
    sm_70 ...      NVIDIA, by compute capability
    gfx908 ...     AMD
    vulkan, metal  by API; 64-bit indices become 32-bit ones

A row says which compiler of IREE's, which driver runs the result, and IREE's
flags. What the IR must say is in `passes/legalize/assign_target.py`.
"""

import re
from dataclasses import dataclass, replace

from pcp.errors import ConfigError, nearest
from pcp.passes.kernels.processors import (
    far_steps,
    host_flags,
    instruction_set,
    vector_bits,
)
from pcp.passes.legalize.assign_target import CUDA, DESCRIBED, DEVICES, ROCM


@dataclass(frozen=True)
class Target:
    """One row: `flags` are IREE's; `passes` run before the module is handed over."""

    name: str
    backend: str
    driver: str
    flags: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    doubles: bool = True
    """Whether IREE compiles f64 for it, reductions included; else it becomes f32."""

    @property
    def all_flags(self) -> tuple[str, ...]:
        """`flags`, and that f64 stays f64 (IREE narrows it unasked) where it can."""
        narrow = str(not self.doubles).lower()
        return (*self.flags, f"--iree-input-demote-f64-to-f32={narrow}")

    def without(self, name: str) -> "Target":
        """The same target, without the pass of this name."""
        passes = [p for p in self.passes if p.partition("{")[0] != name]
        return replace(self, passes=tuple(passes))

    def tuned(self, rows: str) -> "Target":
        """The same target; products are as `rows` of `pcp tune` say."""
        passes = [
            f'{p.removesuffix("}")} tuned="{rows}"}}' if p.startswith(SCHEDULE) else p
            for p in self.passes
        ]
        return replace(self, passes=tuple(passes))

    @property
    def made_for(self) -> tuple[str, ...]:
        """What else than the name says which processor: that of this very machine."""
        return (host_flags(),) if self.name == "cpu:host" else ()

    @property
    def file_name(self) -> str:
        """The name with what file names do not like replaced."""
        return self.name.replace(":", "-")


OWN = "pcp-kernels"
SCHEDULE = "pcp-schedule-kernels"
_CPU = (
    "pcp-promote-products",
    "pcp-expand-doubles",
    # Else the converted updates of a scatter lie whole on its kernel's stack.
    "pcp-isolate-conversions{of=scatters}",
)


_ARM = ("--iree-llvmcpu-target-triple=aarch64-unknown-linux-gnu",)


def _cpu(name: str, cpu: str, family: tuple[str, ...] = ()) -> Target:
    flags = (
        "--iree-hal-local-target-device-backends=llvm-cpu",
        *family,
        f"--iree-llvmcpu-target-cpu={cpu}",
        # Constants are computed where the module is loaded, and by that processor. Else
        # IREE compiles them a second time to run them itself: up to half of its time.
        "--iree-opt-const-eval=false",
    )
    passes: list[str] = list(_CPU)
    if found := "aarch64" if family else instruction_set(cpu):
        passes.append(f"{OWN}{{set={found}}}")
    # For the caches, what is no kernel: a GPT's step of width 256 takes 13 % less.
    passes.append("pcp-split-contractions")
    passes.append("pcp-sink-products")  # else another kernel does what follows one
    passes.append("pcp-split-reductions")  # behind the kernels that sum up themselves
    if bits := vector_bits(cpu):
        options = f"vector={bits}"
        options += f" far={far}" if (far := far_steps(cpu)) > 1 else ""
        passes.append(f"{SCHEDULE}{{{options}}}")
    return Target(name, "llvm-cpu", "local-task", flags, tuple(passes))


# Their code generator tiles a scatter together with what makes its updates.
_TILED = (
    "pcp-spread-scatters",
    "pcp-isolate-sorts",
    "pcp-isolate-conversions{of=scatters}",
)


def _cuda(name: str, flags: tuple[str, ...] = ()) -> Target:
    own = (f"{OWN}{{set=sm_80}}",) if int(re.sub(r"\D", "", name)) >= 80 else ()
    # A sum of gathered elements is one thread's.
    passes = (*_TILED, "pcp-isolate-gathers", "pcp-spread-reductions", *own)
    return Target(name, "cuda", "cuda", flags, passes, doubles=False)


def _rocm(name: str) -> Target:
    flags = (f"--iree-rocm-target={name}",)
    return Target(name, "rocm", "hip", flags, _TILED, doubles=False)


_SPIRV = (
    "pcp-ungroup-convolutions",
    "pcp-unfold-transforms",
    "pcp-expand-shader-functions",
    "pcp-isolate-gathers",
    "pcp-isolate-sorts",
    "pcp-widen-masks",
    "pcp-isolate-conversions{of=contractions}",
    "pcp-demote-indices",
)

TARGETS: dict[str, Target] = {
    row.name: row
    for row in (
        _cpu("cpu", "generic"),
        _cpu("cpu:host", "host"),
        _cpu("aarch64", "generic", _ARM),
        *(_cuda(name, (f"--iree-cuda-target={name}",)) for name in CUDA),
        *(_cuda(name) for name in DESCRIBED),  # in the IR: IREE's flag knows none
        *(_rocm(name) for name in ROCM),
        Target("vulkan", "vulkan-spirv", "vulkan", passes=_SPIRV, doubles=False),
        Target("metal", "metal-spirv", "metal", passes=_SPIRV, doubles=False),
    )
}


def find(name: str) -> Target:
    """The row of a target, or `ConfigError` with the known ones."""
    if name in TARGETS:
        return TARGETS[name]
    family, _, chip = name.partition(":")
    if chip and family in ("cpu", "aarch64"):
        return _cpu(name, chip, _ARM if family == "aarch64" else ())
    problem = "it takes no ':'" if chip and family in DEVICES else "unknown"
    known = ", ".join([*TARGETS, "cpu:<llvm cpu>", "aarch64:<llvm cpu>"])
    raise ConfigError(
        f"target {name!r}: {problem} (known: {known}).{nearest(name, TARGETS)}"
    )
