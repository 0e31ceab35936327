"""Small models that cover what the loader treats in ways of their own: the fuzzing's first inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

MLP = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "fuzz", metadata_props: ["k": "v"]>
mlp (float[N, 4] x, int64[2] size) => (float[N, 2] y, int64[2] size_out)
<float[4, 8] w = {WEIGHTS}, float[8] b = {1,2,3,4,5,6,7,8}, int64[2] target = {-1, 8}, float[M, 8] hidden> {
  half = Constant <value_float = 0.5> ()
  ones = Constant <value = float[1] {1.0}> ()
  size_out = Identity (size)
  hidden = MatMul (x, w)
  biased = Add (hidden, b)
  act = Relu (biased)
  scaled = Mul (act, half)
  moved = Add (scaled, ones)
  flat = Reshape (moved, target)
  left, right = Split <axis = 1> (flat)
  summed = Add (left, right)
  y = ReduceMean <axes = [1], keepdims = 1> (summed)
}
""".replace("WEIGHTS", ",".join(str(i / 8) for i in range(32)))

FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 18, "local" : 1, "sdort" : 1, "com.microsoft" : 1]>
calls (float16[2, 8] x) => (float16[2, 8] y) {
  a = local.twice <factor = 3.0> (x)
  b = sdort.keep (a)
  c = com.microsoft.QuickGelu <alpha = 1.702> (b)
  d = com.microsoft.FastGelu (c)
  e = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (d, x)
  y = com.microsoft.FusedMatMul (e, d)
}
<domain: "local", opset_import: ["" : 18, "local" : 1]>
twice <factor, sign: int = 1> (t) => (r) {
  s = local.once (t)
  f = Constant <value_float : float = @factor> ()
  g = CastLike (f, s)
  r = Mul (s, g)
}
<domain: "local", opset_import: ["" : 18]>
once (t) => (r) { r = Neg (t) }
<domain: "sdort", opset_import: ["" : 18]>
keep (t) => (r) { r = Abs (t) }
"""


def small_models() -> list[onnx.ModelProto]:
    return [mlp(), functions(), conv()]


def mlp() -> onnx.ModelProto:
    return parser.parse_model(MLP)


def functions() -> onnx.ModelProto:
    return parser.parse_model(FUNCTIONS)


def conv() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((8, 4, 3, 3), np.float32), "w")
    bias = numpy_helper.from_array(rng.standard_normal(8, np.float32).astype(np.float16), "b")
    half = helper.make_tensor("c", TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0])
    big = numpy_helper.from_array(rng.standard_normal((8, 40), np.float32), "value")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["b"], ["b32"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["b32", "shape"], ["b4"]),
        helper.make_node("Add", ["h", "b4"], ["s"]),
        helper.make_node("Constant", [], ["big"], value=big),
        helper.make_node("Resize", ["s", "", "scales"], ["r"], mode="nearest"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Squeeze", ["g", "axes"], ["q"]),
        helper.make_node("MatMul", ["q", "big"], ["y"]),
        helper.make_node("Identity", ["c"], ["z"]),
    ]
    initializers = [weight, bias, half]
    initializers.append(helper.make_tensor("shape", TensorProto.INT64, [4], [1, 8, 1, 1]))
    initializers.append(helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0]))
    initializers.append(helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3]))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "conv",
        [info("x", TensorProto.FLOAT, [1, 4, "H", "W"])],
        [info("y", TensorProto.FLOAT, [1, 40]), info("z", TensorProto.BFLOAT16, [3])],
        initializers,
        value_info=[info("h", TensorProto.FLOAT, [1, 8, "H", "W"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


EXTERNAL = "weights.bin"
EXTERNAL_BYTES = 4096


def external(folder: Path) -> onnx.ModelProto:
    """:func:`conv` with its weights in the file :data:`EXTERNAL` of ``folder``, of :data:`EXTERNAL_BYTES` at most."""
    onnx.save(conv(), folder / "model.onnx", save_as_external_data=True, location=EXTERNAL, size_threshold=0)
    assert (folder / EXTERNAL).stat().st_size <= EXTERNAL_BYTES
    return onnx.load(folder / "model.onnx", load_external_data=False)
