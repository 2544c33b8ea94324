"""What a run is given, looked at before anything is compiled for it.

Models whose parsing would end the process are tried out in another one first: MLIR's
parser calls itself for each level of nesting, and a stack that is used up ends the
process. Text that is nested deeper than any program is parsed by a child first.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pcp import outside
from pcp.errors import ConfigError
from pcp.manifest import tensor_bytes
from pcp.training.config.experiment import Experiment
from pcp.training.data.corpus import Corpus
from pcp.training.storage import first_values
from pcp.training.trainer.bundle_checks import data_inputs

DEEPEST = 300
"""Brackets in each other that are parsed at once; programs have fewer than 100."""
LEAST_ROOM = 4 << 20
"""Bytes for a run's metrics, logs and bundles."""
_SECONDS = 300.0
_PIECES = re.compile(rb'"(?:[^"\\\n]|\\.)*"|[(\[{<]|->|[)\]}>]')
_PARSE = "import sys; from pcp.dialect.context import read; read(sys.argv[1])"


def check_model(path: str | Path) -> None:
    """`ConfigError` for a model of which the parser dies."""
    try:
        content = outside.read_bytes(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from error
    if (levels := depth(content)) <= DEEPEST:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PARSE, str(path)],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        died = done.returncode < 0
    except subprocess.TimeoutExpired:
        died = True
    if died:
        raise ConfigError(
            f"{path}: {levels} brackets in each other: MLIR's parser ends with its "
            "process there; no program is that deep"
        )


def depth(content: bytes) -> int:
    """How many brackets are in each other at most, outside of strings."""
    most = level = 0
    for match in _PIECES.finditer(content):
        piece = match[0]
        if piece in (b"(", b"[", b"{", b"<"):
            level += 1
            most = max(most, level)
        elif piece in (b")", b"]", b"}", b">"):
            level = max(0, level - 1)
    return most


def read_model(path: str) -> Any:
    """The module of a model's file."""
    from pcp.dialect.context import read

    check_model(path)
    return read(path)


def inspector(experiment: Experiment) -> Callable[[], Corpus | None]:
    """Opens the data as the model, or a bundle, takes them; `inspected`."""

    def inspect() -> Corpus | None:
        path = experiment.model_path
        if path.endswith(".pcp"):
            from pcp.bundle import Bundle

            return Corpus(experiment, data_inputs(Bundle.read(path).manifest))
        return inspected(experiment, read_model(path))

    return inspect


def check_room(folder: str, state: int) -> None:
    """`ConfigError` where the disk has no room for two checkpoints of `state` bytes.

    The last one goes when the next one is whole. A disk that is full later stops no
    run: it waits, and says so.
    """
    path = Path(folder).absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < 2 * state + LEAST_ROOM:
        raise ConfigError(
            f"checkpoint_dir: {existing} has {free >> 20} MiB free, and two "
            f"checkpoints of this model take {2 * state + LEAST_ROOM >> 20}; make "
            "room, or name a folder on another disk"
        )


def inspected(experiment: Experiment, model: Any) -> Corpus | None:
    """The data; refuses a full disk, and weights and data that the model cannot take.

    None for a model that cannot be trained: its compiler says why.
    """
    from pcp.compiler import signature
    from pcp.compiler.options import CompileOptions

    entry = CompileOptions.entry
    loss, *_ = (*signature.functions(model, entry, "train")[entry].results, None)
    if loss is None or loss.shape:
        return None
    parameters = signature.parameters(model, entry)
    if experiment.freeze and experiment.brought_path is None:
        raise ConfigError(
            "freeze: values of frozen parameters come with the model, and there is no "
            "file with them; name one that has all of them as frozen_weights"
        )
    # What is trained of a model with adapters, or in part, the compiler says.
    if experiment.initial_weights and not (experiment.lora or experiment.freeze):
        first_values.check_shapes(experiment.initial_weights, parameters)
    if not (experiment.lora or experiment.freeze):
        state = sum(tensor_bytes(p.shape, p.dtype) for p in parameters)
        check_room(experiment.checkpoint_dir, state)
    corpus = Corpus(experiment, signature.data_inputs(model, entry))
    corpus.check_vocabulary([p.shape for p in parameters])
    corpus.check_rows(signature.table_rows(model, entry))
    return corpus
