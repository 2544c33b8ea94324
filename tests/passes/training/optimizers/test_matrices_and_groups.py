"""Muon, Lion, Adafactor and parameter groups: @apply against torch and closed forms."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.models.expanded_training import (
    SHAPES,
    expanded,
    model,
    program,
    tensors,
    worst,
)

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse as parse_module
from pcp.errors import ConfigError, PassError
from pcp.passes.core import functions
from pcp.passes.core.functions import Port
from pcp.passes.training.optimizers import groups, muon
from pcp.passes.training.optimizers.spec import AdamW, Muon

torch = pytest.importorskip("torch")
STEPS = 12


def ours(text: str, start: list, gradients: list) -> list:
    """The parameters after each step, by a compiled @apply."""
    module = expanded(model(), text, after="cse,canonicalize", keep=["apply"])
    with program(module) as loaded:
        signature = loaded["apply"].signature
        state = [
            np.zeros(signature.inputs[i].shape, _dtype(signature.inputs[i].dtype))
            for i in signature.inputs_of("state")
        ]
        params, trajectory = start, []
        for step in gradients:
            results = loaded["apply"](*params, *step, *state)
            params, state = results[: len(params)], results[len(params) :]
            trajectory.append(params)
        return trajectory


def _dtype(name: str) -> Any:
    return {"f32": np.float32, "i32": np.int32}[name]


def theirs(make: Callable[[list], list], start: list, gradients: list) -> list:
    """The same by torch; `make` gives the optimizers of the parameters."""
    params = [torch.nn.Parameter(torch.tensor(p)) for p in start]
    optimizers, trajectory = make(params), []
    for step in gradients:
        for p, g in zip(params, step, strict=True):
            p.grad = torch.tensor(g)
        for optimizer in optimizers:
            optimizer.step()
        trajectory.append([p.detach().numpy().copy() for p in params])
    return trajectory


def data(seed: int = 1) -> tuple[list, list]:
    generator = np.random.default_rng(seed)
    return tensors(generator), [tensors(generator) for _ in range(STEPS)]


@pytest.mark.slow  # a program more
def test_adafactor_is_torchs() -> None:
    start, gradients = data()
    found = ours("adafactor{lr=0.05,weight_decay=0.1}", start, gradients)
    make = torch.optim.Adafactor
    wanted = theirs(lambda ps: [make(ps, lr=0.05, weight_decay=0.1)], start, gradients)
    errors = [worst(f, w) for f, w in zip(found, wanted, strict=True)]
    assert max(errors) < 2e-6
    assert worst(found[-1], start) > 0.02


def test_lion_takes_the_sign_of_its_momentum() -> None:
    start, gradients = data()
    found = ours("lion{lr=0.01,weight_decay=0.1}", start, gradients)
    params = [p.astype(np.float64) for p in start]
    momenta = [np.zeros_like(p) for p in params]
    for step, result in zip(gradients, found, strict=True):
        for i, g in enumerate(step):
            move = np.sign(0.9 * momenta[i] + 0.1 * g)
            params[i] = (1 - 0.01 * 0.1) * params[i] - 0.01 * move
            momenta[i] = 0.99 * momenta[i] + 0.01 * g
        assert worst(result, params) < 1e-6


# Muon --------------------------------------------------------------------------------


def by_hand(u: np.ndarray, steps: int = 5) -> np.ndarray:
    """Newton-Schulz in float64."""
    x = u.T if u.shape[0] > u.shape[1] else u
    x = x / (np.linalg.norm(x) + 1e-7)
    a, b, c = muon.COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if u.shape[0] > u.shape[1] else x


@pytest.mark.slow  # a program more
def test_muon_trains_matrices_and_adamw_the_rest() -> None:
    """torch's Muon rounds to bfloat16 inside: its matrices are near, not equal."""
    start, gradients = data()
    options = "lr=0.05,weight_decay=0.1,adam_lr=0.01"
    found = ours(f"muon{{{options}}}", start, gradients)
    p, buffer = start[0].astype(np.float64), np.zeros(SHAPES["w"])
    for step, result in zip(gradients, found, strict=True):
        g = step[0].astype(np.float64)
        buffer = 0.95 * buffer + 0.05 * g
        move = by_hand(0.05 * g + 0.95 * buffer)
        p = (1 - 0.05 * 0.1) * p - 0.05 * move
        np.testing.assert_allclose(result[0], p, atol=5e-5)
    adam = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}
    wanted = theirs(
        lambda ps: [
            torch.optim.Muon(ps[:1], lr=0.05, weight_decay=0.1, momentum=0.95),
            torch.optim.AdamW(ps[1:], **adam),
        ],
        start,
        gradients,
    )
    for f, w in zip(found, wanted, strict=True):
        assert worst(f[1:], w[1:]) < 1e-6
    assert worst(found[-1][:1], wanted[-1][:1]) < 0.05
    assert worst(found[-1][:1], start[:1]) > 0.2


MATRICES = {"wide": (6, 20), "tall": (20, 6), "square": (16, 16)}


@pytest.fixture(scope="module")
def orthogonal():
    """A program with a function a shape."""
    module = parse_module("module {}")
    with module.context, ir.Location.unknown():
        for name, shape in MATRICES.items():
            type_ = hlo.tensor(shape, ir.F32Type.get())

            def build(x: ir.Value) -> list:
                found = muon.newton_schulz(x, 5)
                return [(Port("y", "result", found.type), found)]

            functions.define(module, name, [Port("x", "data", type_)], build)
    with program(module) as loaded:
        yield loaded


@pytest.mark.parametrize("kind", MATRICES)
def test_singular_vectors_stay_and_values_come_near_one(orthogonal, kind) -> None:
    x = np.random.default_rng(3).standard_normal(MATRICES[kind]).astype(np.float32)
    found = orthogonal[kind](x).astype(np.float64)
    u, values, v = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    core = u.T @ found @ v.T
    np.testing.assert_allclose(core, np.diag(np.diag(core)), atol=2e-4)
    large = values / np.linalg.norm(x) >= 0.01
    assert large.sum() >= min(MATRICES[kind]) - 1
    assert (np.diag(core)[large] > 0.68).all()
    assert (np.diag(core)[large] < 1.14).all()
    assert np.abs(orthogonal[kind](7 * x) - found).max() < 2e-4
    assert (orthogonal[kind](np.zeros_like(x)) == 0).all()


def test_a_transposed_matrix_gives_the_transposed_result(orthogonal) -> None:
    x = np.random.default_rng(4).standard_normal((6, 20)).astype(np.float32)
    other = orthogonal["tall"](np.ascontiguousarray(x.T))
    np.testing.assert_allclose(orthogonal["wide"](x), other.T, atol=1e-5)


ROUTES = {
    ("h.0.attn.c_attn.weight", 2): Muon,
    ("transformer.wte.weight", 2): AdamW,
    ("Embedding_table", 2): AdamW,
    ("lm_head.weight", 2): AdamW,
    ("h.0.mlp.c_fc.bias", 1): AdamW,
    ("scale", 0): AdamW,
    ("conv.weight", 4): Muon,
}


def test_which_parameters_are_muons() -> None:
    spec = groups.parse(
        "muon{lr=0.04,adam_lr=0.01,schedule=warmup_cosine,total_steps=9}"
    )
    assert {key: type(spec.of(*key)) for key in ROUTES} == ROUTES
    rest = spec.of("scale", 0)
    assert (rest.lr, rest.schedule, rest.total_steps) == (0.01, "warmup_cosine", 9)


# Groups ------------------------------------------------------------------------------


def test_a_group_has_options_of_its_own() -> None:
    start, gradients = data(5)
    text = "adamw{lr=0.02,weight_decay=0.1};b={weight_decay=0,lr=0.01};s=sgd{lr=0.5}"
    found = ours(text, start, gradients)
    wanted = theirs(
        lambda ps: [
            torch.optim.AdamW(
                [
                    {"params": ps[:1], "lr": 0.02, "weight_decay": 0.1},
                    {"params": ps[1:2], "lr": 0.01, "weight_decay": 0.0},
                ]
            ),
            torch.optim.SGD(ps[2:], lr=0.5, weight_decay=0.1),
        ],
        start,
        gradients,
    )
    errors = [worst(f, w) for f, w in zip(found, wanted, strict=True)]
    assert max(errors) < 1e-6


def test_groups_as_text_and_back() -> None:
    text = "adamw{lr=0.02};*.bias={weight_decay=0};*emb*=sgd{lr=0.1}"
    read = groups.parse(text)
    assert str(read) == text
    assert groups.parse(str(read)) == read
    assert read.hyper()["groups"] == "*.bias={weight_decay=0};*emb*=sgd{lr=0.1}"
    assert read.of("x.bias", 1) == AdamW(lr=0.02, weight_decay=0.0)
    listed = [
        {"match": "*.bias", "weight_decay": 0},
        {"match": "*emb*", "optimizer": "sgd", "learning_rate": 0.1},
    ]
    assert groups.parse(groups.text("adamw{lr=0.02}", listed)) == read


REFUSED = {
    "adamw;*.bias": "write PATTERN=",
    "adamw;={lr=1}": "write PATTERN=",
    "adamw;x={lrr=1}": "Did you mean 'lr'",
    "adamw;x=adam{lr=1}": "no optimizer 'adam'",
    "adamw;x={clip_norm=1}": "clip_norm bounds all gradients together",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_wrong_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[text]):
        groups.parse(text)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(
        PassError, match=r"'nothing\*' matches no parameter \(w, b, s\)"
    ):
        expanded(model(), "adamw;nothing*={lr=1}")
