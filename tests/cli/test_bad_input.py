"""Invalid input and damaged runs lead to a clear message and the right exit code, and no data is lost."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.checksums import update_checksums

from seqloom.core.files import tensors_from_file, tensors_to_bytes
from seqloom.runs.run import Run
from seqloom.train import events as e
from seqloom.train.state import TrainState

# --- invalid values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["x", "3", "[1]", "true"])
def test_scalar_or_list_instead_of_section_is_rejected(seqloom: Any, workdir: Path, section: str) -> None:
    shown = seqloom("train", "series-forecast", f"train={section}")
    shown.fails_with(2, "train: must be a section; got", lines=2)
    shown = seqloom("train", "series-forecast", "model={kind: [1]}")
    shown.fails_with(2, "model.kind: must be one of ar, kalman", lines=2)


@pytest.mark.parametrize("seed", ["0x" + "f" * 16, str(2**63), str(-(2**63) - 1), "0x" + "f" * 3600, "9" * 4000])
def test_integer_beyond_64_bits_is_rejected(seqloom: Any, workdir: Path, seed: str) -> None:
    seqloom("train", "toys-recall", f"seed={seed}").fails_with(2, "seed: must be a whole number", lines=2)
    seqloom("train", "toys-recall", "--seeds", f"1,{int(seed, 0) if len(seed) < 30 else seed}").fails_with(
        2, "--seeds must be whole numbers", lines=1
    )


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63)])
def test_integer_of_64_bits_is_accepted(seqloom: Any, workdir: Path, seed: int) -> None:
    assert seqloom("train", "toys-recall", "train.steps=1", f"seed={seed}", "--out", "run").code == 0


def test_run_path_must_be_utf8(seqloom: Any, workdir: Path, runs: Path) -> None:
    bad = "bad\udcff"
    for words in (["--out", bad], ["--seeds", "1,2", "--out", bad]):
        seqloom("train", "toys-recall", "train.steps=1", *words).fails_with(2, "path of a run must be UTF-8", lines=1)
    assert not list(workdir.iterdir())
    shutil.copytree(runs / "chars", workdir / bad)
    seqloom("evaluate", bad).fails_with(4, "is not valid UTF-8", lines=1)


# --- unwritable paths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file/x", "/proc/x", "/proc/x/y"])
def test_unwritable_run_path_is_rejected(seqloom: Any, workdir: Path, place: str) -> None:
    (workdir / "file").write_text("")
    seqloom("train", "toys-recall", "train.steps=1", "--out", place).fails_with(5, f"Could not write {place}", lines=1)
    shown = seqloom("ladder", "ladder-lm", "train.steps=1", "--seeds", "1", "--out", place)
    assert shown.code == 5 and f"Could not write {place}" in shown.err and "This is a bug" not in shown.err
    seqloom("train", "toys-recall", "--out", "n" * 300).fails_with(2, "the file name is too long", lines=1)


@pytest.mark.parametrize(
    "command",
    [
        ["init", "text.txt", "--out", "/proc/x.yaml"],
        ["inspect", "gates", "RUN", "cat", "--out", "/proc/x.png"],
        ["inspect", "gradients", "RUN", "--out", "/proc/x.png"],
        ["compare", "RUN", "--plot", "/proc/x.png"],
        ["memory-test", "--out", "/proc/x.png"],
        ["ladder", "ladder-lm", "--plot", "/proc/x.png"],
    ],
)
def test_unwritable_file_is_rejected_before_any_work(
    seqloom: Any, workdir: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("work was done before the path was checked")

    monkeypatch.setattr(TrainState, "learning_rate", never)
    (workdir / "text.txt").write_text("a text\n" * 99)
    shown = seqloom(*(runs / "chars" if word == "RUN" else word for word in command))
    shown.fails_with(5, f"Could not write {command[-1]}", lines=1)


# --- recipes --------------------------------------------------------------------------------------------------------


def test_all_misspelt_keys_are_reported_with_suggestions(seqloom: Any, workdir: Path) -> None:
    shown = seqloom("train", "lm-char-lstm", "model.hiden=3", "train.learning_rate=1", "modle.x=1", "batch.size=many")
    shown.fails_with(2, "recipe lm-char-lstm has 4 problems:", lines=5)
    lines = shown.err.splitlines()[1:]
    assert sorted(lines) == [
        "  batch.size: must be a whole number; got 'many'",
        "  model.hiden: no such key; did you mean model.hidden?",
        "  modle: no such key; did you mean model?",
        next(line for line in lines if line.startswith("  train.learning_rate: no such key; ")),
    ]
    assert not any(workdir.iterdir())


def test_all_invalid_values_are_reported(seqloom: Any, workdir: Path) -> None:
    words = ("data.corpus=pydoc", "model.cell=lstn", "model.dropout=1.5", "train.lr=-1", "train.epochs=null")
    shown = seqloom("train", "lm-char-lstm", *words)
    message = (
        "pydocs?",
        "lstm?",
        "dropout: must",
        "train.lr: must be greater than 0",
        "train: steps or epochs must be set",
    )
    shown.fails_with(2, "5 problems", *message, lines=6)
    shown = seqloom("train", "lm-char-lstm", "model.softmax.samples=300")
    shown.fails_with(2, "model.softmax.kind: missing; samples belongs to sampled: set model.softmax.kind=sampled too")


def test_misspelt_keys_are_reported_with_the_file_name(seqloom: Any, workdir: Path, runs: Path) -> None:
    text = (runs / "chars/recipe.yaml").read_text().replace(" dropout:", " droput:").replace("  size:", "  sise:")
    (workdir / "mine.yaml").write_text(text)
    shown = seqloom("train", "mine.yaml")
    shown.fails_with(2, "recipe mine.yaml has 2 problems:", "did you mean model.dropout?", "batch.size?", lines=3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.bidirectional=true", ["bidirectional must be false", "would read the token that it must predict"]),
        ("model.cell=lsmt", ["'lsmt'", "did you mean lstm?", "elman, lstm, gru, gru-cho"]),
        ("data.corpus=pydoc", ["data.corpus", "did you mean pydocs?"]),
        ("task=langage-model", ["'langage-model'", "did you mean language-model?"]),
        ("tokenizer.kind=word", ["tokenizer.kind", "did you mean words?"]),
        ("train.schedule=cosin", ["train.schedule", "did you mean cosine?"]),
        ("train.optimizer=admw", ["train.optimizer", "did you mean adam"]),
        ("model.hidden=0", ["model.hidden: must be at least 1; got 0"]),
        ("train.lr=-1", ["train.lr: must be greater than 0.0; got -1"]),
        ("train.lr=fast", ["train.lr", "'fast'"]),
        ("model.dropout=1.5", ["model.dropout: must be less than 1.0; got 1.5"]),
        ("model=3", ["model: must be a section"]),
        ("train.lr.x=3", ["train.lr"]),
    ],
)
def test_invalid_value_is_rejected(seqloom: Any, workdir: Path, override: str, words: list[str]) -> None:
    seqloom("train", "lm-char-lstm", "train.steps=1", override).fails_with(2, *words)
    assert not any(workdir.iterdir())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task: language-model\n\tseed: 1\n", ["line 2", "tabs"]),
        ("seed: 1\nseed: 2\n", ["line 2", "'seed' is repeated"]),
        ("- a\n- b\n", ["must contain keys and values"]),
        ("", ["mine.yaml is empty"]),
        ("# nothing\n", ["mine.yaml is empty"]),
        ("task: !!python/object/apply:os.system [true]\n", ["line 1", "tags"]),
        ("task: [\n", ["line 2"]),
    ],
)
def test_file_that_is_not_a_recipe_is_rejected(seqloom: Any, workdir: Path, text: str, words: list[str]) -> None:
    (workdir / "mine.yaml").write_text(text)
    seqloom("train", "mine.yaml").fails_with(2, *words)


# --- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["classify-table", "tag-conll", "translate-files"])
def test_missing_file_is_reported_with_its_key(seqloom: Any, workdir: Path, recipe: str) -> None:
    seqloom("train", recipe).fails_with(3, f"{workdir / 'train.'}", "does not exist. Check data.train", lines=1)


@pytest.mark.parametrize("recipe", ["lm-char-lstm", "ngram-kn5"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["does not exist"]),
        (b"", ["is empty"]),
        (b"\n  \n", ["is empty"]),
        ("one\ntwo\ncafé\n".encode("latin1"), ["UTF-8", "line 3", "0xE9"]),
        (b"one\ntw\0o\n", ["line 2", "NUL"]),
        ("one\ntwo\n".encode("utf-16"), ["UTF-16", "data.encoding=utf-16"]),
        (b"only one line", ["is too short", "it has only 1 line", "data.dev"]),
    ],
    ids=["missing", "empty", "blank", "latin1", "binary", "utf16", "one line"],
)
def test_invalid_text_is_rejected(
    seqloom: Any, workdir: Path, recipe: str, content: bytes | None, words: list[str]
) -> None:
    if content is not None:
        (workdir / "my text.txt").write_bytes(content)
    shown = seqloom("train", recipe, "data.corpus=text", "data.train=my text.txt")
    shown.fails_with(3, "my text.txt", *words)
    assert not (workdir / "runs").exists()


def test_text_too_short_for_batch_is_rejected(seqloom: Any, workdir: Path) -> None:
    (workdir / "short.txt").write_text("some\nfew\nlines\nof text\n")
    shown = seqloom("train", "lm-char-lstm", "data.corpus=text", "data.train=short.txt")
    shown.fails_with(3, "32 rows need at least 64 tokens", "lower batch.size", lines=1)
    assert not (workdir / "runs").exists()


def test_text_shorter_than_order_is_rejected(seqloom: Any, workdir: Path, text_overrides: list[str]) -> None:
    shown = seqloom("train", "ngram-kn5", *text_overrides, "model.order=40")
    shown.fails_with(3, "order 40", "lower model.order", lines=1)
    assert not (workdir / "runs").exists()


# --- the run directory ----------------------------------------------------------------------------------------------


def test_existing_run_is_not_overwritten(seqloom: Any, workdir: Path, copy: Any) -> None:
    run = copy("toys")
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    recipe = run / "recipe.yaml"
    seqloom("train", recipe, "--out", run).fails_with(2, f"{run} exists", f"--resume {run}", f"--out {run}-2", lines=1)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before
    assert seqloom("train", "--resume", run).code == 0
    assert seqloom("train", recipe, "train.steps=1", "--out", f"{run}-2").code == 0
    seqloom("train", recipe, "--out", run).fails_with(2, f"--out {run}-3")


def test_existing_file_or_folder_is_not_overwritten(seqloom: Any, workdir: Path, runs: Path) -> None:
    recipe = runs / "toys/recipe.yaml"
    (workdir / "folder").mkdir()
    (workdir / "file").write_text("precious")
    for name in ("folder", "file"):
        seqloom("train", recipe, "--out", name).fails_with(
            2, f"{name} exists and is not a run", f"--out {name}-2", lines=1
        )
    assert (workdir / "file").read_text() == "precious"


@pytest.mark.parametrize("words", [["train", "--resume"], ["generate"], ["score"], ["evaluate"], ["compare"]])
@pytest.mark.parametrize(
    ("place", "why"), [("nowhere", "does not exist"), ("file", "is a file"), ("", "no recipe.yaml")]
)
def test_path_that_is_not_a_run_is_rejected(
    seqloom: Any, workdir: Path, type_in: Any, words: list[str], place: str, why: str
) -> None:
    type_in(b"")
    (workdir / "file").write_text("text")
    seqloom(*words, workdir / place).fails_with(4, "is not a run", why, lines=1)


def test_error_for_a_run_without_evaluation_suggests_resuming(seqloom: Any, copy: Any) -> None:
    run = copy("chars")
    (run / "model.safetensors").unlink()
    seqloom("generate", run).fails_with(4, "no model.safetensors", f"seqloom train --resume {run}", lines=1)


def test_run_is_locked_during_training(seqloom: Any, copy: Any) -> None:

    run = copy("chars")
    with Run.open(run).locked():
        seqloom("train", "--resume", run).fails_with(2, "is being trained by another process", lines=1)
    assert seqloom("train", "--resume", run).code == 0


# --- damage ---------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)


def rewrite(path: Path, old: str, new: str, sealed: bool = False) -> None:
    """Change a file. `sealed` updates the checksums of its run."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    if sealed:
        update_checksums(path.parent)


DAMAGES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "newer run": (lambda run: rewrite(run / "recipe.yaml", "format: 1", "format: 2"), ["format 2", "reads format 1"]),
    "foreign run": (
        lambda run: (run / "recipe.yaml").write_text("name: other tool\n"),
        ["has no run format"],
    ),
    "broken recipe": (lambda run: (run / "recipe.yaml").write_bytes(b"\xff{"), ["recipe.yaml", "damaged"]),
    "edited recipe": (
        lambda run: rewrite(run / "recipe.yaml", "hidden: 12", "hidden: 13"),
        ["recipe.yaml has changed"],
    ),
    "lost manifest": (lambda run: (run / "manifest.json").unlink(), ["incomplete: manifest.json is missing"]),
    "broken manifest": (lambda run: (run / "manifest.json").write_text("[" * 100_000), ["manifest.json is damaged"]),
    "empty manifest": (lambda run: (run / "manifest.json").write_text("{}"), ["manifest.json is damaged"]),
    "unknown model": (
        lambda run: rewrite(run / "recipe.yaml", "recurrent-lm", "oracle", sealed=True),
        ["recipe.yaml", "'oracle'"],
    ),
    "newer recipe": (
        lambda run: rewrite(run / "recipe.yaml", "  hidden:", "  sparkle: 1\n  hidden:", sealed=True),
        ["sparkle"],
    ),
    "flipped bit": (lambda run: flip(run / "model.safetensors"), ["model.safetensors", "damaged", "checksum"]),
    "cut short": (lambda run: os.truncate(run / "model.safetensors", 500), ["model.safetensors", "not a readable"]),
    "foreign weights": (
        lambda run: save_file(tensors_from_file(run / "model.safetensors"), run / "model.safetensors"),
        ["model.safetensors", "not written by seqloom"],
    ),
    "pickle": (
        lambda run: torch.save({"w": torch.zeros(2)}, run / "model.safetensors"),
        ["model.safetensors", "not a readable safetensors file"],
    ),
    "other weights": (
        lambda run: Run.open(run).store().save_best({"w": torch.zeros(2)}),
        ["model.safetensors", "does not match the model"],
    ),
    "weights of another run": (
        lambda run: (run / "model.safetensors").write_bytes(tensors_to_bytes(Run.open(run).weights(), "other")),
        ["model.safetensors belongs to another run"],
    ),
    "other size": (
        lambda run: rewrite(run / "recipe.yaml", "hidden: 12", "hidden: 13", sealed=True),
        ["does not match the model"],
    ),
    "lost tokenizer": (lambda run: (run / "tokenizer.json").unlink(), ["incomplete", "tokenizer.json"]),
    "broken tokenizer": (lambda run: (run / "tokenizer.json").write_text("{"), ["tokenizer.json", "damaged"]),
    "edited tokenizer": (lambda run: rewrite(run / "tokenizer.json", '"a"', '"Z"'), ["tokenizer.json", "checksum"]),
    "newer tokenizer": (
        lambda run: rewrite(run / "tokenizer.json", '"version": 1', '"version": 2', sealed=True),
        ["tokenizer.json", "version 2"],
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", ["generate", "score", "evaluate"])
def test_damaged_foreign_or_newer_run_is_rejected(seqloom: Any, copy: Any, command: str, damage: str) -> None:
    run = copy("chars")
    harm, words = DAMAGES[damage]
    harm(run)
    seqloom(command, run, *["a text"] * (command == "score")).fails_with(4, str(run), *words)


@pytest.mark.parametrize("command", ["evaluate", "train --resume"])
@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_damaged_data_json_is_rejected(seqloom: Any, copy: Any, command: str, content: str | None) -> None:
    run = copy("chars")
    (run / "data.json").unlink() if content is None else (run / "data.json").write_text(content)
    seqloom(*command.split(), run).fails_with(4, "data.json", lines=1)


def test_damaged_newest_checkpoint_is_skipped(seqloom: Any, copy: Any, runs: Path, weights: Any) -> None:
    run = copy("chars")
    flip(run / "checkpoints/step-24/model.safetensors")
    shown = seqloom("train", "--resume", run)
    assert shown.code == 0, shown.err
    assert "resumed at step 16" in shown.out
    assert "checkpoint step-24 is skipped: model.safetensors is damaged" in shown.out
    assert weights(run) == weights(runs / "chars")  # the repeated steps are equal


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda step: flip(step / "optimizer.safetensors"), ["optimizer.safetensors is damaged"]),
        (lambda step: (step / "state.json").unlink(), ["state.json is missing"]),
        (lambda step: (step / "manifest.json").write_text("?"), ["manifest.json cannot be read"]),
        (lambda step: rewrite(step / "manifest.json", '"format": 1', '"format": 9'), ["format is 9", "reads format 1"]),
    ],
    ids=["corrupt", "incomplete", "foreign", "newer"],
)
def test_all_unreadable_checkpoints_are_reported(
    seqloom: Any, copy: Any, harm: Callable[[Path], Any], words: list[str]
) -> None:
    run = copy("chars")
    for step in ("step-16", "step-24"):
        harm(run / "checkpoints" / step)
    seqloom("train", "--resume", run).fails_with(4, "No checkpoint in", "step-16", "step-24", *words)
    assert (run / "checkpoints/step-24").is_dir()
    assert seqloom("generate", run, "--tokens=3").code == 0  # the best weights are intact


# --- missing resources ----------------------------------------------------------------------------------------------


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("no_gpu")
def test_missing_gpu_is_reported(seqloom: Any, workdir: Path, runs: Path) -> None:
    words = ["device cuda", "0 CUDA GPUs", "auto or cpu"]
    seqloom("train", "toys-copy", "train.device=cuda").fails_with(5, *words, lines=1)
    for command in ("generate", "evaluate"):
        seqloom(command, runs / "chars", "--device=cuda").fails_with(5, *words, lines=1)
    seqloom("score", runs / "chars", "a text", "--device=cuda:3").fails_with(5, "device cuda:3", lines=1)
    assert not any(workdir.iterdir())


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_requires_gpu(seqloom: Any, workdir: Path, precision: str) -> None:
    shown = seqloom("train", "toys-copy", f"train.precision={precision}")
    assert shown.code in (2, 5)
    shown.fails_with(shown.code, f"train.precision={precision} needs a CUDA GPU", "Use fp32", lines=1)
    assert not any(workdir.iterdir())


class Disk:
    """A small disk that can be filled. It is mounted if possible, and otherwise simulated."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        self.path, self._monkeypatch = path, monkeypatch

    def fill(self, room: int) -> None:
        if self._monkeypatch is not None:
            self._monkeypatch.setattr(os, "fsync", self._refuse)
            return
        status = os.statvfs(self.path)
        with open(self.path / "filler", "wb") as file:
            file.write(bytes(status.f_bavail * status.f_bsize - room))

    def free(self) -> None:
        if self._monkeypatch is not None:
            self._monkeypatch.undo()
        (self.path / "filler").unlink(missing_ok=True)

    @staticmethod
    def _refuse(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    if request.param == "simulated":
        with pytest.MonkeyPatch.context() as monkeypatch:
            yield Disk(path, monkeypatch)
        return
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("room", [0, 12_000], ids=["nothing fits", "the log fits, the checkpoint does not"])
def test_full_disk_loses_no_progress(
    seqloom: Any, disk: Disk, runs: Path, on_event: Any, weights: Any, room: int
) -> None:
    run = disk.path / "run"
    on_event(e.Saved, lambda: disk.fill(room))
    full = seqloom("train", runs / "chars/recipe.yaml", "--out", run)
    assert full.code == 5, full.err
    *warnings, error = full.err.splitlines()
    assert error.startswith("seqloom: The disk is full: could not write ")
    assert all(line.startswith("warning: ") for line in warnings)  # the warnings of the data check before training
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["latest.json", "step-8"]
    manifest = json.loads((run / "checkpoints/step-8/manifest.json").read_text())
    assert set(manifest["files"]) <= {path.name for path in (run / "checkpoints/step-8").iterdir()}
    assert seqloom("generate", run, "--tokens=3").code == 0

    disk.free()
    resumed = seqloom("train", "--resume", run)
    assert resumed.code == 0, resumed.err
    assert "resumed at step 8" in resumed.out
    assert weights(run) == weights(runs / "chars")


def test_full_disk_at_start_is_reported(seqloom: Any, disk: Disk, runs: Path, texts: Path) -> None:
    disk.fill(room=0)
    seqloom("train", runs / "chars/recipe.yaml", "--out", disk.path / "run").fails_with(5, "The disk is full", lines=1)
    assert not (disk.path / "run").exists()
    seqloom("init", texts / "train.txt", "--out", disk.path / "x.yaml").fails_with(5, "The disk is full", lines=1)
    assert not (disk.path / "x.yaml").exists()
    disk.free()
    assert seqloom("init", texts / "train.txt", "--out", disk.path / "x.yaml").code == 0


def test_export_to_full_disk_leaves_no_partial_file(seqloom: Any, disk: Disk, runs: Path) -> None:
    if disk._monkeypatch is not None:
        pytest.skip("the simulated disk rejects only flushes")
    disk.fill(room=0)
    seqloom("arpa", "export", runs / "grams", disk.path / "a.arpa").fails_with(5, "The disk is full", lines=1)
    assert [path.name for path in disk.path.iterdir()] == ["filler"]
    disk.free()
    assert seqloom("arpa", "export", runs / "grams", disk.path / "a.arpa").code == 0


def test_nonfinite_updates_end_training_with_step_and_cause(seqloom: Any, workdir: Path, runs: Path) -> None:
    recipe = runs / "toys/recipe.yaml"
    words = [
        "train.optimizer=sgd",
        "train.lr=1e38",
        "train.clip_norm=null",
        "train.max_nonfinite_steps=3",
        "--out",
        "run",
    ]
    shown = seqloom("train", recipe, *words)
    assert shown.code == 5
    assert "the update was skipped: " in shown.out
    assert shown.err.startswith("seqloom: Training diverged at step ")
    assert "train.lr" in shown.err and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["score", "RUN", "a cat"], ["evaluate", "RUN"], ["generate", "RUN"], ["embed", "RUN"]]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nonfinite_weights_are_rejected(
    seqloom: Any, copy: Any, tmp_path: Path, type_in: Any, words: list[str], value: float
) -> None:
    run = copy("chars")
    weights = Run.open(run).weights()
    weights["embed.weight"][3, 2] = value
    Run.open(run).store().save_best(weights)
    type_in(b"a cat\n")
    out = ["--out", tmp_path / "v.npy"] if words[0] == "embed" else []
    shown = seqloom(*(run if word == "RUN" else word for word in words), *out)
    shown.fails_with(4, "model.safetensors", "embed.weight must contain finite numbers", lines=1)
