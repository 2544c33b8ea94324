"""The Python API of the compiling half; `import pcp` gives these names.

module = pcp.load("model.mlir")
module = pcp.run_passes(module, "builtin.module(pcp-grad{func=main},cse)")
bundle = pcp.compile(module, targets=["cpu"], optimizer=pcp.AdamW(lr=6e-4))
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from itertools import count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.catalog import pipeline
from pcp.compiler.emission import copy
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import ConfigError, UsageError, nearest
from pcp.frontends import jax as jax_frontend
from pcp.frontends import jax_models, stablehlo
from pcp.frontends import optax as optax_frontend
from pcp.frontends import torch as torch_frontend
from pcp.frontends.decoders import families, program
from pcp.passes.core.base import Observer
from pcp.passes.training.optimizers import spec as optimizers
from pcp.passes.training.optimizers.spec import Imported
from pcp.tools import extension
from pcp.tools.support import optax_optimizer
from pcp.tools.support.cache_folder import OFF, cache_folder
from pcp.training.config.experiment_file import (
    given,
)

if TYPE_CHECKING:
    import torch

    from pcp.tools.commands.train import Trained
    from pcp.training.observe.callbacks import Callbacks

extension.load_installed()


def load_extension(path: str | Path) -> extension.Extension:
    """Register the `EXTENSION` of a Python file for this process, and return it."""
    return extension.load(path)


#: Options of `compile` that are paths.
PATHS = frozenset({"cache", "keep_ir", "cluster"})


def train(
    experiment: str | Path | Mapping[str, Any],
    *,
    workers: int | None = None,
    callbacks: Sequence["Callbacks"] = (),
    run: str | Path | None = None,
    resume: bool = False,
) -> "Trained":
    """Train on this machine, as `pcp train` does; returns when the run has ended.

    `experiment` is a file, or its keys with paths from the current folder; `run` is the
    run's folder, in place of a new one. `callbacks` hear of rounds, validations and
    checkpoints. A bad experiment is a `ConfigError`.
    """
    from pcp.tools.commands.train import Place
    from pcp.tools.commands.train import train as train_here
    from pcp.tools.support import training_job

    if isinstance(experiment, Mapping):
        told = training_job.checked(given(experiment), "experiment")
    else:
        told = training_job.read_experiment(str(experiment))
    where = None if run is None else str(run)
    place = Place(workers)
    return train_here(told, place, callbacks, resume=resume, where=where)


def load(path: str | Path) -> ir.Module:
    """Read a model: MLIR text, bytecode, or a StableHLO portable artifact."""
    return stablehlo.load(path)


def from_torch(
    model: "torch.nn.Module",
    *args: Any,
    result: int | str | None = None,
    average: Mapping[str, str] | None = None,
    evaluation: bool = True,
    **keywords: Any,
) -> ir.Module:
    """Export `model(*args, **keywords)`; its parameters become arguments of `@main`.

    Tensors may stand in dicts, lists and tuples. `result` chooses one of several that
    the model returns, by position or name; left out, that is the `loss` where there is
    one. `average={"*.seen": "sum"}` says what becomes of state when workers meet: mean,
    max, sum or first. Validation calls the model under `model.eval()`, or with
    `evaluation=False` in the mode that it trains in.
    """
    given = {"result": result, "average": average, "evaluation": evaluation}
    return torch_frontend.from_torch(model, *args, **given, **keywords)


def from_hf(
    folder: str | Path,
    task: str | None = None,
    *,
    batch_size: int = 1,
    block_size: int = 32,
    result: int | str | None = None,
    phases: Sequence[str] = (),
    context: int | Sequence[int] = 0,
    weights: str = "f32",
    **inputs: Any,
) -> ir.Module:
    """Export the model of a folder that transformers' `save_pretrained` wrote.

    `task` is a pipeline's name ("text-generation", ...); left out, the architecture
    says it. Inputs are the task's, of `batch_size` samples of `block_size` tokens;
    tensors given by name come beside them or in their place, and None leaves one out.
    No weights are read: name the folder's as `pcp export --hf DIR --weights FILE`
    writes them, or else a run starts anew.

    With `phases`, as `["prefill:32", "decode:1,4"]`, the program is one to serve:
    functions `prefill_32_256`, ... over a cache of `context` positions, made of
    config.json alone, without torch. Several contexts give functions for each. The
    weights of its products are `weights`: f32, bf16, f16, int8 or int4.
    """
    if phases:
        return _decoder(folder, phases, context, weights)
    from pcp.frontends.huggingface.exported import export
    from pcp.frontends.huggingface.tasks import Size

    size = Size(batch_size, block_size)
    return export(folder, task, size, result, inputs).module


def _decoder(
    folder: str | Path,
    wanted: Sequence[str],
    context: int | Sequence[int],
    weights: str,
) -> ir.Module:
    contexts = [context] if isinstance(context, int) else list(context)
    chosen = program.phases(wanted, contexts)
    return program.build(families.read(folder), chosen, weights=weights)


def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    params: Collection[int] = (0,),
    state: Collection[int] = (),
    frozen: Collection[int] = (),
    key: int | None = None,
    has_aux: bool = False,
    average: Mapping[str, str] | None = None,
    evaluate: Callable[..., Any] | None = None,
    rules: bool = True,
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> ir.Module:
    """Trace `fn(*args)`; the arguments at `params` hold the parameters.

    Those at `state` are written: the function returns the loss and the new state. Those
    at `frozen` are read only, and `key` is the place of a key of `jax.random`. With
    `has_aux` there are metrics beside the loss, or beside the new state, a pair.
    `evaluate`, a function like `fn`, is what validation calls in its place: one that
    leaves dropout out.

    Derivatives are those of `jax.grad`: `stop_gradient` and functions' own derivative
    rules are kept. With `rules=False`, meant for inference, the latter are not: such
    functions are differentiated as they are written. Shardings, as `jax.jit` takes
    them, become annotations of the module.
    """
    return jax_frontend.from_jax(
        fn,
        *args,
        params=params,
        state=state,
        frozen=frozen,
        key=key,
        has_aux=has_aux,
        average=average,
        evaluate=evaluate,
        rules=rules,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
    )


def from_flax(
    model: Any,
    variables: Mapping[str, Any],
    loss: Callable[..., Any],
    *data: Any,
    mutable: Collection[str] = (),
    rngs: Collection[str] = (),
    has_aux: bool = False,
    average: Mapping[str, str] | None = None,
) -> ir.Module:
    """Trace a model of flax linen; `variables` are what `model.init` returned.

    `loss(model, *data)` calls the model as one that has its variables. Its `params` are
    trained, the collections in `mutable` are state, others are frozen. `rngs` names
    the streams that it draws from, as ["dropout"]; `has_aux` and `average` are those of
    `from_jax`.
    """
    options = jax_models.Options(has_aux, average)
    return jax_models.from_flax(
        model, variables, loss, data, options, mutable=mutable, rngs=rngs
    )


def from_nnx(
    model: Any,
    loss: Callable[..., Any],
    *data: Any,
    has_aux: bool = False,
    average: Mapping[str, str] | None = None,
) -> ir.Module:
    """Trace a model of flax nnx, of which `loss(model, *data)` is what is trained.

    Each `nnx.Param` is a parameter, other variables are state, and its random streams
    follow from the program's key. The model itself stays as it is.
    """
    options = jax_models.Options(has_aux, average)
    return jax_models.from_nnx(model, loss, data, options)


def from_equinox(
    model: Any,
    loss: Callable[..., Any],
    *data: Any,
    state: Any = None,
    key: bool = False,
    has_aux: bool = False,
    average: Mapping[str, str] | None = None,
) -> ir.Module:
    """Trace a model of equinox, of which `loss(model, *data)` is what is trained.

    Its arrays of floats are parameters, other arrays frozen. With `state`, an
    `eqx.nn.State`, it is `loss(model, state, *data)`, which returns the new one beside
    the loss; with `key` it takes the keyword `key`, of `jax.random`.
    """
    options = jax_models.Options(has_aux, average)
    return jax_models.from_equinox(model, loss, data, options, state=state, key=key)


def from_haiku(
    model: Any,
    params: Any,
    loss: Callable[..., Any],
    *data: Any,
    state: Any = None,
    key: bool = False,
    has_aux: bool = False,
    average: Mapping[str, str] | None = None,
) -> ir.Module:
    """Trace what `haiku.transform` made; `params` are what its `init` returned.

    `loss(model, *data)` calls the model with the data alone. With `state` it is of
    `transform_with_state`; with `key` it draws random numbers.
    """
    options = jax_models.Options(has_aux, average)
    return jax_models.from_haiku(
        model, params, loss, data, options, state=state, key=key
    )


def from_optax(tx: Any, params: Any = None, *, name: str | None = None) -> Imported:
    """An optimizer for `compile(optimizer=...)`: an optax.GradientTransformation.

    It is traced for the parameters of the program that it is given to, and becomes a
    part of `@apply`; what it keeps is state, in checkpoints under the paths of its
    leaves. It sees parameters as a dict by their names in the program; with `params`,
    the tree that the model was traced with, as such a tree. `name` is what a text calls
    it, as an experiment's `optimizer`; another process that compiles the run again
    makes it by the same name.
    """
    optax_frontend.check(tx)
    if name is None:
        taken = (f"optax{i or ''}" for i in count())
        name = next(kind for kind in taken if kind not in optimizers.KINDS)
    return optax_optimizer.register(tx, params, name)


def run_passes(
    module: ir.Module | str, passes: str, observers: Sequence[Observer] = ()
) -> ir.Module:
    """A copy of `module` after `passes`, a pipeline string as pcp-opt reads it.

    Here and in `grad` and `compile` a module may be given as its text.
    """
    result = copy(_module(module))
    pipeline(passes).run(result, observers)
    return result


def grad(
    module: ir.Module | str,
    func: str = "main",
    *,
    wrt: Sequence[int] | None = None,
    name: str | None = None,
) -> ir.Module:
    """A copy of `module` with the gradient of `@func` added, as `pcp-grad` does.

    `wrt` are argument positions (default: the parameters, or every float);
    `name` is the new function's (default `<func>_grad`).
    """
    options = [f"func={func}"]
    if wrt is not None:
        options.append(f"wrt={','.join(map(str, wrt))}")
    if name is not None:
        options.append(f"name={name}")
    return run_passes(module, f"pcp-grad{{{' '.join(options)}}}")


def compile(
    module: ir.Module | str,
    targets: str | Sequence[str] | None = None,
    *,
    mode: str | None = None,
    **options: Any,
) -> Bundle:
    """Compile for every target into one bundle; `bundle.write(path)` keeps it.

    Left out, `targets` is "cpu", or with a `cluster` what its devices are.
    `mode` is "train", "grad" or "forward"; left out, it is "train" where that is
    possible. Further options are the fields of `pcp.compiler.options.CompileOptions`:
    `optimizer`, `algorithm="diloco{lr=0.7}"`, `mesh={"dp": 2}`, `memory="16GiB"`,
    `sharding`, `zero`, `cluster`, ...; paths may be given as text. Modules are kept
    where the commands keep them, or in the folder `cache`; `cache="off"` is none.
    """
    known = [field.name for field in fields(CompileOptions)]
    if unknown := [name for name in options if name not in known]:
        raise UsageError(
            f"pcp.compile has no option {unknown[0]!r}.{nearest(unknown[0], known)}"
        )
    names = (targets,) if isinstance(targets, str) else targets
    if "cache" not in options or options["cache"] == OFF:  # as for the commands
        options["cache"] = cache_folder(options.get("cache"))
    options |= {name: _path(name, options[name]) for name in PATHS & options.keys()}
    chosen = CompileOptions(
        targets=None if names is None else tuple(names), mode=mode, **options
    )
    return driver.compile(_module(module), chosen)


def _module(given: object) -> ir.Module:
    """A module, or the one that a text says; a path is a `UsageError`."""
    if isinstance(given, ir.Module):
        return given
    if isinstance(given, str) and _is_text(given):
        return parse(given)
    if isinstance(given, str | Path):
        raise UsageError(f"{given} is no module; read a file with pcp.load(path)")
    raise UsageError(
        f"{type(given).__name__} is no module; make one with pcp.load, pcp.from_torch "
        "or pcp.from_jax"
    )


def _path(option: str, given: object) -> Path | None:
    if given is None or isinstance(given, str | PathLike):
        return None if given is None else Path(given)
    raise ConfigError(f"{option}={given!r} is no path")


def _is_text(given: str) -> bool:
    """Whether it is a program: each op of one stands on a line of its own."""
    return "\n" in given.strip() or "module" in given.split()
