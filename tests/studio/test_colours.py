"""The page and the plots of `inspect` use the same colours for signs, gates and states."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import seqloom.studio
from seqloom.inspect.plots.figures import (
    GATE_SCALE,
    OTHER_COLOURS,
    QUANTITY_COLOURS,
    Theme,
    gate_colour,
    quantity_colour,
)
from seqloom.nn.cells import CELLS

THEMES: tuple[Theme, Theme] = ("light", "dark")
PAPER = {"light": "#ffffff", "dark": "#171a21"}  # --paper of style.css
# Simulation of colour vision deficiencies in linear RGB (Machado et al., 2009, severity 1)
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
WEB = Path(seqloom.studio.__file__).parent / "web"


def stops(name: str, theme: str) -> list[tuple[int, ...]]:
    source = (WEB / "lib" / "colour.js").read_text()
    match = re.search(rf"const {name} = {{.*?{theme}: \[(.*?)\]", source, re.DOTALL)
    assert match is not None
    return [tuple(bytes.fromhex(digits)) for digits in re.findall("#([0-9a-f]{6})", match[1])]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_red_is_positive_and_blue_is_negative(theme: str) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from seqloom.inspect.plots.figures import SIGNED_COLORMAP

    colours = [matplotlib.colormaps[SIGNED_COLORMAP](index / 6) for index in range(7)]
    for ours, theirs in zip(stops("DIVERGING", theme), colours, strict=True):
        if theirs[0] != pytest.approx(theirs[2], abs=0.01):  # all except the neutral middle
            assert (ours[0] > ours[2]) == (theirs[0] > theirs[2])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_green_words_support_and_red_words_oppose_the_label(theme: str) -> None:
    against, *_, in_favour = stops("ATTRIBUTION", theme)
    assert max(against) == against[0] and max(in_favour) == in_favour[1]


def test_captions_name_the_colours() -> None:
    words = " ".join(path.read_text() for path in WEB.glob("**/*.js"))
    assert not re.search(r"[Oo]range (values|bars|is|are)", words)
    assert "Red values are above 0, blue values below" in words and "Red bars are positive, blue bars negative" in words


# --- gates and states -------------------------------------------------------------------------------------------------


def linear(colour: str) -> Any:
    parts = np.array(list(bytes.fromhex(colour[1:]))) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour: str, vision: str) -> Any:
    """Return the CIELAB coordinates of a colour as seen with a type of colour vision."""
    perceived = np.clip(VISION[vision] @ linear(colour), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ perceived
    x, y, z = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(colour: str, ground: str) -> float:
    dark, bright = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(rgb)) for rgb in (colour, ground))
    return (bright + 0.05) / (dark + 0.05)


def test_page_and_plots_use_the_same_palette() -> None:
    source = (WEB / "lib" / "palette.js").read_text()
    page_palette = json.loads(source.partition("export const PALETTE = ")[2].rpartition(";")[0])
    assert page_palette == {
        "gateScale": list(GATE_SCALE),
        "quantities": QUANTITY_COLOURS,
        "others": {theme: list(colours) for theme, colours in OTHER_COLOURS.items()},
    }


def test_style_sheet_has_the_background_of_the_palette() -> None:
    papers = re.findall(r"--paper: (#[0-9a-f]{6});", (WEB / "style.css").read_text())
    assert papers == [PAPER["light"], PAPER["dark"]]


@pytest.mark.parametrize("vision", VISION)
def test_gate_scale_lightness_is_monotonic(vision: str) -> None:
    lightness = [lab(stop, vision)[0] for stop in GATE_SCALE]
    assert min(np.diff(lightness)) > 5 and lightness[-1] - lightness[0] > 70


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_line_colours_are_distinguishable(theme: Theme, vision: str) -> None:
    panels = [[*cell.gates, "T"] for cell in CELLS.values() if cell.gates]
    panels += [["g", "h", "y"], ["candidate", "h", "y"]]
    for panel in panels:
        assert set(panel) <= QUANTITY_COLOURS.keys()  # every quantity of a cell has a defined colour
        for a, b in itertools.combinations(panel, 2):
            distances = np.linalg.norm(
                lab(quantity_colour(a, theme=theme), vision) - lab(quantity_colour(b, theme=theme), vision)
            )
            assert distances > 20, (a, b, distances)
    for colour in [*(colours[theme] for colours in QUANTITY_COLOURS.values()), *OTHER_COLOURS[theme]]:
        assert contrast(colour, PAPER[theme]) >= 3, colour


def test_gate_colour_interpolates() -> None:
    assert [gate_colour(step / 8) for step in range(9)] == list(GATE_SCALE)
    assert gate_colour(-1) == GATE_SCALE[0] and gate_colour(2) == GATE_SCALE[-1]
    assert gate_colour(1 / 16) == "#461768"  # half-way between the first two colours


def rgb(text: str) -> tuple[int, ...]:
    """Parse a colour such as rgb(1 2 3) or rgb(1, 2, 3)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def near(colour: Any, value: float) -> bool:
    """Return whether a colour matches a gate value, with a tolerance for 256 steps and float16."""
    return bool(np.abs(np.array(colour[:3]) - list(bytes.fromhex(gate_colour(value)[1:]))).max() <= 4)


@pytest.mark.parametrize("theme", THEMES)
def test_cell_view_uses_palette(studio_page: Any, theme: Theme) -> None:
    page = studio_page.open("cell", run="lm-lstm", text="The class", quantity="f", count="4", unit="3")
    if theme == "dark":
        page.get_by_role("button", name="Dark").click()
    head, *rows = studio_page.table("cell-units")
    pixels = page.locator('figure[data-figure="cell-units"] canvas.cells').first.evaluate(
        "(canvas) => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    painted = np.array(pixels).reshape(len(rows), len(head) - 1, 4)
    for row, values in zip(painted, rows, strict=True):
        assert all(near(pixel, float(value)) for pixel, value in zip(row, values[1:], strict=True))
    strokes = page.locator('figure[data-figure="cell-unit"] svg.unit-chart path.line').evaluate_all(
        "(lines) => lines.map((line) => line.getAttribute('stroke'))"
    )
    assert strokes == [quantity_colour(name, theme=theme) for name in ("i", "f", "o", "c", "g", "h")]
    names = page.locator("svg.gate-bars .gate-name").evaluate_all(
        "(names) => names.map((name) => [name.textContent, getComputedStyle(name).fill])"
    )
    assert {name: rgb(fill) for name, fill in names} == {
        name: tuple(bytes.fromhex(quantity_colour(name, theme=theme)[1:])) for name in "ifo"
    }


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(
    ("run", "stage", "gate_rows"),
    [("lm-lstm", "step", 6), ("translate-gru", "encoder-step", 3)],  # each gate, and each product with one
)
def test_tour_uses_the_palette(
    studio_page: Any, client: TestClient, theme: Theme, run: str, stage: str, gate_rows: int
) -> None:
    walk = client.post("/api/walk", json={"run": run}).json()
    panels = next(each["panels"] for each in walk["stages"] if each["key"] == stage)
    page = studio_page.open("walk", run=run, stage=stage)
    if theme == "dark":
        page.get_by_role("button", name="Dark").click()
    figures = page.locator(".walk-panels figure")
    figures.first.wait_for()
    checked = 0
    for figure, panel in zip(figures.all(), panels, strict=True):
        for number, row in enumerate(figure.locator("svg.strips > g:has(text.name)").all()):
            if not (panel.get("gates") or panel.get("gate") == number):
                continue
            cells = row.locator("rect.cell").evaluate_all(
                "(cells) => cells.map((cell) => [getComputedStyle(cell).fill, cell.querySelector('title').textContent])"
            )
            name = row.locator("text.name").text_content()
            assert cells and all(near(rgb(fill), float(value)) for fill, value in cells), name
            checked += 1
    assert checked == gate_rows
    assert "Gates range from dark purple (closed) to yellow (open)." in page.locator(".walk-panels").inner_text()


def test_plots_use_palette(runs: Path) -> None:
    pytest.importorskip("matplotlib")
    from seqloom.inspect.plots.cells import draw_gates, draw_unit
    from seqloom.inspect.views.cells import gate_trace

    trace = gate_trace(seqloom.load(runs / "lm-lstm", "cpu"), "The class")
    maps = {axes.get_title(loc="left").split()[0]: axes.images[0] for axes in draw_gates(trace).axes if axes.images}
    for name in "ifo":
        low, high = maps[name].get_clim()
        assert (low, high) == (0, 1)
        colours = [[round(255 * part) for part in maps[name].cmap(step / 8)] for step in range(9)]
        assert all(near(colour, step / 8) for step, colour in enumerate(colours))
    panels: list[Any] = draw_unit(trace, 3).axes
    lines = [line for axes in panels for line in axes.lines if len(line.get_xdata()) > 2]
    line_colours = {line.get_label().split()[0].rstrip(":"): line.get_color() for line in lines}
    assert line_colours == {name: quantity_colour(name) for name in ("i", "f", "o", "c", "g", "h")}
