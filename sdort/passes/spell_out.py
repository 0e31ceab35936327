"""For MIGraphX: inputs that are left out become empty tensors, which mean the same.

MIGraphX's parser (2.14) keeps tensors by name, and an output without a name (SkipLayerNormalization's mean) likewise:
from then on that is the value of every input that is left out.
"""

from __future__ import annotations

import numpy as np

from sdort.rewrite.editor import Editor

SPELLED = {"Resize": (1, 2)}
"""Inputs that may be empty: Resize's region and scales, where it has sizes."""


def run(editor: Editor) -> None:
    for node in editor.graph.nodes:
        for index in SPELLED.get(node.op, ()) if not node.domain else ():
            if index < len(node.inputs) and not node.inputs[index].name:
                node.inputs[index] = editor.constant(np.empty(0, np.float32), "empty")
    editor.finish()
