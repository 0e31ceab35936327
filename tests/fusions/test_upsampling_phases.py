"""Nearest upsampling and its convolution in four phases: what it computes, where it applies and where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from support.small_graphs import Described, edit, feeds_for, operators, parse, run

from sdort.graph.weights import Absent, Inline, Weight
from sdort.onnx_io.expression_factors import parameter_values
from sdort.onnx_io.expression_json import decode, encode
from sdort.providers import PROVIDER_NAMES
from sdort.rewrite.apply import apply_fusion, apply_stage
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions

Array = npt.NDArray[Any]

UPSAMPLER = """
g ({dtype}[{count}, 6, {height}, {width}] x{inputs}) => ({dtype}[N, C, P, Q] y{outputs})
<float[4] scales = {{ {scales} }}, int64[4] sizes = {{ {sizes} }}> {{
    {before}
    large = Resize <mode = "{mode}", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{rounding}"
                    {resize}> (x, , {size})
    y = Conv <{conv}> (large, weight{bias})
    {more}
}}"""
PLAIN = {
    "dtype": "float", "count": "N", "height": "H", "width": "W", "inputs": "", "outputs": "", "scales": "1, 1, 2, 2",
    "sizes": "2, 6, 10, 14", "before": "", "mode": "nearest", "coordinates": "asymmetric", "rounding": "floor",
    "resize": "", "size": "scales", "conv": "pads = [1, 1, 1, 1]", "bias": ", bias", "more": "",
}  # fmt: skip
FIXED = {"count": "2", "height": "5", "width": "7", "size": ", sizes"}
"""An exporter's form where the size of the image is known."""
HALF = "round_prefer_floor"
PHASES = {"Split": 1, "Conv": 4, "Concat": 1, "DepthToSpace": 1}


def text(**changes: str) -> str:
    return UPSAMPLER.format(**PLAIN | changes)


def weights(dtype: str = "float32", kernel: int = 3, group: int = 1, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((4, 6 // group, kernel, kernel)) / 7
    return {"weight": weight.astype(dtype), "bias": rng.standard_normal(4).astype(dtype)}


def fuse(editor: Editor) -> None:
    apply_fusion(load_fusions()["upsampling_phases"], editor)


def exact(x: Array, weight: Array, bias: Array | None) -> Array:
    """The convolution of the enlarged image, in fp64."""
    large = x.astype(np.float64).repeat(2, 2).repeat(2, 3)
    windows = sliding_window_view(np.pad(large, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    y: Array = np.einsum("nihwkl,oikl->nohw", windows, weight.astype(np.float64))
    return y if bias is None else y + bias.astype(np.float64)[:, None, None]


LIMITS = {"float": ("float32", 1e-6), "float16": ("float16", 3e-3)}
"""The largest error over the output's standard deviation: some roundings of 2^-24 or, of the weights' sums, x and y, of
2^-11; a wrong tap is off by a tenth and more."""
SETTINGS = [("asymmetric", "floor"), ("asymmetric", "round_prefer_floor"), ("half_pixel", "round_prefer_floor")]


@pytest.mark.parametrize("bias", [", bias", ""], ids=["bias", "no-bias"])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("coordinates", "rounding"), SETTINGS)
def test_phases_are_the_convolution_of_the_enlarged_image(
    dtype: str, bias: str, coordinates: str, rounding: str
) -> None:
    """Of any size: one graph for images of one row, of odd and of even sides, and for several of them."""
    kind, limit = LIMITS[dtype]
    values = weights(kind)
    changes = {"dtype": dtype, "bias": bias, "coordinates": coordinates, "rounding": rounding}
    editor = edit(text(**changes), values)
    fuse(editor)
    assert operators(editor) == PHASES
    before = parse(text(**changes), values)
    for seed, (count, height, width) in enumerate([(1, 1, 1), (1, 3, 5), (2, 8, 6), (3, 1, 9)]):
        feeds = feeds_for(before, {"N": count, "H": height, "W": width}, seed)
        expected = exact(feeds["x"], values["weight"], values["bias"] if bias else None)
        for model in (before, editor.model):
            (found,) = run(model, feeds)
            assert (found.dtype, found.shape) == (np.dtype(kind), expected.shape)
            assert np.abs(found - expected).max() <= limit * expected.std()


@pytest.mark.parametrize(
    "changes",
    [FIXED, {"before": "shape = Shape (x)  computed = Mul (shape, factors)", "size": ", computed"}],
    ids=["known", "computed from the image's"],
)
def test_a_size_of_twice_the_image_is_taken(changes: dict[str, str]) -> None:
    values = weights() | {"factors": np.array([1, 1, 2, 2])}
    editor = edit(text(**changes), values)
    fuse(editor)
    assert operators(editor).keys() & {"Resize", *PHASES} == PHASES.keys()
    feeds = feeds_for(parse(text(**changes), values), {"N": 2, "H": 4, "W": 3})
    (found,) = run(editor.model, feeds)
    expected = exact(feeds["x"], values["weight"], values["bias"])
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= LIMITS["float"][1] * expected.std()


def test_weights_are_described_and_take_16_ninths_of_the_room() -> None:
    described = Described((4, 6, 3, 3), "float32")
    editor = edit(text(), {"weight": described, "bias": np.zeros(4, np.float32)})
    fuse(editor)
    assert filters_of(editor).nbytes * 9 == described.nbytes * 16
    biases = {id(node.inputs[2]) for node in editor.graph.nodes if node.op == "Conv"}
    assert len(biases) == 1


def test_filters_are_sums_in_fp64_that_are_rounded_once() -> None:
    """2^24 + 1 + 1 + 2 is 2^24 + 4; sums in fp32 lose the ones, one after the other."""
    taps = np.zeros((4, 6, 3, 3), np.float32)
    taps[:, :, :2, :2] = np.array([[2.0**24, 1.0], [1.0, 2.0]])
    editor = edit(text(), {**weights(), "weight": taps})
    fuse(editor)
    assert filters_of(editor).load().max() == 2.0**24 + 4


def test_an_adapter_finds_the_filters_again() -> None:
    """Of all sums of an upsampler's filters, which differ, as DoRA needs them; the sums then have its difference."""
    rng = np.random.default_rng(5)
    weight, difference = (rng.standard_normal((4, 6, 3, 3)).astype(np.float32) for _ in range(2))
    editor = edit(text(), {"weight": Described(weight.shape, weight.dtype), "bias": np.zeros(4, np.float32)})
    fuse(editor)

    def filters(values: Array) -> Array:
        return decode(encode(filters_of(editor), lambda _: {"parameter": "p"}), {"p": Inline(values)}).load()

    expression = decode(
        encode(filters_of(editor), lambda _: {"parameter": "p"}), {"p": Absent("p", weight.shape, "f4")}
    )
    ((name, found),) = parameter_values(expression, filters(weight))
    assert name == "p"
    np.testing.assert_allclose(found, weight, rtol=0, atol=1e-6)
    np.testing.assert_allclose(filters(found + difference), filters(weight + difference), rtol=0, atol=1e-5)


def filters_of(editor: Editor) -> Weight:
    (split,) = [node for node in editor.graph.nodes if node.op == "Split"]
    weight = split.inputs[0]._values
    assert isinstance(weight, Weight)
    return weight


SCALES, PADS, NEIGHBOURS = "'scales' has to be", "expected [1, 1, 1, 1]", "its nearest neighbours are others"
SIZE, READ = "its image is not always made twice as large", "'large' is also read by"
CHANGED: dict[str, tuple[dict[str, str], dict[str, int], str]] = {
    "three times as large": ({"scales": "1, 1, 3, 3"}, {}, SCALES),
    "twice as high": ({"scales": "1, 1, 2, 1"}, {}, SCALES),
    "half as large": ({"scales": "1, 1, 0.5, 0.5"}, {}, SCALES),
    "other channels": ({"scales": "1, 0.5, 2, 2"}, {"group": 2}, SCALES),
    "one row less": (FIXED | {"sizes": "2, 6, 9, 14"}, {}, f"{SIZE} (5, 9)"),
    "one column less": (FIXED | {"sizes": "2, 6, 10, 13"}, {}, f"{SIZE} (7, 13)"),
    "one row more": (FIXED | {"sizes": "2, 6, 11, 14"}, {}, f"{SIZE} (5, 11)"),
    "a fixed size of an image of any": (FIXED | {"height": "H"}, {}, f"{SIZE} (H, 10)"),
    "scales from an input": ({"inputs": ", float[4] given", "size": "given"}, {}, "'scales' has to be a constant"),
    "sizes from an input": (FIXED | {"inputs": ", int64[4] given", "size": ", given"}, {}, "its shape is ['?large.0'"),
    "linear": ({"mode": "linear"}, {}, "mode='linear'"),
    "cubic": ({"mode": "cubic"}, {}, "mode='cubic'"),
    "antialias": ({"resize": ", antialias = 1"}, {}, "antialias=1"),
    "ceil": ({"rounding": "ceil"}, {}, NEIGHBOURS),
    "round_prefer_ceil": ({"rounding": "round_prefer_ceil"}, {}, NEIGHBOURS),
    "half_pixel and floor": ({"coordinates": "half_pixel"}, {}, NEIGHBOURS),
    "half_pixel_symmetric": ({"coordinates": "half_pixel_symmetric", "rounding": HALF}, {}, NEIGHBOURS),
    "pytorch_half_pixel": ({"coordinates": "pytorch_half_pixel", "rounding": HALF}, {}, NEIGHBOURS),
    "align_corners": ({"coordinates": "align_corners"}, {}, NEIGHBOURS),
    "proportions kept": (
        FIXED | {"resize": ', keep_aspect_ratio_policy = "not_larger"'},
        {},
        "keep_aspect_ratio_policy",
    ),
    "1x1": ({"conv": "pads = [0, 0, 0, 0]"}, {"kernel": 1}, PADS),
    "1x1, padded": ({}, {"kernel": 1}, "its shape is [4, 6, 1, 1]"),
    "5x5": ({"conv": "pads = [2, 2, 2, 2]"}, {"kernel": 5}, PADS),
    "2x2": ({"conv": "pads = [1, 1, 0, 0]"}, {"kernel": 2}, PADS),
    "groups": ({"conv": "pads = [1, 1, 1, 1], group = 2"}, {"group": 2}, "group=2"),
    "no pads": ({"conv": "group = 1"}, {}, PADS),
    "pads of two": ({"conv": "pads = [2, 2, 2, 2]"}, {}, PADS),
    "pads of one side": ({"conv": "pads = [2, 2, 0, 0]"}, {}, PADS),
    "pads that ONNX Runtime computes": ({"conv": 'pads = [1, 1, 1, 1], auto_pad = "SAME_UPPER"'}, {}, "auto_pad"),
    "strides": ({"conv": "pads = [1, 1, 1, 1], strides = [2, 2]"}, {}, "its shape is [N, 6, 2*H, 2*W]"),
    "dilations": ({"conv": "pads = [1, 1, 1, 1], dilations = [2, 2]"}, {}, "its shape is [N, 6, 2*H, 2*W]"),
    "dilations and pads": ({"conv": "pads = [2, 2, 2, 2], dilations = [2, 2]"}, {}, PADS),
    "another reader": ({"outputs": ", float[N, 6, P, Q] z", "more": "z = Relu (large)"}, {}, f"{READ} Relu"),
    "the image is an output": ({"outputs": ", float[N, 6, P, Q] large"}, {}, f"{READ} the graph's output"),
    "two convolutions": ({"outputs": ", float[N, 4, P, Q] z", "more": "z = Conv (large, weight)"}, {}, f"{READ} Conv"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_others_stay(what: str) -> None:
    """Each for what is changed in it, and for nothing else that it might have in common with what is not taken."""
    changes, of_weights, reason = CHANGED[what]
    editor = edit(text(**changes), weights(**of_weights))  # type: ignore[arg-type]
    before = operators(editor)
    assert reason in why_it_stays(editor)
    assert operators(editor) == before


def why_it_stays(editor: Editor) -> str:
    (outcome,) = apply_stage([load_fusions()["upsampling_phases"]], editor, explain=True)
    (place,) = outcome.left
    return place.reason


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_weights_that_are_no_constants_stay(name: str) -> None:
    declared = {"weight": ", float[4, 6, 3, 3] weight", "bias": ", float[4] bias"}
    constants = {key: value for key, value in weights().items() if key != name}
    editor = edit(text(inputs=declared[name]), constants)
    assert f"'{name}' has to be a constant" in why_it_stays(editor)
    assert operators(editor) == {"Resize": 1, "Conv": 1}


def test_provider_names_are_known() -> None:
    assert {name for fusion in load_fusions().values() for name in fusion.providers} <= set(PROVIDER_NAMES)
