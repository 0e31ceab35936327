"""Which pictures the terminal shows: it is asked, and answers within a moment or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum

from sdort.machine.os_calls import os_calls

_QUESTION = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c"
"""Kitty's question whether its graphics are understood, and the one for the device's attributes, which every terminal
answers and which so ends the wait: https://sw.kovidgoyal.net/kitty/graphics-protocol/#querying-support-and-available-transmission-mediums
"""
_ANSWER = re.compile(rb"\x1b\[\?([0-9;]*)c")
_PATIENCE = 1.0
"""Seconds to wait for an answer: one that comes later, over a slow line, is shown as text."""


class Graphics(Enum):
    """Protocols of pictures in a terminal."""

    KITTY = "kitty"
    ITERM = "iTerm2"
    SIXEL = "sixel"


def terminal_graphics(environment: Mapping[str, str] | None = None) -> Graphics | None:
    """The protocol of the terminal that this process has; None without a terminal, or one that shows no pictures."""
    known = os.environ if environment is None else environment
    if known.get("TERM", "dumb") == "dumb":
        return None
    if known.get("LC_TERMINAL") == "iTerm2" or known.get("TERM_PROGRAM") in ("iTerm.app", "WezTerm"):
        return Graphics.ITERM  # https://iterm2.com/documentation-images.html
    return graphics_of(os_calls.ask_terminal(_QUESTION, _ANSWER, _PATIENCE))


def graphics_of(answer: bytes) -> Graphics | None:
    """The protocol that a terminal's answer says."""
    if b"\x1b_Gi=31;OK" in answer:
        return Graphics.KITTY
    attributes = _ANSWER.search(answer)
    # 4 is sixel: https://vt100.net/docs/vt510-rm/DA1.html
    return Graphics.SIXEL if attributes and b"4" in attributes[1].split(b";") else None
