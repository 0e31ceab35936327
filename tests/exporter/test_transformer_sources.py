"""``sdort export FILE`` of a transformer: text encoders and tokenizers beside it, and what is said where they lack."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.ldm_files import ldm_vae, with_prefix
from support.transformer_files import CLIP, build, clip, write

from sdort.errors import BadModelError, UsageError
from sdort.exporter.export_request import check_options
from sdort.exporter.open_source import open_source
from sdort.exporter.replacements import MadeWith, Replacements
from sdort.exporter.source import Source

WHOLE = 49408
"""Tokens of CLIP's tokenizer, which a single file gets."""


def split(folder: Path, family: str = "Flux.1") -> dict[str, Path]:
    """A transformer, its VAE and its text encoders as files of their own."""
    made = build(family)
    wide = clip({**CLIP, "vocab_size": WHOLE, "hidden_size": 8}, projected=False)
    files: dict[str, dict[str, Any]] = {
        "flux": with_prefix("diffusion_model.", made.transformer),
        "ae": ldm_vae(made.parts["vae"].state_dict()),
        "clip_l": with_prefix("text_model.", wide.state_dict()),
        "t5xxl": made.parts["text_encoder_2"].state_dict(),
    }
    (folder / "tokens").mkdir()
    return {name: write(folder / f"{name}.safetensors", tensors) for name, tensors in files.items()}


def options(files: dict[str, Path], **more: Any) -> Any:
    encoders = {"text_encoder": files["clip_l"], "text_encoder_2": files["t5xxl"]}
    return {"vae": files["ae"], "text_encoders": encoders, **more}


def opened(path: Path, **given: Any) -> Source:
    with open_source(str(path), replaced=check_options(given).replaced) as source:  # type: ignore[arg-type]
        return source


def test_a_pipeline_of_files_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = split(tmp_path)
    given = options(files, tokenizers={"tokenizer_2": tmp_path / "tokens"})
    source = opened(files["flux"], **given)
    assert source.index["_class_name"] == "FluxPipeline"
    assert source.tensors.keys() == {"transformer", "vae", "text_encoder", "text_encoder_2"}
    assert source.part("tokenizer_2") == tmp_path / "tokens"
    said = capsys.readouterr().err
    assert "flux.safetensors: Flux.1" in said
    assert "text_encoder_2: from t5xxl.safetensors" in said
    (tmp_path / "tokenizer_2").mkdir()
    beside = opened(files["flux"], **options(files))
    assert beside.part("tokenizer_2") == tmp_path / "tokenizer_2"
    # What was given is found again, wherever it is by then.
    record = {"made_with": MadeWith(check_options(given).replaced).record()}
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.move(files["t5xxl"], moved / "t5xxl.safetensors")
    again = MadeWith.of_manifest(record, [moved]).replaced
    assert again.text_encoders == {
        "text_encoder": files["clip_l"], "text_encoder_2": moved / "t5xxl.safetensors"
    }  # fmt: skip
    assert again.tokenizers == {"tokenizer_2": tmp_path / "tokens"}
    (moved / "t5xxl.safetensors").unlink()
    with pytest.raises(UsageError, match=r"made with --text-encoder text_encoder_2=.*, which is not"):
        MadeWith.of_manifest(record, [])


def test_what_lacks_is_named_with_its_option(tmp_path: Path) -> None:
    files = split(tmp_path)
    with pytest.raises(UsageError, match="has no text_encoder and no text_encoder_2 and no vae, which") as caught:
        opened(files["flux"])
    assert "--text-encoder text_encoder=FILE --text-encoder text_encoder_2=FILE --vae FILE" in str(caught.value.hint)
    with pytest.raises(UsageError, match=r"T5TokenizerFast\) is in no file of weights") as caught:
        opened(files["flux"], **options(files))
    assert "FLUX.1-schnell, and give it: --tokenizer tokenizer_2=DIR" in str(caught.value.hint)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"text_encoders": {"text_encoder_3": files["t5xxl"]}}, "text_encoder_3: Flux.1 has no such text encoder"),
        ({"text_encoders": {"text_encoder": tmp_path / "no"}}, "there is no such file"),
        (options(files, tokenizers={"tokenizer_3": tmp_path}), "tokenizer_3: flux.safetensors has no such tokenizer"),
        (options(files, tokenizers={"tokenizer_2": tmp_path / "no"}), "there is no such folder"),
    ]
    for given, words in wrong:
        with pytest.raises(UsageError, match=words):
            opened(files["flux"], **given)
    with pytest.raises(BadModelError, match=r"given as text_encoder: its tensor .* is missing") as other:
        opened(files["flux"], text_encoders={"text_encoder": files["t5xxl"]})
    assert "The text_encoder of Flux.1 is a CLIPTextModel" in str(other.value.hint)
    with pytest.raises(UsageError, match="--text-encoder is for single files with a UNet or a transformer"):
        opened(files["ae"], text_encoders={"text_encoder": files["clip_l"]})


def test_stable_diffusion_3_draws_without_t5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = build("SD 3")
    whole = with_prefix("model.diffusion_model.", made.transformer) | made.rest
    tensors = {name: each for name, each in whole.items() if "t5xxl" not in name and "embeddings" not in name}
    for name, config in (("clip_l", made.parts["text_encoder"]), ("clip_g", made.parts["text_encoder_2"])):
        state = clip({**config.config.to_dict(), "vocab_size": WHOLE}, projected=True).state_dict()
        tensors |= {
            f"text_encoders.{name}.transformer.{key}": each for key, each in state.items() if "embeddings" in key
        }
    source = opened(write(tmp_path / "a.safetensors", tensors))
    assert "text_encoder_3" not in source.index
    assert [each.component for each in source.family.encoders] == ["text_encoder", "text_encoder_2"]
    assert "has no text_encoder_3, and SD 3 draws without it; sdort export --text-encoder" in capsys.readouterr().err


def test_replacements_are_read_and_told() -> None:
    replaced = Replacements(text_encoders={"text_encoder_2": Path("x/t5.safetensors")})
    assert MadeWith(replaced).told == ["the text_encoder_2 t5.safetensors"]
    assert MadeWith(replaced).for_folder == Replacements()
