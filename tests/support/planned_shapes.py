"""The CPU's provider as one that plans its convolutions for one shape at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sdort.providers import CPU
from sdort.runtime import opener
from sdort.runtime import session as session_module


@contextmanager
def planned_shapes() -> Iterator[list[str]]:
    """A block in which it is so; gives the names of the providers of the sessions that are opened in it."""
    found: list[str] = []
    before = CPU.plans_shapes, CPU.session_bytes
    create = opener.create_session

    def counted(model: Any, provider: Any, *args: Any, **options: Any) -> Any:
        found.append(provider.name)
        return create(model, provider, *args, **options)

    for name, value in (("plans_shapes", True), ("session_bytes", 1 << 20)):
        object.__setattr__(CPU, name, value)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_module, "create_session", counted)
            yield found
    finally:
        for name, kept in zip(("plans_shapes", "session_bytes"), before, strict=True):
            object.__setattr__(CPU, name, kept)
