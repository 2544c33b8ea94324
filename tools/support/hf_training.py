"""A folder of transformers is trained, and leaves a run as such a folder.

Before the run it is exported as `pcp export --hf` does it: program and weights lie in
`models/<name>-<key>` beside the runs, and are made once for a folder, a size and a
task. In training mode, so dropout draws as the configuration says.
"""

import hashlib
import os
import shutil
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcp import strict_json
from pcp.errors import ConfigError, UsageError
from pcp.tools.support import hf_folder
from pcp.tools.support.command import Parser
from pcp.training.config.experiment import Experiment
from pcp.training.data.formats.table import format_of
from pcp.training.storage import adapter_files, checkpoint, safetensors_io
from pcp.training.storage.state_names import averaged
from pcp.version import VERSION

if TYPE_CHECKING:
    from pcp.frontends.huggingface.exported import Exported

MODEL, WEIGHTS = "model.mlir", "weights.safetensors"
TOKENIZER = "tokenizer.json"
SAVED, ADAPTER = "model", "adapter"
"""Folders of a run: what `from_pretrained` reads, and what peft reads."""

#: peft's words for tasks.
PEFT = {
    "text-generation": "CAUSAL_LM",
    "text2text-generation": "SEQ_2_SEQ_LM",
    "text-classification": "SEQ_CLS",
}


@dataclass(frozen=True)
class Request:
    """What is trained: a folder, its task, and how much data a step takes at once."""

    folder: str
    task: str | None
    batch_size: int
    block_size: int


def add_flags(parser: Parser) -> None:
    """The flag --hf and its companions, of commands that take such a folder."""
    add = parser.add_argument
    add("--hf", metavar="DIR", help="in its place: a folder of transformers")
    add("--task", help="of --hf; default: what the architecture says")
    add("--batch-size", type=int, metavar="B", help="with --hf: samples; default 8")
    add("--block-size", type=int, metavar="T", help="with --hf: tokens; default 128")


def requested(flags: Namespace) -> Request | None:
    """What --hf and its companions ask for; `UsageError` where they do not agree."""
    others = {"--task": flags.task, "--batch-size": flags.batch_size}
    others["--block-size"] = flags.block_size
    if flags.hf is None:
        if given := [name for name, value in others.items() if value is not None]:
            raise UsageError(f"{given[0]} goes with --hf")
        return None
    if flags.model:
        raise UsageError("give one model: --hf or --model")
    sizes = [flags.batch_size or 8, flags.block_size or 128]
    if min(sizes) < 1 or 0 in (flags.batch_size, flags.block_size):
        raise UsageError("--batch-size, --block-size: at least one")
    return Request(flags.hf, flags.task, *sizes)


def tokenized(experiment: Experiment, folder: str) -> Experiment:
    """Text is tokenized as the model's folder says, if nothing else is said."""
    path, options = Path(folder, TOKENIZER), experiment.data_options
    said = "tokenizer" in experiment.model_fields_set or options.tokenizer_path
    tokens = format_of(experiment, experiment.data_path).name == "tokens"
    if said or not tokens or not path.exists():
        return experiment
    data = options.model_copy(update={"tokenizer_path": str(path.absolute())})
    return experiment.model_copy(update={"data": data})


def prepared(experiment: Experiment, request: Request) -> Experiment:
    """The experiment with the exported program, and weights where it has none."""
    made = _made(experiment, request)
    weights = str(made / WEIGHTS)
    found: dict[str, object] = {"model_path": str(made / MODEL)}
    if not (experiment.lora or experiment.initial_weights):
        found["initial_weights"] = weights
    if not experiment.frozen_weights and _brings(experiment, made / MODEL):
        found["frozen_weights"] = weights
    return experiment.model_copy(update=found)


def save(experiment: Experiment, request: Request, round_: str, run: Path) -> Path:
    """The weights of a checkpoint in the run's folder, for transformers or peft."""
    found = checkpoint.load(round_)
    trained, state = found.parameters, found.state
    if experiment.evaluated == "averages":
        trained = averaged(trained, state)
    if experiment.lora:
        out, hidden = run / ADAPTER, run / f".{ADAPTER}"
        said = dict(part.split("=", 1) for part in experiment.lora.split(","))
        adapter_files.save_adapter(
            hidden,
            trained,
            alpha=float(said.get("alpha", adapter_files.ALPHA)),
            base=str(Path(request.folder).absolute()),
            task=PEFT.get(_task(request)),
        )
    else:
        out, hidden = run / SAVED, run / f".{SAVED}"
        shutil.rmtree(hidden, ignore_errors=True)
        first = safetensors_io.mapped(Path(experiment.model_path).with_name(WEIGHTS))
        values = first | trained | state
        hf_folder.save(request.folder, values, hidden)
    shutil.rmtree(out, ignore_errors=True)
    hidden.rename(out)
    return out


def _task(request: Request) -> str:
    from pcp.frontends.huggingface.skeleton import task_of

    return request.task or task_of(request.folder)


def _brings(experiment: Experiment, model: Path) -> bool:
    """Whether the program takes what no training changes, and no seed makes."""
    from pcp.dialect.context import read
    from pcp.dialect.roles import GIVEN
    from pcp.frontends.signature import arguments_of

    if experiment.lora or experiment.freeze:
        return True
    arguments = arguments_of(read(str(model)))
    return any(a.role == "frozen" or a.init == GIVEN for a in arguments)


def _made(experiment: Experiment, request: Request) -> Path:
    """The folder of the exported model; it is written whole or not at all."""
    source = Path(request.folder)
    name = f"{source.resolve().name}-{_key(source, request, experiment.seed)}"
    out = Path(experiment.checkpoint_dir) / "models" / name
    if out.exists():
        return out
    from pcp.frontends.signature import require_scalar_loss

    made = exported(request, training=True, seed=experiment.seed)
    require_scalar_loss(made.module)
    hidden = out.with_name(f".{name}.{os.getpid()}")
    try:
        hidden.mkdir(parents=True, exist_ok=True)
        (hidden / MODEL).write_text(f"{made.module}".strip() + "\n", encoding="utf-8")
        hf_folder.write_weights(made, hidden / WEIGHTS)
        hidden.rename(out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot write it: {error.strerror}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return out


def exported(request: Request, *, training: bool, seed: int | None) -> "Exported":
    """The traced model; in training mode dropout draws as its configuration says."""
    from pcp.frontends.huggingface.exported import export
    from pcp.frontends.huggingface.tasks import Size

    size = Size(request.batch_size, request.block_size)
    return export(request.folder, request.task, size, training=training, seed=seed)


def _key(source: Path, request: Request, seed: int) -> str:
    """A digest of all that an exported model follows from; files by size and time."""
    from importlib.metadata import version

    names = sorted(f for f in source.glob("*") if f.suffix in (".safetensors", ".json"))
    files = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in names]
    packages = [version(package) for package in ("torch", "transformers")]
    told: Any = [asdict(request), files, packages, VERSION, seed]
    return hashlib.sha256(strict_json.dumps(told).encode()).hexdigest()[:12]
