"""The published ablation beside :mod:`sdort.benchmark.ablation`, for orientation: other devices and libraries.

Source: the Stable Diffusion README of ONNX Runtime's transformer tools (1.13 to 1.16), SD 1.5, 512x512, 50 steps. Its
"MB" are MiB: its benchmark.py divides bytes by 1024 * 1024.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Seconds a batch and MiB of memory; None where it ran out of memory. ``suspicious``: published with a warning
    that the images looked wrong."""

    seconds: float | None
    """Seconds a batch; None where it ran out of memory."""
    mebibytes: int | None
    """Memory in MiB; None where it ran out of memory."""
    suspicious: bool = False
    """Whether it was published with a warning that the images looked wrong."""


PublishedRows = dict[str, dict[int, Published]]
"""Step -> batch size -> what was published."""

_NONE = Published(None, None)

RTX_3060: PublishedRows = {
    "raw fp32": {1: Published(25.6, 10667), 8: _NONE},
    "fp16": {1: Published(10.2, 10709), 8: _NONE},
    "+ FMHA": {1: Published(6.1, 7719), 8: Published(39.1, 10821)},
    "+ NhwcConv": {1: Published(5.5, 7656), 8: Published(38.8, 11615)},
    "+ GroupNorm": {1: Published(5.1, 6673), 8: Published(35.8, 10763)},
    "+ BiasSplitGelu": {1: Published(4.9, 4447), 8: Published(33.7, 6669)},
    "+ packed QKV": {1: Published(4.8, 4625), 8: Published(33.5, 6663)},
    "+ BiasAdd": {1: Published(4.7, 4480), 8: Published(33.3, 6499)},
}

MI250X: PublishedRows = {
    "raw fp32": {1: Published(6.7, 17319), 8: Published(36.4, 33787, suspicious=True)},
    "fp16": {1: Published(4.1, 8945), 8: Published(24.0, 34493, suspicious=True)},
    "+ FMHA": {1: Published(2.6, 4886), 8: Published(15.0, 10146)},
    "+ NhwcConv": {1: Published(2.4, 4952), 8: Published(14.8, 9632)},
    "+ GroupNorm": {1: Published(2.3, 4906), 8: Published(13.6, 9774)},
    "+ BiasSplitGelu": {1: Published(2.2, 4910), 8: Published(12.5, 9646)},
    "+ BiasAdd": {1: Published(2.2, 4910), 8: Published(12.5, 9778)},
}

PUBLISHED: dict[str, PublishedRows] = {"RTX 3060": RTX_3060, "MI250X 1 GCD": MI250X}

CAPTION = (
    "Published, for orientation only: another device and library (ONNX Runtime 1.13 to 1.16's own tools, SD 1.5, "
    "512x512, 50 steps). * published with suspicious images, OOM out of memory."
)


def published_text(rows: PublishedRows, step: str, batch: int) -> str:
    """``25.6 s, 10,667 MiB``; empty where nothing was published."""
    published = rows.get(step, {}).get(batch)
    if published is None:
        return ""
    if published.seconds is None:
        return "OOM"
    return f"{published.seconds:.1f} s{'*' if published.suspicious else ''}, {published.mebibytes:,} MiB"
