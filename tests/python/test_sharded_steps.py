"""Fused steps of ranks on several hosts: the weights of one host, and a part of the state on each rank."""

import base64
import copy
import hashlib
import io
import logging
import os
import signal
import threading
import time

import lockstep.torch as hvd
import lockstep.torch.optimizer
import pytest
import ranks
import torch
from lockstep.engine import Engine
from torch import nn

BATCH = 12
VARIANTS = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": ("Adam", {"lr": 0.01}),
    "amsgrad": ("Adam", {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "adagrad": ("Adagrad", {"lr": 0.01, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
}


def make_model(dtype=torch.float32):
    """Of sizes that do not divide by the ranks; the middle is larger than what travels in packs."""
    torch.manual_seed(0)
    layers = [nn.Linear(40, 301), nn.Tanh(), nn.Linear(301, 233), nn.Tanh(), nn.Linear(233, 3)]
    return nn.Sequential(*layers).to(dtype)


def plain_optimizer(variant, model):
    kind, options = VARIANTS[variant]
    return getattr(torch.optim, kind)(model.parameters(), **options)


def wrapped(variant="adam", dtype="float32", fused=True):
    hvd.init()
    model = make_model(getattr(torch, dtype))
    return model, hvd.DistributedOptimizer(plain_optimizer(variant, model), model.named_parameters(), fused=fused)


def loss_of(model, step, rank=0, size=1):
    generator = torch.Generator().manual_seed(step)
    dtype = model[0].weight.dtype
    inputs, targets = (torch.randn(BATCH, width, generator=generator).to(dtype) for width in (40, 3))
    return nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size])


def train(model, optimizer, steps, first=0):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank(), hvd.size())
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach()).item())
    return losses


def digest(tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def state_digest(state):
    entries = state["state"]
    return {str(n): {name: digest([v.reshape(-1)]) for name, v in sorted(entries[n].items())} for n in entries}


# The same bits.


def train_bits(variant, dtype):
    """The weights, and all of the state, as every rank has them."""
    model, optimizer = wrapped(variant, dtype)
    train(model, optimizer, 4)
    optimizer.consolidate_state_dict(to=None)
    return digest(model.parameters()), state_digest(optimizer.state_dict())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize(("here", "apart"), [("two", "two_hosts"), ("three", "three_on_two_hosts")])
def test_weights_and_state_are_those_of_one_host(here, apart, variant, dtype, request):
    expected = request.getfixturevalue(here).values(train_bits, variant, dtype)
    assert request.getfixturevalue(apart).values(train_bits, variant, dtype) == expected
    assert all(result == expected[0] for result in expected)


def train_without_memory(variant):
    os.environ["LOCKSTEP_TRANSPORT"] = "tcp"
    try:
        return train_bits(variant, "float32")
    finally:
        del os.environ["LOCKSTEP_TRANSPORT"]


def test_ranks_of_one_host_that_share_no_memory(two):
    assert two.values(train_without_memory, "adam") == two.values(train_bits, "adam", "float32")


def train_with_layout():
    """Convolutions with channels last: weights that do not lie in rows."""
    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 19, 3), nn.ReLU(), nn.Conv2d(19, 8, 3)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), fused=True)
    for step in range(4):
        if step == 2:  # what was loaded is cut in the order of the weights' memory
            optimizer.consolidate_state_dict(to=-1)
            optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad()
        torch.manual_seed(10 * step + hvd.rank())
        model(torch.randn(2, 8, 8, 8)).square().mean().backward()
        optimizer.step()
    optimizer.consolidate_state_dict(to=-1)
    state = optimizer.state_dict()["state"][0]["exp_avg"]
    return digest(model.parameters()), digest([state]), list(state.stride()) == list(model[0].weight.stride())


def test_other_memory_formats(two, two_hosts):
    expected = two.values(train_with_layout)
    assert two_hosts.values(train_with_layout) == expected
    assert expected[0][2] is True


# Where the state is.


def parts_of_state():
    model, optimizer = wrapped("adam")
    train(model, optimizer, 2)
    kept = [[view.numel() for view in slot.views] for slot in optimizer._update.state.slots]
    shown = [sorted(optimizer.state[parameter]) for parameter in model.parameters()]
    return kept, shown, [parameter.numel() for parameter in model.parameters()]


def test_each_rank_keeps_its_part_and_nothing_else(three_on_two_hosts):
    results = three_on_two_hosts.values(parts_of_state)
    counts = results[0][2]
    for number, count in enumerate(counts):
        for which in range(2):
            assert sum(kept[number][which] for kept, _, _ in results) == count
    for kept, shown, _ in results:
        assert sum(map(sum, kept)) < 0.7 * sum(counts)  # 2 numbers per weight, a third of them
        assert shown == [["step"]] * len(counts)


def take_state(step):
    """What state_dict says at each point of a program."""
    model, optimizer = wrapped("adam")
    if step == "at first":
        return len(optimizer.state_dict()["state"])
    train(model, optimizer, 2)
    if step == "after a step":
        return optimizer.state_dict()
    optimizer.consolidate_state_dict(to=1)
    if step == "elsewhere":
        hvd.barrier()
        return optimizer.state_dict() if hvd.rank() == 0 else None
    if step == "there":
        return sorted(optimizer.state_dict()["state"]) if hvd.rank() == 1 else None
    assert step == "a step later"
    train(model, optimizer, 1)
    return optimizer.state_dict()


def test_state_dict_is_whole_or_an_error(two_hosts):
    assert two_hosts.values(take_state, "at first") == [0, 0]
    for step in ("after a step", "a step later"):
        for outcome in two_hosts.outcomes(take_state, step):
            assert outcome.error == "RuntimeError" and "consolidate_state_dict(to=0) on all ranks" in outcome.message
    assert two_hosts.values(take_state, "there") == [None, list(range(6))]
    assert "brought to rank 1 only" in two_hosts.outcomes(take_state, "elsewhere")[0].message


def ask_for(to):
    model, optimizer = wrapped("adam")
    train(model, optimizer, 1)
    optimizer.consolidate_state_dict(to=to if to is not None else hvd.rank())


def test_who_gets_the_state_must_be_a_rank_and_the_same_on_all(two_hosts):
    for outcome in two_hosts.outcomes(ask_for, 2):
        assert outcome.error == "ValueError" and "ranks 0 to 1" in outcome.message
    for outcome in two_hosts.outcomes(ask_for, None):
        assert outcome.error == "MismatchError" and "consolidate_state_dict" in outcome.message


def consolidate_in_vain():
    """Where every rank has all of the state it does nothing: it need not even be called on all ranks."""
    hvd.init()
    digests = []
    for options in ({"fused": True}, {"fused": False}, {"op": hvd.Adasum}):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(plain_optimizer("adam", model), model.named_parameters(), **options)
        train(model, optimizer, 1)
        before = state_digest(optimizer.state_dict())
        if hvd.rank() == 0:
            optimizer.consolidate_state_dict()
        digests.append(before == state_digest(optimizer.state_dict()))
    return digests


def test_on_one_host_there_is_nothing_to_consolidate(two):
    assert two.values(consolidate_in_vain) == [[True] * 3] * 2


def broadcast_a_part():
    model, optimizer = wrapped("adam")
    train(model, optimizer, 1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def test_a_part_is_not_broadcast_for_the_whole(two_hosts):
    for outcome in two_hosts.outcomes(broadcast_a_part):
        assert outcome.error == "TypeError" and "consolidate_state_dict" in outcome.message


# Checkpoints.


def to_text(checkpoint):
    file = io.BytesIO()
    torch.save(checkpoint, file)
    return base64.b64encode(file.getvalue()).decode()


def from_text(text):
    return torch.load(io.BytesIO(base64.b64decode(text)))


def train_plainly(model, optimizer, first, steps):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def go_on(variant, checkpoint, everybody_loads):
    """From a checkpoint of PyTorch's, five steps further; rank 0 writes the next one."""
    model, optimizer = wrapped(variant)
    if everybody_loads or hvd.rank() == 0:
        state = from_text(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    if not everybody_loads:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = train(model, optimizer, 5, first=5)
    optimizer.consolidate_state_dict(to=0)
    if hvd.rank() != 0:
        return losses, None
    return losses, to_text({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


@pytest.mark.parametrize("everybody_loads", [True, False])
@pytest.mark.parametrize("variant", ["momentum", "amsgrad", "adamw", "adagrad"])
def test_a_checkpoint_goes_from_pytorch_to_here_and_back(two_hosts, variant, everybody_loads):
    model = make_model()
    optimizer = plain_optimizer(variant, model)
    train_plainly(model, optimizer, 0, 5)
    checkpoint = to_text({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    (got, saved), _ = two_hosts.values(go_on, variant, checkpoint, everybody_loads)
    want = train_plainly(model, optimizer, 5, 10)
    state = from_text(saved)
    again = make_model()
    resumed = plain_optimizer(variant, again)
    again.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    assert got + train_plainly(again, resumed, 10, 5) == pytest.approx(want, rel=1e-3)


def load_in_the_middle(dtype):
    """What was loaded replaces what was there, to the bit."""
    model, optimizer = wrapped("adam", dtype)
    train(model, optimizer, 3)
    optimizer.consolidate_state_dict(to=None)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 3, first=3)
    once = digest(model.parameters())
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    loaded = state_digest(optimizer.state_dict()) == state_digest(kept[1])  # nothing is in parts yet
    train(model, optimizer, 3, first=3)
    return once == digest(model.parameters()), loaded


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_in_the_middle(two_hosts, dtype):
    assert two_hosts.values(load_in_the_middle, dtype) == [[True, True]] * 2


def throw_state_away(variant):
    model, optimizer = wrapped(variant)
    train(model, optimizer, 3)
    optimizer.state.clear()
    train(model, optimizer, 2, first=3)
    return digest(model.parameters())


@pytest.mark.parametrize("variant", ["momentum", "adam"])
def test_state_that_was_thrown_away_begins_anew(two, two_hosts, variant):
    assert two_hosts.values(throw_state_away, variant) == two.values(throw_state_away, variant)


def outlive_the_world(change):
    model, optimizer = wrapped("adam")
    train(model, optimizer, 2)
    hvd.shutdown()
    hvd.init()
    if change:
        model.to(torch.bfloat16)
    train(model, optimizer, 2, first=2)
    return digest(model.parameters())


def test_the_parts_outlive_the_world(two, two_hosts):
    assert two_hosts.values(outlive_the_world, False) == two.values(outlive_the_world, False)


def test_parts_that_no_longer_fit_are_refused(two_hosts):
    for outcome in two_hosts.outcomes(outlive_the_world, True):
        assert outcome.error == "RuntimeError" and "load_state_dict() after the change" in outcome.message


def load_after_the_refusal():
    """What was refused can be mended, by what the message says."""
    model, optimizer = wrapped("adam")
    train(model, optimizer, 2)
    optimizer.consolidate_state_dict(to=None)
    kept = optimizer.state_dict()
    model.to(torch.bfloat16)
    if optimizer.keeps_part_of_state:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="after the change"):
                train(model, optimizer, 1, first=2)
    optimizer.load_state_dict(kept)
    train(model, optimizer, 2, first=2)
    return digest(model.parameters())


def test_a_refused_step_changes_nothing(two, two_hosts):
    assert two_hosts.values(load_after_the_refusal) == two.values(load_after_the_refusal)


SWITCHED = {"momentum": {"momentum": 0.0}, "amsgrad": {"amsgrad": False}}


def switch_state_off_and_on(variant):
    """The state that an option needs waits until it is needed again."""
    model, optimizer = wrapped(variant)
    (group,) = optimizer.param_groups
    before = dict(group)
    train(model, optimizer, 2)
    group.update(SWITCHED[variant])
    train(model, optimizer, 2, first=2)
    optimizer.consolidate_state_dict(to=None)
    between = state_digest(optimizer.state_dict())
    group.update({name: before[name] for name in SWITCHED[variant]})
    train(model, optimizer, 2, first=4)
    return digest(model.parameters()), between


@pytest.mark.parametrize("variant", SWITCHED)
def test_state_that_is_switched_off_for_a_while(two, two_hosts, variant):
    assert two_hosts.values(switch_state_off_and_on, variant) == two.values(switch_state_off_and_on, variant)


# What is refused, and what is said.


def wrap_by_default():
    hvd.init()
    lockstep.torch.optimizer._said.clear()  # by earlier tests in this process
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("lockstep").addHandler(handler)
    try:
        for _ in range(2):
            model, optimizer = wrapped("adam", fused=None)
    finally:
        logging.getLogger("lockstep").removeHandler(handler)
    train(model, optimizer, 2)
    return lines, optimizer._update is None, len(optimizer.state_dict()["state"])


def test_by_default_the_path_is_the_plain_one_and_it_is_said_once(two_hosts):
    (lines, plain, entries), (second, _, _) = two_hosts.values(wrap_by_default)
    assert len(lines) == 1 and "several hosts" in lines[0] and "fused=True" in lines[0] and second == []
    assert plain and entries == 6


def share_weights():
    hvd.init()
    model = make_model()
    hvd.DistributedOptimizer(plain_optimizer("adam", model), model.named_parameters(), share_weights=True)


def test_weights_are_not_shared_between_hosts(two_hosts):
    for outcome in two_hosts.outcomes(share_weights):
        assert "shared weights are for ranks of one host" in outcome.message


def join_early():
    model, optimizer = wrapped("adam")
    train(model, optimizer, 1)
    if hvd.rank() == 0:
        loss_of(model, 1).backward()
        optimizer.step()
    hvd.join()


def test_a_step_without_a_rank_that_has_joined_is_refused(two_hosts):
    first = two_hosts.outcomes(join_early)[0]
    assert first.error == "RuntimeError" and "without rank 1, which has joined" in first.message


def consolidate_without_one(to):
    model, optimizer = wrapped("adam")
    train(model, optimizer, 1)
    if hvd.rank() != 1:
        optimizer.consolidate_state_dict(to=to)
    hvd.join()


@pytest.mark.parametrize("to", [0, 1, 2])
def test_the_part_of_a_rank_that_has_joined_is_missed(three_on_two_hosts, to):
    first, _, third = three_on_two_hosts.outcomes(consolidate_without_one, to)
    for outcome in (first, third):
        assert outcome.error == "RuntimeError" and "without a rank that has joined" in outcome.message


def train_unevenly():
    model, optimizer = wrapped("adam")
    with hvd.join_uneven(optimizer, model):
        pass


def test_join_uneven_is_refused(two_hosts):
    for outcome in two_hosts.outcomes(train_unevenly):
        assert outcome.error == "InvalidArgumentError" and "fused=False" in outcome.message


def die_in_an_update():
    """Rank 1 is killed while an update of many megabytes is on its way."""
    hvd.init()
    model = nn.Linear(2000, 2000)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters(), fused=True)
    model(torch.ones(1, 2000)).sum().backward()
    optimizer.step()
    if hvd.rank() == 1:
        update = Engine.update

        def dying(*arguments):
            ranks.report(time.monotonic())
            threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGKILL)).start()
            update(*arguments)

        Engine.update = dying
    for _ in range(1000):
        optimizer.step()


@pytest.mark.fault
def test_a_rank_that_dies_in_an_update_is_named(two_hosts):
    survivor, dead = two_hosts.outcomes(die_in_an_update)
    assert dead.error == "died"
    assert survivor.error == "PeerLostError" and "rank 1" in survivor.message
    assert survivor.at - dead.events[-1] < 0.5
