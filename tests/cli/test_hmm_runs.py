"""Hidden Markov models on the command line: taggers, language models and `inspect states`."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checksums import update_checksums
from tests.understanding import write_sentences

from seqloom.classical.hmm.restarts import CHECKPOINT_INTERVAL
from seqloom.cli._inspect_views import mark_states
from seqloom.cli.app import main
from seqloom.core.device import WITHOUT_NUMBA
from seqloom.core.files import tensors_from_file
from seqloom.data.corpora import pydocs
from seqloom.evaluate.classification import cluster_metrics
from seqloom.inspect import doctor
from seqloom.inspect.rehearsal import Rehearsal
from seqloom.inspect.views.labels import TextStates
from seqloom.recipes import read_recipe
from seqloom.tasks import hmm
from seqloom.train.events import Saved
from seqloom.training import begin, resume

LETTERS = ["train.restarts=2", "train.iterations=25", "train.tolerance=0"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Path:
    """Runs that must not be changed: `letters` and `words` of texts, `names`, a tagger, and `found` and `nile`."""
    folder = tmp_path_factory.mktemp("hmm")
    write_sentences(folder / "mine.conll")
    files = [f"data.{name}={texts / name}.txt" for name in ("train", "dev", "test")]
    own = ["data.corpus=text", *files, "data.documents=line"]
    tagged = ["data.corpus=conll", f"data.train={folder / 'mine.conll'}", "data.dev_fraction=0.2"]
    commands = {
        "letters": ["hmm-letters", *own, *LETTERS],
        "words": ["hmm-words-ewt", *own, "model.states=5", "tokenizer.min_count=1", *LETTERS],
        "found": ["hmm-words-ewt", *tagged, "model.states=4", "tokenizer.min_count=1", *LETTERS],
        "names": ["hmm-tag-people", *tagged],
        "nile": ["hmm-weather", "data.series=nile", "model.states=2", *LETTERS],
    }
    pytest.importorskip("statsmodels", reason="the Nile's flow ships inside it")
    for name, words in commands.items():
        assert main(["train", *words, "--out", str(folder / name)]) == 0, name
    return folder


def test_hmm_tagger_works_with_other_commands(
    seqloom: Any, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "Ann lives in New Delhi."
    assert seqloom("tag", run_folder / "names", line, "", "Dee sings in Oslo .").out == (
        "Ann:PER lives in [New Delhi]:LOC.\n\nDee:PER sings in Oslo:LOC .\n"
    )
    shown = seqloom("tag", run_folder / "names", line, "--format", "conll").out
    assert shown == "Ann\tB-PER\nlives\tO\nin\tO\nNew\tB-LOC\nDelhi\tI-LOC\n.\tO\n\n"
    (word, *_) = seqloom("tag", run_folder / "names", line, "--json").json["words"]
    assert word["tag"] == "B-PER" and 0.5 < word["probability"] <= 1
    result = seqloom("evaluate", run_folder / "names", "--confusion", tmp_path / "c.png", "--json").json
    assert result["span_f1"] == 1 and result["invalid"] == 0 and (tmp_path / "c.png").stat().st_size > 1000
    assert "token accuracy" in seqloom("evaluate", run_folder / "names").out
    assert "3" in seqloom("compare", run_folder / "names", run_folder / "names", "--by", "span_f1").out
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(2, 0.5, 2.0, memory=1 << 29))
    assert "estimated without gradients" in seqloom("doctor", "hmm-tag-people", "data.train=60", "data.dev=10").out


def test_unknown_words_are_tagged_by_their_suffixes(seqloom: Any, tmp_path: Path) -> None:
    """Names are capitalized and end in -ov, and verbs end in -izes.

    Without suffixes, unknown words are not recognized.
    """
    stems = ["mar", "tel", "kor", "ban", "dul", "fen", "gos", "hap", "jin", "lum"]
    output = [
        [(f"{one.title()}ov", "NAME"), (f"{other}izes", "VERB"), (f"{one}ness", "NOUN"), (".", "MARK")]
        for one in stems
        for other in stems
    ]
    write_sentences(tmp_path / "mine.conll", output)
    own = ["data.corpus=conll", f"data.train={tmp_path / 'mine.conll'}", "data.dev_fraction=0.2"]
    assert seqloom("train", "hmm-tag-people", *own, "--out", tmp_path / "run").code == 0
    new = "Quibov zorpizes vexness ."
    assert seqloom("tag", tmp_path / "run", new).out == "Quibov:NAME zorpizes:VERB vexness:NOUN .:MARK\n"
    lonely = seqloom(
        "tag", tmp_path / "run", "zorpizes"
    ).out  # the transitions favour NAME as the first tag, but the suffix decides otherwise
    assert lonely == "zorpizes:VERB\n"
    assert seqloom("train", "hmm-tag-people", *own, "model.characters=null", "--out", tmp_path / "blind").code == 0
    assert seqloom("tag", tmp_path / "blind", "zorpizes").out != lonely
    shown = seqloom("tag", tmp_path / "blind", new)
    assert "the vocabulary lacks parts of 1 line" in shown.err


def test_hmm_language_model_works_with_other_commands(seqloom: Any, run_folder: Path) -> None:
    written = [
        seqloom("generate", run_folder / "words", "--prompt", "the", "--max-tokens", 8, "--seed", 3).out
        for _ in range(2)
    ]
    assert written[0] == written[1] and written[0].startswith("the")
    assert seqloom("generate", run_folder / "words", "--prompt", "the", "--max-tokens", 5, "--beam", 3).code == 0
    (first, second) = seqloom(
        "score", run_folder / "words", "the cat sat here .", "here . sat cat the", "--json"
    ).objects
    assert first["log_prob"] > second["log_prob"] + 3
    result = seqloom("evaluate", run_folder / "words", "--split", "test", "--json").json
    assert 1 < result["perplexity"] < 12
    mixed = seqloom("evaluate", run_folder / "words", run_folder / "words", "--interpolate", "--json").json
    assert mixed["perplexity"] == pytest.approx(seqloom("evaluate", run_folder / "words", "--json").json["perplexity"])


def test_text_is_normalized_as_in_training(seqloom: Any, run_folder: Path) -> None:
    """Capitals, digits and punctuation are normalized in every command."""
    (plain, written) = seqloom("score", run_folder / "letters", "the cat", "The CAT, 7!", "--json").objects
    assert written["log_prob"] == plain["log_prob"]
    small, large = (
        seqloom("generate", run_folder / "letters", "--prompt", prompt, "--max-tokens", 9).out.lower()
        for prompt in ("the ", "The ")
    )
    assert small == large


def test_states_correlate_with_unseen_tags(seqloom: Any, run_folder: Path) -> None:
    result = seqloom("evaluate", run_folder / "found", "--json").json
    assert result["many_to_one"] > 0.7 and 0.4 < result["v_measure"] <= 1
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    labels, groups = [str(one) for one in random.integers(4, size=200)], random.integers(6, size=200).tolist()
    expected = sklearn.v_measure_score(labels, groups)
    assert cluster_metrics(labels, groups)["v_measure"] == pytest.approx(expected, abs=1e-12)
    assert cluster_metrics(labels, [int(one) for one in labels]) == {"many_to_one": 1.0, "v_measure": pytest.approx(1)}


def test_inspect_states_describes_the_states_of_a_text(seqloom: Any, run_folder: Path, tmp_path: Path) -> None:
    shown = seqloom("inspect", "states", run_folder / "letters", "--out", tmp_path / "s.png")
    assert shown.code == 0 and "state 1," in shown.out and "vowels" in shown.out and "END" in shown.out
    assert (tmp_path / "s.png").stat().st_size > 5000
    result = seqloom("inspect", "states", run_folder / "letters", "The CAT, 7!", "--json").json
    assert "".join(result["tokens"]) == "the cat"
    assert np.allclose(np.sum(result["transition"], axis=1), 1) and len(result["path"]) == 7
    assert sum(result["fractions"]) == pytest.approx(1)
    for shares in result["letter_kinds"].values():
        assert sum(shares) == pytest.approx(1)
    seqloom("inspect", "states", run_folder / "letters", "123").fails_with(3, "has no tokens that the model knows")
    seqloom("inspect", "states", run_folder / "names").fails_with(2, "Only hidden Markov models have states")
    assert seqloom("inspect", "states", run_folder / "words", "--out", tmp_path / "w.svg", "--top", "3").code == 0


def test_state_numbers_are_printed_below_tokens() -> None:
    nothing = np.zeros((13, 13))
    view = TextStates([[]] * 12, nothing, list("abc"), [0, 11, 9], [1.0] * 3, [1 / 12] * 12, None, "this text")
    assert mark_states(view).splitlines() == ["abc", " 11", "120"]


def test_missing_numba_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    task = hmm.Task.prepare(read_recipe("hmm-letters")[1])
    for there in (True, False):
        monkeypatch.setattr(hmm, "has_numba", lambda there=there: there)
        assert task.warnings() == ([] if there else [WITHOUT_NUMBA])


def test_inspect_states_finds_the_change_in_a_series(seqloom: Any, run_folder: Path, tmp_path: Path) -> None:
    """The flow of the Nile decreased at the end of the century, so the state changes once."""
    result = seqloom("inspect", "states", run_folder / "nile", "--json", "--out", tmp_path / "n.png").json
    changes = [
        year for year, a, b in zip(result["times"][1:], result["path"], result["path"][1:], strict=False) if a != b
    ]
    assert changes == ["1899"]
    low, high = sorted(mean for (mean,) in result["means"])
    assert 800 < low < 880 and 1050 < high < 1150
    assert (tmp_path / "n.png").stat().st_size > 5000
    metrics = seqloom("evaluate", run_folder / "nile", "--split", "test", "--json").json
    assert metrics["loss"] < metrics["one_state"]
    seqloom("inspect", "states", run_folder / "nile", "text").fails_with(2, "is a model of series and reads no text")
    assert "never left" in seqloom("inspect", "states", run_folder / "nile").out


def test_resumed_run_gives_the_same_results_as_an_uninterrupted_run(
    run_folder: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption at each kind of checkpoint, the resumed run gives a bit-identical model."""
    monkeypatch.setattr("seqloom.classical.hmm.restarts.CHECKPOINT_INTERVAL", -1.0)
    assert CHECKPOINT_INTERVAL > 0
    files = [f"data.{name}={texts / name}.txt" for name in ("train", "dev", "test")]
    words = ["data.corpus=text", *files, "data.documents=line", "train.restarts=2", "train.iterations=6"]
    _, recipe = read_recipe("hmm-letters", [*words, "train.tolerance=0"])
    list(begin(recipe, tmp_path / "whole").events())
    complete = tensors_from_file(tmp_path / "whole" / "model.safetensors")
    for stop_at in (3, 6, 8):
        path = tmp_path / f"stopped-{stop_at}"
        for event in begin(recipe, path).events():
            if isinstance(event, Saved) and event.step >= stop_at:
                break
        assert not (path / "model.safetensors").exists()
        assert list(resume(path).events())
        again = tensors_from_file(path / "model.safetensors")
        assert complete.keys() == again.keys() and all(complete[name].equal(again[name]) for name in complete)
    done = list(resume(tmp_path / "whole").events())
    assert [type(event).__name__ for event in done] == ["Started", "Evaluated", "Finished"]
    assert all(
        complete[name].equal(table)
        for name, table in tensors_from_file(tmp_path / "whole" / "model.safetensors").items()
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["hmm-letters", "model.smoothing=0"], 3, "does not contain '<unk>'"),
        (["hmm-letters", "model.states=0", "train.restarts=0"], 2, "model.states: must be at least 1; got 0"),
        (["hmm-tag-people", "model.order=4", "model.word_smoothing=0"], 2, "model.order: must be at most 3; got 4"),
        (["hmm-tag-people", "tokenizer.split=punctuation"], 2, "split: whitespace"),
        (["hmm-letters", "data.corpus=people"], 2, "read=letters needs a corpus of plain texts"),
        (["hmm-weather", "model.min_variance=-1"], 2, "model.min_variance: must be at least 0.0; got -1"),
    ],
)
def test_invalid_recipes_are_rejected(seqloom: Any, tmp_path: Path, words: list[str], code: int, message: str) -> None:
    if words[0] == "hmm-weather":
        pytest.importorskip("vega_datasets")
    seqloom("train", *words, "--out", tmp_path / "run").fails_with(code, message, lines=4)
    assert not (tmp_path / "run").exists()


def test_singular_covariance_is_reported(seqloom: Any, tmp_path: Path) -> None:
    rows = "".join(f"{2000 + n},{5 if n % 3 else n},{n % 7}\n" for n in range(60))
    (tmp_path / "flat.csv").write_text(f"year,a,b\n{rows}", encoding="utf-8")
    own = ["hmm-weather", "data.corpus=series-file", f"data.file={tmp_path / 'flat.csv'}", "model.min_variance=0"]
    shown = seqloom("train", *own, "--out", tmp_path / "run")
    assert shown.code == 3 and "has become singular" in shown.err and "model.min_variance" in shown.err
    assert seqloom("train", *own[:-1], "train.restarts=1", "--out", tmp_path / "mended").code == 0


def test_damaged_run_is_rejected(seqloom: Any, run_folder: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_folder / "letters", tmp_path / "letters"))
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("states: 2", "states: 3"))
    update_checksums(run)
    seqloom("score", run, "the cat").fails_with(4, "transition must have the shape (4, 4); got (3, 3)", lines=1)
    card = (run_folder / "letters" / "card.md").read_text()
    assert "`hmm`" in card and json.loads((run_folder / "letters" / "data.json").read_text())["counts"]["train"]


def test_two_states_find_vowels(seqloom: Any, tmp_path: Path) -> None:
    """The recipe is `hmm-letters` with less text and fewer restarts."""
    corpus = pydocs.load(pydocs.Config())
    for split in ("train", "dev"):
        text = "\n".join(corpus.split(split))[: 60_000 if split == "train" else 10_000]
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    own = ["data.corpus=text", f"data.train={tmp_path / 'train.txt'}", f"data.dev={tmp_path / 'dev.txt'}"]
    few = ["train.restarts=4", "train.iterations=60", "train.tolerance=1e-5", "--out", tmp_path / "run"]
    assert seqloom("train", "hmm-letters", *own, "data.test_fraction=0", *few).code == 0
    kinds = seqloom("inspect", "states", tmp_path / "run", "--json").json["letter_kinds"]
    state = int(np.argmax(kinds["vowels"]))
    assert kinds["vowels"][state] > 0.9
    assert kinds["consonants"][state] < 0.25
