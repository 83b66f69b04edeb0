"""Translators: lines in, as many lines out, in order."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import to_device
from seqloom.core.words import shown
from seqloom.data.collate import ParallelBatches
from seqloom.data.examples import ParallelExample
from seqloom.data.parallel import Scored
from seqloom.decoding.beam import BeamConfig, beam_search, choose_batch_size, map_batches
from seqloom.decoding.rules import Hypothesis
from seqloom.evaluate.alignment import Word, hard_links, merge, to_pharaoh, words_of
from seqloom.evaluate.translation import TranslationReport
from seqloom.predict.base import (
    Prediction,
    Predictor,
    Problems,
    as_lines,
    check_sizes,
    check_source,
    pad_rows,
    similar_lengths,
    windows,
)
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.inspect.views.attention import AlignmentView, HeadsView


Given = str | Scored  # a translation made elsewhere, with its score there, if it has one
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


@dataclass(frozen=True)
class Translation(Prediction):
    """A line and its translations, best first; `text` and `score` are those of the best."""

    source: str  # the line as it came
    candidates: list[Candidate]
    source_tokens: list[str]
    source_words: list[str] | None = None  # that the alignment counts; with `attention` only

    @property
    def text(self) -> str:
        return self.candidates[0].text

    @property
    def score(self) -> float:
        return self.candidates[0].score

    @property
    def log_prob(self) -> float:
        return self.candidates[0].log_prob

    @property
    def attention(self) -> Tensor | None:
        return self.candidates[0].attention

    @property
    def alignment(self) -> str | None:
        return self.candidates[0].alignment

    def to_line(self) -> str:
        return self.text if self.alignment is None else f"{self.text}\t{self.alignment}"

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {
            "source": self.source,
            "translation": self.text,
            "score": self.score,
            "log_prob": self.log_prob,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "unknown": list(self.unknown),
        }
        if self.alignment is not None:
            words = {"source_words": self.source_words, "words": self.candidates[0].words}
            found |= {**words, "alignment": self.alignment}
        return found


@dataclass(frozen=True)
class ReadLine:
    """A line as a translator reads it."""

    raw: str
    text: str  # without white space at the ends
    ids: list[int]  # END included; empty for a blank line
    unknown: tuple[str, ...] = ()


class TranslatorPredictor(Predictor[Translation]):
    """A trained translator."""

    what = "a translator"
    used_by = "`seqloom translate` uses it"

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

    def problems(self) -> Problems[Translation]:
        note = "cut before its end came (--max-length allows more): the translation of {lines}"
        return {note: lambda answer: not answer.candidates[0].finished}

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

        `window` lines are read at a time, sorted by length and decoded `batch_size` at a time; with window=1 every line
        is answered before the next is read. Each translation begins with `prefix`. With `attention` they say where the
        model attended, and which words belong together. `options` are those of `BeamConfig` (beam, n_best, …) and
        override the recipe's.
        """
        check_sizes(batch_size=batch_size, window=window)
        search = _Search(self, self.decode_options(**options), self._encode_prefix(prefix), attention)
        return _translations(search, as_lines(lines), batch_size, window)

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

        score(y) = share · log p(y) / |y|^α + (1 − share) · its score there, α being the length penalty.
        """
        from seqloom.predict.translate import rescore

        changes = {} if length_penalty is None else {"length_penalty": length_penalty}
        return rescore(self, lists, share, self.decode_options(**changes).length_penalty)

    def decode_options(self, **changes: Any) -> BeamConfig:
        """Return the options of its search, with these changes."""
        options = self.decode
        if "n_best" in changes:  # so many cannot be returned from fewer
            changes.setdefault("beam", max(options.beam, changes["n_best"]))
        elif "beam" in changes:
            changes["n_best"] = max(1, min(options.n_best, changes["beam"]))
        return change_search(options, changes)

    def _encode_prefix(self, prefix: str) -> list[int]:
        tokenizer = self.tokenizer.of_targets
        if unknown := tokenizer.unknown_pieces(prefix):
            raise DataError(f"The vocabulary of {self.name} cannot spell {shown(unknown[0])} in the prefix.")
        return tokenizer.encode(prefix)

    def report(self, split: str = "dev", **options: Any) -> TranslationReport:
        """Translate a split of its own data by its `decode` section, and report every metric.

        They are kept in the run for `compare`, unless `options` change how it translates.
        """
        decode = self.decode_options(**options)
        report: TranslationReport = self.own_task.report(self.model, split, decode)
        if decode == self.decode:
            self.save_metrics(split, report.kept())
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


class LineReader:
    """From lines to tokens."""

    def __init__(self, translator: TranslatorPredictor):
        self.name, self.model, self.device = translator.name, translator.model, translator.device
        self.tokenizer: Tokenizer = translator.tokenizer
        self.longest, self.longest_key = translator.longest_source, translator.longest_key

    def read(self, number: int, line: str) -> ReadLine:
        text = line.strip()
        ids = self.tokenizer.encode(text) if text else []
        if not ids:
            return ReadLine(line, text, [])
        check_source(number, len(ids) + 1, self.longest, self.longest_key)
        return ReadLine(line, text, [*ids, self.tokenizer.end], tuple(self.tokenizer.unknown_pieces(text)))


class _Search(LineReader):
    """From lines to translations, a batch at a time."""

    def __init__(self, translator: TranslatorPredictor, options: BeamConfig, prefix: list[int], attention: bool):
        super().__init__(translator)
        self.options, self.prefix, self.attention = options, prefix, attention
        self.banned = self.tokenizer.banned  # no reader wants to see them

    def batches(self, lines: Sequence[ReadLine], most: int) -> Iterator[list[int]]:
        """The places of lines that are decoded together: those of about the same length, blank ones left out."""
        places = [place for place, line in enumerate(lines) if line.ids]
        for chosen in similar_lengths([len(lines[place].ids) for place in places], most, TOKENS):
            yield [places[number] for number in chosen]

    def answer(self, lines: Sequence[ReadLine], most: int) -> list[Translation]:
        blank = Candidate(
            "", 0.0, 0.0, [], words=[] if self.attention else None, alignment="" if self.attention else None
        )
        answers = [Translation(line.raw, [blank], [], blank.words) for line in lines]
        batches = list(self.batches(lines, choose_batch_size(len(lines), most, self.device)))
        decoded = map_batches(lambda places: self._decode([lines[place] for place in places]), batches, self.device)
        for places, rows in zip(batches, decoded, strict=True):
            for place, found in zip(places, rows, strict=True):
                answers[place] = self._translation(lines[place], found)
        return answers

    def _decode(self, lines: Sequence[ReadLine]) -> list[list[Hypothesis]]:
        tokens, mask = pad_rows([line.ids for line in lines], self.device, self.tokenizer.end)
        prompt = torch.tensor([self.prefix] * len(lines), device=self.device) if self.prefix else None
        return beam_search(
            self.model,
            source={"tokens": tokens, "mask": mask},
            prompt=prompt,
            options=self.options,
            end=self.tokenizer.end,
            banned=self.banned,
            attention=self.attention,
        )

    def _translation(self, line: ReadLine, found: Sequence[Hypothesis]) -> Translation:
        words = words_of(line.text, self.tokenizer.spans(line.text), end="") if self.attention else None
        return Translation(
            source=line.raw,
            candidates=[self._candidate(hypothesis, words) for hypothesis in found],
            source_tokens=[self.tokenizer.token(token) for token in line.ids],
            source_words=None if words is None else [word.text for word in words[:-1]],
            unknown=line.unknown,
        )

    def _candidate(self, found: Hypothesis, source: list[Word] | None) -> Candidate:
        text = self.tokenizer.decode(found.tokens)
        made = Candidate(
            text=text.translate(_ONE_LINE),
            score=found.score,
            log_prob=found.log_prob,
            tokens=[self.tokenizer.token(token) for token in found.tokens],
            finished=found.finished,
            attention=found.attention,
            ids=found.tokens,
        )
        if source is None:
            return made
        if found.attention is None:
            raise UsageError(
                f"{self.name} has no attention to align words by. Translate without --alignment (in Python "
                "attention=True)."
            )
        target = words_of(text, self.tokenizer.decoded_spans(found.tokens))
        links = hard_links(merge(found.attention.numpy(), target, source)) if target else []
        inside = to_pharaoh(link for link in links if link[0] < len(source) - 1)  # not to the source's END
        return replace(made, words=[word.text for word in target], alignment=inside)


def _translations(search: _Search, lines: Iterable[str], batch_size: int, window: int) -> Iterator[Translation]:
    for read in windows(map(search.read, itertools.count(1), lines), window):
        yield from search.answer(read, batch_size)


BLANK = Candidate("", 0.0, 0.0, [])


def rescore(
    translator: TranslatorPredictor, lists: Iterable[tuple[str, Sequence[Given]]], share: float, penalty: float
) -> Iterator[Translation]:
    """Return each line with its translations, best first; of equally good ones, those that came first."""
    if not 0 <= share <= 1:
        raise UsageError(f"The share of the model in a score must be from 0 to 1, got {share:g}.")
    reader = LineReader(translator)
    return (_rank(reader, number, *one, share, penalty) for number, one in enumerate(lists, start=1))


def _rank(
    reader: LineReader, number: int, line: str, given: Sequence[Given], share: float, penalty: float
) -> Translation:
    read, pairs = reader.read(number, line), [(one, None) if isinstance(one, str) else one for one in given]
    if not read.ids or not pairs:  # a blank line stays blank, whatever others made of it
        return Translation(line, [BLANK], [])
    ids = [reader.tokenizer.of_targets.encode(text) for text, _ in pairs]
    longest: int | None = getattr(reader.model, "longest_target", None)
    most = max(map(len, ids)) + 1
    if longest is not None and most > longest:
        raise DataError(
            f"A candidate of line {number:,} has {most:,} tokens, its end included, and this model can say only "
            f"{longest:,}. Leave it out, or train with more positions."
        )
    found = []
    for (text, theirs), own, log_prob in zip(pairs, ids, _log_probs(reader, read, ids), strict=True):
        score = log_prob / (len(own) + 1) ** penalty
        if share < 1:
            if theirs is None:
                raise DataError(f"A candidate of line {number:,} has no score that a share could be left to: {text!r}.")
            score = share * score + (1 - share) * theirs
        found.append(Candidate(text, score, log_prob, [reader.tokenizer.token(token) for token in own], ids=own))
    tokens = [reader.tokenizer.token(token) for token in read.ids]
    return Translation(line, sorted(found, key=lambda one: -one.score), tokens, unknown=read.unknown)


@torch.no_grad()
def _log_probs(reader: LineReader, line: ReadLine, ids: Sequence[Sequence[int]]) -> list[float]:
    """Return Σ log p of each translation, its END included."""
    found = [0.0] * len(ids)
    for members, batch in ParallelBatches([line.ids[:-1]] * len(ids), ids, tokens=TOKENS).every():
        sums = reader.model.target_log_probs(to_device(batch, reader.device)).double().sum(dim=1).tolist()
        for place, value in zip(members.tolist(), sums, strict=True):
            found[place] = value
    return found
