"""`--metrics-port`: what long-running commands show to Prometheus."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pcp.runtime.collectives.metrics import Source
from pcp.runtime.communicator.prometheus_exporter import Exporter
from pcp.runtime.transport.address import format_address


def add_metrics_flags(parser: ArgumentParser) -> None:
    """The flags, for a command's parser."""
    add = parser.add_argument
    add("--metrics-port", type=int, metavar="PORT", help="serve /metrics; 0: any port")
    add("--metrics-host", default="127.0.0.1", metavar="HOST", help="and where")


@contextmanager
def serving(
    flags: Namespace, log: Callable[[str], None], *sources: Source
) -> Iterator[None]:
    """Serve `sources` while inside, if the flags ask for it."""
    if flags.metrics_port is None:
        yield
        return
    address = format_address(flags.metrics_host, flags.metrics_port)
    with Exporter.serve(address, *sources) as exporter:
        where = format_address(flags.metrics_host, exporter.port)
        log(f"metrics at http://{where}/metrics")
        yield
