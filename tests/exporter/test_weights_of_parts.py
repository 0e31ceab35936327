"""What becomes of a component's tensors and config, and of an IP-Adapter's, with stubs for the slow readers."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from sdort.adapters.ip_adapter_file import IpAdapter
from sdort.checkpoints.clip_vision import ImageEncoder
from sdort.errors import BadModelError, UsageError
from sdort.exporter import checkpoint, ip_adapters, pickles, source
from sdort.exporter.bind import _aliases, _as_float32, _check_shapes, _mismatch
from sdort.exporter.checkpoint import _check_chosen, read_checkpoint
from sdort.exporter.ip_adapters import IpAdapterFiles, add_ip_adapters
from sdort.exporter.pickles import read_pickle
from sdort.exporter.pipeline_parts import _known
from sdort.exporter.signatures import FOLDERS
from sdort.exporter.source import AppliedIpAdapter, Source, component_config, select_components
from sdort.exporter.trace_cache import TraceCache
from sdort.graph.weights import Cast, Inline


def tensor(*shape: int, dtype: Any = np.float32) -> Inline:
    return Inline(np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("name", "aliases"),
    [
        ("a.weight", ["a.weight", "a.weight", "text_model.a.weight"]),
        ("text_model.a", ["text_model.a", "a", "text_model.text_model.a"]),
        ("decoder.attentions.0.query.weight", ["decoder.attentions.0.to_q.weight"]),
        ("attentions.12.key.bias", ["attentions.12.to_k.bias"]),
        ("x.attentions.0.value.lora", ["x.attentions.0.to_v.lora"]),
        ("x.attentions.0.proj_attn.weight", ["x.attentions.0.to_out.0.weight"]),
        ("x.attentions.query.weight", []),
        ("x.myattentions.0.query.weight", []),
        ("x.attentions.0.query.a.b", []),
        ("x.attentions.0.norm.weight", []),
    ],
)
def test_other_names_of_a_parameter(name: str, aliases: list[str]) -> None:
    found = list(_aliases(name))
    assert found[:3] == [name, name.removeprefix("text_model."), f"text_model.{name}"]
    assert found[3:] == [alias for alias in aliases if "attentions" in alias]


@pytest.mark.parametrize(
    ("missing", "foreign", "words"),
    [
        (["b", "a"], [], "lacks 2 of the parameters that its config asks for (a, b)"),
        ([], ["x"], "has 1 tensor that its config has no place for (x)"),
        (["a"], ["y", "x"], "lacks 1 of the parameters that its config asks for (a) and has 2 tensors that its config "
         "has no place for (x, y)"),
    ],
)  # fmt: skip
def test_what_is_missing_and_what_is_foreign(missing: list[str], foreign: list[str], words: str) -> None:
    error = _mismatch(missing, foreign, "unet")
    assert (error.message, error.component) == (f"the checkpoint {words}", "unet")
    assert str(error.hint).startswith("The file is incomplete, or")


def test_the_first_of_the_wrong_shapes_is_named() -> None:
    parameters: dict[str, tuple[int, ...]] = {"c": (2, 3), "b": (4,), "a": (5,), "d": ()}
    bound = {"c": tensor(3, 2), "b": tensor(4, 1), "a": tensor(5), "d": tensor()}
    with pytest.raises(BadModelError) as caught:
        _check_shapes(bound, parameters, "unet")
    assert caught.value.message == (
        "the checkpoint has 2 tensors of another shape than its config asks for: 'b' is [4, 1], not [4] (b, c)"
    )
    assert caught.value.component == "unet"
    _check_shapes({"a": tensor(5), "d": tensor()}, {name: list(shape) for name, shape in parameters.items()}, "unet")  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_])
def test_weights_are_floats(dtype: Any) -> None:
    weight = tensor(2, dtype=dtype)
    if dtype in (np.int64, np.bool_):
        with pytest.raises(BadModelError, match=f"'a' is stored as {np.dtype(dtype)}, a quantized") as caught:
            _as_float32("a", weight, "unet")
        assert caught.value.component == "unet"
        return
    found = _as_float32("a", weight, "unet")
    assert found.dtype == np.float32
    assert (found is weight) == (dtype is np.float32)
    assert isinstance(found, Cast) == (dtype is not np.float32)


@pytest.mark.parametrize(
    ("config", "names", "told", "refused"),
    [
        (None, ["model.safetensors"], None, False),
        ({}, ["a", "b", "c"], "text_encoder: a is read, as by its library, and not b, c", False),
        ({"transformers_weights": None}, ["a"], None, False),
        ({"transformers_weights": "a"}, ["a", "b"], "text_encoder: a is read", False),
        ({"transformers_weights": "b"}, ["a", "b"], None, True),
        ({"transformers_weights": "x"}, ["a"], None, True),
    ],
    ids=str,
)
def test_which_of_several_weights_are_read(
    config: Any, names: list[str], told: str | None, refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    if refused:
        with pytest.raises(BadModelError, match=r"names other weights .* than a") as caught:
            _check_chosen(tmp_path, "text_encoder", names)
        assert caught.value.component == "text_encoder"
        return
    _check_chosen(tmp_path, "text_encoder", names)
    said = " ".join(capsys.readouterr().err.split())
    assert (told or "") in said
    assert bool(said) == bool(told)


@pytest.mark.parametrize("component", ["unet", "text_encoder_2"])
@pytest.mark.parametrize("variant", [None, "fp16"])
def test_pickles_are_the_last_choice(
    component: str, variant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Any = list[Any]()
    monkeypatch.setattr(pickles, "read_pickle", lambda *given: read.append(given) or {"p": 1})
    monkeypatch.setattr(checkpoint, "read_tensors", lambda path: {"s": path})
    mark = f".{variant}" if variant else ""
    stem, pickled = ("model", "pytorch_model") if component != "unet" else ("diffusion_pytorch_model",) * 2
    for _ in range(2):
        with pytest.raises(BadModelError, match="has no"):
            read_checkpoint(tmp_path, component, variant, False)
        path = tmp_path / f"{pickled}{mark}.bin"
        path.touch()
    assert read_checkpoint(tmp_path, component, variant, True) == {"p": 1}
    assert read == [(path, component)]
    (tmp_path / f"{stem}{mark}.safetensors").touch()
    for allow in (False, True):
        found: Any = read_checkpoint(tmp_path, component, variant, allow)
        assert found == {"s": tmp_path / f"{stem}{mark}.safetensors"}


@pytest.mark.parametrize("zipped", [False, True])
def test_tensors_of_a_pickle(zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both of torch's forms; bfloat16 by its bits, and slices of a larger tensor alone."""
    monkeypatch.setattr(pickles, "quiet_libraries", nullcontext)
    path, whole = tmp_path / "a.bin", torch.arange(24.0).reshape(4, 6)
    given = {
        "half": whole.to(torch.float16), "brain": whole.to(torch.bfloat16), "turned": whole.T, "rows": whole[1:3],
        "number": torch.tensor(5, dtype=torch.int64), "grad": torch.nn.Parameter(whole.clone()),
    }  # fmt: skip
    torch.save(given, path, _use_new_zipfile_serialization=zipped)
    found = read_pickle(path, "unet")
    dtypes = [
        np.dtype(dtype) for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float32, np.int64, np.float32)
    ]
    assert [weight.dtype for weight in found.values()] == dtypes
    for name, tensor_ in given.items():
        assert found[name].shape == tuple(tensor_.shape)
        np.testing.assert_array_equal(found[name].load().astype(np.float64), tensor_.detach().double().numpy())
        assert found[name].load().flags.c_contiguous


@pytest.mark.parametrize(
    "content", [[torch.ones(1)], {"a": torch.ones(1), "b": 1}, {"a": {"b": torch.ones(1)}}], ids=str
)
def test_a_pickle_of_something_else(content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "quiet_libraries", nullcontext)
    torch.save(content, tmp_path / "a.bin")
    with pytest.raises(BadModelError, match="holds something else than named tensors") as caught:
        read_pickle(tmp_path / "a.bin", "unet")
    assert caught.value.component == "unet"
    (tmp_path / "a.bin").write_bytes(b"PK\x03\x04broken")
    with pytest.raises(BadModelError, match="cannot read tensors from") as caught:
        read_pickle(tmp_path / "a.bin", "unet")
    assert caught.value.component == "unet"
    with pytest.raises(BadModelError):
        read_pickle(tmp_path / "nowhere.bin", "unet")


VISION = "CLIPVisionModelWithProjection"


@pytest.mark.parametrize(
    ("part", "parts", "known"),
    [
        ("image_encoder", {"image_encoder": VISION}, False),
        ("image_encoder", {"image_encoder": VISION, "text_encoder": "CLIPTextModel"}, True),
        ("image_encoder", {"image_encoder": VISION, "text_encoder_2": "X"}, True),
        ("image_encoder", {"image_encoder": "Dinov2Model", "text_encoder": "CLIPTextModel"}, False),
        ("safety_checker", {"safety_checker": "Any"}, True),
        ("unet", {"unet": "UNet2DConditionModel"}, True),
        ("unet", {"unet": "AutoencoderKL"}, False),
        ("prior", {"prior": "UNet2DConditionModel"}, False),
        ("vae", {"vae": "AutoencoderTiny"}, True),
        ("controlnet", {"controlnet": "ControlNetModel"}, True),
        ("adapter", {"adapter": "T2IAdapter"}, True),
        ("adapter", {"adapter": "ControlNetModel"}, False),
        ("text_encoder_2", {"text_encoder_2": "CLIPTextModelWithProjection"}, True),
    ],
)
def test_parts_that_are_exported_or_left_out(part: str, parts: dict[str, str], known: bool) -> None:
    assert _known(part, parts) == known


CLASSES = {
    "text_encoder": "CLIPTextModel", "text_encoder_2": "CLIPTextModelWithProjection", "unet": "UNet2DConditionModel",
    "vae": "AutoencoderKL", "controlnet": "ControlNetModel", "adapter": "T2IAdapter", "image_encoder": VISION,
}  # fmt: skip
APPLIED = (AppliedIpAdapter("a", "plain", 4, "a", ""), AppliedIpAdapter("b", "plus", 16, "b", ""))


@pytest.mark.parametrize(
    ("parts", "pipeline", "control", "adapters", "expected"),
    [
        (("text_encoder", "unet", "vae"), "StableDiffusionPipeline", False, (), (False, None, False, [])),
        (("text_encoder", "unet"), "StableDiffusionPipeline", True, (), (False, None, True, [])),
        (("text_encoder", "text_encoder_2", "unet"), "Own", False, (), (True, 1280, False, [])),
        (("unet",), "StableDiffusionXLPipeline", False, (), (True, None, False, [])),
        (("unet", "controlnet"), "StableDiffusionControlNetPipeline", False, (), (False, None, True, [])),
        (("unet", "adapter"), "StableDiffusionAdapterPipeline", False, (), (False, None, True, [])),
        (("unet", "image_encoder", "text_encoder"), "StableDiffusionPipeline", False, (), (False, None, False, [])),
        (("unet", "image_encoder"), "StableDiffusionPipeline", False, APPLIED, (False, None, False, [4, 16])),
    ],
    ids=str,
)
def test_components_are_described_by_their_pipeline(
    parts: tuple[str, ...],
    pipeline: str,
    control: bool,
    adapters: tuple[AppliedIpAdapter, ...],
    expected: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SDXL's encoders return hidden states, and its UNet takes the second one's pooled text; a ControlNet beside a UNet
    wants its inputs; an image encoder is for IP-Adapters."""
    checked: list[Any] = []
    monkeypatch.setattr(source, "component_config", lambda given, name, cache: {"projection_dim": 1280, "of": name})
    monkeypatch.setattr(source, "check_parts", lambda index, name: checked.append(("parts", name)))
    monkeypatch.setattr(source, "check_channels", lambda index, denoiser, unet, vae: checked.append((unet, vae)))
    monkeypatch.setattr(source, "normalise", lambda class_name, config, defaults: (class_name, config["of"], defaults))
    monkeypatch.setattr(source, "describe_component", lambda *given, **options: (*given, options))
    cache: Any = SimpleNamespace(defaults=lambda class_name, compute: f"defaults of {class_name}")
    index = {"_class_name": pipeline, **{part: ["l", CLASSES[part]] for part in parts}}
    given = Source("n", Path("n"), index, ip_adapters=adapters)
    names = [name for name in FOLDERS if FOLDERS[name] in parts and (name != "image_encoder" or adapters)]
    hidden, embeds, controlled, tokens = expected
    options = {"hidden_states": hidden, "text_embeds": embeds, "control": controlled, "image_tokens": tokens,
               "masked": False}  # fmt: skip
    described = {
        name: (name, kind := CLASSES[FOLDERS[name]], (kind, name, f"defaults of {kind}"), options) for name in names
    }
    found: Any = select_components(given, (), cache, control=control)
    assert found == list(described.values())
    vae = {"projection_dim": 1280, "of": "vae_decoder"} if "vae" in parts else None
    channels = ({"projection_dim": 1280, "of": "unet"}, vae)
    assert checked == [("parts", "n"), channels]
    checked.clear()
    found = select_components(given, ["unet"], cache, control=control)
    assert found == [described["unet"]]
    assert checked == [channels]
    checked.clear()
    others = [name for name in names if name != "unet"][:1]
    if others:
        found = select_components(given, others, cache, control=control)
        assert found == [described[name] for name in others]
        assert checked == []
    with pytest.raises(UsageError, match=f"n has no x, y; it has {', '.join(names)}"):
        select_components(given, ["y", "unet", "x"], cache, control=control)


def test_a_components_config_has_its_defaults_under_its_own(tmp_path: Path) -> None:
    config = {"_class_name": "AutoencoderKL", "block_out_channels": [8], "down_block_types": ["a"],
              "up_block_types": ["a"], "latent_channels": 4, "_name_or_path": "/home/somebody"}  # fmt: skip
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    given = Source("n", tmp_path, {"vae": ["diffusers", "AutoencoderKL"]}, {"vae": folder})
    cache = TraceCache(tmp_path / "traces")

    def defaults(class_name: str, compute: Any) -> dict[str, Any]:
        return {"latent_channels": 9, "act_fn": f"of {class_name}"}

    cache.defaults = defaults  # type: ignore[method-assign]
    del config["_name_or_path"]
    for name in ("vae_encoder", "vae_decoder"):
        assert component_config(given, name, cache) == {**config, "act_fn": "of AutoencoderKL"}
    for change, words in (({"up_block_types": ["a", "b"]}, "contradicts itself: up_block_types has 2"),
                          ({"latent_channels": None}, "latent_channels")):  # fmt: skip
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(BadModelError, match=words) as caught:
            component_config(given, "vae_decoder", cache)
        assert caught.value.component == "vae_decoder"
    for lost in ("block_out_channels", "down_block_types", "up_block_types", "latent_channels"):
        (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != lost}))
        with pytest.raises(BadModelError, match=f"has no {lost}") as caught:
            component_config(given, "vae_encoder", cache)
        assert caught.value.component == "vae_encoder"


def test_ip_adapters_go_into_the_unet_and_behind_an_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {
        "one": IpAdapter(
            tmp_path / "one.safetensors", {"kind": "plain", "tokens": 4, "embeds": 8}, {"p": tensor(1)}, []
        ),
        "two": IpAdapter(
            tmp_path / "two.safetensors", {"kind": "plus", "tokens": 16, "embeds": 24}, {"q": tensor(2)}, []
        ),
    }
    for adapter in made.values():
        adapter.path.write_text(adapter.kind)
    config = {"hidden_size": 24, "projection_dim": 8}
    encoder = ImageEncoder(tmp_path / "encoder", config, {"vision_model.a": tensor(3)})
    asked: Any = list[Any]()
    monkeypatch.setattr(ip_adapters, "read_ip_adapter", lambda path: made[path.stem])
    monkeypatch.setattr(ip_adapters, "read_image_encoder", lambda path: asked.append(path) or encoder)
    monkeypatch.setattr(
        ip_adapters, "attention_tensors", lambda *given: asked.append(given) or {"added": tensor(4), "old": tensor(5)}
    )
    unet: dict[str, Any] = {"old": tensor(6), "kept": tensor(7)}
    given = Source("n", tmp_path, {"unet": ["d", "U"], "x": 1}, {"vae": tmp_path}, {"unet": unet, "vae": {}})
    files = IpAdapterFiles(tuple(adapter.path for adapter in made.values()), encoder.path)
    (tmp_path / "stage").mkdir()
    found = add_ip_adapters(given, files, tmp_path / "stage", "fp16", True)
    assert asked == [(list(made.values()), unet, "n"), encoder.path]
    assert found.index == {"unet": ["d", "U"], "x": 1, "image_encoder": ["transformers", VISION]}
    assert found.parts == {"vae": tmp_path, "image_encoder": tmp_path / "stage" / "image_encoder"}
    shapes = {folder: {name: each.shape for name, each in named.items()} for folder, named in found.tensors.items()}
    assert shapes == {
        "unet": {"old": (5,), "kept": (7,), "added": (4,)}, "vae": {},
        "image_encoder": {"encoder.vision_model.a": (3,), "projections.0.p": (1,), "projections.1.q": (2,)},
    }  # fmt: skip
    written = json.loads((tmp_path / "stage" / "image_encoder" / "config.json").read_text())
    assert written == {**config, "projections": [dict(adapter.projection) for adapter in made.values()]}
    assert [(each.name, each.kind, each.tokens, each.path) for each in found.ip_adapters] == [
        ("one", "plain", 4, str(files.adapters[0])), ("two", "plus", 16, str(files.adapters[1])),
    ]  # fmt: skip
    assert len({each.sha256 for each in found.ip_adapters}) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"two.safetensors: IP-Adapter (plus), 16 tokens; image encoder: {encoder.path}" in said
    read: Any = list[Any]()
    monkeypatch.setattr(Source, "read_tensors", lambda self, *asked: read.append(asked) or unet)
    add_ip_adapters(given, files, tmp_path / "stage" / "image_encoder", "fp16", True)
    assert read == [("unet", "unet", "fp16", True)]
