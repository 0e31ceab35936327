"""The operators that are not ONNX's own: one file each, found by :func:`load_operators`; nothing registers anything."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a provider's file imports no graph libraries
    from sdort.model.operator import Operator


@lru_cache(maxsize=1)
def load_operators() -> Mapping[tuple[str, str], Operator]:
    """All operators, by domain and name."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {(each.domain, each.name): each for each in (module.OPERATOR for module in modules)}


def find_operator(domain: str | None, name: str) -> Operator | None:
    """The operator of a node; None for a standard one, and for one of which nothing is known."""
    return load_operators().get((domain or "", name)) if domain else None
