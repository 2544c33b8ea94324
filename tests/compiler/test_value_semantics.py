"""Value semantics beyond forward programs: gradients, training, parts on a mesh.

The programs are those of `test_protect_arguments.py`: small integers, updates of
slices, scatters, loops, branches, aliases and forks. The oracle is the interpreter.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.oracles.jax_gradients import transformed
from helpers.random_programs.updates import SHAPES, arguments, loss, program, spread
from helpers.servers.interpreter import Interpreter
from helpers.worlds.communicators import together, world

import pcp
from pcp.dialect.context import parse
from pcp.layout import join, shard
from pcp.manifest import Function
from pcp.mesh import Mesh
from pcp.runtime.program.executor import Program
from pcp.training.trainer.step_loop import Steps

MESH = (
    '"pcp.mesh"() {axes = [#pcp.axis<"a", 2>], devices = [], sym_name = "m"} : () -> ()'
)


def seeds(fast: int, all_: int) -> list[Any]:
    """Parameters of a test: the first few by default."""
    return [
        pytest.param(n, marks=pytest.mark.slow if n >= fast else ())
        for n in range(all_)
    ]


def _gradients(interpreter: Interpreter, seed: int, given: Any) -> list[np.ndarray]:
    """The loss and its gradients by the two parameters."""
    text = transformed(loss(seed), "pcp-vjp{wrt=0,1}")
    return interpreter.run(text, [*given, np.float32(1)])


def _bits(arrays: Sequence[Any]) -> list[bytes]:
    return [np.asarray(a).tobytes() for a in arrays]


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_a_gradient_leaves_what_it_was_given(
    seed: int, interpreter: Interpreter
) -> None:
    given = arguments(seed)
    wanted = _gradients(interpreter, seed, given)
    bundle = pcp.compile(parse(loss(seed)), targets=["cpu"], mode="grad")
    with Program.load(bundle, "local-task") as loaded:
        kept = _bits(given)
        on_device = [loaded.to_device(a) for a in given]
        for found in (
            loaded["grad"](*given),
            loaded["grad"](*on_device, device_arrays=True),
        ):
            for ours, right in zip(found, wanted, strict=True):
                np.testing.assert_allclose(np.asarray(ours), right, 1e-6, 1e-6)
        assert _bits(given) == _bits(on_device) == kept


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_steps_of_training_are_those_of_the_interpreter(
    seed: int, interpreter: Interpreter
) -> None:
    given, rate = arguments(seed), 0.5
    bundle = pcp.compile(
        parse(loss(seed)), targets=["cpu"], mode="train", optimizer=pcp.SGD(lr=rate)
    )
    data = {f"a{i}": x for i, x in enumerate(given) if i >= 2}
    with Program.load(bundle, "local-task") as loaded:
        steps = Steps(loaded, bundle.manifest)
        steps.start(0, {"a0": given[0], "a1": given[1]})
        for _ in range(2):
            right, *gradients = _gradients(interpreter, seed, given)
            np.testing.assert_allclose(steps.step(data), right, 1e-6, 1e-6)
            given[:2] = [x - rate * g for x, g in zip(given, gradients, strict=False)]
        for trained, expected in zip(_parameters(steps), given, strict=False):
            np.testing.assert_allclose(trained, expected, 1e-6, 1e-6)
        steps.close()


def _parameters(steps: Steps) -> list[np.ndarray]:
    return [v for v in steps.values() if v.shape == SHAPES[0]]


@pytest.mark.slow  # ten programs for a mesh
@pytest.mark.parametrize("first", seeds(1, 10))
def test_parts_on_a_mesh_are_those_of_the_whole(
    first: int, interpreter: Interpreter
) -> None:
    """Ten programs, each member's arguments and results its part of the whole."""
    names = {
        s: f"f{s}" if s % 10 else "main" for s in range(10 * first, 10 * first + 10)
    }
    text = "\n".join(spread(seed, name) for seed, name in names.items())
    bundle = pcp.compile(parse(f"{MESH}\n{text}"), targets=["cpu"], mode="forward")
    members = [*bundle.manifest.programs]
    with world("in_process", 2) as communicators:
        loaded = [
            Program.load(bundle, "local-task", communicator=c, member=m)
            for c, m in zip(communicators, members, strict=True)
        ]
        for seed, name in names.items():
            given = arguments(seed)
            wanted = interpreter.run(program(seed), given)
            whole = bundle.manifest.function(name)
            for on_device in (False, True):
                found = _on_mesh(loaded, name, whole, given, on_device)
                for ours, right in zip(found, wanted, strict=True):
                    np.testing.assert_array_equal(ours, right, err_msg=str(seed))
        for one in loaded:
            one.close()


def _on_mesh(
    loaded: list[Program],
    name: str,
    whole: Function,
    given: list[np.ndarray],
    on_device: bool,
) -> list[np.ndarray]:
    """The results, joined; each member leaves its own arguments as they were."""
    mesh = Mesh("m", {"a": 2})
    parts = [shard(x, t.layout, mesh) for x, t in zip(given, whole.inputs, strict=True)]
    mine = list(zip(*parts, strict=True))

    def call(i: int) -> list[np.ndarray]:
        ins = [loaded[i].to_device(x) for x in mine[i]] if on_device else mine[i]
        before = _bits(ins)
        results = loaded[i][name](*ins, device_arrays=on_device)
        results = results if isinstance(results, tuple) else (results,)
        found = [np.array(r) for r in results]
        assert _bits(ins) == before
        return found

    results = zip(*together(range(len(loaded)), call), strict=True)
    return [
        join(pieces, t.shape, t.layout, mesh)
        for pieces, t in zip(results, whole.results, strict=True)
    ]
