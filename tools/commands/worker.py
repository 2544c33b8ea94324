"""`pcp worker`: train for a shepherd on one device."""

import faulthandler
import os
import platform
import secrets
import socket
import threading
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

from pcp.errors import (
    BundleError,
    ConfigError,
    MissingPackage,
    PeerLost,
    UsageError,
)
from pcp.runtime import Endpoint
from pcp.runtime.cage import cage
from pcp.runtime.program import host_processor, threads
from pcp.runtime.program.devices import open_device
from pcp.runtime.transport import link
from pcp.runtime.transport.address import format_address, is_loopback, parse_address
from pcp.runtime.transport.credentials import Protection
from pcp.tools.commands import cage_flags
from pcp.tools.support import backends
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.lines import stamped
from pcp.tools.support.metrics_port import add_metrics_flags, serving
from pcp.tools.support.protection import (
    add_protection_flags,
    add_trust_flag,
    protection,
    trust,
)
from pcp.training.process.supervisor import HOPELESS, HUNG
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.load import load_made
from pcp.training.wire.client import Timing
from pcp.training.wire.discovery import found, tag_of
from pcp.training.worker.worker import Identity, Worker

PROG = "pcp worker"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Train for a shepherd on one device.",
        example="pcp worker --connect 10.0.0.1:8080 --backend cuda --device-id 0",
    )
    add = parser.add_argument
    add(
        "--connect",
        metavar="HOST:PORT",
        help="the shepherd, or with commas those that stand by too; default --host and "
        "--port",
    )
    add(
        "--discover",
        action="store_true",
        help="find the shepherds of the same key or issuer on this network (mDNS)",
    )
    add("--host", default="127.0.0.1", help="the shepherd's host")
    add("--port", type=port_number, default=8080, help="the shepherd's port")
    add("--backend", default="cpu", help=f"one of {', '.join(backends.BACKENDS)}")
    add("--target", help="what to compile for; default: this processor, or by backend")
    add("--device-id", type=int, default=0, help="which GPU; default 0")
    add("--device", help="the runtime's own device address, e.g. local-sync")
    add("--listen", metavar="HOST:PORT", help="where peers reach this worker")
    add("--data", metavar="FILE", help="the data on this machine")
    add("--name", help="default: the host's name and a random part")
    add(
        "--supervisor-id",
        metavar="ID",
        help="who starts this process again; shown in the status",
    )
    add("--patience", type=float, default=300.0, help="seconds without a shepherd")
    add_metrics_flags(parser)
    add_trust_flag(parser)
    cage_flags.add_cage_flags(parser)
    add_protection_flags(parser)
    return parser


def _main(argv: Sequence[str]) -> None:
    try:
        _train(argv)
    except (ConfigError, BundleError, MissingPackage) as error:
        error.exit_code = HOPELESS  # started again it would find the same
        raise


def _train(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    protected = protection(flags)
    trusted = trust(flags, protected)
    device = flags.device or backends.device_of(flags.backend, flags.device_id)
    opened = None
    if not threads.is_local(device):
        opened = open_device(device)  # by a driver that has its own files and programs
    host, port = flags.host, flags.port
    others: list[tuple[str, int]] = []
    if flags.discover:
        (host, port), *others = discovered(flags, protected)
    elif flags.connect:
        (host, port), *others = map(_address, flags.connect.split(","))
    local = is_loopback(host)
    target = backends.target_of_worker(flags.backend, flags.target, local=local)
    name = flags.name or f"{socket.gethostname()}-{secrets.token_hex(4)}"
    log = stamped(f"worker {name}")
    held = cage_flags.enter(flags)
    own = link.own_address(format_address(host, port))
    listen = flags.listen or format_address(own, 0)
    endpoint = Endpoint.listen(listen, **protected.options)
    identity = Identity(
        name=name,
        host=host,
        port=port,
        target=target,
        backend=flags.backend,
        device=device,
        data_path=flags.data,
        supervisor=flags.supervisor_id,
        others=tuple(others),
    )

    def load(content: bytes, coordinate: int = 0) -> BundleTrainer:
        what = "the shepherd's bundle"
        return load_made(content, what, device, target, coordinate, trusted)

    if target == host_processor.ANY and not flags.target:
        log(
            f"code for any {platform.machine()}, which may be several times slower "
            "than for this processor; pcp cannot name it: say --target cpu:NAME, with "
            "LLVM's name"
        )
    # One of several that is silent for so long is taken over.
    silence = 3.0 if others else Timing.silence
    timing = Timing(patience=flags.patience, silence=silence)
    hang = partial(end_hung, log)
    worker = Worker(identity, endpoint, load, log, timing, protected, hang)
    threading.excepthook = partial(end_with_thread, log)
    with serving(flags, log, endpoint.telemetry.metrics), cage_flags.explained(held):
        cage.bar_sockets(held)
        # Held: what is loaded later is loaded onto this one. Its threads are caged.
        opened = opened or open_device(threads.device_for(device, ()))
        log(f"process {os.getpid()} started for {host}:{port} on {device}")
        log(f"cage: {held if flags.cage == 'on' else 'off'}")
        log(f"leaving: {worker.run()}")


LOG_SECONDS = 5.0


def end_hung(log: Callable[[str], None], reason: str) -> None:
    """End this process, whose own thread hangs, once it is written where it does.

    A supervisor starts it again. The thread that hangs may have what the log needs:
    then the process ends all the same, after five seconds.
    """
    faulthandler.dump_traceback_later(LOG_SECONDS, exit=True)
    log(f"ending: {reason}; the threads are at:")
    faulthandler.dump_traceback(all_threads=True)
    os._exit(HUNG)


def end_with_thread(log: Callable[[str], None], died: threading.ExceptHookArgs) -> None:
    """End this process, of which a thread died: what it did nobody does any more."""
    name = died.thread.name if died.thread else "a thread"
    log(f"ending: {name} died: {died.exc_type.__name__}: {died.exc_value}")
    traceback.print_exception(died.exc_type, died.exc_value, died.exc_traceback)
    os._exit(HUNG)


def discovered(flags: Namespace, protected: Protection) -> list[tuple[str, int]]:
    """The shepherds of our namespace, within `--patience`; PeerLost: none came."""
    if flags.connect:
        raise UsageError("--discover finds what --connect names: give one of them")
    places = found(tag_of(protected), flags.patience)
    if not places:
        raise PeerLost(
            f"no shepherd of this namespace was found in {flags.patience:g} s: is one "
            "there with --announce, and with the same key or issuer, on this network?"
        )
    return places


def _address(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ConfigError as error:
        raise UsageError(f"--connect {text}: expected HOST:PORT") from error


if __name__ == "__main__":
    raise SystemExit(main())
