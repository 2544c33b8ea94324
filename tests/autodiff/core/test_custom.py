"""Functions with derivative rules of their own, in the IR and from Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.full_stack import Group
from helpers.oracles.jax_gradients import (
    Case,
    check_jvp,
    check_vjp,
    derived_module,
    transformed,
)
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree

from pcp.autodiff.core import registry
from pcp.autodiff.core.kinds import Elementwise
from pcp.dialect import hlo
from pcp.errors import PcpError

X = np.linspace(-1.0, 2.0, 4).astype(np.float32)
V = "tensor<4xf32>"

# A rule that is three times the true one: only a rule that is used shows that.
VJP_RULE = """
  func.func private @f(%x: V, %y: V) -> V {
    %s = stablehlo.sine %x : V
    %r = stablehlo.multiply %s, %y : V
    return %r : V
  }
  func.func private @f_fwd(%x: V, %y: V) -> (V, V, V) {
    %r = func.call @f(%x, %y) : (V, V) -> V
    return %r, %x, %y : V, V, V
  }
  func.func private @f_bwd(%x: V, %y: V, %g: V) -> (V, V) {
    %three = stablehlo.constant dense<3.0> : V
    %c = stablehlo.cosine %x : V
    %s = stablehlo.sine %x : V
    %gy = stablehlo.multiply %g, %y : V
    %a = stablehlo.multiply %gy, %c : V
    %b = stablehlo.multiply %a, %three : V
    %d = stablehlo.multiply %g, %s : V
    return %b, %d : V, V
  }
  "pcp.custom_vjp"() {primal = @f, forward = @f_fwd, backward = @f_bwd} : () -> ()
""".replace("V", V)

JVP_RULE = """
  func.func private @f(%x: V, %y: V) -> V {
    %s = stablehlo.sine %x : V
    %r = stablehlo.multiply %s, %y : V
    return %r : V
  }
  func.func private @f_jvp(%x: V, %y: V, %t: V, %u: V) -> (V, V) {
    %r = func.call @f(%x, %y) : (V, V) -> V
    %three = stablehlo.constant dense<3.0> : V
    %c = stablehlo.cosine %x : V
    %s = stablehlo.sine %x : V
    %ty = stablehlo.multiply %t, %y : V
    %a = stablehlo.multiply %ty, %c : V
    %b = stablehlo.multiply %a, %three : V
    %d = stablehlo.multiply %u, %s : V
    %e = stablehlo.add %b, %d : V
    return %r, %e : V, V
  }
  "pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()
""".replace("V", V)

CALL = "%r = func.call @f(%a, %b) : (V, V) -> V"
COMPOSITE = """%r = stablehlo.composite "mine.f" %a, %b
    {decomposition = @f} : (V, V) -> V"""
IN_BRANCH = """%z = stablehlo.constant dense<0> : tensor<i32>
    %r = "stablehlo.case"(%z) ({
      %q = func.call @f(%a, %b) : (V, V) -> V
      stablehlo.return %q : V
    }, {
      stablehlo.return %a : V
    }) : (tensor<i32>) -> V"""
IN_LOOP = """%z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %i, %r = stablehlo.while(%k = %z, %c = %a) : tensor<i32>, V
      cond {
        %p = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %q = func.call @f(%c, %b) : (V, V) -> V
        %next = stablehlo.add %k, %one : tensor<i32>
        stablehlo.return %next, %q : tensor<i32>, V
      }"""


def program(use: str, rule: str) -> str:
    main = """
  func.func @main(%x: V, %b: V) -> V {
    %a = stablehlo.tanh %x : V
    USE
    %s = stablehlo.multiply %r, %r : V
    return %s : V
  }""".replace("USE", use)
    return "module {" + main.replace("V", V) + rule + "}"


@jax.custom_vjp
def tripled(x, y):
    return jnp.sin(x) * y


tripled.defvjp(
    lambda x, y: (tripled(x, y), (x, y)),
    lambda r, g: (3 * g * r[1] * jnp.cos(r[0]), g * jnp.sin(r[0])),
)


@jax.custom_jvp
def tripled_forward(x, y):
    return jnp.sin(x) * y


@tripled_forward.defjvp
def _tripled_jvp(primals, tangents):
    (x, y), (t, u) = primals, tangents
    return tripled_forward(x, y), 3 * t * y * jnp.cos(x) + u * jnp.sin(x)


def model(f, use: str):
    def main(x, b):
        a = jnp.tanh(x)
        for _ in range(3 if use == IN_LOOP else 1):
            a = f(a, b)
        return a * a

    return main


USES = {"call": CALL, "composite": COMPOSITE, "case": IN_BRANCH, "while": IN_LOOP}


@pytest.mark.parametrize("use", USES)
def test_vjp_rule(use: str, interpreter: Interpreter) -> None:
    text = program(USES[use], VJP_RULE).replace("V", V)
    check_vjp(Case(use, model(tripled, USES[use]), (X, X + 1), text=text), interpreter)


@pytest.mark.parametrize("mode", [check_vjp, check_jvp])
@pytest.mark.parametrize("use", USES)
def test_jvp_rule(use: str, mode, interpreter: Interpreter) -> None:
    text = program(USES[use], JVP_RULE).replace("V", V)
    mode(
        Case(use, model(tripled_forward, USES[use]), (X, X + 1), text=text),
        interpreter,
    )


@pytest.mark.parametrize("mode", [check_vjp, check_jvp])
def test_order_two_of_a_jvp_rule(mode, interpreter: Interpreter) -> None:
    text = program(CALL, JVP_RULE)

    def derivative(x, b, g):
        return [model(tripled_forward, CALL)(x, b), *_pulled(tripled_forward, x, b, g)]

    once = str(derived_module(text, "pcp-vjp{wrt=0,1}"))
    mode(Case("order two", derivative, (X, X + 1, X - 1), text=once), interpreter)


def test_order_two_of_a_vjp_rule(interpreter: Interpreter) -> None:
    def derivative(x, b, g):
        return [model(tripled, CALL)(x, b), *_pulled(tripled, x, b, g)]

    once = str(derived_module(program(CALL, VJP_RULE), "pcp-vjp{wrt=0,1}"))
    check_vjp(Case("order two", derivative, (X, X + 1, X - 1), text=once), interpreter)


def _pulled(f, x, b, g):
    return jax.vjp(model(f, CALL), x, b)[1](g)


DECLARATION = f"  func.func private @f({V}, {V}) -> {V}"


@pytest.mark.parametrize(
    ("use", "rule", "pass_"),
    [
        ("call", VJP_RULE, "pcp-vjp"),
        ("call", JVP_RULE, "pcp-vjp"),
        ("call", JVP_RULE, "pcp-jvp"),
        ("case", JVP_RULE, "pcp-jvp"),
        ("case", VJP_RULE, "pcp-vjp"),
        ("case", JVP_RULE, "pcp-vjp"),
    ],
    ids=[
        "vjp",
        "jvp backwards",
        "jvp",
        "jvp in a branch",
        "vjp in a branch",
        "jvp backwards in a branch",
    ],
)
def test_a_declaration_is_called_once(
    use: str, rule: str, pass_: str, interpreter: Interpreter
) -> None:
    """What has no body may have effects: the derivative has those of the rule alone."""
    text = program(USES[use], _declared(rule, DECLARATION))
    derived = str(derived_module(text.replace("V", V), pass_))
    main = derived.partition("func.func private")[0]
    assert main.count("call @f(") == 1
    body = rule[rule.index("func.func private @f(") :].partition("  }")[0] + "  }"
    whole = derived.replace(DECLARATION.strip(), body)
    tangents = (X - 1,) if pass_ == "pcp-vjp" else (X - 1, X + 2)
    found = interpreter.run(whole, [X, X + 1, *tangents])
    fn = model(tripled if rule is VJP_RULE else tripled_forward, USES[use])
    if pass_ == "pcp-vjp":
        y, pull = jax.vjp(fn, X, X + 1)
        expected = [y, *pull(*tangents)]
    else:
        expected = jax.jvp(fn, (X, X + 1), tangents)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


PURE = f"  func.func private @f({V}, {V}) -> {V} attributes {{nosideeffects}}"


def _declared(rule: str, declaration: str) -> str:
    """The rule of a function without a body."""
    start = rule.index("func.func private @f(")
    end = rule.index("  }", start) + len("  }")
    return rule[:start] + declaration + rule[end:]


def test_an_effect_in_a_loop_that_runs_again_is_refused() -> None:
    """One with a known number of rounds keeps its values, and calls once."""
    derived = str(
        derived_module(program(IN_LOOP, _declared(VJP_RULE, DECLARATION)), "pcp-vjp")
    )
    assert derived.partition("func.func private")[0].count("call @f(") == 1
    rounds = """%e = stablehlo.slice %b [0:1] : (V) -> tensor<1xf32>
    %o = stablehlo.reshape %e : (tensor<1xf32>) -> tensor<f32>
    %n = stablehlo.convert %o : (tensor<f32>) -> tensor<i32>
    """.replace("V", V)
    unknown = IN_LOOP.replace("%n = stablehlo.constant dense<3> : tensor<i32>", rounds)
    text = program(unknown, _declared(VJP_RULE, DECLARATION))
    says = r":\d+:\d+: func.call: .*second time, and @f may have effects; mark"
    with pytest.raises(PcpError, match=says):
        derived_module(text.replace("V", V), "pcp-vjp")
    derived_module(program(unknown, _declared(VJP_RULE, PURE)), "pcp-vjp")


def test_an_effect_behind_a_call_that_stays_is_seen() -> None:
    """@f has a body, in which @log is called: once, by its rule, in a branch too."""
    log = f"func.func private @log({V}) -> ()\n"
    rule = VJP_RULE.replace(
        "%r = stablehlo.mult", "func.call @log(%s) : (V) -> ()\n    %r = stablehlo.mult"
    ).replace("V", V)
    text = program(IN_BRANCH, log + rule)
    derived = str(derived_module(text.replace("V", V), "pcp-vjp"))
    main = derived.partition("func.func private")[0]
    assert main.count("call @log(") + main.count("call @f(") == 1


def test_forward_mode_refuses_a_vjp_rule() -> None:
    with pytest.raises(PcpError, match=r"@f has a pcp\.custom_vjp"):
        transformed(program(CALL, VJP_RULE), "pcp-jvp")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("backward = @f_bwd", "backward = @f_bwb", "no such function.*f_bwd"),
        ("return %b, %d : V, V", "return %b : V", "return the inputs' cotangents"),
        ("forward = @f_fwd", "forward = @f_bwd", "@f_bwd must take what the primal"),
    ],
)
def test_rules_that_do_not_fit(old: str, new: str, message: str) -> None:
    text = program(CALL, VJP_RULE).replace(old.replace("V", V), new.replace("V", V))
    if "return" in old:
        text = text.replace(f"%g: {V}) -> ({V}, {V})", f"%g: {V}) -> ({V})")
    with pytest.raises(PcpError, match=message):
        transformed(text, "pcp-vjp")


@pytest.mark.parametrize("name", ["composite:mine.f", "composite:mine.f@2"])
@pytest.mark.parametrize("mode", [check_vjp, check_jvp])
def test_composites_by_name(name: str, mode, interpreter: Interpreter) -> None:
    registry.register(
        name,
        Elementwise(
            lambda g, x, y, r: hlo.multiply(
                hlo.multiply(g, hlo.constant_like(x, 3.0)),
                hlo.multiply(y, hlo.op("cosine", [x], [x.type]).results[0]),
            ),
            lambda g, x, y, r: hlo.multiply(
                g, hlo.op("sine", [x], [x.type]).results[0]
            ),
        ),
    )
    rule = VJP_RULE[: VJP_RULE.index("func.func private @f_fwd")]
    versioned = COMPOSITE.replace("@f}", "@f, version = 2 : i32}")
    try:
        text = program(versioned, rule)
        fn = model(tripled_forward, COMPOSITE)
        mode(Case(name, fn, (X, X + 1), text=text), interpreter)
    finally:
        registry.unregister(name)


@pytest.mark.slow  # the interpreter has them, above
@pytest.mark.parametrize(
    "use",
    [
        pytest.param("call", marks=pytest.mark.slow),
        pytest.param("composite", marks=pytest.mark.slow),
        "while",
    ],
)
def test_through_iree(use: str, iree: Iree) -> None:
    text = program(USES[use], JVP_RULE)
    case = Case(use, model(tripled_forward, USES[use]), (X, X + 1), text=text)
    Group([case]).check(case, iree)


@pytest.mark.parametrize("pass_", ["pcp-vjp", "pcp-jvp"])
def test_custom_call(pass_: str, interpreter: Interpreter) -> None:
    """A rule registered for its target; written out afterwards, since nothing runs it.

    Three times the true rule: only a rule that is used shows that.
    """
    call = f"stablehlo.custom_call @mine_sine(%arg0) : ({V}) -> {V}"
    text = f"""func.func @main(%arg0: {V}) -> {V} {{
      %y = {call}
      return %y : {V}
    }}"""
    rule = Elementwise(
        lambda g, x, y: hlo.multiply(
            hlo.multiply(g, hlo.constant_like(g, 3.0)), hlo.cosine(x)
        )
    )
    registry.register("custom_call:mine_sine", rule)
    try:
        derived = transformed(text, pass_)
    finally:
        registry.unregister("custom_call:mine_sine")
    assert call in derived
    written_out = derived.replace(call, f"stablehlo.sine %arg0 : {V}")
    y, found = interpreter.run(written_out, [X, np.full_like(X, 0.5)])
    np.testing.assert_allclose(y, np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(found, 1.5 * np.cos(X), rtol=1e-5)
