"""Plans of training: what the compiler writes, and what older bundles are read as."""

import json
from functools import cache
from pathlib import Path

import pytest
from helpers.models.closed_form import text
from pydantic import ValidationError

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import BundleError
from pcp.manifest import ALGORITHMS, Manifest
from pcp.passes.training.outer import spec
from pcp.training.trainer.bundle_checks import plan_of
from pcp.training_plan import (
    Asynchronous,
    EveryRound,
    EveryStep,
    Fragments,
    Never,
)

# What compilers wrote that stated no plan, by algorithm: `diloco` as it stood in the
# file, of the others the keys that are not at their defaults.
OLDER = json.loads((Path(__file__).parent / "older_manifests.json").read_text())
PLANS = {
    "none": Never(),
    "snoo": Never(outer_step=True),
    "ddp": EveryStep(),
    "demo{k=4}": EveryStep(),
    "mezo": EveryStep(estimator="slope", seed=0),
    "forward_gradient{seed=3,noise=signs}": EveryStep(estimator="slope", seed=3),
    "average": EveryRound(),
    "diloco": EveryRound(),
    "streaming_diloco{fragments=2,tau=1}": Fragments(count=2, delay=1),
    "streaming_diloco{fragments=2,tau=2,together=true}": Fragments(
        count=2, delay=2, together=True
    ),
    "async_diloco": EveryRound(overlap=True),
    "async_local_sgd": Asynchronous(dynamic_steps=True),
    "eager": EveryRound(overlap=True, parameters="replica"),
    "decoupled": EveryRound(),
    "decoupled{own_clocks=true}": Asynchronous(),
    "noloco{seed=5}": EveryRound(parameters="gossip", seed=5),
    "muloco": EveryRound(),
    "muloco{wire=2bit}": EveryRound(),
    "sparseloco": EveryRound(),
}


@cache
def lowered(algorithm: str) -> Manifest:
    """The manifest that the compiler writes for a small model."""
    options = CompileOptions(
        targets=("cpu",), mode="train", optimizer="sgd", algorithm=algorithm
    )
    return driver.lower(parse(text("linear")), options).manifest


def test_every_algorithm_is_here() -> None:
    assert {name.partition("{")[0] for name in PLANS} == set(spec.KINDS) == ALGORITHMS
    assert set(OLDER) == set(PLANS)


@pytest.mark.parametrize("algorithm", PLANS)
def test_the_compiler_writes_the_plan(algorithm: str) -> None:
    manifest = lowered(algorithm)
    assert "training" in manifest.model_fields_set
    assert manifest.training == PLANS[algorithm]
    assert set(PLANS[algorithm].functions) <= set(manifest.functions)
    again = Bundle.from_bytes(Bundle.build(manifest, {}).to_bytes()).manifest
    assert again.training == PLANS[algorithm]


@pytest.mark.parametrize("algorithm", PLANS)
def test_an_older_bundle_has_the_plan_that_it_had(algorithm: str) -> None:
    assert "training" not in OLDER[algorithm]
    assert Manifest.model_validate(OLDER[algorithm]).training == PLANS[algorithm]
    now = lowered(algorithm).model_dump(exclude={"training"})
    assert Manifest.model_validate(now).training == PLANS[algorithm]


def changed(algorithm: str, **plan: object) -> dict:
    """The manifest with another plan."""
    return lowered(algorithm).model_dump() | {"training": plan}


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"synchronize": "step"}, "needs the function 'grad_sync'"),
        ({"synchronize": "round", "overlap": True}, "needs the function 'outer_early'"),
        ({"synchronize": "fragment", "count": 2}, "'outer_apply_0'"),
        ({"synchronize": "fragment", "count": 0}, "greater than 0"),
        ({"synchronize": "hourly"}, "does not match any of the expected tags"),
        ({"synchronize": "round", "count": 2}, "Extra inputs"),
        ({"synchronize": "round", "parameters": "gossip"}, "a seed goes with gossip"),
        ({"synchronize": "round", "seed": 1}, "a seed goes with gossip"),
        ({"synchronize": "step", "estimator": "slope"}, "a seed goes with the estim"),
    ],
)
def test_a_plan_that_the_bundle_cannot_follow_is_refused(plan: dict, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Manifest.model_validate(changed("diloco", **plan))


@pytest.mark.parametrize(
    ("algorithm", "plan"),
    [
        ("diloco", Never(outer_step=True)),
        ("diloco", EveryRound(parameters="replica")),
        ("diloco", Asynchronous()),
        ("snoo", EveryRound()),
        ("ddp", EveryStep(estimator="slope", seed=0)),
        ("streaming_diloco{fragments=2,tau=1}", Fragments(count=2, delay=3)),
        ("streaming_diloco{fragments=2,tau=1}", Fragments(count=1, delay=1)),
        ("async_diloco", EveryRound()),
        ("noloco{seed=5}", EveryRound(parameters="gossip", seed=6)),
    ],
)
def test_an_edited_plan_is_refused_when_the_bundle_is_read(
    algorithm: str, plan: Never
) -> None:
    """Its functions would allow it, and its workers would train something else."""
    edited = lowered(algorithm).model_copy(update={"training": plan})
    content = Bundle.build(edited, {}).to_bytes()
    kind = algorithm.partition("{")[0]
    with pytest.raises(BundleError, match=rf"edited.pcp: .*algorithm {kind} \(sync"):
        Bundle.from_bytes(content, source="edited.pcp")


def test_an_extension_says_its_own_plan() -> None:
    """Here one whose members have clocks of their own, which no function shows."""
    manifest = lowered("diloco")
    assert manifest.algorithm is not None
    method = manifest.algorithm.model_copy(update={"kind": "mine"})
    own = {"algorithm": method, "training": Asynchronous()}
    content = Bundle.build(manifest.model_copy(update=own), {}).to_bytes()
    assert Bundle.from_bytes(content).manifest.training == Asynchronous()


def test_a_plan_without_training_is_refused() -> None:
    with pytest.raises(ValidationError, match="of mode forward has a training plan"):
        Manifest(mode="forward", functions={}, training=Never())


def test_a_program_over_a_mesh_has_no_plan() -> None:
    """Its own collectives synchronise the members: no round could."""
    options = CompileOptions(targets=("cpu",), mode="train", mesh="dp=2")
    program = driver.lower(parse(text("linear")), options)
    assert program.manifest.training is None
    with pytest.raises(BundleError, match="pcp run BUNDLE --steps"):
        plan_of(program.manifest)
