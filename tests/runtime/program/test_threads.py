"""Which device a program gets: by its size, the cores, and who else computes there."""

from pathlib import Path

import numpy as np
import pytest

import pcp
from pcp.bundle import Function
from pcp.errors import ConfigError
from pcp.runtime.program import threads
from pcp.runtime.program.devices import open_device

SMALL, LARGE = threads.LEAST_WORK - 1, threads.LEAST_WORK


def _functions(*work: int) -> list[Function]:
    return [Function(inputs=(), results=(), work=w) for w in work]


@pytest.mark.parametrize(
    ("uri", "work", "cores", "expected"),
    [
        ("local", [5, LARGE], 4, "local-task"),
        ("local", [5, SMALL], 4, "local-sync"),
        ("local", [0, 0], 4, "local-task"),  # not counted
        ("local", [], 4, "local-task"),
        ("local", [LARGE], 1, "local-sync"),
        ("local://2", [LARGE], 4, "local-task://2"),
        ("local://4", [LARGE], 4, "local-task"),
        ("local://9", [LARGE], 4, "local-task"),
        ("local://1", [LARGE], 4, "local-sync"),
        ("local://2", [SMALL], 4, "local-sync"),
        ("local-task", [SMALL], 4, "local-task"),
        ("local-sync", [LARGE], 4, "local-sync"),
        ("cuda://1", [SMALL], 4, "cuda://1"),
    ],
)
def test_the_device_of_a_program(
    monkeypatch: pytest.MonkeyPatch,
    uri: str,
    work: list[int],
    cores: int,
    expected: str,
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    assert threads.device_for(uri, _functions(*work)) == expected


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 8)
    found = [threads.shared(count) for count in (1, 2, 3, 8, 20)]
    assert found == ["local", "local://4", "local://2", "local://1", "local://1"]


def test_threads_of_one_core_count_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 5}, raising=False
    )
    for number, pair in ((0, "0,4"), (1, "1,5"), (5, "1,5")):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{pair}\n")
    assert threads.cores(tmp_path) == 3  # of the third nothing is said


@pytest.mark.parametrize("uri", ["local://0", "local://two", "local://-1"])
def test_what_is_no_number_of_threads(uri: str) -> None:
    with pytest.raises(ConfigError, match="number of threads"):
        threads.device_for(uri, ())


MODEL = """
func.func @main(%x: tensor<64x48xf32>, %w: tensor<48x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x48xf32>, tensor<48x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.tanh %0 : tensor<64x64xf32>
  %2 = stablehlo.dot_general %1, %1, contracting_dims = [0] x [0]
      : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %2 : tensor<64x64xf32>
}"""


def test_the_same_bits_by_any_number_of_threads() -> None:
    bundle = pcp.compile(MODEL, "cpu:host", mode="forward")
    function = bundle.manifest.function("main")
    products = 2 * 64 * 64 * (48 + 64)
    assert products < function.work < threads.LEAST_WORK
    random = np.random.default_rng(0)
    x, w = (random.normal(size=s).astype(np.float32) for s in ((64, 48), (48, 64)))
    found = []
    for uri in ("local", "local-sync", "local-task", "local-task://1"):
        with pcp.Program.load(bundle, device=uri) as program:
            expected = "local-sync" if uri == "local" else uri
            assert program.device.uri == expected
            assert program.device is open_device(expected)
            found.append(program["main"](x, w))
    assert all(np.array_equal(found[0], other) for other in found[1:])
    y = np.tanh(x.astype(np.float64) @ w)
    np.testing.assert_allclose(found[0], y.T @ y, rtol=1e-4, atol=1e-4)
