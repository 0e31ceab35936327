"""A1111's endpoints (https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/API), as many as its clients use.

What would draw another image than A1111 is refused in words: second passes, scripts, face restoration, tiling.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from sdort.errors import SdortError
from sdort.generation.files.infotext import USUAL_SPACING
from sdort.samplers.sampler_names import A1111_NAMES, A1111_TYPES
from sdort.samplers.scheduler_names import find_scheduler
from sdort.serving.bodies import OpenBody
from sdort.serving.drawings import Drawing
from sdort.serving.pictures import bytes_of_text
from sdort.serving.refusals import Refused, of_error
from sdort.serving.service import Service, Wanted
from sdort.serving.until_gone import until_gone

_AUTOMATIC = (None, "", "automatic")
Count = Annotated[int, Field(ge=1, le=1000)]
Seed = Annotated[int, Field(ge=-1, lt=1 << 63)]


class TextToImage(OpenBody):
    """The body of ``txt2img``; fields that it does not name are left out of account."""

    prompt: str = ""
    negative_prompt: str | None = None
    seed: Seed = -1
    subseed: Seed = -1
    subseed_strength: Annotated[float, Field(ge=0, le=1)] = 0
    steps: Count | None = None
    cfg_scale: Annotated[float, Field(ge=0, le=1000)] | None = None
    width: Annotated[int, Field(ge=1, le=16384)] | None = None
    height: Annotated[int, Field(ge=1, le=16384)] | None = None
    batch_size: Count = 1
    n_iter: Count = 1
    sampler_name: str | None = None
    sampler_index: str | None = None
    scheduler: str | None = None
    override_settings: dict[str, Any] | None = None
    send_images: bool = True
    styles: list[str] | None = None
    enable_hr: bool = False
    restore_faces: bool | None = None
    tiling: bool | None = None
    script_name: str | None = None
    alwayson_scripts: dict[str, Any] | None = None


class ImageToImage(TextToImage):
    """The body of ``img2img``."""

    init_images: Annotated[list[str], Field(min_length=1, max_length=1)]
    mask: str | None = None
    mask_blur: Annotated[int, Field(ge=0, le=1000)] | None = None
    denoising_strength: Annotated[float, Field(ge=0, le=1)] | None = None
    inpaint_full_res: bool = False
    inpaint_full_res_padding: Annotated[int, Field(ge=0, le=16384)] | None = None
    inpainting_mask_invert: int = 0


def routes(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter(prefix="/sdapi/v1", tags=["A1111"])
    chosen: dict[str, str | None] = {"model": None}
    """The model that A1111's option ``sd_model_checkpoint`` names."""
    running: set[Drawing] = set()

    async def answer(request: Request, body: TextToImage, wanted: Wanted) -> dict[str, Any]:
        drawing = await service.submit(wanted)
        running.add(drawing)
        try:
            await until_gone(request, service, drawing, interrupted=True)
        finally:
            running.discard(drawing)
        return _answer(drawing, body)

    @router.post("/txt2img")
    async def txt2img(body: TextToImage, request: Request) -> dict[str, Any]:
        return await answer(
            request, body, Wanted(body.prompt, _model(body, chosen["model"]), _options(body), previews=True)
        )

    @router.post("/img2img")
    async def img2img(body: ImageToImage, request: Request) -> dict[str, Any]:
        options = {
            **_options(body),
            "strength": body.denoising_strength,
            **({"mask_blur": body.mask_blur, **_masked(body)} if body.mask else {}),
        }
        wanted = Wanted(
            body.prompt,
            _model(body, chosen["model"]),
            options,
            init_image=bytes_of_text(body.init_images[0], "init_images"),
            mask=bytes_of_text(body.mask, "mask") if body.mask else None,
            inverted=bool(body.inpainting_mask_invert),
            previews=True,
        )
        return await answer(request, body, wanted)

    @router.get("/samplers")
    async def samplers() -> list[dict[str, Any]]:
        return [{"name": name, "aliases": [short], "options": {}} for short, name in A1111_NAMES.items()]

    @router.get("/schedulers")
    async def schedulers() -> list[dict[str, Any]]:
        named = [{"name": name, "label": label, "aliases": None} for name, label in A1111_TYPES.items()]
        return [{"name": "automatic", "label": "Automatic", "aliases": None}, *named]

    @router.get("/sd-models")
    async def models() -> list[dict[str, Any]]:
        return [
            {"title": name, "model_name": name, "hash": None, "sha256": None, "filename": name, "config": None}
            for name in service.models
        ]

    @router.get("/loras")
    async def loras() -> list[dict[str, Any]]:
        return [{"name": name, "alias": name, "path": name, "metadata": {}} for name in sorted(service.adapters)]

    @router.get("/scripts")
    async def scripts() -> dict[str, list[str]]:
        return {"txt2img": [], "img2img": []}

    @router.get("/options")
    async def options() -> dict[str, Any]:
        return {"sd_model_checkpoint": service.model(chosen["model"]).name, "samples_format": "png"}

    @router.post("/options")
    async def set_options(body: dict[str, Any]) -> None:
        if name := body.get("sd_model_checkpoint"):
            chosen["model"] = service.model(str(name)).name

    @router.get("/progress")
    async def progress(skip_current_image: bool = False) -> dict[str, Any]:
        return _progress(running, skip_current_image)

    @router.post("/interrupt")
    async def interrupt() -> None:
        for drawing in _drawn(running):
            service.cancel(drawing)

    return router


def _model(body: TextToImage, chosen: str | None) -> str | None:
    return (body.override_settings or {}).get("sd_model_checkpoint") or chosen


def _options(body: TextToImage) -> dict[str, Any]:
    refused = {
        "enable_hr": body.enable_hr,
        "restore_faces": body.restore_faces,
        "tiling": body.tiling,
        "script_name": body.script_name,
        "alwayson_scripts": body.alwayson_scripts,
        "styles": body.styles,
    }
    if field := next((name for name, value in refused.items() if value), None):
        raise Refused(f"{field}: sdort does not have this here", 422, field)
    return {
        "negative_prompt": body.negative_prompt or "",
        "seed": None if body.seed < 0 else body.seed,
        **_variation(body),
        "steps": body.steps,
        "guidance_scale": body.cfg_scale,
        "width": body.width,
        "height": body.height,
        "num_images": body.batch_size * body.n_iter,
        "scheduler": _sampler(body),
        **_clip_skip(body),
    }


def _variation(body: TextToImage) -> dict[str, Any]:
    if not body.subseed_strength:
        return {}
    return {
        "variation_strength": body.subseed_strength,
        "variation_seed": None if body.subseed < 0 else body.subseed,
    }


def _clip_skip(body: TextToImage) -> dict[str, Any]:
    layers = (body.override_settings or {}).get("CLIP_stop_at_last_layers")
    if layers is None:
        return {}
    if not isinstance(layers, int) or isinstance(layers, bool):
        raise Refused("CLIP_stop_at_last_layers is no whole number", 422, "override_settings")
    return {"clip_skip": max(layers, 1)}


def _masked(body: ImageToImage) -> dict[str, Any]:
    return {"only_masked": True, "mask_padding": body.inpaint_full_res_padding} if body.inpaint_full_res else {}


def _sampler(body: TextToImage) -> str | None:
    """The scheduler by A1111's names of a sampler and a schedule type; None for the model's own.

    Raises:
        Refused: there is none of these names.
    """
    name = body.sampler_name or body.sampler_index
    if not name:
        return None
    given = body.scheduler if (body.scheduler or "").lower() not in _AUTOMATIC else None
    levels = A1111_TYPES.get(given, given) if given else USUAL_SPACING.get(name)
    asked = f"{name} {levels}" if levels else name
    try:
        find_scheduler(asked)
    except SdortError as error:
        raise of_error(error, 404, "sampler_name") from error
    return asked


def _answer(drawing: Drawing, body: TextToImage) -> dict[str, Any]:
    done = [image for image in drawing.images if image]
    seeds = [image.seed for image in done]
    first = drawing.requests[0]
    info = {
        "prompt": first.prompt,
        "negative_prompt": first.negative_prompt,
        "seed": seeds[0] if seeds else first.seed,
        "all_seeds": seeds,
        "all_prompts": [first.prompt] * len(done),
        "width": first.width,
        "height": first.height,
        "steps": first.steps,
        "cfg_scale": first.guidance_scale,
        "sampler_name": body.sampler_name or first.scheduler,
        "infotexts": [image.parameters for image in done],
        "job_timestamp": time.strftime("%Y%m%d%H%M%S"),
    }
    images = [base64.b64encode(image.png).decode() for image in done] if body.send_images else []
    parameters = body.model_dump(exclude={"init_images", "mask"})
    return {"images": images, "parameters": parameters, "info": json.dumps(info)}


def _drawn(running: set[Drawing]) -> list[Drawing]:
    """Those that are being drawn; the others wait."""
    return [drawing for drawing in running if drawing.has_begun]


def _progress(running: set[Drawing], without_image: bool) -> dict[str, Any]:
    drawn = _drawn(running)
    first = min(drawn, key=lambda drawing: drawing.begun, default=None)
    step, steps = first.progress if first else (0, 0)
    share = step / steps if steps else 0.0
    preview = first.last_preview if first and not without_image else None
    return {
        "progress": round(share, 4),
        "eta_relative": round(first.seconds * (1 - share) / share, 3) if first and share else 0.0,
        "state": {
            "skipped": False,
            "interrupted": False,
            "job": first.id if first else "",
            "job_count": len(running),
            "job_timestamp": "0",
            "job_no": 0,
            "sampling_step": step,
            "sampling_steps": steps,
        },
        "current_image": preview.partition(",")[2] if preview else None,
        "textinfo": None,
    }
