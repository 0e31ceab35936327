"""What ``sdort export`` accepts as a checkpoint: names and dtypes of all ages, and broken files refused in words."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.pipelines import locked, trace_folder

from sdort.checkpoints.safetensors import read_tensors
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.exporter import open_source
from sdort.exporter.bind import bind
from sdort.exporter.checkpoint import read_checkpoint
from sdort.exporter.command import export
from sdort.exporter.signatures import describe_component
from sdort.graph.weights import Inline, Weight

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sdort.demo.random_pipeline import make_random

    folder = tmp_path_factory.mktemp("demo")
    make_random("tiny", folder)
    return folder


@pytest.fixture
def checkpoint(demo: Path, tmp_path: Path) -> Path:
    """A copy of the demo that a test may break."""
    return Path(shutil.copytree(demo, tmp_path / "checkpoint"))


@pytest.fixture
def run(checkpoint: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """Export the checkpoint's text encoder, whose trace all tests share."""
    traces = trace_folder(request.config)

    def export_text_encoder(**options: Any) -> Path:
        with locked(traces):
            export(str(checkpoint), tmp_path / "out", components=["text_encoder"], cache_dir=traces, **options)
        return tmp_path / "out" / "text_encoder" / "model.onnx"

    return export_text_encoder


def weights_of(checkpoint: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.load() for name, tensor in read_tensors(checkpoint / "text_encoder" / WEIGHTS).items()}


def save(path: Path, tensors: dict[str, Any]) -> None:
    """Write a safetensors file by its specification, bfloat16 included."""
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(ml_dtypes.bfloat16): "BF16"}
    names |= {np.dtype(np.float64): "F64", np.dtype(np.int64): "I64", np.dtype(np.uint8): "U8"}
    header, offset = {}, 0
    for name, array in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    write_raw(path, header, b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values()))


def write_raw(path: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def exported_values(model: Path) -> dict[str, np.ndarray[Any, Any]]:
    import onnx

    proto = onnx.load(model)
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


EMBEDDING = "embeddings.token_embedding.weight"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_dtypes_become_float32(checkpoint: Path, run: Callable[..., Path], dtype: Any) -> None:
    tensors = {name: array.astype(dtype) for name, array in weights_of(checkpoint).items()}
    save(checkpoint / "text_encoder" / WEIGHTS, tensors)
    value = exported_values(run())[EMBEDDING]
    assert value.dtype == np.float32
    (stored,) = (array for name, array in tensors.items() if name.endswith(EMBEDDING))
    np.testing.assert_array_equal(value, stored.astype(np.float32))


def test_quantized_weights_are_refused(checkpoint: Path, run: Callable[..., Path]) -> None:
    tensors = {name: array.astype(np.uint8) for name, array in weights_of(checkpoint).items()}
    save(checkpoint / "text_encoder" / WEIGHTS, tensors)
    with pytest.raises(BadModelError, match="stored as uint8"):
        run()


@pytest.mark.parametrize("prefix", ["", "text_model."])
def test_text_encoders_of_all_transformers_versions(checkpoint: Path, run: Callable[..., Path], prefix: str) -> None:
    tensors = {prefix + name.removeprefix("text_model."): array for name, array in weights_of(checkpoint).items()}
    # A buffer that transformers saved until 4.31.
    tensors[f"{prefix}embeddings.position_ids"] = np.arange(77, dtype=np.int64)[None]
    save(checkpoint / "text_encoder" / WEIGHTS, tensors)
    np.testing.assert_array_equal(exported_values(run())[EMBEDDING], tensors[prefix + EMBEDDING])


def test_vae_attention_of_old_diffusers() -> None:
    """Held against diffusers' own conversion of the same names."""
    from diffusers import AutoencoderKL

    vae = AutoencoderKL(block_out_channels=(32,), norm_num_groups=8)
    current = {name: tuple(value.shape) for name, value in vae.state_dict().items()}
    olden = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    old: dict[str, Weight] = {}
    expected = {}
    for index, (name, shape) in enumerate(current.items()):
        spelled = name
        for new, former in olden.items():
            spelled = spelled.replace(f".{new}.", f".{former}.")
        old[spelled] = Inline(np.full(shape, index, np.float32))
        expected[name] = index
    assert old.keys() - current.keys() == {name for name in old if any(f".{each}." in name for each in olden.values())}
    bound = bind(old, current, "vae_decoder")
    assert {name: int(weight.load().flat[0]) for name, weight in bound.items()} == expected
    converted = dict(old)
    vae._fix_state_dict_keys_on_load(converted)
    assert {name: int(weight.load().flat[0]) for name, weight in converted.items()} == expected


def test_missing_and_foreign_tensors_are_named(checkpoint: Path, run: Callable[..., Path]) -> None:
    tensors = weights_of(checkpoint)
    gone = next(name for name in tensors if name.endswith("final_layer_norm.bias"))
    tensors["foreign.weight"] = tensors.pop(gone)
    save(checkpoint / "text_encoder" / WEIGHTS, tensors)
    with pytest.raises(BadModelError) as caught:
        run()
    assert "final_layer_norm.bias" in str(caught.value)
    assert "foreign.weight" in str(caught.value)
    assert caught.value.component == "text_encoder"


def test_a_foreign_tensor_is_enough(checkpoint: Path, run: Callable[..., Path]) -> None:
    save(checkpoint / "text_encoder" / WEIGHTS, weights_of(checkpoint) | {"foreign.weight": np.zeros(3, np.float32)})
    with pytest.raises(BadModelError, match=r"has 1 tensor .* no place for \(foreign\.weight\)"):
        run()


def test_a_parameter_must_not_stand_there_twice(checkpoint: Path, run: Callable[..., Path]) -> None:
    tensors = {name.removeprefix("text_model."): array for name, array in weights_of(checkpoint).items()}
    tensors["text_model.final_layer_norm.bias"] = tensors["final_layer_norm.bias"]
    save(checkpoint / "text_encoder" / WEIGHTS, tensors)
    with pytest.raises(BadModelError, match="twice"):
        run()


def test_a_wrong_shape_is_named(checkpoint: Path, run: Callable[..., Path]) -> None:
    tensors = weights_of(checkpoint)
    name = next(name for name in tensors if name.endswith(EMBEDDING))
    tensors[name] = tensors[name][:-1]
    save(checkpoint / "text_encoder" / WEIGHTS, tensors)
    with pytest.raises(BadModelError, match=r"token_embedding.weight' is \[531, 64\], not \[532, 64\]"):
        run()


def test_weights_that_do_not_fit_are_noticed_before_the_trace(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdort.exporter import trace

    def slow(*arguments: Any) -> None:
        raise AssertionError("traced before the weights were compared")

    monkeypatch.setattr(trace, "trace", slow)
    save(checkpoint / "text_encoder" / WEIGHTS, {"a": np.zeros(3, np.float32)})
    with pytest.raises(BadModelError, match="lacks"):
        export(str(checkpoint), tmp_path / "out", components=["text_encoder"], cache_dir=tmp_path / "traces")


def test_variants(checkpoint: Path, run: Callable[..., Path]) -> None:
    folder = checkpoint / "text_encoder"
    tensors = {name: array.astype(np.float16) for name, array in weights_of(checkpoint).items()}
    save(folder / "model.fp16.safetensors", tensors)
    with pytest.raises(BadModelError, match=r"no weights of variant 'ema'; it has those without a variant, fp16"):
        run(variant="ema")
    expected = next(array for name, array in tensors.items() if name.endswith(EMBEDDING)).astype(np.float32)
    np.testing.assert_array_equal(exported_values(run(variant="fp16"))[EMBEDDING], expected)
    (folder / WEIGHTS).unlink()
    shutil.rmtree(folder.parent.parent / "out")
    with pytest.raises(BadModelError, match=r"it has fp16\n *Give --variant fp16"):
        run()


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_shards(checkpoint: Path, run: Callable[..., Path], variant: str | None) -> None:
    tensors = weights_of(checkpoint)
    shard(checkpoint / "text_encoder", tensors, variant)
    expected = next(array for name, array in tensors.items() if name.endswith(EMBEDDING))
    np.testing.assert_array_equal(exported_values(run(variant=variant))[EMBEDDING], expected)


def shard(folder: Path, tensors: dict[str, Any], variant: str | None = None) -> Path:
    """Split ``model.safetensors`` in two as transformers does; returns the index."""
    (folder / WEIGHTS).unlink()
    middle = f".{variant}" if variant else ""
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model{middle}-{number:05}-of-00002.safetensors"
        save(folder / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    index = folder / (f"model.safetensors.index.{variant}.json" if variant else "model.safetensors.index.json")
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("../vae/diffusion_pytorch_model.safetensors", "no safetensors file beside it"),
        ("/etc/passwd", "no safetensors file beside it"),
        ("model-00009-of-00002.safetensors", "is missing"),
        ("model.bin", "no safetensors file beside it"),
        (7, "is 7, not a text"),
    ],
)
def test_bad_shards(checkpoint: Path, run: Callable[..., Path], file: Any, message: str) -> None:
    index = shard(checkpoint / "text_encoder", weights_of(checkpoint))
    content = json.loads(index.read_text())
    content["weight_map"][next(iter(content["weight_map"]))] = file
    index.write_text(json.dumps(content))
    with pytest.raises(BadModelError, match=message):
        run()


def test_pickles_need_consent(checkpoint: Path, run: Callable[..., Path]) -> None:
    import torch

    tensors = weights_of(checkpoint)
    folder = checkpoint / "text_encoder"
    half = {name: torch.from_numpy(array).bfloat16() for name, array in tensors.items()}
    torch.save(half, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(BadModelError, match="--allow-pickle"):
        run()
    expected = next(value for name, value in half.items() if name.endswith(EMBEDDING)).float().numpy()
    np.testing.assert_array_equal(exported_values(run(allow_pickle=True))[EMBEDDING], expected)


def test_a_pickle_runs_no_code(checkpoint: Path, run: Callable[..., Path], tmp_path: Path) -> None:
    import pickle

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "owned",)

    folder = checkpoint / "text_encoder"
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Payload()}))
    with pytest.raises(BadModelError, match="cannot read tensors"):
        run(allow_pickle=True)
    assert not (tmp_path / "owned").exists()


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN: dict[str, tuple[Any, bytes, str]] = {
    "no JSON": (b"{", b"", "is no JSON"),
    "deep JSON": (b"[" * 100_000, b"", "is no JSON"),
    "a list": (b"[]", b"", "no table"),
    "a name twice": (b'{"a": {}, "a": {}}', b"", "twice"),
    "no entry": ({"a": 1}, b"", "not described"),
    "unknown dtype": ({"a": F32 | {"dtype": "F8_E4M3"}}, b"\0" * 8, "F8_E4M3"),
    "dtype is a list": ({"a": F32 | {"dtype": ["F32"]}}, b"\0" * 8, "stored as"),
    "outside": ({"a": F32 | {"data_offsets": [4, 12]}}, b"\0" * 8, "outside"),
    "negative": ({"a": F32 | {"data_offsets": [-8, 0]}}, b"\0" * 8, "offsets"),
    "backwards": ({"a": F32 | {"data_offsets": [8, 0]}}, b"\0" * 8, "outside"),
    "fraction": ({"a": F32 | {"shape": [2.0]}}, b"\0" * 8, "and offsets"),
    "truth": ({"a": F32 | {"shape": [True, 2]}}, b"\0" * 8, "and offsets"),
    "wrong size": ({"a": F32 | {"shape": [3]}}, b"\0" * 8, "has 8 bytes"),
    "huge": ({"a": F32 | {"shape": [1 << 40, 1 << 40]}}, b"\0" * 8, "has 8 bytes"),
    "endless": ({"a": F32 | {"shape": [9] * 100_000}}, b"\0" * 8, "and offsets"),
    "overlap": ({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, b"\0" * 12, "overlaps"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_headers(tmp_path: Path, case: str) -> None:
    header, data, message = BROKEN[case]
    write_raw(tmp_path / "a.safetensors", header, data)
    with pytest.raises(BadModelError, match=message):
        read_tensors(tmp_path / "a.safetensors")


def test_truncated_weights(checkpoint: Path, run: Callable[..., Path]) -> None:
    path = checkpoint / "text_encoder" / WEIGHTS
    content = path.read_bytes()
    for length in (len(content) - 1, 1000, 8, 7, 0):
        path.write_bytes(content[:length])
        with pytest.raises(BadModelError, match="not a valid safetensors file"):
            run()
    assert not (checkpoint.parent / "out").exists()


def test_mutated_headers_are_refused_or_right(demo: Path, tmp_path: Path) -> None:
    """Thousands of damaged headers: an error in words, or tensors that lie inside the file."""
    content = bytearray((demo / "text_encoder" / WEIGHTS).read_bytes())
    length = int.from_bytes(content[:8], "little")
    head, path = bytes(content[: 8 + length]), tmp_path / "mutated.safetensors"
    generator = random.Random(11)
    refused = 0
    for _ in range(1500):
        mutated = bytearray(head)
        for _ in range(generator.choice((1, 1, 2, 8))):
            mutated[generator.randrange(len(mutated))] = generator.choice(b'0123456789[]{}",:-eEtfn\xff\x00 ')
        path.write_bytes(mutated)
        with open(path, "r+b") as file:
            file.truncate(len(content))
        try:
            tensors = read_tensors(path)
        except BadModelError:
            refused += 1
            continue
        assert all(each.offset >= 8 and each.offset + each.nbytes <= len(content) for each in tensors.values())
    assert refused > 500


def edit(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("component", "change", "message"),
    [
        ("text_encoder", {"hidden_size": -64}, "hidden_size is -64, not a whole number from 1 to 65536"),
        ("text_encoder", {"hidden_size": "64"}, 'hidden_size is "64", not a whole number'),
        ("text_encoder", {"num_attention_heads": 7}, "does not divide into 7 num_attention_heads"),
        ("text_encoder", {"hidden_act": "mystery"}, "does not make a CLIPTextModel"),
        ("unet", {"down_block_types": ["NoBlock2D"] * 4}, "does not make a UNet2DConditionModel"),
        ("unet", {"cross_attention_dim": [64, 32]}, "cross_attention_dim"),
        ("unet", {"class_embed_type": "timestep"}, "class_embed_type = 'timestep'"),
        ("unet", {"addition_embed_type": "image"}, "addition_embed_type = 'image'"),
        ("vae_decoder", {"latent_channels": None}, "latent_channels"),
        ("vae_decoder", {"block_out_channels": 3}, "block_out_channels is 3, not a list"),
    ],
)
def test_bad_configs(checkpoint: Path, tmp_path: Path, component: str, change: dict[str, Any], message: str) -> None:
    folder = "vae" if component.startswith("vae") else component
    edit(checkpoint / folder / "config.json", change)
    with pytest.raises(BadModelError, match=message) as caught:
        export(str(checkpoint), tmp_path / "out", components=[component], cache_dir=tmp_path / "traces")
    assert caught.value.component is not None
    assert caught.value.component.partition("_")[0] == component.partition("_")[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["", "[]", "{", "null", "[" * 10_000])
@pytest.mark.parametrize("file", ["model_index.json", "text_encoder/config.json"])
def test_broken_json(checkpoint: Path, run: Callable[..., Path], file: str, content: str) -> None:
    (checkpoint / file).write_text(content)
    with pytest.raises(BadModelError, match="is no JSON"):
        run()


def test_missing_parts(checkpoint: Path, run: Callable[..., Path]) -> None:
    shutil.rmtree(checkpoint / "scheduler")
    with pytest.raises(BadModelError, match=r"scheduler is missing or empty"):
        run()
    (checkpoint / "text_encoder" / WEIGHTS).unlink()
    with pytest.raises(BadModelError, match=r"has no weights \(model.safetensors\)"):
        run()
    (checkpoint / "text_encoder" / "config.json").unlink()
    with pytest.raises(BadModelError, match="cannot read the config"):
        run()
    (checkpoint / "model_index.json").unlink()
    with pytest.raises(BadModelError, match=r"has no model_index\.json"):
        run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_encoder": ["transformers", "T5EncoderModel"]}, "a T5EncoderModel there"),
        ({"text_encoder": ["diffusers", "UNet2DConditionModel"]}, "a UNet2DConditionModel there"),
        ({"vae": ["diffusers", ["AutoencoderKL"]]}, r"vae is \[\"diffusers\", \[\"Autoen.*not null or a list of 2"),
    ],
)
def test_foreign_architectures(
    checkpoint: Path, run: Callable[..., Path], change: dict[str, Any], message: str
) -> None:
    edit(checkpoint / "model_index.json", change)
    with pytest.raises(BadModelError, match=message):
        run()


def test_foreign_pipelines(tmp_path: Path) -> None:
    index = {"_class_name": "PixArtSigmaPipeline", "transformer": ["diffusers", "PixArtTransformer2DModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(
        BadModelError,
        match=r"is a PixArtSigmaPipeline with a transformer \(PixArtTransformer2DModel\), which sdort does not",
    ):
        export(str(tmp_path), tmp_path / "out")


def test_names_that_are_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        export(str(tmp_path / "nothing"), tmp_path / "out")


def test_a_hub_id_is_downloaded_by_diffusers(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from diffusers import DiffusionPipeline

    asked: list[Any] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(demo)

    monkeypatch.setattr(DiffusionPipeline, "download", download)
    monkeypatch.setattr(open_source, "run_worker", lambda _, task: open_source.download(**task))
    traces = trace_folder(request.config)
    with locked(traces):
        report = export("owner/name", tmp_path / "out", components=["text_encoder"], cache_dir=traces)
    assert asked == [("owner/name", {"variant": None, "use_safetensors": True})]
    assert report.source == "owner/name"


def test_a_hub_id_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers import DiffusionPipeline

    def download(name: str, **options: Any) -> str:
        raise OSError("no route to host\nlong story")

    monkeypatch.setattr(DiffusionPipeline, "download", download)
    monkeypatch.setattr(open_source, "run_worker", lambda _, task: open_source.download(**task))
    with pytest.raises(SdortError, match=r"cannot load owner/name from the hub \(OSError: no route to host\)"):
        export("owner/name", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_refiners_five_time_ids() -> None:
    """SDXL's base model conditions on six numbers, its refiner on five."""
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "cross_attention_dim": 1280,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
    }
    for projection, ids in ((2816, 6), (2560, 5)):
        config["projection_class_embeddings_input_dim"] = projection
        unet = describe_component("unet", "UNet2DConditionModel", config, text_embeds=1280)
        dims = {spec.name: spec.dims for spec in unet.inputs}
        assert (dims["text_embeds"], dims["time_ids"]) == (("batch_size", 1280), ("batch_size", ids))


def test_an_empty_folder_has_no_weights(tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match="has no weights"):
        read_checkpoint(tmp_path, "unet", None, False)


def test_an_exported_folder_is_told_the_next_step(checkpoint: Path, tmp_path: Path) -> None:
    from sdort.exporter.source import read_source

    (checkpoint / "unet" / "model.onnx").write_bytes(b"")
    read_source(checkpoint, "weights beside ONNX graphs, as some are published")
    for file in checkpoint.rglob("*.safetensors"):
        file.unlink()
    with pytest.raises(BadModelError, match=r"holds ONNX graphs already[\s\S]*sdort optimize"):
        read_source(checkpoint, "only ONNX graphs")


def test_the_demos_bar_ends_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that stayed would say that the pipeline is being made while it is exported."""
    shown: list[str] = []

    @contextmanager
    def progress(description: str) -> Iterator[None]:
        shown.append(description)
        yield
        shown.remove(description)

    monkeypatch.setattr(open_source, "progress", progress)
    monkeypatch.setattr(open_source, "write_demo", lambda name, folder: shown.append("made") if shown else None)
    monkeypatch.setattr(open_source, "read_source", lambda folder, name: name)
    with open_source.open_source("demo"):
        assert shown == ["made"]
