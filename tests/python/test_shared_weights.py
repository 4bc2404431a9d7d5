"""share_weights=True: the same training with one copy per host, and what programs do to weights works or is named."""

import copy
import gc
import os
import signal
from contextlib import contextmanager

import lockstep.torch as hvd
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

KINDS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adagrad": {"lr": 0.05, "initial_accumulator_value": 0.1},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
}


def make_model(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).eval()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data + 0.01 * len(name)
    return model


def loss_of(model, step, rank=0, size=1):
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(12, 10, generator=generator), torch.randn(12, 3, generator=generator)
    return nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size])


def plain(kind, model):
    return getattr(torch.optim, kind)(model.parameters(), **KINDS[kind])


def shared(kind="Adam", seed=0, model=None, **options):
    hvd.init()
    model = model or make_model(seed)
    optimizer = hvd.DistributedOptimizer(plain(kind, model), model.named_parameters(), share_weights=True, **options)
    return model, optimizer


def step(model, optimizer, number):
    optimizer.zero_grad()
    loss_of(model, number, hvd.rank(), hvd.size()).backward()
    optimizer.step()


def weights(model):
    return [tensor.flatten().tolist() for tensor in model.state_dict().values()]


def close(got, want):
    return all(
        torch.allclose(torch.tensor(g), torch.tensor(w), rtol=1e-4, atol=1e-6) for g, w in zip(got, want, strict=True)
    )


def train_alone(kind, steps=5):
    model = make_model()
    optimizer = plain(kind, model)
    for number in range(steps):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()
    return model, optimizer


def message_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# The same training.


def train(kind):
    hvd.init()
    model, optimizer = shared(kind, seed=hvd.rank())  # rank 0's weights count
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for number in range(5):
        step(model, optimizer, number)
    names = [sorted(state) for state in optimizer.state.values()]
    return (
        weights(model),
        optimizer.state_hash(),
        names,
        [float(s["step"]) for s in optimizer.state.values() if "step" in s],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_one_process_does(two, kind):
    (first, hash0, names, steps), (second, hash1, *_) = two.values(train, kind)
    model, optimizer = train_alone(kind)
    assert first == second
    assert hash0 == hash1
    assert close(first, weights(model))
    assert names == [sorted(state) for state in optimizer.state.values()]
    assert steps == [float(s["step"]) for s in optimizer.state.values() if "step" in s]


def train_half():
    model, optimizer = shared("SGD", model=make_model().to(torch.bfloat16))
    for _ in range(3):
        optimizer.zero_grad()
        inputs = torch.ones(2, 10, dtype=torch.bfloat16)
        model(inputs).float().square().mean().backward()
        optimizer.step()
    return weights(model), optimizer.state_hash()


def test_half_precision(two):
    first, second = two.values(train_half)
    assert first == second


# Checkpoints are PyTorch's own.


def load_a_checkpoint(kind):
    model, optimizer = train_alone(kind, 3)
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    other, sharing = shared(kind, seed=5)
    other.load_state_dict(saved[0])
    sharing.load_state_dict(saved[1])
    for number in range(3, 6):
        step(other, sharing, number)
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()
    back = plain(kind, model)
    back.load_state_dict(sharing.state_dict())  # and the other way round
    return close(weights(other), weights(model)), message_of(lambda: other.load_state_dict(saved[0], assign=True))


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_checkpoints_are_interchangeable(two, kind):
    for loaded, message in two.values(load_a_checkpoint, kind):
        assert loaded
        assert "would replace '0.weight'" in message


# What programs do to weights.


def write_in_a_child(write):
    """The signal that a child dies of when it writes, and what it says."""
    model, _ = shared()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os.dup2(writing, 2)
        with torch.no_grad():
            getattr(model[3].weight, write)(*((0.1,) if write == "add_" else (-1, 1)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as stream:
        said = stream.read()
    return os.WTERMSIG(os.waitpid(child, 0)[1]), said


@pytest.mark.parametrize("write", ["clamp_", "add_"])
def test_a_stray_write_is_a_fault_that_names_the_parameter(two, write):
    for ended_by, said in two.values(write_in_a_child, write):
        assert ended_by == signal.SIGSEGV
        assert "writes into '3.weight'" in said
        assert "with lockstep.torch.modify(parameters):" in said


def clamp():
    model, optimizer = shared()
    before = optimizer.state_hash()
    with hvd.modify(model):
        for parameter in model.parameters():
            parameter.data.clamp_(-0.05, 0.05 + hvd.rank())  # that of rank 0 counts
    clamped = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
    step(model, optimizer, 0)
    return clamped, optimizer.state_hash() != before


def test_a_clamp_inside_modify(two):
    for clamped, changed in two.values(clamp):
        assert clamped == pytest.approx(0.05)
        assert changed


def swap_averages():
    model, optimizer = shared()
    averages = [torch.full_like(parameter, 0.25) for parameter in model.parameters()]
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    with hvd.modify(model.parameters()):
        for parameter, average in zip(model.parameters(), averages, strict=True):
            parameter.data = average
    averaged = all(bool((parameter == 0.25).all()) for parameter in model.parameters())
    with hvd.modify(model.parameters()), torch.no_grad():
        for parameter, values in zip(model.parameters(), kept, strict=True):
            parameter.copy_(values)
    step(model, optimizer, 0)
    swa = torch.optim.swa_utils.AveragedModel(model)  # a copy of its own
    swa.update_parameters(model)
    model[0].weight.data = averages[0]
    return averaged, message_of(lambda: step(model, optimizer, 1))


def test_a_swap_of_averages(two):
    for averaged, message in two.values(swap_averages):
        assert averaged
        assert "'0.weight' no longer is the tensor that all ranks share" in message


def cast():
    model, optimizer = shared()
    model.double()
    message = message_of(lambda: optimizer.step())
    other, _ = shared()

    def inside():
        with hvd.modify(other):
            other.half()

    return message, message_of(inside)


def test_a_cast_is_named(two):
    for after, inside in two.values(cast):
        assert "'0.weight' no longer is the tensor" in after
        assert "'0.weight' was torch.float32" in inside


def prune_weights():
    model, optimizer = shared()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    for number in range(2):
        step(model, optimizer, number)
    pruned = float((model[0].weight == 0).float().mean())
    prune.remove(model[0], "weight")
    return pruned, message_of(lambda: step(model, optimizer, 2)), optimizer.state_hash()


def test_pruning(two):
    (pruned, message, hash0), (*_, hash1) = two.values(prune_weights)
    assert pruned == pytest.approx(0.5, abs=0.01)
    assert "prune.remove" in message
    assert hash0 == hash1


def use_a_closure():
    model, optimizer = shared()

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0, hvd.rank(), hvd.size())
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(3)]
    return losses[0] > losses[2], weights(model)


def test_a_closure(two):
    (falls, first), (_, second) = two.values(use_a_closure)
    assert falls
    assert first == second


def use_two_optimizers():
    hvd.init()
    model = make_model()
    halves = [list(model[0].named_parameters()), list(model[3].named_parameters())]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in half], lr=0.1), half, share_weights=True)
        for half in halves
    ]
    for number in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, number, hvd.rank(), hvd.size()).backward()
        for optimizer in optimizers:
            optimizer.step()
    again = torch.optim.SGD(model[0].parameters(), lr=0.1)
    return weights(model), message_of(lambda: hvd.DistributedOptimizer(again, share_weights=True))


def test_two_optimizers(two):
    (first, message), (second, _) = two.values(use_two_optimizers)
    assert first == second
    assert "cannot be shared: it belongs to another optimizer" in message


def backward_after_a_step():
    model, optimizer = shared()
    loss = loss_of(model, 0, hvd.rank(), hvd.size())
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)  # twice as much
    optimizer.step()
    return message_of(lambda: loss.backward())


def test_a_graph_that_has_seen_the_old_weights(two):
    for message in two.values(backward_after_a_step):
        assert "modified by an inplace operation" in message


def backward_twice():
    model, optimizer = shared()
    loss = loss_of(model, 0, hvd.rank(), hvd.size())
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + sum(gradient.square().sum() for gradient in gradients)).backward(create_graph=True)
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    return weights(model)


def test_double_backward(two):
    first, second = two.values(backward_twice)
    assert first == second


def recompute_activations():
    model, optimizer = shared()
    for number in range(2):
        optimizer.zero_grad()
        inputs = torch.ones(4, 10) * (hvd.rank() + number + 1)
        checkpoint(model, inputs, use_reentrant=False).square().mean().backward()
        optimizer.step()
    return weights(model)


def test_activation_checkpointing(two):
    first, second = two.values(recompute_activations)
    assert first == second


def call_what_is_refused():
    model, optimizer = shared()
    other = {"params": [nn.Parameter(torch.ones(3))]}
    table = nn.Embedding(8, 4, sparse=True)
    sparse = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), share_weights=True)
    table(torch.tensor([1, 2])).sum().backward()
    scaler = torch.amp.GradScaler("cpu")
    twin = nn.Parameter(torch.ones(4))
    tied = [twin, nn.Parameter(twin.data)]

    def wrap(kind, parameters, **options):
        return message_of(lambda: hvd.DistributedOptimizer(kind(parameters, lr=0.1), share_weights=True, **options))

    def inside():
        with hvd.modify(model):
            optimizer.step()

    def uneven():
        with hvd.join_uneven(optimizer, model):
            pass

    return {
        "add_param_group": message_of(lambda: optimizer.add_param_group(other)),
        "synchronize": message_of(optimizer.synchronize),
        "sparse": message_of(sparse.step),
        "scaler": message_of(lambda: scaler.step(optimizer)),
        "broadcast": message_of(lambda: hvd.broadcast_parameters(model.state_dict(), root_rank=1)),
        "kind": wrap(torch.optim.NAdam, [nn.Parameter(torch.ones(3))]),
        "tied": wrap(torch.optim.SGD, tied),
        "adasum": wrap(torch.optim.SGD, [nn.Parameter(torch.ones(3))], op=hvd.Adasum),
        "inside": message_of(inside),
        "uneven": message_of(uneven),
    }


def test_what_is_refused_is_named(two):
    for said in two.values(call_what_is_refused):
        assert "take no further parameters" in said["add_param_group"]
        assert "nothing to wait for" in said["synchronize"]
        assert "the gradient of 'group0.parameter0' is sparse" in said["sparse"]
        assert "GradScaler" in said["scaler"]
        assert "values of rank 0" in said["broadcast"]
        assert "NAdam is none of them" in said["kind"]
        assert "same memory as 'group0.parameter0'" in said["tied"]
        assert "Adasum" in said["adasum"]
        assert "inside `with modify(...)`" in said["inside"]
        assert "join_uneven" in said["uneven"]


def look_at_memory():
    model, optimizer = shared()
    step(model, optimizer, 0)
    versions = [parameter._version for parameter in model.parameters()]
    step(model, optimizer, 1)
    rose = all(p._version > before for p, before in zip(model.parameters(), versions, strict=True))
    mapped = 0
    with open("/proc/self/maps") as maps:
        ranges = [line for line in maps if "lockstep-weights" in line]
    for parameter in model.parameters():
        for line in ranges:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= parameter.data_ptr() < last:
                mapped += line.split()[1] == "r--s"
    private = [buffer.data_ptr() for buffer in model.buffers()]
    shown = any(
        int(line.split("-")[0], 16) <= address < int(line.split()[0].split("-")[1], 16)
        for line in ranges
        for address in private
    )
    return rose, mapped, shown


def test_parameters_are_read_only_and_buffers_are_private(two):
    for rose, mapped, shown in two.values(look_at_memory):
        assert rose
        assert mapped == 6
        assert not shown


# A copy of the weights for each memory node.


@contextmanager
def on_nodes(nodes):
    """As if local rank i were on the i-th of these memory nodes."""
    os.environ["LOCKSTEP_MEMORY_NODE"] = nodes
    try:
        yield
    finally:
        del os.environ["LOCKSTEP_MEMORY_NODE"]


def seen_at(tensor):
    """Where in the memory file it lies."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= tensor.data_ptr() < last:
                return int(line.split()[2], 16) + tensor.data_ptr() - first if "lockstep-weights" in line else None
    return None


def train_on_nodes(nodes):
    """Losses to the bit, and where the weights and the state of a parameter lie. Without nodes: fused, not shared."""
    hvd.init()
    model, kept = large_model(), []
    with on_nodes(nodes or "0"):
        optimizer = hvd.DistributedOptimizer(
            plain("AdamW", model), model.named_parameters(), **({"share_weights": True} if nodes else {"fused": True})
        )
    for number in range(8):
        optimizer.zero_grad()
        loss = large_loss(model, number)
        loss.backward()
        optimizer.step()
        kept.append(loss.item().hex())
        if number == 3 and nodes:
            with hvd.modify(model), torch.no_grad():
                model[0].bias.mul_(0.5)
        elif number == 3:
            with torch.no_grad():
                model[0].bias.mul_(0.5)
    return kept, weights(model), seen_at(model[2].weight), seen_at(optimizer.state[model[2].weight]["exp_avg"])


@pytest.mark.parametrize("nodes", ["0,1", "0,0,1", "0,1,2"])
def test_a_copy_for_each_memory_node(two, three, nodes):
    world = {2: two, 3: three}[nodes.count(",") + 1]
    copies, one, fused = (world.values(train_on_nodes, where) for where in (nodes, "0", None))
    for rank in range(world.size):
        assert copies[rank][:2] == one[rank][:2] == fused[rank][:2]  # to the bit
    assert len({weights_at for *_, weights_at, _ in copies}) == len(set(nodes.split(",")))
    assert len({state_at for *_, state_at in copies}) == 1
    assert len({weights_at for *_, weights_at, _ in one}) == 1


def write_on_a_node(nodes, write):
    with on_nodes(nodes):
        return write_in_a_child(write)


def test_a_stray_write_into_a_copy_names_the_parameter(two):
    for ended_by, said in two.values(write_on_a_node, "0,1", "add_"):
        assert ended_by == signal.SIGSEGV
        assert "writes into '3.weight'" in said


def ask_for_a_node(nodes):
    with on_nodes(nodes):
        return message_of(shared)


def test_a_wrong_memory_node_is_named(two):
    for message in two.values(ask_for_a_node, "near"):
        assert "LOCKSTEP_MEMORY_NODE=near has no memory node for local rank" in message


# Gradients that are born where the others can read them.


def large_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(48, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 50))


def large_loss(model, number):
    generator = torch.Generator().manual_seed(1000 * number + hvd.rank())
    return model(torch.randn(8, 48, generator=generator)).square().mean()


def were_born_there(model, optimizer):
    """Of each large gradient: it lies where the others can read it, and no copy of it was ever needed."""
    entries = [entry for entry in optimizer._shared.entries if entry.parameter.nbytes >= 4096]
    assert len(entries) == 3
    return [e.gradient is None and e.parameter.grad.data_ptr() in optimizer._shared._readable for e in entries]


def train_large(way):
    hvd.init()
    model, optimizer = shared("Adam", model=large_model(hvd.rank()))
    losses = []
    for number in range(6):
        optimizer.zero_grad(set_to_none=way != "zeroed" or number % 2 == 0)
        for part in range(2 if way == "passes" else 1):
            loss = large_loss(model, 10 * number + part)
            loss.backward()
            losses.append(loss.item().hex())
        if way == "channels" and number % 2 == 1:  # of another order of dimensions
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.grad = parameter.grad.t().contiguous().t()
        optimizer.step()
    return losses, optimizer.state_hash(), were_born_there(model, optimizer)


@pytest.mark.parametrize("way", ["plain", "passes", "zeroed", "channels"])
def test_gradients_are_born_where_all_can_read_them(two, preloaded, way):
    before, after = two.values(train_large, way), preloaded.values(train_large, way)
    for (losses, state, copied), (born_losses, born_state, born) in zip(before, after, strict=True):
        assert losses == born_losses
        assert state == born_state
        assert not any(copied)
        assert all(born) or way == "channels"


def fork_after_backward():
    """A child reads, writes and frees gradients that are its parent's."""
    model, optimizer = shared("SGD", model=large_model())
    statuses = []
    for number in range(3):
        optimizer.zero_grad()
        large_loss(model, number).backward()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        child = os.fork()
        if child == 0:
            fine = all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
            for parameter in model.parameters():
                parameter.grad.fill_(float("nan"))
                parameter.grad = None
            os._exit(0 if fine else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
        optimizer.step()
    return statuses, all(were_born_there(model, optimizer)), optimizer.state_hash()


def test_a_forked_child_changes_no_gradient(two, preloaded):
    copied, born = two.values(fork_after_backward), preloaded.values(fork_after_backward)
    assert [rank[0] for rank in copied + born] == [[0] * 3] * 4
    assert [rank[1] for rank in copied + born] == [False, False, True, True]
    assert len({rank[2] for rank in copied + born}) == 1


def outlive():
    """Gradients stay what they are when optimizer and world are gone, and their memory goes with them."""
    sums = []
    for number in range(3):
        model, optimizer = shared("SGD", model=large_model())
        large_loss(model, number).backward()
        optimizer.step()
        assert all(were_born_there(model, optimizer))
        kept = [parameter.grad for parameter in model.parameters()]
        before = [float(gradient.double().sum()) for gradient in kept]
        del optimizer, model
        gc.collect()
        hvd.shutdown()
        sums.append(before == [float(gradient.double().sum()) for gradient in kept])
        del kept
        gc.collect()
    with open("/proc/self/maps") as maps:
        left = sum("lockstep-weights" in line for line in maps)
    return sums, left


def test_gradients_outlive_what_they_were_born_in(preloaded):
    assert preloaded.values(outlive) == [[[True] * 3, 0]] * 2
