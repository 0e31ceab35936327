"""Folders of pipelines with a transformer, as diffusers saves them: refused by the names of what would be missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sdort
from sdort.errors import BadModelError

HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE


def t5() -> Any:
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=64, d_model=WIDTH, d_kv=SIZE, d_ff=WIDTH, num_layers=1, num_heads=HEADS))


def vae() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=16)


def pixart() -> dict[str, Any]:
    from diffusers import PixArtTransformer2DModel

    transformer = PixArtTransformer2DModel(
        sample_size=8, num_layers=1, attention_head_dim=SIZE, num_attention_heads=HEADS, cross_attention_dim=WIDTH,
        caption_channels=WIDTH,
    )  # fmt: skip
    return {"transformer": transformer, "text_encoder": t5(), "vae": vae()}


PIPELINES: list[tuple[str, Callable[[], dict[str, Any]], str]] = [
    ("PixArtAlphaPipeline", pixart, "transformer (PixArtTransformer2DModel)"),
]


@pytest.mark.parametrize(("class_name", "make", "missing"), PIPELINES, ids=[each[0] for each in PIPELINES])
def test_no_command_takes_a_pipeline_without_its_transformer(
    class_name: str, make: Callable[[], dict[str, Any]], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export, the first run and a name: each says what is missing, exits with 3, and leaves nothing behind."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    torch.manual_seed(0)
    folder, out = tmp_path / "model", tmp_path / "out"
    index: dict[str, Any] = {"_class_name": class_name, "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"]}
    for part, module in {**make(), "scheduler": FlowMatchEulerDiscreteScheduler()}.items():
        module.save_pretrained(folder / part)
        index[part] = [type(module).__module__.partition(".")[0], type(module).__name__]
    (folder / "model_index.json").write_text(json.dumps(index))
    for command in (
        lambda: sdort.export(folder, out),
        lambda: sdort.run(folder, "a lighthouse", output=out / "image.png"),
        lambda: sdort.add_model(folder, "mine"),
    ):
        with pytest.raises(BadModelError) as refused:
            command()
        assert refused.value.exit_code == 3
        assert str(refused.value).startswith(f"model is a {class_name} with a {missing}, which sdort does not export")
        assert "--component vae_decoder" in str(refused.value.hint)
    assert not out.exists()
    assert sdort.list_models().models == []
