"""The machines: compile targets, devices, the links between them, meshes of them.

All four are symbols or stand beside symbols at the top of a module, and describe;
nothing of them runs. Throughputs and bandwidths are measured, not nominal.
"""

import re

from pcp.dialect.attributes import ELASTIC, axis_sizes, check_precision, check_split
from pcp.dialect.base import (
    Op,
    as_number,
    integer,
    kinds,
    number,
    require,
    symbol,
    symbols,
    text,
)
from pcp.dialect.bindings import ir

# Which architectures a driver runs; what the names mean is the compiler's table.
DRIVERS = {
    "local": r"x86_64|aarch64|arm64|riscv64|cpu(:.+)?",
    "cuda": r"sm_\d+[a-z]?",
    "hip": r"gfx[0-9a-f]+",
    "vulkan": r"vulkan|[\w.-]+",
    "metal": r"metal|[\w.-]+",
}


class Target(Op, name="target"):
    """What code is compiled for: an architecture and the driver that loads it.

    `caps` is a dictionary of what it can do.

        "pcp.target"() {sym_name = "h100", arch = "sm_90a", caps = {}, driver = "cuda"}
            : () -> ()
    """

    sym_name: ir.StringAttr
    arch: ir.StringAttr
    driver: ir.StringAttr
    caps: ir.DictAttr

    def check(self) -> None:
        """A known driver, and an architecture of its kind."""
        driver, arch = text(self, "driver"), text(self, "arch")
        known = ", ".join(DRIVERS)
        require(
            driver in DRIVERS, f'does not know driver "{driver}" (drivers: {known})'
        )
        fits = re.fullmatch(DRIVERS[driver], arch)
        require(fits, f'driver "{driver}" has no architecture "{arch}"')


class Device(Op, name="device"):
    """One device that work can be placed on.

    Optional: `memory` in bytes, `ordinal` on its host, `host`, `throughput` by
    element type in FLOP/s, `membw` in bytes/s, `overhead_ns` of one dispatch,
    `precision`, in which type it multiplies f32: `#pcp.precision<bf16, f32, f32>`;
    `alone`, its `throughput` and `membw` while the others of its host are idle;
    `exchange_ns` and `exchange_bw`, what a collective in a program costs it besides
    the link: each time, and in bytes/s of what it gives and gets.

        "pcp.device"() {sym_name = "d0", target = @h100, host = "a", ordinal = 0,
            memory = 80000000000, throughput = {f32 = 5.0e13}, membw = 3.0e12}
            : () -> ()
    """

    sym_name: ir.StringAttr
    target: ir.FlatSymbolRefAttr
    optional = kinds(
        memory=ir.IntegerAttr,
        ordinal=ir.IntegerAttr,
        host=ir.StringAttr,
        throughput=ir.DictAttr,
        membw=ir.IntegerAttr | ir.FloatAttr,
        overhead_ns=ir.IntegerAttr | ir.FloatAttr,
        alone=ir.DictAttr,
        exchange_ns=ir.IntegerAttr | ir.FloatAttr,
        exchange_bw=ir.IntegerAttr | ir.FloatAttr,
        precision=ir.Attribute,
    )

    def check(self) -> None:
        """Positive sizes and speeds, a precision that all devices can share."""
        if "precision" in self.attributes:
            check_precision(self.attributes["precision"])
        if "memory" in self.attributes:
            memory = integer(self, "memory")
            require(memory > 0, f"has {memory} bytes of memory")
        ordinal = integer(self, "ordinal")
        require(ordinal >= 0, f"has ordinal {ordinal}; ordinals count from 0")
        for name, what in _RATES.items():
            if name in self.attributes:
                require(number(self, name) > 0, f"has a {what} that is not positive")
        for name in ("overhead_ns", "exchange_ns"):
            if name in self.attributes:
                require(number(self, name) >= 0, f"has a negative {name}")
        if "throughput" in self.attributes:
            _check_speeds(ir.DictAttr(self.attributes["throughput"]))
        if "alone" in self.attributes:
            alone = ir.DictAttr(self.attributes["alone"])
            found = sorted(entry.name for entry in alone)
            require(
                found == ["membw", "throughput"],
                f"says alone = {{{', '.join(found)}}}: throughput and membw",
            )
            membw = as_number(alone["membw"], "memory bandwidth alone")
            require(membw > 0, "has a memory bandwidth alone that is not positive")
            _check_speeds(ir.DictAttr(alone["throughput"]))


#: Rates of a device, and what they are called.
_RATES = {"membw": "memory bandwidth", "exchange_bw": "bandwidth of exchanges"}


def _check_speeds(throughput: ir.DictAttr) -> None:
    for entry in throughput:
        speed = as_number(entry.attr, f"throughput of {entry.name}")
        require(speed > 0, f"has a throughput of {speed:g} in {entry.name}")


class Link(Op, name="link"):
    """What connects two devices: bytes/s and latency in nanoseconds.

    "pcp.link"() {ends = [@d0, @d1], bandwidth = 1.25e9, latency_ns = 20000}
        : () -> ()
    """

    ends: ir.ArrayAttr
    bandwidth: ir.IntegerAttr | ir.FloatAttr
    latency_ns: ir.IntegerAttr | ir.FloatAttr
    optional = kinds(duplex=ir.StringAttr)

    def check(self) -> None:
        """Two different ends, a positive bandwidth."""
        ends = symbols(self, "ends")
        require(len(ends) == 2, f"connects two devices, not {len(ends)}")
        require(ends[0] != ends[1], f"connects @{ends[0]} with itself")
        require(number(self, "bandwidth") > 0, "has a bandwidth that is not positive")
        require(number(self, "latency_ns") >= 0, "has a negative latency")
        if "duplex" in self.attributes:
            duplex = text(self, "duplex")
            require(
                duplex in ("full", "half"),
                f'duplex is "full" or "half", not "{duplex}"',
            )


class Mesh(Op, name="mesh"):
    """A grid of devices with named axes; the last axis varies fastest.

    Without `devices` they are decided when the program is started. An axis of
    size -1 is elastic: its members come and go while the program runs, and such
    a mesh lists no devices. `split`, one or an array of them, gives uneven parts
    along an axis.

        "pcp.mesh"() {sym_name = "m", axes = [#pcp.axis<"dp", 2>],
            devices = [@d0, @d1]} : () -> ()
        "pcp.mesh"() {sym_name = "w", axes = [#pcp.axis<"workers", -1>],
            devices = []} : () -> ()
    """

    sym_name: ir.StringAttr
    axes: ir.ArrayAttr
    devices: ir.ArrayAttr
    optional = kinds(split=ir.Attribute)

    def check(self) -> None:
        """As many devices as places in the grid, each once."""
        sizes = axis_sizes(self.axes)
        require(sizes, "needs at least one axis")
        self._check_devices(sizes)
        if "split" in self.attributes:
            split = self.attributes["split"]
            for one in split if isinstance(split, ir.ArrayAttr) else [split]:
                check_split(one, sizes)

    def _check_devices(self, sizes: dict[str, int]) -> None:
        devices = symbols(self, "devices")
        for device in devices:
            require(devices.count(device) == 1, f"lists device @{device} twice")
        if not devices:
            return
        elastic = [name for name, size in sizes.items() if size == ELASTIC]
        require(
            not elastic,
            f'axis "{"".join(elastic[:1])}" is elastic: its devices are not listed '
            "but join while running",
        )
        places = 1
        for size in sizes.values():
            places *= size
        require(
            places == len(devices),
            f"has {places} places for {len(devices)} devices",
        )


def mesh_of(op: ir.Operation | ir.OpView) -> str:
    """The mesh an op communicates on."""
    return symbol(op, "mesh")
