"""The methods of a communicator, made of the descriptions of its calls (`call.Call`).

    all_reduce = waiting(AllReduce)        # comm.all_reduce(array, "mean")
    all_reduce_async = at_once(AllReduce)  # the same as a future

A method's signature and documentation are those of the class. An option of a
collective is added there, and nowhere else.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Set
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

from pcp.errors import UsageError, nearest
from pcp.runtime.collectives.call import Call
from pcp.runtime.collectives.gather_calls import AllGather, Gather, Scatter
from pcp.runtime.collectives.move_calls import (
    AllToAll,
    AllToAllV,
    BarrierCall,
    Broadcast,
    BroadcastAmong,
    Permute,
    Recv,
    Send,
)
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.reduce_calls import (
    AllReduce,
    AllReduced,
    Reduce,
    ReduceScatter,
)
from pcp.runtime.communicator.array_interop import entered

P = ParamSpec("P")
R = TypeVar("R")
_LAST = {"tag": 1, "timeout": 2}
"""Parameters of most calls, shown behind those of the call alone."""


def waiting(call: Callable[P, Call[R]]) -> Callable[Concatenate[Any, P], R]:
    """A method that starts the call, and waits for its value."""

    def method(self: "Collectives", *args: P.args, **options: P.kwargs) -> R:
        if options:
            _check(call, options)
        return self.execute(call(*args, **options)).result()

    assert isinstance(call, type), "a call's class"
    (gives,) = get_args(call.__orig_bases__[0]) or (Any,)
    return _described(method, call, call.name, call.__doc__ or "", gives)


def at_once(call: Callable[P, Call[Any]]) -> Callable[Concatenate[Any, P], Pending]:
    """A method that starts the call, and returns a future of its value."""

    def method(self: "Collectives", *args: P.args, **options: P.kwargs) -> Pending:
        if options:
            _check(call, options)
        return self.execute(call(*args, **options))

    assert isinstance(call, type), "a call's class"
    about = (
        f"As `{call.name}`, at once; `result()` of what it returns waits.\n\n"
        f"{call.__doc__}\n\nThe array must be left alone until then."
    )
    return _described(method, call, f"{call.name}_async", about, Pending)


def _check(call: Any, options: Mapping[str, Any]) -> None:
    """`UsageError` for an option that the collective does not have."""
    known = _options(call)
    if not options.keys() <= known:
        unknown = next(name for name in options if name not in known)
        raise UsageError(
            f"{call.name}: no option {unknown!r}.{nearest(unknown, known)} "
            f"It takes {', '.join(known)}"
        )


@functools.cache
def _options(call: Any) -> Set[str]:
    return inspect.signature(call).parameters.keys()


def delegated(
    part: Callable[[Any], Any], function: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], R]:
    """A method that calls `function` of a part of the communicator.

    The part is made for the call, so that the two form no cycle.
    """

    @functools.wraps(function)
    def method(self: Any, *args: P.args, **options: P.kwargs) -> R:
        return function(part(self), *args, **options)

    return method


def _described(method: Any, call: Any, name: str, about: str, gives: Any) -> Any:
    """The method under its name, with the signature of the call's class."""
    method.__name__, method.__qualname__ = name, f"Communicator.{name}"
    method.__doc__ = about
    named = inspect.Parameter.KEYWORD_ONLY
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [own, *inspect.signature(call).parameters.values()]
    taken.sort(key=lambda one: (one.kind, _LAST.get(one.name, 0) * (one.kind == named)))
    gives = None if gives is type(None) else gives
    method.__signature__ = inspect.Signature(taken, return_annotation=gives)
    return method


class Collectives:
    """The collectives as methods, for a class that carries out a `Call`."""

    def execute(self, call: Call[Any]) -> Pending:
        """Start a call; its array may be a tensor of torch or an array of jax."""
        return entered(call, self._start)

    def _start(self, call: Call[Any]) -> Pending:
        """Start a call of numpy arrays."""
        raise NotImplementedError

    all_reduce = waiting(AllReduce)
    all_reduce_async = at_once(AllReduce)
    all_reduced = waiting(AllReduced)
    all_reduced_async = at_once(AllReduced)
    reduce_scatter = waiting(ReduceScatter)
    reduce_scatter_async = at_once(ReduceScatter)
    reduce = waiting(Reduce)
    reduce_async = at_once(Reduce)
    all_gather = waiting(AllGather)
    all_gather_async = at_once(AllGather)
    gather = waiting(Gather)
    gather_async = at_once(Gather)
    scatter = waiting(Scatter)
    scatter_async = at_once(Scatter)
    broadcast = waiting(Broadcast)
    broadcast_async = at_once(BroadcastAmong)
    all_to_all = waiting(AllToAll)
    all_to_all_async = at_once(AllToAll)
    exchange = waiting(AllToAllV)
    exchange_async = at_once(AllToAllV)
    permute = waiting(Permute)
    permute_async = at_once(Permute)
    send = waiting(Send)
    send_async = at_once(Send)
    recv = waiting(Recv)
    recv_async = at_once(Recv)
    barrier = waiting(BarrierCall)
    barrier_async = at_once(BarrierCall)
