"""Counted activations: against a brute-force count of random graphs, and against what ONNX Runtime allocates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from support import allocations
from support.tiny_pipeline import Tiny

from sdort.onnx_io.component_file import ComponentFile, read_component
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.rewrite.inference.facts_at_sizes import facts_at
from sdort.runtime import activations
from sdort.runtime.activations import Use, activation_bytes, peak_bytes
from sdort.workload.samples import Sample

Graph = tuple[list[Use], list[str], list[str], dict[str, int]]


def random_graph(seed: int) -> Graph:
    """Nodes in order, inputs, results and sizes; a third are views, some outputs nobody reads, weights have no size."""
    random = np.random.default_rng(seed)
    given = [f"in{index}" for index in range(random.integers(1, 3))]
    names, sizes, nodes = [*given, "weight"], {name: int(random.integers(1, 9)) for name in given}, []
    for index in range(random.integers(3, 30)):
        inputs = [str(name) for name in random.choice(names, random.integers(1, 4))]
        view = bool(random.random() < 1 / 3)
        made = [f"t{index}.{part}" for part in range(1 if view else random.integers(1, 3))]
        sizes |= {name: sizes.get(inputs[0], 0) if view else int(random.integers(1, 99)) for name in made}
        nodes.append(Use(inputs, [*made, ""], view, int(random.integers(0, 50))))
        names += made
    made_ones = names[len(given) + 1 :]
    results = sorted({str(name) for name in random.choice(made_ones, random.integers(1, 4))})
    return nodes, given, results, sizes


def by_brute_force(graph: Graph) -> int:
    """Of each moment all memory that some tensor lies in which is there, or is going to be read."""
    nodes, given, results, sizes = graph
    place: dict[str, str] = {}
    for node in nodes:
        for name in filter(None, node.outputs):
            place[name] = place.get(node.inputs[0], "") if node.is_view and name not in results else name

    def alive(name: str, moment: int) -> bool:
        first = next(index for index, node in enumerate(nodes) if name in node.outputs)
        members = [other for other in place if place[other] == name]
        reads = [index for index, node in enumerate(nodes) if {*members}.intersection(node.inputs)]
        return first <= moment and (name in results or moment <= max([first, *reads]))

    own = [name for name in place if place[name] == name]
    return max(
        sum(sizes[name] for name in given) + node.scratch + sum(sizes[name] for name in own if alive(name, moment))
        for moment, node in enumerate(nodes)
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_count_is_that_of_every_moment_by_itself(seed: int) -> None:
    nodes, given, results, sizes = graph = random_graph(seed)
    assert peak_bytes(nodes, given, results, sizes.__getitem__) == by_brute_force(graph)


# --- facts at sizes ---


@pytest.mark.parametrize(
    ("component", "sample"),
    [("unet", Sample(2, 16, 24, 7)), ("vae_decoder", Sample(3, 9, 5)), ("text_encoder", Sample(2, sequence=77))],
)
def test_types_and_shapes_are_those_of_a_run(component: str, sample: Sample, tiny: Tiny) -> None:
    file = open_folder(tiny.onnx).file(component)
    shapes = activations._input_shapes(file, sample)
    facts = facts_at(file.graph, shapes, component)
    model = file.copy()
    made = [name for node in model.graph.node for name in node.output if name and node.op_type != "Constant"]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    place = file.path.with_name("every_tensor.onnx")
    try:
        onnx.save(model, place)
        session = onnxruntime.InferenceSession(str(place), options, providers=["CPUExecutionProvider"])
    finally:
        place.unlink()
    feeds = {name: np.ones(shape, file.signature.inputs[name].dtype) for name, shape in shapes.items()}
    values = dict(zip(made, session.run(None, feeds), strict=True))
    assert {name: (facts[name].dtype, facts[name].shape) for name in made} == {
        name: (value.dtype, value.shape) for name, value in values.items()
    }


RESIZED = """<ir_version: 8, opset_import: ["": 17]> g (float[N, C, H, W] x) => (float[N, C, P, Q] y)
<float[2] keep = {1, 1}, float[2] twice = {2, 3}> {
    none = Constant <value_floats = [0.0]> ()
    more = Constant <value_floats = [2.0, 3.0]> ()
    scales = Concat <axis = 0> (keep, RIGHT)
    a = Resize <mode = "nearest"> (x, , scales)
    b = Resize <mode = "nearest"> (x, , scales)
    y = Add (a, b)
}"""


@pytest.mark.parametrize("right", ["twice", "more"])
def test_scales_that_constants_are_put_together_of_are_known(right: str) -> None:
    model = parser.parse_model(RESIZED.replace("RIGHT", right))
    facts = facts_at(model, {"x": (2, 3, 5, 7)}, "unet")
    assert {facts[name].shape for name in "aby"} == {(2, 3, 10, 21)}


def test_sizes_that_nothing_tells_are_each_their_own() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (int64[P, Q] y) '
    text += "{ a = NonZero (x) y = NonZero (x) }"
    facts = facts_at(parser.parse_model(text), {"x": (3, 4)}, "unet")
    first, second = ((facts[name].shape or ())[-1] for name in "ay")
    assert first != second


# --- what kernels take beside their tensors ---

ATTENTION = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float16[N, S, C] sample, float16[N, L, C] k) => (float16[N, S, C] y) {
    q = Neg (sample)
    y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, k)
}"""


def one(text: str, folder: Path, component: str = "text_encoder") -> ComponentFile:
    path = folder / "model.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    return read_component(path, component)


@pytest.mark.parametrize(("width", "held"), [(512, 0), (514, 2 * 4 * 3 * 2 * 7 * 7)])
def test_attention_holds_scores_where_no_kernel_takes_its_head(width: int, held: int, tmp_path: Path) -> None:
    file = one(ATTENTION.replace("C]", f"{width}]"), tmp_path)
    tensor = 3 * 7 * width
    sample = Sample(3, sequence=7)
    assert activation_bytes(file, sample, CUDA) == 4 * tensor * 2 + CUDA.workspace_bytes
    assert activation_bytes(file, sample, ROCM) == 4 * tensor * 2 + held
    assert activation_bytes(file, sample, CUDA, widened=True) == 4 * tensor * 4 + CUDA.workspace_bytes
    assert activation_bytes(file, sample, CPU) == 4 * tensor * 4 + 3 * tensor * 4  # query, key and value once more


@pytest.mark.parametrize(
    ("more", "held"),
    [("", False), (', ""', False), (', "", "", ""', False), (', "", "", m', True), (', "", m', True)],
)
def test_a_mask_has_the_cpu_hold_the_scores_and_an_input_that_is_left_out_does_not(
    more: str, held: bool, tmp_path: Path
) -> None:
    text = (
        ATTENTION.replace("C]", "512]")
        .replace(" k) =>", " k, float16[N, 1, S, L] m) =>")
        .replace("k, k)", f"k, k{more})")
    )
    plain = one(text.replace(more + ")", ")") if more else text, tmp_path)
    without = activation_bytes(plain, Sample(3, sequence=7), CPU)
    assert without is not None
    found = activation_bytes(one(text, tmp_path), Sample(3, sequence=7), CPU)
    assert found == without + held * 4 * 3 * 2 * 7 * 7


def test_gelus_have_one_tensor_more_on_the_cpu(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[N, S, 4] x) => (float[N, S, 4] y)
        <float[4] w = {1, 2, 3, 4}> {
        a = SimplifiedLayerNormalization (x, w) b = com.microsoft.FastGelu (a) y = Neg (b) }"""
    file = one(text, tmp_path)
    tensor = 2 * 5 * 4 * 4
    assert activation_bytes(file, Sample(2, sequence=5), CPU) == 4 * tensor
    assert activation_bytes(file, Sample(2, sequence=5), CUDA, widened=True) == 3 * tensor + CUDA.workspace_bytes


def test_sigmoids_of_what_they_are_multiplied_with_take_nothing(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, S, 4] x) => (float[N, S, 4] y) {'
    body = " a = Neg (x) s = Sigmoid (a) b = Mul (OTHER, s) y = Neg (b) }"
    tensor = 2 * 5 * 4 * 4
    fused, other = (one(text + body.replace("OTHER", name), tmp_path) for name in "ax")
    assert activation_bytes(fused, Sample(2, sequence=5), CPU) == 3 * tensor
    assert activation_bytes(other, Sample(2, sequence=5), CPU) == 3 * tensor
    held = " a = Neg (x) s = Sigmoid (a) b = Mul (OTHER, s) c = Add (b, s) y = Neg (c) }"
    assert activation_bytes(one(text + held.replace("OTHER", "a"), tmp_path), Sample(2, sequence=5), CPU) == 4 * tensor


def test_a_graph_of_unknown_sizes_is_not_counted_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(activations, "detail", said.append)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, S, 4] x) => (int64[P, Q] y) { y = NonZero (x) }'
    assert activation_bytes(one(text, tmp_path), Sample(2, sequence=5), CPU) is None
    assert said == ["text_encoder: its activations are not counted: nothing says how large y is"]


# --- against the allocator ---


@pytest.mark.parametrize(
    ("component", "samples"),
    [("unet", [(1, 32, 32), (2, 32, 24)]), ("vae_decoder", [(1, 32, 32), (3, 24, 40)]), ("text_encoder", [(2, 1, 1)])],
)
def test_it_is_what_onnx_runtime_allocates(
    component: str, samples: list[tuple[int, int, int]], tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = allocations.library()
    if counter is None:
        pytest.skip("no compiler")
    file = open_folder(tiny.onnx).file(component)
    monkeypatch.setattr(activations, "split_file", lambda _: None)  # the whole graph runs here
    sizes = [Sample(*each) for each in samples]
    shapes = [activations._input_shapes(file, sample) for sample in sizes]
    taken = allocations.most_taken(counter, file.path, shapes)
    counted = [activations._counted(file, sample, CPU, False) for sample in sizes]
    for true, count in zip(taken, counted, strict=True):
        # Kernels of convolutions and products have some buffers of their own.
        assert true <= 1.001 * count + 65_536
        assert count <= 1.15 * true
