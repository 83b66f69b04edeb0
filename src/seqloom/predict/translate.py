"""The predictor for translators."""

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
    batch_by_length,
    check_source_length,
    pad_rows,
    predict_filled,
    predict_windows,
)
from seqloom.predict.evaluation import EXAMPLES, Evaluation, EvaluationOptions, metric_lines
from seqloom.runs.trained import TranslatingModel

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import AlignmentView, HeadsView


GivenTranslation = str | ScoredText  # candidate of an n-best list, and its score if given
TOKENS = 4096  # tokens of a batch of sources, padding included; a longer line is a batch of its own
_ONE_LINE = {ord("\n"): " ", ord("\r"): " "}


@dataclass(frozen=True)
class Candidate:
    """One translation of a line."""

    text: str  # always one line
    score: float  # log_prob with length penalty, for ranking
    log_prob: float
    tokens: list[str]
    finished: bool = True  # whether END was predicted before the maximum length
    attention: Tensor | None = None  # (T, S), for each token and END
    words: list[str] | None = None  # of the alignment; only with `attention`
    alignment: str | None = None  # 0-0 1-2: source and target word, counted from 0; only with `attention`
    ids: list[int] = field(default_factory=list)  # ids of the tokens, without END

    def to_json(self) -> dict[str, object]:
        names = ["text", "score", "log_prob", "finished", *["words", "alignment"] * (self.alignment is not None)]
        return {name: getattr(self, name) for name in names}


BLANK = Candidate("", 0.0, 0.0, [])


@dataclass(frozen=True)
class Translation(Prediction):
    """A line and its translations, best first; `text` and `score` are those of the best."""

    source: str  # the unchanged line
    candidates: list[Candidate]
    source_tokens: list[str]
    source_words: list[str] | None = None  # of the alignment; only with `attention`

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
    """The input of a translator."""

    raw: str
    text: str  # stripped
    ids: list[int]  # END included; empty for a blank line
    unknown: tuple[str, ...] = ()


class TranslationEvaluation(Evaluation):
    """The translations of a split or of other sentences, compared with their references."""

    option_groups = ("text", "search", "out")  # --text raises an error that names the right options
    answers_name = "translations"
    report: TranslationReport

    def __init__(self, model: "TranslatorPredictor", options: EvaluationOptions) -> None:
        if options.text is not None:
            raise UsageError(f"{model.name} is a translator: use --source FILE and --reference FILE instead of --text.")
        self.model, self.split, self.options = model, options.split, options
        self.pairs = None if options.pairs is None else read_parallel(*options.pairs)
        self.report = self.report_on(model)
        self.notes = [f"{note}." for note in self.report.notes]

    @property
    def data(self) -> str:
        return super().data if self.options.pairs is None else " and ".join(map(str, self.options.pairs))

    def report_on(self, model: "TranslatorPredictor") -> TranslationReport:
        """Evaluate the translations of a model."""
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
            yield "  Translations that differ from their reference (source, reference, translation):"
            texts = [map(escape_controls, (line.source, line.reference, line.hypothesis)) for line in wrong]
            yield "\n\n".join("\n".join(f"    {text}" for text in each) for each in texts)


class TranslatorPredictor(Predictor[Translation], TranslatingModel):
    """A trained translator."""

    description = "a translator"
    usage = "use `seqloom translate`"
    evaluation_class: type[Evaluation] = TranslationEvaluation
    notes: ClassVar = {
        "{lines}: the translation was truncated (--max-length)": lambda answer: not answer.candidates[0].finished
    }

    @property
    def longest_source(self) -> int | None:
        """The maximum number of source tokens, END included, or None if unlimited."""
        max_length: int | None = self.recipe.model.longest_source
        return max_length

    @property
    def longest_key(self) -> str:
        """The key of the recipe that sets the maximum source length."""
        return f"model.{self.recipe.model.longest_key}"

    @property
    def decode(self) -> BeamConfig:
        """The section `decode` of the recipe."""
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
        """Translate lines, and yield one translation per line, in order. A blank line stays blank.

        `window` and `batch_size` are those of `predict`. Each translation starts with `prefix`. With `attention`,
        translations have attention weights and word alignments. `options` are those of `BeamConfig` (beam, n_best, …)
        and override the recipe.
        """
        tokenizer = self.tokenizer.of_targets
        if unknown := tokenizer.unknown_pieces(prefix):
            raise DataError(
                f"The prefix contains {format_value(unknown[0])}, which is not in the vocabulary of {self.name}."
            )
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
        """Tokenize a line and check its length."""
        text, tokenizer = line.strip(), self.tokenizer
        ids = tokenizer.encode(text) if text else []
        if not ids:
            return ReadLine(line, text, [])
        check_source_length(number, len(ids) + 1, self.longest_source, self.longest_key)
        return ReadLine(line, text, [*ids, tokenizer.end], tuple(tokenizer.unknown_pieces(text)))

    def _translate(
        self, lines: list[ReadLine], batch_size: int, search: BeamConfig, prefix: list[int], attention: bool
    ) -> Iterator[Translation]:
        device, end, banned = self.device, self.tokenizer.end, self.tokenizer.banned

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
            groups = list(batch_by_length([len(line.ids) for line in filled], most, TOKENS))
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
                f"{self.name} has no attention weights. Translate without --alignment (in Python attention=True)."
            )
        target = group_words(text, self.tokenizer.decoded_spans(tokens))
        links = hard_links(merge(hypothesis.attention.numpy(), target, source)) if target else []
        inside = to_pharaoh(link for link in links if link[0] < len(source) - 1)  # without END of the source
        return replace(candidate, words=[word.text for word in target], alignment=inside)

    def attention(self, source: str, target: str | None = None, **options: Any) -> "AlignmentView":
        """Return the attention weights for the translation of a line, or for a given target."""
        from seqloom.inspect.views.attention import alignment_view

        return alignment_view(self, source, target, **options)

    def heads(self, text: str, target: str | None = None, **options: Any) -> "HeadsView":
        """Return the weights of all heads of a Transformer: encoder and decoder self-attention and cross-attention."""
        from seqloom.inspect.views.attention import heads_view

        return heads_view(self, text, target, **options)

    def rescore(
        self,
        lists: Iterable[tuple[str, Sequence[GivenTranslation]]],
        *,
        weight: float = 1.0,
        length_penalty: float | None = None,
    ) -> Iterator[Translation]:
        """Rescore n-best lists, which are pairs of a line and its translations, with or without scores.

        score(y) = weight · log p(y) / |y|^α + (1 − weight) · given score of y, with the length penalty α.
        """
        if not 0 <= weight <= 1:
            raise UsageError(f"weight must be from 0 to 1, got {weight:g}.")
        changes = {} if length_penalty is None else {"length_penalty": length_penalty}
        penalty = self.decode_options(**changes).length_penalty
        return (self._rescore(number, *pair, weight, penalty) for number, pair in enumerate(lists, start=1))

    def _rescore(
        self, number: int, line: str, given: Sequence[GivenTranslation], weight: float, penalty: float
    ) -> Translation:
        """Return a line with its translations, best first; ties are in input order. |y| includes END."""
        read = self.read_line(number, line)
        pairs = [(text, None) if isinstance(text, str) else text for text in given]
        if not read.ids or not pairs:  # a blank line stays blank
            return Translation(line, [BLANK], [])
        ids = [self.tokenizer.of_targets.encode(text) for text, _ in pairs]
        max_length: int | None = self.model.longest_target
        longest = max(map(len, ids)) + 1
        if max_length is not None and longest > max_length:
            raise DataError(
                f"A candidate of line {number:,} has {longest:,} tokens including END, but the model has only "
                f"{max_length:,} positions. Remove it, or train with more positions."
            )
        candidates = []
        for (text, given_score), target, log_prob in zip(pairs, ids, self._log_probs(read, ids), strict=True):
            score = log_prob / (len(target) + 1) ** penalty
            if weight < 1:
                if given_score is None:
                    raise DataError(
                        f"With a weight below 1, every candidate needs a score; line {number:,} has none for {text!r}."
                    )
                score = weight * score + (1 - weight) * given_score
            tokens = [self.tokenizer.token(token) for token in target]
            candidates.append(Candidate(text, score, log_prob, tokens, ids=target))
        candidates.sort(key=lambda candidate: -candidate.score)
        return Translation(line, candidates, [self.tokenizer.token(token) for token in read.ids], unknown=read.unknown)

    @torch.no_grad()
    def _log_probs(self, line: ReadLine, ids: Sequence[Sequence[int]]) -> list[float]:
        """Return Σ log p of each translation, END included."""
        sums: dict[int, float] = {}
        for members, batch in ParallelBatches([line.ids[:-1]] * len(ids), ids, tokens=TOKENS).all_batches():
            log_probs = self.model.target_log_probs(to_device(batch, self.device))
            sums.update(zip(members.tolist(), log_probs.double().sum(dim=1).tolist(), strict=True))
        return [sums[index] for index in range(len(ids))]

    def decode_options(self, **changes: Any) -> BeamConfig:
        """Return the search options of the recipe, with changes."""
        options = self.decode
        if "n_best" in changes:  # the beam must have at least n_best hypotheses
            changes.setdefault("beam", max(options.beam, changes["n_best"]))
        elif "beam" in changes:
            changes["n_best"] = max(1, min(options.n_best, changes["beam"]))
        return change_search(options, changes)

    def report(self, split: str = "dev", **options: Any) -> TranslationReport:
        """Translate a split of the data of the run, and compute all metrics.

        They are stored in the run for `compare`, unless `options` change the search.
        """
        decode = self.decode_options(**options)
        report: TranslationReport = self.training_task.report(self.model, split, decode)
        if decode == self.decode:
            self.save_metrics(split, report.to_dict())
        return report

    def report_pairs(self, sources: Sequence[str], references: Sequence[str], **options: Any) -> TranslationReport:
        """Translate other sentences, and compute all metrics."""
        task = self.task_of_pairs(sources, references)
        report: TranslationReport = task.report(self.model, "other", self.decode_options(**options))
        return report

    def task_of_pairs(self, sources: Sequence[str], references: Sequence[str]) -> Any:
        """Return the task on other sentences as the split "other"."""
        rows = zip(sources, references, strict=True)
        pairs = [ParallelExample(source.strip(), reference.strip()) for source, reference in rows]
        return self.task_class.of_pairs(self.recipe, self.run, pairs)


def change_search(options: BeamConfig, changes: Mapping[str, Any]) -> BeamConfig:
    """Return search options with changes, or raise `UsageError` if they are invalid."""
    try:
        return replace(options, **changes)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    except TypeError:
        known = ", ".join(vars(options))
        raise UsageError(f"The search options are {known}; got {', '.join(changes)}.") from None
