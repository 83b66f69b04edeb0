"""Transcription: losses, resuming, evaluation, commands, alignments and bad input."""

import io
import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.config import build
from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.data.images import decode
from seqloom.data.strokes import Strokes
from seqloom.evaluate.transcription import score_transcriptions
from seqloom.models.vectors_to_text import VectorsToTextConfig
from seqloom.nn.ctc import ctc_log_likelihood
from seqloom.predict.transcribe import aligned_part
from seqloom.recipes import read_recipe
from seqloom.tasks import transcribe
from seqloom.train.events import Saved

SMALL = [
    "data.train=40",
    "data.dev=6",
    "data.test=8",
    "batch.tokens=800",
    "model.encoder.hidden=8",
    "features.spacing=0.2",
]
SMALL += ["model.seq2seq.hidden=8", "model.seq2seq.embedding=8", "model.encoder.layers=1", "features.jitter=0.1"]
STEPS = ["train.epochs=null", "train.steps=6", "train.evaluate_every=3", "train.warmup=2", "decode.max_length=8"]
KINDS = {
    "ctc": ["model.loss=ctc"],
    "attention": ["model.loss=attention", "decode.min_length=2"],
    "joint": ["model.loss=joint", "decode.min_length=2"],
}
Runs = dict[str, Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("transcribe")
    for name, options in KINDS.items():
        train_recipe("pen-letters", *SMALL, *STEPS, *options, out=folder / name)
    return {name: folder / name for name in KINDS}


@pytest.fixture(scope="module")
def writing(runs: Runs) -> Path:
    """The first recording of test as a file."""
    example = load(runs["ctc"], "cpu").task().corpus.split("test")[0]
    path = runs["ctc"].parent / "strokes.json"
    path.write_text(json.dumps({"strokes": example.signal.to_json(), "text": example.text}))
    return path


def output_of(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(list(map(str, words))) == 0
    return capsys.readouterr().out


def error_of(capsys: pytest.CaptureFixture[str], code: int, *words: str | Path) -> str:
    assert main(list(map(str, words))) == code
    error = capsys.readouterr().err
    assert error.startswith("seqloom: ") and error.count("\n") <= 2
    return error


# --- training ---------------------------------------------------------------------------------------------------------


def test_joint_loss_is_the_weighted_sum_of_both_losses(runs: Runs) -> None:
    model, task = load(runs["joint"], "cpu").model, load(runs["joint"], "cpu").task()
    batch: Any = task.batch(1, 0)
    h, mask = model.encode(batch)
    count = batch["target_mask"].sum()
    attention = model.seq2seq.loss({**batch, "source": {"encoded": h}, "source_mask": mask})[0]
    ctc = ctc_log_likelihood.definition(model.label_log_probs(h), mask, batch["targets"], batch["target_mask"])
    weight = model.config.ctc_weight
    assert weight == 0.3
    value, tokens = model.loss(batch)
    assert tokens == count
    assert value.item() == pytest.approx(((1 - weight) * attention - weight * ctc.sum() / count).item(), rel=1e-5)


def test_losses_on_dev_match_the_loss_of_the_model(runs: Runs) -> None:
    for name, path in runs.items():
        model = load(path, "cpu").model
        task: transcribe.Task = load(path, "cpu").task()
        total = count = 0.0
        for _, batch in task.eval_batches("dev").all_batches():
            value, tokens = model.loss(batch)
            total, count = total + value.item() * tokens.item(), count + tokens.item()
        losses = task.losses(model, "dev")
        assert losses["loss"] == pytest.approx(total / count, rel=1e-4)
        assert set(losses) == ({"loss", "attention_loss", "ctc_loss"} if name == "joint" else {"loss"})


def test_padding_does_not_change_the_likelihood_of_a_recording(runs: Runs) -> None:
    for path in runs.values():
        model, task = load(path, "cpu").model, load(path, "cpu").task()
        batches = task.eval_batches("test")
        together = model.log_likelihoods(batches.collate(np.arange(8)))
        for index in range(8):
            alone = model.log_likelihoods(batches.collate(np.array([index])))
            for name, value in alone.items():
                assert value.item() == pytest.approx(together[name][index].item(), rel=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_resumed_training_gives_the_same_weights(name: str, runs: Runs, tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_recipe("pen-letters", *SMALL, *STEPS, *KINDS[name], out=tmp_path / "b", on_event=stop)
    train_recipe("pen-letters", *SMALL, *STEPS, *KINDS[name], out=tmp_path / "b", resume=True)
    a, b = (tensors_from_file(path / "model.safetensors") for path in (runs[name], tmp_path / "b"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_short_recordings_are_counted_and_ignored_by_ctc() -> None:
    recipe = read_recipe("pen-letters", [*SMALL, "model.loss=ctc"])[1]
    whole = transcribe.Task.prepare(recipe)
    dots = Strokes("dots", tuple(np.array([[0.0, n]]) for n in range(5)))
    examples = [replace(each, signal=dots) for each in whole.corpus.split("train")]
    task = transcribe.Task(recipe, replace(whole.corpus, splits={"train": examples}), whole.tokenizer)
    texts, lengths = [e.text for e in task.corpus.split("train")], task.vectors("train").lengths.tolist()
    needed = [len(text) + sum(a == b for a, b in pairwise(text)) for text in texts]
    expected = [length < need for length, need in zip(lengths, needed, strict=True)]
    assert task.is_too_short("train").tolist() == expected and 0 < sum(expected) < len(texts)
    assert any(f"{sum(expected)} of 40 training recordings have fewer vectors" in note for note in task.warnings())
    model = task.model()
    value, _ = model.loss(task.batch(1, 0))
    value.backward()
    assert value.isfinite() and all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_problems_of_recipes_are_reported() -> None:
    cases = {
        "batch.dev_recordings=0": "monitor character_error_rate needs texts of dev",
        "model.seq2seq={kind: transformer, tied: all}": "seq2seq.tied must be decoder or none",
        "model.seq2seq={kind: recurrent-seq2seq, context: first, attention: null}": "seq2seq.context must be start",
        "features.kind=log-mal": "log-mal",
        "features.spacing=0": "spacing",
    }
    for option, message in cases.items():
        with pytest.raises(UsageError, match=message):
            read_recipe("pen-letters", [option])


def test_model_with_too_few_positions_is_rejected() -> None:
    encoder = "{kind: transformer, d_model: 8, heads: 2, d_ff: 8, layers: 1, positions: {kind: learned, max_length: 9}}"
    recipe = read_recipe("pen-letters", [*SMALL[:4], f"model.encoder={encoder}"])[1]
    with pytest.raises(DataError, match=r"vectors, but the model has only 9 positions. Set model.encoder.positions"):
        transcribe.Task.prepare(recipe)


@pytest.mark.parametrize("kind", ["convolution", "transformer"])
def test_other_encoders_and_the_transformer_decoder_learn(kind: str) -> None:
    sizes = {"convolution": {"filters": 8}, "transformer": {"d_model": 8, "heads": 2, "d_ff": 8}}[kind]
    decoder = {"kind": "transformer", "d_model": 8, "heads": 2, "d_ff": 8, "encoder_layers": 0, "decoder_layers": 1}
    section = {"encoder": {"kind": kind, **sizes}, "loss": "joint", "seq2seq": decoder}
    model = build(VectorsToTextConfig, section).build(9, size=4)
    task = transcribe.Task.prepare(read_recipe("pen-letters", SMALL)[1])
    batch: Any = task.batch(1, 0)
    batch["targets"], batch["inputs"] = batch["targets"] % 9, batch["inputs"] % 9
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(12):
        loss = model.loss(batch)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


# --- evaluation and commands ------------------------------------------------------------------------------------------


def test_reports_score_the_texts_that_are_written(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    for name, path in runs.items():
        model = load(path, "cpu")
        report, examples = model.report("test"), model.training_task.corpus.split("test")
        texts = [each.text for each in model.transcribe([example.signal for example in examples])]
        assert [line.text.strip() for line in report.lines] == texts
        expected = score_transcriptions([line.text for line in report.lines], [example.text for example in examples])
        assert {key: report.metrics[key] for key in expected} == expected
        assert report.decoding.startswith("CTC, prefix beam" if name == "ctc" else "beam search")
    out = runs["ctc"].parent / "texts.tsv"
    printed = output_of(capsys, "evaluate", runs["ctc"], "--split", "test", "--out", out)
    assert "character error rate" in printed and "8 recordings" in printed and "correct: " in printed
    assert len(out.read_text().splitlines()) == 9
    value = json.loads(output_of(capsys, "evaluate", runs["joint"], "--beam", "1", "--json"))
    assert value["decoding"].startswith("greedy search,") and value["examples"][0]["recording"].startswith("dev ")
    assert "greedy" in json.loads(output_of(capsys, "evaluate", runs["ctc"], "--beam", "1", "--json"))["decoding"]


def test_files_lists_and_streams_give_the_same_text(
    runs: Runs, writing: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in runs.values():
        model = load(path, "cpu")
        (expected,) = model.transcribe(writing)
        content = json.loads(writing.read_text())
        assert model.transcribe([content["strokes"]])[0].text == expected.text
        assert model.predict([str(writing), ""])[0].text == expected.text
        assert [each.text for each in model.predict(["", str(writing)])] == ["", expected.text]
        assert output_of(capsys, "transcribe", path, writing) == f"{expected.text}\n"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(writing.read_bytes())))
        assert output_of(capsys, "transcribe", path, "-") == f"{expected.text}\n"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{writing}\n\n".encode())))
        assert output_of(capsys, "transcribe", path) == f"{expected.text}\n\n"


def test_several_writings_of_a_file_are_transcribed(
    runs: Runs, writing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = writing.with_name("both.json")
    both.write_text(json.dumps([json.loads(writing.read_text())] * 2))
    lines = output_of(capsys, "transcribe", runs["ctc"], both, "--n-best", "2", "--beam", "4").splitlines()
    assert [line.partition(" ||| ")[0] for line in lines] == ["0", "0", "1", "1"] and lines[0][1:] == lines[2][1:]
    assert "must contain one recording; got 2" in error_of(capsys, 3, "predict", runs["ctc"], both)
    error = error_of(capsys, 2, "transcribe", runs["ctc"], both, "--alignment", both.with_suffix(".png"))
    assert "--alignment requires one recording" in error


def test_alignments_cover_the_text_in_order(runs: Runs, writing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, path in runs.items():
        model = load(path, "cpu")
        (prediction,) = model.transcribe(writing, alignment=True)
        vectors = model.features.vectors(prediction.signal)
        assert prediction.alignment is not None
        assert "".join(token.text for token in prediction.alignment) == prediction.text
        for token in prediction.alignment:
            assert token.weights.shape == (len(vectors),) and 0 <= token.start <= token.end < len(vectors)
            if name != "ctc":
                assert token.weights.sum() == pytest.approx(1, abs=1e-5)
        value = json.loads(output_of(capsys, "transcribe", path, writing, "--json"))
        assert [token["text"] for token in value["alignment"]] == list(prediction.text)
        out = writing.with_name(f"{name}.png")
        output_of(capsys, "transcribe", path, writing, "--alignment", out)
        assert decode(out.read_bytes(), "x").pixels.shape[1] > 500
        output_of(capsys, "transcribe", path, writing, "--alignment", out.with_suffix(".svg"))
        assert out.with_suffix(".svg").read_text().startswith("<?xml")
    ctc = load(runs["joint"], "cpu").transcribe(writing, by="ctc", beam=1, alignment=True)[0]
    assert ctc.alignment is not None
    starts = [token.start for token in ctc.alignment]
    assert starts == sorted(starts)


def test_aligned_part_is_the_region_around_the_largest_weight() -> None:
    times = np.arange(6) / 10
    assert aligned_part(np.array([0, 0.1, 0.3, 0.5, 0.05, 0.4]), times) == (0.2, 0.3)
    assert aligned_part(np.ones(6), times) == (0.0, 0.5)
    assert aligned_part(np.zeros(6), times) == (0.0, 0.0)


def test_wrong_options_and_files_are_rejected(runs: Runs, writing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = writing.with_name("bad.json")
    bad.write_text('{"strokes": [[]]}')
    assert "must have at least one point" in error_of(capsys, 3, "transcribe", runs["ctc"], bad)
    assert "missing.json" in error_of(capsys, 3, "transcribe", runs["ctc"], "missing.json")
    assert "needs a model with the loss joint or attention" in error_of(
        capsys, 2, "transcribe", runs["ctc"], writing, "--by", "attention"
    )
    error = error_of(capsys, 2, "transcribe", runs["ctc"], writing, writing, "--alignment", bad.with_suffix(".png"))
    assert "--alignment requires one file" in error
    assert "must end in .png or .svg" in error_of(
        capsys, 2, "transcribe", runs["ctc"], writing, "--alignment", bad.with_suffix(".gif")
    )
    model = load(runs["ctc"], "cpu")
    with pytest.raises(UsageError, match="must consist of points"):
        model.transcribe([[[1, 2]]])
    with pytest.raises(UsageError, match="alignment=True"):
        model.draw_alignment(model.transcribe(writing)[0])


def test_scaled_and_moved_strokes_give_the_same_text(runs: Runs) -> None:
    model = load(runs["attention"], "cpu")
    signal = model.task().corpus.split("test")[1].signal
    moved = Strokes("moved", tuple(stroke * 7 - 300 for stroke in signal.strokes))
    first, second = model.transcribe([signal, moved])
    assert first.text == second.text and first.score == pytest.approx(second.score, abs=1e-3)
