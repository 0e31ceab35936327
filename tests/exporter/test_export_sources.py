"""Sources of an export by stubs: which reader takes what, and what each one makes of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort import console
from sdort.checkpoints.prediction import Prediction
from sdort.checkpoints.single_file import SingleFile
from sdort.checkpoints.tokenizer_files import TABLES
from sdort.checkpoints.weight_names import SD1, SDXL, Kind
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.exporter import open_source, replacements, source, vae_parts
from sdort.exporter.ip_adapters import IpAdapterFiles
from sdort.exporter.replacements import MadeWith, Replacements, replace_parts
from sdort.exporter.source import Source, check_processors, read_source
from sdort.exporter.vae_parts import VaePart, read_vae
from sdort.families.known_families import FAMILIES
from sdort.machine.subprocesses import WorkerError

UNET, VAE = ["diffusers", "UNet2DConditionModel"], ["diffusers", "AutoencoderKL"]


def stub(calls: list[Any], name: str, answer: Any = None) -> Any:
    """A function that notes what it is given, and answers with its name or another value."""

    def called(*given: Any, **options: Any) -> Any:
        calls.append((name, *given, *([options] if options else [])))
        return name if answer is None else answer

    return called


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the readers of :mod:`open_source` are given; each returns its own name."""
    calls: list[Any] = []
    for name in ("single_file_source", "vae_source", "control_source", "read_source", "write_demo"):
        monkeypatch.setattr(open_source, name, stub(calls, name))
    monkeypatch.setattr(open_source, "no_diffusers_pipeline", lambda path: BadModelError(f"none: {path}"))
    return calls


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("replaced", [Replacements(), Replacements(ema=True), Replacements(vae=Path("v"))], ids=repr)
def test_a_file_is_read_by_its_kind(
    kind: Kind, replaced: Replacements, calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    path.touch()
    asked: list[Any] = []
    monkeypatch.setattr(open_source, "recognise_file", stub(asked, "kind", SimpleNamespace(kind=kind)))

    def opened() -> Any:
        return open_source._open(str(path), tmp_path, "fp16", False, True, replaced)

    if kind in (Kind.CHECKPOINT, Kind.UNET, Kind.DENOISER):
        assert opened() == "single_file_source"
        assert calls == [("single_file_source", path, tmp_path, replaced)]
    elif kind not in (Kind.VAE, Kind.CONTROLNET):
        with pytest.raises(BadModelError, match=f"none: {path}"):
            opened()
    elif replaced.ema:
        with pytest.raises(
            UsageError, match=f"--ema is for single files with a UNet or a transformer, which {path} is not"
        ):
            opened()
    else:
        name = "vae_source" if kind is Kind.VAE else "control_source"
        assert opened() == name
        assert calls == [(name, path, tmp_path)]
    assert asked == [("kind", path)]


def test_a_source_by_its_name(calls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stage, hub = tmp_path / "stage", tmp_path / "hub"
    for name in ("stage", "hub", "folder", "autoencoder", "owner"):
        Path(name).mkdir()
    monkeypatch.setattr(open_source, "holds_vae", lambda path: path.name == "autoencoder")
    monkeypatch.setattr(
        open_source, "download_pipeline", lambda *given, **options: calls.append((*given, options)) or hub
    )
    monkeypatch.setattr(open_source, "not_there", lambda model, names: UsageError(f"{model} of {len(names)}"))

    def opened(model: str, downloads: bool = True, **replaced: Any) -> Any:
        calls.clear()
        return open_source._open(model, stage, "fp16", True, downloads, Replacements(**replaced))

    assert opened("demo") == "read_source"
    assert calls == [("write_demo", "demo", stage / "demo"), ("read_source", stage / "demo", "demo")]
    assert (stage / "demo").is_dir()
    assert opened("folder") == "read_source"
    assert calls == [("read_source", Path("folder"), "folder")]
    monkeypatch.chdir("folder")
    assert opened(".") == "read_source"
    assert calls == [("read_source", Path(), "folder")]
    monkeypatch.chdir(tmp_path)
    assert opened("autoencoder") == "vae_source"
    assert calls == [("vae_source", Path("autoencoder"), stage)]
    for downloads in (False, True):
        opened("a/b", downloads)
        assert calls == [("a/b", "fp16", True, {"local": not downloads}), ("read_source", hub, "a/b")]
    for wrong in ("nowhere", "owner/nowhere", "a/b/c"):
        with pytest.raises(UsageError, match=rf"^{wrong} of [1-9]"):
            opened(wrong)
    for model in ("demo", "folder", "autoencoder", "a/b"):
        with pytest.raises(
            UsageError, match=f"--config is for single files with a UNet or a transformer, which {model} is not"
        ):
            opened(model, config=Path("folder"))
        assert calls == []
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadModelError, match="none: pipe"):
        opened("pipe")
    assert calls == []
    (tmp_path / "demo").touch()
    (stage / "demo").rmdir()
    assert opened("demo") == "read_source"


def test_parts_are_replaced_before_ip_adapters_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    for name in ("_open", "replace_parts", "add_ip_adapters"):
        monkeypatch.setattr(open_source, name, stub(calls, name))
    replaced, adapters = Replacements(ema=True), IpAdapterFiles((Path("i"),))
    with open_source.open_source(
        "m", variant="fp16", allow_pickle=True, downloads=False, replaced=replaced, ip_adapters=adapters
    ) as found:
        assert found == "add_ip_adapters"  # type: ignore[comparison-overlap]
    folder = calls[0][2]
    assert calls == [
        ("_open", "m", folder, "fp16", True, False, replaced), ("replace_parts", "_open", replaced, folder),
        ("add_ip_adapters", "replace_parts", adapters, folder, "fp16", True),
    ]  # fmt: skip
    assert not folder.exists()


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(
    ("answer", "variant", "problem", "hint"),
    [
        ({"folder": "/x"}, "fp16", None, ""),
        ({"problem": "gone"}, None, "gone", "Check the name"),
        ({"problem": "gone"}, "fp16", "gone", "Check the name"),
        ({"problem": "no variant=fp16"}, "fp16", "no variant=fp16", "Leave out --variant."),
        ({"problem": "no variant=None"}, None, "no variant=None", "Check the name"),
        (WorkerError(3, "bad"), None, "the download ended with code 3, which said: bad", "Check the name"),
    ],
    ids=str,
)
def test_a_download(
    answer: Any, variant: str | None, problem: str | None, hint: str, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def run(place: str, task: Any) -> Any:
        calls.append((place, task))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(open_source, "run_worker", run)
    if problem is None:
        assert open_source.download_pipeline("a/b", variant, True, local=local) == Path("/x")
    else:
        with pytest.raises(SdortError) as caught:
            open_source.download_pipeline("a/b", variant, True, local=local)
        assert caught.value.message == f"cannot load a/b from the hub ({problem})"
        assert str(caught.value.hint).startswith("--dry-run downloads nothing" if local else hint)
    task = {"model": "a/b", "variant": variant, "allow_pickle": True, "local": local}
    assert calls == [("sdort.exporter.open_source:download", task)]


@pytest.mark.parametrize(("allow_pickle", "local"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_download_by_diffusers(allow_pickle: bool, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    pipeline = SimpleNamespace(download=stub(calls, "download", Path("/x")))
    monkeypatch.setattr(console, "quiet_libraries", nullcontext)
    monkeypatch.setitem(sys.modules, "diffusers", SimpleNamespace(DiffusionPipeline=pipeline))
    assert open_source.download("a/b", "fp16", allow_pickle, local) == {"folder": "/x"}
    options = {"variant": "fp16", "use_safetensors": None if allow_pickle else True}
    assert calls == [("download", "a/b", {**options, **({"local_files_only": True} if local else {})})]

    def fail(*given: Any, **options: Any) -> Any:
        raise OSError("a/b is gated. Please check out the page\nand more")

    pipeline.download = fail
    assert open_source.download("a/b", None, allow_pickle, local) == {"problem": "OSError: a/b is gated."}


@pytest.mark.parametrize("scheduler", [None, "euler"])
@pytest.mark.parametrize("prediction", [None, "sample"])
@pytest.mark.parametrize("vae", [None, Path("v")])
def test_parts_that_are_replaced(
    scheduler: str | None, prediction: str | None, vae: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    for name in ("_with_scheduler", "_with_vae"):
        monkeypatch.setattr(replacements, name, stub(calls, name))
    replaced, given = Replacements(vae=vae, scheduler=scheduler, prediction_type=prediction), Source("a", Path("a"), {})
    found: Any = replace_parts(given, replaced, Path("f"))
    timed = [("_with_scheduler", given, replaced, Path("f/replaced"))] if scheduler or prediction else []
    before: Any = "_with_scheduler" if timed else given
    assert calls == [*timed, *([("_with_vae", before, Path("v"), Path("f"))] if vae else [])]
    assert found == ("_with_vae" if vae else before)


@pytest.mark.parametrize("option", ["config", "vae"])
@pytest.mark.parametrize("place", ["there", "moved", "edited", "edited, and moved as it was", "gone"])
def test_what_an_export_was_made_with_is_known_by_its_content(option: str, place: str, tmp_path: Path) -> None:
    """A folder of the same name is another one where its files are others, wherever it lies."""

    def made_with(path: Path) -> MadeWith:
        return MadeWith(Replacements(config=path) if option == "config" else Replacements(vae=path))

    part, beside = tmp_path / "part", tmp_path / "beside"
    part.mkdir()
    (part / "weights.safetensors").write_bytes(bytes(5000))
    manifest = json.loads(json.dumps({"made_with": made_with(part).record()}))
    if "moved" in place:
        shutil.copytree(part, beside / "part")
    if "edited" in place:
        (part / "weights.safetensors").write_bytes(bytes(4999) + b"1")
    elif place != "there":
        shutil.rmtree(part)
    if place in ("edited", "gone"):
        with pytest.raises(UsageError, match=f"made with --{option} .*part, which is not there, or is another one"):
            MadeWith.of_manifest(manifest, [beside])
    else:
        found = MadeWith.of_manifest(manifest, [beside])
        assert found == made_with(beside / "part" if "moved" in place else part)


@pytest.mark.parametrize("own", [None, {"latent_channels": 4, "scaling_factor": 0.25}], ids=["none", "own"])
def test_an_autoencoder_in_the_place_of_another(
    own: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scale is that of the pipeline's own config, and of the family where there is none."""
    calls: list[Any] = []
    path, other = tmp_path / "v", tmp_path / "elsewhere"
    given = Source(
        "a", tmp_path, {"unet": UNET, "vae": VAE, "x": 1}, {"tokenizer": other}, {"unet": {}}, vae={"scaling_factor": 9}
    )
    with pytest.raises(UsageError, match=f"--vae {path} does not exist"):
        replacements._with_vae(given, path, tmp_path)
    path.touch()
    with pytest.raises(UsageError, match="b has no UNet, whose VAE could be replaced"):
        replacements._with_vae(Source("b", tmp_path, {"vae": VAE, "unet": [None, None]}), path, tmp_path)
    if own:
        (tmp_path / "vae").mkdir()
        (tmp_path / "vae" / "config.json").write_text(json.dumps(own))
    weights: Any = {"w": 1}
    part = VaePart("AutoencoderTiny", other, {}, weights)
    monkeypatch.setattr(replacements, "read_vae", stub(calls, "read_vae", part))
    monkeypatch.setattr(replacements, "_check_fit", stub(calls, "_check_fit"))
    found = replacements._with_vae(given, path, tmp_path)
    usual = own or {"scaling_factor": 9}
    assert calls == [("read_vae", path, tmp_path / "other", usual), ("_check_fit", given, part, path, usual)]
    assert (tmp_path / "other").is_dir()
    assert found.index == {"unet": UNET, "vae": ["diffusers", "AutoencoderTiny"], "x": 1}
    assert (found.parts, found.tensors) == ({"tokenizer": other, "vae": other}, {"unet": {}, "vae": weights})
    assert (found.name, found.folder, found.vae) == (given.name, given.folder, given.vae)


def single(*parts: str) -> SingleFile:
    """A file of SDXL with these of its components."""
    file = SingleFile(Path("a/b.safetensors"), FAMILIES[SDXL], None, Prediction("epsilon"))
    file.tensors = {"unet": {}, **{part: {} for part in parts}}
    return file


@pytest.mark.parametrize("config", [None, Path("c")])
def test_a_single_file_as_a_source(config: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    file, path = single("vae"), tmp_path / "b.safetensors"
    monkeypatch.setattr(open_source, "read_single_file", stub(calls, "read", file))
    for name in ("say", "_check_vocabulary", "write_pipeline_files", "_tell_lacks"):
        monkeypatch.setattr(open_source, name, stub(calls, name))
    monkeypatch.setattr(open_source, "_describe", stub(calls, "text"))
    monkeypatch.setattr(open_source, "read_source", stub(calls, "read_source"))
    monkeypatch.setattr(open_source, "_with_configs", stub(calls, "_with_configs"))
    (tmp_path / "model_index.json").write_text('{"_class_name": "P"}')
    replaced = Replacements(config=config, ema=True, prediction_type="sample")
    found: Any = open_source.single_file_source(path, tmp_path, replaced)
    read = [("read", path, {"ema": True, "prediction_type": "sample"}), ("text", file, replaced), ("say", "text")]
    if config:
        assert found == "_with_configs"
        configs = [("read_source", config, "b.safetensors"), ("_with_configs", file, "read_source", replaced)]
        assert calls == [*read, *configs]
        return
    lacks = ["text_encoder", "text_encoder_2"]
    assert calls == [
        *read, ("_check_vocabulary", file),
        ("write_pipeline_files", file.family, None, file.configs, file.scheduler, tmp_path),
        ("_tell_lacks", lacks, replaced, "b.safetensors"),
    ]  # fmt: skip
    assert (found.name, found.folder, found.index) == ("b.safetensors", tmp_path, {"_class_name": "P"})
    assert (found.tensors, found.vae) == (file.tensors, FAMILIES[SDXL].vae)


@pytest.mark.parametrize("has", [(), ("vae",), ("vae", "text_encoder_2"), ("text_encoder", "text_encoder_2", "vae")])
@pytest.mark.parametrize("beside", [(), ("text_encoder",), ("text_encoder", "text_encoder_2", "vae")])
def test_what_a_file_lacks_comes_from_a_folder(
    has: tuple[str, ...], beside: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A component of the folder that its index names and that has weights; its tokenizer stays with it."""
    said: list[Any] = []
    monkeypatch.setattr(open_source, "say", said.append)
    monkeypatch.setattr(open_source, "_tell_lacks", stub(said, "lacks"))
    monkeypatch.setattr(open_source, "has_weights", lambda folder: folder.parent == tmp_path and folder.name in beside)
    encoders, parts = ("text_encoder", "text_encoder_2"), ("text_encoder", "text_encoder_2", "vae")
    index = {"unet": UNET, "x": 1} | {name: ["l", name] for name in (*parts, "tokenizer", "tokenizer_2")}
    configs, replaced = Source("n", tmp_path, dict(index)), Replacements(config=tmp_path)
    found = open_source._with_configs(single(*has), configs, replaced)
    lost = [name for name in parts if name not in has and name not in beside]
    gone = {*lost, *(name.replace("text_encoder", "tokenizer") for name in lost if name in encoders)}
    assert found.index == {name: [None, None] if name in gone else entry for name, entry in index.items()}
    assert configs.index == index
    taken = [f"{name}: from {tmp_path}" for name in parts if name not in has and name in beside]
    assert said == [*taken, ("lacks", lost, replaced, "b.safetensors")]
    assert (found.name, found.folder, found.vae) == ("n", tmp_path, FAMILIES[SDXL].vae)
    assert found.tensors == single(*has).tensors


@pytest.mark.parametrize("lost", [(), ("vae",), ("unet", "text_encoder_2")])
@pytest.mark.parametrize("entry", [None, [None, None]], ids=["gone", "null"])
def test_a_part_of_a_file_that_the_folder_does_not_name_is_told(
    lost: tuple[str, ...], entry: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ("unet", "text_encoder", "text_encoder_2", "vae")
    index = {part: entry if part in lost else ["l", part] for part in parts}
    given = {name: each for name, each in index.items() if each is not None}
    found = open_source._with_configs(single(*parts), Source("n", tmp_path, given), Replacements(config=tmp_path))
    assert found.index == given
    said = "".join(capsys.readouterr().err.split())
    words = (
        f"b.safetensors has {' and '.join(f'a {name}' for name in lost)} that {tmp_path} does not name, and that is not"
    )
    assert ("".join(words.split()) in said) == bool(lost)
    assert bool(said) == bool(lost)


@pytest.mark.parametrize("source_index", [[None, None], ["l", "T"]], ids=["null", "named"])
def test_weights_of_a_part_that_an_index_does_not_name_are_not_taken(
    source_index: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(open_source, "has_weights", lambda folder: True)
    index = {"unet": UNET, "vae": source_index, "text_encoder": ["l", "a"], "text_encoder_2": ["l", "b"]}
    file = single("text_encoder", "text_encoder_2")
    found = open_source._with_configs(file, Source("n", tmp_path, index), Replacements(config=tmp_path))
    assert found.index["vae"] == source_index
    said = capsys.readouterr().err
    assert ("vae: from" in said, "has no VAE" in said) == (source_index[1] is not None, source_index[1] is None)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_controlnet_as_a_source(
    pooled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, weights = {"_class_name": "ControlNetModel", "global_pool_conditions": pooled}, {"w": 1}
    monkeypatch.setattr(open_source, "read_control_file", lambda path: (config, weights))
    found = open_source.control_source(Path("a/c.safetensors"), tmp_path)
    assert json.loads((tmp_path / "controlnet" / "config.json").read_text()) == config
    index = {"_class_name": "ControlNetModel", "controlnet": ["diffusers", "ControlNetModel"]}
    path = Path("a/c.safetensors")
    assert found == Source(path.name, tmp_path, index, tensors={"controlnet": weights}, file=path)  # type: ignore[dict-item]
    assert ("means over the image" in capsys.readouterr().err) == pooled


@pytest.mark.parametrize("class_name", ["AutoencoderKL", "AutoencoderTiny"])
@pytest.mark.parametrize("is_file", [False, True])
def test_an_autoencoder_as_a_source(
    class_name: str, is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Any] = []
    path, weights = tmp_path / "v", {"w": 1}
    path.touch() if is_file else path.mkdir()
    part = VaePart(class_name, tmp_path / "f" / "vae", {}, weights)  # type: ignore[arg-type]
    monkeypatch.setattr(open_source, "read_vae", stub(calls, "read", part))
    found = open_source.vae_source(path, tmp_path / "s")
    assert calls == [("read", path, tmp_path / "s", FAMILIES[SD1].vae)]
    index = {"_class_name": class_name, "vae": ["diffusers", class_name]}
    assert (found.name, found.folder, found.index) == ("v", tmp_path / "f", index)
    assert (found.part("vae"), found.tensors) == (tmp_path / "f" / "vae", {"vae": weights})
    said = " ".join(capsys.readouterr().err.split())
    assert ("does not say of which family it is" in said) == (is_file and class_name == "AutoencoderKL")


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("class_name", ["AutoencoderKL", "AutoencoderTiny"])
def test_an_autoencoders_file(kind: Kind, class_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An AutoencoderKL's file does not say what scales its latents."""
    path = tmp_path / "v.safetensors"
    path.touch()
    found = SimpleNamespace(kind=kind, what="a thing", advice="Do so.")
    monkeypatch.setattr(vae_parts, "recognise_file", lambda path: found)
    config = {"_class_name": class_name, "latent_channels": 4, "scaling_factor": 1.0}
    monkeypatch.setattr(vae_parts, "read_vae_file", lambda path: (config, {"w": 1}))
    usual = {
        "scaling_factor": 0.5, "shift_factor": 0.1, "latents_mean": [1], "latents_std": [2], "force_upcast": True,
        "sample_size": 96,
    }  # fmt: skip
    if kind not in (Kind.VAE, Kind.CHECKPOINT):
        with pytest.raises(BadModelError, match="is a thing, not a VAE") as caught:
            read_vae(path, tmp_path, usual)
        assert caught.value.hint == "Do so."
        return
    part = read_vae(path, tmp_path, {**usual, "latent_channels": 16, "other": 1})
    expected = {**config, **(usual if class_name == "AutoencoderKL" else {})}
    assert part == VaePart(class_name, tmp_path / "vae", expected, {"w": 1})  # type: ignore[dict-item]
    assert json.loads((tmp_path / "vae" / "config.json").read_text()) == expected


@pytest.mark.parametrize("variant", [None, "fp16"])
@pytest.mark.parametrize("whole", [False, True])
def test_an_autoencoders_folder(
    whole: bool, variant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own or a pipeline's, with its weights in one variant; pickles are not read."""
    calls: list[Any] = []
    folder = tmp_path / "vae" if whole else tmp_path
    folder.mkdir(exist_ok=True)
    if whole:
        (tmp_path / "model_index.json").write_text("{}")
    (folder / "config.json").write_text('{"_class_name": "AutoencoderTiny", "latent_channels": 4}')
    (folder / f"diffusion_pytorch_model.{f'{variant}.' if variant else ''}safetensors").touch()
    monkeypatch.setattr(vae_parts, "read_checkpoint", stub(calls, "read", {"w": 1}))
    monkeypatch.setattr(vae_parts, "check_model_folder", stub(calls, "check"))
    part = read_vae(tmp_path, tmp_path / "none", {})
    config = {"_class_name": "AutoencoderTiny", "latent_channels": 4}
    assert part == VaePart("AutoencoderTiny", folder, config, {"w": 1})  # type: ignore[dict-item]
    assert calls == [("check", folder), ("read", folder, "vae_decoder", variant, {"allow_pickle": False})]
    (folder / "config.json").write_text("{}")
    with pytest.raises(BadModelError, match=r"holds no model of diffusers, not a VAE \(AutoencoderKL or"):
        read_vae(tmp_path, tmp_path / "none", {})


@pytest.mark.parametrize(
    "config", [None, {}, {"_class_name": None}, {"_class_name": "UNet2DConditionModel"}, 1], ids=str
)
def test_a_folder_without_an_index_is_that_of_a_control(config: Any, tmp_path: Path) -> None:
    for class_name, part in (("ControlNetModel", "controlnet"), ("T2IAdapter", "adapter")):
        (tmp_path / "config.json").write_text(json.dumps({"_class_name": class_name}))
        index = {"_class_name": class_name, part: ["diffusers", class_name]}
        assert read_source(tmp_path, "n") == Source("n", tmp_path, index, {part: tmp_path})
    (tmp_path / "config.json").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModelError):
        read_source(tmp_path, "n")


def test_a_pipeline_of_a_module_beside_it_is_one_of_its_class(tmp_path: Path) -> None:
    index: dict[str, Any] = {"_class_name": ["pipeline", "Own"], "unet": UNET}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert read_source(tmp_path, "n") == Source("n", tmp_path, {"_class_name": "Own", "unet": UNET})
    for name in ("text_encoder_2", "vae", "controlnet", "adapter", "image_encoder"):
        (tmp_path / "model_index.json").write_text(json.dumps({name: ["l", "C"]}))
        assert read_source(tmp_path, "n").index == {name: ["l", "C"]}


@pytest.mark.parametrize(
    ("config", "process"),
    [
        ({"_class_name": "PNDMScheduler", "beta_start": 0.1}, None),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler"}, None),
        ({"_class_name": "EDMEulerScheduler", "sigma_data": 0.5}, "EDM's continuous"),
    ],
    ids=["betas", "flow", "edm"],
)
def test_processors_are_checked_before_the_first_slow_step(
    config: dict[str, Any],
    process: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(source, "check_tokenizer", stub(calls, "tokenizer"))
    monkeypatch.setattr(source, "check_processor", lambda folder, hint, tables: calls.append((folder.name, tables)))
    names = ("scheduler", "tokenizer", "tokenizer_2", "feature_extractor")
    index = {name: ["l", "C"] for name in (*names, "unet")}
    elsewhere = tmp_path / "elsewhere"
    given = Source("n", tmp_path, index, {"tokenizer_2": elsewhere, "scheduler": tmp_path / "s"})
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "scheduler_config.json").write_text(json.dumps(config))
    check_processors(given)
    assert calls == [
        ("s", ()), ("tokenizer", tmp_path / "tokenizer"), ("tokenizer", TABLES), ("tokenizer", elsewhere),
        ("elsewhere", TABLES), ("feature_extractor", ()),
    ]  # fmt: skip
    said = " ".join(capsys.readouterr().err.split())
    assert ("warning: n is a model of" in said) == (process is not None)
    if process:
        assert f"model of {process}" in said
        assert f"does not draw with its scheduler, {config['_class_name']}, nor" in said
    calls.clear()
    check_processors(Source("n", tmp_path, {"tokenizer": ["l", "C"], "scheduler": [None, None], "vae": VAE}))
    assert [call[0] for call in calls] == ["tokenizer", "tokenizer"]
    source._tell_noise_process(Source("n", tmp_path, {"scheduler": ["l", "C"]}))


def test_weights_that_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(source, "read_checkpoint", stub(calls, "read"))
    weights: Any = {"w": np.ones(1)}
    given = Source("n", tmp_path, {}, {"vae": Path("v")}, {"unet": weights})
    assert given.read_tensors("unet", "unet", "fp16", True) is weights
    for name, folder in (("vae", Path("v")), ("text_encoder", tmp_path / "text_encoder")):
        calls.clear()
        assert given.read_tensors(name, "c", "fp16", True) == "read"  # type: ignore[comparison-overlap]
        assert calls == [("read", folder, "c", "fp16", True)]
