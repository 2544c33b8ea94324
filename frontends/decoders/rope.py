"""Rotary frequencies of a configuration, in both spellings that files have.

Formulas: Su et al. 2021 (arXiv:2104.09864); `linear` Chen et al. 2023
(arXiv:2306.15595); `llama3` as Meta's Llama 3.1 smooths between wavelengths; `yarn`
Peng et al. 2023 (arXiv:2309.00071). They are taken in float32, as transformers does.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pcp.errors import ConfigError, nearest
from pcp.frontends.decoders.spec import Rope

Said = Mapping[str, Any]


def rope(said: Said, head_dim: int, positions: int, source: str) -> Rope:
    """The rotary embedding that `rope_parameters` say, `rope_theta` among them.

    `positions` is what the model was trained for where the parameters do not say it.
    """
    kind = said.get("rope_type", said.get("type", "default"))
    if kind not in KINDS:
        raise ConfigError(
            f"{source}: rope_type {kind!r} is not supported (there is: "
            f"{', '.join(KINDS)}).{nearest(str(kind), KINDS)}"
        )
    dim = int(head_dim * said.get("partial_rotary_factor", 1.0))
    if dim < 2 or dim % 2:
        raise ConfigError(f"{source}: {dim} rotary dimensions; an even number is")
    base = float(said["rope_theta"])
    powers = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    plain = np.float32(1) / np.float32(base) ** powers
    try:
        return KINDS[kind](plain.astype(np.float32), said, base, positions)
    except KeyError as error:
        raise ConfigError(f"{source}: rope_type {kind!r} needs {error}") from error


def _made(frequencies: np.ndarray, scale: float = 1.0) -> Rope:
    return Rope(tuple(map(float, frequencies.astype(np.float32))), scale)


def _default(plain: np.ndarray, said: Said, base: float, positions: int) -> Rope:
    return _made(plain)


def _linear(plain: np.ndarray, said: Said, base: float, positions: int) -> Rope:
    return _made(plain / np.float32(said["factor"]))


def _llama3(plain: np.ndarray, said: Said, base: float, positions: int) -> Rope:
    """Long wavelengths are divided by `factor`, short ones stay, between them both."""
    factor = np.float32(said["factor"])
    low, high = said["low_freq_factor"], said["high_freq_factor"]
    trained = said.get("original_max_position_embeddings", positions)
    length = np.float32(2 * math.pi) / plain
    smooth = (np.float32(trained) / length - np.float32(low)) / np.float32(high - low)
    mixed = (1 - smooth) * plain / factor + smooth * plain
    slow = np.where(length > trained / low, plain / factor, plain)
    between = (length <= trained / low) & (length >= trained / high)
    return _made(np.where(between, mixed, slow))


def _yarn(plain: np.ndarray, said: Said, base: float, positions: int) -> Rope:
    """Fast pairs stay, slow ones are interpolated, with a ramp between them."""
    trained = said.get("original_max_position_embeddings", positions)
    stated, count = said["factor"], len(plain)
    factor = positions / trained if stated is None else float(stated)

    def turning(rotations: float) -> float:
        whole = math.log(trained / (rotations * 2 * math.pi))
        return 2 * count * whole / (2 * math.log(base))

    low = turning(said.get("beta_fast") or 32)
    high = turning(said.get("beta_slow") or 1)
    if said.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * count - 1)
    width = np.float32(high - low if high != low else 0.001)
    ramp = np.clip((np.arange(count, dtype=np.float32) - np.float32(low)) / width, 0, 1)
    mixed = plain / np.float32(factor) * ramp + plain * (1 - ramp)
    return _made(mixed, _yarn_scale(said, factor))


def _yarn_scale(said: Said, factor: float) -> float:
    if (stated := said.get("attention_factor")) is not None:
        return float(stated)

    def of(times: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1

    one, all_ = said.get("mscale"), said.get("mscale_all_dim")
    return of(one) / of(all_) if one and all_ else of(1)


KINDS: Mapping[str, Callable[[np.ndarray, Said, float, int], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
