"""Two processes that train replicas of one model: the case of a forward pass around the wrapper."""

from __future__ import annotations

import socket
from typing import Any

import torch
from torch import distributed, multiprocessing, nn

import rerail


def replica_reports(around: bool) -> list[rerail.Report]:
    """Make two steps in each of two processes, and return the report of the first."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    running = multiprocessing.spawn(_work, (port, around, results), nprocs=2, join=False)
    told = dict(results.get(timeout=120) for _ in range(2))
    running.join()
    causes = {
        "update.replica_gradients_differ": "the gradients differ between the ranks",
        "update.replica_weights_differ": "the weights differ between the ranks",
    }
    findings = tuple(rerail.Cause(cause, "", "").fault(causes[cause]) for cause in told[0])
    return [rerail.Report("replica_report", findings)]


def _work(rank: int, port: int, around: bool, results: Any) -> None:
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
