"""Fixtures of the tests of PyTorch operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def operator_kernels() -> Iterator[None]:
    """The operators run the library of the tests."""
    from support import native

    from sdort.integrations.torch_operators import launching
    from sdort.operator_library.pointer_kernels import Kernels, Place

    kernels = Kernels(native.library())
    kernels.serve_torch(cpu=Place.CPU, gpu=Place.CUDA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "loaded", lambda: (kernels, ""))
        launching.serves.cache_clear()
        yield
    launching.serves.cache_clear()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is told from now on, as if nothing had been."""
    from sdort.integrations.torch_operators import launching

    said: list[str] = []
    launching.tell.cache_clear()
    launching.serves.cache_clear()
    monkeypatch.setattr(launching, "warn", said.append)
    return said
