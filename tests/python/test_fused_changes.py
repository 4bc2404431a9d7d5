"""What programs change between two fused steps: the optimizer follows, as PyTorch's own does."""

import lockstep.torch as hvd
import numpy
import pytest
import torch
from torch import nn


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)).double()


def make_optimizer(kind, model, **options):
    halves = [list(model[0].parameters()), [*model[2].parameters(), *model[4].parameters()]]
    groups = [{"params": halves[0], "lr": 0.05}, {"params": halves[1], "lr": 0.01}]
    return getattr(torch.optim, kind)(groups, lr=0.01, **options)


def step(model, optimizer, number):
    """All ranks have the same data, so the average of their gradients is the gradient of each."""
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(number)
    model(torch.randn(6, 40, generator=generator, dtype=torch.float64)).square().mean().backward()
    optimizer.step()


def trained(change, kind, options, distributed):
    model = make_model()
    optimizer = make_optimizer(kind, model, **options)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), fused=True)
    for number in range(6):
        if number == 3:
            change(model, optimizer)
        step(model, optimizer, number)
    states = list(optimizer.state_dict()["state"].values())
    return [p.detach() for p in model.parameters()], states


def shrink(model, _):
    model[0].weight.data = model[0].weight.data[:32].clone()
    model[0].bias.data = model[0].bias.data[:32]  # where it was
    model[2].weight.data = model[2].weight.data[:, :32].clone()


def grow(model, _):
    model[4].weight.data = torch.cat([model[4].weight.data, torch.full((2, 64), 0.1, dtype=torch.float64)])
    model[4].bias.data = torch.cat([model[4].bias.data, torch.zeros(2, dtype=torch.float64)])


def regroup(_, optimizer):
    first, second = optimizer.param_groups
    second["params"].insert(0, first["params"].pop())


def add_nothing(_, optimizer):
    optimizer.add_param_group({"params": []})


def go_below_zero(_, optimizer):
    optimizer.param_groups[0]["lr"] = -1.5e-20
    optimizer.param_groups[1]["weight_decay"] = -0.01


def start_again(_, optimizer):
    for state in optimizer.state.values():
        state["step"] = torch.tensor(0.0)


def forget_squares(_, optimizer):
    for state in optimizer.state.values():
        state["exp_avg_sq"] = torch.zeros_like(state["exp_avg_sq"])


def freeze(model, _):
    model[0].weight.requires_grad_(False)
    model[0].weight.grad = None


CHANGES = {
    "shrink": (shrink, "SGD", {}),
    "grow": (grow, "SGD", {}),
    "regroup": (regroup, "Adam", {}),
    "add nothing": (add_nothing, "Adam", {}),
    "go below zero": (go_below_zero, "SGD", {"momentum": 0.9}),
    "start again": (start_again, "AdamW", {}),
    "forget squares": (forget_squares, "Adam", {}),
    "freeze": (freeze, "Adam", {}),
}


def follows(name):
    hvd.init()
    weights, states = trained(*CHANGES[name], distributed=True)
    expected_weights, expected_states = trained(*CHANGES[name], distributed=False)
    for ours, theirs in zip(weights, expected_weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert len(states) == len(expected_states)
    for ours, theirs in zip(states, expected_states, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_followed(two, name):
    assert two.values(follows, name) == [None, None]


def schedule_to_zero():
    hvd.init()
    model = make_model()
    optimizer = hvd.DistributedOptimizer(make_optimizer("SGD", model), model.named_parameters(), fused=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, end_factor=0.0, total_iters=5)
    for number in range(7):
        step(model, optimizer, number)
        scheduler.step()
    return optimizer.param_groups[0]["lr"]


def test_a_schedule_that_ends_below_zero(two):
    assert two.values(schedule_to_zero) == [pytest.approx(0.0, abs=1e-12)] * 2


def thaw():
    """Room for state comes with the first gradient, and what was there stays."""
    hvd.init()
    results = []
    for distributed in (True, False):
        model = make_model()
        model[0].weight.requires_grad_(False)
        optimizer = make_optimizer("Adam", model)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), fused=True)
        for number in range(6):
            if number == 3:
                if distributed:
                    frozen = len(optimizer._update.state.memory)
                model[0].weight.requires_grad_(True)
            step(model, optimizer, number)
        results.append([p.detach().clone() for p in model.parameters()])
        if distributed:
            grown = len(optimizer._update.state.memory)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    return frozen, grown


def test_frozen_parameters_have_no_state(two):
    for frozen, grown in two.values(thaw):
        assert grown - frozen == 2 * 40 * 64 * 8  # both moments of the first weight


def keep_in_numpy():
    hvd.init()
    model = make_model()
    memory = model[2].weight.detach().numpy().copy()
    model[2].weight = nn.Parameter(torch.from_numpy(memory))
    optimizer = hvd.DistributedOptimizer(make_optimizer("SGD", model), model.named_parameters(), fused=True)
    before = memory.copy()
    step(model, optimizer, 0)
    changed = not numpy.array_equal(before, memory)
    return changed and numpy.array_equal(memory, model[2].weight.detach().numpy())


def test_memory_of_somebody_else_stays_in_use(two):
    assert two.values(keep_in_numpy) == [True, True]


def list_twice():
    hvd.init()
    layer = nn.Linear(4, 2)
    twice = [layer.weight, layer.bias, layer.weight]
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = torch.optim.SGD(twice, lr=0.1, momentum=0.9)
    try:
        hvd.DistributedOptimizer(optimizer, layer.named_parameters(), fused=True)
    except ValueError as error:
        return str(error)
    return "no error"


def test_a_parameter_that_is_listed_twice_takes_the_plain_path(two):
    for said in two.values(list_twice):
        assert "a parameter is listed twice" in said


def fall_back():
    """Sparse gradients are not for the fused path; after it gradients travel while backward runs."""
    hvd.init()
    model = nn.Embedding(20, 8, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    return optimizer._update is None and optimizer._reducer.eager


def test_after_the_fused_path_gradients_travel_at_once(two):
    assert two.values(fall_back) == [True, True]
