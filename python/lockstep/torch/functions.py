"""Bringing all ranks to the state of one: parameters, buffers, and what an optimizer remembers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from lockstep import world
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.broadcasting import broadcast_, broadcast_async_
from lockstep.torch.handles import synchronize
from lockstep.torch.shared_weights import Sharing, is_shared

_Named = tuple[str | None, torch.Tensor]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]] | Iterable[torch.Tensor],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites the parameters of every rank with those of `root_rank`.

    Takes `model.state_dict()` (which has the buffers too), `model.named_parameters()` or plain tensors.
    """
    named = [(name, tensor) for name, tensor in _named_tensors(params) if not _is_common(tensor, root_rank, name)]
    handles = [broadcast_async_(tensor.detach(), root_rank, name, process_set) for name, tensor in named]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites learning rates, counters and moments of every rank with those of `root_rank`.

    The state travels as plain data (a JSON outline, then the tensors), never pickled, so it may differ in any way
    between the ranks before: a resumed root and fresh others, for example. `model` is accepted for Horovod's sake.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("Lockstep: the state of LBFGS cannot be broadcast; it is rebuilt in its first step.")
    if isinstance(optimizer, Sharing):
        _broadcast_options(optimizer, root_rank, process_set)
        return
    tensors: list[torch.Tensor] = []
    outline, failure = "", ""
    if world.rank() == root_rank:
        try:
            outline = json.dumps(_encode(optimizer.state_dict(), tensors))
        except (TypeError, RuntimeError) as error:  # what cannot travel, or is not all here
            failure = str(error)
    # The root's failure travels too: otherwise the others would wait for tensors that never come.
    outline, failure = (_broadcast_text(text, root_rank, process_set) for text in (outline, failure))
    if failure:
        raise TypeError(f"Lockstep: the optimizer state of rank {root_rank} cannot be broadcast: {failure}")
    if world.rank() == root_rank:
        broadcast_parameters(tensors, root_rank, process_set)
        return
    state = _decode(json.loads(outline), tensors)
    broadcast_parameters(tensors, root_rank, process_set)
    optimizer.load_state_dict(state)


def _is_common(tensor: torch.Tensor, root_rank: int, name: str | None) -> bool:
    """Whether all ranks have this tensor as one already, so that nothing has to travel."""
    if not is_shared(tensor):
        return False
    if root_rank != 0:
        raise ValueError(
            f"Lockstep: '{name}' is shared by all ranks, with the values of rank 0; it cannot get those of rank "
            f"{root_rank}. Broadcast before DistributedOptimizer."
        )
    return True


def _broadcast_options(optimizer: Sharing, root_rank: int, process_set: ProcessSet) -> None:
    """State is common already; learning rates and the like are each rank's own."""
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    tensors: list[torch.Tensor] = []
    outline = _broadcast_text(json.dumps(_encode(options, tensors)), root_rank, process_set)
    received: list[torch.Tensor] = []
    decoded = _decode(json.loads(outline), received)
    broadcast_parameters(tensors if world.rank() == root_rank else received, root_rank, process_set)
    if world.rank() != root_rank:
        for group, given in zip(optimizer.param_groups, decoded, strict=True):
            group.update(given)


def _named_tensors(params: Any) -> list[_Named]:
    entries = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    named: list[_Named] = []
    for entry in entries:
        name, tensor = entry if isinstance(entry, tuple) else (None, entry)
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"Lockstep: broadcast_parameters takes tensors, but {name or 'an entry'} is a {type(tensor).__name__}. "
                f"Pass model.state_dict(), model.named_parameters() or a list of tensors."
            )
        named.append((name, tensor))
    return named


def _broadcast_text(text: str, root_rank: int, process_set: ProcessSet) -> str:
    data = bytearray(text.encode())
    length = broadcast_(torch.tensor([len(data)], dtype=torch.int64), root_rank, process_set=process_set)
    if length.item() == 0:
        return ""
    if world.rank() != root_rank:
        data = bytearray(int(length.item()))
    broadcast_(torch.frombuffer(data, dtype=torch.uint8), root_rank, process_set=process_set)
    return data.decode()


def _encode(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` as what JSON can hold: a container or tensor becomes {kind: content}. Tensors are collected in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, dict):
        return {"dict": [[_encode(key, tensors), _encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, tensors) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"it holds a {type(value).__name__}; tensors, numbers, texts and containers of them can travel.")


def _decode(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `_encode`, with tensors yet to be filled."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        dtype, shape = content
        tensors.append(torch.empty(shape, dtype=getattr(torch, dtype)))
        return tensors[-1]
    if kind == "dict":
        return {_decode(key, tensors): _decode(item, tensors) for key, item in content}
    items = [_decode(item, tensors) for item in content]
    return items if kind == "list" else tuple(items)
