"""The handle of an operation as torch.distributed knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work as TorchWork

from lockstep.engine import Work
from lockstep.errors import TimedOutError
from lockstep.torch.distributed.completion import Completion


class GroupWork(TorchWork):
    """One or more operations of the engine that are one to PyTorch.

    `results` are the tensors that it writes; `finish` brings them there, where the engine could not do so itself. It
    runs once, on the first thread that finds the operations ended.
    """

    def __init__(
        self,
        completion: Completion,
        operation: str,
        works: Sequence[Work],
        results: Sequence[torch.Tensor],
        finish: Callable[[], None] | None = None,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._completion = completion
        self._operation = operation
        self._works = works
        self._results = list(results)
        self._finish = finish
        self._source = source
        self._lock = threading.Lock()
        self._finished = False
        self._failure: Exception | None = None
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until the results are in place and raises the operation's error. A timeout of 0 is none."""
        seconds = timeout.total_seconds()
        if not self._ended_within(seconds if seconds > 0 else None):
            raise TimedOutError(f"Lockstep: {self._operation} is still under way after {seconds:g} s.")
        if self._failure is not None:
            raise self._failure
        return True

    def is_completed(self) -> bool:
        return self.ended_within(0)

    def is_success(self) -> bool:
        return self.ended_within(0) and self._failure is None

    def exception(self) -> Exception | None:
        return self._failure if self.ended_within(0) else None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Its value is the list of results. Its error is that of the operation."""
        if self._future is None:
            ended: torch.futures.Future[bool] = torch.futures.Future()
            # PyTorch crashes where it meets a future with set_exception, but takes the error of a callback well.
            self._future = ended.then(lambda _: self.result())
            self._completion.add(self, lambda: ended.set_result(True))
        return self._future

    def ended_within(self, seconds: float) -> bool:
        """Waits, at most so long; True once it has ended, well or not, and its results are in place."""
        return self._ended_within(seconds)

    def _ended_within(self, seconds: float | None) -> bool:
        if self._finished:
            return True
        try:
            for work in self._works:
                if not work.wait(seconds):
                    return False
        except Exception as error:
            failure: Exception | None = error
        else:
            failure = None
        with self._lock:
            if not self._finished:
                self._settle(failure)
        return True

    def _settle(self, failure: Exception | None) -> None:
        self._failure = failure
        if failure is None and self._finish is not None:
            try:
                self._finish()
            except Exception as error:
                self._failure = error
        self._finish = None
        self._works = ()
        self._finished = True
