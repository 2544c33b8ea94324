"""Processes that take turns, in virtual time, in an order drawn from a seed.

Each thread of a simulated process is a real thread, so that the real code runs in it,
but only one of all runs at a time: it hands over where it waits. A process can be
killed at each point that it passes, or frozen for a while.
"""

import heapq
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

_MOMENT = 0.002
"""Longest time that the wake of a thread takes, in seconds."""
_PREEMPTED = 0.1


class Killed(BaseException):
    """The process that runs this was killed: nothing may catch it."""


@dataclass(eq=False)
class Process:
    """Some threads that die together."""

    world: "World"
    name: str
    alive: bool = True
    points: int | None = None
    """How many points it passes until it is killed."""
    frozen_until: float = 0.0
    at_death: list[Callable[[], None]] = field(default_factory=list)
    threads: list["VirtualThread"] = field(default_factory=list)

    def point(self) -> None:
        """A place at which the process may die."""
        if not self.alive:
            raise Killed
        if self.points is not None:
            self.points -= 1
            if self.points < 0:
                self.kill()
                raise Killed

    def kill(self) -> None:
        """Whatever it does, it does no more."""
        if not self.alive:
            return
        self.alive = False
        for thread in self.threads:
            if thread is not self.world.current:
                self.world.after(0.0, thread.step)
        for act in self.at_death:
            act()


class VirtualThread:
    """One thread of a process; `start` has it run in its turn."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process, self._world, self._work = process, process.world, work
        self.started = self.done = False
        self.waits = 0
        """Counts the waits, so that a wake that comes late is known."""
        self._turn = threading.Lock()
        self._turn.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        process.threads.append(self)

    def start(self) -> None:
        """Begin, a moment later."""
        self.started = True
        self._thread.start()
        self._world.wake(self)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        until = self._world.now + (1e9 if timeout is None else timeout)
        while not self.done and self._world.now < until:
            self._world.sleep(0.01)

    def step(self) -> None:
        """Run it until it waits; called by the scheduler."""
        if self.done or not self.started:
            return
        thaws = self.process.frozen_until
        if self.process.alive and thaws > self._world.now:
            self._world.after(thaws - self._world.now, self.step)
            return
        self._world.current = self
        self._turn.release()
        self._world.baton.acquire()
        self._world.current = None

    def pause(self) -> None:
        """Hand over until the next `step`."""
        self._world.baton.release()
        self._turn.acquire()
        if not self.process.alive:
            raise Killed

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if self.process.alive:
                self._work()
        except Killed:
            pass
        except BaseException as error:
            self._world.errors.append((self.process.name, error))
        finally:
            self.done = True
            self.process.threads.remove(self)
            self._world.baton.release()


class World:
    """The scheduler. All that happens follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.current: VirtualThread | None = None
        self.baton = threading.Lock()
        self.baton.acquire()
        self.errors: list[tuple[str, BaseException]] = []
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    @property
    def thread(self) -> VirtualThread:
        """Whose turn it is."""
        assert self.current is not None, "only a thread of a process may wait"
        return self.current

    def thread_of(self, process: Process, work: Callable[[], None]) -> None:
        """Start a thread of a process."""
        VirtualThread(process, work).start()

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Do it later, in the scheduler's own thread."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), act))

    def wake(self, thread: VirtualThread, seconds: float = 0.0) -> None:
        """Let it go on, if it still waits for this by then."""
        waits = thread.waits

        def act() -> None:
            if thread.waits == waits:
                thread.waits += 1
                thread.step()

        self.after(seconds + self.random.random() * _MOMENT, act)

    def advance(self) -> None:
        """The next thing that happens."""
        at, _, act = heapq.heappop(self._queue)
        self.now = max(self.now, at)
        act()

    def sleep(self, seconds: float) -> None:
        """Wait; the process may die before, meanwhile and after."""
        thread = self.thread
        thread.process.point()
        self.wake(thread, seconds)
        thread.pause()
        thread.process.point()

    # What stands in for the modules `time` and `threading`.

    def monotonic(self) -> float:
        """The time."""
        return self.now

    time = monotonic

    def Event(self) -> "VirtualEvent":
        """For `threading.Event`."""
        return VirtualEvent(self)

    def Thread(self, target: Callable[[], None], **_: Any) -> VirtualThread:
        """For `threading.Thread`: one of the process that makes it."""
        return VirtualThread(self.thread.process, target)

    def current_thread(self) -> VirtualThread:
        """Whose turn it is."""
        return self.thread


class Bell:
    """Threads wait for it to ring."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[tuple[VirtualThread, int]] = []

    def ring(self) -> None:
        """Wake all who wait."""
        waiting, self._waiting = self._waiting, []
        for thread, waits in waiting:
            if thread.waits == waits:
                self._world.wake(thread)

    def wait(self, timeout: float | None = None) -> None:
        """Until it rings, at most so many seconds."""
        thread = self._world.thread
        thread.process.point()
        self._waiting.append((thread, thread.waits))
        if timeout is not None:
            self._world.wake(thread, timeout)
        thread.pause()

    def wait_for(self, holds: Callable[[], Any], timeout: float | None = None) -> bool:
        """Until something holds; False if it does not in time."""
        until = None if timeout is None else self._world.now + timeout
        while not holds():
            left = None if until is None else until - self._world.now
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True


class VirtualEvent:
    """For `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._bell, self._set = Bell(world), False

    def is_set(self) -> bool:
        """Whether it happened."""
        return self._set

    def set(self) -> None:
        """It happens."""
        self._set = True
        self._bell.ring()

    def clear(self) -> None:
        """It has not happened."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Until it happens."""
        return self._bell.wait_for(lambda: self._set, timeout)


class VirtualCondition:
    """For `threading.Condition`: threads hand over nowhere else, so none is locked."""

    def __init__(self, world: World) -> None:
        self._world, bell = world, Bell(world)
        self.notify_all, self.wait_for = bell.ring, bell.wait_for

    def __enter__(self) -> None:
        """Nothing to lock."""

    def __exit__(self, kind: Any, *_: object) -> None:
        """Another thread may have its turn before this one goes on."""
        if kind is None and self._world.random.random() < _PREEMPTED:
            self._world.sleep(self._world.random.random() * 10 * _MOMENT)
