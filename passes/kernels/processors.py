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


def _flags(cpuinfo: Path) -> frozenset[str]:
    """The first processor's, as Linux lists them; none elsewhere."""
    try:
        with cpuinfo.open() as lines:
            line = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())
