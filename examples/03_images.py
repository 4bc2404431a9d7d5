"""Trains a small residual network on images of stripes that it makes itself, and goes on from a checkpoint.

    python examples/03_images.py                          # one process, as any PyTorch script
    lockstep run -np 2 python examples/03_images.py       # two workers
    lockstep run -np 2 python examples/03_images.py --checkpoint stripes.pt     # twice: the second run goes on

The lines that distribute it are marked with (1) to (9). Without them it is a plain PyTorch script.
"""

import argparse
import math
from pathlib import Path

import lockstep.torch as hvd  # (1) the names are those of Horovod
import torch
from torch import nn

SIZE, CLASSES = 16, 8  # pixels of a side; directions of the stripes


def make_images(count, seed):
    """Stripes in one of a few directions, of any width and brightness, under noise. The class is the direction."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    angles = labels * (math.pi / CLASSES)
    waves, phases, contrasts = torch.rand(3, count, 1, 1, generator=generator).unbind()
    place = torch.linspace(-1, 1, SIZE)
    along = place[None, :, None] * angles.cos()[:, None, None] + place[None, None, :] * angles.sin()[:, None, None]
    images = (0.5 + contrasts) * torch.sin((6 + 6 * waves) * along + 2 * math.pi * phases)
    return (images + 0.5 * torch.randn(images.shape, generator=generator)).unsqueeze(1), labels


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = hvd.SyncBatchNorm(outputs)  # (2) in place of nn.BatchNorm2d: the batch of all workers
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = hvd.SyncBatchNorm(outputs)  # (2)
        self.around = nn.Conv2d(channels, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, images):
        hidden = self.first_norm(self.first(images)).relu()
        return (self.second_norm(self.second(hidden)) + self.around(images)).relu()


def make_model():
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), *blocks, *head)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64, help="images per step, over all workers together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, help="written after each epoch; where it is there, training goes on")
    args = parser.parse_args()

    hvd.init()  # (3) meet the other workers; alone without `lockstep run`
    torch.manual_seed(args.seed)
    images, labels = make_images(args.images, args.seed)
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]  # (4) its part of the data
    batch = max(1, args.batch // hvd.size())  # (4)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # (5) step() averages the gradients

    done = 0
    if args.checkpoint and hvd.rank() == 0 and args.checkpoint.exists():  # (6) one worker reads it
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["epochs"]
    done = hvd.broadcast_object(done, root_rank=0)  # (7) everyone goes on from what that worker has
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # (7)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # (7)

    for epoch in range(done + 1, done + args.epochs + 1):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed + epoch))
        for part in order.split(batch)[: args.images // args.batch]:  # as many steps on every worker
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            loss.backward()
            optimizer.step()
        if hvd.rank() == 0:  # (8) one worker talks and writes
            print(f"epoch {epoch}  loss {loss.item():.4f}", flush=True)
            if args.checkpoint:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch}
                torch.save(state, args.checkpoint)

    test_images, test_labels = make_images(400, seed=args.seed + 1000)
    test_images, test_labels = test_images[hvd.rank() :: hvd.size()], test_labels[hvd.rank() :: hvd.size()]
    with torch.no_grad():
        hits = (model.eval()(test_images).argmax(1) == test_labels).sum()
    hits = hvd.allreduce(hits, op=hvd.Sum)  # (9) each worker has tested its part
    if hvd.rank() == 0:
        print(f"accuracy {hits.item() / 400:.3f} on 400 new images")
    hvd.shutdown()


if __name__ == "__main__":
    main()
