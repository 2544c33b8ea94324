"""The cache of what tests compile: equal programs once, others each, refusals again."""

import os
from pathlib import Path

import pytest
from helpers.models.stablehlo_small import FORWARD, TRAIN
from helpers.servers import compile_cache

from pcp.compiler import emission, iree
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import find
from pcp.dialect.context import parse

LOOP = """
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %r = stablehlo.while(%a = %x) : tensor<f32> cond {
    %go = stablehlo.compare LT, %a, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    stablehlo.return %a : tensor<f32>
  }
  return %r : tensor<f32>
}
"""


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that reach the compiler; the cache is empty at first."""
    texts: list[str] = []

    def compile_text(text: str, *_: object, **__: object) -> bytes:
        texts.append(text)
        if "refused" in text:
            raise iree.Failure("refused", "1:1")
        return text.encode()

    monkeypatch.setattr(compile_cache, "uncached", compile_text)
    monkeypatch.setenv(compile_cache.FOLDER, str(tmp_path))
    return texts


def make(text: str, *flags: str) -> bytes:
    return iree.compile_text(text, flags, timeout=1)


def test_the_same_program_is_compiled_once(compiled: list[str]) -> None:
    assert make("a", "-x") == make("a", "-x") == b"a"
    assert make("a", "-y") == b"a"
    assert make("b", "-x") == b"b"
    assert compiled == ["a", "a", "b"]


@pytest.mark.parametrize("verifies", [True, False])
def test_a_refusal_is_not_kept(
    verifies: bool, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is that of a compiler which verifies."""
    monkeypatch.delenv(compile_cache.VERIFIES, raising=False)
    if verifies:
        monkeypatch.setenv(compile_cache.VERIFIES, "1")
    for _ in range(2):
        with pytest.raises(iree.Failure):
            make("refused")
    assert len(compiled) == (2 if verifies else 4)


@pytest.mark.parametrize("program", [FORWARD, TRAIN, LOOP])
def test_the_key_is_that_of_pcps_own_cache(
    program: str, compiled: list[str], tmp_path: Path
) -> None:
    """So a command that a test starts finds what the test compiled, and the reverse."""
    lines, target = list[str](), find("cpu")
    text = emission.target_text(parse(program, source="model.mlir"), target)
    assert "loc(" in text.located
    for folder in (None, tmp_path):
        asked = CompileOptions(targets=("cpu",), cache=folder, report=lines.append)
        emission.compile_target(text, target, asked, iree.Running())
    assert "from the cache" in lines[-1]
    assert len(compiled) == 1


def test_what_others_left_goes(tmp_path: Path) -> None:
    for age in range(compile_cache.VERSIONS + 2):
        other = tmp_path / f"other{age}"
        other.mkdir()
        (other / "module").touch()
        os.utime(other, (1e9 - age, 1e9 - age))
    compile_cache.tidy(tmp_path)
    kept = {path.name for path in tmp_path.glob("other*")}
    assert kept == {f"other{age}" for age in range(compile_cache.VERSIONS - 1)}
    assert len(list(tmp_path.iterdir())) == compile_cache.VERSIONS


def test_what_jax_keeps_is_found_where_the_folder_is_copied_to() -> None:
    """No option that is part of a program's key holds the folder's name."""
    config = pytest.importorskip("jax._src.config")
    options = pytest.importorskip("jax._src.compiler").get_compile_options
    made = []
    for folder in ("/here", "/there"):
        with config.compilation_cache_dir(folder):
            made.append(options(num_replicas=1, num_partitions=1))
    here, there = (one.SerializeAsString() for one in made)
    assert here == there
