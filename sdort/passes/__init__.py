"""Whole-graph passes: what a Before / After text cannot say.

A pass is a module with ``run(editor, ...) -> int``, the number of changes that it made; it changes the graph through
the editor only. Beside them: the rules that :mod:`sdort.passes.tidy` applies (``fold``, ``simplify``, ``products``,
``reshape``), the checks of ``types``, and ``widen``, which changes a model file's nodes without an editor.
"""
