"""A gateway that listens, over an engine in closed form, in a thread of its own."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.serving.closed_form import ClosedForm

from pcp import strict_json
from pcp.serving.client import Client
from pcp.serving.gateway.gateway import Gateway, Options
from pcp.serving.gateway.served_models import Model
from pcp.serving.interface import Engine, Sampled, Tick

_SECONDS = 30.0


class Paced(ClosedForm):
    """The same, a moment a tick: what comes meanwhile, comes meanwhile."""

    pause = 0.0

    def tick(self, tick: Tick) -> list[Sampled]:
        """Compute, after a while."""
        time.sleep(self.pause)
        return super().tick(tick)


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """OpenAI's error object."""
        return self.json["error"]


@dataclass
class Live:
    """A running gateway: where it is, what it has said, and what is behind it."""

    gateway: Gateway
    port: int
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is."""
        scheme = "https" if self.gateway.options.certificate else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    def client(self, key: str | None = None) -> Client:
        """What `pcp chat` asks with."""
        return Client(self.url, key=key, seconds=_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Any request, as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, _SECONDS)
        with closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.getheaders()), reply.read())

    def post(self, path: str, values: Any, **headers: str) -> Reply:
        """A POST of JSON."""
        return self.ask("POST", path, strict_json.dumps(values).encode(), headers)

    def wait_until(self, what: Callable[[], bool], seconds: float = _SECONDS) -> None:
        """Wait for something that has to come."""
        until = time.monotonic() + seconds
        while not what():
            if time.monotonic() > until:
                raise TimeoutError(f"it did not come; the gateway said {self.said}")
            time.sleep(0.005)

    def idle(self) -> bool:
        """Whether no request is there."""
        scheduler = self.gateway.driver.scheduler
        return scheduler is not None and scheduler.idle


@contextmanager
def live(
    folder: Path,
    make: Callable[..., Engine],
    *,
    wait: bool = True,
    models: Sequence[Model] = (),
    **options: Any,
) -> Iterator[Live]:
    """A gateway while inside; with `wait`, ready before.

    `make` is given the model where there are several `models`.
    """
    said: list[str] = []
    made: dict[str, Any] = {"drain": 1.0} | options
    served = models or [Model(("test-model",), folder)]
    loads = make if models else lambda _: make()
    gateway = Gateway(loads, served, Options(**made), log=said.append)
    sock = gateway.listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(gateway.serve(sock))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=serve, name="gateway", daemon=True)
    thread.start()
    running = Live(gateway, port, said)
    try:
        if wait:
            running.wait_until(lambda: bool(errors) or any("ready" in s for s in said))
        yield running
    finally:
        gateway.stop()
        thread.join(_SECONDS)
        sock.close()
        assert not thread.is_alive(), "the gateway did not end"
    if errors:
        raise errors[0]
