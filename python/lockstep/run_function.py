"""What each process of `lockstep.launch.run` executes: python -m lockstep.run_function FOLDER."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from lockstep.launch import CALL, RESULT


def main(folder: str) -> None:
    function, args, kwargs = pickle.loads(Path(folder, CALL).read_bytes())
    result = function(*args, **kwargs)
    Path(folder, RESULT.format(os.environ["LOCKSTEP_RANK"])).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
