"""ONNX Runtime's EmbedLayerNormalization, as another tool has put it in: Gathers, sums and a LayerNormalization.

Without ids of positions these are the numbers of the rows. The lengths that it counts of a mask (its second output) are
restored too, as one number for each sample.
"""

from itertools import product
from typing import Any

import numpy as np

from sdort.rewrite.match import Match

STAGE = "restore"
ANCHOR = "com.microsoft.EmbedLayerNormalization"
_OPTIONS = tuple(product((0, 1), repeat=3))

_LENGTHS = "ones = Equal (open, number)  ends = Cast <to = 6> (ones)  lengths = ReduceSum <keepdims = 0> (ends, last)"


def _texts(segments: int, mask: int, positions: int) -> tuple[str, str]:
    flows = ["int64[B, S] ids", *(["int64[B, S] segment_ids"] if segments else []), "float[] word, float[] position"]
    flows += ["float[] segment"] if segments else []
    flows += ["float[] gamma, float[] beta", *(["int64[B, S] open"] if mask else [])]
    flows += ["int64[R, S] position_ids"] if positions else []
    given = [
        "ids", "segment_ids" if segments else '""', "word", "position", "segment" if segments else '""', "gamma",
        "beta", "open" if mask else '""', "position_ids" if positions else '""',
    ]  # fmt: skip
    while given[-1] == '""':
        given.pop()
    head = f"g ({', '.join(flows)}) => (float[] y{', int64[] lengths' if mask else ''}, float[] sum) {{"
    counted = "all = Shape <start = 1, end = 2> (ids)  count = Squeeze (all)  rows = Range (none, count, step)"
    placed = "sum = Add (words, places)"
    if segments:
        placed = "part = Gather (segment, segment_ids)  placed = Add (words, places)  sum = Add (placed, part)"
    return f"""{head}
    y, lengths, sum = com.microsoft.EmbedLayerNormalization <epsilon: float = @epsilon,
                                                             mask_index_type = 0> ({", ".join(given)})
}}""", f"""{head}
    words = Gather (word, ids)
    {"" if positions else counted}
    places = Gather (position, {"position_ids" if positions else "rows"})
    {placed}
    y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
    {_LENGTHS if mask else ""}
}}"""  # fmt: skip


BEFORE, AFTER = zip(*(_texts(*options) for options in _OPTIONS), strict=True)
_IDS = np.array([[0, 3, 2, 1, 5], [4, 4, 0, 1, 2]], np.int32)
EXAMPLE = {
    "B": 2, "S": 5, "R": 1, "ids": _IDS, "segment_ids": _IDS % 2,
    "open": np.array([[1] * 5, [1, 1, 1, 0, 0]], np.int32), "position_ids": np.array([[4, 3, 2, 1, 0]], np.int32),
    "word": [6, 8], "position": [9, 8], "segment": [2, 8],
    "gamma": [8], "beta": [8], "epsilon": 1e-3, "lengths": np.zeros(2, np.int32),
}  # fmt: skip


def derive(m: Match) -> dict[str, Any]:
    numbers = {"none": np.array(0, np.int64), "step": np.array(1, np.int64), "number": np.array(1, np.int32)}
    return {name: m.editor.constant(value, name) for name, value in numbers.items()} | {"last": m.editor.ints([-1])}
