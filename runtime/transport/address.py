"""Addresses as users write them: `host:port`, or `[v6]:port`."""

import ipaddress

from pcp.errors import ConfigError

MAX_PORT = 65535
WILDCARDS = ("0.0.0.0", "::")
"""Hosts of a listener on all addresses of its machine; no peer can dial them."""


def parse_address(address: str) -> tuple[str, int]:
    """`("host", port)` from `host:port` or `[v6]:port`."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(
            f"{address!r} is not an address; write host:port, for example "
            f"127.0.0.1:29500 or [::1]:29500"
        )
    if ":" in bare and bare == host:
        raise ConfigError(f"{address!r}: put an IPv6 host into brackets")
    return bare, int(port)


def format_address(host: str, port: int) -> str:
    """The text `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host, in brackets or not, is this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
