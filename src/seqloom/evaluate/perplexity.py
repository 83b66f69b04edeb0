"""Evaluation of language models: perplexity, log-probabilities of texts and continuations, recall, and mixtures.

    loss = −1/N Σ_t log p(x_t | x_<t)      perplexity = exp(loss)

Models with different tokenizers are comparable per word, character or byte:

    word perplexity = exp(−Σ log p / words)      bits per character = −Σ log p / (ln 2 · characters)

The input before the first token is END, and every token of a stream is predicted exactly once,
including END. The end of each document therefore counts as one word, one character and one byte.

Rows of unequal length are padded with END on the right. A left-to-right model does not see the
padding, and the scores of padding are dropped, so `CausalLanguageModel.score` needs no mask.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import CausalLanguageModel, DecodeState, Steppable, select

CHUNK = 256  # number of tokens per row in one forward pass
MIXTURE_PRECISION = 1e-7  # maximum distance from the optimal mixture, in nats per token
MAX_MIXTURE_ROUNDS = 5000  # maximum number of rounds of expectation–maximization

Device = torch.device | str


@dataclass(frozen=True)
class Totals:
    """The negative log-likelihood in nats, and the number of tokens."""

    nll: float
    tokens: int

    @classmethod
    def of(cls, log_probs: Tensor) -> "Totals":
        """Sum the log-probabilities (N,) of a stream in float64."""
        return cls(nll=-log_probs.double().sum().item(), tokens=len(log_probs))


def metrics(totals: Totals, *, words: int, characters: int, size: int) -> dict[str, float]:
    """Compute the loss per token, word, character and byte (`size`) of a text; the counts include document ends.

    A perplexity that overflows is infinite.
    """
    if min(totals.tokens, words, characters, size) < 1:
        raise DataError("The text has no documents to evaluate. Check the split and its files.")
    bits = totals.nll / math.log(2)
    return {
        "loss": totals.nll / totals.tokens,
        "perplexity": exp(totals.nll / totals.tokens),
        "word_perplexity": exp(totals.nll / words),
        "bits_per_character": bits / characters,
        "bits_per_byte": bits / size,
    }


def exp(value: float) -> float:
    """Return e^value, or infinity if it overflows."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def stream_log_probs(
    model: CausalLanguageModel, stream: Tensor, *, end: int, rows: int = 1, chunk: int = CHUNK, device: Device = "cpu"
) -> Tensor:
    """Return log p of every token of a stream (N,), on the CPU.

    `rows` > 1 splits the stream into contiguous parts that are read as a batch. Reading several parts is faster, but
    each part begins in the start state with only the previous token as context. `chunk` is the number of tokens per
    forward pass. The state is passed to the next chunk, so `chunk` affects only memory.
    """
    if stream.dim() != 1:
        raise UsageError(f"A stream must have one dimension; got the shape {tuple(stream.shape)}.")
    if rows < 1:
        raise UsageError(f"rows must be at least 1; got {rows}.")
    before = torch.cat([stream.new_full((1,), end), stream[:-1]]) if len(stream) else stream
    count = max(1, min(rows, len(stream)))
    pairs = list(zip(before.tensor_split(count), stream.tensor_split(count), strict=True))
    return torch.cat(_score(model, model.start(rows=count), pairs, end=end, chunk=chunk, device=device))


def score_texts(
    model: CausalLanguageModel,
    encoded: Sequence[Sequence[int]],
    *,
    end: int,
    rows: int = 32,
    chunk: int = CHUNK,
    device: Device = "cpu",
) -> list[Tensor]:
    """Return log p (length + 1,) of the tokens of each text and its END, on the CPU.

    Texts of similar length are batched, `rows` at a time; scores do not depend on `rows`. A text may be
    empty.
    """
    if rows < 1:
        raise UsageError(f"rows must be at least 1; got {rows}.")
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    scores: dict[int, Tensor] = {}
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        pairs = [(torch.tensor([end, *encoded[index]]), torch.tensor([*encoded[index], end])) for index in chosen]
        log_probs = _score(model, model.start(rows=len(chosen)), pairs, end=end, chunk=chunk, device=device)
        scores |= zip(chosen, log_probs, strict=True)
    return [scores[index] for index in range(len(encoded))]


@torch.no_grad()
def _score(
    model: CausalLanguageModel,
    state: DecodeState,
    pairs: Sequence[tuple[Tensor, Tensor]],
    *,
    end: int,
    chunk: int,
    device: Device,
) -> list[Tensor]:
    """Return the log-probabilities of the targets of each row of a batch."""
    if chunk < 1:
        raise UsageError(f"chunk must be at least 1; got {chunk}.")
    inputs, targets = (
        pad_sequence(list(side), batch_first=True, padding_value=end).to(device) for side in zip(*pairs, strict=True)
    )  # (B, T)
    # Use one tensor for all scores, because small tensors allocated after large temporaries would fragment the heap.
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


def common_prefix_length(rows: Sequence[Sequence[int]]) -> int:
    """Return the length of the longest common prefix."""
    return sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rows, strict=False)))


@torch.no_grad()
def continuation_log_probs(
    model: CausalLanguageModel,
    rows: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    end: int,
    batch_size: int = 32,
    device: Device = "cpu",
) -> list[Tensor]:
    """Return log p (length − start,) of the tokens of each row after its start, on the CPU.

    log p(c | prompt) = Σ_t log p(c_t | prompt, c_<t). The common prefix of all rows, for example the
    shots of a prompt, is read once. Rows of similar length are batched.
    """
    shared = min([common_prefix_length(rows) + 1, *starts])  # inputs begin with END
    inputs = torch.tensor([[end, *rows[0][: shared - 1]]], device=device)
    state = model.start(rows=1)
    for piece in inputs.split(CHUNK, dim=1) if shared else ():
        state = model.step(piece, state).state
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    log_probs: dict[int, Tensor] = {}
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        tokens = [torch.tensor([end, *rows[index]][shared:]) for index in chosen]
        repeated = torch.zeros(len(chosen), dtype=torch.long, device=device)
        pairs = [(row[:-1], row[1:]) for row in tokens]
        scores = _score(model, select(state, repeated, repeated), pairs, end=end, chunk=CHUNK, device=device)
        for index, row in zip(chosen, scores, strict=True):
            log_probs[index] = row[starts[index] - shared :]
    return [log_probs[index] for index in range(len(rows))]


# --- recall from the context ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecallQuestion:
    """The token span of an answer in a document, with an exclusive end, and its group."""

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
    """Return the accuracy of the answers of each group, in order of appearance.

    An answer is correct if each of its tokens is the most probable token given all previous tokens, as in greedy
    decoding.
    """
    correct: dict[str, list[bool]] = {}
    for first in range(0, len(documents), rows):
        block = documents[first : first + rows]
        inputs = pad_sequence([torch.tensor([end, *row[:-1]]) for row in block], batch_first=True, padding_value=end)
        state, likeliest = model.start(rows=len(block)), list[Tensor]()
        for tokens in inputs.to(device).split(1, dim=1):  # (B, 1)
            output = model.step(tokens, state)
            state = output.state
            likeliest.append(output.log_probs.argmax(dim=1).cpu())
        predictions = torch.stack(likeliest, dim=1).tolist()
        for document, answers, predicted in zip(block, questions[first : first + rows], predictions, strict=True):
            for answer in answers:
                part = slice(answer.start, answer.end)
                correct.setdefault(answer.group, []).append(predicted[part] == list(document[part]))
    return {group: sum(results) / len(results) for group, results in correct.items()}


# --- mixtures ---------------------------------------------------------------------------------------------------------


def best_weights(log_probs: Sequence[Tensor]) -> list[float]:
    """Find the mixture weights that maximize the likelihood of a text, given log p (N,) of its tokens by each model.

        maximize   L(λ) = 1/N Σ_t log Σ_i λ_i p_i(x_t | x_<t)

    Expectation–maximization replaces each weight by the mean responsibility of its model, so that L never
    decreases:

        λ_i ← λ_i g_i,    g_i = 1/N Σ_t p_i(x_t) / Σ_j λ_j p_j(x_t)

    L is concave, and max_i g_i − 1 bounds the distance to its maximum.
    """
    from seqloom.decoding.mixture import mix  # imported here to keep recipe loading fast

    each = torch.stack([part.double() for part in log_probs])  # (M, N)
    if bool((each.amax(dim=0) == -torch.inf).any()):
        raise DataError(
            "The text has probability 0 under every mixture: all models give one of its tokens probability 0."
        )
    weights = each.new_full((len(each),), 1 / len(each))
    for _ in range(MAX_MIXTURE_ROUNDS):
        gains = (each - mix(list(each), weights.tolist())).exp().mean(dim=1)  # (M,)
        weights = weights * gains
        if gains.max() < 1 + MIXTURE_PRECISION:
            break
    return [float(weight) for weight in weights / weights.sum()]
