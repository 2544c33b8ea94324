"""The flags that say what everybody in a run or a group must have."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path, PurePath

from pcp.errors import ConfigError, UsageError
from pcp.runtime.transport.authentication import checked
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.tls import Tls
from pcp.tools.support.command import Parser

_FLAGS = ("key_file", "tls_cert", "tls_key", "tls_ca")


def add_protection_flags(parser: Parser) -> None:
    """`--key-file`, `--tls-cert`, `--tls-key`, `--tls-ca`: the same for all."""
    group = parser.add_argument_group("protection (the same for all who take part)")
    add = group.add_argument
    add("--key-file", type=Path, help="a file with the key that members must have")
    add("--tls-cert", type=Path, help="our certificate (PEM): everything is encrypted")
    add("--tls-key", type=Path, help="its key")
    add("--tls-ca", type=Path, help="who must have signed the members' certificates")


def protection(flags: Namespace) -> Protection:
    """What they say, checked; ConfigError for files that are not there or no good."""
    files = flags.tls_cert, flags.tls_key, flags.tls_ca
    if any(files) and not all(files):
        raise UsageError("--tls-cert, --tls-key and --tls-ca go together")
    made = Protection(_key(flags.key_file), Tls(*files) if all(files) else None)
    made.check()
    return made


def protection_files(flags: Namespace) -> dict[str, Path]:
    """The flags that were given, with absolute paths."""
    return {
        f"--{name.replace('_', '-')}": path.absolute()
        for name in _FLAGS
        if (path := getattr(flags, name, None)) is not None
    }


def arguments_of(files: Mapping[str, PurePath]) -> list[str]:
    """Flags and their paths as words of a command line."""
    return [word for flag, path in files.items() for word in (flag, str(path))]


def protection_arguments(flags: Namespace) -> list[str]:
    """The same flags for a command that this one starts, with absolute paths."""
    return arguments_of(protection_files(flags))


def _key(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return checked(path.read_bytes().strip())
    except OSError as error:
        raise ConfigError(f"--key-file {path}: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"--key-file {path}: {error}") from error
