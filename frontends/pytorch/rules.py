"""Derivative rules of PyTorch functions: `torch.autograd.Function`.

torch.export records what `forward` does and forgets `backward`. A call that was seen
while it traced (see `pytorch.trace`) becomes a composite of the forward with a
`pcp.custom_vjp`, as calls of JAX functions with rules do (see `jax_rules`).

Both halves are traced as one function of the operands and the cotangents, since the
context carries anything of Python's from one to the other; `split` makes two of it.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pcp.dialect.bindings import ir
from pcp.errors import IRError, PcpError
from pcp.frontends.pytorch.places import refuse
from pcp.frontends.pytorch.trace import Trace, TracedCall
from pcp.frontends.signature import entry
from pcp.frontends.split import split

Value = ir.Value


@dataclass
class TorchRules:
    """The composites of one program.

    `read` makes a module, of the same context, of a PyTorch module and example inputs.
    """

    trace: Trace
    module: ir.Module
    read: Callable[[Any, tuple[Any, ...], "TorchRules"], ir.Module]
    known: dict[str, str] = field(default_factory=dict)
    alike: dict[Any, str] = field(default_factory=dict)

    def build(self, number: int, operands: Sequence[Value]) -> Sequence[Value]:
        """The call as a composite, at the insertion point."""
        call = self.trace.calls[number]
        primal = self._primal(call)
        type_ = entry(self.module, primal).attributes["function_type"]
        return ir.Operation.create(
            "stablehlo.composite",
            operands=list(operands),
            results=list(ir.FunctionType(ir.TypeAttr(type_).value).results),
            attributes={
                "name": ir.StringAttr.get(f"torch.{_name(call)}"),
                "decomposition": ir.FlatSymbolRefAttr.get(primal),
            },
        ).results

    def _primal(self, call: TracedCall) -> str:
        """The function of a call, with its rule; calls that are alike share one."""
        key = _looks(self.trace.torch, call)
        if key is None:
            return self._written(call)
        if key not in self.alike:
            self.alike[key] = self._written(call)
        return self.alike[key]

    def _written(self, call: TracedCall) -> str:
        """The function of a call; equal ones are written once."""
        module = self._read(call)  # held: its functions end with it
        joint = entry(module)
        key = f"{_name(call)} {len(call.results)} {joint}"
        if key not in self.known:
            self.known[key] = name = self._free(_name(call))
            split(self.module, joint, len(call.results), name)
        return self.known[key]

    def _free(self, name: str) -> str:
        """A symbol that no other function has, nor its helpers."""
        taken, number = ("main", *self.known.values()), 0
        while (free := f"{name}_{number}" if number else name) in taken:
            number += 1
        return free

    def _read(self, call: TracedCall) -> ir.Module:
        """@main(operands, cotangents) -> results, cotangents of the operands."""
        before, self.trace.depth = self.trace.depth, call.depth + 1
        try:
            return self.read(*_joint(self.trace, call), self)
        except PcpError as error:
            name = call.function.__qualname__
            what = f"the derivative rule of {name} cannot be traced: {error}"
            raise refuse(call.place, what) from error
        finally:
            self.trace.depth = before


def _name(call: TracedCall) -> str:
    """The class's name, made a symbol."""
    return re.sub(r"\W+", "_", call.function.__name__)


def _looks(torch: Any, call: TracedCall) -> tuple[Any, ...] | None:
    """What calls have in common that trace alike; None if an argument may change."""
    leaves, tree = torch.utils._pytree.tree_flatten(call.arguments)
    plain = (bool, float, int, str, type(None))
    if not all(isinstance(leaf, (torch.Tensor, *plain)) for leaf in leaves):
        return None
    looks = tuple(
        (tuple(leaf.shape), leaf.dtype)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf), repr(leaf))  # 0.0 is not -0.0
        for leaf in leaves
    )
    return call.function, call.depth, str(tree), looks


# --- tracing ---


def _joint(trace: Trace, call: TracedCall) -> tuple[Any, tuple[Any, ...]]:
    """Forward, then backward, as one module, and examples of what it takes.

    `forward(operands, cotangents of differentiable results) -> results, cotangents of
    differentiable operands`. Operands are all tensors among the arguments, at any
    depth; only those that are arguments themselves have cotangents, as in torch.
    """
    torch = trace.torch
    leaves, tree = torch.utils._pytree.tree_flatten(call.arguments)
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    class Joint(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            filled = list(leaves)
            for i, tensor in zip(where, given, strict=False):
                filled[i] = tensor
            run = Run(trace, call.function)
            outputs = run.forward(torch.utils._pytree.tree_unflatten(filled, tree))
            found = run.backward(iter(given[len(where) :]))
            operands = given[: len(where)]
            return (
                *(o for o in outputs if isinstance(o, torch.Tensor)),
                *(_fitted(torch, x, found.get(id(x))) for x in operands if _float(x)),
            )

    examples = [leaves[i] for i in where]
    examples += [t for t in call.results if _float(t)]
    return Joint(), tuple(_example(torch, t) for t in examples)


def _float(tensor: Any) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _example(torch: Any, like: Any) -> Any:
    return torch.empty([*like.shape], dtype=like.dtype)


def _fitted(torch: Any, operand: Any, gradient: Any) -> Any:
    """A gradient as torch would take it: None is zero, broadcast ones are summed."""
    if gradient is None:
        return torch.zeros_like(operand)
    if gradient.shape != operand.shape:
        gradient = gradient.sum_to_size(operand.shape)
    return gradient.to(operand.dtype)


class Run:
    """One run of a function's forward and backward with a context between them."""

    def __init__(self, trace: Trace, function: Any) -> None:
        self.trace, self.function = trace, function
        self.arguments: tuple[Any, ...] = ()
        self.outputs: tuple[Any, ...] = ()
        self.context = _context(trace.torch)

    def forward(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """What `forward` returns, as a tuple."""
        function, context, torch = self.function, self.context, self.trace.torch
        tensors = (isinstance(a, torch.Tensor) and _float(a) for a in arguments)
        context.needs_input_grad = tuple(tensors)
        default = torch.autograd.Function.setup_context
        # As torch runs it: what backward saves of its insides has no gradient.
        with torch.no_grad():
            if function.setup_context is default:
                outputs = function.forward(context, *arguments)
            else:
                outputs = function.forward(*arguments)
                function.setup_context(context, arguments, outputs)
        if context.dirty_tensors:
            raise IRError("it writes to its inputs (mark_dirty); return a new value")
        self.arguments = arguments
        self.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return self.outputs

    def backward(self, given: Iterator[Any]) -> dict[int, Any]:
        """Gradients by the identity of the argument."""
        # What torch marks as differentiable once is traced as it is written.
        backward = self.function.backward
        if self.function.vjp is not self.trace.torch.autograd.Function.vjp:
            backward = self.function.vjp
        cotangents = [self._cotangent(output, given) for output in self.outputs]
        if self.function.boxed_grads_call:
            found = backward(self.context, cotangents)
        else:
            found = inspect.unwrap(backward)(self.context, *cotangents)
        found = found if isinstance(found, tuple) else (found,)
        gradients: dict[int, Any] = {}
        for argument, gradient in zip(self.arguments, found, strict=False):
            if gradient is not None:
                gradients[id(argument)] = gradient
        return gradients

    def _cotangent(self, output: Any, given: Iterator[Any]) -> Any:
        """Zeros for a result that is not differentiable, None for what is no tensor."""
        torch = self.trace.torch
        if not isinstance(output, torch.Tensor):
            return None
        cotangent = next(given) if _float(output) else torch.zeros_like(output)
        if any(output is t for t in self.context.non_differentiable or ()):
            return torch.zeros_like(output)
        return cotangent


def _context(torch: Any) -> Any:
    """A `ctx` that holds what it is given; torch's own is a node of its graph."""

    class Context(torch.autograd.function.FunctionCtx):
        to_save: tuple[Any, ...] = ()
        dirty_tensors: tuple[Any, ...] = ()
        non_differentiable: tuple[Any, ...] = ()

        @property
        def saved_tensors(self) -> tuple[Any, ...]:
            return self.to_save

    return Context()
