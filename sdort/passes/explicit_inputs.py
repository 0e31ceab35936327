"""Inputs that are left out become empty tensors, which mean the same, where a target asks for it.

MIGraphX's parser (2.14) keeps tensors by name, and an output without a name (SkipLayerNormalization's mean) likewise:
from then on that is the value of every input that is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sdort.rewrite.editor import Editor


def run(editor: Editor, explicit: Mapping[str, Sequence[int]]) -> int:
    """Make inputs explicit; returns how many were left out.

    Args:
        explicit: standard operators and the positions of their inputs.
    """
    changes = 0
    for node in editor.graph.nodes:
        for index in explicit.get(node.op, ()) if not node.domain else ():
            if index < len(node.inputs) and not node.inputs[index].name:
                node.inputs[index] = editor.constant(np.empty(0, np.float32), "empty")
                changes += 1
    return changes
