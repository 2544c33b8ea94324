"""The most bytes that a bundle's function holds, in a process of its own.

Devices of a process share one allocator and its statistics.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from pcp.bundle import Bundle
from pcp.runtime.memory.dtypes import numpy_dtype


def inputs_of(bundle: Bundle, name: str) -> list[np.ndarray]:
    """Small random arguments of a function; integers are 0."""
    random = np.random.default_rng(0)
    specs = bundle.manifest.function(name).inputs
    return [
        (random.normal(size=t.shape) / 8).astype(numpy_dtype(t.dtype)) for t in specs
    ]


def measured(path: Path, name: str) -> int:
    """Bytes beyond the arguments in a call of the bundle's function."""
    command = [sys.executable, "-m", "helpers.oracles.device_peak", str(path), name]
    found = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    return json.loads(found.stdout)


def _peak(path: str, name: str) -> int:
    import iree.runtime as rt

    bundle = Bundle.read(path)
    config = rt.Config("local-sync")
    context = rt.SystemContext(config=config)
    code = rt.VmModule.copy_buffer(context.instance, bundle.module())
    context.add_vm_module(code)
    given = inputs_of(bundle, name)
    arguments = [rt.asdevicearray(config.device, a) for a in given]
    context.modules[code.name][name](*arguments)
    most = config.device.allocator.statistics["device_bytes_peak"]
    return most - sum(a.nbytes for a in given)


if __name__ == "__main__":
    print(_peak(*sys.argv[1:]))
