"""Safetensors files of every kind of model, small and nearly right: names, shapes and dtypes changed by structure.

Random bytes never get past a header's checks. Here a file is always whole as a container, and what its tensors claim is
what is changed: a weight that is a scalar, a block of number 10^5000, two names that mean one parameter.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sdort.adapters.adapter_file import read_adapter
from sdort.adapters.embedding_file import EmbeddingChoice, read_embedding
from sdort.adapters.ip_adapter_file import read_ip_adapter
from sdort.checkpoints.clip_vision import read_image_encoder
from sdort.errors import SdortError
from sdort.exporter.open_source import open_source
from sdort.exporter.source import select_components
from sdort.exporter.trace_cache import TraceCache
from sdort.exporter.vae_parts import read_vae
from sdort.files.staging import temporary_folder

Shape = tuple[int, ...]
Tensors = dict[str, tuple[str, Shape]]
"""Name -> dtype, as the format names it, and shape."""

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "U64": 8,
         "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F4": 1, "C64": 8, "": 4}  # fmt: skip
MOST_BYTES = 1 << 40
"""Of a file, which is sparse: a larger one is no file that a file system holds."""
_NUMBERS = ("00", "01", "7", "99", "-1", "1.5", "", "\u0663", "\u00b2", "9" * 300, "9" * 5000)


def _resnet(name: str, inputs: int, width: int) -> dict[str, Shape]:
    norms = {f"{name}.in_layers.0.weight": (inputs,), f"{name}.out_layers.0.weight": (width,)}
    return {**norms, f"{name}.in_layers.2.weight": (width, inputs, 3, 3), f"{name}.emb_layers.1.weight": (width, 128),
            f"{name}.out_layers.3.weight": (width, width, 3, 3)}  # fmt: skip


def _transformer(name: str, width: int, context: int, linear: bool) -> dict[str, Shape]:
    block = f"{name}.transformer_blocks.0"
    projection = (width, width) if linear else (width, width, 1, 1)
    return {f"{name}.norm.weight": (width,), f"{name}.proj_in.weight": projection, f"{block}.norm1.bias": (width,),
            f"{block}.attn1.to_q.weight": (width, width), f"{block}.attn2.to_k.weight": (width, context),
            f"{block}.ff.net.0.proj.weight": (8 * width, width)}  # fmt: skip


def _unet(context: int = 768, linear: bool = False) -> dict[str, Shape]:
    found = {"time_embed.0.weight": (128, 32), "input_blocks.0.0.weight": (32, 4, 3, 3), "out.2.weight": (4, 32, 3, 3)}
    found |= _resnet("input_blocks.1.0", 32, 32) | _transformer("input_blocks.1.1", 32, context, linear)
    found |= {"input_blocks.2.0.op.weight": (32, 32, 3, 3)}
    found |= _resnet("input_blocks.3.0", 32, 64) | _transformer("input_blocks.3.1", 64, context, linear)
    found |= _resnet("middle_block.0", 64, 64) | _transformer("middle_block.1", 64, context, linear)
    found |= _resnet("output_blocks.0.0", 128, 64) | _transformer("output_blocks.0.1", 64, context, linear)
    found |= _resnet("output_blocks.1.0", 128, 64) | {"output_blocks.1.2.conv.weight": (64, 64, 3, 3)}
    return found | _resnet("output_blocks.2.0", 96, 32) | _resnet("output_blocks.3.0", 64, 32)


def _clip(width: int) -> dict[str, Shape]:
    layer = "text_model.encoder.layers.0"
    return {"text_model.embeddings.token_embedding.weight": (49408, width),
            "text_model.embeddings.position_embedding.weight": (77, width), f"{layer}.mlp.fc1.weight": (64, width),
            f"{layer}.self_attn.q_proj.weight": (width, width)}  # fmt: skip


def _open_clip(width: int) -> dict[str, Shape]:
    block = "transformer.resblocks.0"
    return {"positional_embedding": (77, width), "token_embedding.weight": (49408, width),
            "text_projection": (width, width), f"{block}.attn.in_proj_weight": (3 * width, width),
            f"{block}.attn.in_proj_bias": (3 * width,), f"{block}.mlp.c_fc.weight": (64, width)}  # fmt: skip


def _vae() -> dict[str, Shape]:
    found: dict[str, Shape] = {"quant_conv.weight": (8, 8, 1, 1)}
    for half, block in (("encoder", "down"), ("decoder", "up")):
        found |= {
            f"{half}.conv_in.weight": (32, 3 if half == "encoder" else 4, 3, 3),
            f"{half}.conv_out.weight": (8 if half == "encoder" else 3, 32, 3, 3),
            f"{half}.mid.attn_1.q.weight": (32, 32, 1, 1),
            f"{half}.mid.block_1.conv1.weight": (32, 32, 3, 3),
        }
        found |= {f"{half}.{block}.{level}.block.0.conv1.weight": (32, 32, 3, 3) for level in range(2)}
    return found  # fmt: skip


def _tiny_vae() -> dict[str, Shape]:
    return {"encoder.0.weight": (8, 3, 3, 3), "encoder.1.conv.0.weight": (8, 8, 3, 3),
            "decoder.1.weight": (8, 4, 3, 3), "decoder.3.conv.0.weight": (8, 8, 3, 3)}  # fmt: skip


def _control() -> dict[str, Shape]:
    hints = {f"input_hint_block.{2 * number}.weight": (16, 3 if number == 0 else 16, 3, 3) for number in range(8)}
    encoder = {name: shape for name, shape in _unet().items() if not name.startswith("out")}
    return encoder | hints | {"zero_convs.0.0.weight": (32, 32, 1, 1), "middle_block_out.0.weight": (64, 64, 1, 1)}


def _diffusers_control() -> dict[str, Shape]:
    image = "controlnet_cond_embedding"
    return {"conv_in.weight": (32, 4, 3, 3), "down_blocks.0.resnets.0.conv1.weight": (32, 32, 3, 3),
            "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight": (32, 768),
            f"{image}.conv_in.weight": (16, 3, 3, 3), f"{image}.blocks.0.weight": (16, 16, 3, 3),
            f"{image}.blocks.1.weight": (32, 16, 3, 3), "controlnet_mid_block.weight": (32, 32, 1, 1)}  # fmt: skip


def _ip_adapter(plus: bool) -> dict[str, Shape]:
    image: dict[str, Shape] = {"proj.weight": (4 * 768, 1024), "norm.weight": (768,)}
    if plus:
        image = {"latents": (1, 16, 768), "proj_in.weight": (768, 1280), "proj_out.weight": (768, 768),
                 "layers.0.0.to_q.weight": (768, 768), "layers.0.0.to_kv.weight": (1536, 768),
                 "layers.0.1.3.weight": (768, 3072)}  # fmt: skip
    attention = {f"ip_adapter.{number}.to_{part}_ip.weight": (32, 768) for number in (1, 3) for part in "kv"}
    return {f"image_proj.{name}": shape for name, shape in image.items()} | attention


def _vision() -> dict[str, Shape]:
    return {"vision_model.embeddings.patch_embedding.weight": (1024, 3, 14, 14),
            "vision_model.embeddings.position_embedding.weight": (257, 1024),
            "vision_model.encoder.layers.0.mlp.fc1.weight": (4096, 1024),
            "visual_projection.weight": (768, 1024)}  # fmt: skip


_MODULE = "lora_unet_input_blocks_0_0"
_CROSS = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_k"


def _adapters() -> Iterator[dict[str, Shape]]:
    yield {f"{_CROSS}.lora_up.weight": (4, 2), f"{_CROSS}.lora_down.weight": (2, 6), f"{_CROSS}.alpha": (),
           f"{_CROSS}.dora_scale": (1, 6), "unet.conv_in.diff_b": (4,)}  # fmt: skip
    yield {f"{_MODULE}.lora_up.weight": (4, 1, 1, 1), f"{_MODULE}.lora_down.weight": (1, 2, 1, 1),
           f"{_MODULE}.lora_mid.weight": (1, 1, 3, 3), f"{_MODULE}.dora_scale": (4, 1, 1, 1)}  # fmt: skip
    yield {**{f"{_MODULE}.hada_w{n}_{p}": (1, 4 if p == "a" else 2) for n in (1, 2) for p in "ab"},
           **{f"{_MODULE}.hada_t{n}": (1, 1, 3, 3) for n in (1, 2)}}  # fmt: skip
    yield {f"{_CROSS}.lokr_w1": (2, 2), f"{_CROSS}.lokr_w2_a": (2, 1), f"{_CROSS}.lokr_w2_b": (1, 3)}
    yield {"base_model.model.conv_in.lora_A.default.weight": (2, 2, 3, 3),
           "base_model.model.conv_in.lora_B.default.weight": (4, 2, 1, 1),
           "base_model.model.conv_in.lora_magnitude_vector": (1, 4, 1, 1)}  # fmt: skip


def _below(prefix: str, shapes: dict[str, Shape]) -> dict[str, Shape]:
    return {prefix + name: shape for name, shape in shapes.items()}


def whole_files() -> list[Tensors]:
    """A file of each kind, as its readers take it; of large ones only what they look at."""
    unet = "model.diffusion_model."
    one = _below(unet, _unet()) | _below("first_stage_model.", _vae())
    two = _below(unet, _unet(2048, True) | {"label_emb.0.0.weight": (128, 2816)})
    encoders = {0: _below("transformer.", _clip(768)), 1: _below("model.", _open_clip(1280))}
    for number, shapes in encoders.items():
        two |= _below(f"conditioner.embedders.{number}.", shapes)
    files: list[dict[str, Shape]] = [
        one | _below("cond_stage_model.transformer.", _clip(768)),
        two | _below("first_stage_model.", _vae()),
        _below(unet, _unet(1024, True)) | _below("cond_stage_model.model.", _open_clip(1024)),
        _below(unet, _unet()),
        _vae(),
        _tiny_vae(),
        _below("control_model.", _control()),
        _diffusers_control(),
        _ip_adapter(False),
        _ip_adapter(True),
        _vision(),
        *_adapters(),
        {"emb_params": (2, 6)},
        {"clip_l": (2, 768), "clip_g": (2, 1280)},
        _clip(768),
        {"adapter.body.0.in_conv.weight": (4, 4, 1, 1)},
    ]
    return [{name: ("F16", shape) for name, shape in shapes.items()} for shapes in files]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ changes


def _reshape(shape: Shape, draw: random.Random) -> Shape:
    dims = list(shape)
    odd = draw.choice((0, 1, 2, 3, 5, 1 << 20, 1 << 47))
    at = draw.randrange(len(dims)) if dims else 0
    return draw.choice((
        (), tuple(dims[:1]), tuple(dims[:-1]), tuple(dims[1:]), (*dims, 1), (*dims, odd), (1, *dims), (0,) * len(dims),
        tuple(dims[::-1]), (*dims[:at], odd, *dims[at + 1 :]), (math.prod(dims),), (2,) * draw.randrange(9),
    ))  # fmt: skip


def _renumber(name: str, draw: random.Random) -> str:
    numbers = list(re.finditer(r"\d+", name))
    if not numbers:
        return name + draw.choice(_NUMBERS)
    at = draw.choice(numbers)
    return name[: at.start()] + draw.choice((*_NUMBERS, "0" + at[0], at[0] + "1")) + name[at.end() :]


def _rename(name: str, draw: random.Random) -> str:
    parts = name.split(".")
    at = draw.randrange(len(parts))
    return draw.choice((
        name[:-1], name + ".weight", name.upper(), ".".join(parts[:at] + parts[at + 1 :]), f"{name}.{parts[at]}",
        name.replace("weight", "bias"), name.replace(parts[at], ""), "", name + "\n", "\u00e9" + name,
        "model." + name, name.removeprefix("model."),
    ))  # fmt: skip


def _one(tensors: Tensors, draw: random.Random) -> None:
    """Change a tensor, or all below a name's beginning."""
    name = draw.choice(list(tensors))
    dtype, shape = tensors[name]
    match draw.randrange(9):
        case 0 | 1 | 2:
            tensors[name] = dtype, _reshape(shape, draw)
        case 3:
            del tensors[name]
        case 4:
            tensors[_renumber(name, draw)] = tensors.pop(name) if draw.random() < 0.5 else tensors[name]
        case 5:
            tensors[_rename(name, draw)] = tensors.pop(name) if draw.random() < 0.5 else tensors[name]
        case 6:
            tensors[name] = draw.choice(list(SIZES)), shape
        case 7:
            other = draw.choice(list(tensors))
            tensors[name], tensors[other] = tensors[other], tensors[name]
        case _:
            start = name[: draw.randrange(len(name) + 1)]
            for each in [each for each in tensors if each.startswith(start)]:
                tensors[each] = dtype, draw.choice((shape, (), (4,), (4, 4)))


def changed_file(draw: random.Random) -> Tensors:
    """A file with none to a few changes, now and then with some of another kind's tensors."""
    files = whole_files()
    tensors = dict(draw.choice(files))
    if draw.random() < 0.1:
        tensors |= draw.choice(files)
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 8))):
        if tensors:
            _one(tensors, draw)
    return tensors


def write_sparse(path: Path, tensors: Tensors) -> None:
    """Write a file whose values are zeros that take no room on the disk."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + min(end, MOST_BYTES))


# ------------------------------------------------------------------------------------------------------------ readers

ADAPTED: dict[str, dict[str, Shape]] = {
    "unet": {
        "conv_in.weight": (4, 2, 3, 3), "conv_in.bias": (4,), "conv_norm_out.weight": (4,),
        "down_blocks.0.resnets.0.conv1.weight": (4, 4, 3, 3),
        "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight": (4, 6),
    },
    "text_encoder": {f"encoder.layers.0.self_attn.{letter}_proj.weight": (6, 6) for letter in "qkv"},
}  # fmt: skip


def readers(cache: TraceCache) -> dict[str, Callable[[Path], object]]:
    """Everything that takes such a file, by the option that names it; each refuses the other kinds."""

    def export(path: Path) -> None:
        with open_source(str(path)) as source:
            for spec in select_components(source, (), cache):
                folder = spec.name.replace("_decoder", "").replace("_encoder", "") if "vae" in spec.name else spec.name
                source.read_tensors(folder, spec.name, None, False)

    def vae(path: Path) -> None:
        with temporary_folder("vae") as folder:
            read_vae(path, folder, {})

    return {
        "export": export,
        "--vae": vae,
        "--ip-adapter": read_ip_adapter,
        "--image-encoder": read_image_encoder,
        "--lora": lambda path: read_adapter(path, ADAPTED),
        "--embedding": lambda path: read_embedding(EmbeddingChoice(path), {"text_encoder": 6}),
        "--embedding, SDXL": lambda path: read_embedding(
            EmbeddingChoice(path), {"text_encoder": 768, "text_encoder_2": 1280}
        ),
    }


def tiny_file(folder: Path, data: bytes, cache: TraceCache) -> None:
    """Every reader takes what the input's random numbers make, or refuses it in words."""
    draw = random.Random(data)
    path = folder / "small.safetensors"
    write_sparse(path, changed_file(draw) if data else whole_files()[0])
    accepted = 0
    for read in readers(cache).values():
        try:
            read(path)
            accepted += 1
        except SdortError as error:
            refusal = error
    if not accepted:
        raise refusal
