"""Plans that come to their end, and plans that wait for ever.

The oracle of the replay is a graph: a collective of a group is a node, each
device's order an edge between the nodes it meets; a cycle is a deadlock.
"""

import random
from graphlib import CycleError, TopologicalSorter

import pytest
from helpers.present import present

from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.verify.verify_plan import verify_plan

MESH = """"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>],
  devices = [@d0, @d1, @d2, @d3], sym_name = "m"} : () -> ()
"""
GROUPS = {
    "dp": [{0, 2}, {1, 3}],
    "tp": [{0, 1}, {2, 3}],
    "dp+tp": [{0, 1, 2, 3}],
}


def reduce(axis, operand="%x"):
    axes = ", ".join(f'"{a}"' for a in axis.split("+"))
    return (
        f'"pcp.all_reduce"({operand}) {{axes = [{axes}], kind = "sum", mesh = @m, '
        "ordered} : (tensor<4xf32>) -> tensor<4xf32>"
    )


def start(axis, channel):
    return f"""%f{channel} = "pcp.start"(%x) ({{
    ^bb0(%a: tensor<4xf32>):
      %r = {reduce(axis, "%a")}
      "pcp.yield"(%r) : (tensor<4xf32>) -> ()
    }}) {{channel = {channel}}} : (tensor<4xf32>) -> !pcp.future<tensor<4xf32>>"""


def wait(channel):
    return (
        f'%w{channel} = "pcp.wait"(%f{channel}) '
        ": (!pcp.future<tensor<4xf32>>) -> tensor<4xf32>"
    )


def send(channel, to):
    return f'"pcp.send"(%x) {{channel = {channel}, to = @{to}}} : (tensor<4xf32>) -> ()'


def recv(channel, source):
    return (
        f'%c{channel} = "pcp.recv"() {{channel = {channel}, source = @{source}}}'
        " : () -> tensor<4xf32>"
    )


def plan(*programs):
    """A module with a program, a list of ops, for each of the four devices."""
    text = MESH
    for i, ops in enumerate(programs):
        body = "\n".join(
            op
            if "%" in op.partition("=")[0] or op.startswith('"pcp.send')
            else f"%v{k} = {op}"
            for k, op in enumerate(ops)
        )
        text += f"module @d{i} {{ func.func @f(%x: tensor<4xf32>) {{\n{body}\n"
        text += "return } }\n"
    return parse(text)


def refusal(*programs):
    """What `pcp-verify-plan` says of the programs, or None."""
    try:
        verify_plan(plan(*programs))
    except PassError as error:
        return str(error)
    return None


def test_a_ring_of_groups_that_wait_for_each_other_is_refused():
    """No two devices disagree on what they share, and yet nobody can move."""
    message = refusal(
        [reduce("tp"), reduce("dp")],
        [reduce("dp"), reduce("tp")],
        [reduce("dp"), reduce("tp")],
        [reduce("tp"), reduce("dp")],
    )
    assert message is not None
    assert "waits for ever on @d0" in message
    assert "@d3 is at pcp.all_reduce" in message


def test_the_same_ring_runs_when_the_first_step_is_only_started():
    programs = [
        [start(first, 0), reduce(second), wait(0)]
        for first, second in (("tp", "dp"), ("dp", "tp"), ("dp", "tp"), ("tp", "dp"))
    ]
    assert refusal(*programs) is None


def test_waiting_at_once_is_no_better_than_not_starting():
    programs = [
        [start(first, 0), wait(0), reduce(second)]
        for first, second in (("tp", "dp"), ("dp", "tp"), ("dp", "tp"), ("tp", "dp"))
    ]
    assert "waits for ever" in present(refusal(*programs))


def test_two_devices_that_both_receive_first_are_refused():
    rest = ([], [])
    crossed = [[recv(1, "d1"), send(2, "d1")], [recv(2, "d0"), send(1, "d0")]]
    assert "pcp.recv" in present(refusal(*crossed, *rest))
    assert refusal(*[list(reversed(p)) for p in crossed], *rest) is None


def test_a_receive_behind_a_collective_that_the_sender_is_past():
    after = [[reduce("tp"), send(1, "d1")], [reduce("tp"), recv(1, "d0")]]
    rest = ([reduce("tp")], [reduce("tp")])
    assert refusal(*after, *rest) is None
    before = [after[0], list(reversed(after[1]))]
    assert "waits for ever" in present(refusal(*before, *rest))


def test_a_channel_between_functions_of_other_names_is_no_deadlock():
    text = (
        MESH
        + f"""
    module @d0 {{ func.func @f(%x: tensor<4xf32>) {{ {send(1, "d1")} return }} }}
    module @d1 {{ func.func @g() {{ {recv(1, "d0")} return }} }}
    module @d2 {{}}
    module @d3 {{}}
    """
    )
    verify_plan(parse(text))


def group(axis, device):
    return next(frozenset(g) for g in GROUPS[axis] if device in g)


def has_cycle(programs):
    """Whether the order of the group's collectives, as a graph, has a cycle."""
    graph = TopologicalSorter()
    for device, axes in enumerate(programs):
        counts = {}
        previous = None
        for axis in axes:
            members = group(axis, device)
            counts[members] = counts.get(members, 0) + 1
            node = (members, counts[members])
            graph.add(node, *([previous] if previous else []))
            previous = node
    try:
        graph.prepare()
    except CycleError:
        return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_the_replay_agrees_with_the_graph(seed):
    """From one global order, devices swap neighbours that no pair shares."""
    rng = random.Random(seed)
    order = [rng.choice(["dp", "tp"]) for _ in range(rng.randrange(1, 7))]
    programs = [list(order) for _ in range(4)]
    assert refusal(*[[reduce(a) for a in p] for p in programs]) is None
    for program in rng.sample(programs, rng.randrange(1, 4)):
        for i in range(len(program) - 1):
            if rng.random() < 0.5:
                program[i], program[i + 1] = program[i + 1], program[i]
    message = refusal(*[[reduce(a) for a in p] for p in programs])
    assert (message is not None) == has_cycle(programs), programs


def test_some_of_the_random_plans_are_refused_and_some_are_not():
    """Otherwise the agreement above would say little."""
    outcomes = set()
    for seed in range(40):
        rng = random.Random(seed)
        program = [rng.choice(["dp", "tp"]) for _ in range(4)]
        other = rng.sample(program, 4)
        outcomes.add(has_cycle([program, other, other, program]))
    assert outcomes == {True, False}


@pytest.mark.parametrize("axis", ["dp", "tp", "dp+tp"])
def test_a_collective_that_one_member_lacks_is_refused(axis):
    programs = [[reduce(axis)] for _ in range(4)]
    assert refusal(*programs) is None
    programs[3] = []
    assert "only" in present(refusal(*programs))


def test_a_large_program_is_checked_in_no_time():
    """A thousand collectives on each of four devices take two seconds, not minutes."""
    body = [reduce("dp"), reduce("tp")] * 500
    assert refusal(body, body, body, body) is None
