"""ComfyUI's UNet and VAE on recorded sessions: how often they are opened and with what, and what they are fed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from sdort.errors import ProviderError, UsageError
from sdort.families.component_names import DECODER, ENCODER
from sdort.first_use.making_plan import Making
from sdort.generation.latents.decode import SHARE, Plan
from sdort.integrations.comfyui import nodes, optimized_vae
from sdort.integrations.comfyui.denoiser import Denoiser, _refuse_changes
from sdort.integrations.comfyui.optimized_unet import _sampling_settings
from sdort.integrations.comfyui.optimized_vae import Autoencoder
from sdort.integrations.comfyui.weight_patches import PatchedWeights
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA

CONFIG = {"in_channels": 9, "cross_attention_dim": 24, "projection_class_embeddings_input_dim": 6 * 256 + 40}


class Opened:
    """As a session: what it was opened with, the patches that it got and what it ran on."""

    dtype = torch.float16
    inputs: Mapping[str, Any] = {}

    def __init__(self, control: bool, adapters: bool) -> None:
        self.control, self.adapters = control, adapters
        self.patches: list[Any] = []
        self.fed: list[dict[str, torch.Tensor]] = []

    def run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.fed.append(feeds)
        return {"out_sample": 2 * feeds["sample"]}


class Patched:
    """As PatchedWeights."""

    fails = False

    def use(self, patches: Any, session: Opened) -> None:
        session.patches.append(dict(patches))
        if self.fails:
            raise UsageError("a test")


class Made:
    """A denoiser whose sessions are kept, and may fail to open."""

    def __init__(self, sizes: int = 0, tune: Any = None) -> None:
        self.sessions: list[Opened] = []
        self.fails = False
        self.patched = Patched()
        patched = cast(PatchedWeights, self.patched)
        self.denoiser = Denoiser(cast(Any, self.open), CONFIG, sizes, {}, patched, tune)

    def open(self, *, control: bool, adapters: bool) -> Opened:
        if self.fails:
            self.fails = False
            raise ProviderError("no room")
        self.sessions.append(Opened(control, adapters))
        return self.sessions[-1]

    @property
    def now(self) -> tuple[bool, bool, list[Any]]:
        last = self.sessions[-1]
        assert self.denoiser.session is cast(Any, last)
        return last.control, last.adapters, last.patches


def test_it_is_opened_plain_and_for_patches_once() -> None:
    made = Made()
    assert made.denoiser.dtype == torch.float16
    assert made.now == (False, False, [])
    made.denoiser.use_patches({}, "none")  # nothing before, and nothing now
    assert len(made.sessions) == 1
    made.denoiser.use_patches({"a": [1]}, "first")
    assert made.now == (False, True, [{"a": [1]}])
    made.denoiser.use_patches({"a": [1]}, "first")
    assert made.now[2] == [{"a": [1]}]
    made.denoiser.use_patches({"b": [2]}, "second")
    made.denoiser.use_patches({}, "third")
    made.denoiser.use_patches({"a": [1]}, "first")
    assert made.now == (False, True, [{"a": [1]}, {"b": [2]}, {}, {"a": [1]}])
    assert len(made.sessions) == 2


def test_it_is_opened_for_controls_with_the_patches_that_it_has() -> None:
    made = Made()
    made.denoiser.use_patches({"a": [1]}, "first")
    made.denoiser._open_with(control=True)
    assert made.now == (True, True, [{"a": [1]}])
    made.denoiser._open_with(control=True)
    made.denoiser._open_with(adapters=True)
    assert len(made.sessions) == 3
    other = Made()
    other.denoiser._open_with(control=True)
    assert other.now == (True, False, [])
    other.denoiser.use_patches({"a": [1]}, "first")
    assert other.now == (True, True, [{"a": [1]}])


def test_patches_that_failed_are_tried_again() -> None:
    made = Made()
    made.patched.fails = True
    with pytest.raises(UsageError):
        made.denoiser.use_patches({"a": [1]}, "first")
    made.patched.fails = False
    made.denoiser.use_patches({"a": [1]}, "first")
    assert made.now == (False, True, [{"a": [1]}, {"a": [1]}])


def test_what_does_not_open_leaves_it_as_it_was_and_its_patches_come_again() -> None:
    made = Made()
    made.denoiser.use_patches({"a": [1]}, "first")
    made.fails = True
    with pytest.raises(ProviderError, match="no room"):
        made.denoiser._open_with(control=True)
    assert made.now == (False, True, [])
    made.denoiser.use_patches({"a": [1]}, "first")  # the session is another one
    assert made.now == (False, True, [{"a": [1]}])
    made.denoiser._open_with(control=True)
    assert made.now == (True, True, [{"a": [1]}])


def test_a_warm_up_feeds_each_image_twice_at_its_height_and_width() -> None:
    made = Made()
    made.denoiser.warm_up(3, 512, 768)
    (fed,) = made.sessions[-1].fed
    assert {name: tuple(value.shape) for name, value in fed.items()} == {
        "sample": (6, 9, 64, 96),
        "timestep": (6,),
        "encoder_hidden_states": (6, 77, 24),
    }
    with_sizes = Made(6)
    with_sizes.denoiser.warm_up(1, 64, 128)
    (fed,) = with_sizes.sessions[-1].fed
    assert tuple(fed["sample"].shape) == (2, 9, 8, 16)
    assert (tuple(fed["text_embeds"].shape), tuple(fed["time_ids"].shape)) == ((2, 40), (2, 6))


@pytest.mark.parametrize("fails", [False, True])
def test_tuning_has_the_memory_to_itself_and_the_patches_come_back(fails: bool) -> None:
    tuned: list[tuple[Any, ...]] = []

    def tune(*size: int) -> None:
        tuned.append(size)
        assert not hasattr(made.denoiser, "_session")
        if fails:
            raise ProviderError("a test")

    made = Made(tune=tune)
    made.denoiser.use_patches({"a": [1]}, "first")
    made.denoiser._open_with(control=True)
    if fails:
        with pytest.raises(ProviderError):
            made.denoiser.warm_up(2, 64, 96)
    else:
        made.denoiser.warm_up(2, 64, 96)
        assert len(made.sessions[-1].fed) == 1
    assert tuned == [(2, 64, 96)]
    assert made.now == (True, True, [{"a": [1]}])
    assert len(made.sessions) == 4


def test_a_step_is_in_the_type_of_its_latents() -> None:
    made = Made()
    x = torch.ones(2, 4, 8, 16, dtype=torch.float64)
    y = made.denoiser(x, torch.zeros(2), torch.zeros(2, 77, 24), ignored=1)
    assert y.dtype == torch.float64
    assert torch.equal(y, 2 * x)
    assert set(made.sessions[-1].fed[0]) == {"sample", "timestep", "encoder_hidden_states"}


def test_sizes_are_asked_for_and_looked_for_again_in_another_type() -> None:
    made = Made(6)
    given = torch.zeros(1, 4, 8, 8), torch.zeros(1), torch.zeros(1, 77, 24)
    with pytest.raises(UsageError, match="the prompt comes without them"):
        made.denoiser(*given)
    with pytest.raises(UsageError, match="takes prompts 24 numbers wide, and there are no encoded prompt"):
        made.denoiser(given[0], given[1], None)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, ""),
        ({"patches": {}, "patches_replace": {"attn2": {}}, "wrappers": {"diffusion_model": {"x": []}}}, ""),
        ({"patches": None, "wrappers": None, "other": {"x": 1}, "wrappers.diffusion_model": {"x": [1]}}, ""),
        ({"wrappers": {"apply_model": {"x": [print]}}}, ""),
        ({"patches": {"a": [], "b": [print]}}, "patches inside of the UNet"),
        ({"patches": {"a": [[], (print,)]}}, "patches inside of the UNet"),
        ({"patches_replace": {"a": {"b": {}}, "c": {"d": 0}}}, "replaced attention"),
        ({"patches_replace": {"a": "text"}}, "replaced attention"),
        ({"wrappers": {"diffusion_model": {"x": [], "y": [None, print]}}}, "a wrapper around the UNet"),
    ],
)
def test_what_nodes_leave_is_refused_where_something_is_in_it(options: dict[str, Any], refused: str) -> None:
    if refused:
        with pytest.raises(UsageError, match=f"asks for {refused}"):
            _refuse_changes(options)
    else:
        _refuse_changes(options)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ({"beta_schedule": "linear"}, "beta_schedule"),
        ({"num_train_timesteps": 500}, "num_train_timesteps"),
        ({"trained_betas": [0.1]}, "trained_betas"),
        ({"_class_name": "EDMEulerScheduler"}, "EDM"),
        ({"num_train_timesteps": 500, "trained_betas": [0.1]}, "num_train_timesteps, trained_betas"),
    ],
)
def test_each_part_of_a_schedule_that_comfyui_takes_for_given(schedule: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=rf"another schedule of noise \({told}\)"):
        _sampling_settings(schedule, Path("here"))


def test_the_ends_of_a_schedule_are_its_own() -> None:
    usual = {"linear_start": 0.00085, "linear_end": 0.012, "zsnr": False}
    assert _sampling_settings({}, Path()) == usual
    own = {"beta_start": 0.1, "beta_end": 0.2, "rescale_betas_zero_snr": True, "beta_schedule": "scaled_linear"}
    assert _sampling_settings(own, Path()) == {"linear_start": 0.1, "linear_end": 0.2, "zsnr": True}


class Half:
    """As a VAE's session: each pixel of a latent is ``factor`` images' pixels along each side."""

    def __init__(self, component: str, result: torch.Tensor) -> None:
        self.session, self.inputs, self._result = SimpleNamespace(component=component), {"in": None, "b": None}, result

    def run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        assert list(feeds) == ["in"]
        return {"out": self._result}


@pytest.mark.parametrize(("share", "fits"), [(1.0001, False), (0.9999, True), (None, True)])
def test_memory_is_that_of_the_latents_height_and_width(
    share: float | None, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def bytes_for(size: Any, form: Any) -> int:
        asked.append((size, form))
        return 1_000_000

    def planner_of(folder: Any, provider: Any, component: str) -> Any:
        asked.append((provider, component))
        return SimpleNamespace(bytes_for=bytes_for)

    def free_memory(vendor: str, device: int) -> int | None:
        asked.append((vendor, device))
        return None if share is None else round(1_000_000 / share / SHARE)

    monkeypatch.setattr(optimized_vae, "planner_of", planner_of)
    monkeypatch.setattr(optimized_vae, "free_memory", free_memory)
    folder: Any = SimpleNamespace(vae_factor=4, latent_channels=3)
    vae = Autoencoder(folder, CUDA)
    made = torch.arange(2 * 6 * 5 * 7.0).reshape(2, 6, 5, 7)
    vae.__dict__["_decoder"], vae.__dict__["_encoder"] = Half(DECODER, made), Half(ENCODER, made)
    size, plan = (2, 5, 7), Plan()
    for component, given in ((DECODER, torch.zeros(2, 3, 5, 7)), (ENCODER, torch.zeros(2, 3, 20, 28))):
        asked.clear()
        run = vae.decode if component == DECODER else vae.encode
        if fits:
            assert torch.equal(run(given), made if component == DECODER else made[:, :3])
        else:
            with pytest.raises(torch.cuda.OutOfMemoryError, match=component):
                run(given)
        assert ((CUDA, component) in asked, ("nvidia", 0) in asked) == (True, True)
        assert ((size, plan) in asked) == (share is not None)


@pytest.mark.parametrize(
    ("precision", "provider", "on_gpu", "expected"),
    [
        ("auto", CPU, "fp16", "fp32"),
        ("auto", CUDA, "fp16", "fp16"),
        ("auto", CUDA, "fp32", "fp32"),
        ("fp16", CPU, "fp32", "fp16"),
        ("fp32", CUDA, "fp16", "fp32"),
    ],
)
def test_the_precision_is_the_fields_or_the_usual_one(
    precision: str, provider: Any, on_gpu: str, expected: str
) -> None:
    made = nodes._making(("unet",), provider, precision, " 1x64x64 ", on_gpu)
    assert made == Making(("unet",), provider.name, expected, "1x64x64")


def test_another_file_has_another_state(tmp_path: Path) -> None:
    import os

    path = tmp_path / "a"
    path.write_bytes(b"one")
    first, status = nodes._state(path), path.stat()
    assert nodes._state(path) == first
    path.write_bytes(b"four")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    longer = nodes._state(path)
    path.write_bytes(b"one")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    later = nodes._state(path)
    (tmp_path / "b").write_bytes(b"one")
    os.utime(tmp_path / "b", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len({first, longer, later, nodes._state(tmp_path / "b")}) == 4
