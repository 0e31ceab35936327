"""OpenAI's endpoints of images (https://platform.openai.com/docs/api-reference/images)."""

from __future__ import annotations

import base64
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.datastructures import UploadFile

from sdort.errors import SdortError
from sdort.options.number_ranges import parse_size
from sdort.serving.bodies import OpenBody
from sdort.serving.drawings import Drawing
from sdort.serving.refusals import Refused, of_error
from sdort.serving.service import Service, Wanted
from sdort.serving.until_gone import until_gone


class Images(OpenBody):
    """The fields of ``/v1/images/generations`` and of ``/v1/images/edits``, with five of sdort's own."""

    prompt: str
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=1000)] | None = None
    size: str | None = None
    response_format: Literal["b64_json", "url"] | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    negative_prompt: str | None = None
    guidance: Annotated[float, Field(ge=0, le=1000)] | None = None
    scheduler: Annotated[str, Field(max_length=100)] | None = None
    output_format: Literal["png"] | None = None
    stream: Literal[False] | None = None


def routes(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post("/images/generations")
    async def generations(body: Images, request: Request) -> dict[str, Any]:
        drawing = await service.submit(_wanted(body))
        return _answer(await until_gone(request, service, drawing))

    @router.post("/images/edits")
    async def edits(request: Request) -> dict[str, Any]:
        async with request.form(max_files=2, max_fields=32) as form:
            files = [
                (name.removesuffix("[]"), value) for name, value in form.multi_items() if isinstance(value, UploadFile)
            ]
            texts = {name: value for name, value in form.multi_items() if isinstance(value, str)}
            pictures = {name: await file.read() for name, file in files}
        if len(files) != len(pictures) or "image" not in pictures or not pictures.keys() <= {"image", "mask"}:
            raise Refused("an edit has one image, and one mask at most", 422, "image")
        try:
            body = Images.model_validate(texts)
        except ValidationError as error:
            raise RequestValidationError(
                [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
            ) from error
        wanted = _wanted(body, init_image=pictures["image"], mask=pictures.get("mask"), by_hole=True)
        return _answer(await until_gone(request, service, await service.submit(wanted)))

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in service.models]}

    @router.get("/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        return _model(service.model(name).name)

    return router


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "sdort"}


def _wanted(body: Images, **more: Any) -> Wanted:
    options: dict[str, Any] = {
        "num_images": body.n or 1,
        "steps": body.steps,
        "seed": body.seed,
        "negative_prompt": body.negative_prompt or "",
        "guidance_scale": body.guidance,
        "scheduler": body.scheduler or None,
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
