"""Each swapped module against diffusers' own: all settings alone and in pairs, on images that are no squares.

torch's own operators compute, so that nothing has to be built: what is looked at is what a module does around them.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from diffusers.models.activations import GEGLU
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn

from sdort.integrations.torch_operators import definitions, fused_modules, replace


@pytest.fixture(autouse=True)
def _torchs_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(definitions, "serves", lambda _: False)
    with torch.no_grad():
        yield


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def drawn(module: Any) -> Any:
    """With weights that all count: no ones and no zeros."""
    for number, parameter in enumerate(module.parameters()):
        values = noise(*parameter.shape, seed=100 + number)
        parameter.copy_(values / max(1, parameter[0].numel()) ** 0.5 if parameter.dim() > 1 else 1 + 0.3 * values)
    return module.eval()


def assert_same(module: Any, *given: Any, **options: Any) -> None:
    """A module and its swapped copy."""
    ours = copy.deepcopy(module)
    report = replace(ours)
    assert report.replaced
    wanted, made = module(*given, **options), ours(*given, **options)
    pairs = zip(wanted, made, strict=True) if isinstance(wanted, tuple) else [(wanted, made)]
    for one, other in pairs:
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 2.0**-17 * one.abs().max()


def pairs(*settings: dict[str, Any]) -> list[dict[str, Any]]:
    """None of them, each, and every two."""
    found = [{}, *settings]
    return found + [{**a, **b} for a, b in itertools.combinations(settings, 2)]


ATTENTIONS = pairs(
    {"rescale_output_factor": 1.7},
    {"residual_connection": True},
    {"norm_num_groups": 4},
    {"bias": True},
    {"out_bias": False},
    {"heads": 1, "dim_head": 24},
    {"cross_attention_dim": 12},
    {"cross_attention_dim": 16, "cross_attention_norm": "layer_norm"},
    {"upcast_softmax": True},
)


@pytest.mark.parametrize("settings", ATTENTIONS, ids=str)
def test_attention(settings: dict[str, Any]) -> None:
    attention = drawn(Attention(16, **{"heads": 2, "dim_head": 8, **settings}))
    width = settings.get("cross_attention_dim")
    for shape in ((2, 6, 16), (2, 16, 3, 5)):
        text = None if width is None else noise(2, 4, width, seed=2)
        assert_same(attention, noise(*shape), encoder_hidden_states=text)
    assert type(attention.processor).__name__ == "AttnProcessor2_0"


@pytest.mark.parametrize(
    "settings", [{"qk_norm": "layer_norm"}, {"spatial_norm_dim": 16, "norm_num_groups": None}], ids=str
)
def test_attention_with_norms_of_its_own_is_diffusers(settings: dict[str, Any]) -> None:
    attention = drawn(Attention(32, heads=2, dim_head=16, **settings))
    if "qk_norm" in settings:
        assert_same(attention, noise(2, 6, 32))
        for name in ("norm_q", "norm_k"):
            one = copy.deepcopy(attention)
            setattr(one, name, None)
            assert_same(one, noise(2, 6, 32))
    else:
        assert_same(attention, noise(2, 32, 2, 3), temb=noise(2, 16, 2, 3, seed=3))


def test_attention_with_a_mask_is_diffusers() -> None:
    attention = drawn(Attention(16, heads=2, dim_head=8, residual_connection=True, rescale_output_factor=0.5))
    mask = torch.zeros(2, 6).masked_fill(torch.arange(6) > 3, -10000.0)[:, None]
    plain = attention(noise(2, 6, 16))
    assert (attention(noise(2, 6, 16), attention_mask=mask) - plain).abs().max() > 0.01
    assert_same(attention, noise(2, 6, 16), attention_mask=mask)


RESNETS = pairs(
    {"out_channels": 12},
    {"output_scale_factor": 1.7},
    {"skip_time_act": True},
    {"temb_channels": None},
    {"conv_shortcut": True, "out_channels": 8},
    {"use_in_shortcut": True},
    {"groups_out": 4},
    {"eps": 0.1},
)


@pytest.mark.parametrize("settings", RESNETS, ids=str)
def test_resnet_block(settings: dict[str, Any]) -> None:
    block = drawn(ResnetBlock2D(**{"in_channels": 8, "temb_channels": 6, "groups": 2, "dropout": 0.5, **settings}))
    for samples in (2, 1):  # an embedding for each, and one for all
        embedding = None if block.time_emb_proj is None else noise(samples, 6, seed=3)
        assert_same(block, noise(2, 8, 3, 5), embedding)


@pytest.mark.parametrize("bias", [True, False])
def test_gated_gelu(bias: bool) -> None:
    assert_same(drawn(GEGLU(8, 12, bias=bias)), 3 * noise(2, 5, 8))


def test_a_projection_of_somebodys_own_keeps_its_bias_once() -> None:
    class Own(nn.Linear):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = 2 * super().forward(x)
            return y

    gate = drawn(GEGLU(8, 12))
    gate.proj.register_forward_hook(lambda module, given, made: 2 * made)
    assert_same(gate, noise(2, 5, 8))
    gate = drawn(GEGLU(8, 12))
    gate.proj.__class__ = Own
    assert_same(gate, noise(2, 5, 8))


_BLOCKS = pairs(
    {"only_cross_attention": True},
    {"double_self_attention": True},
    {"attention_bias": True},
    {"norm_elementwise_affine": True, "norm_eps": 0.1},
    {"ff_bias": False},
    {"attention_out_bias": False},
    {"ff_inner_dim": 20},
)


BLOCKS = [each for each in _BLOCKS if not {"only_cross_attention", "double_self_attention"} <= each.keys()]
"""diffusers has no block of both."""


@pytest.mark.parametrize("settings", BLOCKS, ids=str)
def test_transformer_block(settings: dict[str, Any]) -> None:
    own = settings.get("double_self_attention")
    given = {"dim": 16, "num_attention_heads": 2, "attention_head_dim": 8, "activation_fn": "geglu"}
    block = drawn(BasicTransformerBlock(**given, cross_attention_dim=None if own else 12, **settings))
    text = None if own else noise(2, 4, 12, seed=2)
    assert_same(block, noise(2, 6, 16), encoder_hidden_states=text)
    ours = copy.deepcopy(block)
    assert replace(ours).replaced["BasicTransformerBlock"] == 1
    assert type(ours) is fused_modules.FusedTransformerBlock


@pytest.mark.parametrize("own", [False, True], ids=["cross", "self"])
@pytest.mark.parametrize("masked", ["attention_mask", "encoder_attention_mask"])
def test_each_mask_of_a_block_goes_to_its_attention(masked: str, own: bool) -> None:
    block = drawn(BasicTransformerBlock(16, 2, 8, cross_attention_dim=16, activation_fn="geglu"))
    mask = torch.zeros(2, 1, 6).masked_fill(torch.arange(6) > 2, -10000.0)
    text = noise(2, 6, 16, seed=2)
    options = {"encoder_hidden_states": text, masked: mask}
    plain = block(noise(2, 6, 16), encoder_hidden_states=text)
    assert (block(noise(2, 6, 16), **options) - plain).abs().max() > 0.01
    assert_same(block, noise(2, 6, 16), **options)
    both = {"attention_mask": mask, "encoder_attention_mask": mask.flip(-1)}
    assert_same(block, noise(2, 6, 16), encoder_hidden_states=text, **both)


def test_a_block_in_chunks_is_diffusers() -> None:
    block = drawn(BasicTransformerBlock(16, 2, 8, cross_attention_dim=12, activation_fn="geglu"))
    block.set_chunk_feed_forward(3, 1)
    assert_same(block, noise(2, 6, 16), encoder_hidden_states=noise(2, 4, 12, seed=2))
    replace(block)
    seen: list[torch.Size] = []
    block.ff.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape))
    block(noise(2, 6, 16), encoder_hidden_states=noise(2, 4, 12, seed=2))
    assert seen == [(2, 3, 16)] * 2


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_transformer_of_an_image_that_is_no_square(linear: bool, layers: int) -> None:
    model = drawn(
        Transformer2DModel(
            2, 8, in_channels=16, num_layers=layers, norm_num_groups=4, cross_attention_dim=12,
            use_linear_projection=linear, activation_fn="geglu",
        )
    )  # fmt: skip
    options = {"encoder_hidden_states": noise(2, 4, 12, seed=2), "return_dict": False}
    assert_same(model, noise(2, 16, 3, 5), **options)
    assert_same(model.to(memory_format=torch.channels_last), noise(2, 16, 5, 2), **options)


def test_a_last_projection_that_is_changed_is_called() -> None:
    model = drawn(Transformer2DModel(2, 8, in_channels=16, norm_num_groups=4, activation_fn="geglu"))
    for kind in ("forward hook", "pre-hook"):
        hooked = copy.deepcopy(model)
        if kind == "forward hook":
            hooked.proj_out.register_forward_hook(lambda module, given, made: 2 * made)
        else:
            hooked.proj_out.register_forward_pre_hook(lambda module, given: (2 * given[0],))
        assert_same(hooked, noise(2, 16, 3, 5), return_dict=False)


NORMS = [
    nn.GroupNorm(4, 8, eps=0.1), nn.GroupNorm(1, 8), nn.GroupNorm(8, 8), nn.LayerNorm(8, eps=0.1),
    nn.LayerNorm(8, bias=False),
]  # fmt: skip


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_normalizations(norm: nn.Module) -> None:
    x = noise(2, 8, 3, 5) if isinstance(norm, nn.GroupNorm) else noise(2, 3, 8)
    assert_same(drawn(copy.deepcopy(norm)), x)


@pytest.mark.parametrize("what", ["forward", "pre", "backward", "backward pre", "forward of its own", "subclass"])
def test_what_changes_a_module_is_seen(what: str) -> None:
    module: Any = nn.Linear(2, 2)
    assert not fused_modules.is_changed(module)
    match what:
        case "forward":
            module.register_forward_hook(lambda *_: None)
        case "pre":
            module.register_forward_pre_hook(lambda *_: None)
        case "backward":
            module.register_full_backward_hook(lambda *_: None)
        case "backward pre":
            module.register_full_backward_pre_hook(lambda *_: None)
        case "forward of its own":
            module.forward = lambda x: x
        case "subclass":
            handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
            try:
                assert fused_modules.is_changed(module)
            finally:
                handle.remove()
            return
    assert fused_modules.is_changed(module)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda block: block.norm1.register_forward_hook(lambda *_: None), "its normalizations are others, or hooked"),
        (lambda block: block.norm2.register_forward_pre_hook(lambda *_: None), "its normalizations are others"),
        (lambda block: setattr(block.norm3, "forward", lambda x: x), "its normalizations are others, or hooked"),
        (lambda block: setattr(block, "norm2", nn.LayerNorm(8, elementwise_affine=False)), "its normalizations are"),
        (lambda block: setattr(block, "norm3", nn.Identity()), "its normalizations are others, or hooked"),
        (lambda block: setattr(block, "norm_type", "ada_norm"), "it has another form"),
        (lambda block: setattr(block, "pos_embed", nn.Identity()), "it has another form"),
        (lambda block: setattr(block, "attn2", None), "it has another form"),
    ],
)  # fmt: skip
def test_each_reason_against_a_transformer_block(change: Any, reason: str) -> None:
    block = BasicTransformerBlock(8, 1, 8, cross_attention_dim=4, activation_fn="geglu")
    change(block)
    kept = replace(block).kept
    assert any(name.startswith(f"BasicTransformerBlock ({reason}") for name in kept), kept
    assert type(block) is BasicTransformerBlock
    assert not any(isinstance(part, fused_modules.FusedSkipLayerNorm) for part in block.modules())
