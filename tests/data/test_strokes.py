"""Pen strokes: the JSON form, features, random changes, and written words."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqloom.config import ConfigError
from seqloom.core.errors import DataError, UsageError
from seqloom.data.batching import Ragged
from seqloom.data.corpora import pen_letters
from seqloom.data.handwriting import embedded_alphabets, invent_word, words_of, write_word
from seqloom.data.pen_features import PenOffsetsConfig, height_of, resample
from seqloom.data.strokes import Strokes, parse_strokes, read_writings
from seqloom.data.transcriptions import RaggedVectors, TranscriptionBatches

LETTER_A = [[[0, 0], [3, 9], [6, 0]], [[1, 5], [5, 5]]]
FEATURES = PenOffsetsConfig(spacing=0.1)


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


# --- the JSON form ----------------------------------------------------------------------------------------------------


def test_writings_are_read_from_an_object_a_list_and_lines(tmp_path: Path) -> None:
    one, other = {"strokes": LETTER_A, "text": "A", "writer": "7"}, {"strokes": [[[1, 2, 0.5]]]}
    contents = {
        "a.json": json.dumps(one),
        "b.json": json.dumps([one, other]),
        "c.jsonl": f"{json.dumps(one)}\n\n{json.dumps(other)}\n",
    }
    read = {name: list(read_writings(write(tmp_path / name, text))) for name, text in contents.items()}
    assert [len(examples) for examples in read.values()] == [1, 2, 2]
    for examples in read.values():
        assert (examples[0].text, examples[0].group) == ("A", "7")
        assert [stroke.tolist() for stroke in examples[0].signal.strokes] == LETTER_A  # type: ignore[attr-defined]
    assert read["b.json"][1].signal.strokes[0].tolist() == [[1, 2]]  # type: ignore[attr-defined]
    assert [example.name for example in read["c.jsonl"]] == [f"{tmp_path}/c.jsonl, line {n}" for n in (1, 3)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it is empty"),
        ("hello", "it is not JSON"),
        ('{"strokes": [[[0, 0]]]}\n{', "line 2 is not JSON"),
        ("[]", "the list is empty"),
        ("3", "must be .*; got 3"),
        ('{"points": []}', "got an object with the keys points"),
        ('{"strokes": []}', "must have at least one stroke"),
        ('{"strokes": [[]]}', "Stroke 1 of .* must have at least one point"),
        ('{"strokes": [[[0, 0]], []]}', "Stroke 2 of .* must have at least one point"),
        ('{"strokes": "ab"}', "must be a list of lists of points"),
        ('{"strokes": [[1, 2]]}', r"must consist of points \[x, y\] or \[x, y, t\]; got 1"),
        ('{"strokes": [[[1]]]}', r"must consist of points .* got \[1\]"),
        ('{"strokes": [[[1, "2"]]]}', "must consist of points"),
        ('{"strokes": [[[1, true]]]}', "must consist of points"),
        ('{"strokes": [[[1, NaN]]]}', "must have finite coordinates"),
        ('{"strokes": [[[1, 1e300]]]}', "must have finite coordinates"),
        ('{"strokes": [[[0, 0]]], "text": 3}', "The text of .* must be a string; got 3"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_wrong_files_are_rejected_in_one_line(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as refused:
        list(read_writings(write(tmp_path / "x.json", content)))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_wrong_lists_of_strokes_are_usage_errors() -> None:
    wrong: list[Any] = [3, "abc", [], [[]], [[[0, math.inf]]]]
    for values in wrong:
        with pytest.raises(UsageError):
            FEATURES.as_signal(values)
    assert FEATURES.as_signal([np.zeros((2, 2))]).strokes[0].shape == (2, 2)


# --- features ---------------------------------------------------------------------------------------------------------


def example(seed: int = 1) -> Strokes:
    return write_word("quay", embedded_alphabets()["print"], "quay", np.random.default_rng(seed))


def change(strokes: Strokes, matrix: Any, shift: Any) -> Strokes:
    return Strokes("changed", tuple(stroke @ np.asarray(matrix).T + shift for stroke in strokes.strokes))


def test_features_do_not_depend_on_position_size_and_speed() -> None:
    strokes, vectors = example(), FEATURES.vectors(example())
    assert vectors.shape[1] == FEATURES.size and vectors.dtype == np.float32
    moved = change(strokes, [[50, 0], [0, 50]], [-1e4, 3e3])
    assert np.allclose(FEATURES.vectors(moved), vectors, atol=1e-4)
    halves = [np.stack([stroke[:-1], (stroke[:-1] + stroke[1:]) / 2], 1).reshape(-1, 2) for stroke in strokes.strokes]
    denser = Strokes("denser", tuple(np.vstack([h, s[-1:]]) for h, s in zip(halves, strokes.strokes, strict=True)))
    assert np.allclose(FEATURES.vectors(denser), vectors, atol=1e-4)
    assert not np.allclose(FEATURES.vectors(change(strokes, [[1, 0.5], [0, 1]], 0))[:9], vectors[:9], atol=0.05)


def test_points_have_equal_distances_and_flags_mark_the_strokes() -> None:
    strokes = example()
    distance = FEATURES.spacing * height_of(strokes)
    points, is_up = resample(strokes.strokes, distance, "x")
    assert is_up.sum() == len(strokes.strokes)
    starts = np.flatnonzero(is_up)
    assert np.allclose(points[starts], [stroke[0] for stroke in strokes.strokes])
    assert np.allclose(points[[*starts[1:] - 1, -1]], [stroke[-1] for stroke in strokes.strokes])
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)[is_up[1:] == 0]
    assert steps.max() < 1.3 * distance and np.median(steps) == pytest.approx(distance, rel=0.1)
    vectors = FEATURES.vectors(strokes)
    assert np.allclose(np.linalg.norm(vectors[is_up == 0, :2], axis=1), steps / distance, atol=1e-3)
    assert vectors[:, 2].tolist() == is_up.tolist()


def test_unusual_strokes_have_finite_features() -> None:
    for strokes in (
        [[[5, 5]]],
        [[[0, 0], [9, 0]]],
        [[[0, 0], [0, 9]]],
        [[[1, 1], [1, 1]], [[4, 1]]],
        [[[0, 0], [1e9, 0]]],
    ):
        vectors = FEATURES.vectors(parse_strokes(strokes, "x"))
        assert len(vectors) >= 1 and np.isfinite(vectors).all() and np.abs(vectors).max() < 100
    scribble = np.random.default_rng(1).normal(size=(20_000, 2)) * [1, 1]
    with pytest.raises(DataError, match="points; the limit is 16,384"):
        FEATURES.vectors(Strokes("scribble", (scribble,)))


def test_random_changes_depend_only_on_the_generator() -> None:
    features = PenOffsetsConfig(slant=0.3, stretch=0.2, rotate=5.0, jitter=0.1)
    vectors = features.vectors(example())
    first, again, other = (features.augment(vectors, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.allclose(first, other)
    assert first.shape == vectors.shape and np.array_equal(first[:, 2], vectors[:, 2])
    assert features.augments and not FEATURES.augments
    assert np.allclose(FEATURES.augment(vectors, np.random.default_rng(1)), vectors, atol=1e-4)


def test_slant_moves_the_tops_of_letters() -> None:
    stroke = Strokes("line", (np.array([[0.0, 0.0], [0.0, -10.0]]),))  # drawn upwards
    features = PenOffsetsConfig(slant=0.4)
    slants = [
        features.augment(features.vectors(stroke), np.random.default_rng(seed))[:, :2].sum(axis=0) for seed in range(50)
    ]
    ratios = [x / -y for x, y in slants]
    assert max(map(abs, ratios)) <= 0.4 and min(ratios) < -0.2 and max(ratios) > 0.2


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batches_contain_every_recording_once_and_are_reproducible() -> None:
    draws = np.random.default_rng(1)
    sequences = [draws.normal(size=(n, 4)).astype(np.float32) for n in draws.integers(1, 30, 40)]
    vectors, targets = RaggedVectors.of(sequences, 4), Ragged.of([[3 + n % 4] * (1 + n % 5) for n in range(40)])
    assert all(np.array_equal(vectors[n], sequence) for n, sequence in enumerate(sequences))
    features = PenOffsetsConfig(jitter=0.5)
    plain = TranscriptionBatches(vectors, targets, tokens=100)
    changed = TranscriptionBatches(vectors, targets, tokens=100, features=features, shapes=3)
    seen = []
    for step in range(plain.steps_per_epoch):
        members, batch = plain.members(1, step), plain.batch(1, step)
        for row, index in enumerate(members.tolist()):
            mask = batch["mask"][row]
            assert np.array_equal(batch["vectors"][row][mask].numpy(), sequences[index])
            assert batch["vectors"][row][~mask].abs().sum() == 0
            assert (
                batch["targets"][row][batch["target_mask"][row]].tolist()
                == targets.take(np.array([index])).ids.tolist()
            )
        seen += members.tolist()
    assert sorted(seen) == list(range(40))
    assert all((changed.batch(1, 7)[key] == changed.batch(1, 7)[key]).all() for key in changed.batch(1, 7))
    epoch = changed.steps_per_epoch
    assert changed.batch(1, 0)["vectors"].shape in {(rows, length, 4) for rows, length, _ in changed.sampler.shapes}
    both = [
        sum(changed.batch(1, first + step)["vectors"].sum().item() for step in range(epoch)) for first in (0, epoch)
    ]
    assert both[0] != both[1]  # every epoch has other changes


# --- words ------------------------------------------------------------------------------------------------------------


def test_splits_have_different_words_and_only_train_has_invented_words() -> None:
    words = {split: set(words_of(split)) for split in ("train", "dev", "test")}
    assert sum(map(len, words.values())) == len(set().union(*words.values())) > 1700
    corpus = pen_letters.load(pen_letters.Config(train=300, dev=60, test=60))
    texts = {split: {example.text for example in corpus.split(split)} for split in corpus.splits}
    assert texts["dev"] <= words["dev"] and texts["test"] <= words["test"]
    invented = texts["train"] - words["train"]
    assert 100 < len(invented) < 200
    pairs = {word[i : i + 2] for word in words["train"] for i in range(len(word) - 1)}
    assert all({word[i : i + 2] for i in range(len(word) - 1)} <= pairs for word in invented)
    real = pen_letters.load(pen_letters.Config(train=50, dev=1, test=1, invented=0.0))
    assert {example.text for example in real.split("train")} <= words["train"]
    assert all(2 <= len(invent_word(np.random.default_rng(seed))) <= 9 for seed in range(50))


def test_corpus_depends_only_on_its_seed() -> None:
    sizes: dict[str, Any] = {"train": 20, "dev": 5, "test": 5}
    first, again, other = (pen_letters.load(pen_letters.Config(seed=seed, **sizes)) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() and first.version == again.version
    assert not set(first.fingerprint().values()) & set(other.fingerprint().values())
    larger = pen_letters.load(pen_letters.Config(seed=1, train=40, dev=5, test=5))
    assert [e.content() for e in larger.split("train")[:20]] == [e.content() for e in first.split("train")]
    only = pen_letters.load(pen_letters.Config(alphabets=("script",), **sizes))
    assert {example.group for example in only.split("train")} == {"script"}
    with pytest.raises(ConfigError, match="alphabets must be print, script or both"):
        pen_letters.Config(alphabets=("gothic",))


def test_alphabets_have_all_letters() -> None:
    for alphabet in embedded_alphabets().values():
        assert sorted(alphabet) == [chr(code) for code in range(ord("a"), ord("z") + 1)]
        for (letter,) in alphabet.values():
            assert letter.width > 0.3 and letter.points[:, 1].min() < -0.9 and letter.points[:, 1].max() < 1.5
