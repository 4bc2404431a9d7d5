"""Keys that programs of Horovod sign messages with. Lockstep's own secret is made by its launcher."""

from __future__ import annotations

import hashlib
import hmac
import secrets

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH = 32


def make_secret_key() -> bytes:
    return secrets.token_bytes(DIGEST_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    return hmac.compare_digest(compute_digest(key, message), digest)


__all__ = ["DIGEST_LENGTH", "HOROVOD_SECRET_KEY", "check_digest", "compute_digest", "make_secret_key"]
