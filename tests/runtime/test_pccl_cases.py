"""What PCCL's end-to-end tests show, shown of elastic groups here.

Peers are accepted between operations, all-reduce at several world sizes and many at
once, groups of peers, shared state by election. `docs/collectives.md` has the table.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.worlds.communicators import eventually, outcome, together
from helpers.worlds.elastic_groups import elastic, join

from pcp.errors import StateMismatch
from pcp.runtime.communicator.param_sync import digest
from pcp.runtime.memory.dtypes import numpy_dtype


def test_new_peers_are_accepted_one_after_another() -> None:
    with elastic("a") as (where, comms), ThreadPoolExecutor(1) as pool:
        for name in ("b", "c", "d"):
            late = pool.submit(join, where.address, name)
            eventually(lambda name=name: where.status()["waiting"] == [name], 20)
            assert together(comms, lambda c: c.update_membership()) == [True] * len(
                comms
            )
            comms.append(late.result(30))
            assert comms[-1].update_membership()
            assert {c.world_size for c in comms} == {len(comms)}
            assert sorted(c.rank for c in comms) == list(range(len(comms)))
            sums = together(comms, lambda c: c.all_reduce(np.ones(9))[0])
            assert sums == [len(comms)] * len(comms)


def test_nobody_is_accepted_during_concurrent_reduces() -> None:
    with elastic("a", "b") as (where, comms), ThreadPoolExecutor(1) as pool:
        first = [comms[0].all_reduce_async(np.ones(9), tag=str(i)) for i in range(4)]
        late = pool.submit(join, where.address, "c")
        eventually(lambda: where.status()["waiting"] == ["c"], 20)
        second = [comms[1].all_reduce_async(np.ones(9), tag=str(i)) for i in range(4)]
        assert [p.result(20)[0] for p in first + second] == [2] * 8
        assert not late.done()
        together(comms, lambda c: c.update_membership())
        comms.append(late.result(30))
        comms[2].update_membership()
        assert together(comms, lambda c: c.all_reduce(np.ones(9))[0]) == [3] * 3


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("size", [1024, 1023, 130_001])
def test_a_sum_in_place_and_out_of_place(members: int, size: int) -> None:
    """Sizes that no world divides too; the source stays when there is an output."""
    values = [np.arange(size, dtype=np.float32) % 97 + 1000 * r for r in range(members)]
    whole = np.sum(values, axis=0)
    with elastic(*"abcd"[:members]) as (_, comms):

        def reduce(comm) -> tuple:
            source = values[comm.rank].copy()
            result = comm.all_reduce(source.copy())
            again = comm.all_reduce(source)
            return result, again is source, digest(again)

        results = together(comms, reduce)
        assert all(np.array_equal(result, whole) for result, _, _ in results)
        assert all(in_place for _, in_place, _ in results)
        assert len({bits for _, _, bits in results}) == 1


def test_many_reduces_at_once_by_tag() -> None:
    """Begun in another order by each."""
    with elastic("a", "b", "c") as (_, comms):

        def reduce(comm) -> list[float]:
            order = np.random.default_rng(comm.rank).permutation(16)
            pending = {
                int(i): comm.all_reduce_async(np.full(20_000, i + 1.0), tag=f"t{i}")
                for i in order
            }
            return [float(pending[i].result(30)[-1]) for i in range(16)]

        wanted = [3.0 * (i + 1) for i in range(16)]
        assert together(comms, reduce) == [wanted] * 3


@pytest.mark.parametrize("dtype", ["i16", "f16", "bf16", "ui8", "i64"])
def test_types_that_were_left_out(dtype: str) -> None:
    """Summed, and equal after a synchronisation, by digest."""
    with elastic("a", "b", "c") as (_, comms):

        def both(comm) -> tuple[bytes, bytes, tuple]:
            mine = np.full(1000, comm.rank + 1).astype(numpy_dtype(dtype))
            total = comm.all_reduce(mine)
            assert (total.astype(np.float64) == 6).all()
            state = {"w": np.full(1000, comm.rank).astype(numpy_dtype(dtype))}
            report = comm.param_sync(state, revision=comm.rank, source="elected")
            return digest(total), digest(state["w"]), report.updated

        totals, states, updated = zip(*together(comms, both), strict=True)
        assert len(set(totals)) == len(set(states)) == 1
        assert updated == (("w",), ("w",), ())


def test_groups_of_peers_reduce_and_share_state_apart() -> None:
    with elastic("a", "b", "c", "d") as (_, comms):

        def apart(comm) -> tuple[float, float, int]:
            half = comm.group([r for r in range(4) if r % 2 == comm.rank % 2])
            total = half.all_reduce(np.full(50_000, 2.0**comm.rank))[0]
            state = {"w": np.full(9, float(comm.rank))}
            half.param_sync(state, source=1)
            return total, state["w"][0], half.world_size

        assert together(comms, apart) == [(5, 2, 2), (10, 3, 2)] * 2
        comms.pop()._crash()
        got = together(comms, lambda c: c.retry(lambda c: c.all_reduce(np.ones(3)))[0])
        assert got == [3, 3, 3]

        def in_halves(comm) -> float:
            ranks = [[0, 1], [2]][comm.rank == 2]
            return comm.group(ranks).all_reduce(np.ones(50_000))[0]

        assert together(comms, in_halves) == [2, 2, 1]


STATES = {
    # revisions, seeds, who is elected
    "the most popular": ([3, 3, 3], [8, 7, 7], 1),
    "the newest, though alone": ([3, 3, 4], [7, 7, 8], 2),
    "the lowest rank among equals": ([3, 3, 3], [5, 6, 7], 0),
    "nobody differs": ([3, 3, 3], [5, 5, 5], 0),
}


@pytest.mark.parametrize("case", STATES)
def test_shared_state_is_elected(case: str) -> None:
    revisions, seeds, elected = STATES[case]
    with elastic("a", "b", "c") as (_, comms):

        def sync(comm):
            rng = np.random.default_rng(seeds[comm.rank])
            state = {"w": rng.normal(size=5000), "same": np.ones(9)}
            report = comm.param_sync(
                state, revision=revisions[comm.rank], source="elected"
            )
            return report, digest(state["w"])

        results = together(comms, sync)
        assert {report.source for report, _ in results} == {elected}
        assert len({bits for _, bits in results}) == 1
        changed = [seed != seeds[elected] for seed in seeds]
        assert [report.updated for report, _ in results] == [
            ("w",) if different else () for different in changed
        ]


def test_other_keys_are_an_error_for_all_and_change_nothing() -> None:
    with elastic("a", "b", "c") as (_, comms):

        def sync(comm):
            key = "other" if comm.rank == 1 else "w"
            state = {key: np.full(9, float(comm.rank))}
            return outcome(lambda: comm.param_sync(state)), state[key][0]

        for rank, (fault, value) in enumerate(together(comms, sync)):
            assert isinstance(fault, StateMismatch)
            assert value == rank


def test_a_late_joiner_gets_the_state_and_steps_on_with_all() -> None:
    with elastic("a", "b") as (where, comms), ThreadPoolExecutor(1) as pool:
        states = [{"w": np.zeros(30_000)} for _ in range(3)]
        steps = [0, 0, 0]

        def step(index: int) -> None:
            comm, state = comms[index], states[index]
            if comm.update_membership():
                report = comm.param_sync(state, revision=steps[index], source="elected")
                steps[index] = report.revision
            state["w"] += comm.all_reduce(np.full(30_000, 2.0**index))
            steps[index] += 1

        for _ in range(3):
            together([0, 1], step)
        late = pool.submit(join, where.address, "c")
        eventually(lambda: where.status()["waiting"] == ["c"], 20)

        def enter(index: int) -> None:
            if index == 2:
                comms.append(late.result(30))
            step(index)

        together([0, 1, 2], enter)
        together([0, 1, 2], step)
        assert steps == [5, 5, 5]
        assert [state["w"][-1] for state in states] == [3 * 3 + 2 * 7] * 3
