"""IP-Adapters' files: sizes, diffusers' names, and the order of a UNet's attentions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.adapters.ip_adapter_file import IpAdapter, attention_tensors, read_ip_adapter
from sdort.errors import BadModelError, UsageError
from sdort.graph.signature import Array
from sdort.graph.weights import Inline, Weight

RANDOM = np.random.default_rng(0)


def values(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def attentions(numbers: tuple[int, ...] = (1, 3, 5), width: int = 32) -> dict[str, Array]:
    return {
        f"ip_adapter.{number}.to_{part}_ip.weight": values(8 + number, width) for number in numbers for part in "kv"
    }


def plain(tokens: int = 4, width: int = 32, embeds: int = 20) -> dict[str, Array]:
    return {
        "image_proj.proj.weight": values(tokens * width, embeds), "image_proj.proj.bias": values(tokens * width),
        "image_proj.norm.weight": values(width), "image_proj.norm.bias": values(width),
    }  # fmt: skip


def plus(tokens: int = 5, hidden: int = 128, embeds: int = 24, width: int = 32, depth: int = 3) -> dict[str, Array]:
    inner, ff = 192, 40  # three heads of 64
    found = {
        "latents": values(1, tokens, hidden), "proj_in.weight": values(hidden, embeds),
        "proj_in.bias": values(hidden), "proj_out.weight": values(width, hidden), "norm_out.weight": values(width),
    }  # fmt: skip
    for layer in range(depth):
        stem = f"layers.{layer}"
        found |= {
            f"{stem}.0.norm1.weight": values(hidden), f"{stem}.0.norm2.bias": values(hidden),
            f"{stem}.0.to_q.weight": values(inner, hidden), f"{stem}.0.to_kv.weight": values(2 * inner, hidden),
            f"{stem}.0.to_out.weight": values(hidden, inner), f"{stem}.1.0.weight": values(hidden),
            f"{stem}.1.1.weight": values(ff, hidden), f"{stem}.1.3.weight": values(hidden, ff),
        }  # fmt: skip
    return {f"image_proj.{name}": array for name, array in found.items()}


def read(folder: Path, tensors: dict[str, Array]) -> IpAdapter:
    save_file(tensors, folder / "adapter.safetensors")
    return read_ip_adapter(folder / "adapter.safetensors")


def test_a_plain_one(tmp_path: Path) -> None:
    tensors = {**plain(), **attentions()}
    found = read(tmp_path, tensors)
    assert found.projection == {"kind": "plain", "tokens": 4, "width": 32, "embeds": 20}
    assert (found.kind, found.tokens) == ("plain", 4)
    names = {"image_embeds.weight": "proj.weight", "image_embeds.bias": "proj.bias", "norm.weight": "norm.weight",
             "norm.bias": "norm.bias"}  # fmt: skip
    assert found.projection_tensors.keys() == names.keys()
    for name, original in names.items():
        np.testing.assert_array_equal(found.projection_tensors[name].load(), tensors[f"image_proj.{original}"])
    for number, pair in zip((1, 3, 5), found.attention, strict=True):
        for part, weight in zip("kv", pair, strict=True):
            np.testing.assert_array_equal(weight.load(), tensors[f"ip_adapter.{number}.to_{part}_ip.weight"])


def test_attentions_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    found = read(tmp_path, {**plain(), **attentions((11, 3, 5, 1))})
    assert [pair[0].shape[0] for pair in found.attention] == [9, 11, 13, 19]


def test_a_plus(tmp_path: Path) -> None:
    tensors = {**plus(), **attentions()}
    found = read(tmp_path, tensors)
    assert found.projection == {
        "kind": "plus", "tokens": 5, "width": 32, "embeds": 24, "hidden": 128, "depth": 3, "heads": 3, "inner": 40,
    }  # fmt: skip
    expected = {name: tensors[f"image_proj.{name}"] for name in
                ("latents", "proj_in.weight", "proj_in.bias", "proj_out.weight", "norm_out.weight")}  # fmt: skip
    for layer in range(3):
        stem, to = f"image_proj.layers.{layer}", f"layers.{layer}"
        keys, projected = np.split(tensors[f"{stem}.0.to_kv.weight"], 2)
        expected |= {
            f"{to}.ln0.weight": tensors[f"{stem}.0.norm1.weight"], f"{to}.ln1.bias": tensors[f"{stem}.0.norm2.bias"],
            f"{to}.attn.to_q.weight": tensors[f"{stem}.0.to_q.weight"], f"{to}.attn.to_k.weight": keys,
            f"{to}.attn.to_v.weight": projected, f"{to}.attn.to_out.0.weight": tensors[f"{stem}.0.to_out.weight"],
            f"{to}.ff.0.weight": tensors[f"{stem}.1.0.weight"],
            f"{to}.ff.1.net.0.proj.weight": tensors[f"{stem}.1.1.weight"],
            f"{to}.ff.1.net.2.weight": tensors[f"{stem}.1.3.weight"],
        }  # fmt: skip
    assert found.projection_tensors.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found.projection_tensors[name].load(), array, err_msg=name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_proj.proj.weight": values(127, 20)}, r"proj.weight has the shape \[127, 20\]"),
        ({"image_proj.norm.weight": values(4, 8)}, r"norm.weight has the shape \[4, 8\]"),
        ({"image_proj.norm.weight": None}, r"image_proj.norm.weight is missing"),
        ({"image_proj.proj.weight": values(0, 20)}, r"has the shape \[0, 20\]"),
        ({"ip_adapter.1.to_v_ip.weight": None}, "lacks a key or a value of ip_adapter.1"),
        ({"odd": values(1)}, "it has a tensor 'odd'"),
        ({"image_proj.proj.3.weight": values(1)}, "of another kind: full"),
        ({"image_proj.proj.0.weight": values(1)}, "of another kind: FaceID;"),
        ({"ip_adapter.0.to_q_lora.down.weight": values(1)}, "of another kind: FaceID;"),
        ({"image_proj.perceiver_resampler.a": values(1)}, "of another kind: FaceID Plus;"),
        ({"image_proj.proj.weight": None, "image_proj.x": values(1)}, "an unknown kind"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plain_one(tmp_path: Path, change: dict[str, Array | None], words: str) -> None:
    tensors = {name: array for name, array in {**plain(), **attentions(), **change}.items() if array is not None}
    with pytest.raises(BadModelError, match=words):
        read(tmp_path, tensors)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_ip_adapter(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is no file"):
        read_ip_adapter(tmp_path)


UNET = (
    "down_blocks.0.attentions.0.transformer_blocks.0", "down_blocks.0.attentions.1.transformer_blocks.0",
    "down_blocks.2.attentions.0.transformer_blocks.0", "down_blocks.2.attentions.0.transformer_blocks.1",
    "down_blocks.2.attentions.0.transformer_blocks.10", "up_blocks.1.attentions.0.transformer_blocks.0",
    "up_blocks.1.attentions.2.transformer_blocks.0", "mid_block.attentions.0.transformer_blocks.0",
)  # fmt: skip
"""The cross-attentions in the order of diffusers' ``attn_processors``: down, up, mid; numbers as numbers."""


def unet() -> dict[str, Weight]:
    names = [
        f"{stem}.{kind}.to_{part}.weight" for stem in reversed(UNET) for kind in ("attn1", "attn2") for part in "kv"
    ]
    return {name: Inline(np.zeros((8, 32), np.float32)) for name in names}


def adapter(number: int, shapes: list[tuple[int, int]], values_shape: tuple[int, int] | None = None) -> IpAdapter:
    pairs = [(Inline(np.full(shape, number * 100 + index, np.float32)),
              Inline(np.full(values_shape or shape, number * 100 + index + 50, np.float32)))
             for index, shape in enumerate(shapes)]  # fmt: skip
    return IpAdapter(Path(f"{number}.safetensors"), {"kind": "plain", "tokens": 4}, {}, pairs)


def test_each_adapter_has_a_number_at_each_attention() -> None:
    found = attention_tensors([adapter(0, [(8, 32)] * 8), adapter(1, [(8, 32)] * 8)], unet(), "a model")
    assert len(found) == 2 * 2 * 8
    for number in range(2):
        for index, stem in enumerate(UNET):
            for part, more in (("k", 0), ("v", 50)):
                weight = found[f"{stem}.attn2.processor.to_{part}_ip.{number}.weight"]
                assert (weight.load() == number * 100 + index + more).all()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (adapter(0, [(8, 32)] * 7), "it is for 7 cross-attentions, and the UNet of a model has 8"),
        (adapter(0, [(8, 32)] * 3 + [(9, 32)] + [(8, 32)] * 4), r"its attention 4 is \[9, 32\], and that of a model"),
        (
            adapter(0, [(8, 768)] * 8),
            r"text embeddings 768 numbers wide \(SD 1.x\), and those of a model are 32 .*no kn",
        ),
        (adapter(0, [(8, 32)] * 8, (8, 31)), r"keys of the shape \[8, 32\] stand beside values of \[8, 31\]"),
    ],
)
def test_an_adapter_for_another_unet(made: IpAdapter, words: str) -> None:
    good = adapter(0, [(8, 32)] * 8)
    for adapters in ([made], [good, dataclasses.replace(made)]):
        with pytest.raises(BadModelError, match=words):
            attention_tensors(adapters, unet(), "a model")
