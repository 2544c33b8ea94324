"""The machines of a module as plain numbers: `pcp.device` and `pcp.link` ops.

Seconds, bytes, and operations a second throughout.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf

from pcp.dialect.attributes import unwrap
from pcp.dialect.base import as_number, integer, number, symbol, symbols, text
from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import refuse


@dataclass(frozen=True)
class Device:
    """One device: `memory` and `membw` are infinite where nobody says.

    A processor moves messages itself: it does not `overlap` them with work. Each
    collective costs it `exchange` seconds, and what it gives and gets goes there and
    back at `exchange_bw`. `alone` are its rates while its host's others are idle.
    """

    name: str
    target: str
    host: str = ""
    throughput: dict[str, float] = field(default_factory=dict)
    memory: float = inf
    membw: float = inf
    overhead: float = 0.0
    overlaps: bool = True
    compute: str = "f32"
    exchange: float = 0.0
    exchange_bw: float = inf
    alone: "Rates | None" = None

    @property
    def facts(self) -> tuple:
        """What distinguishes its work from another's."""
        speeds = tuple(sorted(self.throughput.items()))
        return (
            self.target,
            speeds,
            self.memory,
            self.membw,
            self.overhead,
            self.compute,
            self.exchange,
            self.exchange_bw,
        )

    def rate(self, dtype: str) -> float:
        """Operations a second; `PassError` for a type that nobody measured.

        What is f32 is multiplied in the device's `compute` type.
        """
        dtype = self.compute if dtype == "f32" else dtype
        return _measured(self.name, self.throughput, dtype)

    def beside(self, busy: float) -> "Device":
        """The same while this share of the host's other devices is busy, 0 to 1.

        Time grows evenly from what it takes alone to what it takes beside all.
        """
        if self.alone is None:
            return self

        def between(alone: float, all_: float) -> float:
            return 1 / (1 / alone + busy * (1 / all_ - 1 / alone))

        throughput = {
            dtype: between(self.alone.throughput.get(dtype, rate), rate)
            for dtype, rate in self.throughput.items()
        }
        membw = between(self.alone.membw, self.membw)
        return replace(self, throughput=throughput, membw=membw)


@dataclass(frozen=True)
class Rates:
    """What a device does: operations by type, and bytes, a second."""

    throughput: dict[str, float]
    membw: float


@dataclass(frozen=True)
class Link:
    """Between two devices: bytes a second, and seconds until the first arrives."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Cluster:
    """Devices in the order in which they stand, and links by unordered pair."""

    devices: dict[str, Device]
    links: dict[frozenset[str], Link]

    def as_small_as_the_least(self) -> "Cluster":
        """The same where every device has the memory of the one that has least."""
        least = min((d.memory for d in self.devices.values()), default=inf)
        small = {n: replace(d, memory=least) for n, d in self.devices.items()}
        return replace(self, devices=small)

    def among(self, names: Collection[str], busy: float = 1.0) -> "Cluster":
        """The same while only these devices work, in this share of the time."""
        hosts = Counter(device.host for device in self.devices.values())
        working = Counter(self.devices[name].host for name in names)

        def share(device: Device) -> float:
            others = max(1, hosts[device.host] - 1)
            return busy * max(0, working[device.host] - 1) / others

        devices = {n: d.beside(share(d)) for n, d in self.devices.items()}
        return replace(self, devices=devices)

    def slowest(self, names: Iterable[str]) -> Link:
        """The least bandwidth and the most latency among some devices.

        Raises `PassError` for two of them that no link connects.
        """
        found = [self.link(a, b) for a, b in combinations(names, 2)]
        if not found:
            return Link(inf, 0.0)
        return Link(
            min(link.bandwidth for link in found), max(link.latency for link in found)
        )

    def link(self, a: str, b: str) -> Link:
        """What connects two devices."""
        if (key := frozenset((a, b))) not in self.links:
            raise PassError(
                f"no pcp.link connects @{a} and @{b}; describe it in the cluster file, "
                "or measure it with pcp probe"
            )
        return self.links[key]

    def connected(self, names: Iterable[str]) -> bool:
        """Whether every two of them have a link."""
        return all(frozenset(pair) in self.links for pair in combinations(names, 2))


def read(module: ir.Module) -> Cluster:
    """The devices and links of a module; an error at the op that is wrong."""
    devices: dict[str, Device] = {}
    links: dict[frozenset[str], Link] = {}
    ops = [view.operation for view in module.body.operations]
    drivers = {
        symbol_name(op): text(op, "driver") for op in ops if op.name == "pcp.target"
    }
    for op in ops:
        if op.name == "pcp.device":
            devices[symbol_name(op)] = _device(op, drivers)
    for op in ops:
        if op.name == "pcp.link":
            _add_link(op, devices, links)
    return Cluster(devices, links)


def _device(op: ir.Operation, drivers: dict[str, str]) -> Device:
    said = op.attributes
    throughput = _speeds(said["throughput"]) if "throughput" in said else {}
    if not throughput:
        refuse(op, "it has no throughput, so no plan can be judged; run pcp probe")
    if (target := symbol(op, "target")) not in drivers:
        refuse(
            op,
            f"it names target @{target}, which is not described."
            + nearest(target, drivers),
        )
    return Device(
        name=symbol_name(op),
        target=target,
        overlaps=drivers[target] != "local",
        host=text(op, "host") if "host" in said else "",
        throughput=throughput,
        memory=float(integer(op, "memory")) if "memory" in said else inf,
        membw=number(op, "membw") if "membw" in said else inf,
        overhead=number(op, "overhead_ns") * 1e-9 if "overhead_ns" in said else 0.0,
        compute=_compute(op),
        exchange=number(op, "exchange_ns") * 1e-9 if "exchange_ns" in said else 0.0,
        exchange_bw=number(op, "exchange_bw") if "exchange_bw" in said else inf,
        alone=_alone(ir.DictAttr(said["alone"])) if "alone" in said else None,
    )


def rate_of(op: ir.Operation) -> float:
    """Operations a second of a `pcp.device` in the type it multiplies f32 in."""
    throughput = _speeds(op.attributes["throughput"])
    return _measured(symbol_name(op), throughput, _compute(op))


def _measured(name: str, throughput: dict[str, float], dtype: str) -> float:
    if dtype not in throughput:
        known = ", ".join(throughput) or "none"
        raise PassError(
            f"device @{name} has no throughput of {dtype} (it has: {known}); measure "
            "it with pcp probe, or write it into the cluster file"
        )
    return throughput[dtype]


def _compute(op: ir.Operation) -> str:
    """The type that a device multiplies f32 in."""
    if "precision" not in op.attributes:
        return "f32"
    return str(unwrap(op.attributes["precision"].compute))


def _alone(said: ir.DictAttr) -> Rates:
    return Rates(_speeds(said["throughput"]), as_number(said["membw"], "membw alone"))


def _speeds(said: ir.Attribute) -> dict[str, float]:
    return {
        entry.name: as_number(entry.attr, f"throughput of {entry.name}")
        for entry in ir.DictAttr(said)
    }


def _add_link(
    op: ir.Operation, devices: dict[str, Device], links: dict[frozenset[str], Link]
) -> None:
    ends = symbols(op, "ends")
    for end in ends:
        if end not in devices:
            refuse(
                op,
                f"it names device @{end}, which is not described."
                + nearest(end, devices),
            )
    link = Link(number(op, "bandwidth"), number(op, "latency_ns") * 1e-9)
    if links.setdefault(frozenset(ends), link) != link:
        refuse(op, f"@{ends[0]} and @{ends[1]} have another link with other numbers")
