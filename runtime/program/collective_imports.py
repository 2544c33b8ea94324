"""The module `pcp_rt`: a program's collectives, answered in the background.

An import gets its operands, a fence to wait for and a fence to signal (IREE's
"coarse fences"). It answers at once with an unfilled result; a thread waits for
the operands, the communicator does the exchange, and the second fence tells
the program that the result is there. Whatever the program does meanwhile
overlaps with the exchange.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import iree.runtime as rt
import numpy as np

from pcp.bundle import Collective, Manifest
from pcp.errors import CollectiveAborted, Timeout
from pcp.runtime.collectives.tracing import Recorder
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.runtime.memory.shared_arrays import shared_empty
from pcp.runtime.program.devices import Device, first_line
from pcp.runtime.program.host_collectives import (
    ALONE,
    Groups,
    alone,
    group_for,
    launch,
    read_by_others,
    result_shape,
)
from pcp.runtime.program.stall_detector import Progress

_EXCHANGE_THREADS = 4
_DELIVERY_THREADS = 2
_LOOK_AGAIN_NS = 500_000_000
#: Seconds that an import waits for its operands where no group says how long.
_PATIENCE_S = 60.0
_STEPS = ("wait for operands", "exchange", "deliver")


def tag_of(name: str) -> str:
    """What members call the same collective: `all_gather_3` of `all_gather_3_f32_8`.

    The number of elements may differ between members that share unequally.
    """
    return name.rsplit("_", 2)[0]


class _Job:
    """One exchange a running function asked for."""

    __slots__ = ("answered", "finished", "marks", "posted")

    def __init__(self) -> None:
        self.answered = False
        self.posted = threading.Event()
        self.finished = threading.Event()
        self.marks = [time.monotonic()]
        """When it was asked for, had its operands, had exchanged them, was over."""

    def mark(self) -> None:
        """One of `marks` is reached."""
        self.marks.append(time.monotonic())

    def write(self, recorder: Recorder, name: str) -> None:
        """Its span in a trace."""
        steps = zip(_STEPS, self.marks, self.marks[1:], strict=False)
        parts = [(step, begin, end) for step, begin, end in steps]
        recorder.span("imports", name, self.marks[0], self.marks[-1], {}, parts)


class Imports:
    """The module `pcp_rt` that compiled functions import.

    Calls of one import are posted in program order, which is the same on all
    members; different imports do not wait for each other.
    """

    def __init__(self, device: Device, manifest: Manifest) -> None:
        self.groups: Groups = None
        self.recorder: Recorder | None = None
        self._device = device
        self._manifest = manifest
        # One for each import at most: whatever order members call them in, none is
        # held up by those that wait for their operands.
        most = max(_EXCHANGE_THREADS, len(manifest.collectives))
        self._pool = ThreadPoolExecutor(most, "pcp-exchange")
        # Results have threads of their own: all of the others may be waiting for
        # operands that a result still has to be delivered for.
        self._delivery = ThreadPoolExecutor(_DELIVERY_THREADS, "pcp-deliver")
        self._last: dict[str, _Job] = {}
        self._jobs: list[_Job] = []
        self._fault: BaseException | None = None
        self._failed = False
        self._progress = Progress()

    def module(self) -> Any:
        """The Python module with one export per collective of the manifest."""
        interface = rt.PyModuleInterface("pcp_rt", lambda _: self)
        for name, what in self._manifest.collectives.items():
            takes = int(what.attributes.get("operands", 1))
            convention = f"0{'r' * takes}rr_r"
            interface.export(name, convention, self._entry(name))
        return interface.create()

    def begin(self) -> None:
        """A function is about to run."""
        self._fault = None
        self._failed = False
        self._jobs.clear()
        self._last.clear()
        self._progress.begin()

    def finish(self, *, failed: bool = False) -> BaseException | None:
        """Wait for every exchange of the call; what went wrong first, if it did.

        Each ends by its operation's deadline. Exchanges whose operands never came
        are given up: after a call that `failed`, or when the program stands still.
        """
        self._failed = failed
        for job in self._jobs:
            job.finished.wait()
        self._jobs.clear()
        return self._fault

    def _await(self, name: str, ready: Any, patience: float) -> None:
        """Wait for operands as long as the program may still compute them.

        Raises Timeout if it does nothing at all for `patience` seconds.
        """
        while not ready.wait(timeout=_LOOK_AGAIN_NS):
            if self._failed:
                raise CollectiveAborted("the program failed before its operands came")
            if self._progress.stands_still(patience):
                raise Timeout(
                    f"{name}: its operands did not come, and for {patience:g} s the "
                    "program neither computed nor exchanged anything: it waits for "
                    "itself. Compile it with --bucket-bytes 0 --inflight 0; if a "
                    "device computes longer without the processor, raise the timeout"
                )
        self._progress.moved()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._delivery.shutdown(wait=True, cancel_futures=True)
        self._last.clear()
        self._fault, self.groups = None, None  # a fault's frames hold arrays

    def _group(self, name: str, what: Collective) -> Communicator | None:
        """Who takes part; None for what needs nobody."""
        if what.kind in ALONE:
            return None
        return group_for(self.groups, name, what, self._manifest)

    def _entry(self, name: str) -> Callable[..., Any]:
        def call(state: "Imports", *refs: Any) -> Any:
            return state._call(name, refs)

        return call

    def _call(self, name: str, refs: Sequence[Any]) -> Any:
        """An import is called: answer at once, exchange in the background."""
        what = self._manifest.collectives[name]
        *operands, wait, signal = refs
        dtypes = what.attributes.get("dtypes", [what.dtype])
        views = [
            operand.deref(rt.HalBufferView)
            for operand, _ in zip(operands, dtypes, strict=False)
        ]
        ready = wait.deref(rt.HalFence) if wait.isinstance(rt.HalFence) else None
        done = signal.deref(rt.HalFence) if signal.isinstance(rt.HalFence) else None
        try:
            comm = self._group(name, what)
            shape = result_shape(what, comm.world_size if comm else 1)
        except Exception as error:
            self._fault = self._fault or error
            raise
        given = what.attributes.get("result_dtype", what.dtype)
        result = self._device.upload(np.empty(shape, numpy_dtype(given)), given)
        self._progress.moved()
        job, before = _Job(), self._last.get(name)
        self._last[name] = job
        self._jobs.append(job)

        def settle(error: BaseException | None) -> None:
            job.mark()
            if self.recorder is not None:
                job.write(self.recorder, name)
            if error is not None:
                self._fault = self._fault or error
            if done is not None and not job.answered:
                job.answered = True
                done.fail(first_line(error)) if error is not None else done.signal()
            job.finished.set()

        def deliver(pending: Any) -> None:
            fault = None
            job.mark()
            try:
                self._device.overwrite(
                    result,
                    pending.result().astype(numpy_dtype(given), copy=False),
                    given,
                )
            except BaseException as error:
                fault = error
            self._progress.moved(-1)
            settle(fault)

        def hand_over(pending: Any) -> None:
            try:
                self._delivery.submit(deliver, pending)
            except RuntimeError as error:  # there are no more threads
                settle(error)

        def run() -> None:
            try:
                if before is not None:
                    before.posted.wait()
                if ready is not None:
                    patience = getattr(comm, "timeout", _PATIENCE_S)
                    self._await(name, ready, patience)
                job.mark()
                room = shared_empty if read_by_others(comm, what) else np.empty
                arrays = [
                    self._device.download(view, dtype, room)
                    for view, dtype in zip(views, dtypes, strict=True)
                ]
                if comm is None:
                    pending = alone(what, arrays)
                else:
                    pending = launch(comm, what, arrays[0], tag_of(name))
                self._progress.moved(1)
                if what.kind == "send" and done is not None:
                    # The program goes on; its call ends when the peer has all.
                    job.answered = True
                    done.signal()
                pending.add_done_callback(hand_over)
            except BaseException as error:
                settle(error)
            finally:
                job.posted.set()

        try:
            self._pool.submit(run)
        except RuntimeError as error:  # there are no more threads
            job.posted.set()
            settle(error)
            raise
        return result.ref
