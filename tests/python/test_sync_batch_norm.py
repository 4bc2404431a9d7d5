"""SyncBatchNorm on parts of a batch against BatchNorm on the whole."""

import lockstep.torch as hvd
import pytest
import torch
from torch import nn

SHAPES = [(7, 3), (7, 3, 4), (7, 3, 2, 5)]


def whole_batch(shape):
    generator = torch.Generator().manual_seed(len(shape))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 5 for _ in range(2)]


def part_of(tensor, rank):
    """Unequal parts."""
    return tensor[:2] if rank == 0 else tensor[2:]


def run(layer, inputs, weights):
    inputs = inputs.clone().requires_grad_()
    for _ in range(2):
        output = layer(inputs)
    (output * weights).sum().backward()
    state = [tensor.tolist() for tensor in (layer.running_mean, layer.running_var, layer.num_batches_tracked)]
    return output.flatten().tolist(), inputs.grad.flatten().tolist(), layer.weight.grad, state


def normalize(shape, momentum):
    hvd.init()
    layer = hvd.SyncBatchNorm(3, momentum=momentum).double()
    inputs, weights = (part_of(tensor, hvd.rank()) for tensor in whole_batch(shape))
    output, gradient, scale, state = run(layer, inputs, weights)
    scale = hvd.allreduce(scale, op=hvd.Sum).tolist()
    alone = layer.eval()(inputs)
    plain = nn.functional.batch_norm(inputs, layer.running_mean, layer.running_var, layer.weight, layer.bias)
    assert torch.equal(alone, plain)
    with pytest.raises(ValueError, match="at least 2"):
        layer(torch.ones(3))
    return output, gradient, scale, state


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_the_same_as_one_process_with_the_whole_batch(two, shape, momentum):
    first, second = two.values(normalize, shape, momentum)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    output, gradient, scale, state = run(kind(3, momentum=momentum).double(), *whole_batch(shape))
    assert first[0] + second[0] == pytest.approx(output, rel=1e-9, abs=1e-9)
    assert first[1] + second[1] == pytest.approx(gradient, rel=1e-9, abs=1e-9)
    assert first[2] == pytest.approx(scale.tolist(), rel=1e-9)
    for mine in (first[3], second[3]):
        assert mine[0] == pytest.approx(state[0], rel=1e-9)
        assert mine[1] == pytest.approx(state[1], rel=1e-9)
        assert mine[2] == state[2]


def half_precision():
    hvd.init()
    torch.manual_seed(hvd.rank())
    output = hvd.SyncBatchNorm(2)(torch.randn(64, 2).bfloat16())
    return str(output.dtype), hvd.allreduce(output.float().mean()).abs().item() < 0.01


def test_half_precision(two):
    assert two.values(half_precision) == [["torch.bfloat16", True]] * 2
