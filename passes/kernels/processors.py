"""What pcp knows about processors: how wide their vector registers are."""

import platform
from functools import cache
from pathlib import Path

_X86 = ("x86_64", "amd64")

#: By LLVM's names, of the processors that differ from the family's baseline.
_BITS: dict[str, int] = {
    **dict.fromkeys(
        "x86-64-v4 skx skylake-avx512 cascadelake cooperlake cannonlake icelake-client "
        "icelake-server rocketlake tigerlake sapphirerapids emeraldrapids "
        "graniterapids graniterapids-d diamondrapids znver4 znver5".split(),
        512,
    ),
    **dict.fromkeys(
        "x86-64-v3 haswell broadwell skylake alderlake raptorlake meteorlake arrowlake "
        "arrowlake-s lunarlake pantherlake gracemont sierraforest grandridge "
        "clearwaterforest znver1 znver2 znver3 bdver4".split(),
        256,
    ),
}

_BASELINE = 128
"""SSE2, and NEON: what the families have without extensions."""


#: Intel's with 512 bits: their first caches keep rows that lie 4 KiB apart.
_INTEL = frozenset(
    name
    for name, bits in _BITS.items()
    if bits == 512 and not name.startswith(("x86-64", "znver"))
)


def far_steps(cpu: str) -> int:
    """Steps of a sum side by side that pay where rows of an operand lie 4 KiB apart.

    As measured: 4 on Intel's processors with AVX-512 (5 to 15 % on products with 1024
    columns), 1 on AMD's Zen 5 and elsewhere.
    """
    if cpu == "host":
        return 4 if _is_intel(Path("/proc/cpuinfo")) and vector_bits(cpu) == 512 else 1
    return 4 if cpu in _INTEL else 1


def vector_bits(cpu: str) -> int:
    """Bits of a vector register of f32: `host`, `generic`, or a name of LLVM's.

    0 where that is not known.
    """
    if cpu == "host":
        return _host_bits(platform.machine().lower(), Path("/proc/cpuinfo"))
    return _BASELINE if cpu == "generic" else _BITS.get(cpu, 0)


@cache
def _host_bits(machine: str, cpuinfo: Path) -> int:
    if machine not in _X86:
        return _BASELINE if machine in ("aarch64", "arm64") else 0
    flags = _flags(cpuinfo)
    if {"avx512f", "avx512vl", "avx512dq"} <= flags:
        return 512
    return 256 if {"avx2", "fma"} <= flags else _BASELINE * bool(flags)


@cache
def _is_intel(cpuinfo: Path) -> bool:
    return "GenuineIntel" in _listed(cpuinfo, "vendor_id")


def _flags(cpuinfo: Path) -> frozenset[str]:
    return _listed(cpuinfo, "flags")


def _listed(cpuinfo: Path, what: str) -> frozenset[str]:
    """The first processor's, as Linux lists them; none elsewhere."""
    try:
        with cpuinfo.open() as lines:
            line = next((line for line in lines if line.startswith(what)), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())
