"""Z-Image and Z-Image-Turbo. Facts of Tongyi-MAI/Z-Image-Turbo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sdort.families.family import (
    PENULTIMATE,
    Config,
    Denoiser,
    Encoder,
    Family,
    GraphOptions,
    PlainText,
    Roles,
    Shapes,
)
from sdort.families.flux_latents import FLUX_LATENTS, FLUX_VAE
from sdort.families.graph_tensor import GraphSignature, GraphTensor, size_of
from sdort.families.layer_names import TRANSFORMER_PREFIXES, LayerNames, alike, fused
from sdort.families.scheduler_configs import FLOW
from sdort.families.tensor_shapes import count_of, head_size, shape_of
from sdort.families.text_models import QWEN3

ROLES = Roles(sample="hidden_states")
_SIDE, _MULTIPLE = 2, 32
"""Latents along each side of a token; tokens of an image and of a prompt are filled up to a multiple."""
_PATCH = f"{_SIDE}-1"
"""The name of the layers for such tokens of one frame."""


def signature(config: Config, options: GraphOptions) -> GraphSignature:
    """The transformer's inputs and outputs: latents as images, and tokens of the prompt alone."""
    latent = ("batch_size", size_of(config, "in_channels"), "height", "width")
    return (
        GraphTensor("hidden_states", "float32", latent),
        GraphTensor("timestep", "float32", ("batch_size",)),
        GraphTensor(
            "encoder_hidden_states", "float32", ("batch_size", "sequence_length", size_of(config, "cap_feat_dim"))
        ),
    ), (GraphTensor("out_hidden_states", "float32", latent),)


def counts(config: Config) -> Counter[str]:
    """Blocks of the whole stream, those of image and text before it, of which the text's have no modulation, and a norm
    at each end."""
    refiners = int(config["n_refiner_layers"])
    modulated = size_of(config, "n_layers") + refiners
    blocks = modulated + refiners
    return Counter(
        attention_self=blocks,
        rms_norm=(6 if config["qk_norm"] else 4) * blocks + 1,
        layer_norm=1,
        rotary=2 * blocks,
        modulation=2 * modulated,
        gated_sum=2 * modulated,
        swiglu=blocks,
    )


def call(transformer: Any, inputs: Mapping[str, Any]) -> Any:
    """The prediction [batch, channels, height, width] that diffusers' pipeline takes from the transformer.

    As ``ZImageTransformer2DModel.forward``, in real numbers: diffusers turns queries and keys as complex ones. The
    class counts time from noise to image, from 0 to 1, and predicts image less noise.
    """
    import torch

    sample, text = inputs["hidden_states"], inputs["encoder_hidden_states"]
    batch, channels, height, width = sample.shape
    rows, columns, words = height // _SIDE, width // _SIDE, text.shape[1]
    time = transformer.t_embedder(((1000 - inputs["timestep"]) / 1000) * transformer.t_scale)
    tables = [_table(transformer, axis, sample.device) for axis in range(3)]

    tiles = sample.view(batch, channels, rows, _SIDE, columns, _SIDE).permute(0, 2, 4, 3, 5, 1)
    image = transformer.all_x_embedder[_PATCH](tiles.reshape(batch, rows * columns, channels * _SIDE**2))
    filled = _up(words)  # the tokens of the prompt, where those of the image begin
    places = torch.cat(
        [
            tables[0][filled + 1].expand(rows, columns, -1, -1),
            tables[1][:rows, None].expand(-1, columns, -1, -1),
            tables[2][None, :columns].expand(rows, -1, -1, -1),
        ],
        -2,
    ).flatten(0, 1)
    nowhere = torch.cat([table[:1] for table in tables], -2)
    image, of_image = _filled(image, transformer.x_pad_token), _filled(places[None], nowhere)
    for block in transformer.noise_refiner:
        image = _block(block, image, of_image, time)

    text = _filled(transformer.cap_embedder(text), transformer.cap_pad_token)
    of_text = torch.cat([tables[0][1 : filled + 1], *(table[:1].expand(filled, -1, -1) for table in tables[1:])], -2)
    for block in transformer.context_refiner:
        text = _block(block, text, of_text[None], None)

    stream, of_all = torch.cat([image, text], 1), torch.cat([of_image, of_text[None]], 1)
    for block in transformer.layers:
        stream = _block(block, stream, of_all, time)
    made = transformer.all_final_layer[_PATCH](stream, c=time)[:, : rows * columns]
    made = made.view(batch, rows, columns, _SIDE, _SIDE, channels).permute(0, 5, 1, 3, 2, 4)
    return -made.reshape(batch, channels, height, width)


def _table(transformer: Any, axis: int, device: Any) -> Any:
    """Cosines and sines of an axis' angles at each place, [places, pairs, 2], as ``RopeEmbedder`` makes them."""
    import torch

    size, length = transformer.axes_dims[axis], transformer.axes_lens[axis]
    frequencies = 1.0 / (
        transformer.rope_theta ** (torch.arange(0, size, 2, dtype=torch.float64, device=device) / size)
    )
    angles = torch.outer(torch.arange(length, dtype=torch.float64, device=device), frequencies).float()
    return torch.stack([angles.cos(), angles.sin()], -1)


def _filled(rows: Any, row: Any) -> Any:
    """Rows [batch, rows, ...] with as many of ``row`` [1, ...] behind them as make a multiple."""
    import torch

    count = rows.shape[1]
    more = row.expand(rows.shape[0], _MULTIPLE - 1, *rows.shape[2:])
    return torch.cat([rows, more], 1)[:, : _up(count)]


def _up(count: int) -> int:
    """The next multiple; of positive numbers alone, as ONNX's division rounds others another way than Python's."""
    return (count + _MULTIPLE - 1) // _MULTIPLE * _MULTIPLE


def _block(block: Any, stream: Any, places: Any, time: Any) -> Any:
    """A block with the modulation by the time, or one without."""
    if time is None:
        stream = stream + block.attention_norm2(_attention(block.attention, block.attention_norm1(stream), places))
        return stream + block.ffn_norm2(block.feed_forward(block.ffn_norm1(stream)))
    scale, gate, scale2, gate2 = block.adaLN_modulation(time).unsqueeze(1).chunk(4, dim=2)
    seen = _attention(block.attention, block.attention_norm1(stream) * (1 + scale), places)
    stream = stream + gate.tanh() * block.attention_norm2(seen)
    return stream + gate2.tanh() * block.ffn_norm2(block.feed_forward(block.ffn_norm1(stream) * (1 + scale2)))


def _attention(attention: Any, rows: Any, places: Any) -> Any:
    import torch

    def heads(layer: Any, norm: Any = None) -> Any:
        parts = layer(rows).unflatten(-1, (attention.heads, -1))
        return parts if norm is None else norm(parts)

    cos, sin = places.unsqueeze(2).unbind(-1)

    def turned(parts: Any) -> Any:
        a, b = parts.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3).to(parts.dtype)

    query = turned(heads(attention.to_q, attention.norm_q))
    key = turned(heads(attention.to_k, attention.norm_k))
    states = [each.transpose(1, 2) for each in (query, key, heads(attention.to_v))]
    seen = torch.nn.functional.scaled_dot_product_attention(*states).transpose(1, 2).flatten(2)
    return attention.to_out[0](seen)


_STACKS = ("noise_refiner", "context_refiner", "layers")
_EMBEDDER, _FINAL = f"all_x_embedder.{_PATCH}", f"all_final_layer.{_PATCH}"
LAYERS = LayerNames(
    (
        *alike(
            ("x_embedder", _EMBEDDER),
            ("final_layer.linear", f"{_FINAL}.linear"),
            ("final_layer.adaLN_modulation.1", f"{_FINAL}.adaLN_modulation.1"),
        ),
        *(
            fused(f"{stack}.{{}}.attention.qkv", *(f"{stack}.{{}}.attention.to_{each}" for each in "qkv"))
            for stack in _STACKS
        ),
        *(
            each
            for stack in _STACKS
            for each in alike(
                (f"{stack}.{{}}.attention.out", f"{stack}.{{}}.attention.to_out.0"),
                (f"{stack}.{{}}.attention.q_norm", f"{stack}.{{}}.attention.norm_q"),
                (f"{stack}.{{}}.attention.k_norm", f"{stack}.{{}}.attention.norm_k"),
            )
        ),
    ),
    # Of Lumina 2, whose modules they are.
    unused=frozenset({"norm_final.weight"}),
)
"""ComfyUI's ``comfy/ldm/lumina/model.py``; the other names are diffusers'."""


def config_of(shapes: Shapes) -> Config:
    """The config of a ``ZImageTransformer2DModel``; axes of places have the parts of a head that they are published
    with."""
    width, tile = shape_of(shapes, f"{_EMBEDDER}.weight")[:2]
    norm = "layers.0.attention.norm_q.weight"
    head = head_size(shapes, norm, width, usual=128)
    rows, columns = head // 4, head * 3 // 8
    return {
        "_class_name": "ZImageTransformer2DModel",
        "in_channels": tile // _SIDE**2,
        "dim": width,
        "n_layers": count_of(shapes, r"layers\.(\d+)\."),
        "n_refiner_layers": count_of(shapes, r"context_refiner\.(\d+)\."),
        "n_heads": width // head,
        "n_kv_heads": shape_of(shapes, "layers.0.attention.to_k.weight")[0] // head,
        "qk_norm": norm in shapes,
        "cap_feat_dim": shape_of(shapes, "cap_embedder.1.weight")[1],
        "axes_dims": [rows, columns, head - rows - columns],
        "axes_lens": [1536, 512, 512],
    }


FAMILY = Family(
    name="Z-Image",
    title="Z-Image",
    side=1024,
    denoiser=Denoiser(
        component="transformer",
        title="transformer",
        class_name="ZImageTransformer2DModel",
        roles=ROLES,
        signature=signature,
        counts=counts,
        output="out_hidden_states",
        required=(
            "in_channels",
            "dim",
            "n_layers",
            "n_refiner_layers",
            "n_heads",
            "cap_feat_dim",
            "axes_dims",
            "axes_lens",
        ),
        channels=("in_channels", "in_channels"),
        call=call,
        guidance_base=1.0,
        patch=_SIDE,
        largest=lambda config: min(config.get("axes_lens", (0,))[1:], default=None),
        adapter_prefixes=TRANSFORMER_PREFIXES,
        layers=LAYERS,
        config_of=config_of,
    ),
    encoders=(
        Encoder(
            "text_encoder",
            {ROLES.context: PENULTIMATE},
            prefixes=("text_encoders.qwen3_4b.transformer.",),
            class_name=QWEN3,
            plain=PlainText(
                "Qwen2Tokenizer",
                512,
                padded=False,
                before="<|im_start|>user\n",
                after="<|im_end|>\n<|im_start|>assistant\n",
                published="the folder tokenizer of Tongyi-MAI/Z-Image-Turbo",
            ),
        ),
    ),
    latents=FLUX_LATENTS,
    context_width=2560,
    pipelines={None: "ZImagePipeline"},
    schedule={"timestep_spacing": "trailing"},
    usual=lambda config: (8, 0.0),
    scheduler=FLOW,
    vae=FLUX_VAE,
    # Lumina 2 has all of it but the token that fills up prompts.
    holds=lambda shapes: shapes.keys() >= {"cap_pad_token", f"{_EMBEDDER}.weight", f"{_FINAL}.linear.weight"},
)
