"""Gradients that are born in shared memory: where they lie, that nothing else changes, and that it does no harm."""

import ctypes
import ctypes.util
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import lockstep.torch as hvd
import pytest
import ranks
import torch
from lockstep import world
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 5
LEAST_SERVED = 4096  # bytes


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("served", "missed", "in_use", "regions")]


class Library(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        *((name, ctypes.c_void_p) for name in ("room", "serve", "retire")),
        ("count", ctypes.CFUNCTYPE(None, ctypes.POINTER(Counts))),
    ]


def counts():
    """What the preloaded library says of itself, in this process."""
    find = ctypes.CDLL(None).lockstep_preload
    find.restype = ctypes.POINTER(Library)
    result = Counts()
    find().contents.count(ctypes.byref(result))
    return result


def is_shared(tensor):
    return world.engine().holds(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def make_model(kind):
    torch.manual_seed(0)
    if kind == "convolutions":
        return nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, groups=2), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 50),
        )  # fmt: skip
    return nn.Sequential(nn.Linear(48, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 50))


def make_batch(kind, step):
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    shape = (8, 3, 12, 12) if kind == "convolutions" else (8, 48)
    return torch.randn(*shape, generator=generator)


def distributed(model, optimizer="adam", fused=False, **options):
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    made = kinds[optimizer](model.parameters(), lr=0.01, **({"momentum": 0.9} if optimizer == "sgd" else {}))
    return hvd.DistributedOptimizer(made, named_parameters=model.named_parameters(), fused=fused, **options)


def step_with(model, optimizer, batch, run=None):
    optimizer.zero_grad()
    loss = (run or model)(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item().hex()


def places(model):
    """Of each large gradient, whether it is shared."""
    gradients = [parameter.grad for parameter in model.parameters()]
    return [is_shared(gradient) for gradient in gradients if gradient.nbytes >= LEAST_SERVED]


def train(kind, optimizer="adam", compiled=False):
    hvd.init()
    model = make_model(kind)
    distributed_optimizer = distributed(model, optimizer)
    run = torch.compile(model, backend=compiled) if compiled else model
    losses, shared = [], []
    for step in range(STEPS):
        losses.append(step_with(model, distributed_optimizer, make_batch(kind, step), run))
        shared = places(model)
    state = [
        is_shared(value)
        for state in distributed_optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return {"losses": losses, "shared": shared, "weights": digest(model), "others": state}


def digest(model):
    return [value.hex() for tensor in model.state_dict().values() for value in tensor.double().flatten().tolist()[:100]]


def train_fused():
    hvd.init()
    model = make_model("layers")
    optimizer = distributed(model, fused=True)
    losses = [step_with(model, optimizer, make_batch("layers", step)) for step in range(STEPS)]
    return {"losses": losses, "shared": all(places(model))}


def test_also_where_steps_are_fused(two, preloaded):
    before, after = two.values(train_fused), preloaded.values(train_fused)
    assert [rank["losses"] for rank in before] == [rank["losses"] for rank in after]
    assert [rank["shared"] for rank in after] == [True, True]


@pytest.mark.parametrize("kind", ["layers", "convolutions"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_gradients_are_born_in_shared_memory_and_nothing_else_changes(two, preloaded, kind, optimizer):
    before, after = two.values(train, kind, optimizer), preloaded.values(train, kind, optimizer)
    for without, with_it in zip(before, after, strict=True):
        assert len(with_it["shared"]) > 1
        assert not any(without["shared"])
        assert all(with_it["shared"])
        assert not any(with_it["others"])  # the optimizer's state
        assert without["losses"] == with_it["losses"]
        assert without["weights"] == with_it["weights"]


def test_with_a_compiled_model(two, preloaded):
    before, after = (one.values(train, "layers", "sgd", "aot_eager") for one in (two, preloaded))
    assert [rank["losses"] for rank in before] == [rank["losses"] for rank in after]
    assert all(all(rank["shared"]) for rank in after)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_with_a_model_compiled_to_native_code(two, preloaded):
    before, after = (one.values(train, "convolutions", "adam", "inductor", timeout=300) for one in (two, preloaded))
    assert [rank["losses"] for rank in before] == [rank["losses"] for rank in after]
    assert all(any(rank["shared"]) for rank in after)


def accumulate():
    """Passes that add up, a graph that is kept, gradients that are zeroed in place."""
    hvd.init()
    model = make_model("layers")
    optimizer = distributed(model, "sgd", backward_passes_per_step=2)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for half in range(2):
            loss = model(make_batch("layers", 2 * step + half)).square().mean()
            (slope,) = torch.autograd.grad(loss, model[0].weight, create_graph=True)
            (loss + slope.square().sum()).backward()
            losses.append(loss.item().hex())
        optimizer.step()
    return {"losses": losses, "weights": digest(model), "shared": places(model)}


def test_passes_that_add_up_and_second_derivatives(two, preloaded):
    before, after = two.values(accumulate), preloaded.values(accumulate)
    assert [rank["losses"] for rank in before] == [rank["losses"] for rank in after]
    assert [rank["weights"] for rank in before] == [rank["weights"] for rank in after]
    assert all(any(rank["shared"]) for rank in after)  # a graph that is kept may take the room of some


# Forked children.


class Augmented(Dataset):
    """Samples that are changed in place by whoever loads them, and some of them look like gradients."""

    def __init__(self, model):
        self.samples = torch.arange(16 * 48, dtype=torch.float32).reshape(16, 48) / 100
        self.model = model

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index]
        sample += 1
        for parameter in self.model.parameters():  # what no sane program does must not reach the parent either
            if parameter.grad is not None:
                parameter.grad.fill_(float("nan"))
                parameter.grad = None
        return sample.clone()


def train_with_loader(workers):
    hvd.init()
    model = make_model("layers")
    optimizer = distributed(model)
    data = Augmented(model)
    losses = []
    for _ in range(2):
        loader = DataLoader(data, batch_size=4, num_workers=workers, multiprocessing_context="fork")
        for batch in loader:
            losses.append(step_with(model, optimizer, batch))
    return {"losses": losses, "shared": all(places(model)), "samples": float(data.samples.sum())}


def test_workers_that_load_data_change_only_what_is_their_own(two, preloaded):
    before, after = two.values(train_with_loader, 2), preloaded.values(train_with_loader, 2)
    assert before == [rank | {"shared": False} for rank in after]
    assert all(rank["shared"] for rank in after)


def fork_in_the_middle():
    """A child between backward and step, which reads, writes and frees what is the parent's, and allocates the same."""
    hvd.init()
    model = make_model("layers")
    optimizer = distributed(model)
    results = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(make_batch("layers", step)).square().mean().backward()
        optimizer.synchronize()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        child = os.fork()
        if child == 0:
            status = 1
            try:
                fine = all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
                for parameter in model.parameters():
                    parameter.grad.zero_()
                    parameter.grad = None
                served = counts().served
                model(make_batch("layers", step)).square().mean().backward()
                status = 0 if fine and served == counts().served else 1
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        results.append(os.waitstatus_to_exitcode(status))
        same = all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
        results.append(int(not same))
        with optimizer.skip_synchronize():
            optimizer.step()
    return results


def test_a_child_that_is_forked_in_the_middle(preloaded):
    assert preloaded.values(fork_in_the_middle) == [[0] * 2 * STEPS] * 2


# The life of the memory.


def restart(cycles):
    gc.collect()  # what other tests have left
    kept, regions = [], []
    model = make_model("layers")
    for cycle in range(cycles):
        hvd.init()
        optimizer = distributed(model)
        step_with(model, optimizer, make_batch("layers", cycle))
        assert all(places(model))
        if cycle % 10 == 0:
            kept = [parameter.grad for parameter in model.parameters()]  # outlives its engine
            total = sum(float(gradient.double().sum()) for gradient in kept)
        hvd.shutdown()
        assert total == sum(float(gradient.double().sum()) for gradient in kept)
        del optimizer
        regions.append(counts().regions)
    kept.clear()
    model.zero_grad()
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("/memfd:lockstep (deleted)")
    return {"most": max(regions), "left": counts().regions, "in_use": counts().in_use, "maps": maps}


@pytest.mark.timeout(300)
def test_memory_goes_with_the_last_block_and_not_before(preloaded):
    cycles = 200 if os.environ.get("LOCKSTEP_TEST_FULL") == "1" else 25
    for rank in preloaded.values(restart, cycles, timeout=240):
        assert rank["left"] == rank["in_use"] == rank["maps"] == 0
        assert rank["most"] <= 3


def many_optimizers():
    gc.collect()
    hvd.init()
    model = make_model("layers")
    for step in range(15):
        optimizer = distributed(model)
        step_with(model, optimizer, make_batch("layers", step))
        assert all(places(model)), step
        del optimizer
        gc.collect()
    return counts().regions


def test_a_new_optimizer_finds_the_room_of_the_last(preloaded):
    assert max(preloaded.values(many_optimizers)) <= 2


def fill():
    os.environ["LOCKSTEP_HEAP_BYTES"] = str(1 << 20)  # half of it for gradients, of 305 KB each time
    hvd.init()
    del os.environ["LOCKSTEP_HEAP_BYTES"]
    model = make_model("layers")
    optimizer = distributed(model)
    losses, kept = [], []
    for step in range(STEPS):
        losses.append(step_with(model, optimizer, make_batch("layers", step)))
        kept += [parameter.grad for parameter in model.parameters()]  # never freed, so the region becomes full
    return {"losses": losses, "shared": places(model), "missed": counts().missed, "kept": len(kept)}


def train_only_losses():
    return train("layers")["losses"]


def test_a_full_region_means_the_normal_heap(two, preloaded):
    expected = two.values(train_only_losses)
    filled = preloaded.values(fill)
    assert [rank["losses"] for rank in filled] == expected
    assert all(not any(rank["shared"]) and rank["missed"] > 0 for rank in filled)


# Under the launcher.

SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
import test_born_shared
print(test_born_shared.json.dumps(test_born_shared.train({kind!r})))
"""


def launch(tmp_path, *options, kind="layers", preload="", **settings):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), kind=kind))
    env = ranks.environment(OMP_NUM_THREADS="1", LOCKSTEP_LOG="info", **settings)
    if preload:
        env["LD_PRELOAD"] = preload
    command = [ranks.PROGRAM, "run", "-np", "2", *options, sys.executable, script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if "losses" in line)
    return [json.loads(line.split("] ", 1)[1]) for line in lines], done.stderr


def test_the_launcher_preloads_it_and_says_so_once(tmp_path):
    with_it, said = launch(tmp_path)
    assert all(all(rank["shared"]) for rank in with_it)
    assert said.count("gradients are born in shared memory") == 1
    without, said = launch(tmp_path, "--no-preload")
    assert not any(any(rank["shared"]) for rank in without)
    assert said.count("gradients are copied to shared memory") == 1
    assert [rank["losses"] for rank in with_it] == [rank["losses"] for rank in without]


def test_the_launcher_can_be_told_by_a_variable(tmp_path):
    without, _ = launch(tmp_path, LOCKSTEP_PRELOAD="0")
    assert not any(any(rank["shared"]) for rank in without)


def test_an_allocator_of_the_users_stays_in_use(tmp_path):
    jemalloc = ctypes.util.find_library("jemalloc")
    assert jemalloc, "libjemalloc2 is not installed: type `make setup`."
    with_it, _ = launch(tmp_path, kind="convolutions", preload=jemalloc)
    without, _ = launch(tmp_path, "--no-preload", kind="convolutions")
    assert all(all(rank["shared"]) for rank in with_it)
    assert [rank["losses"] for rank in with_it] == [rank["losses"] for rank in without]


def test_other_programs_do_not_notice_it():
    env = ranks.environment(LD_PRELOAD=str(ranks.PRELOAD))
    for command in (["ls", "/"], ["sh", "-c", "ls / | sort | head -n 1"], [sys.executable, "-c", "print(1)"]):
        plain = subprocess.run(command, capture_output=True, text=True, timeout=30)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)


def test_it_needs_nothing_but_the_c_library():
    dynamic = subprocess.run(["readelf", "-d", ranks.PRELOAD], check=True, capture_output=True, text=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "NEEDED" in line]
    assert set(needed) <= {"libc.so.6", "libdl.so.2"}
