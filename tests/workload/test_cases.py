"""Cases and the inputs that they give: shapes by rank and name, at sizes that are not square, and values by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sdort.errors import BadModelError, UsageError
from sdort.graph.signature import TensorSpec
from sdort.workload.cases import Case, cases, feed_shapes, further_cases, generation_cases, make_feeds
from sdort.workload.samples import (
    Input,
    RandomNumbers,
    Sample,
    fill_inputs,
    fixed_batch,
    follows,
    make_inputs,
    sample_sizes,
)
from sdort.workload.steering_inputs import (
    all_residuals,
    count_images,
    image_inputs,
    is_image_input,
    is_image_scale,
    is_residual,
    named_sizes,
    residual_inputs,
    residual_shapes,
    shape_at,
    steering_inputs,
    unsteered,
    zero_residuals,
)

F, I = np.dtype(np.float32), np.dtype(np.int64)  # noqa: E741


def specs(**shapes: Any) -> dict[str, TensorSpec]:
    """Inputs by name, float unless a dtype stands before the shape; ``__`` is a dot."""
    made = {}
    for name, given in shapes.items():
        dtype, shape = given if len(given) == 2 and isinstance(given[0], np.dtype) else (F, given)
        made[name.replace("__", ".")] = TensorSpec(name.replace("__", "."), dtype, tuple(shape))
    return made


# Cases


def test_every_combination_once_and_encoders_at_one_size() -> None:
    sizes = [(64, 96), (32, 48)]
    made = cases(["text_encoder_2", "image_encoder", "unet", "pipeline"], [1, 3], sizes, "a cat")
    assert [(each.component, each.batch, each.height, each.width, each.prompt) for each in made] == [
        *(("text_encoder_2", batch, 64, 96, "") for batch in (1, 3)),
        *(("image_encoder", batch, 64, 96, "") for batch in (1, 3)),
        *(("unet", batch, *size, "") for batch in (1, 3) for size in sizes),
        *(("pipeline", batch, *size, "a cat") for batch in (1, 3) for size in sizes),
    ]


@pytest.mark.parametrize(("batch", "images", "seeds"), [(1, 3, [8, 9]), (2, 5, [9, 11]), (3, 3, []), (4, 3, [])])
def test_further_images_have_the_seeds_after_those_of_the_case(batch: int, images: int, seeds: list[int]) -> None:
    further = further_cases(Case("pipeline", batch, 64, 96, 7, "a cat"), images)
    assert [each.seed for each in further] == seeds
    assert {(each.batch, each.width, each.prompt) for each in further} <= {(batch, 96, "a cat")}


@pytest.mark.parametrize(
    ("component", "images", "copies", "extra", "batches"),
    [
        ("unet", 1, 2, {}, [2]),
        ("unet", 4, 2, {}, [8]),
        ("unet", 5, 2, {}, [2, 8]),
        ("unet", 6, 1, {}, [2, 4]),
        ("controlnet", 5, 2, {}, [2, 8]),
        ("vae_decoder", 5, 2, {}, [1, 4]),
        ("vae_encoder", 8, 2, {}, [4]),
        ("t2i_adapter", 2, 2, {}, [2]),
        ("text_encoder", 5, 2, {}, [1]),
        ("image_encoder", 5, 2, {}, [1]),
        # A guidance embedding takes one prompt, where there would be two.
        ("unet", 3, 2, {"timestep_cond": ("b", 8)}, [3]),
        ("unet", 3, 3, {"timestep_cond": ("b", 8)}, [9]),
    ],
)
def test_the_batches_of_a_generation(
    component: str, images: int, copies: int, extra: dict[str, Any], batches: list[int]
) -> None:
    inputs = specs(timestep=(5,), sample=("b", 4, "h", "w"), **extra)
    made = generation_cases(component, inputs, images, (64, 96), copies=copies)
    assert [each.batch for each in made] == batches
    assert {(each.height, each.width) for each in made} == {(64, 96)}
    static = generation_cases(component, specs(timestep=(5,), sample=(6, 4, 8, 8)), images, (64, 96), copies=copies)
    assert [each.batch for each in static] == [6]


def test_images_that_are_made_at_once_are_counted() -> None:
    inputs = specs(sample=("b", 4, "h", "w"))
    made = generation_cases("unet", inputs, 7, (64, 96), copies=2, at_once=3)
    assert [each.batch for each in made] == [2, 6]


# Feeds

UNET: Mapping[str, Any] = {
    "sample": ("b", 4, "h", "w"), "timestep": ((), I)[::-1], "encoder_hidden_states": ("b", "s", 24),
    "text_embeds": ("b", 12), "time_ids": ("b", None),
}  # fmt: skip


def feeds(component: str, inputs: Mapping[str, TensorSpec], case: Case | None = None, **rest: Any) -> dict[str, Any]:
    return make_feeds(case or Case(component, 3, 64, 96), inputs, 8, **rest)


def test_shapes_of_feeds_follow_the_case() -> None:
    assert feed_shapes(feeds("unet", specs(**UNET))) == {
        "sample": (3, 4, 8, 12), "timestep": (), "encoder_hidden_states": (3, 77, 24), "text_embeds": (3, 12),
        "time_ids": (3, 6),
    }  # fmt: skip
    assert feeds("unet", specs(**UNET))["timestep"] == 500
    assert feeds("unet", specs(**{**UNET, "timestep": ("b",)}))["timestep"].tolist() == [500] * 3
    assert feeds("unet", specs(**{**UNET, "timestep": (1,)}))["timestep"].shape == (1,)


@pytest.mark.parametrize(
    ("component", "shape"),
    [
        ("unet", (3, 4, 8, 12)), ("vae_decoder", (3, 4, 8, 12)), ("controlnet", (3, 4, 8, 12)),
        ("vae_encoder", (3, 3, 64, 96)), ("t2i_adapter", (3, 3, 64, 96)), ("image_encoder", (3, 3, 224, 224)),
    ],
)  # fmt: skip
def test_pictures_are_of_pixels_and_latents_of_eighths(component: str, shape: tuple[int, ...]) -> None:
    open_ended = specs(x=("b", None, None, None))
    assert feeds(component, open_ended)["x"].shape == shape
    assert feeds(component, open_ended, channels=5)["x"].shape == (3, 5, *shape[2:])
    assert feeds("image_encoder", specs(x=("b", 3, 30, 50)))["x"].shape == (3, 3, 30, 50)


def test_values_of_feeds_are_of_the_kind_that_a_pipeline_feeds() -> None:
    made = feeds("unet", specs(**UNET))
    assert made["time_ids"].tolist() == [[64, 96, 0, 0, 64, 96]] * 3
    assert feeds("unet", specs(**{**UNET, "time_ids": ("b", 5)}))["time_ids"].tolist() == [[64, 96, 0, 0, 64]] * 3
    assert made["sample"].min() < -1.5
    assert made["sample"].dtype == made["time_ids"].dtype == np.float32
    assert not np.array_equal(made["encoder_hidden_states"][:, :3, :12].ravel()[:36], made["text_embeds"].ravel())
    for component, low in (("vae_encoder", -1), ("t2i_adapter", 0)):
        values = feeds(component, specs(x=("b", 3, "h", "w")))["x"]
        assert (values.min() < low + 0.1, values.max() > 0.9) == (True, True)
        assert (values.min() >= low, values.max() <= 1) == (True, True)
    ids = feeds("text_encoder", specs(input_ids=(I, ("b", "s"))))["input_ids"]
    assert (ids.shape, int(ids.min()) >= 0, 200 < int(ids.max()) < 256) == ((3, 77), True, True)
    # Images are known by their rank whatever an exporter calls them; what a ControlNet sees is another.
    names = ("sample", "latent_sample", "controlnet_cond")
    one, other, seen = (feeds("controlnet", specs(**{name: ("b", 4, "h", "w")}))[name] for name in names)
    np.testing.assert_array_equal(one, other)
    assert (seen.min() >= 0, seen.max() <= 1) == (True, True)


def test_what_steers_a_unet_is_as_if_nothing_did() -> None:
    inputs = specs(
        sample=("b", 4, "h", "w"), mid_block_additional_residual=("b", 7, "h", "w"), conditioning_scale=(13,),
        down_block_additional_residuals__0=("b", 6, "h", "w"), image_scale__0=("b",),
    )  # fmt: skip
    made = feeds("unet", inputs)
    assert made["mid_block_additional_residual"].shape == (3, 7, 8, 12)
    zero = [name for name, value in made.items() if not value.any()]
    assert zero == [name for name in made if name.startswith(("mid", "down", "image_scale"))]
    assert (made["conditioning_scale"] == 1).all()


def test_a_static_model_s_size_is_refused_by_what_differs() -> None:
    for shape, ok in (((3, 4, 8, 12), True), ((3, 4, 12, 8), False), ((2, 4, 8, 12), False), ((3, 9, 8, 12), True)):
        if ok:
            assert feeds("unet", specs(sample=shape))["sample"].shape == shape
        else:
            with pytest.raises(UsageError, match="the model is static: 'sample' is") as caught:
                feeds("unet", specs(sample=shape))
            assert json.dumps(list(shape)) in caught.value.message
            assert caught.value.message.endswith("not [3, 4, 8, 12]")
    for name, rest in (("encoder_hidden_states", (77, 24)), ("text_embeds", (12,))):
        with pytest.raises(UsageError, match="the model is static"):
            feeds("unet", specs(**{name: (1, *rest)}))
        assert feeds("unet", specs(**{name: (3, *rest)}))[name].shape == (3, *rest)
    assert feeds("unet", specs(encoder_hidden_states=("b", 20, 24)))["encoder_hidden_states"].shape == (3, 20, 24)


def test_an_input_that_nobody_knows_is_refused() -> None:
    for shape in ((I, ("b", 3)), ("b", 2, 3, 4, 5), ("b", "s", 4), (7,)):
        with pytest.raises(BadModelError, match="not known what to feed the input 'strange'"):
            feeds("unet", specs(strange=shape))
    assert feeds("unet", specs(strange=("b", 3)))["strange"].shape == (3, 3)


# Inputs for controls and images

STEERED = specs(
    mid_block_additional_residual=(2, 8, "h2", "w2"), sample=(1, 4, "h", "w"),
    down_block_additional_residuals__0=(2, 5, "h", "w"), down_block_additional_residuals__1=(2, 6, "h", 3),
    down_intrablock_additional_residuals__0=(2, 9, "w", "h"), image_scale__0=("b",),
    image_tokens__0=("b", 4, 6), image_tokens__1=("b", 4, 6),
)  # fmt: skip


def test_inputs_for_controls_by_the_component_that_makes_them() -> None:
    down = [f"down_block_additional_residuals.{n}" for n in range(2)]
    intra, mid = "down_intrablock_additional_residuals.0", "mid_block_additional_residual"
    assert residual_inputs(STEERED) == {"controlnet": [*down, mid], "t2i_adapter": [intra]}
    assert all_residuals(STEERED) == [*down, mid, intra]
    assert [name for name in STEERED if is_residual(name)] == [mid, *down, intra]
    assert list(unsteered(STEERED)) == [name for name in STEERED if name not in (*down, mid, intra)]
    assert steering_inputs(STEERED) == [name for name in STEERED if name != "sample"]
    assert not any(map(is_residual, ("down_block_additional_residuals", "mid_block_additional_residual.0", "sample")))
    assert [name for name in STEERED if is_image_scale(name)] == ["image_scale.0"]
    assert image_inputs(STEERED) == [name for name in STEERED if is_image_input(name)]
    assert image_inputs(STEERED) == ["image_scale.0", "image_tokens.0", "image_tokens.1"]
    assert count_images(STEERED) == 2


def test_shapes_of_residuals_follow_the_latents() -> None:
    known = {name: spec for name, spec in STEERED.items() if name != "mid_block_additional_residual"}
    expected = {
        "down_block_additional_residuals.0": (3, 5, 16, 24), "down_block_additional_residuals.1": (3, 6, 16, 3),
        "down_intrablock_additional_residuals.0": (3, 9, 24, 16),
    }  # fmt: skip
    assert residual_shapes(known, (3, 4, 16, 24)) == expected
    zeros = zero_residuals(known, (3, 4, 16, 24))
    assert {name: value.shape for name, value in zeros.items()} == expected
    assert all(value.dtype == np.float32 and not value.any() for value in zeros.values())
    with pytest.raises(BadModelError, match="how large its input 'mid_block_additional_residual' is"):
        residual_shapes(STEERED, (3, 4, 16, 24))
    assert named_sizes(STEERED["sample"], (3, 4, 16, 24)) == {"h": 16, "w": 24}
    assert shape_at(TensorSpec("x", F, ("h", None, 3, "unknown")), {"h": 16}) == (16, None, 3, None)


# Samples


def test_dims_by_rank() -> None:
    sample = Sample(2, 9, 13, 7)
    for item, sizes in (
        (Input("x", F, (None,) * 4), [2, None, 9, 13]), (Input("x", F, (None,) * 3), [2, 7, None]),
        (Input("x", I, (None,) * 2), [2, 7]), (Input("x", F, (None,) * 2), [2, None]), (Input("x", F, (None,)), [1]),
        (Input("x", F, (None,), per_sample=True), [2]), (Input("x", F, ()), []), (Input("x", F, (None,) * 5), None),
        (Input("x", np.dtype(np.uint8), (None,) * 2), [2, 7]),
    ):  # fmt: skip
        assert sample_sizes(item, sample) == sizes
    assert [follows(name) for name in ("sample", "controlnet_cond", "mid_block_additional_residual", "x")] == [
        True, True, True, False
    ]  # fmt: skip


def test_what_follows_the_latents_has_their_names() -> None:
    """A ControlNet's image is eight times as high and as wide as the latents, by what its dims are called."""
    items = [
        Input("controlnet_cond", F, (None, 3, None, None), names=("b", None, "8*h", "8*w")),
        Input("sample", F, (None, 4, None, None), names=("b", None, "h", "w")),
    ]
    numbers = RandomNumbers("controlnet", np.random.default_rng(0))
    made = fill_inputs(items, Sample(2, 9, 13), "controlnet", numbers)
    assert {name: value.shape for name, value in made.items()} == {
        "controlnet_cond": (2, 3, 72, 104), "sample": (2, 4, 9, 13)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shapes", "batch"),
    [
        ([("x", (None, 4))], 5), ([("x", (3, 4))], 3), ([("timestep", (1,)), ("x", (None, 4))], 5),
        ([("timestep", (2,)), ("x", (None, 4))], 2), ([("conditioning_scale", (7,)), ("x", (None, 4))], 5),
        ([("x", (None, 4)), ("y", (6, 4))], 6), ([("x", (1, 4))], 1), ([("x", ())], 5),
    ],
)  # fmt: skip
def test_the_batch_that_a_model_is_fixed_to(shapes: list[tuple[str, Any]], batch: int) -> None:
    assert fixed_batch([Input(name, F, shape) for name, shape in shapes], Sample(5)) == batch


def test_random_numbers_by_what_an_input_is() -> None:
    def drawn(
        name: str, shape: tuple[int, ...], dtype: Any = F, component: str = "unet", rows: int | None = None
    ) -> Any:
        item = Input(name, np.dtype(dtype), shape, rows)
        return make_inputs([item], Sample(50, 40, 30), component, 0)[name]

    for name, component in (
        ("conditioning_scale", "controlnet"), ("controlnet_cond", "controlnet"), ("image_scale.0", "unet"),
        ("x", "t2i_adapter"),
    ):  # fmt: skip
        shape = (13,) if "scale" in name else (2, 3, 20, 30)
        values = drawn(name, shape, component=component)
        assert (values.min() >= 0, values.max() <= 1, 0 < values.std() < 0.4) == (True, True, True)
    ids = drawn("input_ids", (8, 77), np.int64, "text_encoder", 10)
    assert (ids.min(), ids.max()) == (0, 9)
    assert (drawn("flags", (8, 77), np.int64).min(), drawn("flags", (8, 77), np.int64).max()) == (0, 1)
    steps = drawn("timestep", (400,), np.int64)
    assert (steps.min() >= 0, 900 < steps.max() < 1000) == (True, True)
    encoded, plain = (drawn("sample", (4, 3, 40, 30), np.float16, each) for each in ("vae_encoder", "vae_decoder"))
    assert (encoded.min(), encoded.max(), encoded.dtype) == (-1, 1, np.float16)
    assert (plain.max() > 2, plain.dtype) == (True, np.float16)
