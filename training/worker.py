"""A worker: it trains rounds with whoever else is there, and survives the rest.

    joining ──Welcome──► restoring ──Ready──► waiting ◄──────────── adopt ◄─┐
                            ▲                    │RoundStart               Commit
                            │Restore             ▼                          │
                            └──────────────── syncing ──► inner steps ──► outer
                                                 ▲                          │
                                                 └──RoundStart, epoch + 1───┘
                                                   (same lease: no inner steps)

Two threads matter. The link's thread reads messages: it files the newest order
and aborts an exchange that the order makes pointless. The worker's own thread
computes, and looks at what was filed whenever it has finished a step. A worker
that loses its shepherd finishes what it does, and reports when it is back.

Nothing a worker computes counts before the shepherd's `Commit`. Until then the
shared state is the old one, and an exchange that failed is simply done again in
the next group, from the local parameters the inner steps left.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcp.errors import (
    CollectiveAborted,
    PcpError,
    ProtocolError,
    RuntimeFault,
    StateMismatch,
)
from pcp.runtime import fetch_snapshot
from pcp.training import tensors
from pcp.training.data import Corpus, check_vocabulary
from pcp.training.experiment import Experiment, parse
from pcp.training.leases import Range, size
from pcp.training.link import Link, Timing
from pcp.training.protocol import (
    VERSION,
    Commit,
    Failed,
    GroupFailed,
    Hello,
    Lacking,
    Message,
    Prepared,
    Ready,
    Restore,
    RoundStart,
    Shutdown,
    Validated,
    Welcome,
    Working,
)
from pcp.training.tensors import Arrays
from pcp.training.trainer import INNER, Trainer, loss_value

_FETCH_SECONDS = 120.0
_RESTORE_ATTEMPTS = 3


@dataclass(frozen=True)
class Identity:
    """Who a worker is, and where its shepherd is."""

    name: str
    host: str
    port: int
    target: str = "cpu"
    backend: str = "cpu"
    device: str = "local-task"
    data_path: str | None = None
    """Where the data lies on this machine, if not where the experiment says."""
    supervisor: str | None = None


@dataclass
class Work:
    """The inner steps of one round, done once however often the group changes."""

    round: int
    lease: list[Range]
    loss: float
    steps: int
    tokens: int
    seconds: float


@dataclass
class Mailbox:
    """What the link's thread files for the worker's thread."""

    order: RoundStart | None = None
    commit: Commit | None = None
    restore: Restore | None = None
    welcome: Welcome | None = None
    bundle: bytes = b""
    shutdown: str | None = None
    error: PcpError | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)


class Worker:
    """One worker process. `run` returns the reason for which the run ended.

    `load(bundle)` makes the `Trainer`; `endpoint` is this process's place in the
    mesh. Both are closed by `run`.
    """

    def __init__(
        self,
        identity: Identity,
        endpoint: Any,
        load: Callable[[bytes], Trainer],
        log: Callable[[str], None],
        timing: Timing | None = None,
    ) -> None:
        self._identity, self._endpoint = identity, endpoint
        self._load, self._log = load, log
        self._mail = Mailbox()
        self._lock = threading.RLock()
        self._trainer: Trainer | None = None
        self._corpus: Corpus | None = None
        self._experiment: Experiment | None = None
        self._bundle: str | None = None
        self._run: str | None = None
        self._index = 0
        self._committed: int | None = None
        self._work: Work | None = None
        self._working: Working | None = None
        self._prepared: Prepared | None = None
        self._candidate: Arrays = {}
        self._dirty = False  # inner steps were made since the last commit
        self._snapshot: tuple[int, Arrays] | None = None
        self._comm: Any = None
        self._counted = (0, 0)
        endpoint.serve_snapshot(self._serve)
        self._link = Link(
            identity.host,
            identity.port,
            introduce=self._introduce,
            welcomed=self._welcomed,
            received=self._received,
            failed=self._failed,
            log=log,
            timing=timing or Timing(),
        )

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
            self._close()

    # The link's thread ------------------------------------------------------

    def _introduce(self) -> Hello:
        with self._lock:
            me = self._identity
            held = self._trainer.shared if self._committed is not None else None
            return Hello(
                version=VERSION,
                worker=me.name,
                target=me.target,
                backend=me.backend,
                device=me.device,
                address=self._endpoint.address,
                run=self._run,
                bundle=self._bundle,
                committed=self._committed,
                digest=tensors.digest(held) if held else None,
                working=self._working,
                prepared=self._prepared,
                supervisor=me.supervisor,
            )

    def _welcomed(self, welcome: Welcome, bundle: bytes) -> None:
        with self._mail.changed:
            self._mail.welcome, self._mail.bundle = welcome, bundle
            self._mail.changed.notify_all()

    def _received(self, message: Message) -> None:
        mail = self._mail
        with mail.changed:
            if isinstance(message, RoundStart):
                mail.order = message
                self._abandon(message.epoch)
            elif isinstance(message, Commit):
                mail.commit = message
            elif isinstance(message, Restore):
                mail.restore = message
                mail.order = None
            elif isinstance(message, Shutdown):
                mail.shutdown = message.reason
            else:
                raise ProtocolError(f"{message.kind!r} is no message for a worker")
            mail.changed.notify_all()

    def _failed(self, error: PcpError) -> None:
        with self._mail.changed:
            self._mail.error = error
            self._mail.changed.notify_all()

    def _abandon(self, epoch: int) -> None:
        """Stop exchanges of groups before `epoch`: their results cannot count."""
        comm, reason = self._comm, f"the group of epoch {epoch} takes over"
        self._endpoint.cancel(reason)
        if comm is not None and comm.epoch < epoch:
            comm.abort(reason)

    def _serve(self) -> tuple[int, Arrays]:
        if self._snapshot is None:
            raise StateMismatch("this worker holds no committed state yet")
        return self._snapshot

    # The worker's thread ----------------------------------------------------

    def _turn(self) -> str | None:
        """Do the next thing; returns the reason when that is to stop."""
        mail = self._mail
        with mail.changed:
            mail.changed.wait_for(self._has_mail)
            welcome, mail.welcome = mail.welcome, None
            restore, commit, order = mail.restore, mail.commit, mail.order
            mail.restore = mail.commit = mail.order = None
            if mail.error is not None:
                raise mail.error
        if welcome is not None:
            self._settle(welcome, mail.bundle)
        if commit is not None:
            self._adopt(commit)
        if restore is not None:
            self._restore(restore)
        if mail.shutdown is not None:
            return mail.shutdown
        if order is not None:
            self._attempt(order)
        return None

    def _has_mail(self) -> bool:
        m = self._mail
        waiting = (m.order, m.commit, m.restore, m.welcome, m.shutdown, m.error)
        return any(entry is not None for entry in waiting)

    def _settle(self, welcome: Welcome, bundle: bytes) -> None:
        """Take what the shepherd said: program, data, and a commit we missed."""
        if welcome.run != self._run:
            self._forget()
        if bundle and welcome.bundle != self._bundle:
            if self._trainer is not None:
                self._trainer.close()
            self._trainer, self._corpus = self._load(bundle), None
        if self._trainer is None:
            raise StateMismatch("the shepherd sent no program to run")
        experiment = parse(welcome.experiment, source="the shepherd's experiment")
        if self._corpus is None or experiment != self._experiment:
            self._corpus = self._open(experiment, welcome.data)
        with self._lock:
            self._experiment, self._run = experiment, welcome.run
            self._bundle, self._index = welcome.bundle, welcome.index
        prepared = self._prepared
        if prepared is not None and welcome.committed == prepared.round:
            commit = Commit(
                round=prepared.round, epoch=prepared.epoch, digest=prepared.digest
            )
            if welcome.digest == prepared.digest:
                self._adopt(commit)

    def _open(self, experiment: Experiment, digest: str) -> Corpus:
        trainer = self._trainer
        path = self._identity.data_path
        corpus = Corpus(experiment, trainer.batch, trainer.block, path)
        check_vocabulary(
            corpus.tokens, trainer.parameter_shapes, experiment.vocabulary_size
        )
        if corpus.digest != digest:
            where = path or experiment.data_path
            raise StateMismatch(
                f"{where} on this machine is not the data the shepherd trains on; "
                "copy it here, or name it with --data"
            )
        return corpus

    def _forget(self) -> None:
        """Another run: nothing of the last one counts."""
        with self._lock:
            self._committed = self._working = self._prepared = self._work = None
            self._snapshot, self._candidate = None, {}

    def _restore(self, restore: Restore) -> None:
        """Take the state of a round: from the seed, a veteran or a checkpoint."""
        began = time.monotonic()
        self._forget()
        reached = restore.round
        if restore.source is None:
            self._trainer.fresh(self._experiment.seed)
        else:
            fetched = self._fetch(restore.source)
            if fetched is None:
                self._link.send(Lacking(round=restore.round))
                return
            reached, arrays = fetched
            self._trainer.restore(arrays, self._index)
        self._hold(reached)
        seconds = time.monotonic() - began
        self._log(f"joined with the state of round {reached} ({seconds:.2f} s)")
        self._link.send(Ready(round=reached))

    def _fetch(self, source: str) -> tuple[int, Arrays] | None:
        for attempt in range(_RESTORE_ATTEMPTS):
            try:
                return fetch_snapshot(source, _FETCH_SECONDS)
            except RuntimeFault as error:
                self._log(f"cannot fetch the state from {source}: {error}")
                time.sleep(0.2 * 2**attempt)
        return None

    def _hold(self, reached: int) -> None:
        """The trainer's state is that of a committed round: serve it."""
        shared = self._trainer.shared
        inner = {f"{INNER}0/{k}": v for k, v in self._trainer.inner().items()}
        with self._lock:
            self._committed = reached
            self._prepared = self._working = self._work = None
            self._candidate, self._dirty = {}, False
            self._snapshot = (reached, shared | inner)

    def _adopt(self, commit: Commit) -> None:
        prepared = self._prepared
        if prepared is None or commit.round != prepared.round:
            return  # of a round that is long behind us
        if commit.digest != prepared.digest:
            raise StateMismatch(
                f"round {commit.round} was committed as {commit.digest[:12]}, here it "
                f"is {prepared.digest[:12]}"
            )
        self._trainer.adopt(self._candidate)
        self._hold(commit.round)
        if commit.validate_share is not None:
            self._validate(commit.round, *commit.validate_share)

    def _validate(self, number: int, first: int, step: int) -> None:
        batches = range(first, self._corpus.validation_batches, step)
        losses = [self._trainer.evaluate(self._corpus.validation(b)) for b in batches]
        self._link.send(
            Validated(round=number, loss_sum=float(sum(losses)), batches=len(batches))
        )

    # One round ---------------------------------------------------------------

    def _attempt(self, order: RoundStart) -> None:
        """Do what an order asks; report, rather than raise, a failed exchange."""
        if self._committed is None or order.round <= self._committed:
            return
        prepared = self._prepared
        if prepared and (prepared.round, prepared.epoch) == (order.round, order.epoch):
            self._link.send(prepared)
            return
        try:
            comm = self._group(order)
            work = self._inner(order)
            if self._superseded(order):
                return
            self._exchange(order, work, comm)
        except RuntimeFault as error:
            if not self._superseded(order):
                self._log(f"round {order.round}, epoch {order.epoch}: {error}")
                self._link.send(
                    GroupFailed(
                        round=order.round,
                        epoch=order.epoch,
                        reason=str(error)[:4000],
                        lost=getattr(error, "peer", None),
                    )
                )

    def _superseded(self, order: RoundStart) -> bool:
        newer = self._mail.order
        gone = self._mail.restore or self._mail.shutdown is not None
        return bool(gone) or (newer is not None and newer.epoch > order.epoch)

    def _group(self, order: RoundStart) -> Any:
        """The communicator of the order's epoch, with one shared state in it."""
        if self._comm is not None and self._comm.epoch == order.epoch:
            return self._comm
        if self._comm is not None:
            self._comm.close()
            self._comm = None
        patience = self._experiment.round_timeout_seconds
        comm = self._endpoint.form(order.epoch, order.members, order.rank, patience)
        comm.timeout = patience
        self._comm, self._counted = comm, (0, 0)
        state = {k: np.array(v) for k, v in self._trainer.shared.items()}
        report = comm.param_sync(state, revision=order.round - 1, source=0)
        if report.updated:
            self._log(f"caught up with round {order.round - 1} inside the group")
        if report.updated or self._committed != order.round - 1:
            self._trainer.adopt(state)
            self._hold(order.round - 1)
        return comm

    def _inner(self, order: RoundStart) -> Work:
        """The inner steps of the order, unless they are done already."""
        done = self._work
        if done and (done.round, done.lease) == (order.round, order.lease):
            return done
        with self._lock:
            self._working = Working(round=order.round, lease=order.lease)
        began = time.monotonic()
        trainer, losses = self._trainer, []
        if self._dirty:  # by a lease that was taken from us: undo its steps
            trainer.restore(self._snapshot[1], 0)
        self._dirty = True
        trainer.begin()
        positions = np.concatenate([np.arange(a, b) for a, b in order.lease])
        for mine in np.split(positions, order.steps):
            self._check_on()
            batches = mine.reshape(-1, trainer.batch)
            losses += trainer.step([self._corpus.read(b) for b in batches])
        work = Work(
            round=order.round,
            lease=order.lease,
            loss=loss_value(losses),
            steps=order.steps,
            tokens=size(order.lease) * trainer.block,
            seconds=time.monotonic() - began,
        )
        with self._lock:
            self._work = work
        return work

    def _check_on(self) -> None:
        """Stop in the middle of inner steps that nobody waits for any more."""
        mail = self._mail
        if mail.restore or mail.error or mail.shutdown is not None:
            raise CollectiveAborted("the round was called off")

    def _exchange(self, order: RoundStart, work: Work, comm: Any) -> None:
        """The outer step, made bit-identical, then reported as prepared."""
        began = time.monotonic()
        candidate = self._trainer.outer(work.tokens, comm)
        # Members of different hardware round differently: rank 0's bits count.
        comm.param_sync(candidate, revision=order.round, source=0)
        sent, received = comm.bytes_sent, comm.bytes_received
        prepared = Prepared(
            round=order.round,
            epoch=order.epoch,
            digest=tensors.digest(candidate),
            loss=work.loss,
            steps=work.steps,
            tokens=work.tokens,
            bytes_sent=sent - self._counted[0],
            bytes_received=received - self._counted[1],
            compute_seconds=work.seconds,
            exchange_seconds=time.monotonic() - began,
        )
        self._counted = (sent, received)
        with self._lock:
            self._candidate, self._prepared = candidate, prepared
        self._link.send(prepared)

    def _close(self) -> None:
        closers: Sequence[Any] = (self._comm, self._link, self._endpoint, self._trainer)
        for thing in closers:
            if thing is not None:
                thing.close()
