"""Endpoints that answer when a drawing is done, and give it up when their client goes."""

from __future__ import annotations

import asyncio

from fastapi import Request

from sdort.serving.drawings import Drawing
from sdort.serving.refusals import Refused
from sdort.serving.service import Service


async def until_gone(request: Request, service: Service, drawing: Drawing, *, interrupted: bool = False) -> Drawing:
    """A drawing when it is done.

    Args:
        interrupted: whether one that was cancelled is an answer, with the images that it has until then.

    Raises:
        Refused: it failed, was cancelled, or took too long.
    """
    waiting = asyncio.ensure_future(service.wait_for(drawing))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        waiting.cancel()
        service.cancel(drawing)
    assert drawing.end is not None
    if drawing.end.name not in ("done", "cancelled" if interrupted else "done"):
        raise Refused(drawing.end.data.get("message", "the drawing was cancelled"), drawing.status)
    return drawing


async def _gone(request: Request) -> None:
    """Wait until a client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
