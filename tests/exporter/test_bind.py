"""A checkpoint's tensors bound to parameters, and cut out of the layouts of single files: values, not only names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.checkpoints.layout import clip_tensors, vae_tensors
from sdort.checkpoints.safetensors import read_tensors
from sdort.errors import BadModelError
from sdort.exporter.bind import bind
from sdort.graph.signature import Array
from sdort.graph.weights import Inline, Weight

DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


def tensor(value: float, *shape: int, dtype: Any = np.float32) -> Weight:
    return Inline(np.full(shape, value, dtype))


NAMES = [
    ("a.weight", "a.weight"),
    ("text_model.a.weight", "a.weight"),
    ("a.weight", "text_model.a.weight"),
    *(
        (f"encoder.mid_block.attentions.0.{old}.{leaf}", f"encoder.mid_block.attentions.0.{new}.{leaf}")
        for old, new in (("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0"))
        for leaf in ("weight", "bias")
    ),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("stored", "parameter"), NAMES)
def test_a_parameter_gets_its_own_tensor_in_fp32(stored: str, parameter: str, dtype: Any) -> None:
    others = {f"x.{number}": tensor(number, 2, 3) for number in range(3)}
    parameters = {**dict.fromkeys(others, (2, 3)), parameter: (3, 2)}
    bound = bind({**others, stored: tensor(0.3, 3, 2, dtype=dtype)}, parameters, "unet")
    assert bound.keys() == parameters.keys()
    assert all(weight.dtype == np.float32 for weight in bound.values())
    expected = np.full((3, 2), 0.3, dtype).astype(np.float32)
    np.testing.assert_array_equal(bound[parameter].load(), expected)
    assert all((bound[name].load() == number).all() for number, name in enumerate(others))


def test_its_own_name_goes_before_another_versions() -> None:
    """Where the architecture has both parameters."""
    tensors = {"a": tensor(1, 2), "text_model.a": tensor(2, 2)}
    bound = bind(tensors, {"a": (2,), "text_model.a": (2,)}, "text_encoder")
    assert [float(bound[name].load()[0]) for name in ("a", "text_model.a")] == [1, 2]


REFUSED: list[tuple[dict[str, Weight], str]] = [
    ({"a": tensor(1, 2)}, r"lacks 1 of the parameters .*b"),
    ({"a": tensor(1, 2), "b": tensor(1, 3), "c": tensor(1, 1)}, r"has 1 tensor that its config has no place for .*c"),
    ({"a": tensor(1, 2), "c": tensor(1, 3)}, r"lacks 1 .*b.* and has 1 tensor"),
    ({"a": tensor(1, 2), "text_model.a": tensor(1, 2), "b": tensor(1, 3)}, r"'a' twice, also as 'text_model.a'"),
    ({"a": tensor(1, 3), "b": tensor(1, 3)}, r"1 tensor of another shape .*'a' is \[3\], not \[2\]"),
    ({"a": tensor(1, 1, 2), "b": tensor(1, 3)}, r"'a' is \[1, 2\], not \[2\]"),
    ({"a": tensor(1, 2, dtype=np.int8), "b": tensor(1, 3)}, "'a' is stored as int8"),
    ({"a": tensor(1, 2, dtype=ml_dtypes.float8_e4m3fn), "b": tensor(1, 3)}, "'a' is stored as float8_e4m3fn"),
    ({"a": tensor(1, 2), "b": tensor(1, 3), "x.position_ids": tensor(1, 4)}, "no place for"),
]


@pytest.mark.parametrize(("tensors", "message"), REFUSED)
def test_what_does_not_fit_is_named(tensors: dict[str, Weight], message: str) -> None:
    with pytest.raises(BadModelError, match=message) as caught:
        bind(tensors, {"a": (2,), "b": (3,)}, "unet")
    assert caught.value.component == "unet"


@pytest.mark.parametrize("name", ["embeddings.position_ids", "text_model.embeddings.position_ids"])
def test_clips_old_buffer_is_left_out(name: str) -> None:
    given = {"a": tensor(1, 2), name: tensor(1, 1, 77, dtype=np.int64)}
    assert bind(given, {"a": (2,)}, "text_encoder").keys() == {"a"}


VISION = {name: tensor(1, 2) for name in ("vision_model.layers.1.weight", "visual_projection.weight")}


def test_the_other_half_of_a_whole_clip_is_left_out_and_no_layer_of_an_image_encoder() -> None:
    text = {"text_model.a": tensor(1, 2), "logit_scale": tensor(1, 1)}
    assert bind({**text, **VISION}, {"a": (2,)}, "text_encoder").keys() == {"a"}
    for left_out in VISION:
        parameters = dict.fromkeys(VISION.keys() - {left_out}, (2,))
        with pytest.raises(BadModelError, match=f"no place for .*{left_out}"):
            bind(VISION, parameters, "image_encoder")


def stored(folder: Path, tensors: dict[str, Array]) -> Any:
    save_file(tensors, folder / "model.safetensors")
    return read_tensors(folder / "model.safetensors")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_open_clips_packed_matrix_is_three_and_its_projection_is_turned(tmp_path: Path, dtype: Any) -> None:
    values = np.random.default_rng(0).normal(size=(12, 4)).astype(dtype)
    projection = np.arange(12).reshape(4, 3).astype(dtype)
    prefix = "transformer.resblocks.1"
    given = {
        "before": np.zeros(3, dtype),
        f"{prefix}.attn.in_proj_weight": values,
        f"{prefix}.attn.in_proj_bias": np.ascontiguousarray(values[:, 0]),
        "text_projection": projection,
    }
    found = clip_tensors(stored(tmp_path, given))
    for number, part in enumerate("qkv"):
        name = f"encoder.layers.1.self_attn.{part}_proj"
        (weight,) = [array for key, array in found.items() if key.endswith(f"{name}.weight")]
        (bias,) = [array for key, array in found.items() if key.endswith(f"{name}.bias")]
        np.testing.assert_array_equal(weight.load(), values[4 * number : 4 * number + 4], strict=True)
        np.testing.assert_array_equal(bias.load(), values[4 * number : 4 * number + 4, 0], strict=True)
    np.testing.assert_array_equal(found["text_projection.weight"].load(), projection.T, strict=True)
    assert len(found) == 8


def test_a_vaes_attention_has_matrices_and_its_convolutions_stay(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    shapes = {
        "encoder.mid.attn_1.q.weight": (4, 4, 1, 1),
        "encoder.mid.attn_1.proj_out.weight": (4, 4, 1, 1),
        "encoder.mid.attn_1.norm.weight": (4,),
        "decoder.mid.block_1.nin_shortcut.weight": (4, 3, 1, 1),
        "decoder.mid.block_1.conv1.weight": (4, 3, 3, 3),
        "quant_conv.weight": (4, 4, 1, 1),
    }
    given = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    found = vae_tensors(stored(tmp_path, given))
    expected = {
        "encoder.mid_block.attentions.0.to_q.weight": ("encoder.mid.attn_1.q.weight", (4, 4)),
        "encoder.mid_block.attentions.0.to_out.0.weight": ("encoder.mid.attn_1.proj_out.weight", (4, 4)),
        "encoder.mid_block.attentions.0.group_norm.weight": ("encoder.mid.attn_1.norm.weight", (4,)),
        "decoder.mid_block.resnets.0.conv_shortcut.weight": ("decoder.mid.block_1.nin_shortcut.weight", (4, 3, 1, 1)),
        "decoder.mid_block.resnets.0.conv1.weight": ("decoder.mid.block_1.conv1.weight", (4, 3, 3, 3)),
        "quant_conv.weight": ("quant_conv.weight", (4, 4, 1, 1)),
    }
    assert found.keys() == expected.keys()
    for name, (original, shape) in expected.items():
        np.testing.assert_array_equal(found[name].load(), given[original].reshape(shape), strict=True)
