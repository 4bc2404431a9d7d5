"""Ten training scripts for benchmarks/preload_scripts.py: each does something that an allocator could get wrong.

Each is a generator that yields a loss for every step, and reads like a script of a user's; `small=True` makes it
short enough for a test. Data depends on the rank and on nothing else.
"""

import lockstep.torch as hvd
import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset


def distributed(model, kind=torch.optim.SGD, lr=0.01, passes=1, **options):
    optimizer = kind(model.parameters(), lr=lr, **options)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=passes)


def generator(number=0):
    return torch.Generator().manual_seed(1000 * number + hvd.rank())


def layers(*widths):
    modules = []
    for narrow, wide in zip(widths, widths[1:], strict=False):
        modules += [nn.Linear(narrow, wide), nn.GELU()]
    return nn.Sequential(*modules[:-1])


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


class Augmented(Dataset):
    """Samples that a worker changes in place before it hands them on."""

    def __init__(self, count, width):
        self.samples = torch.randn(count, width, generator=generator())

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index]
        sample.mul_(1.01).add_(0.1).clamp_(-3, 3)
        return sample


def forked_loader(steps, small):
    """Forked workers that augment in place, and stay from epoch to epoch."""
    width, batch = (64, 8) if small else (1024, 64)
    model = layers(width, 2 * width, width)
    optimizer = distributed(model, momentum=0.9)
    data = Augmented(4 * batch, width)
    torch.manual_seed(hvd.rank())
    loader = DataLoader(
        data, batch, shuffle=True, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    for _ in range(steps // len(loader)):
        for samples in loader:
            yield step(optimizer, F.mse_loss(model(samples), samples))


def compiled(steps, small):
    """torch.compile to native code; in a test without, which takes too long there."""
    width, batch = (64, 8) if small else (1024, 64)
    model = layers(width, 2 * width, width)
    optimizer = distributed(model, torch.optim.Adam, lr=1e-3)
    run = torch.compile(model, backend="aot_eager" if small else "inductor")
    for number in range(steps):
        inputs = torch.randn(batch, width, generator=generator(number))
        yield step(optimizer, run(inputs).square().mean())


def residual_network(steps, small, batch_size=8):
    channels, side, batch = (16, 8, 4) if small else (128, 16, batch_size)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1, groups=2), nn.BatchNorm2d(channels),
            )  # fmt: skip

        def forward(self, inputs):
            return F.relu(inputs + self.layers(inputs))

    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(channels, 1000),
    )  # fmt: skip
    optimizer = distributed(model, momentum=0.9)
    for number in range(steps):
        images = torch.randn(batch, 3, side, side, generator=generator(number))
        classes = torch.randint(1000, (batch,), generator=generator(number))
        yield step(optimizer, F.cross_entropy(model(images), classes))


def convolutions(steps, small):
    """A residual network with batch normalisation and grouped convolutions."""
    yield from residual_network(steps, small)


def jemalloc(steps, small):
    """The same with jemalloc as the allocator, and samples that it allocates by the thousand."""
    for number, loss in enumerate(residual_network(steps, small)):
        kept = [bytes(600 + number % 7) for _ in range(10_000)]
        yield loss + (len(kept) - 10_000)


def large_data(steps, small):
    """Six gigabytes of data in the memory of two ranks, under a limit of eight."""
    width, batch = (64, 8) if small else (1024, 64)
    rows = 1000 if small else 3 * 2**30 // (4 * width)
    data = numpy.empty((rows, width), dtype=numpy.float32)
    for first in range(0, rows, 4096):  # in parts: what is computed must not need as much again
        part = data[first : first + 4096]
        part[:] = numpy.sin(numpy.arange(part.size, dtype=numpy.float32) + hvd.rank()).reshape(part.shape)
    model = layers(width, 2 * width, width)
    optimizer = distributed(model, torch.optim.Adam, lr=1e-3)
    torch.manual_seed(hvd.rank())
    loader = iter(DataLoader(TensorDataset(torch.from_numpy(data)), batch, sampler=Everywhere(rows, steps * batch)))
    for (samples,) in loader:
        yield step(optimizer, F.mse_loss(model(samples), samples))


class Everywhere(torch.utils.data.Sampler):
    """So many rows from all over the data."""

    def __init__(self, rows, count):
        self.rows, self.count = rows, count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(torch.randint(self.rows, (self.count,)).tolist())


def checkpointed(steps, small):
    """A transformer whose activations are computed again in backward."""
    width, length, batch, depth = (32, 8, 2, 2) if small else (256, 32, 8, 4)
    blocks = nn.ModuleList(
        nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True) for _ in range(depth)
    )
    optimizer = distributed(blocks, torch.optim.AdamW, lr=1e-3)
    for number in range(steps):
        hidden = torch.randn(batch, length, width, generator=generator(number))
        for block in blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        yield step(optimizer, hidden.square().mean())


def double_backward(steps, small):
    """A penalty on gradients, which needs second derivatives, and a graph that is used twice."""
    width, batch = (64, 8) if small else (1024, 32)
    model = layers(width, width, width, 1)
    optimizer = distributed(model, torch.optim.Adam, lr=1e-3, passes=2)
    for number in range(steps):
        inputs = torch.randn(batch, width, generator=generator(number), requires_grad=True)
        output = model(inputs).mean()
        (slope,) = torch.autograd.grad(output, inputs, create_graph=True)
        loss = output.square() + (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def sparse_embedding(steps, small):
    """An embedding with sparse gradients beside layers with dense ones."""
    words, width, batch = (200, 32, 8) if small else (20_000, 256, 64)
    model = nn.Sequential(nn.EmbeddingBag(words, width, sparse=True), layers(width, 4 * width, width))
    optimizer = distributed(model)
    for number in range(steps):
        text = torch.randint(words, (batch, 20), generator=generator(number))
        yield step(optimizer, model(text).square().mean())


def autocast(steps, small):
    """bfloat16 by autocast, four backward passes to a step, clipped gradients."""
    width, batch = (64, 8) if small else (1024, 32)
    model = layers(width, 2 * width, width)
    optimizer = distributed(model, torch.optim.AdamW, lr=1e-3, passes=4)
    for number in range(steps):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        total = torch.zeros(())
        for part in range(4):
            inputs = torch.randn(batch, width, generator=generator(4 * number + part))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(inputs).float().square().mean() / 4
            loss.backward()
            total += loss.detach()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        yield total


def recurrent(steps, small):
    """An LSTM over sequences of different lengths, so that activations have another size in every step."""
    width, batch, longest = (32, 4, 6) if small else (256, 16, 24)
    model = nn.LSTM(width, width, num_layers=2)
    optimizer = distributed(model, torch.optim.RMSprop, lr=1e-3)
    for number in range(steps):
        lengths = torch.randint(1, longest, (batch,), generator=generator(number)).tolist()
        sequences = [torch.randn(length, width, generator=generator(number)) for length in lengths]
        output, _ = model(nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False))
        yield step(optimizer, output.data.square().mean())


ALL = {
    each.__name__: each
    for each in (
        forked_loader,
        compiled,
        jemalloc,
        convolutions,
        large_data,
        checkpointed,
        double_backward,
        sparse_embedding,
        autocast,
        recurrent,
    )
}


def losses(name, steps, small=False):
    """The losses of a script, one at a time."""
    torch.manual_seed(0)
    for loss in ALL[name](steps, small):
        yield loss.item().hex()
