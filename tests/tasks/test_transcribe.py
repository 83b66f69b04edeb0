"""Transcription: losses, resuming, evaluation, commands, alignments and bad input."""

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.config import ConfigError, build
from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.data.batching import Ragged
from seqloom.data.collate import shift_right
from seqloom.data.handwriting import words_of
from seqloom.data.images import decode
from seqloom.data.strokes import Strokes
from seqloom.decoding.ctc import ctc_search
from seqloom.decoding.fusion import FusedLanguageModel
from seqloom.evaluate.transcription import score_transcriptions
from seqloom.models.vectors_to_text import VectorsToTextConfig
from seqloom.nn.ctc import ctc_log_likelihood
from seqloom.nn.pyramid import PyramidalEncoderConfig
from seqloom.predict.transcribe import aligned_part
from seqloom.recipes import read_recipe
from seqloom.tasks import transcribe
from seqloom.tasks.transcription_base import TranscriptionSearchConfig, search
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
    "pyramid": ["model.loss=joint", "decode.min_length=2", "model.encoder={kind: pyramidal, layers: 3, hidden: 8}"],
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
        assert set(losses) == ({"loss", "attention_loss", "ctc_loss"} if name in ("joint", "pyramid") else {"loss"})


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


def test_pyramid_reads_pairs_of_outputs_and_halves_the_length_in_each_layer() -> None:
    config = PyramidalEncoderConfig(layers=3, hidden=5, bidirectional=False)
    encoder = config.build(4).double().eval()
    x, lengths = torch.randn(3, 11, 4, generator=torch.Generator().manual_seed(1)).double(), [11, 6, 1]
    mask = torch.arange(11) < torch.tensor(lengths).unsqueeze(1)
    h, final = encoder.read(x, mask)
    assert config.reduction == 4 and h.shape == (3, 3, 5)
    assert encoder.output_mask(mask).sum(dim=1).tolist() == [3, 2, 1]
    for row, length in enumerate(lengths):
        y = x[row, :length]
        for depth, layer in enumerate(encoder.layers):
            if depth > 0:
                y = torch.cat([y, y.new_zeros(len(y) % 2, y.shape[1])])
                y = torch.stack([torch.cat([y[2 * j], y[2 * j + 1]]) for j in range(len(y) // 2)])
            y = layer(y.unsqueeze(0))[0][0]
        assert torch.allclose(h[row, : len(y)], y) and torch.allclose(final[row], y[-1])
    assert PyramidalEncoderConfig(layers=2, pairs=0).reduction == 1
    for wrong in ({"pairs": 4}, {"depth": "apart", "bidirectional": True}):
        with pytest.raises(ConfigError):
            PyramidalEncoderConfig(layers=3, **wrong)


# --- language models and both losses ----------------------------------------------------------------------------------


class Bigrams:
    """A language model of given probabilities of pairs of tokens, as a `Steppable`."""

    def __init__(self, tokens: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.log_probs = torch.randn(tokens, tokens, generator=generator).double().log_softmax(dim=-1)

    def start(self, source: Any = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.zeros(rows or 1, 1, dtype=torch.long))

    def step(self, tokens: torch.Tensor, state: DecodeState, mask: Any = None) -> StepOutput:
        return StepOutput(self.log_probs[tokens[:, -1]], DecodeState(tokens[:, -1:]))

    def score(self, text: Sequence[int]) -> float:
        pairs = pairwise([0, *text, 0])
        return sum(self.log_probs[a, b].item() for a, b in pairs)


def test_ctc_with_a_language_model_ranks_texts_by_the_sum_of_both_scores() -> None:
    log_probs = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(5)).double().log_softmax(dim=-1)
    mask, bigrams = torch.ones(1, 4, dtype=torch.bool), Bigrams(4, 1)
    fused = FusedLanguageModel(bigrams, 0.7, torch.arange(4), bonus=0.4)
    texts = {tuple(each.tokens): each.log_prob for each in ctc_search(log_probs, mask, beam=999, n_best=999)[0]}
    expected = {text: p + 0.7 * bigrams.score(text) + 0.4 * len(text) for text, p in texts.items()}
    (found,) = ctc_search(log_probs, mask, beam=999, n_best=10, language_model=fused)
    best = sorted(expected, key=expected.__getitem__, reverse=True)[:10]
    assert [tuple(each.tokens) for each in found] == best
    assert [each.score for each in found] == pytest.approx([expected[text] for text in best])
    without = [tuple(each.tokens) for each in ctc_search(log_probs, mask, beam=999, n_best=10)[0]]
    assert without != best  # control: the language model changes the ranking


def test_decoder_with_a_language_model_finds_the_best_sum_of_both_scores(runs: Runs) -> None:
    model = load(runs["attention"], "cpu").model.double()
    task: transcribe.Task = load(runs["attention"], "cpu").task()
    batch: Any = task.eval_batches("test").collate(np.arange(2))
    batch["vectors"] = batch["vectors"].double()
    tokens = len(task.tokenizer)
    bigrams = Bigrams(tokens, 2)
    options = TranscriptionSearchConfig(beam=tokens**2, n_best=5, max_length=3, length_penalty=0.0)
    fused = FusedLanguageModel(bigrams, 0.6, torch.arange(tokens))
    found = search(model, batch, options, task.tokenizer, language_model=fused)
    texts = [[], *([a] for a in range(2, tokens)), *([a, b] for a in range(2, tokens) for b in range(2, tokens))]
    assert task.tokenizer.banned in ((), (1,))
    targets = Ragged.of(texts)
    padded, target_mask = targets.pad(np.arange(len(texts)), len(texts), 3)
    for row in range(2):
        copies = {name: batch[name][row : row + 1].expand(len(texts), -1, -1) for name in ("vectors",)}
        copies["mask"] = batch["mask"][row : row + 1].expand(len(texts), -1)
        repeated = {**copies, "inputs": shift_right(padded), "targets": padded, "target_mask": target_mask}
        log_probs = model.log_likelihoods(repeated)["attention"].tolist()
        scores = {tuple(t): p + 0.6 * bigrams.score(t) for t, p in zip(texts, log_probs, strict=True)}
        best = sorted(scores, key=scores.__getitem__, reverse=True)[:5]
        finished = [each for each in found[row] if each.finished]
        assert finished and [tuple(each.tokens) for each in finished] == best[: len(finished)]
        assert [each.score for each in finished] == pytest.approx([scores[text] for text in best[: len(finished)]])


def test_joint_search_ranks_the_texts_of_the_decoder_by_both_scores(runs: Runs) -> None:
    for name in ("joint", "pyramid"):
        model, task = load(runs[name], "cpu").model, load(runs[name], "cpu").task()
        batch: Any = task.eval_batches("test").collate(np.arange(4))
        options = TranscriptionSearchConfig(beam=4, n_best=4, max_length=6, min_length=2)
        ranked = search(model, batch, options, task.tokenizer)
        plain = search(model, batch, replace(options, by="attention"), task.tokenizer)
        for row, (both, alone) in enumerate(zip(ranked, plain, strict=True)):
            targets = Ragged.of([each.tokens for each in alone])
            padded, target_mask = targets.pad(np.arange(4), 4, int(targets.lengths.max()))
            one = {key: batch[key][row : row + 1].expand(4, *batch[key].shape[1:]) for key in ("vectors", "mask")}
            ctc = model.log_likelihoods(
                {**one, "inputs": shift_right(padded), "targets": padded, "target_mask": target_mask}
            )["ctc"]
            sizes = [len(each.token_log_probs) for each in alone]
            pairs = zip(alone, ctc.tolist(), sizes, strict=True)
            scores = [0.7 * each.score + 0.3 * value / size for each, value, size in pairs]
            order = sorted(range(4), key=lambda index: -scores[index])
            assert [each.tokens for each in both] == [alone[index].tokens for index in order]
            assert [each.score for each in both] == pytest.approx([scores[index] for index in order], rel=1e-4)


def test_language_model_of_a_run_is_used_by_the_command(
    runs: Runs, writing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("".join(f"{word}\n" for word in words_of("train")))
    data = ["data.corpus=text", f"data.train={words}", "data.documents=line"]
    train_recipe("ngram-kn5", *data, "tokenizer={kind: characters}", out=tmp_path / "lm")
    lm = tmp_path / "lm"
    for path in runs.values():
        model = load(path, "cpu")
        (plain,) = model.transcribe(writing)
        (fused,) = model.transcribe(writing, language_model=lm, lm_weight=2.0, lm_bonus=1.0)
        line = output_of(capsys, "transcribe", path, writing, "--lm", lm, "--lm-weight", "2", "--lm-bonus", "1")
        assert line == f"{fused.text}\n" and fused.score != plain.score
        (same,) = model.transcribe(writing, language_model=lm, lm_weight=0.0)
        assert same.text == plain.text
        assert model.report("test", language_model=lm).metrics.keys() == model.report("test").metrics.keys()
    words.write_text("".join(f"{word}\n" for word in words_of("train")).replace("e", "x"))
    train_recipe("ngram-kn5", *data, "tokenizer={kind: characters}", out=tmp_path / "other")
    error = error_of(capsys, 2, "transcribe", runs["ctc"], writing, "--lm", tmp_path / "other")
    assert "must have every token" in error and "lacks 'e'" in error
    assert "is a transcription model" in error_of(capsys, 2, "transcribe", runs["ctc"], writing, "--lm", runs["ctc"])


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
            if name in ("attention", "joint"):
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
