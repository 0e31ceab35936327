"""NumPy's products in threads of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy  # noqa: F401 (a BLAS can be told once it is loaded)
from threadpoolctl import ThreadpoolController

_libraries = ThreadpoolController()
_lock = Lock()
_users = 0
_limits: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let each product of NumPy's take one thread while the block runs, for callers that are several threads already.

    OpenBLAS's own threads wait for each other when several callers share them: two of them took four times the
    processor time of one for the products of LoRA files. The setting is the process's; the last block that ends takes
    it back.
    """
    global _users, _limits
    with _lock:
        if not _users:
            _limits = _libraries.limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _limits.restore_original_limits()
