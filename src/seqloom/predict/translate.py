"""Translators: lines in, as many lines out, in order."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from rich.console import Console, RenderableType
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import to_device
from seqloom.core.words import escape_controls, format_count, format_value
from seqloom.data.collate import ParallelBatches
from seqloom.data.examples import ParallelExample
from seqloom.data.files import read_parallel
from seqloom.data.parallel import ScoredText
from seqloom.decoding.beam import BeamConfig, beam_search, choose_batch_size, map_batches
from seqloom.decoding.rules import Hypothesis
from seqloom.evaluate.alignment import Word, group_words, hard_links, merge, to_pharaoh
from seqloom.evaluate.translation import TranslationReport
from seqloom.predict.base import (
    Prediction,
    Predictor,
    as_lines,
    check_source,
    pad_rows,
    predict_filled,
    predict_windows,
    similar_lengths,
)
from seqloom.predict.evaluation import EXAMPLES, Evaluation, EvaluationOptions, metric_lines
from seqloom.runs.trained import TranslatingModel

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import AlignmentView, HeadsView


Given = str | ScoredText  # a translation made elsewhere, with its score there, if it has one
TOKENS = 4096  # of the source decoded together, padding included; a line that has more goes alone
_ONE_LINE = {ord("\n"): " ", ord("\r"): " "}


@dataclass(frozen=True)
class Candidate:
    """One translation of a line."""

    text: str  # always one line
    score: float  # what it was ranked by: log_prob, made comparable between lengths
    log_prob: float
    tokens: list[str]
    finished: bool = True  # whether the model ended it; if not, it was cut at the longest allowed
    attention: Tensor | None = None  # (T, S) where the model looked for each token and for the end
    words: list[str] | None = None  # that the alignment counts; with `attention` only
    alignment: str | None = None  # 0-0 1-2: source word, target word, from 0; with `attention` only
    ids: list[int] = field(default_factory=list)  # of the tokens, END not among them

    def to_json(self) -> dict[str, object]:
        names = ["text", "score", "log_prob", "finished", *["words", "alignment"] * (self.alignment is not None)]
        return {name: getattr(self, name) for name in names}


BLANK = Candidate("", 0.0, 0.0, [])


@dataclass(frozen=True)
class Translation(Prediction):
    """A line and its translations, best first; `text` and `score` are those of the best."""

    source: str  # the line as it came
    candidates: list[Candidate]
    source_tokens: list[str]
    source_words: list[str] | None = None  # that the alignment counts; with `attention` only

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def score(self) -> float:
        return self.best.score

    @property
    def log_prob(self) -> float:
        return self.best.log_prob

    @property
    def attention(self) -> Tensor | None:
        return self.best.attention

    @property
    def alignment(self) -> str | None:
        return self.best.alignment

    def to_line(self) -> str:
        return self.text if self.alignment is None else f"{self.text}\t{self.alignment}"

    def to_json(self) -> dict[str, object]:
        best = self.best
        aligned = {"source_words": self.source_words, "words": best.words, "alignment": best.alignment}
        return {
            "source": self.source,
            "translation": best.text,
            "score": best.score,
            "log_prob": best.log_prob,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "unknown": list(self.unknown),
            **(aligned if best.alignment is not None else {}),
        }


@dataclass(frozen=True)
class ReadLine:
    """A line as a translator reads it."""

    raw: str
    text: str  # without white space at the ends
    ids: list[int]  # END included; empty for a blank line
    unknown: tuple[str, ...] = ()


class TranslationEvaluation(Evaluation):
    """The translations of a split, or of other sentences, beside their references."""

    uses = ("text", "search", "out")  # a text is refused with the options to give instead
    answers_name = "translations"
    report: TranslationReport

    def __init__(self, model: "TranslatorPredictor", options: EvaluationOptions) -> None:
        if options.text is not None:
            raise UsageError(f"{model.name} translates: give --source FILE and --reference FILE instead of --text.")
        self.model, self.split, self.options = model, options.split, options
        self.pairs = None if options.pairs is None else read_parallel(*options.pairs)
        self.report = self.report_on(model)
        self.notes = [f"{note}." for note in self.report.notes]

    @property
    def data(self) -> str:
        return super().data if self.options.pairs is None else " and ".join(map(str, self.options.pairs))

    def report_on(self, model: "TranslatorPredictor") -> TranslationReport:
        """Translate with a model, and compare with the references."""
        if self.pairs is None:
            return model.report(self.split, **self.options.search)
        return model.report_pairs(*self.pairs, **self.options.search)

    def to_json(self) -> dict[str, object]:
        report = self.report
        return {
            "run": self.model.name,
            "data": self.data,
            "pairs": len(report.lines),
            **report.metrics,
            "signatures": report.signatures,
            "decoding": report.decoding,
            "length_unit": report.unit,
            "by_length": report.by_length,
            "examples": report.examples(),
        }

    def answers(self) -> Iterator[str]:
        return (f"{text.translate(_ONE_LINE)}\n" for text in self.report.hypotheses)

    def lines(self, console: Console) -> Iterator[RenderableType]:
        """Yield metrics, BLEU by length, and translations that differ from their reference."""
        report, tags = self.report, [self.model.run.data.get(side) or "" for side in ("source", "target")]
        blank = sum(not (line.source.strip() or line.reference.strip()) for line in report.lines)
        without = f", {blank:,} of them blank" if blank else ""
        languages = f", {' to '.join(tags)}" if all(tags) else ""
        pairs = f"{format_count(len(report.lines), 'pair')}{without}{languages}"
        yield f"{self.model.name} on {self.data}: {pairs}; {report.decoding}"
        signatures = {name: f"   {signature}" for name, signature in report.signatures.items()}
        yield from metric_lines(report.metrics, signatures, loss="loss, nats per token", ordered=True)
        yield f"  BLEU by length of the source:\n    {report.unit:>12}  {'pairs':>7}  {'BLEU':>6}"
        for row in report.by_length:
            lengths = f"{row.low}" if row.low == row.high else f"{row.low} to {row.high}"
            yield f"    {lengths:>12}  {row.pairs:7,}  {row.bleu:6.2f}"
        wrong = [line for line in report.examples(EXAMPLES) if line.hypothesis.split() != line.reference.split()]
        if wrong:
            yield "  Some that differ from their reference (source, reference, translation):"
            texts = [map(escape_controls, (line.source, line.reference, line.hypothesis)) for line in wrong]
            yield "\n\n".join("\n".join(f"    {text}" for text in each) for each in texts)


class TranslatorPredictor(Predictor[Translation], TranslatingModel):
    """A trained translator."""

    what = "a translator"
    used_by = "`seqloom translate` uses it"
    evaluation_class: type[Evaluation] = TranslationEvaluation
    problems: ClassVar = {
        "cut before its end came (--max-length allows more): the translation of {lines}": lambda answer: (
            not answer.candidates[0].finished
        )
    }

    @property
    def longest_source(self) -> int | None:
        """The most tokens of a line it can read, END included; None for any number."""
        longest: int | None = self.recipe.model.longest_source
        return longest

    @property
    def longest_key(self) -> str:
        """The key of its recipe that says so."""
        return f"model.{self.recipe.model.longest_key}"

    @property
    def decode(self) -> BeamConfig:
        """The `decode` section of its recipe."""
        options: BeamConfig = self.recipe.decode
        return options

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 128, window: int = 1024
    ) -> Iterator[Translation]:
        return self.translate(lines, batch_size=batch_size, window=window)

    def translate(
        self,
        lines: str | Iterable[str],
        *,
        batch_size: int = 128,
        window: int = 1024,
        prefix: str = "",
        attention: bool = False,
        **options: Any,
    ) -> Iterator[Translation]:
        """Translate lines: exactly one translation for each, in order; a blank line stays blank.

        `window` lines are read at a time, sorted by length and decoded `batch_size` at a time; with
        window=1 every line is answered before the next is read. Each translation begins with
        `prefix`. With `attention` they say where the model attended, and which words belong
        together. `options` are those of `BeamConfig` (beam, n_best, …) and override the recipe's.
        """
        tokenizer = self.tokenizer.of_targets
        if unknown := tokenizer.unknown_pieces(prefix):
            raise DataError(f"The vocabulary of {self.name} cannot spell {format_value(unknown[0])} in the prefix.")
        return predict_windows(
            map(self.read_line, itertools.count(1), as_lines(lines)),
            self._translate,
            batch_size=batch_size,
            window=window,
            search=self.decode_options(**options),
            prefix=tokenizer.encode(prefix),
            attention=attention,
        )

    def read_line(self, number: int, line: str) -> ReadLine:
        """Return a line as tokens; one that is too long is refused."""
        text, tokenizer = line.strip(), self.tokenizer
        ids = tokenizer.encode(text) if text else []
        if not ids:
            return ReadLine(line, text, [])
        check_source(number, len(ids) + 1, self.longest_source, self.longest_key)
        return ReadLine(line, text, [*ids, tokenizer.end], tuple(tokenizer.unknown_pieces(text)))

    def _translate(
        self, lines: list[ReadLine], batch_size: int, search: BeamConfig, prefix: list[int], attention: bool
    ) -> Iterator[Translation]:
        """Translate lines of similar length together."""
        device, end, banned = self.device, self.tokenizer.end, self.tokenizer.banned  # which no reader wants to see

        def decode(batch: list[ReadLine]) -> list[list[Hypothesis]]:
            tokens, mask = pad_rows([line.ids for line in batch], device, end)
            return beam_search(
                self.model,
                source={"tokens": tokens, "mask": mask},
                prompt=torch.tensor([prefix] * len(batch), device=device) if prefix else None,
                options=search,
                end=end,
                banned=banned,
                attention=attention,
            )

        def translate(filled: list[ReadLine]) -> list[Translation]:
            most = choose_batch_size(len(lines), batch_size, device)
            groups = list(similar_lengths([len(line.ids) for line in filled], most, TOKENS))
            decoded = map_batches(lambda group: decode([filled[index] for index in group]), groups, device)
            rows: dict[int, list[Hypothesis]] = {}
            for group, hypotheses in zip(groups, decoded, strict=True):
                rows.update(zip(group, hypotheses, strict=True))
            return [self._translation(line, rows[index], attention) for index, line in enumerate(filled)]

        blank = replace(BLANK, words=[], alignment="") if attention else BLANK
        return predict_filled(
            lines, lambda line: line.ids, translate, lambda line: Translation(line.raw, [blank], [], blank.words)
        )

    def _translation(self, line: ReadLine, hypotheses: Sequence[Hypothesis], attention: bool) -> Translation:
        words = group_words(line.text, self.tokenizer.spans(line.text), end="") if attention else None
        return Translation(
            source=line.raw,
            candidates=[self._candidate(hypothesis, words) for hypothesis in hypotheses],
            source_tokens=[self.tokenizer.token(token) for token in line.ids],
            source_words=None if words is None else [word.text for word in words[:-1]],
            unknown=line.unknown,
        )

    def _candidate(self, hypothesis: Hypothesis, source: list[Word] | None) -> Candidate:
        text, tokens = self.tokenizer.decode(hypothesis.tokens), hypothesis.tokens
        candidate = Candidate(
            text=text.translate(_ONE_LINE),
            score=hypothesis.score,
            log_prob=hypothesis.log_prob,
            tokens=[self.tokenizer.token(token) for token in tokens],
            finished=hypothesis.finished,
            attention=hypothesis.attention,
            ids=tokens,
        )
        if source is None:
            return candidate
        if hypothesis.attention is None:
            raise UsageError(
                f"{self.name} has no attention to align words by. Translate without --alignment (in Python "
                "attention=True)."
            )
        target = group_words(text, self.tokenizer.decoded_spans(tokens))
        links = hard_links(merge(hypothesis.attention.numpy(), target, source)) if target else []
        inside = to_pharaoh(link for link in links if link[0] < len(source) - 1)  # not to the source's END
        return replace(candidate, words=[word.text for word in target], alignment=inside)

    def attention(self, source: str, target: str | None = None, **options: Any) -> "AlignmentView":
        """Return where it attends while it translates a line, or produces the given translation of it."""
        from seqloom.inspect.views.attention import alignment_view

        return alignment_view(self, source, target, **options)

    def heads(self, text: str, target: str | None = None, **options: Any) -> "HeadsView":
        """Return where every layer and head of a Transformer attends: encoder, decoder, and between the two."""
        from seqloom.inspect.views.attention import heads_view

        return heads_view(self, text, target, **options)

    def rescore(
        self, lists: Iterable[tuple[str, Sequence[Given]]], *, share: float = 1.0, length_penalty: float | None = None
    ) -> Iterator[Translation]:
        """Rank translations from elsewhere: of each line, texts, or texts with their scores there.

        score(y) = share · log p(y) / |y|^α + (1 − share) · its score there, α being the length
        penalty.
        """
        if not 0 <= share <= 1:
            raise UsageError(f"The share of the model in a score must be from 0 to 1, got {share:g}.")
        changes = {} if length_penalty is None else {"length_penalty": length_penalty}
        penalty = self.decode_options(**changes).length_penalty
        return (self._rescore(number, *one, share, penalty) for number, one in enumerate(lists, start=1))

    def _rescore(self, number: int, line: str, given: Sequence[Given], share: float, penalty: float) -> Translation:
        """Return a line with its translations, best first; of equally good ones, those that came first.

        |y| counts the tokens, END included, as in beam search. With share = 1 the model alone decides.
        """
        read, pairs = self.read_line(number, line), [(one, None) if isinstance(one, str) else one for one in given]
        if not read.ids or not pairs:  # a blank line stays blank, whatever others made of it
            return Translation(line, [BLANK], [])
        ids = [self.tokenizer.of_targets.encode(text) for text, _ in pairs]
        longest: int | None = self.model.longest_target
        most = max(map(len, ids)) + 1
        if longest is not None and most > longest:
            raise DataError(
                f"A candidate of line {number:,} has {most:,} tokens, its end included, and this model can say only "
                f"{longest:,}. Leave it out, or train with more positions."
            )
        candidates = []
        for (text, theirs), own, log_prob in zip(pairs, ids, self._log_probs(read, ids), strict=True):
            score = log_prob / (len(own) + 1) ** penalty
            if share < 1:
                if theirs is None:
                    raise DataError(
                        f"A candidate of line {number:,} has no score that a share could be left to: {text!r}."
                    )
                score = share * score + (1 - share) * theirs
            tokens = [self.tokenizer.token(token) for token in own]
            candidates.append(Candidate(text, score, log_prob, tokens, ids=own))
        candidates.sort(key=lambda candidate: -candidate.score)
        return Translation(line, candidates, [self.tokenizer.token(token) for token in read.ids], unknown=read.unknown)

    @torch.no_grad()
    def _log_probs(self, line: ReadLine, ids: Sequence[Sequence[int]]) -> list[float]:
        """Return Σ log p of each translation, its END included."""
        sums: dict[int, float] = {}
        for members, batch in ParallelBatches([line.ids[:-1]] * len(ids), ids, tokens=TOKENS).every():
            log_probs = self.model.target_log_probs(to_device(batch, self.device))
            sums.update(zip(members.tolist(), log_probs.double().sum(dim=1).tolist(), strict=True))
        return [sums[index] for index in range(len(ids))]

    def decode_options(self, **changes: Any) -> BeamConfig:
        """Return the options of its search, with these changes."""
        options = self.decode
        if "n_best" in changes:  # so many cannot be returned from fewer
            changes.setdefault("beam", max(options.beam, changes["n_best"]))
        elif "beam" in changes:
            changes["n_best"] = max(1, min(options.n_best, changes["beam"]))
        return change_search(options, changes)

    def report(self, split: str = "dev", **options: Any) -> TranslationReport:
        """Translate a split of its own data by its `decode` section, and report every metric.

        They are kept in the run for `compare`, unless `options` change how it translates.
        """
        decode = self.decode_options(**options)
        report: TranslationReport = self.own_task.report(self.model, split, decode)
        if decode == self.decode:
            self.save_metrics(split, report.to_dict())
        return report

    def report_pairs(self, sources: Sequence[str], references: Sequence[str], **options: Any) -> TranslationReport:
        """Return the same for any other sentences."""
        task = self.task_of_pairs(sources, references)
        report: TranslationReport = task.report(self.model, "other", self.decode_options(**options))
        return report

    def task_of_pairs(self, sources: Sequence[str], references: Sequence[str]) -> Any:
        """Return the task it was trained for on other sentences, its only split "other"."""
        pairs = [ParallelExample(source.strip(), own.strip()) for source, own in zip(sources, references, strict=True)]
        return self.task_class.of_pairs(self.recipe, self.run, pairs)


def change_search(options: BeamConfig, changes: Mapping[str, Any]) -> BeamConfig:
    """Return the options of a search with changes; wrong ones are refused."""
    try:
        return replace(options, **changes)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    except TypeError:
        known = ", ".join(vars(options))
        raise UsageError(f"A search has the options {known}; got {', '.join(changes)}.") from None
