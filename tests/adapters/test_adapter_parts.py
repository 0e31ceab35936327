"""The parts of an adapter's change one by one: which belong together, where they go, and what is said of the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sdort.adapters import embedding_file, refusals
from sdort.adapters.adapter_file import _Reading
from sdort.adapters.adapter_keys import _split
from sdort.adapters.module_index import ModuleIndex, Target
from sdort.adapters.peft_settings import PeftSettings
from sdort.adapters.weight_changes import Change, by_input, changes_of
from sdort.adapters.weight_deltas import Delta, Factor, LowRank, Residual, Whole
from sdort.checkpoints.weight_names import Architecture, Kind
from sdort.errors import BadModelError, UsageError


class Stored:
    """Values in memory for those of a file."""

    def __init__(self, values: Any) -> None:
        self.values, self.shape, self.dtype, self.path = values, values.shape, values.dtype, Path("file")

    def load(self) -> Any:
        return self.values


def factor(*shape: int, dtype: Any = np.float32, value: Any = 0.5, name: str = "x") -> Factor:
    stored: Any = Stored(np.broadcast_to(np.array(value, dtype), shape))
    return Factor(name, stored)


def parts(**given: Any) -> dict[str, Factor]:
    return {name: each if isinstance(each, Factor) else factor(*each, name=name) for name, each in given.items()}


def integers(*values: int) -> Factor:
    stored: Any = Stored(np.array(values, np.int64))
    return Factor("x", stored)


SINGLE = {"bias_indices": factor(2, 5, dtype=np.int64), "bias_values": factor(5), "bias_size": integers(6, 4)}
LORA: dict[str, Any] = {"up": (6, 2), "down": (2, 4)}
HADA: dict[str, Any] = {"hada_w1_a": (6, 3), "hada_w1_b": (3, 4), "hada_w2_a": (6, 3), "hada_w2_b": (3, 4)}
CORES: dict[str, Any] = {
    "hada_w1_a": (3, 6), "hada_w1_b": (3, 4), "hada_w2_a": (3, 6), "hada_w2_b": (3, 4), "hada_t1": (3, 3, 1, 2),
    "hada_t2": (3, 3, 1, 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (LORA, [("weight", "LoRA", 6, 4, 2)]),
        ({"table_up": (6, 2), "table_down": (2, 4)}, [("weight", "LoRA", 4, 6, 2)]),
        ({"up": (6, 5), "down": (2, 4), "mid": (5, 2, 3, 1)}, [("weight", "LoRA", 6, 12, 2)]),
        ({**LORA, "up_bias": (6,)}, [("weight", "LoRA", 6, 4, 2), ("bias", "LoRA", 6, 1, 2)]),
        ({**LORA, "diff_b": (6,)}, [("weight", "LoRA", 6, 4, 2), ("bias", "difference", 6, 1, None)]),
        ({**LORA, "b_norm": (6,)}, [("weight", "LoRA", 6, 4, 2), ("bias", "difference", 6, 1, None)]),
        ({"up_bias": (6,)}, [("bias", "LoRA", 6, 1, None)]),
        (HADA, [("weight", "LoHa", 6, 4, 3)]),
        (CORES, [("weight", "LoHa", 6, 8, 3)]),
        ({"lokr_w1": (3, 2), "lokr_w2": (2, 2)}, [("weight", "LoKr", 6, 4, None)]),
        ({"lokr_w1_a": (3, 5), "lokr_w1_b": (5, 2), "lokr_w2": (2, 2)}, [("weight", "LoKr", 6, 4, 5)]),
        ({"lokr_w1": (3, 2), "lokr_w2_a": (2, 7), "lokr_w2_b": (7, 2)}, [("weight", "LoKr", 6, 4, 7)]),
        ({"lokr_w1_a": (3, 7), "lokr_w1_b": (7, 2), "lokr_w2_a": (2, 7), "lokr_w2_b": (7, 2)},
         [("weight", "LoKr", 6, 4, 7)]),
        ({"lokr_w1": (3, 2), "lokr_w2_a": (7, 2), "lokr_w2_b": (7, 2), "lokr_t2": (7, 7, 3, 1)},
         [("weight", "LoKr", 6, 12, 7)]),
        ({"diff": (6, 4)}, [("weight", "difference", 6, 4, None)]),
        ({"w_norm": (6,), "b_norm": (6,)}, [("weight", "difference", 6, 1, None), ("bias", "difference", 6, 1, None)]),
        ({"diff": (6, 4), "diff_b": (6,)}, [("weight", "difference", 6, 4, None), ("bias", "difference", 6, 1, None)]),
        (SINGLE, [("weight", "difference", 6, 4, None)]),
        ({**LORA, **SINGLE}, [("weight", "LoRA", 6, 4, 2)]),
        ({"diff_b": (6,), **SINGLE}, [("weight", "difference", 6, 4, None), ("bias", "difference", 6, 1, None)]),
        ({**HADA, **SINGLE, "diff_b": (6,)}, [("bias", "difference", 6, 1, None), ("weight", "LoHa", 6, 4, 3)]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_parts_that_make_a_change(given: dict[str, Any], found: list[tuple[Any, ...]]) -> None:
    """A LoRA's alpha divides by its rank; that of what is whole counts for nothing."""
    changes: Any = None
    for more in ({}, {"alpha": factor(1)}, {"alpha": factor(dtype=np.int32, value=4)}):
        changes = changes_of(parts(**given, **more))
        assert not isinstance(changes, str), changes
        assert sorted((c.leaf, c.kind, c.form.outputs, c.form.inputs, c.rank) for c in changes) == sorted(found)
    singles = [change.form for change in changes if isinstance(change.form, Residual)]
    assert len(singles) == ("bias_size" in given)
    assert all((form.base is not None) == bool(given.keys() & {"up", "hada_w1_a"}) for form in singles)


NO_FLOATS, MANY = "floating-point numbers", "far more values than a weight of 6 x 4"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"up": (6, 2)}, "a part of the change is missing: there is only up"),
        ({"down": (2, 4), "mid": (2, 2, 3, 3)}, "there is only down, mid"),
        ({"alpha": ()}, "there is only alpha"),
        ({"magnitude": (6,)}, "there is only magnitude"),
        ({**HADA, "hada_t1": (3, 3, 1, 1)}, "there is only hada_t1"),
        ({"lokr_w1": (3, 2)}, "there is only lokr_w1"),
        ({"lokr_w1": (3, 2), "lokr_w2_a": (2, 7)}, "there is only lokr_w1, lokr_w2_a"),
        ({**SINGLE, "bias_size": None}, "there is only bias_indices, bias_values"),
        ({**LORA, "bias_indices": SINGLE["bias_indices"]}, "there is only bias_indices"),
        ({**LORA, "diff": (6, 4)}, "two changes of the same weight"),
        ({**LORA, "diff_b": (6,), "up_bias": (6,)}, "two changes of the same weight"),
        ({**LORA, "down": (3, 4)}, "do not belong together"),
        ({**LORA, "diff_b": (6,), "mid": (2, 3, 1, 1)}, "do not belong together"),
        ({**HADA, "hada_w2_a": (5, 3)}, "do not belong together"),
        ({**LORA, **SINGLE, "bias_size": integers(6, 5)}, "do not belong together"),
        ({**SINGLE, "bias_size": integers(6, 0)}, "do not belong together"),
        ({**LORA, "alpha": (2,)}, "its alpha is no single number"),
        ({**LORA, "alpha": (0,)}, "its alpha is no single number"),
        ({**LORA, "up": factor(6, 2, dtype=np.int8)}, f"its values are int8, not {NO_FLOATS}"),
        ({**LORA, "alpha": factor(1, dtype=np.bool_)}, f"its values are bool, not {NO_FLOATS}"),
        ({**LORA, "dora_scale": factor(6, dtype=np.int32)}, f"its values are int32, not {NO_FLOATS}"),
        ({**SINGLE, "bias_indices": factor(2, 5)}, "its bias_indices are float32"),
        ({**SINGLE, "bias_size": factor(2)}, "its bias_size are float32"),
        ({**SINGLE, "bias_values": factor(5, dtype=np.int64)}, f"its values are int64, not {NO_FLOATS}"),
        ({**LORA, "up": (6,)}, "the shape [6] is none of a up"),
        ({**LORA, "up_bias": ()}, "the shape [] is none of a up_bias"),
        ({"diff": ()}, "the shape [] is none of a diff"),
        ({"lokr_w1": (3, 2), "lokr_w2": (2,)}, "the shape [2] is none of a lokr_w2"),
        ({**LORA, "magnitude": (6,), "dora_scale": (6, 1)}, "magnitudes belong to no weight"),
        ({"diff_b": (6,), "magnitude": (6,)}, "magnitudes belong to no weight"),
        ({"table_up": (6, 2), "table_down": (2, 4), "magnitude": (6,)}, "magnitudes belong to no weight"),
        ({"up": (6, 10000), "down": (10000, 4)}, MANY),
        ({"up": (6, 2), "down": (2, 4), "alpha": (1,), "magnitude": (90000,)}, MANY),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_parts_that_make_no_change(given: dict[str, Any], reason: str) -> None:
    found = changes_of(parts(**{name: each for name, each in given.items() if each is not None}))
    assert isinstance(found, str)
    assert found.endswith(reason)


def test_ranks_up_to_4096_are_taken_of_any_weight() -> None:
    for rank, taken in ((8192, True), (8193, False)):
        assert isinstance(changes_of(parts(up=(6, rank), down=(rank, 4))), list) == taken
    for outputs, inputs, rank, taken in (
        (5000, 10, 8192, True), (5000, 10, 8193, False), (10, 5000, 8193, False), (5000, 4500, 9000, True),
        (5000, 4500, 9001, False),
    ):  # fmt: skip
        assert isinstance(changes_of(parts(up=(outputs, rank), down=(rank, inputs))), list) == taken
    assert isinstance(changes_of(parts(up=(6, 6000), down=(6000, 4), diff_b=(6,))), list)
    assert isinstance(changes_of({**parts(**LORA), "up": factor(6, 2, dtype=ml_dtypes.bfloat16)}), list)
    for single in (SINGLE, {**SINGLE, "alpha": factor(1)}):
        assert isinstance(changes_of({**single, "magnitude": factor(6)}), list)


@pytest.mark.parametrize(
    ("part", "magnitude", "outputs", "shape", "found"),
    [
        ("magnitude", (6,), 6, (6, 4), False),
        ("magnitude", (1, 6, 1, 1), 6, (6, 4, 3, 3), False),
        ("magnitude", (6, 1), 6, (6, 4), False),
        ("magnitude", (4,), 6, (6, 4), None),
        ("magnitude", (1, 4), 6, (6, 4), None),
        ("magnitude", (18,), 18, (6, 4), False),
        ("dora_scale", (6, 1), 6, (6, 4), False),
        ("dora_scale", (6, 1, 1, 1), 6, (6, 4, 3, 3), False),
        ("dora_scale", (6,), 6, (6, 4), False),
        ("dora_scale", (1, 4), 6, (6, 4), True),
        ("dora_scale", (1, 4, 1, 1), 6, (6, 4, 3, 3), True),
        ("dora_scale", (1, 6), 6, (6, 6), True),
        ("dora_scale", (6, 1), 6, (6, 6), False),
        ("dora_scale", (1, 6), 6, (6, 4), None),
        ("dora_scale", (4, 1), 6, (6, 4), None),
        ("dora_scale", (1, 4, 3, 1), 6, (6, 4, 3, 3), None),
        ("dora_scale", (2, 4), 6, (6, 4), None),
        ("dora_scale", (5, 1), 6, (6, 4), None),
    ],
)
def test_the_axis_of_magnitudes(
    part: str, magnitude: tuple[int, ...], outputs: int, shape: tuple[int, ...], found: bool | None
) -> None:
    assert by_input({part: factor(*magnitude), "up": factor(6, 2)}, outputs, shape) is found


def reading(parameters: Any, **config: Any) -> _Reading:
    return _Reading(ModuleIndex(parameters), PeftSettings({"": config} if config else {}))


@pytest.mark.parametrize("settings", [{}, {"lora_alpha": 8, "r": 4}], ids=["none", "config"])
@pytest.mark.parametrize(
    ("kind", "rank", "alpha", "expected"),
    [
        ("LoRA", 2, 3.0, {False: 1.5, True: 1.5}),
        ("LoRA", 2, None, {False: 1.0, True: 4.0}),
        ("LoKr", None, 3.0, {False: 1.0, True: 1.0}),
        ("LoKr", None, None, {False: 1.0, True: 2.0}),
        ("difference", None, None, {False: 1.0, True: 1.0}),
        ("difference", None, 3.0, {False: 1.0, True: 1.0}),
    ],
)
def test_the_factor_of_a_change(
    kind: str, rank: int | None, alpha: float | None, expected: dict[bool, float], settings: dict[str, int]
) -> None:
    """Alpha by rank: the file's, else the config's, and of what is whole neither."""
    change = Change("weight", kind, Whole(factor(6, 4)), rank)
    target = Target("c", "m")
    given = {"alpha": factor(1, value=alpha)} if alpha is not None else {}
    found = reading({}, **settings)._delta("m", target, given, change, (6, 4))
    assert found == Delta((6, 4), change.form, expected[bool(settings)], 0)


@pytest.mark.parametrize(
    ("leaf", "fused", "part", "shape", "given", "expected"),
    [
        ("weight", 18, 2, (6, 4), {}, (12, None, False)),
        ("weight", 18, 0, (6, 2, 2), {}, (0, None, False)),
        ("weight", 18, 1, (6, 4), {"magnitude": (18,)}, (6, "magnitude", False)),
        ("weight", 18, 1, (6, 4), {"dora_scale": (18, 1)}, (6, "dora_scale", False)),
        ("weight", 18, 1, (6, 4), {"dora_scale": (1, 4)}, None),
        ("weight", 6, 0, (6, 4), {"dora_scale": (1, 4)}, (0, "dora_scale", True)),
        ("weight", 6, 0, (6, 4), {"magnitude": (5,)}, None),
        ("bias", 6, 0, (6, 4), {"magnitude": (5,)}, (0, None, False)),
        ("weight", 18, 0, (7, 4), {}, None),
        ("weight", 18, 0, (6, 5), {}, None),
        ("weight", 12, 0, (6, 4), {}, None),
    ],
    ids=str,
)
def test_the_rows_of_a_fused_matrix(
    leaf: str, fused: int, part: int, shape: tuple[int, ...], given: dict[str, Any], expected: Any
) -> None:
    change = Change(leaf, "LoRA", LowRank(factor(fused, 2), factor(2, 4)), 2)
    target = Target("c", "m") if fused == 6 else Target("c", "m", part * shape[0], 3 * shape[0])
    tensors = parts(**given)
    found = reading({})._delta("m", target, tensors, change, shape)
    if expected is None:
        assert found is None
        return
    first, magnitude, axis = expected
    assert found == Delta(shape, change.form, 1.0, first, tensors.get(magnitude), axis)


def test_a_weight_is_changed_once() -> None:
    given, change = parts(up=factor(6, 2, name="key"), down=(2, 4)), Change("weight", "LoRA", Whole(factor(6, 4)), None)
    state = reading({})
    delta = Delta((6, 4), change.form)
    state._take({("unet", "a"): delta, ("text_encoder", "a"): delta}, [change], given)
    assert state.kinds == {"LoRA"}
    state._take({("unet", "b"): delta}, [change._replace(kind="LoHa")], {**given, "magnitude": factor(6)})
    assert state.deltas == {"unet": {"a": delta, "b": delta}, "text_encoder": {"a": delta}}
    assert state.kinds == {"LoRA", "LoHa", "DoRA"}
    with pytest.raises(BadModelError, match="the adapter file changes text_encoder's a twice, also by 'key'"):
        state._take({("text_encoder", "a"): delta}, [change], given)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("lora_te2_text_model_encoder", "there is no text_encoder_2"),
        ("lora_unet_nowhere", "unet has no such module"),
        ("nowhere", "the pipeline has no such module"),
        ("lora_unet_proj_bias", "unet's proj_bias has no weight"),
        ("lora_unet_proj_in", "it is for 6 x 4 numbers, and unet's proj_in has [3, 4, 1]"),
        ("lora_te_fc1", "text_encoder has no such module"),
    ],
)
def test_why_a_module_has_no_place(module: str, reason: str) -> None:
    state = reading({"unet": {"proj_in.weight": (3, 4, 1), "proj_bias.bias": (3,)}, "text_encoder": {}})
    state.add(module, parts(**LORA))
    assert [(entry.key, entry.reason) for entry in state.unmatched] == [("up", reason), ("down", reason)]
    assert (state.deltas, state.kinds) == ({}, set())


def test_widths_are_those_of_texts_alone() -> None:
    state = reading({"unet": {}})
    attention = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_"
    for module, width in (("attn2_to_k", 4), ("attn1_to_k", 5), ("attn2_to_v", 6), ("attn2_to_k", 4)):
        state.add(attention + module, parts(up=(6, 2), down=(2, width), diff_b=(6,)))
    state.add("unet.mid_block.attn2.to_k", parts(up=(6, 2), down=(2, 7)))
    assert state.widths == {4: 2, 7: 1}


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("m.lora_up.weight", ("m", "up")), ("m.lora_down.weight", ("m", "down")), ("m.lora_mid.weight", ("m", "mid")),
        ("m.lora_A.weight", ("m", "down")), ("m.lora_B.weight", ("m", "up")), ("m.lora_A", ("m", "down")),
        ("m.lora_B.default.weight", ("m", "up")), ("m.lora_embedding_A", ("m", "table_down")),
        ("m.lora_embedding_B.default", ("m", "table_up")), ("m_lora.up.weight", ("m", "up")),
        ("m.lora.down.weight", ("m", "down")), ("m.lora_linear_layer.up.weight", ("m", "up")),
        ("m.lora_B.bias", ("m", "up_bias")), ("m.lora_up.bias", ("m", "up_bias")), ("m.lora_A.bias", None),
        ("m.lora_down.bias", None), ("m.lora_mid.bias", None), ("m.lora_magnitude_vector.weight", ("m", "magnitude")),
        ("m.lora_magnitude_vector.default.weight", ("m", "magnitude")), ("m.magnitude", ("m", "magnitude")),
        ("m.alpha", ("m", "alpha")), ("m.dora_scale", ("m", "dora_scale")), ("m.diff", ("m", "diff")),
        ("m.diff_b", ("m", "diff_b")), ("m_lora.alpha", ("m", "alpha")), ("m.lokr_w2_a", ("m", "lokr_w2_a")),
        ("m.hada_t2", ("m", "hada_t2")), ("m.hada_w3_a", None), ("m.weight", None), ("alpha", None),
    ],
)  # fmt: skip
def test_the_module_and_the_part_of_a_key(key: str, found: tuple[str, str] | None) -> None:
    assert _split(key) == found


TENSORS = Architecture(Kind.UNKNOWN)
REFUSED = (Kind.CHECKPOINT, Kind.VAE, Kind.UPSCALER, Kind.CONTROLNET)


def found_as(kind: Kind, architecture: Architecture | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(kind=kind, what="a thing", advice="Do so.", architecture=architecture)
    for module in (refusals, embedding_file):
        monkeypatch.setattr(module, "recognise_file", lambda path: found)


@pytest.mark.parametrize("architecture", [TENSORS, None], ids=["tensors", "other"])
@pytest.mark.parametrize("kind", list(Kind))
def test_files_that_may_be_an_adapter_or_a_word(
    kind: Kind, architecture: Architecture | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_as(kind, architecture, monkeypatch)
    path = tmp_path / "a.pt"
    path.touch()
    for refuse, noun, taken, advice in (
        (
            refusals.refuse_other_kind, "a LoRA", kind not in (*REFUSED, Kind.EMBEDDING),
            f"Give it as a word: --embedding {path}" if kind is Kind.EMBEDDING else "Do so.",
        ),
        (
            embedding_file._refuse_other_kind, "an embedding", kind in (Kind.EMBEDDING, Kind.UNKNOWN),
            f"Give it as an adapter: --lora {path}" if kind in (Kind.LORA, Kind.LYCORIS) else "Do so.",
        ),
    ):  # fmt: skip
        if kind is Kind.PICKLE:
            with pytest.raises(BadModelError, match="is a thing, which may run code when it is read"):
                refuse(path)
        elif taken and architecture:
            refuse(path)
        else:
            with pytest.raises(BadModelError, match=f"a.pt is a thing, not {noun}") as caught:
                refuse(path)
            assert caught.value.hint == advice


def test_a_word_of_a_pickle_is_converted_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found_as(Kind.PICKLE, None, monkeypatch)
    path = tmp_path / "a.pt"
    path.touch()
    with pytest.raises(BadModelError) as caught:
        embedding_file._refuse_other_kind(path)
    code = str(caught.value.hint).partition('python -c "')[2].removesuffix('"')
    called: dict[str, Any] = {}
    values = SimpleNamespace(detach=lambda: "values")

    def load(name: str, **options: Any) -> Any:
        called.update(options, read=name)
        return {"string_to_param": {"*": values}}

    names: dict[str, Any] = {
        "torch": SimpleNamespace(load=load), "save_file": lambda tensors, name: called.update(tensors, written=name),
    }  # fmt: skip
    exec(code.replace("import torch; from safetensors.torch import save_file; ", ""), names)
    target = str(tmp_path / "a.safetensors")
    assert called == {
        "read": str(path), "weights_only": True, "map_location": "cpu", "emb_params": "values", "written": target,
    }  # fmt: skip


def test_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "style.safetensors"
    with pytest.raises(UsageError, match=f"the adapter {path} does not exist") as caught:
        refusals.refuse_missing(path, "the adapter")
    assert caught.value.hint == "Give a .safetensors file."
    (tmp_path / "styles.safetensors").touch()
    (tmp_path / "other").touch()
    with pytest.raises(UsageError) as caught:
        refusals.refuse_missing(path, "the adapter")
    assert caught.value.hint == f"Is it {tmp_path / 'styles.safetensors'}?"
    with pytest.raises(UsageError, match="does not exist"):
        refusals.refuse_missing(tmp_path / "nowhere" / "a", "the adapter")
    path.symlink_to("nowhere")  # whoever reads it says what is wrong
    refusals.refuse_missing(path, "the adapter")


@pytest.mark.parametrize(
    ("widths", "unet", "words"),
    [
        ({768: 3}, 768, None),
        ({768: 3, 1024: 1}, 1024, None),
        ({}, 768, None),
        ({768: 3}, None, None),
        ({1024: 3, 768: 1}, 2048, "is for SD 2.x, and this model is SDXL"),
        ({768: 1, 1024: 3}, 2048, "is for SD 2.x, and this model is SDXL"),
        ({1280: 1}, 768, "is for SDXL refiner, and this model is SD 1.x"),
        ({5: 1}, 768, "is for a model whose texts are 5 numbers wide, and this model is SD 1.x"),
    ],
)
def test_the_family_of_an_adapter_is_that_of_its_texts(
    widths: dict[int, int], unet: int | None, words: str | None
) -> None:
    shapes = {"a.attn1.to_k.weight": (8, 320)} | ({"a.attn2.to_k.weight": (8, unet)} if unet else {})
    if words is None:
        refusals.check_family(Path("a"), Counter(widths), {"unet": shapes})
        return
    with pytest.raises(BadModelError, match=f"the adapter a {words}"):
        refusals.check_family(Path("a"), Counter(widths), {"unet": shapes})
    refusals.check_family(Path("a"), Counter(widths), {"text_encoder": shapes})


@pytest.mark.parametrize(
    ("shapes", "modules", "reasons", "words"),
    [
        ({"x": [1]}, 0, {}, "a is a thing, not a LoRA"),
        (
            {"lora_te2_x.lora_up.weight": [6, 2]}, 3, {"unet has no such module": 9, "b has no such module": 1},
            "of this model: none of its 3 modules is one of unet, text_encoder; it looks like one for SDXL",
        ),
        ({"z": [1], "b": [2]}, 1, {}, "is one of unet, text_encoder; it holds 2 tensors, such as b"),
        ({}, 1, {}, "it holds 0 tensors, such as nothing"),
        ({"z": [1]}, 1, {"one": 1, "two": 2}, "changes nothing of this model: of its 1 module none fits: two"),
        ({"z": [1]}, 2, {"no such module": 9, "one": 1, "unet has no such module": 12}, "none fits: no such module"),
        ({"z": [1]}, 2, {"one": 1, "unet has no such module": 12}, "of its 2 modules none fits: one"),
    ],
    ids=str,
)  # fmt: skip
def test_a_file_of_which_nothing_fits(
    shapes: dict[str, Any], modules: int, reasons: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_as(Kind.UNKNOWN, TENSORS, monkeypatch)
    parameters: Any = {"unet": {}, "text_encoder": {}}
    error = refusals.nothing_matches(Path("a"), shapes, modules, parameters, Counter(reasons))
    assert error.message.endswith(words)
    hint = "Do so." if not modules else "Get another version" if "none fits" in words else "An adapter works on the"
    assert str(error.hint).startswith(hint)
    both = refusals.other_adapter(Path("a"), ["OFT", "VeRA"])
    assert both.message == "the adapter a is of OFT and VeRA, which sdort does not read"
