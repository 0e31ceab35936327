"""Counts from configs, held against what the torch modules really call: nothing here reads an ONNX graph."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from support import full_size, models
from support.full_size import build_full
from support.models import Built
from torch.overrides import TorchFunctionMode

from sdort.errors import BadModelError
from sdort.lowering.component_report import ComponentReport
from sdort.optimizer.expected import Expectation, architecture, expected_operators, wrong_counts
from sdort.optimizer.summary import fused_operators
from sdort.providers import PROVIDER_NAMES

functional = torch.nn.functional


class Observer(TorchFunctionMode):  # type: ignore[misc]
    """Counts a forward pass's calls by what they are and by what their input came from."""

    def __init__(self, text_length: int) -> None:
        super().__init__()
        self.text_length = text_length
        self.counts: Counter[str] = Counter()
        self.made_by: dict[int, str] = {}
        self.activated: set[int] = set()
        self.kept: list[Any] = []  # keeps tensors alive, so that ids stay theirs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").strip("_")
        source = self.made_by.get(id(args[0])) if args else None
        if isinstance(result, torch.Tensor):
            self.made_by[id(result)] = name
            self.kept.append(result)
        self.note(name, source, args, kwargs or {})
        return result

    def note(self, name: str, source: str | None, args: Any, kwargs: Any) -> None:
        if name == "group_norm":
            self.counts["group_norm"] += 1
        elif name == "silu":
            self.counts["group_norm_silu"] += source == "group_norm"
        elif name == "layer_norm":
            self.counts["layer_norm"] += 1
            self.counts["skip_layer_norm"] += source in ("add", "iadd")
        elif name == "gelu":
            # Resnets share that of the time embedding, which is one node in a graph.
            self.counts["gelu"] += id(args[0]) not in self.activated
            self.activated.add(id(args[0]))
            self.kept.append(args[0])  # a part of a tensor is no result that is kept above
        elif name == "sigmoid":
            self.counts["quick_gelu"] += 1
        elif name == "scaled_dot_product_attention":
            self.counts["attention_cross" if args[1].shape[-2] == self.text_length else "attention_self"] += 1
            self.counts["attention_causal"] += bool(kwargs.get("is_causal")) or kwargs.get("attn_mask") is not None


def observe(built: Built) -> Counter[str]:
    """Run the module and count; its convolutions are modules, so they are counted by hooks."""
    text_length = built.inputs["encoder_hidden_states"].shape[1] if built.component == "unet" else -1
    observer = Observer(text_length)

    def called(*_: Any) -> None:
        observer.counts["conv"] += 1

    hooks = [m.register_forward_hook(called) for m in built.module.modules() if isinstance(m, torch.nn.Conv2d)]
    with observer, torch.no_grad():
        built.module(*built.inputs.values())
    for hook in hooks:
        hook.remove()
    return +observer.counts


def as_observed(config: dict[str, Any], component: str) -> Counter[str]:
    """The expected counts in the observer's words."""
    counts = architecture(config, component)
    counts["gelu"] += counts.pop("geglu", 0)
    counts.pop("transformer", None)
    if component.startswith("text"):  # plus the first norm, whose input is token plus position embedding
        counts["skip_layer_norm"] += 1
    return +counts


@pytest.mark.parametrize("name", full_size.NAMES)
def test_full_architectures_call_what_their_configs_say(name: str) -> None:
    built = build_full(name)
    assert as_observed(built.config, built.component) == observe(built)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_tiny_architectures_call_what_their_configs_say(family: str) -> None:
    built = models.build(family)
    assert as_observed(built.config, built.component) == observe(built)


UNET_VARIANTS: dict[str, dict[str, Any]] = {
    "layers per level": {"layers_per_block": [1, 2, 3]},
    "depth per level": {"transformer_layers_per_block": [3, 1, 2]},
    "depth per layer": {
        "transformer_layers_per_block": [[1, 2], [2, 1], [1, 1]],
        "reverse_transformer_layers_per_block": [[1, 1, 1], [2, 1, 3], [1, 2, 1]],
        "layers_per_block": 2,
        "mid_block_type": "UNetMidBlock2D",
    },
    "only cross attention": {"only_cross_attention": True},
    "only cross attention in a level": {"only_cross_attention": [True, False, False]},
    "no mid block": {"mid_block_type": None},
    "no attention": {
        "down_block_types": ("DownBlock2D",) * 3,
        "up_block_types": ("UpBlock2D",) * 3,
        "mid_block_type": "UNetMidBlock2D",
    },
    "same width everywhere": {"block_out_channels": (32, 32, 32)},
    "scale and shift": {"resnet_time_scale_shift": "scale_shift"},
    "another activation": {"act_fn": "mish"},
    "gelu": {"act_fn": "gelu"},
}


@pytest.mark.parametrize("variant", UNET_VARIANTS)
def test_unet_settings(variant: str) -> None:
    with torch.device("meta"):
        model = UNet2DConditionModel(**{**models.UNET_SD1, **UNET_VARIANTS[variant]}).eval()
        inputs = {
            "sample": torch.empty(1, 4, 16, 16),
            "timestep": torch.empty(1, dtype=torch.int64),
            "encoder_hidden_states": torch.empty(1, 7, 40),
        }
        config = dict(model.config)
        built = Built("unet", config, models.UNet(model), inputs, [], {}, model)
        assert as_observed(config, "unet") == observe(built)
    # A config.json holds lists where Python has tuples.
    assert architecture(json.loads(json.dumps(config)), "unet") == architecture(config, "unet")


VAE_VARIANTS: dict[str, dict[str, Any]] = {
    "without the latent's convolutions": {"use_quant_conv": False, "use_post_quant_conv": False},
    "only the encoder's": {"use_post_quant_conv": False},
    "no attention": {"mid_block_add_attention": False},
    "three layers": {"layers_per_block": 3, "block_out_channels": (16, 16, 32)},
    "another activation": {"act_fn": "mish"},
    "gelu": {"act_fn": "gelu"},
}


@pytest.mark.parametrize("component", ["vae_encoder", "vae_decoder"])
@pytest.mark.parametrize("variant", VAE_VARIANTS)
def test_vae_settings(component: str, variant: str) -> None:
    with torch.device("meta"):
        model = AutoencoderKL(**{**models.VAE_CONFIG, **VAE_VARIANTS[variant]}).eval()
        module = (models.VaeEncoder if component == "vae_encoder" else models.VaeDecoder)(model)
        sample = torch.empty(1, 3 if component == "vae_encoder" else 4, 16, 24)
        built = Built(component, dict(model.config), module, {"sample": sample}, [], {}, model)
        assert as_observed(built.config, component) == observe(built)


def test_stated_counts_of_stable_diffusion() -> None:
    """The numbers that are known for these models, so that counter and observer cannot be wrong together."""
    sd15 = architecture(build_full("sd15").config, "unet")
    assert (sd15["attention_self"], sd15["attention_cross"]) == (16, 16)
    assert (sd15["group_norm"], sd15["group_norm_silu"], sd15["conv"]) == (61, 45, 98)
    assert (sd15["layer_norm"], sd15["skip_layer_norm"], sd15["geglu"]) == (48, 32, 16)
    sdxl = architecture(build_full("sdxl").config, "unet")
    assert (sdxl["attention_self"] + sdxl["attention_cross"], sdxl["geglu"]) == (140, 70)


@pytest.mark.parametrize(
    ("component", "change", "message"),
    [
        ("unet", {"down_block_types": ("AttnDownBlock2D",) * 3}, "AttnDownBlock2D"),
        ("unet", {"mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}, "UNetMidBlock2DSimpleCrossAttn"),
        ("unet", {"attention_type": "gated"}, "gated"),
        ("unet", {"addition_embed_type": "image"}, "image"),
        ("unet", {"layers_per_block": [2]}, "contradicts itself"),
        ("unet", {"block_out_channels": "wide"}, "contradicts itself"),
        ("vae_encoder", {"down_block_types": ["AttnDownEncoderBlock2D"]}, "AttnDownEncoderBlock2D"),
        ("text_encoder", {"hidden_act": "relu", "num_hidden_layers": 1}, "relu"),
        ("safety_checker", {}, "safety_checker"),
    ],
)
def test_unknown_architectures_are_refused(component: str, change: dict[str, Any], message: str) -> None:
    base = models.VAE_CONFIG if component.startswith("vae") else models.UNET_SD1
    with pytest.raises(BadModelError, match=message):
        architecture({**base, **change}, component)


def test_a_config_without_its_channels_is_refused() -> None:
    with pytest.raises(BadModelError, match="block_out_channels"):
        architecture({}, "unet")


def graph_of(*nodes: gs.Node) -> gs.Graph:
    return gs.Graph(nodes=list(nodes))


@pytest.mark.parametrize(
    ("name", "found"), [("sdort.GroupNorm", 4), ("com.microsoft.GroupNorm", 5), ("GroupNorm", 9), ("Conv", 2)]
)
def test_an_operator_is_expected_in_its_domain_or_in_all(name: str, found: int) -> None:
    operators = {"com.microsoft.GroupNorm": 5, "sdort.GroupNorm": 4, "Conv": 2}
    components = {"unet": ComponentReport("unet", operators=operators)}
    assert wrong_counts({name: found}, components) == []
    assert fused_operators(components.values()) == {"GroupNorm": 9}
    assert wrong_counts({f"unet:{name}": 1}, components) == [f"--expect unet:{name}=1: found {found}"]


def test_expectations_count_nodes_and_their_attributes() -> None:
    plain = gs.Node("GroupNorm", attrs={"activation": 0})
    silu = gs.Node("SkipGroupNorm", attrs={"activation": 1})
    both = Expectation("group_norm", ("GroupNorm", "SkipGroupNorm"), 2)
    with_silu = Expectation("group_norm_silu", ("GroupNorm", "SkipGroupNorm"), 1, attributes=(("activation", 1),))
    assert both.miss(graph_of(plain, silu)) is None
    assert with_silu.miss(graph_of(plain, silu)) is None
    assert both.miss(graph_of(silu)) == "group_norm: expected 2 GroupNorm+SkipGroupNorm, found 1"
    assert with_silu.miss(graph_of(plain)) is not None
    assert both.miss(graph_of(plain, silu, plain)) is not None


def test_a_lower_bound_allows_more_but_not_less() -> None:
    bound = Expectation("skip_layer_norm", ("SkipLayerNormalization",), 1, at_least=True)
    skip = gs.Node("SkipLayerNormalization", attrs={"epsilon": np.float32(1e-5)})
    assert bound.miss(graph_of(skip, skip)) is None
    assert bound.miss(graph_of()) == "skip_layer_norm: expected at least 1 SkipLayerNormalization, found 0"


def test_the_raised_graph_has_the_standard_operators() -> None:
    expected = {e.name: e for e in expected_operators(build_full("sd15").config, "unet", "raised")}
    counts = {name: e.count for name, e in expected.items()}
    assert counts == {
        "attention": 32,
        "group_norm": 61,
        "conv": 98,
        "layer_norm": 48,
        "rms_norm": 0,
        "rotary": 0,
        "gelu": 16,
    }
    assert expected["conv"].difference(98) is None
    assert expected["conv"].difference(97) == "conv: expected 98 Conv, found 97"


@pytest.mark.parametrize("target", PROVIDER_NAMES)
def test_every_target_accounts_for_the_whole_architecture(target: str) -> None:
    config = build_full("sd15").config
    expected = {item.name: item for item in expected_operators(config, "unet", target)}
    assert expected["attention"].count == 32
    assert expected["group_norm"].count == 61
    assert expected["conv"].count == 98
    assert expected["geglu"].count == 16
    assert expected["layer_norm"].count == 48
    assert expected["skip_layer_norm"].count == 32
    assert expected["skip_layer_norm"].at_least
