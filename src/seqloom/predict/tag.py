"""The predictor for taggers."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from rich.console import Console, RenderableType

from seqloom.core.iob import extract_spans, marks_spans
from seqloom.core.tree import to_device
from seqloom.core.words import format_count, one_line
from seqloom.data.collate import TextBatches
from seqloom.data.examples import TokenClassificationExample
from seqloom.data.text_inputs import SentencePart, SentenceReader
from seqloom.evaluate.tagging import TagReport
from seqloom.inspect.views.labels import TagPaths, describe_tagger, lattice_of
from seqloom.inspect.views.texts import LinePrediction
from seqloom.inspect.views.texts import one_line as check_one_line
from seqloom.predict.base import Prediction, SplitPredictor, as_lines, json_value, predict_batches, predict_windows
from seqloom.predict.evaluation import LabelEvaluation
from seqloom.predict.results import returns_list
from seqloom.tasks.reading_base import sentence_reader, spellings_of
from seqloom.text.base import Span
from seqloom.text.word_spans import join_words, word_spans


@dataclass(frozen=True)
class TaggedWord:
    text: str
    start: int  # character offset in the line
    end: int
    tag: str
    probability: float  # marginal probability of the tag


@dataclass(frozen=True)
class Entity:
    """A span of words with a label, such as a person or a location."""

    text: str
    start: int
    end: int
    label: str
    probability: float  # the minimum probability of the tags in the span


@dataclass(frozen=True)
class TaggedLine(Prediction):
    """A line and the tags of its words."""

    text: str  # the unchanged input
    words: list[TaggedWord] = field(default_factory=list)
    entities: list[Entity] | None = None  # None if the tags do not mark spans
    pieces: int = 0  # number of pieces; above 1 if the line was too long
    json_names: ClassVar = ("words", "unknown", "pieces")

    @property
    def marked(self) -> str:
        """The line with inline tags: Pankaj:PER lives in [New Delhi]:LOC, or, without spans, lives:VERB in:ADP."""
        if self.entities is None:
            return " ".join(f"{word.text}:{word.tag}" for word in self.words)
        line, before = "", 0
        for entity in self.entities:
            has_space = any(letter.isspace() for letter in entity.text)
            text = f"[{entity.text}]" if has_space else entity.text
            line, before = f"{line}{self.text[before : entity.start]}{text}:{entity.label}", entity.end
        return line + self.text[before:]

    def to_line(self) -> str:
        return one_line(self.marked)

    def to_json(self) -> dict[str, object]:
        spans = {} if self.entities is None else {"spans": json_value(self.entities)}
        return {"text": self.text, **spans, **super().to_json()}

    def to_columns(self) -> dict[str, object]:
        spans = {} if self.entities is None else {"spans": json_value(self.entities)}
        return {**spans, "tagged": self.to_line()}


class TagEvaluation(LabelEvaluation):
    """The evaluation of a tagger."""

    model: "TaggerPredictor"
    report: TagReport
    matrix_units = ("tag", "words")

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "invalid": self.report.invalid}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield from super().lines(console)
        if self.report.invalid:
            sentences = format_count(self.report.invalid, "sentence has", "sentences have")
            yield f"{sentences} invalid predicted tags, which were read leniently"

    def answers(self) -> Iterator[str]:
        """Yield sentences in CoNLL format. Each line has a word, its true tag and its predicted tag."""
        for sentence, predicted in self.model.answers(self.split):
            rows = zip(sentence.words, sentence.tags, predicted, strict=True)
            yield "".join(f"{word}\t{tag}\t{other}\n" for word, tag, other in rows) + "\n"


class TaggerPredictor(SplitPredictor[TaggedLine]):
    """A trained tagger."""

    description = "a tagger"
    usage = "use `seqloom tag`"
    evaluation_class = TagEvaluation
    notes: ClassVar = {"{lines} longer than {max_length} tokens: read in pieces": lambda line: line.pieces > 1}

    @property
    def tags(self) -> list[str]:
        return self.run.labels

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = 128, window: int = 1024) -> Iterator[TaggedLine]:
        return self.tag(lines, batch_size=batch_size, window=window, stream=True)

    @returns_list
    def tag(
        self, lines: str | Iterable[str], *, spaces: bool = False, batch_size: int = 128, window: int = 1024
    ) -> Iterator[TaggedLine]:
        """Tag the words of each line, and return one result per line.

        Words are split by `seqloom.text.word_spans`, or at white space if `spaces` is set. `window` and `batch_size`
        work as in `predict`.
        """
        return predict_windows(as_lines(lines), self._tag, batch_size=batch_size, window=window, spaces=spaces)

    def _tag(self, lines: Sequence[str], batch_size: int, spaces: bool) -> Iterator[TaggedLine]:
        reader = self.reader()
        split: Callable[[str], list[Span]] = split_at_spaces if spaces else word_spans
        spans = [split(line) for line in lines]
        words = [[line[start:end] for start, end in line_spans] for line, line_spans in zip(lines, spans, strict=True)]
        pieces = reader.pieces(words)
        tags = self._tag_pieces(reader.batches(words, pieces, tokens=1), pieces, batch_size) if pieces else []
        by_line: list[list[tuple[str, float]]] = [[] for _ in lines]
        for piece, tags_of_piece in zip(pieces, tags, strict=True):  # in the order of the lines
            by_line[piece.sentence] += tags_of_piece
        counts = Counter(piece.sentence for piece in pieces)
        for number, (line, line_spans) in enumerate(zip(lines, spans, strict=True)):
            pairs = zip(line_spans, by_line[number], strict=True)
            tagged = [TaggedWord(line[start:end], start, end, tag, p) for (start, end), (tag, p) in pairs]
            yield TaggedLine(
                text=line,
                words=tagged,
                entities=find_entities(line, tagged) if marks_spans(self.tags) else None,
                pieces=counts[number],
                unknown=tuple(self.tokenizer.unknown_pieces(join_words(words[number])[0])),
            )

    def _tag_pieces(
        self, batches: TextBatches, pieces: Sequence[SentencePart], batch_size: int
    ) -> list[list[tuple[str, float]]]:
        """Return the tags of the words of each piece, with probabilities."""

        def tag(chosen: list[int]) -> Iterator[list[tuple[str, float]]]:
            batch = to_device(batches.collate(np.array(chosen)), self.device)
            best, probabilities = self.model.predict_with_probabilities(batch)
            best_probabilities = probabilities.gather(2, best.unsqueeze(2)).squeeze(2)  # (B, W)
            for number, tags, values in zip(chosen, best.tolist(), best_probabilities.tolist(), strict=True):
                count = len(pieces[number].first)
                yield [(self.tags[tag], p) for tag, p in zip(tags[:count], values[:count], strict=True)]

        return predict_batches(batches.texts.lengths.tolist(), batch_size, tag)

    def paths(self, line: str, *, spaces: bool = False) -> TagPaths:
        """Return the probabilities of all tags and transitions of a line, and the tags that `tag` predicts."""
        (tagged,), reader = self.tag(check_one_line(line, "text"), spaces=spaces), self.reader()
        words = [word.text for word in tagged.words]
        lattices = []
        for piece in reader.pieces([words]):
            batch = to_device(reader.batches([words], [piece], tokens=1).collate(np.array([0])), self.device)
            lattices.append(lattice_of(self.model, batch, len(piece.first)))
        return TagPaths.of(lattices, words, self.tags, describe_tagger(self.model), list(tagged.unknown))

    def _read_line(self, line: str) -> LinePrediction:
        (tagged,), reader = self.tag(line), self.reader()
        words = [word.text for word in tagged.words]
        text, piece = join_words(words)[0], reader.pieces([words])[0]
        batch = to_device(reader.batches([words], [piece], tokens=1).collate(np.array([0])), self.device)
        log_prob = self.model.log_likelihood({**batch, "tags": self.model.predict(batch)})[0].item()
        spans = self.tokenizer.spans(text)
        return LinePrediction(line, text, spans, batch, "tags", tagged.marked, log_prob, tagged.unknown, reader.frame)

    def reader(self) -> SentenceReader:
        return sentence_reader(self.recipe, self.tokenizer, spellings_of(self.run))

    def answers(self, split: str = "dev") -> list[tuple[TokenClassificationExample, list[str]]]:
        """Return all sentences of a split with their predicted tags."""
        return list(zip(self.training_task.corpus.split(split), self.outputs(split)[0], strict=True))


def split_at_spaces(line: str) -> list[Span]:
    """Return the spans of words separated by white space."""
    return [match.span() for match in re.finditer(r"\S+", line)]


def find_entities(line: str, words: Sequence[TaggedWord]) -> list[Entity]:
    """Return the labelled spans of tagged words."""
    entities = []
    for span in extract_spans([word.tag for word in words]):
        inside = words[span.start : span.end]
        start, end = inside[0].start, inside[-1].end
        entities.append(Entity(line[start:end], start, end, span.type, min(word.probability for word in inside)))
    return entities
