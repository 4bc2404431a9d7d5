"""DistributedOptimizer with fused steps: the same training as PyTorch's, between real ranks."""

import base64
import copy
import gc
import hashlib
import io
import itertools
import logging
import os

import lockstep.torch as hvd
import lockstep.torch.optimizer
import numpy
import pytest
import ranks
import torch
from torch import nn

BATCH = 12


def make_model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 33), nn.Tanh(), nn.Linear(33, 3)).to(dtype)


def loss_of(model, step, rank=0, size=1):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 40, generator=generator).to(model[0].weight.dtype)
    targets = torch.randn(BATCH, 3, generator=generator).to(model[0].weight.dtype)
    return nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size])


# Every class that is known, with options that change what is computed.
VARIANTS = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {"lr": 0.01}),
    "amsgrad": ("Adam", {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "adamw, maximize": ("AdamW", {"lr": 0.01, "amsgrad": True, "maximize": True}),
    "adagrad": ("Adagrad", {"lr": 0.01, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
    "rmsprop, all": ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    "lion": ("Lion", {"lr": 0.001, "weight_decay": 0.1}),
}


def plain_optimizer(variant, parameters):
    kind, options = VARIANTS[variant]
    return (hvd.Lion if kind == "Lion" else getattr(torch.optim, kind))(parameters, **options)


def wrapped(variant="adam", seed=0, dtype=torch.float32, **options):
    """A model that starts equal on all ranks, and its optimizer, which must be fused."""
    hvd.init()
    model = make_model(seed, dtype)
    optimizer = plain_optimizer(variant, model.parameters())
    options = {"fused": True, **options}
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()


def train_alone(variant, steps, dtype=torch.float32, make=plain_optimizer):
    """On the batches of all ranks, by PyTorch."""
    model = make_model(dtype=dtype)
    optimizer = make(variant, model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return model, optimizer


def weights(model):
    return [tensor.flatten().tolist() for tensor in model.state_dict().values()]


def digest(tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def are_close(got, want, rtol=1e-4, atol=1e-5):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(torch.tensor(g), torch.tensor(w), rtol=rtol, atol=atol)


def train_fused(variant, steps, dtype="float32"):
    model, optimizer = wrapped(variant, dtype=getattr(torch, dtype))
    train(model, optimizer, steps)
    state = optimizer.state_dict()["state"]
    named = {str(number): sorted(entry) for number, entry in state.items()}
    return weights(model), digest(model.parameters()), named, type(optimizer).__name__


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("world", ["two", "three"])
def test_training_equals_one_process_on_the_whole_batch(world, variant, request):
    # Centered RMSprop divides by what is left of a difference, and so makes much of how a mean was rounded: in float32
    # PyTorch's own ten steps are 6e-4 away from those in float64.
    dtype = "float64" if variant == "rmsprop, all" else "float32"
    results = request.getfixturevalue(world).values(train_fused, variant, 10, dtype)
    assert len({sha for _, sha, _, _ in results}) == 1, "the ranks have parted"
    got, _, named, name = results[0]
    alone, optimizer = train_alone(variant, 10, getattr(torch, dtype))
    are_close(got, weights(alone))
    assert named == {str(number): sorted(entry) for number, entry in optimizer.state_dict()["state"].items()}
    assert name == VARIANTS[variant][0]


# One step from the same state.


def apart(ours, theirs, before):
    """Units in the last place of the larger one of weight and update."""
    largest = torch.maximum(before.abs(), (theirs - before).abs())
    unit = torch.nextafter(largest, torch.full_like(largest, torch.inf)) - largest
    return ((ours - theirs).abs() / unit).max().item()


def steps_apart(variant, dtype):
    """How far fused steps are from PyTorch's single-tensor ones, each from the state that PyTorch has left."""
    # PyTorch's square roots on the CPU are one unit off for a fifth of all numbers: it is lent better ones.
    torch.Tensor.sqrt = lambda tensor: torch.from_numpy(numpy.sqrt(tensor.numpy()))
    torch.Tensor.sqrt_ = lambda tensor: tensor.copy_(torch.Tensor.sqrt(tensor))
    try:
        return _steps_apart(variant, getattr(torch, dtype))
    finally:
        del torch.Tensor.sqrt, torch.Tensor.sqrt_  # those of its base class come to light again


def _steps_apart(variant, dtype):
    model, optimizer = wrapped(variant, dtype=dtype, op=hvd.Sum)
    kind, options = VARIANTS[variant]
    reference = copy.deepcopy(model)
    plain = plain_optimizer(variant, reference.parameters())
    for group in plain.param_groups:
        group["foreach"] = False
    worst = 0.0
    for step in range(1, 5):
        torch.manual_seed(step)
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            gradient = torch.randn(ours.shape, dtype=dtype)
            ours.data.copy_(theirs.data)
            theirs.grad = gradient
            ours.grad = gradient.clone() if hvd.rank() == step % hvd.size() else None
        before = [parameter.detach().clone() for parameter in reference.parameters()]
        optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
        optimizer.step()
        plain.step()
        for ours, theirs, start in zip(model.parameters(), reference.parameters(), before, strict=True):
            worst = max(worst, apart(ours.detach(), theirs.detach(), start))
    return worst


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant != "lion"])
def test_a_step_is_at_most_two_units_from_pytorch(two, variant, dtype):
    assert max(two.values(steps_apart, variant, dtype)) <= 2


def lion_apart():
    """Against float64; where directions are near zero their sign may differ, so gradients are large."""
    model, optimizer = wrapped("lion", op=hvd.Sum)
    reference = copy.deepcopy(model).double()
    plain = plain_optimizer("lion", reference.parameters())
    worst = 0.0
    for step in range(4):
        torch.manual_seed(step)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            theirs.data.copy_(ours.data)
            theirs.grad = torch.randn(ours.shape).sign().double() * (1 + step)
            ours.grad = theirs.grad.float() if hvd.rank() == 0 else None
        optimizer.step()
        plain.step()
        for ours, theirs, start in zip(model.parameters(), reference.parameters(), before, strict=True):
            worst = max(worst, apart(ours.detach(), theirs.detach().float(), start))
    return worst


def test_lion_against_float64(two):
    assert max(two.values(lion_apart)) <= 2


def trained_by_some_rank(variant, steps):
    """Each gradient comes from one rank, so that its sum has the same bits in every world."""
    model, optimizer = wrapped(variant, op=hvd.Sum)
    for step in range(steps):
        optimizer.zero_grad()
        if hvd.rank() == step % hvd.size():
            loss_of(model, step).backward()
        optimizer.step()
    return digest(model.parameters())


@pytest.fixture(scope="module")
def other_worlds():
    worlds = [ranks.Ranks(1), ranks.Ranks(4)]
    yield worlds
    for world in worlds:
        world.close()


@pytest.mark.parametrize("variant", ["nesterov", "amsgrad", "adamw", "adagrad", "rmsprop, all", "lion"])
def test_the_same_bits_for_any_number_of_ranks(two, three, other_worlds, variant):
    digests = [world.values(trained_by_some_rank, variant, 100) for world in (two, three, *other_worlds)]
    assert len(set(itertools.chain(*digests))) == 1


# Checkpoints.


def to_text(checkpoint):
    file = io.BytesIO()
    torch.save(checkpoint, file)
    return base64.b64encode(file.getvalue()).decode()


def from_text(text):
    return torch.load(io.BytesIO(base64.b64decode(text)))


def go_on(variant, checkpoint, first, steps, everybody_loads):
    """From a checkpoint of PyTorch's, some steps further; rank 0 writes the next one, by itself."""
    model, optimizer = wrapped(variant, seed=hvd_seed())
    if everybody_loads or hvd.rank() == 0:
        state = from_text(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    if not everybody_loads:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank(), hvd.size())
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach()).item())
    if hvd.rank() != 0:
        return losses, None
    return losses, to_text({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def hvd_seed():
    hvd.init()
    return hvd.rank()


@pytest.mark.parametrize("everybody_loads", [True, False])
@pytest.mark.parametrize("variant", ["momentum", "amsgrad", "adamw", "adagrad", "rmsprop, all", "lion"])
def test_a_checkpoint_goes_from_pytorch_to_here_and_back(two, variant, everybody_loads):
    model, optimizer = train_alone(variant, 5)
    checkpoint = to_text({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    (got, saved), _ = two.values(go_on, variant, checkpoint, 5, 5, everybody_loads)
    want = []
    for step in range(5, 15):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        want.append(loss.item())
    state = from_text(saved)
    again = make_model()
    resumed = plain_optimizer(variant, again.parameters())
    again.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    for step in range(10, 15):
        resumed.zero_grad()
        loss = loss_of(again, step)
        loss.backward()
        resumed.step()
        got.append(loss.item())
    assert got == pytest.approx(want, rel=1e-3)


def load_in_the_middle():
    """What was loaded replaces what was there, also when there is state in the memory of the host already."""
    model, optimizer = wrapped("adam")
    train(model, optimizer, 3)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 3, first=3)
    once = digest(model.parameters())
    hvd.barrier()
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    train(model, optimizer, 3, first=3)
    return once == digest(model.parameters()), kept[1]["state"][0]["step"].item()


def test_loading_in_the_middle(two):
    assert two.values(load_in_the_middle) == [[True, 3.0]] * 2


def state_of_one_host():
    model, optimizer = wrapped("adam")
    train(model, optimizer, 3)
    parameter = model[0].weight
    state = optimizer.state[parameter]
    own = digest([optimizer.state_dict()["state"][0]["exp_avg"]])
    hvd.barrier()
    if hvd.rank() == 0:
        state["exp_avg"].fill_(7.0)
    hvd.barrier()
    return own, state["exp_avg"].unique().tolist(), state["step"].item(), list(state["exp_avg"].shape)


def test_the_state_exists_once(two):
    first, second = two.values(state_of_one_host)
    assert first == second
    assert first[1:] == [[7.0], 3.0, [64, 40]]


def clear_state():
    model, optimizer = wrapped("momentum")
    train(model, optimizer, 3)
    optimizer.state.clear()
    train(model, optimizer, 2, first=3)
    return digest(model.parameters()), weights(model)


def test_state_that_was_thrown_away_begins_anew(two):
    (sha, got), (other, _) = two.values(clear_state)
    model, optimizer = train_alone("momentum", 3)
    optimizer.state.clear()
    for step in range(3, 5):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    assert sha == other
    are_close(got, weights(model))


# What programs do with optimizers.


def compare(train_so, variant="adam", **options):
    """Trains with and without fused steps; the largest difference, and whether ranks agree."""
    results = []
    for fused in (True, False):
        model, optimizer = wrapped(variant, fused=fused, **options)
        train_so(model, optimizer)
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    worst = max((ours - theirs).abs().max().item() for ours, theirs in zip(*results, strict=True))
    return worst, hvd.allgather_object(digest(results[0]))


def check_compared(outcomes):
    for worst, digests in outcomes:
        assert worst < 1e-5 and len(set(digests)) == 1, outcomes


def schedule(model, optimizer):
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
    for step in range(6):
        train(model, optimizer, 1, first=step)
        scheduler.step()


def grow(model, optimizer):
    """A part of the model is trained later, with options of its own."""
    first, last = list(model[0].parameters()), list(model[4].parameters())
    for parameter in last:
        parameter.requires_grad_(False)
    train(model, optimizer, 2)
    for parameter in last:
        parameter.requires_grad_(True)
    train(model, optimizer, 2, first=2)
    extra = nn.Parameter(torch.ones(300))
    optimizer.add_param_group({"params": [extra], "lr": 0.5})
    for step in range(4, 7):
        optimizer.zero_grad()
        (loss_of(model, step, hvd.rank(), hvd.size()) + extra.square().sum() * 0.01).backward()
        optimizer.step()
    with torch.no_grad():
        first[1].copy_(extra[: first[1].numel()])  # so that it counts in the comparison


def accumulate(model, optimizer):
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            loss_of(model, 2 * step + part, hvd.rank(), hvd.size()).backward()
        optimizer.step()


def clip(model, optimizer):
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()


def clip_in_a_hook(model, optimizer):
    handle = optimizer.register_step_pre_hook(
        lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1) and None
    )
    train(model, optimizer, 3)
    handle.remove()
    train(model, optimizer, 1, first=3)


def close(model, optimizer):
    for step in range(3):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, step, hvd.rank(), hvd.size())
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0


def scale(model, optimizer):
    """Rank 1 overflows in one step, which all leave out."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step, hvd.rank(), hvd.size())).backward()
        if step == 2 and hvd.rank() == 1:
            model[0].weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 8.0, scaler.get_scale()


def use_other_parts(model, optimizer):
    """Each rank has gradients for other parameters, and nobody for the last ones."""
    for step in range(4):
        optimizer.zero_grad()
        hidden = model[0](torch.full((2, 40), float(step + 1)))
        output = hidden.sum() if (step + hvd.rank()) % 2 else model[2](hidden).sum()
        (output * 1e-3).backward()
        optimizer.step()
    assert not any(optimizer.state.get(parameter) for parameter in model[4].parameters())


def replace_memory(model, optimizer):
    """`p.data` moves, as with `load_state_dict(assign=True)` or `model.to`."""
    train(model, optimizer, 2)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    train(model, optimizer, 2, first=2)


def hook_gradients(model, optimizer):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
    train(model, optimizer, 3)


COURSES = {
    function.__name__: function
    for function in (
        schedule, grow, clip, clip_in_a_hook, close, scale, use_other_parts, replace_memory, hook_gradients,
    )
}  # fmt: skip


def compare_course(course, variant):
    return compare(COURSES[course], variant)


@pytest.mark.parametrize("variant", ["momentum", "adam"])
@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("world", ["two", "two_hosts"])
def test_what_programs_do_with_optimizers(world, course, variant, request):
    check_compared(request.getfixturevalue(world).values(compare_course, course, variant))


def compare_accumulation():
    """Fused steps need not be told how often backward runs."""
    results = []
    for options in ({"backward_passes_per_step": 2}, {}, {"backward_passes_per_step": 2, "fused": False}):
        model, optimizer = wrapped("adam", **options)
        accumulate(model, optimizer)
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    return [
        max((ours - theirs).abs().max().item() for ours, theirs in zip(result, results[2], strict=True))
        for result in results[:2]
    ]


def test_accumulation(two):
    assert max(itertools.chain(*two.values(compare_accumulation))) < 1e-5


def gradients_after_a_step():
    model, optimizer = wrapped("adam")
    loss_of(model, 0, hvd.rank(), hvd.size()).backward()
    local = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.step()
    return all(torch.equal(parameter.grad, own) for parameter, own in zip(model.parameters(), local, strict=True))


def test_gradients_stay_those_of_the_rank(two):
    assert two.values(gradients_after_a_step) == [True, True]


def train_with_layout():
    """Convolutions with channels last: weights that do not lie in rows."""
    hvd.init()
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), fused=fused)
        for step in range(3):
            optimizer.zero_grad()
            torch.manual_seed(10 * step + hvd.rank())
            model(torch.randn(2, 8, 8, 8)).square().mean().backward()
            optimizer.step()
        state = optimizer.state[model[0].weight]["exp_avg"]
        results.append([*(parameter.detach().clone() for parameter in model.parameters()), state])
    assert results[0][-1].stride() == results[1][-1].stride()
    return max((ours - theirs).abs().max().item() for ours, theirs in zip(*results, strict=True))


def test_other_memory_formats(two):
    assert max(two.values(train_with_layout)) < 1e-5


def train_in_half(dtype):
    """16-bit weights have state of 32 bits, here and in checkpoints."""
    model, optimizer = wrapped("adam", dtype=getattr(torch, dtype))
    train(model, optimizer, 3)
    kept = optimizer.state_dict()
    once = optimizer.state[model[0].weight]["exp_avg"].clone()
    optimizer.load_state_dict(kept)
    optimizer.zero_grad()
    optimizer.step()  # without gradients: only takes over what was loaded
    again = optimizer.state[model[0].weight]["exp_avg"]
    return str(kept["state"][0]["exp_avg"].dtype), torch.equal(once, again), weights(model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(two, dtype):
    (kept, same, got), second = two.values(train_in_half, dtype)
    assert (kept, same) == ("torch.float32", True) and second[2] == got
    # PyTorch's own Adam divides by zero in float16, whose state here has 32 bits.
    alone, _ = train_alone("adam", 3, torch.float32)
    are_close(got, weights(alone), rtol=0.05, atol=0.05)


def backward_after_a_step():
    model, optimizer = wrapped("adam")
    loss = loss_of(model, 0, hvd.rank(), hvd.size())
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()


def test_autograd_notices_that_weights_have_changed(two):
    for outcome in two.outcomes(backward_after_a_step):
        assert outcome.error == "RuntimeError" and "modified by an inplace operation" in outcome.message


# The plain path.


def wrap_otherwise(case, fused):
    hvd.init()
    if fused is None:
        lockstep.torch.optimizer._said.clear()  # by earlier tests in this process
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {}
    if case == "class":
        optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    if case == "option":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, differentiable=True)
    if case == "compression":
        options["compression"] = hvd.Compression.fp16
    if case == "groups":
        options["groups"] = 2
    if case == "process set":
        options["process_set"] = hvd.add_process_set([0])
    if case == "adasum":
        options["op"] = hvd.Adasum
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("lockstep").addHandler(handler)
    try:
        for _ in range(2):
            hvd.DistributedOptimizer(optimizer, model.named_parameters(), fused=fused, **options)
    finally:
        logging.getLogger("lockstep").removeHandler(handler)
    return lines


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("class", "does not know NAdam"),
        ("option", "differentiable=True"),
        ("compression", "compressed"),
        ("groups", "groups"),
        ("process set", "not all ranks"),
    ],
)
def test_the_reason_for_the_plain_path_is_said_once(two, case, reason):
    first, second = two.values(wrap_otherwise, case, None)
    assert len(first) == 1 and reason in first[0]
    assert second == []
    assert two.values(wrap_otherwise, case, False) == [[], []]
    for outcome in two.outcomes(wrap_otherwise, case, True):
        assert "ValueError" in outcome.kinds and reason in outcome.message


def test_adasum_is_never_fused(two):
    assert two.values(wrap_otherwise, "adasum", None) == [[], []]
    assert all("ValueError" in outcome.kinds for outcome in two.outcomes(wrap_otherwise, "adasum", True))


def train_sparsely(fused):
    hvd.init()
    results = []
    for choice in (fused, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), fused=choice)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([step, hvd.rank() + 10])).sum().backward()
            optimizer.step()
        results.append(digest(model.parameters()))
    return results[0] == results[1]


def test_sparse_gradients_take_the_plain_path(two):
    assert two.values(train_sparsely, None) == [True, True]
    for outcome in two.outcomes(train_sparsely, True):
        assert "ValueError" in outcome.kinds and "sparse" in outcome.message


def step_alone():
    """Steps without a reduction: every rank goes its own way, with a state of its own."""
    model, optimizer = wrapped("adam", fused=None)
    train(model, optimizer, 2)
    reference = copy.deepcopy(model)
    plain = torch.optim.Adam(reference.parameters(), lr=0.01)
    plain.load_state_dict(optimizer.state_dict())
    for _ in range(2):
        for each, its in ((model, optimizer), (reference, plain)):
            its.zero_grad()
            loss_of(each, hvd.rank()).backward()
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
    worst = max((a - b).abs().max().item() for a, b in zip(model.parameters(), reference.parameters(), strict=True))
    return worst, digest(model.parameters())


def test_steps_without_reduction_go_on_by_themselves(two):
    (first, one), (second, other) = two.values(step_alone)
    assert max(first, second) < 1e-6 and one != other


def disagree(what):
    model, optimizer = wrapped("adam")
    train(model, optimizer, 1)
    if hvd.rank() == 1:
        if what == "lr":
            optimizer.param_groups[0]["lr"] = 0.5
        else:
            optimizer.state[model[0].weight]["step"].add_(1)
    train(model, optimizer, 1)


@pytest.mark.parametrize("what", ["lr", "step"])
@pytest.mark.parametrize("world", ["two", "two_hosts"])
def test_ranks_that_mean_different_updates_all_hear_of_it(world, what, request):
    for outcome in request.getfixturevalue(world).outcomes(disagree, what):
        assert outcome.error == "MismatchError" and "DistributedOptimizer" in outcome.message


def disagree_about_class():
    hvd.init()
    model = make_model()
    kind = torch.optim.Adam if hvd.rank() == 0 else torch.optim.Adagrad
    optimizer = hvd.DistributedOptimizer(kind(model.parameters(), lr=0.01), model.named_parameters())
    train(model, optimizer, 1)


def test_ranks_with_different_optimizers_all_hear_of_it(two):
    assert [outcome.error for outcome in two.outcomes(disagree_about_class)] == ["MismatchError"] * 2


# The memory.


def outlive_the_world():
    model, optimizer = wrapped("adam")
    train(model, optimizer, 2)
    before = digest([optimizer.state_dict()["state"][0]["exp_avg_sq"], *model.parameters()])
    hvd.shutdown()
    gc.collect()
    after = digest([optimizer.state_dict()["state"][0]["exp_avg_sq"], *model.parameters()])
    outputs = model(torch.ones(1, 40)).sum().item()
    hvd.init()
    train(model, optimizer, 2, first=2)
    return before == after, outputs == outputs, digest(model.parameters()), weights(model)


def test_weights_and_state_outlive_the_world(two):
    first, second = two.values(outlive_the_world)
    assert first[:2] == [True, True] and first[2] == second[2]
    are_close(first[3], weights(train_alone("adam", 4)[0]))


def mappings():
    with open("/proc/self/maps") as file:
        return sum("memfd:lockstep " in line for line in file)


def come_and_go(times):
    for _ in range(2):
        train(*wrapped("adam"), 1)
        hvd.shutdown()
    gc.collect()
    before = mappings(), len(os.listdir("/proc/self/fd"))
    for _ in range(times):
        train(*wrapped("adam"), 1)
        hvd.shutdown()
    gc.collect()
    return before == (mappings(), len(os.listdir("/proc/self/fd")))


@pytest.mark.timeout(300)
def test_worlds_that_come_and_go_leave_nothing(two):
    assert two.values(come_and_go, 200, timeout=250) == [True, True]


def let_optimizers_go():
    """Memory of optimizers that are gone is used again, when all ranks have let them go."""
    hvd.init()
    places = []
    for _ in range(6):
        model, optimizer = wrapped("adam")
        train(model, optimizer, 1)
        places.append(optimizer.state[model[0].weight]["exp_avg"].data_ptr())
        del model, optimizer
        gc.collect()
        hvd.barrier()
    return len(set(places))


def test_memory_is_used_again(two):
    assert max(two.values(let_optimizers_go)) <= 3
