"""The lockstep executor: exchanges by closed form, and plans that would hang."""

import hashlib
import logging
import struct
from concurrent.futures import Executor
from logging.handlers import QueueHandler
from queue import SimpleQueue

import numpy as np
import pytest

from pcp.compiler import lockstep
from pcp.dialect.context import parse
from pcp.errors import PassError, StateMismatch

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


def run_text(text: str) -> list[list[np.ndarray]]:
    """Members start from [1, 2] and [10, 20]."""
    inputs = [[np.array([1, 2], np.float32)], [np.array([10, 20], np.float32)]]
    return lockstep.run(parse(text), "main", inputs)


def run(*bodies: str) -> list[list[np.ndarray]]:
    """`run_text` of these bodies."""
    return run_text(program(*bodies))


def evaluate(elsewhere: Executor, *bodies: str) -> list[list[float]]:
    """Each member's result."""
    found = elsewhere.submit(run, *bodies).result(60)
    return [member[0].tolist() for member in found]


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
def test_an_exchange(name: str, elsewhere) -> None:
    op, expected = CASES[name]
    body = f"{op}\n{RETURN}"
    assert evaluate(elsewhere, body, body) == expected


def test_collectives_in_a_loop(elsewhere) -> None:
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
    assert evaluate(elsewhere, body, body) == [[22, 44], [22, 44]]


def test_a_message_and_a_started_collective(elsewhere) -> None:
    send = f'"pcp.send"(%x) {{channel = 1, to = @d1}} : ({F}) -> ()\nreturn %x : {F}'
    recv = f'%y = "pcp.recv"() {{channel = 1, source = @d0}} : () -> {F}\n{RETURN}'
    assert evaluate(elsewhere, send, recv) == [[1, 2], [1, 2]]
    inner = SUM.replace("%x", "%a").replace("%y", "%s")
    start = f"""
      %f = "pcp.start"(%x) ({{
      ^bb0(%a: {F}):
        {inner}
        "pcp.yield"(%s) : ({F}) -> ()
      }}) {{channel = 3}} : ({F}) -> !pcp.future<{F}>
      %y = "pcp.wait"(%f) : (!pcp.future<{F}>) -> {F}
      {RETURN}"""
    assert evaluate(elsewhere, start, start) == [[11, 22], [11, 22]]


# --- parity and digests ---

#: The first member's tensor on both, and one that differs.
SHARED = collective("broadcast", ", root = 0", operand="%x")
PAIR = f"%t = builtin.unrealized_conversion_cast %y, %x : {F}, {F} to tuple<{F}, {F}>\n"


def parity(action: str, operand: str = "%x", type_: str = F) -> str:
    """`pcp.parity` of one value along the axis."""
    facts = f'{{action = "{action}", axes = ["a"], mesh = @m}}'
    return f'"pcp.parity"({operand}) {facts} : ({type_}) -> ()\n'


def results(*bodies: str) -> tuple[list[list[float]], list[str]]:
    """Each member's result, and the action of each warning."""
    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(queue)
    logging.getLogger("pcp.compiler").addHandler(handler)
    found = [member[0].tolist() for member in run(*bodies)]
    logging.getLogger("pcp.compiler").removeHandler(handler)
    said = [queue.get().getMessage() for _ in range(queue.qsize())]
    return found, [message.rpartition("(")[2].rstrip(")") for message in said]


#: Behind a parity of what differs, by action: (members' results, what is logged).
DIFFERS = {
    "repair": ([[1, 2], [1, 2]], ["repair"]),
    "report": ([[1, 2], [10, 20]], ["report"]),
    "trap": None,
}


@pytest.mark.parametrize("action", DIFFERS)
@pytest.mark.parametrize(
    ("operands", "types"),
    [("%x", F), ("%y, %x", f"{F}, {F}"), ("%t", f"tuple<{F}, {F}>")],
)
def test_parity(action: str, operands: str, types: str, elsewhere) -> None:
    check = PAIR + parity(action, operands, types)
    body = f"{SHARED}\n{check}return %x : {F}"
    job = elsewhere.submit(results, body, body)
    if DIFFERS[action] is None:
        with pytest.raises(StateMismatch, match="member 1 of its group holds"):
            job.result(60)
    else:
        assert job.result(60) == DIFFERS[action]


def test_what_is_repaired_in_a_branch_is_so_in_this_branch(elsewhere) -> None:
    body = f"""
      %c = stablehlo.constant dense<true> : tensor<i1>
      %r = "stablehlo.if"(%c) ({{
        {parity("repair")}
        %n = stablehlo.negate %x : {F}
        "stablehlo.return"(%n) : ({F}) -> ()
      }}, {{
        "stablehlo.return"(%x) : ({F}) -> ()
      }}) : (tensor<i1>) -> {F}
      %y = stablehlo.add %r, %x : {F}
      {RETURN}"""
    assert evaluate(elsewhere, body, body) == [[0, 0], [9, 18]]


@pytest.mark.parametrize("algo", ["sha256", "blake2b"])
def test_a_digest(algo: str, elsewhere) -> None:
    words = "tensor<2xi64>"
    body = f"""
      {SHARED}
      {PAIR}
      %h = "pcp.digest"(%t) {{algo = "{algo}"}} : (tuple<{F}, {F}>) -> {words}
      return %h : {words}"""
    expected = []
    for own in ([1, 2], [10, 20]):
        content = np.array([1, 2, *own], "<f4").tobytes()
        half = hashlib.new(algo, content).digest()[:16]
        expected.append(list(struct.unpack("<2q", half)))
    text = program(body, body).replace(f"-> {F} {{", f"-> {words} {{")
    found = elsewhere.submit(run_text, text).result(60)
    assert [member[0].tolist() for member in found] == expected


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
