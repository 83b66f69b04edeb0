"""Fine-tuning on the command line, from training a language model to using fine-tuned models."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Result
from tests.fine_tuning import pretrained_run
from tests.understanding import reviews, write_reviews, write_sentences

from seqloom.cli.app import main
from seqloom.config.yaml_text import dump_yaml
from seqloom.inspect import doctor
from seqloom.inspect.rehearsal import Rehearsal
from seqloom.runs import record

Seqloom = Callable[..., Result]
SHORT = ["train.epochs=null", "train.steps=12", "train.evaluate_every=4", "train.warmup=0", "train.keep_checkpoints=3"]
SHORT += ["train.log_every=4", "train.device=cpu", "train.precision=fp32", "batch.tokens=64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, tables, a language model `lm`, a BERT `bert`, a classifier for each, and a tagger based on the BERT."""
    folder = tmp_path_factory.mktemp("fine-tuning")
    (folder / "text.txt").write_text("".join(f"{text} .\n" for text, _ in reviews()), encoding="utf-8")
    write_reviews(folder / "reviews.csv")
    write_sentences(folder / "mine.conll")
    pretrained_run(folder / "bert", "bert")
    text = ["data.corpus=text", f"data.train={folder}/text.txt", "data.documents=line", "tokenizer.size=280"]
    small = ["batch.size=4", "batch.length=12", "model.hidden=12", "train.schedule=constant"]
    table, tags = table_of(folder), ["data.corpus=conll", f"data.train={folder}/mine.conll"]
    commands = {
        "lm": ["lm-bpe-gru", *text, *small, *SHORT[:-1]],
        "from-lm": ["classify-sst2-finetune", f"init.from={folder}/lm", *table, *SHORT],
        "from-bert": ["classify-sst2-finetune", f"init.from={folder}/bert", *table, *SHORT],
        "tagger": ["tag-ewt-finetune", f"init.from={folder}/bert", *tags, *SHORT],
        "grams": ["ngram-kn5", *text[:-1], "model.order=2"],
    }
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(os, "fsync", lambda handle: None)
        quick.setattr(record, "open_tensorboard", lambda run, step: None)
        for name, words in commands.items():
            assert main(["train", *words, "--out", str(folder / name)]) == 0, name
    return folder


def table_of(folder: Path) -> list[str]:
    return ["data.corpus=table", f"data.train={folder}/reviews.csv", "data.text=review", "data.label=verdict"]


@pytest.mark.parametrize("name", ["from-lm", "from-bert"])
def test_fine_tuned_classifier_predicts_and_explains_labels(seqloom: Seqloom, folder: Path, name: str) -> None:
    result = seqloom("classify", folder / name, "a warm, funny film", "a dull plot", "--top", 2, "--json")
    assert [one["text"] for one in result.objects] == ["a warm, funny film", "a dull plot"]
    assert all(sum(output["probability"] for output in one["candidates"]) == pytest.approx(1) for one in result.objects)
    why = seqloom("classify", folder / name, "a dull plot", "--why")
    assert re.fullmatch(r"(good|bad)\t0\.\d+\ta [-+]\d\.\d+ dull [-+]\d\.\d+ plot [-+]\d\.\d+\n", why.out)
    note = seqloom("classify", folder / name, " ".join(["funny"] * 200))
    limit = 32 if name == "from-bert" else 128
    assert f"longer than {limit} tokens: only the beginning was read" in note.err


def test_fine_tuned_tagger_returns_every_word(seqloom: Seqloom, folder: Path) -> None:
    result = seqloom("tag", folder / "tagger", "Ann lives in New Delhi .", "", "--json").objects
    assert [word["text"] for word in result[0]["words"]] == ["Ann", "lives", "in", "New", "Delhi", "."]
    assert result[1]["words"] == []


def test_fine_tuned_runs_are_evaluated_averaged_and_compared(seqloom: Seqloom, folder: Path, tmp_path: Path) -> None:
    assert "accuracy" in seqloom("evaluate", folder / "from-lm", "--split", "test", "--json").json
    assert "span_f1" in seqloom("evaluate", folder / "tagger", "--json").json
    averaged = seqloom("average", folder / "from-bert", "--last", 2, "--out", tmp_path / "mean")
    assert averaged.code == 0, averaged.err
    both = seqloom("compare", folder / "from-lm", folder / "from-bert", tmp_path / "mean", "--json").json
    assert both["ranked_by"] == "accuracy" and len(both["runs"]) == 3
    assert (
        "init.from" in both["recipes"]
        and both["recipes"]["model.backbone.kind"][str(folder / "from-lm")] == "recurrent-lm"
    )
    assert "(mean of 2 checkpoints)" in seqloom("compare", folder / "from-bert", tmp_path / "mean").out


def test_resuming_rejects_another_init(seqloom: Seqloom, folder: Path, tmp_path: Path) -> None:
    words = ["train", "classify-sst2-finetune", f"init.from={folder}/bert", *table_of(folder), *SHORT]
    out = tmp_path / "run"
    plain = [*words, "train.schedule=constant", "train.unfreeze_every=0.5", "--out", out]
    assert "at first, only the top layer group of 4 is trained" in seqloom(*plain).out
    longer = seqloom("train", "--resume", out, "train.steps=14")
    assert longer.code == 0 and "step 14" in longer.out
    seqloom("train", "--resume", out, f"init.from={folder}/lm").fails_with(
        2, "cannot be resumed with a different recipe", "init.from"
    )


def test_invalid_init_is_rejected(seqloom: Seqloom, folder: Path, tmp_path: Path) -> None:
    def begun(run: str, *words: str) -> Result:
        return seqloom("train", "classify-sst2-finetune", f"init.from={run}", *words, "--out", tmp_path / "x")

    begun(f"{folder}/grams").fails_with(2, "cannot be fine-tuned", "of kind ngram", "recurrent-lm, gpt, bert")
    begun(f"{folder}/nothing").fails_with(4, "there is no run", "init.from=RUN")
    begun(f"{folder}/reviews.csv").fails_with(4, "is not a run")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    begun(f"{tmp_path}/there").fails_with(4, f"Import it first: seqloom import-hf {tmp_path}/there RUN")
    result = begun(f"{folder}/bert", "model.backbone.layers=5", "model.backbone.heads=3")
    result.fails_with(2, "layers is 5, but 2 in the run", "heads is 3, but 2 in the run")
    begun(f"{folder}/bert", *table_of(folder), *SHORT, "train.freeze=4").fails_with(2, "train.freeze", "at most 3")
    plain = seqloom(
        "train",
        "names",
        "data.train=240",
        "data.dev=48",
        "data.test=48",
        "train.layer_decay=0.5",
        "--out",
        tmp_path / "x",
    )
    plain.fails_with(2, "train.layer_decay needs a model with layer groups")
    assert not (tmp_path / "x").exists()


def test_misspelt_key_is_reported_before_missing_run(seqloom: Seqloom, workdir: Path) -> None:
    shown = seqloom("train", "classify-sst2-finetune", "init.frm=runs/bert")
    shown.fails_with(2, "init.frm: no such key; did you mean init.from?")
    assert "there is no run" not in shown.err
    seqloom("train", "gpt-finetune", "data.train=mine.txt", "batch.length=4096").fails_with(4, "there is no run")


def test_recipe_names_the_run_to_train_first(seqloom: Seqloom, workdir: Path) -> None:
    seqloom("train", "classify-sst2-finetune").fails_with(4, "Train it first, `seqloom train bert-reviews`")


def test_ladder_compares_fine_tuning_and_training_from_scratch(seqloom: Seqloom, folder: Path, tmp_path: Path) -> None:
    fine: Any = ["tokenizer=null", "model.kind=fine-tuned-classifier", f"init.from={folder}/bert"]
    file = tmp_path / "shares.yaml"
    plain = {"base": "classify-sst2-bilstm", "equal": "nothing", "budget": "free", "seeds": [1]}
    plain["overrides"] = [*table_of(folder), *SHORT, "train.steps=4", "tokenizer.min_count=1"]
    small = ["model.embedding=8", "model.encoder.hidden=8"]
    variants = {"scratch": small, "fine": fine, "baseline": [*fine, "init.weights=false"]}
    file.write_text(dump_yaml({**plain, "variants": variants}), encoding="utf-8")
    result = seqloom("ladder", file, "--out", tmp_path / "ladder", "--json")
    assert [one["event"] for one in result.objects] == ["finished"] * 3 + ["ladder"]
    assert {variant["name"] for variant in result.objects[-1]["variants"]} == {"scratch", "fine", "baseline"}
    again = seqloom("ladder", file, "--out", tmp_path / "ladder")
    assert again.out.count("finished before") == 3


def test_doctor_reports_the_backbone(seqloom: Seqloom, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=1 << 29))
    result = seqloom("doctor", "classify-sst2-finetune", f"init.from={folder}/bert", *table_of(folder), *SHORT)
    assert result.code == 0, result.err
    assert re.search(r"model: fine-tuned-classifier, [\d,]+ parameters: backbone", result.out)
