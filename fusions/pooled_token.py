"""One token's state for each prompt, where its id is largest (or first equal to the end's), without sizes.

Exporters number the prompts with a Range over the batch, which ONNX Runtime keeps on the CPU: the positions would
travel there and back. A batch dimension of GatherND says the same and needs no numbers.
"""

import onnx_graphsurgeon as gs

from sdort.rewrite.editor import Editor, array, producer
from sdort.rewrite.match import Match, Refusal, decline

STAGE = "raise"
ANCHOR = "ArgMax"
BEFORE = (
    """
g (float[B, S, W] x, int64[B, S] ids, int64[B] number, int64[1] size, int64[2] flat) => (float[B, W] y)
<float[R, W] rows> {
    index = ArgMax <axis = -1, keepdims = 0> (ids)
    start = Mul (number, size)
    position = Add (start, index)
    rows = Reshape (x, flat)
    y = Gather (rows, position)
}""",
    """
g (float[B, S, W] x, int64[B, S] ids, int64[2] flat) => (float[B, W] y) <int64[B] start, float[R, W] rows> {
    index = ArgMax <axis = -1, keepdims = 0> (ids)
    position = Add (start, index)
    rows = Reshape (x, flat)
    y = Gather (rows, position)
}""",
    """
g (float[B, S, W] x, int64[B, S] ids, int64[B, 1] number, int64[2] as_column) => (float[B, W] y)
<int64[B, 1] column> {
    index = ArgMax <axis = -1, keepdims = 0> (ids)
    column = Reshape (index, as_column)
    both = Concat <axis = -1> (number, column)
    y = GatherND (x, both)
}""",
)
AFTER = """
g (float[B, S, W] x, int64[B, S] ids) => (float[B, W] y) {
    index = ArgMax <axis = -1, keepdims = 1> (ids)
    y = GatherND <batch_dims = 1> (x, index)
}"""
EXAMPLE = {
    "B": 2,
    "S": 5,
    "W": 8,
    "R": 10,
    "ids": [[3, 9, 9, 1, 0], [5, 1, 2, 3, 7]],
    "number": ([0, 1], None, [[0], [1]]),
    "start": [0, 5],
    "size": [5],
    "flat": [-1, 8],
    "as_column": [-1, 1],
}


def check(m: Match) -> Refusal | None:
    if "start" in m.tensors and "number" not in m.tensors:
        return None if _counts(m["start"], m.known("S")) else decline("the rows do not begin at 0, S, 2 S")
    if not _counts_batch(m.editor, m["number"]):
        return decline("the prompts are not numbered 0, 1, 2", m["number"].name)
    if "size" in m.tensors and m.editor.dims(m["size"]) != (m.dims["S"],):
        return decline("the rows are not as long as the prompts", m["size"].name)
    return None


def _counts(tensor: gs.Tensor, step: int | None) -> bool:
    values = array(tensor)
    return (
        values is not None
        and step is not None
        and values.reshape(-1).tolist() == list(range(0, values.size * step, step))
    )


def _counts_batch(editor: Editor, tensor: gs.Tensor) -> bool:
    """Whether the elements are 0, 1, 2; how many there are, the tensor's shape says."""
    node = producer(tensor)
    while node is not None and node.op in ("Reshape", "Unsqueeze"):
        tensor = node.inputs[0]
        node = producer(tensor)
    if node is None or node.op != "Range":
        return _counts(tensor, 1)
    return (editor.integer(node.inputs[0]), editor.integer(node.inputs[2])) == (0, 1)
