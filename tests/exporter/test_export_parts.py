"""Parts of an export that need no trace: fixed sizes, space, what is told and replaced, which weights are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import published_configs as published

from sdort.adapters.ip_adapter_file import IpAdapter
from sdort.checkpoints.clip_vision import ImageEncoder
from sdort.checkpoints.prediction import Prediction
from sdort.checkpoints.single_file import SingleFile
from sdort.checkpoints.weight_names import SD2, SDXL
from sdort.errors import BadModelError, UsageError
from sdort.exporter import command, export_size
from sdort.exporter.checkpoint import _names, _not_found, _variants, has_weights, sole_variant
from sdort.exporter.export_options import StaticSize
from sdort.exporter.ip_adapters import IpAdapterFiles, _find_encoder, _hint, _misfit
from sdort.exporter.manifest import copy_processors, write_index
from sdort.exporter.open_source import _check_vocabulary, _describe, _refuse_file_options, _tell_lacks
from sdort.exporter.replacements import Replacements, _check_fit, _with_scheduler
from sdort.exporter.signatures import describe_component
from sdort.exporter.source import Source, _is_exported, entry_of, read_source
from sdort.exporter.trace_cache import TraceCache
from sdort.exporter.vae_parts import VaePart, holds_vae, read_vae
from sdort.families.graph_tensor import GraphTensor
from sdort.families.known_families import FAMILIES
from sdort.families.unet import INPAINTING
from sdort.graph.weights import Stored

INDEX = {
    "_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"], "text_encoder": ["transformers", "CLIPTextModel"],
    "scheduler": ["diffusers", "PNDMScheduler"], "safety_checker": [None, None], "requires_safety_checker": True,
    "_name_or_path": "/home/somebody", "image_encoder": ["transformers", "CLIPVisionModelWithProjection"],
}  # fmt: skip


def shapes(tensors: tuple[GraphTensor, ...]) -> list[tuple[int | str, ...]]:
    return [tensor.dims for tensor in tensors]


@pytest.mark.parametrize(("levels", "positions"), [(4, 77), (3, 55)])
def test_a_fixed_size_of_each_component(levels: int, positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guidance runs two latents an image; an image encoder sees one image at a time."""
    factor, height, width = 2 ** (levels - 1), 24, 40
    vae = {"in_channels": 3, "out_channels": 3, "latent_channels": 4, "block_out_channels": [8] * levels}
    text = {"hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": positions}
    configs = {"vae_decoder": vae, "text_encoder": text}
    monkeypatch.setattr(command, "component_config", lambda source, name, cache: configs[name])
    projection = {"kind": "plain", "tokens": 4, "width": 8}
    control = {**published.SD1, "conditioning_channels": 3, "conditioning_embedding_out_channels": [16, 16, 16, 16]}
    t2i = {"channels": [16], "adapter_type": "full_adapter", "downscale_factor": factor, "in_channels": 3}
    parts = [
        describe_component("text_encoder", "CLIPTextModel", text),
        describe_component("unet", "UNet2DConditionModel", published.SD1),
        describe_component("vae_encoder", "AutoencoderKL", vae),
        describe_component("vae_decoder", "AutoencoderKL", vae),
        describe_component("controlnet", "ControlNetModel", control),
        describe_component("t2i_adapter", "T2IAdapter", t2i),
        describe_component(
            "image_encoder", "CLIPVisionModelWithProjection",
            {"image_size": 28, "num_channels": 3, "projections": [projection]},
        ),
    ]  # fmt: skip
    source, cache = Source("a", Path("a"), INDEX), TraceCache(Path("nowhere"))
    size = StaticSize(3, height * factor, width * factor)
    fixed = {part.name: part for part in command._at_static_size(source, parts, size, cache)}
    assert list(fixed) == [part.name for part in parts]
    assert shapes(fixed["text_encoder"].inputs) == [(3, positions)]
    assert shapes(fixed["unet"].inputs) == [(6, 4, height, width), (), (6, positions, 768)]
    assert shapes(fixed["unet"].outputs) == [(6, 4, height, width)]
    assert shapes(fixed["vae_encoder"].inputs) == [(3, 3, height * factor, width * factor)]
    assert shapes(fixed["vae_encoder"].outputs) == [(3, 8, height, width)]
    assert shapes(fixed["vae_decoder"].inputs) == [(3, 4, height, width)]
    assert shapes(fixed["vae_decoder"].outputs) == [(3, 3, height * factor, width * factor)]
    assert shapes(fixed["controlnet"].inputs)[3] == (6, 3, height * 8, width * 8)
    assert shapes(fixed["t2i_adapter"].inputs) == [(3, 3, height * factor, width * factor)]
    assert shapes(fixed["t2i_adapter"].outputs) == [(3, 16, height, width)]
    assert shapes(fixed["image_encoder"].inputs) == [(1, 3, 28, 28)]
    for wrong in (StaticSize(1, 64, 64 + factor // 2), StaticSize(1, 64 + factor // 2, 64)):
        with pytest.raises(UsageError, match=f"must be multiples of {factor}"):
            command._at_static_size(source, parts, wrong, cache)


def test_a_control_alone_has_the_usual_sizes() -> None:
    alone = Source("a", Path("a"), {"controlnet": ["diffusers", "ControlNetModel"]})
    control = {**published.SD1, "conditioning_channels": 3, "conditioning_embedding_out_channels": [16, 16, 16, 16]}
    parts = [describe_component("controlnet", "ControlNetModel", control)]
    (fixed,) = command._at_static_size(alone, parts, StaticSize(1, 64, 96), TraceCache(Path("nowhere")))
    assert shapes(fixed.inputs)[:3] == [(2, 4, 8, 12), (), (2, 77, 768)]
    with pytest.raises(UsageError, match="multiples of 8"):
        command._at_static_size(alone, parts, StaticSize(1, 64, 100), TraceCache(Path("nowhere")))


@pytest.mark.parametrize("known", [(), ("unet",), ("unet", "vae_encoder", "vae_decoder")])
def test_the_space_of_an_export(known: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each half of an autoencoder has its own weights, in four bytes a value, whatever they are stored in."""
    asked: dict[str, Any] = {}

    def plan(writes: list[Any], peak_memory: int) -> str:
        asked.update(writes=writes, peak=peak_memory)
        return "the plan"

    def half(*shape: int) -> Stored:
        return Stored(Path("a"), 0, shape, np.float16)

    monkeypatch.setattr(export_size, "plan_writes", plan)
    cache = TraceCache(tmp_path / "traces")
    monkeypatch.setattr(cache, "has", lambda component, opset: component.name in known and opset == 20)
    vae = {"in_channels": 3, "out_channels": 3, "latent_channels": 4, "block_out_channels": [8]}
    parts = [describe_component("unet", "UNet2DConditionModel", published.SD1)]
    parts += [describe_component(name, "AutoencoderKL", vae) for name in ("vae_encoder", "vae_decoder")]
    tensors: Mapping[str, Mapping[str, Any]] = {
        "unet": {"a": half(10, 20), "encoder.b": half(5)},
        "vae": {"encoder.a": half(100), "quant_conv.a": half(7), "decoder.a": half(300), "post_quant_conv.a": half(11)},
    }
    planned: Any = export_size.plan_space(parts, tensors, tmp_path / "out", 20, cache)
    assert planned == "the plan"
    sizes = {write.name: write.bytes - export_size.GRAPH for write in asked["writes"] if write.name != "traces"}
    assert sizes == {"unet": 4 * 205, "vae_encoder": 4 * 107, "vae_decoder": 4 * 311}
    traces = [write for write in asked["writes"] if write.name == "traces"]
    assert len(traces) == (len(known) < 3)
    assert all(write.bytes == (3 - len(known)) * export_size.GRAPH and write.only_if_room for write in traces)
    assert asked["peak"] == (export_size._TRACED if traces else export_size._KNOWN)


def test_an_index_names_what_was_exported(tmp_path: Path) -> None:
    parts = [describe_component("unet", "UNet2DConditionModel", published.SD1)]
    source = Source("a", tmp_path, {**INDEX, "force": True, "list": ["a"], "_three": ["a", "b"]})
    write_index(tmp_path, source, parts)
    assert json.loads((tmp_path / "model_index.json").read_text()) == {
        "_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"], "vae": [None, None],
        "text_encoder": [None, None], "scheduler": ["diffusers", "PNDMScheduler"], "safety_checker": [None, None],
        "requires_safety_checker": False, "image_encoder": [None, None], "force": True, "list": ["a"],
        "_three": ["a", "b"],
    }  # fmt: skip


def test_processors_are_copied_whole(tmp_path: Path) -> None:
    (tmp_path / "from" / "scheduler").mkdir(parents=True)
    for name in ("scheduler_config.json", "a.txt", "b.jinja", "c.bin", "d.py"):
        (tmp_path / "from" / "scheduler" / name).write_text(name)
    (tmp_path / "to").mkdir()
    source = Source("a", tmp_path / "from", {"scheduler": ["diffusers", "X"], "tokenizer": [None, None]})
    copy_processors(source, tmp_path / "to")
    found = {path.relative_to(tmp_path / "to").as_posix(): path.read_text() for path in (tmp_path / "to").rglob("*.*")}
    assert found == {f"scheduler/{name}": name for name in ("scheduler_config.json", "a.txt", "b.jinja")}
    lost = Source("a", tmp_path / "from", {"tokenizer_2": ["transformers", "CLIPTokenizer"]})
    with pytest.raises(BadModelError, match="tokenizer_2 is missing or empty"):
        copy_processors(lost, tmp_path / "to")


@pytest.mark.parametrize(
    ("prediction", "variant", "config", "ema", "unread", "words"),
    [
        (Prediction("epsilon"), None, None, None, (), "a.safetensors: SD 2.x; prediction type epsilon"),
        (Prediction("v_prediction", "so"), None, None, None, (),
         "a.safetensors: SD 2.x; prediction type v_prediction: so; sdort export --prediction-type epsilon otherwise"),
        (Prediction("epsilon", "so"), INPAINTING, None, None, (),
         "a.safetensors: SD 2.x (inpainting); prediction type epsilon: so; sdort export --prediction-type v_prediction "
         "otherwise"),
        (Prediction("sample", "so"), None, None, None, (),
         "a.safetensors: SD 2.x; prediction type sample: so; sdort export --prediction-type epsilon otherwise"),
        (Prediction("epsilon", "so"), None, Path("c"), None, (), "a.safetensors: SD 2.x"),
        (Prediction("epsilon"), None, Path("c"), False, (),
         "a.safetensors: SD 2.x; its averaged weights (EMA) are not read (sdort export --ema reads them)"),
        (Prediction("epsilon"), None, Path("c"), True, (),
         "a.safetensors: SD 2.x; its averaged weights (EMA) are read"),
        (Prediction("epsilon"), None, Path("c"), None, ("x",),
         "a.safetensors: SD 2.x; left out, as of no component: 1 tensor (x)"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_single_file(
    prediction: Prediction,
    variant: str | None,
    config: Path | None,
    ema: bool | None,
    unread: tuple[str, ...],
    words: str,
) -> None:
    file = SingleFile(
        Path("b/a.safetensors"), FAMILIES[SD2], variant, prediction, unread=unread, has_ema=ema is not None
    )
    assert _describe(file, Replacements(config=config, ema=bool(ema))) == words


FOLDER = "and none is exported: sdort export --config DIR adds those of a folder\n"


@pytest.mark.parametrize(
    ("lacks", "vae", "words"),
    [
        ([], None, ""),
        (["vae"], None, "warning: a has no VAE, and none is exported: sdort export --vae DIR|FILE adds one\n"),
        (["vae"], Path("v"), ""),
        (["text_encoder"], None, f"warning: a has no text_encoder, {FOLDER}"),
        (
            ["text_encoder", "text_encoder_2", "vae"], Path("v"),
            f"warning: a has no text_encoder and no text_encoder_2, {FOLDER}",
        ),
    ],
)  # fmt: skip
def test_what_a_file_lacks_is_told(
    lacks: list[str], vae: Path | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _tell_lacks(lacks, Replacements(vae=vae), "a")
    assert capsys.readouterr().err == words


@pytest.mark.parametrize(("size", "taken"), [(49408, True), (49409, True), (49407, False)])
def test_a_files_vocabulary_has_clips_tokens(size: int, taken: bool) -> None:
    file = SingleFile(Path("a"), FAMILIES[SDXL], None, Prediction("epsilon"))
    file.configs = {"unet": {}, "text_encoder": {"vocab_size": 49408}, "text_encoder_2": {"vocab_size": size}}
    if taken:
        _check_vocabulary(file)
    else:
        with pytest.raises(BadModelError, match=f"embeddings for {size} tokens") as caught:
            _check_vocabulary(file)
        assert caught.value.component == "text_encoder_2"


def test_options_of_single_files_alone() -> None:
    _refuse_file_options("a", Replacements(vae=Path("v"), scheduler="euler", prediction_type="sample"))
    for replaced, option in ((Replacements(config=Path("c")), "--config"), (Replacements(ema=True), "--ema")):
        with pytest.raises(UsageError, match=f"{option} is for single files"):
            _refuse_file_options("a", replaced)


def test_folders_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert Replacements(config=tmp_path / "one", vae=tmp_path / "two").reads == [tmp_path / "one", tmp_path / "two"]
    assert Replacements(config=tmp_path / "nowhere", vae=tmp_path / "file").reads == []
    assert IpAdapterFiles((tmp_path / "file",), tmp_path / "one").reads == [tmp_path / "one"]
    assert IpAdapterFiles((tmp_path / "one",), tmp_path / "file").reads == []


@pytest.mark.parametrize(
    ("replaced", "changes"),
    [
        (Replacements(scheduler="euler"), {"_class_name": "EulerDiscreteScheduler"}),
        (Replacements(prediction_type="sample"), {"prediction_type": "sample"}),
        (
            Replacements(scheduler="euler-karras", prediction_type="v_prediction"),
            {"_class_name": "EulerDiscreteScheduler", "prediction_type": "v_prediction", "use_karras_sigmas": True,
             "use_exponential_sigmas": False, "use_beta_sigmas": False},
        ),
    ],
)  # fmt: skip
def test_a_scheduler_in_the_place_of_another(tmp_path: Path, replaced: Replacements, changes: dict[str, Any]) -> None:
    own = {"_class_name": "PNDMScheduler", "beta_start": 0.1, "prediction_type": "epsilon", "trained_betas": None}
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(own))
    found = _with_scheduler(Source("a", tmp_path, INDEX), replaced, tmp_path / "new")
    assert json.loads((found.part("scheduler") / "scheduler_config.json").read_text()) == {**own, **changes}
    assert found.index["scheduler"] == ["diffusers", changes.get("_class_name", "PNDMScheduler")]
    assert found.index["unet"] == INDEX["unet"]
    with pytest.raises(UsageError, match="has no scheduler to replace"):
        _with_scheduler(Source("a", tmp_path, {}), replaced, tmp_path / "other")


@pytest.mark.parametrize(
    ("class_name", "config", "usual", "error", "told"),
    [
        ("AutoencoderKL", {"latent_channels": 4, "scaling_factor": 0.5}, {"scaling_factor": 0.5}, False, False),
        ("AutoencoderKL", {"latent_channels": 4}, {"scaling_factor": 0.5}, False, False),
        ("AutoencoderKL", {"latent_channels": 4, "scaling_factor": 0.5}, {}, False, False),
        ("AutoencoderKL", {"latent_channels": 4, "scaling_factor": 0.25}, {"scaling_factor": 0.5}, False, True),
        ("AutoencoderTiny", {"latent_channels": 4, "scaling_factor": 1.0}, {"scaling_factor": 0.5}, False, False),
        ("AutoencoderKL", {"latent_channels": 16}, {}, True, False),
        ("AutoencoderTiny", {}, {}, True, False),
    ],
)
def test_another_autoencoder_fits_the_unet(
    class_name: str,
    config: Any,
    usual: Any,
    error: bool,
    told: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "config.json").write_text('{"out_channels": 4, "in_channels": 9}')
    source, vae = Source("a", tmp_path, INDEX), VaePart(class_name, tmp_path, config, {})
    if error:
        with pytest.raises(BadModelError, match=r"has latents of .* channels, and the UNet of a makes 4"):
            _check_fit(source, vae, tmp_path, usual)
        return
    _check_fit(source, vae, tmp_path, usual)
    assert ("is it of the same family?" in " ".join(capsys.readouterr().err.split())) == told


def test_a_folder_of_an_autoencoder(tmp_path: Path) -> None:
    assert not holds_vae(tmp_path)
    config = tmp_path / "config.json"
    for name, taken in (("AutoencoderKL", True), ("AutoencoderTiny", True), ("UNet2DConditionModel", False)):
        config.write_text(json.dumps({"_class_name": name}))
        assert holds_vae(tmp_path) == taken
        if not taken:
            with pytest.raises(BadModelError, match=f"holds {name}, not a VAE"):
                read_vae(tmp_path, tmp_path / "x", {})
    config.write_text(json.dumps({"_class_name": "AutoencoderKL"}))
    (tmp_path / "model_index.json").write_text("{}")
    assert not holds_vae(tmp_path)


def test_a_folder_with_graphs_and_no_weights_is_exported(tmp_path: Path) -> None:
    assert not _is_exported(tmp_path)
    (tmp_path / "vae_decoder").mkdir()
    (tmp_path / "vae_decoder" / "model.onnx").touch()
    assert _is_exported(tmp_path)
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(BadModelError, match="holds ONNX graphs already, and no weights"):
        read_source(tmp_path, "a")
    (tmp_path / "vae").mkdir()
    for name in ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin"):
        (tmp_path / "vae" / name).touch()
        assert not _is_exported(tmp_path)
        (tmp_path / "vae" / name).unlink()
    with pytest.raises(BadModelError, match="holds ONNX graphs already"):
        read_source(tmp_path, "a")
    (tmp_path / "vae_decoder" / "model.onnx").unlink()
    with pytest.raises(BadModelError, match="is a pipeline without a UNet, VAE or CLIP text encoder"):
        read_source(tmp_path, "a")


@pytest.mark.parametrize(
    ("entry", "found"),
    [(["a", "B"], True), (["a", None], False), ([None, None], False), (["a"], False), (["a", "B", "c"], False),
     (None, False), ("ab", False), ([None, "B"], True)],
)  # fmt: skip
def test_entries_of_an_index(entry: Any, found: bool) -> None:
    assert (entry_of({"unet": entry}, "unet") is not None) == found
    assert entry_of({}, "unet") is None


STEMS = ("diffusion_pytorch_model", "model")


def test_names_of_weights_in_the_order_of_their_library() -> None:
    first, second = STEMS
    assert _names(first, None) == [f"{first}.safetensors.index.json", f"{first}.safetensors"]
    assert _names(first, "fp16") == [
        f"{first}.safetensors.index.fp16.json", f"{first}.safetensors.fp16.index.json", f"{first}.fp16.safetensors",
    ]  # fmt: skip
    assert _names(second, None) == ["model.safetensors", "model.safetensors.index.json"]
    assert _names(second, "fp16") == ["model.fp16.safetensors", "model.safetensors.index.fp16.json"]


@pytest.mark.parametrize(
    ("files", "found", "sole"),
    [
        ((), set(), None),
        (("X.safetensors",), {""}, None),
        (("X.fp16.safetensors",), {"fp16"}, "fp16"),
        (("X.safetensors", "X.fp16.safetensors"), {"", "fp16"}, None),
        (("X.fp16.safetensors", "X.non_ema.safetensors"), {"fp16", "non_ema"}, None),
        (("X.safetensors.index.json", "X-00001-of-00002.safetensors", "X-00002-of-00002.safetensors"), {""}, None),
        (("X.safetensors.index.fp16.json", "X.fp16-00001-of-00002.safetensors"), {"fp16"}, "fp16"),
        (("X.bin", "other.safetensors", "aX.safetensors", "X.safetensors.bak"), set(), None),
    ],
)
@pytest.mark.parametrize("stem", STEMS)
def test_variants_in_a_folder(
    tmp_path: Path, stem: str, files: tuple[str, ...], found: set[str], sole: str | None
) -> None:
    for name in files:
        (tmp_path / name.replace("X", stem)).touch()
    assert _variants(tmp_path, stem) == found
    assert has_weights(tmp_path) == bool(found)
    assert sole_variant(tmp_path) == (sole if stem == STEMS[0] else None)
    assert _variants(tmp_path / "nowhere", stem) == set()


@pytest.mark.parametrize(
    ("files", "variant", "words", "hint"),
    [
        ((), None, r"has no weights \(X.safetensors\)$", "Copy or download the checkpoint again."),
        ((), "fp16", "has no weights of variant 'fp16'$", "Copy or download the checkpoint again."),
        (("X.fp16.safetensors",), None, "; it has fp16$", "Give --variant fp16."),
        (("X.safetensors",), "fp16", "variant 'fp16'; it has those without a variant$", "Leave out --variant."),
        (
            ("X.safetensors", "X.ema.safetensors"), "fp16", "; it has those without a variant, ema$",
            "Leave out --variant, or give --variant ema.",
        ),
    ],
)  # fmt: skip
def test_weights_that_are_not_there(
    tmp_path: Path, files: tuple[str, ...], variant: str | None, words: str, hint: str
) -> None:
    for name in files:
        (tmp_path / name.replace("X", STEMS[0])).touch()
    error = _not_found(tmp_path, "unet", variant, None, STEMS[0])
    assert (error.component, error.hint) == ("unet", hint)
    with pytest.raises(BadModelError, match=words.replace("X", STEMS[0])):
        raise BadModelError(error.message)
    pickled = _not_found(tmp_path, "unet", variant, tmp_path / "a.bin", STEMS[0])
    assert "only a.bin, a pickle" in pickled.message
    assert "--allow-pickle" in str(pickled.hint)


def ip_adapter(kind: str, embeds: int, path: Path = Path("dir/adapter.safetensors")) -> IpAdapter:
    return IpAdapter(path, {"kind": kind, "tokens": 4, "width": 768, "embeds": embeds}, {}, [])


def test_an_encoder_makes_what_each_adapter_takes() -> None:
    encoder = ImageEncoder(Path("e"), {"hidden_size": 1280, "projection_dim": 1024}, {})
    assert _misfit(encoder, [ip_adapter("plain", 1024), ip_adapter("plus", 1280)]) is None
    assert _misfit(encoder, [ip_adapter("plain", 1024), ip_adapter("plain", 1280)]) == (
        "adapter.safetensors takes image embeddings of 1280 numbers, and it makes some of 1024"
    )
    assert _misfit(encoder, [ip_adapter("plus", 1024)]) == (
        "adapter.safetensors takes hidden states of 1024 numbers, and it makes some of 1280"
    )


@pytest.mark.parametrize(
    ("adapters", "words", "several"),
    [
        ([("plain", 1024)], "It wants CLIP ViT-H/14: --image-encoder DIR|FILE, such as models/image_encoder of", False),
        ([("plain", 1280)], "CLIP ViT-bigG/14: --image-encoder DIR|FILE, such as sdxl_models/image_encoder of", False),
        ([("plain", 768)], "It wants CLIP ViT-L/14", False),
        ([("plus", 1280)], "It wants CLIP ViT-H/14: --image-encoder DIR|FILE, such as models/image_encoder", False),
        ([("plus", 1664)], "CLIP ViT-bigG/14: --image-encoder DIR|FILE, such as sdxl_models/image_encoder", False),
        ([("plus", 1024)], "It wants CLIP ViT-L/14", False),
        ([("plus", 5)], "It wants the one that it was trained with", False),
        ([("plain", 1024), ("plain", 1024)], "It wants CLIP ViT-H/14", False),
        ([("plain", 1024), ("plus", 1024)], "It wants CLIP ViT-H/14", True),
        ([("plain", 1024), ("plain", 1280)], "It wants CLIP ViT-H/14", True),
    ],
)
def test_the_encoder_that_an_adapter_wants(adapters: list[tuple[str, int]], words: str, several: bool) -> None:
    hint = _hint([ip_adapter(*each) for each in adapters])
    assert words in hint
    assert ("share one encoder" in hint) == several


def test_an_encoder_is_looked_for_in_the_pipeline_and_beside_each_adapter(tmp_path: Path) -> None:
    def make(folder: Path, projection: int) -> Path:
        folder.mkdir(parents=True)
        config = {
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8,
            "image_size": 28, "patch_size": 14, "projection_dim": projection,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        save_file({"visual_projection.weight": np.ones((projection, 64), np.float32)}, folder / "model.safetensors")
        return folder

    (tmp_path / "one").mkdir()
    (tmp_path / "two" / "models").mkdir(parents=True)
    adapters = [ip_adapter("plain", 32, tmp_path / "one" / "a"), ip_adapter("plain", 32, tmp_path / "two" / "x" / "b")]
    source: Callable[[bool], Source] = lambda own: Source("a", tmp_path / "pipeline", INDEX if own else {})  # noqa: E731
    files = IpAdapterFiles((Path("a"),))
    with pytest.raises(UsageError, match="wants an image encoder, and none that fits"):
        _find_encoder(source(True), files, adapters)
    last = make(tmp_path / "two" / "models" / "image_encoder", 32)
    assert _find_encoder(source(True), files, adapters).path == last
    beside = make(tmp_path / "one" / "image_encoder", 32)
    make(tmp_path / "one" / "models" / "image_encoder", 32)
    assert _find_encoder(source(True), files, adapters).path == beside
    own = make(tmp_path / "pipeline" / "image_encoder", 32)
    assert _find_encoder(source(True), files, adapters).path == own
    assert _find_encoder(source(False), files, adapters).path == beside
    other = make(tmp_path / "other", 48)
    with pytest.raises(
        BadModelError, match=r"does not fit: a takes image embeddings of 32 numbers, and it makes .* 48"
    ):
        _find_encoder(source(True), IpAdapterFiles((Path("a"),), other), adapters)
    assert _find_encoder(source(True), IpAdapterFiles((Path("a"),), beside), adapters).path == beside
