"""The judge of the demo's pictures: right on what is drawn, not fooled by what is wrong; and training's captions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdort.demo.judge import connected_parts, detect_shapes, judge_scene
from sdort.demo.judge import wrong as words_for
from sdort.demo.prompt_language import POSITIONS, RELATION_PHRASES, held_out, parse
from sdort.demo.scenes import BACKGROUNDS, RGB, SHAPES, SIZES, Scene, SceneShape, render
from sdort.demo.score import PAIR_BAR, SINGLE_BAR, Score, score
from sdort.errors import UsageError

CIRCLE, SQUARE = SceneShape("circle", "red", 16, 30, 8), SceneShape("square", "blue", 46, 34, 14)
PAIR = Scene("white", (CIRCLE, SQUARE))
PAIR_PROMPT = "a small red circle left of a large blue square on white"


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from demo_batches import Sampler
    from demo_words import caption_words, learn_merges

    from sdort.demo.tokenizer import write_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, learn_merges(caption_words()))
    return Sampler(json.loads((folder / "vocab.json").read_text()), 77, "cpu", seed=3)


# Right pictures


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_shape_is_seen_at_every_size_in_every_colour(shape: str, size: str) -> None:
    random = np.random.default_rng([SHAPES.index(shape), list(SIZES).index(size)])
    for background, paint in BACKGROUNDS.items():
        for colour in random.permutation([name for name in RGB if RGB[name] != paint])[:4]:
            radius = int(random.choice(SIZES[size]))
            x, y = random.integers(radius + 1, 63 - radius, 2)
            image = render(Scene(background, (SceneShape(shape, str(colour), int(x), int(y), radius),)))
            grainy = np.clip(image + random.normal(0, 6, image.shape), 0, 255).astype(np.uint8)
            for picture in (image, grainy, np.kron(image, np.ones((2, 2, 1), np.uint8))):
                seen_background, seen = detect_shapes(picture)
                assert seen_background == background
                assert [(each.shape, each.colour, each.size) for each in seen] == [(shape, colour, size)]


def test_training_pictures_show_what_their_captions_say(sampler: Any) -> None:
    scenes = sampler.scenes(300)
    pictures = ((sampler.images(scenes) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    for prompt, picture in zip(_texts(sampler, sampler.captions(scenes)), pictures, strict=True):
        verdict = judge_scene(picture, parse(prompt))
        assert verdict.right, prompt
        assert False not in (verdict.position, verdict.size, verdict.background), prompt


def test_captions_are_tokenized_as_the_tokenizer_does(sampler: Any, tmp_path: Path) -> None:
    from demo_words import caption_words, learn_merges
    from transformers import CLIPTokenizer

    from sdort.demo.tokenizer import write_tokenizer

    write_tokenizer(tmp_path, learn_merges(caption_words()))
    tokenizer = CLIPTokenizer.from_pretrained(tmp_path)
    ids = sampler.captions(sampler.scenes(50))
    for text, row in zip(_texts(sampler, ids), ids, strict=True):
        assert tokenizer(text, padding="max_length").input_ids == row.tolist()
        assert len(tokenizer.tokenize(text)) == len(text.split())
    assert tokenizer("", padding="max_length").input_ids == sampler.empty().tolist()


def test_captions_are_tokenized_as_qwens_tokenizer_does(sampler: Any, tmp_path: Path) -> None:
    """With the chat template, and padding behind it."""
    from demo_batches import CHAT, Sampler
    from demo_words import chat_words, learn_merges

    from sdort.demo.tokenizer import write_letters
    from sdort.families.data.z_image import FAMILY
    from sdort.generation.prompts.plain_tokenizer import PlainTokenizer

    plain = FAMILY.encoders[0].plain
    assert plain
    write_letters(tmp_path, plain, learn_merges(chat_words(), end=""))
    tokenizer = PlainTokenizer(tmp_path, plain)
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = {**whole["model"]["vocab"], **{each["content"]: each["id"] for each in whole["added_tokens"]}}
    chat = Sampler(vocabulary, 24, "cpu", seed=3, frame=CHAT)
    clip = Sampler(sampler._vocabulary, 77, "cpu", seed=3)
    texts, ids = _texts(sampler, clip.captions(clip.scenes(500))), chat.captions(chat.scenes(500))
    assert max(len(text.split()) for text in texts) == 16
    found = []
    for row in [*ids.tolist(), chat.empty().tolist()]:
        read = [number for number in row if number != tokenizer.padding]
        assert len(read) < 25
        assert row == [*read, *[tokenizer.padding] * (24 - len(read))]
        text = tokenizer.text(read).removeprefix(plain.before).removesuffix(plain.after)
        assert tokenizer.row(text).ids == tuple(read)
        assert len(read) == len(text.split()) + 8
        found.append(text)
    assert found == [*texts, ""]


def _texts(sampler: Any, ids: Any) -> list[str]:
    """Captions from the vocabulary alone."""
    words = {index: entry.removesuffix("</w>") for entry, index in sampler._vocabulary.items() if "|" not in entry}
    return [" ".join(words[int(each)] for each in row if int(each) in words) for row in ids]


# Wrong pictures


def test_a_pair_is_right() -> None:
    verdict = judge_scene(render(PAIR), parse(PAIR_PROMPT))
    assert verdict.right
    assert (verdict.relation, verdict.position, verdict.size, verdict.background) == (True, None, True, True)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        (replace(PAIR, shapes=(replace(CIRCLE, shape="diamond"), SQUARE)), "shapes"),
        (replace(PAIR, shapes=(CIRCLE, replace(SQUARE, shape="triangle"))), "shapes"),
        (replace(PAIR, shapes=(replace(CIRCLE, colour="orange"), SQUARE)), "colours"),
        (replace(PAIR, shapes=(replace(CIRCLE, colour="blue"), replace(SQUARE, colour="red"))), "colours"),
        (replace(PAIR, shapes=(replace(CIRCLE, x=50), replace(SQUARE, x=18))), "relation"),
        (replace(PAIR, shapes=(replace(CIRCLE, x=30, y=12), replace(SQUARE, x=34, y=45))), "relation"),
        (replace(PAIR, shapes=(replace(CIRCLE, radius=13), SQUARE)), "size"),
        (replace(PAIR, background="gray"), "background"),
        (replace(PAIR, shapes=(CIRCLE,)), "shapes"),
        (replace(PAIR, shapes=(CIRCLE, SQUARE, SceneShape("star", "green", 12, 54, 7))), "shapes"),
    ],
)
def test_what_is_wrong_is_named(changed: Scene, wrong: str) -> None:
    verdict = judge_scene(render(changed), parse(PAIR_PROMPT))
    assert getattr(verdict, wrong) is False
    assert verdict.right == (wrong in ("size", "background"))
    assert (wrong in words_for(verdict)) == (not verdict.right)
    assert bool(words_for(verdict)) == (not verdict.right)


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("column", range(3))
def test_a_place_is_right_where_it_is_and_nowhere_else(row: int, column: int) -> None:
    image = render(Scene("black", (SceneShape("ring", "cyan", 16 + 16 * column, 16 + 16 * row, 10),)))
    right = [
        phrase
        for phrases in POSITIONS.values()
        for phrase in phrases
        if judge_scene(image, parse(f"a cyan ring {phrase}")).position
    ]
    assert right == list(list(POSITIONS.values())[3 * row + column])


@pytest.mark.parametrize("relation", RELATION_PHRASES)
def test_a_relation_is_right_as_it_is_and_not_otherwise(relation: str) -> None:
    centres = {"left of": (14, 30), "right of": (50, 34), "above": (34, 14), "below": (30, 50)}
    x, y = centres[relation]
    image = render(
        Scene("beige", (SceneShape("cross", "pink", x, y, 8), SceneShape("cross", "black", 63 - x, 63 - y, 8)))
    )
    for other in RELATION_PHRASES:
        assert judge_scene(image, parse(f"a pink cross {other} a black cross")).right == (other == relation)


@pytest.mark.parametrize("kind", ["blank", "noise", "stripes", "smear"])
def test_a_picture_of_nothing_is_wrong(kind: str) -> None:
    random = np.random.default_rng(0)
    image = np.full((64, 64, 3), 255, np.uint8)
    if kind == "noise":
        image = random.integers(0, 256, (64, 64, 3)).astype(np.uint8)
    elif kind == "stripes":
        image[:, ::4] = RGB["red"]
    elif kind == "smear":
        image[20:40, 20:40] = np.linspace(RGB["red"], (120, 200, 120), 20)[None].astype(np.uint8)
        image[30:40, 30:40] = 255
    for shape in SHAPES:
        assert not judge_scene(image, parse(f"a red {shape} on white")).right


def test_a_colour_without_a_name_is_none() -> None:
    image = render(Scene("white", (SceneShape("circle", "green", 30, 30, 12),)))
    swapped = np.where((image == 255).all(-1, keepdims=True), image, np.array([120, 90, 60], np.uint8))
    (seen,) = detect_shapes(swapped)[1]
    assert (seen.shape, seen.colour) == ("circle", None)
    assert not judge_scene(swapped, parse("a red circle")).colours
    assert detect_shapes(np.full((64, 64, 3), (200, 60, 140), np.uint8)) == (None, [])


def test_specks_do_not_count_and_touching_corners_are_one() -> None:
    image = render(PAIR)
    image[2:5, 2:5] = 0
    assert judge_scene(image, parse(PAIR_PROMPT)).right
    labels, count = connected_parts(np.eye(4, dtype=bool))
    assert count == 1
    assert labels.tolist() == np.eye(4).tolist()
    assert connected_parts(np.ones((2, 2), bool))[1] == 1
    assert connected_parts(np.array([[1, 0, 1]], bool))[1] == 2


# Prompts


@pytest.mark.parametrize(
    "prompt", ["a lighthouse at dusk", "", "red circle", "a red circle a blue square", "a red box"]
)
def test_other_prompts_are_refused(prompt: str) -> None:
    with pytest.raises(UsageError, match="does not know what"):
        parse(prompt)


def test_what_a_prompt_leaves_open_is_open() -> None:
    assert parse("An  orange ring").shapes[0].size is None
    wanted = parse("a white star under an orange ring")
    assert (wanted.relation, wanted.position, wanted.background) == ("below", None, None)
    assert parse("a white star and an orange ring").relation is None
    assert parse("a star".replace("star", "red star at the top left on gray")).position == ("top", "left")


def test_the_held_out_list_is_sixty_of_each_kind() -> None:
    prompts = held_out()
    assert len(set(prompts)) == len(prompts) == 120
    assert [len(parse(prompt).shapes) for prompt in prompts] == [1] * 60 + [2] * 60


def test_training_never_shows_what_a_held_out_prompt_describes(sampler: Any) -> None:
    scenes = sampler.scenes(40_000)
    shown: set[Any] = set()
    names, shapes, relations = list(RGB), list(SHAPES), list(RELATION_PHRASES)
    columns = (scenes.pair, scenes.colour, scenes.shape, scenes.background, scenes.relation)
    for pair, colour, shape, background, relation in zip(*(each.tolist() for each in columns), strict=True):
        things = [(names[c], shapes[s]) for c, s in zip(colour, shape, strict=True)]
        if pair:
            shown.add((things[0], relations[relation], things[1]))
            shown.add((things[1], relations[relation ^ 1], things[0]))
        else:
            shown.add((things[0], list(BACKGROUNDS)[background]))
    assert len(shown) > 15_000  # of about 16,000 that there are
    for prompt in held_out():
        wanted = parse(prompt)
        things = [(each.colour, each.shape) for each in wanted.shapes]
        asked = (things[0], wanted.relation, things[1]) if len(things) == 2 else (things[0], wanted.background)
        assert None not in asked
        assert asked not in shown, prompt


# Scores


def test_a_score_counts_what_was_asked_for() -> None:
    pictures = [
        (PAIR_PROMPT, render(PAIR)),
        (PAIR_PROMPT, render(replace(PAIR, background="navy"))),
        ("a red circle above a blue square", render(PAIR)),
        ("a red circle on the left", render(Scene("gray", (CIRCLE,)))),
        ("a red circle at the top", render(Scene("gray", (CIRCLE,)))),
    ]
    assert score(pictures) == Score(single=(2, 2), pair=(2, 3), position=(1, 2), size=(2, 2), background=(1, 2))


@pytest.mark.parametrize(
    ("single", "pair", "passed"),
    [
        ((90, 100), (75, 100), True),
        ((89, 100), (75, 100), False),
        ((90, 100), (74, 100), False),
        ((1, 1), (0, 0), True),
    ],
)
def test_the_bars(single: tuple[int, int], pair: tuple[int, int], passed: bool) -> None:
    assert (SINGLE_BAR, PAIR_BAR) == (0.90, 0.75)
    assert Score(single, pair, (0, 0), (0, 0), (0, 0)).passed is passed
