"""What a pipeline schedule does in time: a simulation with blocking receives.

Devices run their tasks in order. Sending takes no time of the sender's as long as
fewer than `buffers` messages to that receiver are still unread, else it blocks until
one is read; a message arrives `latency` after it is sent, and what its task says
besides. Receiving blocks. Pure: tasks are numbers, times are in whatever unit the
durations have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from pcp.errors import PassError


@dataclass(frozen=True)
class TaskWork:
    """A task on a device, and the tasks whose results it reads.

    Its own results are `travel` longer on their way to another device than others'.
    """

    device: int
    duration: float
    reads: tuple[int, ...] = ()
    travel: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """When each task starts and ends."""

    start: tuple[float, ...]
    end: tuple[float, ...]
    works: tuple[TaskWork, ...]

    @property
    def length(self) -> float:
        """From the first start to the last end."""
        return max(self.end, default=0.0)

    @property
    def bubble(self) -> float:
        """The share of the devices' time in which they wait."""
        devices = {work.device for work in self.works}
        total = self.length * len(devices)
        busy = sum(work.duration for work in self.works)
        return 1 - busy / total if total else 0.0


@dataclass
class _Device:
    """Its tasks in order, the next of them, and its clock."""

    tasks: list[int]
    place: int = 0
    clock: float = 0.0
    #: Messages it has still to send before it goes on: (task, to).
    outbox: list[tuple[int, int]] = field(default_factory=list)


def simulate(
    works: Sequence[TaskWork], *, latency: float = 0.0, buffers: float = inf
) -> Timeline:
    """The timeline of tasks that each device runs in their order.

    Raises `PassError` naming who waits for what when nobody can go on.
    """
    simulation = _Simulation(works, latency, buffers)
    while simulation.step():
        pass
    simulation.check()
    ends = tuple(simulation.end[n] for n in range(len(works)))
    starts = tuple(end - work.duration for end, work in zip(ends, works, strict=True))
    return Timeline(starts, ends, tuple(works))


class _Simulation:
    def __init__(
        self, works: Sequence[TaskWork], latency: float, buffers: float
    ) -> None:
        self.works, self.latency, self.buffers = works, latency, buffers
        self.devices: dict[int, _Device] = {}
        self.receivers: list[list[int]] = [[] for _ in works]
        for number, work in enumerate(works):
            self.devices.setdefault(work.device, _Device([])).tasks.append(number)
            for read in work.reads:
                to = self.receivers[read]
                if works[read].device != work.device and work.device not in to:
                    to.append(work.device)
        self.end: dict[int, float] = {}
        self.arrival: dict[tuple[int, int], float] = {}
        #: For each pair of devices when each message was read, and who is unread.
        self.unread: dict[tuple[int, int], list[int]] = {}
        self.freed: dict[tuple[int, int], float] = {}

    def step(self) -> bool:
        """Move every device on by what it can do; whether any did."""
        return any([self._send(d) or self._run(d) for d in self.devices])

    def _send(self, number: int) -> bool:
        """Put the first waiting message on its way."""
        device = self.devices[number]
        if not device.outbox:
            return False
        task, to = device.outbox[0]
        pair = number, to
        waiting = self.unread.setdefault(pair, [])
        if len(waiting) >= self.buffers:
            return False
        device.clock = max(device.clock, self.freed.get(pair, 0.0))
        waiting.append(task)
        travel = self.latency + self.works[task].travel
        self.arrival[task, to] = device.clock + travel
        device.outbox.pop(0)
        return True

    def _run(self, number: int) -> bool:
        """Run the next task, if all it reads has come."""
        device = self.devices[number]
        if device.outbox or device.place == len(device.tasks):
            return False
        task = device.tasks[device.place]
        arrivals = [self._arrived(read, number) for read in self.works[task].reads]
        if None in arrivals:
            return False
        start = max([device.clock, *(a for a in arrivals if a is not None)])
        self._take(task, number, start)
        device.clock = self.end[task] = start + self.works[task].duration
        device.place += 1
        device.outbox = [(task, to) for to in self.receivers[task]]
        return True

    def _arrived(self, task: int, to: int) -> float | None:
        if self.works[task].device == to:
            return self.end.get(task)
        return self.arrival.get((task, to))

    def _take(self, task: int, number: int, time: float) -> None:
        """Messages that the task reads are read."""
        for read in self.works[task].reads:
            pair = self.works[read].device, number
            if read in self.unread.get(pair, ()):
                self.unread[pair].remove(read)
                self.freed[pair] = max(time, self.freed.get(pair, 0.0))

    def check(self) -> None:
        """Raise unless every task has run."""
        stuck = []
        for number, device in self.devices.items():
            if device.outbox:
                task, to = device.outbox[0]
                stuck.append(f"device {number} sends what task {task} made to {to}")
            elif device.place < len(device.tasks):
                task = device.tasks[device.place]
                reads = self.works[task].reads
                lacks = [r for r in reads if self._arrived(r, number) is None]
                stuck.append(f"device {number} waits for task {lacks[0]} in {task}")
        if stuck:
            raise PassError(f"the schedule is a deadlock: {'; '.join(stuck)}")
