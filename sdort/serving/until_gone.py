"""Endpoints that answer when a drawing is done, and give it up when their client goes."""

from __future__ import annotations

import asyncio

from fastapi import Request

from sdort.serving.drawings import Drawing
from sdort.serving.refusals import Refused
from sdort.serving.service import Service


async def until_gone(request: Request, service: Service, drawing: Drawing) -> Drawing:
    """A drawing when it is done.

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
    if drawing.end is None or drawing.end.name != "done":
        raise Refused(str(drawing.end.data.get("message", "cancelled")) if drawing.end else "cancelled", drawing.status)
    return drawing


async def _gone(request: Request) -> None:
    """Wait until a client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
