"""What pcp knows about processors: vector registers, and instruction sets."""

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

#: Of those with 512 bits, the ones without the dot products of AVX512-VNNI.
_NO_VNNI = ("x86-64-v4", "skx", "skylake-avx512", "cannonlake")

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


def instruction_set(cpu: str) -> str:
    """The set of `kernels/objects.py` that a processor has; "" where it has none.

    As `vector_bits`, by the processor's name: `host`, `generic`, or one of LLVM's.
    """
    machine = platform.machine().lower()
    if cpu == "host" and machine in _X86:
        return _host_set(Path("/proc/cpuinfo"))
    if cpu in ("host", "generic"):
        if machine in _X86:
            return "x86-64"
        return "aarch64" if machine in ("aarch64", "arm64") else ""
    wide = "x86-64-v4" if cpu in _NO_VNNI else "x86-64-v4-vnni"
    return {512: wide, 256: "x86-64-v3"}.get(_BITS.get(cpu, 0), "")


_NAMED = ("vendor_id", "cpu family", "model\t", "CPU implementer", "CPU part")

#: What a set has besides the one before it, as Linux lists it.
_FLAGS: dict[str, str] = {
    "x86-64-v3": "ssse3 sse4_1 sse4_2 popcnt avx avx2 bmi1 bmi2 f16c fma movbe abm",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
    "x86-64-v4-vnni": "avx512_vnni",
}


def _host_set(cpuinfo: Path) -> str:
    found, flags = "x86-64", _flags(cpuinfo)
    for name, needed in _FLAGS.items():
        if not flags.issuperset(needed.split()):
            break
        found = name
    return found


@cache
def host_flags() -> str:
    """What this machine's processor says of itself; "" where nothing is said."""
    return " ".join(sorted(_flags(Path("/proc/cpuinfo"))))


@cache
def host_name() -> str:
    """This machine's kind of processor, `GenuineIntel 6 207`: vendor, family, model.

    Where Linux does not say it, what the system calls it.
    """
    parts = [_listed(Path("/proc/cpuinfo"), what) for what in _NAMED]
    return " ".join(" ".join(sorted(p)) for p in parts if p) or platform.processor()


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
