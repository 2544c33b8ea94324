"""Backends of workers: what is compiled for one, and where its devices are."""

from collections.abc import Iterable

from pcp.errors import ConfigError, UsageError, nearest
from pcp.runtime.program import host_processor, threads

BACKENDS = {
    "cpu": ("cpu", threads.LOCAL),
    "cuda": ("sm_80", "cuda://{id}"),
    "rocm": ("gfx942", "hip://{id}"),
    "vulkan": ("vulkan", "vulkan://{id}"),
    "metal": ("metal", "metal"),
}
"""Backend -> (default target, device address)."""
HOST = "cpu:host"


def device_of(backend: str, device_id: int) -> str:
    """The runtime's address of a device."""
    return BACKENDS[check_backend(backend)][1].format(id=device_id)


def target_here(backend: str, target: str | None) -> str:
    """What to compile for on the machine that runs it: as asked, or by backend.

    Code for exactly this processor is several times faster than what every x86-64 runs.
    """
    default = BACKENDS[check_backend(backend)][0]
    return target or (HOST if default == host_processor.ANY else default)


def target_of_worker(backend: str, target: str | None, *, local: bool) -> str:
    """What a shepherd is to compile for: as asked, or this machine's processor.

    `cpu:host` is the compiler's own processor: to a shepherd that is not `local` the
    worker names its own instead. `ConfigError` where that was asked for and pcp cannot
    name it; where nothing was asked for, code that any processor of the family runs.
    """
    default = BACKENDS[check_backend(backend)][0]
    if target not in (None, HOST) or default != host_processor.ANY:
        return target or default
    named = host_processor.own()
    if local and (target == HOST or named is None):
        return HOST
    if target == HOST and named is None:
        raise ConfigError(
            f"--target {HOST}: the shepherd compiles on another machine, and pcp "
            "cannot name this one's processor; say LLVM's name of it, as "
            "cpu:znver2 or aarch64:neoverse-v2"
        )
    return named or default


def check_devices(uris: Iterable[str], target: str, model: str) -> None:
    """Open each device once, to learn before a compile what is wrong with it.

    `ConfigError` when it cannot be opened, `UsageError` when it does not run code for
    `target`. What a bundle holds for a target is known when it is read.
    """
    from pcp.runtime.program.devices import open_device
    from pcp.runtime.program.executor import drivers_of

    for uri in dict.fromkeys(uris):
        device = open_device(threads.device_for(uri, ()))
        if model.endswith(".pcp"):
            continue
        from pcp.compiler.targets import find

        wanted = find(target).driver
        if wanted not in drivers_of(device):
            raise UsageError(
                f"--target {target}: its code is for a {wanted} device, and {uri} is "
                "none; say another --target, --backend or --device"
            )


def check_backend(backend: str) -> str:
    """`backend`, or `UsageError` naming the nearest."""
    if backend not in BACKENDS:
        raise UsageError(
            f"--backend {backend}: there is {', '.join(BACKENDS)}."
            f"{nearest(backend, BACKENDS)}"
        )
    return backend
