"""Components by the ranks, types and operators of a graph, and names of a folder's models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sdort.errors import BadModelError, UsageError
from sdort.onnx_io.check_nodes import check_nodes
from sdort.onnx_io.check_tensors import ITEMSIZE, check_tensor, tensor_nbytes, type_name
from sdort.onnx_io.components import (
    find_components,
    find_models,
    recognise,
    refuse_others,
    survey,
    survey_models,
    walk,
)

F, H, B, D = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
LONG, INT, U8 = TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8
Value = tuple[int, list[Any]]
SAMPLE: Value = (F, ["b", 4, "h", "w"])
TIME: Value = (LONG, [1])
TEXT: Value = (F, ["b", "s", 32])
IMAGE: Value = (F, ["b", 3, "h", "w"])
IDS: Value = (LONG, ["b", "s"])


def proto(inputs: list[Value], outputs: list[Value], *operators: str, weights: tuple[tuple[int, ...], ...] = ()) -> Any:
    def infos(name: str, values: list[Value]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(f"{name}{n}", kind, dims) for n, (kind, dims) in enumerate(values)]

    nodes = [helper.make_node(operator, ["in0"], [f"t{n}"]) for n, operator in enumerate(operators)]
    tensors = [numpy_helper.from_array(np.zeros(shape, np.float32), f"w{n}") for n, shape in enumerate(weights)]
    nodes += [helper.make_node("Conv", ["in0", f"w{n}"], [f"c{n}"]) for n in range(len(weights))]
    nodes += [helper.make_node("Identity", ["in0"], [f"out{n}"]) for n in range(len(outputs))]
    graph = helper.make_graph(nodes, "g", infos("in", inputs), infos("out", outputs), tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("inputs", "outputs", "component"),
    [
        *(([(kind, SAMPLE[1]), TIME, (kind, TEXT[1])], [(kind, SAMPLE[1])], "unet") for kind in (F, H, B, D)),
        ([TEXT, TIME, SAMPLE], [SAMPLE], "unet"),
        ([SAMPLE, (F, []), TEXT], [SAMPLE], "unet"),
        ([SAMPLE, TIME, TEXT], [SAMPLE, SAMPLE], "controlnet"),
        ([SAMPLE, TIME, TEXT, IMAGE], [SAMPLE] * 3, "controlnet"),
        ([SAMPLE, TIME, TEXT], [SAMPLE, TEXT], None),
        ([SAMPLE, TEXT], [SAMPLE], None),
        ([SAMPLE, TIME], [SAMPLE], None),
        ([TIME, TEXT], [SAMPLE], None),
        ([SAMPLE, TIME, (LONG, TEXT[1])], [SAMPLE], None),
        ([(U8, SAMPLE[1]), TIME, TEXT], [SAMPLE], None),
        ([SAMPLE, (LONG, [1, 1]), TEXT], [SAMPLE], None),
        ([IDS], [TEXT], "text_encoder"),
        ([(INT, IDS[1])], [(H, TEXT[1])], "text_encoder"),
        ([IDS, IDS], [TEXT, (F, ["b", 8])], "text_encoder"),
        ([IDS], [(F, ["b", 8]), TEXT], "text_encoder_2"),
        ([IDS, (F, ["b", "s"])], [TEXT], None),
        ([IDS], [(LONG, TEXT[1])], None),
        ([IDS], [(F, ["b", 8])], None),
        ([IMAGE], [TEXT], "image_encoder"),
        ([IMAGE], [TEXT, TEXT], "image_encoder"),
        ([IMAGE], [TEXT, (F, ["b", 8])], None),
        ([IMAGE, IMAGE], [TEXT], None),
        ([IMAGE], [SAMPLE, SAMPLE], "t2i_adapter"),
        ([IMAGE], [SAMPLE, TEXT], None),
        ([SAMPLE], [IMAGE], "vae_decoder"),
        ([(F, ["b", 16, "h", "w"])], [IMAGE], "vae_decoder"),
        ([IMAGE], [SAMPLE], "vae_encoder"),
        ([IMAGE], [IMAGE], None),
        ([(F, ["b", 2, "h", "w"])], [IMAGE], None),
        ([IMAGE], [(F, ["b", 2, "h", "w"])], None),
        ([SAMPLE], [SAMPLE], None),
        ([(F, ["b", 4, "h"])], [IMAGE], None),
        ([], [IMAGE], None),
        ([IMAGE], [], None),
    ],
)  # fmt: skip
def test_a_component_by_its_inputs_and_outputs(
    inputs: list[Value], outputs: list[Value], component: str | None
) -> None:
    assert recognise(proto(inputs, outputs)) == component


POOLING = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
ENLARGING = ("Resize", "Upsample", "ConvTranspose", "DepthToSpace")


def test_classifiers_and_upscalers_are_no_halves_of_an_autoencoder() -> None:
    for operator in POOLING:
        assert recognise(proto([SAMPLE], [IMAGE], operator)) is None
        assert recognise(proto([IMAGE], [SAMPLE], operator)) is None
    for operator in ENLARGING:
        assert recognise(proto([SAMPLE], [IMAGE], operator)) == "vae_decoder"
        assert recognise(proto([IMAGE], [SAMPLE], operator)) is None
    assert recognise(proto([IMAGE], [SAMPLE], "Relu")) == "vae_encoder"


OPEN: Value = (F, ["b", "c", "h", "w"])


@pytest.mark.parametrize(
    ("source", "target", "weights", "place", "component"),
    [
        (OPEN, OPEN, ((8, 4, 3, 3), (3, 8, 3, 3)), "a/b.onnx", "vae_decoder"),
        (OPEN, OPEN, ((8, 3, 3, 3), (8, 8, 3, 3)), "a/b.onnx", "vae_encoder"),
        (SAMPLE, OPEN, ((8, 9, 3, 3), (3, 8, 3, 3)), "a/b.onnx", "vae_decoder"),
        (OPEN, SAMPLE, ((8, 3, 3, 3), (9, 8, 3, 3)), "a/b.onnx", "vae_encoder"),
        (OPEN, OPEN, (), "a/b.onnx", None),
        (OPEN, OPEN, (), "vae_decoder/model.onnx", "vae_decoder"),
        (OPEN, OPEN, (), "a/vae_encoder.onnx", "vae_encoder"),
        (SAMPLE, OPEN, (), "vae_decoder/model.onnx", "vae_decoder"),
        (IMAGE, OPEN, (), "vae_encoder/model.onnx", None),  # one end is known, the other one is not
        (OPEN, OPEN, ((8, 4, 3, 3), (5, 8, 3, 3)), "vae_decoder/model.onnx", None),
    ],
)
def test_open_channels_are_those_of_the_convolutions(
    source: Value, target: Value, weights: Any, place: str, component: str | None
) -> None:
    assert recognise(proto([source], [target], weights=weights), Path(place)) == component


def test_the_second_text_encoder_by_its_folder() -> None:
    for place in ("text_encoder_2/model.onnx", "x/text_encoder_2.onnx"):
        assert recognise(proto([IDS], [TEXT]), Path(place)) == "text_encoder_2"
    for place in ("text_encoder/model.onnx", "text_encoder_2/x/model.onnx"):
        assert recognise(proto([IDS], [TEXT]), Path(place)) == "text_encoder"


def test_an_input_with_a_default_is_none() -> None:
    model = proto([SAMPLE, TIME, TEXT], [SAMPLE], weights=((4, 4, 3, 3),))
    model.graph.input.append(helper.make_tensor_value_info("w0", F, [4, 4, 3, 3]))
    assert recognise(model) == "unet"
    lone = proto([IMAGE], [SAMPLE], weights=((4, 3, 3, 3),))
    lone.graph.input.append(helper.make_tensor_value_info("w0", F, [4, 3, 3, 3]))
    assert recognise(lone) == "vae_encoder"


UNET = proto([SAMPLE, TIME, TEXT], [SAMPLE]).SerializeToString()
ENCODER = proto([IDS], [TEXT]).SerializeToString()
OTHER = proto([IDS], [IDS]).SerializeToString()


def make(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / (name.replace("__", "/") + ".onnx")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def names(found: dict[str, Path], root: Path) -> dict[str, str]:
    return {name: path.relative_to(root).as_posix() for name, path in found.items()}


def test_what_is_found_in_a_folder(tmp_path: Path) -> None:
    make(tmp_path, unet__model=UNET, unet__model_fp16=UNET, text_encoder__any=ENCODER, text_encoder_2__model=ENCODER,
         vae_decoder__model=UNET, safety_checker__model=OTHER, upscaler__model=OTHER, tools__a=OTHER, tools__b=OTHER,
         lone=OTHER)  # fmt: skip
    found = survey(tmp_path)
    assert names(found.components, tmp_path) == {
        "text_encoder": "text_encoder/any.onnx", "text_encoder_2": "text_encoder_2/model.onnx",
        "unet": "unet/model.onnx", "safety_checker": "safety_checker/model.onnx",
    }  # fmt: skip
    assert names(found.misfits, tmp_path) == {"vae_decoder": "vae_decoder/model.onnx"}
    assert names(found.spare, tmp_path) == {"unet/model_fp16": "unet/model_fp16.onnx"}
    assert names(found.others, tmp_path) == {
        "lone": "lone.onnx", "tools/a": "tools/a.onnx", "tools/b": "tools/b.onnx", "upscaler": "upscaler/model.onnx",
    }  # fmt: skip
    assert len(found.models) == 10
    assert list(found.models)[:5] == ["text_encoder", "text_encoder_2", "unet", "safety_checker", "vae_decoder"]
    with pytest.raises(BadModelError, match="is no vae_decoder: it maps in0: float"):
        survey_models(tmp_path)


def test_a_lone_model_is_recognised_unless_it_is_any_graph(tmp_path: Path) -> None:
    make(tmp_path / "a", model=UNET)
    assert names(survey(tmp_path / "a").components, tmp_path) == {"unet": "a/model.onnx"}
    plain = survey(tmp_path / "a", recognise_lone=False)
    assert (plain.components, names(plain.others, tmp_path)) == ({}, {"a": "a/model.onnx"})
    file = survey(tmp_path / "a" / "model.onnx")
    assert names(file.components, tmp_path) == {"unet": "a/model.onnx"}
    make(tmp_path / "b", one=UNET, two=UNET)
    assert survey(tmp_path / "b").components == {}
    with pytest.raises(BadModelError, match=r"holds several models \(one.onnx, two.onnx\) and no model.onnx"):
        find_components(tmp_path / "b")
    assert names(find_models(tmp_path / "b"), tmp_path) == {"one": "b/one.onnx", "two": "b/two.onnx"}
    with pytest.raises(UsageError, match="does not exist"):
        survey(tmp_path / "nowhere")


def test_what_is_left_alone_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, unet__model=UNET, unet__half=UNET, upscaler__model=OTHER)
    assert list(find_components(tmp_path)) == ["unet"]
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("as no component of a pipeline that sdort knows: upscaler, unet/half")
    make(tmp_path / "c", unet__model=UNET)
    find_components(tmp_path / "c")
    assert capsys.readouterr().err == ""


def test_models_that_are_no_component_are_described(tmp_path: Path) -> None:
    make(tmp_path, **{f"m{number}__model": OTHER for number in range(7)})
    with pytest.raises(BadModelError) as caught:
        refuse_others(survey(tmp_path))
    lines = caught.value.message.split("\n")
    assert [line.strip() for line in lines[1:]] == [
        *(f"m{number}/model.onnx: it maps in0: int64[b, s] to out0: int64[b, s]" for number in range(5)), "and 2 more",
    ]  # fmt: skip
    assert "--component NAME" in str(caught.value.hint)
    make(tmp_path, unet__model=UNET)
    with pytest.raises(BadModelError) as caught:
        refuse_others(survey(tmp_path))
    assert "--component unet" in str(caught.value.hint)
    refuse_others(survey(make(tmp_path / "d", unet__model=UNET)))


def test_folders_are_walked_once_and_hidden_ones_not(tmp_path: Path) -> None:
    make(tmp_path / "x", b__c__d=OTHER, b__e=OTHER, a=OTHER, _hidden__e=OTHER)
    (tmp_path / "x" / "_hidden").rename(tmp_path / "x" / ".hidden")
    (tmp_path / "x" / "again").symlink_to("b")
    (tmp_path / "x" / "b" / "up").symlink_to("..")
    (tmp_path / "x" / "b" / "c2").symlink_to("c")
    found = [path.relative_to(tmp_path / "x").as_posix() for path in walk(tmp_path / "x")]
    # Folders directly in it under each of their names, others once.
    assert found == ["a.onnx", "b/e.onnx", "b/c/d.onnx", "again/e.onnx"]


WIDTHS = {
    "FLOAT": 4, "DOUBLE": 8, "FLOAT16": 2, "BFLOAT16": 2, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8, "UINT8": 1,
    "UINT16": 2, "UINT32": 4, "UINT64": 8, "BOOL": 1, "FLOAT8E4M3FN": 1, "FLOAT8E4M3FNUZ": 1, "FLOAT8E5M2": 1,
    "FLOAT8E5M2FNUZ": 1,
}  # fmt: skip


def test_types_of_elements_and_their_bytes() -> None:
    assert {type_name(kind): size for kind, size in ITEMSIZE.items()} == WIDTHS
    assert type_name(99) == "99"
    for name, size in WIDTHS.items():
        tensor = TensorProto(name="t", data_type=TensorProto.DataType.Value(name), dims=[3, 5])
        assert tensor_nbytes(tensor, "c") == 15 * size
        tensor.raw_data = bytes(15 * size)
        check_tensor(tensor, "c")
        tensor.raw_data = bytes(15 * size + 1)
        with pytest.raises(BadModelError, match=f"of {name} needs {15 * size} bytes"):
            check_tensor(tensor, "c")
    assert tensor_nbytes(TensorProto(data_type=F), "c") == 4
    assert tensor_nbytes(TensorProto(data_type=F, dims=[0, 7]), "c") == 0
    for name in ("STRING", "COMPLEX64", "INT4", "UNDEFINED"):
        with pytest.raises(BadModelError, match=f"element type {name} is not supported"):
            tensor_nbytes(TensorProto(data_type=TensorProto.DataType.Value(name)), "c")


def check(operator: str, inputs: int, opset: int, outputs: int = 1, **attributes: Any) -> None:
    node = helper.make_node(operator, list("abcdef"[:inputs]), [f"o{n}" for n in range(outputs)], **attributes)
    check_nodes([node], {"": opset}, set(), "c")


FLAGS = {
    "allowzero": ("Reshape", 2), "keepdims": ("ReduceSum", 2), "noop_with_empty_axes": ("ReduceSum", 2),
    "select_last_index": ("ArgMax", 1), "is_causal": ("Attention", 3),
}  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_are_0_or_1(flag: str) -> None:
    operator, inputs = FLAGS[flag]
    for value in (0, 1):
        check(operator, inputs, 23, **{flag: value})
    for value in (-1, 2, 7):
        with pytest.raises(BadModelError, match=f"its {flag} is {value}, and can be 0 or 1"):
            check(operator, inputs, 23, **{flag: value})


def test_counts_that_end_a_process() -> None:
    check("Split", 1, 18, 3, num_outputs=3)
    check("Split", 1, 11, 2, split=[1, 2])
    for parts in (2, 4):
        with pytest.raises(BadModelError, match=f"a Split into {parts} parts has 3 outputs"):
            check("Split", 1, 18, 3, num_outputs=parts)
        with pytest.raises(BadModelError, match=f"a Split into {parts} parts has 3 outputs"):
            check("Split", 1, 11, 3, split=[1] * parts)
    for name in ("q_num_heads", "kv_num_heads"):
        heads = {"q_num_heads": 2, "kv_num_heads": 1}
        check("Attention", 3, 23, **heads)
        for count in (0, -1):
            with pytest.raises(BadModelError, match=f"an Attention with {name} = {count}"):
                check("Attention", 3, 23, **{**heads, name: count})
