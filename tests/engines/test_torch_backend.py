"""torch.distributed on pcp against Gloo: collectives, DDP, subgroups, DTensor."""

import pytest
import torch
import torch.distributed as dist
from helpers.servers.processes import Processes, free_port

from pcp.engines.torch_ops import word_of
from pcp.engines.torch_sparse import all_reduce_sparse
from pcp.errors import UsageError
from pcp.runtime import Communicator

SECONDS = 150


@pytest.mark.parametrize(
    "world", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))]
)
def test_every_rank_agrees_with_gloo(world):
    port = free_port()
    with Processes() as processes:
        ranks = [
            processes.start(
                "helpers.worlds.torch_ranks",
                RANK=str(rank),
                WORLD_SIZE=str(world),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
            for rank in range(world)
        ]
        for rank in ranks:
            assert rank.wait(SECONDS) == 0, rank.text
            said = {line for line in rank.lines if line.startswith("ok ")}
            wanted = {"ddp", "beyond", "subgroups", "sharded", "end", "reduce_scatter"}
            wanted |= {"hooks", "sparse", "sparse ddp"}
            assert {f"ok {name}" for name in wanted} <= said
            assert len(said) > 80


def test_what_scripts_for_gloo_do_beside_collectives(tmp_path):
    """FSDP1, groups that come and go, checkpoints, works nobody waited for."""
    port = free_port()
    with Processes() as processes:
        ranks = [
            processes.start(
                "helpers.worlds.torch_rank_features",
                RANK=str(rank),
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                FOLDER=str(tmp_path / "saved"),
            )
            for rank in range(2)
        ]
        for rank in ranks:
            assert rank.wait(SECONDS) == 0, rank.text
            said = {line for line in rank.lines if line.startswith("ok ")}
            wanted = "fsdp layouts resized apart groups order checkpoint end".split()
            assert said == {f"ok {name}" for name in wanted}


def test_a_reduction_that_is_not_there_is_named():
    op = dist._make_nccl_premul_sum(2.0)
    with pytest.raises(UsageError, match=r"PREMUL_SUM.*sum, mean.*Multiply the tensor"):
        word_of(op)
    with pytest.raises(UsageError, match="no BAND here"):
        word_of(dist.ReduceOp.BAND)


def test_sparse_tensors_that_cannot_be_added_are_refused() -> None:
    (alone,) = Communicator.in_process(1)
    with alone:
        tensor = torch.eye(3).to_sparse()
        with pytest.raises(UsageError, match="max of sparse tensors"):
            all_reduce_sparse(alone, tensor, "max", None)
        with pytest.raises(UsageError, match=r"not torch\.strided"):
            all_reduce_sparse(alone, torch.eye(3), "sum", None)
