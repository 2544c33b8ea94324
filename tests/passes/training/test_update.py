"""What stands around an optimizer: an average of the parameters."""

import numpy as np
import pytest
from helpers.models.expanded_training import SHAPES, expanded, model, program, tensors

from pcp.compiler.options import CompileOptions
from pcp.errors import ConfigError, PassError

DECAY = 0.75


@pytest.mark.slow  # a program more
def test_an_average_of_the_parameters_decays() -> None:
    """Σ (1-d) d^(n-k) p_k + d^n p_0, by numpy in f64 over ten steps of SGD."""
    module = expanded(
        model(), "sgd{lr=0.1}", f"none ema={DECAY}", keep=["init", "apply"]
    )
    random = np.random.default_rng(0)
    with program(module) as loaded:
        names = [t.name for t in loaded.manifest.function("apply").results]
        first = [np.array(x) for x in loaded["init"](np.int64(0))]
        params, averages = first[:3], first[3:6]
        assert names[3:6] == [f"ema.{name}" for name in SHAPES]
        for p, e in zip(params, averages, strict=True):
            np.testing.assert_array_equal(p, e)
        wanted = [p.astype(np.float64) for p in params]
        for _ in range(10):
            given = [*params, *tensors(random), *averages, first[6]]
            new = [np.array(x) for x in loaded["apply"](*map(np.array, given))]
            params, averages = new[:3], new[3:6]
            pairs = zip(wanted, params, strict=True)
            wanted = [DECAY * e + (1 - DECAY) * p for e, p in pairs]
    for found, e in zip(averages, wanted, strict=True):
        np.testing.assert_allclose(found, e, atol=1e-6)


def test_a_decay_is_below_one() -> None:
    with pytest.raises(ConfigError, match=r"ema=1\.5: the decay of an average"):
        CompileOptions(ema=1.5)
    with pytest.raises(PassError, match=r"ema=1\.0: a decay lies in"):
        expanded(model(), "sgd", "none ema=1.0")
