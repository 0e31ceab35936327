"""Text of strangers as plain text."""

from __future__ import annotations

import pickle
import sys
import unicodedata

import pytest

from sdort.errors.plain_text import encodable, library_reason, one_line, printable, some, without_unsafe_advice

SEEN = "ARABIC|SYRIAC|KAITHI|EGYPTIAN"
"""Beginnings of the names of Unicode's format characters that are seen: signs below or around digits and letters."""


def test_every_character_that_is_obeyed_or_unseen_is_written_out() -> None:
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in "\n\t":
            continue
        is_seen = unicodedata.name(character, "").split(" ")[0] in SEEN.split("|")
        is_seen = is_seen and not unicodedata.name(character).endswith("LETTER MARK")
        assert printable(f"a{character}b").isprintable() != is_seen, hex(number)


@pytest.mark.parametrize("text", ["plain", "Zürich 東京 ✨ 🦊", "a\nb\tc", "العربية", "\\x1b", ""])
def test_other_text_stays(text: str) -> None:
    assert printable(text) == encodable(text) == without_unsafe_advice(text) == text


def test_how_it_is_written() -> None:
    assert printable("a\x1b]0;b\x07\x9b\u202e\udcff\U000e0041") == "a\\x1b]0;b\\x07\\x9b\\u202e\\udcff\\U000e0041"
    assert printable(printable("\x1b")) == "\\x1b"
    assert one_line("unet\nError: no\t\r") == "unet\\nError: no\\t\\r"
    assert encodable("\udcff\x1b") == "\\udcff\x1b"


TORCH = (
    "Weights only load failed. In PyTorch 2.6, we changed the default value of the `weights_only` argument in "
    "`torch.load` from `False` to `True`. Re-running `torch.load` with `weights_only` set to `False` will likely "
    "succeed, but it can result in arbitrary code execution. Do it only if you got the file from a trusted source.\n"
    "Please file an issue with the following so that we can make `weights_only=True` compatible with your use case: "
    "WeightsUnpickler error: \n\nTrying to load unsupported GLOBAL posix.system whose module posix is blocked.\n\n"
    "Check the documentation of torch.load to learn more about types accepted by default with weights_only "
    "https://pytorch.org/docs/stable/generated/torch.load.html."
)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (TORCH, "Trying to load unsupported GLOBAL posix.system whose module posix is blocked."),
        ("The repository a/b contains custom code. Please pass the argument `trust_remote_code=True`.",
         "The repository a/b contains custom code."),
        ("Object arrays cannot be loaded when allow_pickle=False", "no reason given"),
        ("It needs `scipy`. You can install it with pip install scipy. It is small.", "It needs `scipy`. It is small."),
        ("Failed. \x1b[96mThis is step 2/3\x1b[0m of it", "Failed. This is step 2/3 of it"),
        ("\x1b[2J no such file\nsecond line", "\\x1b[2J no such file"),
        ("", "no reason given"),
    ],
)  # fmt: skip
def test_a_librarys_advice_is_not_repeated(said: str, reason: str) -> None:
    assert library_reason(pickle.UnpicklingError(said)) == reason


def test_a_librarys_warning_loses_its_advice_only() -> None:
    warned = without_unsafe_advice("a.py:1: FutureWarning: It is old.\n" + TORCH)
    assert warned.startswith("a.py:1: FutureWarning: It is old.\n\nTrying to load")
    assert "False" not in warned
    assert without_unsafe_advice("python -m pip install 'sdort[export]'") == "python -m pip install 'sdort[export]'"


def test_a_few_names_of_a_stranger_stay_on_their_line() -> None:
    assert some(["b\n\x1b[31m", "a"]) == "a, b\\n\\x1b[31m"
    assert some(map(str, range(9))) == "0, 1, 2, 3, 4, ..."
    assert some(["x" * 1000]) == "x" * 97 + "..."
