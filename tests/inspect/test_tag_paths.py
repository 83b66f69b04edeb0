"""Tag lattices equal an enumeration of all tag sequences, and the output of `seqloom tag`."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.understanding import sentences, tag_recipe, trained, write_sentences

from seqloom.core.tree import to_device
from seqloom.inspect.views.labels import FORBIDDEN_SCORE, lattice_of, pairs_of, potentials, state_paths
from seqloom.predict.loader import load
from seqloom.predict.tag import TaggerPredictor
from seqloom.training import train_recipe

KINDS = {
    "crf": [],
    "softmax": ["model.crf=false", "model.characters=null", "tokenizer.min_count=1"],
    "free": ["model.crf=false", "model.constrain=false", "tokenizer.kind=byte-pair", "tokenizer.size=280"],
}
LINE = "Ann sings in New Delhi"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paths")
    for name, overrides in KINDS.items():
        # After little training, the model is uncertain
        trained(tag_recipe(folder, *overrides, "train.steps=6"), folder / name)
    write_sentences(folder / "mine.conll", sentences()[:9])
    data = [f"data.train={folder / 'mine.conll'}", "data.corpus=conll", "data.dev_fraction=0.2"]
    train_recipe("hmm-tag-people", *data, out=folder / "hmm")
    train_recipe("hmm-tag-people", *data, "model.order=2", out=folder / "hmm-2")
    return folder


@pytest.fixture(params=[*KINDS, "hmm", "hmm-2"])
def tagger(runs: Path, request: pytest.FixtureRequest) -> TaggerPredictor:
    predictor: TaggerPredictor = load(runs / request.param, "cpu", TaggerPredictor)
    return predictor


def test_best_path_matches_the_output_of_tag(tagger: TaggerPredictor) -> None:
    (tagged,) = tagger.tag(LINE)
    lattice = tagger.paths(LINE)
    assert lattice.words == LINE.split() and lattice.tags == tagger.tags
    assert [lattice.tags[tag] for tag in lattice.best] == [word.tag for word in tagged.words]
    probabilities = lattice.posterior[np.arange(len(lattice.best)), lattice.best]
    assert probabilities.tolist() == pytest.approx([word.probability for word in tagged.words], abs=1e-6)
    assert lattice.posterior.sum(axis=1) == pytest.approx(1)
    assert lattice.most_probable == lattice.posterior.argmax(axis=1).tolist()


def test_pairs_have_posterior_marginals(tagger: TaggerPredictor) -> None:
    lattice = tagger.paths(LINE)
    np.testing.assert_allclose(lattice.pairs.sum(axis=2), lattice.posterior[:-1], atol=1e-5)
    np.testing.assert_allclose(lattice.pairs.sum(axis=1), lattice.posterior[1:], atol=1e-5)


def test_lattice_matches_enumeration_of_tag_sequences(tagger: TaggerPredictor) -> None:
    line = "Ann lives in"
    words, reader = line.split(), tagger.reader()
    pieces = reader.pieces([words])
    batch = to_device(reader.batches([words], pieces, tokens=1).collate(np.array([0])), tagger.device)
    table, scores = potentials(tagger.model, batch)
    tags = len(tagger.tags)
    weights = {}
    for way in itertools.product(range(tags), repeat=len(words)):
        around = [tags, tags, *way, tags]
        moves = sum(table[i, j, k].item() for i, j, k in zip(around, around[1:], around[2:], strict=False))
        weights[way] = moves + sum(scores[t, tag].item() for t, tag in enumerate(way))
    most = max(weights.values())
    total = sum(math.exp(weight - most) for weight in weights.values())
    probabilities = {way: math.exp(weight - most) / total for way, weight in weights.items()}
    lattice = tagger.paths(line)
    assert probabilities[tuple(lattice.best)] == pytest.approx(max(probabilities.values()), rel=1e-5)
    assert math.exp(lattice.log_prob) == pytest.approx(max(probabilities.values()), rel=1e-4)
    for t, tag in itertools.product(range(len(words)), range(tags)):
        known = sum(chance for way, chance in probabilities.items() if way[t] == tag)
        assert lattice.posterior[t, tag] == pytest.approx(known, abs=1e-5)
    for t, j, k in itertools.product(range(len(words) - 1), range(tags), range(tags)):
        known = sum(chance for way, chance in probabilities.items() if way[t : t + 2] == (j, k))
        assert lattice.pairs[t, j, k] == pytest.approx(known, abs=1e-5)


def test_forbidden_transitions_have_probability_zero(runs: Path) -> None:
    lattice = load(runs / "crf", "cpu").paths(LINE)
    index = {tag: number for number, tag in enumerate(lattice.tags)}
    assert (lattice.pairs[:, index["O"], index["I-LOC"]] == 0).all()
    assert lattice.posterior[0, index["I-LOC"]] == 0


def test_single_word_and_piece_boundaries_have_no_tag_pairs(runs: Path) -> None:
    tagger = load(runs / "crf", "cpu")
    assert tagger.paths("Ann").pairs.shape == (0, len(tagger.tags), len(tagger.tags))
    long = "Ann sings in Oslo . " * 20  # 100 words, which are read in pieces of 24 tokens
    lattice = tagger.paths(long)
    assert len(lattice.words) == 100 == len(lattice.posterior) and lattice.pairs.shape[0] == 99
    assert 0 < (lattice.pairs.sum(axis=(1, 2)) == 0).sum() < 10
    (tagged,) = tagger.tag(long)
    assert [lattice.tags[tag] for tag in lattice.best] == [word.tag for word in tagged.words]


def test_pairs_of_extreme_scores_are_finite() -> None:
    table = torch.zeros(3, 3, 3, dtype=torch.float64)
    table[:, 0, 1] = FORBIDDEN_SCORE
    scores = torch.tensor([[800.0, -800.0], [-800.0, 800.0], [0.0, 0.0]], dtype=torch.float64)
    pairs, _ = pairs_of(table, scores)
    assert np.isfinite(pairs).all() and pairs.sum(axis=(1, 2)) == pytest.approx(1)


def test_best_path_in_a_batch_matches_that_of_the_single_sentence(runs: Path) -> None:
    tagger = load(runs / "hmm", "cpu")
    words, reader = LINE.split(), tagger.reader()
    batch = reader.batches([words], reader.pieces([words]), tokens=1).collate(np.array([0]))
    assert lattice_of(tagger.model, batch, len(words)).best == tagger.paths(LINE).best


def test_hmm_states_are_shown_like_tags(tmp_path: Path) -> None:
    files = []
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text(f"an eel is a fish\nan owl is a bird of {split}\n", encoding="utf-8")
        files.append(f"data.{split}={tmp_path / split}.txt")
    few = ("train.restarts=1", "train.iterations=5", "train.tolerance=0")
    lm = train_recipe("hmm-letters", "data.corpus=text", *files, *few, out=tmp_path / "letters")
    lattice = state_paths(lm, "a bird")
    tokens = torch.tensor(lm.tokenizer.encode("a bird"))
    assert "".join(lattice.words) == "a bird" and len(lattice.tags) == lm.model.states
    assert lattice.best == lm.model.likeliest_states(tokens).tolist() and -50 < lattice.log_prob <= 0
    np.testing.assert_allclose(lattice.posterior, lm.model.state_posteriors(tokens)[:, : lm.model.states], atol=1e-9)
    np.testing.assert_allclose(lattice.pairs.sum(axis=2), lattice.posterior[:-1], atol=1e-6)
    np.testing.assert_allclose(lattice.pairs.sum(axis=1), lattice.posterior[1:], atol=1e-6)
