"""What can be asked for is what the passes know."""

from pcp.compiler import options
from pcp.passes.pipeline import schedule
from pcp.passes.planning import candidates


def test_schedules_are_those_that_there_are() -> None:
    assert set(options.SCHEDULES) == set(schedule.RULES)
    assert set(candidates.SCHEDULES) == set(schedule.RULES)
    assert options.DEFAULT_SCHEDULE == schedule.SchedulePass().kind
