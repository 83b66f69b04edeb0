"""Batched beam search over any `Steppable`, with k hypotheses per source, on any device.

At each step, the k best continuations of a source that do not end with END remain in the beam. If any of the k best
continuations end with END, they are added to the finished hypotheses. `seqloom.decoding.rules` defines the score and
the rules; docs/explanations/decoding.md explains stopping, penalties, ties and length limits.
"""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from seqloom.core.errors import DivergedError, UsageError
from seqloom.core.operations import operation
from seqloom.core.progress import check_cancelled
from seqloom.core.protocols import BestOutput, BestSteppable, DecodeState, StepOutput, Steppable, longest_target, select
from seqloom.core.tokens import best_tokens
from seqloom.core.tree import Tree, leaves, select_rows
from seqloom.decoding.constraints import Constraints
from seqloom.decoding.rules import (
    NOT_NUMBERS,
    BeamConfig,
    BeamRules,
    Candidates,
    Finished,
    Hypothesis,
    Nodes,
    Recorder,
    SearchStep,
    best_candidates,
    collect,
    no_finished,
)

__all__ = ["BeamConfig", "Hypothesis"]  # re-exported

DEFAULT_MAX_LENGTH = 1000  # maximum of the default length limit, 2 × source tokens + 20
MIN_ATTENTION = 1e-10  # lower bound of the attention to a source position, which keeps the coverage penalty finite
Item = TypeVar("Item")
Result = TypeVar("Result")


@operation
def beam_search(
    model: Steppable,
    *,
    options: BeamConfig,
    end: int,
    source: Tree = None,
    prompt: Tensor | None = None,
    prompt_mask: Tensor | None = None,
    rows: int | None = None,
    banned: Collection[int] = (),
    constraints: Constraints | None = None,
    attention: bool = False,
    recorder: Recorder | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each source, best first; there are fewer if the model can generate only fewer.

    `source` is passed to `model.start`. Without a source, the search generates one sequence per row of `prompt`, or
    `rows` sequences. `prompt` (B, T) contains the forced first tokens of each hypothesis, without END; `prompt_mask`
    marks the real tokens of prompts of unequal length. `banned` tokens are never chosen unless they are forced.
    `constraints` contains terms that the hypotheses of each source must or must not contain. With `attention`,
    hypotheses include the attention weights, if the model has attention. A `recorder` receives every step. A model that
    is an `nn.Module` must be in evaluation mode.
    """
    if rows is None:
        rows = 1 if prompt is None else len(prompt)
    if (rows if source is None else len(next(leaves(source)))) == 0:
        return []
    with torch.no_grad():
        state = model.start(source) if source is not None else model.start(rows=rows)
        like = next(leaves(state.hidden))
        prefix, prefix_length = sort_prompt(prompt, prompt_mask, len(like), end)
        mask = source["mask"] if isinstance(source, dict) and "mask" in source else None
        limit, maximum = length_limits(options, mask, prefix_length), longest_target(model)
        if maximum is not None:
            limit, forced = limit.clamp(max=maximum), prefix.shape[1]
            if forced >= maximum:
                raise UsageError(
                    f"A prompt must have fewer tokens than the maximum of the model, {maximum}; got {forced}."
                )
        indices, dtype = torch.arange(len(like), device=like.device), sum_dtype(like.device)
        beams = Beams(  # start with one empty hypothesis per source, with log p = 0
            source=indices,
            limit=limit.to(like.device),
            prefix=prefix.to(like.device),
            prefix_length=prefix_length.to(like.device),
            mask=None if mask is None else mask.to(like.device),
            node=indices.unsqueeze(1),
            log_prob=torch.zeros(len(like), 1, dtype=dtype, device=like.device),
            attended=None,
            terms=None if constraints is None else constraints.start.unsqueeze(1),
            finished=no_finished(len(like), options.beam, dtype, like.device),
        )
        rules = BeamRules(options, end, tuple(sorted(set(banned) - {end})))
        return BeamSearch(model, rules, constraints, attention, recorder).run(state, beams)


@operation
def release_memory(model: Steppable) -> None:
    """Release the memory that accelerated searches keep for a model. The reference implementation keeps no memory."""


@dataclass(frozen=True)
class Beams:
    """The b active sources with w hypotheses each; a log-probability of −∞ marks an empty position.

    Without constraints, the best hypothesis comes first.
    """

    source: Tensor  # (b,) indices in the batch
    limit: Tensor  # (b,) maximum number of tokens
    prefix: Tensor  # (b, P) forced tokens
    prefix_length: Tensor  # (b,)
    mask: Tensor | None  # (b, S) the real source positions
    node: Tensor  # (b, w) the last token in the tree of hypotheses
    log_prob: Tensor  # (b, w)
    attended: Tensor | None  # (b, w, S) Σ_t a_tj; None without a coverage penalty
    terms: Tensor | None  # (b, w, C) states of the constraints
    finished: Finished  # (b, k) finished hypotheses, best first

    def keep(self, rows: Tensor) -> "Beams":
        """Select sources."""
        return Beams(**select_rows(vars(self), rows))


class BeamSearch:
    """A beam search that removes sources from the batch once they are done."""

    def __init__(
        self,
        model: Steppable,
        rules: BeamRules,
        constraints: Constraints | None,
        attention: bool,
        recorder: Recorder | None,
    ) -> None:
        self.model, self.rules, self.options, self.end = model, rules, rules.options, rules.end
        self.best_steppable = model if isinstance(model, BestSteppable) else None
        self.constraints, self.attention, self.recorder = constraints, attention, recorder
        self.nodes = Nodes()

    def run(self, state: DecodeState, beams: Beams) -> list[list[Hypothesis]]:
        """Search until all sources are done."""
        sources, forced = len(beams.source), int(beams.prefix_length.min())
        widths = None if beams.mask is None else beams.mask.sum(1).tolist()
        tokens = torch.full_like(beams.node, self.end)
        banned = tokens.new_tensor(self.rules.banned)
        self.nodes.grow(tokens.flatten(), beams.node.flatten(), beams.log_prob.flatten())
        results: list[dict[str, Tensor]] = []
        for length in itertools.count(1):  # the length of every hypothesis after the step
            check_cancelled()
            width = 1 if length <= forced else self.options.beam
            values, ids, output = self.step(tokens.view(-1, 1), state, beams, width, length, banned)
            attended = self.attend(output, beams)
            coverage = self.coverage(attended, beams.mask)
            best = self.candidates(values, ids, beams, width)
            chosen, finished = best.unended(self.end, width), beams.finished
            if best.ended(self.end, self.options.beam).any():
                finished = self.rules.add_finished(finished, best, beams.node, length, coverage)
            parents = beams.node.gather(1, chosen.slot)
            node = self.nodes.grow(chosen.token.flatten(), parents.flatten(), chosen.token_log_prob.flatten()).view_as(
                parents
            )
            if attended is not None:
                attended = attended.gather(1, chosen.slot.unsqueeze(2).expand(-1, -1, attended.shape[2]))
            terms = beams.terms
            if self.constraints is not None and terms is not None:
                terms = self.constraints.follow(terms, chosen.slot, chosen.token)
            after = replace(beams, node=node, log_prob=chosen.total, attended=attended, terms=terms, finished=finished)
            if self.recorder is not None:
                self.recorder.step(self.record(best, beams, after, coverage, length))
            rows = parent_rows(beams.node, chosen.slot)
            tokens, leaving = chosen.token, self.find_done(after, length)
            if not leaving.any():
                state = output.state
                if not beams.node.shape[1] == rows.shape[1] == 1:  # a single hypothesis needs no reordering
                    state = DecodeState(select_rows(state.hidden, rows.flatten()), state.memory)
                beams = after
                continue
            done, active = (part.nonzero().squeeze(1).to(rows.device) for part in (leaving, ~leaving))
            results.append(self.results(beams.keep(done), after.keep(done), length))
            if len(active) == 0:
                break
            tokens, beams = tokens.index_select(0, active), after.keep(active)
            state = select(output.state, rows.index_select(0, active).flatten(), active)
        return collect(self.nodes, results, sources, widths)

    def step(
        self, tokens: Tensor, state: DecodeState, beams: Beams, width: int, length: int, banned: Tensor
    ) -> tuple[Tensor, Tensor, StepOutput | BestOutput]:
        """Read tokens (b·w, 1); return log p and ids (b, w, K) of the best next tokens, and the model output.

        Each hypothesis contributes at most width + 1 of the width + w best continuations of a source. Therefore, the
        best tokens are selected in each row, and only these tokens are compared between hypotheses. Within the forced
        prefix of a source, the next token of the prefix is the only candidate.
        """
        (b, w), count = beams.node.shape, width + 1 + len(self.rules.banned)
        is_forced = length <= beams.prefix.shape[1]
        output: StepOutput | BestOutput
        if self.constraints is not None and beams.terms is not None:
            output = self.model.step(tokens, state)
            possible = self.constraints.forbid(output.log_probs, beams.terms)
            values, ids = self.constraints.propose(possible, *best_tokens(possible, count), beams.terms)
        elif self.best_steppable is not None and not is_forced:
            output = self.best_steppable.step_best(tokens, state, count)
            values, ids = output.values, output.ids
        else:
            output = self.model.step(tokens, state)
            values, ids = best_tokens(output.log_probs, count)
        values, ids = values.view(b, w, -1), ids.view(b, w, -1)
        values = self.rules.forbid(values.to(sum_dtype(values.device)), ids, length, banned)
        if is_forced and isinstance(output, StepOutput):
            token = beams.prefix[:, length - 1, None, None].expand(-1, w, 1)
            forced = torch.full_like(values, -math.inf)
            forced[:, :, :1] = output.log_probs.view(b, w, -1).gather(2, token).to(forced.dtype)
            inside = (beams.prefix_length >= length)[:, None, None]
            values, ids = torch.where(inside, forced, values), torch.where(inside, token, ids)
        return values, ids, output

    def candidates(self, values: Tensor, ids: Tensor, beams: Beams, width: int) -> Candidates:
        """Return the best continuations (b, C), `width` of which do not end with END."""
        count = width + beams.node.shape[1]  # at most w continuations end
        if self.constraints is None or beams.terms is None:
            return best_candidates(values, ids, beams.log_prob, count)
        best = best_candidates(values, ids, beams.log_prob, ids[0].numel())
        return self.constraints.allocate(best, beams.terms, count)

    def attend(self, output: StepOutput | BestOutput, beams: Beams) -> Tensor | None:
        """Store the requested attention weights (b·w, S).

        Return their sums over time (b, w, S), which the coverage penalty requires.
        """
        has_penalty = self.options.coverage_penalty > 0
        if output.attention is not None and not self.attention and not has_penalty:
            return None
        attention = output.mean_attention
        if attention is None and has_penalty:
            raise UsageError("coverage_penalty needs a model with attention. Set it to 0 for this model.")
        if attention is not None and self.attention:
            self.nodes.attend(beams.node.flatten(), attention)
        if attention is None or not has_penalty:
            return None
        attention = attention.view(*beams.node.shape, -1).to(beams.log_prob.dtype)
        return attention if beams.attended is None else beams.attended + attention

    def coverage(self, attended: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """Return β Σ_j log min(Σ_t a_tj, 1) (b, w), summed over the real source positions."""
        if attended is None:
            return None
        logs = attended.clamp(MIN_ATTENTION, 1.0).log()
        return self.options.coverage_penalty * (logs if mask is None else logs * mask.unsqueeze(1)).sum(2)

    def record(self, best: Candidates, beams: Beams, after: Beams, coverage: Tensor | None, length: int) -> SearchStep:
        """Build the step that a recorder receives."""
        score = self.rules.score(best.total, length, None if coverage is None else coverage.gather(1, best.slot))
        kept = after.node.masked_fill(after.log_prob.isneginf(), -1)
        node = torch.full_like(best.slot, -1).scatter(1, best.unended_positions(self.end, kept.shape[1]), kept)
        ended = (best.token == self.end) & (torch.arange(best.token.shape[1], device=score.device) < self.options.beam)
        parent = beams.node.gather(1, best.slot)
        return SearchStep(length, beams.source, parent, best.token, best.token_log_prob, best.total, score, node, ended)

    def find_done(self, beams: Beams, length: int) -> Tensor:
        """Return which sources (b,) are done, on the CPU, with a single device synchronization."""
        coverage = self.coverage(beams.attended, beams.mask)
        remaining = self.remaining(beams)
        is_done = self.rules.is_done(beams.finished, beams.log_prob, beams.limit, length, coverage, remaining)
        is_broken = beams.log_prob.isnan().any(1) | beams.finished["score"][:, 0].isnan()
        done, broken = torch.stack([is_done, is_broken]).cpu()
        if broken.any():
            raise DivergedError(NOT_NUMBERS)
        return done

    def results(self, before: Beams, after: Beams, length: int) -> dict[str, Tensor]:
        """Return the n best hypotheses of sources that are done."""
        cut, earlier = (
            self.rules.unfinished(
                beams.log_prob, beams.node, reached, self.coverage(beams.attended, beams.mask), self.remaining(beams)
            )
            for beams, reached in ((after, length), (before, length - 1))
        )
        return self.rules.results(after.finished, cut, earlier) | {"source": after.source}

    def remaining(self, beams: Beams) -> Tensor | None:
        """Return the number of tokens (b, w) until all required terms have occurred."""
        return None if self.constraints is None or beams.terms is None else self.constraints.remaining(beams.terms)


def parent_rows(before: Tensor, slot: Tensor) -> Tensor:
    """Return the row of the parent of each hypothesis (b, w) among the b·w rows before the step."""
    return torch.arange(len(before), device=slot.device).unsqueeze(1) * before.shape[1] + slot


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of sums of log-probabilities; MPS does not support float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def sort_prompt(prompt: Tensor | None, mask: Tensor | None, rows: int, end: int) -> tuple[Tensor, Tensor]:
    """Return the forced tokens (B, P), with real tokens first, and their number (B,) in each row, on the CPU."""
    if prompt is None:
        return torch.empty(rows, 0, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    if prompt.dim() != 2 or len(prompt) != rows:
        raise UsageError(f"A prompt must have shape ({rows}, tokens); got {tuple(prompt.shape)}.")
    real = torch.ones_like(prompt, dtype=torch.bool) if mask is None else mask
    if real.shape != prompt.shape:
        raise UsageError(f"The mask must have the shape of the prompt, {tuple(prompt.shape)}; got {tuple(real.shape)}.")
    prompt, real = prompt.cpu(), real.cpu()
    if bool((prompt.eq(end) & real).any()):
        raise UsageError("A prompt for beam search must not contain END. The search adds the initial END.")
    return prompt.gather(1, (~real).to(torch.int8).argsort(dim=1, stable=True)), real.sum(1)


def length_limits(options: BeamConfig, mask: Tensor | None, prefix_length: Tensor) -> Tensor:
    """Return the maximum number of tokens of each source (B,), on the CPU."""
    if options.max_length is None:
        if mask is None:
            raise UsageError("Beam search without a source needs max_length. Set it to a number of tokens.")
        default = (2 * mask.sum(1).cpu() + 20).clamp(max=DEFAULT_MAX_LENGTH)
        return default.clamp(min=options.min_length + 1) + prefix_length
    longest = int(prefix_length.max())
    if longest >= options.max_length:
        raise UsageError(
            f"max_length includes the prompt and must be above its {longest} tokens; got {options.max_length}."
        )
    return torch.full_like(prefix_length, options.max_length)


# --- batches of sources -----------------------------------------------------------------------------------------------


def map_batches(function: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """Return the results of a function for all items, in order; `seqloom.accel` decodes batches in threads."""
    return run_batches(function, items, device)


@operation
def run_batches(function: Callable[[Tree], Tree], items: Sequence[Tree], device: torch.device) -> list[Tree]:
    """Return the results of a function for all items, computed sequentially."""
    return [function(item) for item in items]


@operation
def choose_batch_size(sequences: int, largest: int, device: torch.device) -> int:
    """Return the number of sequences, at most `largest`, to decode in a batch."""
    return largest
