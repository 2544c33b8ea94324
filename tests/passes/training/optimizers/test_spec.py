"""Optimizers as text: what is read, what is refused, and that both ways agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import ConfigError
from pcp.passes.training.optimizers.spec import SGD, AdamW, Nesterov, Optimizer, parse

RATES = st.floats(1e-8, 10, allow_nan=False)
SHARES = st.floats(0, 0.9990234375, width=32)


def test_defaults_are_torchs() -> None:
    spec = parse("adamw")
    assert spec == AdamW()
    assert spec.hyper() | {"lr": 0} == {
        "lr": 0,
        "weight_decay": 0.01,
        "clip_norm": 0.0,
        "schedule": "constant",
        "warmup_steps": 0,
        "total_steps": 0,
        "decay_steps": 0,
        "min_lr": 0.0,
        "decay_min_rank": 0,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
    }


@given(
    st.one_of(
        st.builds(AdamW, lr=RATES, beta1=SHARES, clip_norm=RATES),
        st.builds(SGD, lr=RATES, momentum=SHARES),
        st.builds(Nesterov, lr=RATES, warmup_steps=st.integers(0, 10**9)),
        st.builds(
            AdamW,
            schedule=st.sampled_from(["wsd", "warmup_cosine"]),
            total_steps=st.integers(1, 10**9),
        ),
    )
)
def test_text_and_back(spec: Optimizer) -> None:
    assert parse(str(spec)) == spec


def test_text_leaves_defaults_out() -> None:
    assert str(AdamW(lr=6e-4, weight_decay=0.1)) == "adamw{lr=0.0006,weight_decay=0.1}"
    assert str(SGD()) == "sgd"
    assert parse(" nesterov{ lr = 0.5 , momentum=0.8 } ") == Nesterov(0.5, momentum=0.8)


REFUSED = {
    "adam": "no optimizer 'adam' .*Did you mean 'adamw'",
    "": "no optimizer ''",
    "adamw{lrr=1}": "adamw: unknown key 'lrr' .*Did you mean 'lr'",
    "adamw{lr=fast}": "adamw: lr='fast' is not a float",
    "adamw{lr=inf}": "lr=inf is not finite",
    "adamw{lr=1e40}": r"lr=1e\+40 is inf in f32",
    "sgd{lr=-3.5e38}": r"lr=-3.5e\+38 is -inf in f32",
    "adamw{eps=1e-50}": "eps=1e-50 is 0 in f32",
    "adamw{beta2=0.99999999999}": "beta2=0.99999999999 is 1 in f32",
    "adamw{lr=-1}": "lr=-1.0: must not be negative",
    "adamw{lr}": "lr needs a value",
    "adamw{lr=1,lr=2}": "lr is given twice",
    "adamw{lr=1": "write adamw{key=value",
    "adamw lr=1}": "no optimizer",
    "adamw{beta1=1}": r"beta1=1.0: must lie in \[0, 1\)",
    "adamw{eps=-1}": "eps=-1.0: must not be negative",
    "sgd{momentum=1.5}": "momentum=1.5",
    "nesterov{momentum=0}": "momentum=0.0",
    "sgd{schedule=cosine}": "schedule=cosine: known schedules: .*warmup_cosine",
    "sgd{schedule=wsd}": "total_steps=0: wsd needs the number of steps",
    "sgd{schedule=wsd,total_steps=5,decay_steps=6}": "decay_steps=6",
    "sgd{warmup_steps=1.5}": "warmup_steps='1.5' is not a int",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[text]):
        parse(text)
