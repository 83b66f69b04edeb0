"""Exported figures contain the title, the run, the text and the legend."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.studio.conftest import StudioPage

SVG = "{http://www.w3.org/2000/svg}"
DATE = "Sunday, November 15, 2026"
ARABIC = (
    "مرحبا بالعالم هذا نص طويل جدا يجب أن ينكسر على أكثر من سطر واحد لأن الشكل ضيق هنا وليس فيه متسع كاف للجملة كلها"
)


def save_figure(page: Any, figure: str, kind: str, folder: Path) -> str:
    with page.expect_download() as download:
        page.locator(f'figure[data-figure="{figure}"]').get_by_role("button", name=kind, exact=True).click()
    download.value.save_as(folder / "saved")
    return (folder / "saved").read_text("utf-8")


def texts(drawing: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(drawing).iter(f"{SVG}text"))


def test_exported_drawing_has_heading_and_legend(studio_page: StudioPage, tmp_path: Path) -> None:
    page = studio_page.open("beam", run="translate-gru", text=DATE)
    labels = [node.text for node in texts(save_figure(page, "beam", "SVG", tmp_path))]
    assert labels[:2] == ["Search tree", f"translate-gru · {DATE}"]
    assert {"best", "pruned", "Edges: log p. Boxes: score."} <= set(labels)
    html = save_figure(page, "beam", "HTML", tmp_path)
    assert f"translate-gru · {DATE}" in html and html.count("Search tree<") == 1 + html.count("<title>Search tree<")


def test_long_right_to_left_text_is_wrapped(studio_page: StudioPage, tmp_path: Path) -> None:
    page = studio_page.open("write", run="lm-lstm", text=ARABIC, length="12")
    nodes = texts(save_figure(page, "surprisal", "SVG", tmp_path))
    lines = [node for node in nodes if node.get("direction") == "rtl"]
    assert len(lines) > 1 and " ".join(str(node.text).strip() for node in lines) == ARABIC
    assert [node.text for node in nodes[:2]] == ["Surprisal", "lm-lstm"]
    assert "entropy" in [node.text for node in nodes]


def test_compared_runs_keep_their_names(studio_page: StudioPage, tmp_path: Path) -> None:
    page = studio_page.open("alignment", run="translate-gru", other="translate-transformer", text=DATE)
    for figure, run in (("alignment", "translate-gru"), ("alignment2", "translate-transformer")):
        assert texts(save_figure(page, figure, "SVG", tmp_path))[1].text == f"{run} · {DATE}"


def test_scatter_plot_is_saved_as_vectors(studio_page: StudioPage, tmp_path: Path) -> None:
    page = studio_page.open("vectors", run="words")
    page.locator(".scatter-key text").first.wait_for()
    drawing = ElementTree.fromstring(save_figure(page, "vectors", "SVG", tmp_path))
    assert not list(drawing.iter(f"{SVG}image"))
    assert len(list(drawing.iter(f"{SVG}circle"))) > 20
    assert "words" in [node.text for node in drawing.iter(f"{SVG}text")]
