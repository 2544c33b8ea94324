"""Ranks that die while clients listen: the same tokens, later."""

from pathlib import Path
from typing import Any

import pytest
from helpers.repository.sources import ROOT
from helpers.serving.small_llama import save

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("tokenizers", reason="the extra serve is not installed")


@pytest.fixture
def serving_storm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import serving_storm

    return serving_storm


@pytest.mark.slow  # a minute of deaths, in which sixteen clients listen
@pytest.mark.timeout(1200)
def test_a_storm(tmp_path: Path, serving_storm: Any) -> None:
    """Sixteen streams, and a rank killed every five seconds for a minute."""
    save(tmp_path, positions=serving_storm.CONTEXT)
    found = serving_storm.storm(tmp_path)
    print(serving_storm.report(found))
    assert not found.wrong
    assert found.answers >= 16
    assert found.deaths >= 8


@pytest.mark.slow  # a minute of deaths and swaps, in which sixteen clients listen
@pytest.mark.timeout(1200)
def test_a_storm_while_weights_are_exchanged(
    tmp_path: Path, serving_storm: Any
) -> None:
    save(tmp_path, positions=serving_storm.CONTEXT)
    found = serving_storm.storm(tmp_path, swap=7.0)
    print(serving_storm.report(found))
    assert not found.wrong
    assert found.deaths >= 8
    assert found.swaps >= 2
