r"""Prompts that are drawn: ``{a|b}`` is one of several texts, ``__name__`` a line of a file.

The forms are those of the extensions that people know (https://github.com/adieyal/sd-dynamic-prompts, and ComfyUI's
front end):

- ``{a|b|c}`` is one of the texts; ``{2::a|b}`` takes the first twice as often.
- ``{2$$a|b|c}`` is two different ones with commas between, ``{1-2$$ and $$a|b|c}`` one or two with " and " between.
- ``__animal__`` is a line of ``animal.txt``, ``__place/indoor__`` of ``place/indoor.txt``; ``*`` stands for any name.

They nest, and lines of files may have them too. ``\{``, ``\}``, ``\|`` and ``\_\_`` are text, and so are braces without
a ``|``. What is drawn depends on the image's seed alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sdort.console import say
from sdort.errors import UsageError
from sdort.errors.plain_text import cut, one_line
from sdort.generation.prompts.prompt_syntax import WEIGHTINGS, check_depth
from sdort.generation.prompts.wildcards import Wildcards, read_weight
from sdort.generation.requests.request import MAX_PROMPT, Request

MOST_DRAWS = 10_000
"""Texts that are drawn for one prompt: a file whose lines name files doubles them."""
DEEPEST = 64
"""Forms within each other, those of lines that are drawn among them."""
_TOLD = 4
"""Drawn prompts that are told."""

_FORM = re.compile(r"[{}]|__|\\_\\_")
_WILDCARD = re.compile(r"__(?P<name>[^\s_{}|\\,:()\[\]](?:[^\n{}|\\,:()\[\]]{0,200}?[^\s_{}|\\,:()\[\]])?)__")
_COUNT = re.compile(r"\s*(?P<least>[0-9]{1,4})?(?P<range>-(?P<most>[0-9]{1,4})?)?\$\$(?:(?P<joined>[^{}|$\\]*)\$\$)?")
_ESCAPED = re.compile(r"\\([{}|])|\\(_)\\(?=_)")
_STREAMS = {"prompt": "", "prompt_2": "", "negative_prompt": "negative", "negative_prompt_2": "negative"}
"""Text of a request -> numbers that it is drawn by: those of one prompt are the same for both text encoders."""


@dataclass(frozen=True)
class _Choice:
    """``{a|b}``."""

    options: tuple[tuple[float, _Text], ...]
    """Weights and texts."""
    least: int = 1
    most: int = 1
    joined: str = ", "


@dataclass(frozen=True)
class _Line:
    """``__name__``."""

    name: str


_Text = tuple["str | _Choice | _Line", ...]


@dataclass
class _Reader:
    """Reads the forms of a text; braces and brackets that close are found once, for all of it."""

    text: str
    literal: list[str] = field(default_factory=list)
    """Braces that are text."""

    def __post_init__(self) -> None:
        self._ends = dict(_pairs(self.text))

    def read(self) -> _Text:
        """The whole text."""
        return self._between(0, len(self.text), 0)[0]

    def _between(self, place: int, end: int, depth: int) -> list[_Text]:
        """The texts from a place to another one, which ``|`` divides inside of braces."""
        check_depth(depth)
        texts: list[list[str | _Choice | _Line]] = [[]]
        square = place
        while place < end:
            mark = self.text[place]
            line = _WILDCARD.match(self.text, place, end) if mark == "_" else None
            if line:
                texts[-1].append(_Line(line["name"]))
                place = line.end()
            elif mark == "{" and place in self._ends:
                texts[-1] += self._braces(place, self._ends[place], depth + 1)
                place = self._ends[place] + 1
            elif mark == "|" and depth and place >= square:
                texts.append([])
                place += 1
            else:
                if mark == "[":  # A1111's [a|b] has bars of its own
                    square = max(square, self._ends.get(place, 0))
                if mark in "{}":
                    self.literal.append(mark)
                step = 2 if mark == "\\" else 1
                texts[-1].append(self.text[place : place + step])
                place += step
        return [tuple(text) for text in texts]

    def _braces(self, place: int, end: int, depth: int) -> _Text:
        before = self.text[max(place - 2, 0) : place]
        if before.endswith("$") and before not in ("$$", "\\$"):
            raise UsageError(
                f"the prompt has the variable {cut(one_line(self.text[place - 1 : end + 1]), 40)!r}, which sdort does "
                "not have",
                hint=r"Write its value. A brace that is text is written \{.",
            )
        count = _COUNT.match(self.text, place + 1, end)
        texts = self._between(count.end() if count else place + 1, end, depth)
        if count is None and len(texts) == 1:
            self.literal.append(self.text[place : end + 1])
            return ("{", *texts[0], "}")
        choice = _Choice(tuple(_weighted(text) for text in texts))
        return (_counted(choice, count, self.text[place : end + 1]) if count else choice,)


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Where braces and square brackets open and close; a bracket that does not close before its brace is text."""
    opened: list[int] = []
    place = 0
    while place < len(text):
        mark = text[place]
        if mark in "{[":
            opened.append(place)
        elif mark == "]" and opened and text[opened[-1]] == "[":
            yield opened.pop(), place
        elif mark == "}":
            while opened and text[opened[-1]] == "[":
                opened.pop()
            if opened:
                yield opened.pop(), place
        place += 2 if mark == "\\" else 1


def _weighted(text: _Text) -> tuple[float, _Text]:
    """The weight of an option and its text, whose first pieces are single characters."""
    weight, begin = read_weight("".join(_characters(text)))
    return weight, text[begin:]


def _characters(text: _Text) -> Iterator[str]:
    """The characters that a text begins with."""
    for part in text[:60]:
        if not isinstance(part, str) or len(part) != 1:
            return
        yield part


def _counted(choice: _Choice, count: re.Match[str], text: str) -> _Choice:
    number = int(count["least"]) if count["least"] else 0 if count["range"] else 1
    most = int(count["most"]) if count["most"] else len(choice.options) if count["range"] else number
    if number > most or number > len(choice.options):
        raise UsageError(
            f"the prompt takes {number} of {len(choice.options)} texts in {cut(one_line(text), 60)!r}",
            hint="{2$$a|b|c} takes two different ones of three, {1-2$$a|b|c} one or two.",
        )
    joined = ", " if count["joined"] is None else count["joined"]
    return replace(choice, least=number, most=min(most, len(choice.options)), joined=joined)


class _Numbers:
    """Numbers in [0, 1) that a seed gives, the same with every version of Python and on every machine."""

    def __init__(self, seed: int, stream: str) -> None:
        self._begin, self._count = f"{stream}:{seed}:", 0

    def draw(self) -> float:
        """The next number."""
        if self._count == MOST_DRAWS:
            raise UsageError(f"the prompt draws more than {MOST_DRAWS:,} texts", hint="Take files that name fewer.")
        digest = hashlib.sha256(f"{self._begin}{self._count}".encode()).digest()
        self._count += 1
        return int.from_bytes(digest[:6], "big") / (1 << 48)

    def choose(self, weights: Sequence[float]) -> int:
        """A place in a list of weights."""
        left = self.draw() * sum(weights)
        for place, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return place
        return max(place for place, weight in enumerate(weights) if weight or place == 0)


class _Drawing:
    def __init__(self, numbers: _Numbers, wildcards: Wildcards) -> None:
        self._numbers, self._wildcards = numbers, wildcards
        self._length = 0

    def text(self, text: _Text, depth: int = 0) -> str:
        """A text, which stands in ``depth`` forms, with what is drawn in the place of its own."""
        if depth > DEEPEST:
            raise UsageError(
                f"the prompt has more than {DEEPEST} texts to draw within each other",
                hint="Files of wildcards that name each other in a circle have no end.",
            )
        return "".join([self._piece(part, depth) for part in text])

    def _piece(self, part: str | _Choice | _Line, depth: int) -> str:
        if isinstance(part, _Line):
            return self._line(part.name, depth + 1)
        if isinstance(part, _Choice):
            return part.joined.join([self.text(text, depth + 1) for text in self._taken(part)])
        self._length += len(part)
        if self._length > MAX_PROMPT:
            raise UsageError(f"the prompt that is drawn has more than {MAX_PROMPT:,} characters")
        return part

    def _taken(self, choice: _Choice) -> Iterator[_Text]:
        """Different options, as many as the choice takes."""
        spread = choice.most - choice.least
        left = list(choice.options)
        for _ in range(choice.least + (int(self._numbers.draw() * (spread + 1)) if spread else 0)):
            yield left.pop(self._numbers.choose([weight for weight, _ in left]))[1]

    def _line(self, name: str, depth: int) -> str:
        lines = self._wildcards.lines(name)
        return self.text(_Reader(lines.texts[self._numbers.choose(lines.weights)]).read(), depth)


def has_forms(text: str) -> bool:
    """Whether a text may have anything to draw, or anything like it that is text."""
    return bool(_FORM.search(text))


def draw_text(text: str, seed: int, wildcards: Wildcards, stream: str = "") -> str:
    """A text of a prompt with what is drawn in the place of its forms.

    Args:
        stream: another one draws other texts of the same seed.

    Raises:
        UsageError: a form cannot be read, or there is no such file.
        BadModelError: a file cannot be read.
    """
    return _draw(_Reader(text).read(), seed, wildcards, stream)


def _draw(text: _Text, seed: int, wildcards: Wildcards, stream: str) -> str:
    return _Drawing(_Numbers(seed, stream), wildcards).text(text)


def draw_prompts(requests: Sequence[Request], names: Collection[str], wildcards: Wildcards) -> list[Request]:
    """Requests in parts, each of whose images has the prompts that its seed draws; what is drawn is told.

    Args:
        names: of the texts that may have forms.

    Raises:
        UsageError, BadModelError: as :func:`draw_text`.
    """
    forms = {text: _Reader(text) for each in requests for text in _texts(each, names).values() if has_forms(text)}
    if not forms:
        return list(requests)
    read = {text: reader.read() for text, reader in forms.items()}
    drawing = {text: parts for text, parts in read.items() if any(not isinstance(part, str) for part in parts)}
    if requests[0].prompt_weighting == "none":
        if drawing:
            say("with --prompt-weighting none {a|b} and __name__ in prompts are text")
        return list(requests)
    literal = next((reader.literal[0] for reader in forms.values() if reader.literal), None)
    if literal:
        say(f"braces without | are text: {cut(one_line(literal), 40)}; " r"\{ says so without this line")
    drawn = [part for each in requests for part in _drawn(each, names, drawing, wildcards)]
    _tell([each for each in drawn if each.templates])
    return drawn


def _texts(request: Request, names: Collection[str]) -> dict[str, str]:
    return {name: getattr(request, name) for name in _STREAMS if name in names}


def _drawn(
    request: Request, names: Collection[str], drawing: Mapping[str, _Text], wildcards: Wildcards
) -> list[Request]:
    """A request for each image where its texts are drawn, with the texts of its seed.

    Args:
        drawing: text that is drawn -> its forms.
    """
    texts = _texts(request, names)
    templates = tuple((name, text) for name, text in texts.items() if text in drawing)
    # Variations are of one image: its seed draws.
    alone = not templates or request.variation_strength is not None
    numbers = range(1 if alone else request.num_images)
    count = request.num_images if alone else 1
    parts = [replace(request, seed=request.seed + number, num_images=count) for number in numbers]

    def values(seed: int) -> dict[str, Any]:
        drawn = {
            name: _draw(drawing[text], seed, wildcards, _STREAMS[name]) if text in drawing else text
            for name, text in texts.items()
        }
        return {name: _plain(text, request) for name, text in drawn.items()}

    return [replace(part, templates=templates, **values(part.seed)) for part in parts]


def _tell(drawn: Sequence[Request]) -> None:
    for each in drawn[:_TOLD]:
        texts = "; ".join(cut(one_line(getattr(each, name)), 200) for name, _ in each.templates)
        say(f"seed {each.seed} draws: {texts}")
    if len(drawn) > _TOLD:
        say(f"and so on; each of the {len(drawn)} files has its own prompt")


def _plain(text: str, request: Request) -> str:
    """A text whose escaped braces are text; in A1111's language a backslash before text stays for its reader."""
    return text if request.prompt_weighting == WEIGHTINGS[0] else unescaped(text)


def unescaped(text: str) -> str:
    r"""A text without the backslashes before braces, bars and double underscores."""
    return _ESCAPED.sub(lambda found: found[1] or found[2], text)
