"""pcp-precision: products in a narrow type, of a program that is written in f32."""

from dataclasses import dataclass

import numpy as np

from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import ir
from pcp.errors import ConfigError, PassError
from pcp.passes.core import functions
from pcp.passes.core.base import Pass
from pcp.passes.core.narrow_floats import is_f32, is_free_contraction
from pcp.passes.core.rewriting import (
    attributes,
    before,
    defining,
    operations,
    sweep,
)
from pcp.passes.training import policy as policies
from pcp.passes.training.master_weights import first_use
from pcp.passes.training.policy import Policy

Value = ir.Value

NOTE = "pcp.precision"
"""On the module: the policy that it was rewritten by."""

_TYPES = {"bf16": ir.BF16Type.get, "f16": ir.F16Type.get, "f32": ir.F32Type.get}


def _names(text: str) -> frozenset[str]:
    return frozenset(f"stablehlo.{name}" for name in text.split())


#: Ops that give elements of their operands, unchanged.
MOVES = _names(
    "broadcast broadcast_in_dim concatenate dynamic_reshape dynamic_slice "
    "dynamic_update_slice gather pad reshape reverse slice transpose"
) | {"pcp.stop_gradient", "sdy.sharding_constraint"}

#: Ops whose result, rounded, is off by no more than their operands are already. A
#: product counts where one factor is a constant or a parameter: squares, which losses
#: and norms add up, do not.
LOCAL = _names("abs add clamp maximum minimum multiply negate select subtract")

#: Ops that take the type of their operands; what is in neither table stays f32: powers,
#: exponentials, logarithms, quotients, roots, and all that adds up (norms, softmax,
#: means, losses), where rounded operands cost digits of the result.
FOLLOWING = MOVES | LOCAL

#: Ops of these that give one of their operands, for each element.
CHOICES = _names("clamp maximum minimum select")


@dataclass(frozen=True)
class Precision(Pass):
    """Round operands of products to `compute`, once a tensor; keep all else in f32.

    Runs on `func` and what it calls, in front of the derivative, which then multiplies
    in the same type. Of f32 tensors

    - `dot_general`, `dot` and `convolution` take operands rounded to `compute`, and
      give such a result; pcp-legalize adds them up in f32 and rounds once. What says
      an `algorithm` of its own, or more than the default precision, stays f32.
    - ops of `FOLLOWING` are computed in `compute` where an operand is a result of such
      ops, and the others are too, or are constants or parameters (as a bias is);
    - everything else is computed in f32: norms, softmax, losses, reductions.

    A constant that `compute` cannot hold keeps its op in f32; one that is only chosen,
    as by a mask, may be rounded, but not to infinity (-1e9 in f16). Parameters
    stay f32 masters (see pcp-master-weights), and those that are rounded say so in
    `pcp.compute`; with `params=bf16` they become bf16, for an optimizer that rounds
    stochastically. `reduce`, `scale`, `rounding` and `growth-interval` are for later
    passes: the policy is noted on the module as `pcp.precision`.

    The table is that of torch.amp's autocast, with the types of ops in place of names
    of layers. Before, and after pcp-precision{compute=bf16}:

        %y = stablehlo.dot_general %x, %w : (tensor<4x8xf32>, ...) -> tensor<4x2xf32>
        %z = stablehlo.exponential %y : tensor<4x2xf32>

        %0 = stablehlo.convert %w : (tensor<8x2xf32>) -> tensor<8x2xbf16>
        %1 = stablehlo.convert %x : (tensor<4x8xf32>) -> tensor<4x8xbf16>
        %y = stablehlo.dot_general %1, %0 : (tensor<4x8xbf16>, ...) -> tensor<4x2xbf16>
        %2 = stablehlo.convert %y : (tensor<4x2xbf16>) -> tensor<4x2xf32>
        %z = stablehlo.exponential %2 : tensor<4x2xf32>
    """

    name = "pcp-precision"
    params: str = "f32"
    compute: str = "f32"
    reduce: str = "f32"
    rounding: str = "nearest"
    scale: str = ""
    growth_interval: int = 2000
    func: str = "main"

    def run(self, module: ir.Module) -> None:
        """Rewrite the function and those that it calls."""
        try:
            policy = Policy(
                self.params,
                self.compute,
                self.reduce,
                self.rounding,
                self.scale,
                self.growth_interval,
            )
        except ConfigError as error:
            raise PassError(f"{self.name}: {error}") from error
        if functions.find(module, self.func) is None:
            raise PassError(f"{self.name}: the module has no function @{self.func}")
        with module.context:
            apply_policy(module, policy, self.func)


def apply_policy(module: ir.Module, policy: Policy, func: str = "main") -> None:
    """See `Precision`."""
    note = ir.StringAttr.get(str(policy))
    module.operation.attributes[NOTE] = note
    if policy.compute == policy.params == "f32":
        return
    for function in called(module, func):
        with function.location:
            narrowing = Narrowing(_TYPES[policy.compute]())
            _narrow_parameters(function, policy, narrowing)
            if policy.compute != "f32":
                narrowing.rewrite(function)
            _mark_rounded(function, policy.compute)
            sweep(function)


def noted(module: ir.Module) -> Policy:
    """The policy that a module was rewritten by; the default one without any."""
    attribute = module.operation.attributes.get(NOTE)
    return policies.DEFAULT if attribute is None else policies.parse(_text(attribute))


def _text(attribute: ir.Attribute) -> str:
    return ir.StringAttr(attribute).value


def called(module: ir.Module, name: str) -> list[ir.Operation]:
    """The function of that name, and those that it calls, each once."""
    names, found = [name], dict[str, ir.Operation]()
    while names:
        name = names.pop()
        function = functions.find(module, name)
        if function is None or name in found:
            continue
        found[name] = function
        names += [
            callee for op in operations(function) for callee in functions.callees(op)
        ]
    return list(found.values())


def _parameters(function: ir.Operation, *also: str) -> list[tuple[int, Value]]:
    said = functions.argument_attributes(function)
    return [
        (i, argument)
        for i, argument in enumerate(functions.entry(function).arguments)
        if functions.string(said[i], functions.ROLE) in ("param", *also)
    ]


def _mark_rounded(function: ir.Operation, compute: str) -> None:
    """Say of parameters that are rounded to what, for gradients that are not."""
    said = functions.argument_attributes(function)
    for i, argument in _parameters(function):
        if not is_f32(argument):
            continue
        made = [use.owner.operation for use in argument.uses]
        if any(op.name == "stablehlo.convert" for op in made):
            said[i][functions.COMPUTE] = ir.TypeAttr.get(_TYPES[compute]())
    functions.set_argument_attributes(function, said)


def _narrow_parameters(
    function: ir.Operation, policy: Policy, narrowing: "Narrowing"
) -> None:
    """Make f32 parameters the type of the policy, widened where they are used."""
    if policy.params == "f32":
        return
    element = _TYPES[policy.params]()
    for _, argument in _parameters(function):
        if not is_f32(argument):
            continue
        uses = [(use.owner.operation, use.operand_number) for use in argument.uses]
        argument.set_type(hlo.like(argument, element=element))
        if not uses:
            continue
        with before(first_use([op for op, _ in uses], argument.owner)):
            wide = hlo.convert(argument, ir.F32Type.get())
        for op, i in uses:
            op.operands[i] = wide
        narrowing.add_parameter(wide, argument)
    function_body.retype(function)


class Narrowing:
    """One function's values in the narrow type, where they have one.

    `computed` are f32 values that are narrow ones widened; `casts` others that were
    rounded, each once; `adapting` those that take the type of what they meet:
    constants, parameters, and what is moved of them; `inexact` those of the adapting
    that are constants with more digits than the type has.
    """

    def __init__(self, element: ir.Type) -> None:
        self._element = element
        self._computed: dict[Value, Value] = {}
        self._casts: dict[Value, Value] = {}
        self._adapting: set[Value] = set()
        self._inexact: set[Value] = set()

    def add_parameter(self, wide: Value, narrow: Value) -> None:
        """A parameter that is narrow already."""
        self._adapting.add(wide)
        if hlo.element_type(narrow) == self._element:
            self._casts[wide] = narrow

    def rewrite(self, function: ir.Operation) -> None:
        """Go through the ops in order, those of regions where they stand."""
        weights = _parameters(function, "frozen")
        self._adapting |= {a for _, a in weights if is_f32(a)}
        for op in operations(function):
            if is_free_contraction(op):
                self._narrow(op)
            elif op.name in FOLLOWING:
                self._follow(op)
            elif op.name == "stablehlo.constant":
                self._take_constant(op.result)

    def _follow(self, op: ir.Operation) -> None:
        floats = [x for x in op.operands if hlo.is_float(hlo.element_type(x))]
        if len(op.results) != 1 or not all(map(is_f32, [*floats, op.result])):
            return
        fits = all(x in self._computed or x in self._adapting for x in floats)
        inexact = any(x in self._inexact for x in floats)
        computed = sum(x in self._computed for x in floats)
        if fits and computed:
            square = op.name == "stablehlo.multiply" and computed == 2
            if not square and (not inexact or op.name in MOVES | CHOICES):
                self._narrow(op)
        elif fits and op.name in MOVES:
            self._adapting.add(op.result)
            self._inexact |= {op.result} if inexact else set()

    def _narrow(self, op: ir.Operation) -> None:
        """Compute an op in the narrow type, and widen what it gives."""
        for i, operand in enumerate(list(op.operands)):
            if is_f32(operand):
                op.operands[i] = self._rounded(operand)
        uses = [(u.owner.operation, u.operand_number) for u in op.result.uses]
        op.result.set_type(hlo.like(op.result, element=self._element))
        with ir.InsertionPoint.after(op), op.location:
            wide = hlo.convert(op.result, ir.F32Type.get())
        for user, i in uses:
            user.operands[i] = wide
        self._computed[wide] = op.result

    def _rounded(self, x: Value) -> Value:
        if x in self._computed:
            return self._computed[x]
        if x not in self._casts:
            self._casts[x] = self._cast(x)
        return self._casts[x]

    def _cast(self, x: Value) -> Value:
        """Behind what makes it; of an argument in front of what uses it first."""
        if isinstance(x.owner, ir.Block):
            users = [use.owner.operation for use in x.uses]
            with before(first_use(users, x.owner)):
                return hlo.convert(x, self._element)
        op = x.owner.operation
        moved = op.name in MOVES and x in self._adapting
        operands = [self._rounded(y) if is_f32(y) else y for y in op.operands if moved]
        with ir.InsertionPoint.after(op), op.location:
            if x in self._adapting and (number := _splat(x)) is not None:
                return hlo.constant_like(self._like(x), number)
            if not moved:
                return hlo.convert(x, self._element)
            return hlo.op(op.name, operands, [self._like(x)], **attributes(op)).result

    def _like(self, x: Value) -> ir.Type:
        return hlo.like(x, element=self._element)

    def _take_constant(self, x: Value) -> None:
        """Let it adapt if it is one number, neither lost nor infinite if rounded."""
        if not is_f32(x) or (number := _splat(x)) is None:
            return
        rounded = _as_f16 if isinstance(self._element, ir.F16Type) else _as_bf16
        held = rounded(number)
        if held != number and (np.isinf(held) or not held):
            return
        self._adapting.add(x)
        self._inexact |= {x} if held != number else set()


def _as_f16(number: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float16(number))


def _as_bf16(number: float) -> float:
    """By the bits that it keeps, of which the last may be rounded up."""
    bits = int(np.float32(number).view(np.uint32))
    kept = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(np.uint32(kept).view(np.float32))


def _splat(x: Value) -> float | None:
    """The number that a constant has at every position, if it is one."""
    if (op := defining(x, "constant")) is None:
        return None
    value = op.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat:
        return None
    return ir.FloatAttr(value.get_splat_value()).value
