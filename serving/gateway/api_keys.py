"""Keys of the clients that may ask, of which only hashes are kept.

A line of the file is a name and the SHA-256 of a key, in hexadecimal:

    alice 2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90

With the word `operator` behind it the key may change the server too. `new` makes keys
of 256 random bits, so one hash is enough: nobody guesses those. The name is what
requests are counted under, for fairness.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from pcp.errors import ConfigError

_LINE = re.compile(
    r"(?P<name>[\w.@-]+)\s+(?P<digest>[0-9a-f]{64})(?P<role>\s+operator)?"
)
_PREFIX = "pcp-"


class ApiKeys:
    """The keys of a server; without any, everybody is `anybody`."""

    def __init__(self, names: Mapping[str, str], operators: Iterable[str] = ()) -> None:
        self._names, self._operators = dict(names), frozenset(operators)

    @classmethod
    def read(cls, path: Path | None) -> "ApiKeys":
        """The keys of a file; ConfigError for a line that is none, or no key at all."""
        if path is None:
            return cls({})
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-key-file {path}: {error}") from error
        names, operators = {}, set()
        for number, line in enumerate(lines, 1):
            line = line.partition("#")[0].strip()
            found = _LINE.fullmatch(line)
            if line and found is None:
                raise ConfigError(
                    f"{path}, line {number}: expected NAME and the SHA-256 of a key in "
                    "hexadecimal (pcp serve --new-key NAME makes both)"
                )
            if found:
                names[found["digest"]] = found["name"]
                operators |= {found["digest"]} if found["role"] else set()
        if not names:
            raise ConfigError(f"{path} has no key: nobody could ask")
        return cls(names, operators)

    def __bool__(self) -> bool:
        return bool(self._names)

    def name(self, header: str) -> str | None:
        """The client that sends an `Authorization` header; None for an unknown one."""
        if not self._names:
            return "anybody"
        return self._names.get(_sent(header))

    def is_operator(self, header: str) -> bool:
        """Whether who sends it may change the server; without keys nobody may."""
        return _sent(header) in self._operators


def _sent(header: str) -> str:
    """The hash of the key of an `Authorization` header; empty without one."""
    kind, _, key = header.partition(" ")
    return _digest(key.strip()) if kind.lower() == "bearer" else ""


def new(path: Path, name: str, *, operator: bool = False) -> str:
    """A new key, its hash added to a file that only its owner reads."""
    if not re.fullmatch(r"[\w.@-]+", name):
        raise ConfigError(f"a name has letters, digits and .@_-, not {name!r}")
    key = _PREFIX + secrets.token_urlsafe(32)
    path.touch(mode=0o600)
    with path.open("a") as file:
        file.write(f"{name} {_digest(key)}{' operator' if operator else ''}\n")
    return key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
