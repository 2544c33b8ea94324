"""A collective is described once: its methods, and other engines, follow from that."""

import inspect
from dataclasses import KW_ONLY, dataclass, fields

import numpy as np
import pytest

from pcp.engines.engine import Engine
from pcp.errors import UsageError
from pcp.runtime.collectives.call import Call
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.reduce_calls import AllReduce
from pcp.runtime.communicator.collective_methods import Collectives, at_once, waiting
from pcp.runtime.communicator.communicator import Communicator


@dataclass(frozen=True, eq=False)
class Doubled(AllReduce):
    """An all_reduce with one more option: all that is written for it is here."""

    _: KW_ONLY
    times: int = 1

    def operation(self, context, timeout: float) -> Operation:
        """The reduction of so many times the array."""
        self.array[...] *= self.times
        return super().operation(context, timeout)


class Doubling(Communicator):
    """Has the methods of that call."""

    doubled = waiting(Doubled)
    doubled_async = at_once(Doubled)


class Silent(Engine):
    """An engine that starts nothing."""

    name = "silent"


def test_an_option_of_one_class_is_one_of_its_methods() -> None:
    (comm,) = Doubling.in_process(1)
    with comm:
        assert comm.doubled(np.ones(3), times=2).tolist() == [2, 2, 2]
        pending = comm.doubled_async(np.ones(3), "max", times=3)
        assert isinstance(pending, Pending)
        assert pending.result().tolist() == [3, 3, 3]
        with pytest.raises(UsageError, match="no option"):
            comm.doubled(np.ones(3), thymes=2)  # pyright: ignore[reportCallIssue]
    shown = inspect.signature(Doubling.doubled).parameters
    assert shown["times"].default == 1
    assert list(shown)[-2:] == ["tag", "timeout"]


def test_an_engine_refuses_an_option_that_it_does_not_know() -> None:
    engine = Silent(0, 1, 1.0)
    with pytest.raises(UsageError, match="silent:// has no times="):
        engine.execute(Doubled(np.ones(3), times=2))
    engine._thread.shutdown()


@pytest.mark.parametrize("name", sorted(vars(Collectives)))
def test_every_method_has_a_future_and_words(name) -> None:
    method = getattr(Collectives, name)
    if name.startswith("_") or name == "execute":
        return
    assert method.__doc__
    assert method.__name__ == name
    assert hasattr(Collectives, name.removesuffix("_async"))
    assert hasattr(Collectives, f"{name.removesuffix('_async')}_async")


def _calls(cls: type = Call) -> list[type[Call]]:
    below = [one for sub in cls.__subclasses__() for one in _calls(sub)]
    return [cls, *below] if getattr(cls, "name", "") else below


@pytest.mark.parametrize("call", _calls(), ids=lambda call: call.__name__)
def test_a_call_names_the_memory_that_it_works_on(call) -> None:
    assert call.memory in ("", *(field.name for field in fields(call)))
    assert call.operation is not Call.operation
