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


def said(module: str, size: int, **environment: str) -> list[set[str]]:
    """What each rank of a world says, which ends well."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with Processes() as processes:
        world = processes.start(
            "helpers.worlds.forked_ranks", module, size, **address, **environment
        )
        assert world.wait(SECONDS) == 0, world.text
    told = [line.split(" ", 1) for line in world.lines]
    return [{text for n, text in told if n == str(rank)} for rank in range(size)]


@pytest.mark.parametrize(
    "world", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))]
)
def test_every_rank_agrees_with_gloo(world):
    for lines in said("torch_ranks", world):
        held = {line for line in lines if line.startswith("ok ")}
        wanted = {"ddp", "beyond", "subgroups", "sharded", "end", "reduce_scatter"}
        wanted |= {"hooks", "sparse", "sparse ddp"}
        assert {f"ok {name}" for name in wanted} <= held
        assert len(held) > 80


@pytest.mark.slow  # three processes import torch
def test_what_scripts_for_gloo_do_beside_collectives(tmp_path):
    """FSDP1, groups that come and go, checkpoints, works nobody waited for."""
    wanted = "fsdp layouts resized apart groups order checkpoint end".split()
    for lines in said("torch_rank_features", 2, FOLDER=str(tmp_path / "saved")):
        held = {line for line in lines if line.startswith("ok ")}
        assert held == {f"ok {name}" for name in wanted}


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
