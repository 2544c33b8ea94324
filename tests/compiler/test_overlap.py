"""A lowered collective lets the program go on, up to where its result is waited for.

The group is an impostor that answers only as fast as the test wants: the order of
events is observed, no time is measured.
"""

import threading
from typing import cast

import numpy as np
import pytest
from helpers.sampled import sampled

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.catalog import pipeline
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import ConfigError
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.executor import Program

T = "tensor<64x64xf32>"
DOT = f"({T}, {T}) -> {T}"
SUM = f'{{axes = ["dp"], kind = "sum", mesh = @m, ordered}} : ({T}) -> {T}'
MESH = '"pcp.mesh"() {axes = [#pcp.axis<"dp", -1>], devices = [], sym_name = "m"}'

#: Each sum is used where it is made, as the optimizer of a training step would.
BACKWARD = f"""
{MESH} : () -> ()
func.func @main(%x: {T}, %w: {T}) -> ({T}, {T}, {T}) {{
  %g0 = stablehlo.dot %x, %w : {DOT}
  %r0 = "pcp.all_reduce"(%g0) {SUM}
  %o0 = stablehlo.subtract %w, %r0 : {T}
  %d1 = stablehlo.dot %w, %x : {DOT}
  %g1 = stablehlo.dot %d1, %w : {DOT}
  %r1 = "pcp.all_reduce"(%g1) {SUM}
  %o1 = stablehlo.subtract %w, %r1 : {T}
  %d2 = stablehlo.dot %w, %d1 : {DOT}
  %g2 = stablehlo.dot %d2, %w : {DOT}
  %r2 = "pcp.all_reduce"(%g2) {SUM}
  %o2 = stablehlo.subtract %w, %r2 : {T}
  return %o0, %o1, %o2 : {T}, {T}, {T}
}}
"""


SUMS = 3
"""In a run of the program."""


class SlowGroup:
    """Answers a sum once `ahead` later ones, or the last, or no more have come.

    Sums are numbered as in the program: those under way may come here in any order.
    """

    world_size, rank = 2, 0

    def __init__(self, ahead: int, patience: float) -> None:
        self.events: list[str] = []
        self._ahead = ahead
        self._patience = patience
        self._came = threading.Condition()
        self._count = 0

    def all_reduced_async(
        self,
        array: np.ndarray,
        op: str,
        *,
        tag: str,
        donate: bool,
        compression: str | None = None,
    ) -> Pending:
        """The sum over two members that hold the same."""
        assert compression is None
        pending = Pending()
        number = int(tag.rpartition("_")[2])
        with self._came:
            self._count += 1
            self.events.append(f"begin {number}")
            self._came.notify_all()

        def answer() -> None:
            with self._came:
                enough = min(number + 1 + self._ahead, SUMS)
                self._came.wait_for(lambda: self._count >= enough, self._patience)
                self.events.append(f"end {number}")
            pending.set_result(array + array)

        threading.Thread(target=answer).start()
        return pending


def _compiled(passes: str) -> Bundle:
    module = parse(BACKWARD)
    pipeline(f"builtin.module({passes})").run(module)
    options = CompileOptions(targets=("cpu",), mode="forward", cache=None)
    return driver.compile(module, options)


def _run(bundle: Bundle, group: SlowGroup, device: str) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    x, w = (random.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
    communicator = cast(Communicator, group)  # all that this program calls of one
    with Program.load(bundle, device=device, communicator=communicator) as program:
        return list(program["main"](x, w))


@pytest.fixture(scope="module")
def plain() -> Bundle:
    return _compiled("pcp-verify-plan")


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@sampled("inflight", [2, 3], 1)
def test_sums_are_under_way_while_the_program_goes_on(
    device: str, inflight: int, plain: Bundle
) -> None:
    bundle = _compiled(f"pcp-overlap-collectives{{inflight={inflight}}}")
    group = SlowGroup(inflight - 1, 20.0)
    found = _run(bundle, group, device)
    begun = [group.events.index(f"begin {i}") for i in range(3)]
    ended = [group.events.index(f"end {i}") for i in range(3)]
    for i in range(3 - (inflight - 1)):
        assert begun[i + inflight - 1] < ended[i], group.events
    for i in range(3 - inflight):  # and no more of them than allowed
        assert ended[i] < begun[i + inflight], group.events
    expected = _run(plain, SlowGroup(0, 20.0), device)
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


def test_without_the_pass_the_program_waits(plain: Bundle) -> None:
    """Why the pass is needed: a sum holds up what comes behind it."""
    group = SlowGroup(1, 0.5)
    _run(plain, group, "local-sync")
    assert group.events == [f"{w} {i}" for i in range(3) for w in ("begin", "end")]


#: Two gradients over a mesh; the second is computed while the first may travel.
SPREAD = f"""
"pcp.mesh"() {{axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"}} : () -> ()
func.func @main(%x: {T} {{pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}},
    %y: {T} {{pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}}) -> ({T}, {T}) {{
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : {DOT}
  %1 = stablehlo.dot_general %y, %x, contracting_dims = [0] x [0] : {DOT}
  return %0, %1 : {T}, {T}
}}
"""


@pytest.mark.parametrize(
    ("options", "starts", "sums", "narrow"),
    [
        # One bucket, behind which nothing is left to do.
        ({}, 0, 1, 0),
        ({"bucket_bytes": 1 << 20, "inflight": 4}, 0, 1, 0),
        ({"bucket_bytes": 0}, 1, 2, 0),
        ({"bucket_bytes": 0, "inflight": 0}, 0, 2, 0),
        ({"bucket_bytes": 0, "wire": "f16"}, 1, 2, 0),  # 16 KiB are not large
    ],
)
def test_a_mesh_gets_what_was_asked_for(options, starts, sums, narrow) -> None:
    wanted = CompileOptions(mode="forward", cache=None, **options)
    program = driver.lower(parse(SPREAD), wanted)
    text = str(program.module)
    members = 2
    assert text.count('"pcp.start"') == starts * members
    assert text.count('"pcp.all_reduce"') == sums * members
    assert text.count("wire =") == narrow * members


def test_large_floats_travel_as_asked() -> None:
    large = SPREAD.replace("64x64", "256x256")
    wanted = CompileOptions(mode="forward", cache=None, wire="bf16", bucket_bytes=0)
    program = driver.lower(parse(large), wanted)
    assert str(program.module).count("wire = bf16") == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"wire": "bf61"}, "Did you mean 'bf16'"),
        ({"inflight": -1}, "--inflight -1: at least 0"),
        ({"bucket_bytes": -5}, "--bucket-bytes -5: at least 0"),
    ],
)
def test_what_cannot_be_asked_for(options, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CompileOptions(**options)
