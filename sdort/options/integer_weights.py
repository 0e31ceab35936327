"""The integers that weights of linear layers can be: apart, for an option's choices are read without a model's code."""

from __future__ import annotations

from typing import Final

INTEGERS: Final = {"int8": 8, "int4": 4}
"""Their names, of the option and of the mark of a model that has them, and their bits."""
