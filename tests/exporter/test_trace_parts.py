"""What is done to a traced graph, to the tensors of a module, and which traces are kept: by made-up ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper

from sdort.errors import BadModelError, SdortError
from sdort.exporter import torch_modules, trace_cache
from sdort.exporter.signatures import ComponentSpec
from sdort.exporter.template import DATA_NAME, Template, TemplateBlob, _absent_weights, _check_nodes, _check_regions
from sdort.exporter.torch_modules import _attend
from sdort.exporter.trace import (
    PARAMETER,
    _check_signature,
    _dtypes,
    _example,
    _example_sizes,
    _finish,
    _set_dims,
    _weightless,
)
from sdort.exporter.trace_cache import TraceCache
from sdort.families.denoiser_arguments import module_arguments
from sdort.families.graph_tensor import GraphTensor
from sdort.families.unet import UNET
from sdort.machine.version import __version__

USUAL = {
    "batch_size": 2, "sequence_length": 11, "height": 33, "width": 25, "latent_height": 9, "latent_width": 7,
    "sample_height": 74, "sample_width": 58,
}  # fmt: skip


def spec(name: str, config: Mapping[str, Any], inputs: Any = (), outputs: Any = ()) -> ComponentSpec:
    return ComponentSpec(name, "C", config, inputs, outputs)


@pytest.mark.parametrize(
    ("name", "config", "changed"),
    [
        ("unet", {"downscale_factor": 16, "block_out_channels": [8] * 6}, {}),
        ("vae_decoder", {"block_out_channels": [8] * 6}, {}),
        ("vae_encoder", {"block_out_channels": [8] * 4}, {}),
        ("vae_encoder", {"block_out_channels": [8] * 2}, {}),
        ("vae_encoder", {"block_out_channels": [8] * 6}, {"sample_height": 74 * 4, "sample_width": 58 * 4}),
        ("t2i_adapter", {"downscale_factor": 8}, {"sample_height": 33 * 8, "sample_width": 25 * 8}),
        ("t2i_adapter", {"downscale_factor": 16}, {"sample_height": 33 * 16, "sample_width": 25 * 16}),
    ],
)
def test_sizes_that_a_graph_is_traced_at(name: str, config: dict[str, Any], changed: dict[str, int]) -> None:
    sizes = _example_sizes(spec(name, config))
    assert sizes == {**USUAL, **changed}
    assert len(set(sizes.values())) == len(sizes)
    example = _example(GraphTensor("x", "int64", ("batch_size", 5, "sample_height", "height * 4")), sizes)
    assert (tuple(example.shape), example.dtype) == ((2, 5, sizes["sample_height"], 132), torch.int64)
    assert _example(GraphTensor("x", "float32", ()), sizes).dtype == torch.float32


def info(name: str, *dims: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


@pytest.mark.parametrize(
    ("dims", "name", "wrong"),
    [
        (("batch_size", 4, "height_2"), "x", False),
        (("batch_size", 4, "height_2"), "y", True),
        (("batch_size", 4, 66), "x", True),
        (("batch_size", 5, "height_2"), "x", True),
        (("batch", 4, "height_2"), "x", True),
        (("batch_size", "c", "height_2"), "x", True),
        (("batch_size", 4), "x", True),
        (("batch_size", 4, "height_2", 1), "x", True),
    ],
)
def test_a_dim_that_torch_specialised_is_refused(dims: tuple[Any, ...], name: str, wrong: bool) -> None:
    specs = (GraphTensor("a", "float32", (3,)), GraphTensor("x", "float32", ("batch_size", 4, "height * 2")))
    traced = [info("a", 3), info(name, *dims)]
    if wrong:
        with pytest.raises(BadModelError, match=r"torch traced input x \['batch_size', 4, 'height \* 2'\] as"):
            _check_signature(traced, specs, "unet")
        return
    _check_signature(traced, specs, "unet")
    shape = traced[1].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in shape] == ["batch_size", 4, "height * 2"]
    with pytest.raises(ValueError, match="zip"):
        _check_signature(traced[:1], specs, "unet")


def test_an_output_has_the_dims_of_its_component() -> None:
    traced = info("y", "s0", 7, "s1")
    _set_dims(traced, GraphTensor("y", "float32", (2, "width", "(height + 1)//2")))
    assert [dim.WhichOneof("value") for dim in traced.type.tensor_type.shape.dim] == [
        "dim_value", "dim_param", "dim_param",
    ]  # fmt: skip
    assert [dim.dim_param or dim.dim_value for dim in traced.type.tensor_type.shape.dim] == [
        2, "width", "(height + 1)//2",
    ]  # fmt: skip
    for dims in ((2, "width"), (2, "width", 3, 4)):
        with pytest.raises(SdortError, match=r"torch traced y .* with 3 dims"):
            _set_dims(traced, GraphTensor("y", "float32", dims))


def noted(message: Any) -> Any:
    message.metadata_props.add(key="pkg", value="debug")
    return message


def test_a_finished_graph_has_the_checkpoints_names_and_no_notes() -> None:
    weight = noted(helper.make_tensor("model.w", TensorProto.FLOAT, [4], np.zeros(4, np.float32)))
    weight.data_location = TensorProto.EXTERNAL
    inner = noted(helper.make_tensor("model.c", TensorProto.FLOAT, [4], np.zeros(4, np.float32)))
    nodes = [noted(helper.make_node("Add", ["x", "model.w"], ["t0"], doc_string="d")),
             helper.make_node("CastLike", ["t0", "x"], ["t"]),
             noted(helper.make_node("Add", ["t", "model.c"], ["y"], doc_string="d"))]  # fmt: skip
    graph = noted(helper.make_graph(
        nodes, "main", [noted(info("x", "batch_size"))], [noted(info("y", "s0"))], [weight, inner],
        value_info=[noted(info("t0", "s0"))],
    ))  # fmt: skip
    proto = noted(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], producer_name="torch"))
    _finish(
        proto, spec("unet", {}, (GraphTensor("x", "f", ("batch_size",)),), (GraphTensor("y", "f", ("batch * 2",)),))
    )
    assert [tensor.name for tensor in proto.graph.initializer] == ["w", "model.c"]
    assert [list(node.input) for node in proto.graph.node] == [["x", "w"], ["t0", "model.c"]]
    parts = [proto, proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.input, *proto.graph.output]
    assert not any(part.metadata_props for part in (*parts, *proto.graph.initializer))
    assert not any(node.doc_string for node in proto.graph.node)
    assert (proto.graph.name, proto.producer_name, proto.producer_version) == ("unet", "sdort", __version__)
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch * 2"


def test_parameters_alone_lie_elsewhere() -> None:
    """With the shapes that the module has; what is no parameter stays in the graph."""
    model = ir.from_proto(helper.make_model(helper.make_graph(
        [helper.make_node("Add", ["model.w", "model.other"], ["y"])], "g", [], [info("y", 4)],
        [helper.make_tensor(f"model.{name}", TensorProto.FLOAT, [4], np.ones(4)) for name in ("w", "other")],
    )))  # fmt: skip
    first, second = _weightless(model, {"w": (4,), "unused": (2,)}).graph.initializer
    assert (first.name, second.name) == ("model.w", "model.other")
    assert {entry.key: entry.value for entry in first.external_data} == {"location": PARAMETER}
    assert (list(first.dims), first.data_type) == ([4], TensorProto.FLOAT)
    assert not second.external_data
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(second), np.ones(4, np.float32))


def test_dtypes_of_all_values_of_a_graph() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["t"], to=TensorProto.FLOAT16), helper.make_node("Neg", ["t"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [info("x", 4)], [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [4])],
        [helper.make_tensor("w", TensorProto.INT64, [1], [3])],
    )  # fmt: skip
    found = _dtypes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    assert found == {"x": TensorProto.FLOAT, "t": 10, "y": 10, "w": TensorProto.INT64}


def test_inputs_of_one_name_are_one_argument() -> None:
    names = ["sample", "down.0", "text_embeds", "mid", "down.1", "time_ids", "tokens.0"]
    found = module_arguments(names, tuple("abcdefg"), UNET.arguments)
    assert found == {
        "sample": "a", "down": ("b", "e"), "added_cond_kwargs": {"text_embeds": "c", "time_ids": "f"}, "mid": "d",
        "tokens": ("g",),
    }  # fmt: skip
    with pytest.raises(ValueError, match="zip"):
        module_arguments(names, tuple("abc"), UNET.arguments)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_by_its_formula(masked: bool) -> None:
    """Three heads of four; queries and keys of other lengths; against sums in float64."""
    random = np.random.default_rng(1)
    query, key, value = (random.standard_normal((2, length, 12)) for length in (5, 7, 7))
    mask = np.where(random.standard_normal((2, 1, 5, 7)) > 0.5, -1e4, 0.0)
    given = [torch.tensor(each) for each in (query, key, value, *([mask] if masked else []))]
    q, k, v = (each.reshape(2, -1, 3, 4).transpose(0, 2, 1, 3) for each in (query, key, value))
    scores = q @ k.transpose(0, 1, 3, 2) / 2 + (mask if masked else 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(2, 5, 12)
    np.testing.assert_allclose(_attend(3, *given).numpy(), expected, rtol=1e-9)


def test_what_a_projection_is_made_of() -> None:
    plain = torch_modules._projection({"kind": "plain", "embeds": 10, "width": 6, "tokens": 3})
    assert tuple(plain(torch.ones(2, 10)).shape) == (2, 3, 6)
    config = {
        "kind": "plus", "embeds": 10, "width": 6, "hidden": 8, "depth": 2, "heads": 3, "tokens": 5, "inner": 24,
    }  # fmt: skip
    plus = torch_modules._projection(config)
    shapes = {name: tuple(value.shape) for name, value in plus.named_parameters()}
    assert shapes["latents"] == (1, 5, 8)
    assert (shapes["proj_in.weight"], shapes["proj_out.weight"]) == ((8, 10), (6, 8))
    assert len(plus.layers) == 2
    assert shapes["layers.1.attn.to_q.weight"] == (3 * 64, 8)
    assert shapes["layers.1.ff.1.net.2.weight"] == (8, 24)
    assert tuple(plus(torch.ones(2, 7, 10)).shape) == (2, 5, 6)


@pytest.mark.parametrize("name", ["position_ids", "other"])
def test_buffers_are_computed_again(name: str) -> None:
    inner = torch.nn.Module()
    inner.register_buffer(name, torch.full((1, 7), 5, device="meta"), persistent=False)
    model = torch.nn.Module()
    model.inner = inner
    if name == "other":
        with pytest.raises(BadModelError, match=r"buffer 'inner.other' of C is unknown"):
            torch_modules._restore_buffers(spec("unet", {}), model)
        return
    torch_modules._restore_buffers(spec("unet", {}), model)
    assert inner.position_ids.tolist() == [list(range(7))]
    assert inner.position_ids.dtype == torch.int64
    assert not inner.state_dict()


class Recorded:
    """A model that notes what it is called with."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.given = answer, dict[str, Any]()

    def __call__(self, **given: Any) -> Any:
        self.given = given
        return self.answer


@pytest.mark.parametrize("pooled", [False, True])
def test_a_controlnets_outputs_are_scaled_each(pooled: bool) -> None:
    outputs = [torch.arange(2.0 * 3 * side * (side + 1)).reshape(2, 3, side, side + 1) for side in (4, 2, 1)]
    model = Recorded((outputs[:2], outputs[2]))
    net = torch_modules._ControlNet.__new__(torch_modules._ControlNet)
    torch.nn.Module.__init__(net)
    net.__dict__.update(model=model, inputs=["sample", "conditioning_scale", "controlnet_cond"], pooled=pooled)
    found = net.forward("s", torch.tensor([1.0, 2.0, -3.0]), "c")
    assert model.given == {"sample": "s", "controlnet_cond": "c", "return_dict": False}
    for output, scale, result in zip(outputs, (1, 2, -3), found, strict=True):
        scaled = output.numpy() * scale
        expected = np.broadcast_to(scaled.mean((2, 3), keepdims=True), scaled.shape) if pooled else scaled
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


def test_a_unet_takes_the_tokens_of_each_image_and_their_scales() -> None:
    model = Recorded(("noise", "rest"))
    unet = torch_modules._Denoiser.__new__(torch_modules._Denoiser)
    torch.nn.Module.__init__(unet)
    names = [
        "sample", "down_intrablock_additional_residuals.0", "down_intrablock_additional_residuals.1", "time_ids",
        "image_tokens.0", "image_scale.0", "image_tokens.1", "image_scale.1",
    ]  # fmt: skip
    unet.__dict__.update(model=model, inputs=names, denoiser=UNET)
    tokens, scales = (
        [torch.ones(2, 3, 4), torch.ones(2, 5, 4) * 2],
        [torch.tensor([[0.5], [2]]), torch.full((2, 1), 3.0)],
    )
    found = unet.forward("s", "a", "b", "t", tokens[0], scales[0], tokens[1], scales[1])
    assert found == "noise"
    conditions = model.given.pop("added_cond_kwargs")
    residuals = {"down_intrablock_additional_residuals": ["a", "b"]}
    assert model.given == {"sample": "s", **residuals, "return_dict": False}
    assert conditions["time_ids"] == "t"
    for index, (plain, scaled) in enumerate(conditions["image_embeds"]):
        assert plain is tokens[index]
        np.testing.assert_array_equal(scaled.numpy(), tokens[index].numpy() * scales[index].numpy()[:, :, None])


def model_of(**changes: Any) -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]))
    return helper.make_model(helper.make_graph([node], "g", [], []))


@pytest.mark.parametrize("part", [None, "functions", "training_info", "sparse_initializer", "external"])
def test_a_kept_graph_holds_nodes_and_initializers_alone(part: str | None) -> None:
    model = model_of()
    if part == "external":
        model.graph.node[0].attribute[0].t.external_data.add(key="location", value="x")
    elif part:
        getattr(model.graph if part == "sparse_initializer" else model, part).add()
    if part is None:
        _check_nodes(model, "unet")
        return
    with pytest.raises((ValueError, BadModelError)):
        _check_nodes(model, "unet")


@pytest.mark.parametrize(
    ("offsets", "names", "size", "problem"),
    [
        ((0, 4096), "ab", 4096 + 40, None),
        ((0, 400), "ab", 440, None),
        ((5000, 9000), "ab", 9040, None),
        ((0, 399), "ab", 439, "second begins at 399"),
        ((0, True), "ab", 41, "second begins at True"),
        ((-1, 4096), "ab", 4136, "first begins at -1"),
        ((4096, 0), "ab", 40, "second begins at 0"),
        ((0, 4096), "ab", 4135, "would have 4135 bytes"),
        ((0, 4096), "ab", 4137, "would have 4137 bytes"),
        ((0, 4 * (400 + 40 + 4 * 4096) - 40), "ab", 4 * (440 + 4 * 4096), None),
        ((0, 4 * (400 + 40 + 4 * 4096) - 39), "ab", 4 * (440 + 4 * 4096) + 1, "would have"),
    ],
)
def test_regions_of_a_data_file(offsets: tuple[Any, ...], names: str, size: int, problem: str | None) -> None:
    """In order, without overlaps, up to the end; four times as large as its parameters and their room at most."""
    parameters = {"a": (10, 10), "b": (10,)}
    blobs = tuple(
        TemplateBlob(label, offset, {"parameter": name})
        for label, offset, name in zip(("first", "second"), offsets, names, strict=True)
    )
    template = Template(model_of(), parameters, size, blobs, {})
    absent = _absent_weights(parameters)
    if problem:
        with pytest.raises(ValueError, match=problem):
            _check_regions(template, absent)
        return
    found = _check_regions(template, absent)
    assert {offset: weight.nbytes for offset, weight in found.items()} == dict(zip(offsets, (400, 40), strict=True))
    assert DATA_NAME == "model.onnx.data"


@pytest.mark.parametrize("changed", [(), ("diffusers",), ("sdort", "diffusers"), ("transformers",)])
def test_traces_of_sources_that_changed_meanwhile_are_not_kept(
    changed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process's start is known to a second."""
    start = 5_000_000_000
    monkeypatch.setattr(trace_cache, "process_start_ns", lambda: start)
    cache = TraceCache(tmp_path)
    edge = start + 1_000_000_000
    sources = {name: SimpleNamespace(changed_ns=edge + (name in changed), digest=f"d{name}")
               for name in ("diffusers", "transformers", "sdort")}  # fmt: skip
    cache.__dict__["sources"] = sources
    stored: list[Any] = []
    kept = SimpleNamespace(store=lambda *given: stored.append(given), load_json=lambda *given: None)
    monkeypatch.setattr(cache, "_traces", kept)
    monkeypatch.setattr(cache, "_defaults", kept)
    monkeypatch.setattr(trace_cache, "pack", lambda template: f"packed {template}")
    component: Any = spec("unet", {})
    cache.store(component, 20, "t")  # type: ignore[arg-type]
    named = [name for name in ("diffusers", "transformers", "sdort") if name in changed]
    said = " ".join(capsys.readouterr().err.split())
    assert ("changed while this process ran" in said) == bool(changed)
    assert f"the sources of {', '.join(named)} changed" in said or not changed
    assert stored == ([] if changed else [("unet", cache._key(component, 20), "packed t")])
    stored.clear()
    assert cache.defaults("CLIPTextModel", lambda name: {"of": name}) == {"of": "CLIPTextModel"}
    # Of transformers and sdort, whatever diffusers' sources are.
    assert bool(stored) == (not {"transformers", "sdort"} & set(changed))
