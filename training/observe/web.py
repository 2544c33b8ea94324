"""A run in a browser: one page that needs nothing from the internet.

    /            the page
    /api/run     status, events, validations, and the rounds after number `after`
    /metrics     for `pcp.training.observe.prometheus`, where it is installed

It only shows; orders go through `pcp control`. By default it listens on this
machine alone, and then answers only to a `Host` of this machine, so that no page
from elsewhere can read it through the reader's browser.
"""

import ipaddress
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from pcp import strict_json
from pcp.errors import ConfigError
from pcp.training.observe.metrics import Quiet
from pcp.training.storage.round_record import Round

_EVENTS = 400
_RECORDS = 20_000
_SECONDS = 10.0  # a request that takes longer to arrive is dropped
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
_POLICY += "connect-src 'self'; frame-ancestors 'none'"


class WebPage(Quiet):
    """Serves the page from threads of its own, until `close`.

    `metrics()` gives the text of `/metrics` and its content type. `history` are
    rounds of this run that an earlier shepherd committed.
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
    ) -> None:
        self._lock = threading.Lock()
        self._rounds, self.metrics = rounds, metrics
        self._records = deque(map(asdict, history), maxlen=_RECORDS)
        self._count = len(self._records)
        self._validations = dict(validations or {})
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)
        self._status: Mapping[str, Any] = {}
        self._born = time.time()
        self._server = _listen(host, port, self)
        self.host, self.port = host, int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), daemon=True, name="web"
        ).start()

    @property
    def url(self) -> str:
        """Where the page is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

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
        self._server.shutdown()
        self._server.server_close()

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
                "status": self._status,
                "validations": self._validations,
                "events": list(self._events),
                "records": list(self._records)[max(first - oldest, 0) :],
            }


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "pcp", ""

    def do_GET(self) -> None:
        """Answer a request."""
        page = cast(_Server, self.server).page
        url = urlsplit(self.path)
        if not _host_allowed(page.host, self.headers.get("Host", "")):
            self._send(403, "text/plain", b"ask for this page by its address\n")
        elif url.path == "/":
            self._send(200, "text/html; charset=utf-8", _page())
        elif url.path == "/api/run":
            self._answer(page, parse_qs(url.query))
        elif url.path == "/metrics" and page.metrics is not None:
            text, kind = page.metrics()
            self._send(200, kind, text)
        else:
            self._send(404, "text/plain", b"there is /, /api/run and /metrics\n")

    def log_message(self, format: str, *args: object) -> None:
        """A page that asks every second is no event."""

    def _answer(self, page: WebPage, query: Mapping[str, list[str]]) -> None:
        try:
            after = int(query.get("after", ["0"])[0])
            since = float(query.get("since", ["0"])[0])
        except ValueError:
            self._send(400, "text/plain", b"after and since are numbers\n")
            return
        content = strict_json.dumps(page.answer(max(after, 0), since)).encode()
        self._send(200, "application/json", content)

    def _send(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    page: WebPage

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in mid-answer is no event either."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


def _listen(host: str, port: int, page: WebPage) -> _Server:
    kind = _ServerV6 if ":" in host else _Server
    try:
        server = kind((host, port), _Handler)
    except OSError as error:
        raise ConfigError(
            f"--web: cannot listen on {host}:{port}: {error.strerror}; choose another "
            "port, or 0 for any free one"
        ) from error
    server.page = page
    return server


def _page() -> bytes:
    return (
        files(__package__ or "pcp.training.observe").joinpath("page.html").read_bytes()
    )


def _host_allowed(bound: str, asked: str) -> bool:
    """Whether a request's `Host` may be answered by a server bound to `bound`."""
    if not _is_loopback(bound):
        return True
    name = urlsplit(f"//{asked}").hostname or ""
    return name == "localhost" or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
