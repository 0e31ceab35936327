"""The writer of HTML pages that ``sdort verify`` and ``sdort bench`` share."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from support.browser import views

from sdort.verification.report.html import DARK, LIGHT, Cell, Drawing, Share, date_text, environment, section
from sdort.verification.report.shares import percent

if TYPE_CHECKING:
    from playwright.sync_api import Browser


parts: Any = environment().get_template("parts.html").module


def page(title: str, body: str, **values: object) -> str:
    """A whole page with a body, which is the text of a template."""
    text = f"{{% extends 'page.html' %}}{{% block body %}}{body}{{% endblock %}}"
    return environment().from_string(text).render(title=title, light=LIGHT, dark=DARK, **values)


def test_a_table_marks_verdicts_words_and_bad_rows() -> None:
    rows = [("a <b>", "1.5e-03", "ok"), ("FAILED: c", "2", "ok")]
    table = parts.table(section("T & U", ("what", "error", ""), rows, left=("what",), wide=("what",), verdicts=("ok",)))
    assert table.startswith("<h2>T &amp; U</h2><div class='scroll' tabindex='0'><table>")
    assert "<th class='words wrap'>what</th><th>error</th>" in table
    first, second = table.split("<tr")[2:]
    assert first.startswith("><td class='words wrap'>a &lt;b&gt;</td><td><span class='whole'>1.5e-03</span></td>")
    assert "<span class='verdict ok'>ok</span>" in first
    assert second.startswith(" class=bad>")
    assert parts.table(section("T", ("what",), [], left=())) == ""
    assert "class=bad" in parts.table(section("T", ("what",), [("slower",)], left=(), bad=("slower",)))


def test_figures_have_their_pixels_or_an_empty_frame() -> None:
    small, large = np.zeros((8, 8, 3), np.uint8), np.zeros((256, 8, 3), np.uint8)
    assert "<img class='small' alt='&lt;it&gt;' src='data:image/png;base64," in parts.figure(small, "<it>")
    assert "<img alt='it' src='data:image/png;base64," in parts.figure(large, "it")
    assert "<div class='none'>none</div><figcaption>difference</figcaption>" in parts.difference(small, large, 8)
    assert "<figcaption>difference: times 8, at most 0 of 255</figcaption>" in parts.difference(small, small, 8)


def test_what_people_write_can_be_read_and_turns_nothing_around() -> None:
    said = "a&lt;\\x1b[31m\\x00\\x9f\\u202e\ttab\nline"
    assert parts.paragraph("a<\x1b[31m\x00\x9f\u202e\ttab\nline") == f"<p>{said}</p>"
    row = section("", ("a",), [("a<\x1b[31m\x00\x9f\u202e\ttab\nline",)], left=())
    assert f"<td>{said}</td>" in parts.table(row)
    assert "<bdi>\\u202e&lt;b&gt;</bdi>" in parts.generated("\u202e<b>", 1, "ok", "ok", caller=str)
    assert "<dt>b</dt>" not in parts.facts({"a": 0, "b": ""})
    assert date_text("2026-01-02T03:04:05+00:00") == "2026-01-02 03:04 UTC"
    assert date_text("") == ""


def test_a_column_without_a_cell_vanishes() -> None:
    table = parts.table(section("", ("a", "b", "c"), [("1", "", "x"), ("", "", "y")], left=("c",)))
    assert "<th>a</th><th class='words'>c</th>" in table
    assert table.count("<td") == 4


def test_a_page_escapes_its_title_and_leaves_out_what_is_empty() -> None:
    drawings = (Drawing(b"light", b"dark"), Drawing(b"", b"night"))
    text = page("<t>", "{{ parts.facts(facts) }}{{ parts.plot('<d>', *plot) }}", facts={"<n>": "<v>"}, plot=drawings)
    assert "<title>&lt;t&gt;</title>" in text
    assert "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; " in text
    assert "<body><h1>&lt;t&gt;</h1>\n<dl><dt>&lt;n&gt;</dt><dd>&lt;v&gt;</dd></dl><picture>" in text
    # The first one that fits is shown: what asks for more stands before what asks for less.
    narrow, dark = "(max-width: 640px)", "(prefers-color-scheme: dark)"
    assert re.findall("<source media='(.*?)'", text) == [f"{narrow} and {dark}", narrow, dark]
    phone = "<source media='(max-width: 640px) and (prefers-color-scheme: dark)'"
    assert f"{phone} srcset='data:image/svg+xml;base64,bmlnaHQ='>" in text
    assert "srcset='data:image/svg+xml;base64,ZGFyaw=='" in text
    assert "<img alt='&lt;d&gt;' src='data:image/svg+xml;base64,bGlnaHQ='>" in text


def test_a_share_within_its_limit_never_says_more_than_all_of_it() -> None:
    shares = (0, 0.001, 0.01, 0.97, 0.999, 1.0, 1.0001, 3.4, 10.1, 1234.5, 2e6, math.inf)
    said = (
        "0 %",
        "< 1 %",
        "1 %",
        "97 %",
        "99 %",
        "100 %",
        "101 %",
        "340 %",
        "11 times",
        "1235 times",
        "2.0e+06 times",
        "no number",
    )
    assert tuple(map(percent, shares)) == said


def test_any_page_can_be_read_on_a_phone_and_in_the_dark(browser: Browser, tmp_path: Path) -> None:
    """Long words, wide tables and every kind of part: no overflow, no faint text, the answer first."""
    word, picture = "word" * 40, np.zeros((8, 8, 3), np.uint8)
    cells: list[tuple[Cell, ...]] = [
        ("a prompt of some words", "ok", Share(0.5), *["12345.678"] * 12),
        (word, "failed", Share(3.4), *[""] * 12),
    ]
    heads = ("prompt", "verdict", "share", *(f"number {number}" for number in range(12)))
    table = section("Wide", heads, cells, left=heads[:3], wide=heads[:1], verdicts=("ok", "failed"))
    body = """
        {{ parts.answer(False, ["Not so: " ~ word]) }}
        {{ parts.facts({"machine": word}) }}
        <h2>Images</h2>
        {% call parts.generated(word, 1, "ok", word) %}
        {{ parts.figure(picture, "one") }}{{ parts.figure(picture, word) }}{{ parts.difference(picture, picture, 8) }}
        {% endcall %}
        {{ parts.table(table) }}
        {{ parts.command("Next:", "sdort " ~ word) }}
        {{ parts.paragraph(word) }}
        {% call parts.collapsed("More") %}{{ parts.paragraph(word) }}{% endcall %}"""
    file = tmp_path / "page.html"
    file.write_text(page(f"A page of {word}", body, word=word, picture=picture, table=table))
    for seen in views(browser, file, [".share i", ".share.over i", ".row figure"]):
        assert seen.problems == []
        assert "✗ Not so: " in seen.first_screen
        widths = {box.width for box in seen.boxes[".share i"]}
        assert len(widths) == 1
        assert len(seen.boxes[".share.over i"]) == 1
        assert len({box.top for box in seen.boxes[".row figure"]}) == 1
