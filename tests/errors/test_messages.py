"""Errors as sentences: codes, places, hints, nearest names, and texts of which a part is left out."""

from __future__ import annotations

import signal

import pytest

from sdort import errors
from sdort.errors import MOST_CHARACTERS, SIGNAL_WORDS, SdortError, did_you_mean, nearest_name
from sdort.errors.plain_text import cut, encodable, library_reason, one_line, printable, some, without_unsafe_advice
from sdort.tables import count_text, counted, share_text, size_text

CODES = {
    "SdortError": 1,
    "UsageError": 2,
    "BadModelError": 3,
    "MissedFusionError": 4,
    "ParityError": 5,
    "ProviderError": 6,
    "MemoryShortageError": 6,
    "MissingPackageError": 9,
    "OutputError": 7,
    "RegressionError": 8,
    "CancelledError": 130,
}


def test_each_error_has_its_exit_code() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert {name: kind.exit_code for name, kind in kinds.items() if issubclass(kind, SdortError)} == CODES
    assert issubclass(errors.MemoryShortageError, errors.ProviderError)
    assert {int(number): word for number, word in SIGNAL_WORDS.items()} == {
        int(signal.SIGINT): "interrupted",
        int(signal.SIGTERM): "terminated",
        int(signal.SIGHUP): "the terminal has gone",
    }


@pytest.mark.parametrize(
    ("component", "node", "hint", "text"),
    [
        (None, None, None, "it broke"),
        ("unet", None, None, "component 'unet': it broke"),
        (None, "Mul_1", None, "node 'Mul_1': it broke"),
        ("unet", "Mul_1", None, "component 'unet', node 'Mul_1': it broke"),
        (None, None, "Do that.", "it broke\n  Do that."),
        ("unet", None, "Do that.", "component 'unet': it broke\n  Do that."),
    ],
)
def test_a_sentence_has_its_place_and_its_hint(
    component: str | None, node: str | None, hint: str | None, text: str
) -> None:
    error = SdortError("it broke", component=component, node=node, hint=hint)
    assert (str(error), error.args) == (text, ("it broke",))
    assert (error.message, error.component, error.node, error.hint, error.record) == (
        "it broke", component, node, hint, {},
    )  # fmt: skip
    assert error.record is not SdortError("another").record


def test_the_middle_of_a_long_text_is_left_out() -> None:
    half = MOST_CHARACTERS // 2
    for extra in (-1, 0):
        assert SdortError("m" * (MOST_CHARACTERS + extra)).message == "m" * (MOST_CHARACTERS + extra)
    text = "a" * half + "b" * 1234 + "c" * half
    expected = f"{'a' * half} [1,234 characters left out] {'c' * half}"
    error = SdortError(text, node=text)
    assert (error.message, error.node) == (expected, expected)
    assert "\x1b" not in str(SdortError("\x1b[2J", hint="\x1b", node="\x1b"))


def test_the_nearest_name_is_one_that_is_like_it() -> None:
    known = ("unet", "vae_decoder", "text_encoder", "text_encoder_2")
    assert nearest_name("unett", known) == "unet"
    assert nearest_name("text_encoder_", iter(known)) in known
    assert nearest_name("scheduler", known) is None
    assert nearest_name("unet", ()) is None
    # Two thirds of the letters are equal: 2 * 4 / 12.
    assert nearest_name("unetabcd", ["unet"], 0.6) == "unet"
    assert nearest_name("unetabcd", ["unet"], 0.7) is None
    assert nearest_name("unet" * 1_000_000, known) is None
    assert did_you_mean("unett", known) == "Did you mean 'unet'? "
    assert did_you_mean("scheduler", known) == ""


@pytest.mark.parametrize(("length", "most", "result"), [(60, 60, 60), (61, 60, 60), (5, 60, 5), (9, 8, 8)])
def test_the_beginning_of_a_text(length: int, most: int, result: int) -> None:
    text = "x" * length
    assert cut(text, most) == (text if length <= most else "x" * (most - 3) + "...")
    assert len(cut(text, most)) == result
    assert cut("x" * 61) == "x" * 57 + "..."


def test_some_of_many_names() -> None:
    assert some(["b", "a"]) == "a, b"
    assert some("edcba") == "a, b, c, d, e"
    assert some("fedcba") == "a, b, c, d, e, ..."
    assert some(["b\n", "a", "c"], 2) == "a, b\\n, ..."
    assert some(["x" * 101]) == "x" * 97 + "..."


UNSEEN = (
    0x00, 0x08, 0x0B, 0x0D, 0x1B, 0x1F, 0x7F, 0x80, 0x9F, 0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B,
    0x180F, 0x200B, 0x200F, 0x2028, 0x2029, 0x202A, 0x202E, 0x2060, 0x206F, 0x3164, 0xD800, 0xDFFF, 0xFEFF, 0xFFA0,
    0xFFF0, 0xFFFB, 0x1BCA0, 0x1BCA3, 0x1D173, 0x1D17A, 0xE0000, 0xE0001, 0xE0FFF,
)  # fmt: skip
SEEN = (0x09, 0x0A, 0x20, 0x7E, 0xA0, 0xAC, 0xAE, 0xE9, 0x3A9, 0x4E2D, 0x200A, 0x2010, 0x2030, 0xFFFD, 0x1F600)


def test_what_nobody_sees_is_written_out() -> None:
    for code in UNSEEN:
        text = f"a{chr(code)}b"
        assert chr(code) not in printable(text), hex(code)
        assert printable(text) == f"a{chr(code).encode('unicode_escape', 'surrogatepass').decode()}b"
        assert one_line(text) == printable(text)
    for code in SEEN:
        assert printable(f"a{chr(code)}b") == f"a{chr(code)}b", hex(code)
    assert one_line("a\n\tb") == "a\\n\\tb"
    assert encodable("a\ud800\x1b\u202eé") == "a\\ud800\x1b\u202eé"


ADVICE = (
    "Use `weights_only=False`.", "Call it with weights_only=False.", "It was set to weights_only set to `False`.",
    "Weights only load failed.", "Use torch.serialization.safe_globals.", "Give allow_pickle=True.",
    "Set trust_remote_code=True.", "Pass use_safetensors=False.", "Or safe_serialization = False.",
    "It may run Arbitrary Code.", "The file can still be loaded.", "Only if you trust the source.",
    "Only if you trust this repo.", "It is of a trusted source.", "See the documentation of torch.load.",
)  # fmt: skip


@pytest.mark.parametrize("advice", ADVICE)
def test_advice_to_run_code_is_left_out(advice: str) -> None:
    assert without_unsafe_advice(f"It is broken. {advice} Look at it.\n\nMore.") == "It is broken. Look at it.\n\nMore."
    assert library_reason(ValueError(f"It is broken. {advice}")) == "It is broken."
    assert library_reason(ValueError(advice)) == "no reason given"


def test_the_reason_of_a_library_is_its_first_line() -> None:
    for tool in ("pip", "pip3", "conda", "apt", "apt-get", "brew"):
        assert library_reason(ValueError(f"It needs x. Run {tool} install x.")) == "It needs x."
    assert library_reason(ValueError("\x1b[31mIt is red\x1b[0m\nand more")) == "It is red"
    assert library_reason(ValueError("  one \n two")) == "one"
    assert library_reason(ValueError("\x1b]8")) == "\\x1b]8"
    assert library_reason(ValueError()) == "no reason given"


@pytest.mark.parametrize(
    ("number", "size", "count"),
    [
        (0, "0 B", "0"),
        (999, "999 B", "999"),
        (1000, "1.0 kB", "1.0 k"),
        (999_949, "999.9 kB", "999.9 k"),
        (1_000_000, "1.0 MB", "1.0 M"),
        (859_520_964, "859.5 MB", "859.5 M"),
        (3_438_083_856, "3.4 GB", "3.4 G"),
        (5_000_000_000_000, "5000.0 GB", "5000.0 G"),
    ],
)
def test_sizes_and_counts_have_units(number: int, size: str, count: str) -> None:
    assert (size_text(number), count_text(number)) == (size, count)


def test_counts_and_shares_in_words() -> None:
    assert [counted(number, "step") for number in (0, 1, 2, 1234)] == ["0 steps", "1 step", "2 steps", "1,234 steps"]
    assert [share_text(share) for share in (1.0, 0.5, 0.001, 0.00099, 0.0)] == [
        "100.0%",
        "50.0%",
        "0.1%",
        "<0.1%",
        "<0.1%",
    ]
