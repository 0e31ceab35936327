"""GEGLU of one product, as T5 1.1 has it, with the Gelu of a tangent: two projections of one tensor are packed."""

from typing import Any

from sdort.fusions.split_silu import EXAMPLE as EXAMPLE
from sdort.fusions.split_silu import STAGE as STAGE
from sdort.fusions.split_silu import after, before, packed

from sdort.rewrite.match import Match

ANCHOR = "Gelu"
BEFORE, AFTER = before('act = Gelu <approximate = "tanh"> (gate)'), after("SplitFastGelu")


def derive(m: Match) -> dict[str, Any]:
    found: dict[str, Any] = packed(m)
    return found
