"""The timelines of several ranks as one file. See docs/timeline.md."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import c_char_p

from lockstep import _c
from lockstep.work import check


def merge_timelines(paths: Sequence[str | os.PathLike[str]], merged: str | os.PathLike[str]) -> None:
    """Puts the files that ranks wrote ("trace.0.json", "trace.1.json", ...) into one, with one process per rank.

    A file that was cut off, because its rank was killed, counts as far as it goes. Needs no engine.
    """
    encoded = [os.fsencode(path) for path in paths]
    check(_c.library.ls_timeline_merge((c_char_p * len(encoded))(*encoded), len(encoded), os.fsencode(merged)))
