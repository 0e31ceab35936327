"""``replace``: UNets and VAEs compute the same by ``torch.ops.sdort``, forward and backward; what stays is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import remove_hook_from_submodules
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.normalization import AdaGroupNorm
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from peft import LoraConfig
from torch import Tensor, nn

from sdort.errors import UsageError
from sdort.integrations.torch.graph_module import GraphModule
from sdort.integrations.torch_operators import definitions, fused_modules, module_replacement, replace

pytestmark = pytest.mark.usefixtures("operator_kernels")


def unet(**changes: Any) -> UNet2DConditionModel:
    torch.manual_seed(0)
    config = {
        "sample_size": 4,
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "cross_attention_dim": 8,
        "attention_head_dim": 2,
        "norm_num_groups": 4,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    return UNet2DConditionModel(**config | changes).eval()


def vae() -> AutoencoderKL:
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    ).eval()


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def step(model: UNet2DConditionModel) -> Tensor:
    y: Tensor = model(noise(2, 4, 4, 4), torch.tensor([5, 900]), noise(2, 7, 8)).sample
    return y


def assert_near(actual: Tensor, wanted: Tensor) -> None:
    """Some hundred operations in float32, each in another order."""
    assert (actual - wanted).abs().max() <= 2.0**-16 * wanted.abs().max()


def swapped(model: Any) -> Any:
    replace(model.to(memory_format=torch.channels_last))
    return model


@pytest.mark.parametrize("linear", [False, True], ids=["convolutions", "linear projections"])
def test_a_unet_computes_the_same_and_nothing_falls_back(linear: bool, told: list[str]) -> None:
    whole = {"use_linear_projection": linear}
    with torch.no_grad():
        assert_near(step(swapped(unet(**whole))), step(unet(**whole)))
    assert told == []


def test_a_vae_computes_the_same_and_nothing_falls_back(told: list[str]) -> None:
    with torch.no_grad():
        for one in ("encode", "decode"):
            x = noise(1, 3, 8, 8) if one == "encode" else noise(1, 4, 4, 4)
            actual, wanted = (getattr(model, one)(x, return_dict=False)[0] for model in (swapped(vae()), vae()))
            assert_near(*(y.parameters if one == "encode" else y for y in (actual, wanted)))
    assert told == []


def test_a_block_of_a_vae_has_no_use_for_an_embedding() -> None:
    block = ResnetBlock2D(in_channels=8, temb_channels=None, groups=2, time_embedding_norm="group").eval()
    x, embedding = noise(2, 8, 4, 4).to(memory_format=torch.channels_last), noise(2, 8)
    with torch.no_grad():
        wanted = block(x, embedding)
        assert replace(block).replaced == {"ResnetBlock2D": 1}
        assert_near(block(x, embedding), wanted)


def test_it_says_how_many_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    model = unet()
    norms = sum(type(part) is nn.GroupNorm for part in model.modules())
    report = replace(model)
    assert report.kept == {}
    assert report.replaced == {
        "Attention": 8,
        "BasicTransformerBlock": 4,
        "GEGLU": 4,
        "GroupNorm": norms - 2 * report.replaced["ResnetBlock2D"],
        "ResnetBlock2D": 8,
        "Transformer2DModel": 4,
    }
    said = " ".join(capsys.readouterr().err.split())
    assert said == (
        "replaced 8 Attention, 4 BasicTransformerBlock, 4 GEGLU, 5 GroupNorm, 8 ResnetBlock2D, 4 Transformer2DModel"
    )
    assert replace(model).replaced == {}  # nothing a second time


def test_what_it_does_not_know_stays_and_is_named() -> None:
    parts = nn.ModuleList(
        [
            ResnetBlock2D(in_channels=8, temb_channels=4, groups=2, time_embedding_norm="scale_shift"),
            ResnetBlock2D(in_channels=8, temb_channels=4, groups=2, up=True),
            ResnetBlock2D(in_channels=8, temb_channels=4, groups=2, non_linearity="gelu"),
            BasicTransformerBlock(8, 1, 8, activation_fn="gelu"),
            Attention(8, heads=1, dim_head=8, cross_attention_dim=4, processor=Other()),
            nn.LayerNorm(8, elementwise_affine=False),
            nn.LayerNorm((2, 8)),
            AdaGroupNorm(4, 8, 2),
            nn.Conv2d(1, 1, 1),
        ]
    )
    report = replace(parts)
    assert report.kept == {
        "ResnetBlock2D (its time embedding is a scale_shift)": 1,
        "ResnetBlock2D (it resamples)": 1,
        "ResnetBlock2D (its activation is GELU)": 1,
        "BasicTransformerBlock (it has another form)": 1,
        "Attention (its processor is Other)": 1,
        "LayerNorm (it has no weights)": 1,
        "LayerNorm (it is over several dimensions)": 1,
        "AdaGroupNorm (there is no operator for it)": 1,
        "GELU (there is no operator for it)": 2,
    }
    assert report.replaced == {"Attention": 1, "GroupNorm": 6, "LayerNorm": 2}


class Other(AttnProcessor2_0):  # type: ignore[misc]
    """One that somebody set."""


def test_attention_stays_torchs_on_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_replacement, "_wants_attention", lambda _: False)
    model = unet()
    kept = replace(model).kept
    assert kept == {"Attention (torch's is faster on NVIDIA GPUs, attention=True swaps it)": 8}
    assert replace(model, attention=True).replaced == {"Attention": 8}


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UsageError, match=r"replace\(\) takes a torch\.nn\.Module, not a dict"):
        replace({})


def test_names_and_weights_stay() -> None:
    before, after = unet(), swapped(unet())
    assert [name for name, _ in before.named_parameters()] == [name for name, _ in after.named_parameters()]
    for name, tensor in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], tensor), name


@pytest.mark.parametrize("order", ["replace offload", "offload replace", "offload unhook replace"])
def test_weights_that_accelerate_offloads_are_used(order: str, told: list[str]) -> None:
    """As in ``enable_sequential_cpu_offload``: a module has its weights during its call only."""
    model = unet().to(memory_format=torch.channels_last)
    changes: dict[str, Callable[[Any], Any]] = {
        "replace": replace,
        "offload": lambda model: cpu_offload(model, execution_device=torch.device("cpu")),
        "unhook": remove_hook_from_submodules,
    }
    for change in order.split():
        changes[change](model)
    with torch.no_grad():
        assert_near(step(model), step(unet()))
    assert told == []


@pytest.mark.parametrize("order", ["replace change", "change replace"])
@pytest.mark.parametrize("layer", ["ff.net.0.proj", "proj_out", "norm1", "norm3", "attn1.to_q", "ff.net.2"])
def test_a_forward_of_somebodys_own_is_called(layer: str, order: str) -> None:
    """As tools for LoRA put it in the place of a layer's; of all layers by that name."""

    def change(model: nn.Module) -> None:
        for name, part in model.named_modules():
            if name.endswith(layer) and "attentions" in name:
                part.forward = lambda *given, own=part.forward: doubled(own(*given))

    def doubled(made: Any) -> Any:
        return (2 * made[0], *made[1:]) if isinstance(made, tuple) else 2 * made

    model, plain = unet().to(memory_format=torch.channels_last), unet()
    changes: dict[str, Callable[[Any], Any]] = {"replace": replace, "change": change}
    for each in order.split():
        changes[each](model)
    with torch.no_grad():
        before = step(plain)
        change(plain)
        assert (step(plain) - before).abs().max() > 2.0**-10 * before.abs().max()
        assert_near(step(model), step(plain))


def test_a_forward_that_a_program_gives_torchs_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """As web UIs do for their LoRA."""
    linear = nn.Linear.forward
    model, plain = swapped(unet()), unet()
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2 * linear(self, x))
    with torch.no_grad():
        assert_near(step(model), step(plain))


@pytest.mark.parametrize("order", ["replace store", "store replace"])
def test_weights_may_be_stored_in_another_type(order: str) -> None:
    """By diffusers' layerwise casting, hooks on the layers; others than those of accelerate."""

    def store(model: UNet2DConditionModel) -> None:
        model.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)

    model, plain = unet().to(memory_format=torch.channels_last), unet()
    store(plain)
    changes: dict[str, Callable[[Any], Any]] = {"replace": replace, "store": store}
    for each in order.split():
        changes[each](model)
    with torch.no_grad():
        assert_near(step(model), step(plain))


def test_a_hook_sees_what_a_normalization_alone_computes() -> None:
    seen: list[Tensor] = []
    block = ResnetBlock2D(in_channels=8, temb_channels=None, groups=2).eval().requires_grad_(False)
    block.norm1.register_forward_hook(lambda *given: seen.append(given[-1]))
    x = noise(1, 8, 4, 4).to(memory_format=torch.channels_last)
    wanted = block(x, None)
    assert replace(block).kept == {"ResnetBlock2D (its normalizations are others, or hooked)": 1}
    assert_near(block(x, None), wanted)
    assert_near(seen[1], seen[0])


def test_attention_goes_back_to_diffusers_own() -> None:
    model = unet()
    replace(model, attention=True)
    model.set_default_attn_processor()
    assert {type(processor) for processor in model.attn_processors.values()} == {AttnProcessor}


def test_one_embedding_is_for_all_samples() -> None:
    block = ResnetBlock2D(in_channels=8, temb_channels=8, groups=2).eval().requires_grad_(False)
    x, embedding = noise(2, 8, 4, 4).to(memory_format=torch.channels_last), noise(1, 8)
    wanted = block(x, embedding)
    replace(block)
    assert_near(block(x, embedding), wanted)


def test_a_swapped_model_changes_its_type() -> None:
    model = swapped(unet()).to(torch.float64).to(torch.float32)
    with torch.no_grad():
        assert_near(step(model), step(unet()))


@pytest.mark.parametrize("adapted_first", [True, False])
def test_a_lora_learns_the_same(adapted_first: bool, told: list[str]) -> None:
    """Gradients of adapters on attention, convolutions and the gated projection, in float32."""
    gradients = []
    for is_swapped in (True, False):
        model = unet()
        adapt = LoraConfig(r=2, init_lora_weights=False, target_modules=["to_q", "to_v", "conv1", "proj"])
        if is_swapped and not adapted_first:
            swapped(model)
        model.requires_grad_(False)
        torch.manual_seed(2)
        model.add_adapter(adapt)
        if is_swapped and adapted_first:
            swapped(model)
        step(model.train()).square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    actual, wanted = gradients
    assert len(wanted) == 56
    assert actual.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 0, name
        assert_near(actual[name], gradient)
    assert told == []


@pytest.mark.parametrize("trained", ["weights", "input"])
def test_torchs_own_operators_compute_where_a_gradient_is_wanted(
    trained: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their backward is kernels: with the operators a training step takes longer."""
    model = swapped(unet()).requires_grad_(trained == "weights")
    monkeypatch.setattr(definitions, "serves", pytest.fail)
    latent = noise(2, 4, 4, 4).requires_grad_(trained == "input")
    assert model(latent, torch.tensor([5, 900]), noise(2, 7, 8)).sample.requires_grad
    assert told == []


def test_a_graph_stays_as_it_is() -> None:
    """Its kernels are ONNX Runtime's and the library's already."""

    class OfOnnx(GraphModule, nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            nn.Module.__init__(self)

    assert replace(OfOnnx()).kept == {"OfOnnx (it runs as an ONNX graph)": 1}


def test_all_weights_learn_the_same() -> None:
    """Those of norms and biases too, as in a whole training, with gradient checkpointing."""
    gradients = []
    for model in (swapped(unet()), unet()):
        model.enable_gradient_checkpointing()
        step(model.train()).square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    actual, wanted = gradients
    for name, gradient in wanted.items():
        limit = 2.0**-14 * max(gradient.abs().max(), 2.0**-10)
        assert (actual[name] - gradient).abs().max() <= limit, name


def test_a_sum_of_two_types_is_torchs() -> None:
    """Under autocast a product in a short type meets a sum in float32."""
    norm = nn.LayerNorm(8)
    x, skip = noise(2, 3, 8).bfloat16(), 3 * noise(2, 3, 8)
    wanted = norm(x + skip)
    norm.__class__ = fused_modules.FusedSkipLayerNorm
    normalized, total = norm(x, skip)
    assert torch.equal(total, x + skip)
    assert_near(normalized, wanted)


def test_a_block_compiles_to_one_graph() -> None:
    block = BasicTransformerBlock(16, 2, 8, cross_attention_dim=8, activation_fn="geglu").eval()
    replace(block)
    assert type(block) is fused_modules.FusedTransformerBlock
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x, text = noise(1, 6, 16), noise(1, 3, 8)
    with torch.no_grad():
        assert torch.equal(compiled(x, encoder_hidden_states=text), block(x, encoder_hidden_states=text))


TWO_SIZES = """
import torch
from test_module_replacement import assert_near, noise, swapped, unet
one = {"block_out_channels": (16,), "down_block_types": ("CrossAttnDownBlock2D",), "mid_block_type": None}
model = swapped(unet(**one, up_block_types=("CrossAttnUpBlock2D",)))
compiled = torch.compile(model, dynamic=True)
with torch.no_grad():
    for side in (12, 20):
        given = noise(2, 4, side, side), torch.tensor([5, 900]), noise(2, 7, 8)
        assert_near(compiled(*given).sample, model(*given).sample)
"""


@pytest.mark.long
def test_inductor_compiles_it_for_sizes_that_change() -> None:
    """In a process of its own: what Inductor imports changes Python's standard library.

    One level has every operator of ours: each more would be compiled for as long again.
    """
    places = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", TWO_SIZES], env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
