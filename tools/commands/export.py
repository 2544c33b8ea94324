"""`pcp export`: a PyTorch or JAX model becomes `model.mlir`.

    pcp export --torch model.py:GPT --batch-size 64 --block-size 32 -o gpt.mlir
    pcp export --jax model.py:loss -o loss.mlir

PyTorch: `FILE.py:Class` is made with the `--set` keywords, and with
`block_size` where its constructor takes it. Its inputs come from the method
`example_inputs(batch_size, block_size)` when it has one; otherwise each
required argument of `forward`, and one named `targets`, is an int64 tensor
[batch, block].

Hugging Face: `--hf DIR` is a folder with config.json and *.safetensors, as
transformers' `save_pretrained` writes it; `--task` is a pipeline's name.
`--checkpoint ROUND` writes the folder OUT with the weights of a run's checkpoint,
which `from_pretrained` reads.

JAX: `FILE.py:function` is traced with the arguments that `FILE.py`'s
`example_arguments()` returns (or the function named by `--arguments`); `--params`,
`--state`, `--frozen`, `--key` and `--has-aux` say what these are, as `pcp.from_jax`
does, and `--evaluate` names what validation calls.
"""

import ast
import importlib.util
import inspect
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pcp.errors import (
    ConfigError,
    IRError,
    MissingPackage,
    UsageError,
    install,
)
from pcp.tools.support.command import Parser, run
from pcp.tools.support.progress import doing
from pcp.tools.support.user_files import load_file, named, users_code
from pcp.training.config.experiment import BROUGHT
from pcp.training.storage import safetensors_io

if TYPE_CHECKING:
    from pcp.dialect.bindings import ir

EXAMPLE = (
    "pcp export --torch examples/models/nanogpt_small.py:GPT "
    "--batch-size 64 --block-size 32 -o gpt.mlir"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pcp export`; returns the exit code."""
    return run("pcp export", _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(prog="pcp export", example=EXAMPLE, description=__doc__)
    parser.add_argument("--torch", metavar="FILE.py:CLASS", help="a PyTorch module")
    parser.add_argument("--jax", metavar="FILE.py:FUNCTION", help="a JAX function")
    parser.add_argument("--hf", metavar="DIR", help="a folder of transformers")
    parser.add_argument("--task", help="of --hf; default: what the architecture says")
    parser.add_argument(
        "--checkpoint",
        metavar="ROUND",
        help="with --hf: a checkpoint's folder, whose weights OUT is to have",
    )
    parser.add_argument(
        "--evaluated",
        choices=("averages", "parameters"),
        default="averages",
        help="with --checkpoint: the weights' averages where it has them, or not",
    )
    parser.add_argument("--model-file", metavar="FILE.py", help="as in --torch")
    parser.add_argument("--class-name", metavar="CLASS", help="as in --torch")
    parser.add_argument("-o", "--out", metavar="M.mlir", help="default: FILE.mlir")
    parser.add_argument("--batch-size", type=_positive, default=1, metavar="B")
    parser.add_argument("--block-size", type=_positive, default=32, metavar="T")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a keyword of the model's constructor (repeatable)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    parser.add_argument(
        "--weights", metavar="W.safetensors", help="write the initial weights too"
    )
    parser.add_argument(
        "--result",
        type=int,
        metavar="I",
        help="PyTorch: which of forward's results is the loss, counted from 0",
    )
    parser.add_argument(
        "--arguments",
        default="example_arguments",
        metavar="NAME",
        help="JAX: the function that returns the example arguments",
    )
    for option, what in _POSITIONS.items():
        parser.add_argument(
            f"--{option}",
            type=_positions,
            metavar="I,...",
            help=f"JAX: the arguments, counted from 0, that {what}",
        )
    parser.add_argument(
        "--key", type=int, metavar="I", help="JAX: the argument that is a random key"
    )
    parser.add_argument(
        "--has-aux", action="store_true", help="JAX: metrics come beside the loss"
    )
    parser.add_argument(
        "--evaluate",
        metavar="NAME",
        help="JAX: the function that validation calls in place of FUNCTION",
    )
    parser.add_argument(
        "--forward",
        action="store_true",
        help="the model need not return a scalar loss (inference)",
    )
    return parser


_POSITIONS = {
    "params": "hold parameters (default: 0)",
    "state": "the function writes",
    "frozen": "are read only",
}


def _positions(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise ArgumentTypeError(f"{text!r}: write numbers, as 0,2")
    return tuple(map(int, parts))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _main(argv: Sequence[str]) -> None:
    options = parser().parse_args(argv)
    if options.hf:
        _main_hf(options)
        return
    if options.task or options.checkpoint:
        raise UsageError("--task and --checkpoint go with --hf")
    framework, path, name = _source(options)
    if framework != "jax":
        _refuse_roles(options)
    out = Path(options.out or Path(path).with_suffix(".mlir").name)
    _check_installed(framework)  # before the model's file, which fails without it
    from pcp.frontends.signature import require_scalar_loss

    with doing(f"exporting {name}"):
        module, weights = _EXPORTERS[framework](load_file(path), path, name, options)
    if not options.forward:
        require_scalar_loss(module)
    _write(out, f"{module}".strip().encode() + b"\n")
    brought = _brought(module, weights)
    if options.weights:
        own = {name: a for name, a in weights.items() if name not in brought}
        _write(Path(options.weights), safetensors_io.to_bytes(own))
    beside = out.with_suffix(BROUGHT)
    if brought:
        _write(beside, safetensors_io.to_bytes(brought))
    _summary(module, out, options.weights)
    if brought:
        print(
            f"{beside}: what the model reads and does not train, {len(brought)} tensors"
        )


def _refuse_roles(options: Namespace) -> None:
    """A PyTorch model says itself what its tensors are."""
    for option in (*_POSITIONS, "key", "has_aux", "evaluate"):
        if getattr(options, option) not in (None, False):
            raise UsageError(f"--{option.replace('_', '-')} goes with --jax")


def _main_hf(options: Namespace) -> None:
    """From a folder of transformers, or with a checkpoint's weights into one."""
    _refuse_roles(options)
    if options.torch or options.jax or options.model_file:
        raise UsageError("give one model: --hf, --torch, --jax or --model-file")
    if options.checkpoint:
        _save_hf(options)
        return
    from pcp.frontends.huggingface.exported import export
    from pcp.frontends.huggingface.tasks import Size
    from pcp.frontends.signature import require_scalar_loss
    from pcp.tools.support.hf_folder import write_weights

    out = Path(options.out or f"{Path(options.hf).resolve().name}.mlir")
    size = Size(options.batch_size, options.block_size)
    with doing(f"exporting {Path(options.hf).resolve().name}"):
        exported = export(options.hf, options.task, size, options.result)
    if not options.forward:
        require_scalar_loss(exported.module)
    _write(out, f"{exported.module}".strip().encode() + b"\n")
    if options.weights:
        write_weights(exported, Path(options.weights))
    _summary(exported.module, out, options.weights)


def _save_hf(options: Namespace) -> None:
    from pcp.tools.support.hf_folder import save
    from pcp.training.storage.checkpoint import load
    from pcp.training.storage.state_names import AVERAGE, averaged

    if not options.out:
        raise UsageError("--checkpoint needs -o, the folder to write")
    found = load(options.checkpoint)
    trained, what = found.parameters, "weights"
    if options.evaluated == "averages" and any(
        AVERAGE + n in found.state for n in trained
    ):
        trained, what = averaged(trained, found.state), "averages of the weights"
    save(options.hf, trained | found.state, options.out)
    print(f"{options.out}: the {what} of {options.checkpoint}, for from_pretrained")


def _source(options: Namespace) -> tuple[str, str, str]:
    """(framework, file, name) of the one model that was asked for."""
    given = {key: getattr(options, key) for key in ("torch", "jax", "model_file")}
    chosen = [key for key, value in given.items() if value]
    if len(chosen) != 1:
        raise UsageError("give one model: --torch, --jax or --model-file")
    if chosen == ["model_file"]:
        if not options.class_name:
            raise UsageError("--model-file needs --class-name")
        return "torch", options.model_file, options.class_name
    if options.class_name:
        raise UsageError(f"--class-name goes with --model-file, not --{chosen[0]}")
    path, colon, name = given[chosen[0]].rpartition(":")
    if not colon or not path or not name:
        raise UsageError(f"--{chosen[0]} {given[chosen[0]]!r}: write FILE.py:NAME")
    return chosen[0], path, name


def _check_installed(framework: str) -> None:
    # Not by importing it: the model's file may say before how (JAX_ENABLE_X64).
    if importlib.util.find_spec(framework) is None:
        raise MissingPackage(f"--{framework} needs {framework}: {install(framework)}")


# --- PyTorch ---


def _export_torch(
    source: ModuleType, path: str, name: str, options: Namespace
) -> "tuple[ir.Module, dict[str, np.ndarray]]":
    import torch

    from pcp.frontends.torch import from_torch, values_of

    torch.manual_seed(options.seed)
    model = _construct(named(source, path, name), f"{path}:{name}", options)
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"{path}:{name} is not a torch.nn.Module class")
    inputs = _inputs(torch, model, options)
    try:
        module = from_torch(model, *inputs, result=options.result)
    except IRError as error:
        # What torch raised is the cause; pcp's own refusals have other reasons.
        if error.__cause__ is not None and not hasattr(model, "example_inputs"):
            shape = [options.batch_size, options.block_size]
            error.add_note(
                f"each input of forward was taken for int64{shape}; where that is not "
                "so, give the class a method example_inputs(batch_size, block_size) "
                "that returns its tensors"
            )
        raise
    return module, values_of(model, module)


def _construct(cls: Any, what: str, options: Namespace) -> Any:
    if not callable(cls):
        raise ConfigError(f"{what} is not a class")
    keywords = dict(_setting(item) for item in options.set)
    if "block_size" in inspect.signature(cls).parameters:
        keywords.setdefault("block_size", options.block_size)
    try:
        inspect.signature(cls).bind(**keywords)
    except TypeError as error:
        raise ConfigError(f"{what}: {error} (see --set KEY=VALUE)") from error
    with users_code(what, "being made"):
        return cls(**keywords)


def _setting(item: str) -> tuple[str, Any]:
    key, equals, text = item.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {item!r}: write KEY=VALUE")
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError):  # a bare word is a string
        return key, text


def _inputs(torch: Any, model: Any, options: Namespace) -> tuple[Any, ...]:
    if hasattr(model, "example_inputs"):
        return tuple(model.example_inputs(options.batch_size, options.block_size))
    parameters = inspect.signature(model.forward).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise IRError(
            f"{type(model).__name__}.forward takes *args; give the class a method "
            "example_inputs(batch_size, block_size) that returns its tensors"
        )
    tokens = [p for p in parameters if p.default is p.empty or p.name == "targets"]
    shape = (options.batch_size, options.block_size)
    return tuple(torch.zeros(shape, dtype=torch.int64) for _ in tokens)


# --- JAX ---


def _export_jax(
    source: ModuleType, path: str, name: str, options: Namespace
) -> "tuple[ir.Module, dict[str, np.ndarray]]":
    from pcp.frontends.jax import from_jax, values_of

    function = named(source, path, name)
    if options.result is not None:
        raise UsageError("--result goes with a PyTorch model")
    with users_code(f"{path}:{options.arguments}", "running"):
        arguments = tuple(named(source, path, options.arguments)())
    roles = {
        option: value
        for option in (*_POSITIONS, "key", "has_aux")
        if (value := getattr(options, option)) not in (None, False)
    }
    if options.evaluate:
        roles["evaluate"] = named(source, path, options.evaluate)
    with users_code(f"{path}:{name}", "being traced"):
        module = from_jax(function, *arguments, **roles)
    held = {p for option in _POSITIONS for p in roles.get(option, ())}
    valued = held if "params" in roles else held | {0}
    return module, values_of(function, *arguments, params=valued)


_EXPORTERS = {"torch": _export_torch, "jax": _export_jax}


# --- output ---


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _brought(
    module: "ir.Module", values: "dict[str, np.ndarray]"
) -> "dict[str, np.ndarray]":
    """What a run cannot make from its seed, and no weights file is asked for."""
    from pcp.dialect.roles import GIVEN
    from pcp.frontends.signature import arguments_of

    names = [
        a.name for a in arguments_of(module) if a.role == "frozen" or a.init == GIVEN
    ]
    if lacking := [name for name in names if name not in values]:
        raise IRError(
            f"the model reads {lacking[0]!r} and has no value of it: give an array in "
            "place of a jax.ShapeDtypeStruct"
        )
    return {name: values[name] for name in names}


def _summary(module: "ir.Module", out: Path, weights: str | None) -> None:
    from pcp.frontends.signature import arguments_of

    arguments = arguments_of(module)
    parameters = sum(argument.role == "param" for argument in arguments)
    data = ", ".join(a.name for a in arguments if a.role == "data") or "none"
    print(f"{out}: @main with {parameters} parameters; data: {data}")
    if weights:
        print(f"{weights}: initial weights")


if __name__ == "__main__":
    sys.exit(main())
