"""pcp-schedule: order, activations held at once, and time."""

from collections import Counter

import pytest
from helpers.oracles import pipelines

from pcp.errors import PassError
from pcp.passes.core.functions import find
from pcp.passes.pipeline.schedule import alive, timeline
from pcp.passes.pipeline.schedule_simulation import TaskWork, simulate
from pcp.passes.pipeline.wiring import Task, Wiring, schedules

STAGES, COUNT = 4, 8


def _schedule(kind: str):
    module = pipelines.scheduled_chain(STAGES, COUNT, kind)
    with module.context:
        grad = find(module, "grad")
        assert grad is not None
        return module, schedules(grad)[0]


def _whole_backward(task: Task) -> float:
    """Stages of equal cost whose backward part is one piece, twice the forward."""
    return {"fwd": 1.0, "bwd": 2.0}.get(task.direction, 0.0)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_the_bubble_is_the_formula(kind: str) -> None:
    module, schedule = _schedule(kind)
    with module.context:
        found = timeline(schedule, _whole_backward)
    assert found.bubble == pytest.approx((STAGES - 1) / (COUNT + STAGES - 1))
    assert found.length == 3.0 * (COUNT + STAGES - 1)


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (3, 9), (STAGES, COUNT)])
def test_zero_bubble_waits_as_long_as_the_formula(stages: int, count: int) -> None:
    """(S-1)(F + B - W) of a step, of parts that take 1 each (Qi et al. 2023).

    The backward part of the first stage is in one piece: nobody waits for half of it.
    """
    lengths = {}
    for kind in ("1f1b", "zb-h1"):
        module = pipelines.scheduled_chain(stages, count, kind)
        with module.context:
            grad = find(module, "grad")
            assert grad is not None
            (schedule,) = schedules(grad)
            tasks = Wiring.read(schedule).tasks
            split = {t.stage for t in tasks if t.direction == "wgrad"}
            assert split == set(range(1, stages))

            def cost(task: Task, split: set[int] = split) -> float:
                return (
                    2.0 if task.direction == "bwd" and task.stage not in split else 1.0
                )

            lengths[kind] = timeline(schedule, cost).length
    assert lengths["zb-h1"] == 3.0 * count + stages - 1
    assert lengths["zb-h1"] < lengths["1f1b"]


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [("gpipe", [8, 8, 8, 8]), ("1f1b", [4, 3, 2, 1]), ("zb-h1", [4, 4, 4, 4])],
)
def test_live_microbatches(kind: str, bounds: list[int]) -> None:
    module, schedule = _schedule(kind)
    with module.context:
        tasks = Wiring.read(schedule).tasks
    held = [alive([t for t in tasks if t.stage == s]) for s in range(STAGES)]
    assert all(h <= b for h, b in zip(held, bounds, strict=True))
    assert held[0] == bounds[0]
    if kind != "zb-h1":
        assert held == bounds


def test_every_task_is_there_once() -> None:
    module, schedule = _schedule("1f1b")
    with module.context:
        tasks = Wiring.read(schedule).tasks
    seen = Counter((t.stage, t.microbatch, t.direction) for t in tasks)
    assert set(seen.values()) == {1}
    forward = {(s, m) for s, m, d in seen if d == "fwd"}
    assert forward == {(s, m) for s in range(STAGES) for m in range(COUNT)}


def test_one_forward_one_backward_on_the_last_stage() -> None:
    module, schedule = _schedule("1f1b")
    with module.context:
        tasks = Wiring.read(schedule).tasks
    last = [(t.direction, t.microbatch) for t in tasks if t.stage == STAGES - 1]
    pairs = [step for step in last if step[0] in ("fwd", "bwd")]
    assert pairs == [(d, i) for i in range(COUNT) for d in ("fwd", "bwd")]


# --- the simulation ---


def test_a_message_takes_its_time() -> None:
    works = [TaskWork(0, 2.0), TaskWork(1, 3.0, (0,))]
    found = simulate(works, latency=5.0)
    assert found.start == (0.0, 7.0)
    assert found.end == (2.0, 10.0)
    assert found.bubble == pytest.approx(1 - 5 / 20)


def test_waiting_in_a_ring_is_a_deadlock() -> None:
    works = [
        TaskWork(0, 1.0, (3,)),
        TaskWork(0, 1.0),
        TaskWork(1, 1.0, (1,)),
        TaskWork(1, 1.0),
    ]
    with pytest.raises(PassError, match="device 0 waits for task 3"):
        simulate(works)


def test_full_buffers_are_a_deadlock() -> None:
    """0 sends three to 1, which first waits for what 0 makes for it at the end."""
    works = [
        TaskWork(0, 1.0),
        TaskWork(0, 1.0),
        TaskWork(0, 1.0),
        TaskWork(1, 1.0, (2, 0, 1)),
    ]
    assert simulate(works, buffers=3).length == 4.0
    with pytest.raises(PassError, match="device 0 sends what task 2 made to 1"):
        simulate(works, buffers=2)
