"""What reads hostile input in sdort, each as a function of bytes: either it raises SdortError, or all is well.

A target's ``run`` gets an empty folder and the input; it raises AssertionError where a promise is broken that is more
than "no crash": what was read is what another reader reads, what was accepted can be used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors.numpy
from onnx import parser
from support.fuzzing import folder_readers as folders
from support.fuzzing.documents import mutate_json, mutate_tar
from support.fuzzing.messages import Mutate, mutate_model
from support.fuzzing.pieces import mutate_drawn, mutate_picture, mutate_prompt
from support.fuzzing.small_inputs import EXTERNAL, EXTERNAL_BYTES, external, small_models
from support.fuzzing.tiny_files import tiny_file

from sdort.adapters.adapter_file import read_adapter
from sdort.adapters.embedding_file import EmbeddingChoice, read_embedding
from sdort.benchmark.regression import (
    as_saved,
    compare_with_saved,
    comparison_conclusion,
    comparison_markdown,
    load_rows,
)
from sdort.benchmark.rows import Row
from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.safetensors import read_tensors
from sdort.errors import MOST_CHARACTERS, SdortError
from sdort.exporter.checkpoint import read_checkpoint
from sdort.exporter.component_configs import class_defaults
from sdort.exporter.signatures import LIBRARIES
from sdort.exporter.source import component_config, read_source, select_components
from sdort.exporter.template import Trace, fill, make_template, pack, unpack
from sdort.exporter.trace_cache import TraceCache
from sdort.families.component_names import DECODER
from sdort.files.verified_cache import VerifiedCache
from sdort.graph.model import Model
from sdort.graph.weights import Stored, Weight
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.expression_json import UNREADABLE
from sdort.onnx_io.graph_import import tensors_of
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.onnx_io.wire import OWN_FILE, read_graph
from sdort.optimizer.expected import expected_operators
from sdort.pipelines.folder import PipelineFolder, image_channels
from sdort.precision.plan import read_plan, select
from sdort.precision.positions import NodeKind, Position
from sdort.providers import load_target
from sdort.tuning.archive import export_bundles, import_bundles
from sdort.tuning.bundle import RECORD, check_files, read_bundle
from sdort.tuning.key import parse_key
from sdort.tuning.store import Store
from sdort.verification.report import html

Mutator = Callable[[bytes, int, int, Mutate], bytes]


@dataclass(frozen=True)
class Target:
    """One reader of hostile input."""

    run: Callable[[Path, bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    mutator: Mutator | None = None
    runs: int = 2000
    """Executions in CI, of some seconds together."""
    edges: int = 0
    """Three quarters of the edges of sdort's code that these reached when it was written: fewer, and it reads nothing
    any more."""


def run(name: str, folder: Path, data: bytes) -> SdortError | None:
    """Give ``data`` to a target in an empty ``folder``, and return its refusal.

    Raises:
        Exception: what a user must never see.
    """
    try:
        TARGETS[name].run(folder, data)
    except SdortError as error:
        refusal = error
    else:
        return None
    assert refusal.message, "a refusal without a reason"
    assert len(str(refusal)) < 3 * MOST_CHARACTERS, f"a refusal of {len(str(refusal))} characters"
    if "bug in sdort" in str(refusal):
        raise AssertionError(str(refusal)) from refusal.__cause__
    assert refusal.component or name not in ("loader", "wire", "external", "optimizer"), f"no component: {refusal}"
    return refusal


# ------------------------------------------------------------------------------------------------------------- models


def _loader(folder: Path, data: bytes) -> None:
    """What is loaded can be saved, is valid by onnx's own checker, and is loaded again as the same."""
    path = folder / "case.onnx"
    path.write_bytes(data)
    model = load_model(path)
    save_model(model, folder / "saved.onnx")
    # ONNX Runtime takes inputs and outputs of unknown rank, and so does sdort; the checker does not.
    if all(tensor.shape is not None for tensor in (*model.graph.inputs, *model.graph.outputs)):
        onnx.checker.check_model(str(folder / "saved.onnx"))
    again = load_model(folder / "saved.onnx", model.component)
    assert _content(again) == _content(model)


def _content(model: Model) -> list[Any]:
    """Operators with their attributes, and the bytes of all constants."""
    nodes = [(node.domain, node.op, sorted(node.attrs), len(node.inputs)) for node in model.graph.nodes]
    constants = set()
    for tensor in tensors_of(model.graph):
        if hasattr(tensor, "_values"):
            values = tensor._values.load() if isinstance(tensor._values, Weight) else tensor._values
            constants.add((values.dtype.name, values.shape, values.tobytes()))
    return [nodes, constants]


def _wire(folder: Path, data: bytes) -> None:
    """The walker reads what protobuf reads, with the raw data put back."""
    path = folder / "case.onnx"
    path.write_bytes(data)
    proto = read_graph(path, "unet")
    expected = onnx.ModelProto.FromString(data)
    for tensor in _tensors(proto):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get("location") == OWN_FILE:
            start = int(entries["offset"])
            tensor.raw_data = data[start : start + int(entries["length"])]
    for message in (proto, expected):
        message.DiscardUnknownFields()  # which the walker passes over
        for tensor in _tensors(message):
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    assert proto.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def _tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    return [*proto.graph.initializer, *(attribute.t for node in nodes for attribute in node.attribute)]


def _external(folder: Path, data: bytes) -> None:
    """What is accepted can be read, from this folder alone."""
    (folder / EXTERNAL).write_bytes(bytes(range(256)) * (EXTERNAL_BYTES // 256))
    (folder / "sub").mkdir()
    (folder / "sub" / "w").write_bytes(bytes(64))
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "model.onnx").write_bytes(data)
    model = load_model(folder / "model.onnx", "unet")
    for tensor in tensors_of(model.graph):
        if isinstance(values := getattr(tensor, "_values", None), Weight):
            assert values.load().shape == values.shape
    component = read_component(folder / "model.onnx", "unet")
    component.check()
    component.copy()


def _optimizer(folder: Path, data: bytes) -> None:
    """Any graph that is loaded is optimized and written, or refused with a reason."""
    if not data:
        return
    target, fp16 = [("cpu", True), ("rocm", True), ("migraphx", False), ("cuda", True)][data[0] % 4]
    (folder / "model.onnx").write_bytes(data[1:])
    model = load_model(folder / "model.onnx")
    optimize_model(model, OptimizeOptions(load_target(target), fp16=fp16))
    save_model(model, folder / "saved.onnx")
    load_model(folder / "saved.onnx")


def _model_seeds() -> list[bytes]:
    return [model.SerializeToString() for model in small_models()]


def _external_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        proto = external(Path(folder))
    seeds = [proto.SerializeToString()]
    for location in ("sub/w", "out", "up/x", "loop", "pipe", "sub", "../weights.bin", "model.onnx"):
        proto.graph.initializer[0].external_data[0].value = location
        seeds.append(proto.SerializeToString())
    return seeds


def _optimizer_seeds() -> list[bytes]:
    return [bytes([index]) + seed for seed in _model_seeds() for index in range(4)]


def _mutate_after_choice(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """The first byte chooses; it changes too, now and then."""
    first = seed % 4 if seed % 8 == 0 or not data else data[0]
    return bytes([first]) + mutate_model(data[1:], most - 1, seed, mutate)


# ------------------------------------------------------------------------------------------------------------ configs

UNET = {
    "_class_name": "UNet2DConditionModel", "in_channels": 4, "out_channels": 4, "sample_size": 64,
    "block_out_channels": [32, 64], "layers_per_block": 2, "cross_attention_dim": 32, "attention_head_dim": 8,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "transformer_layers_per_block": [1, 1], "act_fn": "silu", "norm_num_groups": 8, "use_linear_projection": True,
    "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 1568, "time_cond_proj_dim": None,
}  # fmt: skip
VAE = {
    "_class_name": "AutoencoderKL", "in_channels": 3, "out_channels": 3, "latent_channels": 4, "scaling_factor": 0.18,
    "block_out_channels": [32, 64], "layers_per_block": 1, "norm_num_groups": 8, "act_fn": "silu", "shift_factor": 0.1,
    "latents_mean": [0.0, 0.1, 0.2, 0.3], "latents_std": [1.0, 2.0, 3.0, 4.0], "force_upcast": True,
    "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
}  # fmt: skip
TEXT = {
    "architectures": ["CLIPTextModel"], "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "hidden_act": "quick_gelu", "max_position_embeddings": 77, "projection_dim": 32,
    "vocab_size": 99, "eos_token_id": 2,
}  # fmt: skip
INDEX = {
    "_class_name": "StableDiffusionXLPipeline", "_diffusers_version": "0.30",
    "unet": ["diffusers", UNET["_class_name"]],
    "vae": ["diffusers", "AutoencoderKL"], "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"], "scheduler": ["diffusers", "DDIMScheduler"],
    "tokenizer": ["transformers", "CLIPTokenizer"], "force_zeros_for_empty_prompt": True,
}  # fmt: skip
_DEFAULTS = {"UNet2DConditionModel": UNET, "AutoencoderKL": VAE}


class _Defaults(TraceCache):
    """Needs neither diffusers nor transformers."""

    def defaults(self, class_name: str, compute: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        return dict(_DEFAULTS.get(class_name, TEXT))


def _config_of(component: str, *, exported: bool) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        pipeline = PipelineFolder(folder, {name: folder / name / "model.onnx" for name in ("unet", DECODER)})
        image_channels(folder / component / "model.onnx", component)
        with suppress(SdortError):
            expected_operators(pipeline.config(component), component, "cpu")
        _ = pipeline.default_size, pipeline.vae_factor
        pipeline.unscaled(np.zeros((1, 4, 8, 8), np.float32))
        if not exported:
            source = read_source(folder, "a model")
            for spec in select_components(source, (), _Defaults(folder)):
                component_config(source, spec.name, _Defaults(folder))

    return read


def _read_index(folder: Path) -> None:
    pipeline = PipelineFolder(folder, {})
    _ = pipeline.empty_is_zero, pipeline.manifest, pipeline.generates
    select_components(read_source(folder, "a model"), (), _Defaults(folder))


def _read_manifest(folder: Path) -> None:
    _ = PipelineFolder(folder, {}).manifest


def _read_shards(folder: Path) -> None:
    read_checkpoint(folder / "unet", "unet", None, False)


_CONFIGS: list[tuple[str, Callable[[Path], None], dict[str, Any]]] = [
    ("unet/config.json", _config_of("unet", exported=False), UNET),
    ("vae_decoder/config.json", _config_of(DECODER, exported=True), VAE),
    ("vae/config.json", _config_of(DECODER, exported=False), VAE),
    ("text_encoder/config.json", _config_of("text_encoder", exported=False), TEXT),
    ("model_index.json", _read_index, INDEX),
    ("sdort.json", _read_manifest, {"versions": {"sdort": "1"}, "source": "demo", "components": {"unet": {}}}),
    (
        "unet/diffusion_pytorch_model.safetensors.index.json",
        _read_shards,
        {"metadata": {"total_size": 8}, "weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}},
    ),
]
"""A file of a pipeline, what reads it, and a whole one."""


def _configs(folder: Path, data: bytes) -> None:
    """One file of a pipeline's folder is the input; the others are whole."""
    if not data:
        return
    name, read, _ = _CONFIGS[data[0] % len(_CONFIGS)]
    others = [("text_encoder_2/config.json", read, TEXT), *_CONFIGS]
    for other, _, content in others:
        (folder / other).parent.mkdir(exist_ok=True)
        if other != "sdort.json":
            (folder / other).write_text(json.dumps(content))
    for shard, tensor in (("x-1", "a"), ("x-2", "b")):
        (folder / "unet" / f"{shard}.safetensors").write_bytes(safetensors.numpy.save({tensor: np.zeros(1, "f4")}))
    (folder / name).write_bytes(data[1:])
    read(folder)


def _config_seeds() -> list[bytes]:
    return [bytes([index]) + json.dumps(content).encode() for index, (_, _, content) in enumerate(_CONFIGS)]


# ------------------------------------------------------------------------------------------------------- safetensors


def _safetensors(folder: Path, data: bytes) -> None:
    """Whatever is accepted, the format's own library accepts and reads alike."""
    path = folder / "model.safetensors"
    path.write_bytes(data)
    tensors: dict[str, Stored] = {}
    try:
        tensors = read_tensors(path)
    finally:
        with suppress(SdortError):
            recognise_file(path)
    theirs = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    assert sorted(theirs) == sorted(tensors)
    for name, tensor in tensors.items():
        assert list(tensor.shape) == theirs[name]["shape"]
        assert bytes(theirs[name]["data"]) == tensor.load().tobytes()


def _safetensors_seeds() -> list[bytes]:
    arrays = {"unet.w": np.arange(6, dtype=np.float32).reshape(2, 3), "h": np.zeros((2, 0), np.float16)}
    return [safetensors.numpy.save({**arrays, "b": np.array(True)}, {"format": "pt"}), safetensors.numpy.save({})]


def _mutate_safetensors(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """The header as JSON, under its true length, most of the time."""
    length = int.from_bytes(data[:8], "little")
    if seed % 5 == 0 or len(data) < 8 or length > len(data):
        return mutate(data, most)
    header = mutate_json(b"\0" + data[8 : 8 + length], max(most - 64, 1), seed, mutate)[1:]
    return (len(header).to_bytes(8, "little") + header + data[8 + length :])[:most]


_ADAPTED: dict[str, dict[str, tuple[int, ...]]] = {
    "unet": {
        "conv_in.weight": (4, 2, 3, 3), "conv_in.bias": (4,), "conv_norm_out.weight": (4,),
        "down_blocks.0.resnets.0.conv1.weight": (4, 4, 3, 3),
        "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight": (4, 6),
    },
    "text_encoder": {f"encoder.layers.0.self_attn.{letter}_proj.weight": (6, 6) for letter in "qkv"},
}  # fmt: skip


def _adapter(folder: Path, data: bytes) -> None:
    """The differences have their parameters' shapes, and a tensor is listed once; or it is an embedding."""
    path = folder / "style.safetensors"
    path.write_bytes(data)
    try:
        adapter = read_adapter(path, _ADAPTED)
    except SdortError:
        read_embedding(EmbeddingChoice(path), {"text_encoder": 6})
        return
    for component, deltas in adapter.deltas.items():
        for name, delta in deltas.items():
            shape = _ADAPTED[component][name]
            assert delta.array(np.ones(shape, np.float32)).shape == shape
    assert len({entry.key for entry in adapter.unmatched}) == len(adapter.unmatched)


def _adapter_seeds() -> list[bytes]:
    def ones(**shapes: tuple[int, ...]) -> bytes:
        content: bytes = safetensors.numpy.save({name: np.ones(shape, "f2") for name, shape in shapes.items()})
        return content

    key, conv = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_k", "lora_unet_input_blocks_0_0"
    text = "lora_te_text_model_encoder_layers_0_self_attn_qkv_proj"
    return [
        ones(**{f"{key}.lora_up.weight": (4, 2), f"{key}.lora_down.weight": (2, 6), f"{key}.alpha": (),
                f"{key}.dora_scale": (1, 6), "unet.conv_in.diff_b": (4,), "unet.conv_norm_out.w_norm": (4,)}),
        ones(**{f"{conv}.lora_up.weight": (4, 1, 1, 1), f"{conv}.lora_down.weight": (1, 2, 1, 1),
                f"{conv}.lora_mid.weight": (1, 1, 3, 3), f"{conv}.dora_scale": (4, 1, 1, 1)}),
        ones(**{f"{conv}.{name}": (1, size) for name, size in
                (("hada_w1_a", 4), ("hada_w1_b", 2), ("hada_w2_a", 4), ("hada_w2_b", 2))},
             **{f"{conv}.hada_t{number}": (1, 1, 3, 3) for number in (1, 2)}),
        ones(**{f"{text}.lokr_w1": (2, 2), f"{text}.lokr_w2_a": (9, 1), f"{text}.lokr_w2_b": (1, 3)}),
        ones(**{"base_model.model.conv_in.lora_A.default.weight": (2, 2, 3, 3),
                "base_model.model.conv_in.lora_B.default.weight": (4, 2, 1, 1),
                "base_model.model.conv_in.lora_magnitude_vector": (1, 4, 1, 1)}),
        ones(emb_params=(2, 6)),
    ]  # fmt: skip


@cache
def _class_defaults(class_name: str) -> dict[str, Any]:
    return class_defaults(class_name)


class _TrueDefaults(TraceCache):
    def defaults(self, class_name: str, compute: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        return dict(_class_defaults(class_name))


def _tiny_file(folder: Path, data: bytes) -> None:
    """The input is the seed of a file that is nearly right."""
    tiny_file(folder, data, _TrueDefaults(folder / "cache"))


def _tiny_file_seeds() -> list[bytes]:
    for class_name in LIBRARIES:
        _class_defaults(class_name)  # libraries are imported before the readers are watched
    return [b"", *(bytes([number]) for number in range(20))]


# ------------------------------------------------------------------------------------- plans, bundles, caches, records


def _plan(folder: Path, data: bytes) -> None:
    (folder / "plan.json").write_bytes(data[1:])
    position = Position(NodeKind("Add", ("weight", "MatMul.0"), ("Softmax.0",)), "down.0", 1)
    for component, rules in read_plan(folder / "plan.json").items():
        _ = [str(rule) for rule in rules]
        select(rules, {"a": position}, component)


def _plan_seeds() -> list[bytes]:
    rule = {"operator": "Add", "reads": ["weight", "MatMul.0"], "feeds": ["Softmax.0"], "reason": "it overflows"}
    rules = [{**rule, "blocks": "every"}, {**rule, "blocks": {"down.0": [0, 1], "": "every"}}]
    plan = {"fp16-plan": 1, "provider": "cpu", "components": {"unet": rules}}
    return [b"\0" + json.dumps(plan).encode()]


_KEY = {
    "architecture": "gfx1100", "compute_units": 96, "toolkit": "6.4", "ep": "ROCMExecutionProvider",
    "ep_version": "1.22.2", "onnxruntime": "onnxruntime-rocm 1.22.2", "custom_ops": None, "model": "3c3f0230c58659ec",
    "component": "unet", "shapes": {"sample": [2, 4], "timestep": []}, "options": {"a": "b"},
}  # fmt: skip


def _bundle(folder: Path, data: bytes) -> None:
    """A ``key.json``, sealed anew where the first byte is even: whoever changes a bundle can hash it too."""
    text, name = data[1:], "unet-0"
    if data[:1] < b"\x80":
        text, name = _sealed(text)
    (folder / name).mkdir()
    (folder / name / "tunable.json").write_bytes(b"[]")
    (folder / name / RECORD).write_bytes(text)
    found = read_bundle(folder / name)
    _ = found.name, found.bytes, found.key.difference(found.key)
    check_files(found)


def _sealed(text: bytes) -> tuple[bytes, str]:
    """A ``key.json`` with its hash, and the name of its bundle, as far as it has them."""
    try:
        body = json.loads(text)
        body.pop("sha256", None)
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        text = json.dumps({**body, "sha256": digest}).encode()
        name = parse_key(body["key"]).name
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
        return text, "unet-0"
    return text, name if re.fullmatch(r"[\w-]{1,60}", name) else "unet-0"


def _filled(store: Store) -> str:
    key = parse_key(_KEY)
    with store.filling(key) as made:
        (made.folder / "tunable.json").write_bytes(b"[]")
    return key.name


def _bundle_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        name = _filled(Store(Path(folder)))
        return [b"\0" + (Path(folder) / name / RECORD).read_bytes()]


def _archive(folder: Path, data: bytes) -> None:
    (folder / "bundles.tar").write_bytes(data)
    store = Store(folder / "cache")
    try:
        import_bundles(store, folder / "bundles.tar", any_machine=True, custom_ops="off")
    except SdortError:
        assert not store.names(), "a part of a refused archive was kept"
        raise


def _archive_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "cache")
        name = _filled(store)
        export_bundles(store, [name], Path(folder) / "b.tar")
        # Without the padding to 10 KiB.
        return [(Path(folder) / "b.tar").read_bytes().rstrip(b"\0") + bytes(1536)]


_PARAMETERS = {"w": (4, 300), "b": (300,)}
_GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 300] y) { h = MatMul (x, w) y = Add (h, b) }"""


def _trace(folder: Path, data: bytes) -> None:
    """The content of an entry whose hash is right: whoever changes the file can hash it too."""
    try:
        template = unpack(data, "unet")
    except UNREADABLE:  # the cache tells it, and traces again
        return
    if set(template.used) <= _PARAMETERS.keys():
        zeros = safetensors.numpy.save({name: np.zeros(shape, "f4") for name, shape in _PARAMETERS.items()})
        (folder / "w.safetensors").write_bytes(zeros)
        for blob in fill(template, read_tensors(folder / "w.safetensors")).blobs:
            blob.weight.load()


def _trace_seeds() -> list[bytes]:
    proto = parser.parse_model(_GRAPH)
    for name, shape in _PARAMETERS.items():
        proto.graph.initializer.append(onnx.TensorProto(name=name, dims=shape, data_type=onnx.TensorProto.FLOAT))
    return [pack(make_template(Trace(proto, _PARAMETERS), "unet"))]


def _cache(folder: Path, data: bytes) -> None:
    """What the cache gives out is what was stored for this key, or somebody hashed anew."""
    cache, key = VerifiedCache(folder, "the entry", ".entry", 1 << 16), {"of": ["unet", 17]}
    cache.path("unet", key).write_bytes(data)
    content = cache.load("unet", key)
    if content is not None:
        rest = json.dumps(key).encode() + b"\n" + content
        assert data == hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def _cache_seeds() -> list[bytes]:
    rest = json.dumps({"of": ["unet", 17]}).encode() + b"\ncontent"
    return [hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest]


def _mutate_trace(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    header, line, proto = data.partition(b"\n")
    if seed % 3:
        header = mutate_json(b"\0" + header, most // 2, seed, mutate)[1:]
    else:
        proto = mutate_model(proto, most // 2, seed, mutate)
    return (header + line + proto)[:most]


def _row() -> Row:
    return Row(
        pipeline="fast", engine="onnxruntime", provider="cpu", device="a CPU", component="unet", batch_size=1,
        height=64, width=64, steps=None, dtype="float16", model_hash="0123456789", versions={"sdort": "1"},
        times_ms=[10.0, 11.0, 10.5, 10.2, 10.1, 10.7], median_ms=10.4,
    )  # fmt: skip


def _benchmark(folder: Path, data: bytes) -> None:
    (folder / "saved.json").write_bytes(data[1:])
    saved, rows = load_rows(folder / "saved.json"), [_row()]
    compare_with_saved(rows, saved, 0.1)
    _ = comparison_conclusion(rows), comparison_markdown(rows)


def _benchmark_seeds() -> list[bytes]:
    return [b"\0" + as_saved([_row(), _row()]).encode()]


# --------------------------------------------------------------------------------------------------- texts of strangers


def _page(folder: Path, data: bytes) -> None:
    """A page has the same elements whatever text stands in it."""
    text = data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()
    if text.strip():  # a paragraph without text is left out
        assert _elements(_text_page(text)) == _usual_elements()


@cache
def _usual_elements() -> list[tuple[str, tuple[str, ...]]]:
    return _elements(_text_page("x"))


_EVERY_PART = """
{% extends "page.html" %}{% block body %}
{{ parts.answer(True, [text, text]) }}{{ parts.command(text, text) }}{{ parts.headline(text, text) }}
{{ parts.facts({text: text}) }}{{ parts.sentences(text, [text]) }}{{ parts.paragraph(text) }}
{% call parts.collapsed(text) %}{{ text }}{% endcall %}{% call parts.generated(text, 1, "ok", text) %}{% endcall %}
{{ parts.badge("ok", text) }}{{ parts.table(table) }}{{ parts.figure(pixels, text) }}
{% endblock %}"""


@cache
def _every_part() -> Any:
    """Compiled once: that takes ten times as long as a page."""
    return html.environment().from_string(_EVERY_PART)


def _text_page(text: str) -> str:
    values = {
        "title": text, "text": text, "light": html.LIGHT, "dark": html.DARK, "pixels": np.zeros((1, 1, 3), np.uint8),
        "table": html.section(text, [text], [[text]], left=[text]),
    }  # fmt: skip
    return str(_every_part().render(values))


def _elements(page: str) -> list[tuple[str, tuple[str, ...]]]:
    from html.parser import HTMLParser

    found: list[tuple[str, tuple[str, ...]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            found.append((tag, tuple(name for name, _ in attrs)))

    reader = Reader()
    reader.feed(page)
    reader.close()
    return found


TARGETS = {
    "loader": Target(_loader, _model_seeds, mutate_model, 900, 654),
    "wire": Target(_wire, _model_seeds, mutate_model, 2500, 92),
    "external": Target(_external, _external_seeds, mutate_model, 700, 423),
    "optimizer": Target(_optimizer, _optimizer_seeds, _mutate_after_choice, 100, 1808),
    "configs": Target(_configs, _config_seeds, mutate_json, 600, 362),
    "safetensors": Target(_safetensors, _safetensors_seeds, _mutate_safetensors, 2000, 106),
    "tiny_file": Target(_tiny_file, _tiny_file_seeds, None, 30, 700),
    "adapter": Target(_adapter, _adapter_seeds, _mutate_safetensors, 300, 320),
    "plan": Target(_plan, _plan_seeds, mutate_json, 1500, 110),
    "bundle": Target(_bundle, _bundle_seeds, mutate_json, 1500, 119),
    "archive": Target(_archive, _archive_seeds, mutate_tar, 400, 186),
    "trace": Target(_trace, _trace_seeds, _mutate_trace, 400, 168),
    "cache": Target(_cache, _cache_seeds, None, 1500, 22),
    "benchmark": Target(_benchmark, _benchmark_seeds, mutate_json, 1000, 167),
    "parameters": Target(folders.parameters, lambda: folders.PARAMETERS, None, 800, 45),
    "prompt": Target(folders.prompt, lambda: folders.PROMPTS, mutate_prompt, 500, 168),
    "drawn_image": Target(folders.drawn_image, lambda: folders.DRAWN, mutate_drawn, 400, 500),
    "picture": Target(folders.picture, folders.picture_seeds, mutate_picture, 300, 180),
    "own_files": Target(folders.own_files, folders.own_files_seeds, mutate_json, 400, 210),
    "tokenizer": Target(folders.tokenizer, folders.tokenizer_seeds, mutate_json, 800, 129),
    "miopen": Target(folders.miopen, folders.miopen_seeds, None, 400, 37),
    "tunable": Target(folders.tunable, folders.tunable_seeds, folders.mutate_results, 1500, 50),
    "mistaken": Target(folders.mistaken, folders.mistaken_seeds, None, 600, 63),
    "page": Target(_page, lambda: [b"<b>", b"'\"&", b"\x1b]8;;x\x07"], None, 900, 14),
}
"""By name, in the order in which they run."""
