"""Islands between the connections of ranks and the members of a run.

    effects = islands.step(event, now)      in place of `TrainingRun.step`

Islands of unlike shape exchange by pieces (`pcp.pieces`): their orders name all ranks
of all islands, and a rank finds its peers itself.

A member of the run is an island (`pcp.training.coordinator.island`). `Islands` joins
the messages of ranks, and makes messages for ranks of the run's: the order for a rank
names the ranks at its coordinate of other islands, and its own island; its commit names
the digest of its part.

    rank ──Hello──► waiting ──form──► island ──one says it is lost──► gone
                       ▲                │
                       └─ Hello again ──┘ the others: their connections are closed,
                                          and they come back with what they hold

An island that loses a rank, or whose ranks cannot exchange among themselves, is out of
the round at once, and the other islands go on. Its return needs no further protocol:
its ranks send their hellos again, a newcomer takes the free place, and the run sees a
worker that comes back. Parts of different rounds are no state.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pcp.runtime.transport.suspension import SuspendDetection
from pcp.training.coordinator.effects import (
    Append,
    Close,
    Effect,
    Gather,
    Log,
    Prove,
    Refuse,
    Send,
)
from pcp.training.coordinator.events import (
    Compiled,
    Event,
    Lost,
    NotSaved,
    Peer,
    Proved,
    Received,
    Tick,
)
from pcp.training.coordinator.island import AddressTable, Island, RankTable
from pcp.training.coordinator.island_formation import (
    FormedIsland,
    Rank,
    form,
    form_shapes,
    larger_islands,
    moved,
)
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.trainer.bundle_checks import plan_of
from pcp.training.wire.message import VERSION, Message
from pcp.training.wire.messages import (
    Commit,
    Computed,
    Failed,
    GroupFailed,
    Heartbeat,
    Hello,
    Lacking,
    Prepared,
    Ready,
    Restore,
    RoundStart,
    Shutdown,
    Validated,
    Welcome,
)
from pcp.training.wire.operator_messages import Status


class Islands:
    """The islands of a run around its state machine. Pure."""

    def __init__(
        self, run: TrainingRun, sizes: Sequence[int] = (1,), wanted: Sequence[int] = ()
    ) -> None:
        """By shape, `sizes` are the ranks of an island and `wanted` how many islands
        the run begins with; there is one shape unless the experiment says more."""
        self.run, self.sizes = run, tuple(sizes)
        self.wanted = tuple(wanted) or (0,) * len(sizes)
        self._shapes: Sequence[Mapping[str, Any]] = ()
        """How the shapes cut the state, once they are compiled."""
        self.islands: dict[str, Island] = {}
        """The islands that are members, by name."""
        self._addresses = AddressTable(self.islands, self.sizes)
        self._ranks = RankTable()
        self._places: dict[str, tuple[str, int, int]] = {}
        """The places in larger islands of ranks that are to come back, by worker."""
        self._exchanges_inside = True
        limit = run.state.experiment.heartbeat_limit_seconds
        self._suspension = SuspendDetection(max(limit / 2, 0.25), limit)
        self._beat = run.state.now
        self._addressed: dict[type[Message], Callable[..., Message]] = {
            Welcome: self._welcome,
            Restore: self._restore,
            RoundStart: self._order,
            Commit: self._commit,
        }

    def step(self, event: Event, now: float) -> list[Effect]:
        """The effects of an event, in their order, for ranks."""
        if self.sizes == (1,):
            return self.run.step(event, now)
        effects = self._step(event, now)
        if self.run.outcome is not None:
            effects += self._farewell()
        return effects

    def _farewell(self) -> list[Effect]:
        """Tell the ranks that wait that the run is over."""
        over = Shutdown(reason="the run is over")
        waiting, self._ranks = self.waiting(), RankTable()
        return [Send(rank.connection, over) for rank in waiting]

    def _step(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(connection=peer, message=message):
                return self._received(peer, message, now)
            case Lost(connection=peer, reason=reason) if peer in self._ranks:
                return self._lost(peer, reason, now)
            case Compiled(program=program):
                plan = plan_of(program.manifest)
                self._exchanges_inside = plan.exchanges_inside
                self._shapes = program.shapes
            case NotSaved(at=str() as at) | Proved(at=str() as at):
                return self._pass(replace(event, at=self._addresses.member(at)), now)
            case Tick():
                return [*self._waiting_on(now), *self._pass(event, now)]
        return self._pass(event, now)

    def waiting(self) -> list[Rank]:
        """The ranks that are in no island."""
        return self._ranks.waiting()

    def status(self) -> dict[str, Any]:
        """The status of the run, with the ranks inside each island."""
        return self._with_ranks(self.run.status())

    def _with_ranks(self, status: Mapping[str, Any]) -> dict[str, Any]:
        if self.sizes == (1,):
            return dict(status)
        now = self.run.state.now
        rows = [dict(row) for row in status["workers"]]
        for row in rows:
            island = self.islands.get(row["worker"])
            ranks = island.ranks if island else ()
            row["ranks"] = [rank.described(now) for rank in ranks]
        waiting = [rank.described(now) for rank in self.waiting()]
        return {**status, "workers": rows, "waiting": waiting}

    # Ranks come and go ----------------------------------------------------------------

    def _received(self, peer: Peer, message: Message, now: float) -> list[Effect]:
        if isinstance(message, Hello) and message.version == VERSION:
            return self._hello(peer, message, now)
        if peer not in self._ranks:
            return self._pass(Received(peer, message), now)
        rank, island = self._ranks[peer]
        rank.seen = now
        if isinstance(message, Failed):
            return self._lost(peer, f"gave up: {message.reason}", now, closing=True)
        return [] if island is None else self._said(island, rank, message, now)

    def _hello(self, peer: Peer, hello: Hello, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if (other := self._ranks.of_worker(hello.worker)) is not None:
            effects += self._lost(other, "connected again", now, closing=True)
        if place := self._places.pop(hello.worker, None):
            hello = moved(hello, *place)
        self._ranks.add(Rank(peer, hello, now, now))
        return effects + self._form(now)

    def _lost(
        self, peer: Peer, reason: str, now: float, *, closing: bool = False
    ) -> list[Effect]:
        rank, island = self._ranks[peer]
        self._ranks.pop(peer)
        effects: list[Effect] = [Close(peer)] if closing else []
        if island is None:
            return effects
        who = f"its rank {island.coordinate(rank)} at {rank.hello.address}"
        return effects + self._dissolve(island, f"{who}: {reason}", now)

    def _dissolve(self, island: Island, reason: str, now: float) -> list[Effect]:
        """End an island; its remaining ranks connect again."""
        del self.islands[island.name]
        left = [r for r in island.ranks if self._ranks.pop(r.connection)]
        effects = self._pass(Lost(island, reason), now)
        return effects + [Close(rank.connection) for rank in left]

    def _form(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for formed in self._formed(now):
            name = formed.was or formed.ranks[0].hello.worker
            while name in self.islands:
                name += "+"
            mesh = self._mesh(formed.shape)
            island = Island(name, formed.ranks, formed.shape, mesh)
            self.islands[name] = island
            for rank in formed.ranks:
                self._ranks.place(rank, island)
            hosts = ", ".join(rank.hello.address for rank in formed.ranks)
            what = f"island {name} of {hosts}"
            what = what if mesh is None else f"{what}, {mesh}"
            effects.append(Log(f"{what}: {formed.why}"))
            hello = island.hello(self.run.state.progress)
            effects += self._pass(Received(island, hello), now)
        return effects

    def _formed(self, now: float) -> list[FormedIsland]:
        wait = self.run.state.grace
        if not self.unlike:
            return form(self.waiting(), self.sizes[0], now, wait)
        lacking = self._lacking(self._there())
        return form_shapes(self.waiting(), self.sizes, lacking, now, wait)

    def _there(self) -> Counter[int]:
        return Counter(island.shape for island in self.islands.values())

    def _lacking(self, there: Counter[int]) -> list[int]:
        return [max(0, n - there[shape]) for shape, n in enumerate(self.wanted)]

    @property
    def unlike(self) -> bool:
        """Whether islands of several shapes may be formed."""
        return len(self.sizes) > 1

    def _mesh(self, shape: int) -> str | None:
        """The mesh of a shape as text, where islands are not all alike."""
        return self.run.state.experiment.shapes[shape] if self.unlike else None

    def _waiting_on(self, now: float) -> list[Effect]:
        """Form islands; exchange heartbeats with the ranks that are in none."""
        effects, experiment = self._form(now), self.run.state.experiment
        counts = self._suspension.turned(now)
        for rank in self.waiting():
            silent = now - rank.seen
            if counts and silent > experiment.heartbeat_limit_seconds:
                reason = f"silent for {silent:.1f} s"
                effects += self._lost(rank.connection, reason, now, closing=True)
        if now - self._beat >= experiment.heartbeat_seconds:
            self._beat = now
            effects += [Send(rank.connection, Heartbeat()) for rank in self.waiting()]
        return effects

    # From ranks to the run ------------------------------------------------------------

    def _said(
        self, island: Island, rank: Rank, message: Message, now: float
    ) -> list[Effect]:
        if isinstance(message, GroupFailed) and message.inside:
            if self._is_over(island, message):
                return []
            reason = f"its ranks cannot exchange: {message.reason}"
            return self._dissolve(island, reason, now)
        said = island.says(rank, message)
        return [] if said is None else self._pass(Received(island, said), now)

    def _is_over(self, island: Island, failed: GroupFailed) -> bool:
        """Whether the group of a rank's report was given up already.

        An exchange for a validation is of the round before the order's.
        """
        order = island.order
        if order is None or failed.round < order.round - 1:
            return True
        return failed.round >= order.round and failed.epoch < order.epoch

    # From the run to ranks ------------------------------------------------------------

    def _pass(self, event: Event, now: float | None = None) -> list[Effect]:
        """A step of the run itself, its effects for ranks; None: at the same time."""
        effects: list[Effect] = []
        now = self.run.state.now if now is None else now
        done = self.run.step(event, now)
        for effect in done:
            effects += self._translated(effect)
        for effect in done:
            if isinstance(effect, Append) and effect.kind == "rewind":
                effects += self._rewound(effect.fields["to"], now)
            elif self.unlike and isinstance(effect, Append) and effect.kind == "commit":
                effects += self._grow(now)
        return effects

    def _grow(self, now: float) -> list[Effect]:
        """Between two rounds: end smaller islands of which larger ones can be made.

        Their ranks come back, and are given the places that they have then.
        """
        there, effects, wait = self._there(), list[Effect](), self.run.state.grace
        lacking, held = self._lacking(there), list[tuple[Rank, Island]]()
        for island in reversed(self.islands.values()):
            if there[island.shape] > self.wanted[island.shape]:
                there[island.shape] -= 1
                held += island.placed()
        waits, ranks = self.waiting(), [rank for rank, _ in held]
        for one in larger_islands(waits, ranks, self.sizes, lacking, now, wait):
            left = {i.name: i for rank, i in held if rank in one.ranks}
            for rank in filter(ranks.__contains__, one.ranks):
                at = one.ranks.index(rank)
                self._places[rank.hello.worker] = (min(left), one.shape, at)
            for island in left.values():
                why = f"its ranks go on in an island of {self._mesh(one.shape)}"
                effects += self._dissolve(island, why, now)
        return effects

    def _rewound(self, to: int, now: float) -> list[Effect]:
        """Islands of which only some ranks caught up with a round that is left.

        To the run they hold the round to which it goes back.
        """
        torn = [i for i in self.islands.values() if i.torn_beyond(to)]
        lack = [self._pass(Received(i, Lacking(round=to)), now) for i in torn]
        return [effect for effects in lack for effect in effects]

    def _translated(self, effect: Effect) -> list[Effect]:
        match effect:
            case Send(connection=Island() as island, message=message, bundle=bundle):
                if isinstance(message, Commit) and self._is_unlike(island, message):
                    return self._pass(Received(island, Lacking(round=message.round)))
                return self._sent(island, message, bundle)
            case Refuse(connection=Island() as island, reason=reason):
                return [Refuse(rank.connection, reason) for rank in island.ranks]
            case Close(connection=Island() as island):
                return self._closed(island)
            case Send(message=Status(values=values)):
                return [
                    replace(effect, message=Status(values=self._with_ranks(values)))
                ]
            case Gather(addresses=addresses) | Prove(addresses=addresses):
                ranks = self._addresses.ranks(addresses)
                shapes = self._addresses.shapes(addresses)
                return [replace(effect, addresses=ranks, shapes=shapes)]
        return [effect]

    def _closed(self, island: Island) -> list[Effect]:
        """The run closes an island's connection: close those of its ranks."""
        if self.islands.get(island.name) is not island:
            return []
        del self.islands[island.name]
        for rank in island.ranks:
            self._ranks.pop(rank.connection)
        return [Close(rank.connection) for rank in island.ranks]

    def _sent(
        self, island: Island, message: Message, bundle: str | None
    ) -> list[Effect]:
        if isinstance(message, RoundStart):
            self._prepare_order(island, message)
        elif isinstance(message, Restore):
            island.inner_epoch, island.order, island.restored = None, None, {}
            island.forget(Ready)
        elif isinstance(message, Commit):
            island.settled = True
            island.forget(Ready, Validated)
        make = self._addressed.get(type(message), lambda island, at, said: said)
        return [
            Send(rank.connection, make(island, at, message), bundle)
            for at, rank in enumerate(island.ranks)
        ]

    def _prepare_order(self, island: Island, order: RoundStart) -> None:
        """The group of the ranks stays, if all of them continue alike in it.

        They do after a commit, and when only the exchange with other islands is made
        again. Ranks whose steps are called off stop at different steps: their
        operations of one round would match those of another.
        """
        last, again = island.order, False
        if last is not None:
            again = last.lease == order.lease and not self._exchanges_inside
        if island.inner_epoch is None or not (again or island.settled):
            island.inner_epoch = order.epoch
        island.order, island.settled = order, False
        island.forget(Computed, Prepared)

    def _order(self, island: Island, at: int, order: RoundStart) -> RoundStart:
        assert island.inner_epoch is not None
        members, shapes = self._addresses.peers(order.members, at)
        return order.model_copy(
            update={
                "members": members,
                "shapes": shapes,
                "island": [rank.hello.address for rank in island.ranks],
                "inner_epoch": island.inner_epoch,
                "digest": None,  # the digest of all parts, which no rank has
            }
        )

    def _restore(self, island: Island, at: int, restore: Restore) -> Restore:
        if restore.source is None:
            return restore
        (shape,) = self._addresses.shapes([restore.source]) or [island.shape]
        if shape != island.shape and self._addresses.of_island(restore.source):
            ranks = self._addresses.ranks([restore.source])
            return restore.model_copy(update={"ranks": ranks, "shape": shape})
        source = self._addresses.at(restore.source, at)
        return restore.model_copy(update={"source": source})

    def _welcome(self, island: Island, at: int, welcome: Welcome) -> Welcome:
        """The `Welcome` of a rank: the digest of its part, if all parts are known."""
        rank, digest = island.ranks[at], welcome.digest
        parts = island.digests_of(welcome.committed)
        if digest is not None and island.joined(parts) == digest:
            digest = parts[at]
        return welcome.model_copy(
            update={
                "worker": rank.hello.worker,
                "digest": digest,
                "island": island.name,
                "coordinate": at,
                "shape": island.shape,
                "shapes": [*self._shapes] if self.unlike else [],
            }
        )

    def _is_unlike(self, island: Island, commit: Commit) -> bool:
        """Whether an island is to take a commit's state from one of another shape.

        No rank of it can: it restores that state, as an island that lacks it.
        """
        source = commit.source
        shapes = [] if source is None else self._addresses.shapes([source])
        return shapes not in ([], [island.shape])

    def _commit(self, island: Island, at: int, commit: Commit) -> Commit:
        """The `Commit` of a rank, with the digest of the part that it has prepared."""
        source, holds = commit.source, island
        if source is not None:  # the rank prepared another state: its island's counts
            right = [i for i in self.islands.values() if i.address == source]
            source, holds = self._addresses.at(source, at), (right or [island])[0]
        digest = holds.parts[commit.round, commit.epoch][at]
        return commit.model_copy(update={"digest": digest, "source": source})
