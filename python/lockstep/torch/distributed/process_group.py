"""A process group of torch.distributed that runs on an engine."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lockstep.torch.distributed import BACKEND
from lockstep.torch.distributed.membership import Membership
from lockstep.torch.distributed.messages import Messages
from lockstep.torch.distributed.movements import Movements
from lockstep.torch.distributed.reductions import Reductions

# To the type checker: PyTorch's declarations name neither all of the methods nor what is passed to them.
_ProcessGroup: Any = dist.ProcessGroup


class LockstepProcessGroup(Reductions, Movements, Messages, _ProcessGroup):  # type: ignore[misc]
    """PyTorch calls these methods from Python and from C++. The spelling of the names is PyTorch's."""

    def __init__(self, store: Any, membership: Membership) -> None:
        super().__init__(membership.rank, membership.size)
        self.membership = membership
        self._store = store
        self._name = ""
        self._description = "undefined"

    # Its name, which functional collectives and meshes find it by.

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    _set_group_desc = setGroupDesc

    @property
    def group_desc(self) -> str:
        return self._description

    def getBackendName(self) -> str:
        return BACKEND

    name = _get_backend_name = getBackendName

    # What it is.

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of a wait is that of the engine, from its start on: the `timeout` of init_process_group."""

    # Its end.

    def shutdown(self) -> None:
        """Leaves: operations that are still under way end with an error."""
        self.membership.leave()

    def abort(self) -> None:
        """Ends all operations under way, on every rank: they and all later ones raise an error."""
        if not self.membership.engine.stopped:
            self.membership.engine.abort(f"rank {self.membership.engine.rank} has aborted its process group")
            self.shutdown()
