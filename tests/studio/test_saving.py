"""Figures that are saved say what they are, of which run, on which sentence, and keep their legends."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.studio.conftest import StudioPage

SVG = "{http://www.w3.org/2000/svg}"
DATE = "Sunday, November 15, 2026"
ARABIC = (
    "مرحبا بالعالم هذا نص طويل جدا يجب أن ينكسر على أكثر من سطر واحد لأن الشكل ضيق هنا وليس فيه متسع كاف للجملة كلها"
)


def saved(page: Any, figure: str, kind: str, place: Path) -> str:
    with page.expect_download() as download:
        page.locator(f'figure[data-figure="{figure}"]').get_by_role("button", name=kind, exact=True).click()
    download.value.save_as(place / "saved")
    return (place / "saved").read_text("utf-8")


def texts(drawing: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(drawing).iter(f"{SVG}text"))


def test_a_drawing_has_a_heading_and_its_legend(studio_page: StudioPage, tmp_path: Path) -> None:
    page = studio_page.open("beam", run="translate-gru", text=DATE)
    said = [node.text for node in texts(saved(page, "beam", "SVG", tmp_path))]
    assert said[:2] == ["The search", f"translate-gru · {DATE}"]
    assert {"the best", "pruned", "Edges: log p. Boxes: score."} <= set(said)
    whole = saved(page, "beam", "HTML", tmp_path)
    assert f"translate-gru · {DATE}" in whole and whole.count("The search<") == 1 + whole.count("<title>The search<")


def test_a_long_sentence_is_wrapped_and_stands_from_right_to_left(studio_page: StudioPage, tmp_path: Path) -> None:
    page = studio_page.open("write", run="lm-lstm", text=ARABIC, length="12")
    found = texts(saved(page, "surprise", "SVG", tmp_path))
    lines = [node for node in found if node.get("direction") == "rtl"]
    assert len(lines) > 1 and " ".join(str(node.text).strip() for node in lines) == ARABIC
    assert [node.text for node in found[:2]] == ["Surprise", "lm-lstm"]
    assert "entropy" in [node.text for node in found]


def test_two_runs_side_by_side_keep_their_own_names(studio_page: StudioPage, tmp_path: Path) -> None:
    page = studio_page.open("alignment", run="translate-gru", other="translate-transformer", text=DATE)
    for figure, run in (("alignment", "translate-gru"), ("alignment2", "translate-transformer")):
        assert texts(saved(page, figure, "SVG", tmp_path))[1].text == f"{run} · {DATE}"


def test_points_are_saved_as_shapes_and_text(studio_page: StudioPage, tmp_path: Path) -> None:
    page = studio_page.open("vectors", run="words")
    page.locator(".scatter-key text").first.wait_for()
    drawing = ElementTree.fromstring(saved(page, "vectors", "SVG", tmp_path))
    assert not list(drawing.iter(f"{SVG}image"))
    assert len(list(drawing.iter(f"{SVG}circle"))) > 20
    assert "words" in [node.text for node in drawing.iter(f"{SVG}text")]
