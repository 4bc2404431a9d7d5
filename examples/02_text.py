"""Trains a small transformer to write like the pages of this repository, character by character.

    python examples/02_text.py                            # one process, as any PyTorch script
    lockstep run -np 2 python examples/02_text.py         # two workers

The lines that distribute it are marked with (1) to (7). Without them it is a plain PyTorch script.
"""

import argparse
import hashlib
from pathlib import Path

import lockstep.torch as hvd  # (1) the names are those of Horovod
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/pytorch.md", "docs/running.md"]
CONTEXT = 48  # characters that the model sees


class Writer(nn.Module):
    """A transformer that gives, for each character of a text, its guess of the next one."""

    def __init__(self, characters, width=64, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text):
        length = text.shape[1]
        hidden = self.embedding(text) + self.position[:length]
        return self.head(self.layers(hidden, mask=self.mask[:length, :length], is_causal=True))


def read_text(files):
    """The text as numbers, and the characters that they stand for."""
    text = "".join(Path(file).read_text() for file in files)
    characters = sorted(set(text))
    number_of = {character: number for number, character in enumerate(characters)}
    return torch.tensor([number_of[character] for character in text]), characters


def take_batch(text, size, generator):
    """Pieces from random places, and what follows each of their characters."""
    begins = torch.randint(len(text) - CONTEXT, (size,), generator=generator)
    pieces = text[begins[:, None] + torch.arange(CONTEXT + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def loss_of(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def write(model, characters, length, generator):
    text = torch.tensor([[characters.index("\n")]])
    for _ in range(length):
        scores = model(text[:, -CONTEXT:])[0, -1]
        following = torch.multinomial((scores / 0.7).softmax(0), 1, generator=generator)
        text = torch.cat([text, following[None]], dim=1)
    return "".join(characters[number] for number in text[0, 1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="pieces of text per step, over all workers together")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", nargs="+", default=[ROOT / page for page in PAGES], help="files to learn from")
    args = parser.parse_args()

    hvd.init()  # (2) meet the other workers; alone without `lockstep run`
    torch.manual_seed(args.seed)
    text, characters = read_text(args.text)
    model = Writer(len(characters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # (3) gradients are averaged
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # (4) everyone starts from the same weights
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps)

    generator = torch.Generator().manual_seed(args.seed)
    for step in range(1, args.steps + 1):
        inputs, targets = take_batch(text, args.batch, generator)
        inputs, targets = (part[hvd.rank() :: hvd.size()] for part in (inputs, targets))  # (5) each takes its part
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.synchronize()  # (6) the gradients of all workers are here, so that all clip the same
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():  # (6) and they are not reduced again
            optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == args.steps:
            loss = hvd.allreduce(loss.detach())  # (7) the loss of the whole batch; and one worker talks
            if hvd.rank() == 0:
                print(f"step {step}/{args.steps}  loss {loss.item():.3f}", flush=True)

    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    digests = hvd.allgather_object(hashlib.sha256(weights).hexdigest())
    if hvd.rank() == 0:
        print(f"weights are bit-identical on all {hvd.size()} workers: {'yes' if len(set(digests)) == 1 else 'NO'}")
        print(f"It writes: {write(model.eval(), characters, 160, generator)!r}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
