"""Word vectors: words with similar contexts get similar vectors.

A word w has two vectors: v_w, its word vector, and u_w, its context vector. Training minimizes one of three objectives.
σ is the logistic function, the K negatives n_k are drawn from the noise p(w) ∝ count(w)^¾, and X_ij is the number of
times that j occurs near i:

    skip-gram   −log σ(v_c · u_o) − Σ_k log σ(−v_c · u_{n_k})         for every neighbour o of every word c
    CBOW        −log σ(h · u_c) − Σ_k log σ(−h · u_{n_k})             h = mean of v_o over the neighbours o of c
    GloVe       ½ Σ_ij f(X_ij) (v_i · u_j + b_i + d_j − log X_ij)²    f(x) = min(1, (x / cutoff)^power)

`negative_sampling` and `glove` define the training steps on tensors. `numba_engine` compiles the same
steps for one pair at a time; tests compare both implementations.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from seqloom.classical.tensor_model import Bounds, TensorModel
from seqloom.config import config
from seqloom.config.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from seqloom.core.device import make_generator
from seqloom.core.tree import Expected, check_tree, require

Objective = Literal["skipgram", "cbow", "glove"]


@config
class WordVectorsConfig:
    kind: Literal["word-vectors"] = "word-vectors"
    objective: Objective = "skipgram"
    vector_size: PositiveInt = 100  # size of the vectors
    window: PositiveInt = 5  # maximum distance of a context word; skip-gram and CBOW draw 1 … window for each word
    negatives: PositiveInt = 5  # skip-gram, CBOW: number of noise words per prediction
    noise: NonNegativeFloat = 0.75  # skip-gram, CBOW: exponent of the noise distribution, p(w) ∝ count(w)^noise
    subsample: NonNegativeFloat = 1e-3  # skip-gram, CBOW: relative frequency above which words are dropped at random
    cutoff: PositiveFloat = 10.0  # GloVe: pairs with at least this count have weight 1
    power: NonNegativeFloat = 0.75  # GloVe: exponent of the weight of rarer pairs

    def build(self, vocabulary: int) -> "WordVectorModel":
        return WordVectorModel(self, vocabulary)


class WordVectorModel(TensorModel):
    """Vectors of V words, zero until `draw` initializes them or a checkpoint is loaded."""

    float_dtype = torch.float32
    bounds: Mapping[str, Bounds] = {"counts": (0, None)}

    def __init__(self, config: WordVectorsConfig, vocabulary: int) -> None:
        self.config, self.vocabulary = config, vocabulary
        self.glove = config.objective == "glove"
        self.vectors, self.contexts = (torch.zeros(vocabulary, config.vector_size) for _ in range(2))  # v, u: (V, D)
        self.biases, self.context_biases = (torch.zeros(vocabulary) for _ in range(2))  # b, d: (V,), GloVe only
        self.counts = torch.zeros(vocabulary, dtype=torch.int64)  # counts of the words in the training text
        learned = ("vectors", "contexts", *(("biases", "context_biases") if self.glove else ()))
        self.names = (*learned, "counts")
        # For GloVe, these are the AdaGrad sums of squared steps, which start at 1.
        self.squares = {name: torch.ones_like(getattr(self, name)) for name in learned if self.glove}

    def draw(self, seed: int, counts: Tensor) -> "WordVectorModel":
        """Draw v uniformly from ±½/D; GloVe also draws u and the biases."""
        self.counts = counts.clone()
        for name in self.squares or ("vectors",):
            uniform = torch.rand(getattr(self, name).shape, generator=make_generator(seed, "word vectors", name))
            setattr(self, name, (uniform - 0.5) / self.config.vector_size)
        return self

    @property
    def words(self) -> Tensor:
        """The trained vectors (V, D): v, or v + u for GloVe, where v and u differ only in their initial values."""
        return self.vectors + self.contexts if self.glove else self.vectors

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        require(tensors["counts"].any(), "counts must not all be 0")

    def training_state(self) -> dict[str, Tensor]:
        """Return the optimizer state that a checkpoint stores in addition to the vectors."""
        return dict(self.squares)

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        expected = {name: Expected.like(tensor, low=1) for name, tensor in self.squares.items()}
        check_tree(dict(state), expected, "training")
        self.squares = dict(state)

    def to(self, device: torch.device | str) -> "WordVectorModel":
        self.squares = {name: tensor.to(device) for name, tensor in self.squares.items()}
        return super().to(device)
