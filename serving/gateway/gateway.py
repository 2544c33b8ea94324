"""The HTTP server of some models: its parts put together, and run.

    gateway = Gateway(make_engine, [Model(("llama",), folder)], Options(), log=print)
    with gateway.listen("127.0.0.1", 8000) as sock:
        asyncio.run(gateway.serve(sock))

Behind `/v1` are OpenAI's routes. `/health` says that the process lives, `/ready` that
it answers, `/metrics` is for Prometheus, `/v1/cluster` shows the engines.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from pcp.errors import ConfigError, MissingPackage, PcpError
from pcp.runtime.transport.address import format_address, is_loopback
from pcp.runtime.transport.link import listen
from pcp.serving.gateway.api_keys import ApiKeys
from pcp.serving.gateway.asking import Asking
from pcp.serving.gateway.clients import Guard
from pcp.serving.gateway.driver import Driver
from pcp.serving.gateway.metrics import Metrics
from pcp.serving.gateway.openai_routes import OpenAiRoutes
from pcp.serving.gateway.operator_routes import OperatorRoutes
from pcp.serving.gateway.page import chat_page
from pcp.serving.gateway.refused import Refused, reply
from pcp.serving.gateway.served_models import Make, Model, ServedModel, ServedModels
from pcp.serving.gateway.shardcompute import ShardComputeRoutes
from pcp.training.observe.page_files import POLICY
from pcp.training.observe.web.server import configured
from pcp.version import VERSION

_BACKLOG = 512
_PAGES = frozenset({"/", "/ui", "/dashboard"})


@dataclass(frozen=True)
class Options:
    """How a gateway behaves. Sizes are in bytes, times in seconds.

    `seconds` is the longest that a request may take; a client that reads nothing for
    `patience` is left. `origins` are other pages that may ask from a browser; `pages`
    is a folder with an `index.html` in place of the chat page, and its files under
    `/static`. `drain` is how long answers under way have when a model ends. `scheduler`
    are options of `pcp.serving.scheduler.Limits`.
    """

    keys: ApiKeys = field(default_factory=lambda: ApiKeys({}))
    body_limit: int = 8 << 20
    seconds: float = 600.0
    patience: float = 30.0
    origins: frozenset[str] = frozenset()
    pages: Path | None = None
    certificate: tuple[Path, Path] | None = None
    insecure: bool = False
    drain: float = 10.0
    scheduler: dict[str, Any] = field(default_factory=dict)


class Gateway:
    """A server of models. `make` loads the engine of one once it listens."""

    def __init__(
        self,
        make: Make,
        models: Sequence[Model],
        options: Options,
        *,
        log: Callable[[str], None],
    ) -> None:
        self.options, self._make, self._log = options, make, log
        self.metrics = Metrics()
        self.models = ServedModels(self._served)
        for model in models:
            self.models.add(model)
        self._failure: BaseException | None = None
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def driver(self) -> Driver:
        """The first model's."""
        return self.models.first.driver

    @property
    def asking(self) -> Asking:
        """The first model's."""
        return self.models.first.asking

    def listen(self, host: str, port: int) -> socket.socket:
        """A listening socket; ConfigError where it cannot be, or must not."""
        options = self.options
        if not is_loopback(host) and not options.keys and not options.insecure:
            raise ConfigError(
                f"{host} is for other machines too, and without keys anybody may ask: "
                "give --api-key-file FILE, or --insecure if the network is trusted"
            )
        sock = listen(format_address(host, port), _BACKLOG)
        # A peer that takes nothing, or is gone, is given up by the kernel too.
        patience = int(options.patience * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        self._bound = host
        return sock

    async def serve(self, sock: socket.socket) -> None:
        """Serve until `stop`; raises what loading the engine ended with."""
        certificate = self.options.certificate
        cert, key = certificate if certificate else (None, None)
        config = configured(
            self._app(),
            lifespan="on",
            ssl_certfile=cert,
            ssl_keyfile=key,
            timeout_graceful_shutdown=int(self.options.drain) or None,
        )
        self._server, self._loop = uvicorn.Server(config), asyncio.get_running_loop()
        await self._server.serve(sockets=[sock])
        if self._failure is not None:
            raise self._failure

    @property
    def ready(self) -> bool:
        """Whether it serves, and a request that comes now would be computed."""
        return self._loop is not None and self.models.state == "ready"

    def stop(self) -> None:
        """End, from any thread: who is being answered has `drain` seconds."""
        loop, server = self._loop, self._server
        if loop is not None and server is not None:

            def end() -> None:
                for each in self.models:
                    each.driver.drain()
                server.should_exit = True

            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end)

    def swap(self, folder: str) -> float:
        """As `ServedModels.swap`, of the first model, from any other thread."""
        assert self._loop is not None, "it serves"
        swap = self.models.swap("", folder)
        return asyncio.run_coroutine_threadsafe(swap, self._loop).result()

    def _app(self) -> Starlette:
        options = self.options
        guard = Middleware(
            Guard,
            keys=options.keys,
            bound=self._bound,
            origins=options.origins,
            pages=_PAGES,
        )
        cors = [
            Middleware(
                CORSMiddleware,
                allow_origins=list(options.origins),
                allow_methods=["*"],
                allow_headers=["*"],
            )
        ]
        sizes = {"body_limit": options.body_limit, "patience": options.patience}
        openai = OpenAiRoutes(self.models, **sizes)
        shards = ShardComputeRoutes(self.models, self.metrics, **sizes)
        operator = OperatorRoutes(
            self.models,
            options.keys,
            log=self._log,
            drain=options.drain,
            body_limit=options.body_limit,
        )
        self._shards = shards
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._metrics),
                Route("/v1/cluster", self._cluster),
                *operator.routes(),
                *(Route(path, self._page) for path in sorted(_PAGES)),
                *openai.routes(),
                *shards.routes(),
                *self._static(),
            ],
            middleware=[*cors, guard],
            lifespan=self._lifespan,
            exception_handlers={
                Refused: _refused,
                HTTPException: _http_error,
                Exception: self._internal_error,
            },
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        for each in self.models:
            each.driver.start()
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            await self.models.close()

    async def _watch(self) -> None:
        """Say that the engines are there, or end with what went wrong."""
        for each in list(self.models):
            await each.driver.loaded.wait()
            self._failure = each.driver.failure
            if self._failure is not None:
                assert self._server is not None, "it serves"
                self._server.should_exit = True
                return
            self._log(f"ready: {', '.join(each.model.names)}")

    def _served(self, model: Model) -> ServedModel:
        options = self.options
        return ServedModel(
            model,
            self._make,
            self.metrics,
            log=self._log,
            seconds=options.seconds,
            scheduler=options.scheduler,
        )

    # Routes.

    async def _health(self, request: Request) -> Response:
        return reply({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        state = self.models.state
        if state == "ready":
            return reply({"status": state})
        return reply({"status": state}, 503, {"Retry-After": "1"})

    async def _page(self, request: Request) -> Response:
        """The chat page; to a program, ShardCompute's summary."""
        json = "application/json" in request.headers.get("accept", "")
        if request.url.path == "/" and (json or request.query_params.get("json")):
            return reply(self._shards.summary())
        if self.options.pages is not None:
            return FileResponse(self.options.pages / "index.html")
        headers = {"Content-Security-Policy": POLICY}
        return HTMLResponse(chat_page(), headers=headers)

    def _static(self) -> list[BaseRoute]:
        """Files of another page, if there is one."""
        if self.options.pages is None:
            return []
        files = StaticFiles(directory=self.options.pages)
        return [Mount("/static", files)]

    async def _metrics(self, request: Request) -> Response:
        """For Prometheus; a page's script is told what ShardCompute would say."""
        asked = request.headers
        by_page = asked.get("sec-fetch-dest") == "empty"
        if by_page or asked.get("accept") == "application/json":
            return await self._shards.report(request)
        schedulers = [each.driver.scheduler for each in self.models]
        self.metrics.load([each for each in schedulers if each is not None])
        try:
            text, kind = self.metrics.text()
        except MissingPackage as error:
            raise Refused(501, "not_installed", str(error)) from error
        return Response(text, media_type=kind)

    async def _cluster(self, request: Request) -> Response:
        values: dict[str, Any] = {"version": VERSION, "ready": self.ready}
        values["models"] = self.models.names
        if self.models.served:
            values |= self.models.first.describe()
        values["served"] = {e.model.names[0]: e.describe() for e in self.models}
        return reply(values)

    async def _internal_error(self, request: Request, error: Exception) -> Response:
        self._log(f"internal error: {type(error).__name__}: {error}")
        if isinstance(error, PcpError):
            return Refused(500, "internal_error", str(error)).response()
        return Refused(500, "internal_error", "a bug in the server").response()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    why = {404: f"there is no {path}", 405: f"{path} takes no {method}"}
    said = why.get(error.status_code, str(error.detail))
    return Refused(error.status_code, "not_found", said).response()
