"""The engine's optimizers step as PyTorch's do: from the same state, at most two units in the last place apart.

That needs square roots that are rounded correctly. Those of PyTorch on the CPU are one unit off for a fifth of all
numbers, so it is lent better ones here; with its own, a few units are added where terms nearly cancel out.
"""

import ctypes
import itertools

import numpy
import pytest
import torch
from lockstep import _c
from lockstep.work import check

ELEMENTS = 4099
KINDS = {"SGD": 0, "Adam": 1, "AdamW": 2, "Adagrad": 3, "RMSprop": 4}
# PyTorch's names of options, and the engine's.
NAMES = {"lr": "learning_rate", "eps": "epsilon", "lr_decay": "learning_rate_decay", "alpha": "smoothing"}


def variants():
    """Every option of every optimizer, in all combinations of those that act on each other."""
    off_on = (False, True)
    for maximize, decay in itertools.product(off_on, (0, 0.01)):
        common = {"lr": 0.01, "maximize": maximize, "weight_decay": decay}
        yield "SGD", common
        for dampening, nesterov in ((0, False), (0.5, False), (0, True)):
            yield "SGD", {**common, "momentum": 0.9, "dampening": dampening, "nesterov": nesterov}
        for name, amsgrad in itertools.product(("Adam", "AdamW"), off_on):
            yield name, {**common, "amsgrad": amsgrad, "betas": (0.8, 0.95)}
        yield "Adagrad", {**common, "lr_decay": 0.1}
        for momentum, centered in itertools.product((0, 0.9), off_on):
            yield "RMSprop", {**common, "momentum": momentum, "centered": centered}


def options_of(kind, given):
    given = dict(given)
    betas = given.pop("betas", (0.9, 0.999))
    defaults = {"epsilon": 1e-10 if kind == "Adagrad" else 1e-8, "smoothing": 0.99}
    return _c.OptimizerOptions(
        struct_size=ctypes.sizeof(_c.OptimizerOptions), kind=KINDS[kind], beta1=betas[0], beta2=betas[1],
        **{**defaults, **{NAMES.get(name, name): value for name, value in given.items()}},
    )  # fmt: skip


def states_of(options):
    count = ctypes.c_size_t()
    check(_c.library.ls_optimizer_state_count(options, count))
    names = []
    for index in range(count.value):
        name = ctypes.c_char_p()
        check(_c.library.ls_optimizer_state_name(options, index, name))
        names.append(name.value.decode())
    return names


def step(options, number, weights, gradient, states):
    """New weights; `states` are changed in place."""
    dtype = _c.DType.F32 if weights.dtype is torch.float32 else _c.DType.F64
    tensor = _c.OptimizedTensor(struct_size=ctypes.sizeof(_c.OptimizedTensor), weights=weights.data_ptr(), dtype=dtype)
    for index, state in enumerate(states):
        tensor.state[index] = state.data_ptr()
    values = gradient.clone()
    check(_c.library.ls_optimizer_update(options, number, tensor, 0, len(weights), values.data_ptr()))
    return values


def apart(ours, theirs, before):
    """Units in the last place of the larger one of weight and update."""
    ours, theirs, before = (tensor.numpy() for tensor in (ours, theirs, before))
    unit = numpy.spacing(numpy.maximum(numpy.abs(before), numpy.abs(theirs - before)))
    return float((numpy.abs(ours - theirs) / unit).max())


@pytest.fixture
def exact_roots(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "sqrt", lambda tensor: torch.from_numpy(numpy.sqrt(tensor.numpy())))
    monkeypatch.setattr(torch.Tensor, "sqrt_", lambda tensor: tensor.copy_(torch.Tensor.sqrt(tensor)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize(("kind", "given"), list(variants()), ids=lambda value: value if isinstance(value, str) else "")
def test_one_step_from_the_same_state(exact_roots, kind, given, dtype):
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(ELEMENTS, dtype=dtype))
    optimizer = getattr(torch.optim, kind)([parameter], foreach=False, **given)
    options = options_of(kind, given)
    names = states_of(options)
    for number in range(1, 6):
        parameter.grad = torch.randn(ELEMENTS, dtype=dtype)
        theirs = optimizer.state[parameter]
        states = [
            theirs[name].detach().clone() if theirs.get(name) is not None else torch.zeros(ELEMENTS, dtype=dtype)
            for name in names
        ]
        before = parameter.detach().clone()
        ours = step(options, number, before, parameter.grad, states)
        optimizer.step()
        assert apart(ours, parameter.detach(), before) <= 2
        for name, state in zip(names, states, strict=True):
            torch.testing.assert_close(state, optimizer.state[parameter][name], rtol=1e-5, atol=1e-6)


def test_a_wrong_option_is_named():
    options = options_of("SGD", {"lr": float("nan")})
    with pytest.raises(ValueError, match="learning_rate is nan"):
        states_of(options)
