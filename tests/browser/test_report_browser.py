"""The report in a real browser: every control is driven, and what it changes is checked."""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from r2no import FourierCells
from r2no.report import ReportData, collect, evaluate, render
from r2no.report.cells import cells_json
from r2no.report.data import unpack
from r2no.report.figures import example_pictures, group_colour, table
from r2no.report.wording import in_order
from tests.support import adapted as toy
from tests.support.chromium import Page

pytestmark = pytest.mark.browser

KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "Tab": 9}


@pytest.fixture(scope="module")
def data() -> ReportData:
    return collect(toy.model(), evaluation=toy.evaluation(gaps=True), title="Toy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data) -> Path:
    """The page; one of two lead times; one of shared ones; one without repair modules."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "report.html").write_text(render(data))
    cells = FourierCells.polar((8, 12), radial=3, angular=2)
    leads = cells_json(
        toy.by_hand(cells, 2, torch.Generator().manual_seed(0)), ["u", "v"], frames=4
    )
    (folder / "leads.html").write_text(render(replace(data, retention=leads)))
    (folder / "published.html").write_text(render(collect(toy.model("published"))))
    scored = evaluate(toy.instant(), toy.split(range(20, 22)))
    instant = collect(toy.instant(), evaluation=scored, title="Toy, no module")
    (folder / "instant.html").write_text(render(instant))
    (folder / "artifact.html").write_text(render(replace(data, evaluation=None)))
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    page = Page(tmp_path_factory.mktemp("chromium"))
    yield page
    page.close()


@pytest.fixture
def page(browser: Page, folder: Path) -> Iterator[Page]:
    """The open page; afterwards the console must be empty and nothing else have been fetched."""
    browser.resize(1280, 900)
    browser.media()
    browser.open(f"file://{folder}/report.html")
    yield browser
    assert browser.problems() == []
    assert set(browser.requests()) <= {f"file://{path}" for path in folder.iterdir()}
    assert not [e for e in browser.events if e.get("method") == "Page.javascriptDialogOpening"]


def press(page: Page, key: str) -> None:
    page.press(key, KEYS[key])


def pixels(page: Page, selector: str) -> np.ndarray:
    """Red, green, blue and alpha of a canvas, (height, width, 4)."""
    found = page.run(
        f"(() => {{ const c = document.querySelector({json.dumps(selector)}); "
        "const copy = new OffscreenCanvas(c.width, c.height).getContext('2d'); "
        "copy.drawImage(c, 0, 0); const d = copy.getImageData(0, 0, c.width, c.height); "
        "return {size: [c.height, c.width], data: Array.from(d.data)}; })()"
    )
    return np.array(found["data"], dtype=np.uint8).reshape(*found["size"], 4)


def weights_shown(page: Page) -> list[list[str]]:
    return page.run(
        "[...document.querySelectorAll('#cell-weights tbody tr')].map("
        "(row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))"
    )


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def assert_groups_add_up(page: Page, found: dict, weights: np.ndarray) -> None:
    """The first table: what is kept of the source, then the sum of each group's weights."""
    rows = page.run(
        "[...document.querySelectorAll('#cell-groups tbody tr')].map("
        "(row) => [...row.children].map((cell) => cell.textContent))"
    )
    assert [row[0] for row in rows[1:]] == [group["title"] for group in found["groups"]]
    own = [float(weights[group["own"]].sum()) for group in found["groups"]]
    np.testing.assert_allclose([number(row[1]) for row in rows[1:]], own, atol=0.051)
    taken = sum(w for w, group in zip(own, found["groups"], strict=True) if group["replaces"])
    np.testing.assert_allclose(number(rows[0][1]), 1 - taken, atol=0.051)
    assert [g["name"] for g in found["groups"] if not g["replaces"]] == ["repair"]
    shares = [number(row[-1].removesuffix("\u00a0%")) for row in rows[1:]]
    assert sum(shares) == pytest.approx(100, abs=len(shares))


# -- bands --------------------------------------------------------------------------------------


def test_arrow_keys_choose_the_point_of_the_time_series(page, data):
    shown = (
        "[...document.querySelectorAll('.choice > div')].map((part) => part.offsetHeight > 0)"
        ".reduce((found, seen, at) => (seen ? [...found, at] : found), [])"
    )
    number = len(data.evaluation.bands["points"]) * len(data.evaluation.bands["channels"])
    assert page.run(shown) == [0]
    page.focus("#point-1")
    for place in range(1, number):
        press(page, "ArrowRight")
        page.wait(f"document.querySelector('#point-{place + 1}').checked")
        assert page.run(shown) == [place]
    page.click(".choice label")
    page.wait("document.querySelector('#point-1').checked")
    assert page.run(shown) == [0]


# -- retention map ------------------------------------------------------------------------------


def test_pointing_at_a_cell_shows_its_weights(page, data):
    found = data.retention
    plane = np.frombuffer(base64.b64decode(found["plane"]["data"]), "<u2")
    plane = plane.reshape(found["plane"]["shape"])
    weights = np.frombuffer(base64.b64decode(found["weights"]["data"]), "<f4")
    weights = weights.reshape(found["weights"]["shape"])
    height, width = plane.shape
    seen = set()
    for row, column in ((0, 0), (height // 2, width - 1), (height - 1, width // 2)):
        page.hover("#map canvas", (column + 0.5) / width, (row + 0.5) / height)
        cell = int(plane[row, column])
        page.wait(f"document.querySelector('#map').dataset.cell === '{cell}'")
        places = [row["places"] for table in found["tables"] for row in table["rows"]]
        shown = weights_shown(page)
        assert [len(row) for row in shown] == [len(row) for row in places]
        known = {
            place: number(text)
            for row, texts in zip(places, shown, strict=True)
            for place, text in zip(row, texts, strict=True)
            if place is not None
        }
        values = [known[place] for place in range(weights.shape[-1])]
        np.testing.assert_allclose(values, weights[0, 0, cell], atol=0.051)
        assert_groups_add_up(page, found, weights[0, 0, cell])
        low, high = found["cells"][cell]["radius"]
        summary = page.text("#cell-summary")
        assert f"Radius {float(f'{low:.3g}'):g} to {float(f'{high:.3g}'):g}" in summary
        assert f"{100 * found['share'][0][0][cell]:.2f}\u00a0%" in summary
        assert page.text("#cell-title").startswith(f"Cell {cell + 1} of {len(found['cells'])}")
        seen.add(cell)
    assert len(seen) == 3


def test_arrow_keys_walk_from_cell_to_cell(page):
    page.focus("#map")
    press(page, "Home")
    centre = page.run("document.querySelector('#map').dataset.cell")
    places = [centre]
    for key in ("ArrowRight", "ArrowUp", "ArrowUp", "ArrowLeft"):
        press(page, key)
        places.append(page.run("document.querySelector('#map').dataset.cell"))
        assert places[-1] != places[-2]
        assert page.text("#cell-title").startswith(f"Cell {int(places[-1]) + 1} of")
    press(page, "Home")
    assert page.run("document.querySelector('#map').dataset.cell") == centre
    outline = "getComputedStyle(document.querySelector('#map')).outlineStyle"
    assert page.run(outline) == "solid"  # a visible focus


def test_walking_against_the_border_stays_inside(page):
    page.focus("#map")
    for _ in range(30):
        press(page, "ArrowUp")
    last = page.run("document.querySelector('#map').dataset.cell")
    press(page, "ArrowUp")
    assert page.run("document.querySelector('#map').dataset.cell") == last


def test_channel_of_the_map_changes_colours_and_weights(page):
    names = page.run("[...document.querySelectorAll('#map-channel option')].map((o) => o.text)")
    assert names == ["u", toy.HOSTILE]
    before, weights = pixels(page, "#map canvas"), weights_shown(page)
    page.focus("#map-channel")
    press(page, "ArrowDown")
    page.wait("document.querySelector('#map-channel').value === '1'")
    assert page.text("#cell-title").endswith(f"channel {toy.HOSTILE}")
    assert (pixels(page, "#map canvas") != before).any()
    assert len(weights) == len(weights_shown(page))


def test_quantity_of_the_map_changes_colours_and_scale(page):
    pictures, scales = [], []
    page.focus("#map-value")
    shown = "document.querySelector('#map-scale').getClientRects().length > 0"
    legend = "document.querySelector('#map-groups').getClientRects().length > 0"
    groups = pixels(page, "#map canvas")
    assert (page.run(shown), page.run(legend)) == (False, True)
    press(page, "ArrowDown")
    for value in ("gain", "change", "share"):
        page.wait(f"document.querySelector('#map-value').value === '{value}'")
        pictures.append(pixels(page, "#map canvas"))
        assert (page.run(shown), page.run(legend)) == (True, False)
        scales.append((page.text("#map-low"), page.text("#map-high")))
        press(page, "ArrowDown")
    assert (groups != pictures[0]).any()
    assert (pictures[0] != pictures[1]).any()
    assert (pictures[1] != pictures[2]).any()
    assert scales[0][0].startswith("\u2212")
    assert scales[1][0].startswith("0")


def test_lead_time_is_offered_only_where_weights_depend_on_it(page, folder):
    page.open(f"file://{folder}/published.html")
    assert page.run("document.querySelector('#map-lead-label').hidden")
    page.open(f"file://{folder}/leads.html")
    assert not page.run("document.querySelector('#map-lead-label').hidden")
    options = page.run("[...document.querySelectorAll('#map-lead option')].map((o) => o.text)")
    assert options == ["all forecast frames", "frames 1 to 2", "frames 3 to 4"]
    before, picture = weights_shown(page), pixels(page, "#map canvas")
    page.focus("#map-lead")
    press(page, "ArrowDown")
    assert weights_shown(page) != before
    assert (pixels(page, "#map canvas") != picture).any()


def test_first_map_shows_the_leading_groups(page, data):
    found = data.retention
    plane = np.frombuffer(base64.b64decode(found["plane"]["data"]), "<u2")
    plane = plane.reshape(found["plane"]["shape"])
    shown = pixels(page, "#map canvas")
    down, across = (shown.shape[n] // plane.shape[n] for n in (0, 1))
    inked = 0
    for row in range(plane.shape[0]):
        for column in range(plane.shape[1]):
            cell = int(plane[row, column])
            if cell == int(page.run("document.querySelector('#map').dataset.cell")):
                continue  # under the outline
            colour = group_colour(int(found["leading"][0][0][cell]))
            middle = shown[row * down + down // 2, column * across + across // 2, :3]
            inked += bytes(middle.tolist()).hex() == colour[1:]
    assert inked > 0.9 * plane.size - 20  # pixels at the outline are covered


def test_page_of_a_model_without_modules_works(page, folder):
    page.open(f"file://{folder}/instant.html")
    assert "no repair module" in page.text("#no-depths")
    rows = page.run(
        "[...document.querySelectorAll('#cell-groups tbody th')].map((e) => e.textContent)"
    )
    assert rows == ["Source, kept", "Recall", "Mean field", "Pretrained operator", "Damping"]
    before = weights_shown(page)
    page.focus("#map")
    press(page, "ArrowRight")
    assert weights_shown(page) != before
    page.run("document.querySelector('#cell-details summary').click()")
    assert page.run("document.querySelector('#cell-details').open")


# -- fields -------------------------------------------------------------------------------------


def expected_colours(data: ReportData, channel: int, frame: int, name: str) -> np.ndarray:
    """What the canvas must show, from the data alone; missing values transparent."""
    fields = data.evaluation.example["channels"][channel]["fields"]
    scale = example_pictures(data.evaluation)[1][channel]
    values, low, high = unpack(fields[name.split("/")[0]])[frame], scale["low"], scale["high"]
    if name.endswith("/error"):
        values = values - unpack(fields["target"])[frame]
        low, high = -scale["reach"], scale["reach"]
    colours = table("signed" if name.endswith("/error") else "field")
    place = (np.nan_to_num(values) - low) / (high - low)
    steps = np.clip(np.floor(place * len(colours)), 0, len(colours) - 1).astype(int)
    known = np.isfinite(values)[..., None]
    return np.where(known, np.dstack([colours[steps], np.full(values.shape, 255)]), 0)


def assert_fields_show(page: Page, data: ReportData, channel: int, frame: int) -> None:
    panes = {"target": "[data-field=target]", "r2no": "[data-field=r2no]"}
    panes |= {"source": "[data-field=source]", "source/error": "[data-error=source]"}
    panes |= {"r2no/error": "[data-error=r2no]"}
    for name, selector in panes.items():
        shown = pixels(page, f"{selector} canvas").astype(int)
        wanted = expected_colours(data, channel, frame, name)
        same = (np.abs(shown - wanted) <= 1).all(-1)
        assert same.mean() > 0.98, name  # the last bit of a quotient may pick the next colour
        np.testing.assert_array_equal(shown[..., 3], wanted[..., 3])


def test_slider_shows_the_chosen_frame(page, data):
    assert_fields_show(page, data, 0, 3)
    page.focus("#frame")
    press(page, "Home")
    page.wait("document.querySelector('#frame').value === '0'")
    assert page.text("#frame-label") == "frame 1 of 4, lead time 0.5"
    assert_fields_show(page, data, 0, 0)
    press(page, "ArrowRight")
    assert page.text("#frame-label") == "frame 2 of 4, lead time 1"
    label = "document.querySelector('#frame').getAttribute('aria-valuetext')"
    assert page.run(label) == "frame 2 of 4, lead time 1"
    assert_fields_show(page, data, 0, 1)


def test_slider_follows_the_mouse(page, data):
    page.click("#frame")  # its middle
    assert page.run("document.querySelector('#frame').value") in ("1", "2")
    frame = int(page.run("document.querySelector('#frame').value"))
    assert_fields_show(page, data, 0, frame)


def test_channel_of_the_fields_changes_pictures_scales_and_unit(page, data):
    low, unit = page.text("#field-low"), page.text("#field-unit")
    page.focus("#field-channel")
    press(page, "ArrowDown")
    assert_fields_show(page, data, 1, 3)
    assert page.text("#field-low") != low
    assert unit.strip() == "(m/s)"
    assert page.text("#field-unit").strip() == "(<b>)"


def test_frame_error_is_that_of_the_shown_fields(page, data):
    fields = data.evaluation.example["channels"][0]["fields"]
    error = (unpack(fields["r2no"]) - unpack(fields["target"]))[3]
    rms = float(np.sqrt(np.nanmean(error**2)))
    assert f"R2NO {float(f'{rms:.3g}'):g}." in page.text("#frame-errors")


def test_play_runs_through_the_frames_until_paused(page, data):
    page.click("#play")
    assert page.text("#play") == "Pause"
    assert page.run("document.querySelector('#play').getAttribute('aria-pressed')") == "true"
    for frame in (0, 1, 2):
        page.wait(f"document.querySelector('#frame').value === '{frame}'")
    page.click("#play")
    assert page.text("#play") == "Play"
    stopped = page.run("document.querySelector('#frame').value")
    page.wait("(window.waited ??= Date.now(), Date.now() - window.waited > 900)")
    assert page.run("document.querySelector('#frame').value") == stopped
    assert_fields_show(page, data, 0, int(stopped))


# -- theme, table, rest -------------------------------------------------------------------------

_BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def brightness(page: Page) -> float:
    colour = page.run(_BACKGROUND)
    return sum(int(part) for part in colour[4:-1].split(",")[:3]) / 765


def test_theme_button_switches_and_prints_stay_light(page):
    page.media(prefers_color_scheme="light")
    assert brightness(page) > 0.9
    page.click("#theme")
    assert brightness(page) < 0.2
    assert page.text("#theme") == "Light theme"
    assert page.run("document.querySelector('#theme').getAttribute('aria-pressed')") == "true"
    page.media("print")
    assert brightness(page) > 0.9
    page.media()
    page.click("#theme")
    assert brightness(page) > 0.9
    page.media(prefers_color_scheme="dark")
    assert brightness(page) > 0.9  # the choice outlives the system's wish
    page.media()


def test_dark_system_gets_a_dark_page(page, folder):
    page.media(prefers_color_scheme="dark")
    page.open(f"file://{folder}/report.html")
    assert brightness(page) < 0.2
    assert page.text("#theme") == "Light theme"
    page.media(prefers_color_scheme="light")
    assert brightness(page) > 0.9
    page.wait("document.querySelector('#theme').textContent === 'Dark theme'")
    page.media()


def readouts(page: Page) -> list[str]:
    rows = "document.querySelectorAll('#score-table tbody tr')"
    return page.run(f"[...{rows}].map((row) => row.dataset.readout)")


def test_headings_sort_the_scores(page, data):
    scores = {name: row["rmse"] for name, row in data.evaluation.scores.items()}
    assert readouts(page) == in_order(scores)
    heading = "#score-table th:nth-child(3)"
    page.click(f"{heading} button")
    assert readouts(page) == sorted(scores, key=lambda name: scores[name])
    sort = f"document.querySelector('{heading}').getAttribute('aria-sort')"
    assert page.run(sort) == "ascending"
    page.focus(f"{heading} button")
    page.press("Enter", 13)
    page.send("Input.dispatchKeyEvent", type="char", text="\r", key="Enter")
    page.wait(f"{sort} === 'descending'")
    assert readouts(page) == sorted(scores, key=lambda name: -scores[name])
    page.click("#score-table th:nth-child(1) button")
    assert page.run(sort) is None


def test_tab_reaches_every_control(page):
    page.run("document.activeElement.blur()")
    reached = []
    for _ in range(90):
        press(page, "Tab")
        reached.append(page.run("document.activeElement.id"))
    controls = {"theme", "map", "map-channel", "map-value", "field-channel", "play", "frame"}
    assert controls <= set(reached)
    assert reached.index("theme") < reached.index("map-channel") < reached.index("play")


def test_details_open(page):
    page.click("#retention > details summary")
    assert page.run("document.querySelector('#retention > details').open")
    assert "Orientation" in page.text("#retention > details")


def test_every_control_and_picture_has_a_name(page):
    unnamed = page.run(
        "[...document.querySelectorAll('button, select, input, [role=img], img, [role=region]')]"
        ".filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim()"
        " || e.hasAttribute('alt'))).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []


def test_artifact_alone_opens_too(page, folder):
    page.open(f"file://{folder}/artifact.html")
    assert page.run("document.querySelector('#fields')") is None
    assert page.text("#cell-title").startswith("Cell ")


@pytest.mark.parametrize(
    ("width", "medium"),
    [(1280, "screen"), (768, "screen"), (390, "screen"), (320, "screen"), (700, "print")],
)
def test_nothing_sticks_out_sideways(page, width, medium):
    """700 pixels is a sheet of A4 between its margins."""
    page.media(medium)
    page.resize(width, 900)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_page_without_script_shows_pictures_and_no_dead_controls(page, folder):
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(f"file://{folder}/report.html")
        visible = "(e) => e.getClientRects().length > 0"
        dead = "button, select, input:not([name=point])"  # points are chosen by the style sheet
        controls = page.run(f"[...document.querySelectorAll('{dead}')].filter({visible}).length")
        page.click("#point-2 + label")
        chart = page.run(f"({visible})(document.querySelector('#point-2 + label + div'))")
        pictures = page.run(
            f"[...document.querySelectorAll('#retention img, #fields img')].filter({visible})"
            ".filter((i) => i.complete && i.naturalWidth > 0).length"
        )
    finally:
        page.send("Emulation.setScriptExecutionDisabled", value=False)
    assert controls == 0
    assert chart
    assert pictures == 2 * 2 + 1 + 5 + 2  # maps and scale; panes and scales


def test_pictures_of_the_page_differ_where_they_should(page, folder, tmp_path):
    """Kept in $R2NO_SCREENSHOTS, if set, to be looked at."""
    place = Path(os.environ.get("R2NO_SCREENSHOTS", tmp_path))
    place.mkdir(parents=True, exist_ok=True)
    light = page.picture(place / "light.png")
    page.media(prefers_color_scheme="dark")
    dark = page.picture(place / "dark.png")
    page.media("print")
    printed = page.picture(place / "print.png")
    page.media()
    page.resize(390, 844)
    narrow = page.picture(place / "narrow.png")
    page.resize(1280, 900)
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open(f"file://{folder}/report.html")
    static = page.picture(place / "no-script.png")
    page.send("Emulation.setScriptExecutionDisabled", value=False)
    page.open(f"file://{folder}/instant.html")
    instant = page.picture(place / "instant.png")
    pictures = (light, dark, printed, narrow, static, instant)
    assert len(set(pictures)) == len(pictures)
    assert min(len(picture) for picture in pictures) > 50_000
