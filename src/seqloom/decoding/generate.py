"""One token after another, from any `Steppable`, on any device, streaming.

    x_t ~ processed p(· | prompt, x_<t)        until END or `max_tokens`

A search over several hypotheses belongs in a file beside this one: it takes the same model, the same processors, and
reorders the same state through `select`.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.cancellation import check_cancelled
from seqloom.core.errors import DivergedError, UsageError
from seqloom.core.protocols import StepOutput, Steppable, select
from seqloom.core.tree import Tree
from seqloom.decoding.processors import Processor, SamplingConfig, process
from seqloom.decoding.samplers import Draws, choose, row_seeds


@dataclass(frozen=True)
class Step:
    """What one step added to every row, on the CPU. Rows that finished earlier show END with log-probability 0."""

    tokens: Tensor  # (B,) the chosen tokens, END included
    log_probs: Tensor  # (B,) of the chosen tokens under the model's own distribution, before any processing
    finished: Tensor  # (B,) True from the step at which a row chose END


Steps = Generator[Step, Tensor | None, None]  # `send(rows)`, a boolean (B,), ends more rows


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
    """Continue each row of `prompt` (B, T), yielding after every token.

    `mask` (B, T) marks the real tokens of prompts of unequal length. Where there is nothing to continue, the prompt is
    END, the context before the first token. `seed` is one number, or one for each row: a row draws from its own seed
    alone, so row i by itself with `seed=[row_seeds(s, B)[i]]` gives what it gives in the batch of seed s. Rows that
    finish leave the computation. A module must be in evaluation mode. Arguments are checked at the call, not at the
    first token.
    """
    if prompt.dim() != 2 or 0 in prompt.shape:
        shape = tuple(prompt.shape)
        raise UsageError(f"A prompt must be (rows, tokens), with at least one token; got {shape}. END alone will do.")
    if mask is not None and not (mask.shape == prompt.shape and bool(mask.any(1).all())):
        raise UsageError(
            f"The mask must have the prompt's shape {tuple(prompt.shape)} and leave each row a token; "
            f"got the shape {tuple(mask.shape)} with {mask.sum(-1).tolist()} tokens left."
        )
    if max_tokens < 1:
        raise UsageError(f"max_tokens must be at least 1; got {max_tokens}.")
    draws = Draws(row_seeds(seed, len(prompt)), _choosing_device(prompt.device))
    return _steps(model, prompt, mask, source, draws=draws, options=options, max_tokens=max_tokens, end=end)


@torch.no_grad()
def _steps(
    model: Steppable,
    prompt: Tensor,
    mask: Tensor | None,
    source: Tree,
    *,
    draws: Draws,
    options: SamplingConfig,
    max_tokens: int,
    end: int,
) -> Steps:
    processors = options.processors(end)
    rows = torch.arange(len(prompt))  # where the rows still in the computation stand in the batch
    finished = torch.zeros(len(prompt), dtype=torch.bool)
    generated = torch.empty(len(prompt), 0, dtype=torch.long, device=_choosing_device(prompt.device))
    output = model.step(prompt, model.start(source) if source is not None else model.start(rows=len(prompt)), mask)
    for t in range(max_tokens):
        check_cancelled()
        uniform = None if options.greedy else draws.at(t, rows.to(generated.device))
        chosen, log_probs = _next(output, generated, processors, uniform)
        generated = torch.cat([generated, chosen.unsqueeze(1)], dim=1)
        step = _whole_batch(chosen, log_probs, rows, finished, end)
        stopped = yield step
        finished = step.finished if stopped is None else step.finished | stopped.cpu()
        if t + 1 == max_tokens or finished.all():
            return
        state = output.state
        if finished[rows].any():
            stay = (~finished[rows]).nonzero().squeeze(1)
            here = stay.to(prompt.device)
            rows, state = rows[stay], select(state, here, here)
            generated = generated.index_select(0, stay.to(generated.device))
        output = model.step(generated[:, -1:].to(prompt.device), state)


def _choosing_device(device: torch.device) -> torch.device:
    """Where tokens are chosen: beside the model, except on MPS, which has no double precision."""
    return torch.device("cpu") if device.type == "mps" else device


def _next(
    output: StepOutput, generated: Tensor, processors: list[Processor], uniform: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The next token of each row (B,), without draws the most probable, and the model's log-probability of it."""
    own = output.log_probs.to(generated.device)
    log_probs = process(own, generated, processors)
    chosen = log_probs.argmax(-1) if uniform is None else choose(log_probs, uniform)
    return chosen, own.gather(1, chosen.unsqueeze(1)).squeeze(1)


def _whole_batch(chosen: Tensor, log_probs: Tensor, rows: Tensor, finished: Tensor, end: int) -> Step:
    """Put the rows still running back in their places; the one transfer from the device that streaming needs."""
    ids, scores = torch.stack([chosen.double(), log_probs.double()]).cpu()  # ids are exact up to 2^53
    if scores.isnan().any():
        raise DivergedError("The model's probabilities are not numbers: its weights are bad. Use another checkpoint.")
    tokens = torch.full((len(finished),), end).index_copy(0, rows, ids.long())
    spread = torch.zeros(len(finished), dtype=torch.float64).index_copy(0, rows, scores)
    return Step(tokens, spread, finished | (tokens == end))
