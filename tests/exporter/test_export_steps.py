"""The steps of an export with stubs around each: what is handed on, what is counted, and what is said."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.adapters.adapter_file import Adapter, Unmatched
from sdort.adapters.weight_deltas import Delta, Factor, Whole
from sdort.errors import BadModelError, UsageError
from sdort.exporter import baked_adapters, command, manifest
from sdort.exporter.baked_adapters import AppliedAdapter, apply_adapters
from sdort.exporter.command import _export_component, _read_tensors, _reads
from sdort.exporter.export_options import StaticSize
from sdort.exporter.export_request import check_options
from sdort.exporter.ip_adapters import IpAdapterFiles, _refuse_refiner, add_ip_adapters
from sdort.exporter.manifest import ExportedComponent, ExportReport, write_manifest
from sdort.exporter.new_words import AddedWord
from sdort.exporter.replacements import MadeWith, Replacements
from sdort.exporter.signatures import ComponentSpec
from sdort.exporter.source import AppliedIpAdapter, Source
from sdort.families.graph_tensor import GraphTensor
from sdort.graph.weights import Inline

INPUT, OUTPUT = GraphTensor("x", "float32", ("batch_size", 4)), GraphTensor("y", "int64", (2,))


def spec(name: str = "vae_decoder", class_name: str = "AutoencoderKL") -> ComponentSpec:
    return ComponentSpec(name, class_name, {"key": 1}, (INPUT,), (OUTPUT,))


class Cache:
    """Of templates; what it is asked for and keeps is noted."""

    def __init__(self, template: Any) -> None:
        self.template, self.asked, self.kept = template, list[Any](), list[Any]()

    def load(self, component: Any, opset: int) -> Any:
        self.asked.append((component, opset))
        return self.template

    def store(self, *entry: Any) -> None:
        self.kept.append(entry)


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_component_is_written_from_its_own_weights(
    known: bool, grown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    component, done = spec(), dict[str, Any]()
    graph = SimpleNamespace(node=[1, 2, 3])
    template = SimpleNamespace(parameters={"a": (2, 3)}, used={"a", "c"}, proto=SimpleNamespace(graph=graph))
    other = SimpleNamespace(parameters={"a": (5, 3)}, used={"a", "c"}, proto=SimpleNamespace(graph=graph))
    weights = {
        "a": Inline(np.ones((5, 3), np.float32)),
        "b": Inline(np.ones(100, np.float32)),
        "c": Inline(np.ones(4, np.float16)),
    }
    words = SimpleNamespace(parameters=lambda name, shapes: other.parameters if grown else dict(shapes))
    adaptation: Any = SimpleNamespace(tensors={"vae": "tensors", "unet": "others"}, words=words)
    cache: Any = Cache(template if known else None)

    def trace(*given: Any) -> Any:
        done["trace"] = given
        return template

    def resize(*given: Any) -> Any:
        done["resize"] = given
        return other

    def bind(tensors: Any, shapes: Any, name: str) -> Any:
        done["bind"] = tensors, shapes, name
        return weights

    def write(content: Any, path: Path, name: str, *, advance: Any, checksum: bool) -> Any:
        done["write"] = content, path, name, checksum, path.parent.is_dir()
        return SimpleNamespace(bytes=77, hashes={path: "h1", path.with_name("model.onnx.data"): "h2"})

    @contextmanager
    def progress(text: str, total: int) -> Any:
        done["progress"] = text, total
        yield None

    for name, stub in (
        ("_trace", trace),
        ("resized", resize),
        ("bind", bind),
        ("write", write),
        ("progress", progress),
    ):
        monkeypatch.setattr(command, name, stub)
    times = iter([100.0, 102.5])
    monkeypatch.setattr(command, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr(command, "detail", lambda text: done.update(detail=text))
    monkeypatch.setattr(command, "fill", lambda *given: given)
    monkeypatch.setattr(
        command, "refuse_constant", lambda leaves, name: done.update(leaves=list(map(id, leaves)), constant=name)
    )
    found = _export_component(component, adaptation, tmp_path, 21, cache)
    used = other if grown else template
    assert cache.asked == [(component, 21)]
    assert cache.kept == ([] if known else [(component, 21, template)])
    assert done.get("trace") == (None if known else (component, adaptation, 21))
    assert done.get("resize") == ((template, {"a": (5, 3)}) if grown else None)
    assert done["bind"] == ("tensors", used.parameters, "vae_decoder")
    assert done["leaves"] == [id(weight) for weight in weights.values()]
    assert done["constant"] == "vae_decoder"
    path = tmp_path / "vae_decoder" / "model.onnx"
    assert done["write"] == ((used, weights), path, "vae_decoder", True, True)
    assert done["progress"] == ("writing vae_decoder", 15 * 4 + 4 * 2)
    assert done["detail"] == f"vae_decoder: 77 B, {'known architecture' if known else 'traced'}, 2.5 s"
    assert found == ExportedComponent(
        "vae_decoder", "AutoencoderKL", 15 + 4, 3, 77, not known, 2.5, (INPUT,), (OUTPUT,),
        {"model.onnx": "h1", "model.onnx.data": "h2"},
    )  # fmt: skip


def test_folders_that_an_export_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "model", "config", "vae", "encoder"):
        Path(name).mkdir()
    Path("file").touch()
    request = check_options({"config": "config", "vae": "vae", "ip_adapter": ["a"], "image_encoder": "encoder"})
    others = [Path("config"), Path("vae"), Path("encoder")]
    assert _reads("model", request) == [*others, Path("model")]
    for model in ("demo", "file", "nowhere"):
        assert _reads(model, request) == others
        assert _reads(model, check_options({})) == []


def test_weights_are_read_once_a_folder() -> None:
    asked = []

    def read(folder: str, name: str, variant: str | None, allow_pickle: bool) -> str:
        asked.append((folder, name, variant, allow_pickle))
        return f"of {folder}"

    source: Any = SimpleNamespace(read_tensors=read)
    parts = [spec("unet"), spec("vae_encoder"), spec("vae_decoder"), spec("t2i_adapter")]
    found: Any = _read_tensors(source, parts, check_options({"variant": "fp16", "allow_pickle": True}))
    assert found == {"unet": "of unet", "vae": "of vae", "adapter": "of adapter"}
    assert asked == [
        ("unet", "unet", "fp16", True), ("vae", "vae_decoder", "fp16", True), ("adapter", "t2i_adapter", "fp16", True),
    ]  # fmt: skip
    _read_tensors(source, parts[:1], check_options({}))
    assert asked[-1] == ("unet", "unet", None, False)


@pytest.mark.parametrize("downloads", [False, True])
def test_options_reach_the_source(downloads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(command, "open_source", lambda model, **options: given.update(options, model=model))
    options: Any = {
        "variant": "fp16", "allow_pickle": True, "vae": "v", "ema": True, "ip_adapter": ["i"], "image_encoder": "e",
    }  # fmt: skip
    request = check_options(options)
    command._opened("a/b", request, downloads)
    assert given == {
        "model": "a/b", "variant": "fp16", "allow_pickle": True, "downloads": downloads,
        "replaced": request.replaced, "ip_adapters": request.ip_adapters,
    }  # fmt: skip
    command._opened("a/b", request)
    assert given["downloads"]


@pytest.mark.parametrize("checker", [True, False])
@pytest.mark.parametrize("names", [("unet",), ("vae_decoder",), ("vae_decoder", "unet")])
@pytest.mark.parametrize("option", ["--control", "--ip-adapter", None])
def test_components_that_an_option_is_for(
    names: tuple[str, ...], option: str | None, checker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, checked = list[Any](), list[Any]()

    def select(source: Any, chosen: Any, cache: Any, *, control: bool, safety_checker: bool) -> Any:
        asked.append((source, chosen, cache, control, safety_checker))
        return [spec(name) for name in names]

    monkeypatch.setattr(command, "select_components", select)
    monkeypatch.setattr(command, "check_processors", checked.append)
    monkeypatch.setattr(command, "_at_static_size", lambda *given: given)
    given: dict[str | None, Any] = {"--control": {"control": True}, "--ip-adapter": {"ip_adapter": ["a"]}, None: {}}
    source, cache = Source("a", Path("a"), {}), Cache(None)
    options: Any = {"components": names, "static": "1x64x96", "safety_checker": checker, **given[option]}
    request = check_options(options)
    if option and "unet" not in names:
        with pytest.raises(UsageError, match=f"{option} is for a UNet"):
            command._components(source, request, cache)  # type: ignore[arg-type]
        return
    found: Any = command._components(source, request, cache)  # type: ignore[arg-type]
    assert found == (source, [spec(name) for name in names], StaticSize(1, 64, 96), cache)
    assert asked == [(source, names, cache, option == "--control", checker)]
    assert checked == [source]
    dynamic: Any = command._components(source, check_options({"components": names}), cache)  # type: ignore[arg-type]
    assert dynamic == [spec(name) for name in names]
    assert asked[1:] == [(source, names, cache, False, True)]


def difference(shape: tuple[int, ...], seed: int) -> tuple[Delta, Any]:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    stored: Any = SimpleNamespace(shape=shape, load=lambda: values, dtype=values.dtype, path=Path("a"))
    return Delta(shape, Whole(Factor("x", stored))), values


def test_adapters_add_up_in_each_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own scale, and each weight with the differences of its own name and folder."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "unet": {"a": (2, 3), "b": (4,), "c": (5,)}, "text_encoder": {"a": (3, 2)}, "vae": {"a": (6,)},
    }  # fmt: skip
    values = {
        folder: {name: np.full(shape, number, np.float32) for number, (name, shape) in enumerate(named.items(), 1)}
        for folder, named in shapes.items()
    }
    tensors = {folder: {name: Inline(value) for name, value in named.items()} for folder, named in values.items()}
    places = {"one": [("unet", "a"), ("unet", "b")], "two": [("unet", "a"), ("text_encoder", "a")]}
    made = {
        name: {place: difference(shapes[place[0]][place[1]], 7 * len(name) + number)
               for number, place in enumerate(named)}
        for name, named in places.items()
    }  # fmt: skip
    asked = []

    def read(path: Path, parameters: Mapping[str, Any]) -> Adapter:
        asked.append(parameters)
        deltas: dict[str, dict[str, Delta]] = {}
        for (folder, name), (delta, _) in made[path.stem].items():
            deltas.setdefault(folder, {})[name] = delta
        return Adapter(path, ("LoRA",), deltas, (Unmatched("k", "why"),))

    monkeypatch.setattr(baked_adapters, "read_adapter", read)
    scales = {"one": 0.5, "two": -2.0}
    for name in scales:
        (tmp_path / name).write_text(f"content of {name}")
    changed, applied = apply_adapters(
        [AdapterChoice(tmp_path / name, scale) for name, scale in scales.items()], tensors
    )
    assert asked == [{folder: shapes[folder] for folder in ("unet", "text_encoder")}] * 2
    assert {folder: list(named) for folder, named in changed.items()} == {
        folder: list(named) for folder, named in shapes.items()
    }
    for folder, named in values.items():
        for name, value in named.items():
            added = [scales[who] * made[who][folder, name][1] for who in made if (folder, name) in made[who]]
            np.testing.assert_allclose(changed[folder][name].load(), sum(added, value), rtol=1e-6)
    assert changed["vae"]["a"] is tensors["vae"]["a"]
    assert applied == [
        AppliedAdapter(
            name, scales[name], ("LoRA",), counts, (Unmatched("k", "why"),), str(tmp_path / name),
            hashlib.sha256(f"content of {name}".encode()).hexdigest(),
        )
        for name, counts in (("one", {"unet": 2}), ("two", {"unet": 1, "text_encoder": 1}))
    ]  # fmt: skip
    assert apply_adapters([], tensors)[1] == []


@pytest.mark.parametrize(("scale", "told"), [(0.0, True), (-0.25, False), (1.0, False)])
def test_what_is_said_of_an_adapter(
    scale: float, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remarked: list[Adapter] = []
    monkeypatch.setattr(baked_adapters, "remark", remarked.append)
    path = tmp_path / "style.safetensors"
    path.touch()
    some: Any = {"unet": {"a": 1, "b": 2, "c": 3}, "text_encoder": {"a": 1}}
    adapter = Adapter(path, ("DoRA", "LoHa"), some, ())
    found = baked_adapters._applied(adapter, scale)
    assert remarked == [adapter]
    said = " ".join(capsys.readouterr().err.split())
    assert ("style: its scale is 0, so that it changes nothing" in said) == told
    assert f"style: DoRA and LoHa at scale {scale:g}, which changes 3 weights of unet and 1 weights of text" in said
    assert (found.name, found.scale, found.changed) == ("style", scale, {"unet": 3, "text_encoder": 1})


def test_the_manifest_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times and traces are of this run alone; hashes are those of the list."""
    written: dict[str, Any] = {}
    monkeypatch.setattr(manifest, "write_listed_files", lambda folder, content, hashes: written.update(
        folder=folder, content=json.loads(json.dumps(content)), hashes=hashes))  # fmt: skip
    monkeypatch.setattr(manifest, "origin_mark", lambda folder: {"of": str(folder)})
    adapter, word = tmp_path / "a", tmp_path / "w"
    adapter.write_bytes(b"12345")
    word.write_bytes(b"123")
    part = ExportedComponent(
        "unet", "UNet2DConditionModel", 11, 12, 13, True, 1.5, (INPUT,), (OUTPUT,), {"model.onnx": "h1", "b": "h2"}
    )
    report = ExportReport(
        tmp_path / "out", "a/b", "StableDiffusionPipeline", 21, "1x64x96", [part],
        [AppliedAdapter("a", 0.5, ("LoRA",), {"unet": 3}, (Unmatched("k", "why"),), str(adapter), "s1")],
        [AddedWord("w", 4, str(word), "s2")], [AppliedIpAdapter("i", "plus", 16, "nowhere", "s3")], 2.5,
    )  # fmt: skip
    write_manifest(tmp_path, report, Path("original"), tmp_path / "x", MadeWith(Replacements(ema=True), "fp16"))
    content = written["content"]
    assert set(content.pop("versions")) == {"sdort", "torch", "diffusers", "transformers", "onnx"}
    tensors = [
        {"name": "x", "dtype": "float32", "dims": ["batch_size", 4]}, {"name": "y", "dtype": "int64", "dims": [2]},
    ]  # fmt: skip
    assert content == {
        "source": "a/b", "path": "x", "made_with": {"ema": True, "variant": "fp16"},
        "origin": {"of": "original"}, "pipeline": "StableDiffusionPipeline", "opset": 21,
        "static": "1x64x96",
        "components": {"unet": {
            "class_name": "UNet2DConditionModel", "parameters": 11, "nodes": 12, "bytes": 13,
            "inputs": tensors[:1], "outputs": tensors[1:],
        }},
        "adapters": [{"name": "a", "scale": 0.5, "kinds": ["LoRA"], "changed": {"unet": 3}, "path": str(adapter),
                      "sha256": "s1", "bytes": 5}],
        "words": [{"word": "w", "vectors": 4, "path": str(word), "sha256": "s2", "bytes": 3}],
        "ip_adapters": [{"name": "i", "kind": "plus", "tokens": 16, "path": "nowhere", "sha256": "s3"}],
    }  # fmt: skip
    assert written["folder"] == tmp_path
    assert written["hashes"] == {tmp_path / "unet" / "model.onnx": "h1", tmp_path / "unet" / "b": "h2"}


def test_an_ip_adapter_is_for_a_source_with_a_unet(tmp_path: Path) -> None:
    source = Source("a", tmp_path, {"vae": ["diffusers", "AutoencoderKL"]})
    assert add_ip_adapters(source, IpAdapterFiles(), tmp_path, None, False) is source
    with pytest.raises(UsageError, match="--image-encoder means nothing without --ip-adapter"):
        add_ip_adapters(source, IpAdapterFiles((), tmp_path), tmp_path, None, False)
    with pytest.raises(UsageError, match="--ip-adapter is for a UNet, which a does not have"):
        add_ip_adapters(source, IpAdapterFiles((tmp_path,)), tmp_path, None, False)
    for width, refused in ((768, False), (1024, False), (1280, True), (2048, False)):
        unet = {"other.weight": Inline(np.ones((2, 1280))), "x.attn2.to_k.weight": Inline(np.ones((3, width)))}
        if refused:
            with pytest.raises(BadModelError, match="a is SDXL's refiner"):
                _refuse_refiner(source, unet)
        else:
            _refuse_refiner(source, unet)
    _refuse_refiner(source, {"attn1.to_k.weight": Inline(np.ones((2, 1280)))})


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("static", [None, "1x64x96"])
def test_the_order_of_an_export(
    signed: bool, static: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUT is checked first, space before the first slow step; the list of files comes last but for the signature."""
    calls: Any = list[Any]()
    parts, stage = [spec("unet", "U"), spec("vae_decoder", "V")], tmp_path / "stage"
    for part in parts:
        (stage / part.name).mkdir(parents=True)
    applied = AppliedIpAdapter("i", "plus", 16, "p", "s")
    source = Source("n", tmp_path / "model", {"_class_name": "P"}, ip_adapters=(applied,))
    words = SimpleNamespace(
        words=("w",),
        component=lambda part: replace(part, class_name=f"{part.class_name} with words"),
        config=lambda name, config: {"of": name, **config},
        write=lambda folder: calls.append(("words", folder)),
    )
    adaptation = SimpleNamespace(tensors="tensors", adapters=["adapter"], words=words)

    @contextmanager
    def staged(out: Path, overwrite: bool, reads: Any, *, why_foreign: Any) -> Any:
        calls.append(("stage", out, overwrite, reads))
        yield stage
        calls.append("moved")

    @contextmanager
    def opened(model: str, request: Any, downloads: bool) -> Any:
        assert downloads
        calls.append(("open", model))
        yield source

    def plan(*given: Any) -> Any:
        calls.append(("plan", *given[:4]))
        return SimpleNamespace(raise_if_short=lambda: calls.append("room"))

    def export_component(part: Any, adapted: Any, folder: Path, opset: int, cache: Any) -> Any:
        assert (adapted, folder, opset, cache.folder) == (adaptation, stage, 21, tmp_path / "traces")
        calls.append(("component", part.class_name))
        return f"written {part.name}"

    times = iter([10.0, 14.5])
    for name, stub in {
        "time": SimpleNamespace(perf_counter=lambda: next(times)), "staged_directory": staged, "_opened": opened,
        "_components": lambda *given: parts, "_adapted": lambda *given: adaptation, "plan_space": plan,
        "_tell_growth": lambda *given: calls.append(("growth", *given)),
        "_export_component": export_component, "_reads": lambda *given: [Path("read")],
        "component_config": lambda given, name, cache: {"config": name},
        "copy_processors": lambda *given: calls.append(("processors", *given)),
        "write_index": lambda *given: calls.append(("index", *given)),
        "write_manifest": lambda folder, made, given, *_: calls.append(
            ("manifest", folder, list(made.components), given)
        ),
    }.items():  # fmt: skip
        monkeypatch.setattr(command, name, stub)
    signer: Any = SimpleNamespace(sign=lambda *given: calls.append(("sign", *given))) if signed else None
    options: Any = {"opset": 21, "cache_dir": tmp_path / "traces", "static": static}
    report = command._export("m", tmp_path / "out", check_options(options), True, signer)
    chosen = [words.component(part) for part in parts]
    components = ["written unet", "written vae_decoder"]
    assert calls == [
        ("stage", tmp_path / "out", True, [Path("read")]), ("open", "m"),
        ("plan", chosen, "tensors", tmp_path / "out", 21), "room", ("growth", "n", chosen, adaptation),
        ("component", "U with words"), ("component", "V with words"), ("processors", source, stage), ("words", stage),
        ("index", stage, source, chosen),
        ("manifest", stage, components, tmp_path / "model"), *([("sign", stage, "out")] if signed else []), "moved",
    ]  # fmt: skip
    for part in parts:
        written = json.loads((stage / part.name / "config.json").read_text())
        assert written == {"of": part.name, "config": part.name}
    assert report == ExportReport(
        tmp_path / "out", "n", "P", 21, static, components, ["adapter"], ["w"], [applied], 4.5  # type: ignore[list-item,arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unet", "vae", "words"),
    [
        ((1000, np.float16), (1000, np.float32), "n has 2.0 kB of weights, and the export has them in fp32: 4.0 kB"),
        ((1000, np.float32), (1000, np.float16), None),
        ((1000, np.float32), (1, np.float16), None),
    ],
    ids=["16 bits", "16 bits of what is not exported", "32 bits"],
)
def test_how_large_weights_in_16_bits_become(
    unet: tuple[int, Any], vae: tuple[int, Any], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {folder: {"w": Inline(np.ones(*each))} for folder, each in (("unet", unet), ("vae", vae))}
    command._tell_growth("n", [spec("unet")], SimpleNamespace(tensors=tensors))  # type: ignore[arg-type]
    said = " ".join(capsys.readouterr().err.split())
    assert said == (f"{words}. sdort run takes the checkpoint itself, without such a copy" if words else "")
    command._tell_growth("n", [spec("vae_decoder")], SimpleNamespace(tensors={"vae": tensors["unet"]}))  # type: ignore[arg-type]
    assert " ".join(capsys.readouterr().err.split()) == (words or "")  # a part alone is not drawn with


def test_a_plan_downloads_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Any = list[Any]()
    words = SimpleNamespace(component=lambda part: f"{part} with words")

    @contextmanager
    def opened(model: str, request: Any, downloads: bool) -> Any:
        calls.append(("open", model, downloads))
        yield "source"

    def plan(chosen: Any, tensors: Any, out: Path, opset: int, cache: Any) -> Any:
        calls.append(("plan", chosen, tensors, out, opset, cache._traces.keeps))
        return "the plan"

    monkeypatch.setattr(command, "_opened", opened)
    monkeypatch.setattr(command, "plan_space", plan)
    monkeypatch.setattr(command, "_components", lambda *given: ["a", "b"])
    monkeypatch.setattr(command, "_adapted", lambda *given: SimpleNamespace(words=words, tensors="tensors"))
    monkeypatch.setattr(command, "check_output", lambda *given, why_foreign: calls.append(("output", *given)))
    monkeypatch.setattr(command, "_reads", lambda *given: [Path("read")])
    for overwrite in (False, True):
        found: Any = command.plan_export("m", tmp_path / "out", overwrite=overwrite, opset=21, cache_dir=tmp_path)
        assert found == "the plan"
        assert calls == [
            ("output", tmp_path / "out", overwrite, [Path("read")]), ("open", "m", False),
            ("plan", ["a with words", "b with words"], "tensors", tmp_path / "out", 21, False),
        ]  # fmt: skip
        calls.clear()


def test_an_export_hands_on_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Any = list[Any]()
    monkeypatch.setattr(command, "_export", lambda *given: calls.append(given) or "report")
    monkeypatch.setattr(command, "make_signer", lambda *given: ("signer", *given))
    for overwrite in (False, True):
        found: Any = command.export(
            Path("m"), "out", overwrite=overwrite, sign="k", certificate="c", opset=21, control=True
        )
        assert found == "report"
        request = check_options({"opset": 21, "control": True})
        assert calls.pop() == ("m", Path("out"), request, overwrite, ("signer", "k", "c"))
