"""Replicas in two processes: a forward pass around the wrapper leaves gradients that differ."""

import socket

import pytest
import torch
from torch import distributed, multiprocessing, nn

import rerail


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def work(rank: int, port: int, around: bool, results) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
    torch.manual_seed(0)
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    torch.manual_seed(rank + 1)
    x = torch.randn(4, 3)
    for _ in range(2):
        wrapped.zero_grad()
        (wrapped.module if around else wrapped)(x).square().mean().backward()
    results.put((rank, rerail.replica_report(wrapped).causes))
    distributed.destroy_process_group()


@pytest.mark.parametrize(("around", "causes"), [(True, ("update.replica_gradients_differ",)), (False, ())])
def test_a_forward_pass_around_the_wrapper_is_named_on_every_rank(around, causes):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()

    multiprocessing.spawn(work, (free_port(), around, results), nprocs=2)

    assert dict(results.get(timeout=30) for _ in range(2)) == {0: causes, 1: causes}


def test_one_process_has_no_replicas():
    assert rerail.replica_report(nn.Linear(1, 1)).status == "not_applicable"
