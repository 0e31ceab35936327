"""Rules of prompts at their own functions: chunks against the programs' own loops, files of tokenizers, graphs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.errors import UsageError
from sdort.generation.files.comfyui_graph import (
    _Graph,
    _reached,
    _take,
    _take_second,
    _tell_batch,
    _tell_clips,
    _tell_decoding,
    _tell_sizes,
)
from sdort.generation.files.infotext import Infotext
from sdort.generation.prompts import prompt_schedule, text_conditioning
from sdort.generation.prompts.prompt_chunks import _by_commas, _by_words
from sdort.generation.prompts.prompt_schedule import Clock, _pieces, read_schedule
from sdort.generation.prompts.prompt_syntax import (
    Segment,
    _broken,
    _check_weight,
    _items,
    _number,
    check_depth,
    check_weighting,
)
from sdort.generation.prompts.prompt_tokenizer import _older_entries, _pair_encoding, _special_and_listed
from sdort.generation.prompts.text_conditioning import PromptReader
from sdort.generation.requests import tokenizers
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.options.declared_options import declared

COMMA = 9


# Chunks


def by_a1111(tokens: list[tuple[int, float]], room: int, backtrack: int) -> list[list[tuple[int, float]]]:
    """``tokenize_line`` of A1111's modules/sd_hijack_clip.py."""
    chunks: list[list[tuple[int, float]]] = []
    chunk: list[tuple[int, float]] = []
    comma = -1
    for token in tokens:
        if token[0] == COMMA:
            comma = len(chunk)
        elif backtrack != 0 and len(chunk) == room and comma != -1 and len(chunk) - comma <= backtrack:
            moved, chunk = chunk[comma + 1 :], chunk[: comma + 1]
            chunks.append(chunk)
            chunk, comma = moved, -1
        if len(chunk) == room:
            chunks.append(chunk)
            chunk, comma = [], -1
        chunk.append(token)
    return [*chunks, chunk]


@pytest.mark.parametrize("backtrack", [0, 3, 4])
@pytest.mark.parametrize("commas", [0.0, 0.1, 0.5])
def test_chunks_end_at_commas_as_in_a1111(backtrack: int, commas: float) -> None:
    chooser = random.Random(backtrack)
    vocabulary: Any = SimpleNamespace(comma=COMMA, room=10)
    for length in range(50):
        tokens = [(COMMA if chooser.random() < commas else number % 9, 1.0 + number) for number in range(length)]
        assert list(_by_commas(tokens, vocabulary, backtrack)) == by_a1111(tokens, 10, backtrack)


def by_comfyui(words: list[list[tuple[int, float]]], room: int) -> list[list[tuple[int, float]]]:
    """``tokenize_with_weights`` of ComfyUI's comfy/sd1_clip.py, without its special tokens."""
    chunks: list[list[tuple[int, float]]] = [[]]
    for whole in words:
        word, is_large = whole, len(whole) >= 8
        while word:
            left = room - len(chunks[-1])
            if len(word) <= left:
                chunks[-1] += word
                break
            if is_large:
                chunks[-1] += word[:left]
                word = word[left:]
            chunks.append([])
    return chunks


def test_chunks_keep_short_words_whole_as_in_comfyui() -> None:
    chooser = random.Random(0)
    for count in range(60):
        words = [[(chooser.randrange(99), float(count))] * chooser.choice([0, 1, 6, 7, 8, 9, 30]) for _ in range(count)]
        assert list(_by_words(words, 12)) == by_comfyui(words, 12)
    # A word that is longer than a chunk is divided even if it is short.
    assert [len(chunk) for chunk in _by_words([[(1, 1.0)] * 2, [(2, 1.0)] * 6], 5)] == [5, 3]


@pytest.mark.parametrize(
    ("chunks", "most", "told"),
    [
        ([[1, 2], [3, 4], [5]], 1, "the prompt has 5 tokens, and the model reads 75; this part has no effect: 3,4,5"),
        ([[1, 2], [3, 4], [5]], 2, "the prompt has 5 tokens, and the model reads 150; this part has no effect: 5"),
        ([[1], [8] * 201], 1, f"no effect: {'8,' * 100}..."),
        ([[1], [8] * 100], 1, f"no effect: {('8,' * 100)[:-1]}"),
        ([[1], [88] * 67], 1, f"no effect: {('88,' * 67)[:-1]}"),
        ([[1], [88] * 68], 1, f"no effect: {('88,' * 68)[:200]}..."),
    ],
    ids=["two chunks", "one chunk", "many tokens", "200 tokens", "200 characters", "many characters"],
)
def test_what_of_a_prompt_is_not_read_is_told(
    chunks: list[list[int]], most: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(text_conditioning, "warn", said.append)
    vocabulary: Any = SimpleNamespace(room=75, text=lambda ids: ",".join(map(str, ids)))
    tokens = [[(number, 1.0) for number in chunk] for chunk in chunks]
    PromptReader._warn_of_cut(None, vocabulary, tokens, most, "prompt")  # type: ignore[arg-type]
    assert said[0].endswith(told)


# Weights and brackets


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a (b) c", ["a ", "(b)", " c"]),
        ("(a)(b)", ["(a)", "(b)"]),
        ("(a (b) c)d", ["(a (b) c)", "d"]),
        (r"\(a\)(b\)c)", [r"\(a\)", r"(b\)c)"]),
        ("a) (b) c", ["a) (b) c"]),
        ("(a", ["(a"]),
        ("x(a", ["x", "(a"]),
        ("", []),
    ],
)
def test_round_brackets_part_a_text(text: str, items: list[str]) -> None:
    assert list(_items(text)) == items


@pytest.mark.parametrize(("text", "number"), [("1.5", 1.5), (" -2 ", -2.0), ("1e-1", 0.1), ("x", None), ("", None)])
def test_weights_are_numbers_of_python(text: str, number: float | None) -> None:
    assert _number(text) == number


def test_bounds_of_weights_and_brackets() -> None:
    for weight in (100.0, -100.0, 0.0):
        _check_weight(Segment("a", weight))
    for weight in (100.1, -100.1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"gives 'a b' the weight .*; weights are from -100 to 100"):
            _check_weight(Segment(" a b ", weight))
    check_depth(64)
    with pytest.raises(UsageError, match="more than 64 brackets"):
        check_depth(65)
    for name in ("a1111", "comfyui", "none"):
        check_weighting(name)
    for wrong in ("a111", "", None, 7):
        with pytest.raises(UsageError, match="there is no prompt weighting") as error:
            check_weighting(wrong)
        assert ("a1111" in str(error.value.hint)) is (wrong == "a111")


def test_pieces_of_all_calls_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = read_schedule("a [b|c] [d:[e|f]:2]", "a1111")
    pieces = list(_pieces(schedule.parts))
    assert sum(isinstance(piece, str) for piece in pieces) == len("abcdef") + 1  # and the space between the forms
    assert len(pieces) == 7 + 3
    monkeypatch.setattr(prompt_schedule, "MAX_PIECES", 10 * 4)
    schedule.texts(Clock(5), 5)  # the text of the first step holds for two calls
    with pytest.raises(UsageError, match="has 10 pieces and changes at 5 calls of the UNet; at most 40 pieces"):
        schedule.texts(Clock(6), 6)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (" a b ", [" a b "]),
        (" a BREAK b BREAK c ", [" a", "BREAK", "b", "BREAK", "c "]),
        ("BREAK BREAKER", ["", "BREAK", "BREAKER"]),
        ("a\nBREAK\n", ["a", "BREAK", ""]),
    ],
)
def test_no_space_is_left_beside_a_break(text: str, texts: list[str]) -> None:
    pieces = list(_broken(text))
    assert [piece.text for piece in pieces] == texts
    assert [piece.weight for piece in pieces] == [-1.0 if each == "BREAK" else 1.0 for each in texts]


# Tokenizers


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def told(listed: list[Any]) -> list[tuple[Any, ...]]:
    flags = ("special", "lstrip", "rstrip", "normalized", "single_word")
    return [(number, token.content, *(getattr(token, flag) for flag in flags)) for number, token in listed]


def test_special_tokens_of_a_new_tokenizer(tmp_path: Path) -> None:
    def entry(content: str, **flags: bool) -> dict[str, Any]:
        return {
            "content": content,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
            **flags,
        }

    write(tmp_path, special_tokens_map={"bos_token": "<other>"}, added_tokens={"no": 5})
    config = {
        "added_tokens_decoder": {"10": entry("<ten>", lstrip=True), "9": entry("<nine>", special=True)},
        "bos_token": "<nine>", "eos_token": {"__type": "AddedToken", **entry("<end>", rstrip=True)}, "pad_token": None,
        "extra_special_tokens": ["<extra>"], "additional_special_tokens": [entry("<more>", normalized=True), "<ten>"],
        "name_or_path": "<name>", "add_prefix_token": True,
    }  # fmt: skip
    texts, listed = _special_and_listed(tmp_path, config)
    assert texts == {"bos_token": "<nine>", "eos_token": "<end>", "unk_token": "<|endoftext|>"}
    assert told(listed) == [
        (9, "<nine>", True, False, False, False, False), (10, "<ten>", False, True, False, False, False),
        (None, "<end>", True, False, True, False, False), (None, "<|endoftext|>", True, False, False, False, False),
        (None, "<extra>", True, False, False, False, False), (None, "<more>", True, False, False, True, False),
    ]  # fmt: skip


def test_special_tokens_of_an_older_tokenizer(tmp_path: Path) -> None:
    write(
        tmp_path, special_tokens_map={"bos_token": "<map>", "pad_token": "!"}, added_tokens={"<a>": 12, "<b>": 11},
        tokenizer={"added_tokens": [{"id": 12, "content": "<a>", "special": True}, {"id": 10, "content": "<w>"}]},
    )  # fmt: skip
    assert _older_entries(tmp_path) == {
        12: {"content": "<a>", "special": True}, 11: {"content": "<b>", "normalized": True}, 10: {"content": "<w>"},
    }  # fmt: skip
    texts, listed = _special_and_listed(tmp_path, {"bos_token": "<config>", "eos_token": "<end>"})
    assert texts == {"bos_token": "<map>", "eos_token": "<end>", "pad_token": "!", "unk_token": "<|endoftext|>"}
    assert [(number, token.content) for number, token in listed][:3] == [(10, "<w>"), (11, "<b>"), (12, "<a>")]
    assert {number for number, _ in listed[3:]} == {None}
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "added_tokens.json").unlink()
    assert _older_entries(tmp_path) == {}


VOCABULARY = {"a": 0, "b</w>": 1, "ab</w>": 2, "<unk>": 3, "c": 4, "c</w>": 5}


@pytest.mark.parametrize("form", ["files", "pairs", "texts", "both"])
def test_pairs_of_letters_from_every_form_of_the_files(form: str, tmp_path: Path) -> None:
    """Files of their own go before the one file of everything."""
    merges: Any = ["a b</w>"] if form == "texts" else [["a", "b</w>"]]
    if form != "files":
        whole = {} if form == "both" else VOCABULARY
        write(tmp_path, tokenizer={"model": {"vocab": whole, "merges": [] if form == "both" else merges}})
    if form in ("files", "both"):
        write(tmp_path, vocab=VOCABULARY)
        (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    model = _pair_encoding(tmp_path, "<unk>")
    for text, ids in (("ab", [2]), ("b", [1]), ("ac", [0, 5]), ("cc", [4, 5]), ("xyb", [3, 3, 1])):
        assert [token.id for token in model.tokenize(text)] == ids, text


def test_every_text_encoder_has_its_own_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "load_tokenizer", str)
    encoders = [
        SimpleNamespace(component=f"encoder {name}", tokenizer=f"tokenizer {name}", plain=None) for name in "ab"
    ]
    family = SimpleNamespace(encoders=encoders)
    folder: Any = SimpleNamespace(path=Path("p"), family=family, denoiser="unet", config=lambda name: {})
    found: Any = tokenizers.load_tokenizers(folder)
    assert found == {f"encoder {name}": f"p/tokenizer {name}" for name in "ab"}


# ComfyUI's graphs


def way(loras: dict[tuple[int, str], float], layer: int = -1, checkpoint: str = "base") -> Any:
    return SimpleNamespace(loras=loras, layer=layer, checkpoint=checkpoint)


A, B = (1, "a.pt"), (2, "b.pt")


@pytest.mark.parametrize(
    ("ways", "left"),
    [
        ((way({}), way({}), way({})), []),
        ((way({A: 0.5}), way({A: 0.5}), way({A: 0.5})), ["LoRA a.pt:0.5"]),
        ((way({A: 0.5}), way({A: 1.0}), way({A: 1.0})), ["LoRA a.pt:0.5 (strength_clip 1)"]),
        ((way({A: 0.5}), way({A: 0.5}), way({})), ["LoRA a.pt:0.5 (strength_clip 0.5, 0 for the negative prompt)"]),
        ((way({}), way({}), way({B: 2.0})), ["LoRA b.pt:0 (strength_clip 0, 2 for the negative prompt)"]),
        ((way({A: 1.0, B: 0.25}), way({B: 0.25, A: 1.0}), way({A: 1.0, B: 0.25})), ["LoRA a.pt:1", "LoRA b.pt:0.25"]),
        ((way({}), way({}, -2), way({}, -2)), []),
        ((way({}), way({}, -2), way({}, -1)), ["clip layer -1 of its negative prompt"]),
        ((way({}), way({}, checkpoint="x"), way({})), ["the text encoder of x for its positive prompt"]),
        ((way({}), way({}), way({}, checkpoint="y")), ["the text encoder of y for its negative prompt"]),
    ],
    ids=["none", "one", "clip", "one prompt", "negative alone", "two", "layer", "layers", "positive", "negative"],
)  # fmt: skip
def test_adapters_and_text_encoders_of_a_graph(ways: tuple[Any, Any, Any], left: list[str]) -> None:
    info = Infotext()
    _tell_clips(info, *ways)
    assert info.left == left


@pytest.mark.parametrize(
    ("second", "options", "left"),
    [(None, {}, []), ("a", {}, []), ("b", {"prompt_2": "b"}, []), ("", {}, ["the empty text_g of its good prompt"])],
)
def test_a_second_prompt_of_a_graph(second: str | None, options: dict[str, str], left: list[str]) -> None:
    info = Infotext()
    _take_second(info, "prompt_2", SimpleNamespace(first="a", second=second, name="good"))  # type: ignore[arg-type]
    assert (info.options, info.left) == (options, left)


def test_numbers_of_a_graph_are_taken_in_their_range() -> None:
    info = Infotext()
    for name, value in (("seed", 5), ("steps", 0), ("guidance_scale", 2), ("steps", 1.5)):
        _take(info, declared(DrawnOptions)[name], value)
    assert info.options == {"seed": 5, "guidance_scale": 2.0}
    assert info.left == ["steps 0", "steps 1.5"]


def graph(**nodes: tuple[str, dict[str, Any]]) -> _Graph:
    return _Graph(json.dumps({name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in nodes.items()}))


OWN = {"width": 640, "height": 384, "target_width": 640, "target_height": 384, "crop_w": 0, "crop_h": 0}


@pytest.mark.parametrize("name", [*OWN, None])
@pytest.mark.parametrize("kind", ["CLIPTextEncodeSDXL", "CLIPTextEncode"])
def test_sizes_that_condition_are_the_images(name: str | None, kind: str) -> None:
    inputs = {**OWN, name: 128} if name else {"width": 640}
    made = graph(size=("EmptyLatentImage", {"width": 640, "height": 384}), text=(kind, inputs))
    info = Infotext()
    prompt: Any = SimpleNamespace(node=made.nodes["text"], name="positive")
    _tell_sizes(info, made, prompt, made.nodes["size"])
    assert info.left == ([f"{name} 128 of its positive prompt"] if name and kind.endswith("SDXL") else [])


@pytest.mark.parametrize(("inputs", "left"), [({}, 0), ({"batch_size": 1}, 0), ({"batch_size": 2}, 1)], ids=str)
def test_a_batch_is_told(inputs: dict[str, Any], left: int) -> None:
    made, info = graph(size=("EmptyLatentImage", inputs)), Infotext()
    _tell_batch(info, made, made.nodes["size"])
    assert [line.split(" (")[0] for line in info.left] == ["batch_size 2"] * left


@pytest.mark.parametrize(
    ("vae", "left"),
    [
        (("CheckpointLoaderSimple", {"ckpt_name": "base"}), []),
        (("CheckpointLoaderSimple", {"ckpt_name": "other"}), ["VAE of other"]),
        (("VAELoader", {"vae_name": "ft"}), ["VAE ft"]),
        (("Unknown", {}), []),
        (None, ["the vae of its VAEDecode"]),
    ],
    ids=["own", "other", "file", "unknown", "none"],
)
def test_the_vae_of_a_graph(vae: tuple[str, dict[str, Any]] | None, left: list[str]) -> None:
    nodes: dict[str, Any] = {
        "sampler": ("KSampler", {}), "way": ("Reroute", {"": ["sampler", 0]}),
        "decode": ("VAEDecode", {"samples": ["way", 0], "vae": ["vae", 2]}),
        "again": ("VAEDecode", {"samples": ["changed", 0], "vae": ["nothing", 0]}),
        "changed": ("LatentUpscale", {"samples": ["sampler", 0]}),
        "apart": ("VAEDecode", {"samples": ["elsewhere", 0], "vae": ["nothing", 0]}),
        "encode": ("VAEEncode", {"samples": ["sampler", 0], "vae": ["nothing", 0]}),
        **({"vae": vae} if vae else {}),
    }  # fmt: skip
    made, info = graph(**nodes), Infotext()
    _tell_decoding(info, made, made.nodes["sampler"], "base")
    assert info.left == left


def test_nodes_that_hand_on_lead_to_their_source() -> None:
    made = graph(
        a=("Reroute", {"": ["b", 0]}), b=("Reroute (rgthree)", {"x": ["c", 0]}), c=("Real", {"y": ["a", 0]}),
        two=("Reroute", {"": ["c", 0], "more": 1}), d=("Reroute", {"": ["e", 0]}), e=("Reroute", {"": ["d", 0]}),
        f=("Reroute", {"": ["none", 0]}), g=("Reroute", {"": "text"}), h=("Reroute", {"": ["d", 0]}),
    )  # fmt: skip
    nodes = made.nodes
    for _ in range(2):  # what was found is remembered
        for name, end in {"a": "c", "b": "c", "c": "c", "two": "two", "d": None, "e": None, "f": None, "g": None,
                          "h": None}.items():  # fmt: skip
            found = made._end(nodes[name])
            assert found is (nodes[end] if end else None), name
    assert made._end(None) is None


def test_nodes_that_one_comes_to() -> None:
    nodes: list[Any] = [{"n": number} for number in range(6)]
    beside = {0: [1, 2], 1: [0], 2: [3], 3: [], 4: [5], 5: [4]}
    for starts, ends in (([0], {0, 1, 2, 3}), ([3], {3}), ([4, 2], {2, 3, 4, 5}), ([], set())):
        found = _reached([nodes[number] for number in starts], lambda node: [nodes[each] for each in beside[node["n"]]])
        assert found == {id(nodes[number]) for number in ends}


@pytest.mark.parametrize(
    ("link", "found"), [(["3", 0], True), ([3, 0], True), (["4", 0], False), ([], False), ("3", False)], ids=str
)
def test_a_link_is_a_list_that_begins_with_a_nodes_name(link: Any, found: bool) -> None:
    """As text, which ComfyUI writes, or as a number, which other programs write."""
    made = graph(**{"3": ("EmptyLatentImage", {"width": 64})})
    assert made._at(link) is (made.nodes["3"] if found else None)
