"""Captioned scenes for training the demo model, made on the device: random scenes, their images and token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sdort.demo.prompt_language import AND, BACKGROUND, POSITIONS, RELATION_PHRASES
from sdort.demo.scenes import BACKGROUNDS, COLUMNS, IMAGE_SIDE, RGB, ROWS, SHAPES, SIZES, coverage

Tensor = Any

_RADII = range(SIZES["small"][0], SIZES["large"][1] + 1)


@dataclass
class Scenes:
    """Random scenes as columns of indices, [count] or [count, 2] for the two shapes; the second may be absent."""

    pair: Tensor
    colour: Tensor
    shape: Tensor
    size: Tensor
    radius: Tensor
    background: Tensor
    cell: Tensor
    """Position of a single shape: row * 3 + column."""
    relation: Tensor
    """Relation of the first shape to the second, an index into ``RELATION_PHRASES``."""
    x: Tensor
    y: Tensor

    def keep(self, mask: Tensor, count: int) -> Scenes:
        """The first ``count`` of those in a mask."""
        return Scenes(*(value[mask][:count] for value in vars(self).values()))


def is_held_out_single(colour: Any, shape: Any, background: Any) -> Any:
    """Whether a shape of this colour, alone on this background, is kept from training: one in eleven."""
    return (3 * colour + 5 * shape + 7 * background) % 11 == 0


def is_held_out_pair(first: tuple[Any, Any], relation: Any, second: tuple[Any, Any]) -> Any:
    """Whether a pair of (colour, shape) is kept from training: one in thirteen, seen from either shape."""

    def held(a: tuple[Any, Any], relation: Any, b: tuple[Any, Any]) -> Any:
        return (a[0] + 3 * a[1] + 5 * b[0] + 7 * b[1] + 2 * relation) % 13 == 0

    # 0 and 1 are opposites, and so are 2 and 3.
    return held(first, relation, second) | held(second, relation ^ 1, first)


@dataclass(frozen=True)
class Frame:
    """How a text encoder reads a caption: the tokens around its words, and how a word is written as one."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    padding: str = "<|endoftext|>"
    first: str = "{}</w>"
    """The caption's first word."""
    word: str = "{}</w>"
    """Each of the others."""


CLIP = Frame(("<|startoftext|>",), ("<|endoftext|>",))
CHAT = Frame(
    ("<|im_start|>", "user", "\u010a"),
    ("<|im_end|>", "\u010a", "<|im_start|>", "assistant", "\u010a"),
    first="{}",
    word="\u0120{}",
)
"""Qwen3's template, byte for byte: \u010a is the end of a line and \u0120 a space."""


class Sampler:
    """Draws random scenes of the demo's world, held-out ones never.

    Args:
        vocabulary: token ids; every word of the captions must be one token.
        length: tokens of a caption with its frame and padding; none has more than 16 words.
        frame: how captions are read.
        colours, backgrounds: how the named colours of shapes and of backgrounds look.
    """

    def __init__(
        self,
        vocabulary: dict[str, int],
        length: int,
        device: str,
        seed: int,
        frame: Frame = CLIP,
        colours: dict[str, tuple[int, int, int]] = RGB,
        backgrounds: dict[str, tuple[int, int, int]] = BACKGROUNDS,
    ) -> None:
        self.device = device
        self.length = length
        self.random = torch.Generator(device).manual_seed(seed)
        self._vocabulary, self._frame = vocabulary, frame
        self.padding = vocabulary[frame.padding]
        self._before, self._after = (self._ids(part) for part in (frame.before, frame.after))
        self._bank = self._masks()
        self._colours, self._backgrounds = self._palette(colours), self._palette(backgrounds)
        self._articles = self._phrases(["a", "an"])
        self._firsts = torch.arange(len(vocabulary), device=device)
        self._firsts[self._articles[:, 0]] = self._ids([frame.first.format(word) for word in ("a", "an")])
        self._sizes = self._phrases(["", *SIZES])
        self._names = self._phrases([*RGB]), self._phrases([*SHAPES])
        cells = [POSITIONS[row, column] for row in ROWS for column in COLUMNS]
        self._positions = self._phrases([phrase for cell in cells for phrase in cell])
        self._relations = self._phrases([*(phrase for phrases in RELATION_PHRASES.values() for phrase in phrases), AND])
        self._grounds = self._phrases([form.format(name) for name in BACKGROUNDS for form in BACKGROUND])

    def scenes(self, count: int) -> Scenes:
        """``count`` scenes: two in five of one shape, the others of two."""
        many = count * 3 // 2 + 64
        shape = (many, 2)
        size = self._below(3, shape)
        low = torch.tensor([SIZES[name][0] for name in SIZES], device=self.device)
        span = torch.tensor([SIZES[name][1] - SIZES[name][0] + 1 for name in SIZES], device=self.device)
        radius = low[size] + (torch.rand(shape, device=self.device, generator=self.random) * span[size]).long()
        pair, cell, relation = self._chance(0.6, many), self._below(9, (many,)), self._below(4, (many,))
        x, y = self._places(radius, pair, cell, relation)
        made = Scenes(
            pair,
            self._below(len(RGB), shape),
            self._below(len(SHAPES), shape),
            size,
            radius,
            self._below(len(BACKGROUNDS), (many,)),
            cell,
            relation,
            x,
            y,
        )
        return made.keep(self._allowed(made), count)

    def images(self, scenes: Scenes) -> Tensor:
        """[count, 3, 64, 64], fp32 from -1 to 1, rounded to 256 levels as the judge's scenes are."""
        line = torch.arange(IMAGE_SIDE, device=self.device)
        images = self._backgrounds[scenes.background][:, :, None, None]
        for thing in range(2):
            rows = IMAGE_SIDE - 1 - scenes.y[:, thing, None] + line
            columns = IMAGE_SIDE - 1 - scenes.x[:, thing, None] + line
            which = (scenes.shape[:, thing, None, None], scenes.radius[:, thing, None, None] - _RADII[0])
            alpha = self._bank[(*which, rows[:, :, None], columns[:, None, :])][:, None]
            if thing:
                alpha = alpha * scenes.pair[:, None, None, None]
            images = images * (1 - alpha) + self._colours[scenes.colour[:, thing]][:, :, None, None] * alpha
        return images.round() / 127.5 - 1

    def captions(self, scenes: Scenes) -> Tensor:
        """Token ids [count, length] of a random caption for each scene; what they leave out is random too."""
        count = len(scenes.pair)
        some, both = self._chance(0.5, count), self._chance(0.5, count).long()
        no_word = self._chance(0.2, count)
        relation = torch.where(no_word, 8, 2 * scenes.relation + both)
        place = self._positions[2 * scenes.cell + both] * (some & ~scenes.pair)[:, None]
        second = [self._relations[relation], *self._thing(scenes, 1)]
        ground = self._grounds[2 * scenes.background + self._chance(0.5, count).long()]
        words = torch.cat(
            [
                *self._thing(scenes, 0),
                place,
                *(part * scenes.pair[:, None] for part in second),
                ground * self._chance(0.75, count)[:, None],
            ],
            dim=1,
        )
        return self._pack(words)

    def empty(self) -> Tensor:
        """Token ids [length] of the empty caption."""
        return self._pack(torch.zeros((1, 1), dtype=torch.long, device=self.device))[0]

    def _pack(self, words: Tensor) -> Tensor:
        """The words without the gaps (0) in their frame, and padding for the rest."""
        order = torch.argsort((words == 0).long(), dim=1, stable=True)
        words = torch.gather(words, 1, order)
        count = (words != 0).sum(1, keepdim=True)
        first, most = len(self._before), max(int(count.max()), 1)
        ids = torch.full((len(words), self.length), self.padding, device=self.device)
        ids[:, :first] = self._before
        ids[:, first : first + most] = words[:, :most]
        ids[:, first] = self._firsts[words[:, 0]]
        behind = first + count + torch.arange(len(self._after), device=self.device)
        ids = torch.where(torch.arange(self.length, device=self.device) < first + count, ids, self.padding)
        return ids.scatter(1, behind, self._after.expand(len(ids), -1))

    def _thing(self, scenes: Scenes, index: int) -> list[Tensor]:
        size, colour = scenes.size[:, index], scenes.colour[:, index]
        sized = self._chance(0.6, len(size)) & (size != list(SIZES).index("medium"))
        an = (~sized & (colour == list(RGB).index("orange"))).long()
        sizes = self._sizes[torch.where(sized, size + 1, 0)]
        return [self._articles[an], sizes, self._names[0][colour], self._names[1][scenes.shape[:, index]]]

    def _allowed(self, scenes: Scenes) -> Tensor:
        """Visible shapes that are not kept from training."""
        colour, shape = scenes.colour, scenes.shape
        single = is_held_out_single(colour[:, 0], shape[:, 0], scenes.background)
        things = [(colour[:, index], shape[:, index]) for index in range(2)]
        pair = is_held_out_pair(things[0], scenes.relation, things[1])
        same = (colour[:, 0] == colour[:, 1]) & (shape[:, 0] == shape[:, 1])
        contrast = (self._colours[colour] - self._backgrounds[scenes.background][:, None]).abs().sum(-1) > 0
        alone = contrast[:, 0] & ~single
        return torch.where(scenes.pair, contrast.all(1) & ~pair & ~same, alone)

    def _places(self, radius: Tensor, pair: Tensor, cell: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """Centres [count, 2] of the shapes, by column and row."""
        # Alone: in thirds of the picture.
        first = radius[:, 0]
        near = self._between((first + 1).clamp(min=10), torch.full_like(first, 21), 2)
        middle = self._between(torch.full_like(first, 29), torch.full_like(first, 34), 2)
        thirds = torch.stack([near, middle, IMAGE_SIDE - 1 - near])
        index = torch.arange(len(first), device=self.device)
        x, y = thirds[cell % 3, index, 0], thirds[cell // 3, index, 1]
        alone = torch.stack([x, torch.zeros_like(x)], 1), torch.stack([y, torch.zeros_like(y)], 1)
        # Two: apart along one axis, side by side along the other.
        along = self._between(radius, (29 - radius).clamp(min=radius))
        before = (relation % 2 == 0)[:, None] ^ torch.tensor([False, True], device=self.device)
        along = torch.where(before, along, IMAGE_SIDE - 1 - along)
        across = self._between(torch.full_like(radius, 25), torch.full_like(radius, 38))
        level = (relation < 2)[:, None]
        both = torch.where(level, along, across), torch.where(level, across, along)
        return tuple(torch.where(pair[:, None], two, one) for one, two in zip(alone, both, strict=True))

    def _between(self, low: Tensor, high: Tensor, columns: int | None = None) -> Tensor:
        """Random integers from ``low`` to ``high``, both included."""
        if columns:
            low, high = low[:, None].expand(-1, columns), high[:, None].expand(-1, columns)
        part = torch.rand(low.shape, device=self.device, generator=self.random)
        return low + (part * (high - low + 1)).long()

    def _below(self, end: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(end, shape, device=self.device, generator=self.random)

    def _chance(self, probability: float, count: int) -> Tensor:
        return torch.rand(count, device=self.device, generator=self.random) < probability

    def _phrases(self, phrases: Sequence[str]) -> Tensor:
        """Token ids [phrases, words], 0 where a phrase has fewer words. (Id 0 is "!", which no phrase has.)"""
        rows = [[self._vocabulary[self._frame.word.format(word)] for word in phrase.split()] for phrase in phrases]
        width = max(map(len, rows))
        return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self.device)

    def _ids(self, tokens: Sequence[str]) -> Tensor:
        return torch.tensor([self._vocabulary[token] for token in tokens], device=self.device)

    def _palette(self, names: dict[str, tuple[int, int, int]]) -> Tensor:
        return torch.tensor(list(names.values()), dtype=torch.float32, device=self.device)

    def _masks(self) -> Tensor:
        """Coverage of every shape and radius, [shapes, radii, 127, 127], centred: a scene is a window of it."""
        side = 2 * IMAGE_SIDE - 1
        masks = [
            [coverage(shape, radius, side, (IMAGE_SIDE - 1, IMAGE_SIDE - 1)) for radius in _RADII] for shape in SHAPES
        ]
        return torch.from_numpy(np.stack([np.stack(sizes) for sizes in masks])).to(self.device)
