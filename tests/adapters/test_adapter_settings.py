"""What an adapter's file says beside its tensors: settings of peft, keys of trainers, kinds that are not read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.adapters.adapter_choice import AdapterChoice, parse_adapter_choice
from sdort.adapters.adapter_file import Unmatched, read_adapter, remark
from sdort.adapters.adapter_keys import foreign_kind, read_keys, why_unknown
from sdort.adapters.module_index import ModuleIndex, component_of, without_component
from sdort.adapters.peft_settings import PeftSettings, read_settings
from sdort.checkpoints.safetensors import read_header
from sdort.errors import BadModelError, UsageError
from sdort.graph.signature import Array

KEYS = {
    "m.lora_up.weight": ("m", "up"),
    "m.lora_down.weight": ("m", "down"),
    "m.lora_mid.weight": ("m", "mid"),
    "m.lora_A.weight": ("m", "down"),
    "m.lora_B.weight": ("m", "up"),
    "m.lora_A.default.weight": ("m", "down"),
    "m.lora_B.default.bias": ("m", "up_bias"),
    "m.lora_B.bias": ("m", "up_bias"),
    "m.lora_up.bias": ("m", "up_bias"),
    "m.lora_up": ("m", "up"),
    "m_lora.down.weight": ("m", "down"),
    "m_lora.up.weight": ("m", "up"),
    "m.lora.up.weight": ("m", "up"),
    "m.lora_linear_layer.down.weight": ("m", "down"),
    "m.lora_embedding_A": ("m", "table_down"),
    "m.lora_embedding_B": ("m", "table_up"),
    "m.lora_embedding_A.default": ("m", "table_down"),
    "m.lora_magnitude_vector": ("m", "magnitude"),
    "m.lora_magnitude_vector.default.weight": ("m", "magnitude"),
    "m.magnitude.weight": ("m", "magnitude"),
    **{f"m.{part}": ("m", part) for part in
       ("alpha", "dora_scale", "diff", "diff_b", "w_norm", "b_norm", "bias_indices", "bias_values", "bias_size",
        "hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2", "lokr_w1", "lokr_w2", "lokr_w1_a",
        "lokr_w1_b", "lokr_w2_a", "lokr_w2_b", "lokr_t2")},
    "m_lora.alpha": ("m", "alpha"),
    "m.lora.alpha": ("m", "alpha"),
    "a.b_c.lora_up.weight": ("a.b_c", "up"),
}  # fmt: skip
UNKNOWN = ("m.lora_down.bias", "m.lora_A.bias", "m.hada_w3_a", "m.lokr_t1", "m.lora_C.weight", "lora_up.weight", "m",
           ".lora_up.weight", "m.diff_c", "m.bias", "m.lora_mid.bias")  # fmt: skip


def test_keys_of_all_conventions() -> None:
    for key, (module, part) in KEYS.items():
        found = read_keys([key])
        assert found.modules == {module: {part: key}}, key
        assert found.unknown == []
    for key in UNKNOWN:
        assert read_keys([key]) == ({}, [key]), key


def test_a_part_that_stands_there_twice_is_unknown() -> None:
    found = read_keys(["m.lora_up.weight", "n.alpha", "m.lora_B.weight", "m.lora_down.weight"])
    assert found.unknown == ["m.lora_B.weight"]
    assert found.modules == {
        "m": {"up": "m.lora_up.weight", "down": "m.lora_down.weight"}, "n": {"alpha": "n.alpha"},
    }  # fmt: skip
    long = "m" * (1001 - len(".alpha")) + ".alpha"
    assert read_keys([long]).unknown == [long]
    assert read_keys([long[1:]]).unknown == []


@pytest.mark.parametrize(
    ("key", "axes", "kind"),
    [
        ("lora_unet_x.oft_blocks", 3, "OFT"),
        ("lora_unet_x.oft_blocks", 4, "BOFT"),
        ("m.oft_R.default.weight", 2, "OFT"),
        ("m.boft_R", 3, "BOFT"),
        ("m.boft_s.default", 2, "BOFT"),
        ("m.a1.weight", 2, "GLoRA"),
        ("m.a2.weight", 2, "GLoRA"),
        ("m.b1.weight", 4, "GLoRA"),
        ("m.b2.weight", 2, "GLoRA"),
        ("m.bm.weight", 2, "GLoRA"),
        ("m.a3.weight", 2, None),
        ("m.on_input", 1, "(IA)^3"),
        ("m.ia3_l", 2, "(IA)^3"),
        ("m.ia3_l.default", 2, "(IA)^3"),
        ("m.vera_lambda_b", 1, "VeRA"),
        ("m.vera_A.default", 2, "VeRA"),
        ("oft_blocks.a.b.c", 3, None),
        ("x" * 5000 + ".boft_R", 3, "BOFT"),
        ("m.bias", 1, None),
    ],
)
def test_kinds_that_are_not_read(key: str, axes: int, kind: str | None) -> None:
    assert foreign_kind(key, axes) == kind
    reason = f"it is of {kind}, which sdort does not read" if kind else "sdort does not know this kind of change"
    assert why_unknown(key, axes) == reason


@pytest.mark.parametrize(
    ("name", "component", "plain"),
    [
        ("lora_unet_a", "unet", "lora_unet_a"),
        ("lycoris_a", "unet", "lycoris_a"),
        ("lora_te1_a", "text_encoder", "lora_te1_a"),
        ("lora_te2_a", "text_encoder_2", "lora_te2_a"),
        ("lora_te_a", "text_encoder", "lora_te_a"),
        ("text_encoder.a", "text_encoder", "a"),
        ("text_encoder_2.a", "text_encoder_2", "a"),
        ("unet.a", "unet", "a"),
        ("model.diffusion_model.a", "unet", "model.diffusion_model.a"),
        ("diffusion_model.a", "unet", "diffusion_model.a"),
        ("text_encoders.clip_l.transformer.a", "text_encoder", "text_encoders.clip_l.transformer.a"),
        ("text_encoders.clip_g.transformer.a", "text_encoder_2", "text_encoders.clip_g.transformer.a"),
        ("clip_l.transformer.a", "text_encoder", "clip_l.transformer.a"),
        ("clip_g.transformer.a", "text_encoder_2", "clip_g.transformer.a"),
        ("cond_stage_model.a", "text_encoder", "cond_stage_model.a"),
        ("conditioner.embedders.0.a", "text_encoder", "conditioner.embedders.0.a"),
        ("conditioner.embedders.1.a", "text_encoder_2", "conditioner.embedders.1.a"),
        ("base_model.model.unet.a", "unet", "a"),
        ("base_model.model.base_model.model.a", None, "a"),
        ("a", None, "a"),
    ],
)
def test_beginnings_of_modules_names(name: str, component: str | None, plain: str) -> None:
    assert component_of(name) == component
    assert without_component(name) == plain


WIDTH = 8
CLIP_NAMES = (
    "encoder.layers.1.mlp.fc1.weight",
    *(f"encoder.layers.1.self_attn.{letter}_proj.weight" for letter in "qkv"),
)
PARAMETERS: dict[str, dict[str, tuple[int, ...]]] = {
    "unet": {
        "conv_in.weight": (8, 4, 3, 3),
        **{f"down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_{each}.weight": (WIDTH, WIDTH) for each in "qkv"},
        "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0.weight": (8, 8),
    },
    "text_encoder": dict.fromkeys(CLIP_NAMES, (8, 8)),
    "text_encoder_2": {f"text_model.{name}": (8, 8) for name in CLIP_NAMES},
}


def meanings(name: str, components: tuple[str, ...] = ("unet", "text_encoder", "text_encoder_2")) -> list[Any]:
    found = ModuleIndex({component: PARAMETERS[component] for component in components}).find(name)
    return [[tuple(target) for target in meaning] for meaning in found]


def fused(component: str, modules: list[str]) -> list[Any]:
    """Modules whose rows lie one below the other."""
    return [(component, name, number * WIDTH, len(modules) * WIDTH, False) for number, name in enumerate(modules)]


def test_modules_under_the_names_of_each_component() -> None:
    first = [("text_encoder", "encoder.layers.1.mlp.fc1", 0, None, False)]
    second = [("text_encoder_2", "text_model.encoder.layers.1.mlp.fc1", 0, None, False)]
    for spelled in ("text_model_encoder_layers_1_mlp_fc1", "encoder_layers_1_mlp_fc1",
                    "transformer_resblocks_1_mlp_c_fc", "transformer_text_model_encoder_layers_1_mlp_fc1",
                    "model_transformer_resblocks_1_mlp_c_fc"):  # fmt: skip
        assert meanings(f"lora_te1_{spelled}") == [first], spelled
        assert meanings(f"lora_te2_{spelled}") == [second]
        assert meanings(f"lora_te_{spelled}") == [first]
        assert meanings(f"lora_te_{spelled}", ("unet", "text_encoder_2")) == [second]
        assert meanings(spelled) == [first, second]  # of a bare name either may be meant
    assert meanings("unet.conv_in") == [[("unet", "conv_in", 0, None, False)]]
    assert meanings("lora_unet_input_blocks_0_0") == [[("unet", "conv_in", 0, None, False)]]
    assert meanings("conv_in", ("text_encoder",)) == []
    out = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out"
    for name in (out, f"{out}.0", out.replace("to_out", "processor.to_out")):
        assert meanings(f"unet.{name}") == [[("unet", f"{out}.0", 0, None, False)]]
    stem = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_"
    assert meanings(f"unet.{stem}qkv") == [
        [("unet", f"{stem}{letter}", part * WIDTH, 3 * WIDTH, False) for part, letter in enumerate("qkv")]
    ]
    assert meanings(f"unet.{stem}kv") == [
        [("unet", f"{stem}{letter}", part * WIDTH, 2 * WIDTH, False) for part, letter in enumerate("kv")]
    ]
    attention = "text_model.encoder.layers.1.self_attn"
    for name in ("transformer.resblocks.1.attn.in_proj", "model.transformer.resblocks.1.attn.in_proj",
                 "encoder.layers.1.self_attn.qkv_proj", "text_model.encoder.layers.1.self_attn.qkv_proj"):  # fmt: skip
        assert meanings(f"lora_te2_{name}") == [
            [
                ("text_encoder_2", f"{attention}.{letter}_proj", part * WIDTH, 3 * WIDTH, False)
                for part, letter in enumerate("qkv")
            ]
        ]
    assert meanings("lora_te2_text_model_encoder_layers_1_self_attn_to_q") == [
        [("text_encoder_2", f"{attention}.q_proj", 0, None, False)]
    ]


FACTORS: tuple[tuple[dict[str, Any], str, int | None, float], ...] = (
    ({}, "unet.a", 4, 1.0),
    ({"lora_alpha": 6}, "unet.a", 4, 1.5),
    ({"lora_alpha": 6, "r": 2}, "unet.a", 4, 1.5),  # the tensors' rank counts
    ({"lora_alpha": 6, "r": 2}, "unet.a", None, 3.0),
    ({"lora_alpha": 6}, "unet.a", None, 1.0),
    ({"alpha": 6}, "unet.a", 4, 1.5),
    ({"alpha": 8, "lora_alpha": 6}, "unet.a", 4, 1.5),
    ({"lora_alpha": 6, "use_rslora": True}, "unet.a", 4, 3.0),
    ({"lora_alpha": 6, "r": 9, "use_rslora": True}, "unet.a", None, 2.0),
    ({"lora_alpha": 6, "use_rslora": False}, "unet.a", 4, 1.5),
    ({"lora_alpha": 6, "alpha_pattern": {"to_q": 2}}, "unet.x.to_q", 4, 0.5),
    ({"lora_alpha": 6, "alpha_pattern": {"x.to_q": 2}}, "unet.x.to_q", 4, 0.5),
    ({"lora_alpha": 6, "alpha_pattern": {"o_q": 2}}, "unet.x.to_q", 4, 1.5),
    ({"lora_alpha": 6, "alpha_pattern": {"to_k": 2, "to_q": 4, "x.to_q": 8}}, "unet.x.to_q", 4, 1.0),
    ({"alpha_pattern": {"to_q": 2}}, "unet.x.to_q", 4, 0.5),
    ({"lora_alpha": 6, "r": 2, "rank_pattern": {"to_q": 3}}, "unet.x.to_q", None, 2.0),
    ({"lora_alpha": 6, "r": 2, "rank_pattern": {"to_k": 3}}, "unet.x.to_q", None, 3.0),
    ({"lora_alpha": 6, "alpha_pattern": None, "rank_pattern": None}, "unet.x", 2, 3.0),
    ({"lora_alpha": 0}, "unet.a", 4, 0.0),
)


@pytest.mark.parametrize("place", ["", "unet"])
@pytest.mark.parametrize("number", range(len(FACTORS)))
def test_alpha_and_rank_of_a_config(number: int, place: str) -> None:
    """peft: ``scaling = lora_alpha / r``, with ``rslora`` ``lora_alpha / sqrt(r)``; patterns go before both."""
    config, module, rank, factor = FACTORS[number]
    others = {"text_encoder": {"lora_alpha": 1000, "r": 1}}
    assert PeftSettings({place: config, **others}).factor(module, rank) == pytest.approx(factor)
    assert PeftSettings({"text_encoder": {"lora_alpha": 5}}).factor("unet.a", 2) == 1.0
    assert PeftSettings({"text_encoder": {"lora_alpha": 5}}).factor("lora_te1_a", 2) == 2.5
    assert PeftSettings().factor(module, rank) == 1.0


def test_where_settings_stand(tmp_path: Path) -> None:
    notes = {"lora_adapter_metadata": json.dumps({"unet.r": 2, "text_encoder.lora_alpha": 3, "unet.lora_alpha": 4})}
    assert read_settings(tmp_path / "a.safetensors", notes).configs == {
        "unet": {"r": 2, "lora_alpha": 4}, "text_encoder": {"lora_alpha": 3},
    }  # fmt: skip
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 16}')
    peft = tmp_path / "adapter_model.safetensors"
    assert read_settings(peft, {}).configs == {"": {"r": 8, "lora_alpha": 16}}
    assert read_settings(peft, notes).configs.keys() == {"unet", "text_encoder"}
    assert read_settings(tmp_path / "a.safetensors", {"format": "pt"}).configs == {}
    (tmp_path / "adapter_config.json").unlink()
    assert read_settings(peft, {}).configs == {"": {}}


@pytest.mark.parametrize(
    "config",
    [
        '{"unet.r": "4"}', '{"unet.lora_alpha": null}', '{"unet.alpha": []}', '{"unet.alpha_pattern": {"a": "b"}}',
        '{"unet.rank_pattern": {"a": null}}', '{"unet.alpha_pattern": [1]}', "[]", "{", '"a"', '{"unet.r": NaN}',
    ],
)  # fmt: skip
def test_settings_that_are_damaged(tmp_path: Path, config: str) -> None:
    with pytest.raises(BadModelError, match=r"a\.safetensors is damaged: its "):
        read_settings(tmp_path / "a.safetensors", {"lora_adapter_metadata": config})


def lora(stem: str, outputs: int, inputs: int, rank: int = 2) -> dict[str, Array]:
    up, down = np.ones((outputs, rank), np.float32), np.ones((rank, inputs), np.float32)
    return {f"{stem}.lora_up.weight": up, f"{stem}.lora_down.weight": down}


Q = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"alpha": np.ones(2, np.float32)}, "its alpha is no single number"),
        ({"dora_scale": np.ones((8, 1), np.float32), "magnitude": np.ones(8, np.float32)}, "magnitudes belong to no"),
        ({"dora_scale": np.ones((7, 1), np.float32)}, "8 x 8 numbers, and unet's"),
        ({"diff": np.ones((8, 8), np.float32)}, "there are two changes of the same weight"),
        ({"lora_up.weight": np.ones((8, 3), np.float32)}, "the shapes of its parts do not belong together"),
        ({"lora_up.weight": np.ones((8, 2), np.int32)}, "its values are int32, not floating-point numbers"),
        ({"lora_up.weight": np.ones(8, np.float32)}, "the shape [8] is none of a up"),
        ({"lora_down.weight": None}, "a part of the change is missing: there is only up"),
        ({"hada_w1_a": np.ones((8, 2), np.float32)}, "a part of the change is missing: there is only hada_w1_a"),
        ({"diff_b": np.ones(8, np.float32)}, "it is for 8 x 8 numbers"),
        ({"strange": np.ones(8, np.float32)}, "sdort does not know all parts of this change"),
    ],
)  # fmt: skip
def test_changes_that_fit_nothing_are_told(tmp_path: Path, tensors: dict[str, Array | None], reason: str) -> None:
    """Each beside a change that fits, which is read."""
    good, bad = lora("unet.conv_in", 8, 36), lora(f"unet.{Q}", 8, 8)
    for part, values in tensors.items():
        bad.pop(f"unet.{Q}.{part}", None)
        bad |= {} if values is None else {f"unet.{Q}.{part}": values}
    save_file({**bad, **good}, tmp_path / "a.safetensors")
    found = read_adapter(tmp_path / "a.safetensors", PARAMETERS)
    assert list(found.deltas) == ["unet"]
    assert list(found.deltas["unet"]) == ["conv_in.weight"]
    assert {entry.key for entry in found.unmatched} == bad.keys()
    assert any(reason in entry.reason for entry in found.unmatched), found.unmatched
    order = [key for key in read_header(tmp_path / "a.safetensors").entries if key in bad]
    assert [entry.key for entry in found.unmatched] == order


def test_what_is_said_of_tensors_without_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(lora("unet.conv_in", 8, 36), tmp_path / "style.safetensors")
    found = read_adapter(tmp_path / "style.safetensors", PARAMETERS)
    for count, words in (
        (1, "style: 1 tensor has no place in this model: k0 (why)"),
        (3, "style: 3 tensors have no place in this model: k0, k1, k2 (why)"),
        (4, "style: 4 tensors have no place in this model: k0, k1, k2, ... (why)"),
    ):
        left = tuple(Unmatched(f"k{number}", "why") for number in range(count))
        remark(type(found)(found.path, found.kinds, found.deltas, left))
        assert words in " ".join(capsys.readouterr().err.split())
    save_file(
        {**lora("unet.conv_in", 8, 36), "unet.conv_in.alpha": np.zeros((), np.float32)}, tmp_path / "b.safetensors"
    )
    remark(read_adapter(tmp_path / "b.safetensors", PARAMETERS))
    assert "its alpha is 0" in capsys.readouterr().err
    more = {
        "unet.conv_in.alpha": np.zeros((), np.float32),
        "unet.conv_in.dora_scale": np.ones((8, 1, 1, 1), np.float32),
    }
    save_file({**lora("unet.conv_in", 8, 36), **more}, tmp_path / "c.safetensors")
    remark(read_adapter(tmp_path / "c.safetensors", PARAMETERS))  # magnitudes change the weight all the same
    save_file({**lora("unet.conv_in", 8, 36), **lora(f"unet.{Q}", 8, 8), f"unet.{Q}.alpha": np.zeros((), np.float32)},
              tmp_path / "d.safetensors")  # fmt: skip
    remark(read_adapter(tmp_path / "d.safetensors", PARAMETERS))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "path", "scale"),
    [
        ("a.safetensors", "a.safetensors", 1.0),
        ("a.safetensors:0.8", "a.safetensors", 0.8),
        ("a:1", "a", 1.0),
        ("a:-1.", "a", -1.0),
        ("a:+.5", "a", 0.5),
        ("a:1e-2", "a", 0.01),
        ("a:1E+1", "a", 10.0),
        ("a:b:0.5", "a:b", 0.5),
        ("a:b", "a:b", 1.0),
        ("a:100", "a", 100.0),
        ("a:-100", "a", -100.0),
    ],
)
def test_a_file_and_its_scale(text: str, path: str, scale: float) -> None:
    found = parse_adapter_choice(text)
    assert (found.path, found.scale) == (Path(path), scale)


def test_scales_out_of_range() -> None:
    for text in ("a:100.5", "a:-101", "a.safetensors:x"):
        with pytest.raises(UsageError):
            parse_adapter_choice(text)
    for scale in (math.nan, 101.0, True):
        with pytest.raises(UsageError):
            AdapterChoice(Path("a"), scale)
