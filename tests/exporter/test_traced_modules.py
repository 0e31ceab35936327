"""The modules around a checkpoint's models: which one a component gets, and what each hands on, by made-up models."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sdort.errors import BadModelError
from sdort.exporter import torch_modules
from sdort.exporter.signatures import ComponentSpec
from sdort.exporter.torch_modules import allocate, build_module, parameters
from sdort.families.graph_tensor import GraphTensor


def tensors(*names: str) -> tuple[GraphTensor, ...]:
    return tuple(GraphTensor(name, "float32", ()) for name in names)


def spec(name: str, class_name: str = "C", **config: Any) -> ComponentSpec:
    return ComponentSpec(name, class_name, config, tensors("i.0", "i.1"), tensors("o.0", "o.1"))


def made(kind: Any, model: Any, **fields: Any) -> Any:
    """A module of a kind around any object."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    module.__dict__.update(model=model, **fields)
    return module


@pytest.mark.parametrize(
    ("component", "kind", "fields"),
    [
        (spec("unet"), "_Denoiser", {"inputs": ["i.0", "i.1"]}),
        (spec("controlnet", global_pool_conditions=True), "_ControlNet", {"inputs": ["i.0", "i.1"], "pooled": True}),
        (spec("controlnet", global_pool_conditions=False), "_ControlNet", {"pooled": False}),
        (spec("t2i_adapter"), "_T2IAdapter", {}),
        (spec("image_encoder", projections=[{"kind": "plus"}, {"kind": "plain"}]), "_ImageEncoder",
         {"kinds": ["plus", "plain"]}),
        (spec("vae_encoder"), "_VaeEncoder", {}),
        (spec("vae_decoder"), "_VaeDecoder", {}),
        (spec("text_encoder"), "_TextEncoder", {"outputs": ["o.0", "o.1"]}),
        (spec("text_encoder_2"), "_TextEncoder", {"outputs": ["o.0", "o.1"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_component_has_its_module(
    component: ComponentSpec, kind: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device while it is built; then without training and gradients, and with its buffers computed."""
    restored: list[Any] = []

    def construct(given: ComponentSpec) -> Any:
        assert given is component
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout())
        assert model[0].weight.is_meta
        return model

    monkeypatch.setattr(torch_modules, "quiet_libraries", nullcontext)
    monkeypatch.setattr(torch_modules, "_construct", construct)
    monkeypatch.setattr(torch_modules, "_restore_buffers", lambda *given: restored.append(given))
    module = build_module(component)
    assert type(module).__name__ == kind
    assert {name: getattr(module, name) for name in fields} == fields
    assert not module.model.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert restored == [(component, module.model)]
    assert parameters(module) == {"0.weight": (2, 3), "0.bias": (2,)}
    allocate(module)
    assert parameters(module) == {"0.weight": (2, 3), "0.bias": (2,)}
    assert all((each.device.type, each.dtype, each.requires_grad) == ("cpu", torch.float32, False)
               for each in module.parameters())  # fmt: skip


def test_a_config_that_makes_no_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def construct(given: ComponentSpec) -> Any:
        raise RuntimeError("no such block\nand more")

    monkeypatch.setattr(torch_modules, "quiet_libraries", nullcontext)
    monkeypatch.setattr(torch_modules, "_construct", construct)
    with pytest.raises(BadModelError) as caught:
        build_module(spec("unet", "UNet2DConditionModel"))
    assert caught.value.message == (
        "its config.json does not make a UNet2DConditionModel (RuntimeError: no such block)"
    )
    assert caught.value.component == "unet"


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_encoders_outputs_by_their_names(nested: bool) -> None:
    """A skipped layer's output goes through the last norm, counted from the end; hidden states come as they are."""
    states = tuple(torch.full((1, 2), float(number)) for number in range(5))
    result = type("Result", (dict,), {"hidden_states": states})(last_hidden_state="last", pooler_output="pooled")
    calls: list[Any] = []

    class Model:
        def __call__(self, *given: Any, **options: Any) -> Any:
            calls.append((given, options))
            return result

        def norm(self, state: Any) -> Any:
            return state * 10

    model: Any = Model()
    holder = model if not nested else SimpleNamespace()
    holder.final_layer_norm = model.norm
    if nested:
        model.text_model = holder
    names = ["pooler_output", "clip_skip.2", "last_hidden_state", "hidden_states.0", "hidden_states.4", "clip_skip.4"]
    found = made(torch_modules._TextEncoder, model, outputs=names).forward("ids")
    assert calls == [(("ids",), {"output_hidden_states": True, "return_dict": True})]
    assert (found[0], found[2]) == ("pooled", "last")
    assert [found[index].tolist() for index in (1, 3, 4, 5)] == [[[30, 30]], [[0, 0]], [[4, 4]], [[10, 10]]]


def test_an_image_encoders_outputs_of_each_adapter() -> None:
    """A plain one takes the embedding, and zeros in its place too; another one the states before the last layer."""
    states = tuple(torch.full((1, 3), float(number)) for number in range(4))
    calls: list[Any] = []

    def encode(*given: Any, **options: Any) -> Any:
        calls.append((given, options))
        return SimpleNamespace(image_embeds=torch.full((1, 5), 7.0), hidden_states=states)

    model = {
        "encoder": encode,
        "projections": [lambda taken: taken + 1, lambda taken: taken + 2, lambda taken: taken * 3],
    }
    found = made(torch_modules._ImageEncoder, model, kinds=["plain", "plus", "plain"]).forward("pixels")
    assert calls == [(("pixels",), {"output_hidden_states": True})]
    assert [each.tolist()[0] for each in found] == [[8] * 5, [1] * 5, [4] * 3, [21] * 5, [0] * 5]


def test_halves_of_an_autoencoder_and_an_adapter() -> None:
    calls: Any = list[Any]()

    def note(answer: Any) -> Any:
        return lambda *given, **options: calls.append((given, options)) or answer

    latents = torch.ones(1, 4)
    for encoded, found in ((SimpleNamespace(parameters="p", mean="m"), "p"), (latents, latents)):
        model = SimpleNamespace(encode=note((encoded, "rest")), decode=note(("image", "rest")))
        assert made(torch_modules._VaeEncoder, model).forward("sample") is found
        assert made(torch_modules._VaeDecoder, model).forward("latent") == "image"
    assert calls[:2] == [(("sample",), {"return_dict": False}), (("latent",), {"return_dict": False})]
    assert made(torch_modules._T2IAdapter, note(["a", "b"])).forward("sample") == ("a", "b")


class Linears(torch.nn.Module):  # type: ignore[misc]
    """An attention of diffusers: two heads of three, over texts of five numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.to_q = torch.nn.Linear(4, 6, bias=False)
        self.to_k = torch.nn.Linear(5, 6, bias=False)
        self.to_v = torch.nn.Linear(5, 6, bias=False)
        self.to_out = torch.nn.ModuleList([torch.nn.Linear(6, 4), torch.nn.Dropout()])


@pytest.mark.parametrize("count", [1, 2])
def test_attention_to_images_is_added_to_that_to_text(count: int) -> None:
    """Equation 5 of https://arxiv.org/abs/2308.06721 in float64: each adapter has keys and values of its own."""
    torch.manual_seed(3)
    attention = Linears().double()
    module = torch_modules._ImageAttention(attention, count).double()
    assert {name: tuple(each.shape) for name, each in module.named_parameters()} == {
        f"{part}.{number}.weight": (6, 5) for part in ("to_k_ip", "to_v_ip") for number in range(count)
    }
    hidden, text = torch.randn(2, 7, 4).double(), torch.randn(2, 3, 5).double()
    images = [(torch.randn(2, 4, 5).double(), torch.randn(2, 4, 5).double()) for _ in range(count)]

    def attend(query: Any, keys: Any, values: Any) -> Any:
        parts = []
        for head in range(2):
            q, k, v = (each[..., head * 3 : head * 3 + 3] for each in (query, keys, values))
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(3)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            parts.append(weights / weights.sum(-1, keepdims=True) @ v)
        return np.concatenate(parts, -1)

    def numbers(layer: Any, values: Any) -> Any:
        return layer(values).detach().numpy()

    query = numbers(attention.to_q, hidden)
    total = attend(query, numbers(attention.to_k, text), numbers(attention.to_v, text))
    for (tokens, scaled), to_k, to_v in zip(images, module.to_k_ip, module.to_v_ip, strict=True):
        total = total + attend(query, numbers(to_k, tokens), numbers(to_v, scaled))
    expected = numbers(attention.to_out[0], torch.tensor(total))
    found = module(attention, hidden, encoder_hidden_states=(text, images)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_cross_attentions_alone_take_images() -> None:
    first, second = object(), object()
    attention = Linears()
    set_to: dict[str, Any] = {}
    unet = SimpleNamespace(
        attn_processors={"a.attn1.processor": first, "a.attn2.processor": second},
        get_submodule=lambda name: attention if name == "a.attn2" else None,
        set_attn_processor=set_to.update,
        register_to_config=lambda **given: set_to.update(given),
    )
    torch_modules._attend_to_images(unet, 3)
    assert list(set_to) == ["a.attn1.processor", "a.attn2.processor", "encoder_hid_dim_type"]
    assert set_to["a.attn1.processor"] is first
    assert isinstance(set_to["a.attn2.processor"], torch_modules._ImageAttention)
    assert len(set_to["a.attn2.processor"].to_k_ip) == 3
    assert set_to["encoder_hid_dim_type"] == "ip_image_proj"
    assert isinstance(unet.encoder_hid_proj, torch.nn.Identity)


@pytest.mark.parametrize("images", [0, 2])
@pytest.mark.parametrize("name", ["unet", "controlnet", "vae_encoder"])
def test_diffusers_gets_the_config(name: str, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ControlNet's means are taken behind its scales, not by diffusers."""
    calls: Any = list[Any]()
    library = SimpleNamespace(Made=lambda **given: calls.append(given) or "model")
    monkeypatch.setattr(torch_modules, "LIBRARIES", {"Made": "its library"})
    monkeypatch.setattr(torch_modules, "import_module", {"its library": library}.__getitem__)
    monkeypatch.setattr(torch_modules, "_attend_to_images", lambda *given: calls.append(given))
    inputs = tensors("sample", *(f"image_tokens.{number}" for number in range(images)), "image_scale.0")
    config = {"a": 1, "global_pool_conditions": True}
    assert torch_modules._construct(ComponentSpec(name, "Made", config, inputs, ())) == "model"
    expected = {"a": 1, "global_pool_conditions": name != "controlnet"}
    assert calls == [expected, *([("model", 2)] if images else [])]


@pytest.mark.parametrize("class_name", ["CLIPTextModel", "CLIPTextModelWithProjection"])
def test_transformers_gets_the_config(class_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        CLIPTextConfig=lambda **given: given, CLIPTextModel=lambda config: ("CLIPTextModel", config),
        CLIPTextModelWithProjection=lambda config: ("CLIPTextModelWithProjection", config),
    )  # fmt: skip
    monkeypatch.setattr(torch_modules, "transformers", fake)
    found = torch_modules._construct(ComponentSpec("text_encoder", class_name, {"a": 1}, (), ()))
    assert found == (class_name, {"a": 1, "attn_implementation": "sdpa"})
    vision = torch.nn.Linear(1, 1)
    given: dict[str, Any] = {}
    fake = SimpleNamespace(
        CLIPVisionConfig=lambda **settings: given.update(settings),
        CLIPVisionModelWithProjection=lambda config: vision,
    )
    monkeypatch.setattr(torch_modules, "transformers", fake)
    monkeypatch.setattr(torch_modules, "_projection", lambda config: torch.nn.Linear(config["n"], 1))
    config = {"b": 2, "projections": [{"n": 3}, {"n": 4}]}
    made_ = torch_modules._construct(ComponentSpec("image_encoder", "X", config, (), ()))
    assert given == {"b": 2, "attn_implementation": "sdpa"}
    assert made_["encoder"] is vision
    assert [each.in_features for each in made_["projections"]] == [3, 4]
