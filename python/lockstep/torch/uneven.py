"""Training on data that does not divide evenly: ranks that have fewer batches wait for the others, and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lockstep.errors import InvalidArgumentError
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.functions import broadcast_optimizer_state, broadcast_parameters
from lockstep.torch.meeting import join
from lockstep.torch.shared_weights import Sharing


@contextmanager
def join_uneven(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None) -> Iterator[None]:
    """Around a training loop over this rank's own batches, however many it has.

        with hvd.join_uneven(optimizer, model):
            for batch in my_batches:
                ...
                optimizer.step()

    At its end a rank joins: the others go on without it, and an average is still divided by the number of all ranks.
    When the last one has come, all get its parameters and the state of its optimizer, because it has made every step;
    with `model` also the buffers, as those of batch normalization. An exception inside is passed on, and nobody joins.
    """
    if isinstance(optimizer, Sharing):
        raise InvalidArgumentError(
            "Lockstep: with share_weights=True every rank takes part in every step, so join_uneven cannot let one "
            "wait. Give all ranks the same number of batches, or leave share_weights out."
        )
    if getattr(optimizer, "keeps_part_of_state", False):
        raise InvalidArgumentError(
            "Lockstep: with fused=True and ranks on several hosts each rank keeps a part of the optimizer's state and "
            "takes part in every step, so join_uneven cannot let one wait. Use fused=False, or give all ranks the same "
            "number of batches."
        )
    process_set: ProcessSet = getattr(optimizer, "process_set", global_process_set)
    yield
    if not process_set.included():
        return
    last = join(process_set=process_set)
    if model is not None:
        broadcast_parameters(model.state_dict(), last, process_set)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    broadcast_parameters(parameters, last, process_set)
    broadcast_optimizer_state(optimizer, last, process_set=process_set)
