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
one. With `--checkpoint DIR` the state is kept there each so many steps, and
`--resume` goes on from the newest one. Where a process of the run is killed, all begin
again from there, without a checkpoint from the first step; the losses and what the
run leaves are those of a run in which nobody was killed.

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
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pcp.bundle import Bundle, Function, Manifest
from pcp.errors import RuntimeFault, UsageError, counted
from pcp.mesh import Mesh
from pcp.runtime.program import threads
from pcp.runtime.transport.signatures import Trust
from pcp.signing import BUNDLE
from pcp.tools import run_steps
from pcp.tools.support import host_flags, processes, tensor_files
from pcp.tools.support.command import Parser, run
from pcp.tools.support.protection import (
    add_trust_flag,
    trust_arguments,
    trusted_ids,
)
from pcp.training.storage import nonfinite
from pcp.training.trainer import replica_agreement

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
    run_steps.add_flags(parser)
    help_ = "local, local://THREADS or one of IREE's; default: this machine's cores, "
    add("--device", help=f"{help_}shared by the processes")
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
    run_steps.check(bundle.manifest, flags)
    flags.host = host_flags.read(flags, bundle.manifest)
    if (flags.rank is None) != (flags.connect is None):
        raise UsageError("--rank and --connect go together")
    if flags.rank is not None:
        return _member(bundle, name, flags)
    # An outer step has collectives, if of one worker alone.
    joins = flags.tau is not None and bool(bundle.manifest.collectives)
    several = bool(bundle.manifest.programs) or flags.workers > 1
    if several or joins or flags.checkpoint:
        return _everyone(bundle, name, flags)
    return _alone(bundle, name, flags)


# --- one process ---


def _close_cage(flags: Namespace) -> None:
    """Around this process, which runs code of others from here on."""
    from pcp.runtime.cage import cage
    from pcp.runtime.program.devices import open_device

    if flags.cage == "off":
        return
    if not threads.is_local(flags.device):
        open_device(flags.device)  # it stays open; its driver has files of its own
    read = [] if flags.inputs.startswith("random:") else [Path(flags.inputs)]
    written = [
        Path(file).absolute().parent for file in (flags.out, flags.trace) if file
    ]
    if flags.checkpoint:
        Path(flags.checkpoint).mkdir(parents=True, exist_ok=True)
        written.append(Path(flags.checkpoint).absolute())
    held = cage.enter(readable=read, writable=written)
    cage.bar_sockets(held)
    print(f"cage: {held}", flush=True)


def _as_list(results: object) -> list[np.ndarray]:
    return list(results) if isinstance(results, tuple) else [np.asarray(results)]


def _alone(bundle: Bundle, name: str, flags: Namespace) -> int:
    flags.device = flags.device or threads.LOCAL
    _close_cage(flags)
    loaded = (
        run_steps.trainer(bundle, flags) if flags.steps else _program(bundle, flags)
    )
    with closing(loaded):
        from pcp.runtime.collectives.tracing import recorded

        traced = loaded.functions.program if flags.steps else loaded
        with recorded(flags.trace, traced) if flags.trace else nullcontext():
            if flags.steps:
                results = run_steps.train(loaded, bundle.manifest, flags)
            else:
                function = bundle.manifest.function(name)
                inputs = tensor_files.load(flags.inputs, function)
                results = _as_list(loaded[name](*inputs))
    keys = tensor_files.names(run_steps.outputs(bundle.manifest, name, flags))
    tensor_files.save(flags.out, keys, results)
    _report(flags, results)
    return 0


def _program(bundle: Bundle, flags: Namespace, **how: Any) -> Any:
    """The bundle's functions, of one member where it is spread."""
    from pcp.runtime.program.executor import Program

    return Program.load(bundle, device=flags.device, host=flags.host, **how)


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
    flags.device = flags.device or threads.LOCAL
    from pcp.runtime.communicator.communicator import Communicator
    from pcp.runtime.group.rendezvous import Rendezvous
    from pcp.runtime.program.mesh_groups import MeshGroups

    manifest = bundle.manifest
    mesh = manifest.worker_mesh()
    size = mesh.size * flags.workers
    if not 0 <= flags.rank < size:
        raise UsageError(
            f"--rank {flags.rank}: the mesh has {size} members, 0 to {size - 1}"
        )
    number = flags.rank % mesh.size
    own = manifest.of_device(mesh.devices[number]) if mesh.devices else manifest
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
            results = _of_member(bundle, own, name, flags, world, groups)
            # What a member sent may still wait to be received when it is done.
            world.barrier(tag="done")
            groups.close()
        except RuntimeFault as fault:
            raise groups.cause(fault) from fault
        finally:
            # After a fault: what others wait for in vain, they hear at once.
            groups.close(timeout=0)
    tensor_files.save(
        flags.out, tensor_files.names(run_steps.outputs(own, name, flags)), results
    )
    return 0


def _of_member(
    bundle: Bundle, own: Manifest, name: str, flags: Namespace, world: Any, groups: Any
) -> list[np.ndarray]:
    """What a member's program gives: a function's results, or what training leaves."""
    manifest, mesh = bundle.manifest, bundle.manifest.worker_mesh()
    if flags.steps is None:
        parts = _parts(own.function(name), manifest.function(name), mesh, flags)
        member = mesh.devices[flags.rank] if mesh.devices else None
        program = _program(bundle, flags, communicator=groups, member=member)
        with closing(program), _traced(world, program, groups, flags):
            return _as_list(program[name](*parts))
    trainer = run_steps.trainer(bundle, flags, flags.rank % mesh.size)
    trainer.join(groups)
    besides = run_steps.besides(bundle, own, flags, world, groups)
    program = trainer.functions.program
    kept = besides.get("checkpoints")
    folder = nullcontext() if kept is None or flags.rank else kept.alone()
    with closing(trainer), folder, _traced(world, program, groups, flags):
        return run_steps.train(trainer, manifest, flags, groups, **besides)


def _traced(world: Any, program: Any, groups: Any, flags: Namespace) -> Any:
    """A trace of all members, if it is asked for."""
    asked = flags.trace
    return world.trace(asked, program, groups) if asked else nullcontext()


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
    flags.device = flags.device or threads.shared(count)
    _check_inputs(bundle.manifest, name, flags)
    with tempfile.TemporaryDirectory(prefix="pcp-run-") as folder:
        outs = [Path(folder) / f"{rank}.npz" for rank in range(count)]
        _processes(flags, name, outs)
        parts = [tensor_files.read(out) for out in outs]
    specs = run_steps.outputs(bundle.manifest, name, flags)
    keys = tensor_files.names(specs)
    named = dict(zip(keys, specs, strict=True))
    joined = replica_agreement.joined(mesh, flags.workers, named, parts)
    tensor_files.save(flags.out, keys, joined)
    _report(flags, joined, f" ({counted(count, 'process')})")
    return 0


def _check_inputs(manifest: Manifest, name: str, flags: Namespace) -> None:
    """Refuse here, once, what each member would refuse."""
    if flags.steps is None:
        tensor_files.load(flags.inputs, manifest.function(name))
    elif not flags.inputs.startswith("random:"):
        run_steps.given(manifest, flags)


def _processes(flags: Namespace, name: str, outs: Sequence[Path]) -> None:
    """Start a process for each member and wait; all end when one fails.

    Members that train begin again where one of them was killed.
    """
    hear = partial(print, end="", flush=True)
    left, again = (flags.restarts if flags.steps else 0), flags.resume
    while True:

        def start(rank: int, address: str, again: bool = again) -> processes.Process:
            command = _command(flags, name, outs[rank])
            command += ["--resume"] if again else []
            return processes.start(command, rank, address)

        try:
            with processes.ranks(len(outs), start, ADDRESS, hear) as running:
                return processes.wait(running)
        except processes.MemberKilled as fault:
            if not left:
                raise
            left, again = left - 1, run_steps.kept(flags)
            whence = "the newest checkpoint" if again else "the first step"
            print(f"{fault}; they begin again from {whence}", flush=True)


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
    if flags.checkpoint:
        every = str(flags.checkpoint_every)
        command += ["--checkpoint", flags.checkpoint, "--checkpoint-every", every]
    command += ["--inputs", flags.inputs, "--out", str(out), "--device", flags.device]
    command += ["--timeout", str(flags.timeout)]
    command += ["--trace", flags.trace] if flags.trace else []
    command += ["--cage", flags.cage, *trust_arguments(flags)]
    command += [w for f in flags.host_function for w in (host_flags.FLAG, f)]
    return command


if __name__ == "__main__":
    raise SystemExit(main())
