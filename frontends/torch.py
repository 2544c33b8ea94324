"""PyTorch modules as programs: `from_torch(model, *inputs)`.

The arguments of `@main` are the trained parameters in the order of
`named_parameters()`, then frozen parameters and buffers as `pytorch.state` sorts them,
then the tensors of `forward`. A tied weight is one argument. Results are those of
`forward`, then the new values of what it writes.

Derivatives are PyTorch's: stops (`pytorch.stops`), rules of `autograd.Function`
(`pytorch.rules`) and the sides of ties (`pytorch.formulas`) come along.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

import numpy as np

from pcp.dialect.bindings import ir, torch_importer
from pcp.dialect.context import make_context, parse
from pcp.dialect.roles import KEY, OF_THE_MODEL
from pcp.errors import IRError, MissingPackage, PcpError, install
from pcp.frontends.constants import freeze_arguments, tidy
from pcp.frontends.jax_rules import attach
from pcp.frontends.pytorch import random as torch_random
from pcp.frontends.pytorch.constants import to_numpy
from pcp.frontends.pytorch.formulas import formulas
from pcp.frontends.pytorch.indices import count_from_front
from pcp.frontends.pytorch.inputs import Call, call_of, chosen
from pcp.frontends.pytorch.lowering import lower
from pcp.frontends.pytorch.marks import Mark, cut, draws, join
from pcp.frontends.pytorch.missing import keep_strides
from pcp.frontends.pytorch.modes import evaluating, watching
from pcp.frontends.pytorch.places import line_of, place, refuse
from pcp.frontends.pytorch.rules import TorchRules
from pcp.frontends.pytorch.state import Tensors, results_last
from pcp.frontends.pytorch.stops import check_ops, stop
from pcp.frontends.pytorch.trace import Trace, check_hooks
from pcp.frontends.signature import (
    Argument,
    Result,
    add_argument,
    add_evaluation,
    annotate,
    annotate_results,
    arguments_of,
    declare_averages,
    entry,
    is_float_scalar,
)

if TYPE_CHECKING:
    import torch


def from_torch(
    model: "torch.nn.Module",
    *inputs: Any,
    result: int | str | None = None,
    average: Mapping[str, str] | None = None,
    evaluation: bool = True,
    **keywords: Any,
) -> ir.Module:
    """Export `model(*inputs, **keywords)`; `@main` takes the parameters too.

    Tensors, alone or in dicts, lists and tuples, fix shapes and dtypes; their values
    do not matter. They are arguments of `@main` by the names that `pytorch.inputs` has;
    numbers, texts and None are fixed. `result` chooses one of several that `forward`
    returns, by position or name; left out, that is the `loss` of a mapping or an
    object that has one, or the first, of which further scalars are metrics.

    The model keeps its mode: in training mode batch norm writes its statistics, which
    are state, and dropout draws random numbers from the program's key, its last
    argument (`pytorch.random`). A model whose gradients a program cannot say (hooks,
    writes that autograd does not see) is an `IRError` that names the place. A parameter
    that is used and that no gradient comes back to is frozen. `average`
    says by patterns of names what becomes of state when workers meet, where it is not
    the mean of floats and the maximum of integers.

    Where a model in training mode asks for its mode, the module has its forward under
    `model.eval()` too, which validation calls; with `evaluation=False` validation drops
    out and normalizes as training does.
    """
    torch = _torch()
    tensors = Tensors.of(model)
    check_hooks(torch, model)
    call = call_of(model, inputs, keywords)
    functional = _functional(torch, model, tensors.names, call, result)
    trained, others = tensors.trained, tensors.others
    reader = _Reader(torch, Trace(torch), trained)
    wanted = [True] * len(trained) + [False] * len(others) + [True] * len(call.names)
    given = (*trained.values(), *others.values(), *call.tensors)
    with watching(torch, model) as mode:
        read = reader.program(functional, given, wanted)
    own = tensors.arguments(read.written, read.reached)
    data = [Argument(name, "data") for name in call.names]
    programs = [read]
    if evaluation and mode.asked and _loses(read.module):
        again = _Reader(torch, Trace(torch), trained, reader.context)
        with _in_evaluation(), evaluating(model):
            programs.append(again.program(functional, given, wanted))
    keys = [_key([*own, *data])] if any(p.draws for p in programs) else []
    for program in programs:
        _settle(program, tensors.constants(read.written), [*own, *data, *keys])
    if len({str(program.module) for program in programs}) > 1:
        add_evaluation(read.module, programs[1].module)
    declare_averages(read.module, average or {})
    return read.module


def _settle(
    read: "_Read", constants: "dict[int, np.ndarray]", arguments: Sequence[Argument]
) -> None:
    """Give a program its border: constants, names and roles."""
    freeze_arguments(read.module, constants)
    attach(read.module)
    tidy(read.module)
    if not read.draws and arguments[-1].role == "key":
        add_argument(read.module, KEY)
    annotate(read.module, arguments)
    _annotate_results(read.module, read.written)


def _loses(module: ir.Module) -> bool:
    """Whether the first result is a loss, which a model can be validated by."""
    border = ir.TypeAttr(entry(module).attributes["function_type"]).value
    results = ir.FunctionType(border).results
    return bool(results) and is_float_scalar(results[0])


@contextmanager
def _in_evaluation() -> Iterator[None]:
    """An error says in which mode the model cannot be exported, and the way out."""
    try:
        yield
    except PcpError as error:
        error.add_note(
            "this is the model under model.eval(), which validation runs; with "
            "evaluation=False it is validated in the mode that it trains in"
        )
        raise


def trained_parameters(model: "torch.nn.Module") -> "dict[str, torch.Tensor]":
    """Name -> parameter that wants a gradient, in order, ties once."""
    return dict(Tensors.of(model).trained)


def weights_of(model: "torch.nn.Module") -> dict[str, np.ndarray]:
    """Name -> value of each trained parameter, as `@main` takes them."""
    return {name: to_numpy(p) for name, p in trained_parameters(model).items()}


def values_of(model: "torch.nn.Module", module: ir.Module) -> dict[str, np.ndarray]:
    """Name -> value of all that `module`, made of the model, takes of it.

    Parameters, frozen tensors and state, in the order of `@main`.
    """
    tensors = Tensors.of(model)
    known = {**tensors.trained, **tensors.others}
    names = [a.name for a in arguments_of(module) if a.role in OF_THE_MODEL]
    return {name: to_numpy(known[name]) for name in names}


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackage(
            f"exporting a PyTorch model needs torch: {install('torch')}"
        ) from error
    return torch


def _functional(
    torch: Any,
    model: "torch.nn.Module",
    names: Sequence[str],
    call: Call,
    result: int | str | None,
) -> "torch.nn.Module":
    """A module without tensors of its own: `forward(*tensors, *inputs)`.

    `model` hides in the closure: registered, torch.export would lift its tensors
    a second time, and torch-mlir loses those of buffers that are not persistent.
    """

    class Functional(torch.nn.Module):
        def forward(self, *arguments: "torch.Tensor") -> Any:
            tensors = dict(zip(names, arguments, strict=False))
            inputs, keywords = call.filled(arguments[len(names) :])
            check = model.register_forward_hook(_check_assigned(tensors))
            try:
                returned = torch.func.functional_call(model, tensors, inputs, keywords)
            finally:
                check.remove()
            return chosen(returned, result)

    functional = Functional()
    functional.names = names
    return functional


def _check_assigned(tensors: "Mapping[str, torch.Tensor]") -> Any:
    """A hook that refuses a model whose buffers or parameters are others afterwards."""

    def check(model: "torch.nn.Module", *_: Any) -> None:
        now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name, tensor in tensors.items():
            if now.get(name) is not tensor:
                raise IRError(
                    f"the model assigns {name} while it runs; @main has no side "
                    f"effects: write it in place, {name}.copy_(new), and it is state"
                )

    return check


@dataclass(frozen=True)
class _Read:
    """A program: positions of inputs with a gradient, names of those it writes.

    draws: its last argument is the key of its random numbers.
    """

    module: ir.Module
    reached: set[int]
    written: list[str]
    draws: bool


@dataclass(frozen=True)
class _Reader:
    """Makes modules of PyTorch modules, their stops and rules included."""

    torch: Any
    trace: Trace
    trained: "Mapping[str, torch.Tensor]"
    context: ir.Context = field(default_factory=make_context)

    def program(
        self, module: Any, inputs: tuple[Any, ...], wanted: Sequence[bool]
    ) -> "_Read":
        """The program, and what is known of its inputs."""
        text, marks, reached, written = self._text(module, inputs, wanted)
        program = parse(text, self.context, source=type(module).__name__)
        join(program, marks, TorchRules(self.trace, program, self.rule).build)
        return _Read(program, reached, written, bool(draws(marks)))

    def rule(
        self, module: Any, inputs: tuple[Any, ...], rules: TorchRules
    ) -> ir.Module:
        """The program of a derivative rule, for the program that `rules` is of."""
        text, marks, _, _ = self._text(module, inputs, [True] * len(inputs))
        if drawn := draws(marks):
            raise refuse(
                drawn[0].place,
                "an autograd.Function draws random numbers, and its rule cannot: draw "
                "them outside and pass them to it",
            )
        program = parse(text, self.context, source=type(module).__name__)
        tidy(program)  # before it speaks of functions that stand elsewhere
        join(program, marks, rules.build)
        return program

    def _text(
        self, module: Any, inputs: tuple[Any, ...], wanted: Sequence[bool]
    ) -> tuple[str, list[Mark], set[int], list[str]]:
        """StableHLO text with locations, and what was cut out of it.

        Then the inputs with a gradient, and the names of those that are written.
        """
        torch = self.torch
        given = tuple(_copies(torch, inputs))
        # torch.export warns about its own internals.
        with catch_warnings():
            simplefilter("ignore")
            with _blame("torch.export"), self.trace.watching():
                program = torch.export.export(module, given, strict=False)
            check_ops(torch, program.graph_module)
            _check_captured(program, self.trained)
            reached = stop(torch, program, wanted)
            keep_strides(torch, program)
            count_from_front(torch, program)
            table = {
                **torch_importer().get_decomposition_table(),
                **formulas(torch),
                **torch_random.table(torch),
            }
            with _blame("torch's decompositions"):
                program = program.run_decompositions(table)
            _check_pure(torch, program)
            written = results_last(program, getattr(module, "names", ()))
            marks = cut(program)
            reached |= set(_unused(program, len(inputs)))
            with _blame("torch-mlir"):
                text = lower(torch, program)
        return text, marks, reached, written


def _unused(program: Any, count: int) -> Iterator[int]:
    """Inputs, of the first `count`, that no result depends on."""
    nodes = program.graph.find_nodes(op="placeholder")
    return (i for i, node in enumerate(nodes[:count]) if not node.users)


def _copies(torch: Any, tensors: "Sequence[torch.Tensor]") -> Iterator["torch.Tensor"]:
    """Tensors without data, one for each: torch.export makes one argument of two alike.

    They want a gradient where the originals do: models ask. They are on the CPU,
    whatever the originals are on: a model may be without data itself (`meta`).
    """
    fake = torch._subclasses.fake_tensor.FakeTensorMode()
    for t in tensors:
        with fake:
            alike = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
        yield alike.requires_grad_(t.requires_grad)


#: Prints three tracebacks for an op whose shapes do not fit, and then raises the error.
_LOGS_TRACEBACKS = "torch._subclasses.fake_tensor"


@contextmanager
def _blame(stage: str) -> Iterator[None]:
    """Turn whatever a foreign exporter raises into one `IRError`."""
    logger = logging.getLogger(_LOGS_TRACEBACKS)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    except PcpError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        wanted = [line for line in lines if "error:" in line] or lines[:1]
        detail = wanted[0] if wanted else type(error).__name__
        where = line_of(error)
        prefix = f"{where}: " if where else ""
        raise IRError(f"{prefix}{stage} cannot export this model: {detail}") from error
    finally:
        logger.disabled = before


def _check_captured(program: Any, trained: "Mapping[str, torch.Tensor]") -> None:
    """A parameter that the program has as a constant would not be trained."""
    kept = [*program.constants.values(), *program.state_dict.values()]
    held = {t.untyped_storage().data_ptr() for t in kept if hasattr(t, "data_ptr")}
    for name, parameter in trained.items():
        if parameter.numel() and parameter.untyped_storage().data_ptr() in held:
            raise IRError(
                f"parameter {name} is used otherwise than as the model's own attribute "
                "(by a list, a closure, or the argument of an autograd.Function), so "
                "its gradient would be lost; pass the tensor itself"
            )


def _check_pure(torch: Any, program: Any) -> None:
    """No op that draws random numbers is left: `@main` is a function."""
    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise IRError(
                f"{place(node)}: {node.target} draws random numbers in a way that is "
                "not read; draw them with rand, randn, bernoulli, randint or dropout"
            )


def _key(others: Sequence[Argument]) -> Argument:
    """The argument that random numbers follow from, of a name that is free."""
    names = {argument.name for argument in others}
    free = (f"rng{i or ''}" for i in range(len(names) + 1))
    return Argument(next(name for name in free if name not in names), "key")


def _annotate_results(module: ir.Module, written: Sequence[str]) -> None:
    """The loss, further scalars as metrics, and what is written; one alone has none."""
    border = ir.TypeAttr(entry(module).attributes["function_type"]).value
    types = list(ir.FunctionType(border).results)
    if len(types) == 1 and not written:
        return
    own = types[: len(types) - len(written)]
    loss = bool(own) and is_float_scalar(own[0])
    roles = [_role(type_, loss) for type_ in own]
    if loss:
        roles[0] = "loss"
    results = [
        Result("loss" if role == "loss" else f"{role}{i}", role)
        for i, role in enumerate(roles)
    ]
    annotate_results(module, [*results, *(Result(n, "state") for n in written)])


def _role(type_: ir.Type, has_loss: bool) -> str:
    return "metric" if has_loss and not ir.RankedTensorType(type_).rank else "result"
