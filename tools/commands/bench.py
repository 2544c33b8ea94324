"""`pcp bench`: how fast the collectives are, here and against Gloo, and the network.

    pcp bench collectives --world 2 --sizes 1 16 --op all_reduce --against gloo
    pcp bench collectives --plot collectives.svg --json collectives.json

starts as many members on this machine. For several machines start one on each,
rank 0 first:

    pcp bench collectives --world 2 --rank 0 --connect HOST:29600 --streams 4
    pcp bench collectives --world 2 --rank 1 --connect HOST:29600 --streams 4

Every operation and size is timed in rounds, contestants in turns, after two rounds
that do not count; a row is the slowest member's median. `rate` is the bits a member
sends in a ring over that time: arrays of one size compare across worlds by it.

    pcp bench topology --world 4 --plot network.svg --json network.json

measures every edge between the members, shows the ring that suits them, by how much
it is faster than the order of ranks, and who is late. `--slow 0:1:20` makes the way
from member 0 to 1 carry 20 MB/s, to see it avoided.

    pcp bench serve http://127.0.0.1:8000 --concurrency 1 4 16

asks a server of OpenAI's API; its flags are its own (`pcp bench serve --help`).
"""

import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pcp import strict_json
from pcp.errors import MissingPackage, RuntimeFault, UsageError, install
from pcp.tools.commands import bench_topology
from pcp.tools.pages.bench_plot import rates
from pcp.tools.pages.svg import needs_matplotlib, svg
from pcp.tools.pages.topology_plot import network
from pcp.tools.serving import bench_serve
from pcp.tools.support.command import Parser, run
from pcp.tools.support.signals import in_order
from pcp.training.process.child_environment import child_environment

if TYPE_CHECKING:
    from pcp.runtime.communicator.communicator import Communicator

PROG = "pcp bench"
_UNCOUNTED = 2
Call = Callable[[np.ndarray], object]

OPS: dict[str, tuple[Callable[["Communicator"], Call], Callable[[int], float]]] = {
    "all_reduce": (lambda comm: comm.all_reduce, lambda n: 2 * (n - 1) / n),
    "all_reduced": (lambda comm: comm.all_reduced, lambda n: 2 * (n - 1) / n),
    "reduce_scatter": (lambda comm: comm.reduce_scatter, lambda n: (n - 1) / n),
    "all_gather": (lambda comm: comm.all_gather, lambda n: n - 1),
    "all_to_all": (lambda comm: comm.all_to_all, lambda n: (n - 1) / n),
    "broadcast": (lambda comm: comm.broadcast, lambda n: 1 if n > 1 else 0),
}
"""Operation -> (what calls it, arrays that a member sends in a world of n)."""
_REDUCE_FOR_ALL = ("all_reduce", "all_reduced")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, in_order(_main), argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG, description=__doc__, example="pcp bench collectives --world 4"
    )
    add = parser.add_argument
    add("what", choices=("collectives", "topology", "serve"))
    add("--world", type=int, default=2, metavar="N", help="members")
    add("--sizes", type=float, nargs="+", default=[0.0625, 1, 16], metavar="MiB")
    add("--op", nargs="+", choices=tuple(OPS), default=["all_reduce"])
    add("--rounds", type=int, default=7)
    add("--against", choices=("gloo",), help="all_reduce of this, too (needs torch)")
    add("--streams", type=_streams, default="auto", help="connections to each peer")
    add("--no-shared-memory", action="store_true", help="TCP on one machine, too")
    add("--compression", help="of reductions, as int8")
    add("--slow", nargs="+", metavar="FROM:TO:MB/S", help="edges of topology to slow")
    add("--plot", type=Path, metavar="FILE", help="an SVG of the rates or the network")
    add("--json", type=Path, metavar="FILE", help="the rows or the network")
    add("--rank", type=int, metavar="R", help="which member this is")
    add("--connect", metavar="HOST:PORT", help="where rank 0 listens")
    add("--timeout", type=float, default=120.0, help="seconds for each operation")
    return parser


def _streams(text: str) -> "int | str":
    return text if text == "auto" else int(text)


def _main(argv: Sequence[str]) -> int | None:
    if argv[:1] == ["serve"]:
        return bench_serve.run_sweep(argv[1:])
    flags = parser().parse_args(argv)
    if flags.what == "serve":
        raise UsageError("pcp bench serve has flags of its own: say serve first")
    if (flags.rank is None) != (flags.connect is None):
        raise UsageError("--rank and --connect go together")
    if flags.world < 2 or flags.rounds < 1 or min(flags.sizes) <= 0:
        raise UsageError("at least --world 2, --rounds 1 and sizes above 0")
    if flags.compression is not None:
        from pcp.runtime.compression.codecs import codec

        codec(flags.compression)  # or say what is wrong with it, once
    if flags.rank is not None and not 0 <= flags.rank < flags.world:
        raise UsageError(f"--rank {flags.rank}: ranks are 0 to {flags.world - 1}")
    if flags.rank:
        _member(flags, flags.connect)
    else:
        if flags.plot:
            needs_matplotlib()
        _first(argv, flags)


def _first(argv: Sequence[str], flags: Namespace) -> None:
    """Rank 0: hosts the meeting, starts the others if they are ours, reports."""
    from pcp.runtime.group.rendezvous import Rendezvous

    meeting = Rendezvous.listen(flags.connect or "127.0.0.1:0")
    others: list[subprocess.Popen] = []
    try:
        if flags.connect is None:
            base = [sys.executable, "-m", "pcp.tools.commands.bench", *argv]
            for rank in range(1, flags.world):
                place = ["--rank", str(rank), "--connect", meeting.address]
                others.append(
                    subprocess.Popen([*base, *place], env=child_environment())
                )
        found = _member(flags, meeting)
        failed = [other.args for other in others if other.wait(flags.timeout)]
        if failed:
            raise RuntimeFault(f"{len(failed)} members failed; see their messages")
    finally:
        for other in others:
            if other.poll() is None:
                other.kill()
            other.wait()
        meeting.close()
    _write(flags, found)


def _write(flags: Namespace, found: Any) -> None:
    """The files that were asked for."""
    is_network = flags.what == "topology"
    if flags.json:
        text = found.to_json() if is_network else strict_json.dumps(found, indent=1)
        flags.json.write_text(text + "\n")
    if flags.plot:
        draw, size = (network, (7.0, 7.0)) if is_network else (rates, (8.0, 4.6))
        drawn = svg(lambda axes: draw(axes, found), flags.what, size)
        flags.plot.write_text(drawn)


def _member(flags: Namespace, meeting: Any) -> Any:
    """Measure with the others: rows, or a topology; rank 0 shows what comes."""
    from pcp.runtime.communicator.communicator import Communicator

    with Communicator.connect(
        meeting,
        rank=flags.rank or 0,
        world_size=flags.world,
        streams=flags.streams,
        shared_memory=not flags.no_shared_memory,
        faults=bench_topology.slow_edges(flags),
    ) as comm:
        comm.timeout = flags.timeout
        if flags.what == "topology":
            return bench_topology.show(comm, flags)
        with closing(Table(comm.rank == 0)) as table:
            _fill(table, comm, flags)
        return table.rows


def _fill(table: "Table", comm: "Communicator", flags: Namespace) -> None:
    gloo = _gloo(comm) if flags.against else None
    for op in flags.op:
        calls = {"pcp": _call(comm, op, flags.compression)}
        if gloo is not None and op in _REDUCE_FOR_ALL:
            calls["gloo"] = gloo
        for size in flags.sizes:
            for name, seconds in measure(comm, calls, size, flags.rounds).items():
                table.add(row(op, name, size, seconds, flags.world))


def _call(comm: "Communicator", op: str, compression: str | None) -> Call:
    call: Any = OPS[op][0](comm)
    if compression is None or op not in (*_REDUCE_FOR_ALL, "reduce_scatter"):
        return call
    return lambda array: call(array, compression=compression)


def measure(
    comm: "Communicator", calls: dict[str, Call], mib: float, rounds: int
) -> dict[str, float]:
    """Seconds of each call on float32 arrays: medians, of the slowest member."""
    from pcp.runtime.memory.shared_arrays import shared_empty

    # Whole parts for all members, as all_to_all and reduce_scatter want them.
    count = max(1, int(mib * (1 << 18)) // comm.world_size) * comm.world_size
    array = shared_empty(count)
    array.fill(0)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_UNCOUNTED + rounds):
        for name, call in calls.items():
            comm.barrier()
            start = time.perf_counter()
            call(array)
            times[name].append(time.perf_counter() - start)
    medians = [statistics.median(took[_UNCOUNTED:]) for took in times.values()]
    slowest = comm.all_reduce(np.array(medians), "max")
    return dict(zip(calls, map(float, slowest), strict=True))


def row(op: str, name: str, mib: float, seconds: float, world: int) -> dict[str, Any]:
    """One line of the table."""
    sent = OPS[op][1](world) * mib * (1 << 23)
    gbits = sent / seconds / 1e9
    return {"op": op, "by": name, "MiB": mib, "ms": 1e3 * seconds, "Gbit/s": gbits}


def _gloo(comm: "Communicator") -> Call:
    """torch.distributed's all_reduce among the same members, on this machine."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        what = f"--against gloo needs torch: {install('torch')}"
        raise MissingPackage(what) from None
    port = np.zeros(1, np.int64)
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            "127.0.0.1", 0, comm.world_size, is_master=True, wait_for_workers=False
        )
        port[0] = store.port
    comm.broadcast(port)
    if store is None:
        store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            "127.0.0.1", int(port[0]), comm.world_size
        )
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=store, rank=comm.rank, world_size=comm.world_size
    )
    return lambda array: dist.all_reduce(torch.from_numpy(array))


class Table:
    """Rows, shown as they come; nothing is shown unless `shown`."""

    def __init__(self, shown: bool) -> None:
        self.rows: list[dict[str, Any]] = []
        self._shown = shown
        self._live: Any = None
        if shown and sys.stdout.isatty() and find_spec("rich"):
            from rich.live import Live

            self._live = Live(self._drawn(), refresh_per_second=4)
            self._live.start()
        elif shown:
            print(f"{'op':<16}{'by':<8}{'MiB':>10}{'ms':>12}{'Gbit/s':>10}")

    def add(self, row: dict[str, Any]) -> None:
        """One more line."""
        self.rows.append(row)
        if self._live is not None:
            self._live.update(self._drawn())
        elif self._shown:
            op, by, *numbers = _cells(row)
            widths = zip(numbers, (10, 12, 10), strict=True)
            cells = "".join(f"{cell:>{width}}" for cell, width in widths)
            print(f"{op:<16}{by:<8}{cells}", flush=True)

    def close(self) -> None:
        """No more lines."""
        if self._live is not None:
            self._live.stop()

    def _drawn(self) -> Any:
        from rich.table import Table as RichTable

        table = RichTable("op", "by")
        for name in ("MiB", "ms", "Gbit/s"):
            table.add_column(name, justify="right")
        for row in self.rows:
            table.add_row(*_cells(row))
        return table


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = (f"{row['MiB']:g}", f"{row['ms']:.3f}", f"{row['Gbit/s']:.2f}")
    return [row["op"], row["by"], *numbers]


if __name__ == "__main__":
    raise SystemExit(main())
