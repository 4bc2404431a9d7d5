"""The reduction operators of torch.distributed as the engine has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp as TorchOp

from lockstep.engine import ReduceOp, ReduceOptions
from lockstep.errors import InvalidArgumentError
from lockstep.torch.distributed.membership import Membership

# PyTorch declares only a part of these.
_Kind: Any = TorchOp.RedOpType

_OPS = {
    _Kind.SUM: ReduceOp.SUM,
    _Kind.AVG: ReduceOp.AVERAGE,
    _Kind.PRODUCT: ReduceOp.PRODUCT,
    _Kind.MIN: ReduceOp.MIN,
    _Kind.MAX: ReduceOp.MAX,
}
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    _Kind.BAND: torch.bitwise_and,
    _Kind.BOR: torch.bitwise_or,
    _Kind.BXOR: torch.bitwise_xor,
}


def options_of(op: Any, membership: Membership, operation: str) -> ReduceOptions:
    """How the engine reduces with the operator."""
    known = _OPS.get(op.op)
    if known is not None:
        return membership.options(known)
    if op.op == _Kind.PREMUL_SUM:
        return membership.options(ReduceOp.SUM, float(op.factor))
    raise InvalidArgumentError(
        f"Lockstep: {operation} with {op.op.name} is not possible; it takes SUM, AVG, PRODUCT, MIN, MAX and PREMUL_SUM."
    )


def bitwise(op: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """The operator as a function, if it works on bits: the engine gathers, and each rank reduces for itself."""
    return _BITWISE.get(op.op)
