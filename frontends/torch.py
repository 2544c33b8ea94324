"""PyTorch modules as programs: `from_torch(model, *inputs)`.

The arguments of `@main` are the trained parameters in the order of
`named_parameters()`, then the tensors of `forward`. A tied weight is one
argument. Buffers and parameters with `requires_grad=False` are constants.

Derivatives are PyTorch's: stops (`torch_stops`), rules of `autograd.Function`
(`torch_rules`) and the sides of ties (`torch_formulas`) come along.
"""

import inspect
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

import numpy as np

from pcp.dialect.bindings import ir, torch_importer
from pcp.dialect.context import make_context, parse
from pcp.errors import IRError, MissingPackage, PcpError, UsageError, install
from pcp.frontends.constants import freeze_arguments, tidy
from pcp.frontends.jax_rules import attach
from pcp.frontends.signature import Argument, annotate, describe_init
from pcp.frontends.torch_constants import copied, literal_hooks, raw
from pcp.frontends.torch_formulas import formulas
from pcp.frontends.torch_marks import Mark, cut, join
from pcp.frontends.torch_places import line_of, place
from pcp.frontends.torch_rules import TorchRules
from pcp.frontends.torch_stops import check_ops, stop
from pcp.frontends.torch_trace import Trace, check_hooks

if TYPE_CHECKING:
    import torch

# Constants travel inside the program's text; weights do not belong there.
MAX_CONSTANT_BYTES = 64 << 20


def from_torch(
    model: "torch.nn.Module", *inputs: "torch.Tensor", result: int | None = None
) -> ir.Module:
    """Export `model(*inputs)` as a module whose `@main` takes the parameters too.

    `inputs` fix shapes and dtypes; their values do not matter. `result` chooses
    one of several that `forward` returns, as the loss of a model that returns
    (logits, loss). The model keeps its mode: one that draws random numbers (dropout
    in training mode) or writes buffers (batch norm in training mode) is an `IRError`
    that names the place, and so is one whose gradients a program cannot say (hooks,
    writes that autograd does not see). A parameter that is used and that no gradient
    comes back to has the role "state".
    """
    torch = _torch()
    trained, frozen = trained_parameters(model), frozen_tensors(model)
    _check_frozen_size(frozen, type(model).__name__)
    check_hooks(torch, model)
    functional = _functional(torch, model, [*trained, *frozen], result)
    reader = _Reader(torch, Trace(torch), trained)
    tensors = [*trained.values(), *frozen.values()]
    wanted = [True] * len(trained) + [False] * len(frozen) + [True] * len(inputs)
    module, reached = reader.program(functional, (*tensors, *inputs), wanted)
    freeze_arguments(module, len(trained), [raw(t) for t in frozen.values()])
    attach(module)
    tidy(module)
    annotate(module, _arguments(model, trained, inputs, reached))
    return module


def trained_parameters(model: "torch.nn.Module") -> "dict[str, torch.Tensor]":
    """Name -> parameter that wants a gradient, in order, ties once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def frozen_tensors(model: "torch.nn.Module") -> "dict[str, torch.Tensor]":
    """Name -> buffer, or parameter that wants no gradient."""
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(model.named_buffers())}


def weights_of(model: "torch.nn.Module") -> dict[str, np.ndarray]:
    """Name -> value of each trained parameter, as `@main` takes them."""
    return {name: to_numpy(p) for name, p in trained_parameters(model).items()}


def to_numpy(tensor: "torch.Tensor") -> np.ndarray:
    """A C-contiguous copy on the host; bfloat16, which numpy lacks, as float32."""
    torch = _torch()
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return copied(tensor)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackage(
            f"exporting a PyTorch model needs torch: {install('torch')}"
        ) from error
    return torch


def _check_frozen_size(frozen: "Mapping[str, torch.Tensor]", model: str) -> None:
    total = sum(t.numel() * t.element_size() for t in frozen.values())
    if total > MAX_CONSTANT_BYTES:
        largest = max(frozen, key=lambda name: frozen[name].numel())
        raise IRError(
            f"{model}: {total >> 20} MiB of buffers and frozen "
            f"parameters (the largest is {largest}) would become constants in the "
            f"program; the limit is {MAX_CONSTANT_BYTES >> 20} MiB. Pass them to "
            "forward, or set requires_grad"
        )


def _functional(
    torch: Any, model: "torch.nn.Module", names: Sequence[str], result: int | None
) -> "torch.nn.Module":
    """A module without tensors of its own: `forward(*tensors, *inputs)`.

    `model` hides in the closure: registered, torch.export would lift its tensors
    a second time, and torch-mlir loses those of buffers that are not persistent.
    """

    class Functional(torch.nn.Module):
        def forward(self, *arguments: "torch.Tensor") -> Any:
            tensors = dict(zip(names, arguments, strict=False))
            inputs = arguments[len(names) :]
            check = model.register_forward_hook(_check_assigned(tensors))
            try:
                returned = torch.func.functional_call(model, tensors, inputs)
            finally:
                check.remove()
            return returned if result is None else _chosen(returned, result)

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
                    "effects: return the new value, or keep it out of forward"
                )

    return check


def _chosen(returned: Any, result: int) -> Any:
    if not isinstance(returned, tuple | list) or not 0 <= result < len(returned):
        count = len(returned) if isinstance(returned, tuple | list) else "one"
        raise UsageError(f"result {result}: forward returns {count}, counted from 0")
    return returned[result]


@dataclass(frozen=True)
class _Reader:
    """Makes modules of PyTorch modules, their stops and rules included."""

    torch: Any
    trace: Trace
    trained: "Mapping[str, torch.Tensor]"
    context: ir.Context = field(default_factory=make_context)

    def program(
        self, module: Any, inputs: tuple[Any, ...], wanted: Sequence[bool]
    ) -> tuple[ir.Module, set[int]]:
        """The program, and the inputs that a gradient comes back to."""
        text, marks, reached = self._text(module, inputs, wanted)
        program = parse(text, self.context, source=type(module).__name__)
        join(program, marks, TorchRules(self.trace, program, self.rule).build)
        return program, reached

    def rule(
        self, module: Any, inputs: tuple[Any, ...], rules: TorchRules
    ) -> ir.Module:
        """The program of a derivative rule, for the program that `rules` is of."""
        text, marks, _ = self._text(module, inputs, [True] * len(inputs))
        program = parse(text, self.context, source=type(module).__name__)
        tidy(program)  # before it speaks of functions that stand elsewhere
        join(program, marks, rules.build)
        return program

    def _text(
        self, module: Any, inputs: tuple[Any, ...], wanted: Sequence[bool]
    ) -> tuple[str, list[Mark], set[int]]:
        """StableHLO text with locations, and what was cut out of it."""
        torch, fx = self.torch, torch_importer()
        # torch.export warns about its own internals.
        with catch_warnings():
            simplefilter("ignore")
            with _blame("torch.export"), self.trace.watching():
                program = torch.export.export(module, _copies(inputs), strict=False)
            check_ops(torch, program.graph_module)
            _check_captured(program, self.trained)
            reached = stop(torch, program, wanted)
            table = {**fx.get_decomposition_table(), **formulas(torch)}
            with _blame("torch's decompositions"):
                program = program.run_decompositions(table)
            _check_pure(torch, program, getattr(module, "names", ()))
            marks = cut(program)
            reached |= set(_unused(program, len(inputs)))
            with _blame("torch-mlir"):
                read = fx.export_and_import(
                    program,
                    output_type="stablehlo",
                    decomposition_table={},
                    hooks=literal_hooks(torch, fx),
                )
        return read.operation.get_asm(enable_debug_info=True), marks, reached


def _unused(program: Any, count: int) -> Iterator[int]:
    """Inputs, of the first `count`, that no result depends on."""
    nodes = program.graph.find_nodes(op="placeholder")
    return (i for i, node in enumerate(nodes[:count]) if not node.users)


def _copies(tensors: "Sequence[torch.Tensor]") -> "tuple[torch.Tensor, ...]":
    """torch.export makes one argument of a tensor that is passed twice.

    They want a gradient where the originals do: models ask.
    """
    return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)


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


def _check_pure(torch: Any, program: Any, names: Sequence[str]) -> None:
    """No random numbers, no writes to buffers: `@main` is a function."""
    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise IRError(
                f"{place(node)}: {node.target} draws random numbers, which a "
                "compiled step cannot; call model.eval() or set dropout to 0"
            )
    signature = program.graph_signature
    if written := set(signature.user_inputs_to_mutate.values()):
        order = [name for name in signature.user_inputs if isinstance(name, str)]
        changed = [
            name for name, arg in zip(names, order, strict=False) if arg in written
        ]
        raise IRError(
            f"the model writes {', '.join(changed) or 'its inputs'} while it runs; "
            "@main has no side effects: call model.eval(), or use a norm without "
            "running statistics"
        )


def _arguments(
    model: "torch.nn.Module",
    trained: "Mapping[str, torch.Tensor]",
    inputs: "tuple[torch.Tensor, ...]",
    reached: Collection[int],
) -> list[Argument]:
    """Parameters that no gradient comes back to are state: torch updates none."""
    parameters = [
        Argument(name, "param", describe_init(to_numpy(p)))
        if i in reached
        else Argument(name, "state")
        for i, (name, p) in enumerate(trained.items())
    ]
    names = list(inspect.signature(model.forward).parameters)
    data = [
        Argument(names[i] if i < len(names) else f"input{i}", "data")
        for i in range(len(inputs))
    ]
    return parameters + data
