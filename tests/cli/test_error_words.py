"""How commands end: errors in words and as JSON, streams that take no more, and help in sections."""

from __future__ import annotations

import errno
import importlib
import io
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from sdort import console
from sdort.benchmark import conclusion, regression, row_table
from sdort.benchmark.measure import Measurement
from sdort.cli import bench, streams
from sdort.cli import cli as sdort_cli
from sdort.cli.number_types import NumberList, Real, SizeList, Whole, _convert
from sdort.cli.sections import SectionedCommand
from sdort.errors import BadModelError, OutputError, SdortError, UsageError

reporting: Any = importlib.import_module("sdort.cli.reporting")  # the package has its function by this name

# Errors


@pytest.mark.parametrize("signalled", [None, 15])
@pytest.mark.parametrize("error", [BadModelError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("verbose", [False, True])
def test_a_traceback_is_shown_under_verbose_but_of_no_interrupt(
    verbose: bool, error: BaseException, signalled: int | None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    told: list[str] = []
    monkeypatch.setattr(reporting, "received", lambda: signalled)
    monkeypatch.setattr(console, "verbosity", lambda: console.VERBOSE if verbose else console.NORMAL)
    monkeypatch.setattr(console, "print_error", told.append)
    reporting._print_message(error, "in words")
    assert told == ["in words"]
    interrupted = signalled is not None or isinstance(error, KeyboardInterrupt)
    printed = capsys.readouterr()
    assert ("BadModelError: broken" in printed.err) is (verbose and not interrupted)
    assert printed.out == ""

    def gone(message: str) -> None:
        raise OSError(errno.EIO, "the terminal has gone")

    monkeypatch.setattr(console, "print_error", gone)
    with nullcontext() if interrupted else pytest.raises(OSError, match="has gone"):
        reporting._print_message(error, "in words")


def test_an_error_as_json_has_its_place_and_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[dict[str, Any]] = []
    monkeypatch.setattr(console, "emit_json", emitted.append)
    error = BadModelError("broken", component="unet", node="conv", hint="Mend it.")
    error.record = {"rows": [1], "schema": "another", "exit_code": 9}
    reporting._print_json(error, "broken\n  Mend it.", 3)
    assert emitted.pop() == {
        "schema": "sdort-error-1", "error": "broken", "type": "BadModelError", "exit_code": 9, "component": "unet",
        "node": "conv", "hint": "Mend it.", "rows": [1],
    }  # fmt: skip
    reporting._print_json(ValueError("odd"), "this is a bug", 1)
    assert emitted == [{
        "schema": "sdort-error-1", "error": "this is a bug", "type": "ValueError", "exit_code": 1, "component": None,
        "node": None, "hint": None,
    }]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        (UsageError("wrong", hint="Do it."), "wrong\n  Do it.", 2), (KeyboardInterrupt(), "interrupted", 130),
        (MemoryError(), "not enough memory", 1), (OSError(errno.ENOSPC, "No space"), "No space", 7),
        (OSError(errno.EDQUOT, "Quota", "a/b"), "a/b: Quota", 7), (OSError(errno.EROFS, "Read-only"), "Read-only", 7),
        (OSError(errno.EIO, "Input/output"), "Input/output", 7), (OSError(errno.EACCES, "Denied", "c"), "c: Denied", 1),
        (OSError("odd"), "this is a bug in sdort, please report it: OSError: odd", 1),
        (ValueError(), "this is a bug in sdort, please report it: ValueError\n", 1),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else "",
)  # fmt: skip
def test_each_error_has_its_words_and_its_code(
    error: BaseException, words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "received", lambda: None)
    message, found = reporting._describe(error)
    assert (message.startswith(words), found) == (True, code)
    monkeypatch.setattr(reporting, "received", lambda: 15)
    message, found = reporting._describe(error)
    assert (message, found) == (reporting.SIGNAL_WORDS[15], 143)


# Streams


@pytest.mark.parametrize(
    ("encoding", "errors", "written", "kept"),
    [
        ("utf-8", "strict", "grün", "grün".encode()), ("ascii", "strict", "grün", b"gr\\xfcn"),
        ("ascii", "replace", "grün", b"gr?n"), ("latin-1", "strict", "grün \u2192", b"gr\xfcn \\u2192"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("through", [False, True])
def test_a_stream_stays_as_it_was_but_escapes_what_its_encoding_lacks(
    encoding: str, errors: str, written: str, kept: bytes, lines: bool, through: bool
) -> None:
    raw = io.BytesIO()
    own = io.TextIOWrapper(raw, encoding, errors, line_buffering=lines, write_through=through)
    made = streams._reopened(own, 1, streams._Results)
    assert type(made) is streams._Results
    assert (made.encoding, made.line_buffering, made.write_through) == (encoding, lines, through)
    made.write(written)
    made.flush()
    assert raw.getvalue() == kept
    made.detach()


def test_a_descriptor_that_was_closed_is_a_stream_too() -> None:
    reader, writer = os.pipe()
    made = streams._reopened(None, writer, streams._Messages)
    made.write("grün \udc80")
    made.flush()
    assert os.read(reader, 99) == "grün \\udc80".encode()
    made.close()
    os.close(writer)  # still open: it is not the stream's
    os.close(reader)


class Full(io.RawIOBase):
    """A file of a full disk, or a pipe that nobody reads."""

    def __init__(self, code: int) -> None:
        self.code = code

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(self.code, os.strerror(self.code)) if self.code else OSError("odd")


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EPIPE, ""), (errno.ENOSPC, "No space left on device"), (errno.EIO, "Input/output error")]
)
@pytest.mark.parametrize("through", [False, True])
def test_results_that_cannot_be_written_end_the_command_and_messages_do_not(
    code: int, words: str, through: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    led: list[int] = []
    monkeypatch.setattr(streams, "_lead_nowhere", led.append)
    full: Any = Full(code)
    results = streams._Results(full, "utf-8", write_through=through)
    if not through:
        results.write("a")
    with pytest.raises(click.exceptions.Exit if code == errno.EPIPE else OutputError) as caught:
        results.write("a") if through else results.flush()
    assert led == [1]
    if code == errno.EPIPE:
        assert getattr(caught.value, "exit_code", None) == 141
    else:
        assert str(caught.value).startswith(f"cannot write the result to stdout: {words}\n")
    messages = streams._Messages(full, "utf-8", write_through=through)
    assert messages.write("abc") == 3
    messages.flush()
    assert led[1:]
    assert set(led[1:]) == {2}
    full.write = len  # so that nothing is lost when they are closed


# Help in sections


def test_help_lists_options_under_their_headings_in_order_and_the_rest_last() -> None:
    @click.command(
        cls=SectionedCommand,
        sections={"First": ("b_option", "a_option", "none"), "Empty": ("none", "hidden"), "Second": ("c_option",)},
        common=("b_option", "a_option"),
        details="Limits of b",
    )
    @click.argument("path")
    @click.option(
        "--a-option",
        type=Whole(_range(int, 3, 6)),
        default=4,
        show_default=True,
        help="of a, ... and more. Details of a.",
    )
    @click.option("--rest", help="of the rest")
    @click.option("--b-option", help="of b")
    @click.option("--c-option", help="of c")
    @click.option("--hidden", hidden=True)
    def command(**_: Any) -> None: ...

    shown = CliRunner().invoke(command, ["--help-all"]).output
    places = [shown.index(word) for word in (
        "First:", "of b", "of a", "Details of a", "3<=x<=6", "Second:", "of c", "Options:", "of the rest", "--help",
        "Limits of b",
    )]  # fmt: skip
    assert places == sorted(places)
    assert not any(word in shown.partition("First:")[2] for word in ("Empty", "hidden", "path"))

    shown = CliRunner().invoke(command, ["--help"]).output
    words = ("Common options:", "of b", "--a-option", "of a, ... and more.", "default: 4", "--help-all", "Show this")
    places = [shown.index(word) for word in words]
    assert places == sorted(places)
    assert not any(word in shown for word in ("First", "of c", "Details", "<=", "the rest", "Limits", "hidden"))
    assert shown.endswith("2 more options, also for second: command --help-all\n")


# Numbers


@pytest.mark.parametrize("value", [3, "3", 7, "7"])
def test_a_number_is_held_to_its_range_as_text_and_as_a_number(value: Any) -> None:
    whole = Whole(_range(int, 3, 6))
    if int(value) == 3:
        assert whole.convert(value, None, None) == 3
    else:
        with pytest.raises(click.BadParameter):
            whole.convert(value, None, None)


def _range(kind: type, low: Any, high: Any) -> Any:
    problems = {True: "", False: f"not {low} to {high}"}
    return SimpleNamespace(
        low=low, high=high, parse=kind, check=lambda number: number,
        problem=lambda number: problems[low <= number <= high],
    )  # fmt: skip


def test_a_value_that_was_parsed_is_not_parsed_again() -> None:
    parsed: Any = []
    limits = _range(float, 0.0, 1.0)
    limits.parse = lambda text: parsed.append(text) or float(text)
    limits.check = lambda number: number * 2
    assert _convert(Real(limits), limits, "0.25", None, None) == 0.5
    assert _convert(Real(limits), limits, 0.5, None, None) == 1.0
    assert parsed == ["0.25"]
    assert NumberList().convert("2,1,2", None, None) == (2, 1)
    assert SizeList().convert("64x96,32x48,64x96", None, None) == ((96, 64), (48, 32))


# Benchmarks


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    for name in ("show", "show_text"):
        monkeypatch.setattr(console, name, lambda *given, name=name: seen.append((name, *given)))
    monkeypatch.setattr(console, "conclude", lambda *given: seen.append(("conclude", *given)))
    monkeypatch.setattr(row_table, "as_table", lambda rows: f"table of {len(rows)}")
    monkeypatch.setattr(row_table, "legend", lambda rows: "legend")
    monkeypatch.setattr(row_table, "caption", lambda rows: "")
    monkeypatch.setattr(regression, "comparison_table", lambda rows: "comparison")
    monkeypatch.setattr(conclusion, "conclusion", lambda rows: "verdict")
    monkeypatch.setattr(regression, "comparison_conclusion", lambda rows: "compared")
    monkeypatch.setattr(bench, "show_placement", lambda placements, lines: seen.append(("placed", placements, lines)))
    return seen


def rows(*compared: bool, placed: Sequence[Any] = ()) -> Any:
    made = [SimpleNamespace(compared=each, placement=None) for each in compared]
    for row, placement in zip(made, placed, strict=False):
        row.placement = placement
    return made


@pytest.mark.parametrize("compared", [(False, False), (True, False), (False, True)])
def test_a_benchmark_is_compared_if_one_of_its_rows_is(compared: tuple[bool, ...], shown: list[Any]) -> None:
    result = Measurement(rows(*compared, placed=["p", None]))
    bench._show(result)
    comparison = [("show", "comparison")] if any(compared) else []
    assert shown == [("show", "table of 2"), ("show", "\nlegend"), *comparison, ("placed", ["p"], [])]
    del shown[:]
    bench._conclude(result, "next")
    assert shown == [("conclude", "verdict\ncompared" if any(compared) else "verdict", "next")]


@pytest.mark.parametrize("form", ["table", "csv", "json", "markdown"])
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("fails", [None, "before", "after"])
def test_a_result_is_printed_once_in_the_form_that_is_asked_for(
    form: str, as_json: bool, output: bool, fails: str | None, shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --json an error holds the rows, so that stdout is one object; a file leaves the terminal to the tables."""
    import sdort.benchmark.command

    errors: list[SdortError] = []
    result = Measurement(rows(False))

    def run(*_: Any, on_measured: Callable[[Any], None], **given: Any) -> Any:
        if fails == "before":
            raise UsageError("early")
        on_measured(result)
        if fails == "after":
            errors.append(OutputError("late"))
            raise errors[0]
        return result

    monkeypatch.setattr(sdort.benchmark.command, "bench", run)
    monkeypatch.setattr(sdort.benchmark.command, "as_text", lambda result, form: f"text as {form}\n")
    monkeypatch.setattr(console, "to_json", lambda result: {"rows": len(getattr(result, "rows", ()))})
    monkeypatch.setattr(console, "emit_json", lambda record: None)
    for kind in ("refuse_failed", "refuse_slower", "refuse_unjudged"):
        monkeypatch.setattr(f"sdort.benchmark.measure.{kind}", lambda rows: None)
    words = ["bench", "model", "--format", form]
    words += ["--json"] * as_json + (["-o", "out.txt"] if output else [])
    code = CliRunner().invoke(sdort_cli, words).exit_code
    assert code == {None: 0, "before": 2, "after": 7}[fails]
    form = "json" if as_json else form
    tables = form == "table" or (output and not as_json)
    table = [("show", "table of 1"), ("show", "\nlegend")]
    text = [("show_text", f"text as {form}\n")]
    if fails == "before":
        assert shown == []
    elif tables:
        assert shown == table + ([] if fails else [("conclude", "verdict", None)])
    elif as_json:
        assert shown == (text if not output and not fails else [])
    else:
        assert shown == text
    if errors:
        assert errors[0].record == ({"rows": 1} if as_json and not output else {})


def test_the_command_to_compare_with_writes_no_files() -> None:
    arguments = ("a b", "--save", "x", "--provider", "cpu", "-o", "y", "--report=z", "--overwrite", "--plots", "p",
                 "--output=q", "--compare", "old", "--size", "64x96")  # fmt: skip
    assert bench._compare_command(arguments, Path("s t")) == (
        "sdort bench 'a b' --provider cpu --size 64x96 --compare 's t'"
    )


def test_engines_are_told_apart_and_kept_in_their_order() -> None:
    kind = bench.Engines()
    assert kind.convert("torch,onnxruntime,torch", None, None) == ("torch", "onnxruntime")
    assert kind.convert(("torch",), None, None) == ("torch",)
    with pytest.raises(click.BadParameter, match="'jax' is not one of onnxruntime, torch, torch-compile"):
        kind.convert("torch,jax", None, None)
