"""What a language model thinks of tokens: perplexity, log-probabilities of texts and continuations, recall, mixtures.

    loss = −1/N Σ_t log p(x_t | x_<t)      perplexity = exp(loss)

Tokens of different kinds cannot be compared; the same total spread over words, characters or bytes
can:

    word perplexity = exp(−Σ log p / words)      bits per character = −Σ log p / (ln 2 · characters)

The input before the first token is END and every token of a stream is predicted exactly once, the
ENDs included, so the end of each document also counts as one word, one character and one byte.

Rows of unequal length are filled with END at their right. A left-to-right model cannot see what
stands to the right of a prediction, so the filling is harmless once its own scores are dropped;
`LanguageModel.score` needs no mask.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import DecodeState, LanguageModel, Steppable, select

CHUNK = 256  # tokens of a row that are read at once
MIXTURE_PRECISION = 1e-7  # nats per token that mixture weights may fall short of the best
MIXTURE_ROUNDS = 5000  # of expectation–maximisation, at most

Device = torch.device | str


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


def stream_log_probs(
    model: LanguageModel, stream: Tensor, *, end: int, rows: int = 1, chunk: int = CHUNK, device: Device = "cpu"
) -> Tensor:
    """log p of every token of a stream (N,), in order, on the CPU.

    `rows` > 1 cuts the stream into so many contiguous pieces, equal to within one token, that are
    read side by side: faster, but each piece begins in the model's start state, knowing only the
    token before it. `chunk` is how many tokens of a row are read at once, the state carried on; it
    bounds memory and changes nothing else.
    """
    if stream.dim() != 1:
        raise UsageError(f"A stream must be one row of tokens; got the shape {tuple(stream.shape)}.")
    if rows < 1:
        raise UsageError(f"rows must be at least 1; got {rows}.")
    before = torch.cat([stream.new_full((1,), end), stream[:-1]]) if len(stream) else stream
    count = max(1, min(rows, len(stream)))
    pairs = list(zip(before.tensor_split(count), stream.tensor_split(count), strict=True))
    return torch.cat(_score(model, model.start(rows=count), pairs, end=end, chunk=chunk, device=device))


def score_texts(
    model: LanguageModel,
    encoded: Sequence[Sequence[int]],
    *,
    end: int,
    rows: int = 32,
    chunk: int = CHUNK,
    device: Device = "cpu",
) -> list[Tensor]:
    """log p of every token of each text, and of the END after it: (length + 1,) each, on the CPU, in the order given.

    Texts of similar length are read together, `rows` at a time, which changes no score. A text may
    be empty.
    """
    if rows < 1:
        raise UsageError(f"rows must be at least 1; got {rows}.")
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    scores: dict[int, Tensor] = {}
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        pairs = [(torch.tensor([end, *encoded[index]]), torch.tensor([*encoded[index], end])) for index in chosen]
        found = _score(model, model.start(rows=len(chosen)), pairs, end=end, chunk=chunk, device=device)
        scores |= zip(chosen, found, strict=True)
    return [scores[index] for index in range(len(encoded))]


@torch.no_grad()
def _score(
    model: LanguageModel,
    state: DecodeState,
    pairs: Sequence[tuple[Tensor, Tensor]],
    *,
    end: int,
    chunk: int,
    device: Device,
) -> list[Tensor]:
    """The log-probabilities of each row's targets given its inputs, all rows read side by side."""
    if chunk < 1:
        raise UsageError(f"chunk must be at least 1; got {chunk}.")
    inputs, targets = (
        pad_sequence(list(side), batch_first=True, padding_value=end).to(device) for side in zip(*pairs, strict=True)
    )  # (B, T)
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


# --- continuations of a prompt ----------------------------------------------------------------------------------------


def in_common(rows: Sequence[Sequence[int]]) -> int:
    """Count the tokens that all rows begin with."""
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rows, strict=False))
    return sum(1 for _ in alike)


@torch.no_grad()
def continuation_log_probs(
    model: LanguageModel,
    rows: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    end: int,
    at_once: int = 32,
    device: Device = "cpu",
) -> list[Tensor]:
    """log p of the tokens of each row from its start on, given END and those before: (length − start,), on the CPU.

    log p(c | prompt) = Σ_t log p(c_t | prompt, c_<t). What all rows begin with, the shots of a
    prompt say, is read once. Rows of like length are read together.
    """
    shared = min([in_common(rows) + 1, *starts])  # of the inputs, which begin with END
    inputs = torch.tensor([[end, *rows[0][: shared - 1]]], device=device)
    state = model.start(rows=1)
    for piece in inputs.split(CHUNK, dim=1) if shared else ():
        state = model.step(piece, state).state
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    found: dict[int, Tensor] = {}
    for first in range(0, len(order), at_once):
        chosen = order[first : first + at_once]
        tokens = [torch.tensor([end, *rows[index]][shared:]) for index in chosen]
        repeated = torch.zeros(len(chosen), dtype=torch.long, device=device)
        pairs = [(row[:-1], row[1:]) for row in tokens]
        scores = _score(model, select(state, repeated, repeated), pairs, end=end, chunk=CHUNK, device=device)
        for index, row in zip(chosen, scores, strict=True):
            found[index] = row[starts[index] - shared :]
    return [found[index] for index in range(len(rows))]


# --- recall from the text before --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecallQuestion:
    """The tokens of a document that are an answer, from the first to the one after the last, and its group."""

    start: int
    end: int
    group: str


@torch.no_grad()
def recall(
    model: Steppable,
    documents: Sequence[Sequence[int]],
    questions: Sequence[Sequence[RecallQuestion]],
    *,
    end: int,
    rows: int = 256,
    device: Device = "cpu",
) -> dict[str, float]:
    """The share of the answers of each group that are right, groups in the order in which they first come.

    An answer is right if each of its tokens is the likeliest one after all that stands before it:
    it is then what the model would write there itself.
    """
    right: dict[str, list[bool]] = {}
    for first in range(0, len(documents), rows):
        block = documents[first : first + rows]
        inputs = pad_sequence([torch.tensor([end, *own[:-1]]) for own in block], batch_first=True, padding_value=end)
        state, likeliest = model.start(rows=len(block)), list[Tensor]()
        for tokens in inputs.to(device).split(1, dim=1):  # (B, 1)
            output = model.step(tokens, state)
            state = output.state
            likeliest.append(output.log_probs.argmax(dim=1).cpu())
        guesses = torch.stack(likeliest, dim=1).tolist()
        for document, asked, guess in zip(block, questions[first : first + rows], guesses, strict=True):
            for answer in asked:
                part = slice(answer.start, answer.end)
                right.setdefault(answer.group, []).append(guess[part] == list(document[part]))
    return {group: sum(answers) / len(answers) for group, answers in right.items()}


# --- mixtures ---------------------------------------------------------------------------------------------------------


def best_weights(log_probs: Sequence[Tensor]) -> list[float]:
    """The weights of a mixture of models under which a text is likeliest, from log p (N,) of its tokens by each model.

        maximise   L(λ) = 1/N Σ_t log Σ_i λ_i p_i(x_t | x_<t)

    Expectation–maximisation asks how much of each token's probability came from model i, and takes
    the average for its new weight; L never falls:

        λ_i ← λ_i g_i,    g_i = 1/N Σ_t p_i(x_t) / Σ_j λ_j p_j(x_t)

    L is concave, so there is one summit, and max_i g_i − 1 bounds how far below it L(λ) still lies.
    """
    from seqloom.decoding.mixture import mix  # here, so that a recipe is read without it

    each = torch.stack([own.double() for own in log_probs])  # (M, N)
    if bool((each.amax(dim=0) == -torch.inf).any()):
        raise DataError("No weights make this text possible: all of the models give one of its tokens no chance.")
    weights = each.new_full((len(each),), 1 / len(each))
    for _ in range(MIXTURE_ROUNDS):
        gains = (each - mix(list(each), weights.tolist())).exp().mean(dim=1)  # (M,)
        weights = weights * gains
        if gains.max() < 1 + MIXTURE_PRECISION:
            break
    return [float(weight) for weight in weights / weights.sum()]
