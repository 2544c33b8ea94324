"""What etcd is asked by pcp, answered as etcd does: keys, leases and transactions.

`Store` is in memory with a clock of the caller's; `served` puts it behind HTTP, and
`real` starts the program `etcd` where there is one.
"""

import base64
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

from helpers.servers.processes import free_port

from pcp.errors import RuntimeFault
from pcp.training.shepherd.etcd import Etcd, Unavailable, place


class Store:
    """One cluster's keys, at one place."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.revision = 1
        self.keys: dict[bytes, dict[str, Any]] = {}
        """By key: value, create (the revision), lease."""
        self._leases: dict[str, tuple[float, float]] = {}
        """When each ends, and for how long it is renewed."""

    def ask(self, what: str, values: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; KeyError for one that is not known."""
        self._expire()
        return {
            "lease/grant": self._grant,
            "lease/keepalive": self._keep_alive,
            "kv/txn": self._transact,
        }[what](values)

    def _expire(self) -> None:
        now = self._clock()
        gone = [lease for lease, (ends, _) in self._leases.items() if ends <= now]
        for lease in gone:
            del self._leases[lease]
            had = [key for key, held in self.keys.items() if held["lease"] == lease]
            self.revision += bool(had)
            for key in had:
                del self.keys[key]

    def _grant(self, values: dict[str, Any]) -> dict[str, Any]:
        seconds = max(2, int(values["TTL"]))
        lease = str(7_000 + len(self._leases) + self.revision * 1000)
        while lease in self._leases:
            lease += "1"
        self._leases[lease] = (self._clock() + seconds, seconds)
        return {"header": self._header(), "ID": lease, "TTL": str(seconds)}

    def _keep_alive(self, values: dict[str, Any]) -> dict[str, Any]:
        said = {"header": self._header(), "ID": values["ID"]}
        if values["ID"] in self._leases:
            seconds = self._leases[values["ID"]][1]
            self._leases[values["ID"]] = (self._clock() + seconds, seconds)
            said["TTL"] = str(int(seconds))
        return {"result": said}

    def _transact(self, values: dict[str, Any]) -> dict[str, Any]:
        so = all(map(self._is, values["compare"]))
        requests = values["success" if so else "failure"]
        leases = [q["request_put"].get("lease") for q in requests if "request_put" in q]
        if any(lease not in (None, *self._leases) for lease in leases):
            raise LookupError("etcdserver: requested lease not found")
        self.revision += bool(leases)
        answers = [self._one(request) for request in requests]
        said: dict[str, Any] = {"header": self._header()}
        return (
            {**said, "succeeded": True, "responses": answers}
            if so
            else {
                **said,
                "responses": answers,
            }
        )

    def _is(self, compare: dict[str, Any]) -> bool:
        assert compare["result"] == "EQUAL"
        held = self.keys.get(base64.b64decode(compare["key"]))
        if compare["target"] == "CREATE":
            return (held["create"] if held else 0) == int(compare["create_revision"])
        return bool(held) and held["value"] == base64.b64decode(compare["value"])

    def _one(self, request: dict[str, Any]) -> dict[str, Any]:
        if put := request.get("request_put"):
            key = base64.b64decode(put["key"])
            create = self.keys.get(key, {"create": self.revision})["create"]
            value = base64.b64decode(put["value"])
            self.keys[key] = {
                "value": value,
                "create": create,
                "lease": put.get("lease"),
            }
            return {"response_put": {"header": self._header()}}
        asked = request["request_range"]
        first = base64.b64decode(asked["key"])
        end = base64.b64decode(asked.get("range_end", "")) or first + b"\0"
        there = sorted(key for key in self.keys if first <= key < end)
        most = int(asked["limit"])
        said: dict[str, Any] = {"header": self._header()}
        if there:
            said["kvs"] = [self._kv(key) for key in there[:most]]
            said["count"] = str(len(there))
        return {"response_range": {**said, "more": True} if there[most:] else said}

    def _kv(self, key: bytes) -> dict[str, Any]:
        held = self.keys[key]
        return {
            "key": base64.b64encode(key).decode(),
            "create_revision": str(held["create"]),
            "value": base64.b64encode(held["value"]).decode(),
        }

    def _header(self) -> dict[str, str]:
        return {"revision": str(self.revision)}


class InMemory(Etcd):
    """Questions that a store is asked without a network; `lost` says which are."""

    def __init__(self, store: Store, lost: Callable[[], str]) -> None:
        super().__init__(place("http://127.0.0.1:1/run"))
        self._store, self._lost = store, lost

    def _ask(self, what: str, values: Any) -> dict[str, Any]:
        lost = self._lost()
        if lost == "request":
            raise Unavailable("the request is lost")
        try:
            said = self._store.ask(what, json.loads(json.dumps(values)))
        except LookupError as error:
            raise Unavailable(str(error)) from error
        if lost == "answer":
            raise Unavailable("the answer is lost")
        return said


@contextmanager
def served() -> Iterator[str]:
    """The address of a store behind HTTP."""
    store, lock = Store(time.monotonic), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                with lock:
                    status = 200
                    said = store.ask(self.path.removeprefix("/v3/"), body)
            except LookupError as error:
                status, said = 404, {"error": str(error), "code": 5}
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


PROGRAM = shutil.which("etcd")


@contextmanager
def real() -> Iterator[str]:
    """The address of the program `etcd`, as one member; it is there."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        log = open(Path(folder) / "log", "wb")
        process = Popen(
            [
                *(str(PROGRAM), "--data-dir", f"{folder}/data"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-cluster", f"default={peer}"),
                *("--initial-advertise-peer-urls", peer),
            ],
            stdout=DEVNULL,
            stderr=log,
        )
        try:
            _wait(client)
            yield client
        finally:
            process.kill()
            process.wait()
            log.close()


def _wait(address: str) -> None:
    until = time.monotonic() + 60
    with closing(Etcd(place(f"{address}/x"))) as etcd:
        while True:
            try:
                etcd.grant(2)
                return
            except RuntimeFault:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
