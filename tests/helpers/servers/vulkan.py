"""A Vulkan device, in a process that forks for each program: a driver may crash.

Mesa's lavapipe is one without any GPU (Debian: mesa-vulkan-drivers, libvulkan1). It
gets one thread, since other tests run beside it.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from helpers.servers.oracle_process import OracleProcess, forked, serve

DEADLINE_S = 120
DEVICE = "vulkan://0"
THREADS = {"LP_NUM_THREADS": "1"}  # of lavapipe


class VulkanFailed(RuntimeError):
    """The device refused the program, or crashed on it."""


class Vulkan:
    """The first Vulkan device here; use as a context manager."""

    def __init__(self) -> None:
        self._process = OracleProcess("helpers.servers.vulkan")

    def __enter__(self) -> "Vulkan":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def missing(self) -> str:
        """Why there is no device; empty where there is one."""
        (names,) = self._process.ask(None) or [[]]
        return "" if names else "no Vulkan device: install mesa-vulkan-drivers"

    def run(
        self,
        bundle: bytes,
        arguments: Sequence[np.ndarray],
        function: str = "main",
        device: str = DEVICE,
    ) -> list[np.ndarray]:
        """The results of a function of a bundle."""
        found = self._process.ask((bundle, function, list(arguments), device))
        if not found or isinstance(found[0], str):
            raise VulkanFailed(found[0] if found else "the process ended")
        return found[0]


def _results(request: tuple[bytes, str, list[np.ndarray], str]) -> Iterator[Any]:
    from pcp.bundle import Bundle
    from pcp.runtime.program.executor import Program

    content, function, arguments, device = request
    warnings.simplefilter("ignore", RuntimeWarning)  # no loop here is so long
    try:
        program = Program.load(Bundle.from_bytes(content), device)
        results = program[function](*arguments)
        yield list(results) if isinstance(results, tuple) else [results]
    except Exception as error:
        yield f"{type(error).__name__}: {str(error)[:2000]}"


def _names() -> Iterator[list[str]]:
    from pcp.runtime.program.executor import available_drivers

    yield available_drivers().get("vulkan", [])


def _answer(request: Any) -> list[Any]:
    values = _names if request is None else lambda: _results(request)
    return forked(values, DEADLINE_S)[0]


def _serve() -> None:
    import iree.runtime  # noqa: F401 - loaded once, before the forks

    os.environ.update(THREADS)
    serve(_answer)


if __name__ == "__main__":
    _serve()
