"""Tensors from a file are checked before a model uses them: shapes, dtypes, NaN, counts, indices, probabilities."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seqloom.classical.autoregressive import Autoregressive
from seqloom.classical.hmm import HMMConfig
from seqloom.classical.hmm.gaussian import GaussianHMMConfig
from seqloom.classical.hmm.restarts import Search, SearchConfig
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
    made = Search(hmm, SearchConfig(restarts=2, iterations=5))
    made.restart, made.iteration, made.last, made.highest = 1, 2, -3.5, -3.0
    return made


def tagger() -> HMMTagger:
    random = np.random.default_rng(0)
    made = HMMTaggerConfig().build(V, tags=2, characters=len(LETTERS) + 2)
    made.count_transitions([[0, 1, 0], [1, 1]], ["A", "B"])
    words = random.integers(0, V, 60)
    characters = random.integers(2, len(LETTERS) + 2, (60, 3))
    made.count_words(TaggedWords(words, words % 2, characters, np.arange(60) % 5 == 0), LETTERS)
    return made


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


def refuses(model: Any, state: dict[str, Any], match: str | None = None) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=match):
        model.load_state_dict(state)
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("kind", MODELS)
def test_every_tensor_of_every_model_is_checked(kind: str) -> None:
    state = MODELS[kind]().state_dict()
    model = MODELS[kind]()
    model.load_state_dict(state)  # the control: as it was saved
    for name, tensor in state.items():
        for damage in GENERAL.values():
            refuses(model, {**state, name: damage(tensor)}, name)
        if tensor.is_floating_point():
            refuses(model, {**state, name: nan(tensor)}, name)
            if name != "rounds":  # of a Kalman model: a gain may be infinite
                refuses(model, {**state, name: infinite(tensor)}, name)
        refuses(model, {key: value for key, value in state.items() if key != name})
    refuses(model, {**state, "more": torch.zeros(2)}, "more unknown")


def put(value: float, place: int = 0) -> Callable[[Tensor], Tensor]:
    def changed(tensor: Tensor) -> Tensor:
        made = tensor.clone()
        made.view(-1)[place] = value
        return made

    return changed


VALUES: list[tuple[str, str, Callable[[Tensor], Tensor], str]] = [
    ("ngram", "keys.2", put(-1), "keys.2 must lie between 0"),
    ("ngram", "keys.2", lambda keys: keys.flip(0), "keys.2 must be ascending"),
    ("ngram", "keys.3", put(1 << 60, -1), "keys.3 must continue"),
    ("ngram", "log_prob.2", put(1.0), "log_prob.2 must lie between -inf"),
    ("hmm", "emission", put(0.5), "emission must lie between -inf"),
    ("hmm", "transition", put(-9.0), "transition must hold log-probabilities whose rows sum to 1"),
    ("search", "current.emission", put(-9.0), "current.emission must hold log-probabilities"),
    ("search", "search", put(2), "search must be in one of 2 restarts"),
    ("search", "search", put(5, 1), "search must be in one of 2 restarts and 5 iterations"),
    ("search", "search", put(0.5), "search must be in one of 2 restarts"),
    ("search", "search", put(-1), "search must be in one of 2 restarts"),
    ("gaussian-hmm", "covariances", put(-1.0), "covariances must be positive definite"),
    ("gaussian-hmm", "scale", put(0.0), "scale must be above 0"),
    ("gaussian-hmm", "initial", put(-9.0), "initial must hold log-probabilities"),
    ("hmm-tagger", "words", put(-1.0), "words must lie between 0"),
    ("hmm-tagger", "prior", put(2.0), "prior must lie between 0 and 1"),
    ("hmm-tagger", "form_keys", put(1 << 40, -1), "form_keys must lie between 0"),
    ("hmm-tagger", "form_keys", lambda keys: keys.flip(0), "form_keys must be ascending"),
    ("hmm-tagger", "forms", lambda forms: forms[1:], "form_keys and forms must have as many rows"),
    ("hmm-tagger", "small", put(99), "small must lie between 0 and 6"),
    ("hmm-tagger", "borders", put(99, -1), "borders must divide keys into levels"),
    ("hmm-tagger", "borders", put(1), "borders must divide keys into levels"),
    ("hmm-tagger", "keys", lambda keys: keys[1:], "borders must divide keys into levels"),
    ("hmm-tagger", "chances", lambda chances: chances[1:], "chances must have"),
    ("ar", "covariance", put(-1.0), "covariance must be positive definite"),
    ("ar", "spread", put(-1.0), "spread must lie between 0"),
    ("word-vectors", "counts", put(-1), "counts must lie between 0"),
    ("word-vectors", "counts", torch.zeros_like, "counts must not all be 0"),
]


@pytest.mark.parametrize(("kind", "name", "damage", "words"), VALUES)
def test_values_that_no_model_has(kind: str, name: str, damage: Callable[[Tensor], Tensor], words: str) -> None:
    state = MODELS[kind]().state_dict()
    refuses(MODELS[kind](), {**state, name: damage(state[name])}, words)


@pytest.mark.parametrize("damage", [nan, put(0.0), lambda tensor: tensor[:1], lambda tensor: tensor.double()])
def test_squared_steps_of_glove_are_checked(damage: Callable[[Tensor], Tensor]) -> None:
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
