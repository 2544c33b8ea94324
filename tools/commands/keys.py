"""`pcp keys`: identities, and who may be what in a run."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from pcp.errors import UsageError
from pcp.runtime.transport import certificates
from pcp.runtime.transport.peer_identity import ROLES
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say

PROG = "pcp keys"
DAYS = 7.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Make an identity (new), the issuer of a run's identities "
        "(issuer), a certificate for an identity in a role (issue); show an identity; "
        "revoke one while a run goes on. Certificates go into --tls-cert, identities "
        "into --tls-key, the issuer's .pem into --tls-ca, the list into --tls-revoked.",
        example="pcp keys issue worker1.identity --issuer run.issuer --role worker",
    )
    add = parser.add_argument
    add("action", choices=[*_ACTIONS])
    add("name", metavar="FILE|ID", help="the identity's file; to revoke, its id")
    add("--issuer", type=Path, metavar="FILE", help="the issuer's key")
    add("--role", choices=ROLES, help="what the identity may be in the run")
    add("--namespace", help="the run's; an issuer signs for one alone")
    add("--days", type=float, default=DAYS, help=f"of a certificate; default {DAYS:g}")
    add("--list", type=Path, metavar="FILE", help="the file of the revoked")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    _ACTIONS[flags.action](flags)


def _new(flags: Namespace) -> None:
    say(certificates.new_identity(Path(flags.name)))


def _issuer(flags: Namespace) -> None:
    path = Path(flags.name)
    made = certificates.new_issuer(path, _given(flags, "namespace"))
    say(f"{path}: keep it from all others; {made}: for everybody's --tls-ca")


def _issue(flags: Namespace) -> None:
    identity, role = Path(flags.name), _given(flags, "role")
    issuer = _given(flags, "issuer")
    content, said = certificates.issue(issuer, identity, role, flags.days)
    path = identity.with_suffix(f".{role}.pem")
    path.write_bytes(content)
    say(f"{path}: {said.uri}, for {flags.days:g} days")


def _show(flags: Namespace) -> None:
    key = certificates.load_identity(Path(flags.name))
    say(certificates.identity_of(key.public_key()))


def _revoke(flags: Namespace) -> None:
    path = _given(flags, "list")
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{flags.name}\n")
    say(f"{flags.name} is revoked where --tls-revoked is {path}")


def _given(flags: Namespace, name: str):
    value = getattr(flags, name)
    if value is None:
        raise UsageError(f"{flags.action} needs --{name}")
    return value


_ACTIONS: dict[str, Callable[[Namespace], None]] = {
    "new": _new,
    "issuer": _issuer,
    "issue": _issue,
    "show": _show,
    "revoke": _revoke,
}


if __name__ == "__main__":
    raise SystemExit(main())
