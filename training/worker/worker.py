"""A worker: it trains rounds with the other members, and survives their failures.

    joining ──Welcome──► restoring ──Ready──► waiting ◄──────────── adopt ◄─┐
                            ▲                    │RoundStart               Commit
                            │Restore             ▼                          │
                            └──────────────── syncing ──► inner steps ──► outer
                                                 ▲                          │
                                                 └──RoundStart, epoch + 1───┘
                                                   (same lease: no inner steps)

There are two threads. The link's thread reads messages: it keeps the newest order in
the mailbox, and aborts an exchange that the order makes pointless. The worker's own
thread computes, and looks into the mailbox after every step. A worker that loses its
shepherd finishes its work, and reports when the shepherd is back.

No result of a worker counts before the shepherd's `Commit`. Until then the shared state
is the old one, and a failed exchange is repeated in the next group, from the local
parameters that the inner steps made.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pcp.errors import (
    PcpError,
    PeerLost,
    ProtocolError,
    RuntimeFault,
    StateMismatch,
    Timeout,
)
from pcp.manifest import TensorSpec
from pcp.runtime import fetch_snapshot
from pcp.runtime.transport.credentials import Protection
from pcp.training.config.experiment import (
    Experiment,
)
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.data.corpus import Corpus
from pcp.training.storage.checkpoint_resharding import rejoining
from pcp.training.storage.island_shapes import FetchedPart, IslandShapes
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import OF_A_ROUND, SHARED
from pcp.training.trainer.interface import Trainer
from pcp.training.wire.channel import OPEN
from pcp.training.wire.client import ShepherdLink, Timing
from pcp.training.wire.message import (
    VERSION,
    Message,
)
from pcp.training.wire.messages import (
    Commit,
    Expects,
    Failed,
    Hello,
    Lacking,
    LeaseGrant,
    Restore,
    RoundStart,
    Shutdown,
    Stalled,
    Welcome,
)
from pcp.training.worker.round_group import SILENCE_SECONDS
from pcp.training.worker.round_runner import RoundRunner
from pcp.training.worker.worker_state import WorkerState

_FETCH_SECONDS = 120.0
_RESTORE_ATTEMPTS = 3


@dataclass(frozen=True)
class Identity:
    """Name and device of a worker, and the address of its shepherd."""

    name: str
    host: str
    port: int
    target: str = "cpu"
    backend: str = "cpu"
    device: str = "local-task"
    data_path: str | None = None
    """The path of the data on this machine, if it is not the experiment's."""
    supervisor: str | None = None
    others: tuple[tuple[str, int], ...] = ()
    """The hosts and ports of shepherds that stand by."""


@dataclass
class Mailbox:
    """Messages from the link's thread to the worker's thread."""

    order: RoundStart | None = None
    learn: LeaseGrant | None = None
    commit: Commit | None = None
    restore: Restore | None = None
    welcome: Welcome | None = None
    bundle: bytes = b""
    shutdown: str | None = None
    error: PcpError | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def any(self) -> bool:
        """Whether there is a message."""
        waiting = (self.order, self.learn, self.commit, self.restore, self.welcome)
        return self.calls_off() or any(entry is not None for entry in waiting)

    def calls_off(self) -> bool:
        """Whether a message makes the round under way pointless."""
        ends = (self.restore, self.shutdown, self.error)
        return any(entry is not None for entry in ends)


class Worker:
    """One worker process. `run` returns the reason for which the run ended.

    `load(bundle)` makes the `Trainer`, `load(bundle, coordinate)` that of a rank of an
    island; `endpoint` is this process's listener. `run` closes both. `protection` is
    the run's, and the endpoint's too.
    """

    def __init__(
        self,
        identity: Identity,
        endpoint: Any,
        load: Callable[..., Trainer],
        log: Callable[[str], None],
        timing: Timing | None = None,
        protection: Protection = OPEN,
        stalled: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`stalled(reason)` is called in another thread when the worker hangs."""
        self._stalled = stalled
        self._identity, self._endpoint = identity, endpoint
        self._load, self._log = load, log
        self._protection = protection
        self._mail = Mailbox()
        self._state = WorkerState()
        self._experiment: Experiment | None = None
        self._bundle: str | None = None
        self._checked: tuple[Experiment, Corpus, str] | None = None
        """The data that were read before there was a program, and their digest."""
        self._index = self._seed = self._term = 0
        self._link = ShepherdLink(
            [(identity.host, identity.port), *identity.others],
            introduce=self._introduce,
            expected=self._expected,
            welcomed=self._welcomed,
            received=self._received,
            failed=self._failed,
            log=log,
            timing=timing or Timing(),
            beat=lambda: self._runner.beat(),
            stalled=stalled,
            protection=protection,
        )
        self._runner = RoundRunner(
            self._state,
            endpoint,
            send=self._link.send,
            log=log,
            newest=lambda: self._mail.order,
            wanted=lambda: self._mail.learn,
            called_off=self._mail.calls_off,
        )
        endpoint.serve_snapshot(self._state.snapshot)

    def run(self) -> str:
        """Train until the shepherd says it is over."""
        self._link.start()
        try:
            while True:
                if reason := self._turn():
                    return reason
        except PcpError as error:
            self._link.send(Failed(reason=str(error)[:4000]))
            raise
        finally:
            runner = self._runner
            # The link first: heartbeats of a worker that has ended would hold a run up.
            for part in (self._link, runner.inner_steps, runner.group, self._endpoint):
                part.close()
            if self._state.loaded:
                self._state.trainer.close()

    # The link's thread ------------------------------------------------------

    def _introduce(self) -> Hello:
        me = self._identity
        return Hello(
            version=VERSION,
            worker=me.name,
            target=me.target,
            backend=me.backend,
            device=me.device,
            address=self._endpoint.address,
            bundle=self._bundle,
            supervisor=me.supervisor,
            data=None if self._checked is None else self._checked[2],
            **self._state.describe(),
        )

    def _expected(self, expects: Expects) -> None:
        """Read the data; `StateMismatch` where they are not the shepherd's."""
        experiment = parse(expects.experiment, source="the shepherd's experiment")
        inputs = [
            TensorSpec(name=t.name, role="data", shape=tuple(t.shape), dtype=t.dtype)
            for t in expects.inputs
        ]
        corpus = Corpus(experiment, inputs, self._identity.data_path)
        self._same(corpus, expects)
        self._checked = experiment, corpus, expects.data

    def _welcomed(self, welcome: Welcome, bundle: bytes) -> None:
        self._obey(welcome.term)
        with self._mail.changed:
            self._mail.welcome, self._mail.bundle = welcome, bundle
            self._runner.group.heed(welcome)
            self._mail.changed.notify_all()

    def _received(self, message: Message) -> None:
        mail = self._mail
        with mail.changed:
            if isinstance(message, RoundStart):
                self._obey(message.term)
                mail.order = message
                self._runner.group.heed(message)
            elif isinstance(message, LeaseGrant):
                mail.learn = message
            elif isinstance(message, Commit):
                mail.commit = message
                self._runner.group.validates = message.validate_share is not None
            elif isinstance(message, Restore):
                mail.restore = message
                mail.order = mail.learn = None
                self._runner.group.heed(message)
            elif isinstance(message, Stalled):
                self._stalled(f"the shepherd says: {message.reason}")
            elif isinstance(message, Shutdown):
                mail.shutdown = message.reason
                self._runner.group.heed(message)
            else:
                raise ProtocolError(f"{message.kind!r} is no message for a worker")
            mail.changed.notify_all()

    def _obey(self, term: int) -> None:
        """`PeerLost` for a shepherd of an older term than the newest one seen."""
        if term < self._term:
            raise PeerLost(f"it led in term {term}, and this is term {self._term}")
        self._term = term

    def _failed(self, error: PcpError) -> None:
        with self._mail.changed:
            self._mail.error = error
            self._mail.changed.notify_all()

    # The worker's thread ----------------------------------------------------

    def _turn(self) -> str | None:
        """Handle the next message; returns the reason when that is a `Shutdown`."""
        mail = self._mail
        with mail.changed:
            mail.changed.wait_for(mail.any)
            welcome, mail.welcome = mail.welcome, None
            restore, commit, order = mail.restore, mail.commit, mail.order
            learn = mail.learn
            mail.restore = mail.commit = mail.order = mail.learn = None
            if mail.error is not None:
                raise mail.error
        place = self._runner.inner_steps.place
        if welcome is not None:
            place.enter("loading")
            self._settle(welcome, mail.bundle)
        if commit is not None:
            place.enter("restoring")
            self._adopt(commit)
            self._runner.group.validates = False
        if restore is not None:
            place.enter("restoring")
            self._restore(restore)
        place.enter("waiting")
        if mail.shutdown is not None:
            return mail.shutdown
        if order is not None:
            self._runner.attempt(order)
        if learn is not None:
            self._runner.learn(learn)
        return None

    def _settle(self, welcome: Welcome, bundle: bytes) -> None:
        """Apply a `Welcome`: program, data, and a commit that this worker missed."""
        state, runner = self._state, self._runner
        if welcome.run != state.run:
            state.forget()
        place = welcome.coordinate, welcome.shape
        moved = welcome.island is not None and (
            state.coordinate is None or state.moves(*place)
        )
        shapes = IslandShapes.read(welcome.shapes) if welcome.shapes else None
        state.place(welcome.island, *place, shapes)
        if bundle and (moved or welcome.bundle != self._bundle):
            at = () if welcome.island is None else (welcome.coordinate,)
            made = self._load(bundle, *at)
            if state.loaded and made.parts.noted != state.trainer.parts.noted:
                state.forget()  # the held state is in the parts of another mesh
                self._link.again()
            state.exchange(made)
            self._experiment = None
        experiment = parse(welcome.experiment, source="the shepherd's experiment")
        if experiment != self._experiment:
            runner.inner_steps.corpus = self._open(experiment, welcome)
        runner.group.timeout = experiment.round_timeout_seconds
        self._experiment, state.run = experiment, welcome.run
        self._bundle, self._index = welcome.bundle, welcome.index
        self._seed = state.trainer.seed = experiment.seed
        state.trainer.evaluates_averages = experiment.evaluated == "averages"
        prepared = state.prepared
        missed = (welcome.committed, welcome.digest)
        if prepared is not None and missed == (prepared.round, prepared.digest):
            self._adopt(
                Commit(
                    round=prepared.round,
                    epoch=prepared.epoch,
                    digest=prepared.digest,
                )
            )

    def _adopt(self, commit: Commit) -> None:
        prepared, source = self._state.prepared, commit.source
        wrong = prepared is not None and (
            prepared.round == commit.round and prepared.digest != commit.digest
        )
        if wrong and source is not None and not self._correct(commit, source):
            self._link.send(Lacking(round=commit.round))
            return
        if self._state.adopt(commit):
            self._runner.validate(commit)
            if source is not None:
                self._link.send(self._state.ready())

    def _correct(self, commit: Commit, source: str) -> bool:
        """Fetch the state that most members prepared; this worker's own part stays."""
        until = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < until and not self._mail.calls_off():
            fetched = self._fetch(source, SHARED)
            if fetched is None:
                return False
            if fetched[0] == commit.round:
                self._log(f"round {commit.round}: most have another state: taking it")
                return self._state.correct(commit, fetched[1])
            time.sleep(0.05)  # the source has yet to adopt the round itself
        return False

    def _open(self, experiment: Experiment, welcome: Welcome) -> Corpus:
        inputs = self._state.trainer.inputs
        corpus = None
        if self._checked is not None and self._checked[0] == experiment:
            corpus = self._checked[1]
        if corpus is None or corpus.source.inputs != tuple(inputs):
            corpus = Corpus(experiment, inputs, self._identity.data_path)
        corpus.check_vocabulary(self._state.trainer.parameter_shapes)
        corpus.limit_rows(self._state.trainer.rows)
        self._same(corpus, welcome)
        return corpus

    def _same(self, corpus: Corpus, said: Welcome | Expects) -> None:
        if not corpus.is_of(said.data):
            raise StateMismatch(
                f"{corpus.source.path} on this machine is not the data the shepherd "
                f"trains on: {corpus.difference(said.data_parts)}; copy it here, or "
                "name it with --data"
            )

    def _restore(self, restore: Restore) -> None:
        """Restore the state of a round: from the seed, a holder or a checkpoint."""
        began = time.monotonic()
        held = self._state.snapshot()[1] if restore.keep else None
        self._state.forget()
        reached = restore.round
        if restore.source is None:
            self._state.trainer.fresh(self._seed)
        else:
            fetched = self._fetch_part(restore, restore.source)
            if fetched is None:
                self._link.send(Lacking(round=restore.round))
                return
            reached, arrays = fetched
            if held is not None:
                arrays = rejoining(arrays, held, self._index)
            self._state.trainer.restore(arrays, self._index)
        self._state.hold(reached)
        seconds = time.monotonic() - began
        self._log(f"joined with the state of round {reached} ({seconds:.2f} s)")
        if self._mail.restore is None:  # else it would count as the answer to that
            self._link.send(self._state.ready())

    def _fetch_part(self, restore: Restore, source: str) -> tuple[int, Arrays] | None:
        """The state to restore; of an island of another shape, from all its ranks."""
        shapes = self._state.shapes
        if not restore.ranks or shapes is None:
            return self._fetch(source)
        taken, rounds = FetchedPart(shapes, self._state.rank, restore.shape), set[int]()
        for at, address in enumerate(restore.ranks):
            fetched = self._fetch(address)
            if fetched is None:
                return None
            rounds.add(fetched[0])
            taken.add(at, fetched[1])
        if len(rounds) > 1:
            self._log(f"the ranks at {source} and beside it hold rounds {rounds}")
            return None
        return rounds.pop(), taken.finished()

    def _fetch(
        self, source: str, only: Sequence[str] = ()
    ) -> tuple[int, Arrays] | None:
        for attempt in range(_RESTORE_ATTEMPTS):
            try:
                protected = self._protection.options
                has_frozen = bool(self._state.trainer.frozen)
                return fetch_snapshot(
                    source,
                    _FETCH_SECONDS,
                    silence=SILENCE_SECONDS,
                    only=only or (OF_A_ROUND if has_frozen else ()),
                    **protected,
                )
            except RuntimeFault as error:
                self._log(f"cannot fetch the state from {source}: {error}")
                if isinstance(error, Timeout):
                    return None  # the source may be cut off: others may have the state
                time.sleep(0.2 * 2**attempt)
        return None
