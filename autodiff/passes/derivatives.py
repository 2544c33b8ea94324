"""The passes pcp-vjp, pcp-grad and pcp-jvp.

Each copies a function, inlines its calls, and appends what one walk over the copy
emits: the forward values are there to be used, since all lies in one function.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.autodiff.core import custom, functions
from pcp.autodiff.core.activity import propagate
from pcp.autodiff.core.cotangents import Cotangents, materialize
from pcp.autodiff.core.forward import Tangents, push_forward, tangent_or_zeros
from pcp.autodiff.core.reverse import pull_back
from pcp.dialect import hlo
from pcp.dialect.base import integers, symbol, text
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError, nearest
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import refuse

Value = ir.Value


@dataclass(frozen=True)
class Vjp(Pass):
    """Add the vector-Jacobian product of a function.

    `@f(x) -> y` stays and `@f_vjp(x, ȳ) -> (y, x̄)` is added: all inputs of `@f`,
    then one cotangent for each floating-point or complex result; all results of
    `@f`, then one cotangent for each input in `wrt` (positions, in the order
    given; every floating-point or complex input if left out).

        func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
          %y = stablehlo.sine %x : tensor<4xf32>
          return %y : tensor<4xf32>
        }

    becomes, with `pcp-vjp{func=f}`, the same and

        func.func @f_vjp(%x: tensor<4xf32>, %g: tensor<4xf32>)
            -> (tensor<4xf32>, tensor<4xf32>) {
          %y = stablehlo.sine %x : tensor<4xf32>
          %c = stablehlo.cosine %x : tensor<4xf32>
          %d = stablehlo.multiply %g, %c : tensor<4xf32>
          return %y, %d : tensor<4xf32>, tensor<4xf32>
        }

    It assumes static shapes. An op on the active path without a rule is an error
    at its location. Conventions are those of `jax.vjp`.
    """

    name = "pcp-vjp"
    func: str = "main"
    wrt: tuple[int, ...] | None = None
    name_: str = ""

    def run(self, module: ir.Module) -> None:
        """Add `@<func>_vjp`, or what `name` says."""
        vjp(module, self.func, self.wrt, self.name_ or f"{self.func}_vjp")


@dataclass(frozen=True)
class Grad(Pass):
    """Add the gradient of a function whose first result is a real scalar.

    `@f(x) -> (loss, aux)` stays and `@f_grad(x) -> (loss, aux, x̄)` is added: all
    results of `@f`, then the gradient of the first one for each input in `wrt`.
    Left out, `wrt` is the arguments with `pcp.role = "param"` if any argument has
    a role, else every floating-point or complex input.

        func.func @main(%w: tensor<f32>, %n: tensor<i32>) -> tensor<f32> {
          %y = stablehlo.exponential %w : tensor<f32>
          return %y : tensor<f32>
        }

    becomes, with `pcp-grad`, the same and

        func.func @main_grad(%w: tensor<f32>, %n: tensor<i32>)
            -> (tensor<f32>, tensor<f32>) {
          %y = stablehlo.exponential %w : tensor<f32>
          return %y, %y : tensor<f32>, tensor<f32>
        }

    (a cotangent of one times the result of the exponential; here pcp-simplify has
    already dropped the product). It assumes what pcp-vjp assumes.

    Without any option each `pcp.grad` of the module becomes the function it declares;
    where there is none, @main is differentiated. With `func=` (empty) a module without
    `pcp.grad` stays as it is.

        "pcp.grad"() {fn = @main, sym_name = "main_grad", wrt = [0]} : () -> ()

    With `seed` the function takes one more argument, of the type of the first result:
    the cotangent to begin with, in place of one.
    """

    name = "pcp-grad"
    func: str | None = None
    wrt: tuple[int, ...] | None = None
    name_: str = ""
    seed: bool = False

    def run(self, module: ir.Module) -> None:
        """Expand what is declared, or add `@<func>_grad`, or what `name` says."""
        if self.func == "" or (self == Grad() and declared(module)):
            self._check_alone()
            for op in declared(module):
                expand(module, op)
            return
        func = self.func or "main"
        name = self.name_ or f"{func}_grad"
        grad(module, func, self.wrt, name, seed=self.seed)

    def _check_alone(self) -> None:
        if self.wrt is not None or self.name_ or self.seed:
            raise PassError(
                f"{self.name}: wrt=, name= and seed= are for the function that func= "
                "names; pcp.grad says its own"
            )


@dataclass(frozen=True)
class Jvp(Pass):
    """Add the Jacobian-vector product of a function.

    `@f(x) -> y` stays and `@f_jvp(x, ẋ) -> (y, ẏ)` is added: all inputs of `@f`,
    then one tangent for each input in `wrt` (every floating-point or complex input
    if left out); all results, then one tangent for each floating-point or complex
    result.

        func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
          %y = stablehlo.sine %x : tensor<4xf32>
          return %y : tensor<4xf32>
        }

    becomes, with `pcp-jvp{func=f}`, the same and

        func.func @f_jvp(%x: tensor<4xf32>, %t: tensor<4xf32>)
            -> (tensor<4xf32>, tensor<4xf32>) {
          %y = stablehlo.sine %x : tensor<4xf32>
          %c = stablehlo.cosine %x : tensor<4xf32>
          %d = stablehlo.multiply %t, %c : tensor<4xf32>
          return %y, %d : tensor<4xf32>, tensor<4xf32>
        }

    It assumes what pcp-vjp assumes.
    """

    name = "pcp-jvp"
    func: str = "main"
    wrt: tuple[int, ...] | None = None
    name_: str = ""

    def run(self, module: ir.Module) -> None:
        """Add `@<func>_jvp`, or what `name` says."""
        jvp(module, self.func, self.wrt, self.name_ or f"{self.func}_jvp")


def jvp(
    module: ir.Module, name: str, wrt: Sequence[int] | None, new_name: str
) -> ir.Operation:
    """Add the JVP of `@name` as `@new_name`; see `Jvp`."""
    with module.context, custom.within(module):
        source = functions.find(module, name)
        wrt = _positions(source, wrt, roles=False)
        function = functions.copy(module, source, new_name, custom.keeps)
        block = functions.body(function)
        *ops, end = [op.operation for op in block.operations]
        tangents: Tangents = {}
        for position in wrt:
            primal = block.arguments[position]
            tangents[primal] = block.add_argument(primal.type, function.location)
        with ir.InsertionPoint(end), end.location:
            push_forward(ops, tangents)
            results = list(end.operands)
            pushed = [
                tangent_or_zeros(r, tangents)
                for r in results
                if hlo.is_differentiable(r)
            ]
        functions.finish(function, [*results, *pushed])
        return function


def vjp(
    module: ir.Module, name: str, wrt: Sequence[int] | None, new_name: str
) -> ir.Operation:
    """Add the VJP of `@name` as `@new_name`; see `Vjp`."""
    with module.context, custom.within(module):
        source = functions.find(module, name)
        wrt = _positions(source, wrt, roles=False)
        function = functions.copy(module, source, new_name, custom.keeps)
        block = functions.body(function)
        seeds = [
            block.add_argument(r.type, function.location)
            if hlo.is_differentiable(r)
            else None
            for r in _returned(block)
        ]
        _append_reverse(function, wrt, seeds)
        return function


def declared(module: ir.Module) -> list[ir.Operation]:
    """The module's gradients that are declared, in order."""
    ops = [view.operation for view in module.body.operations]
    return [op for op in ops if op.name == "pcp.grad"]


def has_value(op: ir.Operation) -> bool:
    """Whether the function that a `pcp.grad` declares returns the value too."""
    given = op.attributes.get("has_value")
    return given is None or ir.BoolAttr(given).value


def expand(module: ir.Module, op: ir.Operation) -> None:
    """Put the gradient function that a `pcp.grad` declares in its place."""
    name, fn = text(op, "sym_name"), symbol(op, "fn")
    known = functions.functions(module)
    if fn not in known:
        refuse(op, f"the module has no function @{fn}." + nearest(fn, known))
    with module.context:
        asked = integers(op, "wrt") or None
        wrt = _positions(functions.find(module, fn), asked, roles=True)
        value = has_value(op)
        op.erase()
        grad(module, fn, wrt, name, value=value)


def grad(
    module: ir.Module,
    name: str,
    wrt: Sequence[int] | None,
    new_name: str,
    *,
    value: bool = True,
    seed: bool = False,
) -> ir.Operation:
    """Add the gradient of `@name`'s first result as `@new_name`; see `Grad`.

    Without `value` it returns the gradients alone.
    """
    with module.context, custom.within(module):
        source = functions.find(module, name)
        loss = _scalar_loss(source)
        wrt = _positions(source, wrt, roles=True)
        function = functions.copy(module, source, new_name, custom.keeps)
        block = functions.body(function)
        *_, end = block.operations
        if seed:
            first = block.add_argument(loss.type, function.location)
        else:
            with ir.InsertionPoint(end), end.location:
                first = hlo.constant(1.0, loss.type)
        _append_reverse(function, wrt, [first], value=value)
        return function


def _returned(block: ir.Block) -> list[Value]:
    *_, end = block.operations
    return list(end.operands)


def _scalar_loss(function: ir.Operation) -> Value:
    results = _returned(functions.body(function))
    found = ", ".join(str(r.type) for r in results) or "nothing"
    if results and hlo.is_differentiable(results[0]):
        if hlo.is_float(hlo.element_type(results[0])) and not hlo.shape_of(results[0]):
            return results[0]
    raise PassError(
        f"{location_string(function.location)}: @{functions.symbol(function)} returns "
        f"{found}; a gradient needs a floating-point scalar as the first result "
        "(pcp-vjp takes any results)"
    )


def _positions(
    function: ir.Operation, wrt: Sequence[int] | None, roles: bool
) -> list[int]:
    """Which arguments to differentiate for, checked."""
    arguments = functions.body(function).arguments
    where = f"{location_string(function.location)}: @{functions.symbol(function)}"
    if wrt is None:
        wrt = _default_positions(function, roles)
        if not wrt:
            raise PassError(f"{where} has no floating-point input to differentiate for")
    if not wrt:
        raise PassError(f"{where}: wrt= names no input")
    for position in wrt:
        if not 0 <= position < len(arguments):
            raise PassError(
                f"{where}: wrt={position}, but it has {len(arguments)} inputs (0 to "
                f"{len(arguments) - 1})"
            )
        if not hlo.is_differentiable(arguments[position]):
            raise PassError(
                f"{where}: input {position} is {_unfit(arguments[position])}"
            )
    if len(set(wrt)) != len(wrt):
        raise PassError(f"{where}: wrt= names an input twice")
    return list(wrt)


def _unfit(argument: Value) -> str:
    """The type of an input that has no derivative, and why."""
    why = hlo.why_no_cotangent(argument)
    if why is None:
        return (
            f"{argument.type}; only floating-point and complex tensors have a "
            "derivative"
        )
    return (
        f"{argument.type}, but {why}: it can hold no derivative; give the function a "
        "wider type and convert inside, or name the other inputs with wrt="
    )


def _default_positions(function: ir.Operation, roles: bool) -> list[int]:
    """Inputs with the role of a parameter if there are any roles, else all floats.

    What `hlo.NO_COTANGENT` leaves out stays in: it is an error, not an integer.
    """
    arguments = functions.body(function).arguments
    floats = [
        i
        for i, a in enumerate(arguments)
        if hlo.is_differentiable(a) or hlo.why_no_cotangent(a)
    ]
    role = [_role(function, i) for i in range(len(arguments))]
    if roles and any(role):
        return [i for i in floats if role[i] == "param"]
    return floats


def _role(function: ir.Operation, position: int) -> str | None:
    attributes = hlo.attribute(function, "arg_attrs")
    if attributes is None:
        return None
    entry = ir.DictAttr(list(ir.ArrayAttr(attributes))[position])
    return ir.StringAttr(entry["pcp.role"]).value if "pcp.role" in entry else None


def _append_reverse(
    function: ir.Operation,
    wrt: Sequence[int],
    seeds: Sequence[Value | None],
    *,
    value: bool = True,
) -> None:
    """Walk back from the results' `seeds` and return the cotangents of `wrt`.

    A shorter `seeds` leaves the remaining results without a cotangent. With `value`
    the function's own results come first.
    """
    block = functions.body(function)
    *ops, end = [op.operation for op in block.operations]
    sources = [block.arguments[i] for i in wrt]
    active = propagate(
        ops, {v: f"input {i}" for i, v in zip(wrt, sources, strict=True)}
    )
    cotangents = Cotangents()
    with ir.InsertionPoint(end), end.location:
        for result, seed in zip(end.operands, seeds, strict=False):
            cotangents.add(result, seed)
        pull_back(ops, cotangents, active)
        gradients = [materialize(cotangents.take(v), v) for v in sources]
    results = list(end.operands)  # read again: a rule may have replaced a primal
    if not value:
        results = []
        if "res_attrs" in function.attributes:
            del function.attributes["res_attrs"]
    functions.finish(function, [*results, *gradients])
