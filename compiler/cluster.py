"""Cluster files: the devices there are and what connects them, as JSON.

    {"devices": {"a": {"target": "cpu:host", "host": "x", "memory": 8000000000,
                       "throughput": {"f32": 5e10}, "membw": 1e10},
                 "b": {...}},
     "links": [{"ends": ["a", "b"], "bandwidth": 1e9, "latency_ns": 50000}]}

Bytes, operations a second, bytes a second; all measured, by `pcp probe`. A link with
more than two ends connects every two of them. The same can be written as MLIR, with
`pcp.target`, `pcp.device` and `pcp.link`.
"""

from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pcp import strict_json
from pcp.compiler.targets import find
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse, read
from pcp.errors import ConfigError, nearest

Positive = Annotated[float, Field(gt=0)]
NAME = r"^[A-Za-z_][\w.-]*$"


class _Wrong(ValueError):
    """What is wrong at a place of the file, as a path of keys and indices."""

    def __init__(self, place: tuple[str | int, ...], what: str) -> None:
        super().__init__(what)
        self.place = place


class _Model(BaseModel):
    """Immutable, and no key that this version does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Rates(_Model):
    """What a device does while the other devices of its host are idle."""

    throughput: dict[str, Positive] = Field(min_length=1)
    membw: Positive


class Device(_Model):
    """One schedulable device; `target` as `pcp-compile --target` takes it."""

    target: str = "cpu"
    host: str = ""
    ordinal: int = Field(default=0, ge=0)
    memory: int = Field(gt=0, description="bytes it can hold")
    throughput: dict[str, Positive] = Field(
        min_length=1, description="operations a second by element type"
    )
    membw: Positive = Field(description="bytes a second to and from its memory")
    overhead_ns: float = Field(default=0.0, ge=0, description="of one dispatch")
    alone: Rates | None = Field(
        default=None, description="rates while the other devices of its host are idle"
    )
    exchange_ns: float = Field(
        default=0.0, ge=0, description="of each collective in a program"
    )
    exchange_bw: Positive | None = Field(
        default=None, description="bytes a second into collectives and out of them"
    )
    compute: Literal["f32", "bf16", "f16"] = Field(
        default="f32", description="type in which it multiplies f32; sums are f32"
    )


class Link(_Model):
    """What connects devices: each two of `ends`."""

    ends: tuple[str, ...] = Field(min_length=2)
    bandwidth: Positive = Field(description="bytes a second")
    latency_ns: float = Field(ge=0)
    duplex: Literal["full", "half"] = "full"

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every two of its ends."""
        return list(combinations(self.ends, 2))


class Cluster(_Model):
    """Devices by name, and links between them."""

    format: Literal["pcp-cluster"] = "pcp-cluster"
    version: Literal[1] = 1
    devices: dict[Annotated[str, Field(pattern=NAME)], Device] = Field(min_length=1)
    links: tuple[Link, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_places()
        said: dict[frozenset[str], Link] = {}
        for i, link in enumerate(self.links):
            for end in link.ends:
                if end not in self.devices:
                    known = ", ".join(self.devices)
                    hint = nearest(end, self.devices)
                    raise _Wrong(
                        ("links", i), f"no device {end!r} (devices: {known}).{hint}"
                    )
            if len(set(link.ends)) < len(link.ends):
                raise _Wrong(("links", i), "it connects a device with itself")
            for pair in link.pairs:
                other = said.setdefault(frozenset(pair), link)
                if _facts(other) != _facts(link):
                    raise _Wrong(
                        ("links", i),
                        f"{pair[0]} and {pair[1]} have another link with other "
                        "numbers; say one of them",
                    )
        return self

    def _check_places(self) -> None:
        """A known target; no two devices of one driver at one place."""
        taken: dict[tuple[str, str, int], str] = {}
        for name, device in self.devices.items():
            try:
                driver = find(device.target).driver
            except ConfigError as error:
                raise _Wrong(("devices", name, "target"), str(error)) from error
            place = device.host, driver, device.ordinal
            if (other := taken.setdefault(place, name)) != name:
                raise _Wrong(
                    ("devices", name, "ordinal"), _taken(device, other, driver)
                )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; raises `ConfigError` that says where and what is wrong."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            place, what = _first(error)
            line = f"{strict_json.line_of(text.decode(), place)}: " if place else " "
            key = ".".join(map(str, place))
            raise ConfigError(
                f"{path}:{line}{f'{key}: ' if key else ''}{what}"
            ) from error

    def to_json(self) -> str:
        """The file's text."""
        content = self.model_dump(exclude_defaults=True)
        return strict_json.dumps({"format": self.format, **content}, indent=2) + "\n"

    def to_mlir(self) -> str:
        """The same as ops of the dialect."""
        targets = dict.fromkeys(d.target for d in self.devices.values())
        devices = [_device(name, device) for name, device in self.devices.items()]
        links = [_link(pair, link) for link in self.links for pair in link.pairs]
        return "\n".join([*map(target_op, targets), *devices, *links]) + "\n"


def json_schema() -> str:
    """The JSON Schema of cluster files."""
    return strict_json.dumps(Cluster.model_json_schema(), indent=2)


def read_ops(path: Path, context: ir.Context) -> ir.Module:
    """A cluster file as a module of its ops, whatever it is written in."""
    if path.suffix == ".json":
        return parse(Cluster.read(path).to_mlir(), context, source=str(path))
    return read(path, context)


def _first(error: ValidationError) -> tuple[tuple[str | int, ...], str]:
    """The first problem: its place in the file, and what it is."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    place = cause.place if isinstance(cause, _Wrong) else first["loc"]
    return place, first["msg"].removeprefix("Value error, ")


def _taken(device: Device, other: str, driver: str) -> str:
    """That another device is where this one is, and which keys tell them apart."""
    host = f"host {device.host!r}" if "host" in device.model_fields_set else "no host"
    said = [key for key in ("host", "ordinal") if key in device.model_fields_set]
    missing = [key for key in ("host", "ordinal") if key not in said]
    what = f"; {' and '.join(missing)} not given" if missing else ""
    return (
        f"{other} is {driver} device {device.ordinal} of {host} already{what}: give "
        'each machine\'s devices its name as "host", and number the devices of one '
        'host by "ordinal", from 0'
    )


def _facts(link: Link) -> tuple[float, float, str]:
    return link.bandwidth, link.latency_ns, link.duplex


# --- as MLIR ---

#: The dialect's names of drivers, where they differ from IREE's.
_DRIVERS = {"local-task": "local", "local-sync": "local"}


def target_symbol(name: str) -> str:
    """What the op of a compile target is called."""
    return f"target.{name}"


def target_op(name: str) -> str:
    """A compile target as an op."""
    driver = find(name).driver
    return (
        f'"pcp.target"() {{sym_name = "{target_symbol(name)}", arch = "{name}", '
        f'driver = "{_DRIVERS.get(driver, driver)}", caps = {{}}}} : () -> ()'
    )


def _device(name: str, device: Device) -> str:
    facts = [
        f'sym_name = "{name}"',
        f'target = @"{target_symbol(device.target)}"',
        f"host = {strict_json.dumps(device.host)}",
        f"ordinal = {device.ordinal}",
        f"memory = {device.memory}",
        *_rates(device),
        f"overhead_ns = {_float(device.overhead_ns)}",
    ]
    if device.alone:
        facts.append(f"alone = {{{', '.join(_rates(device.alone))}}}")
    if device.exchange_ns:
        facts.append(f"exchange_ns = {_float(device.exchange_ns)}")
    if device.exchange_bw:
        facts.append(f"exchange_bw = {_float(device.exchange_bw)}")
    if device.compute != "f32":
        facts.append(f"precision = #pcp.precision<{device.compute}, f32, f32>")
    return f'"pcp.device"() {{{", ".join(facts)}}} : () -> ()'


def _rates(of: Device | Rates) -> list[str]:
    speeds = ", ".join(f"{t} = {_float(v)}" for t, v in of.throughput.items())
    return [f"throughput = {{{speeds}}}", f"membw = {_float(of.membw)}"]


def _link(pair: tuple[str, str], link: Link) -> str:
    a, b = pair
    return (
        f'"pcp.link"() {{ends = [@"{a}", @"{b}"], '
        f"bandwidth = {_float(link.bandwidth)}, "
        f'latency_ns = {_float(link.latency_ns)}, duplex = "{link.duplex}"}} : () -> ()'
    )


def _float(value: float) -> str:
    """A float as MLIR reads it."""
    return f"{value:.17e}"
