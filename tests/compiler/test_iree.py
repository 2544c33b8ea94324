"""iree-compile as a function: what comes back, and what an error says."""

import threading
from pathlib import Path

import pytest
from helpers.models.stablehlo_small import FORWARD
from helpers.servers import compile_cache

from pcp.compiler import iree
from pcp.errors import CompileError, MissingPackage

CPU = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic")


@pytest.fixture(autouse=True)
def compiler_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs the compiler."""
    monkeypatch.setattr(iree, "compile_text", compile_cache.uncached)


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in the compiler's place."""
    path = tmp_path / "iree-compile"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(iree, "binary", lambda: path)


def test_the_same_text_gives_the_same_bytes() -> None:
    first, second = (iree.compile_text(FORWARD, CPU, timeout=100) for _ in range(2))
    assert first == second
    assert b"/tmp" not in first


def test_syntax_error_is_one_line_with_its_place() -> None:
    with pytest.raises(iree.Failure) as caught:
        iree.compile_text(FORWARD.replace("dot_general", "dat"), CPU, timeout=100)
    assert caught.value.where == "3:8"
    assert "stablehlo.dat" in caught.value.what
    assert "\n" not in str(caught.value)


def test_a_refused_op_is_cut_to_what_a_person_needs() -> None:
    text = """
    func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %0 = stablehlo.cholesky %x, lower = true : tensor<4x4xf32>
      return %0 : tensor<4x4xf32>
    }"""
    with pytest.raises(iree.Failure) as caught:
        iree.compile_text(text, CPU, timeout=100)
    assert caught.value.where == "3:12"
    assert len(str(caught.value)) <= iree.MAX_MESSAGE + 10
    assert "cholesky" in caught.value.what


def test_an_unknown_processor_is_refused_and_not_replaced() -> None:
    flags = (CPU[0], "--iree-llvmcpu-target-cpu=pentium99")
    with pytest.raises(CompileError, match="no processor 'pentium99'"):
        iree.compile_text(FORWARD, flags, timeout=100)


def test_an_unknown_flag() -> None:
    with pytest.raises(iree.Failure, match="iree-compile failed"):
        iree.compile_text(FORWARD, ["--no-such-flag"], timeout=100)


def test_a_deadline_ends_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "exec sleep 6000")
    with pytest.raises(CompileError, match=r"longer than 0\.2 s.*--timeout"):
        iree.compile_text("", (), timeout=0.2)


def test_a_crash_names_its_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "echo 'Assertion failed' >&2\nkill -SEGV $$")
    with pytest.raises(iree.Failure, match="died of SIGSEGV: Assertion failed"):
        iree.compile_text("", (), timeout=10)


def test_success_without_output_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(iree.Failure, match="iree-compile failed"):
        iree.compile_text("", (), timeout=10)


@pytest.mark.parametrize(
    ("stderr", "where", "what"),
    [
        ('a.mlir:3:10: error: bad op: %2 = "x.y"() : () -> ()', "3:10", "bad op"),
        (
            "-:37:2: error: failed to run translation of source executable to target "
            'executable for backend #hal.executable.target<"vulkan">',
            "37:2",
            "failed to run translation of source executable to target executable",
        ),
        ("note\nx.mlir:1:2: warning: w\nx.mlir:4:5: error: e", "4:5", "e"),
        ("<unknown>:0: error: a\nx.mlir:4:5: error: b\n", "4:5", "b"),
        ("<unknown>:0: error: a\n<unknown>:0: error: b\n}", "", "a"),
        ("error: no input", "", "no input"),
        ("", "", "iree-compile failed"),
    ],
)
def test_first_error(stderr: str, where: str, what: str) -> None:
    error = iree.first_error(stderr)
    assert (error.where, error.what) == (where, what)


def test_a_missing_compiler_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(iree, "find_spec", lambda _: None)
    iree.binary.cache_clear()
    try:
        with pytest.raises(MissingPackage, match=r"pip install -e '\.\[compiler\]'"):
            iree.binary()
    finally:
        iree.binary.cache_clear()


@pytest.mark.parametrize("all_", [False, True])
def test_stopping_ends_what_runs_and_starts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_: bool
) -> None:
    fake(tmp_path, monkeypatch, "exec sleep 6000")
    running = iree.Running()
    timer = threading.Timer(0.3, iree.stop_all if all_ else running.stop)
    timer.start()
    with pytest.raises(iree.Failure, match="died of SIGKILL"):
        iree.compile_text("", (), timeout=50, running=running)
    timer.join()
    with pytest.raises(CompileError, match="given up"):
        iree.compile_text("", (), timeout=50, running=running)


def test_a_program_that_branches_names_its_buffers_directly() -> None:
    for name in ("while", "case", "if"):
        text = f'%0 = "stablehlo.{name}"(%x)'
        wanted = iree.COMMON_FLAGS + iree.DIRECT + iree.IN_PLACE
        assert iree.common_flags(text) == wanted
    assert iree.common_flags(FORWARD) == iree.COMMON_FLAGS
