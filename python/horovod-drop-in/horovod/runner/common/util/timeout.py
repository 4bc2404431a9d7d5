"""A limit of time, with the words for when it is reached."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    pass


class Timeout:
    def __init__(self, timeout: float, message: str) -> None:
        """`message` may have places for {activity} and {timeout}."""
        self._timeout = timeout
        self._timeout_at = time.time() + timeout
        self._message = message

    def remaining(self) -> float:
        return max(0.0, self._timeout_at - time.time())

    def timed_out(self) -> bool:
        return time.time() > self._timeout_at

    def check_time_out_for(self, activity: str) -> None:
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout))


__all__ = ["Timeout", "TimeoutException"]
