"""Files of every kind that pcp reads, changed at random: errors of ours, no other."""

import pytest
from helpers.faults import file_fuzzer


def test_changed_files_are_taken_or_refused(tmp_path) -> None:
    found = file_fuzzer.survey(tmp_path, 2_000, seed=0)
    assert len(found) >= 12
    for name, (refused, _) in found.items():
        assert refused > 10, f"{name}: hardly anything was changed that matters"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_million_changed_files(tmp_path, seed) -> None:
    """Twelve kinds, 100,000 a seed; about eight minutes each."""
    file_fuzzer.survey(tmp_path, 100_000, seed)
