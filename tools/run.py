"""`pcp run`: run one function of a bundle, on all devices of its mesh.

    pcp run model.pcp --function grad --inputs batch.npz --out grads.npz

Inputs are whole tensors by name, or `random:SEED`, to try something out. A program
that is spread over a mesh gets a process for each device: each takes its parts, the
collectives between them go over TCP, and the results are joined and compared where
two devices hold the same part.
To start the processes on machines of their own, say on each

    pcp run model.pcp --function grad --inputs batch.npz --rank R --connect HOST:PORT

where rank 0 listens at HOST:PORT; each writes its parts to `--out`.
"""

import os
import signal
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pcp.bundle import Bundle, Function, Manifest
from pcp.errors import PcpError, RuntimeFault, UsageError, nearest
from pcp.layout import join
from pcp.runtime.dtypes import numpy_dtype
from pcp.tools.command import Parser, run

EXAMPLE = "pcp run model.pcp --function grad --inputs batch.npz --out grads.npz"
ADDRESS = "pcp run: meeting at "


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pcp run`; returns the exit code."""
    return run("pcp run", _main, argv)


def _parser() -> Parser:
    parser = Parser(prog="pcp run", example=EXAMPLE, description=__doc__)
    add = parser.add_argument
    add("bundle", metavar="BUNDLE.pcp")
    add("--function", metavar="NAME", help="default: the bundle's entry")
    add(
        "--inputs",
        metavar="FILE.npz|random:SEED",
        required=True,
        help="tensors by name",
    )
    add("--out", metavar="FILE.npz", required=True, help="the results by name")
    add("--device", default="local-sync", help="an IREE device; default local-sync")
    add("--rank", type=int, metavar="R", help="run this member only")
    add("--connect", metavar="HOST:PORT", help="where rank 0 listens")
    add("--timeout", type=float, default=120.0, help="seconds for each wait")
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = _parser().parse_args(argv)
    bundle = Bundle.read(flags.bundle)
    name = flags.function or bundle.manifest.entry
    bundle.manifest.function(name)  # raises, naming the nearest
    if (flags.rank is None) != (flags.connect is None):
        raise UsageError("--rank and --connect go together")
    if flags.rank is not None:
        return _member(bundle, name, flags)
    if bundle.manifest.programs:
        return _everyone(bundle, name, flags)
    return _alone(bundle, name, flags)


# --- tensors by name ---


def _keys(function: Function, results: bool) -> list[str]:
    """A name for each tensor: its own, with its number where it is not the only one."""
    specs = function.results if results else function.inputs
    names = [spec.name for spec in specs]
    return [
        name if names.count(name) == 1 else f"{name}.{i}"
        for i, name in enumerate(names)
    ]


def _load(path: str, function: Function) -> list[np.ndarray]:
    """The whole inputs of a function, checked against its signature."""
    keys = _keys(function, results=False)
    if path.startswith("random:"):
        return _random(path, function)
    try:
        with np.load(path, allow_pickle=False) as archive:
            given = {name: archive[name] for name in archive.files}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    for key in keys:
        if key not in given:
            raise UsageError(
                f"{path}: no tensor {key!r}; the function takes {', '.join(keys)}."
                + nearest(key, given)
            )
    for key, spec in zip(keys, function.inputs, strict=True):
        if given[key].shape != spec.shape:
            raise UsageError(
                f"{path}: {key} has shape {list(given[key].shape)}, not "
                f"{list(spec.shape)}"
            )
    return [given[key] for key in keys]


def _random(text: str, function: Function) -> list[np.ndarray]:
    """Normal numbers of deviation 0.02; integers are 0 or 1. The seed decides all."""
    try:
        random = np.random.default_rng(int(text.removeprefix("random:")))
    except ValueError as error:
        raise UsageError(f"--inputs {text}: write it as random:0") from error
    drawn = []
    for spec in function.inputs:
        dtype = numpy_dtype(spec.dtype)
        floats = np.issubdtype(dtype, np.inexact)
        values = (
            random.normal(0, 0.02, spec.shape)
            if floats
            else random.integers(0, 2, spec.shape)
        )
        drawn.append(np.asarray(values).astype(dtype))
    return drawn


def _save(path: str | Path, keys: Sequence[str], values: Sequence[np.ndarray]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        np.savez(file, **dict(zip(keys, values, strict=True)))  # type: ignore[arg-type]


def _as_list(results: object) -> list[np.ndarray]:
    return list(results) if isinstance(results, tuple) else [np.asarray(results)]


# --- one process ---


def _alone(bundle: Bundle, name: str, flags: Namespace) -> int:
    from pcp.runtime.executor import Program

    function = bundle.manifest.function(name)
    inputs = _load(flags.inputs, function)
    with Program.load(bundle, device=flags.device) as program:
        results = _as_list(program[name](*inputs))
    _save(flags.out, _keys(function, results=True), results)
    print(f"wrote {flags.out}")
    return 0


def _member(bundle: Bundle, name: str, flags: Namespace) -> int:
    """One device's process: its parts in, its parts out."""
    from pcp.runtime.communicator import Communicator
    from pcp.runtime.executor import Program
    from pcp.runtime.mesh_groups import MeshGroups
    from pcp.runtime.rendezvous import Rendezvous

    manifest = bundle.manifest
    mesh = manifest.partition_mesh()
    whole = manifest.function(name)
    if not 0 <= flags.rank < mesh.size:
        raise UsageError(
            f"--rank {flags.rank}: the mesh has {mesh.size} members, 0 to "
            f"{mesh.size - 1}"
        )
    place = mesh.members[flags.rank]
    own = manifest.programs[mesh.devices[flags.rank]].functions[name]
    given = dict(
        zip(_keys(whole, results=False), _load(flags.inputs, whole), strict=True)
    )
    layouts = dict(zip(given, (spec.layout for spec in whole.inputs), strict=True))
    parts = [
        np.ascontiguousarray(
            given[key][layouts[key].slices(given[key].shape, mesh, place)]
        )
        for key in _keys(own, results=False)
    ]
    meeting: Rendezvous | str = flags.connect
    if flags.rank == 0:
        meeting = Rendezvous.listen(flags.connect)
        print(f"{ADDRESS}{meeting.address}", flush=True)
    world = Communicator.connect(
        meeting, rank=flags.rank, world_size=mesh.size, timeout=flags.timeout
    )
    with world:
        groups = MeshGroups.of(world, manifest)
        try:
            with Program.load(
                bundle, device=flags.device, communicator=groups
            ) as program:
                results = _as_list(program[name](*parts))
            # What a member sent may still wait to be received when it is done.
            world.barrier(tag="done")
        finally:
            groups.close()
    _save(flags.out, _keys(own, results=True), results)
    return 0


# --- all of them, on this machine ---


def _everyone(bundle: Bundle, name: str, flags: Namespace) -> int:
    mesh = bundle.manifest.partition_mesh()
    with tempfile.TemporaryDirectory(prefix="pcp-run-") as folder:
        outs = [Path(folder) / f"{rank}.npz" for rank in range(mesh.size)]
        _processes(flags, name, outs)
        parts = [_read(out) for out in outs]
    function = bundle.manifest.function(name)
    joined = joined_results(bundle.manifest, function, parts)
    _save(flags.out, _keys(function, results=True), joined)
    print(f"wrote {flags.out} ({mesh.size} processes)")
    return 0


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def joined_results(
    manifest: Manifest, function: Function, parts: Sequence[dict[str, np.ndarray]]
) -> list[np.ndarray]:
    """The whole results; an error where two devices disagree about a part.

    A result may lie on some devices only: those that have it hold all of it.
    """
    mesh = manifest.partition_mesh()
    whole = []
    for key, spec in zip(_keys(function, results=True), function.results, strict=True):
        held = [member.get(key) for member in parts]
        try:
            whole.append(join(held, spec.shape, spec.layout, mesh))
        except ValueError as error:
            raise RuntimeFault(f"result {key}: {error}") from error
    return whole


def _processes(flags: Namespace, name: str, outs: Sequence[Path]) -> None:
    """Start a process for each member and wait; all end when one fails."""
    running: list[subprocess.Popen[str]] = []
    try:
        running.append(_start(flags, name, outs, 0, "127.0.0.1:0"))
        address = _meeting(running[0])
        for rank in range(1, len(outs)):
            running.append(_start(flags, name, outs, rank, address))
        _wait(running)
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
        for process in running:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _start(
    flags: Namespace, name: str, outs: Sequence[Path], rank: int, address: str
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pcp.tools.cli", "run", flags.bundle]
    command += ["--function", name, "--inputs", flags.inputs, "--out", str(outs[rank])]
    command += ["--rank", str(rank), "--connect", address, "--device", flags.device]
    command += ["--timeout", str(flags.timeout)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _meeting(first: "subprocess.Popen[str]") -> str:
    """The address that rank 0 prints."""
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith(ADDRESS):
            return line.removeprefix(ADDRESS).strip()
    raise PcpError("rank 0 ended before it listened; its error stands above")


def _wait(running: Sequence["subprocess.Popen[str]"]) -> None:
    waiting = dict(enumerate(running))
    while waiting:
        for rank, process in list(waiting.items()):
            try:
                code = process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            if code:
                raise RuntimeFault(f"rank {rank} {_ending(code)}; the others are ended")
            del waiting[rank]


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"failed with exit code {code}; its error stands above"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


if __name__ == "__main__":
    raise SystemExit(main())
