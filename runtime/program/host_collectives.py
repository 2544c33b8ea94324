"""Collectives of a compiled program, on host arrays.

An import of a bundle is described by a `Collective` of the manifest; `launch`
starts it on the communicator. Shapes are those of the compiled program, so the
group must have the size the program was compiled for, except where the
collective does not depend on it (an elastic axis).
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pcp.bundle import Collective, Manifest
from pcp.errors import BundleError, ConfigError
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.reduction import trimmed_mean
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.group_communicator import GroupCommunicator
from pcp.runtime.communicator.replica_check import chained, digest_words, parity
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.runtime.program.host_functions import HOST, Declaration, Type
from pcp.runtime.program.piece_rings import PieceRings

ALONE = frozenset({"digest", HOST})
"""Imports that no other member takes part in."""
TRIMMED = "trimmed_mean"
Groups = Communicator | Mapping[str, Communicator] | None
Starter = Callable[[Communicator, Collective, NDArray, str], Pending]


def group_for(groups: Groups, name: str, what: Collective, manifest: Manifest):
    """The communicator of a collective's axes, or ConfigError."""
    if groups is None:
        raise ConfigError(
            f"the program communicates ({name}) and has no group; load it with "
            f"communicator=... or set program.communicator"
        )
    if isinstance(groups, Mapping):
        key = ",".join(what.axes)
        if key not in groups:
            known = ", ".join(groups) or "none"
            raise ConfigError(f"{name}: no communicator for axes {key!r} ({known})")
        comm = groups[key]
        if isinstance(comm, PieceRings):
            return comm.of(what)
    else:
        comm = groups
        _require_whole_mesh(name, what, manifest)
    sizes = manifest.mesh[what.mesh].axes if what.mesh in manifest.mesh else {}
    extent = [sizes.get(axis, -1) for axis in what.axes]
    elastic = -1 in extent or not what.axes  # a send names its peer, no axes
    if not elastic and math.prod(extent) != comm.world_size:
        raise ConfigError(
            f"{name} was compiled for {math.prod(extent)} members along "
            f"{', '.join(what.axes)}; the group has {comm.world_size}"
        )
    return comm


def _require_whole_mesh(name: str, what: Collective, manifest: Manifest) -> None:
    mesh = manifest.mesh.get(what.mesh)
    others = {a: n for a, n in (mesh.axes if mesh else {}).items() if n != 1}
    rest = sorted(set(others) - set(what.axes))
    if rest:
        raise ConfigError(
            f"{name} runs along {', '.join(what.axes)} of a mesh that also has "
            f"{', '.join(rest)}: give a communicator for each, as "
            f"{{'{','.join(what.axes)}': ...}}"
        )


def results_of(what: Collective, members: int) -> tuple[Type, ...]:
    """The element type and shape of each result."""
    if what.kind == HOST:
        return Declaration.of(what).gives
    dtype = str(what.attributes.get("result_dtype", what.dtype))
    return ((dtype, result_shape(what, members)),)


def result_shape(what: Collective, members: int) -> tuple[int, ...]:
    """The shape of a collective's result; the operand's where it is unchanged."""
    if "result_shape" in what.attributes:
        return tuple(what.attributes["result_shape"])
    shape, facts = list(what.shape), what.attributes
    if what.kind == "all_gather":
        shape[_dim(what)] = sum(facts.get("sizes", ())) or shape[_dim(what)] * members
    elif what.kind == "reduce_scatter" and not facts.get("sizes"):
        shape[_dim(what)] //= members
    elif what.kind == "all_to_all":
        shape[facts.get("split", 0)] //= members
        shape[facts.get("concat", 0)] *= members
    return tuple(shape)


def launch(
    comm: Communicator,
    what: Collective,
    array: NDArray,
    tag: str,
    out: NDArray | None = None,
) -> Pending:
    """Start the collective on `array`, which may be overwritten.

    The future's value is the result. Frames carry the narrower `wire` type if any.
    `out` is given only where the result may be made in place (`made_in_place`).
    """
    if out is not None:
        _numbers(what.dtype, tag)
        return comm.all_reduced_async(array, what.reduction or "sum", tag=tag, out=out)
    starter = _STARTERS.get(what.kind)
    if starter is None:
        known = ", ".join(sorted(_STARTERS))
        raise BundleError(f"this runtime has no collective {what.kind!r} ({known})")
    if what.wire and what.wire != what.dtype:
        array = array.astype(_numbers(what.wire, tag))
    elif what.reduction:
        _numbers(what.dtype, tag)
    return starter(comm, what, array, tag)


def made_in_place(comm: Communicator | None, what: Collective) -> bool:
    """Whether the result of `what` can be made in memory that the program has."""
    given = what.attributes
    narrower = what.wire not in ("", None, what.dtype)
    other = given.get("result_dtype", what.dtype) != what.dtype or given.get("codec")
    plain = what.kind == "all_reduce" and not narrower and not other
    plain = plain and what.reduction != TRIMMED
    return plain and isinstance(comm, GroupCommunicator)


def near(comm: Communicator | None) -> bool:
    """Whether all members are on one machine, and share memory as far as known."""
    return isinstance(comm, GroupCommunicator) and comm.near


def alone(what: Collective, arrays: Sequence[NDArray]) -> Pending:
    """A collective without a group, done at once; the future's value is the result."""
    pending = Pending()
    pending.set_result(digest_words(arrays, str(what.attributes["algo"])))
    return pending


def _numbers(dtype: str, tag: str) -> np.dtype:
    """The numpy type for arithmetic; ConfigError when numpy has only its bits."""
    found = numpy_dtype(dtype)
    if found.kind == "u" and not dtype.startswith(("ui", "i")):
        raise ConfigError(f"{tag} has numbers of {dtype}: install ml_dtypes here")
    return found


def _dim(what: Collective) -> int:
    return int(what.attributes.get("dim", 0))


def _first(array: NDArray, dim: int) -> NDArray:
    """`array` with dimension `dim` moved to the front."""
    return np.ascontiguousarray(np.moveaxis(array, dim, 0))


def _all_reduce(
    comm: Communicator, what: Collective, array: NDArray, tag: str
) -> Pending:
    codec = what.attributes.get("codec")
    compression = None if codec is None else str(codec)
    op = what.reduction or "sum"
    if op == TRIMMED:  # which takes all values of all members
        gathered = comm.all_gather_async(array[np.newaxis], tag=tag)
        return chained(gathered, trimmed_mean)
    return comm.all_reduced_async(
        array, op, tag=tag, compression=compression, donate=True
    )


def _reduce_scatter(
    comm: Communicator, what: Collective, array: NDArray, tag: str
) -> Pending:
    dim = _dim(what)
    pending = comm.reduce_scatter_async(
        _first(array, dim),
        what.reduction or "sum",
        sizes=what.attributes.get("sizes") or None,
        tag=tag,
    )
    return chained(pending, lambda part: np.moveaxis(part, 0, dim))


def _all_gather(
    comm: Communicator, what: Collective, array: NDArray, tag: str
) -> Pending:
    dim = _dim(what)
    pending = comm.all_gather_async(_first(array, dim), tag=tag)
    return chained(pending, lambda whole: np.moveaxis(whole, 0, dim))


def _all_to_all(
    comm: Communicator, what: Collective, array: NDArray, tag: str
) -> Pending:
    split = int(what.attributes.get("split", 0))
    concat = int(what.attributes.get("concat", 0))
    size = comm.world_size
    pieces = np.stack(np.split(array, size, axis=split))
    pending = comm.all_to_all_async(np.ascontiguousarray(pieces), tag=tag)
    return chained(pending, lambda got: np.concatenate(list(got), axis=concat))


def _broadcast(
    comm: Communicator, what: Collective, array: NDArray, tag: str
) -> Pending:
    return comm.broadcast_async(array, int(what.attributes.get("root", 0)), tag=tag)


def _permute(comm: Communicator, what: Collective, array: NDArray, tag: str) -> Pending:
    return comm.permute_async(array, what.attributes.get("pairs", ()), tag=tag)


def _send(comm: Communicator, what: Collective, array: NDArray, tag: str) -> Pending:
    target = int(what.attributes["target"])
    channel = what.attributes.get("tag", 0)
    return chained(comm.send_async(array, target, channel), lambda _: array)


def _recv(comm: Communicator, what: Collective, array: NDArray, tag: str) -> Pending:
    source = int(what.attributes["source"])
    channel = what.attributes.get("tag", 0)
    return comm.recv_async(array, source, channel)


def _sync(comm: Communicator, what: Collective, array: NDArray, tag: str) -> Pending:
    # An independent receive may have been called before it, on this member alone.
    return chained(comm.barrier_async(pairs=False, tag=tag), lambda _: array)


def _parity(comm: Communicator, what: Collective, array: NDArray, tag: str) -> Pending:
    return parity(comm, array, str(what.attributes["action"]), tag)


_STARTERS: dict[str, Starter] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "permute": _permute,
    "send": _send,
    "recv": _recv,
    "parity": _parity,
    "barrier": _sync,
    "sync": _sync,
}
