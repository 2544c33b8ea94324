"""In which types a program is trained: `params=f32,compute=bf16,reduce=f32`.

No MLIR here, as in `pcp.passes.core.spec`: the command line reads it, too.
"""

import math
from dataclasses import dataclass, fields, replace

from pcp.errors import ConfigError, nearest

PARAMS = ("f32", "bf16")
COMPUTE = ("f32", "bf16", "f16")
REDUCE = ("f32", "bf16", "f16")
ROUNDING = ("nearest", "stochastic")
DYNAMIC, NONE = "dynamic", "none"


def _check(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"precision: {key}={value} is not one of {', '.join(known)}."
            + nearest(value, known)
        )


@dataclass(frozen=True)
class Policy:
    """The types of a training program.

    params: what is initialised, updated, averaged and saved. compute: what operands of
    products are rounded to. reduce: what gradients and deltas travel as between
    devices; they are added up in f32. rounding: of parameters narrower than f32.
    scale: what the loss is multiplied by for the derivative: `dynamic`, as
    torch.amp.GradScaler does it, a number, or `none`; left out, `dynamic` where
    compute is f16. growth_interval: steps without overflow after which it doubles.
    """

    params: str = "f32"
    compute: str = "f32"
    reduce: str = "f32"
    rounding: str = "nearest"
    scale: str = ""
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        if self.compute == "tf32":
            raise ConfigError(
                "precision: compute=tf32: no target has such products (IREE gives f32 "
                "products to no matrix unit); take compute=bf16, or f32"
            )
        known = {
            "params": PARAMS,
            "compute": COMPUTE,
            "reduce": REDUCE,
            "rounding": ROUNDING,
        }
        for key, values in known.items():
            _check(key, getattr(self, key), values)
        if self.growth_interval < 1:
            raise ConfigError("precision: growth_interval: at least one step")
        self._check_scale()
        self._check_rounding()

    def _check_scale(self) -> None:
        if self.scale in ("", DYNAMIC, NONE):
            return
        try:
            number = float(self.scale)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise ConfigError(
                f"precision: scale={self.scale} is neither dynamic, none, nor a "
                "positive number"
            )

    def _check_rounding(self) -> None:
        narrow, nearby = self.params != "f32", self.rounding == "nearest"
        if narrow and nearby:
            raise ConfigError(
                f"precision: params={self.params} loses updates smaller than its last "
                "place; keep params=f32, or add rounding=stochastic"
            )
        if not narrow and not nearby:
            raise ConfigError(
                "precision: rounding=stochastic is of parameters narrower than f32; "
                "add params=bf16, or leave it out"
            )

    @property
    def scales(self) -> bool:
        """Whether the derivative is taken of the loss times a factor."""
        return (self.scale or (DYNAMIC if self.compute == "f16" else NONE)) != NONE

    def __str__(self) -> str:
        """As `parse` reads it: the three types, and what else is no default."""
        plain = ("params", "compute", "reduce")
        said = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name in plain or getattr(self, f.name) != f.default
        ]
        return ",".join(said)


DEFAULT = Policy()
"""All in f32."""


def parse(text: str) -> Policy:
    """Read `params=f32,compute=bf16,reduce=f32`; `ConfigError` says what is wrong."""
    known = {f.name: f for f in fields(Policy)}
    values: dict[str, str | int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in known:
            raise ConfigError(
                f"precision: {item!r}: write params=f32,compute=bf16,reduce=f32 "
                f"(keys: {', '.join(known)}).{nearest(key, known)}"
            )
        if key in values:
            raise ConfigError(f"precision: {key} is given twice")
        values[key] = _number(key, value) if key == "growth_interval" else value
    return replace(Policy(), **values)


def _number(key: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigError(f"precision: {key}={value} is no number of steps")
    return int(value)
