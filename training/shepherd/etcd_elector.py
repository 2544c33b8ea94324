"""The shell of the leader's lease: etcd, this shepherd's ledger copy, and the clock.

Keys of a run, below its name: `leader` (who leads; it goes with its lease), `line/N`
(the ledger, a line each, as the file has them), `over` (why the run has ended; it goes
with the leader's lease). All decisions are those of the machine in
`pcp.training.coordinator.standby.leader_lease`, under one lock. One thread asks for the
lease and polls, another sends lines, so that neither waits for the other.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from pcp.errors import PcpError, RuntimeFault, StateMismatch
from pcp.training.coordinator.standby.leader_lease import (
    AT_ONCE,
    SECONDS,
    AppendLines,
    Campaign,
    Effect,
    Finish,
    LeaderLease,
    Look,
    LookAnswer,
    Renew,
    Request,
)
from pcp.training.shepherd.elector import Elector
from pcp.training.shepherd.etcd import Etcd, EtcdName, Unavailable, found, more

_TURN = 0.05


class EtcdElector(Elector):
    """The elector of shepherds that share a name in etcd."""

    _end_seconds = 0.5

    def __init__(
        self, where: EtcdName, me: str, path: Path, log: Callable[[str], None]
    ) -> None:
        """`path` is the ledger's, `me` the name of this shepherd in etcd."""
        super().__init__(path, log)
        self._me, self._lease = me, ""
        self._machine = self._election = LeaderLease(self.copy, time.monotonic())
        self._etcd, self._for_lines = Etcd(where), Etcd(where)
        self._unavailable = False
        self._requests: list[Request] = []
        self._lines: SimpleQueue[AppendLines | None] = SimpleQueue()
        self._threads = [
            self._start("etcd-lease", self._lead),
            self._start("etcd-lines", self._send),
        ]

    def close(self) -> None:
        """Stop; the lease ends by itself."""
        self._closing.set()
        self._lines.put(None)
        for thread in self._threads:
            thread.join(10.0)
        self._etcd.close()
        self._for_lines.close()
        self.copy.release()

    # Effects ----------------------------------------------------------------------

    def _carry_out(self, effect: Request) -> None:
        if isinstance(effect, AppendLines):
            self._lines.put(effect)
        else:
            self._requests.append(effect)

    # Threads ----------------------------------------------------------------------

    def _lead(self) -> None:
        """Poll etcd; ask for the lease and renew it."""
        while not self._closing.wait(0.0 if self._requests else _TURN):
            with self._lock:
                if self._election.leads or not self.copy.released:
                    self._perform(self._election.tick(time.monotonic()))
                requests, self._requests = self._requests, []
            for request in requests:
                self._ask(request, self._etcd)

    def _send(self) -> None:
        """Send lines, one request after the other."""
        while (request := self._lines.get()) is not None:
            if not self._ask(request, self._for_lines):
                self._closing.wait(_TURN)

    def _ask(self, request: Request, etcd: Etcd) -> bool:
        """Send a request, carry out its answer's effects; whether there was one."""
        try:
            with self._answered(request, etcd) as effects:
                self._perform(effects)
            self._unavailable = False
            return True
        except Unavailable as why:
            with self._lock:
                self._election.lost(request)
            if not self._unavailable:
                self._log(str(why))
            self._unavailable = True
        except PcpError as error:
            with self._lock:
                self._fail(error)
        except OSError as error:
            with self._lock:
                self._fail(RuntimeFault(f"{self.copy.path}: {error.strerror}"))
        return False

    @contextmanager
    def _answered(self, request: Request, etcd: Etcd) -> Iterator[Sequence[Effect]]:
        """The effects of etcd's answer, with the lock held."""
        asked_at, machine = time.monotonic(), self._election
        match request:
            case Look():
                seen = _looked(etcd, request)
                with self._lock:
                    yield machine.seen(seen)
            case Campaign():
                lease, seconds = etcd.grant(SECONDS)
                term = _campaigned(etcd, request, lease, self._me)
                with self._lock:
                    self._lease = lease
                    now = time.monotonic()
                    yield machine.campaigned(term, asked_at, seconds, now)
            case Renew():
                seconds = etcd.keep_alive(self._lease)
                with self._lock:
                    yield machine.renewed(seconds, asked_at, time.monotonic())
            case AppendLines():
                taken = _appended(etcd, request)
                with self._lock:
                    yield machine.appended(request, taken)
            case Finish():
                _finished(etcd, request, self._lease)
                yield ()


def _looked(etcd: Etcd, look: Look) -> LookAnswer:
    leader, over, lines = etcd.transact(
        [],
        [
            etcd.get(etcd.key("leader")),
            etcd.get(etcd.key("over")),
            etcd.get(etcd.line(look.start), etcd.key("line0"), AT_ONCE),
        ],
    )[2]
    there = found(lines)
    if [key for key, _, _ in there] != [
        etcd.line(number) for number in range(look.start, look.start + len(there))
    ]:
        raise StateMismatch(
            f"etcd lacks a line of the ledger of {etcd.name} behind {look.start}: its "
            "keys were deleted; restore them, or begin a new run under another name"
        )
    return LookAnswer(
        leader=next((value for _, value, _ in found(leader)), None),
        start=look.start,
        lines=[value for _, value, _ in there],
        more=more(lines),
        over=next((value for _, value, _ in found(over)), None),
    )


def _campaigned(etcd: Etcd, asked: Campaign, lease: str, me: str) -> int | None:
    """The term, if this shepherd leads; else None."""
    leader = etcd.key("leader")
    so = [etcd.made_at(leader, 0), etcd.made_at(etcd.line(asked.count), 0)]
    if asked.count:
        so.append(etcd.holds(etcd.line(asked.count - 1), asked.last))
    done, revision, _ = etcd.transact(so, [etcd.put(leader, me, lease)])
    return revision if done else None


def _appended(etcd: Etcd, said: AppendLines) -> bool:
    """Whether the lines are in etcd, and this term's leader still leads."""
    leader, first = etcd.key("leader"), etcd.line(said.start)
    lines = [
        etcd.put(etcd.line(at), line) for at, line in enumerate(said.lines, said.start)
    ]
    done, _, answers = etcd.transact(
        [etcd.made_at(leader, said.term), etcd.made_at(first, 0)],
        lines,
        [etcd.get(leader), etcd.get(first, etcd.key("line0"), len(lines))],
    )
    if done:
        return True
    # An earlier request may have been carried out, and its answer lost.
    leads = [made for _, _, made in found(answers[0])] == [said.term]
    return leads and [value for _, value, _ in found(answers[1])] == list(said.lines)


def _finished(etcd: Etcd, said: Finish, lease: str) -> None:
    leads = etcd.made_at(etcd.key("leader"), said.term)
    etcd.transact([leads], [etcd.put(etcd.key("over"), said.reason, lease)])
