"""Beam search over any `Steppable`: many sources at once, k hypotheses each, on any device.

    score(y) = Σ_t log p(y_t | y_<t, x) / |y|^α + β Σ_j log min(Σ_t a_tj, 1)

|y| counts every token produced, END and a forced prefix included. At each step the k best continuations of a source
that do not end go on, and those among its k best continuations that do end are set aside. docs/decoding.md tells the
rest: stopping, penalties, ties, what happens at the longest length.
"""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.core.cancellation import check_cancelled
from seqloom.core.candidates import best_tokens
from seqloom.core.errors import DivergedError, UsageError
from seqloom.core.protocols import BestOutput, DecodeState, FixedSteppable, StepOutput, Steppable, select
from seqloom.core.tree import Tree, leaves, select_rows
from seqloom.decoding.candidates import Candidates, best_candidates, first_there, with_new
from seqloom.decoding.captured import BROKEN, captured_search
from seqloom.decoding.choosing import Rule
from seqloom.decoding.hypotheses import Hypothesis, Nodes, collect
from seqloom.decoding.recording import Recorder, SearchStep

__all__ = ["BeamConfig", "Hypothesis", "beam_search"]

LONGEST = 1000  # tokens where nothing is said: 2 × source + 20 would have no end for a book
MOST_PENALTY = 10  # beyond it the longest always wins, and length^α soon is no number
MANY = 8  # sources whose steps are recorded on a GPU
UNSEEN = 1e-10  # what a source position nobody looked at counts as, so that the coverage penalty stays finite


@config
class BeamConfig:
    beam: int = 5  # hypotheses kept for each source; 1 is greedy search
    length_penalty: float = 1.0  # α: Σ log p is divided by length^α; 0 compares sums, which favours short outputs
    coverage_penalty: float = 0.0  # β: how much it costs to leave parts of the source unattended
    n_best: int = 1  # how many hypotheses are returned; at most beam
    min_length: int = 0  # the end may not come before this many tokens
    max_length: int | None = None  # most tokens, the end included; None is 2 × source tokens + 20, at most 1000
    stopping: Literal["usual", "exact"] = "usual"  # once what ended is better than what goes on is now, or can ever be

    def problems(self) -> Iterator[str]:
        for name, least in (("beam", 1), ("n_best", 1), ("min_length", 0)):
            if getattr(self, name) < least:
                yield f"{name} must be at least {least}, not {getattr(self, name)}"
        if self.n_best > self.beam >= 1:
            yield f"n_best must be at most beam, and {self.n_best} is more than {self.beam}"
        for name in ("length_penalty", "coverage_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                yield f"{name} must be 0 (none) or a positive number, not {getattr(self, name)}"
        if MOST_PENALTY < self.length_penalty < math.inf:
            yield f"length_penalty must be at most {MOST_PENALTY}, not {self.length_penalty}"
        if self.stopping not in ("usual", "exact"):
            yield f"stopping must be usual or exact, not {self.stopping!r}"
        if self.max_length is not None and self.max_length < max(self.min_length, 1):
            shortest = f"min_length, {self.min_length}" if self.min_length else "1"
            yield f"max_length must be at least {shortest}, not {self.max_length}"


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
    attention: bool = False,
    recorder: Recorder | None = None,
    capture: bool = True,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each source, best first; fewer where the model allows fewer.

    `source` is what the model's `start` takes; without one, as many sequences are searched as `prompt` has rows, or
    `rows` of them. `prompt` (B, T) holds the tokens each hypothesis must begin with, without END; `prompt_mask` marks
    the real ones of prompts of unequal length. `banned` tokens are never chosen, unless forced. `attention` asks for
    where the model looked, if it tells. A `recorder` is shown every step. On a GPU the steps of many sources are
    recorded and repeated, where that is possible, unless `capture` is off. A module must be in evaluation mode.
    """
    if rows is None:
        rows = 1 if prompt is None else len(prompt)
    if (rows if source is None else len(next(leaves(source)))) == 0:
        return []
    with torch.no_grad():
        if capture and prompt is None and recorder is None and not attention and _many_on_gpu(source):
            found = fixed_search(model, source, options, end, banned)
            if found is not None:
                return found
        state = model.start(source) if source is not None else model.start(rows=rows)
        beams = _begin(next(leaves(state.carry)), source, prompt, prompt_mask, options, end)
        beams = _within(beams, getattr(model, "longest_target", None))
        return _Search(model, options, end, banned, attention, recorder).run(state, beams)


def fixed_search(
    model: Steppable, source: Tree, options: BeamConfig, end: int, banned: Collection[int] = (), record: bool = True
) -> list[list[Hypothesis]] | None:
    """The same by steps that all have one shape, for a GPU to repeat; None where model or options do not allow it."""
    apt = isinstance(model, FixedSteppable) and isinstance(source, dict) and source.get("mask") is not None
    if not apt or options.coverage_penalty > 0 or not bool(source["mask"].any(dim=1).all()):
        return None
    assert isinstance(model, FixedSteppable)
    limit = _limits(options, source["mask"], torch.zeros(len(source["mask"]), dtype=torch.long))
    if (longest := getattr(model, "longest_target", None)) is not None:
        limit = limit.clamp(max=longest)
    rule = Rule(
        beam=options.beam,
        n_best=options.n_best,
        length_penalty=options.length_penalty,
        min_length=options.min_length,
        exact=options.stopping == "exact",
        end=end,
        banned=tuple(sorted(set(banned) - {end})),
    )
    return captured_search(model, source, limit, rule, record)


@dataclass(frozen=True)
class _Beams:
    """The b sources still searched, w hypotheses each, best first; a log-probability of −∞ is an empty place."""

    source: Tensor  # (b,) their places in the batch
    limit: Tensor  # (b,) most tokens
    prefix: Tensor  # (b, P) forced tokens
    prefix_length: Tensor  # (b,)
    mask: Tensor | None  # (b, S) the real source positions, where the source says
    node: Tensor  # (b, w) the last token, in the tree of all hypotheses
    log_prob: Tensor  # (b, w)
    coverage: Tensor | None  # (b, w, S) Σ_t a_tj, where it is penalised
    finished: dict[str, Tensor]  # (b, k) what `collect` wants to know of those that ended, best first

    def keep(self, rows: Tensor) -> "_Beams":
        return _Beams(**select_rows(vars(self), rows))


class _Search:
    def __init__(
        self,
        model: Steppable,
        options: BeamConfig,
        end: int,
        banned: Collection[int],
        attention: bool,
        recorder: Recorder | None = None,
    ):
        self.model, self.options, self.end, self.attention, self.recorder = model, options, end, attention, recorder
        self.banned = sorted(set(banned) - {end})
        self.step_best = getattr(model, "step_best", None)
        self.nodes = Nodes()

    def run(self, state: DecodeState, beams: _Beams) -> list[list[Hypothesis]]:
        sources, forced = len(beams.source), int(beams.prefix_length.min())
        widths = None if beams.mask is None else beams.mask.sum(1).tolist()
        tokens = torch.full_like(beams.node, self.end)
        self.nodes.grow(tokens.flatten(), beams.node.flatten(), beams.log_prob.flatten())
        found: list[dict[str, Tensor]] = []
        for length in itertools.count(1):  # of every hypothesis, after the step
            check_cancelled()
            width = 1 if length <= forced else self.options.beam
            values, ids, output = self._step(tokens.view(-1, 1), state, beams, width, length)
            coverage = self._look(output, beams)
            best = best_candidates(values, ids, beams.log_prob, width + beams.node.shape[1])  # at most w of them end
            chosen = best.going_on(self.end, width)
            after = self._extend(beams, chosen, coverage, self._set_aside(best, beams, coverage, length))
            if self.recorder is not None:
                self.recorder.step(self._told(best, beams, after, coverage, length))
            rows, tokens, leaving = _rows(beams.node, chosen.slot), chosen.token, self._leaving(after, length)
            if not leaving.any():
                state = _reordered(output.state, rows, beams.node)
                beams = after
                continue
            gone, stay = (part.nonzero().squeeze(1).to(rows.device) for part in (leaving, ~leaving))
            found.append(self._results(beams.keep(gone), after.keep(gone), length))
            if len(stay) == 0:
                break
            tokens, beams = tokens.index_select(0, stay), after.keep(stay)
            state = select(output.state, rows.index_select(0, stay).flatten(), stay)
        return collect(self.nodes, found, sources, widths)

    def _step(
        self, tokens: Tensor, state: DecodeState, beams: _Beams, width: int, length: int
    ) -> tuple[Tensor, Tensor, StepOutput | BestOutput]:
        """Read tokens (b·w, 1): log p and ids (b, w, K) of the best to follow, and what else the model says.

        Of width + w continuations of a source no hypothesis gives more than width + 1, so the vocabulary is searched
        row by row, and only the few best tokens of each row are compared with those of others.
        """
        (b, w), count = beams.node.shape, width + 1 + len(self.banned)
        if self.step_best is not None and length > beams.prefix.shape[1]:
            best = self.step_best(tokens, state, count)
            return *self._permitted(best.values.view(b, w, -1), best.ids.view(b, w, -1), length), best
        output = self.model.step(tokens, state)
        values, ids = (part.view(b, w, -1) for part in best_tokens(output.log_probs, count))
        values, ids = self._permitted(values, ids, length)
        if length <= beams.prefix.shape[1]:
            values, ids = _forced(output.log_probs.view(b, w, -1), values, ids, beams, length)
        return values, ids, output

    def _permitted(self, values: Tensor, ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Candidates, with what may not be said now made impossible."""
        values = values.to(precise_on(values.device))
        if self.banned:
            values = values.masked_fill(torch.isin(ids, ids.new_tensor(self.banned)), -math.inf)
        if length <= self.options.min_length:
            values = values.masked_fill(ids == self.end, -math.inf)
        return values, ids

    def _look(self, output: StepOutput | BestOutput, beams: _Beams) -> Tensor | None:
        """Keep the attention (b·w, S) where it is wanted, and add it to the coverage (b, w, S)."""
        if output.attention is not None and not self.attention and self.options.coverage_penalty == 0:
            return None
        attention = output.looked
        if attention is None:
            if self.options.coverage_penalty > 0:
                raise UsageError("coverage_penalty needs a model with attention, which this one has not; set it to 0.")
            return None
        if self.attention:
            self.nodes.attend(beams.node.flatten(), attention)
        if self.options.coverage_penalty == 0:
            return None
        attention = attention.view(*beams.node.shape, -1).to(beams.log_prob.dtype)
        return attention if beams.coverage is None else beams.coverage + attention

    def _set_aside(self, best: Candidates, beams: _Beams, coverage: Tensor | None, length: int) -> dict[str, Tensor]:
        """The best k that ended so far, now with those that are among the k best continuations."""
        k = self.options.beam
        ended = best.ended(self.end, k)
        if not ended.any():
            return beams.finished
        slot = best.slot[:, :k]
        score = self._score(best.total[:, :k], length)
        if coverage is not None:
            score = score + self._coverage(coverage, beams.mask).gather(1, slot)
        new = {
            "score": score.masked_fill(~ended, -math.inf),
            "log_prob": best.total[:, :k],
            "end": best.own[:, :k],
            "node": beams.node.gather(1, slot),
            "length": torch.full_like(slot, length - 1),
            "finished": ended,
        }
        return with_new(beams.finished, new)

    def _told(self, best: Candidates, beams: _Beams, after: _Beams, coverage: Tensor | None, length: int) -> SearchStep:
        """What a recorder is shown of a step."""
        score = self._score(best.total, length)
        if coverage is not None:
            score = score + self._coverage(coverage, beams.mask).gather(1, best.slot)
        going = after.node.masked_fill(after.log_prob.isneginf(), -1)
        node = torch.full_like(best.slot, -1).scatter(1, best.places_going_on(self.end, going.shape[1]), going)
        ended = (best.token == self.end) & (torch.arange(best.token.shape[1], device=score.device) < self.options.beam)
        parent = beams.node.gather(1, best.slot)
        return SearchStep(length, beams.source, parent, best.token, best.own, best.total, score, node, ended)

    def _score(self, log_prob: Tensor, length: int) -> Tensor:
        return log_prob / length**self.options.length_penalty

    def _scored(self, beams: _Beams, length: int) -> Tensor:
        """The scores (b, w) of hypotheses that have not ended."""
        score = self._score(beams.log_prob, length)
        return score if beams.coverage is None else score + self._coverage(beams.coverage, beams.mask)

    def _coverage(self, coverage: Tensor, mask: Tensor | None) -> Tensor:
        """β Σ_j log min(Σ_t a_tj, 1) over the real source positions, (b, w)."""
        logs = coverage.clamp(UNSEEN, 1.0).log()
        return self.options.coverage_penalty * (logs if mask is None else logs * mask.unsqueeze(1)).sum(2)

    def _extend(
        self, beams: _Beams, chosen: Candidates, coverage: Tensor | None, finished: dict[str, Tensor]
    ) -> _Beams:
        parents = beams.node.gather(1, chosen.slot)
        node = self.nodes.grow(chosen.token.flatten(), parents.flatten(), chosen.own.flatten()).view_as(parents)
        if coverage is not None:
            coverage = coverage.gather(1, chosen.slot.unsqueeze(2).expand(-1, -1, coverage.shape[2]))
        return replace(beams, node=node, log_prob=chosen.total, coverage=coverage, finished=finished)

    def _leaving(self, beams: _Beams, length: int) -> Tensor:
        """Which sources (b,) are done, on the CPU: one wait for the device."""
        best, scores = beams.log_prob[:, 0], beams.finished["score"]
        if self.options.stopping == "usual":  # what goes on is taken for as good as it is now …
            reach = self._scored(beams, length).max(dim=1).values
        else:  # … or would be, did it keep its log p and grow to the limit; coverage can only cost
            reach = best / beams.limit.to(best.dtype) ** self.options.length_penalty
        stop = (scores[:, self.options.n_best - 1] >= reach) | best.isneginf() | (beams.limit <= length)
        done, broken = torch.stack([stop, best.isnan() | scores[:, 0].isnan()]).cpu()
        if broken.any():
            raise DivergedError(BROKEN)
        return done

    def _results(self, before: _Beams, after: _Beams, length: int) -> dict[str, Tensor]:
        """The n best of sources that leave: first what ended; then what is cut short; failing that, what got stuck."""
        stuck = after.log_prob[:, :1].isneginf() & after.finished["score"][:, :1].isneginf()
        parts = [after.finished, self._cut(after, length), self._cut(before, length - 1)]
        parts[2]["score"] = parts[2]["score"].masked_fill(~stuck, -math.inf)
        return first_there(parts, self.options.n_best) | {"source": after.source}

    def _cut(self, beams: _Beams, length: int) -> dict[str, Tensor]:
        """Hypotheses without an end, best first."""
        score, order = self._scored(beams, max(length, 1)).sort(dim=1, descending=True, stable=True)
        return {
            "score": score,
            "log_prob": beams.log_prob.gather(1, order),
            "end": torch.zeros_like(score),
            "node": beams.node.gather(1, order),
            "length": torch.full_like(beams.node, length),
            "finished": torch.zeros_like(score, dtype=torch.bool),
        }


def _forced(log_probs: Tensor, values: Tensor, ids: Tensor, beams: _Beams, length: int) -> tuple[Tensor, Tensor]:
    """Candidates (b, w, K) where sources still within their prefix have one alone: its next token."""
    token = beams.prefix[:, length - 1, None, None].expand(-1, values.shape[1], 1)
    alone = torch.full_like(values, -math.inf)
    alone[:, :, :1] = log_probs.gather(2, token).to(alone.dtype)
    inside = (beams.prefix_length >= length)[:, None, None]
    return torch.where(inside, alone, values), torch.where(inside, token, ids)


def _rows(before: Tensor, slot: Tensor) -> Tensor:
    """Where each hypothesis (b, w) stood among the b·w rows before the step."""
    return torch.arange(len(before), device=slot.device).unsqueeze(1) * before.shape[1] + slot


def _reordered(state: DecodeState, rows: Tensor, before: Tensor) -> DecodeState:
    """All sources stay, so their memory is left where it is; one hypothesis each that stays one has nothing to move."""
    if before.shape[1] == rows.shape[1] == 1:
        return state
    return DecodeState(select_rows(state.carry, rows.flatten()), state.memory)


def _many_on_gpu(source: Tree) -> bool:
    """To record steps takes as long as to search for a few sources."""
    some = None if source is None else next(leaves(source))
    return some is not None and some.is_cuda and len(some) >= MANY


def precise_on(device: torch.device) -> torch.dtype:
    """What sums of log-probabilities are kept in: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def _begin(
    like: Tensor, source: Tree, prompt: Tensor | None, prompt_mask: Tensor | None, options: BeamConfig, end: int
) -> _Beams:
    """One hypothesis for each source: nothing, with log p = 0."""
    rows, device = len(like), like.device
    everyone = torch.arange(rows, device=device)
    prefix, prefix_length = _checked_prompt(prompt, prompt_mask, rows, end)
    mask = source["mask"] if isinstance(source, dict) and "mask" in source else None
    precise = precise_on(device)
    empty: dict[str, Any] = dict.fromkeys(("score", "log_prob", "end"), (-math.inf, precise))
    empty |= {"node": (0, torch.long), "length": (0, torch.long), "finished": (False, torch.bool)}
    return _Beams(
        source=everyone,
        limit=_limits(options, mask, prefix_length).to(device),
        prefix=prefix.to(device),
        prefix_length=prefix_length.to(device),
        mask=None if mask is None else mask.to(device),
        node=everyone.unsqueeze(1),
        log_prob=torch.zeros(rows, 1, dtype=precise, device=device),
        coverage=None,
        finished={
            key: torch.full((rows, options.beam), value, dtype=dtype, device=device)
            for key, (value, dtype) in empty.items()
        },
    )


def _within(beams: _Beams, longest: int | None) -> _Beams:
    """No hypothesis may grow longer than a model can read."""
    if longest is None:
        return beams
    if beams.prefix.shape[1] >= longest:
        raise UsageError(
            f"A prompt must be below the {longest} tokens this model can say; got {beams.prefix.shape[1]}."
        )
    return replace(beams, limit=beams.limit.clamp(max=longest))


def _checked_prompt(prompt: Tensor | None, mask: Tensor | None, rows: int, end: int) -> tuple[Tensor, Tensor]:
    """Forced tokens (B, P), the real ones first, and how many each row has (B,), on the CPU."""
    if prompt is None:
        return torch.empty(rows, 0, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    if prompt.dim() != 2 or len(prompt) != rows:
        raise UsageError(f"A prompt must be (rows, tokens), with {rows} rows; got {tuple(prompt.shape)}.")
    real = torch.ones_like(prompt, dtype=torch.bool) if mask is None else mask
    if real.shape != prompt.shape:
        raise UsageError(f"The mask must have the prompt's shape {tuple(prompt.shape)}; got {tuple(real.shape)}.")
    prompt, real = prompt.cpu(), real.cpu()
    if bool((prompt.eq(end) & real).any()):
        raise UsageError(
            "A prompt for beam search must not hold END: nothing comes after it. The search adds the first."
        )
    return prompt.gather(1, (~real).to(torch.int8).argsort(dim=1, stable=True)), real.sum(1)


def _limits(options: BeamConfig, mask: Tensor | None, prefix_length: Tensor) -> Tensor:
    """The most tokens of each source (B,), on the CPU."""
    if options.max_length is None:
        if mask is None:
            raise UsageError(
                "Beam search without a source needs max_length: there is nothing to tell how long is enough."
            )
        usual = (2 * mask.sum(1).cpu() + 20).clamp(max=LONGEST)
        return usual.clamp(min=options.min_length + 1) + prefix_length
    longest = int(prefix_length.max())
    if longest >= options.max_length:
        raise UsageError(
            f"max_length must be above the {longest} tokens of the prompt, which count; got {options.max_length}."
        )
    return torch.full_like(prefix_length, options.max_length)
