"""Discovery by mDNS: processes of a run find each other on one network by a tag.

    with announced("10.0.0.1", 8080, tag):             # a shepherd
    found(tag, 10.0)                                   # [("10.0.0.1", 8080)]

A shepherd announces a service `_pcp._tcp.local.` under a random name, with the tag of
its run's namespace. A process that has the same key, or trusts the same issuer, knows
the tag; other processes see that a namespace is announced, and not which. Discovery
finds addresses alone: the proofs at the beginning of a connection decide whether the
peer belongs to the namespace.
"""

import hashlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from pcp.errors import ConfigError, MissingPackage, UsageError, install
from pcp.runtime.transport.address import WILDCARDS
from pcp.runtime.transport.credentials import Protection

SERVICE = "_pcp._tcp.local."
_SALT = b"pcp namespace 1"
_BYTES = 8


def tag_of(protection: Protection) -> str:
    """The tag of the namespace of a key, or of an issuer.

    The tag of a key is made slowly (scrypt): an attacker that has received the tag
    needs a tenth of a second for each guess at the key. UsageError without protection.
    """
    tls, key = protection.tls, protection.key
    if tls is not None and tls.namespace is not None:
        try:
            issuer = Path(tls.ca).read_bytes()
        except OSError as error:
            raise ConfigError(f"{tls.ca}: {error.strerror}") from error
        return hashlib.sha256(_SALT + issuer).digest()[:_BYTES].hex()
    if key is None:
        raise UsageError(
            "any process could announce itself: a namespace takes --key-file "
            "(`openssl rand -hex 32 > run.key; chmod 600 run.key`), or certificates "
            "(`pcp keys`)"
        )
    raw = key.encode() if isinstance(key, str) else key
    made = hashlib.scrypt(
        raw, salt=_SALT, n=1 << 15, r=8, p=1, dklen=_BYTES, maxmem=64 << 20
    )
    return made.hex()


@contextmanager
def announced(host: str, port: int, tag: str) -> Iterator[None]:
    """Announce the address of a shepherd while the block lasts.

    `host` is its listener's; for a wildcard, all addresses of this machine are
    announced.
    """
    zeroconf = _library()
    name = secrets.token_hex(8)
    own = _own_addresses(host)
    info = zeroconf.ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        addresses=[socket.inet_aton(address) for address in own],
        port=port,
        properties={"ns": tag},
        server=f"{name}.local.",
    )
    speaker = _speaker(zeroconf)
    try:
        speaker.register_service(info)
        yield
    finally:
        speaker.close()


def found(tag: str, seconds: float, least: int = 1) -> list[tuple[str, int]]:
    """The shepherds of a namespace: hosts and ports, within so many seconds.

    Waits until `least` are found, and a moment more for others; returns fewer where no
    more come in time.
    """
    zeroconf = _library()
    listener = _Found(tag)
    speaker = _speaker(zeroconf)
    try:
        zeroconf.ServiceBrowser(speaker, SERVICE, listener)
        until = time.monotonic() + seconds
        with listener.changed:
            listener.changed.wait_for(lambda: len(listener.there) >= least, seconds)
        time.sleep(max(0.0, min(_MORE_SECONDS, until - time.monotonic())))
        return sorted(listener.there)
    finally:
        speaker.close()


_MORE_SECONDS = 0.3


class _Found:
    """The addresses of a namespace's services that are announced now."""

    def __init__(self, tag: str) -> None:
        self._tag = tag.encode()
        self._by_name: dict[str, list[tuple[str, int]]] = {}
        self.changed = threading.Condition()

    @property
    def there(self) -> set[tuple[str, int]]:
        """One address of each service."""
        return {places[0] for places in self._by_name.values()}

    def add_service(self, speaker: Any, kind: str, name: str) -> None:
        """A namespace is announced."""
        info = speaker.get_service_info(kind, name, timeout=2000)
        if info is None or info.properties.get(b"ns") != self._tag:
            return
        places = [
            (address, int(info.port))
            for address in info.parsed_addresses()
            if info.port
        ]
        if places:
            with self.changed:
                self._by_name[name] = places
                self.changed.notify_all()

    update_service = add_service

    def remove_service(self, speaker: Any, kind: str, name: str) -> None:
        """An announcement has ended."""
        with self.changed:
            self._by_name.pop(name, None)


def _own_addresses(host: str) -> list[str]:
    """IPv4 addresses at which a listener of `host` is reached from other machines."""
    try:
        first = socket.getaddrinfo(host, 0, socket.AF_INET)[0][4][0]
    except OSError as error:
        raise ConfigError(f"--announce: {host}: {error.strerror}") from error
    if first not in WILDCARDS:
        return [str(first)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("224.0.0.251", 5353))  # sends nothing
            return [probe.getsockname()[0]]
        except OSError as error:
            raise ConfigError(
                f"--announce: no network to announce on: {error.strerror}"
            ) from error


def _speaker(zeroconf: Any) -> Any:
    """An mDNS responder on all interfaces of this machine, loopback too."""
    try:
        return zeroconf.Zeroconf(
            interfaces=zeroconf.InterfaceChoice.All,
            ip_version=zeroconf.IPVersion.V4Only,
        )
    except OSError as error:
        raise ConfigError(
            f"no mDNS on this machine ({error.strerror}): give addresses in place of "
            "--announce and --discover"
        ) from error


def _library() -> Any:
    try:
        return import_module("zeroconf")
    except ImportError as error:
        raise MissingPackage(
            f"--announce and --discover need zeroconf: {install('discover')}"
        ) from error
