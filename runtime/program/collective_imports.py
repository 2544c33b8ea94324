"""The module `pcp_rt`: a program's imports, whose collectives run in the background.

An import gets its operands, a fence to wait for and a fence to signal (IREE's "coarse
fences"). It answers at once with an unfilled result; a thread waits for the operands,
the communicator makes the exchange, and the second fence tells the program that the
result is there. Computations of the program meanwhile overlap with the exchange.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import iree.runtime as rt
from numpy.typing import NDArray

from pcp.bundle import Collective, Manifest
from pcp.errors import CollectiveAborted, HostFunctionFailed, Timeout
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.tracing import Recorder
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.memory.buffer_pool import BufferPool
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.runtime.memory.shared_arrays import ARRAYS
from pcp.runtime.memory.shared_segment import SMALLEST
from pcp.runtime.program.devices import Device, first_line, mappable
from pcp.runtime.program.host_collectives import (
    ALONE,
    Groups,
    alone,
    group_for,
    launch,
    made_in_place,
    near,
    results_of,
)
from pcp.runtime.program.host_functions import HOST, Bindings, Declaration, run
from pcp.runtime.program.stall_detector import Progress

_BRIEF_BYTES = 64 << 10
_EXCHANGE_THREADS = 4
_DELIVERY_THREADS = 2
_LOOK_AGAIN_NS = 500_000_000
#: Seconds that an import waits for its operands without a group's time limit.
_PATIENCE_S = 60.0
_STEPS = ("wait for operands", "exchange", "deliver")


def tag_of(name: str) -> str:
    """The tag of an import on all members: `all_gather_3` of `all_gather_3_f32_8`.

    The number of elements may differ between members that share unequally.
    """
    return name.rsplit("_", 2)[0]


class _Once:
    """An event that comes once: a lock alone, where `threading.Event` makes three."""

    __slots__ = ("_lock", "came")

    def __init__(self) -> None:
        self.came = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Let all go on who wait, or will; again without effect. Of one thread."""
        if not self.came:
            self.came = True
            self._lock.release()

    def wait(self) -> None:
        """Wait for it."""
        if not self.came:
            with self._lock:
                pass


class PendingImport:
    """One call of an import by a running function, until its result is delivered.

    One thread waits for its operands and starts the exchange, and another delivers the
    result. An error in either fails its fence.
    """

    def __init__(
        self, imports: "Imports", name: str, before: "PendingImport | None"
    ) -> None:
        self._finished = _Once()
        self._imports = imports
        self._name = name
        self._what: Collective = imports.manifest.collectives[name]
        self._before = before
        """The earlier call of the same import: members match calls in order. Of a host
        function the earlier call of any."""
        self._posted = _Once()
        self._answered = False
        self._views: list[Any] = []
        self._results: list[tuple[Any, str]] = []
        """The unfilled results, with their element types."""
        self._room: NDArray | None = None
        """The memory of the result, if it is made there."""
        self._near = False
        """Whether members on this machine read the operand where it lies."""
        self.brief = False
        """Whether its exchange may be started, and delivered, in any thread at once.

        Small values that the processor can reach are moved faster than a thread wakes.
        """
        self._ready = self._done = None
        self._marks = [time.monotonic()]
        """Times of the call, of its operands, of the exchange, and of the end."""

    def begin(self, refs: Sequence[Any]) -> Any:
        """Start the threads; the unfilled results for the program."""
        what = self._what
        *operands, wait, signal = refs
        self._dtypes = what.attributes.get("dtypes", [what.dtype])
        self._views = [
            operand.deref(rt.HalBufferView)
            for operand, _ in zip(operands, self._dtypes, strict=False)
        ]
        self._ready = wait.deref(rt.HalFence) if wait.isinstance(rt.HalFence) else None
        done = signal.isinstance(rt.HalFence)
        self._done = signal.deref(rt.HalFence) if done else None
        self._comm = self._imports.group(self._name, what)
        members = self._comm.world_size if self._comm else 1
        for dtype, shape in results_of(what, members):
            self._results.append((self._unfilled(dtype, shape), dtype))
        small = what.kind not in ALONE and what.bytes <= _BRIEF_BYTES
        self.brief = small and all(mappable(v.get_buffer()) for v, _ in self._results)
        made = [view.ref for view, _ in self._results]
        return made[0] if len(made) == 1 else tuple(made)

    def _unfilled(self, dtype: str, shape: Sequence[int]) -> Any:
        """The view of a result, and if it is made in place also its memory."""
        device, what = self._imports.device, self._what
        if not made_in_place(self._comm, what):
            return device.unfilled(shape, dtype)
        self._near = what.bytes >= SMALLEST and near(self._comm)
        if self._near and ARRAYS.plenty:
            room, place = ARRAYS.placed(tuple(shape), numpy_dtype(dtype))
            if place is not None and (view := device.over(room, dtype)) is not None:
                self._room = room
                return view
        view = device.unfilled(shape, dtype)
        if not self._near:
            self._room = device.memory(view, dtype)
        return view

    @property
    def ready(self) -> bool:
        """Whether its operands are here, and its turn has come."""
        first = self._before is None or self._before._posted.came
        return first and (self._ready is None or bool(self._ready.wait(timeout=0)))

    def exchange(self) -> None:
        """Wait for the operands, and start the exchange. In a thread of its own."""
        try:
            if self._before is not None:
                self._before.wait_until_posted()
                self._before = None
            if self._ready is not None:
                patience = getattr(self._comm, "timeout", _PATIENCE_S)
                self._imports.await_operands(self._name, self._ready, patience)
            self._marks.append(time.monotonic())
            pending = self._launch()
            self._imports.progress.moved(1)
            if self._what.kind == "send":
                # The program goes on; its call ends when the peer has all bytes.
                self._answer(None)
            pending.add_done_callback(self._hand_over)
        except BaseException as error:
            self.settle(error)
        finally:
            self._posted.set()

    def wait_until_posted(self) -> None:
        """Wait until its exchange has been started, or has failed."""
        self._posted.wait()

    def give_up(self, error: BaseException) -> None:
        """Fail a call whose exchange could not be started."""
        self._posted.set()
        self.settle(error)

    def settle(self, error: BaseException | None) -> None:
        """End the call: signal the program's fence."""
        self._marks.append(time.monotonic())
        if self._imports.recorder is not None:
            self._write(self._imports.recorder)
        if error is not None:
            self._imports.note(error)
        self._answer(error)
        # The next call of this import refers to it, and must not keep its buffers.
        self._views, self._results, self._ready, self._done = [], [], None, None
        self._room = None
        self._finished.set()

    def wait_until_finished(self) -> None:
        """Wait until its result is delivered, or it has failed."""
        self._finished.wait()

    def _launch(self) -> Any:
        """Start the exchange of the operands' values."""
        what = self._what
        arrays = [*map(self._operand, self._views, self._dtypes)]
        if what.kind == HOST:
            return self._imports.run_on_host(what, arrays)
        if self._comm is None:
            return alone(what, arrays)
        return launch(self._comm, what, arrays[0], tag_of(self._name), self._room)

    def _operand(self, view: Any, dtype: str) -> NDArray:
        """The values of an operand: its own memory where the sum only reads it.

        They stay until the program's fence is signalled: `pcp-legalize` lets nothing
        write over what an exchange reads.
        """
        device = self._imports.device
        if self._room is not None and (array := device.memory(view, dtype)) is not None:
            return array
        room = ARRAYS.empty if self._near else self._imports.memory.new
        return device.download(view, dtype, room)

    def _hand_over(self, pending: Any) -> None:
        """Have the result delivered, by a thread for that alone unless it is brief."""
        if self.brief:
            self._deliver(pending)
            return
        try:
            self._imports.delivery.submit(self._deliver, pending)
        except RuntimeError as error:  # there are no more threads
            self.settle(error)

    def _deliver(self, pending: Any) -> None:
        fault = None
        self._marks.append(time.monotonic())
        try:
            found = pending.result()
            values = found if self._what.kind == HOST else [found]
            for (view, dtype), value in zip(self._results, values, strict=True):
                if value is self._room:
                    continue
                array = value.astype(numpy_dtype(dtype), copy=False)
                self._imports.device.overwrite(view, array, dtype)
        except BaseException as error:
            fault = error
            if isinstance(pending, Pending):
                pending.told()  # the program is, by its fence
        self._imports.progress.moved(-1)
        self.settle(fault)

    def _answer(self, error: BaseException | None) -> None:
        """Signal the program's fence, once."""
        if self._done is None or self._answered:
            return
        self._answered = True
        self._done.fail(first_line(error)) if error is not None else self._done.signal()

    def _write(self, recorder: Recorder) -> None:
        """Write the call's span to a trace."""
        marks = self._marks
        steps = zip(_STEPS, marks, marks[1:], strict=False)
        parts = [(step, begin, end) for step, begin, end in steps]
        recorder.span("imports", self._name, marks[0], marks[-1], {}, parts)


class Imports:
    """The module `pcp_rt` that compiled functions import.

    Calls of one import are posted in program order, which is the same on all
    members; different imports do not wait for each other.
    """

    def __init__(
        self, device: Device, manifest: Manifest, host: Bindings | None = None
    ) -> None:
        self.groups: Groups = None
        self._host = dict(host or {})
        self.recorder: Recorder | None = None
        self.device = device
        self.manifest = manifest
        # One thread for each import at most: in any order of calls, an import that
        # waits for its operands delays no other.
        most = max(_EXCHANGE_THREADS, len(manifest.collectives))
        self._pool = ThreadPoolExecutor(most, "pcp-exchange")
        # Results have threads of their own: all of the others may wait for operands
        # that depend on a result.
        self.delivery = ThreadPoolExecutor(_DELIVERY_THREADS, "pcp-deliver")
        self._last: dict[str, PendingImport] = {}
        self._asked: list[PendingImport] = []
        self._fault: BaseException | None = None
        self._failed = False
        self.progress = Progress()
        self.memory = BufferPool()
        """For copies of operands."""

    def module(self) -> Any:
        """The Python module with one export per collective of the manifest."""
        interface = rt.PyModuleInterface("pcp_rt", lambda _: self)
        for name, what in self.manifest.collectives.items():
            takes = int(what.attributes.get("operands", 1))
            gives = len(results_of(what, 1))
            convention = f"0{'r' * takes}rr_{'r' * gives or 'v'}"
            interface.export(name, convention, self._entry(name))
        return interface.create()

    def begin(self) -> None:
        """Note that a function begins."""
        self._fault = None
        self._failed = False
        self._asked.clear()
        self._last.clear()
        self.progress.begin()

    def finish(self, *, failed: bool = False) -> BaseException | None:
        """Wait for every exchange of the call; the first fault, or None.

        Each ends by its operation's deadline. Exchanges whose operands never came
        are given up: after a call that `failed`, or when the program stands still.
        """
        self._failed = failed
        for asked in self._asked:
            asked.wait_until_finished()
        self._asked.clear()
        return self._fault

    def run_on_host(self, what: Collective, arrays: Sequence[NDArray]) -> Pending:
        """Run a host function now; a failure of it ends the program on all members."""
        called, pending = Declaration.of(what), Pending()
        self.progress.moved(1)
        try:
            pending.set_result(run(self._host[called.name], called, arrays))
        except HostFunctionFailed as error:
            self.note(error)
            groups = self.groups
            world = groups.get("") if isinstance(groups, Mapping) else groups
            if world is not None:
                world.abort(str(error))
            raise
        finally:
            self.progress.moved(-1)
        return pending

    def await_operands(self, name: str, ready: Any, patience: float) -> None:
        """Wait for operands as long as the program may still compute them.

        Raises Timeout if it makes no progress for `patience` seconds.
        """
        while not ready.wait(timeout=_LOOK_AGAIN_NS):
            if self._failed:
                raise CollectiveAborted("the program failed before its operands came")
            if self.progress.stands_still(patience):
                raise Timeout(
                    f"{name}: its operands did not come, and for {patience:g} s the "
                    "program neither computed nor exchanged anything: it waits for "
                    "itself. Compile it with --bucket-bytes 0 --inflight 0; if a "
                    "device computes longer without the processor, raise the timeout"
                )
        self.progress.moved()

    def note(self, error: BaseException) -> None:
        """Keep the first fault of a call, with which the call fails."""
        self._fault = self._fault or error

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.delivery.shutdown(wait=True, cancel_futures=True)
        self._last.clear()
        self._fault, self.groups = None, None  # frames of a fault hold arrays

    def group(self, name: str, what: Collective) -> Communicator | None:
        """The communicator of an import; None where it needs no other member."""
        if what.kind in ALONE:
            return None
        return group_for(self.groups, name, what, self.manifest)

    def _entry(self, name: str) -> Callable[..., Any]:
        def call(state: "Imports", *refs: Any) -> Any:
            return state._call(name, refs)

        return call

    def _call(self, name: str, refs: Sequence[Any]) -> Any:
        """Handle a call of an import: answer at once, exchange in the background."""
        what = self.manifest.collectives[name]
        line = HOST if what.kind == HOST else name  # host functions are one line
        asked = PendingImport(self, name, self._last.get(line))
        try:
            answer = asked.begin(refs)
        except Exception as error:
            self.note(error)
            raise
        self.progress.moved()
        self._last[line] = asked
        self._asked.append(asked)
        if asked.brief and asked.ready:
            asked.exchange()
            return answer
        try:
            self._pool.submit(asked.exchange)
        except RuntimeError as error:  # there are no more threads
            asked.give_up(error)
            raise
        return answer
