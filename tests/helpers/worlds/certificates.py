"""Authorities and members' certificates for tests, made when they are needed."""

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import trustme

from pcp.runtime.transport.tls import Tls

_LOCK = Lock()
_FOLDER = TemporaryDirectory(prefix="pcp-certificates-")


@cache
def authority(name: str) -> trustme.CA:
    """The authority of this name; the same one for the whole run."""
    return trustme.CA(organization_name=f"pcp test {name}")


def member_tls(name: str = "group", trusts: str = "", *, expired: bool = False) -> Tls:
    """Files of a member that authority `name` signed, which trusts `trusts`."""
    with _LOCK:
        return _files(name, trusts, expired)


@cache
def _files(name: str, trusts: str, expired: bool) -> Tls:
    folder = Path(_FOLDER.name) / f"{name}-{trusts}-{expired}"
    folder.mkdir()
    validity: dict[str, Any] = {}
    if expired:
        now = datetime.now(UTC)
        validity = {
            "not_before": now - timedelta(2),
            "not_after": now - timedelta(1),
        }
    leaf = authority(name).issue_cert("member.pcp.test", **validity)
    leaf.cert_chain_pems[0].write_to_path(folder / "member.pem")
    leaf.private_key_pem.write_to_path(folder / "member.key")
    authority(trusts or name).cert_pem.write_to_path(folder / "ca.pem")
    return Tls(folder / "member.pem", folder / "member.key", folder / "ca.pem")
