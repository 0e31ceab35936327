"""Each name by which a file of tensors is told: kinds, other families, and what a checkpoint lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sdort.checkpoints.weight_names import (
    FAMILY_OF_WIDTH,
    REFINER,
    SD1,
    SD2,
    SDXL,
    Architecture,
    Kind,
    recognise_tensors,
    unet_variant,
    unwrapped,
)

LDM = "model.diffusion_model."
KINDS: dict[Kind, tuple[str, ...]] = {
    Kind.IP_ADAPTER: ("ip_adapter.1.to_k_ip.weight", "image_proj.proj.weight"),
    Kind.LYCORIS: (
        "a.hada_w1_a", "a.hada_w1_b", "a.hada_w2_a", "a.hada_w2_b", "a.lokr_w1", "a.lokr_w2", "a.lokr_w1_a",
        "a.lokr_w2_b", "a.oft_blocks", "a.oft_diag",
    ),
    Kind.LORA: (
        "a.lora_down.weight", "a.lora_up.weight", "a.lora_A.weight", "a.lora_B.default.weight", "a_lora.down.weight",
        "a.lora.up.weight", "a.lora_linear_layer.up.weight", "a.lora_linear_layer.down.weight",
    ),
    Kind.CONTROLNET: (
        "control_model.a", "controlnet_cond_embedding.conv_in.weight", "input_hint_block.0.weight",
        "zero_convs.0.0.weight", "lora_controlnet",
    ),
    Kind.MOTION_MODULE: ("down_blocks.0.motion_modules.0.a", "motion_modules.0.a"),
    Kind.TRANSFORMER: (
        "joint_blocks.0.a", "double_blocks.0.a", "double_layers.0.a", f"{LDM}joint_blocks.0.a", "patchify_proj.weight",
        "cap_embedder.0.weight", "clip_txt_mapper.weight", "transformer_blocks.0.a", "single_transformer_blocks.0.a",
        "down_blocks.0.1.channelwise.0.weight", f"{LDM}blocks.0.a", f"{LDM}layers.0.a", f"{LDM}x_embedder.a",
        f"{LDM}head.a", "net.blocks.0.a", "net.x_embedder.a", "down_blocks.1.0.channelwise.0.weight",
        "blocks.0.cross_attn.a", "blocks.0.self_attn.a", "blocks.0.attn.a", "noise_blocks.0.attn2.a", "layers.0.b.a",
    ),
    Kind.UNET: (
        "down_blocks.0.resnets.0.conv1.weight", "down_blocks.0.attentions.0.norm.weight", "input_blocks.0.0.weight",
    ),
    Kind.T2I_ADAPTER: (
        "body.0.block1.weight", "body.0.block2.weight", "adapter.body.0.in_conv.weight", "adapter.body.0.resnets.0.a",
        "body.0.body.0.a",
    ),
    Kind.VAE: (
        "0.conv.0.weight", "encoder.1.conv.0.weight", "decoder.layers.1.conv.0.weight", "encoder.conv_in.weight",
        "decoder.conv_out.weight", "encoder.mid.block_1.a", "decoder.mid_block.a",
        "first_stage_model.encoder.conv_in.a",
    ),
    Kind.TEXT_ENCODER: (
        "cond_stage_model.a", "conditioner.embedders.0.a", "text_model.encoder.layers.0.a", "x.text_model.encoder.a",
        "encoder.block.0.layer.0.a",
    ),
    Kind.UPSCALER: (
        "conv_first.weight", "body.0.rdb1.conv1.weight", "model.1.sub.0.weight", "layers.0.residual_group.a",
    ),
    Kind.EMBEDDING: ("emb_params", "string_to_param.*", "clip_l", "clip_g", "<word>"),
    Kind.UNKNOWN: ("a.weight", "word", "a.hada_w3_a", "lora", "emb_params2", "clip_h"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_a_name_tells_the_kind(kind: Kind, name: str) -> None:
    for names in ([name], ["something.else", name]):
        assert recognise_tensors(dict.fromkeys(names, (5, 7))).kind is kind


OTHERS = {
    "HunyuanVideo": ("a.individual_token_refiner.a", "context_embedder.token_refiner.a"),
    "Hunyuan-DiT": ("mlp_t5.0.weight", "a.text_embedding_padding", "time_extra_emb.a"),
    "Chroma": ("distilled_guidance_layer.a",),
    "Qwen-Image": ("transformer_blocks.0.txt_mlp.a", "transformer_blocks.0.txt_mod.a"),
    "HiDream": ("double_stream_blocks.0.a",),
    "Wan": ("time_projection.1.weight", "condition_embedder.time_proj.weight", f"{LDM}time_projection.1.weight"),
    "Mochi": ("t5_y_embedder.a", "t5_yproj.weight"),
    "CogVideoX": ("patch_embed.text_proj.weight",),
    "AuraFlow": ("double_layers.0.a", "joint_transformer_blocks.0.a"),
    "Flux.2": (
        "double_stream_modulation_img.lin.weight",
        "double_stream_modulation_txt.linear.weight",
        f"{LDM}single_stream_modulation.lin.weight",
    ),
    "Flux": ("double_blocks.0.a", "single_transformer_blocks.0.a"),
    "SD 3": (f"{LDM}joint_blocks.0.a", "transformer_blocks.0.attn.add_q_proj.weight"),
    "Stable Cascade": ("down_blocks.0.1.channelwise.0.weight", "clip_txt_mapper.weight"),
    "LTX-Video": ("patchify_proj.weight",),
    "Lumina": ("cap_embedder.0.weight",),
    "Sana": ("attention_y_norm.weight", "caption_norm.weight"),
    "PixArt": ("adaln_single.linear.weight", "y_embedder.y_proj.a"),
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in OTHERS.items() for name in names])
def test_a_name_tells_another_family(family: str, name: str) -> None:
    found = recognise_tensors({"transformer_blocks.0.x.a": (8,), name: (8,)})
    assert (found.kind, found.family) == (Kind.TRANSFORMER, family)


FOREIGN = {
    "SD 2.1 unCLIP": (
        "noise_augmentor.a", "embedder.model.visual.a", "image_normalizer.a", f"{LDM}class_embedding.linear_1.weight",
    ),
    "Zero123": ("cc_projection.weight",),
    "Stable Video Diffusion": (
        f"{LDM}input_blocks.1.0.time_stack.a", f"{LDM}input_blocks.1.0.time_mixer.a",
        f"{LDM}down_blocks.0.resnets.0.temporal_res_block.a", f"{LDM}add_time_x_temporal",
    ),
    "AnimateDiff": (f"{LDM}input_blocks.1.1.temporal_transformer.a",),
    "text-to-video": (
        f"{LDM}a.temopral_conv.a", f"{LDM}a.temp_convs.0.a", f"{LDM}a.temp_attentions.0.a", f"{LDM}transformer_in.a",
    ),
    "GLIGEN": (f"{LDM}a.fuser.a", f"{LDM}position_net.a"),
    "SD 2.x depth": ("depth_model.a",),
    "x4 upscaler": ("low_scale_model.a", f"{LDM}label_emb.weight", f"{LDM}class_embedding.weight"),
    "latent diffusion with BERT": (
        "cond_stage_model.transformer.attn_layers.a", "cond_stage_model.transformer.token_emb.a",
        "bert.transformer.attn_layers.a",
    ),
    "Kandinsky 2": (
        f"{LDM}add_embedding.image_a", f"{LDM}add_embedding.text_norm.a", f"{LDM}add_embedding.text_proj.a",
        f"{LDM}encoder_hid_proj.image_a", f"{LDM}encoder_hid_proj.text_a", f"{LDM}ln_model_n.a",
    ),
    "DeepFloyd IF": (
        f"{LDM}add_embedding.norm1.a", f"{LDM}add_embedding.pool.a", f"{LDM}add_embedding.proj.a",
        f"{LDM}add_embedding.norm2.a", f"{LDM}encoder_pooling.a",
    ),
    "Kandinsky 3": (f"{LDM}add_time_condition.a", f"{LDM}projection_linear.a"),
    "Kolors": (f"{LDM}encoder_hid_proj.weight",),
    "ControlNet-XS": (
        f"{LDM}a.base_to_ctrl.a", f"{LDM}control_to_base_a", f"{LDM}ctrl_a", f"{LDM}base_down_blocks.a",
        f"{LDM}base_up_blocks.a", f"{LDM}base_mid_blocks.a",
    ),
    "IP-Adapter and UNet": (f"{LDM}a.to_k_ip.weight", f"{LDM}a.to_v_ip.weight"),
    "unconditional diffusion": (
        f"{LDM}mid_block.attentions.0.to_q.weight", f"{LDM}down_blocks.1.attentions.0.query.weight",
        f"{LDM}input_blocks.1.1.qkv.weight", f"{LDM}middle_block.1.qkv.weight", f"{LDM}output_blocks.1.1.qkv.weight",
    ),
    "AudioLDM": ("vocoder.a", "clap.a", "cond_stage_model.model.audio_branch.a"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in FOREIGN.items() for name in names])
def test_a_name_tells_that_a_unet_is_no_stable_diffusions(family: str, name: str) -> None:
    plain = {f"{LDM}input_blocks.0.0.weight": (8, 4, 3, 3), "first_stage_model.a": (1,), "cond_stage_model.a": (1,)}
    assert recognise_tensors(plain).kind is Kind.CHECKPOINT
    found = recognise_tensors({**plain, name: (8,)})
    assert (found.kind, found.family) == (Kind.TRANSFORMER, family)


def checkpoint(width: int, *prefixes: str, more: Mapping[str, Sequence[int]] | None = None) -> Architecture:
    shapes: dict[str, Sequence[int]] = {
        f"{LDM}input_blocks.0.0.weight": (8, 4, 3, 3),
        f"{LDM}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (8, width),
        **{f"{prefix}a": (1,) for prefix in prefixes},
    }
    return recognise_tensors({**shapes, **(more or {})})


@pytest.mark.parametrize(
    ("prefixes", "kind", "lacks"),
    [
        (("first_stage_model.", "cond_stage_model."), Kind.CHECKPOINT, ()),
        (("first_stage_model.", "conditioner.embedders."), Kind.CHECKPOINT, ()),
        (("first_stage_model.",), Kind.CHECKPOINT, ("text encoder",)),
        (("cond_stage_model.",), Kind.CHECKPOINT, ("VAE",)),
        ((), Kind.UNET, ("text encoder", "VAE")),
    ],
)
@pytest.mark.parametrize(("width", "family"), [(768, SD1), (1024, SD2), (2048, SDXL), (1280, REFINER), (999, None)])
def test_what_a_checkpoint_holds(
    width: int, family: str | None, prefixes: tuple[str, ...], kind: Kind, lacks: tuple[str, ...]
) -> None:
    assert checkpoint(width, *prefixes) == Architecture(kind, family, None, lacks)
    assert FAMILY_OF_WIDTH.get(width) == family


@pytest.mark.parametrize(
    ("inputs", "outputs", "variant"),
    [
        (4, 4, None), (9, 4, "inpainting"), (8, 4, "instruct-pix2pix"), (5, 4, "depth"), (7, 4, "upscaler"),
        (16, 16, None), (33, 16, "inpainting"), (32, 16, "instruct-pix2pix"), (17, 16, "depth"), (19, 16, "upscaler"),
        (9, 16, "9 channels of input, 16 of output"), (4, 8, "4 channels of input, 8 of output"),
    ],
)  # fmt: skip
def test_what_a_unet_takes_beside_latents(inputs: int, outputs: int, variant: str | None) -> None:
    assert unet_variant(inputs, outputs) == variant
    more = {f"{LDM}input_blocks.0.0.weight": (8, inputs, 3, 3), f"{LDM}out.2.weight": (outputs, 8, 3, 3)}
    assert checkpoint(768, "first_stage_model.", more=more).variant == variant
    assert checkpoint(768, more={**more, "v_pred": ()}).variant == (variant or "v-prediction")
    plain = {"conv_in.weight": (8, inputs, 3, 3), "conv_out.weight": (outputs, 8, 3, 3)}
    assert recognise_tensors({**plain, "down_blocks.0.resnets.0.a": (1,)}).variant == variant
    alone = {f"{LDM}input_blocks.0.0.weight": (8, inputs, 3, 3)}  # without an end it makes latents of 4 channels
    assert checkpoint(768, more=alone).variant == unet_variant(inputs, 4)


@pytest.mark.parametrize(
    ("shapes", "family"),
    [
        ({"a": (2, 768)}, SD1),
        ({"a": (1024,)}, SD2),
        ({"a": (2, 768), "b": (2, 1280)}, SDXL),
        ({"a": (2, 1280)}, SDXL),
        ({"a": (2, 2048)}, SDXL),
        ({"a": (2, 768), "b": (3, 768)}, SD1),
    ],
)
def test_vectors_of_a_text_encoders_width_are_a_words(shapes: dict[str, tuple[int, ...]], family: str) -> None:
    assert recognise_tensors(shapes) == Architecture(Kind.EMBEDDING, family)


@pytest.mark.parametrize(
    "shapes",
    [{"a": (2, 769)}, {"a": (1, 2, 768)}, {"a": ()}, {"a": (768,), "b": (5,)}, dict.fromkeys("abc", (768,)), {}],
)
def test_other_few_tensors_are_no_word(shapes: dict[str, tuple[int, ...]]) -> None:
    assert recognise_tensors(shapes) == Architecture(Kind.UNKNOWN)


@pytest.mark.parametrize(
    ("name", "shape", "family"),
    [
        ("lora_unet_mid_block_attn2_to_k.lora_down.weight", (4, 768), SD1),
        ("unet.mid.attn2.to_k.lora_A.weight", (4, 1024), SD2),
        ("unet.mid.attn2.processor.to_k.lora.down.weight", (4, 2048), SDXL),
        ("lora_te2_a.lora_down.weight", (4, 5), SDXL),
        ("lora_te1_a.lora_down.weight", (4, 768), None),
        ("lora_unet_mid_block_attn1_to_k.lora_down.weight", (4, 768), None),
        ("unet.mid.attn2.to_k.lora_A.weight", (4,), None),
        ("lora_unet_joint_blocks_0_a.lora_down.weight", (4, 768), "SD 3"),
    ],
)
def test_the_family_of_an_adapter(name: str, shape: tuple[int, ...], family: str | None) -> None:
    assert recognise_tensors({name: shape}) == Architecture(Kind.LORA, family)


def test_names_behind_a_wrapper() -> None:
    plain = {f"{LDM}input_blocks.0.0.weight": 1, f"{LDM}out.2.weight": 2, "first_stage_model.a": 3}
    assert unwrapped(plain) is plain
    inner = {name.removeprefix("model."): value for name, value in plain.items()}
    assert unwrapped(inner) == plain
    for wrap in ("module.", "a.b."):
        assert unwrapped({wrap + name: value for name, value in plain.items()}) == plain
        assert unwrapped({wrap + name: value for name, value in inner.items()}) == plain
    clash = {**inner, f"{LDM}out.2.weight": 9}
    assert unwrapped(clash) is clash
    other = {"down_blocks.0.a": 1}
    assert unwrapped(other) is other
    assert unwrapped({"diffusion_model.conv_in.weight": 1}) == {f"{LDM}conv_in.weight": 1}
