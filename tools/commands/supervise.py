"""`pcp supervise -- COMMAND`: run a pcp command and restart it when it dies."""

import sys
from collections.abc import Sequence

from pcp.errors import UsageError
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import stamped
from pcp.tools.support.signals import stop_on_signals
from pcp.training.process.supervisor import Policy, Supervisor, spawner

PROG = "pcp supervise"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags; what follows `--` is the child's."""
    parser = Parser(
        prog=PROG,
        description="Run a pcp command; restart it when it dies. A shepherd is "
        "restarted with --resume.",
        example="pcp supervise -- shepherd --config experiment.json --workers 2",
    )
    policy = Policy()
    add = parser.add_argument
    add("--crashes", type=int, default=policy.crashes, help="give up after so many")
    add("--within", type=float, default=policy.within, help="... in so many seconds")
    return parser


def child_command(arguments: Sequence[str]) -> list[str]:
    """The process that runs a pcp command."""
    return [sys.executable, "-m", "pcp.tools.cli", *arguments]


def resumed(command: Sequence[str]) -> Sequence[str]:
    """A restarted shepherd continues its run."""
    if "shepherd" in command[:4] and "--resume" not in command:
        return [*command, "--resume"]
    return command


def _main(argv: Sequence[str]) -> int:
    from pcp.tools.cli import translate

    at = argv.index("--") if "--" in argv else len(argv)
    flags = parser().parse_args(argv[:at])
    child = translate(argv[at + 1 :])
    if not child:
        raise UsageError("nothing to run; write the command after --")
    supervisor = Supervisor(
        child_command(child),
        log=stamped("supervisor"),
        spawn=spawner(),
        policy=Policy(crashes=flags.crashes, within=flags.within),
        restarted=resumed,
    )
    stop_on_signals(supervisor.stop)
    code = supervisor.run()
    return code if code >= 0 else 128 - code
