"""param_sync: bit-identical state, moved only where it differs."""

import numpy as np
import pytest
from helpers.worlds.communicators import CARRIERS, outcome, together, world

from pcp.errors import StateMismatch, UsageError
from pcp.runtime.communicator import param_sync as module
from pcp.runtime.communicator.param_sync import digest

NAMES = {"w": 30_000, "b": 5, "half": 300, "none": 0}


def state(seed: int) -> dict[str, np.ndarray]:
    """Tensors of several types; equal seeds give equal bits."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=count).astype("f2" if name == "half" else "f4")
        for name, count in NAMES.items()
    }


def equal(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.fixture(scope="module", params=CARRIERS)
def comms(request):
    with world(request.param, 4) as members:
        yield members


def test_everybody_gets_the_source(comms):
    states = [state(r) for r in range(4)]
    reports = together(comms, lambda c: c.param_sync(states[c.rank], source=2))
    assert all(equal(s, state(2)) for s in states)
    assert [r.source for r in reports] == [2] * 4
    assert reports[2].updated == ()
    assert reports[2].bytes_moved == 0
    assert set(reports[0].updated) == {"w", "b", "half"}, "empty tensors are equal"


def test_only_what_differs_travels(comms):
    states = [state(1) for _ in range(4)]
    states[3]["b"][2] += 1
    sent = [c.bytes_sent for c in comms]
    reports = together(comms, lambda c: c.param_sync(states[c.rank]))
    assert [r.updated for r in reports] == [(), (), (), ("b",)]
    assert all(equal(s, state(1)) for s in states)
    traffic = sum(c.bytes_sent - s for c, s in zip(comms, sent, strict=True))
    assert traffic < 30_000, "less than w alone"


def test_what_all_hold_alike_is_one_small_exchange(comms, monkeypatch):
    states, gathers = [state(1) for _ in range(4)], []
    cls = type(comms[0])
    gather = cls.all_gather
    monkeypatch.setattr(
        cls,
        "all_gather",
        lambda c, a, **k: gathers.append(a.nbytes) or gather(c, a, **k),
    )
    for source in ("elected", 3):
        gathers.clear()
        options = {} if source == "elected" else {"source": source}
        reports = together(
            comms, lambda c, o=options: c.param_sync(states[c.rank], **o)
        )
        assert gathers == [24] * 4
        assert [r.updated for r in reports] == [()] * 4
        assert {r.source for r in reports} == {0 if source == "elected" else 3}
    assert all(equal(s, state(1)) for s in states)


def test_a_difference_of_sign_of_zero_or_nan_payload_is_a_difference(comms):
    states = [{"w": np.zeros(3, np.float32)} for _ in range(4)]
    states[1]["w"][0] = -0.0
    states[0]["w"][1] = np.nan
    states[2]["w"].view(np.uint32)[1] = 0x7FC00001
    together(comms, lambda c: c.param_sync(states[c.rank]))
    assert len({s["w"].tobytes() for s in states}) == 1


def test_the_newest_is_elected_then_the_majority(comms):
    seeds = [5, 6, 6, 7]
    states = [state(s) for s in seeds]
    revisions = [8, 8, 8, 3]
    reports = together(
        comms,
        lambda c: c.param_sync(
            states[c.rank], revision=revisions[c.rank], source="elected"
        ),
    )
    assert {r.source for r in reports} == {1}
    assert {r.revision for r in reports} == {8}
    assert all(equal(s, state(6)) for s in states)


def test_other_names_or_shapes_are_a_mismatch_for_all(comms):
    states = [state(r) for r in range(4)]
    states[2]["w"] = states[2]["w"][:-1].copy()
    faults = together(
        comms, lambda c: outcome(lambda: c.param_sync(states[c.rank], timeout=5))
    )
    assert all(isinstance(f, StateMismatch) for f in faults)
    assert "rank 2" in str(faults[0])
    assert equal(states[1], state(1)), "nothing was written"


def test_a_source_that_changes_meanwhile_is_noticed_by_all(comms, monkeypatch):
    """Rank 0's digests are of other bytes than those it sends."""
    states = [state(r) for r in range(4)]
    plain = module.digests

    def lying(tensors):
        told = plain(tensors)
        if any(t is states[0]["w"] for t in tensors.values()):
            told["w"] = bytes(16)
        return told

    monkeypatch.setattr(module, "digests", lying)
    faults = together(
        comms, lambda c: outcome(lambda: c.param_sync(states[c.rank], timeout=5))
    )
    assert all(isinstance(f, StateMismatch) for f in faults)
    assert all(equal(states[r], state(r)) for r in range(4))


def test_wrong_use(comms):
    with pytest.raises(UsageError, match="source"):
        comms[0].param_sync({}, source=4)
    frozen = np.ones(3)
    frozen.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        comms[0].param_sync({"w": frozen})


def test_the_digest_covers_type_and_shape():
    zeros = np.zeros(4, np.float32)
    assert digest(zeros) == digest(zeros.copy())
    assert digest(zeros) != digest(zeros.view(np.int32))
    assert digest(zeros) != digest(zeros.reshape(2, 2))
