"""Fixtures that several test modules share. Torch is imported only by the tests that export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from exports import Case


@pytest.fixture(scope="session")
def exported(request: pytest.FixtureRequest) -> Callable[[Case], Path]:
    """``exported(Case("sd1", "dy23"))`` is the path of that case's ``.onnx`` file, weights inside.

    Traces live in pytest's own cache folder under a key of their sources and exporters, so test processes and
    later runs share them; ``pytest --cache-clear`` drops them.
    """
    folder = request.config.cache.mkdir("exports")

    def export(case: Case) -> Path:
        from exports import export_case

        return export_case(case, folder)

    return export
