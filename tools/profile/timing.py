"""How long each dispatch of a compiled function takes, by `iree-benchmark-module`."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import iree.runtime as rt
from iree.runtime.benchmark import benchmark_exe

from pcp import strict_json
from pcp.errors import ConfigError, RuntimeFault
from pcp.tools.profile.figures import Peak, Timed, Times
from pcp.training.process.huge_pages import with_huge_pages

_DECLARED = "iree.abi.declaration"
_INPUT = re.compile(r"%input\d+: tensor<((?:\d+x)*)([^>]+>?)>")
_REASON = re.compile(r"\b([A-Z_]{5,}; .*)")
_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_ONE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "VECLIB")
}
#: As steps run: else a kernel is said to take what clearing new pages takes.
_CACHING = ["--device_allocator=caching"]
_AS_IN_A_STEP = {"local-sync": _CACHING, "local-task": _CACHING}
_PRODUCT, _COPY_BYTES, _PEAK_ROUNDS = 1024, 64 << 20, 5


def measure(
    module: bytes,
    stand_in: bytes | None,
    function: str,
    device: str,
    seconds: float,
    *,
    each: bool = True,
) -> Times:
    """Call `function` for about `seconds`, with zeros and small numbers as operands.

    Without `each` dispatch the call is measured alone, as fast as it is then.
    ConfigError when the module has no such function, RuntimeFault when the call fails.
    """
    inputs = _inputs(module, function)
    with tempfile.TemporaryDirectory(prefix="pcp-profile-") as folder:
        paths = []
        for name, content in (("stand_in", stand_in), ("module", module)):
            if content is not None:
                paths.append(Path(folder, f"{name}.vmfb"))
                paths[-1].write_bytes(content)
        command = [
            benchmark_exe(),
            *(f"--module={path}" for path in paths),
            f"--function={function}",
            f"--device={device}",
            *(f"--input={given}" for given in inputs),
            *_AS_IN_A_STEP.get(device.partition(":")[0], []),
            *["--dispatch_statistics"] * each,
            "--benchmark_format=json",
            f"--benchmark_min_time={seconds:g}s",
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=with_huge_pages(os.environ),
        )
    if done.returncode:
        reason = _REASON.search(done.stderr)
        raise RuntimeFault(
            f"iree-benchmark-module ended with status {done.returncode} on "
            f"{device}: {reason.group(1) if reason else 'it gave no reason'}"
        )
    return _read(strict_json.parse(done.stdout), function)


def _inputs(module: bytes, function: str) -> list[str]:
    """The operands of a function as the benchmark takes them."""
    found = rt.VmModule.copy_buffer(rt.VmInstance(), module)
    names = [name for name in found.function_names if not name.startswith("__")]
    if function not in names:
        raise ConfigError(f"no function {function!r}; there are {', '.join(names)}")
    entry = found.lookup_function(function)
    assert entry is not None, "a name of the module's"
    declared = entry.reflection[_DECLARED]
    # Numbers that stay finite; integers are ids, 0 is always one.
    return [
        f"{shape}{element}={0.01 if element[0] in 'fb' else 0}"
        for shape, element in _INPUT.findall(declared.split(" -> ")[0])
    ]


def _read(report: dict, function: str) -> Times:
    whole, dispatches = 0.0, []
    for row in report["benchmarks"]:
        name = row["name"].split("/", 1)[1]
        ms = row["real_time"] * _UNITS_MS[row["time_unit"]]
        if "calls" in row:
            dispatches.append(Timed(name, int(row["calls"]), ms))
        else:
            whole = ms
    dispatches.sort(key=lambda one: -one.ms)
    return Times(whole, dispatches)


_PEAK = f"""
import time
import numpy as np

def best(work):
    times = []
    for _ in range({_PEAK_ROUNDS}):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)

a = np.ones(({_PRODUCT}, {_PRODUCT}), np.float32)
c = np.empty_like(a)
b = np.ones({_COPY_BYTES}, np.uint8)
d = np.empty_like(b)
print(2 * {_PRODUCT} ** 3 / best(lambda: np.matmul(a, a, out=c)))
print(2 * b.nbytes / best(lambda: np.copyto(d, b)))
"""


def peak() -> Peak:
    """Numpy's best of a product of matrices and of a copy, on one thread."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK],
        env=os.environ | _ONE_THREAD,
        capture_output=True,
        text=True,
        check=True,
    )
    return Peak(*map(float, done.stdout.split()))
