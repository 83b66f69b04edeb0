"""Tests of `seqloom translate RUN --rescore`, which ranks n-best lists."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import seqloom as package
from seqloom.core.errors import DataError
from seqloom.data.candidates import candidates_of, read_nbest
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor

LINES = ["the cat sat 3 .", "", "the owl slept 5 .", "the dog ran 1 ."]
SAID = {0: ["3 Katze sass .", "3 Hund sah .", "Katze"], 2: ["5 Eule schlief .", "Eule . . . . ."], 3: ["1 Hund lief ."]}


@pytest.fixture
def nbest(tmp_path: Path) -> Path:
    path = tmp_path / "nbest.txt"
    rows = [
        f"{n} ||| {text} ||| F0= -1 2 ||| {-k - n / 10}" for n, output in SAID.items() for k, text in enumerate(output)
    ]
    path.write_text("".join(f"{row}\n" for row in rows), "utf-8")
    return path


def entries(out: str) -> list[tuple[int, str, float]]:
    result = [line.split(" ||| ") for line in out.splitlines()]
    return [(int(number), text, float(score)) for number, text, score in result]


def log_p(model: Any, source: str, target: str) -> float:
    """Compute the log-probability of a translation from the logits of each token."""
    read, output = ([*model.tokenizer.encode(text), 0] for text in (source, target))
    with torch.no_grad():
        logits = model.model(torch.tensor([read]), None, torch.tensor([[0, *output[:-1]]]))[0]
    return logits.double().log_softmax(-1)[torch.arange(len(output)), output].sum().item()


# --- ranking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one", "transformer"])
@pytest.mark.parametrize("penalty", [None, 0.0, 0.6])
def test_score_matches_the_model(
    seqloom: Any, translators: Path, nbest: Path, type_in: Any, name: str, penalty: float | None
) -> None:
    type_in("\n".join(LINES).encode())
    words = [] if penalty is None else ["--length-penalty", penalty]
    shown = seqloom("translate", translators / name, "--rescore", nbest, "--n-best", "9", *words)
    assert shown.code == 0, shown.err
    model, result = load(translators / name, "cpu", TranslatorPredictor), entries(shown.out)
    for number, output in SAID.items():
        own = [(text, score) for place, text, score in result if place == number]
        lengths = {
            text: (len(model.tokenizer.encode(text)) + 1) ** (1 if penalty is None else penalty) for text in output
        }
        expected = {text: log_p(model, LINES[number], text) / lengths[text] for text in output}
        assert [text for text, _ in own] == sorted(output, key=lambda text: -expected[text])
        assert [score for _, score in own] == pytest.approx(sorted(expected.values(), reverse=True), abs=2e-4)
    assert (1, "", 0.0) in result  # a blank line has a blank translation


def test_rescoring_gives_the_scores_of_beam_search(seqloom: Any, translators: Path, tmp_path: Path) -> None:
    """Beam search and rescoring give the same score to a translation."""
    for runs in (["one"], ["transformer"], ["two", "transformer", "blind"]):
        paths = [translators / name for name in runs]
        words = [*LINES, "--n-best", "3", "--min-length", "2"]
        result = seqloom("translate", *paths, *words).out
        (tmp_path / "found.txt").write_text(result)
        again = seqloom("translate", *paths, *LINES, "--n-best", "3", "--rescore", tmp_path / "found.txt").out
        kept = {(n, text): score for n, text, score in entries(result)}
        for number, text, score in entries(again):
            finished = len(text.split()) < 20  # a truncated translation has no END
            assert not finished or score == pytest.approx(kept[number, text], abs=2e-4)


def test_n_best_limits_the_output(seqloom: Any, translators: Path, nbest: Path) -> None:
    run = translators / "one"
    ranked = entries(seqloom("translate", run, *LINES, "--rescore", nbest, "--n-best", "5").out)
    best = [next(text for number, text, _ in ranked if number == n) for n in range(4)]
    assert seqloom("translate", run, *LINES, "--rescore", nbest).out.split("\n") == [*best, ""]
    assert len(entries(seqloom("translate", run, *LINES, "--rescore", nbest, "--n-best", "2").out)) == 6
    objects = seqloom("translate", run, *LINES, "--rescore", nbest, "--json").objects
    assert [one["translation"] for one in objects] == best
    assert len(objects[0]["candidates"]) == 3 and objects[0]["log_prob"] < 0


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5])
def test_weight_combines_model_and_list_scores(seqloom: Any, translators: Path, nbest: Path, weight: float) -> None:
    words = [translators / "one", *LINES, "--rescore", nbest, "--n-best", "9"]
    alone = {(n, text): score for n, text, score in entries(seqloom("translate", *words).out)}
    theirs = {(n, text): -k - n / 10 for n, output in SAID.items() for k, text in enumerate(output)}
    for n, text, score in entries(seqloom("translate", *words, "--weight", weight).out):
        expected = 0.0 if n == 1 else weight * alone[n, text] + (1 - weight) * theirs[n, text]
        assert score == pytest.approx(expected, abs=2e-4)


def test_ensemble_rescores_candidates(translators: Path) -> None:
    both = package.ensemble([translators / "one", translators / "two"], "cpu")
    (result,) = both.rescore([("the cat sat 3 .", ["3 Katze sass .", "Katze", "Katze"])], length_penalty=0.0)
    parts = [[log_p(part, "the cat sat 3 .", text) for part in both.parts] for text in ("3 Katze sass .", "Katze")]
    assert {one.text for one in result.candidates} == {"3 Katze sass .", "Katze"} and len(result.candidates) == 3
    for text, own in zip(("3 Katze sass .", "Katze"), parts, strict=True):
        log_prob = next(one.log_prob for one in result.candidates if one.text == text)
        assert min(own) < log_prob <= max(own) + math.log(2)
    (blank,) = both.rescore([("  ", ["x"])])
    assert blank.text == ""
    with pytest.raises(DataError, match="every candidate needs a score; line 1 has none for 'Katze'"):
        list(both.rescore([("the cat", [("Katze", None)])], weight=0.5))


# --- the list -------------------------------------------------------------------------------------------------------


def test_nbest_lists_of_other_toolkits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_text("0 ||| a b ||| LM0= -1 TM= 2 ||| -3.5 ||| 0-0 1-1\n0|||c\n7 |||  ||| 1e-3\n")
    assert list(read_nbest(path)) == [(0, [("a b", -3.5), ("c", None)]), (7, [("", 0.001)])]
    path.write_text("0 ||| a ||| nan ||| inf\n")
    assert list(read_nbest(path)) == [(0, [("a", None)])]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 ||| a\nb\n", "Line 2 of NAME must be `number ||| text ||| score`, the format of Moses; got 'b'."),
        ("x ||| a\n", "Line 1 of NAME must be"),
        ("-1 ||| a\n", "Line 1 of NAME must be"),
        ("0 ||| a\n1 ||| b\n0 ||| c\n", "NAME must be sorted by source line, but 0 comes after 1."),
        ("", "is empty"),
    ],
)
def test_invalid_list_is_rejected(seqloom: Any, translators: Path, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "list"
    path.write_text(text)
    shown = seqloom("translate", translators / "one", "the cat", "the dog", "--rescore", path)
    assert shown.code == 3 and words.replace("NAME", str(path)) in shown.err and shown.err.count("\n") == 1


def test_nbest_list_of_other_lines_is_rejected(seqloom: Any, translators: Path, nbest: Path, tmp_path: Path) -> None:
    run = translators / "one"
    shown = seqloom("translate", run, *LINES[:2], "--rescore", nbest)
    assert shown.code == 3 and shown.err == (
        f"seqloom: {nbest} has candidates numbered 2 (counted from 0), but the input has only 2 lines. "
        "Use the source file of the list.\n"
    )
    shown = seqloom("translate", run, *LINES, "a dog", "--rescore", nbest)
    assert shown.code == 3 and len(shown.out.splitlines()) == 4
    missing = "must have candidates for line 5 of the input, numbered 4 (counted from 0), but has none."
    assert shown.err == f"seqloom: {nbest} {missing}\n"
    seqloom("translate", run, "x", "--rescore", tmp_path / "nothing").fails_with(3, "nothing does not exist", lines=1)
    assert list(candidates_of(["", " "], nbest_of(tmp_path, "1 ||| a\n"))) == [("", []), (" ", [("a", None)])]


def nbest_of(folder: Path, text: str) -> Path:
    (folder / "other").write_text(text)
    return folder / "other"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rescore", "x", "--beam", "3"], "--beam cannot be combined with --rescore"),
        (["--rescore", "x", "--coverage-penalty", "0.2"], "--coverage-penalty cannot be combined with --rescore"),
        (["--rescore", "x", "--prefix", "a"], "--prefix cannot be combined with --rescore"),
        (["--rescore", "x", "--alignment"], "--alignment cannot be combined with --rescore"),
        (["--rescore", "x", "--weight", "1.5"], "weight must be from 0 to 1; got 1.5."),
        (["--weight", "0.5"], "--weight requires an n-best list: add --rescore FILE."),
    ],
)
def test_invalid_arguments_are_rejected(seqloom: Any, translators: Path, words: list[str], message: str) -> None:
    seqloom("translate", translators / "one", "the cat", *words).fails_with(2, message, lines=1)
