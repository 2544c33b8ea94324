"""A model that would end its reader ends a child, and is an error of ours."""

import shutil
from types import SimpleNamespace

import pytest
from helpers.models.bigram_stablehlo import MODEL, write_experiment

from pcp.compiler import driver
from pcp.errors import ConfigError
from pcp.tools.cli import main
from pcp.tools.support import model_check
from pcp.tools.support.model_check import check_model, depth

NESTED = {
    "types": "func.func @main(%a: {}f32{}) {{ return }}".format(
        "tuple<" * 100_000, ">" * 100_000
    ),
    "attributes": "module attributes {a = " + "[" * 100_000 + "]" * 100_000 + "} {}",
}


@pytest.mark.parametrize("kind", NESTED)
def test_nested_text_ends_no_process_but_a_childs(tmp_path, kind) -> None:
    path = tmp_path / "model.mlir"
    path.write_text(NESTED[kind])
    with pytest.raises(ConfigError, match="ends with its process"):
        check_model(path)


def test_a_model_is_parsed_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(model_check, "subprocess", None)
    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    check_model(path)


def test_brackets_in_strings_and_arrows_do_not_count() -> None:
    assert depth(b'"((((" (a) -> b < c >') == 1
    assert depth(b"f([{<>}])") == 4


def test_a_disk_without_room_is_told_before_anything_is_compiled(
    tmp_path, monkeypatch, capsys
) -> None:
    """The disk has 100 MiB; the folder is not there yet."""
    usage = SimpleNamespace(free=100 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    place = str(tmp_path / "not" / "there")
    model_check.check_room(place, 48 << 20)
    with pytest.raises(ConfigError, match=r"100 MiB free, and two .* take 102; make"):
        model_check.check_room(place, 49 << 20)
    experiment = write_experiment(tmp_path)
    usage.free = 1 << 20
    monkeypatch.setattr(driver, "compile", None)
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(experiment), "--workers", "1"]) == 1
    assert "1 MiB free" in capsys.readouterr().err
