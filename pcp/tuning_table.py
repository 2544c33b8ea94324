"""Schedules of products that were measured on a processor: files of `pcp tune`.

    {"format": 1, "target": "cpu:host", "processor": "GenuineIntel 6 207",
     "products": [{"form": "NN", "batch": 0, "rows": 2048, "depth": 256,
                   "columns": 1024, "schedule": {"part": [32, 64],
                   "register": [4, 64], "steps": 4, "turned": false},
                   "gflops": 149.7, "untuned": 130.1}]}

A product whose "schedule" is null is faster as IREE computes it. What a table says
holds for its target alone, and for `cpu:host` on its kind of processor alone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from pcp import outside, strict_json
from pcp.errors import ConfigError

HOST = "cpu:host"
LEAVE = "iree"
"""In the pass's option: IREE chooses."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TunedSchedule(_Model):
    """Rows and columns of a workgroup's part and of a register tile; its unrolling."""

    part: list[PositiveInt] = Field(min_length=2, max_length=2)
    register_tile: list[PositiveInt] = Field(
        alias="register", min_length=2, max_length=2
    )
    steps: PositiveInt
    turned: bool = False
    """Whether the right operand is transposed in memory first."""
    panels: bool = False
    """Whether it is put into panels of the register tile's columns first."""


class TunedProduct(_Model):
    """A product, its fastest schedule, and GFLOP/s of a thread with and without it."""

    form: str = Field(pattern="^[NT][NT]$")
    batch: int = Field(ge=0)
    rows: PositiveInt
    depth: PositiveInt
    columns: PositiveInt
    schedule: TunedSchedule | None
    gflops: float = Field(ge=0, strict=False)
    untuned: float = Field(ge=0, strict=False)

    @property
    def name(self) -> tuple[str, int, int, int, int]:
        """Which product it is: form, batch, rows, depth, columns."""
        return self.form, self.batch, self.rows, self.depth, self.columns

    @property
    def option(self) -> str:
        """The row as `pcp-schedule-kernels` takes it, `NN:0x64x8x32=64x32:8x32x4`."""
        form, *extents = self.name
        said = f"{form}:{'x'.join(map(str, extents))}="
        if (how := self.schedule) is None:
            return said + LEAVE
        numbers = "{}x{}:{}x{}x{}".format(*how.part, *how.register_tile, how.steps)
        return said + numbers + ":turned" * how.turned + ":panels" * how.panels


class TuningTable(_Model):
    """Measured products of a target; `processor` is what measured them."""

    format: Literal[1] = 1
    target: str
    processor: str
    products: list[TunedProduct]

    @classmethod
    def read(cls, path: Path) -> "TuningTable":
        """Read a file; `ConfigError` says what is wrong with it."""
        content = outside.read_object(path, "the tuning table")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the table"
            raise ConfigError(f"{path}: {where}: {first['msg']}") from None

    def text(self) -> str:
        """What the file says."""
        return strict_json.dumps(self.model_dump(by_alias=True), indent=1) + "\n"

    def merged(self, older: "TuningTable") -> "TuningTable":
        """These rows, and those of `older` that are of other products."""
        rows = {row.name: row for row in (*older.products, *self.products)}
        return self.model_copy(update={"products": list(rows.values())})

    @property
    def option(self) -> str:
        """All rows, as `pcp-schedule-kernels{tuned=...}` takes them."""
        return ";".join(row.option for row in self.products)

    def unfit(self, target: str, host: str) -> str | None:
        """Why it says nothing of a target on the processor `host`; None: it does."""
        if target != self.target:
            return f"it is of the target {self.target}, not of {target}"
        if target == HOST and self.processor != host:
            return f"it is of the processor {self.processor}, this is {host}"
        return None


def fitting(
    path: str | None, target: str, host: str, report: Callable[[str], None]
) -> Path | None:
    """The file, if its table is of the target; else None, and why is reported."""
    if path is None:
        return None
    if why := TuningTable.read(Path(path)).unfit(target, host):
        report(f"{target} is compiled without {path}: {why}")
        return None
    return Path(path)
