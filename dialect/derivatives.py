"""Derivatives that a program gives itself: rules of its own for its functions."""

from pcp.dialect.base import Op, integer, kinds, require, symbol
from pcp.dialect.bindings import ir

WITHOUT = "pcp.without_derivative"
"""The op's name, which marks a function of a frontend too until it is there."""


class CustomRule(Op):
    """What both rules share: no function is its own derivative's helper twice."""

    roles = ()  # not annotated: `ext` would read it as a field

    def check(self) -> None:
        """Each function differs from the primal one, which it is the rule of."""
        primal = symbol(self, "primal")
        for role in self.roles:
            require(
                symbol(self, role) != primal,
                f"names @{primal} as its own '{role}'; write a second function",
            )


class CustomVjp(CustomRule, name="custom_vjp"):
    """Calls and composites of `primal` are differentiated in reverse by two functions.

    With `@f(x...) -> y...`, `@forward(x...) -> (y..., residuals...)` runs in its place
    and `@backward(residuals..., ȳ...) -> x̄...` gives the cotangents. There is a ȳ for
    each floating-point or complex y, and an x̄ for each such x. Forward mode refuses
    such a function, unless it has a `pcp.custom_jvp` too, which then serves that mode
    only. Gone after `pcp-inline-composites`.

        "pcp.custom_vjp"() {primal = @f, forward = @f_fwd, backward = @f_bwd}
            : () -> ()
    """

    primal: ir.FlatSymbolRefAttr
    forward: ir.FlatSymbolRefAttr
    backward: ir.FlatSymbolRefAttr
    roles = ("forward", "backward")


class CustomJvp(CustomRule, name="custom_jvp"):
    """Calls and composites of `primal` are differentiated by one function.

    With `@f(x...) -> y...`, `@jvp(x..., ẋ...) -> (y..., ẏ...)`, linear in the ẋ. There
    is a ẋ for each floating-point or complex x, and a ẏ for each such y. Reverse mode
    transposes what depends on the ẋ; what the jvp function makes of them by functions
    with jvp rules counts as what these compute. Gone after `pcp-inline-composites`.

        "pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()
    """

    primal: ir.FlatSymbolRefAttr
    jvp: ir.FlatSymbolRefAttr
    roles = ("jvp",)


class WithoutDerivative(Op, name="without_derivative"):
    """The first `count` operands of `primal` have no derivative, and `why`.

    A derivative by one of them, at a call or a composite, is an error that says `why`;
    the others have that of the function's rule. `linear` is for a function that a jvp
    function may apply to tangents: there it counts as what it computes, as one with a
    jvp rule does. Gone after `pcp-inline-composites`.

        "pcp.without_derivative"() {primal = @f, count = 2, why = "..."} : () -> ()
    """

    primal: ir.FlatSymbolRefAttr
    count: ir.IntegerAttr
    why: ir.StringAttr
    optional = kinds(linear=ir.UnitAttr)

    def check(self) -> None:
        """It speaks of one operand at least."""
        require(integer(self, "count") > 0, "needs a 'count' of one or more")
