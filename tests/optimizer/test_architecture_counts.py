"""Counts of architectures and of a target's operators against sums that are made here by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import load

from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import CLIP_SKIP, IMAGE_TOKENS, PLAIN
from sdort.lowering.component_report import ComponentReport
from sdort.optimizer import expected
from sdort.optimizer.expected import Expectation, architecture, check_expected, config_misses, fused_forms
from sdort.passes.expand import STEP_NAME as EXPAND
from sdort.rewrite.apply import Outcome

T5: dict[str, Any] = {
    "architectures": ["T5EncoderModel"], "model_type": "t5", "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2,
    "num_heads": 2, "vocab_size": 16, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
UNET: dict[str, Any] = {
    "block_out_channels": [32, 64, 64],
    "layers_per_block": [1, 2, 3],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"],
    "transformer_layers_per_block": [1, 7, [3, 1, 2]],
    "reverse_transformer_layers_per_block": [[2, 4, 1, 1], 7, [5, 6]],
    "only_cross_attention": [True, False, False],
}
"""Down: 1 transformer of one block with cross attention only, and 3 of 3 + 1 + 2. Middle: one of 3. Up: 4 of 2 + 4 + 1
+ 1 blocks, and 2 of 5 + 6 with cross attention only. 6 + 2 + 9 resnets; 1 + 9 of them change the width."""
TRANSFORMERS, BLOCKS, CROSS_ONLY = 1 + 3 + 1 + 4 + 2, 1 + 6 + 3 + 8 + 11, 1 + 11
RESNETS, SHORTCUTS = 6 + 2 + 9, 1 + 9
SUMS = {
    "attention_self": BLOCKS - CROSS_ONLY,
    "attention_cross": BLOCKS + CROSS_ONLY,
    "transformer": TRANSFORMERS,
    "geglu": BLOCKS,
    "layer_norm": 3 * BLOCKS,
    "skip_layer_norm": 3 * BLOCKS - TRANSFORMERS,
    "conv": 2 + 2 * RESNETS + SHORTCUTS + 2 + 2 + 2 * TRANSFORMERS,
    "group_norm": 1 + 2 * RESNETS + TRANSFORMERS,
    "group_norm_silu": 1 + 2 * RESNETS,
}
MIDDLE = {"attention_self": 3, "attention_cross": 3, "transformer": 1, "geglu": 3, "layer_norm": 9,
          "skip_layer_norm": 8, "conv": 6, "group_norm": 5, "group_norm_silu": 4}  # fmt: skip
UNETS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "levels that differ": ({}, SUMS),
    "linear projections": ({"use_linear_projection": True}, SUMS | {"conv": SUMS["conv"] - 2 * TRANSFORMERS}),
    "swish": ({"act_fn": "swish"}, SUMS),
    "gelu": ({"act_fn": "gelu"}, SUMS | {"group_norm_silu": 0, "gelu": 1 + 2 + 2 * RESNETS}),
    "mish": ({"act_fn": "mish"}, SUMS | {"group_norm_silu": 0}),
    "scale and shift": ({"resnet_time_scale_shift": "scale_shift"}, SUMS | {"group_norm_silu": 1 + RESNETS}),
    "no middle": ({"mid_block_type": None}, {key: number - MIDDLE[key] for key, number in SUMS.items()}),
    "a plain middle": (
        {"mid_block_type": "UNetMidBlock2D"},
        {
            key: number - MIDDLE[key] + {"conv": 2, "group_norm": 2, "group_norm_silu": 2}.get(key, 0)
            for key, number in SUMS.items()
        },
    ),
}


@pytest.mark.parametrize(("change", "sums"), UNETS.values(), ids=UNETS)
def test_each_level_of_a_unet_has_its_own_layers_and_depths(change: dict[str, Any], sums: dict[str, int]) -> None:
    assert +architecture(UNET | change, "unet") == +Counter(sums)


def test_the_way_up_is_the_way_down_in_reverse_where_nothing_else_is_said() -> None:
    config = UNET | {"reverse_transformer_layers_per_block": None, "transformer_layers_per_block": [1, 7, 4]}
    # Down 1, 3 times 4, the middle 4; up 4 times 4, then twice 1.
    assert architecture(config, "unet")["geglu"] == 1 + 12 + 4 + 16 + 2
    assert architecture(config, "unet")["attention_self"] == 12 + 4 + 16


CONTROL = UNET | {"conditioning_embedding_out_channels": [16, 24, 32, 48]}
# conv_in; 6 + 2 resnets, of which one changes the width; two downsamplers; 5 transformers. Behind conv_in, 6 layers,
# the downsamplers and the middle stands one each. The image's embedding: at both ends, and two a step of three.
CONTROL_CONV = 1 + 2 * 8 + 1 + 2 + 2 * 5 + (1 + 6 + 2 + 1) + (2 + 2 * 3)
CONTROLS: dict[str, tuple[dict[str, Any], int]] = {
    "levels that differ": ({}, CONTROL_CONV),
    "two more in the embedding": ({"conditioning_embedding_out_channels": [8, 16, 24, 32, 48, 64]}, CONTROL_CONV + 4),
    "the same layers everywhere": ({"layers_per_block": 1, "transformer_layers_per_block": 2},
                                   CONTROL_CONV - 3 * 3 - 2 * 2),
    "two layers where nothing is said": ({"layers_per_block": None, "transformer_layers_per_block": 2}, CONTROL_CONV),
}  # fmt: skip


@pytest.mark.parametrize(("change", "convolutions"), CONTROLS.values(), ids=CONTROLS)
def test_convolutions_of_a_controlnet(change: dict[str, Any], convolutions: int) -> None:
    config = {key: value for key, value in (CONTROL | change).items() if value is not None}
    # Two layers a level: as many resnets as 1 + 2 + 3, and 2 + 2 + 1 transformers.
    assert architecture(config, "controlnet")["conv"] == convolutions
    assert architecture(config, "controlnet")["geglu"] > 0


ADAPTERS: dict[str, tuple[str, list[int], int, int]] = {
    # Blocks from the image to the first width, between widths and at the end: each one more on both sides.
    "light": ("light_adapter", [8, 16, 16], 2, 4 * (1 + 2 * 2 + 1)),
    "light, three": ("light_adapter", [8, 16], 3, 3 * (1 + 2 * 3 + 1)),
    # One for the image; two a residual block; one where a block changes the width.
    "full": ("full_adapter", [8, 16, 24, 24], 2, 1 + 4 * 2 * 2 + 2),
    "full, all wider": ("full_adapter", [8, 16, 24, 32], 1, 1 + 4 * 2 + 3),
    # Of XL, only the second and the third block change it.
    "full for XL": ("full_adapter_xl", [8, 16, 24, 32], 2, 1 + 4 * 2 * 2 + 2),
    "full for XL, one wider": ("full_adapter_xl", [8, 8, 24, 32], 2, 1 + 4 * 2 * 2 + 1),
}


@pytest.mark.parametrize(("kind", "channels", "blocks", "convolutions"), ADAPTERS.values(), ids=ADAPTERS)
def test_convolutions_of_a_t2i_adapter(kind: str, channels: list[int], blocks: int, convolutions: int) -> None:
    config = {"adapter_type": kind, "channels": channels, "num_res_blocks": blocks}
    assert architecture(config, "t2i_adapter") == Counter(conv=convolutions)


VAE: dict[str, Any] = {
    "block_out_channels": [16, 32, 32],
    "layers_per_block": 2,
    "down_block_types": ["DownEncoderBlock2D"] * 3,
    "up_block_types": ["UpDecoderBlock2D"] * 3,
}
VAES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    # In, out, at the latent; 6 resnets and 2 of the middle; one wider; two downsamplers.
    "encoder": ("vae_encoder", {}, {"conv": 3 + 2 * 8 + 1 + 2, "group_norm": 1 + 16 + 1, "attention_self": 1}),
    "encoder, nothing at the latent": ("vae_encoder", {"use_quant_conv": False, "use_post_quant_conv": True},
                                       {"conv": 2 + 2 * 8 + 1 + 2, "group_norm": 18, "attention_self": 1}),
    # A layer more a level; from 32 to 16 once.
    "decoder": ("vae_decoder", {}, {"conv": 3 + 2 * 11 + 1 + 2, "group_norm": 1 + 22 + 1, "attention_self": 1}),
    "decoder, nothing at the latent": ("vae_decoder", {"use_quant_conv": True, "use_post_quant_conv": False},
                                       {"conv": 2 + 2 * 11 + 1 + 2, "group_norm": 24, "attention_self": 1}),
    "decoder without attention": ("vae_decoder", {"mid_block_add_attention": False},
                                  {"conv": 3 + 2 * 11 + 1 + 2, "group_norm": 23, "attention_self": 0}),
    "encoder of three widths": ("vae_encoder", {"block_out_channels": [16, 24, 32]},
                                {"conv": 3 + 2 * 8 + 2 + 2, "group_norm": 18, "attention_self": 1}),
    # Three in each block, one between levels and at both ends.
    "tiny encoder": ("vae_encoder", {"num_encoder_blocks": [1, 3, 2], "num_decoder_blocks": [5]},
                     {"conv": 4 + 3 * 6, "group_norm": 0, "attention_self": 0}),
    "tiny decoder": ("vae_decoder", {"num_encoder_blocks": [5], "num_decoder_blocks": [2, 3, 3, 1]},
                     {"conv": 5 + 3 * 9, "group_norm": 0, "attention_self": 0}),
}  # fmt: skip


@pytest.mark.parametrize(("component", "change", "sums"), VAES.values(), ids=VAES)
def test_parts_of_both_halves_of_a_vae(component: str, change: dict[str, Any], sums: dict[str, int]) -> None:
    found = architecture(VAE | change, component)
    assert {key: found[key] for key in sums} == sums


@pytest.mark.parametrize("hidden_act", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("kinds", ["w", "p", "ww", "wp", "pp"])
def test_an_image_encoder_ends_where_its_projections_take_it(kinds: str, hidden_act: str) -> None:
    made: list[dict[str, Any]] = [
        {"kind": PLAIN} if kind == "w" else {"kind": "plus", "depth": 2 + index} for index, kind in enumerate(kinds)
    ]
    found = architecture({"projections": made, "num_hidden_layers": 5, "hidden_act": hidden_act}, "image_encoder")
    layers = 5 if "w" in kinds else 4
    # Two norms a layer, one before them, one of the pooled state; the first layer's first norm follows no sum.
    norms, sums = 2 * layers + 1 + ("w" in kinds), 2 * layers - 1
    cross = 0
    for projection in made:
        depth = int(projection.get("depth", 0))
        # Norms of the image's states, of the queries, of the network, and the last one.
        # A plain one has the norm of an image's tokens and that of no image's.
        norms += 3 * depth + 1 if depth else 2
        sums += 2 * depth - 1 if depth else 0
        cross += depth
    gelus = {"quick_gelu": 0, "gelu": cross}
    gelus[hidden_act] += layers
    counts = {"conv": 1, "attention_self": layers, "attention_cross": cross, "layer_norm": norms, **gelus}
    wanted = Counter(counts) + Counter(skip_layer_norm=sums)
    assert +found == +wanted


@pytest.mark.parametrize(
    ("component", "config", "words"),
    [
        ("vae_encoder", VAE | {"down_block_types": ["DownEncoderBlock2D", "Odd", "Odd"]}, "unknown down_block_types"),
        ("vae_decoder", VAE | {"up_block_types": ["UpDecoderBlock2D", "Odd", "Odd"]}, "unknown up_block_types"),
        ("image_encoder", {"projections": [], "num_hidden_layers": 2, "hidden_act": "relu"}, "unknown hidden_act"),
        ("unet", UNET | {"mid_block_type": "Odd"}, "unknown block type"),
        ("unet", UNET | {"cross_attention_norm": "group_norm"}, "unknown cross_attention_norm"),
        ("controlnet", CONTROL | {"attention_type": "gated"}, "unknown attention_type"),
        ("controlnet", UNET, "has no 'conditioning_embedding_out_channels'"),
        ("t2i_adapter", {"adapter_type": "full_adapter", "channels": [8]}, "has no 'num_res_blocks'"),
        ("unet", UNET | {"layers_per_block": [1, 2]}, "contradicts itself"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_unknown_of_an_architecture_is_said(component: str, config: dict[str, Any], words: str) -> None:
    with pytest.raises(BadModelError) as raised:
        architecture(config, component)
    assert words in raised.value.message


KERNELS = ("Attention", "Gelu", "NhwcConv", "GroupNorm", "BiasSplitGelu", "QuickGelu")
NORMS = ("GroupNorm", "SkipGroupNorm", "BiasGroupNorm")
MODULATED = tuple(f"{how}ModulatedLayerNormalization" for how in ("", "Twice", "Gated", "GatedTwice"))
RMS = ("ModulatedRMSNormalization", *["GatedModulatedRMSNormalization"] * 2)
"""The last one has two norms."""


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel_of_a_target_decides_over_its_own_operators(kernel: str) -> None:
    """What a target lacks of all kernels, and what each of them changes there and nowhere else."""

    def forms(kernels: set[str]) -> dict[str, tuple[Any, ...]]:
        target: Any = SimpleNamespace(conditions={f"com.microsoft.{name}": None for name in kernels})
        return {
            name: (form.keys, form.operators, form.at_least, form.attributes)
            for name, form in fused_forms(target).items()
        }

    every = (("attention_self", "attention_cross"), ("MultiHeadAttention", "Softmax"), False, ())
    gelus = (("geglu", "gelu"), ("Erf", "BiasGelu", "FastGelu", "SplitFastGelu"), False, ())
    none = {
        "attention": every,
        "layer_norm": (
            ("layer_norm",),
            ("LayerNormalization", "SkipLayerNormalization", "BiasLayerNormalization", *MODULATED),
            False,
            (),
        ),
        "skip_layer_norm": (("skip_layer_norm",), ("SkipLayerNormalization",), True, ()),
        "rms_norm": (
            ("rms_norm",),
            ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormRotaryEmbedding", *RMS),
            False,
            (),
        ),
        "rotary": (("rotary",), ("RotaryEmbedding", "RMSNormRotaryEmbedding"), True, ()),
        "quick_gelu": (("quick_gelu",), ("QuickGelu",), False, ()),
        "conv": (("conv",), ("Conv",), True, ()),
        "group_norm": (("group_norm",), ("InstanceNormalization",), False, ()),
        "geglu": gelus,
    }
    split = {"geglu": (("geglu",), ("BiasSplitGelu",), False, ()), "gelu": (("gelu",), *gelus[1:])}
    changes: dict[str, dict[str, tuple[Any, ...]]] = {
        "Attention": {"attention": (every[0], ("MultiHeadAttention", "Attention"), False, ())},
        "Gelu": {"geglu": (gelus[0], ("Gelu", "BiasGelu", "FastGelu", "SplitFastGelu"), False, ())},
        "NhwcConv": {"conv": (("conv",), ("NhwcConv",), False, ())},
        "GroupNorm": {
            "group_norm": (("group_norm",), NORMS, False, ()),
            "group_norm_silu": (("group_norm_silu",), NORMS, False, (("activation", 1),)),
        },
        "BiasSplitGelu": split,
        "QuickGelu": {},
    }
    assert forms(set()) == none
    assert forms({kernel}) == none | changes[kernel]
    if kernel == "BiasSplitGelu":
        assert forms({kernel, "Gelu"})["gelu"] == (("gelu",), ("Gelu", *gelus[1][1:]), False, ())


def test_own_operators_stand_for_as_many_parts_as_they_have() -> None:
    """A norm that is modulated twice, gated sums with a norm and without one, halves that are multiplied."""
    names = [*MODULATED, *RMS[:2], "GatedSum", "SplitSilu", "SplitFastGelu"]
    inputs = ", ".join(f"float x{index}" for index in range(len(names)))
    outputs = ", ".join(f"float y{index}" for index in range(len(names)))
    nodes = "  ".join(f"y{index} = sdort.{name} (x{index})" for index, name in enumerate(names))
    graph = gs.import_onnx(onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18, "sdort": 1]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    ))  # fmt: skip
    counted = {name: Expectation(name, form.operators, 0).count_in(graph) for name, form in expected.OWN.items()}
    assert counted == {"modulation": 8, "gated_sum": 4, "swiglu": 1, "gated_gelu": 1}
    assert Expectation("rms", expected.NORMS["rms_norm"].operators, 3).miss(graph) is None
    standard = "LayerNormalization+SkipLayerNormalization+BiasLayerNormalization"
    miss = f"layer: expected 5 {standard}+{'+'.join(MODULATED)}, found 4"
    assert Expectation("layer", expected.NORMS["layer_norm"].operators, 5).miss(graph) == miss


@pytest.mark.parametrize("own", [False, True])
def test_a_component_is_held_to_its_own_operators_where_they_are_used(own: bool, tmp_path: Path) -> None:
    """T5's gated Gelus, whatever a target declined of the rest."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(T5))
    model = load("g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }")
    model.component = "text_encoder"
    report = ComponentReport("text_encoder", operators_raised={"Attention": 2, "RMSNormalization": 5, "Gelu": 2})
    report.fusions["multi_head_attention"] = Outcome("multi_head_attention", declined={"no mask": 1})
    wanted = ["gated_gelu: expected 2 SplitFastGelu, found 0"] if own else []
    assert config_misses(model, config, "rocm", report, own) == wanted


@pytest.mark.parametrize("declines", ["nothing", "an expansion", "a fusion"])
@pytest.mark.parametrize("provider", ["rocm", "cpu"])
def test_a_fused_graph_is_held_to_its_config_where_the_target_declined_nothing(
    provider: str, declines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    counted = [
        Expectation("conv", ("Conv",), 2),
        Expectation("gelu", ("Gelu", "Erf"), 5),
        Expectation("attention", ("Attention",), 3),
    ]

    def stated(settings: Any, component: str, target: str, clip_skips: int, images: int) -> list[Expectation]:
        calls.append((settings, component, target, clip_skips, images))
        return counted if target == "raised" else [Expectation("relu", ("Relu",), 2), Expectation("neg", ("Neg",), 1)]

    monkeypatch.setattr(expected, "expected_operators", stated)
    monkeypatch.setattr(expected, "read_component_config", lambda path, component: {"of": (path.name, component)})
    model = load("g (float[2, 3] x, float[2, 3] y) => (float[2, 3] z) { a = Relu (x)  b = Neg (a)  z = Add (b, y) }")
    model.component = "unet"
    model.graph.inputs[1].name = f"{IMAGE_TOKENS}.0"
    model.graph.outputs += [gs.Variable(f"{CLIP_SKIP}.{number}") for number in (1, 2, 3)]
    report = ComponentReport("unet", operators_raised={"Conv": 2, "Gelu": 1, "Erf": 3})
    if declines != "nothing":
        name = EXPAND if declines == "an expansion" else "group_norm"
        report.fusions[name] = Outcome(name, declined={"no kernel": 1})
    config = tmp_path / "config.json"
    assert config_misses(model, config, provider, report) is None
    config.write_text("{}")
    raised = ["gelu: expected 5 Gelu+Erf, found 4", "attention: expected 3 Attention, found 0"]
    fused = ["relu: expected 2 Relu, found 1"] if provider == "rocm" and declines != "a fusion" else []
    assert config_misses(model, config, provider, report) == raised + fused
    of = {"of": ("config.json", "unet")}
    assert calls == [(of, "unet", "raised", 3, 1), (of, "unet", provider, 3, 1)]


@pytest.mark.parametrize(
    ("names", "unknown"),
    [
        (["Conv", "unet:Conv", "vae_decoder:com.microsoft.GroupNorm"], None),
        (["Conv", "unett:Conv"], "unett"),
        (["vae_encoder:sdort.GroupNorm"], "vae_encoder"),
        ([], None),
    ],
    ids=["known", "misspelt, the second", "not chosen", "none"],
)
def test_counts_are_asked_for_of_components_that_are_there(names: list[str], unknown: str | None) -> None:
    components = ["unet", "vae_decoder"]
    if unknown is None:
        check_expected(names, components)
        return
    with pytest.raises(UsageError) as raised:
        check_expected(names, components)
    assert raised.value.message == f"--expect {names[-1]}: there is no component {unknown!r}"
    assert "What is optimized: unet, vae_decoder." in str(raised.value.hint)
