"""What a pipeline's folder says by its configs, and what a family says where they do not."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdort.checkpoints import configs
from sdort.checkpoints.configs import optional_config, read_config, read_manifest, write_json
from sdort.errors import BadModelError, UsageError
from sdort.families.data.sd1 import FAMILY as SD1
from sdort.families.data.sdxl import FAMILY as SDXL
from sdort.families.data.sdxl_refiner import FAMILY as REFINER
from sdort.families.family import LAST, PENULTIMATE, Encoder, Family
from sdort.families.known_families import family_of
from sdort.pipelines.conditioning import Conditioning, at_size, condition, encoder_outputs, scored
from sdort.pipelines.folder import PipelineFolder, image_channels, pixels_of, read_scheduler_config

SD_PARTS = ("text_encoder", "unet", "vae_decoder")
XL_PARTS = ("text_encoder", "text_encoder_2", "unet", "vae_decoder")
REFINER_PARTS = ("text_encoder_2", "unet", "vae_decoder")


def pipeline(folder: Path, parts: tuple[str, ...] = SD_PARTS, **configs: Any) -> PipelineFolder:
    """A folder with configs, by component or, for ``index``, of the pipeline."""
    for name, config in configs.items():
        path = folder / ("model_index.json" if name == "index" else f"{name}/config.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
    return PipelineFolder(folder, {name: folder / name / "model.onnx" for name in parts})


@pytest.mark.parametrize(
    ("parts", "needed", "family"),
    [
        (SD_PARTS, SD_PARTS, SD1),
        (XL_PARTS, XL_PARTS, SDXL),
        (REFINER_PARTS, REFINER_PARTS, REFINER),
        (("unet",), SD_PARTS, SD1),
    ],
)
def test_what_generating_needs(tmp_path: Path, parts: tuple[str, ...], needed: tuple[str, ...], family: Family) -> None:
    folder = pipeline(tmp_path, parts)
    assert folder.family is family
    assert folder.needed == needed
    assert not folder.is_complete  # there are no tokenizers
    tokenizers = [part.replace("text_encoder", "tokenizer") for part in needed if part.startswith("text_encoder")]
    for name in tokenizers:
        assert not folder.is_complete
        (tmp_path / name).mkdir()
    assert folder.is_complete == (parts == needed)
    assert folder.generates == (parts == needed and family is not REFINER)


@pytest.mark.parametrize("parts", [SD_PARTS, XL_PARTS, REFINER_PARTS])
@pytest.mark.parametrize("said", [None, True, False])
def test_whether_an_empty_prompt_is_zeros(tmp_path: Path, parts: tuple[str, ...], said: bool | None) -> None:
    """SD 1.x and 2.x condition by the empty prompt's states, whatever an index says."""
    index = {} if said is None else {"force_zeros_for_empty_prompt": said}
    usual = parts == XL_PARTS
    expected = parts != SD_PARTS and (usual if said is None else said)
    assert pipeline(tmp_path, parts, index=index).empty_is_zero == expected


@pytest.mark.parametrize(
    ("parts", "unet", "vae", "size"),
    [
        (SD_PARTS, {}, {}, (512, 512)),
        (XL_PARTS, {}, {}, (1024, 1024)),
        (SD_PARTS, {"sample_size": 96}, {}, (768, 768)),
        (SD_PARTS, {"sample_size": [64, 96]}, {}, (512, 768)),
        (SD_PARTS, {"sample_size": [64, 96]}, {"block_out_channels": [8, 8]}, (128, 192)),
        (SD_PARTS, {}, {"block_out_channels": [8, 8]}, (512, 512)),
        (SD_PARTS, {"sample_size": 64}, {"decoder_block_out_channels": [8]}, (64, 64)),
        (SD_PARTS, {"sample_size": None}, {"block_out_channels": [8] * 5}, (512, 512)),
    ],
)
def test_the_size_that_a_unet_was_made_for(
    tmp_path: Path, parts: tuple[str, ...], unet: Any, vae: Any, size: tuple[int, int]
) -> None:
    assert pipeline(tmp_path, parts, unet=unet, vae=vae).default_size == size


def test_larger_sizes_than_sdort_makes_are_refused_by_either_side() -> None:
    assert pixels_of([2048, 1], 8, "unet") == (16384, 8)
    assert pixels_of([1, 2048], 8, "unet") == (8, 16384)
    for size, words in (([2049, 1], "8x16392 pixels"), ([1, 2049], "16392x8 pixels"), (2049, "16392x16392 pixels")):
        with pytest.raises(BadModelError, match=words):
            pixels_of(size, 8, "unet")


SCALES: tuple[dict[str, Any], ...] = (
    {},
    {"scaling_factor": 0.5},
    {"shift_factor": 0.25},
    {"latents_mean": [0.5, -1.0, 2.0, 3.0]},
    {"latents_std": [1.0, 2.0, 3.0, 4.0]},
    {"scaling_factor": 0.5, "latents_mean": [0.5, -1.0, 2.0, 3.0], "latents_std": [1.0, 2.0, 3.0, 4.0]},
    {"scaling_factor": 0.5, "shift_factor": 0.25, "latents_mean": [0.5, -1.0, 2.0, 3.0]},
)


@pytest.mark.parametrize("parts", [SD_PARTS, XL_PARTS])
@pytest.mark.parametrize("place", ["vae", "vae_decoder"])
@pytest.mark.parametrize("config", SCALES, ids=lambda config: "+".join(config))
def test_latents_are_scaled_as_the_config_says(
    tmp_path: Path, config: dict[str, Any], place: str, parts: tuple[str, ...]
) -> None:
    """diffusers: ``latents * std / scaling_factor + mean`` before the decoder, of a channel each."""
    folder = pipeline(tmp_path, parts, **{place: config})
    latents = np.random.default_rng(0).standard_normal((2, 4, 3, 5)).astype(np.float32)
    scale = config.get("scaling_factor", 0.13025 if parts == XL_PARTS else 0.18215)
    expected = np.empty(latents.shape)
    for image, channel in itertools.product(range(2), range(4)):
        mean = config["latents_mean"][channel] if "latents_mean" in config else config.get("shift_factor", 0.0)
        deviation = config["latents_std"][channel] if "latents_std" in config else 1.0
        expected[image, channel] = latents[image, channel].astype(np.float64) * deviation / scale + mean
    found = folder.unscaled(latents)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-6)
    back = folder.scaled(found)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, latents, rtol=1e-5, atol=1e-5)


def test_a_decoders_config_goes_before_that_of_the_whole(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, vae={"scaling_factor": 2.0}, vae_decoder={"scaling_factor": 4.0})
    assert folder.vae["scaling_factor"] == 4.0


def test_scales_for_other_channels_are_refused(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, vae={"latents_std": [1.0] * 4})
    for latents in (np.ones((1, 3, 2, 2), np.float32), np.ones((4, 16, 4, 4), np.float32)):
        for change in (folder.scaled, folder.unscaled):
            with pytest.raises(BadModelError, match="does not fit the latents: latents_std has 4 entries"):
                change(latents)
    contrary = pipeline(tmp_path / "b", vae={"latents_mean": [1.0] * 4, "latent_channels": 8})
    with pytest.raises(BadModelError, match="contradicts itself: latents_mean has 4 entries for 8"):
        _ = contrary.vae


def test_channels_of_an_image_or_a_latent(tmp_path: Path) -> None:
    config = {"in_channels": 3, "out_channels": 5, "latent_channels": 16}
    pipeline(tmp_path, vae_decoder=config, vae_encoder=config, unet={**config, "in_channels": 9})
    found = {
        name: image_channels(tmp_path / name / "model.onnx", name) for name in ("vae_decoder", "vae_encoder", "unet")
    }
    assert found == {"vae_decoder": 16, "vae_encoder": 3, "unet": 9}
    assert image_channels(tmp_path / "text_encoder" / "model.onnx", "text_encoder") is None


@pytest.mark.parametrize(("betas", "timesteps"), [(3, 3), (3, None), (3, 4), (1000, None), (None, 7)])
def test_there_is_a_beta_for_each_timestep(tmp_path: Path, betas: int | None, timesteps: int | None) -> None:
    config: dict[str, Any] = {"trained_betas": None if betas is None else [0.5] * betas}
    config |= {} if timesteps is None else {"num_train_timesteps": timesteps}
    (tmp_path / "scheduler_config.json").write_text(json.dumps({**config, "lambda_min_clipped": float("-inf")}))
    if betas in (None, timesteps or 1000):
        assert read_scheduler_config(tmp_path)["lambda_min_clipped"] == float("-inf")
    else:
        with pytest.raises(BadModelError, match=f"has {betas} trained_betas for {timesteps or 1000} num_train"):
            read_scheduler_config(tmp_path)


def test_a_models_hash_is_of_every_component_and_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {"a": "1", "b": "2"}
    monkeypatch.setattr("sdort.pipelines.folder.hash_model", lambda path: hashes[path.name])

    def found(**models: str) -> str:
        return PipelineFolder(tmp_path, {name: tmp_path / file for name, file in models.items()}).model_hash

    whole = found(unet="a", vae_decoder="b")
    assert found(vae_decoder="b", unet="a") == whole
    assert len({whole, found(unet="b", vae_decoder="a"), found(unet="a"), found(unet="a", text_encoder="b")}) == 4
    assert len(whole) == 16


NAMES = [LAST, "pooler_output", *(f"hidden_states.{number}" for number in range(13)), "clip_skip.2", "clip_skip.3"]


@pytest.mark.parametrize(
    ("output", "names", "skip", "found"),
    [
        (LAST, NAMES, 1, LAST),
        (LAST, ["states", "pooled"], 1, "states"),
        (LAST, NAMES, 2, "clip_skip.2"),
        (LAST, NAMES, 3, "clip_skip.3"),
        (LAST, NAMES, 4, "is more than text_encoder can skip: it has 12 layers"),
        (LAST, [LAST], 2, "was exported without clip skip"),
        (PENULTIMATE, NAMES, 1, "hidden_states.11"),
        (PENULTIMATE, NAMES, 2, "hidden_states.11"),
        (PENULTIMATE, NAMES, 3, "hidden_states.10"),
        (PENULTIMATE, NAMES, 12, "hidden_states.1"),
        (PENULTIMATE, NAMES, 13, "is more than text_encoder can skip"),  # hidden_states.0 are the embeddings
        (PENULTIMATE, [LAST], 1, "has no output hidden_states.11"),
        (PENULTIMATE, [LAST], 2, "was exported without clip skip"),
        ("text_embeds", [*NAMES, "text_embeds"], 1, "text_embeds"),
        ("text_embeds", [*NAMES, "text_embeds"], 3, "text_embeds"),
        ("text_embeds", NAMES, 1, "has no output text_embeds"),
    ],
)  # fmt: skip
def test_the_outputs_that_condition(output: str, names: list[str], skip: int, found: str) -> None:
    encoder = Encoder("text_encoder", {"x": output})
    config = {"num_hidden_layers": 12}
    if found in names:
        assert encoder_outputs(encoder, names, config, skip) == {"x": found}
    else:
        with pytest.raises((BadModelError, UsageError), match=found) as caught:
            encoder_outputs(encoder, names, config, skip)
        assert isinstance(caught.value, UsageError) == (skip > 1)


def test_families_differ_in_what_conditions_them() -> None:
    states = {"sample", "timestep", "encoder_hidden_states"}
    assert SD1.inputs == states
    assert SDXL.inputs == REFINER.inputs == states | {"text_embeds", "time_ids"}
    assert (SD1.side, SDXL.side, REFINER.side) == (512, 1024, 1024)
    assert (len(SDXL.sizes), len(REFINER.sizes)) == (6, 5)
    for components, family in (
        (["text_encoder"], SD1),
        ([], SD1),
        (["text_encoder_2", "text_encoder"], SDXL),
        (["text_encoder_2"], REFINER),
    ):
        assert family_of(components) is family
    (first, second), (only,) = SDXL.encoders, REFINER.encoders
    assert (first.component, first.tokenizer) == ("text_encoder", "tokenizer")
    assert (second.component, second.tokenizer) == ("text_encoder_2", "tokenizer_2")
    assert (only.component, only.conditioning) == (second.component, second.conditioning)


def test_a_prompts_conditions_stand_side_by_side() -> None:
    first, second = np.zeros((1, 3, 2), np.float32), np.ones((1, 3, 4), np.float32)
    pooled = np.full((1, 4), 2, np.float32)
    parts: list[Conditioning] = [
        {"encoder_hidden_states": first},
        {"encoder_hidden_states": second, "text_embeds": pooled},
    ]
    for family, own, numbers in ((SDXL, parts, [[64, 96, 0, 0, 64, 96]]), (REFINER, parts[1:], [[64, 96, 0, 0, 64]])):
        found = condition(family, own, (64, 96))
        assert found.keys() == {"encoder_hidden_states", "text_embeds", "time_ids"}
        states = np.concatenate([part["encoder_hidden_states"] for part in own], 2)
        np.testing.assert_array_equal(found["encoder_hidden_states"], states)
        np.testing.assert_array_equal(found["text_embeds"], pooled)
        np.testing.assert_array_equal(found["time_ids"], numbers)
        assert found["time_ids"].dtype == np.float32
    plain = condition(SD1, parts[:1], (64, 96))
    assert plain.keys() == {"encoder_hidden_states"}
    assert at_size(SD1, plain, (8, 16)) is plain
    assert scored(SD1, plain, 6.0) is plain


def test_scores_and_sizes_of_several_images() -> None:
    ids = np.array([[1, 2, 0, 0, 6.5]] * 3, np.float32)
    given = {"time_ids": ids, "text_embeds": np.zeros((3, 2), np.float32)}
    rated = scored(REFINER, given, 2.5)
    np.testing.assert_array_equal(rated["time_ids"], [[1, 2, 0, 0, 2.5]] * 3)
    np.testing.assert_array_equal(ids[:, -1], [6.5] * 3)  # the given one stays
    assert rated["text_embeds"] is given["text_embeds"]
    np.testing.assert_array_equal(at_size(REFINER, given, (64, 96))["time_ids"], [[64, 96, 0, 0, 6.5]] * 3)
    base = {"time_ids": np.array([[1, 2, 3, 4, 5, 6]] * 2, np.float32)}
    resized = at_size(SDXL, base, (64, 96))["time_ids"]
    np.testing.assert_array_equal(resized, [[64, 96, 0, 0, 64, 96]] * 2)
    assert resized.dtype == np.float32
    assert scored(SDXL, base, 3.0) is base


def test_json_files_are_read_with_their_rules(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert optional_config(path) == {}
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadModelError, match="cannot read"):
        optional_config(path)  # a link to nothing is no missing file
    path.unlink()
    write_json(path, {"a": [1, {"b": "é\n\ud800"}]})
    assert path.read_bytes() == b'{\n  "a": [\n    1,\n    {\n      "b": "\xc3\xa9\\n\\ud800"\n    }\n  ]\n}\n'
    write_json(path, {"a": [1, {"b": "é\n"}]})
    assert read_config(path) == {"a": [1, {"b": "é\n"}]}
    path.write_text("[]")
    with pytest.raises(BadModelError, match=r"the list .*a\.json is no JSON object") as caught:
        read_config(path, "the list", "Do that.")
    assert caught.value.hint == "Do that."
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(BadModelError, match="is a git-lfs pointer") as caught:
        read_config(path)
    assert "lfs pull" in str(caught.value.hint)
    path.write_text('{"a": -Infinity}')
    assert read_config(path, infinity=True) == {"a": float("-inf")}
    with pytest.raises(BadModelError, match="Infinity"):
        read_config(path)
    path.write_text('{"a": 1}')
    assert read_config(path, limit=8) == {"a": 1}
    with pytest.raises(BadModelError, match="at most 7 B"):
        read_config(path, limit=7)


def test_a_manifest_is_the_folders_own(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert read_manifest(folder) == {}
    (tmp_path / "sdort.json").write_text('{"source": "elsewhere"}')
    (folder / "sdort.json").symlink_to(tmp_path / "sdort.json")
    with pytest.raises(BadModelError):
        read_manifest(folder)
    (folder / "sdort.json").unlink()
    (folder / "sdort.json").write_text('{"source": 1}')
    with pytest.raises(BadModelError, match="source is 1"):
        read_manifest(folder)


def test_a_config_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pipeline(tmp_path, unet={"sample_size": 96}, scheduler={}, index={})
    (tmp_path / "scheduler" / "scheduler_config.json").write_text('{"_class_name": "DDIMScheduler"}')
    opened: list[str] = []

    def read(path: Path, *arguments: Any, **options: Any) -> bytes:
        opened.append(path.parent.name)
        return path.read_bytes()

    monkeypatch.setattr(configs, "read_input", read)
    for _ in range(2):
        assert folder.config("unet") == {"sample_size": 96}
        assert folder.config("vae") == {}
        assert folder.scheduler == {"_class_name": "DDIMScheduler"}
        assert folder.scheduler_class == "DDIMScheduler"
        assert folder.default_size == (768, 768)
    assert sorted(opened) == sorted(["scheduler", "unet", tmp_path.name])  # the index is there
