"""sdort's own API, which the page speaks: a request is queued, and events tell what becomes of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.errors import SdortError
from sdort.generation.files.from_image import GIVEN_AGAIN, DrawnWith, image_options
from sdort.generation.files.image_texts import texts_in
from sdort.machine.version import __version__
from sdort.samplers.sampler_names import short_sampler
from sdort.samplers.scheduler_names import SAMPLERS, leveled_names
from sdort.serving.bodies import Body
from sdort.serving.drawings import Drawing, Event
from sdort.serving.pictures import bytes_of_text
from sdort.serving.refusals import Refused, of_error
from sdort.serving.served_model import ServedModel
from sdort.serving.service import Service, Wanted

_HEARTBEAT = b": the drawing goes on\n\n"
Side = Annotated[int, Field(ge=1, le=16384)]


class Adapter(Body):
    """An adapter by its name."""

    name: Annotated[str, Field(max_length=200)]
    weight: Annotated[float, Field(ge=-100, le=100)] = 1.0


class Images(Body):
    """The body of ``POST /api/images``."""

    model: str | None = None
    prompt: str = ""
    negative_prompt: str = ""
    width: Side | None = None
    height: Side | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    guidance: Annotated[float, Field(ge=0, le=1000)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    num_images: Annotated[int, Field(ge=1, le=1000)] = 1
    scheduler: Annotated[str, Field(max_length=100)] | None = None
    adapters: Annotated[list[Adapter], Field(max_length=32)] = Field(default_factory=list)
    init_image: str | None = None
    mask: str | None = None
    strength: Annotated[float, Field(ge=0, le=1)] | None = None


def routes(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter(prefix="/api", tags=["sdort"])

    @router.get("/info")
    async def info() -> dict[str, Any]:
        limits = service.options
        return {
            "models": [_model(model) for model in service.models.values()],
            "samplers": sorted([*SAMPLERS, *leveled_names()]),
            "adapters": sorted(service.adapters),
            "limits": {
                "steps": limits.max_steps,
                "images": limits.max_images,
                "prompt_characters": limits.max_prompt,
                "upload_bytes": limits.upload_bytes,
                "queue": limits.queue,
            },
            "version": __version__,
        }

    @router.post("/images", status_code=202)
    async def images(body: Images) -> dict[str, Any]:
        drawing = await service.submit(_wanted(service, body))
        service.follow(drawing)
        return {"id": drawing.id, "position": service.waiting.ahead().get(drawing, 0)}

    @router.get("/images/{name}/events")
    async def events(name: str) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_lines(service.find(name)), media_type="text/event-stream", headers=headers)

    @router.get("/images/{name}/{index}.png")
    async def image(name: str, index: int) -> Response:
        drawing = service.find(name)
        found = drawing.images[index] if 0 <= index < len(drawing.images) else None
        if found is None:
            raise Refused("there is no such image, or it is not drawn yet", 404)
        return Response(found.png, media_type="image/png", headers={"Cache-Control": "private, max-age=31536000"})

    @router.delete("/images/{name}", status_code=204)
    async def cancel(name: str) -> None:
        service.cancel(service.find(name))

    @router.post("/settings")
    async def settings(request: Request) -> Response:
        content = await request.body()
        return JSONResponse(await run_in_threadpool(_settings, service, content))

    return router


def _model(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "name": model.name,
        "sizes": [[width, height] for height, width in model.sizes],
        "any_size": model.any_size,
        "default": model.default,
        "tasks": model.tasks,
    }


def _wanted(service: Service, body: Images) -> Wanted:
    options: dict[str, Any] = {
        "negative_prompt": body.negative_prompt,
        "width": body.width,
        "height": body.height,
        "steps": body.steps,
        "guidance_scale": body.guidance,
        "seed": body.seed,
        "num_images": body.num_images,
        "scheduler": body.scheduler or None,
        "strength": body.strength if body.init_image else None,
        "lora": [AdapterChoice(service.adapter(each.name), each.weight) for each in body.adapters],
    }
    image, mask = (
        None if text is None else bytes_of_text(text, name)
        for name, text in (("init_image", body.init_image), ("mask", body.mask))
    )
    return Wanted(body.prompt, body.model, options, image, mask, previews=True)


async def _lines(drawing: Drawing) -> AsyncIterator[bytes]:
    async for event in drawing.events():
        yield _HEARTBEAT if event is None else _line(event)


def _line(event: Event) -> bytes:
    return f"event: {event.name}\ndata: {json.dumps(event.data)}\n\n".encode()


def _settings(service: Service, content: bytes) -> dict[str, Any]:
    """The fields of a request by which an image was drawn.

    Raises:
        Refused: nothing in it says how.
    """
    place = Path("the image")
    try:
        found = image_options(place, texts_in(content, place), dict.fromkeys(GIVEN_AGAIN))
    except SdortError as error:
        raise of_error(error, 422) from error
    fields = {name: value for name, value in found.options.items() if name in _TAKEN}
    if "guidance_scale" in fields:
        fields["guidance"] = fields.pop("guidance_scale")
    if "scheduler" in fields:
        fields["scheduler"] = short_sampler(fields["scheduler"])
    adapters = list(_adapters(service, found))
    return {**fields, "num_images": 1, **({"adapters": adapters} if adapters else {})}


_TAKEN = ("prompt", "negative_prompt", "width", "height", "steps", "guidance_scale", "seed", "scheduler", "strength")


def _adapters(service: Service, found: DrawnWith) -> Any:
    for record in found.files.get("lora", ()):
        name, scale = str(record.get("name", "")).removesuffix(".safetensors"), record.get("scale")
        served = next((each for each in service.adapters if name in (each, each.rpartition("/")[2])), name)
        yield {"name": served, "weight": cast("float", scale) if isinstance(scale, int | float) else 1.0}
