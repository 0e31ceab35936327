"""Fixtures of the tests of PyTorch operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def operator_kernels() -> Iterator[None]:
    """The operators run the library of the tests."""
    from support import native

    from sdort.integrations.torch_operators import launching
    from sdort.ops.pointer_kernels import Kernels

    kernels = Kernels(native.library())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "_loaded", lambda: (kernels, ""))
        yield


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is told from now on, as if nothing had been."""
    from sdort.integrations.torch_operators import launching

    said: list[str] = []
    launching.tell.cache_clear()
    monkeypatch.setattr(launching, "warn", said.append)
    return said
