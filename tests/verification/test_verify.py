"""Random inputs fit what a model declares; the comparison finds what is wrong and admits what is only rounded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support import models
from support.exports import Case
from support.parity import OutputParity, Parity, compare

from sdort.errors import BadModelError, ParityError, ProviderError, UsageError
from sdort.onnx_io.precision_mark import stored_dtype
from sdort.verification.limits import TOLERANCES, Tolerance
from sdort.verification.recorded_inputs import random_inputs
from sdort.workload.judgement import Errors
from sdort.workload.samples import Sample, declared_inputs, make_inputs

SMALL = (Sample(1, 8, 12, 7),)
RNG = np.random.default_rng(3)
Exported = Callable[[Case], Path]
Edit = Callable[[onnx.ModelProto], None]


def model_of(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, tuple[int, Sequence[Any]]], **weights: Any
) -> onnx.ModelProto:
    """A model whose last node's output is the output; ``inputs`` maps names to dtype and dims."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, dtype, dims) for name, (dtype, dims) in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], dtype, None) for dtype, _ in list(inputs.values())[:1]],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def shapes(model: onnx.ModelProto, sample: Sample, component: str = "unet") -> dict[str, tuple[int, ...]]:
    values = make_inputs(declared_inputs(model, component), sample, component, seed=0)
    return {name: value.shape for name, value in values.items()}


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def all_inputs() -> onnx.ModelProto:
    """An SDXL UNet's inputs with the symbols of an exporter that names two dims alike."""
    inputs = {
        "sample": (FLOAT, ["n", 4, "n", "w"]),
        "timestep": (INT64, []),
        "encoder_hidden_states": (FLOAT, ["n", "s", 16]),
        "text_embeds": (FLOAT, ["n", 24]),
        "time_ids": (FLOAT, ["n", 6]),
    }
    return model_of([helper.make_node("Identity", ["sample"], ["y"])], inputs)


def test_open_dims_are_filled_by_place() -> None:
    assert shapes(all_inputs(), Sample(2, 9, 13, 7)) == {
        "sample": (2, 4, 9, 13),
        "timestep": (),
        "encoder_hidden_states": (2, 7, 16),
        "text_embeds": (2, 24),
        "time_ids": (2, 6),
    }


def test_values_suit_their_inputs_and_follow_the_seed() -> None:
    inputs = declared_inputs(all_inputs(), "unet")
    first, again, other = (make_inputs(inputs, Sample(8, 32, 32), "unet", seed) for seed in (1, 1, 2))
    assert all((first[name] == again[name]).all() for name in first)
    assert not (first["sample"] == other["sample"]).all()
    assert first["sample"].std() == pytest.approx(1, abs=0.05)
    assert first["timestep"].dtype == np.int64
    assert 0 <= first["timestep"] < 1000
    assert (first["time_ids"] == first["time_ids"].round()).all()
    assert 0 <= first["time_ids"].min() < first["time_ids"].max() <= 1024


def test_images_for_the_vae_encoder_are_in_range() -> None:
    inputs = declared_inputs(all_inputs(), "vae_encoder")
    sample = make_inputs(inputs, Sample(), "vae_encoder", 0)["sample"]
    assert (sample.min(), sample.max()) == (-1, 1)


def test_a_fixed_batch_wins() -> None:
    model = all_inputs()
    model.graph.input[2].type.tensor_type.shape.dim[0].dim_value = 3
    assert {shape[0] for name, shape in shapes(model, Sample(2)).items() if name != "timestep"} == {3}


def test_a_fixed_batch_of_one_wins_too() -> None:
    model = all_inputs()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert shapes(model, Sample(2))["encoder_hidden_states"][0] == 1


def test_the_scales_of_a_controlnet_fix_no_batch() -> None:
    """They are one for each output, however many samples there are."""
    scales: list[Any] = [5]
    inputs = {"conditioning_scale": (FLOAT, scales), "sample": (FLOAT, ["b", 4, "h", "w"]), "timestep": (FLOAT, ["b"])}
    found = shapes(model_of([helper.make_node("Identity", ["sample"], ["y"])], inputs), Sample(2, 8, 8), "controlnet")
    assert found == {"conditioning_scale": (5,), "sample": (2, 4, 8, 8), "timestep": (2,)}


@pytest.mark.parametrize(
    ("component", "scale"), [("unet", 1), ("vae_decoder", 1), ("controlnet", 1), ("vae_encoder", 8), ("t2i_adapter", 8)]
)
def test_random_inputs_are_pixels_where_a_component_takes_an_image(component: str, scale: int, tmp_path: Path) -> None:
    graph = model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": (FLOAT, ["b", 3, "h", "w"])})
    (tmp_path / component).mkdir()
    onnx.save(graph, tmp_path / component / "model.onnx")
    found = random_inputs(tmp_path / component / "model.onnx", component, 8, (64, 96))
    sides = [(64, 64), (40, 56)]  # of the longest that are tried, and one that is not square
    expected = [(batch, 3, height * scale, width * scale) for batch, (height, width) in enumerate(sides, 1)]
    assert [each.feeds["x"].shape for each in found] == expected


@pytest.mark.parametrize(("timestep", "batch"), [(["steps"], 2), ([1], 2), ([4], 4)])
def test_one_timestep_or_one_for_each_image(timestep: list[Any], batch: int) -> None:
    inputs = {"sample": (FLOAT, ["b", 4, "h", "w"]), "timestep": (FLOAT, timestep)}
    found = shapes(model_of([helper.make_node("Identity", ["sample"], ["y"])], inputs), Sample(2, 8, 8))
    assert found["sample"][0] == batch
    assert found["timestep"] == ((4,) if timestep == [4] else (1,))


def test_channels_that_are_left_open_are_read_from_the_weights() -> None:
    """The old conversion script leaves every dim open."""
    nodes = [
        helper.make_node("Cast", ["sample"], ["wide"], to=FLOAT),
        helper.make_node("Conv", ["wide", "filters"], ["image"]),
        helper.make_node("MatMul", ["encoder_hidden_states", "matrix"], ["y"]),
    ]
    inputs = {"sample": (FLOAT, list("bchw")), "encoder_hidden_states": (FLOAT, list("bsd"))}
    weights = {"filters": np.zeros((8, 9, 3, 3), np.float32), "matrix": np.zeros((40, 8), np.float32)}
    assert shapes(model_of(nodes, inputs, **weights), Sample(1, 5, 6, 7)) == {
        "sample": (1, 9, 5, 6),
        "encoder_hidden_states": (1, 7, 40),
    }


def test_channels_of_a_channels_last_convolution_and_a_transposed_gemm() -> None:
    nodes = [
        helper.make_node("Transpose", ["sample"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("NhwcConv", ["last", "filters"], ["image"], domain="com.microsoft"),
        helper.make_node("Reshape", ["encoder_hidden_states", "rows"], ["flat"]),
        helper.make_node("Gemm", ["flat", "matrix"], ["y"], transB=1),
    ]
    inputs = {"sample": (FLOAT, list("bchw")), "encoder_hidden_states": (FLOAT, list("bsd"))}
    weights = {"filters": np.zeros((8, 3, 3, 9)), "matrix": np.zeros((8, 40)), "rows": np.array([-1, 40])}
    found = shapes(model_of(nodes, inputs, **weights), Sample(1, 5, 6, 7))
    assert found == {"sample": (1, 9, 5, 6), "encoder_hidden_states": (1, 7, 40)}


def test_token_ids_stay_within_their_table() -> None:
    nodes = [
        helper.make_node("Reshape", ["input_ids", "rows"], ["flat"]),
        helper.make_node("Gather", ["table", "flat"], ["y"]),
    ]
    inputs = {"input_ids": (TensorProto.INT32, ["b", "s"])}
    model = model_of(nodes, inputs, table=np.zeros((50, 4), np.float32), rows=np.array([-1]))
    ids = make_inputs(declared_inputs(model, "text_encoder"), Sample(64), "text_encoder", 0)["input_ids"]
    assert ids.dtype == np.int32
    assert (ids.shape, ids.min(), ids.max()) == ((64, 77), 0, 49)


def test_a_dim_that_nothing_tells_is_refused() -> None:
    model = model_of([helper.make_node("Identity", ["sample"], ["y"])], {"sample": (FLOAT, list("bchw"))})
    with pytest.raises(BadModelError, match="how large dim 1 is"):
        shapes(model, Sample())
    vectors = model_of([helper.make_node("Identity", ["text_embeds"], ["y"])], {"text_embeds": (FLOAT, list("bd"))})
    with pytest.raises(BadModelError, match="how large dim 1 is"):
        shapes(vectors, Sample())


# --- comparison ---


def edited(path: Path, folder: Path, edit: Edit) -> Path:
    model = onnx.load(path)
    edit(model)
    out = folder / "edited.onnx"
    onnx.save(model, out)
    return out


def shift_one_bias(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name.endswith("conv1.bias"))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.01), tensor.name))


def forget_a_scale(model: onnx.ModelProto) -> None:
    """The scores of one attention are left unscaled: the last square root before a softmax becomes one."""
    softmax = next(index for index, node in enumerate(model.graph.node) if node.op_type == "Softmax")
    for node in [n for n in model.graph.node[:softmax] if n.op_type == "Sqrt"][-2:]:
        node.op_type = "Identity"


def forget_the_mask(model: onnx.ModelProto) -> None:
    """The first addition before a softmax adds the mask; it adds nothing."""
    made_by = {output: node for node in model.graph.node for output in node.output}
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    add = made_by[softmax.input[0]]
    assert add.op_type == "Add"
    add.op_type = "Identity"
    del add.input[1:]


def test_a_model_equals_itself(exported: Exported) -> None:
    path = exported(Case("sd1", "ts14"))
    parity = compare(path, path, component="unet", samples=SMALL)
    parity.check()
    assert parity.passed
    assert parity.dtype == "float32"
    # The reference runs without ONNX Runtime's fusions, the other with them.
    assert 0 < parity.worst.largest < 1e-5


@pytest.mark.parametrize(
    ("family", "component", "edit"),
    [
        ("sd1", "unet", shift_one_bias),
        ("sd1", "unet", forget_a_scale),
        ("vae_decoder", "vae_decoder", shift_one_bias),
        ("vae_decoder", "vae_decoder", forget_a_scale),
        ("clip", "text_encoder", forget_the_mask),
    ],
)
def test_what_is_wrong_is_found(exported: Exported, tmp_path: Path, family: str, component: str, edit: Edit) -> None:
    path = exported(Case(family, "ts14"))
    samples = [Sample(1, 8, 12, 77)]
    parity = compare(path, edited(path, tmp_path, edit), component=component, samples=samples)
    assert not parity.passed
    with pytest.raises(ParityError, match="differs from the original"):
        parity.check()
    if edit is not shift_one_bias:
        # Even fp16's tolerance tells a wrong graph from a rounded one.
        half = TOLERANCES["float16", component]
        assert parity.worst.largest > 2 * half.largest
        assert parity.worst.mean > 2 * half.mean


@pytest.mark.parametrize("family", models.FAMILIES)
def test_honest_rounding_to_half_is_within_tolerance(family: str) -> None:
    """torch with every weight and activation in fp16: what the fp16 tolerances were measured with."""
    built = models.build(family)
    limit = TOLERANCES["float16", built.component]
    half = copy.deepcopy(built.module).half()
    with torch.no_grad():
        expected = built.module(*built.inputs.values())
        actual = half(*(t.half() if t.is_floating_point() else t for t in built.inputs.values()))
    pairs = zip(expected, actual, strict=True) if isinstance(expected, tuple) else [(expected, actual)]
    for wanted, value in pairs:
        error = (value.float() - wanted).abs() / wanted.std()
        assert error.max() < limit.largest
        assert error.mean() < limit.mean
        # And it is no more than a few times what rounding costs: the tolerance is not there to admit anything.
        assert limit.largest < 30 * error.max()


def compared(tmp_path: Path, original: onnx.ModelProto, optimized: onnx.ModelProto, **settings: Any) -> Parity:
    onnx.save(original, tmp_path / "original.onnx")
    onnx.save(optimized, tmp_path / "optimized.onnx")
    settings = {"component": "unet", "samples": SMALL, **settings}
    return compare(tmp_path / "original.onnx", tmp_path / "optimized.onnx", **settings)


IMAGE = {"sample": (FLOAT, ["b", 4, "h", "w"])}


def plus(value: Any, dtype: Any = np.float32, name: str = "y", source: str = "sample") -> onnx.ModelProto:
    inputs = {source: (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["b", 4, "h", "w"])}
    return model_of([helper.make_node("Add", [source, "c"], [name])], inputs, c=np.asarray(value, dtype))


def test_errors_are_relative_to_the_standard_deviation(tmp_path: Path) -> None:
    weights = np.full((1, 4, 1, 1), 1.0, np.float32)
    weights[0, 0] += 0.25
    parity = compared(tmp_path, plus(np.ones((1, 4, 1, 1))), plus(weights))
    assert parity.worst.largest == pytest.approx(0.25, rel=0.1)  # the input's spread is 1
    assert parity.worst.mean == pytest.approx(0.25 / 4, rel=0.1)


def test_half_is_told_by_the_weights_and_inputs_are_cast(tmp_path: Path) -> None:
    parity = compared(tmp_path, plus([1.5]), plus([1.5], np.float16))
    assert parity.dtype == "float16"
    assert parity.passed
    assert 0 < parity.worst.largest < 4e-3  # one rounding of the input and one of the sum, both below 8
    assert (stored_dtype(plus([1.0])), stored_dtype(plus([1.0], np.float16))) == ("float32", "float16")


def test_each_sample_and_output_is_measured_and_equal_ones_once(tmp_path: Path) -> None:
    samples = [Sample(1, 8, 8), Sample(2, 4, 6), Sample(1, 8, 8, 99)]
    parity = compared(tmp_path, plus([1.0]), plus([1.0]), samples=samples)
    assert [output.sample.batch for output in parity.outputs] == [1, 2]


@pytest.mark.parametrize(
    ("optimized", "error", "message"),
    [
        (plus([np.nan]), ParityError, "NaN"),
        (plus([np.inf]), ParityError, "NaN or infinite"),
        (plus(np.ones((2, 1, 1, 1, 1))), ParityError, "the original's"),
        (plus([1.0], name="z"), BadModelError, "no output 'y'"),
        (plus([1.0], source="latent"), BadModelError, "the optimized model latent"),
        (plus(np.ones(5)), ProviderError, "the run on cpu failed"),
        (plus([1.0], np.float64), BadModelError, "ONNX Runtime cannot load"),
    ],
)
def test_what_cannot_be_compared(tmp_path: Path, optimized: onnx.ModelProto, error: Any, message: str) -> None:
    if message.startswith("ONNX Runtime"):
        optimized.graph.input[0].type.tensor_type.elem_type = FLOAT  # and the constant is double
    with pytest.raises(error, match=message):
        compared(tmp_path, plus([1.0]), optimized)


def test_a_reference_that_proves_nothing_is_refused(tmp_path: Path) -> None:
    constant = model_of([helper.make_node("Mul", ["sample", "c"], ["y"])], IMAGE, c=np.zeros(1, np.float32))
    with pytest.raises(ParityError, match="constant"):
        compared(tmp_path, constant, constant)
    with pytest.raises(ParityError, match="not finite"):
        compared(tmp_path, plus([np.nan]), plus([1.0]))


def test_files_and_components_that_are_none(tmp_path: Path) -> None:
    missing, junk = tmp_path / "missing.onnx", tmp_path / "junk.onnx"
    junk.write_bytes(b"\x0ajunk that is no protobuf")
    with pytest.raises(BadModelError, match="cannot read"):
        compare(missing, missing, component="unet")
    with pytest.raises(BadModelError, match="not an ONNX model"):
        compare(junk, junk, component="unet")
    with pytest.raises(UsageError, match="upscaler"):
        compare(junk, junk, component="upscaler")


def test_a_provider_that_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="ROCMExecutionProvider"):
        compared(tmp_path, plus([1.0]), plus([1.0]), provider="rocm")


def test_external_data_is_found_beside_each_model(tmp_path: Path) -> None:
    paths = []
    for name, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "model.onnx")
        model = plus(np.full((1, 4, 8, 12), value))
        onnx.save(model, paths[-1], save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    parity = compare(*paths, component="unet", samples=SMALL)
    assert parity.worst.mean == pytest.approx(1, rel=0.1)


def test_the_worst_output_is_the_one_nearest_to_its_limit() -> None:
    mean = OutputParity("mean", Sample(), Errors(0, 0, 1, 0.1, 0.09, 0))
    largest = OutputParity("largest", Sample(), Errors(0, 0, 1, 0.5, 0.01, 0))
    assert Parity("unet", "float32", Tolerance(1.0, 0.1), (largest, mean)).worst is mean
    assert Parity("unet", "float32", Tolerance(0.5, 0.1), (largest, mean)).worst is largest
    assert Parity("unet", "float32", Tolerance(0.5, 0.1), (largest, mean)).passed
    assert not Parity("unet", "float32", Tolerance(0.49, 0.1), (largest, mean)).passed
