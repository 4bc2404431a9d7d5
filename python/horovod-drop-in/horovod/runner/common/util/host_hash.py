"""Which host this is, in a form that two processes can compare."""

from __future__ import annotations

import hashlib
import os
import socket


def host_hash(salt: str | None = None) -> str:
    """The same for all processes of a host, and of no other."""
    words = [socket.gethostname(), os.environ.get("CONTAINER_ID", ""), *([salt] if salt else [])]
    digest = hashlib.md5("-".join(words).encode(), usedforsecurity=False).hexdigest()
    return f"{socket.gethostname().split('.')[0]}-{digest}"


__all__ = ["host_hash"]
