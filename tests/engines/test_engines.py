"""What engines say of models that are descriptions alone: sizes that are not square, names, precision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.engines import onnx as onnx_engine
from sdort.engines import original
from sdort.engines.checkpoint_folder import _copy_parts, _find
from sdort.engines.engine import case_request
from sdort.engines.onnx import OnnxEngine
from sdort.engines.original import as_exported, holds_onnx, open_reference, unknown_original
from sdort.engines.torch import TorchEngine
from sdort.errors import UsageError
from sdort.exporter.source import Source
from sdort.families.data.sd1 import FAMILY as SD1
from sdort.files.file_digest import file_digest
from sdort.graph.signature import TensorSpec
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.runtime_options import RuntimeOptions
from sdort.workload.cases import Case

F = np.dtype(np.float32)


def engine(
    inputs: Mapping[str, Mapping[str, tuple[Any, ...]]], *, generates: bool = True, latents: int | None = None,
    dtype: str = "float16", **provider: Any,
) -> OnnxEngine:  # fmt: skip
    """An engine whose components declare inputs of these shapes."""
    made = object.__new__(OnnxEngine)

    def file(name: str) -> Any:
        specs = {each: TensorSpec(each, F, shape) for each, shape in inputs[name].items()}
        return SimpleNamespace(
            signature=SimpleNamespace(inputs=specs), path=Path(name), dtype=f"{dtype} of {name}", metadata={}
        )

    folder: Any = SimpleNamespace(
        denoiser="unet",
        family=SD1,
        models={name: Path(name) for name in inputs}, file=file, generates=generates, vae_factor=8,
        compared=[name for name in inputs if name != "safety_checker"],
        default_size=(512, 768), vae={} if latents is None else {"latent_channels": latents},
    )  # fmt: skip
    made.folder, made.path = folder, Path("fast")
    made.provider = SimpleNamespace(bf16=False, **provider)  # type: ignore[assignment]
    made.options = RuntimeOptions(device_id=3)
    made._sessions = {}
    return made


@pytest.mark.parametrize(
    ("sample", "size"),
    [
        ((2, 4, "h", "w"), (512, 768)), ((2, 4, 32, 48), (256, 384)), ((2, 4, 32, None), (256, 768)),
        ((2, 4, "h", 48), (512, 384)), ((), (512, 768)),
    ],
)  # fmt: skip
def test_the_model_s_own_size_is_what_the_unet_fixes(sample: tuple[Any, ...], size: tuple[int, int]) -> None:
    assert engine({"unet": {"sample": sample}}).default_size() == size
    assert engine({"vae_decoder": {"sample": sample}}).default_size() == (512, 768)


@pytest.mark.parametrize(
    ("channels", "latents", "generates", "whole"),
    [(4, None, True, True), (9, None, True, False), ("c", None, True, True), (16, 16, True, True), (4, 16, True, False),
     (4, None, False, False)],
)  # fmt: skip
def test_an_inpainting_unet_generates_nothing(channels: Any, latents: int | None, generates: bool, whole: bool) -> None:
    parts = {"text_encoder": {}, "unet": {"sample": (2, channels, "h", "w")}, "safety_checker": {}}
    found = engine(parts, generates=generates, latents=latents).components()
    assert found == ["text_encoder", "unet", *(["pipeline"] if whole else [])]


def test_the_static_batch_is_that_of_the_first_input_with_several_axes() -> None:
    one = engine({"unet": {"timestep": (5,), "sample": (2, 4, 8, 8), "x": (3, 4)}, "b": {"sample": ("n", 4)}, "c": {}})
    assert [one.static_batch(name) for name in ("unet", "b", "c")] == [2, None, None]


def test_the_precision_of_a_pipeline_is_the_unet_s(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine({"unet": {}, "vae_decoder": {}})
    monkeypatch.setattr(onnx_engine, "made_for_bf16", lambda path: path.name == "unet")
    assert [made.dtype(name) for name in ("pipeline", "unet", "vae_decoder")] == [
        "float16 of unet", "float16 of unet", "float16 of vae_decoder"
    ]  # fmt: skip
    made.provider = SimpleNamespace(bf16=True)  # type: ignore[assignment]
    assert [made.dtype(name) for name in ("pipeline", "unet", "vae_decoder")] == [
        "bfloat16", "bfloat16", "float16 of vae_decoder"
    ]  # fmt: skip


def test_memory_is_asked_for_as_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(onnx_engine, "refuse_generation", lambda *given: asked.append(given))
    monkeypatch.setattr(onnx_engine, "refuse_case", lambda *given: asked.append(given))
    made = engine({"unet": {}})
    image = Case("pipeline", 5, 64, 96)
    made.refuse_shortage(image, 7)
    made.refuse_shortage(Case("unet", 2, 64, 96), 7)
    assert asked == [
        (made.folder, case_request(image, 7, None), 5, made.provider, 3),
        (made.folder, Case("unet", 2, 64, 96), made.provider, 3),
    ]


def test_a_session_is_opened_once_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, ...]] = []

    def open_session(*given: Any) -> Any:
        opened.append(given)
        return object()

    monkeypatch.setattr(onnx_engine, "open_session", open_session)
    made = engine({"unet": {}, "vae_decoder": {}})
    first = made.session("unet")
    assert made.session("unet") is first
    assert made.session("vae_decoder") is not first
    made.close()
    assert made.session("unet") is not first
    assert [given[:2] for given in opened] == [(Path(n), n) for n in ("unet", "vae_decoder", "unet")]
    with pytest.raises(UsageError, match="fast has no controlnet"):
        made.prepare(Case("controlnet", 1, 64, 96), 1, None)


def test_a_case_s_request_is_of_all_its_images_at_once() -> None:
    request = case_request(Case("pipeline", 3, 64, 96, 7, "a (cat)"), 11, "euler")
    assert (request.prompt, request.steps, request.height, request.width, request.seed) == ("a (cat)", 11, 64, 96, 7)
    assert (request.num_images, request.images_at_once, request.scheduler, request.prompt_weighting) == (
        3, 3, "euler", "none"
    )  # fmt: skip


# torch


def torch_engine(monkeypatch: pytest.MonkeyPatch, index: Mapping[str, Any] | None = None, **unet: Any) -> TorchEngine:
    made = object.__new__(TorchEngine)
    parts = ("text_encoder", "text_encoder_2", "unet", "vae")
    made.index = dict(index) if index is not None else {part: ["library", "Class"] for part in parts}
    configs: dict[str, dict[str, Any]] = {
        "unet": {"in_channels": 4, "cross_attention_dim": 24, "sample_size": [32, 48], **unet},
        "vae": {"in_channels": 3, "latent_channels": 4, "block_out_channels": [1, 1, 1]},
        "text_encoder_2": {"projection_dim": 20},
    }
    monkeypatch.setattr(made, "config", configs.__getitem__)
    return made


def shapes(made: TorchEngine, component: str) -> dict[str, tuple[Any, ...]]:
    return {name: spec.shape for name, spec in made.inputs(component).items()}


def test_the_inputs_of_torch_s_components_are_those_of_their_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch_engine(monkeypatch)
    plain = {
        "sample": ("batch", 4, "height", "width"), "timestep": (), "encoder_hidden_states": ("batch", 77, 24)
    }  # fmt: skip
    assert shapes(made, "unet") == plain
    assert shapes(made, "vae_encoder") == {"sample": ("batch", 3, "height", "width")}
    assert shapes(made, "vae_decoder") == {"sample": ("batch", 4, "height", "width")}
    for name in ("text_encoder", "text_encoder_2"):
        assert shapes(made, name) == {"input_ids": ("batch", 77)}
        assert made.inputs(name)["input_ids"].dtype == np.int64
    xl = torch_engine(
        monkeypatch, addition_embed_type="text_time", projection_class_embeddings_input_dim=50,
        addition_time_embed_dim=6, time_cond_proj_dim=9,
    )  # fmt: skip
    assert shapes(xl, "unet") == plain | {
        "text_embeds": ("batch", 20), "time_ids": ("batch", 5), "timestep_cond": ("batch", 9)
    }  # fmt: skip
    assert made.default_size() == (128, 192)  # two levels down: four pixels a latent
    assert made.factor == 4


def test_torch_generates_with_all_parts_and_a_unet_of_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ["text_encoder", "text_encoder_2", "unet", "vae_encoder", "vae_decoder"]
    index: dict[str, Any] = {part: ["library", "Class"] for part in ("text_encoder", "text_encoder_2", "unet", "vae")}
    assert torch_engine(monkeypatch).components() == [*parts, "pipeline"]
    assert torch_engine(monkeypatch, in_channels=9).components() == parts
    for missing, left in (
        ("text_encoder_2", [parts[0], *parts[2:], "pipeline"]), ("text_encoder", parts[1:]), ("vae", parts[:3]),
    ):  # fmt: skip
        without = {name: value for name, value in index.items() if name != missing}
        assert torch_engine(monkeypatch, without).components() == left
        assert torch_engine(monkeypatch, index | {missing: [None, None]}).components() == left


def test_a_reference_is_opened_in_its_own_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(original, "OnnxEngine", lambda *given: made.append(("onnx", *given)))
    monkeypatch.setattr(original, "TorchEngine", lambda *given, **named: made.append(("torch", *given, named)))
    monkeypatch.setattr(original, "_torch_provider", lambda provider: f"{provider.name} of torch")
    options = RuntimeOptions(device_id=3)
    open_reference(tmp_path, CUDA, options)
    (tmp_path / "model.onnx").touch()
    open_reference(tmp_path, CPU, options)
    named = {"device_id": 3}
    assert made == [("torch", tmp_path, "cuda of torch", "float32", named), ("onnx", tmp_path, CPU, options)]


def test_onnx_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "model.onnx").touch()
    assert [holds_onnx(path) for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")] == [False, True, True]
    assert holds_onnx(tmp_path / "a" / "b" / "model.onnx")
    assert not holds_onnx(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("manifest", "named"),
    [({"source": "a.safetensors"}, True), ({}, False), ({"source": "a", "optimized": {"from": "x"}}, False)],
)
def test_an_unknown_original_is_named(manifest: dict[str, Any], named: bool, tmp_path: Path) -> None:
    (tmp_path / "sdort.json").write_text(json.dumps(manifest))
    error = unknown_original(tmp_path, "unknown", "name it")
    assert error.message.startswith("unknown")
    assert error.hint == "name it"
    assert ("a.safetensors, which is neither where it was" in error.message) is named


# Adapters in the weights


@pytest.mark.parametrize("manifest", [{}, {"adapters": []}, {"adapters": [], "words": []}])
def test_a_reference_without_adapters_is_itself(manifest: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "sdort.json").write_text(json.dumps(manifest))
    with as_exported(tmp_path, tmp_path / "checkpoint") as found:
        assert found == tmp_path / "checkpoint"


@pytest.mark.parametrize("key", ["adapters", "words"])
def test_adapters_and_words_both_make_a_copy_of_a_checkpoint(key: str, tmp_path: Path) -> None:
    (tmp_path / "sdort.json").write_text(json.dumps({key: [{"name": "x", "word": "x", "scale": 1.0}]}))
    (tmp_path / "model.onnx").touch()
    with as_exported(tmp_path, tmp_path) as found:  # ONNX has them inside
        assert found == tmp_path
    with pytest.raises(UsageError, match="nowhere"), as_exported(tmp_path, tmp_path / "nowhere"):
        pass


def test_an_adapter_s_file_is_known_by_size_and_hash_wherever_it_lies(tmp_path: Path) -> None:
    for place, content in (("old", b"abc"), ("one", b"abd"), ("two", b"abc"), ("long", b"abcd")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.safetensors").write_bytes(content)
    entry = {"name": "x", "path": str(tmp_path / "old" / "x.safetensors"), "bytes": 3}
    entry["sha256"] = file_digest(tmp_path / "two" / "x.safetensors")
    places = [tmp_path / name for name in ("nowhere", "long", "one", "two")]
    assert _find(entry, places) == tmp_path / "old" / "x.safetensors"
    (tmp_path / "old" / "x.safetensors").write_bytes(b"abd")
    assert _find(entry, places) == tmp_path / "two" / "x.safetensors"
    assert _find({name: entry[name] for name in ("name", "bytes", "sha256")}, places) == places[-1] / "x.safetensors"
    word = {"word": "x", "bytes": 3, "sha256": entry["sha256"]}
    assert _find(word, places) == places[-1] / "x.safetensors"
    for changed, words in (({"bytes": 4}, "is not there, or is another one"), ({"bytes": None}, "how many bytes")):
        with pytest.raises(UsageError, match=words):
            _find({**entry, **changed}, places)


def test_a_copy_has_what_diffusers_loads_and_no_weights_that_change(tmp_path: Path) -> None:
    names = ["config.json", "merges.txt", "a.safetensors", "b.safetensors.index.json"]
    others = ["x.bin", ".git", ".x.json", "y.py"]
    for part in ("unet", "vae", "other"):
        (tmp_path / "from" / part).mkdir(parents=True)
        for name in names + others:
            (tmp_path / "from" / part / name).touch()
    index = {"unet": ["diffusers", "A"], "vae": ["diffusers", "B"], "gone": ["diffusers", "C"], "_class_name": "D"}
    _copy_parts(Source("a", tmp_path / "from", index), tmp_path / "to", ["unet"])
    copied = {part.name: sorted(file.name for file in part.iterdir()) for part in (tmp_path / "to").iterdir()}
    assert copied == {"unet": ["config.json", "merges.txt"], "vae": sorted(names)}
