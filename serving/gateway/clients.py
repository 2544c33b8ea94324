"""What a server expects of clients: a key, a body of some size, and that they read.

A client that goes away, and one that reads nothing for a while, ends its requests.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pcp.serving.gateway.api_keys import ApiKeys
from pcp.serving.gateway.refused import Refused
from pcp.training.observe.web.server import host_allowed

B = TypeVar("B", bound=BaseModel)
OPEN = {"/health", "/favicon.ico"}
"""Paths for which nobody needs a key; pages for people are others (`Guard.pages`)."""
_ARRIVAL = 60.0
"""Seconds in which a request's body has to come."""
_DISCARDED = 1 << 30
"""Bytes of a body too large that are read, so that its sender hears why."""


class Guard:
    """Lets in who has a key, and refuses pages of other servers in a browser."""

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        bound: str,
        origins: frozenset[str] = frozenset(),
        pages: frozenset[str] = frozenset(),
    ) -> None:
        self._app, self._keys, self._bound = app, keys, bound
        self._origins, self._pages = origins, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except Refused as refused:
                await refused.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        request = Request(scope)
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._keys and not host_allowed(self._bound, host):
            why = f"ask for this server by its address, not as {host!r}"
            raise Refused(403, "wrong_host", why)
        foreign = origin is not None and urlsplit(origin).netloc != host
        if foreign and origin not in self._origins:
            why = f"pages of {origin} may not ask here (--allow-origin)"
            raise Refused(403, "wrong_origin", why)
        name = self._keys.name(headers.get("authorization", ""))
        if name is None and not self._is_open(scope, headers.get("accept", "")):
            why = "this server wants a key: Authorization: Bearer KEY"
            raise Refused(401, "invalid_api_key", why)
        scope["client_name"] = name or "anybody"

    def _is_open(self, scope: Scope, accept: str) -> bool:
        path = scope["path"]
        page = path in self._pages and "application/json" not in accept
        return path in OPEN or (page and not scope["query_string"])


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request; `Refused` for one of more than `most` bytes."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(_ARRIVAL):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    parts.append(part)
                elif size > _DISCARDED:
                    break
    except TimeoutError:
        why = f"the request did not come within {_ARRIVAL:.0f} s"
        raise Refused(408, "timeout", why) from None
    except ClientDisconnect:
        raise Refused(400, "disconnected", "the client left") from None
    if size > most:
        why = f"a request has at most {most} bytes (--body-limit)"
        raise Refused(413, "request_too_large", why)
    return b"".join(parts)


async def read_json(request: Request, schema: type[B], most: int) -> B:
    """The body as a model; `Refused` names what is wrong with it."""
    body = await read_body(request, most)
    try:
        body.decode()
    except UnicodeDecodeError as error:
        why = f"the request is not UTF-8: byte {error.start}: {error.reason}"
        raise Refused(400, "invalid_utf8", why) from error
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] == "json_invalid":
            raise Refused(400, "invalid_json", first["msg"]) from error
        param = ".".join(str(part) for part in first["loc"])
        why = f"{param}: {first['msg']}" if param else first["msg"]
        raise Refused(400, "invalid_value", why, param=param or None) from error


@asynccontextmanager
async def watched(receive: Receive, gone: Callable[[], object]) -> AsyncIterator[None]:
    """Call `gone` if the client leaves while the block runs."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class EventStream(Response):
    """Server-sent events from an iterator, for a client that reads them.

    `gone` is called when the client leaves, or takes nothing for `patience` seconds.
    """

    def __init__(
        self,
        events: AsyncIterator[str],
        gone: Callable[[], object],
        patience: float,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"
        self._events, self._gone, self._patience = events, gone, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all."""
        start = {"type": "http.response.start", "status": self.status_code}
        try:
            async with watched(receive, self._gone):
                await send(start | {"headers": self.raw_headers})
                async for event in self._events:
                    await self._send(send, event.encode(), True)
                await self._send(send, b"", False)
        finally:
            self._gone()

    async def _send(self, send: Send, body: bytes, more: bool) -> None:
        event = {"type": "http.response.body", "body": body, "more_body": more}
        async with asyncio.timeout(self._patience):
            await send(event)
