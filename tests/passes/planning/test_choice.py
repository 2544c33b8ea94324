"""What asks for a plan again: the flags of `pcp-compile`."""

import pytest

from pcp.passes.planning.candidates import Candidate
from pcp.passes.planning.choice import Choice

STAGES = Candidate(("a", "b"), pp=2, microbatches=4, schedule="gpipe")
ASKED = ["--mesh", "pp=2", "--microbatches", "4", "--schedule", "gpipe"]


@pytest.mark.parametrize("tied", [False, True])
def test_stages_that_share_a_parameter_are_asked_for(tied: bool) -> None:
    choice = Choice((), {}, 0, ("a", "b", "c"), tied=tied)
    assert choice.flags(STAGES) == ASKED + ["--tied"] * tied
    assert choice.flags(Candidate(("a", "b"), dp=2)) == ["--mesh", "dp=2"]


def test_other_devices_than_the_first_ones_cannot_be_asked_for() -> None:
    assert Choice((), {}, 0, ("b", "a")).flags(STAGES) is None
