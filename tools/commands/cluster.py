"""`pcp cluster`: the shepherds of a namespace on this network, and their workers."""

from collections.abc import Sequence

from pcp.errors import PcpError, PeerLost
from pcp.tools.commands.status import ask, lines
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say
from pcp.tools.support.protection import add_protection_flags, protection
from pcp.training.wire.discovery import found, tag_of

PROG = "pcp cluster"
_ASK_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="List the shepherds that announce themselves to our namespace on "
        "this network (pcp shepherd --announce), and what each says of its run and "
        "its workers.",
        example="pcp cluster --key-file run.key",
    )
    add = parser.add_argument
    add("--seconds", type=float, default=5.0, help="to look for them; default 5")
    add_protection_flags(parser)
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    protected = protection(flags)
    places = found(tag_of(protected), flags.seconds)
    if not places:
        raise PeerLost(
            f"nobody of this namespace announced itself in {flags.seconds:g} s; "
            "`pcp shepherd --announce` does, with the same key or issuer"
        )
    for host, port in places:
        say(f"shepherd {host}:{port}")
        try:
            said = lines(ask(host, port, _ASK_SECONDS, protected))
        except PcpError as error:
            said = [str(error)]
        for line in said:
            say(f"  {line}")


if __name__ == "__main__":
    raise SystemExit(main())
