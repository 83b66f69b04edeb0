"""Projections: PCA equals scikit-learn, the gradient of t-SNE equals autograd, and neighbours equal those of words."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.understanding import classify_recipe, tag_recipe, trained

from seqloom.core.errors import UsageError
from seqloom.data.examples import TokenClassificationExample
from seqloom.evaluate.word_space import WordSpace
from seqloom.inspect.views.points import (
    Affinities,
    Points,
    RepulsionGrid,
    affinities,
    analogy,
    calibrate,
    colour_by_group,
    gradient,
    kind_of,
    nearest,
    neighbours,
    pca,
    project_tsne,
    tsne,
)
from seqloom.predict.loader import load
from seqloom.predict.word_vectors import _most_frequent_tags, build_word_space, compute_points, list_point_kinds

Array = np.ndarray[Any, Any]


def cloud(count: int, width: int = 6, groups: int = 4) -> tuple[Array, Array]:
    random = np.random.default_rng(3)
    group = np.arange(count) % groups
    centres = 6 * random.normal(size=(groups, width))
    return centres[group] + random.normal(size=(count, width)), group


@pytest.mark.parametrize("shape", [(60, 7), (5, 9), (40, 2)])
def test_pca_matches_scikit_learn_up_to_sign(shape: tuple[int, int]) -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    x = np.random.default_rng(1).normal(size=shape) @ np.diag(np.arange(1.0, shape[1] + 1))
    projection, known = pca(x, 2), decomposition.PCA(2).fit(x)
    np.testing.assert_allclose(np.abs(projection.points), np.abs(known.transform(x)), atol=1e-8)
    np.testing.assert_allclose(projection.explained_variance_ratio, known.explained_variance_ratio_, atol=1e-10)
    far = np.abs(projection.points).argmax(axis=0)
    assert (projection.points[far, [0, 1]] > 0).all()


def dense(p: Affinities) -> torch.Tensor:
    """Return the symmetric p_ij (N, N)."""
    count, k = p.near.shape
    table = torch.zeros(count, count, dtype=torch.float64)
    table[torch.arange(count).repeat_interleave(k), torch.from_numpy(p.near.ravel())] = torch.from_numpy(
        p.p.ravel().astype(float)
    )
    return table + table.T


def divergence(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kernel = 1 / (1 + torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist") ** 2)
    kernel = kernel - torch.diag(torch.diagonal(kernel))
    near = p > 0
    return (p[near] * torch.log(p[near] / (kernel / kernel.sum())[near])).sum()


@pytest.mark.parametrize("few", [0, 1000], ids=["grid", "pairs"])
@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0])
def test_tsne_gradient_matches_autograd(scale: float, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqloom.inspect.views.points.MAX_EXACT_POINTS", few)
    x, _ = cloud(150)
    p = affinities(x, 10)
    y = (scale * np.random.default_rng(2).normal(size=(150, 2))).astype(np.float32)
    computed = gradient(p, y, RepulsionGrid())
    points_tensor = torch.tensor(y, dtype=torch.float64, requires_grad=True)
    # Without a square root, which has no gradient at 0
    square = (points_tensor.unsqueeze(1) - points_tensor).pow(2).sum(dim=2)
    kernel = (1 / (1 + square)) * (1 - torch.eye(150))
    table = dense(p)
    near = table > 0
    loss = (table[near] * torch.log(table[near] / (kernel / kernel.sum())[near])).sum()
    (known,) = torch.autograd.grad(loss, points_tensor)
    off = np.linalg.norm(computed - known.numpy()) / np.linalg.norm(known.numpy())
    assert off < (1e-5 if few else 0.04)  # the grid is an approximation


def test_neighbours_are_nearest_and_affinities_have_the_perplexity() -> None:
    x, _ = cloud(80)
    near, square = nearest(x, 30)
    table = ((x[:, None] - x) ** 2).sum(axis=2) + np.diag(np.full(80, np.inf))
    assert [set(row) for row in near] == [set(row) for row in np.argsort(table, axis=1)[:, :30]]
    np.testing.assert_allclose(square, np.take_along_axis(table, near, axis=1), rtol=1e-4, atol=1e-3)
    p = calibrate(square, 10)
    np.testing.assert_allclose(np.exp(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)), 10, rtol=1e-6)


@pytest.mark.parametrize("few", [0, 1000], ids=["grid", "pairs"])
def test_tsne_separates_clusters_deterministically(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    manifold = pytest.importorskip("sklearn.manifold")
    monkeypatch.setattr("seqloom.inspect.views.points.MAX_EXACT_POINTS", few)
    x, group = cloud(120)
    *before, last = tsne(x, pca(x).points, perplexity=15, steps=300)
    assert [layout.step for layout in before[:2]] == [25, 50] and last.step == last.of == 300
    near = nearest(last.points, 5)[0]
    assert (group[near] == group[:, None]).all()  # neighbours are in the same cluster
    *_, again = tsne(x, pca(x).points, perplexity=15, steps=300)
    np.testing.assert_array_equal(last.points, again.points)
    known = manifold.TSNE(2, perplexity=15, init="pca", random_state=1).fit_transform(x.astype(np.float32))
    table = dense(affinities(x, 15))
    ours, theirs = (float(divergence(table, torch.from_numpy(y.astype(float)))) for y in (last.points, known))
    assert ours < theirs + 0.1


def test_neighbours_and_analogies_match_those_of_the_python_api() -> None:
    random = np.random.default_rng(5)
    space = WordSpace([f"w{n}" for n in range(30)], random.normal(size=(30, 8)).astype(np.float32))
    points = Points("words", space, [], "")
    cosines = space.unit @ space.unit[4]
    order = [index for index in np.argsort(-cosines) if index != 4][:6]
    nearest = neighbours(points, "w4", 6)
    assert [match.index for match in nearest] == order
    assert [match.cosine for match in nearest] == pytest.approx(cosines[order].tolist(), abs=1e-6)
    assert [match.name for match in analogy(points, "w1", "w2", "w3", 4)] == [
        match.word for match in space.analogy("w1", "w2", "w3", 4)
    ]
    with pytest.raises(UsageError, match="no vector of"):
        neighbours(points, "nothing")


def test_too_few_or_equal_points_are_rejected() -> None:
    few = Points("words", WordSpace(["a", "b"], np.eye(2, dtype=np.float32)), [], "")
    with pytest.raises(UsageError, match="at least 4 points"):
        next(project_tsne(few, 100))
    same = Points("words", WordSpace(list("abcdef"), np.ones((6, 3), np.float32)), [], "")
    with pytest.raises(UsageError, match="All vectors are the same"):
        next(project_tsne(same, 6))


def test_groups_are_ordered_by_size_and_words_classified_by_script() -> None:
    colouring = colour_by_group("label", "", [*"aaabbc", ""])
    assert colouring.groups == ["a", "b", "c", "other"] and colouring.values.tolist() == [0, 0, 0, 1, 1, 2, 3]
    many = colour_by_group("label", "", [str(n) for n in range(30)])
    assert len(many.groups) == 20 and many.groups[-1] == "other"
    names = {"the": "Latin, small", "Rome": "Latin, capital", "42": "number", "…": "punctuation", "市": "Han"}
    assert {name: kind_of(name) for name in names} == names
    assert (
        kind_of(" der", pieces=True) == "Latin, begins a word" and kind_of("ing", pieces=True) == "Latin, inside a word"
    )
    assert kind_of("<unk>") == "special" and kind_of("שלום") == "Hebrew" and kind_of("дом") == "Cyrillic"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("points")
    trained(tag_recipe(folder), folder / "tagger")
    trained(classify_recipe(folder, "tokenizer.kind=byte-pair", "tokenizer.size=300"), folder / "classifier")
    return folder


def test_tagger_words_are_coloured_by_tag(runs: Path) -> None:
    tagger = load(runs / "tagger", "cpu")
    assert list_point_kinds(tagger) == ["words", "sentences"]
    points = compute_points(tagger, "words")
    tags = points.colourings[0]
    tag_of_word = dict(zip(points.space.words, [tags.groups[int(number)] for number in tags.values], strict=True))
    assert tag_of_word["lives"] == "O" and tag_of_word["Ann"] == "B-PER" and tag_of_word["Delhi"] == "I-LOC"
    known = build_word_space(tagger)
    np.testing.assert_array_equal(points.space.vectors, known.vectors)


def test_word_is_coloured_by_its_most_frequent_tag() -> None:
    corpus = SimpleNamespace(
        split=lambda name: [
            TokenClassificationExample.of(["saw", "saw", "Saw", "the"], ["NOUN", "VERB", "VERB", "DET"])
        ]
    )
    tagger: Any = SimpleNamespace(
        run=SimpleNamespace(recipe={"task": "tag"}), task=lambda: SimpleNamespace(corpus=corpus)
    )
    colouring = _most_frequent_tags(
        tagger, WordSpace(["the", "saw", "new"], np.eye(3, dtype=np.float32), lowercase=True)
    )
    assert colouring is not None and [colouring.groups[int(n)] for n in colouring.values] == ["DET", "VERB", "other"]


def test_classifier_texts_are_coloured_by_label(runs: Path) -> None:
    classifier = load(runs / "classifier", "cpu")
    assert list_point_kinds(classifier) == ["tokens", "sentences"]
    assert len(compute_points(classifier, "tokens")) == len(classifier.tokenizer)
    points = compute_points(classifier, "sentences")
    texts = {example.text: example.label for example in classifier.task().corpus.split("dev")}
    assert set(points.space.words) == set(texts)
    label = points.colourings[0]
    assert [label.groups[int(n)] for n in label.values] == [texts[text] for text in points.space.words]
    sentences = compute_points(classifier, "sentences", ["a dull plot", "a warm film", "", "a dull plot"])
    assert sentences.space.words == ["a dull plot", "a warm film"]
    np.testing.assert_allclose(sentences.space.vectors, classifier.embed(["a dull plot", "a warm film"]), atol=1e-6)
