"""Which tensors of a PyTorch model are trained, frozen, written, or constants.

    param      a parameter that wants a gradient, and gets one
    state      a buffer, or a parameter without gradient, that `forward` writes in place
    frozen     a parameter without gradient; a buffer of more than `MAX_CONSTANT_BYTES`
    constant   any other buffer

What is written comes out of the program as a result behind those of `forward`, of the
tensor's name; torch.export says which, and no list of modules is needed here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pcp.dialect.roles import GIVEN
from pcp.errors import IRError
from pcp.frontends.pytorch.constants import raw, to_numpy
from pcp.frontends.signature import Argument, describe_init

if TYPE_CHECKING:
    import numpy as np
    import torch

MAX_CONSTANT_BYTES = 1 << 20
"""A constant travels inside the program's text; beyond this a buffer is an argument."""


_EXACT = 1 << 53
"""Larger integers are not all floats."""


@dataclass(frozen=True)
class Tensors:
    """The tensors of a model by name, ties once, in the order of `@main`."""

    trained: "Mapping[str, torch.Tensor]"
    others: "Mapping[str, torch.Tensor]"
    """Parameters without gradient, then buffers."""
    parameters: Collection[str]
    """Names of all parameters."""

    @classmethod
    def of(cls, model: "torch.nn.Module") -> "Tensors":
        """Those of a module."""
        parameters = dict(model.named_parameters())
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        untrained = {name: p for name, p in parameters.items() if not p.requires_grad}
        others = {**untrained, **dict(model.named_buffers())}
        return cls(trained, others, set(parameters))

    @property
    def names(self) -> list[str]:
        """Of all of them."""
        return [*self.trained, *self.others]

    def constants(self, written: Collection[str]) -> "dict[int, np.ndarray]":
        """The bytes of what is to be a constant, by its position among all."""
        first = len(self.trained)
        return {
            first + i: raw(tensor)
            for i, (name, tensor) in enumerate(self.others.items())
            if self._role(name, written) == "constant"
        }

    def arguments(
        self, written: Collection[str], reached: Collection[int]
    ) -> list[Argument]:
        """Those that are arguments. `reached` are positions that have a gradient."""
        trained = [
            Argument(name, "param", None if p.is_meta else describe_init(to_numpy(p)))
            if i in reached
            else Argument(name, "frozen")
            for i, (name, p) in enumerate(self.trained.items())
        ]
        return trained + [
            Argument(name, role, _first_value(t) if role == "state" else None)
            for name, t in self.others.items()
            if (role := self._role(name, written)) != "constant"
        ]

    def _role(self, name: str, written: Collection[str]) -> str:
        tensor = self.others[name]
        if name in written:
            return "state"
        large = tensor.numel() * tensor.element_size() > MAX_CONSTANT_BYTES
        return "frozen" if large or name in self.parameters else "constant"


def _first_value(tensor: "torch.Tensor") -> str:
    """How state starts: a constant that it is full of, or its value as it is."""
    flat = tensor.detach().reshape(-1)
    if not flat.numel() or not bool((flat == flat[0]).all()):
        return GIVEN
    number = flat[0].item()
    if isinstance(number, complex) or not abs(number) <= _EXACT:
        return GIVEN
    return {0.0: "zeros", 1.0: "ones"}.get(float(number)) or f"constant({number!r})"


def results_last(program: Any, inputs: Sequence[str]) -> list[str]:
    """Make results of what an exported program writes, behind its own; whose they are.

    `inputs` name the user's inputs of the program, as far as they may be written.
    """
    from torch.export.graph_signature import OutputKind, OutputSpec

    signature = program.graph_signature
    named = dict(zip(_user_inputs(signature), inputs, strict=False))
    (output,) = program.graph.find_nodes(op="output")
    pairs = list(zip(signature.output_specs, output.args[0], strict=True))
    own = [pair for pair in pairs if pair[0].kind is OutputKind.USER_OUTPUT]
    new = [pair for pair in pairs if pair[0].kind is not OutputKind.USER_OUTPUT]
    written = [_named(spec, named) for spec, _ in new]
    specs = [OutputSpec(OutputKind.USER_OUTPUT, s.arg, None) for s, _ in (*own, *new)]
    signature.output_specs = specs
    output.args = (tuple(value for _, value in (*own, *new)),)
    program.graph_module.recompile()
    return written


def _user_inputs(signature: Any) -> list[str]:
    return [name for name in signature.user_inputs if isinstance(name, str)]


def _named(spec: Any, named: Mapping[str, str]) -> str:
    if spec.target in named:
        return named[spec.target]
    raise IRError(
        f"the model writes its input {spec.target} while it runs; @main has no side "
        "effects: write a copy of it"
    )
