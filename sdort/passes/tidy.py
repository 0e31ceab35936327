"""Exporters' leftovers are folded and simplified until there is one form of everything."""

from __future__ import annotations

from sdort.passes import fold, products, reshape, simplify
from sdort.rewrite.editor import Editor
from sdort.rewrite.worklist import apply_rules

RULES = (fold.fold, reshape.constant_view, *simplify.RULES, *products.RULES)


def run(editor: Editor) -> int:
    """Fold, simplify and merge equal nodes until nothing changes; returns the number of changes.

    Equal nodes are merged after everything else: most simplifications need a tensor of one reader.
    """
    changes = apply_rules(editor, RULES)
    while merged := simplify.merge_equal_nodes(editor):
        changes += merged + apply_rules(editor, RULES)
    return changes
