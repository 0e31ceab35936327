"""Tables and messages fit the terminal, and cut nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sdort import console
from sdort.tables import Table

TEXT = "the softmax is not over the last axis, it is over axis 1"


def printed(table: Table, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(table, markup=False, soft_wrap=True)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def sample() -> Table:
    table = Table("Misses", ("component", ">nodes", "why", ">seconds"), details=("seconds",))
    table.add_row("text_encoder", "12,345", TEXT, "1.5")
    table.add_row("unet", "7", "short", "2.5")
    return table


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_every_word_is_there_at_every_width(width: int) -> None:
    lines = printed(sample(), width)
    assert all(len(line) <= width for line in lines), lines
    words = " ".join(lines).split()
    assert [word for word in ("text_encoder", "12,345", *TEXT.split(), "unet", "7", "short") if word not in words] == []


def test_a_wide_table_is_one_line_a_row() -> None:
    assert printed(sample(), 120) == [
        "",
        "Misses",
        "component      nodes  why",
        "─" * (22 + len(TEXT)),
        f"text_encoder  12,345  {TEXT}",
        "unet               7  short",
    ]


def test_text_wraps_within_its_column() -> None:
    lines = printed(sample(), 60)
    at = lines[2].index("why")
    assert len(lines) == 7
    assert lines[5][:at].strip() == ""
    assert f"{lines[4][at:]} {lines[5][at:]}" == TEXT


def test_rows_become_blocks_where_words_do_not_fit() -> None:
    table = Table("Shapes", ("component", "", "name", "shape"))
    table.add_row("unet", "in", "encoder_hidden_states", "[batch, sequence, 128]")
    assert printed(table, 36) == [
        "",
        "Shapes",
        "unet  in",
        "  name   encoder_hidden_states",
        "  shape  [batch, sequence, 128]",
    ]


def test_a_path_stays_whole_where_it_is_wider_than_the_terminal() -> None:
    table = Table("", ("component", "file"))
    table.add_row("unet", "/a/long/path/to/model.onnx")
    assert printed(table, 16)[-1].split()[-1] == "/a/long/path/to/model.onnx"


def test_details_are_shown_when_asked_for() -> None:
    console.set_verbosity(console.VERBOSE)
    assert printed(sample(), 120)[2].split() == ["component", "nodes", "why", "seconds"]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns of 'T'"):
        Table("T", ("a", "b")).add_row("x")


def test_messages_wrap_at_words_and_leave_commands_whole() -> None:
    command = "    pip install onnxruntime-rocm --index-url https://example.org/a/b"
    message = f"the provider is missing, and here is a long sentence\n  that is indented and goes on a while\n{command}"
    lines = console.wrap(message, 30).split("\n")
    assert lines[-1] == command
    assert all(len(line) <= 30 for line in lines[:-1])
    assert [line.startswith("  ") for line in lines] == [False, False, True, True, True]
    assert " ".join(" ".join(lines[:-1]).split()) == " ".join(message.removesuffix(command).split())


def test_the_conclusion_ends_with_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    console.set_verbosity(console.NORMAL)
    console.conclude("3 comparisons within limits", "sdort run fast")
    out = capsys.readouterr()
    assert (out.out, out.err) == ("3 comparisons within limits\n", "Next:\n    sdort run fast\n")


def test_blank_lines_separate_results_and_begin_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Title", ("name",))
    table.add_row("x")
    rows = ["Title", "name", "────", "x"]
    console.set_verbosity(console.NORMAL)
    console.show(table)
    console.show(table)
    console.conclude("1 table")
    assert capsys.readouterr().out.splitlines() == [*rows, "", *rows, "", "1 table"]
    console.set_verbosity(console.NORMAL)
    console.say("a message on stderr")
    console.show("\ntext")
    assert capsys.readouterr().out == "text\n"


@pytest.mark.parametrize(("columns", "lines"), [("", 3), ("30", 4)])
def test_a_pipe_gets_a_line_a_row_unless_columns_is_set(
    columns: str, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = Table("", ("name", "value"))
    table.add_row("x", "word " * 10)  # 24 columns are left for its second cell: 5 words
    console.show(table)
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_a_no_break_space_holds_words_together_and_is_printed_as_a_space() -> None:
    table = Table("", ("what",))
    table.add_row("2\xa0Attention, 14\xa0MultiHeadAttention")
    assert printed(table, 24)[2:] == ["2 Attention,", "14 MultiHeadAttention"]


def test_a_block_names_each_column_once() -> None:
    """On its first line; what is wrapped stands below, without the name."""
    table = Table("", ("name", "what", ">count"))
    words = "several words that take some lines of a narrow terminal"
    table.add_row("a/very/long/name/without/a/space/in/it", words, "7")
    lines = [line for line in printed(table, 30) if line.startswith("  ")]
    indent = len("  count  ")
    assert [line[:indent].strip() for line in lines] == ["what", *[""] * (len(lines) - 2), "count"]
    assert " ".join(line[indent:].strip() for line in lines[:-1]) == words
    assert len(lines) > 3
