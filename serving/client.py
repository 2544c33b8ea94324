"""A small client of OpenAI's API, with nothing but the standard library.

    client = Client("http://127.0.0.1:8000", key="pcp-...")
    for chunk in client.stream("/v1/chat/completions", {"messages": [...]}):
        ...

It is what `pcp chat` and `pcp bench serve` ask with.
"""

import http.client
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pcp import strict_json
from pcp.errors import ConfigError, RuntimeFault

_DONE = "[DONE]"


class ServerSaid(RuntimeFault):
    """A server's refusal: HTTP's `status`, OpenAI's `code`, when to come back."""

    def __init__(
        self, status: int, code: str, why: str, retry_after: float | None = None
    ) -> None:
        super().__init__(f"the server refuses ({status}, {code}): {why}")
        self.status, self.code, self.retry_after = status, code, retry_after


class Client:
    """One server. Each request has a connection of its own, so threads may share it."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        seconds: float = 600.0,
        authority: Path | None = None,
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url} is no address of a server: http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._key, self._seconds = key, seconds
        self._tls = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=authority)

    def get(self, path: str) -> Any:
        """What is there, read as JSON; `ServerSaid` for an error."""
        with closing(self._connect()) as connection:
            return strict_json.parse(self._ask(connection, "GET", path).read())

    def post(self, path: str, values: Mapping[str, Any]) -> Any:
        """The answer to `values`, read as JSON; `ServerSaid` for an error."""
        with closing(self._connect()) as connection:
            return strict_json.parse(self._ask(connection, "POST", path, values).read())

    def stream(
        self, path: str, values: Mapping[str, Any]
    ) -> Generator[dict[str, Any], None, None]:
        """The chunks of an answer as they come; `ServerSaid` also in the middle.

        A stream that ends before its end is a `RuntimeFault`.
        """
        with closing(self._connect()) as connection:
            reply = self._ask(connection, "POST", path, {**values, "stream": True})
            for line in _events(reply):
                if line == _DONE:
                    return
                chunk = strict_json.parse(line)
                if "error" in chunk:
                    raise _refusal(0, chunk, None)
                yield chunk
            raise RuntimeFault(f"{self.url} closed the connection within an answer")

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._seconds, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        values: Mapping[str, Any] | None = None,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        body = None
        if values is not None:
            headers["Content-Type"] = "application/json"
            body = strict_json.dumps(values).encode()
        try:
            connection.request(method, self._path + path, body, headers)
            reply = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeFault(f"{self.url} does not answer: {error}") from error
        if reply.status < 400:
            return reply
        try:
            content = strict_json.parse(reply.read())
        except ValueError:
            content = {}
        raise _refusal(reply.status, content, reply.getheader("Retry-After"))


def _events(reply: http.client.HTTPResponse) -> Iterator[str]:
    """The data of server-sent events."""
    try:
        for line in reply:
            text = line.decode().rstrip("\r\n")
            if text.startswith("data:"):
                yield text.removeprefix("data:").strip()
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeFault(f"the connection broke within an answer: {error}") from error


def _refusal(status: int, content: Any, retry_after: str | None) -> ServerSaid:
    error = content.get("error") if isinstance(content, dict) else None
    error = error if isinstance(error, dict) else {}
    code = str(error.get("code") or "error")
    why = str(error.get("message") or "it does not say why")
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return ServerSaid(status, code, why, wait)
