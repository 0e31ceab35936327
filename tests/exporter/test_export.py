"""``sdort export`` on tiny pipelines of every family: right numbers, names, files, and what the trace cache does."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import xxhash
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator
from support.pipelines import Exported, export_family, locked, run_onnx, trace_folder

from sdort.checkpoints.config_schemas import REQUIRED
from sdort.errors import OutputError, SdortError, UsageError
from sdort.exporter import command as export_pipeline
from sdort.exporter.command import export
from sdort.exporter.export_options import StaticSize
from sdort.exporter.manifest import ExportReport
from sdort.exporter.signatures import ComponentSpec, at_size
from sdort.exporter.source import read_source, select_components
from sdort.exporter.trace import concrete_casts
from sdort.exporter.trace_cache import TraceCache, trace_key
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import write
from sdort.pipelines.manifest import write_listed_files

# ONNX Runtime and torch sum in another order; float32 keeps 24 bits, and these graphs are a few dozen layers deep.
TOLERANCE = 1e-4


@pytest.fixture(scope="session")
def traces(request: pytest.FixtureRequest) -> Path:
    return trace_folder(request.config)


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory, traces: Path) -> Callable[[str], Exported]:
    made: dict[str, Exported] = {}

    def get(family: str) -> Exported:
        if family not in made:
            made[family] = export_family(family, tmp_path_factory.mktemp(family), traces)
        return made[family]

    return get


def assert_close(actual: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert np.isfinite(actual).all()
    assert np.abs(actual - expected).max() / expected.std() < TOLERANCE


# (latent height, latent width, batch, tokens): a square, a non-square, and some that no power of two divides
ODD = (17, 9, 3, 1)
SIZES = {
    "sd1": [(64, 64, 1, 77), (40, 56, 1, 77), (65, 49, 2, 5), ODD],
    "sd2_inpainting": [(24, 40, 2, 77), ODD],
    "sdxl": [(24, 40, 2, 77), ODD],
}


@pytest.mark.parametrize("family", list(SIZES))
def test_unet_agrees_with_torch_at_every_size(exports: Callable[[str], Exported], family: str) -> None:
    import torch

    exported = exports(family)
    unet = exported.load("unet")
    session = _session(exported.out / "unet" / "model.onnx")
    generator = torch.Generator().manual_seed(3)
    for height, width, batch, tokens in SIZES[family]:
        added = {}
        if family == "sdxl":
            added = {
                "text_embeds": torch.randn(batch, 24, generator=generator),
                "time_ids": torch.rand(batch, 6) * 1024,
            }
        inputs = {
            "sample": torch.randn(batch, unet.config.in_channels, height, width, generator=generator),
            # Between two steps, as Euler's schedulers feed it.
            "timestep": torch.tensor(501.25),
            "encoder_hidden_states": torch.randn(batch, tokens, unet.config.cross_attention_dim, generator=generator),
        }
        with torch.no_grad():
            expected = unet(**inputs, added_cond_kwargs=added or None).sample
        feeds = {key: value.numpy() for key, value in (inputs | added).items()}
        assert_close(session.run(["out_sample"], feeds)[0], expected)


def test_vae_agrees_with_torch_at_every_size(exports: Callable[[str], Exported]) -> None:
    import torch

    exported = exports("sd1")
    vae = exported.load("vae_decoder")
    generator = torch.Generator().manual_seed(4)
    for batch, height, width in ((1, 16, 16), (2, 9, 13)):
        latent = torch.randn(batch, 4, height, width, generator=generator)
        # 75 is no multiple of the VAE's factor either.
        image = torch.randn(batch, 3, 8 * height, 75, generator=generator)
        with torch.no_grad():
            decoded, encoded = vae.decode(latent).sample, vae.encode(image).latent_dist.parameters
        assert_close(exported.run("vae_decoder", latent_sample=latent)["sample"], decoded)
        assert_close(exported.run("vae_encoder", sample=image)["latent_parameters"], encoded)


def test_an_autoencoder_of_many_pixels_a_latent_agrees_with_torch(exports: Callable[[str], Exported]) -> None:
    """With 32 of them what is traced has to be a larger image: of the usual one a side's latent would be 1."""
    import torch

    exported = exports("sdxl")
    vae = exported.load("vae_encoder")
    for height, width in ((288, 155), (64, 64)):
        image = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(4))
        with torch.no_grad():
            expected = vae.encode(image).latent_dist.parameters
        assert_close(exported.run("vae_encoder", sample=image)["latent_parameters"], expected)


@pytest.mark.parametrize("family", ["sd1", "sd2_inpainting"])
@pytest.mark.parametrize("shape", [(1, 77), (3, 8), (2, 1)])
def test_text_encoder_agrees_with_torch(
    exports: Callable[[str], Exported], family: str, shape: tuple[int, int]
) -> None:
    import torch

    exported = exports(family)
    encoder = exported.load("text_encoder")
    ids = _tokens(shape, encoder.config.eos_token_id)
    with torch.no_grad():
        expected = encoder(ids, output_hidden_states=True)
        norm = getattr(encoder, "text_model", encoder).final_layer_norm
        penultimate = norm(expected.hidden_states[-2])
    outputs = exported.run("text_encoder", input_ids=ids)
    assert list(outputs)[:3] == ["last_hidden_state", "pooler_output", "clip_skip.2"]
    assert_close(outputs["clip_skip.2"], penultimate)
    assert_close(outputs["last_hidden_state"], expected.last_hidden_state)
    assert_close(outputs["pooler_output"], expected.pooler_output)


@pytest.mark.parametrize("component", ["text_encoder", "text_encoder_2"])
def test_sdxl_text_encoders_return_hidden_states(exports: Callable[[str], Exported], component: str) -> None:
    import torch

    exported = exports("sdxl")
    encoder = exported.load(component)
    ids = _tokens((2, 7), encoder.config.eos_token_id)
    with torch.no_grad():
        expected = encoder(ids, output_hidden_states=True)
    outputs = exported.run(component, input_ids=ids)
    # optimum's pipelines take the pooled output of the second one by its position.
    assert next(iter(outputs)) == ("text_embeds" if component == "text_encoder_2" else "last_hidden_state")
    for index, state in enumerate(expected.hidden_states):
        assert_close(outputs[f"hidden_states.{index}"], state)
    for name in outputs.keys() - {f"hidden_states.{index}" for index in range(3)}:
        assert_close(outputs[name], expected[name])


@pytest.mark.parametrize(
    ("family", "component"),
    [("sd1", name) for name in ("text_encoder", "unet", "vae_encoder", "vae_decoder")]
    + [("sdxl", name) for name in ("text_encoder", "text_encoder_2", "unet")],
)
def test_every_parameter_keeps_its_name(exports: Callable[[str], Exported], family: str, component: str) -> None:
    exported = exports(family)
    template = TraceCache(exported.traces).load(_component(exported, component), 23)
    assert template
    expected = {name: tuple(value.shape) for name, value in exported.load(component).named_parameters()}
    assert template.parameters == expected
    half = {"vae_encoder": ("encoder.", "quant_conv."), "vae_decoder": ("decoder.", "post_quant_conv.")}
    assert template.used == {name for name in expected if name.startswith(half.get(component, ""))}


def test_parameters_of_equal_value_stay_apart(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    """In the demo all norms are equal, and exporters merge such initializers; the next checkpoint's are not."""
    import torch
    from support.models import randomize

    exported = exports("sd1")
    encoder = exported.load("text_encoder")
    norms = [value for name, value in encoder.named_parameters() if "layer_norm" in name and name.endswith("weight")]
    assert len(norms) > 5
    assert all(torch.equal(norm, norms[0]) for norm in norms)
    checkpoint = _copy(exported, tmp_path)
    randomize(encoder)
    encoder.save_pretrained(checkpoint / "text_encoder")
    report = _only("text_encoder", exported)(str(checkpoint), tmp_path / "out")
    assert not report.components[0].traced
    ids = _tokens((2, 9), encoder.config.eos_token_id)
    with torch.no_grad():
        expected = encoder(ids).last_hidden_state
    assert_close(run_onnx(tmp_path / "out/text_encoder/model.onnx", input_ids=ids)["last_hidden_state"], expected)


def test_files_are_those_that_optimum_reads(exports: Callable[[str], Exported]) -> None:
    out = exports("sd1").out
    files = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    components = ("text_encoder", "unet", "vae_encoder", "vae_decoder")
    expected = {f"{name}/{file}" for name in components for file in ("config.json", "model.onnx", "model.onnx.data")}
    assert expected <= files
    assert {"model_index.json", "sdort.json", "scheduler/scheduler_config.json", "tokenizer/vocab.json"} <= files
    index = json.loads((out / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline"
    assert index["unet"] == ["diffusers", "UNet2DConditionModel"]
    assert json.loads((out / "vae_decoder/config.json").read_text())["scaling_factor"] == 0.18215


def test_where_the_checkpoint_once_lay_is_not_told(exports: Callable[[str], Exported]) -> None:
    exported = exports("sdxl")
    assert "somebody" in (exported.checkpoint / "model_index.json").read_text()
    assert not [file for file in exported.out.rglob("*.json") if "somebody" in file.read_text()]


def test_names_and_dims_are_optimums(exports: Callable[[str], Exported]) -> None:
    out = exports("sd1").out
    sample = ["batch_size", 4, "height", "width"]
    text = ["batch_size", "sequence_length"]
    assert _signature(out / "unet") == (
        {"sample": sample, "timestep": [], "encoder_hidden_states": [*text, 64]},
        {"out_sample": sample},
    )
    assert _signature(out / "vae_decoder") == (
        {"latent_sample": ["batch_size", 4, "latent_height", "latent_width"]},
        {"sample": ["batch_size", 3, "latent_height * 8", "latent_width * 8"]},
    )
    assert _signature(out / "vae_encoder") == (
        {"sample": ["batch_size", 3, "sample_height", "sample_width"]},
        {"latent_parameters": ["batch_size", 8, "sample_height / 8", "sample_width / 8"]},
    )
    assert _signature(out / "text_encoder") == (
        {"input_ids": text},
        {
            "last_hidden_state": [*text, 64],
            "pooler_output": ["batch_size", 64],
            "clip_skip.2": [*text, 64],
            "clip_skip.3": [*text, 64],
        },
    )


def test_manifest_tells_hashes_shapes_and_versions(exports: Callable[[str], Exported]) -> None:
    exported = exports("sd1")
    manifest = json.loads((exported.out / "sdort.json").read_text())
    assert (manifest["opset"], manifest["static"]) == (23, None)
    assert set(manifest["versions"]) == {"sdort", "torch", "diffusers", "transformers", "onnx"}
    files = [path for path in exported.out.rglob("*") if path.is_file() and path.name != "sdort.json"]
    assert manifest["files"] == {
        path.relative_to(exported.out).as_posix(): {
            "bytes": path.stat().st_size,
            "xxh128": xxhash.xxh3_128_hexdigest(path.read_bytes()),
        }
        for path in files
    }
    assert {"unet/model.onnx.data", "tokenizer/vocab.json", "model_index.json"} <= manifest["files"].keys()
    unet = manifest["components"]["unet"]
    assert unet["inputs"][0] == {"name": "sample", "dtype": "float32", "dims": ["batch_size", 4, "height", "width"]}
    assert unet["parameters"] == sum(parameter.numel() for parameter in exported.load("unet").parameters())


def test_nothing_of_this_machine_is_in_the_output(exports: Callable[[str], Exported]) -> None:
    exported = exports("sd1")
    for file in exported.out.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"site-packages" not in content, file
            assert str(exported.checkpoint).encode() not in content, file


def test_a_known_architecture_needs_neither_torch_nor_diffusers(
    exports: Callable[[str], Exported], tmp_path: Path
) -> None:
    exported = exports("sd1")
    heavy = "('torch', 'diffusers', 'transformers', 'onnxruntime', 'onnxscript')"
    code = (
        "import sys; from pathlib import Path; from sdort.exporter.command import export\n"
        f"report = export({str(exported.checkpoint)!r}, Path({str(tmp_path / 'out')!r}), "
        f"cache_dir={str(exported.traces)!r})\n"
        "assert not any(each.traced for each in report.components)\n"
        f"assert not [name for name in {heavy} if name in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    names = ("text_encoder", "unet", "vae_encoder", "vae_decoder")
    for file in [f"{name}/{part}" for name in names for part in ("model.onnx", "model.onnx.data")]:
        assert (tmp_path / "out" / file).read_bytes() == (exported.out / file).read_bytes(), file


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "edited": lambda content: content.replace(b"Attention", b"Attentiom"),
    "empty": lambda content: b"",
    "no hash": lambda content: b"[]\n" + content,
    "last byte": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "no proto": lambda content: _hashed(content, b"\n".join(content.split(b"\n", 3)[2:3]) + b"\n\x0a\xff\xff"),
    "other header": lambda content: _hashed(content, b"[]\n" + content.split(b"\n", 3)[3]),
}
"""The last two have a right hash: somebody made them up."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_entry_is_noticed(
    exports: Callable[[str], Exported], tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = exports("sd1")
    component, cache = _component(exported, "text_encoder"), TraceCache(tmp_path)
    whole = TraceCache(exported.traces).load(component, 23)
    assert whole
    cache.store(component, 23, whole)
    stored = cache.load(component, 23)
    assert stored
    assert stored == whole
    (entry,) = tmp_path.glob("*.trace")
    content = entry.read_bytes()
    entry.write_bytes(DAMAGES[damage](content))
    assert entry.read_bytes() != content
    assert cache.load(component, 23) is None
    assert "is damaged" in capsys.readouterr().err


def test_a_damaged_cache_entry_is_traced_again(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    exported = exports("sd1")
    component, cache = _component(exported, "text_encoder"), TraceCache(tmp_path / "traces")
    whole = TraceCache(exported.traces).load(component, 23)
    assert whole
    cache.store(component, 23, whole)
    again = partial(export, components=["text_encoder"], cache_dir=cache.folder)
    reports = [again(str(exported.checkpoint), tmp_path / "first")]
    (entry,) = cache.folder.glob("*.trace")
    content = entry.read_bytes()
    entry.write_bytes(content[:-1])
    reports.append(again(str(exported.checkpoint), tmp_path / "second"))
    assert [report.components[0].traced for report in reports] == [False, True]
    assert entry.read_bytes() == content
    models = [(tmp_path / each / "text_encoder/model.onnx").read_bytes() for each in ("first", "second")]
    assert models[0] == models[1]


def test_an_unwritable_cache_costs_a_warning(
    exports: Callable[[str], Exported],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported = exports("sd1")
    template = TraceCache(exported.traces).load(_component(exported, "text_encoder"), 23)
    monkeypatch.setattr(export_pipeline, "_trace", lambda *_: template)  # to spare time
    (tmp_path / "file").write_text("")
    traces = tmp_path / "file" / "traces"
    report = export(exported.checkpoint, tmp_path / "out", components=["text_encoder"], cache_dir=traces)
    assert report.components[0].traced
    assert "cannot keep" in capsys.readouterr().err


def test_what_does_not_shape_the_graph_does_not_cost_a_trace(
    exports: Callable[[str], Exported], tmp_path: Path
) -> None:
    """Configs of one architecture differ from checkpoint to checkpoint."""
    exported = exports("sd1")
    checkpoint = _copy(exported, tmp_path)
    _edit(
        checkpoint / "unet/config.json",
        lambda c: {
            "sample_size": 96,
            "_diffusers_version": "0.6.0",
            "_name_or_path": "/home/somebody/model",
            # What version 0.6 saved: no key that a later version added, at its default.
            **{key: c[key] for key in REQUIRED["UNet2DConditionModel"]},
            "attention_head_dim": 4,
        },
    )
    report = _only("unet", exported)(str(checkpoint), tmp_path / "out")
    assert not report.components[0].traced
    assert "_name_or_path" not in json.loads((tmp_path / "out/unet/config.json").read_text())


@pytest.mark.parametrize(
    "change",
    [{"eos_token_id": 530}, {"hidden_act": "gelu"}, {"layer_norm_eps": 1e-6}],
    ids=lambda change: next(iter(change)),
)
def test_what_shapes_the_graph_is_in_the_key(
    exports: Callable[[str], Exported], tmp_path: Path, change: dict[str, Any]
) -> None:
    exported = exports("sd1")
    checkpoint = _copy(exported, tmp_path)
    before = _component(exported, "text_encoder")
    _edit(checkpoint / "text_encoder/config.json", lambda config: config | change)
    after = _component(Exported("sd1", checkpoint, tmp_path, exported.traces), "text_encoder")
    keys = [trace_key(*given, {}) for given in ((before, 23), (after, 23), (before, 22), (_fixed(before), 23))]
    assert len({json.dumps(key) for key in keys}) == 4


@pytest.mark.parametrize("opset", [18, 22, 25])
def test_other_opsets(exports: Callable[[str], Exported], tmp_path: Path, opset: int) -> None:
    import torch

    exported = exports("sd1")
    encoder = exported.load("text_encoder")
    with locked(exported.traces):
        _only("text_encoder", exported)(exported.checkpoint, tmp_path / "out", opset=opset)
    model = load_model(tmp_path / "out/text_encoder/model.onnx")
    assert model.graph.opset == opset
    operators = {node.op for node in model.graph.nodes}
    assert ("Attention" in operators) == (opset >= 23)
    assert "CastLike" not in operators
    ids = _tokens((2, 9), encoder.config.eos_token_id)
    with torch.no_grad():
        expected = encoder(ids).last_hidden_state
    assert_close(run_onnx(tmp_path / "out/text_encoder/model.onnx", input_ids=ids)["last_hidden_state"], expected)


def test_concrete_casts_keep_values_and_outputs() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[N] x, int64[N] i) => (float[N] same, float[N] other, float[N] y, int64[N] z)
        <float[1] one = {1.5}> {
            a = CastLike (one, x)
            b = CastLike (i, a)
            z = CastLike (x, i)
            same = CastLike (x, a)
            other = CastLike (i, x)
            y = Add (a, b)
        }"""
    )
    before = onnx.ModelProto()
    before.CopyFrom(proto)
    concrete_casts(proto)
    assert [node.op_type for node in proto.graph.node] == ["Cast", "Cast", "CastLike", "Cast", "Add"]
    onnx.checker.check_model(proto)
    feeds = {"x": np.array([0.25, 3], np.float32), "i": np.array([7, -2], np.int64)}
    expected = ReferenceEvaluator(before).run(None, feeds)
    for value, reference in zip(ReferenceEvaluator(proto).run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(value, reference)


def test_static_sizes(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    """Parity of autoencoders and UNets of a static size: tests/optimizer/test_true_depth.py."""
    import torch

    exported = exports("sd1")
    with locked(exported.traces):
        report = export(
            exported.checkpoint, tmp_path / "out", components=["text_encoder"], static="3x64x40",
            cache_dir=exported.traces,
        )  # fmt: skip
    assert report.static == "3x64x40"
    path = tmp_path / "out/text_encoder"
    assert _signature(path)[0] == {"input_ids": [3, 77]}
    encoder = exported.load("text_encoder")
    ids = _tokens((3, 77), encoder.config.eos_token_id)
    with torch.no_grad():
        expected = encoder(ids).last_hidden_state
    assert_close(run_onnx(path / "model.onnx", input_ids=ids)["last_hidden_state"], expected)


def test_static_sizes_of_autoencoders(exports: Callable[[str], Exported]) -> None:
    components = _static(exports("sd1"), ["vae_decoder", "vae_encoder"], StaticSize(3, 64, 40))
    assert {each.name: [spec.dims for spec in (*each.inputs, *each.outputs)] for each in components} == {
        "vae_decoder": [(3, 4, 8, 5), (3, 3, 64, 40)],
        "vae_encoder": [(3, 3, 64, 40), (3, 8, 8, 5)],
    }


def _static(exported: Exported, names: list[str], size: StaticSize) -> list[ComponentSpec]:
    cache = TraceCache(exported.traces)
    source = read_source(exported.checkpoint, "sd1")
    return export_pipeline._at_static_size(source, select_components(source, names, cache), size, cache)


def test_static_unet_takes_two_latents_an_image(exports: Callable[[str], Exported]) -> None:
    """With and without the prompt, as classifier-free guidance runs it."""
    (unet,) = _static(exports("sd1"), ["unet"], StaticSize(1, 512, 768))
    assert [spec.dims for spec in unet.inputs] == [(2, 4, 64, 96), (), (2, 77, 64)]
    assert [spec.dims for spec in unet.outputs] == [(2, 4, 64, 96)]


def test_a_static_size_must_fit_the_vae(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    exported = exports("sd1")
    with pytest.raises(UsageError, match="multiples of 8"):
        export(str(exported.checkpoint), tmp_path / "out", static=StaticSize(1, 64, 60), cache_dir=exported.traces)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "told"), [(KeyboardInterrupt, KeyboardInterrupt), (OSError, OutputError), (SdortError, SdortError)]
)
def test_a_failed_export_leaves_nothing(
    exports: Callable[[str], Exported],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    told: type[BaseException],
) -> None:
    exported = exports("sd1")
    out = tmp_path / "parent" / "out"
    real = write

    def failing(content: Any, path: Path, component: str, **options: Any) -> Any:
        if component == "vae_decoder":
            path.write_bytes(b"half")
            raise error("disk on fire")
        return real(content, path, component, **options)

    monkeypatch.setattr(export_pipeline, "write", failing)
    with pytest.raises(told):
        export(str(exported.checkpoint), out, cache_dir=exported.traces)
    assert not (tmp_path / "parent").exists()
    out.mkdir(parents=True)
    write_listed_files(out, {"source": "before"}, {})
    before = (out / "sdort.json").read_text()
    with pytest.raises(told):
        export(str(exported.checkpoint), out, cache_dir=exported.traces, overwrite=True)
    assert [file.name for file in out.parent.iterdir()] == ["out"]
    assert (out / "sdort.json").read_text() == before


def test_out_exists(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    exported = exports("sd1")
    export_encoder = _only("text_encoder", exported)
    export_encoder(exported.checkpoint, tmp_path / "out")
    with pytest.raises(OutputError, match="exists"):
        export_encoder(exported.checkpoint, tmp_path / "out")
    export_encoder(exported.checkpoint, tmp_path / "out", overwrite=True)


def test_a_folder_called_demo_is_the_output_and_not_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    export_encoder = partial(export, components=["text_encoder"], cache_dir=tmp_path / "traces")
    export_encoder("demo", "demo")
    with pytest.raises(OutputError, match="demo exists") as caught:
        export_encoder("demo", "demo")
    assert "--overwrite" in str(caught.value)
    export_encoder("demo", "demo", overwrite=True)


def test_out_may_not_be_the_checkpoint(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    exported = exports("sd1")
    checkpoint = _copy(exported, tmp_path)
    with pytest.raises(OutputError, match="is the input"):
        _only("text_encoder", exported)(str(checkpoint), checkpoint, overwrite=True)
    assert (checkpoint / "unet/config.json").is_file()


def test_command_exports_chosen_components(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    from sdort.cli import cli

    exported = exports("sd1")
    arguments = [
        "export",
        str(exported.checkpoint),
        str(tmp_path / "out"),
        "--cache-dir",
        str(exported.traces),
        "--json",
    ]
    result = CliRunner().invoke(cli, [*arguments, "--component", "text_encoder", "--component", "vae_encoder"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [each["name"] for each in report["components"]] == ["text_encoder", "vae_encoder"]
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {
        "text_encoder",
        "vae_encoder",
        "scheduler",
        "tokenizer",
    }
    index = json.loads((tmp_path / "out/model_index.json").read_text())
    assert index["unet"] == [None, None]
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 7
    quiet = CliRunner().invoke(cli, [*arguments[:-1], "--component", "text_encoder", "--overwrite", "-q"])
    assert (quiet.exit_code, quiet.output) == (0, "")
    assert json.loads(again.stdout)["type"] == "OutputError"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--opset", "17"], "from 18 to 25"),
        (["--static", "512x512"], "expected BxHxW"),
        (["--static", "1x512x0"], "0 is not a whole number from 1"),
        (["--component", "transformer"], "transformer"),
        (["--component", "text_encoder_2"], "it has text_encoder, unet"),
    ],
)
def test_command_refuses_bad_options(
    exports: Callable[[str], Exported], tmp_path: Path, options: list[str], message: str
) -> None:
    from sdort.cli import cli

    exported = exports("sd1")
    fixed = ["export", str(exported.checkpoint), str(tmp_path / "out"), "--cache-dir", str(exported.traces)]
    result = CliRunner().invoke(cli, [*fixed, *options])
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


def _session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _tokens(shape: tuple[int, int], end: int) -> Any:
    import torch

    ids = torch.randint(0, end - 1, shape, generator=torch.Generator().manual_seed(5))
    ids[:, -1] = end
    ids[0, shape[1] // 2] = end  # prompts end at different places
    return ids


def _only(component: str, exported: Exported) -> Callable[..., ExportReport]:
    """``export`` of one component."""
    return partial(export, components=[component], cache_dir=exported.traces)


def _component(exported: Exported, name: str) -> ComponentSpec:
    (component,) = select_components(read_source(exported.checkpoint, "test"), [name], TraceCache(exported.traces))
    return component


def _fixed(component: ComponentSpec) -> ComponentSpec:
    return at_size(component, {"batch_size": 1, "sequence_length": 77})


def _hashed(entry: bytes, content: bytes) -> bytes:
    """The entry with another content."""
    rest = entry.split(b"\n", 2)[1] + b"\n" + content
    return hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def _signature(folder: Path) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    inputs, outputs = (
        {each.name: [dim.dim_param or dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in values}
        for values in (graph.input, graph.output)
    )
    return inputs, outputs


def _copy(exported: Exported, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported.checkpoint, tmp_path / "checkpoint"))


def _edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
