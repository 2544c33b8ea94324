"""Data that a model cannot take: one line of `pcp train`, before it is compiled."""

import json
import re

import numpy as np
import pytest
from helpers.models.bigram_stablehlo import BATCH, BLOCK, KEYS, MODEL, VOCABULARY

from pcp.compiler import driver
from pcp.errors import ConfigError
from pcp.tools.cli import main
from pcp.training.storage import first_values, safetensors_io

NAMED = MODEL
for _name, _role in (("table", "param"), ("ids", "data"), ("targets", "data")):
    _data = f"{BATCH}x{BLOCK}xi64"
    _shape = _data if _role == "data" else f"{VOCABULARY}x{VOCABULARY}xf32"
    NAMED = NAMED.replace(
        f"%{_name}: tensor<{_shape}>",
        f'%{_name}: tensor<{_shape}> {{pcp.name = "{_name}", pcp.role = "{_role}"}}',
        1,
    )
ROWS = np.zeros((40, BLOCK), np.int64)
TOO_LARGE = np.full((40, BLOCK), VOCABULARY)
OWN = """
class Rows:
    digest = "x"
    def __len__(self): return 40
    def sample(self, i): return {"ids": [i / 0]}
"""


LATER = f"""
import numpy as np
class Rows:
    digest = "x"
    def __len__(self): return 40
    def sample(self, i):
        ids = np.full({BLOCK}, 99 if i == 30 else 1)
        return {{"ids": ids, "targets": ids * 0}}
"""


def arrays(**given):
    """Writes these as a `.npz`."""

    def write(folder):
        np.savez(folder / "d.npz", **given)
        return {"data_path": "d.npz"}

    return write


def content(name, made, **keys):
    """Writes bytes as a file; the experiment's keys for it."""

    def write(folder):
        (folder / name).write_bytes(made)
        return {"data_path": keys.pop("data_path", name)} | keys

    return write


def weights(**given):
    """Writes these as initial weights, of a text that can be taken."""

    def write(folder):
        with open(folder / "w.safetensors", "wb") as file:
            safetensors_io.write(file, given)
        return arrays(ids=ROWS, targets=ROWS)(folder) | {
            "initial_weights": "w.safetensors"
        }

    return write


SQUARE = np.zeros((VOCABULARY, VOCABULARY), np.float32)

CASES = {
    "weights": (
        weights(tabel=SQUARE),
        "w.safetensors lacks 1 of the model's 1 tensors: 'table'. Did you mean 'tabel'",
    ),
    "shape of weights": (
        weights(table=SQUARE[1:]),
        r"initial_weights: table is \[63, 64\] in .*, the model's is \[64, 64\]",
    ),
    "names": (arrays(id=ROWS, targets=ROWS), "no 'ids' .* Did you mean 'id'"),
    "shape": (
        arrays(ids=ROWS[:, 1:], targets=ROWS),
        r"sample 0: ids has the shape \[7\], and the program's ids takes \[8\]",
    ),
    "type": (arrays(ids=ROWS * 0.5, targets=ROWS), "holds float64, .* takes i64"),
    "ids": (
        arrays(ids=TOO_LARGE, targets=ROWS),
        "the id 64 in ids, and the table that the program's ids looks up has 64 rows",
    ),
    "u32": (
        content("d.u32", TOO_LARGE.astype("<u4").tobytes(), tokenizer="u32"),
        r"65 different tokens \(u32\), the model takes at most 64",
    ),
    "empty": (content("d.txt", b""), "d.txt is empty"),
    "no rows": (arrays(ids=ROWS[:0], targets=ROWS[:0]), "d.npz is empty"),
    "few rows": (arrays(ids=ROWS[:3], targets=ROWS[:3]), "less than one batch of 4"),
    "raises": (
        content("own.py", OWN.encode(), data_path="own.py:Rows"),
        r"sample 0 raises ZeroDivisionError: division by zero \(.*own.py:5\)",
    ),
    "no file": (content("d", b"", data_path="d.py:Rows"), "data_path: no file 'd.py'"),
    "key": (
        content("d", b"text", data={"pakcing": "documents"}),
        "data.pakcing: unknown key. Did you mean 'packing'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_with_the_data_is_one_line(case, tmp_path, monkeypatch, capsys):
    write, said = CASES[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "compile", None)  # it is never come to
    (tmp_path / "model.mlir").write_text(NAMED)
    (tmp_path / "x.json").write_text(json.dumps(KEYS | write(tmp_path)))
    assert main(["train", "x.json", "--workers", "1"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert re.search(said, error), error


def test_an_id_too_large_in_a_sample_that_is_read_later(tmp_path, monkeypatch, capsys):
    """Nothing says beforehand what a user's own code will give."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.mlir").write_text(NAMED)
    (tmp_path / "own.py").write_text(LATER)
    (tmp_path / "x.json").write_text(json.dumps(KEYS | {"data_path": "own.py:Rows"}))
    assert main(["train", "x.json", "--workers", "1"]) == 1
    said = "own.py:Rows has the id 99 in ids of sample 30, and the table that the "
    assert said + "program's ids looks up has 64 rows" in capsys.readouterr().out


def test_all_weights_that_are_missing_are_listed() -> None:
    names = [f"layers.{i}.w" for i in range(20)]
    listed = ", ".join(map(repr, names[1:13]))
    with pytest.raises(ConfigError) as error:
        first_values.check_names("w.safetensors", names, ["layers.0.w", "layer.1.w"])
    assert str(error.value) == (
        "initial_weights: w.safetensors lacks 19 of the model's 20 tensors: "
        f"{listed} and 7 more. Did you mean 'layer.1.w'?"
    )
