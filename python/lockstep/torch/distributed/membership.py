"""Which ranks of which engine a process group consists of, and what is shared by the groups of one engine."""

from __future__ import annotations

import atexit
import hashlib
from collections.abc import Sequence
from functools import cache

from lockstep.engine import Engine, Group, ReduceOp, ReduceOptions, reduce_options
from lockstep.errors import InvalidArgumentError
from lockstep.leaving import leave_at_exit
from lockstep.torch.distributed.completion import Completion


class Membership:
    """The members of a process group, by their place in it. The engine knows them by their ranks of its world."""

    def __init__(
        self, engine: Engine, completion: Completion, ranks: Sequence[int], group: Group | None, name: str
    ) -> None:
        self.engine = engine
        self.completion = completion
        self.ranks = ranks
        self.group = group  # None: the whole world of the engine
        self.size = len(ranks)
        self.rank = ranks.index(engine.rank)
        self._name = name
        self.options = cache(self._make_options)
        self.tag = cache(self._make_tag)

    @staticmethod
    def of_world(engine: Engine, name: str) -> Membership:
        """All ranks of an engine, which is stopped with it."""
        membership = Membership(engine, Completion(), range(engine.size), None, name)
        atexit.register(membership._at_exit)
        return membership

    def subset(self, ranks: Sequence[int], name: str) -> Membership:
        """Some ranks of the engine, among them this one. Called by each of them."""
        if list(ranks) != sorted(set(ranks)):
            raise InvalidArgumentError(
                f"Lockstep: a process group must list its ranks in ascending order, each once; this one has {ranks}."
            )
        return Membership(self.engine, self.completion, ranks, self.engine.make_group(ranks), name)

    def _make_options(self, op: ReduceOp, prescale: float = 1.0) -> ReduceOptions:
        return reduce_options(op, prescale, group=self.group)

    def _make_tag(self, tag: int) -> int:
        """The engine's tags are those of its world: messages of different groups must not meet there."""
        digest = hashlib.blake2b(f"{self._name}\n{tag}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) >> 1

    def leave(self) -> None:
        """Stops the engine, if this is its world. Operations under way end with an error."""
        if self.group is None:
            atexit.unregister(self._at_exit)
            self.engine.stop()
            self.completion.stop()

    def _at_exit(self) -> None:
        leave_at_exit(self.engine, self.leave)
