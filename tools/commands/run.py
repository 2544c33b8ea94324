"""`pcp run`: run one function of a bundle, on all devices of its mesh.

    pcp run model.pcp --function grad --inputs batch.npz --out grads.npz

Inputs are whole tensors by name, or `random:SEED`, to try something out. A program
that is spread over a mesh gets a process for each device: each takes its parts, the
collectives between them go over TCP, and the results are joined and compared where
two devices hold the same part. A training bundle is trained for some steps by

    pcp run model.pcp --steps 100 --inputs batches.npz --out trained.npz

from the values of `@init`, saying the loss of each: what a step leaves of parameters
and state the next one takes. A data tensor may hold several batches, along one more
dimension in front; workers take them in turn. The result holds `losses`, the
parameters and the optimizer's state. With `--tau H` the bundle's outer step follows
each H steps; without it there is none, and the command says so where the bundle has
one.

To start the processes on machines of their own, say on each

    pcp run model.pcp --function grad --inputs batch.npz --out part.npz \
        --rank R --connect HOST:PORT

where rank 0 listens at HOST:PORT; each writes its parts to `--out`.

`--parity K` compares what members hold alike every K steps, and says who differs and by
how much; where members run code for unlike targets this is done without being asked.
`--trace FILE` shows the calls, exchanges and operations of all of them in one file,
which https://ui.perfetto.dev opens.
"""

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pcp.bundle import Bundle, Function, Manifest, TensorSpec
from pcp.errors import RuntimeFault, UsageError, counted
from pcp.mesh import Mesh
from pcp.runtime.transport.signatures import Trust
from pcp.signing import BUNDLE
from pcp.tools.support import host_flags, processes, tensor_files
from pcp.tools.support.command import Parser, run
from pcp.tools.support.protection import (
    add_trust_flag,
    trust_arguments,
    trusted_ids,
)
from pcp.training.storage import nonfinite
from pcp.training.trainer import outer_loop, program_state, replica_agreement, step_loop

EXAMPLE = "pcp run model.pcp --function grad --inputs batch.npz --out grads.npz"
ADDRESS = "pcp run: meeting at "


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pcp run`; returns the exit code."""
    return run("pcp run", _main, argv)


def parser() -> Parser:
    """Its flags."""
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
    add("--steps", type=int, metavar="K", help="train for K steps")
    help_ = "train as so many workers; default: as many as the bundle says, or 1"
    add("--workers", type=int, metavar="N", help=help_)
    add("--tau", type=int, metavar="H", help="an outer step behind each H steps")
    add("--seed", type=int, default=0, help="of the first values; default 0")
    help_ = "compare what members hold alike every K steps, 0 never; default "
    help_ += f"{replica_agreement.USUAL} where they run code for unlike targets, else 0"
    add("--parity", type=int, metavar="K", help=help_)
    add("--device", default="local-sync", help="an IREE device; default local-sync")
    add("--rank", type=int, metavar="R", help="run this member only")
    add("--connect", metavar="HOST:PORT", help="where rank 0 listens")
    add("--timeout", type=float, default=120.0, help="seconds for each wait")
    add("--trace", metavar="FILE.json", help="what happened when, for Perfetto")
    host_flags.add_host_functions(parser)
    help_ = "run it only if this identity signed it; again for more"
    add_trust_flag(parser, help_)
    help_ = (
        "on: what the bundle's code reaches is kept to --inputs and --out, as far as "
    )
    help_ += "the kernel sees to it: no other file, program or new connection"
    add("--cage", choices=("on", "off"), default="off", help=help_)
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    bundle = Bundle.read(flags.bundle)
    trusted = Trust(trusted_ids(flags))
    trusted.check(BUNDLE, bundle.digest, bundle.signatures, flags.bundle)
    name = flags.function or bundle.manifest.entry
    bundle.manifest.function(name)  # raises, naming the nearest
    _check_steps(bundle.manifest, flags)
    flags.host = host_flags.read(flags, bundle.manifest)
    if (flags.rank is None) != (flags.connect is None):
        raise UsageError("--rank and --connect go together")
    if flags.rank is not None:
        return _member(bundle, name, flags)
    # An outer step has collectives, if of one worker alone.
    joins = flags.tau is not None and bool(bundle.manifest.collectives)
    if bundle.manifest.programs or flags.workers > 1 or joins:
        return _everyone(bundle, name, flags)
    return _alone(bundle, name, flags)


def _check_steps(manifest: Manifest, flags: Namespace) -> None:
    """Refuse what cannot be trained; `flags.workers` becomes a number."""
    if flags.steps is None:
        if flags.workers or flags.tau:
            raise UsageError("--workers and --tau are for training, with --steps")
        flags.workers = 1
        return
    if flags.steps < 1:
        raise UsageError(f"--steps {flags.steps}: at least one")
    if flags.parity is not None and flags.parity < 0:
        raise UsageError(f"--parity {flags.parity}: at least 0, which is never")
    if flags.function:
        raise UsageError("--steps runs @grad and @apply; leave --function out")
    step_loop.check(manifest)
    if flags.workers is None:
        flags.workers = outer_loop.workers_of(manifest) or 1
    if flags.workers < 1:
        raise UsageError(f"--workers {flags.workers}: at least one")
    outer_loop.check(manifest, flags.workers, flags.tau, flags.steps)


# --- one process ---


def _close_cage(flags: Namespace) -> None:
    """Around this process, which runs code of others from here on."""
    from pcp.runtime.cage import cage
    from pcp.runtime.program.devices import open_device

    if flags.cage == "off":
        return
    if not flags.device.startswith("local-"):
        open_device(flags.device)  # it stays open; its driver has files of its own
    read = [] if flags.inputs.startswith("random:") else [Path(flags.inputs)]
    written = [
        Path(file).absolute().parent for file in (flags.out, flags.trace) if file
    ]
    held = cage.enter(readable=read, writable=written)
    cage.bar_sockets(held)
    print(f"cage: {held}", flush=True)


def _as_list(results: object) -> list[np.ndarray]:
    return list(results) if isinstance(results, tuple) else [np.asarray(results)]


def _alone(bundle: Bundle, name: str, flags: Namespace) -> int:
    from pcp.runtime.collectives.tracing import recorded
    from pcp.runtime.program.executor import Program

    manifest = bundle.manifest
    _close_cage(flags)
    with Program.load(bundle, device=flags.device, host=flags.host) as program:
        with recorded(flags.trace, program) if flags.trace else nullcontext():
            if flags.steps is not None:
                results = _train(_training(program, manifest, flags), manifest, flags)
            else:
                inputs = tensor_files.load(flags.inputs, manifest.function(name))
                results = _as_list(program[name](*inputs))
    tensor_files.save(
        flags.out, tensor_files.names(_outputs(manifest, name, flags)), results
    )
    _report(flags, results)
    return 0


# --- training ---


def _outputs(manifest: Manifest, name: str, flags: Namespace) -> list[TensorSpec]:
    """What the command writes: a function's results, or what training leaves."""
    if flags.steps is None:
        return list(manifest.function(name).results)
    return outer_loop.outputs(manifest, flags.steps)


def _training(
    program: Any,
    manifest: Manifest,
    flags: Namespace,
    mesh: Mesh | None = None,
    place: dict[str, int] | None = None,
) -> step_loop.Steps:
    """The steps of one process, in rounds if that is asked for."""
    if flags.tau is None:
        return step_loop.Steps(program, manifest, mesh, place)
    return outer_loop.OuterLoop(program, manifest, mesh, place, tau=flags.tau)


def _train(
    training: step_loop.Steps,
    manifest: Manifest,
    flags: Namespace,
    agree: replica_agreement.Agreement | None = None,
) -> list[np.ndarray]:
    """The losses of the steps, then parameters and state."""
    data = [t for t in manifest.function("grad").inputs if t.role == "data"]
    if flags.inputs.startswith("random:"):
        drawn = tensor_files.random(flags.inputs, data)
        given = dict(zip((t.name for t in data), drawn, strict=True))
    else:
        given = tensor_files.read(flags.inputs)
    worker = (flags.rank or 0) // manifest.worker_mesh().size
    batches = _batches(manifest, given, flags, worker)
    losses = []
    if not flags.rank:
        _tell_outer_step(manifest, flags)
        _tell_shared_batches(data, given, flags)
    try:
        training.start(flags.seed, given)
        for number, batch in enumerate(batches, 1):
            losses.append(training.step(batch))
            if not flags.rank:  # all members have the same loss
                metrics = program_state.taken(training.metrics)
                _say_loss(number, flags.steps, losses[-1], metrics)
            if agree:
                agree.check(training, number, last=number == flags.steps)
        return [np.stack(losses), *training.values()]
    finally:
        training.close()


def _batches(
    manifest: Manifest, given: step_loop.Arrays, flags: Namespace, worker: int
) -> list[dict[str, np.ndarray]]:
    """A worker's batches: workers take turns."""
    numbers = range(worker, flags.steps * flags.workers, flags.workers)
    return [step_loop.batch_of(manifest, given, n, flags.seed) for n in numbers]


def _tell_outer_step(manifest: Manifest, flags: Namespace) -> None:
    """Say that the bundle's outer step is left out, where it is."""
    if flags.tau is not None or outer_loop.STEP not in manifest.functions:
        return
    kind = f" ({manifest.algorithm.kind})" if manifest.algorithm else ""
    print(
        f"without --tau these are inner steps alone: the bundle's @{outer_loop.STEP}"
        f"{kind} is left out; --tau H makes it behind each H steps",
        flush=True,
    )


def _tell_shared_batches(
    data: Sequence[TensorSpec], given: step_loop.Arrays, flags: Namespace
) -> None:
    """Say that workers train on one batch, where there are fewer than workers."""
    held = [len(given[t.name]) for t in data if given[t.name].ndim > len(t.shape)]
    count = max(held, default=1)
    if data and count < flags.workers:
        print(
            f"{flags.inputs} holds {counted(count, 'batch')} for "
            f"{flags.workers} workers: some of them train on the same one",
            flush=True,
        )


def _say_loss(number: int, count: int, loss: np.ndarray, metrics: str) -> None:
    print(f"step {number}/{count}: loss {float(loss):.6g}{metrics}", flush=True)


def _report(flags: Namespace, results: Sequence[np.ndarray], how: str = "") -> None:
    if flags.steps is not None:
        losses = np.asarray(results[0], np.float64).reshape(-1, flags.steps).mean(0)
        steps_ = counted(flags.steps, "step")
        print(f"loss {losses[0]:.6g} -> {losses[-1]:.6g} in {steps_}")
        if bad := nonfinite.first(list(map(float, losses)), flags.steps):
            print(f"loss is {bad[1]} at step {bad[0]}, the first that is not finite")
    print(f"wrote {flags.out}{how}")


def _member(bundle: Bundle, name: str, flags: Namespace) -> int:
    """One device's process: its parts in, its parts out."""
    from pcp.runtime.communicator.communicator import Communicator
    from pcp.runtime.group.rendezvous import Rendezvous
    from pcp.runtime.program.executor import Program
    from pcp.runtime.program.mesh_groups import MeshGroups

    manifest = bundle.manifest
    mesh = manifest.worker_mesh()
    whole = manifest.function(name)
    size = mesh.size * flags.workers
    if not 0 <= flags.rank < size:
        raise UsageError(
            f"--rank {flags.rank}: the mesh has {size} members, 0 to {size - 1}"
        )
    number = flags.rank % mesh.size
    place = mesh.members[number]
    device = mesh.devices[number] if mesh.devices else None
    own = manifest.of_device(device) if device else manifest
    parts = (
        []
        if flags.steps is not None
        else _parts(own.function(name), whole, mesh, flags)
    )
    meeting: Rendezvous | str = flags.connect
    if flags.rank == 0:
        meeting = Rendezvous.listen(flags.connect)
        print(f"{ADDRESS}{meeting.address}", flush=True)
    world = Communicator.connect(
        meeting, rank=flags.rank, world_size=size, timeout=flags.timeout
    )
    with world:
        groups = MeshGroups.of(world, manifest, flags.workers)
        _close_cage(flags)
        try:
            with Program.load(
                bundle,
                flags.device,
                communicator=groups,
                member=device,
                host=flags.host,
            ) as program:
                traced = (flags.trace, program, groups)
                with world.trace(*traced) if flags.trace else nullcontext():
                    if flags.steps is not None:
                        training = _training(program, manifest, flags, mesh, place)
                        often = replica_agreement.every(flags.parity, mesh)
                        agree = replica_agreement.Agreement(
                            groups[""], manifest, own, mesh, often
                        )
                        results = _train(training, manifest, flags, agree)
                    else:
                        results = _as_list(program[name](*parts))
            # What a member sent may still wait to be received when it is done.
            world.barrier(tag="done")
            groups.close()
        except RuntimeFault as fault:
            raise groups.cause(fault) from fault
        finally:
            # After a fault: what others wait for in vain, they hear at once.
            groups.close(timeout=0)
    tensor_files.save(
        flags.out, tensor_files.names(_outputs(own, name, flags)), results
    )
    return 0


def _parts(
    own: Function, whole: Function, mesh: Mesh, flags: Namespace
) -> list[np.ndarray]:
    """A member's parts of the function's inputs."""
    place = mesh.members[flags.rank]
    given = dict(
        zip(
            tensor_files.keys(whole, results=False),
            tensor_files.load(flags.inputs, whole),
            strict=True,
        )
    )
    layouts = dict(zip(given, (spec.layout for spec in whole.inputs), strict=True))
    return [
        np.array(  # a scalar too: `ascontiguousarray` would make a row of it
            given[key][layouts[key].slices(given[key].shape, mesh, place)], order="C"
        )
        for key in tensor_files.keys(own, results=False)
    ]


# --- all of them, on this machine ---


def _everyone(bundle: Bundle, name: str, flags: Namespace) -> int:
    mesh = bundle.manifest.worker_mesh()
    count = mesh.size * flags.workers
    _check_inputs(bundle.manifest, name, flags)
    with tempfile.TemporaryDirectory(prefix="pcp-run-") as folder:
        outs = [Path(folder) / f"{rank}.npz" for rank in range(count)]
        _processes(flags, name, outs)
        parts = [tensor_files.read(out) for out in outs]
    specs = _outputs(bundle.manifest, name, flags)
    keys = tensor_files.names(specs)
    named = dict(zip(keys, specs, strict=True))
    joined = outer_loop.joined(mesh, flags.workers, named, parts)
    tensor_files.save(flags.out, keys, joined)
    _report(flags, joined, f" ({counted(count, 'process')})")
    return 0


def _check_inputs(manifest: Manifest, name: str, flags: Namespace) -> None:
    """Refuse here, once, what each member would refuse."""
    if flags.steps is None:
        tensor_files.load(flags.inputs, manifest.function(name))
    elif not flags.inputs.startswith("random:"):
        _batches(manifest, tensor_files.read(flags.inputs), flags, 0)


def _processes(flags: Namespace, name: str, outs: Sequence[Path]) -> None:
    """Start a process for each member and wait; all end when one fails."""

    def start(rank: int, address: str) -> processes.Process:
        return processes.start(_command(flags, name, outs[rank]), rank, address)

    hear = partial(print, end="", flush=True)
    with processes.ranks(len(outs), start, ADDRESS, hear) as running:
        processes.wait(running)


def _command(flags: Namespace, name: str, out: Path) -> list[str]:
    """What a member runs."""
    command = ["run", flags.bundle]
    if flags.steps is None:
        command += ["--function", name]
    else:
        command += ["--steps", str(flags.steps), "--seed", str(flags.seed)]
        command += ["--workers", str(flags.workers)]
        command += [] if flags.tau is None else ["--tau", str(flags.tau)]
        command += [] if flags.parity is None else ["--parity", str(flags.parity)]
    command += ["--inputs", flags.inputs, "--out", str(out), "--device", flags.device]
    command += ["--timeout", str(flags.timeout)]
    command += ["--trace", flags.trace] if flags.trace else []
    command += ["--cage", flags.cage, *trust_arguments(flags)]
    command += [w for f in flags.host_function for w in (host_flags.FLAG, f)]
    return command


if __name__ == "__main__":
    raise SystemExit(main())
