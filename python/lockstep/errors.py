"""What Lockstep raises: one class per status of the C interface, all of them LockstepError."""

from __future__ import annotations


class LockstepError(RuntimeError):
    """The base of all errors of Lockstep. A RuntimeError, so that programs which expect one keep working."""


class InvalidArgumentError(LockstepError, ValueError):
    """The call itself is wrong, for example a name that is still in flight. Nothing was sent."""


class NotInitializedError(LockstepError, ValueError):
    """`init()` has not been called in this process, or `shutdown()` has been called since."""


class MismatchError(LockstepError):
    """The ranks disagree about an operation. It is raised on all of them."""


class PeerLostError(LockstepError):
    """A rank died, was stopped or left."""


class TimedOutError(LockstepError):
    """A wait reached its limit."""


class AbortedError(LockstepError):
    """A rank ended the world for everybody and said why."""


class UnavailableError(LockstepError):
    """The other ranks could not be reached at the start."""


class IncompatibleVersionsError(UnavailableError):
    """The ranks have different versions of Lockstep. Uncaught, it ends the process with exit code 76."""


class OperatingSystemError(LockstepError):
    """The operating system refused something."""


class InternalError(LockstepError):
    """A defect in Lockstep: please report it."""


# Numbers of ls_status.
_BY_STATUS: dict[int, type[LockstepError]] = {
    1: InvalidArgumentError,
    2: MismatchError,
    3: PeerLostError,
    4: TimedOutError,
    5: AbortedError,
    6: UnavailableError,
    7: OperatingSystemError,
    8: InternalError,
    9: IncompatibleVersionsError,
}


def from_status(status: int, message: str) -> LockstepError:
    return _BY_STATUS.get(status, InternalError)(message)
