"""The flags that say what everybody in a run or a group must have."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path, PurePath

from pcp.errors import ConfigError, UsageError
from pcp.runtime.transport.address import is_loopback
from pcp.runtime.transport.authentication import checked
from pcp.runtime.transport.certificates import read_private
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.peer_identity import is_id
from pcp.runtime.transport.signatures import Signer, Trust
from pcp.runtime.transport.tls import KeyTls, Tls
from pcp.tools.support.command import Parser

_FLAGS = ("key_file", "tls_cert", "tls_key", "tls_ca", "tls_revoked")
_KEY_BYTES = 16
"""Of a key file at least; as many random ones are not guessed."""


def add_protection_flags(parser: Parser) -> None:
    """`--key-file`, `--tls-cert`, `--tls-key`, `--tls-ca`: the same for all."""
    group = parser.add_argument_group("protection (the same for all who take part)")
    add = group.add_argument
    add(
        "--key-file",
        type=Path,
        help="a file of mode 0600 with the key that members must have: everything is "
        "encrypted",
    )
    add("--tls-cert", type=Path, help="our certificate (PEM); `pcp keys` makes one")
    add("--tls-key", type=Path, help="its key, or our identity")
    add("--tls-ca", type=Path, help="who must have signed the members' certificates")
    add("--tls-revoked", type=Path, help="a file of identities that are refused")


def add_insecure_flag(parser: Parser) -> None:
    """`--insecure`: listen for other machines without any protection."""
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond this machine without a key or certificates: whoever "
        "reaches the port takes part",
    )


_TRUST = (
    "an identity whose signatures count; again for more. Default: shepherds that the "
    "run's issuer certified"
)


def add_trust_flag(parser: Parser, help_: str = _TRUST) -> None:
    """`--trust ID`: whose signatures count here."""
    add = parser.add_argument
    add("--trust", action="append", default=[], metavar="ID", help=help_)


def add_sign_flag(parser: Parser) -> None:
    """`--sign FILE`: what is written is signed by an identity."""
    parser.add_argument(
        "--sign",
        type=Path,
        metavar="FILE",
        help="sign what is made with this identity (`pcp keys new FILE`)",
    )


def signer(flags: Namespace) -> Signer | None:
    """The signer that `--sign` names; None without the flag."""
    return None if flags.sign is None else Signer(flags.sign)


def trust(flags: Namespace, protected: Protection) -> Trust:
    """Whom the flags say to trust."""
    return Trust.of(trusted_ids(flags), protected.tls)


def trusted_ids(flags: Namespace) -> frozenset[str]:
    """The identities that `--trust` names; ConfigError for what is no id."""
    for number in flags.trust:
        if not is_id(number):
            raise ConfigError(f"--trust {number}: no id; `pcp keys show FILE` says one")
    return frozenset(flags.trust)


def trust_arguments(flags: Namespace) -> list[str]:
    """The same for a command that this one starts."""
    return [word for number in flags.trust for word in ("--trust", number)]


def require_protection(host: str, protected: Protection, insecure: bool) -> None:
    """UsageError for a listener that every machine may reach and nothing protects."""
    open_to_all = protected.key is None and protected.tls is None
    if open_to_all and not (insecure or is_loopback(host)):
        raise UsageError(
            f"a listener on {host}: whoever reaches its port could take part, and "
            "workers run what they are sent; give --key-file (`openssl rand -hex 32 > "
            "run.key; chmod 600 run.key`), or certificates (`pcp keys`), or say "
            "--insecure on a closed network"
        )


def protection(flags: Namespace) -> Protection:
    """What they say, checked; ConfigError for files that are not there or no good."""
    files = flags.tls_cert, flags.tls_key, flags.tls_ca
    if any(files) and not all(files):
        raise UsageError("--tls-cert, --tls-key and --tls-ca go together")
    key, revoked = _key(flags.key_file), getattr(flags, "tls_revoked", None)
    tls = Tls(*files, revoked) if all(files) else None
    if tls is None and revoked is not None:
        raise UsageError("--tls-revoked goes with --tls-cert, --tls-key and --tls-ca")
    if tls is None and key is not None:
        tls = KeyTls()
    made = Protection(key, tls)
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
        return checked(read_private(path, _KEY_BYTES).strip())
    except ConfigError as error:
        raise ConfigError(f"--key-file {error}") from error
