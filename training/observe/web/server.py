"""A web server in its own thread, with checks of each request.

By default the server listens on this machine alone, and answers only to a `Host` of
this machine, so that no page of another site can read it through the reader's browser.
Beyond this machine a request needs a `token`: in the printed address, from which a
browser keeps it as a cookie, or as `Authorization: Bearer TOKEN`. Nothing is encrypted.

Orders are posted to `api/order` of a run, as JSON, with the run's key in the header
`Pcp-Key` (`pcp.training.observe.orders`).
"""

import asyncio
import hmac
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pcp import strict_json
from pcp.errors import PcpError
from pcp.runtime.transport.address import format_address, is_loopback
from pcp.runtime.transport.link import listen
from pcp.training.observe.orders import MOST_BYTES, Desk
from pcp.training.observe.page_files import POLICY

_COOKIE = "pcp-token"
_JSON = "application/json"
_MOST_READ = 1 << 16
_SECONDS = 10.0  # a request that takes longer to arrive is dropped
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}


class WebServer:
    """Serves `routes` until `close`. A request must have the `token`, if one is given.

    ConfigError where it cannot listen.
    """

    def __init__(
        self, host: str, port: int, routes: Sequence[BaseRoute], token: str = ""
    ) -> None:
        sock = listen(format_address(host, port))
        self.host, self.port = host, int(sock.getsockname()[1])
        query = f"?token={token}" if token else ""
        self.url = f"http://{format_address(host, self.port)}/{query}"
        app = Starlette(
            routes=routes,
            middleware=[Middleware(_Guard, bound=host, token=token)],
            exception_handlers={
                HTTPException: _no_page,
                PcpError: _failed,
                OSError: _failed,
                Exception: _failed,
            },
        )
        self._server = uvicorn.Server(
            configured(app, lifespan="off", loop="asyncio", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([sock],), daemon=True, name="web"
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.should_exit = True
        self._thread.join()


def configured(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """The configuration of every server: no output, no wait for connections."""
    return uvicorn.Config(
        app,
        http=_Prompt,
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        **more,
    )


class _Prompt(H11Protocol):
    """Closes a connection without the whole head of a request in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(_SECONDS, self._late)

    def _late(self) -> None:
        if self.scope is None and not self.transport.is_closing():
            self.transport.close()


def json(values: Mapping[str, Any]) -> Response:
    """An answer with these values."""
    return Response(strict_json.dumps(values), media_type=_JSON)


async def ordered(request: Request, desk: Desk | None) -> Response:
    """The answer to a posted order; without a desk the order is refused."""
    refusal = _refusal(request, desk)
    try:  # where it is refused, too: who still sends it would not see the answer
        async with asyncio.timeout(_SECONDS):
            body = await _body(request)
    except TimeoutError:
        return _said(408, f"the order did not come within {_SECONDS:.0f} s")
    if desk is None or refusal is not None:
        return _said(*(refusal or NO_DESK))
    key = request.headers.get("pcp-key", "")
    code, said = await run_in_threadpool(desk.take, key, body)
    return PlainTextResponse(f"{said}\n", code)


NO_DESK = 404, "a run that goes on takes orders at its api/order"


async def _body(request: Request) -> bytes:
    """The body, or its beginning where it is far longer than an order."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_READ:
            break
    return body


def _is_short(request: Request) -> bool:
    """Whether the body has as many bytes as an order may."""
    length = request.headers.get("content-length", "")
    sized = length.isdecimal() and "transfer-encoding" not in request.headers
    return sized and int(length) <= MOST_BYTES


def _refusal(request: Request, desk: Desk | None) -> tuple[int, str] | None:
    """The refusal of an order for its headers alone; None: its body counts."""
    if desk is None:
        return NO_DESK
    headers = request.headers
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers["host"]:
        return 403, "orders are given on the run's own page"
    if not desk.anywhere and not (request.client and is_loopback(request.client.host)):
        return 403, "orders are taken from this machine alone, as by an ssh tunnel"
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        return 415, f"an order is {_JSON}"
    if not _is_short(request):
        return 413, f"an order has a Content-Length of at most {MOST_BYTES}"
    return None


def _said(code: int, why: str) -> Response:
    """An answer after which the rest of the request is not read."""
    return PlainTextResponse(f"{why}\n", code, {"Connection": "close"})


async def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where, code = request.url.path, error.status_code
    why = {404: f"there is no {where}", 405: f"{where} takes no {request.method}"}
    return _said(code, why.get(code, str(error.detail)))


async def _failed(request: Request, error: Exception) -> Response:
    known = isinstance(error, PcpError | OSError)
    return _said(500, str(error) if known else f"a bug: {error!r}")


class _Guard:
    """Checks `Host` and token of a request, and sets the headers of security."""

    def __init__(self, app: ASGIApp, bound: str, token: str) -> None:
        self._app, self._bound, self._token = app, bound, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        request, app = Request(scope), self._app
        if not host_allowed(self._bound, request.headers.get("host", "")):
            app = _said(403, "ask for this page by its address")
        elif not has_token(self._token, request):
            app = _said(401, "the address with its token is in the run's log")
        keep = app is self._app and self._token and "token" in request.query_params

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if keep:
                    kept = f"{_COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    headers["Set-Cookie"] = kept
            await send(message)

        await app(scope, receive, sent)


def host_allowed(bound: str, asked: str) -> bool:
    """Whether a request's `Host` may be answered by a server bound to `bound`."""
    if not is_loopback(bound):
        return True
    return is_loopback(urlsplit(f"//{asked}").hostname or "")


def has_token(token: str, request: Request) -> bool:
    """Whether a request shows the token, in its address, a cookie or a header."""
    if not token:
        return True
    kind, _, bearer = request.headers.get("authorization", "").partition(" ")
    shown = [
        *request.query_params.getlist("token"),
        bearer if kind == "Bearer" else "",
        request.cookies.get(_COOKIE, ""),
    ]
    return any(hmac.compare_digest(one.encode(), token.encode()) for one in shown)
