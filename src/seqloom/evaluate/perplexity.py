"""Perplexity and its relatives, and the log-probability of given texts.

    loss = −1/N Σ_t log p(x_t | x_<t)      perplexity = exp(loss)

Tokens of different kinds cannot be compared; the same total spread over words, characters or bytes can:

    word perplexity = exp(−Σ log p / words)      bits per character = −Σ log p / (ln 2 · characters)

The input before the first token is END and every token of a stream is predicted exactly once, the ENDs included, so the
end of each document also counts as one word, one character and one byte.

Where rows are of unequal length the shorter ones are filled with END at their right. A left-to-right model cannot see
what stands to the right of a prediction, and nothing is read from a row after its last real token, so the filling is
harmless once its own scores are dropped; `LanguageModel.score` therefore needs no mask.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import LanguageModel


@dataclass(frozen=True)
class Totals:
    """What an evaluation adds up: the negative log-likelihood in nats, and of how many tokens."""

    nll: float
    tokens: int

    @classmethod
    def of(cls, log_probs: Tensor) -> "Totals":
        """The total of a stream's log-probabilities (N,), added up in double precision."""
        return cls(nll=-log_probs.double().sum().item(), tokens=len(log_probs))


def metrics(totals: Totals, *, words: int, characters: int, size: int) -> dict[str, float]:
    """Every way to state the same total, for a text of so many words, characters and bytes (`size`), ends included.

    A perplexity too large for a float is infinite.
    """
    if min(totals.tokens, words, characters, size) < 1:
        raise DataError("There is nothing to evaluate: the text has no documents. Check the split and its files.")
    bits = totals.nll / math.log(2)
    return {
        "loss": totals.nll / totals.tokens,
        "perplexity": exp(totals.nll / totals.tokens),
        "word_perplexity": exp(totals.nll / words),
        "bits_per_character": bits / characters,
        "bits_per_byte": bits / size,
    }


def exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def evaluate_stream(
    model: LanguageModel,
    stream: Tensor,
    *,
    end: int,
    rows: int = 1,
    chunk: int = 256,
    device: torch.device | str = "cpu",
) -> Totals:
    """The total of a stream (N,). See `stream_log_probs`."""
    return Totals.of(stream_log_probs(model, stream, end=end, rows=rows, chunk=chunk, device=device))


def stream_log_probs(
    model: LanguageModel,
    stream: Tensor,
    *,
    end: int,
    rows: int = 1,
    chunk: int = 256,
    device: torch.device | str = "cpu",
) -> Tensor:
    """log p of every token of a stream (N,), in order, on the CPU.

    `rows` > 1 cuts the stream into so many contiguous pieces, equal to within one token, that are read side by side:
    faster, but each piece begins in the model's start state, knowing only the token before it. `chunk` is how many
    tokens of a row are read at once, the state carried on; it bounds memory and changes nothing else.
    """
    if stream.dim() != 1:
        raise UsageError(f"A stream must be one row of tokens; got the shape {tuple(stream.shape)}.")
    if rows < 1:
        raise UsageError(f"rows must be at least 1; got {rows}.")
    before = torch.cat([stream.new_full((1,), end), stream[:-1]]) if len(stream) else stream
    count = max(1, min(rows, len(stream)))
    pairs = list(zip(before.tensor_split(count), stream.tensor_split(count), strict=True))
    return torch.cat(_score(model, pairs, end=end, chunk=chunk, device=device))


def score_texts(
    model: LanguageModel,
    encoded: Sequence[Sequence[int]],
    *,
    end: int,
    rows: int = 32,
    chunk: int = 256,
    device: torch.device | str = "cpu",
) -> list[Tensor]:
    """log p of every token of each text, and of the END after it: (length + 1,) each, on the CPU, in the order given.

    Texts of similar length are read together, `rows` at a time, which changes no score. A text may be empty.
    """
    if rows < 1:
        raise UsageError(f"rows must be at least 1; got {rows}.")
    order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
    scores: dict[int, Tensor] = {}
    for first in range(0, len(order), rows):
        places = order[first : first + rows]
        pairs = [(torch.tensor([end, *encoded[place]]), torch.tensor([*encoded[place], end])) for place in places]
        scores |= zip(places, _score(model, pairs, end=end, chunk=chunk, device=device), strict=True)
    return [scores[place] for place in range(len(encoded))]


@torch.no_grad()
def _score(
    model: LanguageModel,
    pairs: Sequence[tuple[Tensor, Tensor]],
    *,
    end: int,
    chunk: int,
    device: torch.device | str,
) -> list[Tensor]:
    """The log-probabilities of each row's targets given its inputs, all rows read side by side from the start state."""
    if chunk < 1:
        raise UsageError(f"chunk must be at least 1; got {chunk}.")
    inputs, targets = (
        pad_sequence(list(side), batch_first=True, padding_value=end).to(device) for side in zip(*pairs, strict=True)
    )  # (B, T)
    state = model.start(rows=len(pairs))
    # One tensor for all scores: many small ones, each kept after a large temporary one, would leave the heap in
    # fragments, and it would grow by about the logits of a chunk with every chunk.
    scores = torch.empty(inputs.shape, device=device)  # (B, T)
    for begin in range(0, inputs.shape[1], chunk):
        part = slice(begin, begin + chunk)
        log_probs, state = model.score(inputs[:, part], targets[:, part], state)
        scores = scores.to(log_probs.dtype)
        scores[:, part] = log_probs
        del log_probs
    scores = scores.cpu()
    return [row[: len(target)] for row, (_, target) in zip(scores, pairs, strict=True)]
