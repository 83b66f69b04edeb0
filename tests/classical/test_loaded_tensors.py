"""Validation of loaded tensors: shapes, dtypes, NaN, counts, indices, probabilities."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seqloom.classical.autoregressive import Autoregressive
from seqloom.classical.hmm import HMMConfig
from seqloom.classical.hmm.gaussian import GaussianHMMConfig
from seqloom.classical.hmm.restarts import RestartSearch, SearchConfig
from seqloom.classical.hmm.tagger import HMMTagger, HMMTaggerConfig, TaggedWords
from seqloom.classical.kalman import KalmanConfig
from seqloom.classical.ngram import NGramConfig
from seqloom.classical.ngram.kneser_ney import kneser_ney
from seqloom.classical.word_vectors import WordVectorsConfig
from seqloom.core.errors import CheckpointError

V = 7
LETTERS = "abcDE"


def ngram() -> Any:
    stream = np.random.default_rng(0).integers(0, V, 300)
    return kneser_ney(np.append(stream, 0), NGramConfig(order=3), V)


def hmm() -> Any:
    return HMMConfig(states=3).build(V)


def search() -> Any:
    state = RestartSearch(hmm, SearchConfig(restarts=2, iterations=5))
    state.restart, state.iteration, state.last, state.highest = 1, 2, -3.5, -3.0
    return state


def tagger() -> HMMTagger:
    random = np.random.default_rng(0)
    model = HMMTaggerConfig().build(V, tags=2, characters=len(LETTERS) + 2)
    model.count_transitions([[0, 1, 0], [1, 1]], ["A", "B"])
    words = random.integers(0, V, 60)
    characters = random.integers(2, len(LETTERS) + 2, (60, 3))
    model.count_words(TaggedWords(words, words % 2, characters, np.arange(60) % 5 == 0), LETTERS)
    return model


def word_vectors(objective: Any = "skipgram") -> Any:
    return WordVectorsConfig(objective=objective, vector_size=4).build(V).draw(1, torch.arange(V))


MODELS: dict[str, Callable[[], Any]] = {
    "ngram": ngram,
    "hmm": hmm,
    "search": search,
    "gaussian-hmm": lambda: GaussianHMMConfig(states=2).build(3),
    "hmm-tagger": tagger,
    "kalman": lambda: KalmanConfig(structure="trend").build(2),
    "ar": lambda: Autoregressive(2, 0, 2),
    "word-vectors": word_vectors,
    "glove": lambda: word_vectors("glove"),
}


def nan(tensor: Tensor) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[0] = torch.nan
    return changed


def infinite(tensor: Tensor) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[-1] = torch.inf
    return changed


GENERAL: dict[str, Callable[[Tensor], Any]] = {
    "empty": lambda tensor: tensor.reshape(-1)[:0],
    "one more dimension": lambda tensor: tensor.unsqueeze(0),
    "another dtype": lambda tensor: tensor.to(torch.int32),
    "no tensor": lambda tensor: 3,
}


def assert_rejected(model: Any, state: dict[str, Any], match: str | None = None) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=match):
        model.load_state_dict(state)
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("kind", MODELS)
def test_every_tensor_of_every_model_is_checked(kind: str) -> None:
    state = MODELS[kind]().state_dict()
    model = MODELS[kind]()
    model.load_state_dict(state)  # negative control: unchanged tensors load
    for name, tensor in state.items():
        for damage in GENERAL.values():
            assert_rejected(model, {**state, name: damage(tensor)}, name)
        if tensor.is_floating_point():
            assert_rejected(model, {**state, name: nan(tensor)}, name)
            if name != "rounds":  # the gain of a Kalman model may be infinite
                assert_rejected(model, {**state, name: infinite(tensor)}, name)
        assert_rejected(model, {key: value for key, value in state.items() if key != name})
    assert_rejected(model, {**state, "more": torch.zeros(2)}, "more unknown")


def put(value: float, index: int = 0) -> Callable[[Tensor], Tensor]:
    def replace(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed.view(-1)[index] = value
        return changed

    return replace


VALUES: list[tuple[str, str, Callable[[Tensor], Tensor], str]] = [
    ("ngram", "keys.2", put(-1), "keys.2 must lie between 0"),
    ("ngram", "keys.2", lambda keys: keys.flip(0), "keys.2 must be ascending"),
    ("ngram", "keys.3", put(1 << 60, -1), "keys.3 must continue"),
    ("ngram", "log_prob.2", put(1.0), "log_prob.2 must lie between -inf"),
    ("hmm", "emission", put(0.5), "emission must lie between -inf"),
    ("hmm", "transition", put(-9.0), "transition must hold log-probabilities whose rows sum to 1"),
    ("search", "current.emission", put(-9.0), "current.emission must hold log-probabilities"),
    ("search", "search", put(2), "search must be within its 2 restarts"),
    ("search", "search", put(5, 1), "search must be within its 2 restarts and 5 iterations"),
    ("search", "search", put(0.5), "search must be within its 2 restarts"),
    ("search", "search", put(-1), "search must be within its 2 restarts"),
    ("gaussian-hmm", "covariances", put(-1.0), "covariances must be positive definite"),
    ("gaussian-hmm", "scale", put(0.0), "scale must be above 0"),
    ("gaussian-hmm", "initial", put(-9.0), "initial must hold log-probabilities"),
    ("hmm-tagger", "word_counts", put(-1.0), "word_counts must lie between 0"),
    ("hmm-tagger", "prior", put(2.0), "prior must lie between 0 and 1"),
    ("hmm-tagger", "form_keys", put(1 << 40, -1), "form_keys must lie between 0"),
    ("hmm-tagger", "form_keys", lambda keys: keys.flip(0), "form_keys must be ascending"),
    ("hmm-tagger", "form_counts", lambda counts: counts[1:], "form_keys and form_counts must have the same length"),
    ("hmm-tagger", "lowercase", put(99), "lowercase must lie between 0 and 6"),
    ("hmm-tagger", "suffix_offsets", put(99, -1), "suffix_offsets must divide suffix_keys by length"),
    ("hmm-tagger", "suffix_offsets", put(1), "suffix_offsets must divide suffix_keys by length"),
    ("hmm-tagger", "suffix_keys", lambda keys: keys[1:], "suffix_offsets must divide suffix_keys by length"),
    ("hmm-tagger", "suffix_probs", lambda probs: probs[1:], "suffix_probs must have"),
    ("ar", "covariance", put(-1.0), "covariance must be positive definite"),
    ("ar", "spread", put(-1.0), "spread must lie between 0"),
    ("word-vectors", "counts", put(-1), "counts must lie between 0"),
    ("word-vectors", "counts", torch.zeros_like, "counts must not all be 0"),
]


@pytest.mark.parametrize(("kind", "name", "damage", "words"), VALUES)
def test_invalid_values_are_rejected(kind: str, name: str, damage: Callable[[Tensor], Tensor], words: str) -> None:
    state = MODELS[kind]().state_dict()
    assert_rejected(MODELS[kind](), {**state, name: damage(state[name])}, words)


@pytest.mark.parametrize("damage", [nan, put(0.0), lambda tensor: tensor[:1], lambda tensor: tensor.double()])
def test_adagrad_state_of_glove_is_checked(damage: Callable[[Tensor], Tensor]) -> None:
    model = word_vectors("glove")
    state = model.training_state()
    model.load_training_state(state)
    for name, tensor in state.items():
        if name in ("biases", "context_biases") and damage(tensor).shape == (1,):
            continue
        with pytest.raises(CheckpointError, match=f"training.{name}"):
            model.load_training_state({**state, name: damage(tensor)})
    with pytest.raises(CheckpointError, match="biases missing"):
        model.load_training_state({name: tensor for name, tensor in state.items() if name != "biases"})
