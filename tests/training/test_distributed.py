"""Two processes over gloo give the weights and the sums of one."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from r2no.training import TrainSettings, distributed, optimise


def train(folder):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(21, 3, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + 0.1
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def loss(numbers):
        value = (net(x[numbers]) - y[numbers]).square().mean()
        return value, {"loss": value}

    def validate():
        return float((net(x) - y).detach().square().mean())

    settings = TrainSettings(epochs=3, batch_size=4, lr=0.05)
    result = optimise(net, loss, validate, settings, size=21, key="k", folder=folder)
    return net.state_dict(), result.best_score


def worker(rank, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    weights, score = train(f"{folder}/run")
    total = torch.tensor([float(rank + 1)])
    distributed.add_up(total)
    torch.save((weights, score, total), f"{folder}/rank-{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_train_like_one(tmp_path):
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    alone, score = train(tmp_path / "alone")
    for rank in range(2):
        weights, found, total = torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True)
        assert float(total) == 3.0
        assert abs(found - score) < 1e-12
        for name, value in weights.items():
            torch.testing.assert_close(value, alone[name], rtol=1e-10, atol=1e-12)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "best.safetensors",
        "log.csv",
        "log.jsonl",
        "state.safetensors",
    ]
