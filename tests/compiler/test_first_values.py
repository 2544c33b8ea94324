"""@init of a bundle: each member of a mesh draws its parts of what the whole draws."""

from typing import Any

import numpy as np
import pytest
from helpers.oracles import staged_training
from helpers.oracles.staged_training import NO_PROGRAM
from helpers.sampled import sampled

from pcp.compiler import bundling, signature
from pcp.compiler.options import CompileOptions
from pcp.errors import BundleError
from pcp.function_body import First
from pcp.layout import join
from pcp.manifest import Function, Manifest, TensorSpec
from pcp.runtime.program.drawn_function import DrawnFunction

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "zero": ("mlp", {"mesh": "dp=2", "zero": 3}),
    "unequal": ("mlp", {"mesh": "dp=3", "zero": 3}),
    "stages": ("mlp", {"mesh": "pp=2,dp=2", "zero": 1, "microbatches": 2}),
    "tied": ("gpt", {"mesh": "pp=2", "tied": True}),
}


def _drawn(function: Function) -> dict[tuple[str, str], np.ndarray]:
    values = DrawnFunction(NO_PROGRAM, "init", function)(7)
    return {t.key: v for t, v in zip(function.results, values, strict=True)}


@sampled("case", CASES, 2)
def test_members_draw_their_parts(case: str) -> None:
    """Joined they are the whole, bit by bit; of no tensor is something left out."""
    model, options = CASES[case]
    chosen = CompileOptions(mode="train", **options)
    program = staged_training.compiled(model, **options)
    init, mesh = program.manifest.function("init"), program.mesh
    assert mesh is not None
    parts = []
    for device, place in zip(mesh.devices, mesh.members, strict=True):
        home = bundling.standalone(program.module, device)
        own = signature.functions(home, chosen.entry, "train")
        assert own["init"].first == init.first, "the table is of the whole"
        assert "init" not in signature.public_functions(home)
        mine = signature.first_values_of(init, own, mesh, place)
        assert {t.key for t in mine.results} >= {t.key for t in own["apply"].results}
        parts.append(_drawn(mine))
    for spec, value in zip(init.results, _drawn(init).values(), strict=True):
        held = [part.get(spec.key) for part in parts]
        whole = join(held, spec.shape, spec.layout, mesh)
        assert whole.tobytes() == value.tobytes(), spec.name


def _spec(name: str, role: Any, shape: tuple[int, ...] = (4,), dtype: str = "f32"):
    return TensorSpec(name=name, role=role, shape=shape, dtype=dtype)


SEED = _spec("seed", "seed", (), "i64")
FIRST = First(init="normal(0.02)", whole=(4,), start=(0,))


def _manifest(**changes: Any) -> dict[str, Any]:
    facts = {"inputs": (SEED,), "results": (_spec("w", "param"),), "first": (FIRST,)}
    function = {n: [x.model_dump() for x in v] for n, v in (facts | changes).items()}
    return {"mode": "grad", "functions": {"init": function}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "lines": ({"first": (FIRST, FIRST)}, "2 first values for 1 results"),
    "seed": ({"inputs": (_spec("seed", "seed"),)}, "follow from a seed"),
    "outside": (
        {"first": (First(init="ones", whole=(4,), start=(1,)),)},
        r"w: \[4\] at \[1\] is not inside of \[4\]",
    ),
    "rank": ({"first": (First(init="ones"),)}, "is not inside of"),
    "follows": (
        {"first": (First(init="@inner_init", whole=(4,), start=(0,)),)},
        "no @inner_init makes 'w'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_table_is_refused(case: str) -> None:
    changes, says = REFUSED[case]
    Manifest.model_validate(_manifest())
    with pytest.raises((ValueError, BundleError), match=says):
        Manifest.model_validate(_manifest(**changes))


def test_an_initializer_is_read_with_the_manifest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'normal'"):
        First(init="norml(1)")
