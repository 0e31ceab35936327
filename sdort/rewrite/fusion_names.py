"""The names of the fusions, without importing one: for a command line that is being parsed or completed."""

from __future__ import annotations

import pkgutil

from sdort.files.checkout import import_part


def fusion_names() -> list[str]:
    """All fusions by name, in alphabetical order.

    Raises:
        UsageError: they are another checkout's (:func:`sdort.files.checkout.import_part`).
    """
    return sorted(info.name for info in pkgutil.iter_modules(import_part("fusions").__path__))
