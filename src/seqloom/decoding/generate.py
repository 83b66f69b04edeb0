"""Token-by-token generation from any `Steppable`, on any device, and streaming of its text.

    x_t ~ processed p(· | prompt, x_<t)        until END or `max_tokens`

Every row has a separate random stream that depends only on its seed, not on the other rows. Text ends at the stop
string that is completed first, regardless of the tokenization. If two stop strings end at the same character, the
longer string is used. A possible beginning of a stop string is held back.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seqloom.core.device import derive_seed, make_generator
from seqloom.core.errors import DivergedError, UsageError
from seqloom.core.progress import check_cancelled
from seqloom.core.protocols import Steppable, select
from seqloom.core.tree import Tree
from seqloom.decoding.processors import SamplingConfig, process
from seqloom.decoding.rules import NOT_NUMBERS

BLOCK = 64  # number of random numbers that are drawn ahead, to reduce transfers to a GPU


@dataclass(frozen=True)
class GeneratedTokens:
    """The tokens of one step, on the CPU. Rows that have finished contain END with log-probability 0."""

    tokens: Tensor  # (B,) the chosen tokens, including END
    log_probs: Tensor  # (B,) log-probabilities of the chosen tokens under the model, before processing
    finished: Tensor  # (B,) True from the step at which a row chose END


Steps = Generator[GeneratedTokens, Tensor | None, None]  # `send(rows)`, a boolean (B,), ends more rows
Pieces = Generator[list[str], None, None]  # the new text of every row


def row_seeds(seed: int | Sequence[int], rows: int) -> list[int]:
    """Return one seed per row: the given seeds, or seeds derived from one seed and the row index."""
    if isinstance(seed, int):
        return [derive_seed(seed, "row", row) for row in range(rows)]
    if len(seed) != rows:
        raise UsageError(f"Use one seed, or one for each of the {rows} rows; got {len(seed)} seeds.")
    return list(seed)


def choose(log_probs: Tensor, draws: Tensor) -> Tensor:
    """Sample (B,) from log-probabilities (B, V) by the inverse transform: return the first v with P(≤ v) > u.

    With float64, devices with different rounding agree. A token of probability 0 is never returned, even if the
    rounding of a parallel sum assigns an interval to this token.
    """
    probs = log_probs.double().exp()
    cumulative = probs.cumsum(-1)
    thresholds = draws.unsqueeze(1) * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, thresholds, right=True).clamp_(max=probs.shape[1] - 1)
    possible = probs.gather(1, sampled) > 0
    return torch.where(possible, sampled, probs.argmax(-1, keepdim=True)).squeeze(1)


def generate(
    model: Steppable,
    prompt: Tensor,
    *,
    options: SamplingConfig,
    max_tokens: int,
    end: int,
    seed: int | Sequence[int] = 0,
    mask: Tensor | None = None,
    source: Tree = None,
) -> Steps:
    """Continue each row of `prompt` (B, T), and yield after every token.

    `mask` (B, T) marks the real tokens of prompts of unequal length. To generate without a prompt, pass END, the
    context of the first token. `seed` is one number, or one number per row. A row depends only on its seed: row i of a
    batch with seed s equals a single row with `seed=[row_seeds(s, B)[i]]`. Finished rows leave the batch. A model that
    is an `nn.Module` must be in evaluation mode. The call itself validates the arguments, before the first token is
    requested.
    """
    if prompt.dim() != 2 or 0 in prompt.shape:
        raise UsageError(
            f"A prompt must have shape (rows, tokens) with at least one token; got {tuple(prompt.shape)}. "
            "Use END for an empty prompt."
        )
    if mask is not None and not (mask.shape == prompt.shape and bool(mask.any(1).all())):
        raise UsageError(
            f"The mask must have the shape of the prompt, {tuple(prompt.shape)}, and a token in each row; "
            f"got {tuple(mask.shape)} with {mask.sum(-1).tolist()} tokens."
        )
    if max_tokens < 1:
        raise UsageError(f"max_tokens must be at least 1; got {max_tokens}.")
    return _steps(model, prompt, mask, source, row_seeds(seed, len(prompt)), options, max_tokens, end)


@torch.no_grad()
def _steps(
    model: Steppable,
    prompt: Tensor,
    mask: Tensor | None,
    source: Tree,
    seeds: list[int],
    options: SamplingConfig,
    max_tokens: int,
    end: int,
) -> Steps:
    # Choose tokens on the device of the model, except on MPS, which does not support float64.
    device = torch.device("cpu") if prompt.device.type == "mps" else prompt.device
    generators = [make_generator(seed, "draws") for seed in seeds]  # on the CPU, so that all devices have equal draws
    processors = options.processors(end)
    rows = torch.arange(len(prompt))  # indices of the active rows in the batch
    finished = torch.zeros(len(prompt), dtype=torch.bool)
    generated = torch.empty(len(prompt), 0, dtype=torch.long, device=device)
    uniform = torch.empty(0)  # (BLOCK, B) numbers in [0, 1)
    output = model.step(prompt, model.start(source) if source is not None else model.start(rows=len(prompt)), mask)
    for t in range(max_tokens):
        check_cancelled()
        if t % BLOCK == 0 and not options.greedy:
            draws = [torch.rand(BLOCK, generator=stream, dtype=torch.float64) for stream in generators]
            uniform = torch.stack(draws, dim=1).to(device)
        log_probs = output.log_probs.to(device)
        processed = process(log_probs, generated, processors)
        if options.greedy:
            chosen = processed.argmax(-1)
        else:
            chosen = choose(processed, uniform[t % BLOCK].index_select(0, rows.to(device)))
        generated = torch.cat([generated, chosen.unsqueeze(1)], dim=1)
        chosen_log_probs = log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1)
        # This is the only transfer per token. Ids are exact up to 2^53.
        ids, scores = torch.stack([chosen.double(), chosen_log_probs.double()]).cpu()
        if scores.isnan().any():
            raise DivergedError(NOT_NUMBERS)
        tokens = torch.full((len(finished),), end).index_copy(0, rows, ids.long())
        row_scores = torch.zeros(len(finished), dtype=torch.float64).index_copy(0, rows, scores)
        finished = finished | (tokens == end)
        stopped = yield GeneratedTokens(tokens, row_scores, finished)
        finished = finished if stopped is None else finished | stopped.cpu()
        if t + 1 == max_tokens or finished.all():
            return
        state = output.state
        if finished[rows].any():
            stay = (~finished[rows]).nonzero().squeeze(1)
            here = stay.to(prompt.device)
            rows, state = rows[stay], select(state, here, here)
            generated = generated.index_select(0, stay.to(device))
        output = model.step(generated[:, -1:].to(prompt.device), state)


# --- text -------------------------------------------------------------------------------------------------------------


class PieceDecoder(Protocol):
    """A decoder that receives one token id at a time and holds back incomplete characters."""

    def push(self, token: int, /) -> str: ...

    def flush(self) -> str: ...


class StopCutter:
    """A filter that cuts streamed text at the first stop string."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(stop):
            raise UsageError(f"Stop strings must be a list of non-empty strings; got {stop!r}.")
        self._stop = tuple(stop)
        self._held = ""
        self.done = False

    def push(self, text: str) -> str:
        """Add text, and return the part that cannot belong to a stop string."""
        if self.done:
            return ""
        text = self._held + text
        starts = [(text.find(stop), len(stop)) for stop in self._stop]
        if complete := [(start + length, start) for start, length in starts if start >= 0]:
            self.done, self._held = True, ""
            return text[: min(complete)[1]]
        # Hold back the longest suffix that is a prefix of a stop string.
        longest = min(len(text), max(map(len, self._stop), default=1) - 1)
        ends = (size for size in range(longest, 0, -1) if any(s.startswith(text[-size:]) for s in self._stop))
        certain = len(text) - next(ends, 0)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return the text that was held back."""
        held, self._held, self.done = self._held, "", True
        return held


def text_streams(steps: Steps, decoders: Sequence[PieceDecoder], stop: Sequence[str] = ()) -> Pieces:
    """Yield the new text of every row, which is often "", after each token; a row leaves the batch at a stop string.

    The last list contains the text that was held back. `decoders` has one new decoder per row.
    """
    cutters = [StopCutter(stop) for _ in decoders]
    return _text_streams(steps, list(zip(decoders, cutters, strict=True)))


def _text_streams(steps: Steps, rows: list[tuple[PieceDecoder, StopCutter]]) -> Pieces:
    def flush(decoder: PieceDecoder, cutter: StopCutter) -> str:
        return "" if cutter.done else cutter.push(decoder.flush()) + cutter.flush()

    def push(decoder: PieceDecoder, cutter: StopCutter, token: int, finished: bool) -> str:
        if cutter.done:
            return ""
        return flush(decoder, cutter) if finished else cutter.push(decoder.push(token))

    try:
        step = next(steps, None)
        while step is not None:
            new = zip(rows, step.tokens.tolist(), step.finished.tolist(), strict=True)
            yield [push(*row, token, finished) for row, token, finished in new]
            if all(cutter.done for _, cutter in rows):
                return
            try:
                step = steps.send(torch.tensor([cutter.done for _, cutter in rows]))
            except StopIteration:
                step = None
        yield [flush(*row) for row in rows]
    finally:
        steps.close()


def text_stream(steps: Steps, decoder: PieceDecoder, stop: Sequence[str] = ()) -> Generator[str, None, None]:
    """Yield the text of a single row in non-empty pieces."""
    return (piece for (piece,) in text_streams(steps, [decoder], stop) if piece)
