"""Marks of what a single file's UNet predicts and was trained with, in the spellings of many programs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
from support.ldm_files import save

from sdort.checkpoints.prediction import (
    _MARKED,
    PREDICTIONS,
    Prediction,
    find_prediction,
    has_zero_snr,
    prediction_beside,
)
from sdort.checkpoints.single_file import _edm_scales, _scheduler, read_single_file
from sdort.checkpoints.weight_names import SD1, SD2, SDXL
from sdort.errors import BadModelError
from sdort.families.known_families import FAMILIES
from sdort.families.scheduler_configs import DDIM_V, EULER, PNDM
from sdort.families.unet import INPAINTING
from sdort.graph.weights import Stored

VELOCITY = ("v", "V", "v-prediction", "v_prediction", "v prediction", "vpred", "v_pred", "V-Prediction", "velocity")
NOISE = ("epsilon", "eps", "Epsilon", "eps_pred", "epsilon-prediction", "noise")
SAMPLE = ("x0", "sample")
KEYS = (
    "modelspec.predict_key",
    "modelspec.prediction_type",
    "prediction_type",
    "ss_prediction_type",
    "parameterization",
)
VARIANTS = list(itertools.product((SD1, SD2, SDXL), (None, INPAINTING)))


def kind(
    notes: Mapping[str, str] | None = None, names: tuple[str, ...] = (), beside: str | None = None,
    family: str = SDXL, variant: str | None = None, chosen: str | None = None, folder: Path | None = None,
) -> str:  # fmt: skip
    mark = None
    if beside is not None and folder:
        (folder / "a.yaml").write_text(beside)
        mark = prediction_beside(folder / "a.safetensors")
    return find_prediction(family, variant, {}, names, notes or {}, chosen, mark).kind


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
@pytest.mark.parametrize("key", KEYS)
def test_a_mark_counts_in_every_spelling_and_family(
    key: str, family: str, variant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    for spellings, expected in ((VELOCITY, "v_prediction"), (NOISE, "epsilon"), (SAMPLE, "sample")):
        for spelling in spellings:
            assert kind({key: spelling}, family=family, variant=variant) == expected
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
@pytest.mark.parametrize("chosen", PREDICTIONS)
def test_the_scheduler_and_the_size_are_the_familys_own_but_for_sd2_of_768_pixels(
    family: str, variant: str | None, chosen: str
) -> None:
    """Stability's SD 2.x of velocity has DDIM and 96 latents of a side; a tuned model of another family has its own."""
    found = find_prediction(family, variant, {}, (), {}, chosen)
    config = _scheduler(FAMILIES[family], found, {}, {})
    if (family, chosen) == (SD2, "v_prediction"):
        assert (config["_class_name"], found.sample_size) == ("DDIMScheduler", 96)
    else:
        assert config == {**FAMILIES[family].scheduler, "prediction_type": chosen}
        assert found.sample_size is None


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
@pytest.mark.parametrize("deviation", [0.05, 0.2])
def test_weights_tell_the_prediction_of_sd2s_text_to_image_alone(
    family: str, variant: str | None, deviation: float, tmp_path: Path
) -> None:
    """Both of Stability's releases for inpainting predict noise."""
    unet = {_MARKED: stored((-deviation, deviation) * 160, tmp_path / "bias")}
    found = find_prediction(family, variant, unet, (), {}, None)
    velocity = family == SD2 and variant is None and deviation > 0.09
    assert found.kind == ("v_prediction" if velocity else "epsilon")


@pytest.mark.parametrize("key", ["ss_v_parameterization", "v_parameterization", "v_pred"])
def test_a_switch_counts_where_it_is_on(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    for on, family in itertools.product(("True", "true", "1", " yes "), (SD1, SD2, SDXL)):
        assert kind({key: on}, family=family) == "v_prediction"
    for off in ("False", "false", "0", "None", ""):
        assert kind({key: off}) == "epsilon"
    assert not capsys.readouterr().err
    assert kind({key: "perhaps"}) == "epsilon"
    assert f"{key}: 'perhaps', which is neither true nor false" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("key", KEYS)
def test_an_unknown_value_is_told(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kind({key: "wavelets"}) == "epsilon"
    said = " ".join(capsys.readouterr().err.split())
    assert "warning" in said
    assert f"{key}: 'wavelets', which sdort does not know" in said


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["flow", "flow_matching", "Rectified Flow", "edm"])
def test_another_process_of_noise_is_refused(key: str, value: str) -> None:
    with pytest.raises(BadModelError, match=f"predicts '{value}'"):
        kind({key: value})
    assert kind({key: value}, chosen="epsilon") == "epsilon"


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(KEYS, 2)))
def test_a_contradiction_is_told(first: str, second: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = kind({first: "v", second: "eps"})
    said = " ".join(capsys.readouterr().err.split())
    assert found in said
    assert "contradict one another" in said
    kind({first: "v", second: "v_prediction"})
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "names", "expected", "told"),
    [
        ('parameterization: "v"', (), "v_prediction", False),
        ("model: {params: {beta: 1, parameterization: v}}", (), "v_prediction", False),
        ("# parameterization: v\nmodel:", (), "epsilon", False),
        ("    parameterization: eps", ("v_pred",), "epsilon", True),
        ("model:\n  target: ldm.LatentDiffusion", ("v_pred",), "v_prediction", False),  # says nothing
        ("params: {parameterization : v}", (), "v_prediction", False),
        ("target: sgm.modules.diffusionmodules.denoiser_scaling.VScaling", (), "v_prediction", False),
        ("target: sgm.modules.diffusionmodules.denoiser_scaling.EpsScaling", ("v_pred",), "epsilon", True),
    ],
)
def test_the_config_beside_a_file(
    tmp_path: Path, text: str, names: tuple[str, ...], expected: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kind(names=names, beside=text, folder=tmp_path) == expected
    assert ("contradict" in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    "text",
    [
        "target: sgm.modules.diffusionmodules.denoiser_scaling.EDMScaling",
        "target: sgm.modules.diffusionmodules.denoiser_scaling.VScalingWithEDMcNoise",
        "parameterization: flow",
    ],
)
def test_another_process_beside_a_file_is_refused_but_where_the_user_knows_better(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadModelError, match="with which sdort does not draw"):
        kind(beside=text, folder=tmp_path)
    state = diffusers.UNet2DConditionModel(block_out_channels=(32,) * 4, cross_attention_dim=32).state_dict()
    save(state, tmp_path / "a.safetensors")
    found = read_single_file(tmp_path / "a.safetensors", prediction_type="sample").prediction
    assert found is not None
    assert found.kind == "sample"


@pytest.mark.parametrize("family", [SD1, SD2, SDXL])
@pytest.mark.parametrize(
    ("names", "notes"),
    [
        (("v_pred", "ztsnr"), {}),
        (("v_pred",), {"ss_zero_terminal_snr": "True"}),
        ((), {"ss_zero_terminal_snr": "1", "ss_v_parameterization": "True"}),
        (("v_pred",), {"zero_terminal_snr": "true"}),
    ],
)
def test_zero_terminal_snr_is_taken(family: str, names: tuple[str, ...], notes: dict[str, str]) -> None:
    assert has_zero_snr(names, notes)
    found = find_prediction(family, None, {}, names, notes, None)
    config = _scheduler(FAMILIES[family], found, dict.fromkeys(names, stored()), notes)
    assert (config["rescale_betas_zero_snr"], config["timestep_spacing"]) == (True, "trailing")
    import diffusers

    made = getattr(diffusers, config["_class_name"]).from_config(config)
    assert made.config.rescale_betas_zero_snr
    assert made.config.prediction_type == "v_prediction"


@pytest.mark.parametrize(
    ("scheduler", "taken"), [(PNDM, "DDIMScheduler"), (DDIM_V, "DDIMScheduler"), (EULER, "EulerDiscreteScheduler")]
)
@pytest.mark.parametrize("kind", ["v_prediction", "sample"])
def test_zero_terminal_snr_is_for_schedulers_that_know_it(scheduler: Any, taken: str, kind: str) -> None:
    """Whatever a config beside the file, or an option, asks for."""
    for release, found in (
        (replace(FAMILIES[SD1], scheduler=scheduler), Prediction(kind)),
        (FAMILIES[SDXL], Prediction(kind, scheduler=scheduler)),
    ):
        config = _scheduler(release, found, {"ztsnr": stored()}, {})
        assert (config["_class_name"], config["rescale_betas_zero_snr"]) == (taken, True)


def test_zero_terminal_snr_of_a_model_that_predicts_noise_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = find_prediction(SDXL, None, {}, ("ztsnr",), {}, None)
    config = _scheduler(FAMILIES[SDXL], found, {"ztsnr": stored()}, {})
    assert "rescale_betas_zero_snr" not in config
    assert "zero terminal SNR" in " ".join(capsys.readouterr().err.split())
    assert not has_zero_snr((), {"ss_zero_terminal_snr": "False"})


def stored(values: tuple[float, ...] = (), path: Path = Path("nowhere")) -> Stored:
    if values:
        path.write_bytes(np.array(values, np.float32).tobytes())
    return Stored(path, 0, (len(values),), np.dtype(np.float32))


def test_an_edm_models_latents_are_scaled_as_its_file_says(tmp_path: Path) -> None:
    mean, deviation = (0.5, -1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0)
    found = _edm_scales(
        {"edm_mean": stored(mean, tmp_path / "mean"), "edm_std": stored(deviation, tmp_path / "deviation")}
    )
    assert (found["latents_mean"], found["latents_std"], found["scaling_factor"]) == ([*mean], [*deviation], 0.5)
    assert _edm_scales({}) == {}
