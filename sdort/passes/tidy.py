"""What exporters leave is folded and simplified until there is one spelling of everything."""

from __future__ import annotations

from sdort.model.model import Model
from sdort.passes import (
    fold,
    products,
    reshape,
    simplify,
    tidy,
    upgrade,
)
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


def canonicalize(model: Model) -> None:
    """What an exporter's graph needs to be a tidy standard one: constants folded, shape residue gone."""
    upgrade.to_pattern_opset(model)
    tidy.run(Editor(model))
