"""Runs what `benchmarks/torture.py --elsewhere FOLDER` left there, on a device.

    python benchmarks/gpu_run.py FOLDER --device cuda --jobs 8 --limit 60

Needs what a worker needs. Each program runs twice in a process of several; one that
ends or hangs is started again. Beside each bundle comes a `.json` with what happened
(ran, crash, hung, fault, raised; `unsteady` counts the results that differ between the
two runs) and an `.out.npz` with the bits of the results. `--device local-task` tries
the script without a GPU, with bundles for CPUs.
"""

import argparse
import json
import queue
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from pcp.errors import RuntimeFault
from pcp.runtime.memory.dtypes import bits_dtype
from pcp.runtime.program.executor import Device, Program, open_device

STARTS_S = 60  # until a process has its device


def run(place: Path, device: Device) -> dict[str, object]:
    """Run one bundle twice, and write its results."""
    begun = time.monotonic()
    name = place.with_suffix(".function").read_text()
    with np.load(place.with_suffix(".in.npz")) as given:
        arguments = [given[str(i)] for i in range(len(given))]
    with Program.load(place.with_suffix(".pcp"), device) as program:
        specs = program.manifest.function(name).results
        twice = []
        for _ in range(2):
            results = program[name](*(x.copy() for x in arguments))
            results = results if isinstance(results, tuple) else (results,)
            twice.append(
                [
                    np.ascontiguousarray(x).view(bits_dtype(s.dtype)).reshape(x.shape)
                    for x, s in zip(results, specs, strict=True)
                ]
            )
    first, second = twice
    pairs = zip(first, second, strict=True)
    unsteady = sum(a.tobytes() != b.tobytes() for a, b in pairs)
    kept = {str(i): x for i, x in enumerate(first)}
    np.savez_compressed(place.with_suffix(".out.npz"), **kept)  # pyright: ignore[reportArgumentType]
    seconds = round(time.monotonic() - begun, 3)
    return {"outcome": "ran", "message": "", "unsteady": unsteady, "seconds": seconds}


def serve(uri: str) -> None:
    """Answer each line, a path, with what happened."""
    device = open_device(uri)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            found = run(Path(line.strip()), device)
        except RuntimeFault as error:
            found = {"outcome": "fault", "message": str(error)[:1000]}
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:1000]
            found = {"outcome": "raised", "message": message}
        print(json.dumps(found), flush=True)


def keep_serving(
    work: "queue.SimpleQueue[Path]", uri: str, limit: float, counts: Counter[str]
) -> None:
    """One process after the other, until there is no more work."""
    process = None
    while True:
        try:
            place = work.get_nowait()
        except queue.Empty:
            break
        if process is None or process.poll() is not None:
            process = _started(uri)
            _line(process, STARTS_S)
        assert process.stdin is not None
        try:
            process.stdin.write(f"{place}\n".encode())
            process.stdin.flush()
            line = _line(process, limit)
        except BrokenPipeError:
            line = b""
        if line:
            found = json.loads(line)
        else:
            hung = process.poll() is None and line is None
            process.kill()
            said = f"ended with {process.wait()}"
            found = {"outcome": "hung" if hung else "crash", "message": said}
        if found["outcome"] in ("fault", "raised"):
            process.kill()  # an error of the device stays with its context
            process.wait()
        counts[found["outcome"]] += 1
        place.with_suffix(".json").write_text(json.dumps(found))
    if process is not None:
        process.kill()
        process.wait()


def _started(uri: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--serve", "--device", uri]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0
    )


def _line(process: subprocess.Popen[bytes], limit: float) -> bytes | None:
    """The next line; empty at the end of the process, None when none came in time."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], limit)[0]:
        return None
    return process.stdout.readline()


def main() -> None:
    """Run all that has no `.json` yet, and count what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=8, help="processes at once")
    parser.add_argument("--limit", type=float, default=60, help="seconds a program")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.device)
        return
    work: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for place in sorted(options.folder.glob("*.function")):
        if not place.with_suffix(".json").exists():
            work.put(place.with_suffix(""))
    counts: Counter[str] = Counter()
    threads = [
        threading.Thread(
            target=keep_serving, args=(work, options.device, options.limit, counts)
        )
        for _ in range(options.jobs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(dict(counts))


if __name__ == "__main__":
    main()
