"""OpenAI's endpoints of images (https://platform.openai.com/docs/api-reference/images)."""

from __future__ import annotations

import base64
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from sdort.errors import SdortError
from sdort.options.number_ranges import parse_size
from sdort.serving.drawings import Drawing
from sdort.serving.refusals import Refused, of_error
from sdort.serving.service import Service, Wanted
from sdort.serving.until_gone import until_gone


class Images(BaseModel):
    """The body of ``/v1/images/generations``, with three fields of sdort's own."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore")

    prompt: str
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=1000)] | None = None
    size: str | None = None
    response_format: Literal["b64_json", "url"] | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    negative_prompt: str | None = None


def routes(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post("/images/generations")
    async def generations(body: Images, request: Request) -> dict[str, Any]:
        drawing = await service.submit(_wanted(body))
        return _answer(await until_gone(request, service, drawing))

    return router


def _wanted(body: Images, **more: Any) -> Wanted:
    options: dict[str, Any] = {
        "num_images": body.n or 1,
        "steps": body.steps,
        "seed": body.seed,
        "negative_prompt": body.negative_prompt or "",
    }
    if body.size not in (None, "auto"):
        try:
            options["height"], options["width"] = parse_size(body.size)
        except SdortError as error:
            raise of_error(error, field="size") from error
    if body.response_format == "url":
        raise Refused("images are given as b64_json alone", field="response_format")
    return Wanted(body.prompt, body.model, options, **more)


def _answer(drawing: Drawing) -> dict[str, Any]:
    images = [base64.b64encode(image.png).decode() for image in drawing.images if image]
    return {"created": int(time.time()), "output_format": "png", "data": [{"b64_json": image} for image in images]}
