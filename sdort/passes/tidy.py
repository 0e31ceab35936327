"""Exporters' leftovers are folded and simplified until there is one form of everything."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.passes import fold, modulations, products, reshape, scales, simplify, transposes
from sdort.rewrite.editor import Editor
from sdort.rewrite.worklist import RewriteRule, apply_rules

RULES = (fold.fold, reshape.constant_view, *simplify.RULES, *products.RULES, *transposes.RULES, *modulations.RULES)
BEFORE_FUSIONS = (*RULES, *scales.RULES, *modulations.ROUNDING)
"""Also what rounds otherwise, where patterns would not match without."""


def run(editor: Editor, rules: Sequence[RewriteRule] = RULES) -> int:
    """Fold, simplify and merge equal nodes until nothing changes; returns the number of changes.

    Equal nodes are merged after everything else: most simplifications need a tensor of one reader.
    """
    changes = apply_rules(editor, rules)
    while merged := simplify.merge_equal_nodes(editor):
        changes += merged + apply_rules(editor, rules)
    return changes
