"""Rotary embedding of elements half a head apart as Llama and Qwen write it, x cos + turned(x) sin -> RotaryEmbedding.

turned(x) is the second half, negated, and the first (https://arxiv.org/abs/2104.09864). The tables are as wide as a
head, with each angle in both halves.
"""

from typing import Any

from sdort.fusions.rotary_pairs import AFTER as AFTER
from sdort.fusions.rotary_pairs import check_tables, derive_tables

from sdort.rewrite.match import Match, Refusal

STAGE = "raise"
ANCHOR = "Neg"
_TURNED = """
    first, second = Split <axis = -1, num_outputs = 2> (x)
    minus = Neg (second)
    turned = Concat <axis = -1> (minus, first)
    straight = Mul (x, cos)
    crossed = Mul (turned, sin)
    y = Add (straight, crossed)
"""
BEFORE = (
    f"""
g (float[B, S, N, D] x, float[A, S, 1, D] cos, float[A, S, 1, D] sin) => (float[B, S, N, D] y) {{ {_TURNED} }}""",
    f"""
g (float[B, N, S, D] x, float[A, 1, S, D] cos, float[A, 1, S, D] sin) => (float[B, N, S, D] y) {{ {_TURNED} }}""",
)
EXAMPLE = {"B": 2, "S": 5, "N": 3, "D": 8, "A": 2, "cos": "halves", "sin": "halves"}


def check(m: Match) -> Refusal | None:
    refusal: Refusal | None = check_tables(m, pairs=False)
    return refusal


def derive(m: Match) -> dict[str, Any]:
    tables: dict[str, Any] = derive_tables(m, pairs=False)
    return tables
