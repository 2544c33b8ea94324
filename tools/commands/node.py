"""`pcp node`: this machine's workers, supervised, one per device."""

from collections.abc import Callable, Sequence

from pcp.errors import UsageError
from pcp.runtime.program import threads
from pcp.tools.commands.cage_flags import add_cage_flags, cage_arguments
from pcp.tools.commands.supervise import child_command
from pcp.tools.support import backends
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.lines import stamped
from pcp.tools.support.protection import (
    add_protection_flags,
    add_trust_flag,
    protection,
    protection_arguments,
    trust,
    trust_arguments,
)
from pcp.tools.support.signals import stop_on_signals
from pcp.training.process.child_environment import worker_environment
from pcp.training.process.node_manager import NodeManager
from pcp.training.process.supervisor import spawner

PROG = "pcp node"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Run supervised workers on this machine, one per device.",
        example="pcp node --host 10.0.0.1 --port 8080 --backend cuda --scale 8",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the shepherd's host")
    add("--port", type=port_number, default=8080, help="the shepherd's port")
    add("--backend", default="cpu", help=f"one of {', '.join(backends.BACKENDS)}")
    add("--target", help="what to compile for; default by backend")
    add("--scale", type=int, default=1, help="workers; devices 0 to N-1")
    add("--device", help="the runtime's device address for all, e.g. local-sync")
    add("--data", metavar="FILE", help="the data on this machine")
    add_trust_flag(parser)
    add_cage_flags(parser)
    add_protection_flags(parser)
    return parser


def worker_command(
    host: str,
    port: int,
    *,
    backend: str = "cpu",
    target: str | None = None,
    device: str | None = None,
    data: str | None = None,
    protected: Sequence[str] = (),
) -> Callable[[int], list[str]]:
    """The command line of the worker in a slot."""
    optional = {"--target": target, "--device": device, "--data": data}
    extra = [
        word for flag, value in optional.items() if value for word in (flag, value)
    ]

    def command(slot: int) -> list[str]:
        arguments = ["worker", "--connect", f"{host}:{port}", "--backend", backend]
        own = ["--device-id", str(slot), "--supervisor-id", f"slot-{slot}"]
        return child_command([*arguments, *own, *extra, *protected])

    return command


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    if flags.scale < 1:
        raise UsageError("--scale: at least one worker")
    backends.check_backend(flags.backend)
    # What is wrong with it is told once, and not by each worker.
    trust(flags, protection(flags))
    log = stamped("node")
    crowded = flags.backend == "cpu" and flags.scale > 1
    device = flags.device or (threads.shared(flags.scale) if crowded else None)
    manager = NodeManager(
        flags.scale,
        worker_command(
            flags.host,
            flags.port,
            backend=flags.backend,
            target=flags.target,
            device=device,
            data=flags.data,
            protected=[
                *protection_arguments(flags),
                *trust_arguments(flags),
                *cage_arguments(flags),
            ],
        ),
        log=log,
        spawn=spawner(worker_environment()),
    )
    stop_on_signals(manager.stop)
    many = "worker" if flags.scale == 1 else "workers"
    log(f"{flags.scale} {many} for the shepherd at {flags.host}:{flags.port}")
    manager.start()
    manager.wait()
    manager.result()
