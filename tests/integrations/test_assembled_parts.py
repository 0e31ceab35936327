"""The parts of diffusers' pipelines: which modules, tokenizers and encoders a folder has, and with what they load."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
import torch

from sdort.errors import BadModelError, UsageError
from sdort.families.family import PlainText
from sdort.families.scheduler_configs import FLOW
from sdort.integrations.diffusers import assembled_pipeline as assembled
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA

ONE = (SimpleNamespace(component="text_encoder", tokenizer="tokenizer", plain=None),)
SECOND = (SimpleNamespace(component="text_encoder_2", tokenizer="tokenizer_2", plain=None),)
PLAIN = PlainText("Qwen2Tokenizer", 512, padded=False, before='"<a>\n', after="{{ <b>\n")

THIRD: Any = SimpleNamespace(component="text_encoder_3", tokenizer="tokenizer_3", plain=PLAIN)


@pytest.mark.parametrize("encoders", [ONE, SECOND, (*ONE, *SECOND)], ids=["first", "second", "both"])
@pytest.mark.parametrize(("denoiser", "steered"), [("unet", False), ("unet", True), ("transformer", False)])
@pytest.mark.parametrize("texts_of", [None, Path("checkpoint")])
def test_each_component_is_made_as_it_would_be_loaded_alone(
    encoders: Any, denoiser: str, steered: bool, texts_of: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    options: Any = {"provider": "cuda", "graph": True}

    session, opened = object(), SimpleNamespace()
    opened.sessions = {denoiser: session}

    def opening(*given: Any, **named: Any) -> Any:
        asked.append((given, named))
        return opened

    monkeypatch.setattr(assembled, "open_components", opening)
    monkeypatch.setattr(assembled, "reloader", lambda load, path, given, **more: (load.__name__, path, given, more))
    for name in ("unet_of", "transformer_of", "vae_of", "text_encoder_of"):
        monkeypatch.setattr(assembled, name, lambda *given, name=name: (name, *given))
    monkeypatch.setattr(assembled, "_torch_encoders", lambda *given: {"text_encoder": ("torch", *given)})
    folder: Any = SimpleNamespace(path=Path("m"), family=SimpleNamespace(encoders=encoders), denoiser=denoiser)
    found = assembled._components(folder, options, steered, texts_of)
    names = [each.component for each in encoders]
    own = [] if texts_of else names
    assert asked == [
        (
            (Path("m"), (*own, denoiser, "vae_decoder"), options),
            {"optional": ("vae_encoder",), "control_inputs": steered},
        )
    ]
    more = {"control_inputs": steered} if denoiser == "unet" else {}
    expected: dict[str, Any] = {
        denoiser: (f"{denoiser}_of", opened, (f"load_{denoiser}", Path("m"), options, more)),
        "vae": ("vae_of", opened, ("load_vae", Path("m"), options, {})), "text_encoder": None, "text_encoder_2": None,
        "text_encoder_3": None,
    }  # fmt: skip
    for name in own:
        reload = ("load_text_encoder", Path("m"), options, {"component": name})
        expected[name] = ("text_encoder_of", opened, name, reload)
    if texts_of:
        expected["text_encoder"] = ("torch", session, names, texts_of)
    assert found == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_torchs_encoders_are_where_the_unet_is_and_of_its_type(
    device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU also where the provider's GPU is none of torch's; only while the checkpoint is there."""
    asked: list[Any] = []
    left: list[str] = []

    @contextmanager
    def checkpoint_of(path: Path) -> Any:
        yield path / "checkpoint"
        left.append("checkpoint")

    class Engine:
        def __init__(self, *given: Any, **named: Any) -> None:
            asked.append((given, named))

        def pipeline(self, name: str) -> Any:
            assert left == []
            return SimpleNamespace(**{name: f"module {name}"})

    monkeypatch.setattr(assembled, "checkpoint_of", checkpoint_of)
    monkeypatch.setattr(assembled, "TorchEngine", Engine)
    session = SimpleNamespace(provider=CUDA, options=SimpleNamespace(device_id=2))
    unet: Any = SimpleNamespace(device=torch.device(device), dtype=dtype, session=session)
    found = assembled._torch_encoders(unet, ["text_encoder", "text_encoder_2"], Path("m"))
    assert found == {name: f"module {name}" for name in ("text_encoder", "text_encoder_2")}
    provider = CPU if device == "cpu" else CUDA
    name = {torch.float16: "float16", torch.float32: "float32"}[dtype]
    assert asked == [((Path("m/checkpoint"), provider, name), {"device_id": 2})]


@pytest.mark.parametrize(
    "encoders", [ONE, SECOND, (*ONE, *SECOND), (*ONE, THIRD)], ids=["first", "second", "both", "plain text"]
)
def test_tokenizers_are_those_of_the_encoders(encoders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembled, "load_scheduler", lambda path, name, *, flow: (path, name, flow))
    monkeypatch.setattr(assembled, "_tokenizer", lambda path: path)
    monkeypatch.setattr(assembled, "_plain_tokenizer", lambda *given: given)
    for flow, config in ((True, FLOW), (False, {"_class_name": "EulerDiscreteScheduler"})):
        folder: Any = SimpleNamespace(path=Path("m"), family=SimpleNamespace(encoders=encoders, scheduler=config))
        made = assembled._processors(folder)
        own = {each.tokenizer: (folder, each, PLAIN) if each.plain else Path("m") / each.tokenizer for each in encoders}
        assert made == {
            "scheduler": (Path("m/scheduler"), None, flow),
            **{name: own.get(name) for name in ("tokenizer", "tokenizer_2", "tokenizer_3")},
        }


def test_a_tokenizer_is_read_by_sdort_before_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[Any] = []

    def theirs(path: Path, *, local_files_only: bool) -> str:
        order.append(("theirs", path, local_files_only))
        if len(order) > 2:
            raise KeyError("odd")
        return "tokenizer"

    monkeypatch.setattr(assembled, "load_tokenizer", lambda path: order.append(("ours", path)))
    own = SimpleNamespace(CLIPTokenizer=SimpleNamespace(from_pretrained=theirs))
    monkeypatch.setattr(assembled, "transformers", own)
    assert assembled._tokenizer(Path("t")) == "tokenizer"
    assert order == [("ours", Path("t")), ("theirs", Path("t"), True)]
    with pytest.raises(BadModelError, match="transformers cannot load the tokenizer in t: "):
        assembled._tokenizer(Path("t"))


@pytest.mark.parametrize("plain", [PLAIN, replace(PLAIN, before="", after="")], ids=["template", "none"])
def test_transformers_reads_a_copy_of_what_sdort_reads_of_plain_text(
    plain: PlainText, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order: list[Any] = []
    files = {"tokenizer.json": "t", "tokenizer_config.json": "c"}
    (tmp_path / "tokenizer_3").mkdir()
    for name, text in {**files, "vocab.json": "v"}.items():
        (tmp_path / "tokenizer_3" / name).write_text(text)

    def theirs(path: Path, *, local_files_only: bool) -> Any:
        order.append(({each.name: each.read_text() for each in path.iterdir()}, local_files_only))
        if len(order) > 2:
            raise KeyError("odd")
        return SimpleNamespace(chat_template="the folder's")

    monkeypatch.setattr(assembled, "load_plain_tokenizer", lambda *given: order.append(given))
    own = SimpleNamespace(Qwen2Tokenizer=SimpleNamespace(from_pretrained=theirs))
    monkeypatch.setattr(assembled, "transformers", own)
    folder: Any = SimpleNamespace(
        path=tmp_path, config=lambda component: {"vocab_size": {THIRD.component: 300}[component]}
    )
    made = assembled._plain_tokenizer(folder, THIRD, plain)
    assert order == [(tmp_path / "tokenizer_3", plain, 300), (files, True)]
    assert (made.chat_template == "the folder's") == (not plain.before)
    with pytest.raises(BadModelError, match=f"transformers cannot load the tokenizer in {tmp_path / 'tokenizer_3'}: "):
        assembled._plain_tokenizer(folder, THIRD, plain)


def test_a_chat_template_is_the_familys_text_around_a_prompt() -> None:
    made = jinja2.Template(assembled._chat_template(PLAIN)).render(messages=[{"content": "{{ 1 }} é\n"}])
    assert made == f"{PLAIN.before}{{{{ 1 }}}} é\n{PLAIN.after}"


def test_text_encoders_are_sdorts_or_those_of_the_checkpoint() -> None:
    for kind in ("sdort", "torch"):
        assembled._check_text_encoder(kind)
    with pytest.raises(UsageError, match="no text_encoder='onnx'"):
        assembled._check_text_encoder("onnx")


@pytest.mark.parametrize("task", ["text-to-image", "controlnet"])
@pytest.mark.parametrize("optimize", [False, True, "fp16"])
@pytest.mark.parametrize("text_encoder", ["sdort", "torch"])
def test_a_pipeline_gets_what_its_constructor_takes(
    task: str,
    optimize: Any,
    text_encoder: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: dict[str, Any] = {}

    class Pipeline:
        def __init__(self, unet: Any, scheduler: Any, safety_checker: Any, controlnet: Any = None) -> None:
            self.got = (unet, scheduler, safety_checker, controlnet)

    folder = SimpleNamespace(path=Path("folder"), models={"safety_checker": Path("c")})

    def note(name: str, result: Any) -> None:
        def called(*given: Any) -> Any:
            asked[name] = given
            return result

        monkeypatch.setattr(assembled, name, called)

    note("open_folder", folder)
    note("pipeline_class", Pipeline)
    note("optimized_checkpoint", Path("made"))
    note("_components", {"unet": "u", "vae": "v"})
    note("_controlnets", "net")
    note("_processors", {"scheduler": "s", "tokenizer": "t"})
    note("_settings", {"safety_checker": None, "add_watermarker": False})
    steered = task == "controlnet"
    net = "canny" if steered else None
    made = assembled.load_pipeline(
        "m", task, controlnet=net, text_encoder=text_encoder, optimize=optimize, provider="cpu", device_id=3
    )
    said = " ".join(capsys.readouterr().err.split())
    assert "the safety checker of folder is no part of this pipeline, whose images nobody judges" in said
    options = {"provider": "cpu", "device_id": 3}
    assert made.got == ("u", "s", None, "net" if steered else None)
    assert asked["open_folder"] == (Path("made") if optimize else Path("m"),)
    assert asked.get("optimized_checkpoint") == ((Path("m"), optimize, options) if optimize else None)
    assert asked["pipeline_class"] == (folder, task)
    assert asked["_components"] == (folder, options, steered, None if text_encoder == "sdort" else Path("m"))
    assert asked.get("_controlnets") == (("canny", options) if steered else None)
