"""The engine of an address: `gloo://host:port` names one of another library.

An address without a scheme, or `pcp://host:port`, is for pcp's own transport. The
engines that come with pcp are named by text, so that they are loaded on use
only; other Python packages add engines as entry points of `pcp.engines`,
a function `(place, *, rank, world_size, timeout)` under the scheme's name.
"""

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from pcp.errors import ConfigError, MissingPackage, UsageError, nearest

GROUP = "pcp.engines"
OWN = "pcp"
BUILT_IN = {
    "gloo": "pcp.engines.torch_engine:gloo",
    "nccl": "pcp.engines.torch_engine:nccl",
    "mpi": "pcp.engines.mpi_engine:mpi",
}
"""Scheme -> the module and the function in it."""


def split(address: str) -> tuple[str, str]:
    """`("gloo", "host:port")`; the scheme is `OWN` when there is none."""
    scheme, found, place = address.partition("://")
    return (scheme, place) if found else (OWN, address)


def connect(
    scheme: str,
    place: str,
    options: Mapping[str, Any],
    *,
    rank: int,
    world_size: int,
    timeout: float,
) -> Any:
    """The engine's communicator.

    `options` are those of pcp's own transport alone; UsageError if one is given.
    """
    only_own(scheme, options)
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of {world_size} members does not exist")
    opener = _opener(scheme)
    return opener(place, rank=rank, world_size=world_size, timeout=timeout)


def only_own(scheme: str, options: Mapping[str, Any]) -> None:
    """UsageError if one of these options of pcp's own transport is given."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(
            f"{scheme}:// has no {', '.join(f'{name}=' for name in given)}; these are "
            f"pcp's own: write the address without {scheme}://"
        )


def _opener(scheme: str) -> Callable[..., Any]:
    if scheme in BUILT_IN:
        module, _, name = BUILT_IN[scheme].partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            raise MissingPackage(
                f"{scheme}:// needs the package {error.name}, which is not installed"
            ) from error
    others = {point.name: point for point in entry_points(group=GROUP)}
    if scheme in others:
        return others[scheme].load()
    known = sorted({OWN, *BUILT_IN, *others})
    raise ConfigError(
        f"no engine is called {scheme!r}; there are {', '.join(known)}."
        f"{nearest(scheme, known)}"
    )
