"""What asks for a plan again: the flags of `pcp-compile`."""

import json
from pathlib import Path

import pytest

from pcp.compiler.sharding_file import Rules
from pcp.passes.planning.candidates import Candidate
from pcp.passes.planning.choice import Choice
from pcp.passes.planning.tensor_groups import Group

STAGES = Candidate(("a", "b"), pp=2, microbatches=4, schedule="gpipe")
ASKED = ["--mesh", "pp=2", "--microbatches", "4", "--schedule", "gpipe"]


@pytest.mark.parametrize("tied", [False, True])
def test_stages_that_share_a_parameter_are_asked_for(tied: bool) -> None:
    choice = Choice((), {}, 0, ("a", "b", "c"), tied=tied)
    assert choice.flags(STAGES) == ASKED + ["--tied"] * tied
    assert choice.flags(Candidate(("a", "b"), dp=2)) == ["--mesh", "dp=2"]


def test_other_devices_than_the_first_ones_cannot_be_asked_for() -> None:
    assert Choice((), {}, 0, ("b", "a")).flags(STAGES) is None


def test_names_are_no_patterns(tmp_path: Path) -> None:
    """What is written is read as that tensor's, whatever its name."""
    groups = {("tp", 2): [Group(cut={"w[0].*": 1})]}
    choice = Choice((), groups, 0, ("a", "b"))
    tensors = choice.sharding(Candidate(("a", "b"), tp=2, groups=(0,)))
    path = tmp_path / "tensors.json"
    path.write_text(json.dumps({"tensors": tensors}))
    rules = Rules.read(path)
    assert rules.find("w[0].*") == ((), ("tp",))
    assert rules.find("w0.x") is None
