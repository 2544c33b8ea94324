"""Families of decoders give the tokens and logits of transformers, from files alone."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pcp
from pcp.errors import ConfigError, UsageError
from pcp.frontends.decoders import families, program
from pcp.frontends.decoders.spec import Decoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from helpers.models.decoder_configs import (  # noqa: E402  they import both
    assert_same,
    drawn,
    of_decoder,
    of_transformers,
)
from helpers.models.decoders import (  # noqa: E402
    FAMILIES,
    Request,
    compiled,
    generated,
    run,
    saved,
)

from pcp.serving.cached_model import Call  # noqa: E402
from pcp.serving.engine import load as engine_of  # noqa: E402
from pcp.serving.frames import Order  # noqa: E402

FAST = ("llama", "gemma2")
PROMPT = [5, 17, 99, 3, 41, 60, 8, 8, 73, 22, 14, 90, 2, 0, 31, 77, 1, 54, 66, 12, 9]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in FAMILIES],
)
def test_tokens_and_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """64 tokens, in chunks of 1, 7 and all; the files are bf16, and several."""
    model = saved(name, tmp_path, "bfloat16", max_shard_size="40KB")
    engine = engine_of(compiled(tmp_path), tmp_path, device="local-sync")
    wanted = generated(model, PROMPT, 64)
    assert len(set(wanted)) > 4, "the test would pass by repeating a token"
    for number, chunk in enumerate((1, 7, 32)):
        request = Request(number, PROMPT, 64, slot=number, chunk=chunk)
        assert run(engine, request) == [wanted], f"chunks of {chunk}"
    prefill = engine._executor.shapes.prefill[0]
    filled = (*PROMPT, *[0] * (prefill.rows - len(PROMPT)))
    call = Call(prefill, (0,), filled, (0,), (len(PROMPT),))
    (found,) = engine._executor.carry_out(Order(calls=(call,)))
    assert found is not None
    with torch.no_grad():
        theirs = model(torch.tensor([PROMPT])).logits[0, -1].numpy()
    np.testing.assert_allclose(found.logits()[0], theirs, atol=1e-4, rtol=0)
    engine.close()


# --- configurations ---


def _config(name: str, folder: Path) -> dict[str, Any]:
    kind, special = FAMILIES[name]
    base = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
    }
    made = getattr(transformers, f"{kind}Config")(**{**base, **special})
    made.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def _older(config: dict[str, Any]) -> dict[str, Any]:
    """The same in the spelling of files before rope_parameters."""
    said = config.pop("rope_parameters")
    if "full_attention" in said:
        config["rope_local_base_freq"] = said["sliding_attention"]["rope_theta"]
        said = said["full_attention"]
    config["rope_theta"] = said.pop("rope_theta")
    if "partial_rotary_factor" in said:
        config["partial_rotary_factor"] = said.pop("partial_rotary_factor")
    kind = said.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {**said, "type": kind}
    config["torch_dtype"] = config.pop("dtype", None)
    for key in ("layer_types", "head_dim"):
        if config.get(key) is None:
            config.pop(key, None)
    return config


@pytest.mark.parametrize("name", FAMILIES)
def test_both_spellings_say_the_same(name: str, tmp_path: Path) -> None:
    config = _config(name, tmp_path)
    older = _older(deepcopy(config))
    assert older != config
    assert families.decoder(older) == families.decoder(config)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_file_leaves_out_is_as_in_transformers(name: str) -> None:
    """The defaults of our table are those of the family's class."""
    kind = getattr(transformers, f"{FAMILIES[name][0]}Config")
    said = json.loads(kind().to_json_string(use_diff=False))
    short = ("model_type", "vocab_size", "hidden_size", "intermediate_size")
    sizes = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    asked = (*short, *sizes, "max_position_embeddings")
    least = {key: said[key] for key in asked}
    assert families.decoder(least) == families.decoder(said)


LLAMA = {
    "model_type": "llama",
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is not served .* mean 'llama'"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"type": "yarn"}, "model_type": "phi3"}, "'yarn' of phi3"),
        ({"partial_rotary_factor": 0.5}, "models of llama turn all of a head"),
        ({"rope_parameters": {"full_attention": {}}}, "llama have one for all"),
        ({"residual_multiplier": 0.2}, "'residual_multiplier' is not known"),
        ({"layer_norm_epsilon": 0.2}, "not known.* Did you mean 'layer_norm_eps'"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' needs 'factor'"),
        ({"quantization_config": {"bits": 4}}, "quantised files are not read"),
        ({"num_key_value_heads": 3}, "2 heads cannot share 3 keys"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok 3 of 2 experts",
        ),
        (
            {"model_type": "qwen2", "layer_types": ["linear_attention"]},
            "layer type 'linear_attention'",
        ),
        (
            {"model_type": "qwen2", "layer_types": ["sliding_attention"]},
            "no window is used",
        ),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5.0}},
            "gemma3_text are by kinds of layers",
        ),
        ({"layer_types": []}, "config.json"),
        ({"head_dim": 5}, "5 rotary dimensions"),
    ],
)
def test_what_is_not_served_is_named(changes: dict[str, Any], message: str) -> None:
    if changes == {"layer_types": []}:  # nothing said is the family's own
        assert families.decoder(LLAMA | changes) == families.decoder(LLAMA)
        return
    with pytest.raises(ConfigError, match=message):
        families.decoder(LLAMA | changes)


def test_drawn_configurations_are_read_as_transformers_reads_them() -> None:
    """Keys of all families stand in files of each."""
    read = 0
    for seed in range(90):
        config = drawn(seed)
        try:
            ours = of_decoder(families.decoder(config))
        except ConfigError:
            continue
        read += 1
        assert_same(ours, of_transformers(config), f"{seed}: {config}")
    assert read > 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read it"),
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "no model_type"),
    ],
)
def test_a_bad_file_is_named(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        families.read(tmp_path)


# --- phases ---


def _spec() -> Decoder:
    return families.decoder(LLAMA)


@pytest.mark.parametrize(
    ("phases", "contexts", "message"),
    [
        (["prefill:4"], [16], "phases of both kinds"),
        (["prefill:4", "decode:1"], [0], "and a context"),
        (["prefill:x", "decode:1"], [16], "'x' is no number"),
        (["fill:4", "decode:1"], [16], "write it as prefill:32"),
        (["prefill:17", "decode:1"], [16], "a chunk of 17 tokens"),
        (["prefill:4", "decode:1"], [64], "the model has 32"),
    ],
)
def test_bad_phases_are_refused(
    phases: list[str], contexts: list[int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        program.build(_spec(), program.phases(phases, contexts))


def test_functions_share_parameters_and_give_their_caches_back(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    module = pcp.from_hf(tmp_path, phases=["prefill:4", "decode:1,2"], context=[8, 16])
    names = [
        f"{kind}_{context}"
        for kind in ("prefill_4", "decode_1", "decode_2")
        for context in (8, 16)
    ]
    text = str(module)
    assert [n for n in names if f"@{n}(" in text] == names
    for name in names:
        head = text.split(f"@{name}(")[1].split("\n")[0]
        assert head.count('pcp.role = "frozen"') == len(_spec().pieces())
        slots = 2 if "decode_2" in name else 1
        assert head.count('pcp.role = "state"') == 2 * (2 * slots)  # in and out
