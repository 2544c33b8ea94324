"""Vector widths of processors."""

from pathlib import Path

import pytest

from pcp.compiler.targets import find
from pcp.passes.kernels import processors
from pcp.passes.kernels.processors import far_steps, vector_bits


@pytest.mark.parametrize(
    ("flags", "bits"),
    [
        ("fpu sse2", 128),
        ("fpu sse2 avx2", 128),
        ("fpu avx2 fma", 256),
        ("fpu avx2 fma avx512f", 256),
        ("fpu avx2 fma avx512f avx512vl avx512dq", 512),
    ],
)
def test_a_host_as_linux_describes_it(tmp_path: Path, flags: str, bits: int) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor : 0\nflags\t\t: {flags}\n\nprocessor : 1\nflags : x\n")
    assert processors._host_bits("x86_64", info) == bits


def test_where_linux_says_nothing(tmp_path: Path) -> None:
    assert processors._host_bits("x86_64", tmp_path / "none") == 0
    assert processors._host_bits("arm64", tmp_path / "none") == 128
    assert processors._host_bits("riscv64", tmp_path / "none") == 0


def test_by_name() -> None:
    assert vector_bits("generic") == 128
    assert vector_bits("znver4") == 512
    assert vector_bits("nothing") == 0


def test_whose_caches_keep_far_rows(tmp_path: Path) -> None:
    info, other = tmp_path / "cpuinfo", tmp_path / "other"
    info.write_text("processor : 0\nvendor_id\t: GenuineIntel\nflags : x\n")
    other.write_text("processor : 0\nvendor_id\t: AuthenticAMD\nflags : x\n")
    assert processors._is_intel(info)
    assert not processors._is_intel(other)
    assert not processors._is_intel(tmp_path / "none")
    assert far_steps("sapphirerapids") == 4
    assert far_steps("znver5") == far_steps("x86-64-v4") == far_steps("generic") == 1
    assert "pcp-schedule-kernels{vector=512 far=4}" in find("cpu:emeraldrapids").passes


def test_a_target_has_the_schedule_of_its_processor() -> None:
    assert "pcp-schedule-kernels{vector=256}" in find("cpu:x86-64-v3").passes
    assert not any("schedule" in step for step in find("cpu:nothing").passes)
