"""The rules of :mod:`sdort.passes.tidy` by themselves: each applies one module's until nothing changes."""

from __future__ import annotations

from sdort.passes import fold, reshape, simplify
from sdort.rewrite.editor import Editor
from sdort.rewrite.worklist import apply_rules


def run_fold(editor: Editor) -> int:
    """Fold constants; returns the number of changes."""
    return apply_rules(editor, [fold.fold])


def run_simplify(editor: Editor) -> int:
    """Simplify; returns the number of changes."""
    return apply_rules(editor, simplify.RULES)


def run_constant_views(editor: Editor) -> int:
    """Give views constant targets; returns the number of changes."""
    return apply_rules(editor, [reshape.constant_view])
