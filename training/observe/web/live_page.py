"""The page of a live run, in a browser without access to the internet.

/            the page
/api/run     status, events, validations, and the rounds after number `after`
/api/programs  descriptions of the run's programs, by name, as HTML
/metrics     for `pcp.training.observe.prometheus`, where it is installed
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from pcp.training.observe.metrics import NullObserver
from pcp.training.observe.orders import Desk, reach
from pcp.training.observe.page_files import EVENTS
from pcp.training.observe.page_files import page as page_file
from pcp.training.observe.web.server import WebServer, json, ordered
from pcp.training.storage.round_record import Round

_RECORDS = 20_000


class WebPage(NullObserver):
    """Serves the page from its own threads, until `close`.

    `metrics()` gives the text of `/metrics` and its content type. `history` are rounds
    of this run that an earlier shepherd committed. Orders go to `desk`. `programs()`
    gives descriptions of the run's programs as HTML.
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
        self._rounds, self._metrics = rounds, metrics
        self._records = deque(map(asdict, history), maxlen=_RECORDS)
        self._count = len(self._records)
        self._validations = dict(validations or {})
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS)
        self._status: Mapping[str, Any] = {}
        self._born = time.time()
        self._server = WebServer(host, port, self.routes(), token)
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

    def routes(self) -> list[Route]:
        """The routes of its server."""
        return [
            Route("/", self._page),
            Route("/api/run", self._run),
            Route("/api/programs", self._asked_programs),
            Route("/api/order", self._order, methods=["POST"]),
            *([Route("/metrics", self._scrape)] if self._metrics else []),
        ]

    def _page(self, request: Request) -> Response:
        return HTMLResponse(page_file("page.html"))

    def _run(self, request: Request) -> Response:
        try:
            after = int(request.query_params.get("after", "0"))
            since = float(request.query_params.get("since", "0"))
        except ValueError:
            return PlainTextResponse("after and since are numbers\n", 400)
        return json(self.answer(max(after, 0), since))

    def _asked_programs(self, request: Request) -> Response:
        return json(self._programs())

    async def _order(self, request: Request) -> Response:
        return await ordered(request, self._desk)

    def _scrape(self, request: Request) -> Response:
        assert self._metrics is not None, "else there is no such route"
        text, kind = self._metrics()
        return Response(text, media_type=kind)

    def answer(self, after: int, since: float) -> dict[str, Any]:
        """The data of the page: the records after the first `after`.

        Records are counted as they came, not by round: a rewind repeats numbers.
        `since` names the server that counted them; another server starts anew.
        """
        with self._lock:
            first = after if since == self._born else 0
            oldest = self._count - len(self._records)
            return {
                "since": self._born,
                "started": self._born,
                "now": time.time(),
                "after": self._count,
                "rounds": self._rounds,
                "orders": reach(self._desk),
                "status": self._status,
                "validations": self._validations,
                "events": list(self._events),
                "records": list(self._records)[max(first - oldest, 0) :],
            }
