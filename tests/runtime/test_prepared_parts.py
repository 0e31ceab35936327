"""What a step's parts are made of, function by function: types, names, clocks, and the sizes of what is prepared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from sdort.onnx_io.branches import outer_names
from sdort.runtime import session
from sdort.runtime.step import prepared_tensors as prepared
from sdort.runtime.step import step_split
from sdort.runtime.step.prepared_tensors import PreparedTensor, prepared_tensors
from sdort.runtime.step.step_split import _Dependences, _keep_needed, _type_of, graph_inputs
from sdort.workload.samples import Sample

FLOAT, HALF, BOOL, INT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.INT64


def node(op: str, *inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


# Types


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        *((node(op, "half"), INT) for op in ("NonZero", "Range", "Shape", "Size")),
        *((node(op, "half", "half"), BOOL) for op in (
            "And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")),
        (node("Add", "half", "float"), HALF), (node("Mystery", "half", domain="other"), HALF),
        (node("Cast", "half", to=FLOAT), FLOAT), (node("CastLike", "half", "float"), FLOAT),
        (node("Where", "bool", "half", "half"), HALF), (node("Mystery"), TensorProto.UNDEFINED),
        (node("Add", "unknown"), TensorProto.UNDEFINED),
    ],
    ids=lambda each: each.op_type if isinstance(each, onnx.NodeProto) else "",
)  # fmt: skip
def test_a_type_is_the_first_inputs_but_of_some_operators(made: onnx.NodeProto, kind: int) -> None:
    assert _type_of(made, {"half": HALF, "float": FLOAT, "bool": BOOL}) == kind


def test_types_are_known_behind_an_operator_that_onnx_does_not_know() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "other": 1]>
    g (float16[2, 3] x) => (float y) <float[3] w = {1, 2, 3}> {
      a = other.Mystery (x)  b = Cast <to = 1> (a)  y = Mul (b, w)  n = Shape (a)
    }"""
    model = parser.parse_model(text)
    types, shapes = step_split.tensor_types(model, graph_inputs(model.graph), model.graph.node)
    assert {name: types[name] for name in "xwabyn"} == {
        "x": HALF, "w": FLOAT, "a": HALF, "b": FLOAT, "y": FLOAT, "n": INT
    }  # fmt: skip
    assert shapes["x"] == (2, 3)


# Names


def inner(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "inner", [], [helper.make_empty_tensor_value_info("z")])


def test_names_from_around_are_found_at_every_depth() -> None:
    deep = node("If", "c", then_branch=inner(node("Add", "d", "e")), else_branch=inner(node("Neg", "f")))
    made = node("If", "a", then_branch=inner(node("Neg", "b"), deep), else_branch=inner(node("Neg", "g")))
    assert set(outer_names(made)) == {*"bcdefg"}
    assert outer_names(node("Add", "a", "b", axis=1)) == []


def test_what_nothing_reads_is_left_out_of_a_chain() -> None:
    chain = [("a", "x"), ("b", "a"), ("c", "a"), ("d", "c"), ("e", "d")]
    for wanted, kept in (({"c"}, "ac"), ({"b", "d"}, "abcd"), (set[str](), ""), ({"e", "q"}, "acde")):
        graph = helper.make_graph([node("Neg", source, output=name) for name, source in chain], "g", [], [])
        _keep_needed(graph, wanted)
        assert "".join(each.output[0] for each in graph.node) == kept


# Timesteps


def dependences(timestep: str, nodes: str, more: str = "") -> _Dependences:
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "other": 1]>
    g (float[batch, 4, h, w] sample, {timestep} timestep{more}) => (float out)
      <int64[1] one = {{1}}, int64[2] column = {{-1, 1}}, int64[1] zero = {{0}}, int64[1] shape = {{-1}}> {{
        {nodes} out = Identity (sample)
    }}""")
    return _Dependences(model, graph_inputs(model.graph))


@pytest.mark.parametrize(
    ("timestep", "nodes", "clock", "each"),
    [
        ("int64", "a = Cast <to = 1> (timestep) b = Identity (a)", "ab", ""),
        ("int64", "a = Reshape (timestep, one) b = Cast <to = 1> (a)", "ab", ""),
        ("int64", "a = Unsqueeze (timestep, zero)", "a", ""), ("int64", "a = Reshape (timestep, column)", "", ""),
        ("int64", "a = Reshape (timestep, one) b = Unsqueeze (a, one)", "a", ""),
        ("float[1]", "a = Unsqueeze (timestep, one)", "", ""), ("float[1]", "a = Reshape (timestep, shape)", "a", ""),
        ("float[1]", "a = Neg (timestep) b = Cast <to = 1> (a)", "", ""),
        ("float[1]", "a = other.Cast (timestep)", "", ""),
        ("float[batch]", "a = Cast <to = 10> (timestep) b = Identity (a)", "ab", "abt"),
        ("float[2]", "a = Identity (timestep)", "a", ""), ("float[2, 3]", "a = Identity (timestep)", None, ""),
        ("int64", "n = Shape (sample) m = Slice (n, zero, one) a = Reshape (timestep, one) b = Expand (a, m) "
         "c = Cast <to = 1> (b)", "abc", "bc"),
        ("int64", "a = Expand (timestep, column)", "", ""), ("int64", "a = Reshape (one, one)", "", ""),
    ],
)  # fmt: skip
def test_what_is_the_timestep_itself(timestep: str, nodes: str, clock: str | None, each: str) -> None:
    found = dependences(timestep, nodes)
    own = {"timestep"}
    assert found.clock == (set() if clock is None else own | {*clock})
    assert found.one_each == {name if name != "t" else "timestep" for name in each}


def test_what_depends_on_what() -> None:
    found = dependences(
        "float[batch]",
        "p = Neg (states) t = Neg (timestep) b = Add (p, t) l = Neg (sample) r = Neg (residual_of) c = Neg (one) "
        "all = Add (l, b) n = Shape (states) k = Cast <to = 10> (states) ",
        ", float[batch, 4] states, float[batch, 4] residual_of",
    )
    assert found.of_time & {*"ptblrcnk", "all"} == {"t", "b", "all"}
    assert found.of_latents & {*"ptblrcnk", "all"} == {"l", "all"}
    assert found.of_inputs & {*"ptblrcnk", "all"} == {*"ptblrnk", "all"}
    assert found.prompt_tensors() == {"p", "r", "k"}  # floats of two types, no integers
    steered = dependences(
        "float[batch]", "p = Neg (states) r = Neg (mid_block_additional_residual)",
        ", float[batch, 4] states, float[batch, 4] mid_block_additional_residual",
    )  # fmt: skip
    assert steered.prompt_tensors() == {"p"}


# Sizes of what is prepared

PROMPT = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
prompt ({kind}[{batch}, tokens, 6] encoder_hidden_states, float[{batch}, 2] text_embeds) => (k, v, heads, odd, pooled)
  <{kind}[6, 8] w = {{{weights}}}, int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
    k = MatMul (encoder_hidden_states, w)
    v = com.microsoft.Gelu (k)
    n = NonZero (text_embeds)
    size = Shape (n)
    unknown = Reshape (k, size)
    heads = Transpose <perm = [0, 2, 1]> (k)
    odd = Compress (text_embeds, mask)
    mask = Cast <to = 9> (text_embeds)
    pooled = ReduceSum <keepdims = 0> (text_embeds)
}}"""


def prompt(kind: str, batch: int | str) -> onnx.ModelProto:
    weights = ", ".join(["1"] * 48)
    text = PROMPT.format(kind=kind, batch=batch, weights=weights)
    return parser.parse_model(text)


def rows(name: str, kind: int, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("float16", np.float16)])
@pytest.mark.parametrize("batch", ["batch", 1, 3])
def test_bytes_of_what_is_prepared_are_for_all_samples(kind: str, dtype: Any, batch: int | str) -> None:
    """Of a model that is fixed to fewer samples at once, too; a step's rows are one, or one for each sample."""
    time = helper.make_graph(
        [], "time", [], [rows("shift", HALF, "rows", 5, 7), rows("each", FLOAT, "rows", 4), rows("one", HALF, "rows")]
    )
    split: Any = SimpleNamespace(
        prompt=prompt(kind, batch), time=helper.make_model(time), each_sample=frozenset({"each"})
    )
    found = prepared_tensors(split, "unet", Sample(3, 16, 24, 11))
    size = np.dtype(dtype).itemsize
    tensors = {tensor.name: tensor for tensor in found.prompt}
    assert {name: (tensor.shape, tensor.elements, tensor.bytes) for name, tensor in tensors.items()} == {
        "k": ((3, 11, 8), 264, 264 * size), "v": ((3, 11, 8), 264, 264 * size),
        "heads": ((3, 8, 11), 264, 264 * size), "pooled": ((), 1, 4),
    }  # fmt: skip
    assert found.unknown == ["odd"]
    assert found.prompt_bytes == 3 * 264 * size + 4
    assert found.step == [
        PreparedTensor("shift", np.dtype(np.float16), (1, 5, 7), 35),
        PreparedTensor("each", np.dtype(np.float32), (3, 4), 12), PreparedTensor("one", np.dtype(np.float16), (1,), 1),
    ]  # fmt: skip
    assert found.step_bytes == 70 + 48 + 2
    nothing: Any = SimpleNamespace(prompt=None, time=None, each_sample=frozenset())
    assert prepared_tensors(nothing, "unet", Sample(3)) == prepared.Prepared([], [], [])


@pytest.mark.parametrize("op", ["Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
@pytest.mark.parametrize("domain", ["", "other"])
def test_a_view_has_as_many_elements_as_what_it_is_of(op: str, domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = helper.make_model(
        helper.make_graph(
            [node("Neg", "x", output="a"), node(op, "a", output="b", domain=domain), node(op, "b", domain=domain)],
            "prompt", [rows("x", HALF, "batch", 5)], [rows("y", HALF), rows("a", HALF)],
        )
    )  # fmt: skip
    monkeypatch.setattr(prepared, "_inferred", lambda part, inputs: {"a": (HALF, (2, 5)), "y": (FLOAT, (2, None))})
    monkeypatch.setattr(prepared, "fill_inputs", lambda *_: {})
    monkeypatch.setattr(prepared, "fixed_batch", lambda *_: 2)
    found = prepared._prompt_tensors(part, "unet", Sample(4))
    assert found["a"] == PreparedTensor("a", np.dtype(np.float16), (4, 5), 20)
    assert found["y"] == (None if domain else PreparedTensor("y", np.dtype(np.float16), None, 20))


# Weights that change


@pytest.mark.parametrize("constant", [frozenset[str](), frozenset({"NhwcConv"})])
@pytest.mark.parametrize("as_inputs", [False, True])
@pytest.mark.parametrize("computed", [0, 2])
def test_what_operators_take_as_constants_alone_does_not_change(
    constant: frozenset[str], as_inputs: bool, computed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    asked: Any = []
    monkeypatch.setattr(session, "warn", told.append)
    monkeypatch.setattr(
        session, "weights_of", lambda graph, ops: asked.append(("of", ops)) or ({"b"} if ops else set())
    )
    monkeypatch.setattr(session, "computed_weights", lambda graph, ops: asked.append(("computed", ops)) or computed)
    monkeypatch.setattr(
        session, "make_overridable", lambda graph, names, required: asked.append((graph, sorted(names), required))
    )
    weights: Any = SimpleNamespace(replaceable={"a": 1, "b": 2}, as_inputs=as_inputs)
    provider: Any = SimpleNamespace(constant_weights=constant, name="cuda")
    graph: Any = object()
    assert session._with_replaceable(graph, weights, "unet", provider) is graph
    names = ["a"] if constant else ["a", "b"]
    assert asked == [("of", constant), (graph, names, as_inputs), ("computed", constant)]
    assert [text.partition(",")[0] for text in told] == (
        [f"unet: 2 {', '.join(constant)} run on the CPU"] if computed else []
    )


def test_a_value_on_a_device_is_lent_and_one_of_the_cpu_shares_the_arrays_memory() -> None:
    class Own:
        def __init__(self, place: str) -> None:
            self.place = place

        def device_name(self) -> str:
            return self.place

        def to_dlpack(self) -> Any:
            return ("lent", self)

        @staticmethod
        def from_dlpack(lent: Any, is_bool: bool) -> Any:
            return (lent, is_bool)

    class Value:
        def __init__(self, own: Any) -> None:
            self.own = own

        def _get_c_value(self) -> Any:
            return self.own

    for place in ("cpu", "CPU", "Cpu"):
        value = Value(Own(place))
        assert session._borrowed(value) is value
    value = Value(Own("Cuda"))
    lent = session._borrowed(value)
    assert isinstance(lent, Value)
    assert lent.own == (("lent", value.own), False)


@pytest.mark.parametrize(
    ("device", "number", "place"), [("cuda", 2, ("cuda", 2)), ("", 2, ("cpu", 0)), ("hip", 0, ("hip", 0))]
)
def test_memory_is_the_devices_or_the_hosts(device: str, number: int, place: tuple[str, int]) -> None:
    provider: Any = SimpleNamespace(device=device)
    options: Any = SimpleNamespace(device_id=number)
    assert session.memory_of(provider, options) == place
