"""The lockstep executor: exchanges by closed form, and plans that would hang."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from pcp.compiler import lockstep
from pcp.dialect.context import parse
from pcp.errors import PassError

MESH = (
    '"pcp.mesh"() {axes = [#pcp.axis<"a", 2>], devices = [@d0, @d1], sym_name = "m"}'
    " : () -> ()\n"
)
F = "tensor<2xf32>"


def program(*bodies: str) -> str:
    """A module with a function of one argument for each device."""
    homes = [
        f"module @d{i} {{ func.func @main(%x: {F}) -> {F} {{\n{body}\n}} }}\n"
        for i, body in enumerate(bodies)
    ]
    return MESH + "".join(homes)


def collective(name: str, more: str = "", result: str = F, operand: str = "%x") -> str:
    """`%y = pcp.<name>(operand)` along the axis."""
    return (
        f'%y = "pcp.{name}"({operand}) {{axes = ["a"], mesh = @m, ordered{more}}}'
        f" : ({F}) -> {result}"
    )


def run(*bodies: str) -> list[list[np.ndarray]]:
    """Members start from [1, 2] and [10, 20]."""
    inputs = [[np.array([1, 2], np.float32)], [np.array([10, 20], np.float32)]]
    return lockstep.run(parse(program(*bodies)), "main", inputs)


def evaluate(*bodies: str) -> list[list[float]]:
    """In a process of its own: the interpreter may end it."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return [member[0].tolist() for member in pool.submit(run, *bodies).result(60)]


SUM = collective("all_reduce", ', kind = "sum"')
RETURN = f"return %y : {F}"
CASES = {
    "sum": (SUM, [[11, 22], [11, 22]]),
    "mean": (collective("all_reduce", ', kind = "mean"'), [[5.5, 11], [5.5, 11]]),
    "max": (collective("all_reduce", ', kind = "max"'), [[10, 20], [10, 20]]),
    "prod": (collective("all_reduce", ', kind = "prod"'), [[10, 40], [10, 40]]),
    "broadcast": (collective("broadcast", ", root = 1"), [[10, 20], [10, 20]]),
    "permute": (collective("permute", ", pairs = [[0, 1]]"), [[0, 0], [1, 2]]),
    "all_to_all": (
        collective("all_to_all", ", split = 0, concat = 0"),
        [[1, 10], [2, 20]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_exchange(name: str) -> None:
    op, expected = CASES[name]
    body = f"{op}\n{RETURN}"
    assert evaluate(body, body) == expected


def test_collectives_in_a_loop() -> None:
    body = f"""
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, {F}
        cond {{
          %two = stablehlo.constant dense<2> : tensor<i32>
          %c = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }} do {{
          %one = stablehlo.constant dense<1> : tensor<i32>
          %j = stablehlo.add %i, %one : tensor<i32>
          {SUM.replace("%x", "%v")}
          stablehlo.return %j, %y : tensor<i32>, {F}
        }}
      return %r#1 : {F}"""
    assert evaluate(body, body) == [[22, 44], [22, 44]]


def test_a_message_and_a_started_collective() -> None:
    send = f'"pcp.send"(%x) {{channel = 1, to = @d1}} : ({F}) -> ()\nreturn %x : {F}'
    recv = f'%y = "pcp.recv"() {{channel = 1, source = @d0}} : () -> {F}\n{RETURN}'
    assert evaluate(send, recv) == [[1, 2], [1, 2]]
    inner = SUM.replace("%x", "%a").replace("%y", "%s")
    start = f"""
      %f = "pcp.start"(%x) ({{
      ^bb0(%a: {F}):
        {inner}
        "pcp.yield"(%s) : ({F}) -> ()
      }}) {{channel = 3}} : ({F}) -> !pcp.future<{F}>
      %y = "pcp.wait"(%f) : (!pcp.future<{F}>) -> {F}
      {RETURN}"""
    assert evaluate(start, start) == [[11, 22], [11, 22]]


def test_members_at_different_collectives() -> None:
    other = collective("all_reduce", ', kind = "max"')
    with pytest.raises(PassError, match=r"member 1 is at pcp.all_reduce and member 0"):
        run(f"{SUM}\n{RETURN}", f"{other}\n{RETURN}")


def test_a_member_that_never_comes() -> None:
    with pytest.raises(PassError, match=r"finished: 1; member 0 \(d0\) waits at"):
        run(f"{SUM}\n{RETURN}", f"return %x : {F}")


def test_two_that_wait_for_each_other() -> None:
    def body(other: int) -> str:
        return (
            f'%y = "pcp.recv"() {{channel = {other}, source = @d{other}}} : () -> {F}\n'
            f'"pcp.send"(%x) {{channel = {1 - other}, to = @d{other}}} : ({F}) -> ()\n'
            f"{RETURN}"
        )

    with pytest.raises(PassError, match="finished: none"):
        run(body(1), body(0))


def test_no_such_function() -> None:
    with pytest.raises(PassError, match="module @d0 has no function @other"):
        lockstep.run(parse(program(f"return %x : {F}")), "other", [[]])
