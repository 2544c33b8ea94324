"""Runs in a browser: pages that need nothing from the internet.

`WebPage` serves the run that goes on here:

    /            the page
    /api/run     status, events, validations, and the rounds after number `after`
    /api/programs  what the programs of the run hold, by name, as HTML
    /metrics     for `pcp.training.observe.prometheus`, where it is installed

`RunsPage` serves a folder of runs, live or over, and reads their files each time:

    /            all of them, their curves over each other
    /api/runs    a summary of each, with its curve
    /run/NAME/   the page of one, with its /api/run

By default they listen on this machine alone, and then answer only to a `Host` of this
machine, so that no page from elsewhere can read it through the reader's browser.
Beyond this machine a `token` is asked for: in the address that is printed, which a
browser then keeps as a cookie, or as `Authorization: Bearer TOKEN`. It is not encrypted
on its way.

Orders are posted to `api/order` of a run, as JSON, with the run's key in the header
`Pcp-Key` (`pcp.training.observe.orders`).
"""

import hmac
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import parse_qs, unquote, urlsplit

from pcp import strict_json
from pcp.errors import ConfigError, PcpError
from pcp.runtime.transport.address import is_loopback
from pcp.runtime.transport.credentials import Protection
from pcp.training.observe.metrics import Quiet
from pcp.training.observe.orders import MOST_BYTES, Desk
from pcp.training.observe.page_files import EVENTS, POLICY, Programs, no_programs
from pcp.training.observe.page_files import page as page_file
from pcp.training.observe.past_run import RUNNING, PastRun, runs_in
from pcp.training.storage.round_record import Round
from pcp.training.wire.channel import OPEN

_RECORDS = 20_000
_COOKIE = "pcp-token"
_SECONDS = 10.0  # a request that takes longer to arrive is dropped


Reply = tuple[int, str, bytes]
"""Status, content type, content."""
Query = Mapping[str, list[str]]
HTML, TEXT, JSON = "text/html; charset=utf-8", "text/plain", "application/json"


class Served(Protocol):
    """What a server has behind it."""

    def reply(self, path: str, query: Query) -> Reply:
        """The answer to a request."""
        ...

    def desk(self, path: str) -> Desk | None:
        """Where an order is taken that is posted to `path`; None: nowhere."""
        ...


class WebPage(Quiet):
    """Serves the page from threads of its own, until `close`.

    `metrics()` gives the text of `/metrics` and its content type. `history` are
    rounds of this run that an earlier shepherd committed. Orders are taken at `desk`.
    `programs()` gives what the run's programs hold, as HTML.
    """

    def __init__(
        self,
        host: str,
        port: int,
        rounds: int,
        *,
        history: Sequence[Round] = (),
        validations: Mapping[int, float] | None = None,
        metrics: Callable[[], tuple[bytes, str]] | None = None,
        token: str = "",
        desk: Desk | None = None,
        programs: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._lock, self._desk = threading.Lock(), desk
        self._programs = programs
        self._rounds, self.metrics = rounds, metrics
        self._records = deque(map(asdict, history), maxlen=_RECORDS)
        self._count = len(self._records)
        self._validations = dict(validations or {})
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS)
        self._status: Mapping[str, Any] = {}
        self._born = time.time()
        self._server = WebServer(host, port, self, token)
        self.host, self.port, self.url = host, self._server.port, self._server.url

    def log(self, text: str) -> None:
        """Keep the event."""
        with self._lock:
            self._events.append((time.time(), text))

    def round(self, record: Round) -> None:
        """Keep the round."""
        with self._lock:
            self._records.append(asdict(record))
            self._count += 1

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Keep the held-out loss."""
        with self._lock:
            self._validations[number] = loss

    def status(self, values: Mapping[str, Any]) -> None:
        """Keep the state."""
        with self._lock:
            self._status = values

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def desk(self, path: str) -> Desk | None:
        """The run's."""
        return self._desk if path == "/api/order" else None

    def reply(self, path: str, query: Query) -> Reply:
        """The page, its data, or the metrics."""
        if path == "/":
            return 200, HTML, page_file("page.html").encode()
        if path == "/metrics" and self.metrics is not None:
            text, kind = self.metrics()
            return 200, kind, text
        if path == "/api/programs":
            return _json(self._programs())
        if path != "/api/run":
            return 404, TEXT, b"there is /, /api/run and /metrics\n"
        try:
            after = int(query.get("after", ["0"])[0])
            since = float(query.get("since", ["0"])[0])
        except ValueError:
            return 400, TEXT, b"after and since are numbers\n"
        return _json(self.answer(max(after, 0), since))

    def answer(self, after: int, since: float) -> dict[str, Any]:
        """The data of the page: records behind the first `after`.

        Records are counted as they came, not by round: a rewind repeats numbers.
        `since` names the server they were counted by; another one starts anew.
        """
        with self._lock:
            first = after if since == self._born else 0
            oldest = self._count - len(self._records)
            return {
                "since": self._born,
                "after": self._count,
                "rounds": self._rounds,
                "orders": _reach(self._desk),
                "status": self._status,
                "validations": self._validations,
                "events": list(self._events),
                "records": list(self._records)[max(first - oldest, 0) :],
            }


class RunsPage:
    """A folder of runs, or one run. Orders go to their shepherds, `protected`."""

    def __init__(
        self,
        folder: str | Path,
        protected: Protection = OPEN,
        programs: Programs = no_programs,
    ) -> None:
        self.folder, self._protected = Path(folder), protected
        self._programs = programs

    def desk(self, path: str) -> Desk | None:
        """That of a run which goes on."""
        run, rest = self._run(path)
        return self._desk_of(run) if run and rest == "api/order" else None

    def _desk_of(self, run: PastRun) -> Desk | None:
        going = run.phase == RUNNING
        return Desk(run.folder.path, self._protected) if going else None

    def _run(self, path: str) -> tuple[PastRun | None, str]:
        """The run that `/run/NAME/REST` names, and the rest."""
        _, kind, name, rest, *_ = [*unquote(path).split("/", 3), *("",) * 4]
        # The names come from the folder: no path of a request is opened.
        found = {run.folder.name: run for run in runs_in(self.folder)}
        return (found.get(name) if kind == "run" else None), rest

    def reply(self, path: str, query: Query) -> Reply:
        """The pages and their data."""
        if path == "/":
            return 200, HTML, page_file("runs.html").encode()
        if path == "/api/runs":
            return _json({"runs": [summary(run) for run in runs_in(self.folder)]})
        run, rest = self._run(path)
        if run is not None and not rest:
            return 200, HTML, page_file("page.html").encode()
        if run is not None and rest == "api/run":
            return _json(run.answer() | {"orders": _reach(self._desk_of(run))})
        if run is not None and rest == "api/programs":
            return _json(self._programs(run.folder.path))
        return 404, TEXT, b"there is /, /api/runs and /run/NAME/\n"


def _reach(desk: Desk | None) -> str | None:
    """From where a page may give orders: `here`, `anywhere`, or nowhere."""
    return desk and ("anywhere" if desk.anywhere else "here")


def summary(run: PastRun) -> dict[str, Any]:
    """One run among others: its state, its curve and the keys that were chosen."""
    answer = run.answer()
    keys = ("round", "time", "seconds", "loss", "tokens_total", "tokens_per_second")
    return {
        "name": run.folder.name,
        "phase": run.phase,
        "round": run.progress.committed,
        "rounds": run.wanted_rounds,
        "loss": run.loss,
        "validation": run.validation,
        "tokens": run.progress.tokens,
        "seconds": run.seconds,
        "hosts": sorted({str(worker["address"]) for worker in run.workers}),
        "experiment": answer["experiment"],
        "records": [{key: r[key] for key in keys} for r in answer["records"]],
    }


class WebServer:
    """Answers for a `Served` from threads of its own, until `close`."""

    def __init__(self, host: str, port: int, served: Served, token: str = "") -> None:
        """A request must have the `token`; without one ("") none is needed."""
        self._server = _listen(host, port, served)
        self._server.token = token
        self.host, self.port = host, int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), daemon=True, name="web"
        ).start()

    @property
    def url(self) -> str:
        """Where it is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        token = f"?token={self._server.token}" if self._server.token else ""
        return f"http://{host}:{self.port}/{token}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _json(values: Mapping[str, Any]) -> Reply:
    return 200, JSON, strict_json.dumps(values).encode()


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "pcp", ""
    _keep = ""

    def do_GET(self) -> None:
        """Answer a request."""
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if self._admitted(query):
            server = cast(_Server, self.server)
            self._keep = server.token if "token" in query else ""
            self._send(*self._reply(server.served, url.path, query))

    def do_POST(self) -> None:
        """Take an order."""
        url = urlsplit(self.path)
        if not self._admitted(parse_qs(url.query)):
            self.close_connection = True  # what follows is not read
            return
        try:
            desk = cast(_Server, self.server).served.desk(url.path)
        except (PcpError, OSError) as error:
            desk, code, said = None, 500, str(error)
        else:
            code, said = 404, "a run that goes on takes orders at its api/order"
        if desk is not None:
            code, said = self._refusal(desk) or self._taken(desk)
        self.close_connection = True
        self._send(code, TEXT, f"{said}\n".encode())

    def _taken(self, desk: Desk) -> tuple[int, str]:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        return desk.take(self.headers.get("Pcp-Key", ""), body)

    def _refusal(self, desk: Desk) -> tuple[int, str] | None:
        """Why an order is not even read; None: it is."""
        length = self.headers.get("Content-Length", "")
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != self.headers["Host"]:
            return 403, "orders are given on the run's own page"
        if not desk.anywhere and not is_loopback(self.client_address[0]):
            return 403, "orders are taken from this machine alone, as by an ssh tunnel"
        if self.headers.get_content_type() != JSON:
            return 415, f"an order is {JSON}"
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return 413, f"an order has a Content-Length of at most {MOST_BYTES}"
        return None

    def _admitted(self, query: Query) -> bool:
        """Whether who asks may ask here; the others are told."""
        server = cast(_Server, self.server)
        if not host_allowed(server.bound, self.headers.get("Host", "")):
            self._send(403, TEXT, b"ask for this page by its address\n")
        elif not has_token(server.token, self.headers, query):
            self._send(401, TEXT, b"the address with its token is in the run's log\n")
        else:
            return True
        return False

    def _reply(self, served: Served, path: str, query: Query) -> Reply:
        try:
            return served.reply(path, query)
        except (PcpError, OSError) as error:
            return 500, TEXT, f"{error}\n".encode()

    def log_message(self, format: str, *args: object) -> None:
        """A page that asks every second is no event."""

    def _send(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        if self._keep:
            kept = f"{_COOKIE}={self._keep}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", kept)
        self.end_headers()
        self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    served: Served
    bound: str
    token = ""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in mid-answer is no event either."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


def _listen(host: str, port: int, served: Served) -> _Server:
    kind = _ServerV6 if ":" in host else _Server
    try:
        server = kind((host, port), _Handler)
    except OSError as error:
        raise ConfigError(
            f"--web: cannot listen on {host}:{port}: {error.strerror}; choose another "
            "port, or 0 for any free one"
        ) from error
    server.served, server.bound = served, host
    return server


def host_allowed(bound: str, asked: str) -> bool:
    """Whether a request's `Host` may be answered by a server bound to `bound`."""
    if not is_loopback(bound):
        return True
    return is_loopback(urlsplit(f"//{asked}").hostname or "")


def has_token(token: str, headers: Message, query: Query) -> bool:
    """Whether a request shows the token, in its address, a cookie or a header."""
    if not token:
        return True
    kind, _, bearer = str(headers.get("Authorization", "")).partition(" ")
    shown = [*query.get("token", ()), bearer if kind == "Bearer" else ""]
    for cookie in str(headers.get("Cookie", "")).split(";"):
        name, _, value = cookie.strip().partition("=")
        shown.append(value if name == _COOKIE else "")
    return any(hmac.compare_digest(one.encode(), token.encode()) for one in shown)
