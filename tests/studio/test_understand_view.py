"""The view "Understand": labels, weights, tags and paths equal the Python API, and controls and keys work."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests import matching
from tests.studio.conftest import TOKEN, StudioPage, Window
from tests.understanding import ticket_recipe, trained

import seqloom
from seqloom.predict.loader import load
from seqloom.studio.run_folder import RunFolder
from seqloom.studio.server import Studio, make_app
from seqloom.studio.views import VIEWS
from seqloom.training import train_recipe

suits = VIEWS["understand"].suits

TEXT = "Sonntag, 15. November"
SENTENCE = "Maria Keller moved from Lisbon to Oslo ."


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.replace("−", "-")) for cell in cells]


# --- classification ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(runs: Path) -> Any:
    return seqloom.load(runs / "classifier", "cpu")


def test_labels_and_weights_match_classify(studio_page: StudioPage, classifier: Any) -> None:
    page = studio_page.open("understand", run="classifier", text=TEXT)
    page.locator("figure").nth(1).wait_for()
    (prediction,) = classifier.classify(TEXT, why=True)
    table = studio_page.table("labels")
    assert [row[0] for row in table[1:]] == [candidate.label for candidate in prediction.candidates]
    assert numbers([row[1] for row in table[1:]]) == pytest.approx(
        [candidate.probability for candidate in prediction.candidates], rel=1e-4
    )
    assert sum(numbers([row[1] for row in table[1:]])) == pytest.approx(1, abs=1e-4)
    table = studio_page.table("why")
    assert [row[0] for row in table[1:]] == [word.text for word in prediction.why.words]
    assert numbers([row[1] for row in table[1:]]) == pytest.approx(
        [word.weight for word in prediction.why.words], rel=1e-4
    )
    assert (
        page.locator(".bars g").count() == 12
        and "22 less probable labels" in page.locator("figcaption, .caption").first.inner_text()
    )


def test_selected_label_can_be_explained_by_occlusion(studio_page: StudioPage, classifier: Any) -> None:
    page = studio_page.open("understand", run="classifier", text=TEXT)
    bar = page.locator(".bars g").nth(2)
    label = bar.get_attribute("aria-label").removeprefix("Explain ")
    bar.focus()
    page.keyboard.press("Enter")
    page.get_by_text(f"Attribution of “{label}” to characters").wait_for()
    expected = classifier.why(TEXT, label)
    assert numbers([row[1] for row in studio_page.table("why")[1:]]) == pytest.approx(
        [word.weight for word in expected.words], rel=1e-4
    )
    page.get_by_role("radio", name="Occlusion").check()
    page.get_by_text("is removed").wait_for()
    expected = classifier.why(TEXT, label, "occlusion")
    assert numbers([row[1] for row in studio_page.table("why")[1:]]) == pytest.approx(
        [word.weight for word in expected.words], rel=1e-3, abs=1e-6
    )
    assert f"label={label}" in page.url and "kind=occlusion" in page.url


# --- tagging ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "run"), [("lattice", "tagger"), ("lattice-2", "hmm-tagger")])
def test_tags_and_paths_match_the_python_api(studio_page: StudioPage, runs: Path, name: str, run: str) -> None:
    page = studio_page.open("understand", run="tagger", other="hmm-tagger", text=SENTENCE)
    page.locator("svg.lattice").nth(1).wait_for()
    tagger = seqloom.load(runs / run, "cpu")
    (prediction,), expected = tagger.tag(SENTENCE), tagger.paths(SENTENCE)
    table = studio_page.table(name)
    assert table[0] == ["word", "tag", "p", *tagger.tags]
    assert [(row[0], row[1]) for row in table[1:]] == [(word.text, word.tag) for word in prediction.words]
    assert numbers([row[2] for row in table[1:]]) == pytest.approx(
        [word.probability for word in prediction.words], abs=1e-5
    )
    posterior = np.array([numbers(row[3:]) for row in table[1:]])
    np.testing.assert_allclose(posterior, expected.posterior, atol=1e-5)
    np.testing.assert_allclose(posterior.sum(axis=1), 1, atol=1e-4)
    figure = page.locator(f'figure[data-figure="{name}"]')
    assert figure.locator(".path").count() == len(prediction.words) - 1
    assert figure.locator(".node.best").count() == len(prediction.words)
    assert figure.locator(".tag-label").all_text_contents() == [word.tag for word in prediction.words]
    assert f"{np.exp(expected.log_prob):.3f}" in figure.locator(".caption").inner_text()


def test_words_with_different_tags_are_listed(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open(
        "understand", run="tagger", text=SENTENCE
    )  # by default, the HMM tagger of the same corpus is compared
    page.locator("svg.lattice").nth(1).wait_for()
    first, second = (
        [word.tag for word in seqloom.load(runs / run, "cpu").tag(SENTENCE)[0].words]
        for run in ("tagger", "hmm-tagger")
    )
    positions = [position for position, tags in enumerate(zip(first, second, strict=True)) if len(set(tags)) > 1]
    assert page.locator('figure[data-figure="lattice"] .differs').count() == len(positions)
    words = SENTENCE.split()
    caption = " · ".join(f"{words[position]}: {first[position]} or {second[position]}" for position in positions)
    assert (
        page.locator(".note")
        .first.inner_text()
        .endswith(caption if positions else "Both models predict the same tags.")
    )
    page.get_by_label("Compare with").select_option("")
    page.locator("svg.lattice").nth(1).wait_for(state="detached")
    assert "other=none" in page.url


def test_arrow_keys_move_the_lattice_cursor_and_announce_probabilities(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("understand", run="hmm-tagger", other="none", text=SENTENCE, all="1")
    drawing = page.locator("svg.lattice")
    drawing.focus()
    page.keyboard.press("ArrowRight")
    expected = seqloom.load(runs / "hmm-tagger", "cpu").paths(SENTENCE)
    tag = expected.best[0]  # the cursor is in the row of the first word
    announcement = page.locator("#spoken").inner_text()
    assert announcement.startswith(f"{expected.words[1]}: {expected.tags[tag]} with p = ")
    before = max(range(len(expected.tags)), key=lambda j: expected.pairs[0, j, tag])
    if expected.pairs[0, before, tag] > 0.002:
        assert f"reached from {expected.tags[before]}" in announcement
    page.keyboard.press("ArrowDown")
    assert page.locator("#spoken").inner_text() != announcement
    assert page.locator('figure[data-figure="lattice"] text.label').all_text_contents() == expected.tags


def test_typed_sentence_is_tagged(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("understand", run="hmm-tagger", other="none")
    box = page.get_by_label("Sentence")
    box.fill("شالوم Anna <b>lives</b> in 東京")
    box.press("Enter")
    page.locator("svg.lattice .word", has_text="東京").wait_for()
    (prediction,) = seqloom.load(runs / "hmm-tagger", "cpu").tag("شالوم Anna <b>lives</b> in 東京")
    assert [row[0] for row in studio_page.table("lattice")[1:]] == [word.text for word in prediction.words]
    assert page.locator(".view b").count() == 0


# --- pairs, choices and answers ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for task in ("pair", "score", "choice", "answer"):
        trained(matching.recipe(folder, task, "train.steps=2", "train.evaluate_every=2"), folder / "runs" / task)
    files = []
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text(f"an eel is a fish\nan owl is a bird of {split}\n", encoding="utf-8")
        files.append(f"data.{split}={folder / split}.txt")
    few = ("train.restarts=1", "train.iterations=5", "train.tolerance=0")
    train_recipe("hmm-letters", "data.corpus=text", *files, *few, out=folder / "runs" / "letters")
    return folder / "runs"


@pytest.fixture(scope="module")
def ask(pairs: Path) -> Any:
    headers = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"}
    client = TestClient(make_app(RunFolder(pairs), TOKEN), base_url="http://127.0.0.1", headers=headers)
    return lambda path, **body: client.post(f"/api/understand/{path}", json=body)


def test_pairs_choices_and_answers_match_the_python_api(ask: Any, pairs: Path) -> None:
    (prediction,) = load(pairs / "pair", "cpu").match([("a red fox", "it is blue")])
    response = ask("match", run="pair", first="a red fox", second="it is blue").json()
    assert [(candidate["label"], pytest.approx(candidate["probability"])) for candidate in response["labels"]] == [
        (candidate.label, candidate.probability) for candidate in prediction.candidates
    ]
    (prediction,) = load(pairs / "score", "cpu").match([("a red fox", "it is blue")])
    assert ask("match", run="score", first="a red fox", second="it is blue").json()["score"] == pytest.approx(
        prediction.score
    )
    (prediction,) = load(pairs / "choice", "cpu").choose([("the fox is", ["red", "blue"])])
    response = ask("choose", run="choice", text="the fox is", options=["red", "blue"]).json()
    assert [(candidate["label"], pytest.approx(candidate["probability"])) for candidate in response["labels"]] == [
        (candidate.text, candidate.probability) for candidate in prediction.options
    ]
    context = "There is a red fox. It stands on the table."
    (prediction,) = load(pairs / "answer", "cpu").answer("Which colour?", context, top=5)
    response = ask("answer", run="answer", question="Which colour?", context=context).json()
    assert [(candidate["text"], candidate["start"], candidate["end"]) for candidate in response["answers"]] == [
        (candidate.text, candidate.start, candidate.end) for candidate in prediction.answers
    ]


def test_unnamed_states_have_paths(ask: Any, pairs: Path) -> None:
    response = ask("tag", run="letters", text="an owl").json()
    assert "".join(response["words"]) == "an owl" and response["tags"][0].startswith("1: ")
    assert np.sum(response["posterior"], axis=1) == pytest.approx(1)


def test_unsuitable_runs_and_invalid_requests_are_rejected(ask: Any, client: TestClient) -> None:
    assert ask("classify", run="pair", text="x").json()["error"].startswith("pair is a model of sentence pairs.")
    assert ask("tag", run="answer", text="x").status_code == 400
    assert ask("match", run="pair", first=" ", second="x").json()["error"].startswith("The first text is empty")
    assert ask("choose", run="choice", text="x", options=["one"]).status_code == 422
    assert client.post("/api/understand/classify", json={"run": "classifier", "text": "x" * 2001}).status_code == 422
    answer = client.post("/api/understand/classify", json={"run": "classifier", "text": "x", "label": "Klingon"})
    assert answer.status_code == 400 and "has no label" in answer.json()["error"]
    assert suits({"task": "hmm-tag"}) and suits({"task": "classify"}) and not suits({"task": "translate"})


def test_tag_help_explains_tags_and_remains_open(studio_page: StudioPage) -> None:
    page = studio_page.open("understand", run="tagger", all="1")
    page.get_by_text("What the tags mean").click()
    words = page.locator(".tag-words").inner_text()
    assert "B-PER\nfirst word of the name of a person" in words and "I-LOC\ninside the name of a location" in words
    assert "precision" in words
    page.get_by_role("checkbox", name="All tags").uncheck()
    page.wait_for_function("() => !location.hash.includes('all=')")
    assert page.locator(".tag-words dl").first.is_visible()  # the details are still open


def test_pages_of_pairs_choices_scores_and_answers_show_predictions(window: Window, pairs: Path) -> None:
    with Studio(pairs, port=None).running() as serving, window.showing(serving) as opened:
        page = opened.open("understand", run="pair", first="a red fox")
        page.get_by_label("Second text").fill("it is blue")
        page.get_by_label("Second text").press("Enter")
        page.locator(".bars g").first.wait_for()
        assert {row[0] for row in opened.table("labels")[1:]} == {"yes", "no"}
        text = "There is a 𝒓ed fox 🦊 here. It stands on the table."
        page = opened.open("understand", run="answer", question="Which colour?", context=text)
        page.locator(".context mark").wait_for()
        best = opened.table("answers")[1]
        assert (
            page.locator(".context mark").text_content() == best[0] and page.locator(".context").text_content() == text
        )
        page = opened.open("understand", run="choice", text="the fox is", options="red\nblue\ngreen")
        page.locator(".bars g").nth(2).wait_for()
        page = opened.open("understand", run="score", first="a red fox", second="it is blue")
        page.locator('figure[data-figure="score"]').wait_for()
        assert opened.errors == [] and opened.foreign_requests == []


def test_several_labels_are_returned(tmp_path: Path) -> None:
    run = trained(ticket_recipe(tmp_path, "model.encoder.kind=bag", "train.lr=0.05"), tmp_path / "runs/tickets")
    headers = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"}
    client = TestClient(make_app(RunFolder(tmp_path / "runs"), TOKEN), base_url="http://127.0.0.1", headers=headers)
    answer = client.post("/api/understand/classify", json={"run": "tickets", "text": "hello invoice now"}).json()
    (prediction,) = load(run, "cpu").classify(["hello invoice now"])
    assert answer["predicted"] == list(prediction.labels) and len(answer["predicted"]) == 2
    assert [each["label"] for each in answer["labels"]] == [each.label for each in prediction.candidates]
    assert answer["why"]["words"]
