"""Gradients inside the engine's steps, over enough of them that a plan is learned, between real ranks."""

import functools
import importlib
import os
import shutil
import sys
import warnings

import lockstep.torch as hvd
import pytest
import ranks
import torch
from lockstep.torch.steps import steps as engine_steps
from torch import nn

STEPS = 6

# The plain path; fused steps have tests of their own (test_fused_steps.py).
distribute = functools.partial(hvd.DistributedOptimizer, fused=False)


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def loss_of(model, step, rank=0, size=1):
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(12, 6, generator=generator), torch.randn(12, 3, generator=generator)
    return nn.functional.mse_loss(model(inputs[rank::size].double()), targets[rank::size].double())


def weights(model):
    return [value for tensor in model.state_dict().values() for value in tensor.flatten().tolist()]


def distributed(model, **options):
    return distribute(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options)


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def train_alone(steps=STEPS):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return weights(model)


def operations_between_backward_and_step():
    """In every second step a rank has no gradients at all, and so is not in its step when it makes these operations."""
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    sums = []
    for step in range(STEPS):
        optimizer.zero_grad()
        idle = step % 2 == 1 and hvd.rank() == 1
        if not idle:
            loss_of(model, step, hvd.rank(), hvd.size()).backward()
        later = hvd.allreduce_async(torch.ones(2), name="later", op=hvd.Sum)
        sums.append(hvd.allreduce(torch.ones(1), name="loss", op=hvd.Sum).item())
        optimizer.step()
        sums.append(hvd.synchronize(later)[0].item())
    return weights(model), sums


def test_operations_of_the_program_do_not_belong_to_the_step(two):
    first, second = two.values(operations_between_backward_and_step)
    assert first == second
    assert set(first[1]) == {2.0}


def play():
    """A GAN: the gradients of D that come while G trains are thrown away, by its model, which nobody sees."""
    hvd.init()
    generator, discriminator = make_model(0), nn.Linear(3, 1).double()
    hvd.broadcast_parameters(discriminator.state_dict())
    of_d, of_g = distributed(discriminator), distributed(generator)
    submitted = []
    for step in range(STEPS):
        noise = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + hvd.rank())).double()
        discriminator.zero_grad()
        # The penalty needs the gradient of a gradient.
        made = generator(noise).detach().requires_grad_()
        judged = discriminator(made).sum()
        (slope,) = torch.autograd.grad(judged, made, create_graph=True)
        (judged + slope.square().sum()).backward()
        of_d.step()
        of_g.zero_grad()
        (-discriminator(generator(noise)).sum()).backward()
        submitted.append(len(of_d._reducer.kept))
        of_g.step()
    return weights(generator), weights(discriminator), submitted


def test_two_optimizers_that_take_turns(two):
    first, second = two.values(play)
    assert first == second
    assert first[2][2:] == [0] * (STEPS - 2), "gradients that are thrown away must not travel"


def change_turns():
    """Who steps next is not who was expected to, and the ranks use different models: nothing is lost."""
    hvd.init()
    models = [make_model(0), make_model(1)]
    optimizers = [distributed(model) for model in models]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        if step != 3 or hvd.rank() == 0:
            loss_of(models[0], step, hvd.rank(), hvd.size()).backward()
        if step != 3 or hvd.rank() == 1:
            loss_of(models[1], step, hvd.rank(), hvd.size()).backward()
        order = optimizers if step % 3 else reversed(optimizers)
        for optimizer in order:
            optimizer.step()
    return [weights(model) for model in models]


def test_two_optimizers_out_of_turn(two):
    first, second = two.values(change_turns)
    assert first == second
    for model, seed, only_rank in ((first[0], 0, 0), (first[1], 1, 1)):
        alone = make_model(seed)
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(alone, step) if step != 3 else loss_of(alone, step, only_rank, 2) / 2
            loss.backward()
            optimizer.step()
        assert model == close(weights(alone))


def scale(overflowing, fused, clip):
    """No call of synchronize(), as a script for one process has none. Rank 1 overflows in one of the steps."""
    hvd.init()
    model = make_model().float()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, **({"fused": True} if fused else {}))
    optimizer = distribute(plain, model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    taken = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                generator = torch.Generator().manual_seed(step)
                loss = model(torch.randn(4, 6, generator=generator)).float().square().sum()
            if step == overflowing and hvd.rank() == 1:
                loss = loss * float("inf")
            before = weights(model)
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            taken.append(weights(model) != before)
    return weights(model), taken, scaler.get_scale()


@pytest.mark.parametrize(("fused", "clip"), [(False, False), (False, True), (True, False)])
def test_a_grad_scaler_sees_the_gradients_of_all_ranks(two, fused, clip):
    first, second = two.values(scale, 2, fused, clip)
    assert first == second
    assert first[1] == [step != 2 for step in range(STEPS)], "all ranks leave out the step in which one overflowed"
    assert first[2] == 2.0**9


def set_by_hand():
    """Gradients that no backward has computed, and a parameter that nobody uses."""
    hvd.init()
    used, unused = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = distribute(torch.optim.SGD([used, unused], lr=1.0))
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        used.grad = torch.full((3,), float(hvd.rank() + 1))
        optimizer.step()
    return used.tolist(), unused.grad is None


def test_gradients_set_by_hand(two):
    assert two.values(set_by_hand) == [[[-1.5 * STEPS] * 3, True]] * 2


UNUSED = """
import torch, lockstep.torch as hvd
hvd.init()
layers = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("used", "spare", "frozen")})
layers["frozen"].requires_grad_(False)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=1.0), layers.named_parameters())
optimizer.step()
for _ in range(3):
    optimizer.zero_grad()
    layers["used"](torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_unused_parameters_are_named_once():
    with ranks.programs(2, [sys.executable, "-c", UNUSED]) as processes:
        said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert said[0].count("rank 0: no rank has a gradient for spare.weight, spare.bias: such") == 1, said
    assert said[1] == ""


def add_parameters():
    """Of two that come later, one is frozen at first; a rank thaws it a step before the other does."""
    hvd.init()
    first, second, third = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizer = distribute(torch.optim.SGD([first], lr=1.0))
    third.requires_grad_(False)
    for step in range(STEPS):
        if step == 2:
            optimizer.add_param_group({"params": [third, second]})
        if step == 3 + hvd.rank():
            third.requires_grad_(True)
        optimizer.zero_grad()
        used = [parameter for parameter in (first, second, third) if parameter.requires_grad]
        sum(parameter.sum() for parameter in used[: 1 if step < 2 else 3]).backward()
        optimizer.step()
    return [parameter.tolist()[0] for parameter in (first, second, third)]


def test_parameters_that_come_later(two):
    assert two.values(add_parameters) == [[-6.0, -4.0, -2.5]] * 2


def zero_in_place():
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    addresses = set()
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()
        addresses.add(model[0].weight.grad.data_ptr())
    return weights(model), len(addresses)


def test_zero_grad_in_place_keeps_the_gradients_where_they_are(two):
    first, second = two.values(zero_in_place)
    assert first == second
    assert first[0] == close(train_alone())
    assert first[1] == 1


def train_with_another_layout():
    """Rank 0 has its images, and so its gradients, in channels_last."""
    hvd.init()
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3)
    if hvd.rank() == 0:
        model = model.to(memory_format=torch.channels_last)
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        optimizer.zero_grad()
        images = torch.randn(2, 3, 8, 8, generator=generator)
        if hvd.rank() == 0:
            images = images.to(memory_format=torch.channels_last)
        model(images).square().sum().backward()
        optimizer.step()
    return model.weight.flatten().tolist(), model.weight.grad.is_contiguous()


def test_channels_last_on_one_rank_only(two):
    first, second = two.values(train_with_another_layout)
    assert [first[1], second[1]] == [False, True], "the layouts differ"
    assert first[0] == pytest.approx(second[0], rel=1e-6), "and yet each element met its own"


def train_compiled(backend, cache):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    if backend == "inductor":
        config = importlib.import_module("torch._inductor.config")
        config.compile_threads = 1  # no pool of processes: there is little to compile
    compiled = torch.compile(model, backend=backend)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(compiled, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models(two, tmp_path, backend):
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("PyTorch's default compiler needs g++")
    first, second = two.values(train_compiled, backend, str(tmp_path), timeout=200)
    assert first == second
    assert first == close(train_alone())


def loads_in_plain_pytorch():
    hvd.init()
    model = make_model()
    optimizer = distribute(torch.optim.Adam(model.parameters()), model.named_parameters())
    loss_of(model, 0, hvd.rank(), hvd.size()).backward()
    optimizer.step()
    plain = torch.optim.Adam(make_model().parameters())
    plain.load_state_dict(optimizer.state_dict())
    return sorted(optimizer.state_dict()) == sorted(plain.state_dict()), engine_steps.engine is None


def test_state_dicts_are_those_of_plain_pytorch(two):
    assert two.values(loads_in_plain_pytorch) == [[True, True]] * 2


def differ_in_shape():
    hvd.init()
    model = nn.Linear(2, 2 + hvd.rank())
    optimizer = distributed(model)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(hvd.MismatchError, match="weight|bias"):
        optimizer.step()
    optimizer.zero_grad()
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def test_gradients_of_different_shape_are_told_and_the_world_goes_on(two):
    assert two.values(differ_in_shape) == [2.0] * 2


def start_again(cycles):
    """One optimizer over many worlds."""
    hvd.init()
    model = make_model()
    optimizer = distributed(model)
    for step in range(cycles):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        if step % 2:
            optimizer.step()
        hvd.shutdown()
        hvd.init()
    return weights(model)


def test_an_optimizer_may_outlive_its_world(two):
    first, second = two.values(start_again, 6)
    assert first == second
