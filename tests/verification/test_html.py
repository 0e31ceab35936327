"""The writer of HTML pages that ``sdort verify`` and ``sdort bench`` share."""

from __future__ import annotations

import numpy as np

from sdort.verification.report.html import difference_figure, facts, figure, page, plot, section


def test_a_table_marks_verdicts_words_and_bad_rows() -> None:
    rows = [("a <b>", "1.5e-03", "ok"), ("FAILED: c", "2", "ok")]
    table = section("T & U", ("what", "error", ""), rows, left=("what",), wide=("what",), verdicts=("ok",))
    assert table.startswith("<h2>T &amp; U</h2><div class='scroll'><table>")
    assert "<th class='words wrap'>what</th><th>error</th>" in table
    first, second = table.split("<tr")[2:]
    assert first.startswith("><td class='words wrap'>a &lt;b&gt;</td><td><span class='whole'>1.5e-03</span></td>")
    assert "<span class='verdict ok'>ok</span>" in first
    assert second.startswith(" class=bad>")
    assert section("T", ("what",), [], left=()) == ""
    assert "class=bad" in section("T", ("what",), [("slower",)], left=(), bad=("slower",))


def test_figures_have_their_pixels_or_an_empty_frame() -> None:
    small, large = np.zeros((8, 8, 3), np.uint8), np.zeros((256, 8, 3), np.uint8)
    assert "<img class='small' alt='&lt;it&gt;' src='data:image/png;base64," in figure(small, "<it>")
    assert "<img alt='it' src='data:image/png;base64," in figure(large, "it")
    assert "<div class='none'>none</div><figcaption>difference</figcaption>" in difference_figure(small, large)
    assert "<figcaption>difference: times 64, at most 0 of 255</figcaption>" in difference_figure(small, small)


def test_a_page_escapes_its_title_and_leaves_out_what_is_empty() -> None:
    text = page("<t>", ["", facts({"<n>": "<v>"}), plot("<d>", b"light", b"dark")])
    assert "<title>&lt;t&gt;</title>" in text
    assert "<body><h1>&lt;t&gt;</h1>\n<dl><dt>&lt;n&gt;</dt><dd>&lt;v&gt;</dd></dl>\n<picture>" in text
    assert "srcset='data:image/svg+xml;base64,ZGFyaw=='" in text
    assert "<img alt='&lt;d&gt;' src='data:image/svg+xml;base64,bGlnaHQ='>" in text
