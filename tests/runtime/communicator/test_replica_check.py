"""pcp.digest and pcp.parity in real processes: who differs is named, or repaired."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from helpers.servers.processes import Process
from helpers.worlds.communicators import outcome, together, world
from helpers.worlds.parity_process import MEMBERS, tensors

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import StateMismatch
from pcp.runtime.communicator.replica_check import digest_words, elected, parity

W, B = "tensor<40x300xf32>", "tensor<5xf32>"
CAST = "builtin.unrealized_conversion_cast"


def _program(action: str, algo: str) -> str:
    """The digest of what the parity leaves behind."""
    pair = f"tuple<{W}, {B}>"
    where = f'action = "{action}", axes = ["workers"], mesh = @m'
    return f"""
"pcp.mesh"() {{axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "m"}}
  : () -> ()
func.func @main(%w: {W}, %b: {B}) -> (tensor<2xi64>, {W}, {B}) {{
  %t = {CAST} %w, %b : {W}, {B} to {pair}
  "pcp.parity"(%t) {{{where}}} : ({pair}) -> ()
  %u = {CAST} %w, %b : {W}, {B} to {pair}
  %h = "pcp.digest"(%u) {{algo = "{algo}"}} : ({pair}) -> tensor<2xi64>
  %v = stablehlo.negate %w : {W}
  %x = stablehlo.negate %v : {W}
  %c = stablehlo.negate %b : {B}
  %y = stablehlo.negate %c : {B}
  return %h, %x, %y : tensor<2xi64>, {W}, {B}
}}
"""


def _compiled(action: str, algo: str, folder: Path) -> Path:
    options = CompileOptions(targets=("cpu",), mode="forward", cache=None)
    bundle = driver.compile(parse(_program(action, algo)), options)
    return bundle.write(folder / f"{action}.pcp")


def _words(perturbed: bool, algo: str) -> list[int]:
    content = b"".join(array.tobytes() for array in tensors(perturbed))
    first = hashlib.new(algo, content).digest()[:16]
    return [int.from_bytes(first[i : i + 8], "little", signed=True) for i in (0, 8)]


def _members(bundle: Path, odd: int) -> list[str]:
    """What each member of two processes said."""
    running: list[Process] = []
    try:
        for rank in range(MEMBERS):
            address = running[0].wait_for("meeting").split()[1] if rank else ""
            helper = "helpers.worlds.parity_process"
            running.append(Process(helper, bundle, rank, address, odd))
        assert [process.wait(60) for process in running] == [0] * MEMBERS
        return [process.text for process in running]
    finally:
        for process in running:
            process.kill()


@pytest.mark.slow  # trap is above
@pytest.mark.parametrize("odd", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_repair_gives_all_the_same(odd: int, tmp_path: Path) -> None:
    """One against one: the lower rank's bits; only what differs is changed."""
    said = _members(_compiled("repair", "sha256", tmp_path), odd)
    words = _words(perturbed=odd == 0, algo="sha256")
    for rank, text in enumerate(said):
        assert f"words {words[0]} {words[1]}" in text
        assert f"own {rank == 0} True" in text
        assert "rank 1 holds other bits than rank 0 (repair)" in text


@pytest.mark.slow
def test_report_says_so_and_goes_on(tmp_path: Path) -> None:
    said = _members(_compiled("report", "blake2b", tmp_path), 1)
    for rank, text in enumerate(said):
        words = _words(perturbed=rank == 1, algo="blake2b")
        assert f"words {words[0]} {words[1]}" in text
        assert "own True True" in text
        assert "rank 1 holds other bits than rank 0 (report)" in text


def test_trap_ends_the_program_on_all(tmp_path: Path) -> None:
    bundle = _compiled("trap", "sha256", tmp_path)
    for text in _members(bundle, 1):
        assert "StateMismatch: parity_0: rank 1 holds other bits than rank 0" in text
        assert "words" not in text
    for text in _members(bundle, -1):
        assert "own True True" in text
        assert "other bits" not in text


def test_the_majority_is_right() -> None:
    arrays = [np.full((30, 1000), value, np.float32) for value in (1, 2, 2)]
    with world("in_process", 3) as comms:
        got = together(
            range(3),
            lambda r: parity(comms[r], arrays[r].copy(), "repair", "w").result(20),
        )
        assert all((array == 2).all() for array in got)
        faults = together(
            range(3),
            lambda r: outcome(
                lambda: parity(comms[r], arrays[r].copy(), "trap", "v").result(20)
            ),
        )
    for fault in faults:
        assert isinstance(fault, StateMismatch)
        assert "v: rank 0 holds other bits than rank 1" in str(fault)


@pytest.mark.parametrize(
    ("held", "rank"), [("ab", 0), ("abb", 1), ("abba", 0), ("cab", 0)]
)
def test_election(held: str, rank: int) -> None:
    assert elected([letter.encode() for letter in held]) == rank


@pytest.mark.parametrize("algo", ["sha256", "blake2b"])
def test_a_digest_is_of_the_bytes_in_order(algo: str) -> None:
    words = digest_words(tensors(False), algo)
    assert words.dtype == np.int64
    assert words.tolist() == _words(False, algo)
    assert digest_words(tensors(False)[::-1], algo).tolist() != words.tolist()
