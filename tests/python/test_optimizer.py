"""DistributedOptimizer and the broadcast of state, between real ranks, against one process."""

import copy
import functools
import hashlib
import warnings

import lockstep.torch as hvd
import pytest
import torch
from torch import nn

BATCH = 12

# The plain path; fused steps have tests of their own (test_fused_steps.py).
distribute = functools.partial(hvd.DistributedOptimizer, fused=False)


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16, affine=True), nn.Tanh(), nn.Linear(16, 3)).eval()


def make_batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 10, generator=generator), torch.randn(BATCH, 3, generator=generator)


def loss_of(model, step, rank=0, size=1):
    inputs, targets = make_batch(step)
    return nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size])


def make_optimizer(kind, model):
    settings = {"SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, "Adam": {"lr": 0.01}, "AdamW": {"lr": 0.01}}
    return getattr(torch.optim, kind)(model.parameters(), **settings[kind])


def weights(model):
    return [tensor.flatten().tolist() for tensor in model.state_dict().values()]


def digest(model):
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def close(got, want):
    return all(
        torch.allclose(torch.tensor(g), torch.tensor(w), rtol=1e-4, atol=1e-6) for g, w in zip(got, want, strict=True)
    )


def wrapped(kind="SGD", seed=0, **options):
    """A model that starts equal on all ranks, and its distributed optimizer."""
    hvd.init()
    model = make_model(seed)
    optimizer = distribute(make_optimizer(kind, model), model.named_parameters(), **options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, optimizer


def train_alone(kind="SGD", steps=10, scale=1.0):
    model = make_model()
    optimizer = make_optimizer(kind, model)
    for step in range(steps):
        optimizer.zero_grad()
        (loss_of(model, step) * scale).backward()
        optimizer.step()
    return weights(model)


def train(kind, steps):
    hvd.init()
    model, optimizer = wrapped(kind, seed=hvd.rank())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()
    return weights(model), digest(model), type(optimizer).__name__, isinstance(optimizer, getattr(torch.optim, kind))


@pytest.mark.parametrize("world", ["two", "three"])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_training_equals_one_process_on_the_whole_batch(world, kind, request):
    results = request.getfixturevalue(world).values(train, kind, 10)
    assert len({sha for _, sha, _, _ in results}) == 1, "the ranks have parted"
    got, _, name, is_subclass = results[0]
    assert close(got, train_alone(kind))
    assert name == kind and is_subclass


def broadcast_buffers():
    hvd.init()
    model = make_model(seed=hvd.rank()).train()
    for _ in range(1 + hvd.rank()):
        loss_of(model, 0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    return digest(model), model[1].num_batches_tracked.item()


def test_broadcast_parameters_has_the_buffers_too(two):
    first, second = two.values(broadcast_buffers)
    assert first == second and first[1] == 2


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    def forward(self, inputs, branch):
        return self.branches[branch](inputs)


def use_different_branches(steps):
    """Rank 0 uses branch 0, rank 1 branch 1, and nobody branch 2."""
    hvd.init()
    model = Branches()
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = distribute(optimizer, model.named_parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2), hvd.rank()).sum().backward()
        optimizer.step()
    untouched = all(torch.equal(start[name], tensor) for name, tensor in model.state_dict().items() if ".2." in name)
    present = [branch.weight.grad is not None for branch in model.branches]
    return digest(model), present, untouched, model.branches[0].bias.grad.tolist()


def test_parameters_that_some_ranks_do_not_use(two):
    first, second = two.values(use_different_branches, 3)
    assert first == second
    _, present, untouched, gradient = first
    assert present == [True, True, False], "a parameter that nobody used must keep no gradient"
    assert untouched, "weight decay moved a parameter that nobody used"
    assert gradient == [0.5, 0.5]


def thaw(steps):
    hvd.init()
    model = make_model()
    model[0].requires_grad_(False)
    optimizer = distribute(make_optimizer("SGD", model), model.named_parameters())
    for step in range(steps):
        if step == steps // 2:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()
    return weights(model), digest(model)


def test_frozen_parameters_may_thaw(two):
    first, second = two.values(thaw, 6)
    assert first == second
    model = make_model()
    model[0].requires_grad_(False)
    optimizer = make_optimizer("SGD", model)
    for step in range(6):
        if step == 3:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    assert close(first[0], weights(model))


def accumulate(steps, passes):
    model, optimizer = wrapped(backward_passes_per_step=passes)
    loss_of(model, 0, hvd.rank(), hvd.size()).backward()  # discarded by zero_grad, and so not counted
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()
    return weights(model)


def test_gradients_are_summed_over_backward_passes(two):
    first, second = two.values(accumulate, 5, 3)
    assert first == second
    assert close(first, train_alone(steps=5, scale=3.0))


def backward_twice():
    model, optimizer = wrapped()
    loss_of(model, 0).backward()
    with pytest.raises(RuntimeError, match="backward_passes_per_step"):
        loss_of(model, 0).backward()
    return optimizer.param_groups[0]["lr"]


def test_an_unannounced_second_backward_is_refused(two):
    assert two.values(backward_twice) == [0.1] * 2


def discard_gradients(by_model):
    """Gradients are computed, not used, and zeroed: as a GAN does."""
    model, optimizer = wrapped()
    for step in range(4):
        loss_of(model, 100 + step).backward()
        (model if by_model else optimizer).zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return weights(model)


@pytest.mark.parametrize("by_model", [True, False])
def test_discarded_gradients(two, by_model):
    first, second = two.values(discard_gradients, by_model)
    assert first == second
    assert close(first, train_alone(steps=4))


def two_models():
    """Two optimizers whose parameters have the same names, both under way at once."""
    hvd.init()
    models = [make_model(), make_model()]
    named = [
        distribute(make_optimizer("SGD", models[0]), models[0].named_parameters()),
        distribute(make_optimizer("SGD", models[1]), models[1].named_parameters()),
    ]
    for step in range(4):
        for optimizer in named:
            optimizer.zero_grad()
        sum(loss_of(model, step, hvd.rank(), hvd.size()) for model in models).backward()
        for optimizer in reversed(named):
            optimizer.step()
    return [weights(model) for model in models]


def test_two_optimizers_at_once(two):
    first, second = two.values(two_models)
    assert first == second
    assert first[0] == first[1]
    assert close(first[0], train_alone(steps=4))


def clip():
    model, optimizer = wrapped()
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with optimizer.skip_synchronize():
                optimizer.step()
    loss_of(model, 4, hvd.rank(), hvd.size()).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"optimizer.step\(\) called without optimizer.skip_synchronize\(\)"):
        optimizer.step()
    return digest(model), weights(model)


def test_clipping_between_synchronize_and_step(two):
    first, second = two.values(clip)
    assert first == second
    model = make_model()
    optimizer = make_optimizer("SGD", model)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    # The last step of the ranks adds to the gradient that is still there, and uses it unclipped.
    loss_of(model, 4).backward()
    optimizer.step()
    assert close(first[1], weights(model))


def step_with_closure(steps):
    model, optimizer = wrapped()
    for step in range(steps):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, step, hvd.rank(), hvd.size())
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0
    return weights(model)


def test_a_closure_sees_the_gradients_of_all_ranks(two):
    first, second = two.values(step_with_closure, 4)
    assert first == second
    assert close(first, train_alone(steps=4))


def schedule():
    hvd.init()
    model = make_model()
    plain = make_optimizer("SGD", model)
    before = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
    optimizer = distribute(plain, model.named_parameters())
    after = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    rates = []
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the scheduler of the original has not seen its step() called
            before.step()
        after.step()
        rates.append(optimizer.param_groups[0]["lr"])
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step()
    return rates, len(calls), digest(model)


def test_schedulers_and_step_hooks(two):
    first, second = two.values(schedule)
    assert first == second
    assert first[0] == pytest.approx([0.025, 0.00625])
    assert first[1] == 3, "each step runs the user's hook once"


def resume():
    """The root has trained, with another learning rate; the others are fresh and have no state at all."""
    hvd.init()
    model = make_model(seed=hvd.rank())
    optimizer = make_optimizer("Adam", model)
    if hvd.rank() == 1:
        optimizer.param_groups[0].update(lr=0.007, betas=(0.8, 0.95))
        for step in range(3):
            loss_of(model, step).backward()
            optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    group = optimizer.param_groups[0]
    state = [
        [value.flatten().tolist() if torch.is_tensor(value) else value for value in entry.values()]
        for entry in optimizer.state_dict()["state"].values()
    ]
    return group["lr"], group["betas"], type(group["betas"]).__name__, state


def test_broadcast_optimizer_state(three):
    results = three.values(resume)
    assert results[0] == results[1] == results[2]
    assert results[0][0] == 0.007
    assert results[0][1] == [0.8, 0.95]
    assert results[0][2] == "tuple"
    assert results[0][3][0][0] == [3.0], "the number of steps taken"


def broadcast_what_cannot_travel():
    hvd.init()
    optimizer = make_optimizer("SGD", make_model())
    if hvd.rank() == 0:
        optimizer.param_groups[0]["note"] = object()
    with pytest.raises(TypeError, match="rank 0 cannot be broadcast.*object"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.allreduce(torch.ones(1)).item()


def test_state_that_cannot_travel_is_an_error_everywhere(two):
    assert two.values(broadcast_what_cannot_travel) == [1.0] * 2


def different_models():
    hvd.init()
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(1 + hvd.rank())))
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.step()


def test_different_models_are_told(two):
    for outcome in two.outcomes(different_models):
        assert outcome.error == "MismatchError", outcome
        assert "gradients_present" in outcome.message


def misuse():
    hvd.init()
    model = make_model()
    plain = make_optimizer("SGD", model)
    named = list(model.named_parameters())
    for names, message in (
        (named[1:], "not in named_parameters"),
        ([*named, named[0]], "must differ.*0.weight"),
        (model.parameters(), "pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            distribute(plain, names)
    with pytest.raises(ValueError, match="Average, Sum or Adasum"):
        distribute(plain, op=hvd.Max)
    with pytest.raises(ValueError, match="at least 1"):
        distribute(plain, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="LBFGS"):
        distribute(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="takes tensors"):
        hvd.broadcast_parameters({"a": 3})
    return type(distribute(plain)).__module__


def test_misuse_is_refused_with_the_reason(two):
    assert two.values(misuse) == ["lockstep.torch.optimizer"] * 2


def optimizer_goes():
    """A model that outlives its optimizer is not reduced any more."""
    model, optimizer = wrapped()
    del optimizer
    if hvd.rank() == 0:
        loss_of(model, 0).backward()
        loss_of(model, 0).backward()
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def test_hooks_go_with_the_optimizer(two):
    assert two.values(optimizer_goes) == [2.0] * 2
