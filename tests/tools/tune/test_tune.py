"""pcp tune: schedules that are measured, kept in a file, and compiled with."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import pcp
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import ConfigError, PassError
from pcp.passes.kernels.contractions import Contraction
from pcp.passes.kernels.processors import host_name
from pcp.passes.kernels.tiles import KernelTiles, Schedule
from pcp.tools.compile import main as compile_main
from pcp.tools.tune import search
from pcp.tools.tune.candidates import MOST_BYTES, REGISTER, STAGES
from pcp.tools.tune.measure import Candidate
from pcp.tools.tune.tune import main
from pcp.tuning_table import TuningTable

Captured = pytest.CaptureFixture[str]
MODEL = """
func.func @main(%x: tensor<512x16xf32>, %w: tensor<16x16xf32>)
    -> (tensor<512x16xf32>, tensor<i32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<512x16xf32>, tensor<16x16xf32>) -> tensor<512x16xf32>
  %1 = stablehlo.constant dense<7> : tensor<i32>
  return %0, %1 : tensor<512x16xf32>, tensor<i32>
}"""
ROW = {
    "form": "NT", "batch": 0, "rows": 512, "depth": 16, "columns": 16,
    "schedule": {"part": [32, 16], "register": [16, 16], "steps": 8, "turned": False},
    "gflops": 9, "untuned": 8.5,
}  # fmt: skip


def _table(path: Path, *rows: dict, **said: object) -> Path:
    head = {"format": 1, "target": "cpu:host", "processor": host_name()}
    path.write_text(json.dumps(head | {"products": rows or [ROW]} | said))
    return path


@pytest.mark.slow  # test_judge.py says what is kept
def test_a_model_is_tuned_and_compiled(tmp_path: Path, capsys: Captured) -> None:
    model, table = tmp_path / "model.mlir", tmp_path / "model.json"
    model.write_text(MODEL)
    _table(table, ROW | {"rows": 1024})  # what another model has, measured before
    command = [str(model), "--mode", "forward", "-o", str(table)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "NT 512 x 16 x 16" in said
    assert "NT 1024" not in said
    found = TuningTable.read(table)
    assert [row.rows for row in found.products] == [1024, 512]
    assert all(row.gflops >= row.untuned > 0 for row in found.products[1:])
    output, text = tmp_path / "model.pcp", tmp_path / "text.mlir"
    flags = [str(model), "--mode", "forward", "--target", "cpu:host"]
    flags += ["--tuning", str(table), "--cache", "off"]
    assert compile_main([*flags, "-o", str(output)]) == 0
    x = np.random.default_rng(0).normal(size=(512, 16)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
    with pcp.Program.load(str(output), device="local-sync") as program:
        got, seven = map(np.asarray, program["main"](x, w))
    assert seven == 7
    np.testing.assert_allclose(got, x @ w.T, rtol=1e-5, atol=1e-5)
    schedule = found.products[1].schedule
    assert compile_main([*flags, "--emit", "mlir", "-o", str(text)]) == 0
    if schedule is not None:
        rows, columns = schedule.register_tile
        assert f"vector_common_parallel = [{rows}, {columns}, 0]" in text.read_text()


def test_no_more_is_measured_where_the_targets_own_code_is_fastest(monkeypatch) -> None:
    options = CompileOptions(mode="forward", targets=("cpu:host",))
    step, shapes = search.products(parse(MODEL), options)
    asked: list[int] = []

    def own_is_fastest(wanted: Sequence[Candidate], _: object) -> list[float]:
        asked.append(len(wanted))
        return [1.0 if one.schedule is None else 2.0 for one in wanted]

    monkeypatch.setattr(search, "measure", own_is_fastest)
    monkeypatch.setattr(search, "kept", lambda _, __, best, ___: best)
    (row,) = search.tune(shapes, step, lambda _: None).products
    assert row.schedule is None
    assert len(asked) == 1


@pytest.mark.slow  # a program more
def test_what_the_file_says_is_compiled(tmp_path: Path) -> None:
    table = _table(tmp_path / "table.json")
    plain = pcp.compile(MODEL, "cpu:host", mode="forward")
    tuned = pcp.compile(MODEL, "cpu:host", mode="forward", tuning=table)
    again = pcp.compile(MODEL, ["cpu", "cpu:host"], mode="forward", tuning=table)
    assert plain.module("cpu:host") != tuned.module("cpu:host")
    assert again.module("cpu:host") == tuned.module("cpu:host")
    left = _table(tmp_path / "left.json", ROW | {"schedule": None})
    model, text = tmp_path / "model.mlir", tmp_path / "text.mlir"
    model.write_text(MODEL)
    flags = ["--mode", "forward", "--target", "cpu:host", "--emit", "mlir"]
    for file, op in ((table, "linalg.matmul"), (left, "stablehlo.dot_general")):
        command = [str(model), *flags, "--tuning", str(file), "-o", str(text)]
        assert compile_main(command) == 0
        assert op in text.read_text()


WRONG = {
    "another target": ({"target": "cpu:znver5"}, "it is of the target cpu:znver5"),
    "another processor": ({"processor": "AuthenticAMD 26 2"}, "this is "),
    "another format": ({"format": 2}, "format: Input should be 1"),
    "no product": ({"products": [{"form": "NX"}]}, "products.0.form: String should"),
    "a tile too large": (
        {"products": [ROW | {"columns": 40}]},
        "a tile of 16 in 40",
    ),
    "a left operand is turned": (
        {"products": [ROW | {"form": "TN", "schedule": ROW["schedule"] | {"turned": True}}]},  # noqa: E501
        "only a matrix in form T can be turned",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tables(tmp_path: Path, case: str) -> None:
    changes, said = WRONG[case]
    table = _table(tmp_path / "table.json", **changes)
    with pytest.raises((ConfigError, PassError)) as error:
        pcp.compile(MODEL, "cpu:host", mode="forward", tuning=table)
    assert said in str(error.value)


def test_refusals(tmp_path: Path, capsys: Captured) -> None:
    model = tmp_path / "model.mlir"
    model.write_text(MODEL)
    add = "%0 = stablehlo.add %x, %x : tensor<512x16xf32>"
    plain = f"func.func @main(%x: tensor<512x16xf32>) -> tensor<512x16xf32> {{ {add}\n"
    (tmp_path / "sum.mlir").write_text(plain + "return %0 : tensor<512x16xf32> }")
    gpu = [str(model), "--mode", "forward", "--target", "sm_90a"]
    for flags, said in (
        (gpu, "target sm_90a: pcp chooses no tiles there"),
        ([*gpu, "--target", "cpu"], "one target is tuned at a time"),
        ([str(tmp_path / "sum.mlir")], "no products of f32"),
        ([str(model), "--top", "0"], "--top is larger than 0"),
        ([str(model), "-o", str(_table(tmp_path / "t", target="cpu"))], "say another"),
    ):
        assert main(flags) in (1, 2)
        assert said in capsys.readouterr().err


def test_candidates_divide_what_they_tile() -> None:
    random = np.random.default_rng(0)
    best = Schedule(KernelTiles(8, 32, 8, 32, 4))
    for _ in range(200):
        form = str(random.choice(["NN", "NT", "TN", "TT"]))
        extents = [8 * int(n) for n in random.integers(1, 40, 3)]
        shape = Contraction(form, int(random.integers(2)) * 3, *extents)
        for bits in REGISTER:
            fits = shape.rows % 8 == shape.columns % 32 == shape.depth % 4 == 0
            for stage in STAGES:
                for one in stage(shape, bits, best if fits else None):
                    tiles = one.tiles
                    assert shape.rows % tiles.part_rows == 0
                    assert shape.columns % tiles.part_columns == 0
                    assert tiles.part_rows % tiles.rows == 0
                    assert tiles.part_columns % tiles.columns == 0
                    assert shape.depth % tiles.depth == 0
                    assert 4 * tiles.rows * tiles.columns * tiles.depth <= MOST_BYTES
                    assert not one.turned or (form[1] == "T" and not shape.batch)
