"""`pcp coordinator`, run as a user runs it."""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from helpers.worlds.certificates import member_tls
from helpers.worlds.communicators import together

from pcp.errors import ProtocolError
from pcp.runtime.communicator.communicator import Communicator
from pcp.tools.commands.coordinator import main


def start(*flags: str) -> tuple[subprocess.Popen, str]:
    """The process and the address it says it listens on."""
    child = subprocess.Popen(
        [sys.executable, "-m", "pcp.tools.cli", "coordinator", *flags],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    line = child.stdout.readline()
    assert "listening on" in line
    return child, line.rsplit(" ", 1)[1].strip()


def stop(child: subprocess.Popen, how: signal.Signals) -> str:
    """End it; what it printed meanwhile."""
    child.send_signal(how)
    printed, _ = child.communicate(timeout=20)
    return printed


def test_members_meet_and_outlive_it(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path / "generation")]
    child, address = start("--port", "0", "--members", "2", *state)
    comms = []
    try:
        comms = together("ab", lambda n: Communicator.join(address, name=n, timeout=20))
        assert {comm.epoch for comm in comms} == {1}
        stop(child, signal.SIGKILL)
        port = address.rsplit(":", 1)[1]
        child, _ = start("--port", port, "--silence", "2", *state)
        sums = together(comms, lambda c: c.all_reduce(np.ones(3)))
        assert all((s == 2).all() for s in sums)
        comms[1]._crash()
        alone = comms[0].retry(lambda c: c.all_reduce(np.ones(3)), timeout=30)
        assert (alone == 1).all()
        assert comms[0].epoch == 1001  # the second coordinator's first
        printed = stop(child, signal.SIGTERM)
        assert child.returncode == 0
        assert "epoch 1001, stable: a" in printed
    finally:
        for comm in comms:
            comm.close()
        if child.poll() is None:
            stop(child, signal.SIGKILL)


def test_members_with_certificates() -> None:
    tls = member_tls()
    files = ["--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca]
    child, address = start("--port", "0", *map(str, files))
    try:
        with pytest.raises(ProtocolError, match="all is encrypted here"):
            Communicator.join(address, timeout=10)
        with Communicator.join(address, timeout=20, tls=tls) as comm:
            assert comm.all_reduce(np.ones(3)).tolist() == [1, 1, 1]
    finally:
        stop(child, signal.SIGKILL)
    assert main(["--tls-cert", str(tls.cert)]) == 2


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    child, address = start("--port", "0")
    try:
        port = address.rsplit(":", 1)[1]
        done = subprocess.run(
            [sys.executable, "-m", "pcp.tools.cli", "coordinator", "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "another port" in done.stderr
    finally:
        stop(child, signal.SIGTERM)


@pytest.mark.parametrize("flag", ["--members", "--silence"])
def test_nobody_and_no_time_are_refused(flag: str, capsys) -> None:
    assert main([flag, "0"]) == 2
    assert "--members 1" in capsys.readouterr().err


def test_prometheus_can_look_at_it() -> None:
    child, address = start("--port", "0", "--metrics-port", "0")
    comm = None
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert "metrics at http://127.0.0.1:" in line
        url = line.split("metrics at ")[1].strip()
        comm = Communicator.join(address, name="a", timeout=20)
        with urllib.request.urlopen(url, timeout=20) as answer:
            page = answer.read().decode()
        lines = dict(row.rsplit(" ", 1) for row in page.splitlines() if row[0] != "#")
        assert float(lines["pcp_group_members"]) == 1
        assert float(lines["pcp_group_stable"]) == 1
        assert float(lines["pcp_group_epoch"]) == comm.epoch
        assert float(lines['pcp_events_total{event="told go"}']) >= 1
    finally:
        if comm is not None:
            comm.close()
        stop(child, signal.SIGTERM)


def test_one_that_others_reach_is_protected_or_said_to_be_open(capsys) -> None:
    assert main(["--host", "0.0.0.0", "--port", "0"]) == 2
    assert "or say --insecure on a closed network" in capsys.readouterr().err
