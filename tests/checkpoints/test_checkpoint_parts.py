"""Parts of checkpoints read by stubs: image encoders, the small files of a single one, families of few tensors."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.adapters.adapted_weight import adapted
from sdort.adapters.weight_deltas import Delta, Factor, Kronecker, Product, Whole, _product
from sdort.checkpoints import clip_vision, lfs, pipeline_files
from sdort.checkpoints.clip_vision import read_image_encoder, vision_config
from sdort.checkpoints.config_schemas import REQUIRED
from sdort.checkpoints.prediction import Mark, _judge, _marked, _marks
from sdort.checkpoints.weight_names import (
    REFINER,
    SD1,
    SD2,
    SDXL,
    Kind,
    _context_width,
    _family,
    _foreign_family,
    _is_embedding,
)
from sdort.errors import BadModelError, UsageError
from sdort.families.known_families import FAMILIES
from sdort.families.unet import INPAINTING
from sdort.graph import pieces
from sdort.graph.weights import Inline

VISION = "CLIPVisionModelWithProjection"
CONFIG = {
    "hidden_size": 24, "num_channels": 3, "patch_size": 7, "image_size": 28, "num_hidden_layers": 2,
    "intermediate_size": 40, "num_attention_heads": 3, "hidden_act": "gelu", "projection_dim": 16,
}  # fmt: skip


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The files that are read; each has both parts of an image encoder, and what old ones have beside."""
    read: Any = list[Path]()
    tensors = dict.fromkeys(
        ("vision_model.a", "visual_projection.weight", "vision_model.embeddings.position_ids", "text_model.b", "x")
    )
    monkeypatch.setattr(clip_vision, "read_tensors", lambda path: read.append(path) or tensors)
    return read


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_an_image_encoder_in_a_folder(nested: bool, whole: bool, tmp_path: Path, weights: list[Path]) -> None:
    """Its own or a pipeline's; of a whole CLIP model the vision half, with the projection of both."""
    folder = tmp_path / "image_encoder" if nested else tmp_path
    folder.mkdir(exist_ok=True)
    inner = {**CONFIG, "projection_dim": 99}
    content = {"vision_config": inner, "projection_dim": 16, "hidden_size": 1} if whole else CONFIG
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(BadModelError, match=r"has no model.safetensors") as caught:
        read_image_encoder(tmp_path)
    assert caught.value.component == "image_encoder"
    (folder / "model.safetensors").touch()
    found = read_image_encoder(tmp_path)
    assert found.path == folder
    assert found.config == CONFIG
    assert found.tensors == {"vision_model.a": None, "visual_projection.weight": None}
    assert weights == [folder / "model.safetensors"]
    assert (found.width(hidden=True), found.width(hidden=False)) == (24, 16)


@pytest.mark.parametrize("key", REQUIRED[VISION])
def test_an_image_encoders_config_is_whole(key: str, tmp_path: Path, weights: list[Path]) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text(json.dumps({name: each for name, each in CONFIG.items() if name != key}))
    with pytest.raises(BadModelError, match="holds no CLIP image encoder with a projection"):
        read_image_encoder(tmp_path)


def test_an_own_config_goes_before_a_folder_in_it(tmp_path: Path, weights: list[Path]) -> None:
    for folder, width in ((tmp_path, 24), (tmp_path / "image_encoder", 48)):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": width}))
        (folder / "model.safetensors").touch()
    assert read_image_encoder(tmp_path).width(hidden=True) == 24
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadModelError, match=r"empty/config\.json"):
        read_image_encoder(tmp_path / "empty")
    with pytest.raises(UsageError, match=r"--image-encoder .*nowhere does not exist"):
        read_image_encoder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (("vision_model.a",), False),
        (("vision_model.a", "visual.proj"), True),
        (("text_model.a", "visual.conv1.weight"), True),
        (("visual_projection.bias",), False),
        ((), False),
    ],
)
def test_tensors_that_are_no_image_encoder(names: tuple[str, ...], layout: bool) -> None:
    with pytest.raises(BadModelError, match="a holds no CLIP image encoder") as caught:
        clip_vision._vision(Path("a"), dict.fromkeys(names))  # type: ignore[arg-type]
    assert ("OpenCLIP" in caught.value.message) == layout


@pytest.mark.parametrize(
    ("width", "heads", "activation"),
    [(768, 12, "quick_gelu"), (1024, 16, "quick_gelu"), (1280, 16, "gelu"), (1408, 16, "gelu"), (1664, 16, "gelu")],
)
@pytest.mark.parametrize("side", [16, 7])
def test_an_image_encoders_sizes(width: int, heads: int, activation: str, side: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "vision_model.embeddings.patch_embedding.weight": (width, 3, 14, 14),
        "vision_model.embeddings.position_embedding.weight": (side * side + 1, width),
        "vision_model.encoder.layers.0.mlp.fc1.weight": (width * 4, width),
        "vision_model.encoder.layers.11.mlp.fc1.weight": (width * 4, width),
        "vision_model.encoder.layers.11.mlp.fc2.weight": (width, width * 4),
        "visual_projection.weight": (640, width),
    }
    assert vision_config(shapes) == {
        "hidden_size": width, "num_channels": 3, "patch_size": 14, "image_size": side * 14, "num_hidden_layers": 2,
        "intermediate_size": width * 4, "num_attention_heads": heads, "hidden_act": activation, "projection_dim": 640,
    }  # fmt: skip
    for name, shape in shapes.items():
        if "layers.11" in name:
            continue
        with pytest.raises(BadModelError, match="has the shape"):
            vision_config({**shapes, name: (*shape, 1)})
        with pytest.raises(BadModelError, match="is missing"):
            vision_config({other: each for other, each in shapes.items() if other != name})
    with pytest.raises(BadModelError, match=f"how many heads an image encoder {width + 1} wide has"):
        vision_config({**shapes, "vision_model.embeddings.patch_embedding.weight": (width + 1, 3, 14, 14)})


@pytest.mark.parametrize(
    "parts", [(), ("text_encoder",), ("text_encoder_2", "vae"), ("text_encoder", "text_encoder_2")]
)
@pytest.mark.parametrize("given", [(), ("c d", "e f")], ids=["CLIP's merges", "other merges"])
def test_the_small_files_of_a_folder(
    parts: tuple[str, ...], given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer for each of its text encoders, with the family's own padding."""
    written: list[Any] = []
    monkeypatch.setattr(pipeline_files, "read_clip_merges", lambda: ["a b"])
    monkeypatch.setattr(pipeline_files, "write_clip_tokenizer", lambda *given: written.append(given))
    made: Any = {part: {"of": part} for part in ("unet", *parts)}
    merges: Any = {"merges": given} if given else {}
    pipeline_files.write_pipeline_files(FAMILIES[SDXL], None, made, {"_class_name": "X", "b": 1}, tmp_path, **merges)
    configs = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/config.json")}
    assert configs == made
    assert json.loads((tmp_path / "scheduler" / "scheduler_config.json").read_text()) == {"_class_name": "X", "b": 1}
    index = json.loads((tmp_path / "model_index.json").read_text())
    assert index["scheduler"] == ["diffusers", "X"]
    expected = {"text_encoder": ("tokenizer", "<|endoftext|>"), "text_encoder_2": ("tokenizer_2", "!")}
    assert written == [
        (tmp_path / folder, given or ["a b"], pad) for part, (folder, pad) in expected.items() if part in parts
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "notes", "beside", "found"),
    [
        ((), {}, None, []),
        (("v_pred",), {}, None, [("its tensor v_pred", "v_prediction")]),
        ((), {"prediction_type": "eps", "ss_prediction_type": "x0"}, None,
         [("its metadata (ss_prediction_type)", "sample"), ("its metadata (prediction_type)", "epsilon")]),
        ((), {"prediction_type": ""}, None, []),
        ((), {"vpred": "1", "v_pred": "no", "ss_v_parameterization": "True"}, None,
         [("its metadata (ss_v_parameterization)", "v_prediction"), ("its metadata (vpred)", "v_prediction")]),
        (("v_pred",), {"parameterization": "v"}, Mark("here", "epsilon"),
         [("here", "epsilon"), ("its tensor v_pred", "v_prediction"),
          ("its metadata (parameterization)", "v_prediction")]),
        (("v_pred",), {"vpred": "on"}, Mark("here", "epsilon", True),
         [("its tensor v_pred", "v_prediction"), ("its metadata (vpred)", "v_prediction"), ("here", "epsilon")]),
    ],
    ids=str,
)  # fmt: skip
def test_marks_in_the_order_of_their_weight(
    names: tuple[str, ...], notes: dict[str, str], beside: Mark | None, found: list[tuple[str, str]]
) -> None:
    assert [(mark.place, mark.kind) for mark in _marks(names, notes, beside)] == found


@pytest.mark.parametrize(
    ("marks", "found", "told"),
    [
        ([], None, None),
        ([Mark("a", "epsilon")], ("epsilon", None), None),
        ([Mark("the .yaml beside it", "epsilon", True)], ("epsilon", "says the .yaml beside it"), None),
        ([Mark("a", "v"), Mark("b", "v"), Mark("c", "x", True)], ("v", None), None),
        ([Mark("a", "v"), Mark("b", "v"), Mark("c", "x"), Mark("d", "y")], ("v", None),
         "a says v, which is taken, and c says x"),
        ([Mark("a", "v", True), Mark("b", "x")], ("v", None), "a says v, which is taken, and b says x"),
    ],
    ids=str,
)  # fmt: skip
def test_the_first_mark_counts(
    marks: list[Mark], found: Any, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _marked(iter(marks)) == found
    said = " ".join(capsys.readouterr().err.split())
    assert (told or "") in said
    assert bool(said) == bool(told)
    if told:
        assert f"--prediction-type {told.rpartition(' ')[2]} takes that" in said


NORM = "up_blocks.3.attentions.2.transformer_blocks.0.norm1.bias"


@pytest.mark.parametrize(
    ("family", "variant", "shape", "deviation", "kind", "reason"),
    [
        (SD1, None, (320,), 0.5, "epsilon", None),
        (SDXL, None, (320,), 0.5, "epsilon", None),
        (SD2, INPAINTING, (320,), 0.5, "epsilon", None),
        (SD2, None, (320,), 0.5, "v_prediction", "is 0.500 > 0.09"),
        (SD2, None, (320,), 0.08, "epsilon", "is 0.080 <= 0.09"),
        (SD2, "other", (320,), 0.5, "v_prediction", "is 0.500 > 0.09"),
        (SD2, None, None, 0.5, "epsilon", f"it has no {NORM} that would tell"),
        (SD2, None, (16, 20), 0.5, "epsilon", "that would tell"),
        (SD2, None, (0,), 0.5, "epsilon", "that would tell"),
        (SD2, None, (1 << 16,), 0.5, "v_prediction", "is 0.500"),
        (SD2, None, ((1 << 16) + 2,), 0.5, "epsilon", "that would tell"),
    ],
    ids=str,
)
def test_what_weights_tell(
    family: str, variant: str | None, shape: Any, deviation: float, kind: str, reason: str | None
) -> None:
    values = np.resize(np.array([1 - deviation, 1 + deviation], np.float32), shape or (2,))
    weight: Any = SimpleNamespace(shape=shape, load=lambda: values)
    found = _judge(family, variant, {NORM: weight} if shape is not None else {"x": weight})
    assert found[0] == kind
    assert found[1] is None if reason is None else str(found[1]).endswith(reason) or reason in str(found[1])


TO_K = "a.attn2.to_k.weight"
CLASS = "label_emb.0.0.weight"


@pytest.mark.parametrize(
    ("shapes", "kind", "family"),
    [
        ({TO_K: (8, 768)}, Kind.UNET, SD1),
        ({TO_K: (8, 768)}, Kind.VAE, None),
        ({TO_K: (8, 768)}, Kind.TEXT_ENCODER, None),
        ({TO_K: (8, 768)}, Kind.UPSCALER, None),
        ({TO_K: (8, 768)}, Kind.TRANSFORMER, None),
        ({TO_K: (8, 768), "cap_embedder.x": (1,)}, Kind.TRANSFORMER, "Lumina"),
        ({TO_K: (8, 768), "cap_embedder.x": (1,)}, Kind.LORA, "Lumina"),
        ({TO_K: (8, 768), "cap_embedder.x": (1,)}, Kind.VAE, None),
        ({TO_K: (8, 1280)}, Kind.CHECKPOINT, REFINER),
        ({TO_K: (8, 999)}, Kind.UNET, None),
        ({TO_K: (768,)}, Kind.UNET, None),
        ({}, Kind.LORA, None),
        ({"lora_te2_x": (1,), TO_K: (8, 768)}, Kind.LORA, SDXL),
        ({"lora_te1_x": (1,), TO_K: (8, 1024)}, Kind.LORA, SD2),
        ({"a": (2, 1024), "b": (1280,)}, Kind.EMBEDDING, SDXL),
        ({"a": (2, 768), "b": (1024,)}, Kind.EMBEDDING, SD1),
        ({"a": (), "b": (1024,)}, Kind.EMBEDDING, SD2),
        ({}, Kind.EMBEDDING, None),
    ],
    ids=str,
)
def test_the_family_of_tensors_by_their_kind(shapes: dict[str, Any], kind: Kind, family: str | None) -> None:
    assert _family(shapes, kind) == family


@pytest.mark.parametrize(
    ("shapes", "family"),
    [
        ({TO_K: (8, 768)}, None),
        ({TO_K: (8, 768), CLASS: (1, 1)}, "SD 2.1 unCLIP"),
        ({TO_K: (8, 1024), CLASS: (1, 1)}, "SD 2.1 unCLIP"),
        ({TO_K: (8, 2048), CLASS: (1, 1)}, None),
        ({TO_K: (8, 1280), CLASS: (1, 1)}, None),
        ({TO_K: (8, 999), CLASS: (1, 1)}, None),
        ({CLASS: (1, 1)}, None),
        ({TO_K: (8, 2048), CLASS: (1, 1), "cond_stage_model.x": (1,)}, "SD 2.1 unCLIP"),
        ({TO_K: (8, 2048), "add_embedding.linear_1.weight": (1, 1)}, None),
        ({TO_K: (8, 768), "add_embedding.linear_1.weight": (1, 1)}, "SD 2.1 unCLIP"),
        ({TO_K: (8, 768), "model.diffusion_model.label_emb.0.0.weight": (1, 1)}, "SD 2.1 unCLIP"),
        ({"cond_stage_model.model.visual.x": (1,)}, "SD image variations"),
        ({"cond_stage_model.model.visual.x": (1,), "cond_stage_model.model.token_embedding.weight": (9, 4)},
         "SD image variations"),
        ({"cond_stage_model.model.visual.x": (1,), "cond_stage_model.model.token_embedding.weight": (9, 4),
          "a.proj_in.weight": (8, 8)}, None),
        ({"cond_stage_model.model.visual.x": (1,), "a.proj_in.weight": (8, 8)}, "SD image variations"),
        ({"cond_stage_model.model.visual.x": (1,), "cond_stage_model.model.token_embedding.weight": (9, 4),
          "a.proj_in.weight": (8, 8, 1, 1)}, "SD image variations"),
        ({"cond_stage_model.model.visual.x": (1,), "depth_model.x": (1,)}, "SD 2.x depth"),
        ({"depth_model.x": (1,), TO_K: (8, 2048), CLASS: (1, 1)}, "SD 2.x depth"),
    ],
    ids=str,
)  # fmt: skip
def test_the_family_of_a_foreign_unet(shapes: dict[str, Any], family: str | None) -> None:
    assert _foreign_family(shapes) == family


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("a.attn2.to_k.weight", 5), ("a_attn2_to_k.lora_down.weight", 5), ("a.attn2.to_k.lora_A.weight", 5),
        ("a.attn2.processor.to_k.lora_down.weight", 5), ("a.attn2.to_k_lora.down.weight", 5), ("0.to_k_ip.weight", 5),
        ("a.attn2.to_k.lora.down.weight", 5), ("a.attn1.to_k.weight", None), ("a.attn2.to_v.weight", None),
        ("a.attn2.to_k.lora_up.weight", None), ("a.attn2.to_k.bias", None), ("a.attn2.to_k.lora_B.weight", None),
    ],
)  # fmt: skip
def test_the_width_that_is_attended_to(name: str, width: int | None) -> None:
    assert _context_width({"other": (8, 7), name: (8, 5)}) == width
    assert _context_width({name: (5,)}) is None


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([(768,)], True), ([(3, 1024)], True), ([(3, 768), (3, 1280)], True), ([(768,), (2048,)], True),
        ([(767,)], False),
        ([(768, 3)], False), ([(1, 3, 768)], False), ([()], False), ([], False), ([(768,)] * 3, False),
        ([(768,), (5,)], False),
    ],
    ids=str,
)  # fmt: skip
def test_few_tensors_that_are_vectors_of_words(shapes: list[tuple[int, ...]], found: bool) -> None:
    assert _is_embedding({str(number): shape for number, shape in enumerate(shapes)}) == found


def test_pointers_of_lfs(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    for content, found in (
        (lfs.MAGIC, True), (lfs.MAGIC + b".github.com/spec/v1\noid", True), (lfs.MAGIC[:-1], False), (b"", False),
        (b" " + lfs.MAGIC, False), (b"version http://git-lfs", False),
    ):  # fmt: skip
        path.write_bytes(content)
        assert lfs.is_pointer(path) == found
    assert not lfs.is_pointer(tmp_path)
    assert not lfs.is_pointer(tmp_path / "nowhere")
    assert lfs.pull_advice(path) == f"Fetch the files themselves:\n    git -C {tmp_path} lfs pull"


def factor(random: np.random.Generator, *shape: int) -> tuple[Factor, Any]:
    values = random.standard_normal(shape).astype(np.float32)
    stored: Any = SimpleNamespace(shape=shape, dtype=values.dtype, path=Path("f"), load=lambda: values)
    return Factor("x", stored), values.astype(np.float64)


@pytest.mark.parametrize("kernel", [None, (), (3,), (3, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("rows", [slice(None), slice(2, 5), slice(4, 7)], ids=str)
def test_a_product_of_low_rank(kernel: tuple[int, ...] | None, rows: slice) -> None:
    random = np.random.default_rng(3)
    outer, inner = (random.standard_normal(size).astype(np.float32) for size in ((7, 4), (2, 5)))
    core, values = factor(random, 4, 2, *(kernel or ()))
    if kernel is None:
        inner = random.standard_normal((4, 5)).astype(np.float32)
        expected = outer.astype(np.float64) @ inner
    else:
        expected = np.einsum("oa,abk,bi->oik", outer.astype(np.float64), values.reshape(4, 2, -1), inner).reshape(7, -1)
    found = _product(outer, inner, None if kernel is None else core)(rows)
    np.testing.assert_allclose(found, expected[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", ["whole", "product"])
@pytest.mark.parametrize("second", ["whole", "product", "core"])
@pytest.mark.parametrize("row", [1, 6, 30])
def test_pieces_of_a_kronecker_product(first: str, second: str, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows in pieces of any size, added to a convolution's weight with a scale."""
    monkeypatch.setattr(pieces, "PIECE", 40)
    random = np.random.default_rng(4)

    def part(kind: str, rows: int, columns: int, kernel: tuple[int, ...]) -> tuple[Any, Any]:
        if kind == "whole":
            made, values = factor(random, rows, columns, *kernel)
            return Whole(made), values.reshape(rows, -1)
        if kind == "product":
            (a, left), (b, right) = factor(random, rows, 3), factor(random, 3, columns, *kernel)
            return Product(a, b), left @ right.reshape(3, -1)
        (a, left), (b, right), (core, middle) = (
            factor(random, 3, rows), factor(random, 2, columns), factor(random, 3, 2, *kernel)
        )  # fmt: skip
        joined = np.einsum("ao,abk,bi->oik", left, middle.reshape(3, 2, -1), right)
        return Product(a, b, core), joined.reshape(rows, -1)

    (one, outer), (two, inner) = part(first, 3, 2, ()), part(second, 4, 5, (3, 1))
    form, shape = Kronecker(one, two), (12, 10, 3, 1)
    assert (form.outputs, form.inputs, form.fits) == (12, 30, True)
    base = random.standard_normal(shape).astype(np.float32)
    weight = adapted(Inline(base), [(Delta(shape, form, 0.5), -2.0), (Delta(shape, form), 0.0)])
    expected = base - np.kron(outer, inner.reshape(4, -1)).reshape(shape)
    parts = list(weight.pieces(row))
    assert len(parts) > 2
    assert all(piece.ndim == 1 and piece.size % row == 0 for piece in parts)
    found = np.concatenate(parts)
    np.testing.assert_allclose(found.reshape(shape), expected, rtol=1e-3, atol=1e-4)
