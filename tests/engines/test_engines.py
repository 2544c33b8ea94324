"""Engines by address: one suite for pcp's own, Gloo and MPI."""

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.servers.processes import free_port
from helpers.worlds.communicators import outcome, together
from helpers.worlds.engine_members import check

from pcp.errors import (
    CollectiveAborted,
    ConfigError,
    MissingPackage,
    RuntimeFault,
    Timeout,
    UsageError,
)
from pcp.runtime.communicator import backend_registry
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous

TESTS = Path(__file__).parent.parent


def connect(where: list[Any], **options: Any) -> list[Any]:
    """All members of a world in this process, a thread each."""
    return together(
        range(len(where)),
        lambda r: Communicator.connect(
            where[r], rank=r, world_size=len(where), timeout=30, **options
        ),
    )


def places(engine: str, size: int, folder: Path) -> list[Any]:
    """Where each member connects to."""
    if engine == "pcp":
        meeting = Rendezvous.listen("127.0.0.1:0")
        return [meeting, *[f"pcp://{meeting.address}"] * (size - 1)]
    if engine == "gloo file":
        return [f"gloo://{folder / 'meeting'}"] * size
    return [f"gloo://127.0.0.1:{free_port()}"] * size


@pytest.mark.parametrize(
    ("engine", "size", "count"),
    [("pcp", 2, 232), ("gloo", 2, 144), ("gloo", 3, 144), ("gloo file", 2, 144)],
)
def test_conformance(engine: str, size: int, count: int, tmp_path) -> None:
    comms = connect(places(engine, size, tmp_path))
    try:
        assert {type(comm) is Communicator for comm in comms} == {engine == "pcp"}
        assert together(comms, check) == [count] * size
    finally:
        together(comms, lambda comm: comm.close())


@pytest.mark.parametrize("size", [2, 3])
def test_mpi(size: int) -> None:
    pytest.importorskip("mpi4py")
    mpirun = Path(sys.executable).with_name("mpirun")
    found = str(mpirun) if mpirun.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun here")
    command = [found, "--oversubscribe", "-n", str(size)]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    ended = subprocess.run(
        [*command, sys.executable, "-m", "helpers.worlds.engine_members", "mpi://"],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("reductions 192") == size, ended.stdout


def test_tensors_of_torch() -> None:
    comms = connect(places("gloo", 2, Path()))
    tensors = [torch.full((4,), r + 1.0) for r in range(2)]
    together(comms, lambda c: c.all_reduce(tensors[c.rank]))
    assert all((tensor == 3).all() for tensor in tensors)
    found = together(comms, lambda c: c.all_reduced(tensors[c.rank]))
    assert all((tensor == 6).all() for tensor in found)
    assert all((tensor == 3).all() for tensor in tensors)
    given = np.ones(3, np.float32)
    donated = [given, given.copy()]
    found = together(comms, lambda c: c.all_reduced(donated[c.rank], donate=True))
    assert found[0] is given
    assert (given == 2).all()
    together(comms, lambda c: c.close())
    with pytest.raises(RuntimeFault, match="closed its gloo"):
        comms[0].barrier()


def test_what_an_engine_has_not_is_said() -> None:
    (comm,) = connect(places("gloo", 1, Path()))
    with comm:
        for name in ("param_sync", "scatter", "group", "abort"):
            with pytest.raises(UsageError, match=f"gloo has no {name}"):
                getattr(comm, name)
        with pytest.raises(AttributeError):
            _ = comm.nothing_like_it
        with pytest.raises(UsageError, match="does not reduce int16"):
            comm.all_reduce(np.ones(2, np.int16))
        for call, option in (
            ("all_reduce", "algorithm"),
            ("reduce_scatter", "compression"),
        ):
            with pytest.raises(UsageError, match=f"gloo:// has no {option}="):
                getattr(comm, call)(np.ones(2, np.float32), **{option: "ring"})
        with pytest.raises(UsageError, match="no option 'faster'"):
            comm.all_reduce(np.ones(2, np.float32), faster=True)
        assert (comm.all_reduce(np.ones(2), algorithm=None) == 1).all()
    with pytest.raises(UsageError, match="gloo:// has no elastic world"):
        Communicator.join("gloo://127.0.0.1:1")
    for options in ({"key": "long enough"}, {"streams": 2}):
        (name,) = options
        with pytest.raises(UsageError, match=f"has no {name}="):
            connect(["gloo://127.0.0.1:1"], **options)


def test_an_engine_is_left_after_what_was_called(tmp_path) -> None:
    comms = connect(places("gloo file", 2, tmp_path))
    arrays = [np.full(50_000, r + 1.0) for r in range(2)]

    def run(c: Any) -> None:
        with c:
            c.all_reduce_async(arrays[c.rank])

    together(comms, run)
    assert all((array == 3).all() for array in arrays)


def test_an_engine_says_what_did_not_happen(tmp_path) -> None:
    comms = connect(places("gloo file", 2, tmp_path))
    lonely = comms[0].recv_async(np.ones(3), 1)
    with pytest.raises(Timeout, match="gloo: left with 1 call under way"):
        comms[0].close(timeout=0.2)
    comms[1].close()
    assert isinstance(outcome(lambda: lonely.result(40)), RuntimeFault)
    (alone,) = connect([f"gloo://{tmp_path / 'another'}"])
    alone._do(_fails, None)
    with pytest.raises(CollectiveAborted, match="before it had happened: out of order"):
        alone.close()


def _fails(_: float) -> None:
    raise RuntimeFault("out of order")


def test_a_callback_that_waits_is_refused() -> None:
    """It runs in the engine's only thread."""
    comms = connect(places("gloo", 2, Path()))

    def run(c: Any) -> object:
        listening, refusal = threading.Event(), Future[object]()
        c._do(lambda _: listening.wait(20), None)
        first = c.all_reduce_async(np.ones(2))
        first.add_done_callback(
            lambda _: refusal.set_result(outcome(lambda: c.barrier_async().result(30)))
        )
        listening.set()
        return refusal.result(20)

    for refusal in together(comms, run):
        assert "a callback" in str(refusal)
    together(comms, lambda c: c.close())


def test_a_member_that_does_not_come_is_late() -> None:
    where = f"gloo://127.0.0.1:{free_port()}"
    fault = outcome(
        lambda: Communicator.connect(where, rank=0, world_size=2, timeout=1.5)
    )
    assert isinstance(fault, Timeout)
    assert "did not meet" in str(fault)


def test_after_a_deadline_an_engine_is_of_no_use() -> None:
    comms = connect(places("gloo", 2, Path()))
    fault = outcome(lambda: comms[0].all_reduce(np.ones(9), timeout=0.5))
    assert isinstance(fault, RuntimeFault)
    assert "gloo" in str(fault)
    fault = outcome(lambda: comms[0].barrier(timeout=5))
    assert "of no use" in str(fault)
    together(comms, lambda c: c.close())


def test_engines_that_are_not_there(monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"'glo'.*Did you mean 'gloo'"):
        connect(["glo://127.0.0.1:1"])
    with pytest.raises(ConfigError, match="write mpi://"):
        connect(["mpi://somewhere:1"])
    with pytest.raises(ConfigError, match="does not exist"):
        Communicator.connect("gloo://x:1", rank=2, world_size=2)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="needs a GPU"):
            connect(["nccl://127.0.0.1:1"])
    monkeypatch.delitem(sys.modules, "pcp.engines.torch_engine", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackage, match="gloo:// needs the package torch"):
        connect(["gloo://127.0.0.1:1"])


def test_another_package_brings_its_own(monkeypatch) -> None:
    class Point:
        name = "carrier-pigeon"

        @staticmethod
        def load() -> Any:
            return lambda place, **facts: (place, facts)

    monkeypatch.setattr(backend_registry, "entry_points", lambda group: [Point])
    facts = {"rank": 0, "world_size": 1, "timeout": 30.0}
    assert connect(["carrier-pigeon://loft"]) == [("loft", facts)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NCCL needs a GPU")
def test_nccl() -> None:
    size = min(2, torch.cuda.device_count())
    comms = connect([f"nccl://127.0.0.1:{free_port()}"] * size)
    assert together(comms, lambda c: c.all_reduce(np.ones(5, "f"))[0]) == [size] * size
    together(comms, lambda c: c.close())
