"""Python objects as bytes, for those who run the same program."""

from __future__ import annotations

import io
import pickle
from typing import Any


def dump(value: Any, file: Any) -> None:
    """With cloudpickle, where that is installed, functions and classes of the main program are sent as they are."""
    try:
        import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    else:
        cloudpickle.dump(value, file)


def dumps(value: Any) -> bytes:
    file = io.BytesIO()
    dump(value, file)
    return file.getvalue()


def has_cloudpickle() -> bool:
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        return False
    return True
