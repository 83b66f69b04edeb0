"""Word vectors: words that stand among the same words come to lie in the same direction.

A word w has two vectors: v_w, its own, and u_w, its vector as a neighbour of others. Three ways to learn them, with σ
the logistic function, K negatives n_k drawn from the noise p(w) ∝ count(w)^¾, and X_ij how often j stands near i:

    skip-gram   −log σ(v_c · u_o) − Σ_k log σ(−v_c · u_{n_k})         for every neighbour o of every word c
    CBOW        −log σ(h · u_c) − Σ_k log σ(−h · u_{n_k})             h = mean of v_o over the neighbours o of c
    GloVe       ½ Σ_ij f(X_ij) (v_i · u_j + b_i + d_j − log X_ij)²    f(x) = min(1, (x / cutoff)^power)

`negative_sampling` and `glove` define their steps, in tensors; `numba_engine` compiles the same, a pair at a time, and
tests prove the two equal.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from seqloom.core.seeding import generator
from seqloom.core.tree import Expected, check_tree, require

Objective = Literal["skipgram", "cbow", "glove"]
TABLES = ("vectors", "contexts")
BIASES = ("biases", "context_biases")


@config
class WordVectorsConfig:
    kind: Literal["word-vectors"] = "word-vectors"
    objective: Objective = "skipgram"
    width: PositiveInt = 100  # numbers in a vector
    window: PositiveInt = 5  # neighbours are at most so many words away; skip-gram, CBOW: 1 … window, drawn for each
    negatives: PositiveInt = 5  # skip-gram, CBOW: words drawn from the noise for each that is there
    noise: NonNegativeFloat = 0.75  # skip-gram, CBOW: the noise is p(w) ∝ count(w)^noise
    subsample: NonNegativeFloat = 1e-3  # skip-gram, CBOW: words with a larger share are left out at times; 0: never
    cutoff: PositiveFloat = 10.0  # GloVe: the count from which on a pair weighs no more
    power: NonNegativeFloat = 0.75  # GloVe: how a rarer pair weighs less

    def build(self, vocabulary: int) -> "WordVectors":
        return WordVectors(self, vocabulary)


class WordVectors:
    """Vectors of V words. Before it is trained or loaded, every number is zero; `draw` gives it where to begin."""

    def __init__(self, config: WordVectorsConfig, vocabulary: int) -> None:
        self.config, self.vocabulary = config, vocabulary
        self.vectors, self.contexts = (torch.zeros(vocabulary, config.width) for _ in TABLES)  # v, u: (V, D)
        self.biases, self.context_biases = (torch.zeros(vocabulary) for _ in BIASES)  # b, d: (V,), GloVe's
        self.counts = torch.zeros(vocabulary, dtype=torch.int64)  # in the training text; 0 for what is no word there
        # GloVe's training: the sum of squared steps of every number, which begins at 1 (AdaGrad).
        self.squares = {name: torch.ones_like(getattr(self, name)) for name in self._learned} if self.glove else {}

    @property
    def glove(self) -> bool:
        return self.config.objective == "glove"

    @property
    def _learned(self) -> tuple[str, ...]:
        return (*TABLES, *BIASES) if self.glove else TABLES

    def draw(self, seed: int, counts: Tensor) -> "WordVectors":
        """Begin: v uniform in ±½/D, u zero; GloVe draws all of it so."""
        self.counts = counts.clone()
        for name in self._learned if self.glove else ("vectors",):
            uniform = torch.rand(getattr(self, name).shape, generator=generator(seed, "word vectors", name))
            setattr(self, name, (uniform - 0.5) / self.config.width)
        return self

    @property
    def words(self) -> Tensor:
        """The vectors (V, D) one uses: v; of GloVe, where v and u differ only in where they began, v + u."""
        return self.vectors + self.contexts if self.glove else self.vectors

    # --- keeping ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*self._learned, "counts")}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        counts = Expected((self.vocabulary,), torch.int64, low=0)
        check_tree(dict(state_dict), {**self.state_dict(), "counts": counts})
        require(state_dict["counts"].any(), "counts must not all be 0")
        for name, tensor in state_dict.items():
            setattr(self, name, tensor)

    def training_state(self) -> dict[str, Any]:
        """What going on needs beside the vectors."""
        return dict(self.squares)

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        expected = {name: Expected.like(tensor, low=1) for name, tensor in self.squares.items()}
        check_tree(dict(state), expected, "training")
        self.squares = dict(state)

    # --- what a module can do ---------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.vectors.device

    def to(self, device: torch.device | str) -> "WordVectors":
        """Move it, in place."""
        for name in (*TABLES, *BIASES, "counts"):
            setattr(self, name, getattr(self, name).to(device))
        self.squares = {name: tensor.to(device) for name, tensor in self.squares.items()}
        return self

    def eval(self) -> "WordVectors":
        return self

    def train(self, mode: bool = True) -> "WordVectors":
        return self
