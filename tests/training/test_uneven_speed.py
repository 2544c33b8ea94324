"""With one worker three times slower, a batch cut 3:1 beats equal parts."""

from pathlib import Path

import pytest
from helpers.repository.sources import ROOT


@pytest.mark.slow
def test_shares_by_rate_are_faster_than_equal_ones(tmp_path: Path, monkeypatch) -> None:
    """At least 1.4 times; twice is what the rates alone would give."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from uneven import compare, compile_shares

    bundles = compile_shares(tmp_path, batch=8192, layers=1, width=512)
    seconds = compare(bundles, turns=2, steps=4)
    assert seconds["even"] >= 1.4 * seconds["uneven"]
