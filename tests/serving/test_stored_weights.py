"""Programs with narrow weights, against numpy with what those stand for."""

from pathlib import Path

import numpy as np
import pytest
from helpers.serving import small_llama

from pcp.errors import ConfigError, UsageError
from pcp.serving import engine, quantized, weights
from pcp.serving.cached_model import Call
from pcp.serving.engine import OneDevice
from pcp.tools.serving.decoder_bundle import compile_folder

TOKENS = (5, 6, 7, 8, 300, 9)


def _meant(made: small_llama.Weights, kind: str) -> small_llama.Weights:
    """What the weights of products become; norms stay."""
    found = dict(made)
    for name, w in made.items():
        if w.ndim < 2:
            continue
        if kind in ("int8", "int4"):
            rows, depth = w.shape
            panels, scales = quantized.quantized(w, kind)
            found[name] = quantized.restored(panels, scales)[:rows, :depth]
        elif kind == "f16":
            found[name] = w.astype(np.float16).astype(np.float32)
        else:
            bits = weights._as(w, "bf16").view(np.uint16).astype(np.uint32)
            found[name] = (bits << 16).view(np.float32)
    return found


@pytest.mark.slow  # it compiles a decoder
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("bf16", 1e-5),
        pytest.param("f16", 1e-5, marks=pytest.mark.slow),  # as bf16, in another type
        pytest.param("int8", 0.03, marks=pytest.mark.slow),  # as int4
        ("int4", 0.03),
    ],
)
def test_logits(kind: str, error: float, tmp_path: Path) -> None:
    """Integers are multiplied with x in 8 bits: that is the rest of the error."""
    made = small_llama.save(tmp_path)
    phases = ["prefill:8", "decode:1"]
    bundle = compile_folder(tmp_path, phases, 64, weights=kind)
    served = engine.load(bundle, tmp_path, slots=1, device="local-sync")
    executor = served._executor
    assert isinstance(executor, OneDevice)
    shapes, meant = executor.shapes, _meant(made, kind)
    start = Call(shapes.prefill[0], (0,), (*TOKENS[:5], 0, 0, 0), (0,), (5,))
    step = Call(shapes.decode[0], (0,), TOKENS[5:], (5,))
    got = [executor.model.run(call).numpy()[0] for call in (start, step)]
    f32 = sum(w.nbytes for w in made.values())
    assert (
        executor.model.weight_bytes < {"int8": 0.3, "int4": 0.17}.get(kind, 0.51) * f32
    )
    served.close()
    for logits, count in zip(got, (5, 6), strict=True):
        want = small_llama._logits(meant, list(TOKENS[:count]))
        assert np.linalg.norm(logits - want) <= error * np.linalg.norm(want)


def test_halves_of_bf16_are_rounded_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -1.0039064, np.inf, 3.4e38])
    bits = weights._as(values.astype(np.float32), "bf16").view(np.uint16)
    assert [hex(b) for b in bits] == [
        "0x3f80",
        "0x3f80",
        "0x3f82",
        "0xbf81",
        "0x7f80",
        "0x7f80",
    ]
    nan = weights._as(np.array([np.nan], np.float32), "bf16").view(np.uint16)
    assert nan[0] & 0x7F80 == 0x7F80
    assert nan[0] & 0x7F


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.006), ("int4", 0.09)])
def test_integers_stand_for_what_they_were_made_of(kind: str, error: float) -> None:
    w = np.random.default_rng(0).normal(size=(300, 450)).astype(np.float32)
    w[3, 64:96] = 0
    w[5, 7] = np.nan
    panels, scales = quantized.quantized(w, kind)
    assert panels.shape == quantized.shape(w, kind)
    got = quantized.restored(panels, scales)[:300, :450]
    bad = np.zeros_like(w, bool)
    bad[5, :32] = True
    assert np.isnan(got[bad]).all()
    good = ~bad
    assert np.linalg.norm((got - w)[good]) <= error * np.linalg.norm(w[good])
    assert not got[3, 64:96].any()


@pytest.mark.slow  # it compiles a decoder
def test_panels_of_another_shape_are_refused(tmp_path: Path) -> None:
    small_llama.save(tmp_path)
    bundle = compile_folder(tmp_path, ["prefill:8", "decode:1"], 64, weights="int4")
    wanted = weights.parameters(bundle.manifest.functions["prefill_8_64"].inputs)
    files = weights.mapped(tmp_path)
    name = "lm_head.weight"
    with pytest.raises(
        ConfigError, match=r"lm_head.weight is \[304, 32\] in the files"
    ):
        list(weights.read(files | {name: files[name][:304]}, wanted, tmp_path))
    del files[name]
    with pytest.raises(ConfigError, match="the files have no lm_head"):
        list(weights.read(files, wanted, tmp_path))


def test_integers_over_ranks_are_refused(tmp_path: Path) -> None:
    small_llama.save(tmp_path)
    with pytest.raises(UsageError, match="panels of integers are not cut"):
        compile_folder(
            tmp_path, ["prefill:8", "decode:1"], 64, mesh={"tp": 2}, weights="int8"
        )
