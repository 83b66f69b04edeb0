"""Hugging Face checkpoints on the command line: import, use, fine-tuning and export."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.exchange.small_decoders import CONFIG, write_by_hand

import seqloom as package

TEXT = "the old dog barks and then a cat runs"
NO_DATA = (
    "the model was imported, so its training data is not available. Evaluate your own text (seqloom evaluate RUN "
    "FILE), or train a model that starts from it (init.from=RUN).\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imported")


@pytest.fixture(scope="module")
def directory(folder: Path) -> Path:
    return write_by_hand(folder / "tiny")


@pytest.fixture(scope="module")
def run(directory: Path, folder: Path) -> Path:
    from seqloom.cli.app import main

    assert main(["import-hf", str(directory), str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def text_file(folder: Path) -> Path:
    path = folder / "mine.txt"
    path.write_text("".join(f"{TEXT} it sees the big cat\n" for _ in range(60)))
    return path


def test_import_prints_size_and_next_commands(seqloom: Any, directory: Path, tmp_path: Path) -> None:
    result = seqloom("import-hf", directory, tmp_path / "run")
    assert result.code == 0
    assert result.err == ""
    assert "GPT-2, 1,976 parameters, 17 tokens in its vocabulary" in result.out
    assert f"seqloom generate {tmp_path / 'run'}" in result.out


def test_imported_model_generates_and_scores(seqloom: Any, run: Path) -> None:
    created = seqloom("generate", run, "--prompt", "the dog", "--tokens", "5", "--temperature", "0", "--device", "cpu")
    assert created.code == 0
    assert created.out.startswith("the dog")
    beam = seqloom("generate", run, "--prompt", "the dog", "--tokens", "5", "--beam", "3", "--device", "cpu")
    assert beam.code == 0
    scored = seqloom("score", run, "the dog barks", "--json", "--device", "cpu")
    assert scored.json["log_prob"] < 0


def test_imported_model_is_evaluated_on_text(seqloom: Any, run: Path, text_file: Path) -> None:
    result = seqloom("evaluate", run, text_file, "--json", "--device", "cpu").json
    assert result["text_kept"] == 1
    assert result["unknown_rate"] == 0
    assert result["perplexity"] > 1


@pytest.mark.parametrize("split", ["dev", "test", "train"])
def test_imported_model_has_no_splits(seqloom: Any, run: Path, split: str) -> None:
    result = seqloom("evaluate", run, "--split", split)
    result.fails_with(3, lines=1)
    assert result.err == f"seqloom: The corpus imported has no {split} split: {NO_DATA}"


def test_imported_model_cannot_be_resumed(seqloom: Any, run: Path) -> None:
    result = seqloom("train", "--resume", run)
    result.fails_with(3, lines=1)
    assert result.err == f"seqloom: The corpus imported has no train split: {NO_DATA}"
    seqloom("average", run).fails_with(2, f"{run} has no checkpoints to average", lines=1)


def test_imported_model_works_with_inspect_similar_and_compare(seqloom: Any, run: Path, type_in: Any) -> None:
    assert seqloom("inspect", "attention", run, TEXT).code == 0
    type_in(f"{TEXT}\na cat\n".encode())
    assert seqloom("similar", run, "--query", "the dog", "--device", "cpu").code == 0
    compared = seqloom("compare", run, run)
    assert compared.code == 0
    assert "unfinished" not in compared.out


def test_imported_model_is_prompted(seqloom: Any, run: Path) -> None:
    assert seqloom("prompt", run, "the dog", "--choices", "barks,runs", "--device", "cpu").code == 0


def test_imported_model_is_fine_tuned_and_exported(seqloom: Any, run: Path, text_file: Path, tmp_path: Path) -> None:
    """The fine-tuned model is exported and imported again."""
    small = [f"init.from={run}", f"data.train={text_file}", "batch.length=8", "batch.size=2", "train.device=cpu"]
    before = seqloom("evaluate", run, text_file, "--json", "--device", "cpu").json["loss"]
    trained = seqloom("train", "gpt-finetune", *small, "train.lr=0.01", "--out", tmp_path / "tuned")
    assert trained.code == 0, trained.err
    after = seqloom("evaluate", tmp_path / "tuned", text_file, "--json", "--device", "cpu").json["loss"]
    assert after < before - 0.5
    assert "that was imported" in (tmp_path / "tuned" / "card.md").read_text()
    assert seqloom("export-hf", tmp_path / "tuned", tmp_path / "out").code == 0
    assert seqloom("import-hf", tmp_path / "out", tmp_path / "again").code == 0
    scores = [seqloom("score", tmp_path / name, TEXT, "--json", "--device", "cpu").json for name in ("tuned", "again")]
    assert scores[0]["log_prob"] == pytest.approx(scores[1]["log_prob"], abs=1e-5)
    assert seqloom("train", "--resume", tmp_path / "tuned").code == 0


def test_invalid_fine_tuning_settings_are_rejected(seqloom: Any, run: Path, text_file: Path, tmp_path: Path) -> None:
    begin = ["train", "gpt-finetune", f"data.train={text_file}", "--out", str(tmp_path / "new")]
    seqloom(*begin, f"init.from={run}").fails_with(
        2, "batch.length must be at most 10, the context of the model", "Set batch.length=10"
    )
    seqloom(*begin, f"init.from={run}", "batch.length=8", "model.d_model=16").fails_with(
        2, "model.d_model is 16, but 8 in the run"
    )
    seqloom(*begin, f"init.from={run}", "batch.length=8", "tokenizer.kind=words").fails_with(2, "leave the section out")
    seqloom(*begin, f"init.from={tmp_path}/none").fails_with(4, "there is no run")
    seqloom("train", "lm-char-lstm", "tokenizer=null", "--out", tmp_path / "new").fails_with(2, "tokenizer: missing")
    seqloom("train", "lm-char-lstm", "tokenizer.kind=huggingface", "--out", tmp_path / "new").fails_with(
        2, "cannot be trained"
    )
    assert not (tmp_path / "new").exists()


def test_from_scratch_baseline_has_new_weights(seqloom: Any, run: Path, text_file: Path, tmp_path: Path) -> None:
    small = [f"init.from={run}", f"data.train={text_file}", "batch.length=8", "batch.size=2", "train.device=cpu"]
    small += ["train.steps=1", "train.epochs=null", "train.lr=1e-9"]
    losses = []
    for weights in ("true", "false"):
        out = tmp_path / weights
        assert seqloom("train", "gpt-finetune", *small, f"init.weights={weights}", "--out", out).code == 0
        losses.append(seqloom("evaluate", out, "--json", "--device", "cpu").json["loss"])
    assert losses[1] == pytest.approx(2.83, abs=0.1)  # log 17: untrained
    assert losses[0] > losses[1] + 0.5  # random weights with another scale give confident predictions


def test_export_prints_size_and_writes_config(seqloom: Any, run: Path, tmp_path: Path) -> None:
    result = seqloom("export-hf", run, tmp_path / "out")
    assert result.code == 0
    assert 'GPT2LMHeadModel.from_pretrained("' in result.out
    names = {"config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"tokenizer.json", "tokenizer_config.json"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: config[key] for key in CONFIG} == CONFIG


def test_invalid_input_is_rejected(seqloom: Any, directory: Path, run: Path, tmp_path: Path) -> None:
    seqloom("import-hf", tmp_path / "none", tmp_path / "new").fails_with(4, "none does not exist")
    seqloom("import-hf", directory, run).fails_with(2, "already exists. Choose another run directory.")
    seqloom("import-hf", run, tmp_path / "new").fails_with(4, "it has no config.json")
    seqloom("export-hf", directory, tmp_path / "out").fails_with(4, "is not a run")
    seqloom("export-hf", run, directory).fails_with(2, "exists. Choose another path")
    seqloom("export-hf", run, directory / "config.json" / "x").fails_with(5, "Could not write")
    broken = tmp_path / "broken"
    shutil.copytree(directory, broken)
    (broken / "config.json").write_text(json.dumps({**CONFIG, "n_head": 4, "n_layer": 1, "some_key": 1}))
    seqloom("import-hf", broken, tmp_path / "new").fails_with(4, "some_key is unknown; it is 1")
    (broken / "config.json").write_text(json.dumps({**CONFIG, "n_layer": 1}))
    seqloom("import-hf", broken, tmp_path / "new").fails_with(4, "is not a tensor of the model", lines=14)
    assert not (tmp_path / "new").exists()


def test_functions_import_and_export_a_model(directory: Path, tmp_path: Path) -> None:
    model = package.import_hf(directory, tmp_path / "run", device="cpu")
    assert model.score("the dog barks")[0].log_prob < 0
    written = package.export_hf(tmp_path / "run", tmp_path / "out")
    assert (written / "model.safetensors").is_file()
    assert {"import_hf", "export_hf"} <= set(dir(package))
