"""What this machine's processor can do."""

from pathlib import Path


def fused() -> bool:
    """Whether it multiplies and adds in one rounding, as code for any x86-64 cannot."""
    about = Path("/proc/cpuinfo")
    return about.exists() and " fma " in about.read_text()
