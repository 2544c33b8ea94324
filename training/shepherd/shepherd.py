"""The shepherd: sockets, disk and clock around a run's state machine.

The shepherd is one loop over events (`pcp.training.shepherd.server`). Each event goes
to `Islands.step`, which is around `TrainingRun.step`, and the shepherd carries out the
effects that the step returns, in their order. All decisions of a run are made in these
state machines (`pcp.training.coordinator.training_run`,
`pcp.training.coordinator.islands`). Tensors never pass through a shepherd.
"""

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from pcp.errors import RuntimeFault
from pcp.runtime import Endpoint
from pcp.runtime.transport.address import WILDCARDS, format_address
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.signatures import ANYBODY, Signer, Trust, own_signer
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator import effects as do
from pcp.training.coordinator import monitor
from pcp.training.coordinator.completion import Outcome
from pcp.training.coordinator.effects import Effect
from pcp.training.coordinator.events import (
    Compiled,
    Event,
    Gathered,
    Interrupted,
    Lost,
    NotCompiled,
    NotSaved,
    Opened,
    Program,
    Proved,
    Recalled,
    Received,
    Tick,
    Written,
)
from pcp.training.coordinator.islands import Islands
from pcp.training.coordinator.roster import Roster
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.data.corpus import Corpus
from pcp.training.observe import journal
from pcp.training.observe.metrics import Observer
from pcp.training.shepherd import checkpointer
from pcp.training.shepherd.admission import Admission
from pcp.training.shepherd.artifacts import Artifacts, CompileFor, keeping
from pcp.training.shepherd.elector import Elector
from pcp.training.shepherd.server import FinishedWork, Server
from pcp.training.shepherd.serving import StateServer
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage.append_log import DiskFull
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.control_file import write_control
from pcp.training.storage.ledger import Ledger
from pcp.training.storage.round_record import Round
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.channel import OPEN
from pcp.training.wire.messages import Heartbeat

_MOMENT = 0.05
"""Seconds between two looks at the clock."""


class Shepherd:
    """Coordinates one run. `run` returns when it is complete.

    `folder` is the run's; a ledger in it is continued. `clock` counts seconds; a `hub`
    that does not listen is for simulations. All processes of a run must have the same
    `protection`.
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
        pause: Callable[[float], None] = time.sleep,
        hub: Server | None = None,
        protection: Protection = OPEN,
        signer: Signer | None = None,
        trusted: Collection[str] = (),
        elector: Elector | None = None,
        inspect: Callable[[], Corpus | None] | None = None,
    ) -> None:
        """`signer` signs bundles, checkpoints and lines of the ledger.

        By default it is the identity of `protection`, if there is one. In a continued
        run its signatures count, and those of the ids `trusted`. Among several
        shepherds this one leads while `elector` says so. `inspect` opens the data as
        the model takes them, without compiling the model.
        """
        self._elector, self._inspect = elector, inspect
        self._signer = signer or own_signer(protection.tls)
        self._admission = Admission()
        self.experiment, self.folder = experiment, folder
        self.observer, self._clock, self._pause = observer, clock, pause
        self.protection = protection
        self.hub = hub or Server(host, port, protection)
        # A listener on all interfaces has no one address: each worker is told its own.
        own = format_address(host, 0)
        everywhere = own if host in WILDCARDS else None
        self.endpoint = Endpoint.listen(own, advertise=everywhere, **protection.options)
        if elector is None:
            self.ledger = Ledger(folder.ledger, self._signer, trusted)
        else:
            trusted = {*trusted, *elector.identities}
            self.ledger = Ledger(folder.ledger, self._signer, trusted, elector.wrote)
            try:
                self.ledger.append("leader", term=elector.term)
            except BaseException:
                self.ledger.close()
                self.endpoint.close()
                self.hub.close()
                raise
        begin = self.ledger.progress.begin
        recorded = begin.get("data")
        made = keeping(compile_for, folder, observer)
        self._artifacts = Artifacts(made, experiment, recorded, self._signer)
        self._serving = StateServer(
            self.endpoint,
            folder,
            self.ledger,
            experiment,
            lambda: self._artifacts.parts,
            self._trust(trusted),
        )
        self._gathered: Checkpoint | None = None
        self._kept: Round | None = None
        self._check: Callable[[], None] = lambda: None
        self.interrupted = 0
        """The number of the signal that asked for the run's end; 0: none came."""
        self.state = RunState(
            experiment,
            self.ledger.replay,
            name=begin.get("run", folder.name),
            folder=str(folder.path),
            serves=self.endpoint.listening,
            wanted=workers,
            known=journal.workers(folder.workers),
            first_values=experiment.first_values,
            now=clock(),
        )
        self.training = TrainingRun(self.state)
        self.islands = Islands(self.training, experiment.sizes, experiment.wanted)
        self._performers = self._performing()
        self._happened(Opened())
        self._admission.key = write_control(folder.path, host, self.hub.port)

    def _trust(self, ids: Collection[str]) -> Trust:
        """The signers whose checkpoints count; in a run without signatures, all do."""
        if self._signer is None or not self.ledger.signed:
            return ANYBODY
        return Trust(frozenset({self._signer.id, *ids}))

    @property
    def port(self) -> int:
        """The port workers connect to."""
        return self.hub.port

    @property
    def committed(self) -> int:
        """The last committed round."""
        return self.state.committed

    @property
    def roster(self) -> Roster:
        """The workers of the run."""
        return self.state.roster

    @property
    def cancelled(self) -> bool:
        """Whether an operator, or a signal, ended the run early."""
        return self.state.cancelled

    def now(self) -> float:
        """Seconds, by the shepherd's clock."""
        return self._clock()

    def status(self) -> dict[str, Any]:
        """The status of the run, for a dashboard or `pcp status`."""
        return self.islands.status()

    def log(self, text: str) -> None:
        """Tell the observers."""
        self.observer.log(text)

    def saved(self, round_: int) -> str | None:
        """The folder of a whole checkpoint of a round; None if there is none."""
        found = self._serving.look(round_)
        for line in found.damaged:
            self.log(f"{line}; it is made again")
        return found.path

    def prepare(self, target: str) -> None:
        """Make the program for `target` now, so that errors show at once."""
        self.training.check_settings()
        self._happened(Compiled(None, self._artifacts.program(target)))

    def watch_over(self, check: Callable[[], None]) -> None:
        """Call `check` with every heartbeat; an error that it raises ends the run."""
        self._check = check

    def interrupt(self, number: int) -> None:
        """Ask for the run's end from a signal handler, which must do nothing else."""
        self.interrupted = number

    def run(self) -> Outcome:
        """Serve until the last round is committed and saved."""
        try:
            self.training.check_settings()
            if self._inspect is not None:
                self._admission.wait()
                self.hub.work(self._inspect, self._inspected)
            while self.training.outcome is None:
                self.turn()
            return self.training.outcome
        finally:
            self.close()

    def turn(self) -> None:
        """Handle the events of the next moment, then the `Tick` of the clock.
        The moment ends in time, however many events come.
        """
        self._handle_signal()
        if self._elector is not None:
            self._elector.check()
        until = time.monotonic() + _MOMENT
        arrived = self.hub.next(timeout=_MOMENT)
        while arrived is not None:
            self._handle(arrived)
            over = time.monotonic() > until
            arrived = None if over else self.hub.next(timeout=0.0001)
        self._happened(Tick())

    def close(self) -> None:
        """Stop listening; workers see their connections end."""
        self.hub.close()
        self.endpoint.close()
        self.ledger.close()

    # Events -------------------------------------------------------------------

    def _handle_signal(self) -> None:
        """End the run as a signal asked; a run that has not begun just ends."""
        if not self.interrupted or self.cancelled:
            return
        if self.training.loop is None:
            raise KeyboardInterrupt
        self._happened(Interrupted())

    def _handle(self, arrived: Received | Lost | FinishedWork) -> None:
        if isinstance(arrived, FinishedWork):
            arrived.then(arrived.result)
        elif isinstance(arrived, Lost):
            self._happened(arrived)
        elif (event := self._admission.admit(arrived)) is not None:
            self._happened(event)

    def _inspected(self, result: Corpus | Exception | None) -> None:
        """The data were read; without readable data the run fails."""
        if isinstance(result, Exception):
            raise result
        expects = None if result is None else self._artifacts.expects(result)
        for arrived in self._admission.expect(expects):
            self._handle(arrived)

    def _happened(self, event: Event) -> None:
        """Take a step, carry out its effects, and take a step for each answer."""
        events = deque([event])
        while events:
            for effect in self.islands.step(events.popleft(), self.now()):
                answer = self._performers[type(effect)](effect)
                if answer is not None:
                    events.append(answer)
        self._serving.decline()

    # Effects --------------------------------------------------------------------

    def _performing(self) -> dict[type[Effect], Callable[[Any], Event | None]]:
        """The function that carries out each kind of effect; it returns an answer."""
        observer, folder, serving = self.observer, self.folder, self._serving
        return {
            do.Append: self._append,
            do.Send: self._send,
            do.Refuse: lambda e: e.connection.refuse(e.reason),
            do.Close: lambda e: e.connection.close(),
            do.Log: lambda e: observer.log(e.text),
            do.ShowStatus: self._show_status,
            do.Keep: self._keep,
            do.ReportRound: self._report,
            do.ReportValidation: lambda e: observer.validation(
                e.round, e.loss, e.batches
            ),
            do.ReportCheckpoint: lambda e: observer.checkpoint(e.round, e.path),
            do.Compile: self._compile,
            do.NoteSettings: lambda e: folder.note(self.experiment),
            do.MakeLatest: lambda e: folder.make_latest(),
            do.Gather: self._gather,
            do.Prove: self._prove,
            do.Write: self._write,
            do.LookOnDisk: lambda e: serving.look(e.round),
            do.FindCheckpoint: lambda e: serving.find(e.at_most),
            do.LoadWeights: lambda e: serving.load(),
            do.Serve: lambda e: serving.serve(e.parts),
            do.StopServing: lambda e: serving.stop(),
            do.Recall: lambda e: Recalled(e.event, self.ledger.whole_history()),
            do.Fail: _fail,
        }

    def _append(self, effect: do.Append) -> None:
        """Write a line to the ledger; without room on the disk, wait for it.
        No later effect may be carried out meanwhile. Heartbeats tell the workers that
        the shepherd lives, so they stay.
        """
        waited = 0
        while True:
            try:
                self.ledger.write(effect.kind, effect.fields, sync=effect.sync)
                break
            except DiskFull as error:
                if self.interrupted:
                    raise
                if not waited:
                    self.log(f"the run waits for room on the disk: {error}")
                waited += 1
                self.hub.tell_workers(Heartbeat())
                self._pause(self.experiment.heartbeat_seconds)
        if waited:
            self.log("there is room on the disk again: the run goes on")

    def _send(self, effect: do.Send) -> None:
        connection: Any = effect.connection
        if effect.bundle is None:
            connection.send(effect.message)
        else:
            connection.send(effect.message, self._artifacts.get(effect.bundle).content)

    def _show_status(self, effect: do.ShowStatus) -> None:
        self.observer.status(self.status())
        self.hub.drop_revoked()
        self._check()

    def _keep(self, effect: do.Keep) -> None:
        self._kept = replace(effect.record, time=time.time())
        self.observer.keep(self._kept)

    def _report(self, effect: do.ReportRound) -> None:
        kept = self._kept
        # Which workers took part: a run may be over before a heartbeat's interval is.
        self.observer.status(self.status())
        self.observer.round(effect.record if kept is None else kept)

    def _compile(self, effect: do.Compile) -> None:
        connection, target = effect.connection, effect.target

        def then(result: Program | Exception) -> None:
            if isinstance(result, Exception):
                alone = not self._artifacts.sound
                self._happened(NotCompiled(connection, result, alone))
            else:
                self._artifacts.keep(self.folder.path)
                self._happened(Compiled(connection, result))

        self.hub.work(lambda: self._artifacts.program_or_blame(target), then)

    def _gather(self, effect: do.Gather) -> None:
        tokenizer, offset = self._artifacts.corpus.tokenizer, self.ledger.offset
        more = {"tokenizer": tokenizer, "ledger_offset": offset}

        def then(result: Checkpoint | Exception) -> None:
            if isinstance(result, Exception):
                self._not_saved(result)
                return
            result.info |= dict(effect.info) | more
            self._gathered = result
            nonfinite = result.info["nonfinite"]
            self._happened(Gathered(effect.round, effect.members, nonfinite))

        self.hub.work(self._fetching(effect), then)

    def _prove(self, effect: do.Prove) -> None:
        def then(result: Checkpoint | Exception) -> None:
            fault, at = None, None
            if isinstance(result, Exception):
                fault, at = _passing(result)
            self._happened(Proved(effect.round, effect.member, fault, at))

        self.hub.work(self._fetching(effect), then)

    def _fetching(self, effect: do.Gather | do.Prove) -> Callable[[], Checkpoint]:
        """Fetches the state of a round from the effect's addresses.

        No round begins meanwhile: a silent worker is removed here too.
        """
        silence, safe = self.experiment.heartbeat_limit_seconds, self.protection
        asked = (effect.addresses, effect.round, effect.digest, safe, silence)
        cut = self._artifacts.parts, effect.shapes
        return partial(checkpointer.gather, *asked, *cut)

    def _write(self, effect: do.Write) -> None:
        checkpoint, keep = self._gathered, self.experiment.keep_checkpoints
        self._gathered = None

        def then(result: Any) -> None:
            if isinstance(result, Exception):
                self._not_saved(result)
            else:
                written = Written(effect.round, effect.members, str(result))
                self._happened(written)

        if checkpoint is not None:
            path = self.folder.path
            there = [
                checkpoints.round_of(folder) for folder in checkpoints.folders(path)
            ]
            scores = self.state.progress.scores
            best = monitor.best_of(self.experiment, scores, [*there, effect.round])
            spared = () if best is None else (best,)
            signer = self._signer
            save = partial(checkpoints.save, path, checkpoint, keep, spared, signer)
            self.hub.work(save, then)

    def _not_saved(self, error: Exception) -> None:
        self._happened(NotSaved(*_passing(error)))


def _passing(error: Exception) -> tuple[str, str | None]:
    """A fault of disk or network, which may pass, and the address of who has it.

    Any other error ends the run.
    """
    if not isinstance(error, RuntimeFault | OSError):
        raise error
    return str(error), getattr(error, "address", None)


def _fail(effect: do.Fail) -> None:
    raise effect.error
