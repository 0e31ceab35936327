"""A UNet in the original layout: its family in ComfyUI, its sizes, and what it is opened and tuned with; no graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sdort.errors import BadModelError, ParityError, UsageError
from sdort.families.data import sd1, sdxl, sdxl_refiner
from sdort.integrations.comfyui import optimized_unet, unet_folder
from sdort.integrations.comfyui.control_residuals import _block_inputs
from sdort.integrations.comfyui.denoiser import Denoiser
from sdort.integrations.comfyui.optimized_vae import Autoencoder
from sdort.integrations.comfyui.size_conditioning import WIDTH, embed, find_numbers, split_condition
from sdort.integrations.comfyui.unet_folder import UnetFolder
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.rocm import PROVIDER as ROCM


def unet(**values: Any) -> Any:
    numbers = values.get("sizes", 0)
    family = {0: sd1, 5: sdxl_refiner, 6: sdxl}[numbers].FAMILY
    folder = SimpleNamespace(path=Path("m"))
    return SimpleNamespace(**{"empty": {"a": 1}, "sizes": 0, "folder": folder, "comfyui": family.comfyui, **values})


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules of ComfyUI's that note what they are asked for."""
    seen: dict[str, Any] = {"linear": True, "inpaint": False, "schedule": {}}

    class Config:
        def __init__(self, name: str, described: Any) -> None:
            self.name, self.described, self.sampling_settings = name, described, {"sigma_data": 1}

        def inpaint_model(self) -> bool:
            return bool(seen["inpaint"])

    class Model:
        def __init__(self, config: Any, model_type: Any = None) -> None:
            self.config, self.kind, self.inpaints = config, model_type, False

        def set_inpaint(self) -> None:
            self.inpaints = True

    classes = {name: type(name, (Model,), {}) for name in ("BaseModel", "SDXL", "SDXLRefiner")}
    modules: dict[str, dict[str, Any]] = {
        "comfy": {}, "comfy.model_base": {**classes, "ModelType": SimpleNamespace(EPS="EPS", V_PREDICTION="V")},
        "comfy.model_detection": {
            "detect_unet_config": lambda state, prefix: {
                "state": state, "prefix": prefix, "use_linear_in_transformer": seen["linear"]
            }
        },
        "comfy.supported_models": {
            name: lambda described, name=name: Config(name, described)
            for name in ("SD15", "SD20", "SDXL", "SDXLRefiner")
        },
    }  # fmt: skip
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        if "." in name:
            monkeypatch.setattr(sys.modules["comfy"], name.partition(".")[2], module, raising=False)
    return seen


@pytest.mark.parametrize(
    ("sizes", "linear", "config", "family"),
    [
        (0, False, "SD15", "BaseModel"), (0, True, "SD20", "BaseModel"), (6, False, "SDXL", "SDXL"),
        (6, True, "SDXL", "SDXL"), (5, True, "SDXLRefiner", "SDXLRefiner"), (5, False, "SDXLRefiner", "SDXLRefiner"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("inpaint", [False, True])
@pytest.mark.parametrize("kind", [None, "epsilon", "v_prediction", "sample"])
def test_a_unet_has_the_family_that_its_sizes_and_projections_tell(
    sizes: int, linear: bool, config: str, family: str, inpaint: bool, kind: str | None, comfy: dict[str, Any]
) -> None:
    comfy.update(linear=linear, inpaint=inpaint, schedule={"prediction_type": kind} if kind else {})
    given = unet(sizes=sizes, folder=SimpleNamespace(path=Path("m"), scheduler=comfy["schedule"]))
    if kind == "sample":
        with pytest.raises(UsageError, match=r"^m: ComfyUI samples no model of this family that predicts sample"):
            optimized_unet._model(given)
        return
    made = optimized_unet._model(given)
    assert (type(made).__name__, made.config.name, made.inpaints) == (family, config, inpaint)
    assert made.kind == ("V" if kind == "v_prediction" else "EPS")
    assert made.config.described == {
        "state": {"a": 1}, "prefix": "", "use_linear_in_transformer": linear, "disable_unet_model_creation": True
    }  # fmt: skip
    assert made.config.sampling_settings == {
        "sigma_data": 1, "linear_start": 0.00085, "linear_end": 0.012, "zsnr": False
    }  # fmt: skip


def test_a_patcher_s_patches_are_used_before_it_samples_and_hooks_are_refused() -> None:
    used: list[Any] = []
    model = SimpleNamespace(diffusion_model=SimpleNamespace(use_patches=lambda *given: used.append(given)))
    patcher = SimpleNamespace(hook_patches={}, patches={"a": 1}, patches_uuid="id", model=model)
    optimized_unet._before_sampling(patcher)
    assert used == [({"a": 1}, "id")]
    patcher.hook_patches = {"hook": 1}
    with pytest.raises(UsageError, match="a hook changes the weights"):
        optimized_unet._before_sampling(patcher)
    assert len(used) == 1


# The folder


@pytest.mark.parametrize("fallback", [None, "cuda cannot be used: no driver"])
def test_a_provider_that_is_passed_over_is_told(fallback: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = []
    told: list[str] = []
    monkeypatch.setattr(unet_folder, "open_folder", lambda path, needed: asked.append((path, needed)) or "folder")
    monkeypatch.setattr(
        unet_folder, "choose_provider", lambda options: asked.append(options.provider) or (CPU, fallback)
    )
    monkeypatch.setattr(unet_folder, "warn", told.append)
    monkeypatch.setattr(UnetFolder, "denoiser", lambda self: (self.folder, self.provider))
    assert unet_folder.load_denoiser("m") == ("folder", CPU)
    assert unet_folder.load_denoiser(Path("m"), "cuda") == ("folder", CPU)
    assert asked == [(Path("m"), ("unet",)), "auto", (Path("m"), ("unet",)), "cuda"]
    assert told == ([fallback] * 2 if fallback else [])


@pytest.mark.parametrize(
    ("shape", "sizes"), [(None, 0), (("N", 6), 6), (("N", 5), 5), (("N", 4), None), (("N", "k"), 0), ((2, 6), 6)]
)
def test_the_number_of_sizes_is_one_of_a_family(shape: Any, sizes: int | None) -> None:
    inputs = {} if shape is None else {"time_ids": SimpleNamespace(shape=shape)}
    file = SimpleNamespace(signature=SimpleNamespace(inputs=inputs))
    folder: Any = SimpleNamespace(file=lambda name: file, config=lambda name: {}, path=Path("m"))
    made = UnetFolder(folder, CPU)
    if sizes is None:
        with pytest.raises(BadModelError, match="it takes 4 sizes"):
            _ = made.sizes
    else:
        assert made.sizes == sizes
    with pytest.raises(BadModelError, match=r"m/unet has no config\.json"):
        _ = made.config


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("adapters", [False, True])
def test_it_is_opened_and_tuned_on_its_provider(control: bool, adapters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def open_components(path: Path, names: Any, options: Any, *, control_inputs: bool) -> Any:
        asked.append((path, names, options, control_inputs))
        return SimpleNamespace(sessions={"unet": "session"})

    def warm(path: Path, **options: Any) -> Any:
        asked.append((path, options))
        return SimpleNamespace(raise_if_failed=lambda: asked.append("looked"))

    monkeypatch.setattr(unet_folder, "open_components", open_components)
    monkeypatch.setattr(unet_folder, "warm", warm)
    folder: Any = SimpleNamespace(path=Path("m"))
    made = UnetFolder(folder, ROCM)
    assert made.open(control=control, adapters=adapters) == "session"  # type: ignore[comparison-overlap]
    assert asked == [(Path("m"), ("unet",), {"provider": "rocm", "adapters": adapters}, control)]
    del asked[:]
    made.tune(3, 64, 96)
    options = {"sizes": [(64, 96)], "batch_sizes": [3], "components": ["unet"], "provider": "rocm"}
    assert asked == [(Path("m"), options), "looked"]


@pytest.mark.parametrize("provider", [CPU, CUDA, ROCM], ids=lambda each: each.name)
@pytest.mark.parametrize("tunes", [False, True])
def test_a_denoiser_tunes_where_there_is_something_to_tune(
    provider: Any, tunes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Any = []
    monkeypatch.setattr(unet_folder, "can_tune", lambda own, options: asked.append((own, options.provider)) or tunes)
    monkeypatch.setattr(unet_folder, "Denoiser", lambda *given: given)
    monkeypatch.setattr(unet_folder, "PatchedWeights", lambda names: ("weights", names))
    monkeypatch.setattr(unet_folder, "empty_unet", lambda config: {"x": 1, "y": 2})
    monkeypatch.setattr(unet_folder, "original_names", lambda empty, config: {f"o.{name}": name for name in empty})
    folder: Any = SimpleNamespace(
        config=lambda name: {"c": 1}, file=lambda name: SimpleNamespace(signature=SimpleNamespace(inputs={}))
    )
    made = UnetFolder(folder, provider)
    names = {"o.x": "x", "o.y": "y"}
    found: Any = made.denoiser()
    assert found == (made.open, {"c": 1}, 0, {"o.x": 1, "o.y": 2}, ("weights", names), made.tune if tunes else None)
    assert asked == [(provider, provider.name)]


# What comes in


def test_a_block_of_each_level_takes_a_residual() -> None:
    """At the last residual block of a level with attentions, behind the downsampler of one without."""
    cross, plain = "CrossAttnDownBlock2D", "DownBlock2D"
    for kinds, layers, blocks, places in (
        ((cross, cross, cross, plain), 2, 12, (2, 5, 8, 11)), ((plain, cross, cross), 2, 9, (3, 5, 8)),
        ((plain, plain), 1, 4, (2, 3)), ((cross,), 3, 4, (3,)), ((plain, cross), 2, 6, (3, 5)),
    ):  # fmt: skip
        names = [f"level.{number}" for number in range(len(kinds))]
        found = _block_inputs(names, blocks, {"layers_per_block": layers, "down_block_types": kinds})
        assert {place: name for place, name in enumerate(found) if name} == dict(zip(places, names, strict=True))
        assert len(found) == blocks
    assert _block_inputs([], 3, {"layers_per_block": 2, "down_block_types": (cross,)}) == ["", "", ""]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_found_to_a_hundredth(dtype: torch.dtype) -> None:
    """Sizes to 16384 pixels in float32, aesthetic scores in hundredths, several prompts with several numbers."""
    numbers = torch.tensor([[[0.0, 1.0, 1024.0], [6.25, 2.5, 0.01]], [[768.0, 1344.0, 8.0], [63.0, 512.0, 9.99]]])
    found = find_numbers(embed(numbers).to(dtype))
    assert found.dtype == torch.float32
    assert torch.equal(found, numbers)
    if dtype == torch.float32:
        assert find_numbers(embed(torch.tensor(16384.0))).item() == 16384.0


@pytest.mark.parametrize(("more", "fits"), [(0, False), (-1, False), (1, True)])
def test_a_condition_has_a_text_before_its_numbers(more: int, fits: bool) -> None:
    condition = torch.cat([torch.full((2, max(more, 0)), 7.0), embed(torch.full((2, 2), 64.0)).reshape(2, -1)], -1)
    condition = condition[:, -more:] if more < 0 else condition
    if fits:
        text, numbers = split_condition(condition, 2)
        assert (text.tolist(), numbers.tolist()) == ([[7.0]] * 2, [[64.0, 64.0]] * 2)
    else:
        with pytest.raises(UsageError, match=f"has {2 * WIDTH + more} elements, and 2 numbers alone take {2 * WIDTH}"):
            split_condition(condition, 2)


def test_a_prompt_is_as_wide_as_the_unets() -> None:
    config = {"cross_attention_dim": 5}
    session: Any = SimpleNamespace(dtype=torch.float32)
    patched: Any = None
    made = Denoiser(lambda **_: session, config, 0, {"w": torch.zeros(1)}, patched, None)
    for given, told in ((None, "no encoded prompt"), (torch.zeros(1, 77, 6), "prompts 6 numbers wide")):
        with pytest.raises(UsageError, match=f"takes prompts 5 numbers wide, and there are {told}"):
            made._checked(given)
    prompt = torch.zeros(1, 77, 5)
    assert made._checked(prompt) is prompt
    assert made._condition(None) == {}
    assert list(made.state_dict(prefix="m.", destination={"there": 1})) == ["there", "m.w"]
    for block in ("time_embed", "label_emb", "input_blocks", "middle_block", "output_blocks", "out"):
        with pytest.raises(AttributeError, match=f"no module '{block}': .*need ComfyUI's own loader"):
            getattr(made, block)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), None])
@pytest.mark.parametrize("component", ["vae_decoder", "vae_encoder"])
def test_one_value_that_is_no_number_is_an_error(
    component: str, bad: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among thousands that are: ComfyUI would show a hole."""
    output = torch.ones(1, 8, 4, 4)
    if bad is not None:
        output[0, 1, 2, 3] = bad
    session: Any = SimpleNamespace(
        session=SimpleNamespace(component=component), inputs={"x": 0}, run=lambda feeds: {"y": output}
    )
    monkeypatch.setattr(Autoencoder, "_refuse_shortage", lambda *_: None)
    vae = Autoencoder(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    if bad is None:
        assert vae._run(session, torch.zeros(1, 4, 4, 4), (1, 4, 4)) is output
        return
    with pytest.raises(ParityError, match=f"{component} gives values that are no numbers"):
        vae._run(session, torch.zeros(1, 4, 4, 4), (1, 4, 4))
