"""Which pictures the terminal shows: it is asked, and answers within a moment or not at all."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Mapping
from enum import Enum

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
    return graphics_of(_ask())


def graphics_of(answer: bytes) -> Graphics | None:
    """The protocol that a terminal's answer says."""
    if b"\x1b_Gi=31;OK" in answer:
        return Graphics.KITTY
    attributes = _ANSWER.search(answer)
    # 4 is sixel: https://vt100.net/docs/vt510-rm/DA1.html
    return Graphics.SIXEL if attributes and b"4" in attributes[1].split(b";") else None


def _ask() -> bytes:
    """The terminal's answer; empty where there is none."""
    import termios  # POSIX alone
    import tty

    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return b""
    try:
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal, termios.TCSANOW)
            os.write(terminal, _QUESTION)
            return _read_answer(terminal)
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
    except (OSError, termios.error):
        return b""
    finally:
        os.close(terminal)


def _read_answer(terminal: int) -> bytes:
    answer, end = b"", time.monotonic() + _PATIENCE
    while not _ANSWER.search(answer) and len(answer) < 4096:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        part = os.read(terminal, 256) if ready else b""
        if not part:
            break
        answer += part
    return answer
