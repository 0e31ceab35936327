"""``sdort inspect``: the facts, the differences, and what is printed of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from sdort.cli import cli
from sdort.graph.model import Model
from sdort.graph.weights import Absent
from sdort.inspection.component_tables import component_tables
from sdort.inspection.description import (
    Change,
    DeclaredTensor,
    Rewrite,
    compare_components,
    describe_model,
    inspect_path,
    is_fused,
)
from sdort.providers import PROVIDER_NAMES


def decoder(activations: Sequence[str] = ("Relu", "Relu"), scale: int = 1) -> onnx.ModelProto:
    """A model with a VAE decoder's inputs and outputs: Conv 4 -> 3 channels, then activations, then a Resize."""
    nodes = [helper.make_node("Conv", ["latent", "weight", "bias"], ["t0"], name="conv")]
    for index, op in enumerate(activations):
        domain = "com.microsoft" if op in ("QuickGelu", "BiasAdd") else ""
        nodes.append(helper.make_node(op, [f"t{index}"], [f"t{index + 1}"], name=f"act{index}", domain=domain))
    last = f"t{len(activations)}"
    nodes.append(helper.make_node("Reshape", [last, "shape"], ["image"], name="end"))
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info("latent", TensorProto.FLOAT, ["batch", 4, "height", "width"])],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [
            numpy_helper.from_array(rng.random((3, 4, scale, scale), np.float32), "weight"),
            numpy_helper.from_array(np.zeros(3, np.float32), "bias"),
            numpy_helper.from_array(np.array([0, 0, 0, -1], np.int64), "shape"),
        ],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="a-tool", producer_version="7")


def save(proto: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return save(decoder(), tmp_path / "plain" / "vae_decoder").parent.parent


@pytest.fixture
def fused(tmp_path: Path) -> Path:
    return save(decoder(("QuickGelu",), scale=3), tmp_path / "fused" / "vae_decoder").parent.parent


def sdort(*args: object) -> Result:
    return CliRunner().invoke(cli, ["inspect", *map(str, args)], catch_exceptions=False)


def test_the_facts_of_a_component(fused: Path) -> None:
    (component,) = inspect_path(fused)
    assert component.component == "vae_decoder"
    assert component.path == fused / "vae_decoder" / "model.onnx"
    assert (component.producer, component.ir_version) == ("a-tool 7", 9)
    assert component.opsets == {"ai.onnx": 20, "com.microsoft": 1}
    assert component.inputs == (DeclaredTensor("latent", "float32", ("batch", 4, "height", "width")),)
    assert component.outputs == (DeclaredTensor("image", "float32", ("batch", 3, "height", "width")),)
    assert component.nodes == 3
    assert component.operators == {"Conv": 1, "Reshape": 1, "com.microsoft.QuickGelu": 1}
    assert component.parameters == 3 * 4 * 3 * 3 + 3
    assert component.weight_bytes == {"float32": 4 * (3 * 4 * 3 * 3 + 3), "int64": 4 * 8}


def test_operators_are_counted_the_most_frequent_first(plain: Path) -> None:
    (component,) = inspect_path(plain)
    assert list(component.operators.items()) == [("Relu", 2), ("Conv", 1), ("Reshape", 1)]


def test_what_a_provider_has_to_rewrite(fused: Path) -> None:
    """ONNX Runtime's ROCm provider has BiasAdd, its CPU provider and MIGraphX's list do not; all have QuickGelu."""
    proto = decoder(("QuickGelu", "BiasAdd", "BiasAdd"))
    for node in proto.graph.node[2:4]:
        node.input.extend(["bias", "t0"])
    (component,) = inspect_path(save(proto, fused), ["rocm", "migraphx", "cpu"])
    found = {
        provider: [(rewrite.operator, rewrite.nodes) for rewrite in rewrites]
        for provider, rewrites in component.providers.items()
    }
    assert found == {
        "rocm": [("opset 20", 5)],
        "migraphx": [("opset 20", 5), ("com.microsoft.BiasAdd", 2)],
        "cpu": [("opset 20", 5), ("com.microsoft.BiasAdd", 2)],
    }
    assert all(rewrite.reason for rewrites in component.providers.values() for rewrite in rewrites)


def test_the_form_of_a_node_decides_too() -> None:
    """The CPU's MultiHeadAttention throws on packed QKV, one 5-D input, when it runs; the CUDA one takes it."""
    packed = gs.Variable("qkv", np.float16, ["batch", 64, 8, 3, 40])
    y = gs.Variable("y", np.float16, ["batch", 64, 320])
    node = gs.Node("MultiHeadAttention", inputs=[packed], outputs=[y], attrs={"num_heads": 8}, domain="com.microsoft")
    component = describe_model(Model(gs.Graph([node], [packed], [y], opset=18), "unet"), ["cpu", "cuda"])
    assert [rewrite.operator for rewrite in component.providers["cpu"]] == ["com.microsoft.MultiHeadAttention"]
    assert component.providers["cuda"] == ()


@pytest.mark.parametrize(
    ("operator", "fused"),
    [("Conv", False), ("com.microsoft.GroupNorm", True), ("sdort.Attention", True), ("ai.onnx.ml.Scaler", False)],
)
def test_fused_operators_are_those_of_onnxruntime_and_sdort(operator: str, fused: bool) -> None:
    assert is_fused(operator) is fused


def test_weights_are_not_read() -> None:
    """An architecture without weights is described as well as one with them."""
    weight = gs.Constant("weight", Absent("conv_in.weight", (320, 4, 3, 3), np.float16))
    x = gs.Variable("x", np.float16, ["b", 4, None, None])
    y = gs.Variable("y", np.float16)
    graph = gs.Graph([gs.Node("Conv", inputs=[x, weight], outputs=[y])], [x], [y], opset=20)
    component = describe_model(Model(graph, "unet"))
    assert component.parameters == 320 * 4 * 3 * 3
    assert component.weight_bytes == {"float16": 2 * 320 * 4 * 3 * 3}
    assert [str(value) for value in (*component.inputs, *component.outputs)] == ["float16[b, 4, ?, ?]", "float16?"]


def test_a_shared_weight_counts_once() -> None:
    weight = gs.Constant("weight", np.ones((8, 8), np.float32))
    x, y, z = (gs.Variable(name, np.float32, [8, 8]) for name in "xyz")
    nodes = [gs.Node("MatMul", inputs=[x, weight], outputs=[y]), gs.Node("MatMul", inputs=[y, weight], outputs=[z])]
    component = describe_model(Model(gs.Graph(nodes, [x], [z], opset=18), "unet"))
    assert component.parameters == 64
    assert component.weight_bytes == {"float32": 256}


def test_compare(plain: Path, fused: Path) -> None:
    changes = compare_components(inspect_path(plain), inspect_path(fused))
    assert changes == {
        "vae_decoder": [
            Change("count", "nodes", 4, 3),
            Change("count", "parameters", 15, 111),
            Change("version", "opset com.microsoft", None, 1),
            Change("bytes", "float32", 60, 444),
            Change("operator", "Relu", 2, None),
            Change("operator", "com.microsoft.QuickGelu", None, 1),
        ]
    }


def test_compare_sees_inputs_outputs_and_opsets(plain: Path) -> None:
    (before,) = inspect_path(plain)
    proto = decoder()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "z"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    proto.opset_import[0].version = 21
    (after,) = inspect_path(save(proto, plain / "other"))
    assert compare_components([before], [after])["vae_decoder"] == [
        Change("version", "opset ai.onnx", 20, 21),
        Change("input", "latent", "float32[batch, 4, height, width]", None),
        Change("input", "z", None, "float32[batch, 4, height, width]"),
        Change("output", "image", "float32[batch, 3, height, width]", "float32[1, 3, height, width]"),
    ]


def test_compare_tells_a_component_that_only_one_side_has(plain: Path, fused: Path) -> None:
    encoder = describe_model(Model(gs.Graph(opset=20), "vae_encoder"))
    changes = compare_components([encoder, *inspect_path(plain)], inspect_path(plain))
    assert changes == {"vae_encoder": [Change("component", "vae_encoder", "present", None)], "vae_decoder": []}


def test_tables(fused: Path) -> None:
    result = sdort(fused, "--provider", "cpu", "--provider", "cuda")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "vae_decoder 3 111 476 B float32 93.3%, int64 6.7%" in lines
    assert "vae_decoder in latent float32[batch, 4, height, width]" in lines
    assert "vae_decoder out image float32[batch, 3, height, width]" in lines
    assert lines.index("* QuickGelu 1") < lines.index("Conv 1")
    assert "opset 20 3 cpu, cuda lowered to opset 18" in lines
    assert not any("rocm" in line for line in lines)
    verbose = [" ".join(line.split()) for line in sdort(fused, "-v").stdout.splitlines()]
    assert "vae_decoder 3 111 476 B float32 93.3%, int64 6.7% ai.onnx 20, com.microsoft 1 9 a-tool 7" in verbose


def test_operators_of_one_name_in_two_domains(plain: Path) -> None:
    """sdort's GroupNorm reads both parts of a Concat, ONNX Runtime's one tensor: a model has both."""
    names = ["com.microsoft.GroupNorm", "sdort.GroupNorm", "sdort.BiasGroupNorm"]
    described = replace(inspect_path(plain)[0], operators=dict(zip(names, (5, 4, 3), strict=True)))
    operators = next(table for table in component_tables([described]) if table.headers[0] == "operator")
    assert [row.cells for row in operators.rows] == [
        ("* GroupNorm", "5"),
        ("* sdort.GroupNorm", "4"),
        ("* sdort.BiasGroupNorm", "3"),
    ]


def test_tables_tell_that_a_provider_has_all_kernels(plain: Path) -> None:
    proto = decoder()
    proto.opset_import[0].version = 18
    result = sdort(save(proto, plain), "--provider", "cpu")
    assert result.stdout.splitlines()[-1] == "To rewrite: nothing for cpu."


UNET = """<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1, "sdort": 1]>
unet (float[b, 4, h, w] sample, int64[b] timestep, float[b, tokens, 6] encoder_hidden_states) => (float[b, 4, h, w] y)
<int64[2] column = {-1, 1}, int64[2] places = {2, 3}>
{
  clock = Cast <to = 1> (timestep)
  rows = Reshape (clock, column)
  angles = Mul (rows, waves)
  timed = Gemm (angles, linear)
  shift = Unsqueeze (timed, places)
  keys = MatMul (encoder_hidden_states, k)
  active = com.microsoft.QuickGelu <alpha = 1.0> (keys)
  values = MatMul (active, v)
  pooled = ReduceMean <keepdims = 0> (active)
  moved = Add (sample, shift)
  near = Mul (moved, pooled)
  level = ReduceMean <keepdims = 0> (sample)
  scaled = Mul (values, level)
  far = ReduceMean <keepdims = 0> (scaled)
  y = Mul (near, far)
}"""


def test_what_is_prepared_before_the_steps(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(UNET)
    for name, shape in (("k", (6, 4)), ("v", (4, 3)), ("waves", (1, 5)), ("linear", (5, 4))):
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
    path = save(proto, tmp_path / "unet")
    (component,) = json.loads(sdort(path, "--json").stdout)["components"]
    assert component["parts"] == {
        "prompt_nodes": 4,
        "schedule_nodes": 5,
        "step_nodes": 6,
        "prompt_outputs": [
            {"name": "values", "dtype": "float32", "shape": [1, 77, 3]},
            {"name": "pooled", "dtype": "float32", "shape": []},
        ],
        "step_outputs": [{"name": "shift", "dtype": "float32", "shape": [1, 4, 1, 1]}],
        "prompt_bytes": 77 * 3 * 4 + 4,
        "step_bytes": 16,
    }
    lines = [" ".join(line.split()) for line in sdort(path).stdout.splitlines()]
    assert "unet once a prompt 4 2 tensors 928 B" in lines
    assert "unet once a schedule 5 1 tensor 16 B a step" in lines
    assert "unet every step 6" in lines


def test_a_reason_of_several_providers_is_one_row(plain: Path) -> None:
    lacking: dict[str, tuple[Rewrite, ...]] = {
        p: (Rewrite("sdort.GroupNorm", 1, f"{p} has no kernel for sdort.GroupNorm"),) for p in ("rocm", "cpu")
    }
    (component,) = inspect_path(plain)
    *_, table = component_tables([replace(component, providers=lacking)])
    assert (table.title, table.row_count) == ("To rewrite", 1)


def test_json_has_the_same_facts(fused: Path) -> None:
    (component,) = json.loads(sdort(fused, "--json").stdout)["components"]
    assert component["operators"] == {"Conv": 1, "Reshape": 1, "com.microsoft.QuickGelu": 1}
    assert component["inputs"] == [{"name": "latent", "dtype": "float32", "shape": ["batch", 4, "height", "width"]}]
    assert list(component["providers"]) == list(PROVIDER_NAMES)
    assert component["providers"]["cpu"] == [{"operator": "opset 20", "nodes": 3, "reason": "lowered to opset 18"}]


def test_diff_table(plain: Path, fused: Path) -> None:
    result = sdort("--diff", plain, fused)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert "vae_decoder 4 -> 3 +384 B" in lines
    assert "Relu -2" in lines
    assert "* QuickGelu +1" in lines
    assert lines[-1] == (
        "1 component differs: computed differently in 2 places, 1 node less, 384 B of weights more, the same inputs "
        "and outputs."
    )
    assert not any("Reshape" in line for line in lines)


def test_diff_json(plain: Path, fused: Path) -> None:
    report = json.loads(sdort(plain, fused, "--diff", "--json").stdout)
    assert (report["before"], report["after"]) == (str(plain), str(fused))
    assert {"kind": "operator", "name": "Relu", "before": 2, "after": None} in report["components"]["vae_decoder"]


def test_no_differences(plain: Path) -> None:
    assert sdort("--diff", plain, plain).stdout == "No differences.\n"


def test_two_files_are_compared_whatever_they_are(plain: Path, fused: Path) -> None:
    encoder = decoder()
    encoder.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "weight"))
    for info, channels in ((encoder.graph.input[0], 3), (encoder.graph.output[0], 4)):
        info.type.tensor_type.shape.dim[1].dim_value = channels
    encoder.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.zeros(4, np.float32), "bias"))
    (before,), (after,) = inspect_path(save(encoder, plain.parent / "e")), inspect_path(plain)
    assert (before.component, after.component) == ("vae_encoder", "vae_decoder")
    kinds = [(change.kind, change.name) for change in compare_components([before], [after])["vae_decoder"]]
    assert kinds == [("count", "parameters"), ("bytes", "float32"), ("input", "latent"), ("output", "image")]


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (0, [], "Missing argument"),
        (2, [], "give one path, or two with --diff"),
        (1, ["--diff"], "--diff compares two paths"),
        (3, ["--diff"], "--diff compares two paths"),
        (1, ["--provider", "tpu"], "'tpu' is not one of"),
    ],
)
def test_usage_errors(plain: Path, count: int, options: list[str], message: str) -> None:
    result = sdort(*[plain] * count, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_missing_path_is_a_usage_error(tmp_path: Path) -> None:
    result = sdort(tmp_path / "nothing")
    assert result.exit_code == 2
    assert "nothing does not exist" in result.stderr


def test_a_broken_model_is_an_error_and_prints_nothing(plain: Path) -> None:
    (plain / "vae_decoder" / "model.onnx").write_bytes(b"not a model")
    result = sdort(plain)
    assert (result.exit_code, result.stdout) == (3, "")


def test_a_model_beside_the_components_that_cannot_be_read_is_told(plain: Path) -> None:
    """A tokenizer as a graph takes texts, as in folders for Amuse."""
    node = helper.make_node("CLIPTokenizer", ["text"], ["ids"], domain="ai.onnx.contrib", vocab="{}")
    text = helper.make_tensor_value_info("text", TensorProto.STRING, ["n"])
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "m"])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    save(helper.make_model(helper.make_graph([node], "it", [text], [ids]), opset_imports=opsets), plain / "tokenizer")
    result = sdort(plain)
    assert result.exit_code == 0
    assert "vae_decoder" in result.stdout
    said = " ".join(result.stderr.split())
    assert "tokenizer/model.onnx is left out" in said
    assert "STRING" in said
    assert sdort(plain / "tokenizer").exit_code == 3  # alone it is an error


def test_neither_torch_nor_diffusers_is_imported(plain: Path) -> None:
    code = (
        "import sys\nfrom sdort.cli import cli\ncli(['inspect', *sys.argv[1:]], standalone_mode=False)\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(plain)], capture_output=True, text=True, check=True)
    assert "vae_decoder" in result.stdout
    assert set(result.stderr.split()) & {"torch", "diffusers", "transformers", "onnxruntime"} == set()
