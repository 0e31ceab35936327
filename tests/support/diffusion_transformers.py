"""Transformers of diffusion models and their text encoders, narrow, of any depth, as both exporters write them.

Blocks are diffusers' and transformers' own. All parameters are random and distinct, so are gates, which are zeros
before training. TorchScript's exporter lacks an operator of some (:data:`PLAIN`): those are written in simpler ones for
it, as exporters below opset 23 write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from diffusers.models.transformers import transformer_z_image as z_image
from support.exports import quiet
from support.models import randomize

from sdort.console import quiet_libraries

HEADS, SIZE = 2, 16
"""Heads of an attention, and elements of each."""
WIDTH = HEADS * SIZE
CHROMA_LAYERS = 5
"""Layers of the network that makes Chroma's modulations."""
BATCH, TEXT = 2, 11


@dataclass
class Traceable:
    """A module with the inputs that it is traced with, by name, and the dims of them that may be dynamic."""

    module: Any
    inputs: dict[str, Any]
    dynamic: dict[str, dict[int, Any]]

    def expected(self) -> Any:
        with torch.no_grad():
            return self.module(**self.inputs).numpy()


class _First(torch.nn.Module):  # type: ignore[misc]
    """The first result of a model."""

    def __init__(self, model: Any, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.call(self.model, *given, **named)


def sd35_medium(blocks: int, dual: int) -> Traceable:
    """Stable Diffusion 3.5 medium has 24 blocks, 13 of them with two attentions of the image."""
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=16, num_layers=blocks, attention_head_dim=SIZE,
        num_attention_heads=HEADS, joint_attention_dim=24, caption_projection_dim=WIDTH, pooled_projection_dim=20,
        out_channels=16, pos_embed_max_size=24, dual_attention_layers=tuple(range(dual)), qk_norm="rms_norm",
    )  # fmt: skip

    def call(m: Any, hidden_states: Any, encoder_hidden_states: Any, pooled_projections: Any, timestep: Any) -> Any:
        return m(hidden_states, encoder_hidden_states, pooled_projections, timestep, return_dict=False)[0]

    inputs = {
        "hidden_states": torch.randn(BATCH, 16, 12, 16), "encoder_hidden_states": torch.randn(BATCH, TEXT, 24),
        "pooled_projections": torch.randn(BATCH, 20), "timestep": torch.rand(BATCH) * 1000,
    }  # fmt: skip
    return _made(model, call, inputs, {"hidden_states": (0, 2, 3), "encoder_hidden_states": (0, 1),
                                       "pooled_projections": (0,), "timestep": (0,)})  # fmt: skip


def flux(double: int, single: int) -> Traceable:
    """Flux.1 dev has 19 blocks with a stream of the text of its own, and 38 with one stream."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=double, num_single_layers=single, attention_head_dim=SIZE,
        num_attention_heads=HEADS, joint_attention_dim=24, pooled_projection_dim=20, guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )  # fmt: skip

    def call(m: Any, hidden_states: Any, text: Any, pooled: Any, timestep: Any, img_ids: Any, txt_ids: Any,
             guidance: Any) -> Any:  # fmt: skip
        return m(hidden_states=hidden_states, encoder_hidden_states=text, pooled_projections=pooled, timestep=timestep,
                 img_ids=img_ids, txt_ids=txt_ids, guidance=guidance, return_dict=False)[0]  # fmt: skip

    rows, columns = 4, 6
    ids = torch.zeros(rows * columns, 3)
    ids[:, 1], ids[:, 2] = torch.arange(rows * columns) // columns, torch.arange(rows * columns) % columns
    inputs = {
        "hidden_states": torch.randn(BATCH, rows * columns, 64), "text": torch.randn(BATCH, TEXT, 24),
        "pooled": torch.randn(BATCH, 20), "timestep": torch.rand(BATCH), "img_ids": ids,
        "txt_ids": torch.zeros(TEXT, 3), "guidance": torch.full((BATCH,), 3.5),
    }  # fmt: skip
    return _made(model, call, inputs, {})


def chroma(double: int, single: int) -> Traceable:
    """Chroma has Flux.1's blocks, whose modulations are rows of one network's output."""
    from diffusers import ChromaTransformer2DModel

    with quiet_libraries():
        model = ChromaTransformer2DModel(
            in_channels=64, num_layers=double, num_single_layers=single, attention_head_dim=SIZE,
            num_attention_heads=HEADS, joint_attention_dim=24, axes_dims_rope=(4, 6, 6),
            approximator_num_channels=16, approximator_hidden_dim=24, approximator_layers=CHROMA_LAYERS,
        )  # fmt: skip

    def call(m: Any, hidden_states: Any, text: Any, timestep: Any, img_ids: Any, txt_ids: Any) -> Any:
        return m(hidden_states=hidden_states, encoder_hidden_states=text, timestep=timestep, img_ids=img_ids,
                 txt_ids=txt_ids, return_dict=False)[0]  # fmt: skip

    inputs = {name: value for name, value in flux(1, 1).inputs.items() if name not in ("pooled", "guidance")}
    return _made(model, call, inputs, {})


def z_image_turbo(blocks: int, refiners: int = 2) -> Traceable:
    """Z-Image has 30 blocks and two refiners each of the image and of the text."""
    model = z_image.ZImageTransformer2DModel(
        all_patch_size=(2,), all_f_patch_size=(1,), in_channels=16, dim=WIDTH, n_layers=blocks,
        n_refiner_layers=refiners, n_heads=HEADS, n_kv_heads=HEADS, cap_feat_dim=24, axes_dims=[4, 6, 6],
        axes_lens=[256, 64, 64],
    )  # fmt: skip

    def call(m: Any, x: Any, t: Any, cap: Any) -> Any:
        return m([x], t, [cap], return_dict=False)[0][0]

    inputs = {"x": torch.randn(16, 1, 16, 24), "t": torch.rand(1), "cap": torch.randn(32, 24)}
    return _made(model, call, inputs, {})


def t5(layers: int) -> Traceable:
    """T5-XXL's encoder has 24 layers, with a gated Gelu."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=128, d_model=WIDTH, d_kv=SIZE, d_ff=64, num_layers=layers, num_heads=HEADS,
        feed_forward_proj="gated-gelu", is_encoder_decoder=False, use_cache=False,
    )  # fmt: skip
    model = T5EncoderModel(config)
    made = _made(model, lambda m, input_ids: m(input_ids=input_ids, return_dict=False)[0],
                 {"input_ids": torch.randint(0, 128, (BATCH, 20))}, {"input_ids": (0, 1)})  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("SelfAttention.q.weight"):  # it has no scale of its own
                parameter *= SIZE**-0.5
    return made


def qwen3(layers: int) -> Traceable:
    """Qwen3-4B has 36 layers, and keys and values for fewer heads; Z-Image reads the states before the last layer."""
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(
        vocab_size=128, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=SIZE, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip

    def call(m: Any, input_ids: Any, attention_mask: Any) -> Any:
        found = m(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, use_cache=False)
        return found.hidden_states[-2]

    inputs = {
        "input_ids": torch.randint(0, 128, (BATCH, 20)),
        "attention_mask": torch.ones(BATCH, 20, dtype=torch.int64),
    }
    return _made(Qwen3Model(config), call, inputs, {"input_ids": (0, 1), "attention_mask": (0, 1)})


def _made(model: Any, call: Callable[..., Any], inputs: dict[str, Any], open_axes: dict[str, Any]) -> Traceable:
    randomize(model.eval())
    dynamic = {name: dict.fromkeys(open_axes.get(name, ()), torch.export.Dim.DYNAMIC) for name in inputs}
    return Traceable(_First(model, call).eval(), inputs, dynamic if open_axes else {})


def built(family: str, **depth: int) -> Traceable:
    """A family's model; its inputs are the same each time."""
    torch.manual_seed(0)
    builders: dict[str, Callable[..., Traceable]] = {
        "sd35_medium": sd35_medium, "flux": flux, "chroma": chroma, "z_image": z_image_turbo, "t5": t5, "qwen3": qwen3,
    }  # fmt: skip
    return builders[family](**depth)


def write(made: Traceable, path: Path, opset: int, *, script: bool = False, dynamic: bool = False) -> None:
    """Export a model to ``path``, by torch.export or, with ``script``, by TorchScript."""
    names = list(made.inputs)
    with quiet(), torch.no_grad(), real_rotary():
        if script:
            with plain():
                torch.onnx.export(made.module, tuple(made.inputs.values()), path, input_names=names,
                                  output_names=["out"], opset_version=opset, dynamo=False)  # fmt: skip
            return
        shapes = {"given": tuple(made.dynamic.values())} if dynamic else None
        program = torch.export.export(made.module, tuple(made.inputs.values()), dynamic_shapes=shapes, strict=False)
        torch.onnx.export(program, (), path, opset_version=opset, dynamo=True, verbose=False, input_names=names,
                          output_names=["out"], external_data=False)  # fmt: skip


@contextmanager
def real_rotary() -> Iterator[None]:
    """Z-Image's rotary embedding in real numbers: no exporter has complex ones."""

    def angles(embedder: Any, ids: Any) -> Any:
        tables = embedder.precompute_freqs_cis(embedder.axes_dims, embedder.axes_lens, theta=embedder.theta)
        real = [torch.view_as_real(table).contiguous() for table in tables]
        return torch.cat([table[ids[:, axis]] for axis, table in enumerate(real)], dim=-2)

    def attend(processor: Any, attn: Any, hidden_states: Any, encoder_hidden_states: Any = None,
               attention_mask: Any = None, freqs_cis: Any = None) -> Any:  # fmt: skip
        q, k, v = (each(hidden_states).unflatten(-1, (HEADS, -1)) for each in (attn.to_q, attn.to_k, attn.to_v))

        def turned(x: Any) -> Any:
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
            cos, sin = freqs_cis.unsqueeze(2).unbind(-1)
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3)

        q, k = turned(attn.norm_q(q)), turned(attn.norm_k(k))
        mask = None if attention_mask is None else attention_mask[:, None, None, :]
        rows = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask)
        return attn.to_out[0](rows.transpose(1, 2).flatten(2, 3))

    with (
        mock.patch.object(z_image.RopeEmbedder, "__call__", angles),
        mock.patch.object(z_image.ZSingleStreamAttnProcessor, "__call__", attend),
    ):
        yield


@contextmanager
def plain() -> Iterator[None]:
    """What TorchScript's exporter lacks, in operators that it has."""

    def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + (1.1920929e-07 if eps is None else eps))
        return normal if weight is None else normal * weight

    def pad_sequence(parts: Any, batch_first: bool = False, padding_value: float = 0.0) -> Any:
        return torch.stack(list(parts))

    with (
        mock.patch.object(torch.nn.functional, "rms_norm", rms_norm),
        mock.patch.object(torch, "rms_norm", rms_norm),
        mock.patch.object(z_image, "pad_sequence", pad_sequence),
    ):
        yield
