"""Tests of `train`, `compare`, `doctor` and `data show` with translators."""

import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.checksums import update_checksums

from seqloom.cli.app import main
from seqloom.data import corpora
from seqloom.inspect import doctor
from seqloom.inspect.plots.measurements import draw_curves
from seqloom.inspect.rehearsal import Rehearsal
from seqloom.inspect.views.curves import curves, loss_panels
from seqloom.runs.run import Run

WORDS = ("a", "bb", "cc", "dd", "ee")
SPLITS = {"train": 90, "dev": 12, "test": 10}


@pytest.fixture(scope="module")
def pair_overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return overrides to train on generated pairs, whose target is the reversed source in capitals."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = [" ".join(words) for words in product(WORDS, repeat=3)]
    lines = [lines[37 * place % len(lines)] for place in range(len(lines))]
    overrides = []
    for split, count in SPLITS.items():
        mine, lines = lines[:count], lines[count:]
        files = [folder / f"{split}.en", folder / f"{split}.de"]
        files[0].write_text("\n".join(mine) + "\n")
        files[1].write_text("\n".join(" ".join(reversed(line.upper().split())) for line in mine) + "\n")
        overrides.append(f"data.{split}=[{files[0]},{files[1]}]")
    return overrides


SMALL = [
    "tokenizer.size=270",
    "batch.tokens=120",
    "batch.dev_pairs=4",
    "model.hidden=8",
    "train.steps=6",
    "train.evaluate_every=2",
    "train.log_every=1",
    "train.warmup=0",
    "train.schedule=constant",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, pair_overrides: list[str]) -> Path:
    """`one` and `two` share a vocabulary, and `words` has another vocabulary."""
    folder = tmp_path_factory.mktemp("translators")
    for name, more in {"one": [], "two": ["seed=2"], "words": ["tokenizer.kind=words"]}.items():
        small = [word for word in SMALL if name != "words" or "tokenizer" not in word]
        command = ["train", "translate-files", *pair_overrides, *small, *more, "--out", str(folder / name)]
        assert main(command) == 0, name
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def metric_values(runs: Path, metric: str, *names: str) -> dict[str, float]:
    return {name: (Run.open(runs / name).metrics("dev") or {})[metric] for name in names}


# --- train ----------------------------------------------------------------------------------------------------------


def test_training_prints_metrics_and_notes(seqloom: Any, pair_overrides: list[str], tmp_path: Path) -> None:
    shown = seqloom(
        "train", "translate-files", *pair_overrides, *SMALL, "batch.max_length=5", "--out", tmp_path / "run"
    )
    assert shown.code == 0, shown.err
    assert re.search(
        r"^step 6  dev: loss [\d.]+  perplexity [\d.]+  bleu [\d.]+  exact_match [\d.]+", shown.out, re.MULTILINE
    )
    assert "training pairs are omitted" in shown.err + shown.out


# --- compare --------------------------------------------------------------------------------------------------------


def test_translators_are_ranked_by_bleu(seqloom: Any, runs: Path) -> None:
    for name, bleu in (("one", 12.5), ("two", 31.0)):
        run = Run.open(runs / name)
        run.save_metrics("dev", {**(run.metrics("dev") or {}), "bleu": bleu})
    shown = seqloom("compare", runs / "one", runs / "two", "--json").json
    assert shown["ranked_by"] == "bleu"
    assert [Path(row["run"]).name for row in shown["runs"]] == ["two", "one"]
    text = seqloom("compare", runs / "one", runs / "two").out
    assert "best first by BLEU" in text and "31.0000" in text and "chrF" in text and "exact" in text
    assert "measured during training" in text


@pytest.mark.parametrize("metric", ["loss", "perplexity", "chrf", "exact_match"])
def test_by_option_selects_the_metric(seqloom: Any, runs: Path, metric: str) -> None:
    shown = seqloom("compare", runs / "one", runs / "two", "--by", metric, "--json").json
    result = metric_values(runs, metric, "one", "two")
    best = (min if metric in ("loss", "perplexity") else max)(result.values())
    assert shown["ranked_by"] == metric
    assert shown["runs"][0]["metrics"][metric] == best


def test_different_tokenizers_are_ranked_only_by_bleu(seqloom: Any, runs: Path) -> None:
    assert seqloom("compare", runs / "one", runs / "words", "--json").json["ranked_by"] == "bleu"
    seqloom("compare", runs / "one", runs / "words", "--by", "loss").fails_with(
        2, "different tokenizers", "bleu", lines=1
    )


def test_metrics_of_training_and_evaluate_are_not_mixed(seqloom: Any, runs: Path) -> None:
    """Training translates four pairs greedily; `evaluate` translates all pairs with beam search."""
    assert seqloom("evaluate", runs / "one", "--json").code == 0
    seqloom("compare", runs / "one", runs / "two", "--by", "bleu").fails_with(
        2, "runs/two", "seqloom evaluate", lines=1
    )
    assert seqloom("compare", runs / "one", runs / "two", "--json").json["ranked_by"] == "loss"
    assert "evaluate" in seqloom("compare", runs / "one", runs / "words", "--json").json["not_ranked"]
    assert seqloom("evaluate", runs / "two", "--json").code == 0
    assert "measured during training" not in seqloom("compare", runs / "one", runs / "two").out
    assert seqloom("compare", runs / "one", runs / "two", "--json").json["ranked_by"] == "bleu"


def test_different_numbers_of_dev_pairs_are_not_mixed(seqloom: Any, runs: Path) -> None:
    recipe = runs / "two" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("dev_pairs: 4", "dev_pairs: 5"))
    update_checksums(runs / "two")
    seqloom("compare", runs / "one", runs / "two", "--by", "bleu").fails_with(2, "measured during training", lines=1)


def test_curves_show_loss_and_bleu(runs: Path) -> None:
    pytest.importorskip("matplotlib")
    one, words = Run.open(runs / "one"), Run.open(runs / "words")
    result = curves(one)
    assert [step for step, _ in result["bleu"]] == [step for step, _ in result["dev"]] == [2, 4, 6]
    assert len(result["train"]) == 6
    two = Run.open(runs / "two")
    (shared,) = loss_panels([one, two])
    assert shared.title.startswith("loss, nats per token") and shared.runs == [(one, 1.0), (two, 1.0)]
    own, other = loss_panels([one, words])  # nats per token with different vocabularies are different units
    assert [panel.runs for panel in (own, other)] == [[(one, 1.0)], [(words, 1.0)]]
    loss, word_loss, bleu = draw_curves([one, words]).axes
    assert "BLEU" in bleu.get_ylabel() and (loss.get_ylabel(), word_loss.get_ylabel()) == (own.title, other.title)
    shown = [{str(line.get_label()).partition(":")[0] for line in axes.lines} for axes in (loss, word_loss)]
    assert shown == [{"one"}, {"words"}]
    assert [line.get_label() for line in bleu.lines] == ["one", "words"]
    drawn: Any = bleu.lines[0].get_xdata()
    assert list(drawn) == [2, 4, 6]
    assert "BLEU" in draw_curves([one]).get_suptitle()


def test_curves_are_plotted(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert seqloom("compare", runs / "one", runs / "two", "--plot", tmp_path / "curves.svg").code == 0
    assert "BLEU of greedy translations on dev" in (tmp_path / "curves.svg").read_text()


# --- doctor ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the rehearsal of training, which takes seconds, in all tests except one."""
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=1 << 28))
    monkeypatch.setattr(doctor, "free_memory", lambda device: 1 << 32)


def test_doctor_reports_pairs_model_and_memory(seqloom: Any, pair_overrides: list[str]) -> None:
    shown = seqloom("doctor", "translate-files", *pair_overrides, *SMALL, "train.steps=20")
    assert shown.code == 0, shown.err
    for words in (
        "translate-files: translate on ",
        "  train         90  source",
        "0 pairs and 0 source sentences also in train; no unknown tokens",
        "tokens per side, of ",
        "% padding",
        "tokenizer: byte-pair, ",
        "source embedding ",
        "attention ",
        "target tokens, ",
        "ms per step",
        "memory: ",
        "no problems found",
    ):
        assert words in shown.out, words


def test_doctor_json_counts_pairs_tokens_and_parameters(seqloom: Any, pair_overrides: list[str], canned: None) -> None:
    result = seqloom("doctor", "translate-files", *pair_overrides, *SMALL, "--json").json
    pairs, train = result["pairs"], result["pairs"]["splits"][0]
    assert result["splits"] == []
    assert (train["pairs"], train["empty"], train["duplicates"], pairs["skipped"]) == (90, 0, 0, 0)
    assert train["source"]["lengths"]["max"] >= train["source"]["lengths"]["median"] > 0
    assert pairs["tokens"] == 120 and pairs["shapes"] >= 1 and 0 <= pairs["padding_fraction"] < 0.12
    assert result["budget"]["tokens_per_step"] == round(train["target"]["tokens"] / result["budget"]["steps_per_epoch"])
    assert sum(result["model"]["parts"].values()) == result["model"]["parameters"]


def test_doctor_warns_of_duplicates_leaks_and_unknown_tokens(seqloom: Any, tmp_path: Path, canned: None) -> None:
    lines = [f"number {n}" for n in range(40)]
    files = {}
    for split, source, target in (
        ("train", lines + lines[:10], lines + lines[:10]),
        ("dev", lines[:10], ["Zürich"] * 10),
        ("test", ["some thing", *lines[:2]], ["some thing", *lines[:2]]),
    ):
        files[split] = [tmp_path / f"{split}.en", tmp_path / f"{split}.de"]
        for file, text in zip(files[split], (source, target), strict=True):
            file.write_text("\n".join(text) + "\n", encoding="utf-8")
    data = [f"data.{split}=[{one},{other}]" for split, (one, other) in files.items()]
    words = ["tokenizer.kind=words", "batch.max_shapes=1", *(word for word in SMALL if "tokenizer" not in word)]
    result = seqloom("doctor", "translate-files", *data, *words, "--json").json
    train, dev, test = result["pairs"]["splits"]
    assert (train["duplicates"], dev["in_train"], dev["sources_in_train"], test["in_train"]) == (10, 0, 10, 2)
    assert dev["target"]["new_characters"] == ["Z", "c", "h", "i", "ü"]
    assert dev["target"]["unknown_rate"] == 0.5  # the other half of the tokens is END
    output = "\n".join(result["warnings"])
    for sentence in (
        "20% of the training pairs are duplicates",
        "100% of the source sentences of dev also occur in train",
        "67% of the pairs of test also occur in train",
        "50.0% of the target side of dev is read as <unk>",
    ):
        assert sentence in output


# --- data show ------------------------------------------------------------------------------------------------------


def test_data_show_prints_pairs(seqloom: Any, pair_overrides: list[str]) -> None:
    settings = [word.removeprefix("data.") for word in pair_overrides]
    shown = seqloom("data", "show", "parallel", *settings, "--lines=2")
    assert shown.code == 0 and shown.err == ""
    assert re.search(r"^split +pairs +en words +characters +de words +characters   sha256$", shown.out, re.MULTILINE)
    assert re.search(r"^train +90 +270 +[\d,]+ +270 +[\d,]+   [0-9a-f]{12}$", shown.out, re.MULTILINE)
    assert "\ntrain begins:\n  a a a → A A A\n  bb cc cc → CC CC BB\n\n" in shown.out
    assert "kinds" not in shown.out


def test_data_show_prints_kinds_of_cldr(seqloom: Any) -> None:
    pytest.importorskip("babel")
    settings = ["target=hu", "train=300", "dev=5", "test=5"]
    result = seqloom("data", "show", "cldr", *settings, "--json").json
    corpus = corpora.load(corpora.find("cldr").Config(target="hu", train=300, dev=5, test=5))
    assert (result["source"], result["target"]) == ("en", "hu")
    assert result["sha256"] == corpus.fingerprint()
    assert sum(result["counts"]["train"]["kinds"].values()) == result["counts"]["train"]["pairs"] == 300
    shown = seqloom("data", "show", "cldr", *settings, "--lines=1").out
    pair = corpus.split("dev")[0]
    assert f"dev begins:\n  {pair.source} → {pair.target}\n" in shown
    assert re.search(r"^kinds:  .*\d\.\d%", shown, re.MULTILINE)


def test_task_and_recipes_are_listed(seqloom: Any) -> None:
    assert "translate" in seqloom("list", "tasks", "--json").json
    recipes = seqloom("list", "recipes", "--json").json
    assert recipes["translate-files"].startswith("Translation of your own sentence pairs")
