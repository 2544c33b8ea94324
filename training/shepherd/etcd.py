"""A client of etcd's v3 interface, as the JSON over HTTP that etcd serves.

Keys and values are bytes in base64, numbers are text. Any member of the cluster may
answer; after one that does not, the next is asked.
"""

import base64
import http.client
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pcp import strict_json
from pcp.errors import ConfigError, ProtocolError, RuntimeFault
from pcp.runtime.transport.address import is_loopback

_ANSWER_SECONDS = 1.0
_MOST_BYTES = 64 << 20
_NEVER = (400, 401, 403)  # a request too large, or without permission
_FILES = {"cafile": "ETCDCTL_CACERT", "cert": "ETCDCTL_CERT", "key": "ETCDCTL_KEY"}


class Unavailable(RuntimeFault):
    """No member of the cluster answers; the request may have been carried out."""


@dataclass(frozen=True)
class EtcdName:
    """The members of an etcd cluster, and the prefix of a run's keys."""

    members: tuple[tuple[str, str, int], ...]
    """Scheme, host and port of each."""
    name: str
    files: Mapping[str, str]
    """Files of certificates for https, by the variables that etcdctl reads."""

    @property
    def bare(self) -> bool:
        """Whether other processes of the network can read or change the requests."""
        return any(s == "http" and not is_loopback(h) for s, h, _ in self.members)


def place(text: str, variables: Mapping[str, str] = MappingProxyType({})) -> EtcdName:
    """The cluster and the prefix of `http://HOST:PORT/NAME,...`, or ConfigError.

    `variables` of the environment name certificates, as `etcdctl` has them.
    """
    members, names = [], set[str]()
    for word in text.split(","):
        url = urlsplit(word.strip())
        name = url.path.strip("/")
        try:
            port = url.port or 2379
        except ValueError:
            port = 0
        if url.scheme not in ("http", "https") or not (url.hostname and name and port):
            raise ConfigError(
                f"--etcd {word.strip()}: expected http[s]://HOST:PORT/NAME, where "
                "NAME is the run's, the same for all its shepherds"
            )
        members.append((url.scheme, url.hostname, port))
        names.add(name)
    if len(names) != 1:
        raise ConfigError(f"--etcd: members of one cluster, but names {sorted(names)}")
    files = {name: variables[own] for name, own in _FILES.items() if own in variables}
    return EtcdName(tuple(members), names.pop(), files)


class Etcd:
    """Requests to a cluster, one at a time. Each thread has its own instance."""

    def __init__(self, where: EtcdName) -> None:
        """ConfigError for certificates (`ETCDCTL_CACERT`, ...) that do not load."""
        self.name = where.name
        self._members, self._at = where.members, 0
        safe = any(scheme == "https" for scheme, _, _ in where.members)
        self._tls = _tls(where.files) if safe else None
        self._open: http.client.HTTPConnection | None = None

    def grant(self, seconds: int) -> tuple[str, float]:
        """A new lease, and for how many seconds it holds."""
        said = self._ask("lease/grant", {"TTL": str(seconds)})
        return str(_of(said, "ID")), float(_of(said, "TTL"))

    def keep_alive(self, lease: str) -> float:
        """Renew a lease: the seconds for which it holds from now on; 0: it is gone."""
        said = self._ask("lease/keepalive", {"ID": lease})
        return float(_of(said, "result").get("TTL", 0))

    def transact(
        self,
        compare: Sequence[Mapping[str, Any]],
        then: Sequence[Mapping[str, Any]],
        otherwise: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[bool, int, list[Any]]:
        """A transaction: whether all of `compare` held, the revision, the answers."""
        asked = {"compare": [*compare], "success": [*then], "failure": [*otherwise]}
        said = self._ask("kv/txn", asked)
        revision = int(_of(_of(said, "header"), "revision"))
        return bool(said.get("succeeded")), revision, list(said.get("responses", ()))

    # Parts of requests -----------------------------------------------------

    def key(self, name: str) -> str:
        """One of the run's keys."""
        return encoded(f"{self.name}/{name}")

    def line(self, number: int) -> str:
        """The key of a line of the ledger; keys sort as lines do."""
        return self.key(f"line/{number:016d}")

    def made_at(self, key: str, revision: int) -> dict[str, Any]:
        """The comparison that a key was made at a revision; 0: that it is not there."""
        said = {"key": key, "target": "CREATE", "result": "EQUAL"}
        return {**said, "create_revision": str(revision)}

    def holds(self, key: str, value: str) -> dict[str, Any]:
        """The comparison that a key has a value."""
        said = {"key": key, "target": "VALUE", "result": "EQUAL"}
        return {**said, "value": encoded(value)}

    def put(self, key: str, value: str, lease: str | None = None) -> dict[str, Any]:
        """The request that a key have a value, for as long as a lease holds."""
        said = {"key": key, "value": encoded(value)}
        return {"request_put": said if lease is None else {**said, "lease": lease}}

    def get(self, key: str, end: str | None = None, most: int = 1) -> dict[str, Any]:
        """The request for a key, or for at most so many from it to before `end`."""
        said = {"key": key} if end is None else {"key": key, "range_end": end}
        return {"request_range": {**said, "limit": str(most)}}

    def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # ----------------------------------------------------------------------------

    def _ask(self, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The first answer of a member; `Unavailable` if no member answers.

        `ConfigError` for a request that etcd refuses for good.
        """
        why = ""
        for _ in self._members:
            try:
                return self._answer(what, values)
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
            self.close()
            self._at = (self._at + 1) % len(self._members)
        raise Unavailable(f"etcd does not answer: {why}")

    def _answer(self, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
        scheme, host, port = self._members[self._at]
        if self._open is None:
            self._open = (
                http.client.HTTPSConnection(
                    host, port, timeout=_ANSWER_SECONDS, context=self._tls
                )
                if scheme == "https"
                else http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
            )
        body = strict_json.dumps(values).encode()
        headers = {"Content-Type": "application/json"}
        self._open.request("POST", f"/v3/{what}", body, headers)
        reply = self._open.getresponse()
        content = reply.read(_MOST_BYTES)
        said = content.decode(errors="replace").strip()[:300]
        if reply.status in _NEVER:
            raise ConfigError(f"etcd at {host}:{port} refuses {what}: {said}")
        answer = (
            strict_json.parse(content) if reply.status == http.HTTPStatus.OK else None
        )
        if not isinstance(answer, dict) or "error" in answer:
            raise OSError(f"{reply.status} {said}")
        return answer


def found(answer: Any) -> list[tuple[str, str, int]]:
    """The keys that a `get` found, each with its value and revision of creation."""
    kvs = _of(answer, "response_range").get("kvs", ())
    return [
        (
            str(_of(kv, "key")),
            decoded(kv.get("value", "")),
            int(_of(kv, "create_revision")),
        )
        for kv in kvs
    ]


def more(answer: Any) -> bool:
    """Whether a `get` found more keys than it asked for."""
    return bool(_of(answer, "response_range").get("more"))


def encoded(text: str) -> str:
    """A text as base64, the form of bytes in etcd's JSON."""
    return base64.b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    """The text of base64; ProtocolError for anything else."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError as error:
        raise ProtocolError("a key of etcd holds what no shepherd wrote") from error


def _of(said: Any, name: str) -> Any:
    if not isinstance(said, dict) or name not in said:
        raise ProtocolError(f"an answer of etcd has no {name}")
    return said[name]


def _tls(files: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.get("cafile"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{', '.join(_FILES.values())}: {error}") from error
    return context
