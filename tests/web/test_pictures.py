"""Each view as a picture, wide and narrow, light and dark: a broken layout differs.

The kept pictures are a quarter as wide. Of the areas of some pixels in which one of two pictures
has anything, a few may differ. The time stands still. Fonts move everything, so that a machine with
others skips this. After a change of the page that is wanted, look at the new ones:
`SPS_KEEP_PICTURES=1 pytest tests/web/test_pictures.py` writes them.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, expect

from harness.processes import DEADLINE_S
from harness.web_page import TOKEN, page_of
from shared_pathways_service.web import page_state, service_questions
from tests.web.complaints import without_complaints
from tests.web.samples import LOAD, RUN, jobs, team_sample

expect.set_options(timeout=DEADLINE_S * 1000)
_KEPT = Path(__file__).parent / "pictures"
_SIZES = {1440: 1500, 390: 1400}
#: By view what is there once it is drawn.
_VIEWS = {
    "overview": ".events li time",
    "jobs": "tbody tr",
    "job/sweep-1": ".log .bold",
    "slices": ".grid li",
    "tenants": "rect.going.own",
    "timeline": "rect.going.own",
    "usage": ".shares span",
    "run": "canvas",
    "connection/bob-train-1": ".state-chip.running",
}
#: Pixels of a page that are one of a kept picture, and of a kept picture that are one area.
_KEPT_PX, _AREA_PX = 4, 3
#: Levels of 255 by which an area differs from the background, or from the kept one.
_SEEN = 10
#: The share of areas that may differ.
_MOST_DIFFERENT = 0.04
_FONT = _KEPT / "font.txt"


#: The time in all pictures, seconds since the epoch.
_NOW = 1_790_000_000.0


@contextlib.contextmanager
def shown() -> Iterator[str]:
    """Serves the page of a team; yields its address."""
    script, submitted = team_sample(_NOW), jobs(_NOW)
    with page_of(script, jobs=submitted, load=LOAD, runs=[RUN], delete_command=["false"]) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(autouse=True)
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock by which the page's server adds up the history."""
    for module in (page_state, service_questions):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: _NOW))


@pytest.fixture(autouse=True)
def with_our_fonts() -> None:
    found = ""
    if program := shutil.which("fc-match"):
        found = subprocess.run(
            [program, "system-ui"], capture_output=True, text=True, check=False, timeout=DEADLINE_S
        ).stdout
    if os.environ.get("SPS_KEEP_PICTURES") == "1":
        _FONT.write_text(found)
    elif found != _FONT.read_text():
        pytest.skip(f"the pictures are of a machine with {_FONT.read_text().strip()}")


def taken(page: Page, height: int) -> Image.Image:
    """A picture of the page's upper part."""
    width = (page.viewport_size or {"width": 0})["width"]
    clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
    data = page.screenshot(full_page=True, clip=clip, animations="disabled")
    found = Image.open(io.BytesIO(data)).convert("RGB")
    return found.resize((width // _KEPT_PX, height // _KEPT_PX), Image.Resampling.BOX)


def different(one: Image.Image, other: Image.Image) -> float:
    """The share of different areas, of those in which a picture has anything."""
    if one.size != other.size:
        return 1.0
    size = (one.width // _AREA_PX, one.height // _AREA_PX)
    a, b = (
        np.asarray(image.resize(size, Image.Resampling.BOX), np.float32) for image in (one, other)
    )
    background = np.median(b.reshape(-1, 3), axis=0)

    def apart(first: Any, second: Any) -> Any:
        return np.abs(first - second).max(axis=2) > _SEEN

    has_anything = apart(a, background) | apart(b, background)
    return float((apart(a, b) & has_anything).sum() / max(1, has_anything.sum()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [*_SIZES])
def test_each_view_looks_as_its_kept_picture(
    browser: Browser, width: int, scheme: str, tmp_path: Path
) -> None:
    wrong = []
    with (
        shown() as address,
        browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            timezone_id="UTC",
            locale="en-US",
        ) as context,
    ):
        page = context.new_page()
        with without_complaints(page):
            page.clock.set_fixed_time(datetime.fromtimestamp(_NOW, UTC))
            page.goto(f"{address}?token={TOKEN}")
            for view, content in _VIEWS.items():
                page.goto(f"{address}#{view}")
                expect(page.locator(content).first).to_be_visible()
                name = f"{view.replace('/', '_')}-{width}-{scheme}.png"
                kept = _KEPT / name
                if os.environ.get("SPS_KEEP_PICTURES") == "1":
                    # (Once data that come later are there as well.)
                    page.wait_for_timeout(1500)
                    taken(page, _SIZES[width]).save(kept, optimize=True)
                    continue
                expected = Image.open(kept).convert("RGB")
                share = until_alike(page, expected, tmp_path / name)
                if share > _MOST_DIFFERENT:
                    wrong.append(f"{kept}: {share:.0%} of it is different: {tmp_path / name}")
    assert not wrong, "\n".join(wrong)


def until_alike(page: Page, expected: Image.Image, path: Path) -> float:
    """Returns the share of different areas, once the page has had time to draw."""
    began = time.monotonic()
    while True:
        found = taken(page, expected.height * _KEPT_PX)
        share = different(found, expected)
        if share <= _MOST_DIFFERENT or time.monotonic() - began > DEADLINE_S / 10:
            found.save(path)
            return share
        page.wait_for_timeout(200)


def test_a_broken_layout_differs(browser: Browser, tmp_path: Path) -> None:
    breaks = {
        "header": "header { display: none !important }",
        "columns": ".cards-grid, .halves { display: block !important }",
        "colours": "body { background: #fff !important } .card { border: 0 !important; "
        "background: #333 !important }",
    }
    kept = Image.open(_KEPT / "overview-1440-light.png").convert("RGB")
    with (
        shown() as address,
        browser.new_context(
            viewport={"width": 1440, "height": 900}, color_scheme="light", bypass_csp=True
        ) as context,
    ):
        for name, style in breaks.items():
            page = context.new_page()
            page.clock.set_fixed_time(datetime.fromtimestamp(_NOW, UTC))
            page.goto(f"{address}?token={TOKEN}")
            expect(page.locator(_VIEWS["overview"]).first).to_be_visible()
            assert until_alike(page, kept, tmp_path / "as kept.png") <= _MOST_DIFFERENT
            page.add_style_tag(content=style)
            share = different(taken(page, _SIZES[1440]), kept)
            assert share > _MOST_DIFFERENT, name
            page.close()
