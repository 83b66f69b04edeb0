"""What a model expects next, before and after chance is shaped; and a text as it is written, token by token.

    found = next_tokens(seqloom.load("runs/lm-word-lstm"), "The class", temperature=0.7, top_k=20)
    found.probabilities[0], found.chances[0]      of found.ids[0], the token the model finds most probable

`probabilities` are the model's own. `chances` are what the next token is drawn from: the same after the processors of
`seqloom.decoding.processors`, which ban tokens, sharpen or flatten (temperature), and cut (top-k, top-p).
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqloom.core.errors import DivergedError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig, process
from seqloom.inspect.views.prompts import Beginning, beginning
from seqloom.inspect.views.reading import evaluating
from seqloom.text import END

Array = NDArray[np.floating[Any]]
WATCHED = 12  # alternatives that are kept of each token while a text is written


@dataclass(frozen=True, eq=False)
class NextTokens:
    """All tokens of the vocabulary (V,), the most probable first; of equals, that of lower id."""

    ids: NDArray[np.int64]
    log_probs: Array  # the model's own
    chances: Array  # what is drawn from; 0 for a token that was cut
    banned: NDArray[np.bool_]  # never chosen, whatever the model thinks
    tokens: list[str]  # of the first few, as they are shown to people

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.log_probs.nbytes + self.chances.nbytes + self.banned.nbytes

    @property
    def probabilities(self) -> Array:
        return np.exp(self.log_probs)

    @property
    def kept(self) -> int:
        """How many tokens can be drawn."""
        return int((self.chances > 0).sum())

    @property
    def entropy(self) -> float:
        """Of the model's own distribution, in bits."""
        p = self.probabilities
        return float(-(p * np.log2(p, out=np.zeros_like(p), where=p > 0)).sum())

    def rank(self, token: int) -> int:
        """The place of a token among all, 1 for the most probable."""
        return int(np.flatnonzero(self.ids == token)[0]) + 1


@dataclass(frozen=True, eq=False)
class WrittenToken:
    """A token of a text that is being written, and what else might have stood there."""

    token: int
    text: str  # what it adds to the text; "" while half a letter waits for the rest
    shown: str  # the token itself, as it is shown to people
    forced: bool  # whether somebody wanted it, or else it was drawn
    expected: NextTokens  # before it was chosen; names are kept of the first few

    @property
    def probability(self) -> float:
        return float(self.expected.probabilities[self.expected.rank(self.token) - 1])


def next_tokens(trained: Any, text: str, forced: Sequence[int] = (), *, top: int = 200, **options: Any) -> NextTokens:
    """What comes after a prompt, or in the translation of a text, and after the tokens that were `forced`.

    `trained` is what `seqloom.load` gives for a language model, a translator or a denoiser; `options` are those of
    `SamplingConfig`. The first `top` tokens get names.
    """
    begun = beginning(trained, text, [token for token in forced if token != END])
    with _quiet(trained.model), torch.no_grad():
        output = trained.model.step(_read(begun, begun.prefix), begun.start())
    return _expected(begun, output.log_probs, SamplingConfig(banned=begun.banned, **options), top)


def write(
    trained: Any,
    text: str,
    forced: Sequence[int] = (),
    *,
    max_tokens: int = 100,
    seed: int = 0,
    watched: int = WATCHED,
    **options: Any,
) -> Generator[WrittenToken, None, None]:
    """The tokens that were forced and, until END comes or `max_tokens` are there, those that are drawn after them.

    What is drawn is what `seqloom generate` draws from this seed after the same tokens. `options` are those of
    `SamplingConfig`. Arguments are checked at the call, not at the first token.
    """
    begun = beginning(trained, text, forced)
    sampling = SamplingConfig(banned=begun.banned, **options)
    room = begun.room(max_tokens)
    return _write(begun, sampling, room, seed, watched)


def _write(
    begun: Beginning, sampling: SamplingConfig, room: int, seed: int, watched: int
) -> Generator[WrittenToken, None, None]:
    decoder = begun.decoder()
    for token, forced, log_probs in _chosen(begun, sampling, room, seed):
        piece = decoder.flush() if token == END else decoder.push(token)
        shown = begun.name(token)
        yield WrittenToken(token, piece, shown, forced, _expected(begun, log_probs, sampling, watched))


def _chosen(begun: Beginning, sampling: SamplingConfig, room: int, seed: int) -> Iterator[tuple[int, bool, Tensor]]:
    """Each token, whether it was forced, and log p of all tokens before it was chosen (1, V)."""
    model = begun.trained.model
    with _quiet(model):
        for token, log_probs in _forced(begun):
            yield token, True, log_probs
        if begun.ended:
            return
        overheard = _Overheard(model)
        steps = generate(
            overheard,
            _read(begun, begun.prefix),
            options=sampling,
            max_tokens=room,
            end=END,
            seed=seed,
            source=begun.tree(),
        )
        for step in steps:
            yield int(step.tokens[0]), False, overheard.log_probs


def _forced(begun: Beginning) -> Iterator[tuple[int, Tensor]]:
    """What the model thought of each token that was forced."""
    state, read = begun.start(), _read(begun, begun.prompt)
    for token in begun.forced:
        with torch.no_grad():
            output = begun.trained.model.step(read, state)
        yield token, output.log_probs
        state, read = output.state, torch.tensor([[token]], device=read.device)


class _Overheard:
    """A model whose last answer can be looked at."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.log_probs = torch.empty(0)

    def start(self, source: Any = None, rows: int | None = None) -> DecodeState:
        state: DecodeState = self.model.start(source, rows)
        return state

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        output: StepOutput = self.model.step(tokens, state, mask)
        self.log_probs = output.log_probs
        return output


def _read(begun: Beginning, tokens: Sequence[int]) -> Tensor:
    """END before the text, as in training (1, T)."""
    return torch.tensor([[END, *tokens]], device=begun.trained.device)


def _expected(begun: Beginning, log_probs: Tensor, sampling: SamplingConfig, top: int) -> NextTokens:
    own = log_probs.detach().to("cpu", torch.float32)
    if own.isnan().any():
        raise DivergedError("The model's probabilities are not numbers: its weights are bad. Use another checkpoint.")
    shaped = process(own, torch.empty(1, 0, dtype=torch.long), sampling.processors(END))[0].double().exp()
    if sampling.greedy:
        shaped = torch.zeros_like(shaped).index_fill(0, shaped.argmax(), 1.0)
    own = own[0]
    order = own.argsort(descending=True, stable=True)
    return NextTokens(
        ids=order.numpy(),
        log_probs=own[order].double().numpy(),
        chances=shaped[order].numpy(),
        banned=torch.isin(order, torch.tensor(begun.banned, dtype=torch.long)).numpy(),
        tokens=[begun.name(token) for token in order[:top].tolist()],
    )


def _quiet(model: Any) -> Any:
    """Without dropout; counted models have none."""
    return evaluating(model) if isinstance(model, nn.Module) else nullcontext()
