"""Collectives inside of programs: what is imported, in which order, and what overlaps.

The modules are compiled here, straight from StableHLO, so that these tests
depend on nothing of the compiling half but IREE.
"""

import json
import threading
import time
import traceback

import numpy as np
import pytest
from helpers.models.handwritten_imports import (
    SIZE,
    WIDE,
    bundle,
    call,
    collective,
    declare,
    spec,
)
from helpers.oracles import chrome_trace
from helpers.worlds.communicators import (
    endpoints,
    eventually,
    form,
    outcome,
    together,
    world,
)

from pcp.bundle import Bundle, Function, Mesh
from pcp.errors import (
    CollectiveAborted,
    ConfigError,
    PeerLost,
    Timeout,
)
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.executor import Program


def kinds() -> str:
    """One function per kind of collective, tensor in, tensor out."""
    text = ""
    for name, (given, result) in SHAPES.items():
        g, r = (f"tensor<{'x'.join(map(str, s))}xf32>" for s in (given, result))
        text += declare(name, g, r)
        text += f"func.func @run_{name}(%x: {g}) -> {r} {{\n"
        text += call("y", name, "x", g, r) + f"return %y : {r}\n}}\n"
    return text


SHAPES = {
    "all_reduce": ((6, 4), (6, 4)),
    "narrow": ((6, 4), (6, 4)),
    "reduce_scatter": ((6, 4), (6, 2)),
    "all_gather": ((6, 4), (6, 8)),
    "broadcast": ((6, 4), (6, 4)),
    "all_to_all": ((6, 4), (3, 8)),
    "permute": ((6, 4), (6, 4)),
    "sync": ((6, 4), (6, 4)),
}
FACTS = {
    "reduce_scatter": {"dim": 1, "sizes": []},
    "all_gather": {"dim": 1, "sizes": []},
    "broadcast": {"root": 1},
    "all_to_all": {"split": 0, "concat": 1},
    "permute": {"pairs": [[0, 1]]},
}


def inputs(rank):
    rng = np.random.default_rng(rank)
    scale = WIDE**-0.5
    return (
        rng.normal(size=SIZE).astype(np.float32),
        rng.normal(size=(WIDE, WIDE), scale=scale).astype(np.float32),
    )


def power(w):
    return np.linalg.matrix_power(w.astype(np.float64), 7)


def test_collectives_inside_a_function(two, device):
    with world("tcp", 2) as comms:
        programs = [Program.load(two, device, communicator=c) for c in comms]
        results = together(
            range(2), lambda r: [programs[r]["main"](*inputs(r)) for _ in range(3)]
        )
        vectors, matrices = zip(*(inputs(r) for r in range(2)), strict=True)
        total = 2 * (power(matrices[0]) + power(matrices[1]))
        for rank in range(2):
            for s, t in results[rank]:
                np.testing.assert_allclose(
                    s, vectors[0] + vectors[1] + vectors[rank], atol=1e-5
                )
                np.testing.assert_allclose(t, total, atol=1e-3)
        for program in programs:
            program.close()


def test_results_that_are_made_in_place_stay_as_they_are(two, device):
    """A later call, with other values, has memory of its own."""
    with world("tcp", 2) as comms:
        programs = [Program.load(two, device, communicator=c) for c in comms]
        zero = np.zeros((WIDE, WIDE), np.float32)

        def calls(rank):
            kept = []
            for n in range(5):
                vector = np.full(SIZE, 10 * n + rank + 1, np.float32)
                kept.append(programs[rank]["main"](vector, zero, device_arrays=True))
            return [first.numpy() for first, _ in kept]

        for rank, found in enumerate(together(range(2), calls)):
            for n, array in enumerate(found):
                assert np.all(array == 20 * n + 3 + 10 * n + rank + 1), n
        for program in programs:
            program.close()


def test_compute_goes_on_while_an_exchange_is_late(two, device):
    """The peer joins the first exchange only after the second came, and the
    operand of the second is computed after the call of the first."""
    with world("in_process", 2) as comms:
        with Program.load(two, device, communicator=comms[0]) as program:
            came = threading.Event()

            def peer():
                second = np.ones((WIDE, WIDE), np.float32)
                comms[1].all_reduce(second, tag="second", timeout=20)
                came.set()
                comms[1].all_reduce(np.ones(SIZE, np.float32), tag="first", timeout=20)

            helper = threading.Thread(target=peer)
            helper.start()
            a, w = inputs(0)
            s, t = program["main"](a, w)
            helper.join(20)
            assert came.is_set(), "the first exchange held the computation back"
            np.testing.assert_allclose(s, 2 * a + 1, atol=1e-5)
            np.testing.assert_allclose(t, 2 * (power(w) + 1), atol=1e-3)


def test_a_trace_shows_calls_imports_and_what_overlaps(two, device, tmp_path):
    """Member 1 comes when member 0 has asked for both exchanges: between them lies
    all of member 0's computation, beside the first exchange."""
    path = tmp_path / "trace.json"
    with world("tcp", 2) as comms:
        programs = [Program.load(two, device, communicator=c) for c in comms]

        def work(rank):
            with comms[rank].trace(path, programs[rank]):
                if rank:
                    flying = "pcp_operations_in_flight"
                    eventually(lambda: comms[0].metrics()[flying] == 2, 60)
                programs[rank]["main"](*inputs(rank))

        together(range(2), work)
        assert all(program._recorder is None for program in programs)
        for program in programs:
            program.close()
    trace = json.loads(path.read_text())
    chrome_trace.check(trace)
    for rank in range(2):
        titles = chrome_trace.row_names(trace, rank)
        assert {"program", "imports", "collectives"} <= titles
        (whole,) = (e for e in chrome_trace.named(trace, "main") if e["pid"] == rank)
        for name in ("first", "second"):
            found = chrome_trace.named(trace, name)
            (event,) = (e for e in found if e["pid"] == rank)
            assert event["ts"] >= whole["ts"]
            assert event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] + 1e-6
    assert len(chrome_trace.named(trace, "all_reduce")) == 4
    assert chrome_trace.named(trace, "deliver")
    exchanges = [e for e in chrome_trace.named(trace, "exchange") if not e["pid"]]
    first, second = sorted(exchanges, key=lambda e: e["ts"])
    assert second["ts"] < first["ts"] + first["dur"]


def test_the_error_of_an_exchange_is_the_error_of_the_call(two, device):
    with endpoints(3) as made:
        comms = form(made)
        programs = [Program.load(two, device, communicator=c) for c in comms]
        resident = [programs[0].to_device(x) for x in inputs(0)]

        def run(rank):
            if rank == 2:
                time.sleep(0.2)
                comms[2]._crash()
                return None
            values = resident if rank == 0 else inputs(rank)
            return outcome(lambda: programs[rank]["main"](*values))

        faults = together(range(3), run)[:2]
        assert all(isinstance(f, PeerLost) and f.peer == 2 for f in faults)
        for array, original in zip(resident, inputs(0), strict=True):
            np.testing.assert_array_equal(array.numpy(), original)
        for rank, comm in enumerate(form(made[:2], epoch=2)):
            programs[rank].communicator = comm
        again = together(
            range(2),
            lambda r: programs[r]["main"](*(resident if r == 0 else inputs(r))),
        )
        wanted = inputs(0)[0] * 2 + inputs(1)[0]
        np.testing.assert_allclose(again[0][0], wanted, atol=1e-5)
        comm = programs[0].communicator
        assert isinstance(comm, Communicator)
        comm.abort("enough")
        with pytest.raises(CollectiveAborted, match="enough"):
            programs[1]["main"](*inputs(1))
        for program in programs:
            program.close()


def test_a_program_without_its_group_says_what_to_do(two):
    with Program.load(two) as program:
        with pytest.raises(ConfigError, match=r"program\.communicator"):
            program["main"](*inputs(0))
        (alone,) = Communicator.in_process(1)
        with alone:
            program.communicator = alone
            np.testing.assert_allclose(
                program["main"](*inputs(0))[0], 2 * inputs(0)[0], atol=1e-6
            )


def test_the_frames_of_a_failed_call_hold_nothing_of_the_device(two):
    """Freed behind their device, IREE's buffers end the process."""
    with Program.load(two) as program:
        with pytest.raises(ConfigError) as caught:
            program["main"](*inputs(0))
        error, frames = caught.value, []
        while error is not None:
            frames += [f for f, _ in traceback.walk_tb(error.__traceback__)]
            error = error.__cause__ or error.__context__
        names = {f.f_code.co_name: f for f in frames}
        assert {"_invoke", "begin"} <= names.keys()
        held = {
            n for n, f in names.items() if f.f_locals and "pcp" in f.f_code.co_filename
        }
        assert held <= {"__call__", "_call"}


def test_send_and_recv_between_two_programs():
    """No mesh, no axes: a point-to-point import names its peer's rank."""
    given = "tensor<4xf32>"
    side = 'attributes {iree.abi.model = "coarse-fences"}\n'
    text = f"util.func private @pcp_rt.out({given}) -> {given} {side}"
    text += f"util.func private @pcp_rt.in({given}) -> {given} {side}"
    for name in ("out", "in"):
        text += f"func.func @run_{name}(%x: {given}) -> {given} {{\n"
        text += call("y", name, "x", given, given) + f"return %y : {given}\n}}\n"
    one = Function(inputs=(spec("x", [4]),), results=(spec("y", [4]),))
    ends = {
        "out": ("send", {"target": 1, "tag": 3}),
        "in": ("recv", {"source": 0, "tag": 3}),
    }
    table = {
        name: collective(kind, [4], axes=(), mesh="", attributes=facts)
        for name, (kind, facts) in ends.items()
    }
    made = bundle(text, {"run_out": one, "run_in": one}, table)
    values = np.arange(4, dtype=np.float32)
    with world("in_process", 2) as comms:
        programs = [Program.load(made, communicator=c) for c in comms]
        sent, got = together(
            (0, 1),
            lambda r: programs[r]["run_in" if r else "run_out"](values * (1 - r)),
        )
        assert sent.tolist() == got.tolist() == values.tolist()
        for program in programs:
            program.close()


def crossed(first: str, second: str, behind: int) -> str:
    """A sum, and `behind` that need it; then the other sum, and those that need it."""
    given, text, made = "tensor<4xf32>", "", ""
    for name in (first, second):
        text += declare(name, given, given)
        made += call(name, name, "x", given, given)
        for i in range(behind):
            text += declare(f"{name}{i}", given, given)
            made += f"%{name}m{i} = stablehlo.add %{name}, %x : {given}\n"
            made += call(f"{name}{i}", f"{name}{i}", f"{name}m{i}", given, given)
    sums = [f"{name}{i}" for name in sorted((first, second)) for i in range(behind)]
    types = ", ".join([given] * len(sums))
    text += f"func.func @main(%x: {given}) -> ({types}) {{\n{made}"
    return text + f"return {', '.join('%' + s for s in sums)} : {types}\n}}\n"


@pytest.mark.slow  # a program more
def test_members_may_call_in_other_orders():
    """However many wait for their operands, none keeps another's from being posted."""
    behind = 6
    names = [f"{n}{i}" for n in "ab" for i in range(behind)]
    main = Function(
        inputs=(spec("x", [4]),), results=tuple(spec(name, [4]) for name in names)
    )
    mesh = {"m": Mesh(axes={"workers": 2})}
    table = {name: collective("all_reduce", [4]) for name in ("a", "b", *names)}
    # An import's name ends in what members may differ in: type and size.
    table = {f"{name}_0_f32_4": what for name, what in table.items()}
    values = [np.full(4, rank + 1, np.float32) for rank in (0, 1)]
    with world("in_process", 2) as comms:
        programs = []
        for comm, order in zip(comms, (("a", "b"), ("b", "a")), strict=True):
            text = crossed(*order, behind)
            for name in ("a", "b", *names):
                text = text.replace(f"@pcp_rt.{name}(", f"@pcp_rt.{name}_0_f32_4(")
            made = bundle(text, {"main": main}, table, mesh)
            comm.timeout = 10
            programs.append(Program.load(made, communicator=comm))
        got = together((0, 1), lambda r: programs[r]["main"](values[r]))
        for results in got:
            assert [y.tolist() for y in results] == [[9.0] * 4] * (2 * behind)
        for program in programs:
            program.close()


def test_a_program_that_waits_for_itself_says_so():
    """IREE moves the first import in front of what fills its fence, since the second
    half of `%c` is written where the first is; the allocation behind it waits."""
    given, half, whole = "tensor<8x4xf32>", "tensor<8xf32>", "tensor<16xf32>"
    text = declare("a", given, given) + declare("b", given, given)
    text += declare("c", whole, whole)
    text += f"func.func @main(%x: {given}, %w: tensor<4x4xf32>) -> {whole} {{\n"
    text += "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
    rows = (
        "%{} = stablehlo.reduce(%{} init: %z) applies stablehlo.add across dimensions"
        f" = [1] : ({given}, tensor<f32>) -> {half}\n"
    )
    text += rows.format("early", "x") + call("r", "a", "x", given, given)
    text += f"%v = stablehlo.dot %r, %w : ({given}, tensor<4x4xf32>) -> {given}\n"
    text += call("s", "b", "v", given, given) + rows.format("late", "s")
    text += f"%t = stablehlo.concatenate %late, %early, dim = 0 : ({half}, {half})"
    text += f" -> {whole}\n" + call("q", "c", "t", whole, whole)
    text += f"return %q : {whole}\n}}\n"
    main = Function(
        inputs=(spec("x", [8, 4]), spec("w", [4, 4])), results=(spec("q", [16]),)
    )
    shapes = {"a": [8, 4], "b": [8, 4], "c": [16]}
    table = {name: collective("all_reduce", shape) for name, shape in shapes.items()}
    made = bundle(text, {"main": main}, table, {"m": Mesh(axes={"workers": 2})})
    values = np.ones((8, 4), np.float32), np.eye(4, dtype=np.float32)
    with world("in_process", 2) as comms:
        programs = [Program.load(made, "local-sync", communicator=c) for c in comms]
        for comm in comms:
            comm.timeout = 1
        faults = together(
            (0, 1), lambda r: outcome(lambda: programs[r]["main"](*values))
        )
        for fault in faults:
            assert isinstance(fault, Timeout)
            assert str(fault).startswith("a: its operands did not come, and for 1 s")
        for program in programs:
            program.close()


@pytest.fixture(scope="module")
def every_kind():
    functions = {
        f"run_{name}": Function(inputs=(spec("x", g),), results=(spec("y", r),))
        for name, (g, r) in SHAPES.items()
    }
    table = {
        name: collective(
            "all_reduce" if name == "narrow" else name,
            given,
            attributes=FACTS.get(name, {}),
            wire="bf16" if name == "narrow" else "f32",
        )
        for name, (given, _) in SHAPES.items()
    }
    return bundle(kinds(), functions, table, {"m": Mesh(axes={"workers": 2})})


def test_every_kind_of_collective(every_kind):
    x = [
        np.random.default_rng(r).normal(size=(6, 4)).astype(np.float32) for r in (0, 1)
    ]
    both = x[0] + x[1]
    wanted = {
        "all_reduce": [both, both],
        "narrow": [both, both],
        "reduce_scatter": [both[:, :2], both[:, 2:]],
        "all_gather": [np.concatenate(x, 1)] * 2,
        "broadcast": [x[1], x[1]],
        "all_to_all": [
            np.concatenate([a[r * 3 : r * 3 + 3] for a in x], 1) for r in (0, 1)
        ],
        "permute": [np.zeros((6, 4)), x[0]],
        "sync": x,
    }
    assert wanted.keys() == SHAPES.keys()
    with world("in_process", 2) as comms:
        programs = [Program.load(every_kind, communicator=c) for c in comms]
        for name, want in wanted.items():
            got = together(range(2), lambda r, n=name: programs[r][f"run_{n}"](x[r]))
            tolerance = 0.05 if name == "narrow" else 1e-6
            for rank in (0, 1):
                np.testing.assert_allclose(got[rank], want[rank], atol=tolerance)
            rounded = name == "narrow"
            assert np.array_equal(got[0], np.asarray(want[0], np.float32)) != rounded
        for program in programs:
            program.close()


def test_a_group_of_another_size_is_refused(every_kind):
    with world("in_process", 3) as comms:
        with Program.load(every_kind, communicator=comms[0]) as program:
            with pytest.raises(ConfigError, match="2 members along workers"):
                program["run_sync"](np.ones((6, 4), np.float32))


def test_axes_of_a_larger_mesh_need_a_group_each(every_kind):
    mesh = {"m": Mesh(axes={"workers": 2, "tp": 2})}
    manifest = every_kind.manifest.model_copy(update={"mesh": mesh})
    both = Bundle.build(manifest, every_kind.members)
    x = np.ones((6, 4), np.float32)
    with world("in_process", 2) as comms:
        programs = [Program.load(both, communicator=c) for c in comms]
        with pytest.raises(ConfigError, match="communicator for each"):
            programs[0]["run_all_reduce"](x)
        for program, comm in zip(programs, comms, strict=True):
            program.communicator = {"workers": comm}
        sums = together(programs, lambda p: p["run_all_reduce"](x))
        assert all((s == 2).all() for s in sums)
        programs[0].communicator = {"tp": comms[0]}
        with pytest.raises(ConfigError, match="no communicator for axes 'workers'"):
            programs[0]["run_all_reduce"](x)
        for program in programs:
            program.close()
