"""One program, two lowerings: the runtime's group and the interpreter agree."""

from typing import Any

import numpy as np
import pytest
from helpers.models.expanded_training import bundle, in_parallel, run_passes
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter

from pcp.compiler.attributes import plain
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.core import functions

MESH = '"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"}'
ALONG = 'axes = ["dp"], mesh = @m'


def module(body: str, arguments: str, results: str) -> str:
    """A mesh of two members, and `@step`."""
    return f"""{MESH} : () -> ()
    func.func @step({arguments}) -> ({results}) {{
      {body}
    }}"""


def one(op: str, attributes: str, given: str, result: str) -> str:
    """A program of one collective."""
    return module(
        f"""%0 = "pcp.{op}"(%x) {{{attributes}, {ALONG}}} : ({given}) -> {result}
        return %0 : {result}""",
        f"%x: {given}",
        result,
    )


F, HALF, WHOLE = "tensor<4x6xf32>", "tensor<2x6xf32>", "tensor<4x6xf32>"
TUPLE = f"tuple<{F}, tensor<3xf32>>"
REDUCTIONS = {
    f"all_reduce_{kind}": (one("all_reduce", f'kind = "{kind}"', F, F), [(4, 6)])
    for kind in ("sum", "mean", "max", "min", "prod")
}
CASES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    **REDUCTIONS,
    "reduce_scatter": (
        one("reduce_scatter", 'kind = "sum", dim = 0, sizes = []', WHOLE, HALF),
        [(4, 6)],
    ),
    "reduce_scatter_inner": (
        one(
            "reduce_scatter",
            'kind = "mean", dim = 1, sizes = []',
            WHOLE,
            "tensor<4x3xf32>",
        ),
        [(4, 6)],
    ),
    "all_gather": (
        one("all_gather", "dim = 0, sizes = []", HALF, WHOLE),
        [(2, 6)],
    ),
    "all_gather_inner": (
        one("all_gather", "dim = 1, sizes = [3, 3]", "tensor<4x3xf32>", WHOLE),
        [(4, 3)],
    ),
    "all_to_all": (
        one("all_to_all", "split = 0, concat = 1", F, "tensor<2x12xf32>"),
        [(4, 6)],
    ),
    "broadcast": (one("broadcast", "root = 1", F, F), [(4, 6)]),
    "permute": (one("permute", "pairs = [[0, 1]]", F, F), [(4, 6)]),
    "swap": (one("permute", "pairs = [[0, 1], [1, 0]]", F, F), [(4, 6)]),
    "param_sync": (
        module(
            f"""%t = builtin.unrealized_conversion_cast %x, %y
                : {F}, tensor<3xf32> to {TUPLE}
            %s = "pcp.param_sync"(%t) {{source = 1, {ALONG}}} : ({TUPLE}) -> {TUPLE}
            %r:2 = builtin.unrealized_conversion_cast %s
                : {TUPLE} to {F}, tensor<3xf32>
            return %r#0, %r#1 : {F}, tensor<3xf32>""",
            f"%x: {F}, %y: tensor<3xf32>",
            f"{F}, tensor<3xf32>",
        ),
        [(4, 6), (3,)],
    ),
    "started_bucket": (
        module(
            f"""%t = builtin.unrealized_conversion_cast %x, %y
                : {F}, tensor<3xf32> to {TUPLE}
            %f = "pcp.start"(%t) ({{
            ^bb0(%a: {F}, %b: tensor<3xf32>):
              %c = "pcp.all_reduce"(%a) {{kind = "sum", {ALONG}}} : ({F}) -> {F}
              %d = "pcp.all_reduce"(%b) {{kind = "max", {ALONG}}}
                  : (tensor<3xf32>) -> tensor<3xf32>
              %q = builtin.unrealized_conversion_cast %c, %d
                  : {F}, tensor<3xf32> to {TUPLE}
              "pcp.yield"(%q) : ({TUPLE}) -> ()
            }}) {{channel = 7}} : ({TUPLE}) -> !pcp.future<{TUPLE}>
            %w = "pcp.wait"(%f) : (!pcp.future<{TUPLE}>) -> {TUPLE}
            %r:2 = builtin.unrealized_conversion_cast %w
                : {TUPLE} to {F}, tensor<3xf32>
            return %r#0, %r#1 : {F}, tensor<3xf32>""",
            f"%x: {F}, %y: tensor<3xf32>",
            f"{F}, tensor<3xf32>",
        ),
        [(4, 6), (3,)],
    ),
    "scalar": (
        one("all_reduce", 'kind = "sum"', "tensor<f32>", "tensor<f32>"),
        [()],
    ),
    "several": (
        module(
            f"""%0 = "pcp.all_reduce"(%x) {{kind = "sum", {ALONG}}} : ({F}) -> {F}
            %1 = "pcp.all_reduce"(%x) {{kind = "max", {ALONG}}} : ({F}) -> {F}
            %2 = stablehlo.multiply %0, %1 : {F}
            %3 = "pcp.all_reduce"(%2) {{kind = "sum", {ALONG}}} : ({F}) -> {F}
            %4 = "pcp.broadcast"(%y) {{root = 0, {ALONG}}} : ({F}) -> {F}
            "pcp.sync"() {{{ALONG}}} : () -> ()
            %5 = stablehlo.subtract %3, %4 : {F}
            return %5, %0 : {F}, {F}""",
            f"%x: {F}, %y: {F}",
            f"{F}, {F}",
        ),
        [(4, 6), (4, 6)],
    ),
    "started": (
        module(
            f"""%f = "pcp.start"(%x) ({{
            ^bb0(%a: {F}):
              %r = "pcp.all_reduce"(%a) {{kind = "sum", {ALONG}}} : ({F}) -> {F}
              "pcp.yield"(%r) : ({F}) -> ()
            }}) {{channel = 7}} : ({F}) -> !pcp.future<{F}>
            %0 = stablehlo.tanh %x : {F}
            %1 = "pcp.wait"(%f) : (!pcp.future<{F}>) -> {F}
            %2 = stablehlo.add %0, %1 : {F}
            return %2 : {F}""",
            f"%x: {F}",
            F,
        ),
        [(4, 6)],
    ),
}


def arguments(shapes: list[tuple[int, ...]], rank: int) -> list[np.ndarray]:
    generator = np.random.default_rng(rank)
    return [np.asarray(generator.standard_normal(s), np.float32) for s in shapes]


def on_the_runtime(text: str, shapes: list[tuple[int, ...]]) -> list[list[Any]]:
    """Each member's results."""
    code = bundle(run_passes(text, "pcp-lower-to-runtime"))

    def work(loaded: Any, rank: int) -> list[Any]:
        found = loaded["step"](*arguments(shapes, rank))
        return list(found) if isinstance(found, tuple) else [found]

    return in_parallel(code, 2, work)


def in_the_interpreter(
    interpreter: Interpreter, text: str, shapes: list[tuple[int, ...]]
) -> list[list[Any]]:
    """Each member's results."""
    lowered = run_passes(text, "pcp-lower-to-stablehlo-collectives")
    step = functions.find(lowered, "step")
    assert step is not None
    type_ = functions.function_type(step)
    inputs, results = ([*map(str, t)] * 2 for t in (type_.inputs, type_.results))
    given = [f"%a{i}" for i in range(len(inputs))]
    pairs = ", ".join(f"{a}: {t}" for a, t in zip(given, inputs, strict=True))
    outputs = ", ".join(f"%0#{i}" for i in range(len(results)))
    signature = f"({', '.join(inputs)}) -> ({', '.join(results)})"
    main = f"""
    func.func @main({pairs}) -> ({", ".join(results)}) {{
      %0:{len(results)} = "interpreter.run_parallel"({", ".join(given)})
          {{programs = [[@step, @step]]}} : {signature}
      return {outputs} : {", ".join(results)}
    }}
    {step}"""
    values = [x for rank in range(2) for x in arguments(shapes, rank)]
    found = interpreter.run(main, values)
    half = len(found) // 2
    return [found[:half], found[half:]]


@sampled("name", CASES, 8)
def test_both_agree(interpreter: Interpreter, name: str) -> None:
    text, shapes = CASES[name]
    ours = on_the_runtime(text, shapes)
    theirs = in_the_interpreter(interpreter, text, shapes)
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_send_and_receive() -> None:
    """Ends that stand in programs of their own: rank 0's value reaches rank 1."""
    sender = f"""func.func @step(%x: {F}) -> {F} {{
      "pcp.send"(%x) {{channel = 3, to = 1}} : ({F}) -> ()
      %0 = stablehlo.negate %x : {F}
      return %0 : {F}
    }}"""
    receiver = f"""func.func @step(%x: {F}) -> {F} {{
      %y = "pcp.recv"() {{channel = 3, source = 0}} : () -> {F}
      %0 = stablehlo.subtract %y, %x : {F}
      return %0 : {F}
    }}"""
    codes = [
        bundle(run_passes(text, "pcp-lower-to-runtime")) for text in (sender, receiver)
    ]
    first, second = (arguments([(4, 6)], rank)[0] for rank in range(2))
    found = in_parallel(codes, 2, lambda p, r: p["step"](*arguments([(4, 6)], r)))
    np.testing.assert_array_equal(found[0], -first)
    np.testing.assert_array_equal(found[1], first - second)


# --- the table and the imports ---


def table(text: str) -> dict[str, Any]:
    lowered = run_passes(text, "pcp-lower-to-runtime")
    return plain(lowered.operation.attributes["pcp.collectives"])


def test_the_table_says_what_an_import_does() -> None:
    found = table(CASES["reduce_scatter_inner"][0])
    assert found == {
        "reduce_scatter_0_f32_24": {
            "kind": "reduce_scatter",
            "reduction": "mean",
            "mesh": "m",
            "axes": ["dp"],
            "dtype": "f32",
            "wire": "f32",
            "shape": [4, 6],
            "result_shape": [4, 3],
            "dim": 1,
            "sizes": [],
        }
    }


def test_each_call_has_an_import_of_its_own() -> None:
    """Equal collectives, too: members match them by name, and nothing merges them."""
    text = CASES["several"][0]
    assert list(table(text)) == [
        "all_reduce_0_f32_24",
        "all_reduce_1_f32_24",
        "all_reduce_2_f32_24",
        "broadcast_3_f32_24",
        "sync_4_f32_1",
    ]


def test_wire_and_channel() -> None:
    found = table(one("all_reduce", 'kind = "sum", wire = bf16', F, F))
    assert found["all_reduce_0_f32_24"]["wire"] == "bf16"


def test_ordered_collectives_have_effects() -> None:
    pure = one("all_reduce", 'kind = "sum"', F, F)
    ordered = one("all_reduce", 'kind = "sum", ordered', F, F)
    assert "nosideeffects" in str(run_passes(pure, "pcp-lower-to-runtime"))
    assert "nosideeffects" not in str(run_passes(ordered, "pcp-lower-to-runtime"))


def test_a_device_is_its_place_in_the_mesh() -> None:
    text = f"""
    "pcp.target"() {{arch = "cpu", caps = {{}}, driver = "local", sym_name = "t"}}
        : () -> ()
    "pcp.device"() {{sym_name = "d0", target = @t}} : () -> ()
    "pcp.device"() {{sym_name = "d1", target = @t}} : () -> ()
    "pcp.mesh"() {{axes = [#pcp.axis<"dp", 2>], devices = [@d0, @d1], sym_name = "m"}}
        : () -> ()
    func.func @step(%x: {F}) {{
      "pcp.send"(%x) {{channel = 3, to = @d1}} : ({F}) -> ()
      return
    }}"""
    assert table(text)["send_0_f32_24"] == {
        "kind": "send",
        "target": 1,
        "tag": 3,
        "dtype": "f32",
        "wire": "f32",
        "shape": [4, 6],
    }


# --- what is refused ---

STEP = f"func.func @step(%x: {F}) {{"
REFUSED = {
    "unknown_rank": (
        "pcp-lower-to-runtime",
        f"""{STEP}
          "pcp.send"(%x) {{channel = 3, to = @d1}} : ({F}) -> ()
          return
        }}""",
        "pcp.send: the rank of @d1 is not known",
    ),
    "elastic_without_size": (
        "pcp-lower-to-stablehlo-collectives",
        CASES["all_reduce_sum"][0].replace('"dp", 2>', '"dp", -1>'),
        "mesh @m has an elastic axis; say its size with elastic=",
    ),
    "root_outside": (
        "pcp-lower-to-stablehlo-collectives",
        one("broadcast", "root = 5", F, F),
        "member 5 is not in a group of 2",
    ),
    "uneven": (
        "pcp-lower-to-stablehlo-collectives",
        one("all_gather", "dim = 0, sizes = [1, 3]", "tensor<1x6xf32>", WHOLE),
        "StableHLO has equal parts only",
    ),
    "no_mesh": (
        "pcp-lower-to-stablehlo-collectives",
        CASES["all_reduce_sum"][0].replace("mesh = @m", "mesh = @n"),
        "the module has no mesh @n",
    ),
    "no_axis": (
        "pcp-lower-to-stablehlo-collectives",
        CASES["all_reduce_sum"][0].replace('axes = ["dp"]', 'axes = ["tp"]'),
        "mesh @m has no axis 'tp'",
    ),
    "send": (
        "pcp-lower-to-stablehlo-collectives",
        f"""{STEP}
          "pcp.send"(%x) {{channel = 3, to = 1}} : ({F}) -> ()
          return
        }}""",
        "StableHLO's interpreter has no such collective",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    passes, text, message = REFUSED[name]
    with pytest.raises(PassError) as caught:
        run_passes(text, passes)
    assert message.split(":")[-1].strip() in str(caught.value)
    assert str(caught.value).startswith("-:")


def test_groups_of_a_larger_mesh() -> None:
    """The last axis is fastest; the order of the op's axes orders the members."""
    text = CASES["all_reduce_sum"][0].replace(
        '[#pcp.axis<"dp", 2>]', '[#pcp.axis<"dp", 2>, #pcp.axis<"tp", 3>]'
    )

    def groups(axes: str) -> str:
        source = text.replace('axes = ["dp"]', f"axes = {axes}")
        lowered = str(run_passes(source, "pcp-lower-to-stablehlo-collectives"))
        return lowered.split("replica_groups = dense<")[1].split("> :")[0]

    assert groups('["dp"]') == "[[0, 3], [1, 4], [2, 5]]"
    assert groups('["tp"]') == "[[0, 1, 2], [3, 4, 5]]"
    assert groups('["dp", "tp"]') == "[[0, 1, 2, 3, 4, 5]]"
    assert groups('["tp", "dp"]') == "[[0, 3, 1, 4, 2, 5]]"


def test_programs_without_collectives_are_left_alone() -> None:
    text = f"func.func @step(%x: {F}) -> {F} {{ return %x : {F} }}"
    assert str(run_passes(text, "pcp-lower-to-runtime")) == str(parse(text))


def test_in_a_loop_each_turn_is_an_exchange() -> None:
    """Three times the sum over both members, of what the turn before gave."""
    text = module(
        f"""%zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %three = stablehlo.constant dense<3> : tensor<i32>
        %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, {F}
        cond {{
          %c = stablehlo.compare LT, %i, %three
              : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }} do {{
          %s = "pcp.all_reduce"(%v) {{kind = "sum", {ALONG}}} : ({F}) -> {F}
          %n = stablehlo.add %i, %one : tensor<i32>
          stablehlo.return %n, %s : tensor<i32>, {F}
        }}
        return %r#1 : {F}""",
        f"%x: {F}",
        F,
    )
    first, second = (arguments([(4, 6)], rank)[0] for rank in range(2))
    for (found,) in on_the_runtime(text, [(4, 6)]):
        np.testing.assert_allclose(found, 4 * (first + second), rtol=1e-5, atol=1e-5)


def test_many_independent_exchanges_meet_in_pairs() -> None:
    """Whatever order they are started in: members match them by import."""
    count = 24
    lines = [
        f'%{i} = "pcp.all_reduce"(%x) {{kind = "sum", {ALONG}}} : ({F}) -> {F}'
        for i in range(count)
    ]
    lines += [f"%s0 = stablehlo.add %0, %1 : {F}"]
    lines += [
        f"%s{i} = stablehlo.add %s{i - 1}, %{i + 1} : {F}" for i in range(1, count - 1)
    ]
    text = module("\n".join([*lines, f"return %s{count - 2} : {F}"]), f"%x: {F}", F)
    assert len(table(text)) == count
    first, second = (arguments([(4, 6)], rank)[0] for rank in range(2))
    for (found,) in on_the_runtime(text, [(4, 6)]):
        wanted = count * (first + second)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
