"""Files of every kind that pcp reads from outside, changed at random.

Bytes are flipped, cut out, doubled and put in; of what is JSON inside, values and keys
are changed too, and the sums around it made right again: a reader gets past them.
"""

import io
import json
import random
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers.worlds.training_runs import experiment, run

from pcp.bundle import Bundle, Function, Manifest, Module, TensorSpec, sha256
from pcp.compiler.cluster import Cluster
from pcp.errors import PcpError
from pcp.runtime.transport import certificates
from pcp.tools.support import tensor_files
from pcp.training.config import experiment_file
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import ledger, safetensors_io
from pcp.training.storage.checkpoint import Checkpoint

WORDS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 255, 1 << 31, 1 << 63, -(1 << 63), 1 << 70),
    *(
        0.5,
        1e308,
        "",
        "x",
        "../x",
        "\0",
        "\ud800",
        "é" * 40,
        "9" * 400,
        [],
        {},
        [[]],
        {"": 0},
    ),
)


@dataclass(frozen=True)
class Kind:
    """A kind of file: one that is good, and who reads it."""

    path: Path
    read: Callable[[Path], object]
    reads: Path
    """What the reader is given: the file, or the folder that it is in."""
    inside: Callable[[random.Random, bytes], bytes] | None = None
    """Changes what is written in the file, and leaves its frame good."""


def bytes_of(draw: random.Random, content: bytes) -> bytes:
    """One to four changes of the bytes."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(made) + 1)
        end = min(len(made), at + draw.choice((1, 1, 2, 8, 64, 1024)))
        match draw.randrange(6):
            case 0:
                made[at:end] = draw.randbytes(end - at)
            case 1 if at < len(made):
                made[at] ^= 1 << draw.randrange(8)
            case 2:
                del made[at:end]
            case 3:
                made[at:at] = made[at:end]
            case 4:
                made[at:at] = draw.randbytes(draw.choice((1, 4, 32)))
            case 5:
                del made[at:]
    return bytes(made)


def json_of(draw: random.Random, content: bytes) -> bytes:
    """One to three values or keys of JSON changed."""
    value = json.loads(content)
    for _ in range(draw.randint(1, 3)):
        value = _changed(draw, value)
    return json.dumps(value).encode()


def _changed(draw: random.Random, value: Any) -> Any:
    if not value or not isinstance(value, dict | list) or draw.random() < 0.1:
        return draw.choice(WORDS)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        made = list(value)
        made[at] = _changed(draw, value[at])
        return made if draw.random() < 0.9 else [*made, draw.choice(WORDS)]
    key, made = draw.choice(list(value)), dict(value)
    what = draw.random()
    if what < 0.1:
        del made[key]
    elif what < 0.2:
        made[str(draw.choice(WORDS))] = made.pop(key)
    else:
        made[key] = _changed(draw, value[key])
    return made


def json_lines(draw: random.Random, content: bytes) -> bytes:
    """JSON of one of the ledger's lines changed, under a sum of its own."""
    lines = content.splitlines()
    at = draw.randrange(len(lines))
    record = json.loads(json_of(draw, lines[at]))
    if not isinstance(record, dict):
        return content
    record.pop("crc", None)
    body = json.dumps(record, separators=(",", ":"), sort_keys=True)
    lines[at] = f'{body[:-1]},"crc":"{zlib.crc32(body.encode()):08x}"}}'.encode()
    return b"\n".join(lines) + b"\n"


def bundle_inside(draw: random.Random, content: bytes) -> bytes:
    """A bundle with another manifest, whose sum is right."""
    members = dict(Bundle.from_bytes(content).members)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        manifest = json_of(draw, archive.read("manifest.json"))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = f"sha256:{sha256(manifest)}".encode()
        archive.writestr("manifest.json", manifest)
        for name, member in members.items():
            archive.writestr(name, member)
    return file.getvalue()


def safetensors_inside(draw: random.Random, content: bytes) -> bytes:
    """Tensors under another header, of the length that is said."""
    size = int.from_bytes(content[:8], "little")
    header = json_of(draw, content[8 : 8 + size].rstrip())
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def kinds(folder: Path) -> dict[str, Kind]:
    """One good file of each kind, below a folder."""
    array = {"w": np.arange(12, dtype=np.float32), "b": np.ones((2, 3), np.float32)}
    _, of_run, _ = run(experiment(folder, outer_loop_steps=3))
    saved = checkpoints.save(folder, Checkpoint(1, array, array, [array]))
    write = {
        "bundle": a_bundle().to_bytes(),
        "experiment": json.dumps(EXPERIMENT).encode(),
        "ledger": of_run.ledger.read_bytes(),
        "safetensors": (saved / "parameters.safetensors").read_bytes(),
        "cluster": json.dumps(CLUSTER).encode(),
    }
    for name, content in write.items():
        (folder / name).write_bytes(content)
    (folder / "model.mlir").touch()
    np.savez_compressed(folder / "arrays.npz", **array)
    certificates.new_identity(folder / "identity")
    plain: dict[str, tuple[str, Callable[[Path], object], Any]] = {
        "bundle": ("bundle", Bundle.read, bundle_inside),
        "experiment": ("experiment", experiment_file.load, json_of),
        "ledger": ("ledger", ledger.check, json_lines),
        "safetensors": ("safetensors", safetensors_io.read, safetensors_inside),
        "cluster": ("cluster", Cluster.read, json_of),
        "npz": ("arrays.npz", tensor_files.read, None),
        "identity": ("identity", certificates.load_identity, None),
    }
    found = {
        name: Kind(folder / file, read, folder / file, inside)
        for name, (file, read, inside) in plain.items()
    }
    for file in sorted(saved.iterdir()):
        inside = json_of if file.suffix == ".json" else None
        kind = Kind(file, checkpoints.load, saved, inside)
        found[f"checkpoint's {file.name}"] = kind
    return found


def strike(kind: Kind, draw: random.Random, good: bytes) -> str:
    """Change a file and read it: "" if it was taken, or what was said of it.

    What is no error of ours is raised as it is.
    """
    while (made := _struck(kind, draw, good)) == good:
        pass
    kind.path.write_bytes(made)
    try:
        kind.read(kind.reads)
    except PcpError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _struck(kind: Kind, draw: random.Random, good: bytes) -> bytes:
    inside = kind.inside if kind.inside and draw.random() < 0.5 else bytes_of
    return inside(draw, good)


def survey(folder: Path, count: int, seed: int) -> dict[str, tuple[int, int]]:
    """`count` changed files: of each kind how many were refused and taken.

    In a folder that is memory (/dev/shm) it takes a fifth of the time.

    AssertionError names the kind and the number of one that raised anything else.
    """
    files = kinds(folder)
    good = {name: kind.path.read_bytes() for name, kind in files.items()}
    found: dict[str, tuple[int, int]] = dict.fromkeys(files, (0, 0))
    names = list(files)
    for number in range(count):
        name = names[number % len(names)]
        kind = files[name]
        try:
            said = strike(kind, random.Random(f"{seed}/{number}"), good[name])
        except Exception as error:
            kept = folder / "spoilt"
            shutil.copy(kind.path, kept)
            raise AssertionError(f"{name}, number {number}: {error!r}") from error
        finally:
            kind.path.write_bytes(good[name])
        refused, taken = found[name]
        found[name] = (refused + bool(said), taken + (not said))
    return found


def a_bundle() -> Bundle:
    """One with a function, a collective and code that no device runs."""
    spec = TensorSpec(name="x", role="data", shape=(2, 3), dtype="f32")
    result = TensorSpec(name="y", role="result", shape=(2, 3), dtype="f32")
    file = "modules/cpu.vmfb"
    module = Module(file=file, target="cpu", backend="llvm-cpu", driver="local-task")
    manifest = Manifest(
        mode="forward",
        functions={"main": Function(inputs=(spec,), results=(result,))},
        modules={"cpu": module},
    )
    return Bundle.build(manifest, {file: b"code"})


EXPERIMENT = {
    "model_path": "model.mlir",
    "data_path": "builtin:python-docs",
    "learning_rate": 0.1,
    "tau": 5,
    "outer_loop_steps": 4,
    "data": {"readers": 2},
}

CLUSTER = {
    "devices": {
        name: {
            "target": "cpu",
            "host": name,
            "memory": 8_000_000_000,
            "throughput": {"f32": 5e10},
            "membw": 1e10,
        }
        for name in "ab"
    },
    "links": [{"ends": ["a", "b"], "bandwidth": 1e9, "latency_ns": 50_000}],
}
