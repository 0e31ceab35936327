"""The parts of sdort that lie beside it in a checkout: ``fusions`` and ``custom_ops``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from sdort.errors import UsageError
from sdort.machine.distributions import pip


def import_part(name: str) -> ModuleType:
    """The package ``sdort.NAME``: beside ``sdort`` in a checkout, inside of it in an installed wheel.

    Args:
        name: ``fusions`` or ``custom_ops``.

    Raises:
        UsageError: it is another checkout's, as where ``PYTHONPATH`` names one clone and another one is installed in
            editable mode, whose import hook answers for what is not in the folder ``sdort``.
    """
    own = Path(__file__).resolve().parents[1]
    part = _import(name, own)
    folder = Path(part.__path__[0]).resolve()
    if folder.parent not in (own, own.parent):
        raise UsageError(
            f"two checkouts are mixed: sdort is {own}, and its {name} {folder}",
            hint=f"Use the environment in which {own.parent} is installed, or install it into this one:\n"
            f"{pip('install', '-e', str(own.parent))}",
        )
    return part


def _import(name: str, own: Path) -> ModuleType:
    try:
        return importlib.import_module(f"sdort.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"sdort.{name}" or not (own.parent / name / "__init__.py").is_file():
            raise
    # A checkout on PYTHONPATH that is not installed: no import hook tells where its parts are.
    sys.modules["sdort"].__path__.append(str(own.parent))
    return importlib.import_module(f"sdort.{name}")
