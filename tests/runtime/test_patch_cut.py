"""UNets cut into patches: with what the whole gives of each patch now, the patches give what the whole gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from support.exports import Case
from support.optimized_models import optimized
from support.parity import open_raw
from support.small_graphs import to_proto

from sdort.errors import BadModelError
from sdort.graph.signature import Array
from sdort.onnx_io.component_file import copied
from sdort.runtime.step.patch_cut import cut_patches, given_by, patch_rows
from sdort.runtime.step.step_split import split_step
from sdort.workload.samples import Sample, declared_inputs, make_inputs

HEIGHT = 32


def fed(model: onnx.ModelProto) -> dict[str, Array]:
    return make_inputs(declared_inputs(model, "unet"), Sample(1, HEIGHT, 24, 7), "unet", 0)


def run(model: onnx.ModelProto, feeds: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    session = open_raw(copied(model), folder, "unet")
    taken = {each.name for each in session.get_inputs()}
    outputs = session.run(None, {name: values for name, values in feeds.items() if name in taken})
    return dict(zip([info.name for info in model.graph.output], outputs, strict=True))


def check_fresh(model: onnx.ModelProto, patches: int, folder: Path) -> Counter[str]:
    """Run a model whole and in patches; how many points there are of each kind."""
    feeds = fed(model)
    [expected] = run(model, feeds, folder).values()
    cut = cut_patches(model, patches, "unet")
    whole = run(cut.whole, feeds, folder)
    output = model.graph.output[0].name
    np.testing.assert_array_equal(whole[output], expected)
    rows, made = HEIGHT // patches, []
    for number in range(patches):
        own = {**feeds, "sample": feeds["sample"][:, :, number * rows : (number + 1) * rows]}
        for name, (source, given) in cut.points.sources(number).items():
            edge = np.zeros_like(whole[given_by(given, number)])
            own[name] = edge if source is None else whole[given_by(given, source)]
        results = run(cut.patch, own, folder)
        made.append(results[output])
        for name in cut.points.given:  # what the others take from it in the next step
            np.testing.assert_allclose(results[name], whole[given_by(name, number)], atol=1e-3, rtol=1e-3)
    np.testing.assert_allclose(np.concatenate(made, 2), expected, atol=2e-5 * np.abs(expected).max())
    return Counter(point.kind for point in cut.points.points)


@pytest.mark.parametrize(
    ("target", "family", "own", "patches"),
    [
        ("cpu", "sd1", False, 2),
        ("cpu", "sdxl", False, 4),
        ("cuda", "sdxl", True, 4),
        ("rocm", "sd1", True, 2),
    ],
)
def test_fresh_patches_are_the_whole(
    target: str, family: str, own: bool, patches: int, exported: Callable[[Case], Path], tmp_path: Path
) -> None:
    """In channels first and last, with the operators that each provider's graph has fused, and keys packed or apart."""
    model = to_proto(optimized(exported, Case(family, "ts17"), target, sdort_ops=own)[0])
    # Skips and mid block: two halvings are one here, as the tiny UNet has two levels.
    assert patch_rows(model, "unet") == 2
    kinds = check_fresh(model, patches, tmp_path)
    assert kinds["sums"] == {"cpu": 1, "cuda": 5, "rocm": 5}[target]  # of as many sizes
    assert kinds["keys"] == (8 if family == "sdxl" else 4)
    assert kinds["rows"] == 20


def test_what_is_prepared_stays_an_input(exported: Callable[[Case], Path]) -> None:
    """Of a step alone, without what is computed before the steps."""
    split = split_step(to_proto(optimized(exported, Case("sdxl", "ts17"), "cpu")[0]))
    assert split
    cut = cut_patches(split.step, 2, "unet")
    prepared = {info.name for info in split.step.graph.input}
    assert {info.name for info in cut.whole.graph.input} == prepared
    taken = [name for point in cut.points.points for names in point.taken for name in names]
    assert [info.name for info in cut.patch.graph.input if info.name not in prepared] == taken


UNET = """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
  g (float[batch, 4, {height}, width] sample, float[batch] timestep, float[batch, 3, 8] encoder_hidden_states)
    => (float[batch, A, B, C] out_sample)
    <float[4, 4, 3, 3] w, float[4, 4, 2, 2] v, float[4] scale, float[4, 4] square> {{
      {body}
  }}"""
REFUSED = {
    "fixed sizes": ("out_sample = Relu (sample)", "it has fixed sizes"),
    "between all pixels": ("out_sample = Softmax (sample)", "Softmax is no operator that patches know"),
    "between tokens": ("out_sample = MatMul (sample, sample)", "MatMul multiplies two tensors of the image"),
    "a wide window": (
        "out_sample = Conv <kernel_shape = [3, 3], pads = [2, 2, 2, 2]> (sample, w)",
        "Conv has a window of 3 rows, padded by 2 and 2, at every 1",
    ),
    "a spaced window": (
        "out_sample = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], dilations = [2, 2]> (sample, w)",
        "Conv has a window that is padded or spaced in another way",
    ),
    "a window of two rows": (
        "out_sample = Conv <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (sample, v)",
        "Conv has a window of 2 rows, padded by 1 and 1, at every 1",
    ),
    "an unknown window": ("out_sample = Conv <pads = [1, 1, 1, 1]> (sample, w)", "Conv says no size of its window"),
    "rows apart": ("out_sample, rest = Split <axis = 1, num_outputs = 2> (sample)", "Split is not along channels"),
    "something else beside it": (
        "out_sample = Concat <axis = 1> (sample, encoder_hidden_states)",
        "Concat joins the image with something else",
    ),
    "over all": (
        "out_sample = LayerNormalization <axis = 1> (sample, scale)",
        "LayerNormalization is over more than channels",
    ),
    "a norm of no groups": (
        "out_sample = InstanceNormalization (sample, scale, scale)",
        "InstanceNormalization is over something else than the groups of an image",
    ),
    "a mask": (
        'out_sample = com.microsoft.MultiHeadAttention <num_heads = 1> (sample, sample, sample, "", timestep)',
        "MultiHeadAttention has a mask or more than its output",
    ),
    "rows at the edge": (
        "pads = Constant <value_ints = [0, 0, 1, 0, 0, 0, 1, 0]> ()  out_sample = Pad (sample, pads)",
        "Pad adds rows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_graphs_are_refused(case: str) -> None:
    body, reason = REFUSED[case]
    model = parser.parse_model(UNET.format(height=8 if case == "fixed sizes" else "height", body=body))
    del model.graph.initializer[:]  # declared alone
    for refuse in (patch_rows, lambda *of: cut_patches(of[0], 2, of[1])):
        with pytest.raises(BadModelError) as refused:
            refuse(model, "unet")
        assert f"its graph cannot be cut into --patches: {reason}" in refused.value.message
        assert refused.value.hint


def test_an_exported_graph_has_to_be_optimized() -> None:
    model = parser.parse_model(UNET.format(height="height", body="out_sample = Relu (sample)"))
    assert patch_rows(model, "unet") == 1
    model.opset_import[0].version = 17
    with pytest.raises(BadModelError, match="of an opset below 18") as refused:
        patch_rows(model, "unet")
    assert "sdort optimize" in (refused.value.hint or "")


def test_rows_are_a_multiple_of_the_halvings() -> None:
    """Of the deepest level, whatever comes after it."""
    conv = "Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [{0}, {0}]>"
    twice, once = conv.format(2), conv.format(1)
    body = f"""a = {twice} (sample, w)  b = {twice} (a, w)  size = Shape (a)
      c = Resize (b, , , size)  out_sample = {once} (c, w)"""
    model = parser.parse_model(UNET.format(height="height", body=body))
    assert patch_rows(model, "unet") == 4


def test_neighbours_at_the_edges() -> None:
    model = parser.parse_model(
        UNET.format(height="height", body="out_sample = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (sample, w)")
    )
    points = cut_patches(model, 3, "unet").points
    [point] = points.points
    ((above, below),), (first, last) = point.taken, point.given
    assert points.sources(0) == {above: (None, last), below: (1, first)}
    assert points.sources(1) == {above: (0, last), below: (2, first)}
    assert points.sources(2) == {above: (1, last), below: (None, first)}
