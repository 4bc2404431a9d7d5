"""The engine's steps, around the reductions of gradients.

Inside a step the engine learns which gradients come, and in which order, and lets them travel together. Only gradients
belong to it: an operation that the program makes between backward and `step` is the same as outside.

The engine has one step at a time, and ends it for all gradients in it. So it belongs to one optimizer, whose turn it
is: the one that is expected to step next. What backward computes for the others waits until they step themselves; if it
is thrown away, as a GAN does while its generator trains, it never travels. Whose turn it is follows from the calls of
`synchronize` and `step` so far, which are the same on all ranks.
"""

from __future__ import annotations

import os
import weakref
from ctypes import c_void_p
from typing import TYPE_CHECKING

from lockstep import world

if TYPE_CHECKING:
    from lockstep.torch.reducer import Reducer


class Turn:
    """What is known of an optimizer's reducer, also when it is gone on this rank and not yet on another."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = weakref.ref(reducer)
        self.presence = reducer.presence

    def let_submit(self, eagerly: bool) -> None:
        reducer = self.reducer()
        if reducer is not None:
            reducer.let_submit(eagerly)

    def settle(self) -> None:
        """Brings what was submitted to its end, as all ranks do now."""
        reducer = self.reducer()
        if reducer is not None:
            reducer.settle()
        else:
            self.presence.exchange_nothing()
            steps.end()


class Steps:
    """The open step, if there is one, and whose turn it is."""

    def __init__(self) -> None:
        self.engine: c_void_p | None = None  # of the open step
        self._turn: Turn | None = None
        self._last: Turn | None = None
        self._followers: dict[Turn, Turn] = {}  # who came after whom the last time

    def begin(self) -> c_void_p:
        """Opens a step where none is open."""
        if self.engine is None:
            self.engine = world.engine().begin_step()
        return self.engine

    def end(self) -> None:
        """Waits for all that was submitted in the step. A rank that had nothing in it ends it all the same."""
        self.begin()
        self.engine = None
        world.engine().end_step()

    def enter(self, turn: Turn) -> None:
        """A new optimizer, or one that begins to submit only now. The first one has the first turn."""
        if self._turn is None:
            self._give(turn)
        elif self._turn is turn:
            turn.let_submit(True)

    def take(self, turn: Turn) -> None:
        """This optimizer reduces now. If it is another's turn, what that has under way is settled first."""
        if self._turn is not turn:
            if self._turn is not None:
                self._turn.settle()
            self._give(turn)

    def pass_on(self, turn: Turn) -> None:
        """This optimizer has reduced: the next turn is that of the one which followed the last time."""
        if self._last is not None:
            self._followers[self._last] = turn
        self._last = turn
        self._give(self._followers.get(turn, turn))

    def settle(self) -> None:
        """Ends the open step, where gradients were computed that nobody has stepped with."""
        if self.engine is not None and self._turn is not None:
            self._turn.settle()

    def _give(self, turn: Turn) -> None:
        if turn is not self._turn:
            if self._turn is not None:
                self._turn.let_submit(False)
            turn.let_submit(True)
            self._turn = turn

    def forget(self) -> None:
        """The world has ended, or this is a forked child, which has none."""
        if self._turn is not None:
            self._turn.let_submit(False)
        self.engine = self._turn = self._last = None
        self._followers.clear()


steps = Steps()
world.at_shutdown(steps.forget)
os.register_at_fork(after_in_child=steps.forget)
