"""The results of examining a recipe equal manual counts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.standard import STANDARD_CELLS

from seqloom.accel.recurrence import torch_kernels
from seqloom.core.errors import DataError
from seqloom.core.limits import format_bytes
from seqloom.core.operations import Implementation
from seqloom.inspect import doctor
from seqloom.inspect.rehearsal import Budget, Rehearsal, kernel_notes, model_facts
from seqloom.nn.cells import CELLS
from seqloom.nn.recurrent import Recurrent, run_cell
from seqloom.recipes import read_recipe
from seqloom.tasks import task_info
from seqloom.training import begin

GIB = 1 << 30
SMALL = ["batch.size=2", "batch.length=8", "model.hidden=12", "model.embedding=6"]


@pytest.fixture(autouse=True)
def no_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the rehearsal, which has its own tests."""
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=GIB))
    monkeypatch.setattr(doctor, "free_memory", lambda device: 4 * GIB)


def recipe(folder: Path, train: str, dev: str, *overrides: str, base: str = "lm-char-lstm") -> Any:
    (folder / "train.txt").write_text(train, encoding="utf-8")
    (folder / "dev.txt").write_text(dev, encoding="utf-8")
    files = [f"data.{name}={folder / name}.txt" for name in ("train", "dev")]
    data = ["data.corpus=text", *files, "data.test_fraction=0", "data.documents=line"]
    return read_recipe(base, [*data, *SMALL, *overrides])[1]


def advice(diagnosis: doctor.Diagnosis, word: str) -> list[str]:
    return [warning for warning in diagnosis.warnings if word in warning]


def test_corpus_statistics_match_manual_counts(tmp_path: Path) -> None:
    lines = ["abc", "a", "abc", "abcdefgh", "ab", "b", "bb", "aab"]
    diagnosis = doctor.examine(recipe(tmp_path, "\n".join(lines), "abc\nxyzé\nab\nc"))
    train, dev = diagnosis.splits
    assert (train.documents, train.empty, train.tokens) == (8, 0, sum(map(len, lines)) + 8)
    assert train.lengths == doctor.Lengths(1, 2, 3, 8)
    assert (train.duplicates, train.in_train, train.unknown_rate) == (1, 0, 0)
    assert (dev.in_train, dev.duplicates) == (2, 0)  # abc and ab
    assert dev.new_characters == ["x", "y", "z", "é"]
    assert dev.unknown_rate == pytest.approx(4 / (3 + 4 + 2 + 1 + 4))
    assert diagnosis.tokenizer == doctor.TokenizerFacts("characters", 10, 1.0, 1.0)
    assert len(advice(diagnosis, "of the documents of dev also occur in train")) == 1
    assert len(advice(diagnosis, "of dev is read as <unk>")) == 1
    assert len(advice(diagnosis, "duplicates")) == 1


def test_clean_corpus_has_no_warnings(tmp_path: Path) -> None:
    text = "\n".join(f"line {n} of a text that is long enough to train on" for n in range(400))
    diagnosis = doctor.examine(
        recipe(tmp_path, text, "this line is like none of the others at all\n", "train.warmup=5")
    )
    assert diagnosis.warnings == []
    assert diagnosis.seconds == diagnosis.budget.steps * 0.5 + diagnosis.budget.evaluations * 2.0  # type: ignore[union-attr]


def test_shared_lines_within_documents_are_counted(tmp_path: Path) -> None:
    shared, other = "x" * 50, "y" * 50
    train, dev = [f"a\n{shared}\nb"], [f"{shared}\n{other}\n{other}\nb"]
    assert doctor.line_overlap(dev, train) == pytest.approx(1 / 3)
    assert doctor.line_overlap(["b"], train) == 0


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=12))
def test_lengths_from_a_stream_match_document_lengths(documents: list[list[int]]) -> None:
    stream = np.array([token for document in documents for token in [*document, 0]])
    summary, lengths = doctor.Lengths.of_stream(stream, 0), sorted(map(len, documents))
    assert (summary.min, summary.max) == (lengths[0], lengths[-1])
    assert summary.median == lengths[(len(lengths) - 1) // 2]
    assert summary.min <= summary.median <= summary.p95 <= summary.max


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("more", [[], ["model.layers=2"], ["model.tied=true", "model.embedding=12"]])
def test_parameters_by_part_match_the_built_model(tmp_path: Path, cell: str, more: list[str]) -> None:
    checked = recipe(tmp_path, "some text\nto read\n" * 9, "more text", f"model.cell={cell}", *more)
    task = task_info(checked.task).task.prepare(checked)
    facts, model = model_facts(task, torch.device("cpu")), task.model()
    assert facts.parameters == sum(facts.parts.values()) == sum(p.numel() for p in model.parameters())
    assert set(facts.parts) == {"embedding", "layers", "output"}
    assert facts.parts["embedding"] == model.embed.weight.numel()
    assert ("all recurrent layers use sequence kernels" in facts.notes) == (cell in STANDARD_CELLS)


@pytest.mark.parametrize("cell", CELLS)
def test_cells_without_a_kernel_are_listed(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells of the package have kernels on this device, but user-defined cells may not have kernels."""
    kernels = Implementation(torch_kernels.applies, torch_kernels.run)
    monkeypatch.setattr(run_cell, "implementations", [kernels])
    instance = CELLS[cell](3, 4)
    (note,) = kernel_notes(Recurrent(instance), torch.device("cpu"))
    assert (f"no sequence kernel for {cell}" in note) == (torch_kernels.kernel_name(instance) is None)


def test_budget_counts_steps_epochs_tokens_and_evaluations(tmp_path: Path) -> None:
    text = "\n".join("0123456789" for _ in range(100))  # 1,100 tokens, 550 in each row, 69 chunks of 8
    changes = ["train.epochs=3", "train.accumulate_steps=2", "train.evaluate_every=20"]
    budget = doctor.examine(recipe(tmp_path, text, "0", *changes)).budget
    assert budget == Budget(steps_per_epoch=34, steps=104, epochs=208 / 69, tokens_per_step=32, evaluations=6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.warmup=5000", "the learning rate never reaches"),
        ("train.lr=0.1", "far above the usual range of adamw"),
        ("train.clip_norm=null", "exploding gradients"),
        ("batch.length=4000", "shorter than one chunk per sequence"),
    ],
)
def test_unusual_settings_are_reported_once(tmp_path: Path, change: str, words: str) -> None:
    text = "\n".join(f"line {n} of a text that is long enough" for n in range(100))
    plain = doctor.examine(recipe(tmp_path, text, "unlike", "train.warmup=5"))
    assert advice(plain, words) == []
    assert len(advice(doctor.examine(recipe(tmp_path, text, "unlike", change)), words)) == 1


def test_insufficient_memory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = recipe(tmp_path, "some text\nto read\n" * 9, "more text")
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=8 * GIB))
    assert advice(doctor.examine(checked), "needs 8.0 GiB of memory. Only 4.0 GiB is free. Use a smaller batch.size")
    ended = Rehearsal(failure="out of memory: the system ended it", out_of_memory_for="batch")
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: ended)
    assert advice(doctor.examine(checked), "Out of memory: the system ended it. Only 4.0 GiB is free. Use a smaller")
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(12, 0.5, 2.0, memory=GIB, microbatches=4))
    assert advice(doctor.examine(checked), "A batch does not fit in memory and is split into 4 microbatches")
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(failure="something else"))
    assert advice(doctor.examine(checked), "The trial run failed, so training will also fail: something else")


def test_model_larger_than_memory_is_not_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(recipe: Any) -> Rehearsal:
        raise AssertionError("this would have filled the memory")

    monkeypatch.setattr(doctor, "rehearse", never)
    huge = recipe(tmp_path, "some text\nto read\n" * 9, "more text", "model.hidden=30000", "model.layers=4")
    diagnosis = doctor.examine(huge)
    assert diagnosis.model is not None and diagnosis.model.parameters > 10**9
    (warning,) = advice(diagnosis, "Out of memory: parameters, gradients and optimizer state alone need")
    assert warning.endswith("Use a smaller model.")  # a smaller batch does not help


def test_unusable_data_raises_the_error_that_training_raises(tmp_path: Path) -> None:
    short = recipe(tmp_path, "abc\n", "b", "batch.size=4")
    with pytest.raises(DataError) as trained:
        begin(short, tmp_path / "run")
    with pytest.raises(DataError) as examined:
        doctor.examine(short)
    assert str(trained.value) == str(examined.value)


def test_ngram_model_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "rehearse", lambda recipe: Rehearsal(0, 0.2, memory=GIB, sizes={"1-grams": 5}))
    text = ["data.corpus=text", f"data.train={tmp_path / 'a.txt'}", "data.documents=line"]
    (tmp_path / "a.txt").write_text("a cat sat on a mat\n" * 30)
    diagnosis = doctor.examine(read_recipe("ngram-kn5", [*text, "model.order=2"])[1])
    assert diagnosis.model is None and diagnosis.budget is None and diagnosis.seconds == 0.2
    assert diagnosis.splits[0].documents > 20


@pytest.mark.parametrize(
    ("count", "words"), [(12, "12 bytes"), (1 << 20, "1 MiB"), (700 << 20, "700 MiB"), (3 << 29, "1.5 GiB")]
)
def test_bytes_are_shown_in_binary_units(count: int, words: str) -> None:
    assert format_bytes(count) == words


def test_gpu_rehearsal_reports_gpu_memory() -> None:
    rehearsal = Rehearsal(memory=9 * GIB, gpu_allocated=GIB, gpu_reserved=2 * GIB)
    assert rehearsal.peak == 2 * GIB
    assert replace(rehearsal, gpu_reserved=None).peak == 9 * GIB
