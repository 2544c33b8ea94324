"""The target of this machine's processor, for a compiler on another machine.

A shepherd compiles for a worker on another machine, so `cpu:host` would mean the
shepherd's own processor there. For x86-64 the name is the highest level of the psABI
that the processor has: `cpu:x86-64-v4` is code as fast as `cpu:host`, and all machines
of a level share it. No compiler is needed to find it: the levels are sets of
instructions, and the system lists those that it lets programs use.

Source: System V ABI, AMD64 supplement, section 3.1.1 "Micro-Architecture Levels".
"""

import platform
from functools import cache
from pathlib import Path

ANY = "cpu"
"""Code for every processor of the family."""
ARM = "aarch64"
"""The same for the other family."""

#: Level -> what it adds, by Linux's names (pni is SSE3, abm has LZCNT).
LEVELS: dict[str, frozenset[str]] = {
    "x86-64-v2": frozenset("cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2".split()),
    "x86-64-v3": frozenset("avx avx2 bmi1 bmi2 f16c fma abm movbe xsave".split()),
    "x86-64-v4": frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split()),
}
_ABOUT = Path("/proc/cpuinfo")


def level(about: str) -> str | None:
    """The highest level that all processors in this text of `/proc/cpuinfo` have.

    None for other processors than x86-64, or below the lowest level.
    """
    lists = [
        set(line.partition(":")[2].split())
        for line in about.splitlines()
        if line.partition(":")[0].strip() == "flags"
    ]
    common = set.intersection(*lists) if lists else set()
    found = None
    for name, added in LEVELS.items():
        if not added <= common:
            break
        found = name
    return found


@cache
def own() -> str | None:
    """The target of this machine's processor; None where pcp cannot name it."""
    if platform.machine() in ("aarch64", "arm64"):
        return ARM
    if platform.machine() not in ("x86_64", "AMD64") or not _ABOUT.exists():
        return None
    found = level(_ABOUT.read_text())
    return f"{ANY}:{found}" if found else None


def runs(target: str) -> bool:
    """Whether this processor may run code for a target.

    False for a level above its own, and for a name of the other family. True for other
    names, and where its own level is unknown. Plain `cpu` is code of the family of the
    machine that compiled it.
    """
    levels, mine = list(LEVELS), own()
    family, _, name = target.partition(":")
    if family == ARM and mine is not None:
        return mine == ARM
    if mine == ARM:
        return name not in levels
    if family != ANY or name not in levels or mine is None:
        return True
    return levels.index(name) <= levels.index(mine.partition(":")[2])


def substitutes(target: str) -> list[str]:
    """The targets whose code runs wherever that of `target` does, the best first."""
    levels = list(LEVELS)
    name = target.partition(":")[2]
    below = reversed(levels[: levels.index(name)]) if name in levels else ()
    return [target, *(f"{ANY}:{lower}" for lower in below), target.partition(":")[0]]
