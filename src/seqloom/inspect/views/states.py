"""What a hidden Markov model found: what each state says, which follows which, where it was in a text or a series."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seqloom.classical.hmm.discrete import HiddenMarkov
from seqloom.classical.hmm.gaussian import GaussianHMM
from seqloom.core.errors import DataError, UsageError
from seqloom.text import Characters

Array = NDArray[np.float64]
SAID = 12  # symbols of a state that are shown
SHOWN = 280  # tokens of the dev split, where no text is given
VOWELS = frozenset("aeiou")
LETTERS = ("vowels", "consonants", "spaces", "others")


@dataclass(frozen=True)
class TextStates:
    """Of a model of text; its states are numbered from 1, END is none of them."""

    said: list[list[tuple[str, float]]]  # of each state the likeliest symbols
    transition: Array  # (N+1, N+1), the last is END
    tokens: list[str]  # of the text that was read
    path: list[int]  # the likeliest state of each of them, from 0
    belief: list[float]  # how probable that state is, once all is read
    share: list[float]  # how much of the measured text each state said
    kinds: dict[str, list[float]] | None  # of letters: by kind the share that each state said of it
    measured: str  # what shares and kinds were measured on

    @property
    def states(self) -> int:
        return len(self.said)


@dataclass(frozen=True)
class SeriesStates:
    """Of a model of series."""

    columns: list[str]
    means: Array  # (N, C), in the units of the data
    deviations: Array  # (N, C)
    transition: Array  # (N, N)
    share: list[float]
    values: Array  # (T, C)
    times: list[str]
    path: list[int]
    train: int  # steps that it learned from; what comes after them it had not seen

    @property
    def states(self) -> int:
        return len(self.means)

    def lasts(self, state: int) -> str:
        """How many steps a state lasts on average, 1 / (1 − A_kk)."""
        steps = 1 / max(1 - float(self.transition[state, state]), 1e-12)
        return f"{steps:.1f} steps at a time" if steps < len(self.path) else "never left again"


def states_view(trained: Any, text: str | None = None, *, top: int = SAID) -> TextStates | SeriesStates:
    """Of what `seqloom.load` gives for a run of a hidden Markov model."""
    model = trained.model
    if isinstance(model, GaussianHMM):
        if text is not None:
            raise UsageError(f"{trained.name} is of a series, not of a text; leave the text out.")
        return _series(trained, model)
    if isinstance(model, HiddenMarkov):
        return _text(trained, model, text, top)
    raise UsageError(
        f"Only a hidden Markov model has states to show (tasks hmm and hmm-series); {trained.name} is {trained.what} "
        f"of kind {trained.run.recipe['model']['kind']}."
    )


def _text(trained: Any, model: HiddenMarkov, text: str | None, top: int) -> TextStates:
    tokenizer = trained.tokenizer
    if text is None:
        stream, measured = trained.task().stream("dev"), f"{trained.run.data['corpus']}, dev"
        shown = _beginning(stream)
    else:
        ids = tokenizer.encode(trained.as_taught(text))
        if not ids:
            raise DataError("There is nothing in this text that the model reads. Give it a word or two.")
        shown = stream = torch.tensor(ids)
        measured = "this text"
    everywhere = model.likeliest(stream)
    inside = everywhere < model.states  # END is no state of theirs
    counts = torch.bincount(everywhere[inside], minlength=model.states).double()
    path, belief = model.likeliest(shown), model.believed(shown)
    return TextStates(
        said=[_likeliest(row, tokenizer, top) for row in model.emission[: model.states]],
        transition=model.transition.exp().numpy(),
        tokens=[tokenizer.token(number) for number in shown.tolist()],
        path=path.tolist(),
        belief=belief.gather(1, path.unsqueeze(1)).squeeze(1).tolist(),
        share=(counts / counts.sum()).tolist(),
        kinds=_kinds(stream[inside], everywhere[inside], tokenizer, model.states),
        measured=measured,
    )


def _beginning(stream: torch.Tensor) -> torch.Tensor:
    """The beginning of a stream, without the END it may have."""
    some = stream[:SHOWN]
    ends = (some == 0).nonzero().flatten().tolist()
    first = next((place for place in ends if place >= SHOWN // 4), None)
    some = some if first is None else some[:first]
    return some[some != 0]


def _likeliest(row: torch.Tensor, tokenizer: Any, top: int) -> list[tuple[str, float]]:
    values, numbers = row.exp().topk(min(top, len(row)))
    return [(tokenizer.token(number), value) for number, value in zip(numbers.tolist(), values.tolist(), strict=True)]


def _kinds(tokens: torch.Tensor, path: torch.Tensor, tokenizer: Any, states: int) -> dict[str, list[float]] | None:
    """Where the tokens are letters: what share of the vowels, and of the others, each state said."""
    if not isinstance(tokenizer, Characters):
        return None
    kind = torch.tensor([LETTERS.index(kind_of(tokenizer.token(number))) for number in range(len(tokenizer))])
    table = torch.bincount(kind[tokens] * states + path, minlength=len(LETTERS) * states).view(-1, states).double()
    return {name: (row / row.sum()).tolist() for name, row in zip(LETTERS, table, strict=True) if float(row.sum()) > 0}


def kind_of(letter: str) -> str:
    if letter.isspace():
        return "spaces"
    if len(letter) != 1 or not letter.isalpha():
        return "others"
    return "vowels" if letter.lower() in VOWELS else "consonants"


def _series(trained: Any, model: GaussianHMM) -> SeriesStates:
    corpus = trained.task().corpus
    last = next(name for name in ("test", "dev", "train") if name in corpus.splits)
    series, train = corpus.split(last)[0], len(corpus.split("train")[0])
    values = torch.from_numpy(series.values)
    path = model.likeliest(values)
    spread = model.covariances.diagonal(dim1=1, dim2=2).sqrt() * model.scale
    counts = torch.bincount(path, minlength=model.states).double()
    return SeriesStates(
        columns=list(series.columns),
        means=(model.means * model.scale + model.center).numpy(),
        deviations=spread.numpy(),
        transition=model.transition.exp().numpy(),
        share=(counts / counts.sum()).tolist(),
        values=series.values,
        times=series.time_labels(),
        path=path.tolist(),
        train=train,
    )


def runs_of(path: Sequence[int]) -> list[tuple[int, int, int]]:
    """State, first place and the place after the last of each stretch in one state."""
    borders = [0, *(t for t in range(1, len(path)) if path[t] != path[t - 1]), len(path)]
    return [(path[a], a, b) for a, b in pairwise(borders) if a < b]
