"""The gradients of one optimizer, and what all of them have in common on their way.

A hook on every parameter starts the all-reduce of its gradient as soon as backward has produced it. `synchronize` ends
them: a parameter takes part exactly when some rank has a gradient for it. The ranks tell each other by one small
all-reduce, and a rank that has none adds nothing to the sum. So the ranks agree whatever each of them used, and a
parameter that nobody used keeps `grad is None`, as in a single process.

Where each rank has a dense gradient for each parameter, which is the usual course of things, nothing here is done per
gradient: the hooks have submitted them, and the end of the engine's step waits for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from lockstep import world
from lockstep.engine import ReduceOptions, Work, all_reduce_several_in_step
from lockstep.errors import InvalidArgumentError, LockstepError
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.born_shared import make_room
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.gradient import Gradient
from lockstep.torch.presence import Presence, Unused, presence_of
from lockstep.torch.steps import Turn, steps

# Gradients are submitted when so much has come together. Less would cost more calls; more would begin to travel later,
# and would have left the cache when it is copied.
_BYTES_TOGETHER = 256 * 1024


class Reducer:
    """Starts the reductions of an optimizer's gradients and brings them to their end."""

    def __init__(
        self,
        reduce_options: ReduceOptions,
        compression: type[Compressor],
        backward_passes: int,
        process_set: ProcessSet,
        sparse_as_dense: bool,
        grouped: bool,
        prefix: str,
        lazy: bool = False,
    ) -> None:
        """lazy: nothing is reduced before `synchronize`, because gradients usually go another way (fused.py)."""
        self.lazy = lazy
        self.reduce_options = reduce_options
        self.compression = compression
        self.process_set = process_set
        self.sparse_as_dense = sparse_as_dense
        # Steps are those of the whole world; and tensors that the program has grouped need no plan.
        self.in_steps = process_set is global_process_set and not grouped
        self.eager = not self.in_steps  # hooks submit; False: not before this optimizer's `synchronize`
        self.direct = False  # the hot path may be taken
        self.round = 0  # from one `synchronize` or `zero_grad` to the next
        self.touched = False  # backward has come by in this round
        self.kept: list[torch.Tensor] = []  # what is under way, one for each gradient that was started
        self.places: list[
            int
        ] = []  # those of `kept` that are not submitted yet: addresses of tensor and values in turn
        self.room = _BYTES_TOGETHER  # what may still come before they are
        self.settled: list[torch.Tensor] = []  # what was under way and came to its end before `synchronize`
        self.unfinished: list[Gradient] = []  # started ones whose result must still be put into place
        self.works: list[Work] = []  # outside of steps
        self.presence = Presence(f"{prefix}gradients_present", process_set)
        self._prefix = prefix
        self._passes = backward_passes
        self._gradients: dict[torch.Tensor, Gradient] = {}
        self._frozen: list[Gradient] = []
        self._with_room: set[int] = set()
        self._all_present = b""
        self._refusal: LockstepError | None = None
        self._unused = Unused(process_set)
        self._turn = Turn(self)
        if self.in_steps and not lazy:
            steps.enter(self._turn)

    @property
    def backward_passes(self) -> int:
        return self._passes

    @backward_passes.setter
    def backward_passes(self, passes: int) -> None:
        self._passes = passes
        self.let_submit(self.eager)

    def let_submit(self, eagerly: bool) -> None:
        """Whether hooks submit gradients as they come: only the optimizer whose turn it is may have some in a step."""
        self.eager = eagerly and not self.lazy
        self.direct = self.eager and self.in_steps and self._passes == 1 and self.compression is Compression.none

    def begin_to_submit(self) -> None:
        """It was lazy, and is so no longer: gradients travel as they come."""
        self.lazy = False
        if self.in_steps:
            steps.enter(self._turn)
        else:
            self.let_submit(True)

    @property
    def fresh(self) -> bool:
        """Whether backward has computed gradients since they were last reduced."""
        return self.touched or bool(self.kept)

    def add(self, parameters: Iterable[tuple[torch.Tensor, str]]) -> None:
        """Takes on parameters that are new. `watch` then puts hooks on them."""
        for parameter, name in parameters:
            if parameter not in self._gradients:
                self._gradients[parameter] = Gradient(parameter, name, self._prefix + name, self)
                self._frozen.append(self._gradients[parameter])
        self._note_hooks()
        if self.lazy:
            self._make_room([gradient for gradient in self._frozen if gradient.parameter.requires_grad])

    def watch(self) -> list[Any]:
        """Puts a hook on every parameter that can have gradients and has none yet: frozen ones may thaw later.

        Returns what removes the new hooks.
        """
        thawed = [gradient for gradient in self._frozen if gradient.parameter.requires_grad]
        if not thawed:
            return []
        self._frozen = [gradient for gradient in self._frozen if not gradient.parameter.requires_grad]
        self._note_hooks()
        self._make_room(thawed)
        return [_hook(gradient) for gradient in thawed]

    def _make_room(self, gradients: Sequence[Gradient]) -> None:
        """Gradients are born where peers can read them: once for each that can be."""
        new = [gradient.parameter for gradient in gradients if id(gradient) not in self._with_room]
        self._with_room.update(map(id, gradients))
        make_room(self, new)

    def _note_hooks(self) -> None:
        frozen = {id(gradient) for gradient in self._frozen}
        hooked = [id(gradient) not in frozen for gradient in self._gradients.values()]
        self._all_present = presence_of(hooked, [False] * len(hooked))

    def let_travel_together(self, groups: Iterable[Sequence[torch.Tensor]]) -> None:
        for parameters in groups:
            companions = [self._gradients[parameter] for parameter in parameters if parameter in self._gradients]
            for gradient in companions:
                gradient.companions = companions

    def start_together(self, gradients: Sequence[Gradient]) -> None:
        """Starts the reductions of several gradients as one unit."""
        views = [gradient.prepare() for gradient in gradients]
        memory = [gradient.sent for gradient in gradients], list(self.kept)
        self.works.append(world.engine().grouped_all_reduce(views, views, self.reduce_options, memory))

    def submit(self) -> None:
        """Hands over to the engine what the hooks have gathered: one call for several is cheaper than one for each."""
        places, self.places = self.places, []
        self.room = _BYTES_TOGETHER
        try:
            all_reduce_several_in_step(steps.engine or steps.begin(), places, self.reduce_options)
        except LockstepError as error:
            self._refusal = error
            raise

    # What ends a round.

    def synchronize(self) -> None:
        """Reduces all gradients of this round, those that backward has computed and those that the program has set."""
        try:
            if self.in_steps:
                steps.take(self._turn)
            self._reduce(started_only=False)
        finally:
            self._begin_round()
        if self.in_steps:
            steps.pass_on(self._turn)

    def discard(self) -> None:
        """The gradients are of no use any more. What was sent is let through, so that the ranks stay together."""
        try:
            if self.kept:
                self._reduce(started_only=True)
        finally:
            self._begin_round()

    def settle(self) -> None:
        """Ends the reductions that are under way; the round goes on."""
        for gradient in self._reduce(started_only=True):
            gradient.note_reduced()

    def _begin_round(self) -> None:
        self.round += 1
        self.touched = False
        self.settled.clear()

    def _reduce(self, *, started_only: bool) -> list[Gradient]:
        """Starts what this rank lacks and another has, waits for all, and says which were under way anywhere."""
        try:
            if self.places:
                with contextlib.suppress(LockstepError):  # `_finish` raises it: the ranks stay together until then
                    self.submit()
            taking_part = self._start_what_others_have(started_only)
            self._finish()
            return taking_part
        except Exception:
            # The step ends on the other ranks too, and a later one begins with nothing under way.
            with contextlib.suppress(LockstepError):
                if steps.engine is not None:
                    steps.end()
            raise
        except BaseException:
            # Ctrl-C. The engine goes on writing into what is under way.
            world.engine().keep([*self.kept, *(gradient.sent for gradient in self.unfinished)])
            raise
        finally:
            if started_only:
                self.settled += self.kept
            self.kept.clear()
            self.places.clear()
            self._refusal = None
            self.works.clear()
            self.unfinished.clear()

    def _start_what_others_have(self, started_only: bool) -> list[Gradient]:
        gradients = list(self._gradients.values())
        complete = len(self.kept) == len(gradients) - len(self._frozen) and not self.unfinished
        complete = complete and (started_only or all(gradient.parameter.grad is None for gradient in self._frozen))
        mine = self._all_present if complete else self._present(gradients, started_only)
        anywhere = self.presence.exchange(mine)
        if complete and anywhere == mine:
            return gradients if started_only else []
        count = len(gradients)
        taking_part, unused = [], []
        for gradient, dense, sparse in zip(gradients, anywhere[:count], anywhere[count:], strict=True):
            if dense and sparse:
                raise InvalidArgumentError(
                    f"Lockstep: the gradient of {gradient.name} is sparse on some ranks and dense on others. Pass "
                    f"sparse_as_dense=True to DistributedOptimizer."
                )
            if dense or sparse:
                taking_part.append(gradient)
                if not gradient.in_flight:
                    gradient.start(bool(sparse))
            elif gradient.parameter.requires_grad:
                unused.append(gradient.name)
        if unused and taking_part and not started_only:
            self._unused.tell(unused)
        return taking_part

    def _present(self, gradients: Sequence[Gradient], started_only: bool) -> bytes:
        here = [gradient.in_flight if started_only else gradient.waits for gradient in gradients]
        sparse = [present and gradient.travels_sparse for present, gradient in zip(here, gradients, strict=True)]
        dense = [present and not other for present, other in zip(here, sparse, strict=True)]
        return presence_of(dense, sparse)

    def _finish(self) -> None:
        if self.in_steps:
            steps.end()
        failure: Exception | None = self._refusal  # a program may have gone on after that
        for work in self.works:
            try:
                work.wait()
            except LockstepError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        for gradient in self.unfinished:
            gradient.finish()


def _hook(gradient: Gradient) -> Any:
    return gradient.parameter.register_post_accumulate_grad_hook(gradient.on_backward)  # type: ignore[no-untyped-call]
