"""The arguments of DistributedOptimizer that change how gradients travel, between real ranks."""

import functools
import hashlib

import lockstep.torch as hvd
import pytest
import torch
from torch import nn

# The plain path; fused steps have tests of their own (test_fused_steps.py).
distribute = functools.partial(hvd.DistributedOptimizer, fused=False)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model, step, rank=0, size=1):
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(12, 6, generator=generator), torch.randn(12, 3, generator=generator)
    return nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size])


def digest(model):
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()))
    return sha.hexdigest()


def weights(model):
    return [value for tensor in model.state_dict().values() for value in tensor.flatten().tolist()]


def train_alone(steps=5):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return weights(model)


OPTIONS = {
    "fp16": lambda model: {"compression": hvd.Compression.fp16},
    "bf16": lambda model: {"compression": hvd.Compression.bf16},
    "predivide": lambda model: {"gradient_predivide_factor": 2.0},
    "number of groups": lambda model: {"groups": 2},
    "lists of groups": lambda model: {"groups": [[model[0].weight, model[2].bias], [model[2].weight]]},
    "one group, compressed": lambda model: {"groups": 1, "compression": hvd.Compression.fp16},
}


def train(option, steps=5):
    hvd.init()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = distribute(optimizer, model.named_parameters(), **OPTIONS[option](model))
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank(), hvd.size()).backward()
        optimizer.step()
    return digest(model), weights(model)


@pytest.mark.parametrize("option", OPTIONS)
def test_training_with_an_option_equals_one_process(two, option):
    first, second = two.values(train, option)
    assert first == second
    tolerance = {"fp16": 1e-3, "bf16": 1e-2, "one group, compressed": 1e-3}.get(option, 1e-6)
    assert first[1] == pytest.approx(train_alone(), rel=tolerance, abs=tolerance)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(3))
        for branch in self.branches:
            nn.init.ones_(branch.weight)


def groups_and_unused_parameters():
    """A group of which each rank uses another part: it cannot leave as one, and must arrive all the same."""
    hvd.init()
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = distribute(optimizer, model.named_parameters(), groups=1)
    for used in ([0, 1], [0, 1, 2] if hvd.rank() == 0 else [1]):
        optimizer.zero_grad()
        sum(model.branches[i](torch.ones(2)) for i in used).backward()
        optimizer.step()
    return [branch.weight.tolist()[0] for branch in model.branches]


def test_a_group_that_no_rank_has_whole(two):
    assert two.values(groups_and_unused_parameters) == [[[-0.5] * 2, [-1.0] * 2, [0.5] * 2]] * 2


def train_embedding(sparse, sparse_as_dense, steps=4):
    """Each rank looks up other words, and in the last step rank 0 none at all."""
    hvd.init()
    torch.manual_seed(0)
    words, head = nn.Embedding(10, 3, sparse=sparse), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*words.parameters(), *head.parameters()], lr=0.1)
    optimizer = distribute(optimizer, sparse_as_dense=sparse_as_dense)
    for step in range(steps):
        optimizer.zero_grad()
        looked_up = torch.tensor([step, step + 1 + hvd.rank(), step])
        unused = step == steps - 1 and hvd.rank() == 0
        head(torch.ones(3, 3) if unused else words(looked_up)).square().sum().backward()
        optimizer.step()
    return words.weight.flatten().tolist(), words.weight.grad.is_sparse


def test_sparse_gradients(two):
    dense = two.values(train_embedding, False, False)
    assert dense[0] == dense[1]
    for sparse_as_dense in (False, True):
        first, second = two.values(train_embedding, True, sparse_as_dense)
        assert first[0] == second[0]
        assert first[0] == pytest.approx(dense[0][0], rel=1e-5)
        assert second[1], "the gradient stays sparse for the optimizer"


def sparse_here_dense_there():
    hvd.init()
    words = nn.Embedding(4, 2, sparse=hvd.rank() == 0)
    optimizer = distribute(torch.optim.SGD(words.parameters(), lr=0.1))
    words(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse_as_dense"):
        optimizer.step()
    return True


def test_sparse_on_one_rank_only_is_told(two):
    assert two.values(sparse_here_dense_there) == [True] * 2


def train_in_a_set():
    hvd.init()
    pair = hvd.add_process_set([0, 2])
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = distribute(optimizer, model.named_parameters(), process_set=pair)
    if pair.included():
        hvd.broadcast_parameters(model.state_dict(), root_rank=2, process_set=pair)
        hvd.broadcast_optimizer_state(optimizer, root_rank=2, process_set=pair)
    for step in range(5):
        optimizer.zero_grad()
        part = (pair.rank(), 2) if pair.included() else (0, 1)
        loss_of(model, step, *part).backward()
        optimizer.step()
    return weights(model)


def test_training_in_a_process_set(three):
    first, outside, third = three.values(train_in_a_set)
    assert first == third
    assert first == pytest.approx(train_alone(), rel=1e-5, abs=1e-6)
    assert outside == pytest.approx(train_alone(), rel=1e-5, abs=1e-6), "outside the set it is a plain optimizer"


def train_uneven_data():
    """Rank 1 has fewer batches; join lets rank 0 finish its own."""
    hvd.init()
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for _ in range(2 - hvd.rank()):
        optimizer.zero_grad()
        model(torch.ones(1)).sum().backward()
        optimizer.step()
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    return model.weight.item(), last


def test_uneven_data(two):
    assert two.values(train_uneven_data) == [[-1.5, 0]] * 2


def train_uneven_data_in_a_context(sets):
    """As many batches as the rank's number; momentum and batch statistics have to be those of the last rank."""
    hvd.init()
    group = hvd.add_process_set([1, 2]) if sets else hvd.global_process_set
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = distribute(optimizer, model.named_parameters(), process_set=group)
    if group.included():
        hvd.broadcast_parameters(model.state_dict(), root_rank=1, process_set=group)
    for epoch in range(2):
        with hvd.join_uneven(optimizer, model):
            for batch in range(1 + hvd.rank() if epoch == 0 else 3 - hvd.rank()):
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(10 * epoch + batch)
                model(torch.randn(4, 2, generator=generator)).square().sum().backward()
                optimizer.step()
    momentum = [state["momentum_buffer"].flatten().tolist() for state in optimizer.state_dict()["state"].values()]
    return weights(model), momentum, model[1].num_batches_tracked.item()


@pytest.mark.parametrize("sets", [False, True])
def test_uneven_data_in_a_context(three, sets):
    first, second, third = three.values(train_uneven_data_in_a_context, sets)
    assert second == third
    assert (first == second) != sets, "outside of the process set a rank trains by itself"
    assert third[2] == (5 if sets else 6), "every batch of the rank with the most has counted"


def fail_in_a_context():
    hvd.init()
    model = make_model()
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(KeyError), hvd.join_uneven(optimizer):
        raise KeyError("batch")
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def test_an_exception_leaves_the_context_without_joining(two):
    assert two.values(fail_in_a_context) == [2.0] * 2


def misuse():
    hvd.init()
    model = make_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    first = model[0].weight
    for options, message in (
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "Average only"),
        ({"groups": -1}, "number of groups"),
        ({"groups": [first]}, "lists of parameters"),
        ({"groups": [[first], [first]]}, "one group only"),
        ({"groups": [["weight"]]}, "something else"),
    ):
        with pytest.raises(ValueError, match=message):
            distribute(plain, model.named_parameters(), **options)
    with pytest.warns(DeprecationWarning, match="groups"):
        distribute(plain, model.named_parameters(), num_groups=2)
    return True


def test_misuse_is_refused_with_the_reason(two):
    assert two.values(misuse) == [True] * 2
