"""A rank of benchmarks/start.py in Python: start_rank.py lockstep | gloo | imports."""

import os
import sys
import time

import torch

way = sys.argv[1]
number = torch.ones(1)
if way == "gloo":
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(number)
else:
    import lockstep.torch as hvd

    if way == "lockstep":
        hvd.init()
        number = hvd.allreduce(number, op=hvd.Sum)
os.write(1, f"at {time.clock_gettime_ns(time.CLOCK_MONOTONIC)} sum {number.item():g}\n".encode())  # in one piece
if way == "gloo":
    dist.destroy_process_group()  # otherwise it may abort at exit
