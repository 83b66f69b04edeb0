"""The predictor for translators."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.inputs import check_options, check_text, check_texts
from seqloom.core.tree import to_device
from seqloom.core.words import LINE_BREAKS, format_value
from seqloom.data.candidates import ScoredText
from seqloom.data.collate import ParallelBatches
from seqloom.data.examples import ParallelExample
from seqloom.data.glossary import Glossary, Term, open_glossary
from seqloom.decoding.beam import BeamConfig, beam_search, choose_batch_size, map_batches
from seqloom.decoding.rules import Hypothesis
from seqloom.decoding.terms import TokenTexts
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
    ranked_columns,
)
from seqloom.predict.evaluation import Evaluation
from seqloom.predict.results import returns_list
from seqloom.predict.translation_evaluation import TranslationEvaluation
from seqloom.runs.trained import TranslatingModel
from seqloom.tasks.terms_base import TermSearch, token_texts

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import AlignmentView, HeadsView


GivenTranslation = str | ScoredText  # a candidate of an n-best list, with or without a score
GivenGlossary = Glossary | Mapping[str, str | Sequence[str]] | str | Path  # a glossary, a dictionary or a file
TOKENS = 4096  # maximum source tokens per batch, including padding; a longer line forms its own batch


@dataclass(frozen=True)
class Candidate:
    """One translation of a line."""

    text: str  # the translation without line breaks
    score: float  # log_prob with the length penalty, which determines the rank
    log_prob: float
    tokens: list[str]
    finished: bool = True  # whether END was predicted before the maximum length
    attention: Tensor | None = None  # (T, S), with one row for each token, including END
    words: list[str] | None = None  # target words of the alignment; only with `attention`
    # Such as "0-0 1-2", pairs of source and target words counted from 0; only with `attention`
    alignment: str | None = None
    ids: list[int] = field(default_factory=list)  # ids of the tokens, without END

    def to_json(self) -> dict[str, object]:
        names = ["text", "score", "log_prob", "finished", *["words", "alignment"] * (self.alignment is not None)]
        return {name: getattr(self, name) for name in names}


BLANK = Candidate("", 0.0, 0.0, [])


@dataclass(frozen=True)
class Translation(Prediction):
    """A line and its translations, best first. `text` and `score` belong to the best translation."""

    source: str  # the unchanged line
    candidates: list[Candidate]
    source_tokens: list[str]
    source_words: list[str] | None = None  # source words of the alignment; only with `attention`
    terms: tuple[Term, ...] | None = None  # terms that the translation must contain; None without a glossary or terms
    unwritable_terms: tuple[str, ...] = ()  # required terms that the tokenizer cannot write, in their first forms

    @property
    def missing_terms(self) -> list[str]:
        """The required terms that the best translation does not contain, in their first forms."""
        return [term.forms[0] for term in self.terms or () if not term.occurs_in(self.text)]

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
            **({} if self.terms is None else {"terms": list(self._terms()), "missing_terms": self.missing_terms}),
        }

    def _terms(self) -> Iterator[dict[str, object]]:
        for term in self.terms or ():
            yield {"source": term.source, "forms": list(term.forms), "met": term.occurs_in(self.text)}

    def to_columns(self) -> dict[str, object]:
        candidates = (
            {"translation": each.text, "score": each.score, "log_prob": each.log_prob} for each in self.candidates
        )
        return ranked_columns(candidates) | ({} if self.terms is None else {"missing_terms": self.missing_terms})


@dataclass(frozen=True)
class ReadLine:
    """The input of a translator."""

    raw: str
    text: str  # the line without surrounding white space
    ids: list[int]  # tokens including END; empty for a blank line
    unknown: tuple[str, ...] = ()
    terms: tuple[Term, ...] = ()  # terms that the translation must contain


class TranslatorPredictor(Predictor[Translation], TranslatingModel):
    """A trained translator."""

    description = "a translator"
    usage = "use `seqloom translate`"
    inputs = ("source",)
    evaluation_class: type[Evaluation] = TranslationEvaluation
    notes: ClassVar = {
        "{lines}: the translation was truncated (--max-length)": lambda answer: not answer.candidates[0].finished,
        "{lines}: the translation lacks a required term": lambda answer: ", ".join(
            term for term in answer.missing_terms if term not in answer.unwritable_terms
        ),
        "{lines}: the vocabulary of the model cannot write a required term": lambda answer: ", ".join(
            answer.unwritable_terms
        ),
    }

    @property
    def languages(self) -> tuple[str, str]:
        """The tags of the source and target language. An unknown language is an empty string."""
        return self.run.data.get("source") or "", self.run.data.get("target") or ""

    @property
    def longest_source(self) -> int | None:
        """The maximum number of source tokens, including END, or None if unlimited."""
        max_length: int | None = self.recipe.model.longest_source
        return max_length

    @property
    def longest_key(self) -> str:
        """The recipe key that sets the maximum source length."""
        return f"model.{self.recipe.model.longest_key}"

    @property
    def decode(self) -> BeamConfig:
        """The recipe section `decode`."""
        options: BeamConfig = self.recipe.decode
        return options

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 128, window: int = 1024
    ) -> Iterator[Translation]:
        return self.translate(lines, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def translate(
        self,
        lines: str | Iterable[str],
        *,
        batch_size: int = 128,
        window: int = 1024,
        prefix: str = "",
        attention: bool = False,
        glossary: GivenGlossary | None = None,
        force: str | Sequence[str] = (),
        forbid: str | Sequence[str] = (),
        line_terms: Iterable[Sequence[str]] | None = None,
        **options: Any,
    ) -> Iterator[Translation]:
        """Return one translation per line. A blank line has a blank translation.

        `window` and `batch_size` work as in `predict`. Each translation starts with `prefix`. With `attention`,
        translations include attention weights and word alignments. `options` are fields of `BeamConfig`, such as beam
        and n_best, and override the recipe.

        Translations contain the terms of the `glossary` (a file or a dictionary) whose source terms occur in the line,
        the terms in `force`, and the terms that `line_terms` yields for each line. No translation contains the terms in
        `forbid`. Alternative forms of a term are separated by `|`.
        """
        tokenizer = self.tokenizer.of_targets
        if unknown := tokenizer.unknown_pieces(check_text(prefix, "prefix")):
            raise DataError(
                f"The prefix contains {format_value(unknown[0])}, which is not in the vocabulary of {self.name}."
            )
        terms = self.term_search(glossary, force, forbid, line_terms)
        read = map(self.read_line, itertools.count(1), as_lines(lines))
        return predict_windows(
            read if terms is None else self._add_terms(read, terms, line_terms),
            self._translate,
            batch_size=batch_size,
            window=window,
            search=self.decode_options(**options),
            prefix=tokenizer.encode(prefix),
            attention=attention,
            terms=terms,
        )

    @cached_property
    def _token_texts(self) -> TokenTexts:
        return token_texts(self.tokenizer)

    def term_search(
        self,
        glossary: GivenGlossary | None,
        force: str | Sequence[str] = (),
        forbid: str | Sequence[str] = (),
        line_terms: object = None,
    ) -> TermSearch | None:
        """Return the search for terms, or None without terms."""
        force, forbid = check_texts(as_lines(force), "force"), check_texts(as_lines(forbid), "forbid")
        if glossary is not None:
            glossary = open_glossary(glossary, self.languages)
        elif not (force or forbid) and line_terms is None:
            return None
        return TermSearch(self.tokenizer, self._token_texts, glossary, force, forbid)

    @staticmethod
    def _add_terms(
        lines: Iterable[ReadLine], terms: TermSearch, line_terms: Iterable[Sequence[str]] | None
    ) -> Iterator[ReadLine]:
        """Yield lines with the terms that their translations must contain."""
        more = itertools.repeat(()) if line_terms is None else iter(line_terms)
        for number, line in enumerate(lines, start=1):
            own = next(more, None)
            if own is None:
                raise UsageError(f"line_terms must yield the terms of every line; line {number:,} has none.")
            own = check_texts(own, f"line_terms[{number - 1}]")
            yield replace(line, terms=terms.required(line.text, own))

    def read_line(self, number: int, line: str) -> ReadLine:
        """Tokenize a line and check its length."""
        text, tokenizer = line.strip(), self.tokenizer
        ids = tokenizer.encode(text) if text else []
        if not ids:
            return ReadLine(line, text, [])
        check_source_length(number, len(ids) + 1, self.longest_source, self.longest_key)
        return ReadLine(line, text, [*ids, tokenizer.end], tuple(tokenizer.unknown_pieces(text)))

    def _translate(
        self,
        lines: list[ReadLine],
        batch_size: int,
        search: BeamConfig,
        prefix: list[int],
        attention: bool,
        terms: TermSearch | None,
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
                constraints=None if terms is None else terms.constraints([line.terms for line in batch], device),
                attention=attention,
            )

        def translate(filled: list[ReadLine]) -> list[Translation]:
            most = choose_batch_size(len(lines), batch_size, device)
            groups = list[list[int]]()
            for has_terms in (False, True):  # separate batches, because a search without terms is faster
                rows_of = [index for index, line in enumerate(filled) if bool(line.terms) == has_terms]
                batches = batch_by_length([len(filled[index].ids) for index in rows_of], most, TOKENS)
                groups += [[rows_of[position] for position in batch] for batch in batches]
            decoded = map_batches(lambda group: decode([filled[index] for index in group]), groups, device)
            rows: dict[int, list[Hypothesis]] = {}
            for group, hypotheses in zip(groups, decoded, strict=True):
                rows.update(zip(group, hypotheses, strict=True))
            return [self._translation(line, rows[index], attention, terms) for index, line in enumerate(filled)]

        blank = replace(BLANK, words=[], alignment="") if attention else BLANK
        no_terms = None if terms is None else ()
        return predict_filled(
            lines,
            lambda line: line.ids,
            translate,
            lambda line: Translation(line.raw, [blank], [], blank.words, no_terms),
        )

    def _translation(
        self, line: ReadLine, hypotheses: Sequence[Hypothesis], attention: bool, terms: TermSearch | None
    ) -> Translation:
        words = group_words(line.text, self.tokenizer.spans(line.text), end="") if attention else None
        return Translation(
            source=line.raw,
            candidates=[self._candidate(hypothesis, words) for hypothesis in hypotheses],
            source_tokens=[self.tokenizer.token(token) for token in line.ids],
            source_words=None if words is None else [word.text for word in words[:-1]],
            unknown=line.unknown,
            terms=None if terms is None else line.terms,
            unwritable_terms=() if terms is None else terms.unwritable(line.terms),
        )

    def _candidate(self, hypothesis: Hypothesis, source: list[Word] | None) -> Candidate:
        text, tokens = self.tokenizer.decode(hypothesis.tokens), hypothesis.tokens
        candidate = Candidate(
            text=text.translate(LINE_BREAKS),
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
        # Without links to the END of the source
        inside = to_pharaoh(link for link in links if link[0] < len(source) - 1)
        return replace(candidate, words=[word.text for word in target], alignment=inside)

    def attention(self, source: str, target: str | None = None, **options: Any) -> "AlignmentView":
        """Return the attention weights for the translation of a line, or for a given target."""
        from seqloom.inspect.views.attention import alignment_view

        return alignment_view(self, source, target, **options)

    def heads(self, text: str, target: str | None = None, **options: Any) -> "HeadsView":
        """Return the attention weights of all heads of a Transformer: self-attention and cross-attention."""
        from seqloom.inspect.views.attention import heads_view

        return heads_view(self, text, target, **options)

    @returns_list
    def rescore(
        self,
        lists: Iterable[tuple[str, Sequence[GivenTranslation]]],
        *,
        weight: float = 1.0,
        length_penalty: float | None = None,
    ) -> Iterator[Translation]:
        """Rescore n-best lists. A list consists of a line and its translations, optionally with scores.

        score(y) = weight · log p(y) / |y|^α + (1 − weight) · given score of y, with the length penalty α.
        """
        if not 0 <= weight <= 1:
            raise UsageError(f"weight must be from 0 to 1; got {weight:g}.")
        changes = {} if length_penalty is None else {"length_penalty": length_penalty}
        penalty = self.decode_options(**changes).length_penalty
        return (self._rescore(number, *pair, weight, penalty) for number, pair in enumerate(lists, start=1))

    def _rescore(
        self, number: int, line: str, given: Sequence[GivenTranslation], weight: float, penalty: float
    ) -> Translation:
        """Return a line with its translations, best first. Equal scores keep the input order. |y| counts END."""
        read = self.read_line(number, line)
        pairs = [(text, None) if isinstance(text, str) else text for text in given]
        if not read.ids or not pairs:  # the translation of a blank line is blank
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
        """Return Σ log p of each translation, including END."""
        sums: dict[int, float] = {}
        for members, batch in ParallelBatches([line.ids[:-1]] * len(ids), ids, tokens=TOKENS).all_batches():
            log_probs = self.model.target_log_probs(to_device(batch, self.device))
            sums.update(zip(members.tolist(), log_probs.double().sum(dim=1).tolist(), strict=True))
        return [sums[index] for index in range(len(ids))]

    def decode_options(self, **changes: Any) -> BeamConfig:
        """Return the search options of the recipe with the changes applied."""
        return change_search(self.decode, changes)

    def report(self, split: str = "dev", glossary: GivenGlossary | None = None, **options: Any) -> TranslationReport:
        """Translate a split of the run's data, with the terms of a glossary, and compute all metrics.

        The metrics are stored in the run for `compare`, unless a glossary or `options` change the search.
        """
        decode = self.decode_options(**options)
        report: TranslationReport = self.training_task.report(self.model, split, decode, self.term_search(glossary))
        if decode == self.decode and glossary is None:
            self.save_metrics(split, report.to_dict())
        return report

    def report_pairs(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        glossary: GivenGlossary | None = None,
        **options: Any,
    ) -> TranslationReport:
        """Translate other sentences, with the terms of a glossary, and compute all metrics."""
        task, terms = self.task_of_pairs(sources, references), self.term_search(glossary)
        report: TranslationReport = task.report(self.model, "other", self.decode_options(**options), terms)
        return report

    def task_of_pairs(self, sources: Sequence[str], references: Sequence[str]) -> Any:
        """Create the task whose split "other" contains these sentences."""
        rows = zip(sources, references, strict=True)
        pairs = [ParallelExample(source.strip(), reference.strip()) for source, reference in rows]
        return self.task_class.of_pairs(self.recipe, self.run, pairs)


SearchT = TypeVar("SearchT", bound=BeamConfig)


def change_search(options: SearchT, changes: Mapping[str, Any]) -> SearchT:
    """Return search options with the changes applied, with a beam of at least `n_best` hypotheses.

    Raise `TypeError` or `UsageError` if a change is invalid.
    """
    check_options(type(options), changes)
    implied: dict[str, int] = {}
    if "n_best" in changes:
        implied["beam"] = max(options.beam, changes["n_best"])
    elif "beam" in changes:
        implied["n_best"] = max(1, min(options.n_best, changes["beam"]))
    try:
        return replace(options, **{**implied, **changes})
    except ValueError as error:
        raise UsageError(f"{error}.") from None
