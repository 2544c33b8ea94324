"""A run of the pure coordinator, whose workers do what a test says."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from helpers.models.bigram_numpy import BLOCK
from helpers.simulation.run_schedules import experiment, program

from pcp.training.coordinator.effects import (
    Append,
    Effect,
    Fail,
    Gather,
    Log,
    Prove,
    Refuse,
    Send,
)
from pcp.training.coordinator.events import (
    Compiled,
    Event,
    Gathered,
    NotSaved,
    Proved,
    Received,
    Tick,
)
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.data.lease_pool import size
from pcp.training.storage.ledger_state import replayed
from pcp.training.wire.message import (
    VERSION,
    Message,
)
from pcp.training.wire.messages import (
    AwaitedRanks,
    Commit,
    Computed,
    Heartbeat,
    Hello,
    InnerExchangeReport,
    Prepared,
    Ready,
    RoundStart,
    Whereabouts,
)

PREPARED = Prepared(
    round=1,
    epoch=1,
    digest="0" * 64,
    loss=1.0,
    loss_first=1.0,
    steps=4,
    tokens=4,
    bytes_sent=0,
    bytes_received=0,
    compute_seconds=1.0,
    exchange_seconds=0.0,
)
"""Of the first round; a test changes what it is about."""


class Peer:
    """A worker's connection, and what it was told."""

    here = "127.0.0.1"

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[Message] = []
        self.refused: str | None = None

    @property
    def order(self) -> RoundStart:
        """The newest order."""
        return next(m for m in reversed(self.told) if isinstance(m, RoundStart))


def handed_out(asked: Gather | Prove) -> Event:
    """All that are asked for it have the state."""
    if isinstance(asked, Gather):
        return Gathered(asked.round, asked.members, ())
    return Proved(asked.round, asked.member)


def no_answer(asked: Gather | Prove) -> Event:
    """The first of them has none."""
    said, at = "no answer", asked.addresses[0]
    if isinstance(asked, Gather):
        return NotSaved(said, at)
    return Proved(asked.round, asked.member, said, at)


def a_run(
    wanted: int = 1, ledger: Iterable[Mapping[str, Any]] = (), **keys: Any
) -> TrainingRun:
    """One that nobody has joined; `ledger` has the lines of the shepherd before."""
    keyed = experiment().model_copy(update=keys)
    state = RunState(
        keyed,
        replayed(ledger),
        name="run",
        folder="run",
        serves="127.0.0.1:1",
        wanted=wanted,
        first_values=keyed.first_values,
    )
    return TrainingRun(state)


def hello(name: str, version: int = VERSION) -> Hello:
    """What a worker says first."""
    return Hello(
        version=version,
        worker=name,
        target="cpu",
        backend="cpu",
        device="d",
        address=f"{name}:1",
    )


class World:
    """A run with these workers, which do what a test says; time stands at will."""

    def __init__(self, *names: str, policy: str = "together", **keys: Any) -> None:
        keys = {"outer_loop_steps": 500, "checkpoint_every": 10**6, **keys}
        self.run, self.now = a_run(len(names), **keys), 0.0
        self.peers = {name: Peer(name) for name in names}
        self.lines: list[str] = []
        self.ledger: list[dict[str, Any]] = []
        self.effects: list[Effect] = []
        self.answers: Callable[[Gather | Prove], Event] | None = handed_out
        self._program = program(policy)
        for peer in self.peers.values():
            self.connect(peer)

    def connect(self, peer: Peer) -> None:
        """A worker comes, and takes the first state."""
        self.step(Received(peer, hello(peer.name)))
        self.step(Compiled(peer, self._program))
        if any(m.kind == "restore" for m in peer.told):
            self.says(peer.name, Ready(round=0, digest="0" * 64))

    def step(self, event: Event) -> None:
        """As the shell does."""
        for effect in self.run.step(event, self.now):
            self.effects.append(effect)
            match effect:
                case Send(connection=Peer() as peer, message=message):
                    peer.told.append(message)
                case Refuse(connection=Peer() as peer, reason=reason):
                    peer.refused = reason
                case Log(text=text):
                    self.lines.append(text)
                case Append(kind=kind, fields=fields):
                    self.ledger.append({"kind": kind, **fields})
                case Fail(error=error):
                    raise error
                case Gather() | Prove() if self.answers:
                    self.step(self.answers(effect))
                case _:
                    pass

    def says(self, name: str, message: Message) -> None:
        """A worker says this."""
        self.step(Received(self.peers[name], message))

    def tick(self, seconds: float = 0.1) -> None:
        """Time passes; all that are connected live."""
        self.now += seconds
        for peer in self.peers.values():
            self.step(Received(peer, Heartbeat()))
        asked = self.asked
        self.step(Tick())
        if self.asked > asked:  # the state was shown: the round begins
            self.step(Tick())

    @property
    def asked(self) -> int:
        """How often members were asked for a state."""
        return sum(isinstance(effect, Prove) for effect in self.effects)

    @property
    def members(self) -> list[str]:
        """Of the round under way."""
        rounds = self.run.rounds
        return [] if rounds is None or not rounds.attempt else rounds.attempt.members

    @property
    def committed(self) -> int:
        """The last round that counts."""
        return self.run.state.committed

    def computes(
        self, name: str, loss: float = 1.0, moved: float = 1.0, **said
    ) -> None:
        """Inner steps are made."""
        order = self.peers[name].order
        values = {"round": order.round, "epoch": order.epoch, "loss": loss}
        self.says(name, Computed(**values, moved=moved, **said))

    def prepares(self, name: str, digest: str = "a", **said: Any) -> None:
        """The exchange is made."""
        order = self.peers[name].order
        values = {
            "round": order.round,
            "epoch": order.epoch,
            "digest": digest * 64,
            "loss": 1.0,
            "loss_first": 1.0,
            "steps": order.steps,
            "tokens": size(order.lease) * BLOCK,
            "bytes_sent": 0,
            "bytes_received": 0,
            "compute_seconds": 1.0,
            "exchange_seconds": 0.0,
            "moved": 1.0,
        }
        self.says(name, Prepared(**values | said))

    def makes(self, *wrong: str) -> None:
        """A round as it should be; those that are wrong prepare another state."""
        self.tick()
        members = list(self.members)
        for name in members:
            self.computes(name)
        for name in members:
            self.prepares(name, "b" if name in wrong else "a")
        for peer in self.peers.values():
            last = peer.told[-1]
            if isinstance(last, Commit) and last.source is not None:
                ready = Ready(round=last.round, digest=last.digest)
                self.says(peer.name, ready)

    def said(self, part: str) -> bool:
        """Whether a line has this in it."""
        return any(part in line for line in self.lines)


BEAT = 0.25
"""Seconds between two heartbeats."""


class Crew(World):
    """A run whose members are in a round; steps take a tenth of a second."""

    def __init__(self, *names: str, policy: str = "together") -> None:
        super().__init__(*names, policy=policy)
        self.liars = ""
        """Members of whom the others get nothing."""
        self.makes()
        self.makes()
        self.tick()
        for peer in self.peers.values():
            self.run.state.roster[peer.name].pace.made(10, 1.0)
        self.since = self.now

    def beats(self, name: str, call: str, lacks: str = "", steps: int = 7) -> None:
        """A member is in a call since the round began, and some have not come to it."""
        where, order = self.now - self.since, self.peers[name].order
        at = Whereabouts.model_validate({"call": call, "steps": steps, "since": where})
        awaits = alone = None
        if lacks:
            ranks = [self.members.index(n) for n in lacks if n in self.members]
            awaits = AwaitedRanks(ranks=ranks, seconds=where)
        elif at.with_others:
            alone = where
        meeting = InnerExchangeReport(
            round=order.round,
            epoch=order.epoch,
            entered=0,
            waits=where,
            awaits=awaits,
            alone=alone,
        )
        self.says(name, Heartbeat(at=at, meeting=meeting))
