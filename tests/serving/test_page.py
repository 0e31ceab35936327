"""The page of ``sdort serve`` in a browser: what a person does with it, and what it asks the server for."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect
from support.browser import WatchedPage, watched
from support.serving import Running, png, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Route

PROMPT = "a small red circle left of a blue square on white"
expect.set_options(timeout=20_000)  # milliseconds: several processes may share a core

KEY = "a-key-of-more-than-enough-letters"
LONG = 1000
"""Steps of a request that is not done before it is looked at; it is always cancelled."""


@pytest.fixture(scope="module")
def server(pipeline: Path) -> Iterator[Running]:
    with running(pipeline, max_steps=LONG, max_images=4, any_size=True) as found:
        yield found


@pytest.fixture
def watched_page(browser: Browser, server: Running) -> Iterator[WatchedPage]:
    with opened(browser, server) as found:
        yield found


@pytest.fixture
def page(watched_page: WatchedPage) -> Page:
    return watched_page.page


@contextmanager
def opened(browser: Any, server: Running, width: int = 1200, scheme: str = "light") -> Iterator[WatchedPage]:
    """The page, with what it needs to know of the server."""
    with watched(browser, f"{server.url}/", width, scheme) as found:
        found.page.set_default_timeout(20_000)
        ready(found.page)
        yield found
        # Chromium logs a status that refuses, and a connection that fails, whatever the page makes of it.
        assert [error for error in found.errors if not error.startswith("Failed to load resource")] == []


def ready(page: Page) -> None:
    page.get_by_text("connected", exact=True).wait_for()


def draw(page: Page, prompt: str = PROMPT, steps: int = 2, **fields: object) -> dict[str, Any]:
    """Fills the form and presses Ctrl+Enter; the body of the request."""
    page.fill("#prompt", prompt)
    for name, value in {"steps": steps, **fields}.items():
        page.fill(f"#{name}", str(value))
    return sent(page, lambda: page.keyboard.press("Control+Enter"))


def sent(page: Page, action: Callable[[], object]) -> dict[str, Any]:
    """The body of the request that an action sends."""
    with page.expect_request("**/api/images") as request:
        action()
    body: dict[str, Any] = json.loads(request.value.post_data or "")
    return body


def drawn(page: Page) -> None:
    """Waits until all is drawn."""
    idle(page)
    page.locator("#download").wait_for()


def idle(page: Page) -> None:
    page.get_by_role("button", name="Draw", exact=True).wait_for()


def at_work(page: Page) -> None:
    """Waits for the first steps."""
    page.get_by_text(re.compile(rf"Step \d+ of {LONG}")).wait_for()


def posts(page: Page) -> list[Request]:
    """The requests for images, as they are sent."""
    found: list[Request] = []
    page.on("request", lambda request: found.append(request) if request.url.endswith("/api/images") else None)
    return found


def answer(page: Page, status: int, error: dict[str, str], headers: dict[str, str] | None = None) -> None:
    """Have the next request for images refused, in the server's place."""

    def refuse(route: Route) -> None:
        route.fulfill(status=status, json={"error": error}, headers=headers)

    page.route("**/api/images", refuse, times=1)


def pixels(data_url: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with Image.open(io.BytesIO(base64.b64decode(data_url.removeprefix("data:image/png;base64,")))) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_a_prompt_becomes_a_picture_that_can_be_saved(page: Page, server: Running, tmp_path: Path) -> None:
    with page.expect_response("**/0.png") as image:
        request = draw(page, seed=7)
    assert request == {
        "model": "tiny",
        "prompt": PROMPT,
        "negative_prompt": "",
        "width": 64,
        "height": 64,
        "steps": 2,
        "guidance": 7.5,
        "seed": 7,
        "num_images": 1,
        "scheduler": "dpm++-2m-karras",
        "adapters": [],
    }
    drawn(page)
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "a-small-red-circle-left-of-a-blue-square-on-white-7.png"
    download.value.save_as(tmp_path / "saved.png")
    assert (tmp_path / "saved.png").read_bytes() == server.client.get(image.value.url).content
    assert "seed 7" in page.inner_text("#caption")
    page.get_by_text("Parameters").click()
    assert "Seed: 7" in page.inner_text("#parameters pre")
    shown = page.locator("#frame img")
    assert shown.evaluate("image => [image.naturalWidth, image.alt]") == [64, f"{PROMPT}, seed 7"]


def test_a_running_request_is_shown_and_cancelled(page: Page) -> None:
    requests = posts(page)
    draw(page, steps=LONG)
    at_work(page)
    page.locator("#frame img[src^='data:image/jpeg']").wait_for()
    assert 0 < page.locator("#progress-bar").evaluate("bar => bar.value / bar.max") < 1
    assert re.fullmatch(rf"\d+/{LONG} · sdort", page.title())
    assert page.inner_text("#live") == "Drawing"  # not every step is read aloud
    page.keyboard.press("Control+Enter")
    expect(page.locator("#live")).to_have_text("Already drawing.")
    with page.expect_request(lambda request: request.method == "DELETE"):
        page.click("#cancel")
    idle(page)
    assert len(requests) == 1
    assert page.locator("#empty").is_visible()
    assert page.inner_text("#live") == "Cancelled"
    assert page.evaluate("document.activeElement.id") == "draw"  # Cancel, which had the focus, is gone
    draw(page)
    drawn(page)


def test_a_reload_comes_back_to_the_form_and_the_running_request(page: Page) -> None:
    requests = posts(page)
    page.fill("#negative_prompt", "green")
    seed = 2**63 - 1  # more than a number of JavaScript holds
    assert draw(page, steps=200, seed=seed)["seed"] == seed
    page.get_by_text(re.compile(r"Step \d+ of 200")).wait_for()
    with page.expect_request("**/events") as events:
        page.reload()
    assert page.input_value("#negative_prompt") == "green"
    drawn(page)
    assert len(requests) == 1
    assert events.value.url.split("/")[-2] in page.evaluate("shown.key")
    page.reload()
    page.locator("#history button").click()
    page.locator("#frame img").wait_for()
    assert f"seed {seed}" in page.inner_text("#caption")


def test_two_tabs_draw_each_its_own(browser: Browser, server: Running) -> None:
    context = browser.new_context()
    with opened(context, server) as first, opened(context, server) as second:
        one, other = first.page, second.page
        draw(one, "one", steps=LONG)
        at_work(one)
        draw(other, "two")
        other.get_by_text(re.compile("(?:In|Next in) the queue")).wait_for()
        one.click("#cancel")
        idle(one)
        drawn(other)
        assert other.inner_text("#caption-prompt") == "two"
        assert one.input_value("#prompt") == "one"
        one.get_by_role("button", name="two, seed").wait_for()  # the history is of both
        one.reload()
        ready(one)
        with one.expect_popup() as popup:
            one.evaluate("void open(location.href)")  # has a copy of the tab's storage
        ready(popup.value)
        assert popup.value.input_value("#prompt") == ""
    context.close()


def test_a_server_that_is_away_is_told_and_found_again(browser: Browser, pipeline: Path) -> None:
    with running(pipeline, max_steps=LONG, drain=0.0) as server:
        found = opened(browser, server)
        page = found.__enter__().page
        draw(page, steps=LONG)
        at_work(page)
    page.get_by_text("The server does not answer. Trying again").wait_for()
    with running(pipeline, port=server.port, drain=0.0):
        page.get_by_text("The server does not know this request any more").wait_for()
        ready(page)
        expect(page.locator("#steps")).to_have_attribute("max", "100")  # the new server's
        draw(page)
        drawn(page)
    page.keyboard.press("Control+Enter")
    page.get_by_text("The server does not answer. Draw again when it is back.").wait_for()
    found.__exit__(None, None, None)


FIELDS = {"width": "size", "init_image": "choose-start"}
"""Field of a request -> its control, where that has another name."""


def test_a_refusal_stands_beside_the_field_that_it_names(page: Page) -> None:
    for field in ("prompt", "width", "num_images", "scheduler", "init_image", "guidance"):
        answer(page, 400, {"message": f"{field} is <b>wrong</b>.", "field": field})
        draw(page)
        error = page.locator(".error")
        expect(error).to_have_text(f"{field} is <b>wrong</b>.")
        control = page.locator(f"#{FIELDS.get(field, field)}")
        expect(control).to_be_focused()
        assert control.get_attribute("aria-describedby") == error.get_attribute("id")
    draw(page)
    drawn(page)
    assert not page.locator("[aria-invalid]").count()


def test_what_the_server_refuses_is_told_where_it_stands(page: Page) -> None:
    page.select_option("#size", "other")
    page.fill("#width", "8000")
    page.fill("#height", "8000")
    draw(page)
    page.locator(".field[data-names~=width] .error").wait_for()


def test_numbers_that_are_none_are_told_before_anything_is_sent(page: Page) -> None:
    requests = posts(page)
    for name, value in {"steps": "1001", "guidance": "", "seed": "-1", "num_images": "1.5"}.items():
        page.fill(f"#{name}", value)
    page.fill("#prompt", "x" * 4001)
    page.click("#draw")
    assert page.locator("#form .error").all_inner_texts() == [
        "It has 4001 characters; 4000 are allowed.",
        "Steps: a whole number from 1 to 1000.",
        "Guidance: a number from 0.",
        "The seed is a whole number from 0, or empty.",
        "Images: a whole number from 1 to 4.",
    ]
    page.fill("#steps", "20")
    assert page.locator("#form .error").count() == 4
    assert requests == []


def test_a_full_queue_is_asked_again_and_a_failure_is_told(page: Page) -> None:
    events = 'event: failed\r\ndata: {"message": "The GPU has no memory left."}\r\n\r\n'
    page.route("**/events", lambda route: route.fulfill(body=events, content_type="text/event-stream"))
    answer(page, 429, {"message": "the queue is full"}, {"Retry-After": "2"})
    draw(page)
    page.get_by_text(re.compile("The queue is full. Asking again in [12] s")).wait_for()
    page.get_by_role("alert").get_by_text("The GPU has no memory left.").wait_for()
    idle(page)


def test_a_key_is_asked_for_and_kept_by_the_tab(browser: Browser, pipeline: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"{KEY}\n")
    keys.chmod(0o600)
    with running(pipeline, api_keys=keys, sizes=[]) as server, watched(browser, f"{server.url}/") as found:
        page, key = found.page, found.page.get_by_role("textbox", name="Key")
        key.fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("The server does not accept this key.").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Give a key").click()
        key.fill(KEY)
        page.keyboard.press("Enter")
        ready(page)
        draw(page)
        drawn(page)  # events and image have the key too
        page.reload()
        ready(page)
        assert not page.locator("#key-dialog").is_visible()
        assert page.evaluate("[sessionStorage.getItem('sdort-key'), localStorage.length]") == [KEY, 0]


def test_the_history_gives_settings_back_and_varies_them(page: Page) -> None:
    request = draw(page, seed=7, guidance=3, negative_prompt="green")
    drawn(page)
    draw(page, "another", seed=9, guidance=5, negative_prompt="")
    drawn(page)
    page.get_by_role("button", name=f"{PROMPT}, seed 7").click()
    page.click("#again")
    expect(page.locator("#prompt")).to_be_focused()
    assert sent(page, lambda: page.keyboard.press("Control+Enter")) == request
    drawn(page)
    assert sent(page, lambda: page.click("#vary")) == {**request, "seed": None}
    drawn(page)
    expect(page.locator("#history button")).to_have_count(4)
    page.click("#forget")
    expect(page.locator("#history button")).to_have_count(3)
    page.reload()
    expect(page.locator("#history button")).to_have_count(3)
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#forget-all")
    page.locator("#history-card").wait_for(state="hidden")
    page.reload()
    ready(page)
    assert page.evaluate("entries('images').then(all => all.length)") == 0


def test_the_history_is_bounded(page: Page) -> None:
    page.evaluate(
        """async () => {
          const request = {prompt: '', width: 64, height: 64, steps: 1, guidance: 1};
          const one = {request, seed: '1', parameters: '', thumb: new Blob(), bytes: 1};
          const old = Array.from({length: 100}, (_, at) => [
            ['pictures', `old-${at}`, {...one, key: `old-${at}`, time: at}],
            ['images', `old-${at}`, {blob: new Blob()}]]);
          await change(old.flat());
        }"""
    )
    page.reload()
    ready(page)
    draw(page)
    drawn(page)
    page.get_by_role("button", name=PROMPT).wait_for()
    expect(page.locator("#history button")).to_have_count(100)
    page.reload()
    page.get_by_role("button", name=PROMPT).wait_for()
    keys = page.evaluate("entries('pictures').then(all => all.map(each => each.key))")
    assert {f"old-{number}" for number in range(100)} - set(keys) == {"old-0"}
    assert page.evaluate("entries('images').then(all => all.length)") == 100


def test_a_picture_that_is_dropped_gives_its_settings(page: Page, server: Running) -> None:
    with page.expect_response("**/0.png") as image:
        request = draw(page, seed=2**60 + 1, guidance=5.5, negative_prompt="fog")
    drawn(page)
    page.reload()
    ready(page)
    for name, value in {"prompt": "before", "negative_prompt": "", "seed": "", "guidance": 7.5, "steps": 9}.items():
        page.fill(f"#{name}", str(value))
    drop(page, "body", server.client.get(image.value.url).content, "old.png")
    page.get_by_text("The settings of old.png are in the form.").wait_for()
    assert sent(page, lambda: page.click("#draw")) == request
    drawn(page)
    page.get_by_role("button", name="Undo").click()
    assert page.input_value("#prompt") == "before"
    assert page.input_value("#steps") == "9"


def test_settings_that_this_server_cannot_draw_are_told(browser: Browser, server: Running) -> None:
    context = browser.new_context()
    context.route("**/api/info", altered_info)
    with opened(context, server) as found:
        settings = {"model": "gone", "width": 72, "height": 72, "adapters": [{"name": "unknown", "weight": 1}]}
        found.page.route("**/api/settings", lambda route: route.fulfill(json=settings))
        found.page.select_option("#model", "small")
        drop(found.page, "body", b"any bytes", "pasted.png", "paste")
        for sentence in (
            "The settings of pasted.png are in the form.",
            "This server has no model gone.",
            "72 \u00d7 72 is not among the sizes of this server.",
            "This server has no adapter unknown.",
        ):
            found.page.get_by_text(sentence).wait_for()
    context.close()


def test_a_picture_without_settings_can_be_what_is_started_from(page: Page) -> None:
    page.set_input_files("#settings-file", {"name": "photo.png", "mimeType": "image/png", "buffer": png((0, 128, 0))})
    page.get_by_role("alert").get_by_text("the image says nothing of how it was drawn").wait_for()
    page.get_by_role("button", name="Start from it").click()
    page.locator("#start-view canvas").first.wait_for()
    request = draw(page)
    assert (pixels(request["init_image"]) == (0, 128, 0)).all()
    assert request["strength"] == 0.75
    assert "mask" not in request
    drawn(page)


def drop(page: Page, selector: str, content: bytes, name: str, event: str = "drop") -> None:
    """Drops or pastes a file."""
    page.evaluate(
        """([selector, content, name, event]) => {
          const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([bytes], name, {type: 'image/png'}));
          const target = document.querySelector(selector);
          const init = {bubbles: true, cancelable: true, dataTransfer, clipboardData: dataTransfer};
          for (const name of event === 'drop' ? ['dragenter', 'dragover', 'drop'] : [event])
            target.dispatchEvent(new (event === 'drop' ? DragEvent : ClipboardEvent)(name, init));
        }""",
        [selector, base64.b64encode(content).decode(), name, event],
    )


@pytest.fixture
def mask_page(page: Page) -> Page:
    """The page with an image to start from, twice as wide as high: its left half is red, its right half blue."""
    image = Image.new("RGB", (256, 128), (255, 0, 0))
    image.paste((0, 0, 255), (128, 0, 256, 128))
    with io.BytesIO() as file:
        image.save(file, "PNG")
        drop(page, "#start", file.getvalue(), "photo.png")
    page.click("#edit-mask")
    page.fill("#brush-size", "20")  # of the shorter side: a radius of 6.4 of the picture's 64 pixels
    return page


def mask_of(page: Page) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Draws; which pixels of the request's mask are white, all others being black."""
    page.click("#mask-done")
    request = draw(page)
    drawn(page)
    assert request["strength"] == 1
    image = pixels(request["init_image"])
    assert image.shape == (64, 64, 3)
    assert tuple(image[32, 8]) == (255, 0, 0)  # cut evenly on both sides
    assert tuple(image[32, 56]) == (0, 0, 255)
    mask = pixels(request["mask"])
    assert set(np.unique(mask)) <= {0, 255}
    white: np.ndarray[Any, np.dtype[np.bool_]] = mask[:, :, 0] == 255
    assert (mask == mask[:, :, :1]).all()
    return white


def distances(row: float, column: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """From the middle of each pixel of 64x64 to a point."""
    rows, columns = np.mgrid[:64, :64] + 0.5
    found: np.ndarray[Any, np.dtype[np.float64]] = np.hypot(rows - row, columns - column)
    return found


def paint(page: Page, *points: tuple[float, float]) -> None:
    """Paints with the mouse from point to point, in pixels of the picture, x first."""
    box = page.locator("#easel").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"] / 64, box["y"] + y * box["height"] / 64) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places:
        page.mouse.move(*place, steps=4)
    page.mouse.up()


def test_the_mask_is_what_was_painted(mask_page: Page) -> None:
    paint(mask_page, (16, 20), (48, 20))
    white = mask_of(mask_page)
    columns = np.clip(np.arange(64) + 0.5, 16, 48)
    rows = np.arange(64)[:, None] + 0.5
    distance = np.hypot(rows - 20, np.arange(64)[None] + 0.5 - columns[None])
    assert white[distance < 5.9].all()
    assert not white[distance > 6.9].any()


def test_paint_is_erased_inverted_undone_and_cleared(mask_page: Page) -> None:
    paint(mask_page, (10, 10), (10, 10))
    paint(mask_page, (32, 32), (32, 32))
    mask_page.click("#erase")
    paint(mask_page, (32, 32), (32, 32))
    mask_page.click("#erase")
    paint(mask_page, (50, 50), (50, 50))
    mask_page.click("#undo")
    mask_page.click("#invert")
    white = mask_of(mask_page)
    assert not white[distances(10, 10) < 5.9].any()
    assert white[distances(10, 10) > 7].all()  # the second is erased, the third undone
    mask_page.click("#edit-mask")
    mask_page.click("#clear")
    mask_page.keyboard.press("Control+z")
    mask_page.click("#clear")
    paint(mask_page, (50, 20), (50, 20))
    white = mask_of(mask_page)
    assert white[distances(20, 50) < 5.9].all()
    assert not white[distances(20, 50) > 7].any()


def test_the_mask_is_painted_by_keys(mask_page: Page) -> None:
    mask_page.locator("#easel canvas.strokes").focus()
    for key in ["ArrowUp"] * 5 + ["ArrowLeft"] * 4 + ["Space"] + ["ArrowRight"] * 8 + ["Space"] + ["ArrowDown"] * 9:
        mask_page.keyboard.press(key)  # in steps of half a radius
    assert mask_page.inner_text("#live") == "70 % from the left, 70 % from the top"
    mask_page.keyboard.press("]")
    white = mask_of(mask_page)
    columns = np.clip(np.arange(64) + 0.5, 32 - 12.8, 32 + 12.8)
    distance = np.hypot(np.arange(64)[:, None] + 0.5 - 16, np.arange(64)[None] + 0.5 - columns[None])
    assert white[distance < 5.9].all()
    assert not white[distance > 6.9].any()


def test_the_mask_stays_where_it_is_if_the_size_changes_or_the_page_is_loaded_anew(mask_page: Page) -> None:
    paint(mask_page, (20, 32), (20, 32))  # 12 left of the middle
    mask_page.click("#mask-done")
    mask_page.select_option("#size", "other")
    mask_page.fill("#width", "96")
    mask_page.fill("#height", "64")
    mask_page.reload()
    mask_page.locator("#start-view canvas").first.wait_for()
    request = draw(mask_page)
    drawn(mask_page)
    white = pixels(request["mask"])[:, :, 0] == 255
    assert white.shape == (64, 96)
    rows, columns = np.nonzero(white)
    assert (columns.mean() + 0.5, rows.mean() + 0.5) == pytest.approx((48 - 12, 32), abs=0.3)
    mask_page.click("#remove-start")
    mask_page.click("#again")
    mask_page.locator("#start-view canvas").first.wait_for()
    again = draw(mask_page)
    assert (pixels(again["mask"])[:, :, 0] == 255).sum() == pytest.approx(white.sum(), abs=4)
    drawn(mask_page)


def test_all_of_it_can_be_done_by_keys(page: Page) -> None:
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type(PROMPT)
    reached = []
    for _ in range(13):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached == [
        *("negative_prompt", "draw", "SUMMARY", "choose-settings", "size", "steps", "guidance", "seed", "dice"),
        *("num_images", "scheduler", "SUMMARY", "BODY"),
    ]
    page.focus("#dice")
    page.keyboard.press("Space")
    assert page.input_value("#seed").isdigit()
    page.focus("#draw")
    sent(page, lambda: page.keyboard.press("Enter"))
    drawn(page)
    draw(page)
    drawn(page)
    page.locator("#history button").nth(1).wait_for()
    page.locator("#history button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#history button").nth(1).get_attribute("aria-current") == "true"


def altered_info(route: Route) -> None:
    """Two models, one of which only draws from text, and adapters."""
    response = route.fetch()
    info = response.json()
    default = {"steps": 4, "guidance": 1, "scheduler": "lcm", "size": [512, 512]}
    small = {"id": "small", "name": "a <b>small</b> model", "sizes": [[512, 512]], "any_size": False, "tasks": ["text"]}
    info |= {"models": [*info["models"], {**small, "default": default}], "adapters": ["style", "detail"]}
    route.fulfill(response=response, json=info)


def test_the_chosen_model_says_what_can_be_asked(browser: Browser, server: Running) -> None:
    context = browser.new_context()
    context.route("**/api/info", altered_info)
    with opened(context, server) as found:
        page = found.page
        page.select_option("#model", "small")
        assert page.inner_text("#model-name") == "a <b>small</b> model"
        assert page.locator("#size option").all_inner_texts() == ["512 \u00d7 512"]
        assert page.input_value("#steps") == "4"
        assert not page.locator("#start").is_visible()
        page.select_option("#model", "tiny")
        page.select_option("#size", "other")
        page.get_by_label("Width in pixels").fill("72")
        page.get_by_label("Height in pixels").fill("80")
        page.focus("#adapter")
        page.keyboard.type("style")
        page.keyboard.press("Enter")
        page.get_by_label("Weight of style").fill("0.4")
        page.select_option("#adapter", "detail")
        page.get_by_role("button", name="Remove detail").click()
        answer(page, 400, {"message": "It has no such layers.", "field": "adapters.0.name"})
        request = draw(page)
        page.locator("#adapter-field .error").wait_for()
        assert (request["width"], request["height"]) == (72, 80)
        assert request["adapters"] == [{"name": "style", "weight": 0.4}]
    context.close()


def test_the_browser_refuses_any_other_script_and_any_markup(watched_page: WatchedPage) -> None:
    page = watched_page.page
    markup = "try { document.body.innerHTML = '<b>x</b>'; 'taken' } catch (error) { error.name }"
    assert page.evaluate(markup) == "TypeError"
    assert page.evaluate("fetch('https://example.invalid/').then(() => 'taken', error => error.name)") == "TypeError"
    refused = page.evaluate(
        """() => new Promise(resolve => {
          addEventListener('securitypolicyviolation', event => resolve(event.effectiveDirective));
          const image = new Image();
          image.src = 'https://example.invalid/image.png';
        })"""
    )
    assert refused == "img-src"
    watched_page.errors.clear()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1200, "light"), (1200, "dark")])
def test_it_can_be_read_everywhere(browser: Browser, server: Running, width: int, scheme: str) -> None:
    long = "w" * 120
    context = browser.new_context()
    context.route("**/api/info", altered_info)
    with opened(context, server, width, scheme) as found:
        page = found.page
        assert found.view().problems == []
        assert page.locator("#settings").evaluate("details => details.open") == (width > 900)
        page.locator("#settings").evaluate("details => { details.open = true; }")
        draw(page, f"{PROMPT} {long}", num_images=2)
        drawn(page)
        page.locator("#history img").first.wait_for()
        page.get_by_text("Parameters").click()
        assert found.view().problems == []
        drop(page, "#start", png((0, 128, 0)), "photo.png")
        page.locator("#start-view canvas").first.wait_for()
        page.select_option("#adapter", "detail")
        answer(page, 400, {"message": f"It is wrong: {long}", "field": "steps"})
        page.keyboard.press("Control+Enter")
        page.locator("#error-steps").wait_for()
        found.errors.clear()  # the status
        assert found.view().problems == []
        page.click("#edit-mask")
        assert found.view().problems == []
    context.close()
