"""What a model brings: found beside it, in the program's types, kept by a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.worlds.training_runs import experiment

from pcp.errors import ConfigError, StateMismatch
from pcp.manifest import TensorSpec
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.storage import first_values, safetensors_io
from pcp.training.storage.state_names import as_taken

BASE = TensorSpec(name="base", role="frozen", shape=(3,), dtype="bf16")


@pytest.fixture
def exp(tmp_path: Path) -> Any:
    """A model with a file beside it, in which bf16 is f32, as numpy has it."""
    values = {"base": np.array([1.0, 0.5, -3.0], np.float32)}
    content = safetensors_io.to_bytes(values)
    (tmp_path / "m.frozen.safetensors").write_bytes(content)
    return experiment(tmp_path, model_path=str(tmp_path / "m.mlir"))


def test_the_file_beside_the_model_is_taken_in_the_programs_types(exp: Any) -> None:
    assert first_values.check(exp, []) is None
    digest = first_values.check(exp, [BASE])
    taken = as_taken(first_values.brought(exp), [BASE])
    assert taken["base"].dtype == numpy_dtype("bf16")
    assert digest == safetensors_io.digest(taken)


def test_a_run_keeps_it_under_its_digest(exp: Any, tmp_path: Path) -> None:
    """And hands it out from there, whatever becomes of the model's own file."""
    run = tmp_path / "run"
    run.mkdir()
    digest = first_values.check(exp, [BASE])
    assert digest is not None
    assert first_values.served(run) == {}
    first_values.keep(exp, [BASE], run, digest)
    other = {"base": np.zeros(3, np.float32)}
    Path(exp.brought_path).write_bytes(safetensors_io.to_bytes(other))
    first_values.keep(exp, [BASE], run, digest)
    served = first_values.served(run)
    assert served["frozen/base"].tolist() == [1.0, 0.5, -3.0]
    with pytest.raises(StateMismatch, match="is not what the run began with"):
        first_values.keep(exp, [BASE], tmp_path / "other", digest)
    (kept,) = (run / "frozen").iterdir()
    kept.write_bytes(safetensors_io.to_bytes(other))
    with pytest.raises(StateMismatch, match="is not what the run began with"):
        first_values.served(run)


def test_what_lacks_or_is_another_is_said(exp: Any) -> None:
    other = BASE.model_copy(update={"name": "bas"})
    with pytest.raises(ConfigError, match=r"'bas' is frozen.*Did you mean 'base'"):
        first_values.check(exp, [other])
    longer = BASE.model_copy(update={"shape": (4,)})
    with pytest.raises(ConfigError, match=r"base is bfloat16 \[3\].*\[4\]"):
        first_values.check(exp, [longer])
