"""UNets cut at skip connections: with what the whole has just given, the outer part gives what the whole gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from support import native
from support.exports import Case
from support.optimized_models import optimized
from support.parity import open_raw
from support.small_graphs import to_proto

from sdort.errors import BadModelError, UsageError
from sdort.graph.signature import Array
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session
from sdort.runtime.step.deep_cut import check_depth, cut_deep, hidden_states
from sdort.workload.samples import Sample, declared_inputs, make_inputs
from sdort.workload.steering_inputs import MID

LATENT = (2, 4, 8, 12)


@dataclass
class Drawn:
    """A UNet of drawn levels and layers, node by node, and what is known of it while it is made."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    skips: list[tuple[str, int, int]] = field(default_factory=list)
    """Each skip connection: the tensor, its channels, and how many weights there were."""
    hidden: list[tuple[str, int]] = field(default_factory=list)
    """What is joined with each, the innermost first, and how many weights there were."""

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = (self.random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return name

    def conv(self, x: str, channels: int, out: int, stride: int = 1) -> str:
        return self.node("Conv", x, self.weight(out, channels, 3, 3), pads=[1] * 4, strides=[stride] * 2)

    def block(self, x: str, channels: int, out: int) -> str:
        """A convolution that is told the timestep and the prompt, with or without a way past it."""
        made = self.conv(x, channels, out)
        for told in ("time", "text"):
            if self.random.random() < 0.7:
                projected = self.node("MatMul", told, self.weight(3, out))
                made = self.node("Add", made, self.node("Unsqueeze", projected, "spatial"))
        made = self.node("Mul", made, self.node("Sigmoid", made))
        return self.node("Add", x, made) if channels == out and self.random.random() < 0.5 else made

    def skip(self, x: str, channels: int) -> None:
        self.skips.append((x, channels, len(self.weights)))

    def join(self, x: str, channels: int) -> tuple[str, int]:
        """Join with the last skip connection, to which a control may be added."""
        skip, more, _ = self.skips[len(self.skips) - 1 - len(self.hidden)]
        if self.random.random() < 0.3:
            skip = self.node("Add", skip, self.node("ReduceMean", MID))
        self.hidden.append((x, len(self.weights)))
        pair = (x, skip) if self.random.random() < 0.6 else (skip, x)
        return self.node("Concat", *pair, axis=1), channels + more


def drawn(seed: int) -> tuple[onnx.ModelProto, Drawn]:
    made = Drawn(np.random.default_rng(seed))
    levels, layers = (int(made.random.integers(1, 4)) for _ in range(2))
    single = made.node("Cast", "timestep", to=TensorProto.FLOAT)
    column = made.node("Reshape", single, "column")
    made.nodes.append(helper.make_node("MatMul", [column, made.weight(1, 3)], ["time"]))
    made.nodes.append(helper.make_node("ReduceMean", ["encoder_hidden_states"], ["text"], axes=[1], keepdims=0))
    widths = [4 * int(made.random.integers(1, 4)) for _ in range(levels)]
    x, channels = made.conv("sample", 4, widths[0]), widths[0]
    made.skip(x, channels)
    for level, width in enumerate(widths):
        for _ in range(layers):
            x, channels = made.block(x, channels, width), width
            made.skip(x, channels)
        if level < levels - 1:
            x = made.conv(x, channels, channels, 2)
            made.skip(x, channels)
    x = made.node("Add", made.block(x, channels, channels), MID if levels == 1 else made.node("ReduceMean", MID))
    for level in reversed(range(levels)):
        for _ in range(layers + 1):
            joined, more = made.join(x, channels)
            x, channels = made.block(joined, more, widths[level]), widths[level]
        if level:
            x = made.node("Resize", x, "", "scales", mode="nearest")
            x = made.conv(x, channels, channels)
    made.nodes.append(helper.make_node("Conv", [x, made.weight(4, channels, 1, 1)], ["out_sample"]))
    return model_of(made, levels), made


def model_of(made: Drawn, levels: int) -> onnx.ModelProto:
    constants = {"spatial": np.array([2, 3]), "column": np.array([-1, 1]), "scales": np.array([1, 1, 2, 2], np.float32)}
    inner: list[str | int | None] = ["batch", "widest", "h", "w"] if levels > 1 else ["batch", 1, "height", "width"]
    inputs = [
        helper.make_tensor_value_info("sample", TensorProto.FLOAT, ["batch", 4, "height", "width"]),
        helper.make_tensor_value_info("timestep", TensorProto.INT64, []),
        helper.make_tensor_value_info("encoder_hidden_states", TensorProto.FLOAT, ["batch", "tokens", 3]),
        helper.make_tensor_value_info(MID, TensorProto.FLOAT, inner),
    ]
    out = helper.make_tensor_value_info("out_sample", TensorProto.FLOAT, ["batch", 4, "height", "width"])
    tensors = [numpy_helper.from_array(value, name) for name, value in {**made.weights, **constants}.items()]
    graph = helper.make_graph(made.nodes, "unet", inputs, [out], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "sample": random.normal(size=LATENT).astype(np.float32),
        "timestep": np.array(random.integers(1, 9)),
        "encoder_hidden_states": random.normal(size=(2, 5, 3)).astype(np.float32),
        MID: random.normal(size=(2, 1, *LATENT[2:])).astype(np.float32),
    }


@pytest.mark.parametrize("seed", range(6))
def test_the_outer_part_is_the_whole_where_nothing_changed(seed: int, tmp_path: Path) -> None:
    model, made = drawn(seed)
    names = [name for name, _ in reversed(made.hidden)]
    assert hidden_states(model.graph) == names
    onnx.save(model, tmp_path / "unet.onnx")

    def opened(**options: Any) -> Session:
        chosen = RuntimeOptions("cpu", custom_ops="off", control_inputs=True, **options)
        return open_session(tmp_path / "unet.onnx", "unet", CPU, chosen)

    split = bool(seed % 3)
    plain, fed, other = opened(split=split), feeds(seed), feeds(seed + 100)
    expected = plain.run(fed)["out_sample"]
    for depth in sorted({1, 1 + seed % len(names), len(names)}):
        name = names[depth - 1]
        whole = opened(split=split, deep_cut=depth)
        assert whole.inputs == plain.inputs
        assert whole.shallow is not None
        assert whole.kept == name
        given = whole.run(fed)
        np.testing.assert_array_equal(given["out_sample"], expected)
        shallow = {**fed, name: given[name]}
        np.testing.assert_array_equal(whole.shallow.run(shallow)["out_sample"], expected)
        # The kept state is taken, and the latents are.
        assert not np.array_equal(whole.shallow.run({**shallow, name: 2 * given[name]})["out_sample"], expected)
        assert not np.array_equal(whole.shallow.run({**shallow, "sample": other["sample"]})["out_sample"], expected)


@pytest.mark.parametrize("seed", range(12))
def test_the_outer_part_has_the_outer_weights_alone(seed: int) -> None:
    model, made = drawn(seed)
    total = len(made.skips)
    for depth in range(1, total + 1):
        cut = cut_deep(model, depth, "unet")
        before, after = made.skips[depth - 1][2], made.hidden[total - depth][1]
        read = {tensor.name for tensor in cut.shallow.graph.initializer if tensor.name.startswith("w")}
        # The first one is of the timestep, which parts of any level are told.
        expected = {f"w{number}" for number in range(1, len(made.weights)) if number < before or number >= after}
        assert read - {"w0"} == expected
        assert made.weights.keys() <= {tensor.name for tensor in cut.whole.graph.initializer}


@pytest.mark.parametrize(
    ("target", "family", "own"),
    [("cpu", "sd1", False), ("cuda", "sdxl", False), ("migraphx", "sd1", False), ("rocm", "sd1", True)],
)
def test_graphs_of_every_provider_are_cut(
    target: str, family: str, own: bool, exported: Callable[[Case], Path], tmp_path: Path
) -> None:
    """In channels first and last, with the operators that each fuses, sdort's own too, which join what is skipped; as
    many skip connections as the plain graph."""
    case = Case(family, "ts17")
    proto = to_proto(optimized(exported, case, target, sdort_ops=own)[0])
    library = native.library() if own else None
    plain = onnx.load(exported(case), load_external_data=False)
    count = 4
    assert len(hidden_states(proto.graph)) == len(hidden_states(plain.graph)) == count
    fed = make_inputs(declared_inputs(proto, "unet"), Sample(2, 16, 24, 7), "unet", 0)
    expected = run(proto, fed, tmp_path, library)["out_sample"]
    sizes = [len(cut_deep(proto, depth, "unet").shallow.graph.node) for depth in range(1, count + 1)]
    assert sizes == sorted({*sizes, len(proto.graph.node)})[:-1]
    cut = cut_deep(proto, 2, "unet")
    given = run(cut.whole, fed, tmp_path, library)
    np.testing.assert_array_equal(given["out_sample"], expected)
    taken = {info.name for info in cut.shallow.graph.input}
    kept = {name: value for name, value in {**fed, **given}.items() if name in taken}
    shallow = run(cut.shallow, kept, tmp_path, library)
    np.testing.assert_array_equal(shallow["out_sample"], expected)


def run(
    model: onnx.ModelProto, fed: Mapping[str, Array], folder: Path, library: Path | None = None
) -> dict[str, Array]:
    session = open_raw(model, folder, "unet", CPU.name if library else None, library)
    return dict(zip([info.name for info in model.graph.output], session.run(None, dict(fed)), strict=True))


NO_UNET = {
    "no join": "y = Relu (deep)",
    "with itself": "y = Concat <axis = 1> (deep, deep)",
    "with a constant": "y = Concat <axis = 1> (deep, w)",
    "with what is no latent": "y = Concat <axis = 1> (deep, text)",
    "with the latents alone": "y = Concat <axis = 1> (deep, sample)",
    "of two sides": "other = Mul (first, v)  y = Concat <axis = 1> (deep, other)",
    "without a weight between": "near = Relu (first)  y = Concat <axis = 1> (near, first)",
    "a number between": "near = Mul (first, half)  y = Concat <axis = 1> (near, first)",
    "of shapes": """s = Shape (deep)  r = Shape (first)  both = Concat <axis = 0> (s, r)
        size = ReduceSum <keepdims = 0> (both)  real = Cast <to = 1> (size)  y = Mul (deep, real)""",
    "of three": "y = Concat <axis = 1> (deep, first, sample)",
    "beside the output": "aside = Concat <axis = 1> (deep, first)  y = Relu (deep)",
}


@pytest.mark.parametrize("tail", NO_UNET.values(), ids=NO_UNET.keys())
def test_other_joins_are_no_skip_connections(tail: str) -> None:
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
      g (float[2, 4] sample, float[2, 4] text) => (float[M, N] y)
        <float[2, 4] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[4] v = {{1, 2, 3, 4}}, float[1] half = {{0.5}}> {{
        first = Mul (sample, w)  deep = Add (first, v)  {tail}
    }}""")
    assert hidden_states(model.graph) == []
    with pytest.raises(BadModelError, match="no skip connections"):
        cut_deep(model, 1, "unet")


def test_a_stored_weight_is_a_weight() -> None:
    """Quantized, or transposed where it is read."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
      g (float[2, 2] sample) => (float[M, N] y)
        <float[2, 2] w = {1, 2, 3, 4}, int8[2, 2] q = {1, 2, 3, 4}, float s = {0.5}> {
        t = Transpose (w)  first = MatMul (sample, t)
        d = DequantizeLinear (q, s)  deep = MatMul (first, d)
        joined = Concat <axis = 1> (first, deep)  y = Relu (joined)
    }""")
    assert hidden_states(model.graph) == ["deep"]


def test_a_depth_has_to_be_there() -> None:
    check_depth(9, 9, "unet")
    with pytest.raises(UsageError, match="--deep-cache-depth 10 is more than the 9 skip connections that the unet has"):
        check_depth(9, 10, "unet")
