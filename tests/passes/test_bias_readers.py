"""Which readers do without a bias: each operator, input by input, and each setting that it does not bear."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Array, edit

from sdort.graph.weights import Inline
from sdort.passes.channel_biases import Sweep, total
from sdort.rewrite.editor import Editor

MID = "mid_block_additional_residual"


class Kernels:
    """A target that runs all but some operators, and keeps what it was asked for."""

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks
        self.asked: list[tuple[str, str, list[str], dict[str, Any]]] = []

    def unsupported(self, node: gs.Node, editor: Editor) -> str | None:
        self.asked.append((node.op, node.domain or "", [t.name for t in node.inputs], dict(node.attrs)))
        return "no kernel" if node.op in self.lacks else None


RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Array] = {
    "w": np.ones((8, 1, 1, 8), np.float32),
    **{name: RNG.standard_normal(8).astype(np.float32) for name in ("b", "c", "gamma", "beta")},
    **{name: np.ones(16, np.float32) for name in ("gamma2", "beta2", "bias2")},
    **{name: np.ones(32, np.float32) for name in ("gamma3", "beta3")},
    "kernel": np.ones((8, 8, 1, 1), np.float32),
    "one": np.ones(1, np.float32),
    "four": np.ones(4, np.float32),
    "wide": np.ones((1, 8), np.float32),
    "scalar": np.array(1, np.float32),
    "rows": np.array([0, -1, 8]),
    "half_rows": np.array([0, -1, 4]),
    "twice": np.array([1, 2, 2, 1], np.float32),
    "two": np.array([2, 2], np.float32),
    "deeper": np.array([1, 1, 1, 2], np.float32),
    "barely": np.array([1, 1, 1, 1.1], np.float32),
    "region": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32),
    "picture": np.ones((2, 4, 3, 8), np.float32),
    "sizes": np.array([2, 8, 6, 8]),
    "plane": np.array([8, 6]),
}
CONV = "com.microsoft.NhwcConv <kernel_shape = [1, 1]>"
NORM = "com.microsoft.GroupNorm <groups = 2, activation = 1, channels_last = 1>"
SKIP = "com.microsoft.SkipGroupNorm <groups = 2, activation = 1, channels_last = 1>"
JOINED = "sdort.GroupNorm <groups = 2, activation = 1, channels_last = 1>"
LAYER = "com.microsoft.SkipLayerNormalization"
IMAGES = (
    f"float[2, 4, 3, 8] x, float[2, 4, 3, 8] s, float[2, 4, 3, 8] {MID}, float[2, 12, 8] q, float[8] v, float[2, 8] t"
)
IMAGE, SEQUENCE = f"i = {CONV} (x, w, b)", "m = Neg (q)  i = Add (m, b)"
END = f"{LAYER} (k, k, gamma, beta)"


def built(body: str, outputs: str = "float[] y") -> Editor:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: values for name, values in WEIGHTS.items() if name in words}
    return edit(
        f"g ({IMAGES}, float[16] v2, float[2, 4, 3, 1] thin, float[2, 4, 3, C] open) => ({outputs}) {{ {body} }}", used
    )


READ: dict[str, tuple[str, bool]] = {
    # of an image
    "by a norm": (f"{IMAGE}  y = {NORM} (i, gamma, beta)", True),
    "by its shape alone": (f"{IMAGE}  y = Shape (i)", True),
    "by a function": (f"{IMAGE}  y = Sigmoid (i)", False),
    "by a norm and its shape": (f"{IMAGE}  y = {NORM} (i, gamma, beta)  z = Shape (i)", True),
    "by a norm and a function": (f"{IMAGE}  n = {NORM} (i, gamma, beta)  f = Sigmoid (i)  y = Sub (n, f)", False),
    "by a sum": (f"{IMAGE}  y = Add (i, s)", True),
    "by a sum, behind": (f"{IMAGE}  y = Add (s, i)", True),
    "by its own sum": (f"{IMAGE}  y = Add (i, i)", True),
    "by a sum with a bias": (f"{IMAGE}  y = Add (i, c)", False),
    "by a sum with a constant image": (f"{IMAGE}  k = Add (i, one)  y = Neg (k)", False),
    "by a sum with a vector": (f"{IMAGE}  y = Add (i, v)", False),
    "by a sum with a control": (f"{IMAGE}  y = Add (i, {MID})", False),
    "by a sum with a control in front": (f"{IMAGE}  y = Add ({MID}, i)", False),
    "by a sum with a scaled control": (f"{IMAGE}  m = Mul ({MID}, one)  y = Add (i, m)", False),
    "by a sum with a cast control": (
        f"{IMAGE}  h = Cast <to = 10> ({MID})  m = Cast <to = 1> (h)  y = Add (i, m)", False,
    ),
    "by a sum with a turned control": (
        f"{IMAGE}  h = Transpose <perm = [0, 2, 1, 3]> ({MID})  m = Transpose <perm = [0, 2, 1, 3]> (h)"
        "  y = Add (m, i)", False,
    ),
    "by a sum with a function of a control": (f"{IMAGE}  m = Neg ({MID})  y = Add (i, m)", True),
    "by a sum with a control that a norm takes": (f"{IMAGE}  k = Add (i, {MID})  y = {NORM} (k, gamma, beta)", True),
    "by a skip's norm": (f"{IMAGE}  y = {SKIP} (i, gamma, beta, s)", True),
    "by a norm's skip": (f"{IMAGE}  y = {SKIP} (s, gamma, beta, i)", True),
    "by a skip's norm with a bias": (f"{IMAGE}  y = {SKIP} (i, gamma, beta, s, c)", True),
    "by a skip's norm with a computed bias": (f"{IMAGE}  y = {SKIP} (i, gamma, beta, s, v)", False),
    "by a norm of two": (f"{IMAGE}  y = {JOINED} (i, s, gamma2, beta2)", True),
    "by a norm of two, behind": (f"{IMAGE}  y = {JOINED} (s, i, gamma2, beta2)", True),
    "by a norm of two with a bias": (f"{IMAGE}  y, z = {JOINED} (i, s, gamma2, beta2, , bias2)", True),
    "by a norm of two with a computed bias": (f"{IMAGE}  y, z = {JOINED} (i, s, gamma2, beta2, , v2)", False),
    "by a larger image": (f'{IMAGE}  u = Resize <mode = "nearest"> (i, , twice)  y = {NORM} (u, gamma, beta)', True),
    "by a larger image without a word": (f"{IMAGE}  u = Resize (i, , twice)  y = {NORM} (u, gamma, beta)", True),
    "by an image of a size": (f"{IMAGE}  u = Resize (i, , , sizes)  y = {NORM} (u, gamma, beta)", True),
    "by a smooth image": (f'{IMAGE}  u = Resize <mode = "linear"> (i, , twice)  y = {NORM} (u, gamma, beta)', False),
    "by an image of named axes": (
        f"{IMAGE}  u = Resize <axes = [1, 2]> (i, , two)  y = {NORM} (u, gamma, beta)", False,
    ),
    "by a larger image that others read": (f"{IMAGE}  u = Resize (i, , twice)  y = Sigmoid (u)", False),
    "by a deeper image": (f"{IMAGE}  u = Resize (i, , deeper)  y = {NORM} (u, gamma2, beta2)", False),
    "by an image of named axes and sizes": (
        f"{IMAGE}  u = Resize <axes = [1, 2]> (i, , , plane)  y = {NORM} (u, gamma, beta)", False,
    ),
    "by a barely deeper image": (f"{IMAGE}  u = Resize (i, , barely)  y = {NORM} (u, gamma, beta)", False),
    "by a region": (
        f'{IMAGE}  u = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (i, region, twice)'
        f"  y = {NORM} (u, gamma, beta)", False,
    ),
    "by a sum with a constant picture": (f"{IMAGE}  y = Add (i, picture)", False),
    "by a sum with a constant picture in front": (f"{IMAGE}  y = Add (picture, i)", False),
    "an image of unknown channels": ("i = Neg (open)  y = Shape (i)", False),
    "rows by a sum with a viewed control": (f"{SEQUENCE}  m1 = Reshape ({MID}, rows)  y = Add (i, m1)", False),
    "by a longer image": (f"{IMAGE}  k = Concat <axis = 3> (i, s)  y = {NORM} (k, gamma2, beta2)", True),
    "by a longer image, from the end": (f"{IMAGE}  k = Concat <axis = -1> (s, i)  y = {NORM} (k, gamma2, beta2)", True),
    "by a higher image": (f"{IMAGE}  k = Concat <axis = 1> (i, s)  y = {NORM} (k, gamma, beta)", False),
    "by a longer image that others read": (f"{IMAGE}  k = Concat <axis = 3> (i, s)  y = Sigmoid (k)", False),
    "by rows": (f"{IMAGE}  k = Reshape (i, rows)  y = {END}", True),
    "by rows of other channels": (f"{IMAGE}  k = Reshape (i, half_rows)  y = {LAYER} (k, k, four, four)", False),
    "by rows that others read": (f"{IMAGE}  k = Reshape (i, rows)  y = Sigmoid (k)", False),
    # of a sequence
    "rows by a norm": (f"{SEQUENCE}  y = LayerNormalization (i, gamma, beta)", True),
    "rows by a norm of axis 2": (f"{SEQUENCE}  y = LayerNormalization <axis = 2> (i, gamma, beta)", True),
    "rows by a norm of two axes": (f"{SEQUENCE}  y = LayerNormalization <axis = 1> (i, wide, wide)", False),
    "rows by a norm without a bias": (f"{SEQUENCE}  y = LayerNormalization (i, gamma)", False),
    "rows by a norm that gives its mean": (f"{SEQUENCE}  y, z = LayerNormalization (i, gamma, beta)", False),
    "rows by a skip's norm": (f"{SEQUENCE}  y = {LAYER} (i, q, gamma, beta)", True),
    "rows by a norm's skip": (f"{SEQUENCE}  y = {LAYER} (q, i, gamma, beta)", True),
    "rows by a skip's norm with a bias": (f"{SEQUENCE}  y = {LAYER} (q, i, gamma, beta, c)", True),
    "rows by a skip's norm with a computed bias": (f"{SEQUENCE}  y = {LAYER} (q, i, gamma, beta, v)", False),
    "rows by a sum with a bias": (f"{SEQUENCE}  y = com.microsoft.BiasAdd (i, c, q)", True),
    "rows by a sum with a bias, behind": (f"{SEQUENCE}  y = com.microsoft.BiasAdd (q, c, i)", True),
    "rows by a sum with a computed bias": (f"{SEQUENCE}  y = com.microsoft.BiasAdd (i, v, q)", False),
    "a matrix": ("m = Neg (t)  i = Add (m, b)  y = Shape (i)", False),
}  # fmt: skip


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_a_tensor_is_spared_if_all_that_read_it_take_its_bias(case: tuple[str, bool]) -> None:
    body, wanted = case
    editor = built(body)
    assert ("i" in Sweep(editor, Kernels()).spared) == wanted
    editor = built(body, "float[] y, float[] i")
    assert "i" not in Sweep(editor, Kernels()).spared


LACKED = {
    "BiasGroupNorm": (f"{IMAGE}  y = {NORM} (i, gamma, beta)", "sdort", ["i", "gamma", "beta", "gamma"]),
    "BiasLayerNormalization": (
        f"{SEQUENCE}  y = LayerNormalization (i, gamma, beta)", "sdort", ["i", "gamma", "beta", "gamma"],
    ),
    "BiasAdd": (f"{IMAGE}  y = Add (s, i)", "com.microsoft", ["s", "s", "i"]),
}  # fmt: skip


@pytest.mark.parametrize("op", LACKED)
def test_a_reader_whose_kernel_is_lacking_takes_nothing(op: str) -> None:
    body, domain, inputs = LACKED[op]
    editor = built(body)
    reader = editor.graph.nodes[-1]
    attrs = dict(reader.attrs) if op == "BiasGroupNorm" else {}
    with_all, without = Kernels(), Kernels(op)
    assert "i" in Sweep(editor, with_all).spared
    assert "i" not in Sweep(editor, without).spared
    assert (op, domain, inputs, attrs) in with_all.asked
    assert {node.name for tensor in reader.inputs for node in tensor.outputs} == {reader.name}, "a try is left"


OWN_BIASES: dict[str, tuple[str, str | None]] = {
    "a convolution": (f"y = {CONV} (x, w, b)", "b"),
    "a convolution without one": (f"y = {CONV} (x, w)", None),
    "a convolution with a computed one": (f"y = {CONV} (x, w, v)", None),
    "a sum": ("y = Add (x, b)", "b"),
    "a sum with it in front": ("y = Add (b, x)", "b"),
    "a sum of two": ("y = Add (x, s)", None),
    "a sum with a number": ("y = Add (x, one)", None),
    "a sum with a scalar": ("y = Add (x, scalar)", None),
    "a sum with a row": ("y = Add (x, wide)", None),
    "a sum that grows": ("y = Add (one, v)", None),
    "a sum of a vector": ("y = Add (v, b)", None),
    "a sum of a matrix": ("y = Add (t, b)", None),
    "a sum that widens": ("y = Add (thin, b)", None),
    "a sum of one channel": ("y = Add (thin, one)", None),
    "a difference": ("y = Sub (x, b)", None),
    "a standard convolution": ("n = Transpose <perm = [0, 3, 1, 2]> (x)  y = Conv (n, kernel, b)", None),
}


@pytest.mark.parametrize("case", OWN_BIASES.values(), ids=OWN_BIASES)
def test_a_bias_is_one_number_for_each_channel(case: tuple[str, str | None]) -> None:
    body, wanted = case
    editor = built(body)
    found = Sweep(editor, Kernels())._own_bias(editor.graph.nodes[-1])
    assert (None if found is None else found.name) == wanted


WRITERS: dict[str, tuple[str, str | None]] = {
    "one norm": (f"f = Sigmoid (i)  n = {NORM} (i, gamma, beta)", "n"),
    "the first of two": (f"f = Sigmoid (i)  n = {NORM} (i, gamma, beta)  k = {NORM} (i, beta, gamma)", "n"),
    "computed scales": (f"f = Sigmoid (i)  n = {NORM} (i, v, beta)", None),
    "computed shifts": (f"f = Sigmoid (i)  n = {NORM} (i, gamma, v)", None),
    "the second, of fixed scales": (f"f = Sigmoid (i)  n = {NORM} (i, v, beta)  k = {NORM} (i, beta, gamma)", "k"),
    "another norm": (f"f = Sigmoid (i)  n = {SKIP} (i, gamma, beta, s)", None),
    "none": ("f = Sigmoid (i)", None),
}


@pytest.mark.parametrize("case", WRITERS.values(), ids=WRITERS)
def test_the_first_norm_that_could_writes_the_sum(case: tuple[str, str | None]) -> None:
    body, wanted = case
    outputs = ", ".join(f"float[] {name}" for name in "fnk" if f"{name} =" in body)
    editor = built(f"{IMAGE}  {body}", outputs)
    image = editor.graph.nodes[0].outputs[0]
    writer = Sweep(editor, Kernels())._writer(image)
    assert (None if writer is None else writer.outputs[0].name) == wanted
    assert Sweep(editor, Kernels("BiasGroupNorm"))._writer(image) is None
    editor.graph.outputs.append(image)
    assert Sweep(editor, Kernels())._writer(image) is None


def test_every_joined_norm_gets_a_bias_of_zeros_if_one_has_one() -> None:
    body = f"""a, p = {JOINED} (x, s, gamma2, beta2)  e, f = {JOINED} (s, x, gamma2, beta2, , bias2)
        k, l = {JOINED} (a, e, gamma3, beta3)  y = {CONV} (x, w)"""
    outputs = "float[] k, float[] p, float[] f, float[] l, float[] y"
    editor = built(body, outputs)
    Sweep(editor, Kernels()).complete_forms()
    *norms, convolution = editor.graph.nodes
    assert len(convolution.inputs) == 2
    biases = [np.asarray(node.inputs[5].values) for node in norms]
    assert [values.shape for values in biases] == [(16,), (16,), (32,)]
    assert [bool(values.any()) for values in biases] == [False, True, False]
    assert {values.dtype for values in biases} == {np.dtype(np.float32)}
    editor = built(body.replace(", , bias2", ""), outputs)
    Sweep(editor, Kernels()).complete_forms()
    assert [len(node.inputs) for node in editor.graph.nodes] == [4, 4, 4, 2]


def test_channels_are_the_last_axis_of_images_and_sequences() -> None:
    editor = built("y = Neg (x)")
    found = {tensor.name: Sweep(editor, Kernels()).channels(tensor) for tensor in editor.graph.inputs}
    images = {"x": 8, "s": 8, MID: 8, "q": 8, "thin": 1}
    assert found == {**images, "open": None, "v": None, "v2": None, "t": None}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_biases_are_added_up(count: int) -> None:
    values = [RNG.standard_normal(5).astype(np.float32) for _ in range(count)]
    weights = [Inline(value) for value in values]
    found = total([None, *weights, None])
    assert (found is weights[0]) == (count == 1)
    assert (found.shape, found.dtype) == ((5,), np.dtype(np.float32))
    np.testing.assert_allclose(found.load(), np.sum(values, 0), rtol=1e-6)
