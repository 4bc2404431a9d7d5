"""The reduction operators of torch.distributed as the engine has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp as TorchOp

from lockstep.engine import ReduceOp, ReduceOptions
from lockstep.errors import InvalidArgumentError
from lockstep.torch.distributed.membership import Membership

_OPS = {
    TorchOp.RedOpType.SUM: ReduceOp.SUM,
    TorchOp.RedOpType.AVG: ReduceOp.AVERAGE,
    TorchOp.RedOpType.PRODUCT: ReduceOp.PRODUCT,
    TorchOp.RedOpType.MIN: ReduceOp.MIN,
    TorchOp.RedOpType.MAX: ReduceOp.MAX,
}
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    TorchOp.RedOpType.BAND: torch.bitwise_and,
    TorchOp.RedOpType.BOR: torch.bitwise_or,
    TorchOp.RedOpType.BXOR: torch.bitwise_xor,
}


def options_of(op: TorchOp, membership: Membership, operation: str) -> ReduceOptions:
    """How the engine reduces with the operator."""
    known = _OPS.get(op.op)
    if known is not None:
        return membership.options(known)
    if op.op == TorchOp.RedOpType.PREMUL_SUM:
        return membership.options(ReduceOp.SUM, float(op.factor))
    raise InvalidArgumentError(
        f"Lockstep: {operation} with {op.op.name} is not possible; it takes SUM, AVG, PRODUCT, MIN, MAX and PREMUL_SUM."
    )


def bitwise(op: TorchOp) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """The operator as a function, if it works on bits: the engine gathers, and each rank reduces for itself."""
    return _BITWISE.get(op.op)
