"""Rules of single files one by one: spellings of marks, names that are of no component, halves and averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.checkpoints.control_file import read_control_file
from sdort.checkpoints.layout import control_tensors, unet_tensors
from sdort.checkpoints.prediction import (
    _MARKED,
    PREDICTIONS,
    find_prediction,
    has_zero_snr,
    prediction_beside,
)
from sdort.checkpoints.single_file import (
    _UNREAD,
    SingleFile,
    _add_text_encoder,
    _averaged,
    _read_vae,
    _refuse_differences,
    _without_rest,
)
from sdort.checkpoints.weight_names import SD1, SD2, SDXL
from sdort.errors import BadModelError
from sdort.families.known_families import FAMILIES
from sdort.graph.weights import Stored

SPELLED = {
    "v_prediction": ("v", "v-prediction", "v_pred", "V parameterization", "velocity", "VPRED"),
    "epsilon": ("epsilon", "eps", "eps-prediction", "eps_pred", "epsilon prediction", "noise"),
    "sample": ("x0", "sample", "original"),
}


@pytest.mark.parametrize("kind", SPELLED)
def test_predictions_as_programs_write_them(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(SPELLED) == set(PREDICTIONS)
    for text in SPELLED[kind]:
        assert find_prediction(SDXL, None, {}, (), {"prediction_type": text}, None).kind == kind, text
    assert capsys.readouterr().err == ""
    for text in ("false", "0", "no", "off", "none", "null", ""):  # says nothing, and is not told
        assert find_prediction(SDXL, None, {}, (), {"prediction_type": text}, None).kind == "epsilon"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("key", ["ss_v_parameterization", "v_parameterization", "v_pred", "vpred"])
@pytest.mark.parametrize(("text", "on"), [("true", True), ("1", True), ("YES", True), ("on", True), (" no ", False),
                                          ("off", False), ("null", False), ("none", False)])  # fmt: skip
def test_switches_of_velocity(key: str, text: str, on: bool, capsys: pytest.CaptureFixture[str]) -> None:
    found = find_prediction(SDXL, None, {}, (), {key: text}, None)
    assert found.kind == ("v_prediction" if on else "epsilon")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "key", ["ss_zero_terminal_snr", "zero_terminal_snr", "ztsnr", "zsnr", "rescale_betas_zero_snr"]
)
def test_switches_of_a_signal_of_zero(key: str) -> None:
    assert has_zero_snr((), {key: "True"})
    assert not has_zero_snr((), {key: "False"})
    assert not has_zero_snr((), {"other": "True"})
    assert has_zero_snr(("ztsnr",), {})
    assert not has_zero_snr(("v_pred",), {})


@pytest.mark.parametrize(
    ("text", "kind", "usual"),
    [
        ("parameterization: v", "v_prediction", False),
        ("'parameterization': 'v'", "v_prediction", False),
        ("parameterization: eps", "epsilon", False),
        ("parameterization: x0", "sample", False),
        ("parameterization: odd", "epsilon", True),
        ("x: denoiser_scaling.VScaling", "v_prediction", False),
        ("x: denoiser_scaling.EpsScaling", "epsilon", False),
        ("x: denoiser_scaling.Odd", "epsilon", True),
        ("x: denoiser_scaling.EpsScaling\nparameterization: v", "v_prediction", False),
        ("other: v", "epsilon", True),
        ("my_parameterization: v", "epsilon", True),
        ("a: 1 # parameterization: v", "epsilon", True),
        ("", "epsilon", True),
    ],
)
def test_the_config_beside_a_file_says(tmp_path: Path, text: str, kind: str, usual: bool) -> None:
    (tmp_path / "a.yaml").write_text(text)
    found = prediction_beside(tmp_path / "a.safetensors")
    assert found is not None
    assert (found.kind, found.usual) == (kind, usual)
    assert prediction_beside(tmp_path / "b.safetensors") is None
    (tmp_path / "c.yaml").write_text("x: denoiser_scaling.VScalingWithEDMcNoise")
    with pytest.raises(BadModelError, match="VScalingWithEDMcNoise"):
        prediction_beside(tmp_path / "c.safetensors")


def test_which_mark_goes_before_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("parameterization: x0")
    (tmp_path / "b.yaml").write_text("")
    says, silent = (prediction_beside(tmp_path / f"{name}.safetensors") for name in "ab")
    notes = {"prediction_type": "eps"}
    cases: list[tuple[Any, tuple[str, ...], dict[str, str], str, str | None]] = [
        (says, ("v_pred",), notes, "sample", "says the .yaml beside it"),
        (silent, ("v_pred",), notes, "v_prediction", None),
        (silent, (), notes, "epsilon", None),
        (silent, (), {}, "epsilon", "says the .yaml beside it"),
        (None, ("v_pred",), notes, "v_prediction", None),
        (None, (), {**notes, "modelspec.predict_key": "v"}, "v_prediction", None),
        (None, (), {"parameterization": "v", "ss_prediction_type": "eps"}, "epsilon", None),
        (None, (), {"vpred": "1", "parameterization": "eps"}, "epsilon", None),
    ]
    for beside, names, marks, kind, reason in cases:
        found = find_prediction(SDXL, None, {}, names, marks, None, beside)
        assert (found.kind, found.reason) == (kind, reason), (beside, names, marks)
        assert find_prediction(SDXL, None, {}, names, marks, "sample", beside).kind == "sample"
    assert "contradict one another" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("deviation", "kind"), [(0.0899, "epsilon"), (0.0901, "v_prediction")])
def test_the_deviation_of_a_vector(tmp_path: Path, deviation: float, kind: str) -> None:
    values = np.array([deviation, -deviation] * 160, np.float32)
    (tmp_path / "a").write_bytes(values.tobytes())
    unet = {_MARKED: Stored(tmp_path / "a", 0, (320,), np.float32)}
    found = find_prediction(SD2, None, unet, (), {}, None)
    assert found.kind == kind
    assert f"{deviation:.3f} {'>' if kind == 'v_prediction' else '<='} 0.09" in str(found.reason)
    for shape in ((0,), (4, 80), ((1 << 16) + 1,)):
        odd = find_prediction(SD2, None, {_MARKED: Stored(tmp_path / "a", 0, shape, np.float32)}, (), {}, None)
        assert (odd.kind, odd.reason) == ("epsilon", f"it has no {_MARKED} that would tell")


OF_NO_COMPONENT = (
    "betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_alphas_cumprod", "sqrt_one_minus_alphas_cumprod",
    "log_one_minus_alphas_cumprod", "sqrt_recip_alphas_cumprod", "sqrt_recipm1_alphas_cumprod", "posterior_variance",
    "logvar", "lvlb_weights", "scale_factor", "global_step", "denoiser.sigmas", "model_ema.decay", "v_pred", "ztsnr",
    "edm_mean", "edm_std", "cond_stage_model.transformer.text_model.embeddings.position_ids",
    "cond_stage_model.model.logit_scale", "first_stage_model.loss.logvar", "loss.a",
)  # fmt: skip


def test_tensors_of_no_component_are_known() -> None:
    for name in OF_NO_COMPONENT:
        assert _UNREAD.fullmatch(name), name
    for name in ("model.diffusion_model.a", "first_stage_model.decoder.a", "extra", "betas2", "edm_vpred.sigma_max"):
        assert not _UNREAD.fullmatch(name), name
    inner = named(["a.position_ids", "position_ids", "logit_scale", "loss.x", "a.loss.x", "encoder.a", "glossy.a"])
    assert list(_without_rest(inner)) == ["encoder.a", "glossy.a"]


def named(names: list[str], shape: tuple[int, ...] = (4, 4)) -> dict[str, Stored]:
    return {name: Stored(Path("nowhere"), number, shape, np.float32) for number, name in enumerate(names)}


def test_averaged_weights_have_flat_names() -> None:
    plain = ["model.diffusion_model.out.2.bias", "model.diffusion_model.time_embed.0.weight"]
    flat = ["model_ema.diffusion_modelout2bias", "model_ema.diffusion_modeltime_embed0weight"]
    found = _averaged(named([*plain, *flat, "model_ema.decay", "cond_stage_model.a"]))
    assert {name: tensor.offset for name, tensor in found.items()} == {"out.2.bias": 2, "time_embed.0.weight": 3}
    with pytest.raises(BadModelError, match=r"it has no averaged weights \(model_ema\.\)"):
        _averaged(named(plain))
    with pytest.raises(BadModelError, match=r"it has no model_ema\.diffusion_modeltime_embed0weight"):
        _averaged(named([*plain, flat[0]]))


@pytest.mark.parametrize(
    ("scale", "refused"), [(1.0, False), (-1.0, False), (0.021, False), (0.019, True), (0.0, True)]
)
def test_scales_of_about_0_are_differences(tmp_path: Path, scale: float, refused: bool) -> None:
    (tmp_path / "a").write_bytes(np.full(8, scale, np.float32).tobytes())
    unet = {"conv_norm_out.weight": Stored(tmp_path / "a", 0, (8,), np.float32)}
    if refused:
        with pytest.raises(BadModelError, match="differences of weights and no UNet"):
            _refuse_differences(unet)
    else:
        _refuse_differences(unet)
    _refuse_differences({})


CLIP = ("embeddings.token_embedding.weight", "embeddings.position_embedding.weight", "encoder.layers.0.mlp.fc1.weight",
        "encoder.layers.1.mlp.fc1.weight")  # fmt: skip


@pytest.mark.parametrize(
    ("family", "number", "prefix"),
    [
        (SD1, 0, "cond_stage_model.transformer.text_model."),
        (SD1, 0, "conditioner.embedders.0.transformer.text_model."),
        (SD2, 0, "cond_stage_model.transformer.text_model."),
        (SDXL, 0, "conditioner.embedders.0.transformer.text_model."),
    ],
)
def test_where_a_text_encoder_stands(family: str, number: int, prefix: str) -> None:
    part = FAMILIES[family].encoders[number]
    root = prefix.removesuffix("text_model.")
    others = [f"{root}vision_model.a", f"{root}visual_projection.weight", "model.diffusion_model.a"]
    tensors = named(
        [*(prefix + name for name in CLIP), *others, f"{root}text_projection.weight", f"{prefix}position_ids"]
    )
    file = SingleFile(Path("a"), FAMILIES[family], None, find_prediction(family, None, {}, (), {}, "epsilon"))
    used = _add_text_encoder(file, part, tensors)
    assert used == tensors.keys() - set(others)
    assert set(file.tensors["text_encoder"]) == {f"text_model.{name}" for name in CLIP}
    assert file.configs["text_encoder"]["num_hidden_layers"] == 2
    assert file.configs["text_encoder"]["hidden_act"] == part.activation
    assert file.configs["text_encoder"]["projection_dim"] == part.config["projection_dim"]
    assert _add_text_encoder(file, part, named(["model.diffusion_model.a"])) == set()


@pytest.mark.parametrize(("layers", "used"), [(24, 23), (23, 23), (25, 25)])
def test_the_last_layer_of_sd2s_text_encoder_is_not_used(layers: int, used: int) -> None:
    prefix = "cond_stage_model.model."
    names = ["positional_embedding", "token_embedding.weight", "text_projection"]
    names += [f"transformer.resblocks.{layer}.mlp.c_fc.weight" for layer in range(layers)]
    file = SingleFile(Path("a"), FAMILIES[SD2], None, find_prediction(SD2, None, {}, (), {}, "epsilon"))
    _add_text_encoder(file, FAMILIES[SD2].encoders[0], named([prefix + name for name in names]))
    assert file.configs["text_encoder"]["num_hidden_layers"] == used
    found = file.tensors["text_encoder"]
    assert len([name for name in found if ".mlp.fc1." in name]) == used
    assert "text_projection.weight" not in found


VAE = (
    "encoder.conv_in.weight", "decoder.conv_in.weight", "decoder.conv_out.weight",
    "encoder.down.0.block.0.conv1.weight", "decoder.up.0.block.0.conv1.weight",
)  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "first_stage_model.", "vae."])
def test_where_an_autoencoder_stands(prefix: str) -> None:
    config, tensors = _read_vae(Path("a"), named([prefix + name for name in VAE] + [f"{prefix}loss.a"], (4, 4, 3, 3)))
    assert config["_class_name"] == "AutoencoderKL"
    assert "decoder.up_blocks.0.resnets.0.conv1.weight" in tensors
    assert len(tensors) == len(VAE)


@pytest.mark.parametrize("given", ["encoder", "decoder"])
def test_halves_of_a_tiny_autoencoder(tmp_path: Path, given: str) -> None:
    halves = {"encoder": {"0.weight": (8, 3, 3, 3), "1.conv.0.weight": (8, 8, 3, 3)},
              "decoder": {"1.weight": (8, 4, 3, 3), "3.conv.0.weight": (8, 8, 3, 3)}}  # fmt: skip
    path = tmp_path / f"tae_{given}.safetensors"

    def tensors(half: str) -> dict[str, Any]:
        return {name: np.zeros(shape, np.float32) for name, shape in halves[half].items()}

    save_file(tensors(given), path)
    from sdort.checkpoints.safetensors import read_tensors

    with pytest.raises(BadModelError, match="it is one half of a TAESD"):
        _read_vae(path, read_tensors(path))
    other = {"encoder": "decoder", "decoder": "encoder"}[given]
    save_file(tensors(other), tmp_path / f"tae_{other}.safetensors")
    config, found = _read_vae(path, read_tensors(path))
    assert config["_class_name"] == "AutoencoderTiny"
    assert set(found) == {"encoder.layers.0.weight", "encoder.layers.1.conv.0.weight", "decoder.layers.0.weight",
                          "decoder.layers.2.conv.0.weight"}  # fmt: skip
    lone = tmp_path / "tae.safetensors"  # whose name says of no half which it is
    save_file(tensors(given), lone)
    with pytest.raises(BadModelError, match="it is one half of a TAESD"):
        _read_vae(lone, read_tensors(lone))


@pytest.mark.parametrize(
    ("name", "what"),
    [("difference", "the difference of"), ("lora_controlnet", "a Control-LoRA"), ("task_embedding", "union")],
)
def test_other_kinds_of_controlnets(tmp_path: Path, name: str, what: str) -> None:
    save_file({name: np.zeros(1, np.float32)}, tmp_path / "a.safetensors")
    with pytest.raises(BadModelError, match=what):
        read_control_file(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("file", "pooled"),
    [("a.safetensors", False), ("control_v11e_sd15_shuffle.safetensors", True), ("Shuffle.safetensors", True)],
)
@pytest.mark.parametrize("prefix", ["", "control_model."])
def test_a_controlnet_that_is_called_shuffle_gives_means(tmp_path: Path, file: str, pooled: bool, prefix: str) -> None:
    names: dict[str, tuple[int, ...]] = {
        "input_blocks.0.0.weight": (8, 4, 3, 3), "input_blocks.1.0.in_layers.2.weight": (8, 8, 3, 3),
        "middle_block.0.in_layers.2.weight": (8, 8, 3, 3),
        "input_hint_block.0.weight": (4, 3, 3, 3), "input_hint_block.2.weight": (4, 4, 3, 3),
        "input_hint_block.4.weight": (6, 4, 3, 3), "input_hint_block.6.weight": (8, 6, 3, 3),
    }  # fmt: skip
    tensors = {prefix + name: np.zeros(shape, np.float32) for name, shape in names.items()}
    more = {"model.diffusion_model.a": np.zeros(1, np.float32)} if prefix else {}
    save_file({**tensors, **more}, tmp_path / file)
    config, found = read_control_file(tmp_path / file)
    assert config["global_pool_conditions"] is pooled
    assert config["conditioning_embedding_out_channels"] == [4, 6]
    assert "controlnet_cond_embedding.conv_out.weight" in found
    assert len(found) == len(names)


def test_a_name_that_two_become_is_refused() -> None:
    for rename, names in (
        (unet_tensors, ["input_blocks.1.0.op.weight", "input_blocks.01.0.op.weight"]),
        (control_tensors, ["zero_convs.1.0.weight", "zero_convs.1.0.weight", "controlnet_down_blocks.1.weight"]),
    ):
        with pytest.raises(BadModelError, match="twice, also as"):
            rename(named(names))
    plain = named(["down_blocks.0.a", "x"])
    assert dict(unet_tensors(plain)) == plain
    assert list(unet_tensors(named(["strange", "out.0.weight"]))) == ["strange", "conv_norm_out.weight"]
