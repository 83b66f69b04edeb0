"""`seqloom init` for every task. The recipe that it writes can be trained without changes."""

import json
import random
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import load_yaml
from seqloom.core.errors import UsageError
from seqloom.recipes.drafts import INIT, Request, choose_setting, read_settings, resolve_bounds, shorten_training

WORDS = ["the", "cat", "sat", "on", "a", "mat", "near", "some", "old", "green", "house", "while", "rain", "fell"]


@pytest.fixture
def sentence() -> Any:
    generator = random.Random(3)
    return lambda: " ".join(generator.choices(WORDS, k=generator.randint(4, 9)))


def write(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows] if header else rows) + "\n")
    return path


def train(seqloom: Any, recipe: str, *overrides: str) -> Any:
    return seqloom("train", recipe, "train.steps=1", "train.warmup=0", "--out", "runs/it", *overrides)


def test_sentence_pairs_give_a_pair_recipe_that_trains(seqloom: Any, workdir: Path, sentence: Any) -> None:
    rows = [f"{i % 2}\t{i}\t{i}\t{sentence()}\t{sentence()}" for i in range(60)]
    write(workdir / "msr.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", rows)
    result = seqloom("init", "msr.tsv", "--no-estimate")
    assert result.code == 0, result.err
    assert 'sentence pairs in the column "#1 String" and the column "#2 String"' in result.out
    recipe = load_yaml(workdir / "msr.yaml")
    assert (recipe["task"], recipe["target"], recipe["data"]["label"]) == ("pair", "class", "Quality")
    assert train(seqloom, "msr.yaml", "model.backbone.d_model=8").code == 0


def test_similarity_scores_give_a_score_recipe_that_trains(seqloom: Any, workdir: Path, sentence: Any) -> None:
    rows = [f"{sentence()}\t{sentence()}\t{i % 40 / 8}" for i in range(60)]
    write(workdir / "sts.tsv", "sentence1\tsentence2\tscore", rows)
    assert seqloom("init", "sts.tsv", "--no-estimate").code == 0
    assert load_yaml(workdir / "sts.yaml")["target"] == "score"
    assert train(seqloom, "sts.yaml", "model.backbone.d_model=8").code == 0


def test_multiple_choice_table_gives_a_recipe_that_trains(seqloom: Any, workdir: Path, sentence: Any) -> None:
    rows = [f"{sentence()},{sentence()},{sentence()},{i % 2}" for i in range(60)]
    write(workdir / "swag.csv", "startphrase,ending0,ending1,label", rows)
    assert seqloom("init", "swag.csv", "--no-estimate").code == 0
    assert train(seqloom, "swag.yaml", "model.backbone.d_model=8").code == 0


def test_squad_file_gives_a_recipe_that_trains(seqloom: Any, workdir: Path, sentence: Any) -> None:
    paragraphs = []
    for i in range(60):
        context = f"{sentence()} {i}"
        answers = [{"text": context.split()[0], "answer_start": 0}]
        paragraphs.append({"context": context, "qas": [{"id": str(i), "question": sentence(), "answers": answers}]})
    articles = [{"title": str(i), "paragraphs": [paragraph]} for i, paragraph in enumerate(paragraphs)]
    (workdir / "squad.json").write_text(json.dumps({"data": articles}))
    assert seqloom("init", "squad.json", "--no-estimate").code == 0
    assert train(seqloom, "squad.yaml", "model.backbone.d_model=8").code == 0


def test_series_give_forecast_and_classification_recipes(seqloom: Any, workdir: Path) -> None:
    rows = [f"{date(2024, 1, 1) + timedelta(i)},{100 + i % 7 * 10}" for i in range(200)]
    write(workdir / "sales.csv", "day,units", rows)
    assert seqloom("init", "sales.csv", "--no-estimate").code == 0
    assert load_yaml(workdir / "sales.yaml")["task"] == "forecast"
    generator = random.Random(1)
    rows = [",".join([str(i % 3), *(f"{generator.random():.2f}" for _ in range(12))]) for i in range(60)]
    write(workdir / "rows.csv", "", rows)
    assert seqloom("init", "rows.csv", "--no-estimate").code == 0
    assert train(seqloom, "rows.yaml").code == 0


def test_from_option_gives_fine_tuning_recipes_that_train(seqloom: Any, workdir: Path, sentence: Any) -> None:
    """Every task that reads text can start from the weights of a run."""
    write(workdir / "text.txt", "", [sentence() for _ in range(300)])
    assert seqloom("init", "text.txt", "--no-estimate", "--tokens", "words").code == 0
    small = ("model.hidden=8", "batch.size=2", "batch.length=8")
    assert seqloom("train", "text.yaml", "train.steps=1", "--out", "runs/lm", *small).code == 0
    write(workdir / "a.tsv", "text\tlabel", [f"{sentence()}\t{'ab'[i % 2]}" for i in range(60)])
    write(workdir / "b.jsonl", "", [json.dumps({"prompt": sentence(), "completion": sentence()}) for _ in range(60)])
    write(workdir / "c.conll", "", [f"{word} {'OX'[i % 2]}" + "\n" * (i % 6 == 5) for i, word in enumerate(WORDS * 20)])
    seqloom("init", "b.jsonl").fails_with(2, "name it with --from RUN")
    for file, task in (("a.tsv", "classify"), ("b.jsonl", "instruct"), ("c.conll", "tag")):
        result = seqloom("init", file, "--from", "runs/lm", "--no-estimate")
        assert result.code == 0, result.err
        name = Path(file).with_suffix(".yaml").name
        recipe = load_yaml(workdir / name)
        assert (recipe["task"], recipe["init"]["from"]) == (task, "runs/lm")
        assert "tokenizer" not in recipe
        trained = seqloom("train", name, "train.steps=1", "train.warmup=0", "--out", f"runs/{task}")
        assert trained.code == 0, trained.err
    assert seqloom("init", "a.tsv", "--model", "bag", "--no-estimate", "--out", "bag.yaml").code == 0
    assert seqloom("train", "bag.yaml", "train.steps=1").code == 0
    seqloom("init", "a.tsv", "--from", "runs/bag", "--out", "d.yaml").fails_with(
        2, "runs/bag cannot be fine-tuned: its model is of kind classifier"
    )
    assert not (workdir / "d.yaml").exists()
    seqloom("init", "a.tsv", "--from", "runs/none", "--out", "d.yaml").fails_with(
        2, "there is no such run or directory"
    )


def test_encoding_is_written_into_the_recipe(seqloom: Any, workdir: Path, sentence: Any) -> None:
    rows = [f"„{sentence()}“ – Straße,{'ab'[i % 2]}" for i in range(60)]
    (workdir / "a.csv").write_bytes("\n".join(["text,label", *rows]).encode("cp1252"))
    result = seqloom("init", "a.csv", "--no-estimate")
    assert "The encoding is cp1252" in result.out
    assert load_yaml(workdir / "a.yaml")["data"]["encoding"] == "cp1252"
    assert train(seqloom, "a.yaml").code == 0


def test_time_and_memory_are_estimated(seqloom: Any, workdir: Path, sentence: Any) -> None:
    write(workdir / "a.tsv", "text\tlabel", [f"{sentence()}\t{'ab'[i % 2]}" for i in range(60)])
    result = seqloom("init", "a.tsv")
    assert "time: " in result.out and "memory: " in result.out


@pytest.mark.slow
def test_minutes_option_shortens_training(seqloom: Any, workdir: Path, sentence: Any) -> None:
    write(workdir / "a.tsv", "text\tlabel", [f"{sentence()}\t{'ab'[i % 2]}" for i in range(3000)])
    result = seqloom("init", "a.tsv", "--minutes", "0.1", "--model", "lstm-large")
    assert result.code == 0, result.err
    recipe = load_yaml(workdir / "a.yaml")
    assert recipe["model"]["encoder"].get("hidden", 0) < 256  # the bag of words has no hidden layer
    assert (
        shorten_training("train:\n  epochs: 20          # passes\n", 0.26) == "train:\n  epochs: 5          # passes\n"
    )
    assert "epochs: 1\n" in shorten_training("  epochs: 20\n", 0.001)


def test_model_is_chosen_by_name(seqloom: Any, workdir: Path, sentence: Any) -> None:
    write(workdir / "a.tsv", "text\tlabel", [f"{sentence()}\t{'ab'[i % 2]}" for i in range(60)])
    assert seqloom("init", "a.tsv", "--model", "bag", "--no-estimate").code == 0
    assert load_yaml(workdir / "a.yaml")["model"]["encoder"]["kind"] == "bag"
    seqloom("init", "a.tsv", "--model", "bags", "--out", "b.yaml").fails_with(2, "did you mean bag?", lines=1)


@pytest.mark.parametrize("task", ["language-model", "translate", "classify", "tag"])
def test_larger_data_selects_larger_models(task: str) -> None:
    for device in ("cpu", "cuda"):
        sizes = [10, 1000, 10_000, 1_000_000, 10_000_000]
        chosen = [choose_setting(task, size, Request([], device=device)) for size in sizes]
        hidden = [setting["hidden"] for setting in chosen]
        epochs = [resolve_bounds(setting["epochs"], size) for setting, size in zip(chosen, sizes, strict=True)]
        assert hidden == sorted(hidden) or device == "cuda"
        assert min(epochs) >= 1
    assert len(read_settings(task)) >= 3


@pytest.mark.parametrize(
    ("task", "name", "chosen"),
    [
        ("classify", "bilstm", ["lstm-small", "lstm", "lstm-large"]),
        ("classify", "BiLSTM", ["lstm-small", "lstm", "lstm-large"]),
        ("classify", "bag_of_words", ["bag", "bag", "bag"]),
        ("classify", "cnn", ["convolution"] * 3),
        ("classify", "lstm", ["lstm"] * 3),
        ("tag", "bilstm-crf", ["lstm-small", "lstm", "lstm-large"]),
        ("translate", "seq2seq", ["gru-small"] * 3),
        ("language-model", "gpt2", ["gpt"] * 3),
        ("word-vectors", "word2vec", ["skipgram"] * 3),
    ],
)
def test_common_names_select_a_model_that_suits_the_size(task: str, name: str, chosen: list[str]) -> None:
    sizes = (1000, 10_000, 1_000_000)
    assert [choose_setting(task, size, Request([], model=name))["name"] for size in sizes] == chosen


@pytest.mark.parametrize(
    ("task", "name", "words"),
    [
        ("classify", "bilsm", r"The task classify has no model bilsm: did you mean bilstm\? \(choose from bag, .*\)"),
        ("tag", "xyz", "The task tag has no model xyz: choose from lstm-small, lstm, lstm-large, hmm"),
    ],
)
def test_error_for_an_unknown_model_suggests_names(task: str, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_setting(task, 1000, Request([], model=name))


def test_names_of_models_are_unique() -> None:
    for task in (
        "language-model",
        "translate",
        "classify",
        "tag",
        "pair",
        "choice",
        "answer",
        "word-vectors",
        "forecast",
    ):
        settings = read_settings(task)
        assert not settings.keys() & {name for setting in settings.values() for name in setting.get("also", ())}


def test_word_vectors_and_hidden_markov_taggers_have_recipes(seqloom: Any, workdir: Path, sentence: Any) -> None:
    write(workdir / "a.txt", "", [sentence() for _ in range(200)])
    assert seqloom("init", "a.txt", "--task", "word-vectors", "--model", "cbow", "--no-estimate").code == 0
    recipe = load_yaml(workdir / "a.yaml")
    assert recipe["task"] == "word-vectors" and recipe["model"]["objective"] == "cbow"
    assert seqloom("train", "a.yaml", "train.epochs=1", "--out", "runs/a").code == 0
    rows = [f"{word}\t{'VERB' if i else 'NAME'}" for n in range(60) for i, word in enumerate((f"w{n}", "runs", ""))]
    (workdir / "b.conll").write_text("\n".join("" if row.startswith("\t") else row for row in rows))
    assert seqloom("init", "b.conll", "--model", "hmm", "--no-estimate").code == 0
    assert load_yaml(workdir / "b.yaml")["task"] == "hmm-tag"
    assert seqloom("train", "b.yaml", "--out", "runs/b").code == 0


@pytest.mark.parametrize("model", ["ar", "kalman", "lstm", "ffn", "transformer"])
def test_model_of_a_forecast_is_selected(seqloom: Any, workdir: Path, model: str) -> None:
    write(workdir / "s.csv", "day,sales", [f"2024-01-{day:02},{day % 7 + day / 10}" for day in range(1, 32)])
    assert seqloom("init", "s.csv", "--model", model, "--no-estimate").code == 0
    assert load_yaml(workdir / "s.yaml")["model"]["kind"] == model


def test_a_long_path_of_a_pretrained_model_is_valid_yaml() -> None:
    assert load_yaml(INIT.format(path="a/very/long/path/of/a/run"))["init"]["from"] == "a/very/long/path/of/a/run"


@pytest.mark.slow
def test_every_setting_can_be_trained(seqloom: Any, workdir: Path, sentence: Any) -> None:
    write(workdir / "a.tsv", "text\tlabel", [f"{sentence()}\t{'ab'[i % 2]}" for i in range(60)])
    write(workdir / "b.tsv", "en\tde", [f"{sentence()}\t{sentence()}" for _ in range(60)])
    write(workdir / "c.txt", "", [sentence() for _ in range(400)])
    for file, task in (("a.tsv", "classify"), ("b.tsv", "translate"), ("c.txt", "language-model")):
        for name in read_settings(task):
            if name == "fine-tune":
                continue
            recipe = f"{task}-{name}.yaml"
            assert seqloom("init", file, "--model", name, "--out", recipe, "--no-estimate").code == 0
            small = [] if "transformer" in name or "gpt" in name else ["train.steps=1"]
            result = (
                seqloom("doctor", recipe)
                if not small
                else train(seqloom, recipe, *small, "--out", f"runs/{task}-{name}")
            )
            assert result.code == 0, (name, result.err)
