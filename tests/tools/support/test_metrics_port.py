"""`--metrics-port` of the commands that run for long."""

import socket
import urllib.request

import pytest

from pcp.errors import ConfigError
from pcp.runtime.collectives.metrics import Telemetry
from pcp.tools.commands import coordinator, worker
from pcp.tools.support.command import Parser
from pcp.tools.support.metrics_port import add_metrics_flags, serving


def flags(*argv: str):
    parser = Parser(prog="test")
    add_metrics_flags(parser)
    return parser.parse_args(argv)


def test_what_is_counted_is_served_while_the_command_runs() -> None:
    telemetry, said = Telemetry(), []
    telemetry.count("retry")
    with serving(flags("--metrics-port", "0"), said.append, telemetry.metrics):
        url = said[0].removeprefix("metrics at ")
        telemetry.count("retry")
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert 'pcp_events_total{event="retry"} 2.0' in answer.read().decode()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=20)


def test_nothing_is_served_unless_asked_for() -> None:
    said = []
    with serving(flags(), said.append, Telemetry().metrics):
        assert not said


def test_a_taken_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = flags("--metrics-port", str(taken.getsockname()[1]))
        with (
            pytest.raises(ConfigError, match="choose another port"),
            serving(asked, print, Telemetry().metrics),
        ):
            pass


@pytest.mark.parametrize("command", [coordinator, worker])
def test_who_has_it(command) -> None:
    assert command.parser().parse_args([]).metrics_port is None
    assert command.parser().parse_args(["--metrics-port", "9100"]).metrics_port == 9100
