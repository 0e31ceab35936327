"""sdort's nodes behind a stand-in of ComfyUI, on a tiny checkpoint: diffusers' numbers, or an error in words."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import comfyui_modules, tiny_control, tiny_pipeline
from support.first_use import replace_making
from support.pipelines import trace_folder
from support.relisted import relist

from sdort.checkpoints.configs import read_config, write_json
from sdort.console import progress
from sdort.errors import MemoryShortageError, ParityError, ProviderError, UsageError
from sdort.exporter.checkpoint import ANY_VARIANT
from sdort.first_use.making_plan import Making
from sdort.integrations.comfyui import nodes, unet_folder
from sdort.integrations.comfyui.optimized_unet import make_patcher
from sdort.integrations.comfyui.optimized_vae import make_vae
from sdort.optimizer.command import FUSING, optimize
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.providers import CPU, PROVIDERS
from sdort.providers.provider import Provider
from sdort.tuning.store import Store
from sdort.warmup.command import warm

DECODED = "vae_decoder vae_encoder"
TOLERANCE = 1e-4
"""fp32 on both sides, outputs of about 1: 3e-6 is seen, and a wrong tensor gives 0.01 and more."""


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A tiny pipeline, exported with inputs for residuals and optimized, and diffusers' own."""
    folder = tmp_path_factory.mktemp("comfyui")
    pipeline = tiny_pipeline.build_diffusers(folder / "pipeline")
    tiny_control.export_part(folder / "pipeline", folder / "out", trace_folder(request.config), control=True)
    optimize(folder / "out", folder / "fast", provider="cpu")
    return folder / "fast", pipeline


@pytest.fixture(autouse=True)
def _comfyui(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("checkpoints", "vae"):
        (tmp_path / "models" / name).mkdir(parents=True)
    comfyui_modules.install(monkeypatch, tmp_path / "models")
    with torch.no_grad():
        yield


@pytest.fixture
def patcher(made: tuple[Path, Any]) -> Any:
    return make_patcher(made[0], CPU)


def latents(samples: int = 2, width: int = 16) -> torch.Tensor:
    return torch.randn(samples, 4, 16, width, generator=torch.Generator().manual_seed(9))


def prompts(samples: int = 2, tokens: int = 77) -> torch.Tensor:
    return torch.randn(samples, tokens, 32, generator=torch.Generator().manual_seed(tokens))


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


def test_a_step_gives_diffusers_numbers(made: tuple[Path, Any], patcher: Any) -> None:
    unet = made[1].unet
    for x, context in ((latents(), prompts()), (latents(3, 24), prompts(3, 154))):
        assert_close(patcher.predict(x, 7.0, context), unet(x, 7, context).sample)


def test_patches_of_a_clone_are_its_own(made: tuple[Path, Any], patcher: Any) -> None:
    unet, x, context = made[1].unet, latents(), prompts()
    names = {
        "middle_block.1.transformer_blocks.0.attn1.to_q.weight": (
            unet.mid_block.attentions[0].transformer_blocks[0].attn1.to_q.weight
        ),
        "input_blocks.0.0.weight": unet.conv_in.weight,
    }
    differences = {
        f"diffusion_model.{name}": torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) * 0.1
        for name, weight in names.items()
    }
    plain = unet(x, 7, context).sample
    clone = patcher.patched(differences, 0.5)
    before = [weight.clone() for weight in names.values()]
    for weight, difference in zip(names.values(), differences.values(), strict=True):
        weight.add_(0.5 * difference)
    changed = unet(x, 7, context).sample
    for weight, values in zip(names.values(), before, strict=True):
        weight.copy_(values)
    assert (changed - plain).abs().max() > 100 * TOLERANCE
    for model, expected in ((clone, changed), (patcher, plain), (clone, changed)):
        assert_close(model.predict(x, 7.0, context), expected)


def test_a_warm_up_tunes_and_keeps_what_it_finds(
    made: tuple[Path, Any], patcher: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing can be tuned on the CPU: there ``warm`` runs each shape once, and marks it as done."""
    unet, denoiser, x, context = made[1].unet, patcher.model.diffusion_model, latents(), prompts()
    assert denoiser._tune is None, "there is something to tune on the CPU"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(unet_folder, "can_tune", lambda *_: True)
    patcher = make_patcher(made[0], CPU)
    denoiser, asked = patcher.model.diffusion_model, list[dict[str, Any]]()
    clone = patcher.patched({"diffusion_model.out.2.weight": torch.ones_like(unet.conv_out.weight) * 0.05})
    changed = clone.predict(x, 7.0, context)
    session = weakref.ref(denoiser.session.session.ort)

    def counted(path: Path, **options: Any) -> Any:
        assert session() is None, "two UNets are open"
        asked.append(options)
        return warm(path, **options)

    monkeypatch.setattr(unet_folder, "warm", counted)
    assert nodes.WarmUp().warm(clone, 96, 64, 2) == (clone,)
    assert asked == [{"sizes": [(64, 96)], "batch_sizes": [2], "components": ["unet"], "provider": "cpu"}]
    (kept,) = (Store().read(name) for name in Store().names())
    assert dict(kept.key.shapes)["sample"] == (4, 4, 16, 24)
    assert_close(clone.predict(x, 7.0, context), changed)
    assert_close(patcher.predict(x, 7.0, context), unet(x, 7, context).sample)

    def fail(*_: Any, **__: Any) -> Any:
        raise ProviderError("no room")

    monkeypatch.setattr(unet_folder, "warm", fail)
    with pytest.raises(ProviderError, match="no room"):
        denoiser.warm_up(1, 64, 64)
    assert_close(patcher.predict(x, 7.0, context), unet(x, 7, context).sample)


def test_residuals_are_added_beside_patches(made: tuple[Path, Any], patcher: Any) -> None:
    unet, x, context = made[1].unet, latents(), prompts()
    weight = unet.conv_out.weight
    clone = patcher.patched({"diffusion_model.out.2.weight": torch.ones_like(weight) * 0.05})
    shapes = [(2, 16, 16, 16), (2, 16, 16, 16), (2, 16, 8, 8), (2, 32, 8, 8)]
    skips = [torch.randn(shape, generator=torch.Generator().manual_seed(number)) for number, shape in enumerate(shapes)]
    middle = torch.randn(1, 32, 8, 8, generator=torch.Generator().manual_seed(8))
    weight.add_(0.05)
    expected = unet(x, 7, context, down_block_additional_residuals=skips, mid_block_additional_residual=middle).sample
    weight.sub_(0.05)
    control = {"input": [], "middle": [middle], "output": skips}
    assert_close(clone.predict(x, 7.0, context, control=control), expected)
    assert_close(patcher.predict(x, 7.0, context), unet(x, 7, context).sample)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"context": torch.zeros(2, 77, 48)},
            "32 numbers wide, and there are prompts 48 numbers wide: of another family",
        ),
        ({"context": None}, "no encoded prompt"),
        ({"transformer_options": {"patches": {"attn1_patch": [print]}}}, "patches inside of the UNet"),
        ({"transformer_options": {"patches_replace": {"attn2": {("middle", 0): print}}}}, "replaced attention"),
        ({"transformer_options": {"wrappers": {"diffusion_model": {"x": [print]}}}}, "a wrapper around the UNet"),
    ],
)
def test_what_a_graph_cannot_do_is_refused(patcher: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        patcher.predict(latents(), 7.0, **{"context": prompts(), **change})


def test_a_unet_that_does_not_open_for_more_stays_open(made: tuple[Path, Any], patcher: Any) -> None:
    denoiser, x, context = patcher.model.diffusion_model, latents(), prompts()
    opened = denoiser._open

    def fail(*, control: bool, adapters: bool) -> Any:
        if control:
            raise ProviderError("no room")
        return opened(control=control, adapters=adapters)

    denoiser._open = fail
    with pytest.raises(ProviderError, match="no room"):
        patcher.predict(x, 7.0, context, control={"middle": [torch.zeros(2, 32, 8, 8)]})
    assert_close(patcher.predict(x, 7.0, context), made[1].unet(x, 7, context).sample)


def test_patches_without_a_place_are_refused(patcher: Any) -> None:
    key = "diffusion_model.out.2.bias"
    with pytest.raises(UsageError, match=r"out\.2\.bias, which is constant in the exported graph"):
        patcher.patched({key: torch.zeros(4)}).predict(latents(), 7.0, prompts())
    grown = {"diffusion_model.out.2.weight": torch.zeros(4, 16, 3, 3).expand(2, 4, 16, 3, 3)}
    with pytest.raises(UsageError, match=r"a patch makes .*out\.2\.weight \[2, 4, 16, 3, 3\]"):
        patcher.patched(grown).predict(latents(), 7.0, prompts())
    patcher.hook_patches = {"hook": {}}
    with pytest.raises(UsageError, match="a hook changes the weights"):
        patcher.predict(latents(), 7.0, prompts())
    with pytest.raises(AttributeError, match="need ComfyUI's own loader"):
        _ = patcher.model.diffusion_model.input_blocks


@pytest.mark.parametrize(
    ("schedule", "kind", "zsnr"),
    [({}, "EPS", False), ({"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}, "V_PREDICTION", True)],
)
def test_sampling_is_that_of_the_schedule(
    made: tuple[Path, Any], edited: Any, schedule: dict[str, Any], kind: str, zsnr: bool
) -> None:
    model = make_patcher(edited("scheduler/scheduler_config.json", schedule), CPU).model
    assert (model.model_type.name, model.model_config.sampling_settings["zsnr"]) == (kind, zsnr)
    assert type(model.model_config).__name__ == "SD15"


@pytest.fixture
def edited(made: tuple[Path, Any], tmp_path: Path) -> Any:
    """The optimized pipeline with other entries in a config."""

    def edit(name: str, entries: dict[str, Any]) -> Path:
        folder = tmp_path / "edited"
        shutil.copytree(made[0], folder)
        write_json(folder / name, {**read_config(folder / name), **entries})
        relist(folder)
        return folder

    return edit


@pytest.mark.parametrize(
    ("schedule", "message"),
    [({"prediction_type": "sample"}, "predicts sample"), ({"beta_schedule": "linear"}, "beta_schedule")],
)
def test_another_schedule_is_refused(edited: Any, schedule: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_patcher(edited("scheduler/scheduler_config.json", schedule), CPU)


def test_a_vae_decodes_as_diffusers_does(made: tuple[Path, Any]) -> None:
    vae, own = make_vae(made[0], CPU), made[1].vae
    assert (vae.latent_channels, vae.downscale_ratio, vae.upscale_ratio, vae.vae_dtype) == (4, 4, 4, torch.float32)
    x = latents(2, 24)
    decoded = vae.first_stage_model.decode(x)
    assert_close(decoded, own.decode(x).sample)
    assert_close(vae.first_stage_model.encode(decoded), own.encode(decoded).latent_dist.mean)


def test_a_vae_that_is_short_of_memory_says_it_as_torch_does(
    made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = make_vae(made[0], CPU).first_stage_model
    vae.decode(latents())

    def fail(_: Any) -> Any:
        raise MemoryShortageError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(vae._decoder, "run", fail)
        with pytest.raises(torch.cuda.OutOfMemoryError, match="no memory"):
            vae.decode(latents())
    monkeypatch.setattr("sdort.integrations.comfyui.optimized_vae.free_memory", lambda *_: 1 << 16)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="does not fit"):
        vae.decode(latents())


def test_images_that_are_no_numbers_are_refused(made: tuple[Path, Any]) -> None:
    with pytest.raises(ParityError, match="no numbers"):
        make_vae(made[0], CPU).first_stage_model.decode(latents() * float("nan"))


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32"])
def test_a_vae_is_in_fp16_only_where_it_is_asked_for(
    provider: Provider, precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SDXL's own overflows there; a UNet of its own accord is in fp16 on a GPU."""

    def made(_: Path, making: Making) -> Path:
        raise UsageError(f"{making.provider} {making.precision} {' '.join(making.components)}")

    monkeypatch.setattr(nodes, "_chosen", lambda _: provider)
    monkeypatch.setattr(nodes, "optimized_model", made)
    for folder in ("vae", "checkpoints"):
        (tmp_path / "models" / folder / "my.safetensors").write_bytes(b"one")
    usual = "fp16" if provider.on_gpu else "fp32"
    for node, components, auto in ((nodes.LoadVAE, DECODED, "fp32"), (nodes.LoadCheckpoint, "unet", usual)):
        with pytest.raises(UsageError) as refused:
            node().load("my.safetensors", provider.name, precision)
        assert refused.value.message == f"{provider.name} {auto if precision == 'auto' else precision} {components}"


def test_a_checkpoint_is_made_once(made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "models" / "vae" / "my.safetensors"

    def fill(_: Path, out: Path, request: OptimizeRequest) -> None:
        with progress(FUSING.format("unet")):
            shutil.copytree(made[0], out, dirs_exist_ok=True)

    making = replace_making(monkeypatch, fill)
    file.write_bytes(b"one")
    assert nodes.LoadVAE.INPUT_TYPES()["required"]["vae_name"] == (["my.safetensors"],)

    def load(precision: str, size: str = "") -> Path:
        folder: Path = nodes.LoadVAE().load("my.safetensors", "cpu", precision, size)[0].first_stage_model.folder.path
        return folder

    first, state = load("auto"), nodes.LoadVAE.IS_CHANGED("my.safetensors")
    assert comfyui_modules.bar()[-1] == 0
    components = ("vae_decoder", "vae_encoder")
    expected = {"components": components, "static": None, "control": False, "variant": ANY_VARIANT}
    assert making.exports == [(file, expected)]
    assert [(each.provider, each.fp16) for each in making.requests] == [("cpu", False)]
    assert load("fp32") == first
    assert len(making.exports) == 1
    others = [load("fp16"), load("auto", "1x64x64")]
    file.write_bytes(b"two")
    assert nodes.LoadVAE.IS_CHANGED("my.safetensors") != state
    assert len({first, *others, load("auto")}) == 4
    assert [options["static"] for _, options in making.exports[1:3]] == [None, "1x64x64"]
    assert [each.fp16 for each in making.requests[1:3]] == [True, False]


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("512", "the node's size '512': expected BxHxW"),
        ("1x0x512", "the node's size 0 is not a whole number"),
        ("1x65x64", "the node's size 1x65x64: height and width must be multiples of 4"),
    ],
)
def test_a_wrong_size_is_said_of_the_field(
    size: str, message: str, made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes.LoadVAE, "_path", lambda *_: made[0].parent / "pipeline")
    with pytest.raises(UsageError, match=message):
        nodes.LoadVAE().load("tiny", "cpu", "auto", size)


def test_nodes_refuse_what_is_not_here(tmp_path: Path, patcher: Any) -> None:
    (tmp_path / "models" / "checkpoints" / "a.safetensors").write_bytes(b"")
    with pytest.raises(ProviderError, match="rocm cannot be used"):
        nodes.LoadCheckpoint().load("a.safetensors", "rocm", "auto")
    with pytest.raises(UsageError, match="no folder is named"):
        nodes.LoadFolder().load("", "cpu")
    with pytest.raises(UsageError, match="none of sdort's"):
        nodes.WarmUp().warm(comfyui_modules.ModelPatcher(torch.nn.Module(), None, None), 64, 64, 1)
    assert nodes.WarmUp().warm(patcher, 64, 128, 1) == (patcher,)


def test_a_folder_gives_a_model_and_a_vae(made: tuple[Path, Any]) -> None:
    model, vae = nodes.LoadFolder().load(str(made[0]), "cpu")
    x, context = latents(), prompts()
    assert_close(model.predict(x, 7.0, context), made[1].unet(x, 7, context).sample)
    assert_close(vae.first_stage_model.decode(x), made[1].vae.decode(x).sample)


def test_every_node_is_described() -> None:
    assert nodes.NODE_CLASS_MAPPINGS.keys() == nodes.NODE_DISPLAY_NAME_MAPPINGS.keys()
    node: Any
    for node in nodes.NODE_CLASS_MAPPINGS.values():
        inputs = [name for group in node.INPUT_TYPES().values() for name in group]
        function = getattr(node, node.FUNCTION)
        assert list(function.__code__.co_varnames[1 : function.__code__.co_argcount]) == inputs
        assert node.DESCRIPTION
