"""A contender that lives in PyTorch: worker_torch.py gloo|deepspeed RANK SIZE LIBRARY.

The measuring is done by the same code as for the others, in LIBRARY; only the all-reduce is called from here, which
adds about a microsecond of Python to each call.
"""

import ctypes
import os
import pathlib
import sys

import torch


def gloo(rank, size):
    import torch.distributed as dist

    store = pathlib.Path(os.environ["BENCH_FOLDER"]) / "gloo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    return f"Gloo of PyTorch {torch.__version__}", dist.all_reduce


def deepspeed(rank, size):
    """The operation itself, without the fall-back around it."""
    import deepspeed
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    os.environ["LOCAL_SIZE"] = str(size)
    ShareMemCommBuilder().load(verbose=False).initialize(size, rank)
    return f"DeepSpeed {deepspeed.__version__}", torch.ops.deepspeed.inference_all_reduce_


def main(kind, rank, size, library):
    torch.set_num_threads(1)
    version, all_reduce = {"gloo": gloo, "deepspeed": deepspeed}[kind](rank, size)
    tensor = None

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
    def allocate(elements):
        nonlocal tensor
        tensor = None
        tensor = torch.zeros(elements, dtype=torch.float32)
        return tensor.data_ptr()

    @ctypes.CFUNCTYPE(None)
    def reduce():
        all_reduce(tensor)

    with torch.inference_mode():
        status = ctypes.CDLL(library).bench_serve(version.encode(), rank, size, allocate, reduce)
    # Peers may be gone already: nothing is left to agree on.
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
