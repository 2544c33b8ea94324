"""Value semantics: a call changes nothing but what it was given for good.

The oracle is the StableHLO interpreter, the programs are random, and they run as a
user runs them: compiled by IREE, on numpy arrays and on arrays of the device.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.random_programs.updates import arguments, program
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter
from jax.typing import ArrayLike

import pcp
from pcp.compiler import pipelines
from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.runtime.program.executor import BoundFunction, DeviceArray, Program
from pcp.training.trainer.step_loop import Steps

RANDOM = 20  # in one module; fifty modules' worth are slow
"""Programs; every second one gives its first argument away where it is updated."""

FIRST = [
    pytest.param(n, marks=pytest.mark.slow if n else ()) for n in range(0, 1000, RANDOM)
]


@pytest.fixture(scope="module", params=FIRST)
def updates(request: pytest.FixtureRequest) -> Iterator[tuple[range, Program]]:
    """Random programs as the functions of one, `main`, `f1`, `f2`, ..., and seeds."""
    seeds = range(request.param, request.param + RANDOM)
    texts = (program(i, _name(i), named=_named(i)) for i in seeds)
    module = parse("\n".join(texts))
    bundle = pcp.compile(module, targets=["cpu"], mode="forward")
    with Program.load(bundle, "local-task") as loaded:
        yield seeds, loaded


def _name(seed: int) -> str:
    return f"f{seed}" if seed % RANDOM else "main"


def _named(seed: int) -> bool:
    return seed % 2 == 1


@pytest.mark.parametrize("first", range(0, RANDOM, 10))
def test_random_updates(
    first: int, updates: tuple[range, Program], interpreter: Interpreter
) -> None:
    seeds, loaded = updates
    for seed in seeds[first : first + 10]:
        given = arguments(seed)
        wanted = interpreter.run(program(seed), given)
        function = loaded[_name(seed)]
        _check_equal(_called(function, given), wanted, seed)
        on_device = [loaded.to_device(a) for a in given]
        results = _called(function, on_device, device_arrays=True)
        _check_equal(results, wanted, seed)
        kept = [i for i in range(len(given)) if i not in function.signature.donates]
        assert _bits(on_device[i] for i in kept) == _bits(given[i] for i in kept), seed
        _check_ownership(function, on_device, results, seed)


def _check_equal(results: list[Any], wanted: list[np.ndarray], seed: int) -> None:
    """The numbers, but for the sign of a zero: a product may add to one or not."""
    for result, right in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(result), right, err_msg=str(seed))


def _check_ownership(
    function: BoundFunction,
    before: list[DeviceArray],
    results: list[DeviceArray],
    seed: int,
) -> None:
    """A result may be given away to a second call, and no other array notices."""
    fit = [r for r in results if r.shape == before[0].shape]
    others = [x for x in (*before[1:], *results) if x is not fit[-1]]
    bits = _bits(others)
    _called(function, [fit[-1], *before[1:]], device_arrays=True)
    assert _bits(others) == bits, seed


def _called(function: BoundFunction, given: Any, **how: bool) -> list[Any]:
    """The results as a list."""
    results = function(*given, **how)
    return list(results) if isinstance(results, tuple) else [results]


def _bits(arrays: Any) -> list[bytes]:
    return [np.asarray(a).tobytes() for a in arrays]


def test_some_programs_give_their_cache_away(updates: tuple[range, Program]) -> None:
    """Else the test above would prove little of them."""
    _, loaded = updates
    donating = [n for n in loaded.functions if loaded[n].signature.donates]
    assert len(donating) > RANDOM / 20


def test_what_is_protected_is_overwritten_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the tests above look for is there to be found."""
    *stages, border = pipelines.DEVICE
    *steps, last = border.passes
    assert last == "pcp-protect-arguments"
    unprotected = replace(border, passes=tuple(steps))
    monkeypatch.setattr(pipelines, "DEVICE", (*stages, unprotected))
    assert _beside()[0].any()


TWICE = """
func.func @main(%a: tensor<6x4xf32>, %b: tensor<6x4xf32>, %u: tensor<2x4xf32>)
    -> (tensor<6x4xf32>, tensor<6x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %end = stablehlo.constant dense<4> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %x = %a, %y = %b)
      : tensor<i32>, tensor<6x4xf32>, tensor<6x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    READ
    %n = stablehlo.dynamic_update_slice %x, %v, %i, %zero
        : (tensor<6x4xf32>, tensor<2x4xf32>, tensor<i32>, tensor<i32>)
        -> tensor<6x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %n, %n : tensor<i32>, tensor<6x4xf32>, tensor<6x4xf32>
  }
  %w = stablehlo.dynamic_update_slice %r#1, %u, %end, %zero
      : (tensor<6x4xf32>, tensor<2x4xf32>, tensor<i32>, tensor<i32>)
      -> tensor<6x4xf32>
  return %w, %r#2 : tensor<6x4xf32>, tensor<6x4xf32>
}
"""
READS = {
    "the second is not read": "%v = stablehlo.add %u, %u : tensor<2x4xf32>",
    "the second is read": """
    %s = stablehlo.slice %y [1:3, 0:4] : (tensor<6x4xf32>) -> tensor<2x4xf32>
    %v = stablehlo.add %u, %s : tensor<2x4xf32>""",
}


@pytest.mark.parametrize("read", READS)
def test_what_a_round_gives_twice_is_two_tensors(
    read: str, interpreter: Interpreter
) -> None:
    """One is written over behind the loop; no copy of it may come too late."""
    text = TWICE.replace("READ", READS[read])
    draw = np.random.default_rng(0)
    given = [
        draw.integers(-4, 5, s).astype(np.float32) for s in ((6, 4), (6, 4), (2, 4))
    ]
    wanted = interpreter.run(text, given)
    bundle = pcp.compile(parse(text), targets=["cpu"], mode="forward")
    with Program.load(bundle, "local-task") as loaded:
        for _ in range(20):
            _check_equal(loaded["main"](*given), wanted, 0)


UPDATED = """
func.func @main(%c: tensor<4xTYPE>NAMED, %u: tensor<1xTYPE>, %i: tensor<i32>)
    -> (tensor<4xTYPE>NAMED, tensor<4xi1>) {
  %0 = stablehlo.dynamic_update_slice %c, %u, %i
      : (tensor<4xTYPE>, tensor<1xTYPE>, tensor<i32>) -> tensor<4xTYPE>
  %1 = stablehlo.compare NE, %c, %c
      : (tensor<4xTYPE>, tensor<4xTYPE>) -> tensor<4xi1>
  return %0, %1 : tensor<4xTYPE>, tensor<4xi1>
}
"""
TYPES = ("i1", "ui8", "i16", "ui32", "i64", "ui64", "bf16", "f64", "complex<f32>")


@sampled("named", ["", ' {pcp.name = "c", pcp.role = "state"}'], 1)
def test_every_type(named: str) -> None:
    """As the functions of one program; where `named`, the argument is given away."""
    texts = [
        UPDATED.replace("TYPE", t).replace("NAMED", named).replace("main", f"f{i}")
        for i, t in enumerate(TYPES)
    ]
    text = "".join(texts).replace("@f0", "@main")
    bundle = pcp.compile(parse(text), targets=["cpu"], mode="forward")
    with Program.load(bundle) as loaded:
        for name, type_ in zip(loaded.functions, TYPES, strict=True):
            dtype = numpy_dtype(type_)
            cache, row = np.zeros(4, dtype), np.ones(1, dtype)
            kept, at = loaded.to_device(cache, type_), np.int32(2)
            updated, differs = loaded[name](kept, row, at, device_arrays=True)
            expected = cache.copy()
            expected[2:3] = row
            assert updated.numpy().tobytes() == expected.tobytes(), type_
            assert not differs.numpy().any()
            if not named:
                assert kept.numpy().tobytes() == cache.tobytes(), type_


SHIFTED = """
func.func @NAME(%x: tensor<400xf32>, %i: tensor<i32>) -> tensor<400xf32> {
  %h = stablehlo.add %x, %x : tensor<400xf32>
  %z = stablehlo.constant dense<0> : tensor<i32>
  %p = stablehlo.slice %h [0:100] : (tensor<400xf32>) -> tensor<100xf32>
  %u = UPDATE -> tensor<100xf32>
  %r = stablehlo.dynamic_update_slice %h, %u, %i
    : (tensor<400xf32>, tensor<100xf32>, tensor<i32>) -> tensor<400xf32>
  return %r : tensor<400xf32>
}
"""
_OF_P = ": (tensor<100xf32>)"
#: By function: what is written from element 6 on, and the same of 2 x.
MOVED: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "main": (f"stablehlo.reshape %p {_OF_P}", lambda h: h[:100]),
    "dynamic": (
        "stablehlo.dynamic_slice %h, %z, sizes = [100]"
        " : (tensor<400xf32>, tensor<i32>)",
        lambda h: h[:100],
    ),
    "reversed": (f"stablehlo.reverse %p, dims = [0] {_OF_P}", lambda h: h[99::-1]),
    "doubled": (
        "stablehlo.add %p, %p : (tensor<100xf32>, tensor<100xf32>)",
        lambda h: 2 * h[:100],
    ),
    "negated": (f"stablehlo.negate %p {_OF_P}", lambda h: -h[:100]),
}


def test_what_is_made_of_other_places_is_read_before_they_are_written_over() -> None:
    text = "".join(
        SHIFTED.replace("NAME", name).replace("UPDATE", update)
        for name, (update, _) in MOVED.items()
    )
    x = np.arange(400, dtype=np.float32)
    bundle = pcp.compile(parse(text), targets=["cpu"], mode="forward")
    with Program.load(bundle) as loaded:
        for name, (_, update) in MOVED.items():
            wanted = 2 * x
            wanted[6:106] = update(2 * x)
            assert np.array_equal(loaded[name](x, np.int32(6)), wanted), name


@pytest.mark.parametrize(
    ("start", "made", "copied"),
    [
        ("%i", "stablehlo.negate %u", False),  # each element of the one in its place
        ("%z", "stablehlo.negate %u", True),
        ("%i", "stablehlo.reverse %u, dims = [0]", True),
    ],
)
def test_what_is_made_of_its_own_place_is_written_there(
    start: str, made: str, copied: bool
) -> None:
    part = f"stablehlo.dynamic_slice %h, {start}, sizes = [100]"
    part += " : (tensor<400xf32>, tensor<i32>) -> tensor<100xf32>\n"
    text = SHIFTED.replace("NAME", "main").replace("%u, %i", "%v, %i")
    text = text.replace(
        "UPDATE -> tensor<100xf32>", f"{part} %v = {made} : tensor<100xf32>"
    )
    module = parse(text)
    pipeline("builtin.module(pcp-legalize)").run(module)
    assert ("optimization_barrier" in str(module)) == copied


# --- what users write ---


def _beside() -> tuple[np.ndarray, np.ndarray]:
    """A cache of zeros as a program returns it beside its update, and the update."""

    def step(cache: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return cache, cache.at[1].set(row)

    cache, row = np.zeros((3, 2), np.float32), np.ones(2, np.float32)
    bundle = pcp.compile(pcp.from_jax(step, cache, row), targets=["cpu"])
    with pcp.Program.load(bundle) as loaded:
        return loaded["main"](cache, row)


def test_an_argument_returned_beside_its_update() -> None:
    old, new = _beside()
    assert not old.any()
    assert new.tolist() == [[0, 0], [1, 1], [0, 0]]


def _masked(w: jax.Array, x: ArrayLike, y: ArrayLike) -> jax.Array:
    """A loss that ignores the first row of its parameter."""
    return jnp.mean((x @ w.at[0].set(0.0) - y) ** 2)


W, X, Y = (
    np.random.default_rng(3).normal(size=shape).astype(np.float32)
    for shape in [(4, 2), (8, 4), (8, 2)]
)
RATE = 0.1


@pytest.mark.slow  # as in test_value_semantics.py
def test_a_gradient_leaves_the_parameters_alone() -> None:
    bundle = pcp.compile(pcp.from_jax(_masked, W, X, Y), targets=["cpu"])
    with pcp.Program.load(bundle) as loaded:
        given = [loaded.to_device(a) for a in (W, X, Y)]
        _, gradient = loaded["grad"](*given, device_arrays=True)
        assert _bits(given) == _bits([W, X, Y])
        np.testing.assert_allclose(
            gradient.numpy(), jax.jit(jax.grad(_masked))(W, X, Y), rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow  # the random programs are enough
def test_training_keeps_what_the_loss_only_masks() -> None:
    """Row 0 has no gradient: JAX leaves it, and so does every step of ours."""
    module = pcp.from_jax(_masked, W, X, Y)
    bundle = pcp.compile(
        module, targets=["cpu"], mode="train", optimizer=pcp.SGD(lr=RATE)
    )
    expected = jnp.asarray(W)
    with pcp.Program.load(bundle) as loaded:
        steps = Steps(loaded, bundle.manifest)
        steps.start(0, {"w": W})
        for _ in range(3):
            loss = steps.step({"x": X, "y": Y})
            np.testing.assert_allclose(loss, _masked(expected, X, Y), rtol=1e-5)
            expected = expected - RATE * jax.jit(jax.grad(_masked))(expected, X, Y)
        (trained,) = (v for v in steps.values() if v.shape == W.shape)
        steps.close()
    assert trained[0].tobytes() == W[0].tobytes()
    np.testing.assert_allclose(trained, expected, rtol=1e-5)
