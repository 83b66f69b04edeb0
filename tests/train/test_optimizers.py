"""The optimizers are those of torch, with weight decay only for matrices."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from seqloom.train.optimizers import build_optimizer

OPTIONS: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.3, "momentum": 0.9, "betas": (0.8, 0.95)}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()


def take_steps(network, optimizer, count=4):
    x = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)
    for _ in range(count):
        optimizer.zero_grad()
        (network(x) ** 2).sum().backward()
        optimizer.step()


def theirs(name, network):
    matrices = [p for p in network.parameters() if p.dim() > 1]
    vectors = [p for p in network.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, foreach=False)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind(groups, lr=0.05, betas=(0.8, 0.95), foreach=False)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_optimizer_matches_torch(name):
    ours, other = model(), model()
    take_steps(ours, build_optimizer(name, ours, **OPTIONS))
    take_steps(other, theirs(name, other))
    for mine, his in zip(ours.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, his, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_weight_decay_applies_only_to_matrices(name):
    network = model()
    before = copy.deepcopy(network)
    optimizer = build_optimizer(name, network, lr=1e-6, weight_decay=0.5)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for (label, now), then in zip(network.named_parameters(), before.parameters(), strict=True):
        shrunk = bool((now.abs() < then.abs()).all())
        assert shrunk if then.dim() > 1 else torch.equal(now, then), label


def test_adamw_decouples_weight_decay():
    """w ← w·(1 − lr·decay) − lr·m̂/(√v̂ + ε), where m̂/√v̂ is the sign of the gradient at the first step."""
    layer = nn.Linear(2, 1, bias=False).double()
    before = layer.weight.detach().clone()
    optimizer = build_optimizer("adamw", layer, lr=0.1, weight_decay=0.5)
    layer.weight.grad = torch.tensor([[3.0, -0.2]], dtype=torch.float64)
    optimizer.step()
    expected = before * (1 - 0.1 * 0.5) - 0.1 * torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(layer.weight.detach(), expected, atol=1e-7, rtol=0)


def test_frozen_parameters_are_excluded():
    network = model()
    network[0].weight.requires_grad_(False)
    optimizer = build_optimizer("adamw", network, lr=0.1)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in network.parameters() if p.requires_grad}


def test_model_without_matrices_is_trained():
    layer = nn.LayerNorm(3)
    optimizer = build_optimizer("sgd", layer, lr=0.5)
    layer(torch.tensor([[1.0, 2.0, 6.0]])).sum().backward()
    optimizer.step()
    assert math.isclose(layer.bias.sum().item(), -1.5)


def test_momentum_starts_at_the_first_gradient():
    network, other = model(), model()
    other.load_state_dict(network.state_dict())
    optimizer = build_optimizer("sgd", network, lr=0.1, momentum=0.9)
    for step in range(3):
        for number, parameter in enumerate(network.parameters()):
            parameter.grad = torch.ones_like(parameter) if step or number else None
        optimizer.step()
    pairs = zip(network.parameters(), other.parameters(), strict=True)
    changes = [(now - then).mean().item() for now, then in pairs]
    late, early = -0.1 * (1 + 1.9), -0.1 * (1 + 1.9 + 2.71)
    assert changes == pytest.approx([late, *[early] * (len(changes) - 1)], rel=1e-5)
