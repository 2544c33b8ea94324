"""The shepherd: membership, leases, commits. Tensors never pass through it.

One loop over events (`pcp.training.wire.server`). Between two rounds it looks who is
ready and starts the next one; inside a round it waits for all members to be
prepared, and replaces the attempt by a smaller one when a member dies:

    gathering ──enough ready──► attempt ──all prepared──► commit ──► gathering
        │                       │    ▲                      │
        │                       └────┘ a member died:       └─ last round:
        │                         epoch + 1, same leases       checkpoint, end
        └─nobody holds the committed state─► rewind to a checkpoint

What must survive a crash is in the ledger before anybody hears of it: a round's
leases before its `RoundStart`, a commit before its `Commit`. A shepherd that
starts again reads the ledger and asks the workers that return what they hold.
"""

import time
from collections.abc import Callable
from typing import Any

from pcp.manifest import Manifest
from pcp.runtime import Endpoint
from pcp.runtime.suspension import SuspendDetection
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.link import format_address
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator import stale_results
from pcp.training.coordinator.artifacts import (
    Artifact,
    Artifacts,
    CompileFor,
    lease_pool,
)
from pcp.training.coordinator.asynchronous_rounds import OwnClocks
from pcp.training.coordinator.checkpointer import Saver
from pcp.training.coordinator.completion import Ending, Outcome
from pcp.training.coordinator.operator_control import WILDCARDS, Orders, write_control
from pcp.training.coordinator.recovery import Recovery
from pcp.training.coordinator.roster import WAITING, Member, Roster
from pcp.training.coordinator.status import status_of
from pcp.training.coordinator.synchronous_rounds import Rounds
from pcp.training.coordinator.validation import Validation
from pcp.training.observe.metrics import Observer
from pcp.training.storage import frozen_settings as constants_of_a_run
from pcp.training.storage.ledger import Ledger
from pcp.training.storage.run_folder import SECRETS, RunFolder
from pcp.training.trainer.training_plan import plan_of
from pcp.training.wire.channel import OPEN
from pcp.training.wire.messages import (
    VERSION,
    Computed,
    Failed,
    GroupFailed,
    Heartbeat,
    Hello,
    Lacking,
    Learned,
    Message,
    Order,
    Prepared,
    Ready,
    Status,
    StatusQuery,
    Validated,
    Welcome,
)
from pcp.training.wire.server import Connection, Done, Event, Hub, Lost, Received

_SHORTEST = 0.25
"""Seconds; turns of a loop that has nothing to do take less, whatever the limit."""


class Shepherd:
    """Coordinates one run. `run` returns when it is complete.

    `folder` is where it lives on disk; a ledger in it is continued. `clock`
    counts seconds; a `hub` other than a listening one is for simulations. All who
    connect, to the shepherd or to each other, must have the same `protection`.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        compile_for: CompileFor,
        observer: Observer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        workers: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        hub: Hub | None = None,
        protection: Protection = OPEN,
    ) -> None:
        self.experiment, self.folder = experiment, folder
        self.observer, self._clock = observer, clock
        self.protection = protection
        self.hub = hub or Hub(host, port, protection)
        # On all interfaces it has no one address: `Recovery` tells each worker its own.
        own = format_address(host, 0)
        everywhere = own if host in WILDCARDS else None
        self.endpoint = Endpoint.listen(own, advertise=everywhere, **protection.options)
        self.ledger = Ledger(folder.ledger)
        self.roster = Roster()
        self._artifacts = Artifacts(compile_for, experiment)
        self.wanted = workers or experiment.workers
        self._started = self.ledger.progress.committed > 0
        self._born = self._beat = clock()
        limit = experiment.heartbeat_limit_seconds
        self._suspension = SuspendDetection(max(limit / 2, _SHORTEST), limit)
        self._held_since: float | None = None
        # pyright reads this file under two names, one for each side of the link.
        self.rounds = Rounds(self)  # pyright: ignore[reportArgumentType]
        self.saver = Saver(self)  # pyright: ignore[reportArgumentType]
        self.validation = Validation(self)  # pyright: ignore[reportArgumentType]
        self._recovery = Recovery(self)  # pyright: ignore[reportArgumentType]
        key = write_control(folder.path, host, self.hub.port)
        self.orders = Orders(self, key)  # pyright: ignore[reportArgumentType]
        self._check: Callable[[], None] = lambda: None
        self.end = Ending(self)  # pyright: ignore[reportArgumentType]
        self._handlers: dict[type[Message], Callable[[Member, Any], None]] = {
            Heartbeat: lambda m, h: self.rounds.on_heartbeat(m, h),
            Ready: self._recovery.on_ready,
            Lacking: self._recovery.on_lacking,
            Computed: lambda m, c: self.rounds.on_computed(m, c),
            Learned: lambda m, c: self.rounds.on_learned(m, c),
            Prepared: lambda m, p: self.rounds.on_prepared(m, p),
            GroupFailed: lambda m, g: self.rounds.on_group_failed(m, g),
            Validated: lambda m, v: self.validation.report(m.name, v),
            Failed: lambda m, f: self.drop(m, f"gave up: {f.reason}"),
        }

    @property
    def port(self) -> int:
        """The port workers connect to."""
        return self.hub.port

    @property
    def committed(self) -> int:
        """The last committed round."""
        return self.ledger.progress.committed

    def now(self) -> float:
        """Seconds, by the shepherd's clock."""
        return self._clock()

    def prepare(self, target: str) -> None:
        """Make the program for `target` now, so that errors show at once."""
        self._check_settings()
        self._artifacts.get(target)
        self._begin()

    def watch_over(self, check: Callable[[], None]) -> None:
        """Call `check` with every heartbeat; what it raises ends the run."""
        self._check = check

    def run(self) -> Outcome:
        """Serve until the last round is committed and saved."""
        try:
            self._check_settings()
            while self.end.outcome is None:
                self.turn()
            return self.end.outcome
        finally:
            self.close()

    def turn(self) -> None:
        """Handle what happened in the next moment, then do what the time asks for."""
        self.orders.heed()
        event = self.hub.next(timeout=0.05)
        while event is not None:
            self._handle(event)
            event = self.hub.next(timeout=0.0001)
        self._tick()

    def close(self) -> None:
        """Stop listening; workers see their connections end."""
        self.hub.close()
        self.endpoint.close()
        self.ledger.close()

    # Events -------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if isinstance(event, Done):
            event.then(event.result)
        elif isinstance(event, Lost):
            if member := self.roster.find(event.connection):
                self.drop(member, event.reason)
        else:
            self._on_message(event)

    def _on_message(self, event: Received) -> None:
        connection, message = event.connection, event.message
        member = self.roster.find(connection)
        if member is not None:
            member.seen = self.now()
        if isinstance(message, Hello):
            self._on_hello(connection, message)
        elif isinstance(message, StatusQuery):
            connection.send(Status(values=self.status()))
        elif isinstance(message, Order):
            self.orders.take(connection, message)
        elif member is not None and type(message) in self._handlers:
            self._handlers[type(message)](member, message)
        elif not isinstance(message, Heartbeat):
            connection.refuse(f"{message.kind!r} is not expected from this peer")

    def _on_hello(self, connection: Connection, hello: Hello) -> None:
        if hello.version != VERSION:
            connection.refuse(
                f"this shepherd speaks protocol version {VERSION}, the worker "
                f"{hello.version}; install the same pcp on both machines"
            )
            return
        if hello.worker in self.roster:
            self.drop(self.roster[hello.worker], "connected again")
        member = self.roster.add(connection, hello, self.now())
        self.log(f"worker {member.index} ({hello.target}, {hello.device}) connected")
        self.hub.work(
            lambda: self._artifacts.get(hello.target),
            lambda artifact: self._welcome(member, artifact),
        )

    def _welcome(self, member: Member, artifact: Artifact | Exception) -> None:
        if isinstance(artifact, Exception):
            self._refuse_target(member, artifact)
            return
        if self.roster.find(member.connection) is None:
            return  # gone while its program was compiled
        self._begin()
        hello, progress = member.hello, self.ledger.progress
        blob = b"" if hello.bundle == artifact.digest else artifact.content
        welcome = Welcome(
            worker=member.name,
            index=member.index,
            run=self.folder.name,
            experiment=self.experiment.model_dump(exclude=SECRETS),
            heartbeat_seconds=self.experiment.heartbeat_seconds,
            bundle=artifact.digest,
            bundle_bytes=len(blob),
            data=self._artifacts.corpus.digest,
            committed=progress.committed,
            digest=progress.digest,
        )
        member.send(welcome, blob) if blob else member.send(welcome)
        member.bundle = artifact.digest
        member.state, member.committed = WAITING, self._recovery.claimed(hello)
        self._recovery.judge(member)

    def _refuse_target(self, member: Member, error: Exception) -> None:
        """A program that cannot be made for anybody ends the run."""
        if not self._artifacts.made:
            raise error
        member.connection.refuse(str(error)[:4000])
        self.drop(member, f"no bundle for {member.hello.target}: {error}")

    def _check_settings(self) -> None:
        """What needs no program is compared before one is compiled."""
        begin, frozen = self.ledger.progress.begin, self.experiment.frozen()
        constants_of_a_run.check(begin, {"frozen": frozen}, str(self.folder.path))

    def _begin(self) -> None:
        """The first line of the ledger, or a check that it is still true."""
        if self.rounds.begun:
            return
        corpus, progress = self._artifacts.corpus, self.ledger.progress
        constants = {
            "frozen": self.experiment.frozen(),
            "data": corpus.digest,
            "samples_per_epoch": corpus.samples,
            "parameters": self._artifacts.parameters,
        }
        if not progress.begin:
            self.ledger.append("begin", run=self.folder.name, **constants)
        constants_of_a_run.check(progress.begin, constants, str(self.folder.path))
        # What was not given stays so: an algorithm may have its own for it.
        settings = self.experiment.model_dump(exclude=SECRETS, exclude_unset=True)
        if progress.settings != settings:
            self.ledger.append("started", experiment=settings)
            self.folder.note(self.experiment)
        self.folder.make_latest()
        self._choose_rounds(self._artifacts.manifest)
        self.renew_pool()
        # Who was late for the shepherd before us: nobody knows how far they are.
        for name, lease in list(progress.late.items()):
            self.rounds.give_back(name, lease)

    def _choose_rounds(self, manifest: Manifest) -> None:
        """What rounds are like is known with the first bundle."""
        stale_results.check(self.experiment, manifest)
        if (quorum := self.experiment.quorum or 0) > self.wanted:
            self.log(
                f"quorum {quorum} is more than the {self.wanted} that the run begins "
                "with: until more join it is never reached"
            )
        plan = plan_of(manifest)
        if plan.synchronize == "asynchronous":
            # pyright reads this file under two names, one for each side of the link.
            self.rounds = OwnClocks(self, plan)  # pyright: ignore
            return
        self.rounds.alone = plan.synchronize == "never"
        self.rounds.meets = plan.exchanges_inside

    def drop(self, member: Member, reason: str) -> None:
        """A member is gone; what it did in this round does not count."""
        self.roster.remove(member)
        member.connection.close()
        self.validation.lost(member.name)
        self.log(f"worker {member.index} left: {reason}")
        self.rounds.lost(member)

    # Rounds -------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.now()
        if now - self._beat >= self.experiment.heartbeat_seconds:
            self._beat = now
            for member in self.roster:
                member.send(Heartbeat())
            self.observer.status(self.status())
            self._check()
        limit = self.experiment.heartbeat_limit_seconds
        if not self._suspension.turned(now):
            return  # it has yet to hear who is there, and how far they are
        for member in list(self.roster):
            if now - member.seen > limit:
                self.drop(member, f"silent for {now - member.seen:.1f} s")
        self._recovery.tick()
        if self.rounds.attempt is not None:
            self.rounds.check(now)
        elif self.rounds.begun and not self.saver.blocking:
            self._advance()

    def _advance(self) -> None:
        """Between two rounds: end the run, or start the next one if it can."""
        held = self.orders.hold()
        if self.end.begun or self.orders.cancelled or self.rounds.exhausted():
            self.end.go_on()
        elif held:
            return
        elif self._recovery.prepared_by_all():
            return
        elif (ready := self.roster.ready()) and self._enough(ready):
            if self._recovery.settled(ready):
                self._started = True
                self.rounds.start(ready)

    def _enough(self, ready: list[Member]) -> bool:
        if not self.roster.holders(self.committed):
            known = any(self.source(member) for member in ready)
            return self.rounds.own_clocks and known and self._started
        all_here = len(ready) >= self.wanted
        if not self._started or all_here:
            return all_here and self._recovery.all_back()
        if self._held_since is None:
            self._held_since = self.now()
        # After a restart the others get a moment to come back too.
        late = self.now() - self._held_since > self.grace
        return self._recovery.all_back() and (late or self.rounds.newest is not None)

    def status(self) -> dict[str, Any]:
        """What the run is doing, for a dashboard or `pcp status`."""
        return status_of(self)  # pyright: ignore[reportArgumentType]

    def log(self, text: str) -> None:
        """Tell whoever watches."""
        self.observer.log(text)

    def source(self, member: Member) -> str | None:
        """Where a member can fetch the committed state; None if nobody has it."""
        return self._recovery.source(member)

    @property
    def grace(self) -> float:
        """Seconds that workers get to come back after the shepherd started."""
        return 2 * self.experiment.heartbeat_limit_seconds

    @property
    def age(self) -> float:
        """Seconds since this shepherd started."""
        return self.now() - self._born

    def renew_pool(self) -> None:
        """Count the samples that are left, from the ledger."""
        corpus, taken = self._artifacts.corpus, self.ledger.progress.taken()
        self.rounds.pool = lease_pool(self.experiment, corpus, taken)

    @property
    def tokenizer(self) -> dict[str, Any]:
        """What a checkpoint keeps to decode ids."""
        return self._artifacts.corpus.tokens.tokenizer
