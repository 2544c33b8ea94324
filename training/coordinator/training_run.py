"""The shepherd's state machine: members, leases, commits. A pure function of events.

    effects = run.step(event, now)

No part of it touches a socket, a file, a thread or a clock. Events come in
(`pcp.training.coordinator.events`), effects go out
(`pcp.training.coordinator.effects`), and `now`, in seconds, is an argument. The same
events at the same times give the same effects. The shell is
`pcp.training.shepherd.shepherd`; a simulation is another one.

**Events.** From connections: `Received`, `Lost`. From an operator: `Ordered`,
`Interrupted`. From time: `Tick`, behind all events of a moment; time limits are applied
then. Answers, each to the effect beside it:

    Compile         Compiled or NotCompiled     some time later
    Gather          Gathered or NotSaved        some time later
    Write           Written or NotSaved         some time later
    LookOnDisk      OnDisk                      at once
    FindCheckpoint  Found                       at once
    LoadWeights     Loaded                      at once
    Recall          Recalled                    at once

"At once" is: before any other event, and after the other effects of the same step.

**Effects** are carried out in their order. A fact that must survive a crash is in the
ledger before a peer knows of it: `Append` of a round's leases before the `Send` of its
`RoundStart`, `Append` of a commit before the `Send` of it. A shepherd that starts again
reads the ledger, and workers that return say what they hold.

**State** is in parts, each of which has only those before it:

    RunState     the experiment, the ledger's progress, the roster, what is served
    Validation   shares of the held-out loss
    Saver        which checkpoint is being made
    Rounds       the attempt under way; `SynchronousRounds` or `AsynchronousRounds`,
                 chosen with the first program, before the first round, for good
    RoundLoop    the rounds, and between two of them `Recovery`, `OperatorControl` and
                 `Completion`

Before the first program a run is only a roster of workers that wait for one.
"""

from collections.abc import Callable
from typing import Any

from pcp.errors import ConfigError, PcpError
from pcp.runtime.transport.suspension import SuspendDetection
from pcp.training.config.experiment import SECRETS
from pcp.training.coordinator import stale_results
from pcp.training.coordinator.asynchronous_rounds import AsynchronousRounds
from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.completion import Outcome
from pcp.training.coordinator.effects import (
    Close,
    Compile,
    Effect,
    Fail,
    LoadWeights,
    MakeLatest,
    NoteSettings,
    Recall,
    Refuse,
    Send,
    ShowStatus,
)
from pcp.training.coordinator.events import (
    Compiled,
    Event,
    Found,
    Gathered,
    Interrupted,
    Loaded,
    Lost,
    NotCompiled,
    NotSaved,
    OnDisk,
    Opened,
    Ordered,
    Program,
    Proved,
    Recalled,
    Received,
    Tick,
    Written,
)
from pcp.training.coordinator.guards.conduct import quarantined
from pcp.training.coordinator.roster import WAITING, Member
from pcp.training.coordinator.round_loop import RoundLoop
from pcp.training.coordinator.rounds import Rounds
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.status import status_of
from pcp.training.coordinator.synchronous_rounds import SynchronousRounds
from pcp.training.coordinator.validation import Validation
from pcp.training.data.dataset import tokens_of_sample
from pcp.training.data.lease_pool import LeasePool, quantum
from pcp.training.storage import frozen_settings
from pcp.training.trainer.bundle_checks import data_inputs, plan_of
from pcp.training.wire.message import (
    VERSION,
)
from pcp.training.wire.messages import (
    Failed,
    Heartbeat,
    Hello,
    Ready,
    Welcome,
)
from pcp.training.wire.operator_messages import (
    Status,
    StatusQuery,
)

_NAME_ROUNDS = {Hello, Ready, Found}
"""The kinds of messages and events that may name an old round."""
_SHORTEST = 0.25
"""Seconds: an idle loop of the shepherd turns more often than that."""


class TrainingRun:
    """One run, from a shepherd's start to its end. Not thread-safe; never blocks."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.validation = Validation(state)
        self.saver = Saver(state)
        self.loop: RoundLoop | None = None
        """None until there is a first program."""
        limit = state.experiment.heartbeat_limit_seconds
        self._suspension = SuspendDetection(max(limit / 2, _SHORTEST), limit)
        self._beat, self._alive = state.now, Heartbeat()
        self._settings = state.experiment.model_dump(exclude=SECRETS)
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            Tick: lambda event: self._on_tick(),
            Received: self._on_received,
            Lost: self._on_lost,
            Opened: lambda event: self._on_opened(),
            Ordered: self._on_ordered,
            Interrupted: lambda event: self._on_interrupted(),
            Compiled: self._on_compiled,
            NotCompiled: self._on_not_compiled,
            Loaded: self._on_loaded,
            Found: self._on_found,
            OnDisk: lambda event: self._begun().completion.seen(event),
            Gathered: self.saver.gathered,
            Proved: self._on_proved,
            Written: self.saver.written,
            NotSaved: self._on_not_saved,
            Recalled: self._on_recalled,
        }

    @property
    def rounds(self) -> Rounds | None:
        """The rounds; None until there is a first program."""
        return None if self.loop is None else self.loop.rounds

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended; None until it has."""
        return None if self.loop is None else self.loop.completion.outcome

    def step(self, event: Event, now: float) -> list[Effect]:
        """The effects of an event, in their order; `now`, in seconds, never goes back.

        A run that cannot go on ends with a `Fail`, behind what was decided before.
        """
        state = self.state
        state.now = now
        if self._forgotten(event):
            return [Recall(event)]
        try:
            self._handlers[type(event)](event)
        except PcpError as error:
            state.do(Fail(error))
        return state.taken()

    def check_settings(self) -> None:
        """`StateMismatch` where the run began with other settings.

        Keys that need no program are compared before one is compiled.
        """
        state = self.state
        frozen = {"frozen": state.frozen}
        frozen_settings.check(state.progress.begin, frozen, state.folder)

    def status(self) -> dict[str, Any]:
        """The status of the run, for a dashboard or `pcp status`."""
        rounds = self.rounds
        return status_of(self.state, rounds, self.validation, self.saver)

    # Events about rounds that only the ledger's file knows ---------------------------

    def _forgotten(self, event: Event) -> bool:
        """Whether an event names a round before the history in memory."""
        what = event.message if type(event) is Received else event
        if type(what) not in _NAME_ROUNDS:
            return False
        state = self.state
        match what:
            case Hello() as hello:
                return hello.run == state.name and not state.knows(hello.committed)
            case Ready(round=round_):
                return not state.knows(round_)
            case Found(saved=saved):
                back_to = self._begun().recovery.target(saved)
                return not state.progress.history.reaches(back_to)
        return False

    def _on_recalled(self, event: Recalled) -> None:
        self.state.progress.history = event.history
        self._handlers[type(event.event)](event.event)

    # Connections ---------------------------------------------------------------------

    def _on_received(self, event: Received) -> None:
        connection, message = event.connection, event.message
        state, member = self.state, self.state.roster.find(connection)
        if member is not None:
            member.seen = state.now
            if not isinstance(message, Heartbeat):
                member.pace.acted(state.now)
            elif message.at is not None:
                member.pace.heard(message.at, state.now)
            if RoundLoop.serves(message):
                self._heard(member, message)
                return
        if isinstance(message, Hello):
            self._on_hello(event, message)
        elif isinstance(message, StatusQuery):
            state.do(Send(connection, Status(values=self.status())))
        elif isinstance(message, Failed):
            state.log(f"a worker cannot join: {message.reason}")
            state.do(Close(connection))
        elif not isinstance(message, Heartbeat):
            reason = f"{message.kind!r} is not expected from this peer"
            state.do(Refuse(connection, reason))

    def _heard(self, member: Member, message: Any) -> None:
        if self.loop is not None:
            self.loop.heard(member, message)
        elif isinstance(message, Failed):
            self._drop(member, f"gave up: {message.reason}")

    def _on_hello(self, event: Received, hello: Hello) -> None:
        state, connection = self.state, event.connection
        if hello.version != VERSION:
            reason = (
                f"this shepherd speaks protocol version {VERSION}, the worker "
                f"{hello.version}; install the same pcp on both machines"
            )
            state.do(Refuse(connection, reason))
            return
        if reason := state.progress.quarantined.get(hello.worker):
            state.do(Refuse(connection, quarantined(hello.worker, reason)))
            return
        if hello.worker in state.roster:
            self._drop(state.roster[hello.worker], "connected again")
        member = state.roster.add(connection, hello, state.now)
        state.log(f"{member.who} ({hello.target}, {hello.device}) connected")
        state.do(Compile(connection, hello.target))

    def _on_lost(self, event: Lost) -> None:
        if member := self.state.roster.find(event.connection):
            self._drop(member, event.reason)

    def _drop(self, member: Member, reason: str) -> None:
        if self.loop is not None:
            self.loop.rounds.drop(member, reason)
            return
        self.state.remove(member, reason)
        self.state.log(f"{member.who} left: {reason}")

    # Programs ------------------------------------------------------------------------

    def _on_compiled(self, event: Compiled) -> None:
        if event.connection is None:
            self._begin(event.program)
            return
        member = self.state.roster.find(event.connection)
        if member is None:
            return  # it left while its program was compiled
        loop = self._begin(event.program)
        self._welcome(member, event.program)
        member.bundle = event.program.digest
        member.state = WAITING
        member.committed = loop.recovery.verified_round(member.hello)
        loop.recovery.assign_source(member)

    def _welcome(self, member: Member, program: Program) -> None:
        state, hello, progress = self.state, member.hello, self.state.progress
        lacks = hello.bundle != program.digest
        welcome = Welcome(
            worker=member.name,
            index=member.index,
            run=state.name,
            experiment=self._settings,
            heartbeat_seconds=state.experiment.heartbeat_seconds,
            bundle=program.digest,
            bundle_bytes=program.size if lacks else 0,
            data=program.data,
            data_parts=list(program.data_parts),
            committed=progress.committed,
            digest=progress.digest,
            term=progress.term,
        )
        state.send(member, welcome, hello.target if lacks else None)

    def _on_not_compiled(self, event: NotCompiled) -> None:
        """End the run if the program cannot be made for any target."""
        if event.alone:
            self.state.do(Fail(event.error))
            return
        self.state.do(Refuse(event.connection, str(event.error)[:4000]))
        if member := self.state.roster.find(event.connection):
            target = member.hello.target
            self._drop(member, f"no bundle for {target}: {event.error}")

    def _begin(self, program: Program) -> RoundLoop:
        """Write the first line of the ledger, or check that it is still true."""
        if self.loop is not None:
            return self.loop
        state = self.state
        found = {
            "frozen": state.frozen,
            "data": program.data,
            "samples_per_epoch": program.samples,
            "parameters": program.parameters,
        }
        if state.progress.begin:
            frozen_settings.check(state.progress.begin, found, state.folder)
        else:
            state.append("begin", run=state.name, **found)
        # Keys that were not given stay away: an algorithm may have its own defaults.
        settings = state.experiment.model_dump(exclude=SECRETS, exclude_unset=True)
        if state.progress.settings != settings:
            state.append("started", experiment=settings)
            state.do(NoteSettings())
        state.do(MakeLatest())
        state.sample_tokens = tokens_of_sample(data_inputs(program.manifest))
        rounds = self._policy(program)
        self.loop = RoundLoop(state, rounds, self.validation, self.saver)
        # The progress of members that were late under the last shepherd is lost.
        for name, lease in list(state.progress.late.items()):
            rounds.give_back(name, lease)
        return self.loop

    def _policy(self, program: Program) -> Rounds:
        """The policy of rounds, which the first bundle decides."""
        state, manifest = self.state, program.manifest
        stale_results.check(state.experiment, manifest)
        if (quorum := state.experiment.quorum or 0) > state.wanted:
            state.log(
                f"quorum {quorum} is more than the {state.wanted} that the run begins "
                "with: until more join it is never reached"
            )
        parts = (state, self._pool(program), self.validation, self.saver)
        plan = plan_of(manifest)
        if plan.synchronize == "asynchronous":
            return AsynchronousRounds(*parts, dynamic_steps=plan.dynamic_steps)
        return SynchronousRounds(
            *parts,
            alone=plan.synchronize == "never",
            inner_exchanges=plan.exchanges_inside,
        )

    def _pool(self, program: Program) -> LeasePool:
        """The pool of the samples of all epochs that are neither used nor leased."""
        experiment = self.state.experiment
        total = program.samples * experiment.max_epochs
        one = quantum(experiment.effective_batch_size, program.batch)
        return LeasePool(total, one, self.state.progress.taken())

    # Operators -----------------------------------------------------------------------

    def _on_ordered(self, event: Ordered) -> None:
        if self.loop is not None:
            self.loop.operator_control.take(event.connection, event.order)
            return
        reason = "the run has not begun yet: no worker was welcomed"
        if event.order.action == "steps" and not event.order.steps:
            reason = "steps: how many inner steps a round? at least 1"
        self.state.do(Refuse(event.connection, reason))

    def _on_interrupted(self) -> None:
        if not self.state.cancelled:
            said = self._begun().operator_control.cancel()
            self.state.log(f"interrupted: {said}; a second signal ends it")

    # States on this machine's disk ---------------------------------------------------

    def _on_opened(self) -> None:
        if not self.state.committed and self.state.first_values:
            self.state.do(LoadWeights())

    def _on_loaded(self, event: Loaded) -> None:
        self.state.serve(event.saved)
        where = str(self.state.experiment.initial_weights)
        self.state.tell_nonfinite(event.saved, where)

    def _on_not_saved(self, event: NotSaved) -> None:
        self.saver.failed(event)
        self._unserved(event.at)

    def _on_proved(self, event: Proved) -> None:
        if not self.saver.proved(event):
            self._unserved(event.at)

    def _unserved(self, at: str | None) -> None:
        """The member at an address did not hand out its state."""
        found = [m for m in self.state.roster if m.address == at]
        if self.loop is not None and found:
            self.loop.rounds.unserved(found[0])

    def _on_found(self, event: Found) -> None:
        self._begun().recovery.found(event)

    # Time ----------------------------------------------------------------------------

    def _on_tick(self) -> None:
        state, now = self.state, self.state.now
        if now - self._beat >= state.experiment.heartbeat_seconds:
            self._beat = now
            for member in state.roster:
                state.send(member, self._alive)
            state.do(ShowStatus())
        limit = state.experiment.heartbeat_limit_seconds
        if not self._suspension.turned(now):
            return  # it has no heartbeats of the members yet
        for member in state.roster:
            if now - member.seen > limit:
                self._drop(member, f"silent for {now - member.seen:.1f} s")
        if self.loop is not None:
            self.loop.tick()

    def _begun(self) -> RoundLoop:
        if self.loop is None:
            raise ConfigError("the run has not begun yet: no worker was welcomed")
        return self.loop
