"""Words as vectors: those of a word-vector model, or of any other model that reads whole words."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
import torch
from rich.console import Console, RenderableType
from torch import Tensor, nn

from seqloom.classical.word_vectors import WordVectors as Model
from seqloom.classical.word_vectors import WordVectors as WordModel
from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.examples import ParallelExample, QuestionAnsweringExample, TokenClassificationExample
from seqloom.data.word_vectors import Format, read_all_vectors, read_word_sets, write_vectors
from seqloom.evaluate.word_space import NearWord, WordScore, WordSpace, as_metrics
from seqloom.inspect.views.points import (
    Colouring,
    PointKind,
    Points,
    colour_by_frequency,
    colour_by_group,
    colour_by_kind,
    colour_by_length,
)
from seqloom.predict.base import AnyPredictor, Prediction, Predictor, as_lines
from seqloom.predict.embeddings import embed, reader_of
from seqloom.predict.evaluation import Evaluation, EvaluationOptions
from seqloom.predict.loader import load
from seqloom.runs.layout import refuse_existing
from seqloom.tasks.word_vectors import create_vectors_run, plain_words, score_word_sets, space_of
from seqloom.text import Words


@dataclass(frozen=True)
class WordReport:
    """How good word vectors are."""

    held_out: Mapping[str, float]  # on a split of the text; nothing where the run has none
    judged: Mapping[str, WordScore]  # beside what people say
    missing: tuple[str, ...]  # the sets that are not there


METRICS = {
    "loss": "loss, per prediction",
    "neighbours": "neighbours told from noise",
    "unknown_rate": "share without a vector",
}
JUDGED_METRICS = {
    "wordsim353": ("WordSim-353, Spearman", "pairs"),
    "simlex999": ("SimLex-999, Spearman", "pairs"),
    "analogies": ("analogies solved", "questions"),
    "analogies_semantic": ("  semantic", "questions"),
    "analogies_syntactic": ("  syntactic", "questions"),
}


@dataclass(frozen=True)
class NearestWords(Prediction):
    """A word and the words nearest to it, best first; none for a word without a vector."""

    word: str
    nearest: list[NearWord]

    def to_line(self) -> str:
        """word, cosine, the next word …"""
        return "\t".join(f"{near.word}\t{near.score:z.4f}" for near in self.nearest)

    def to_json(self) -> dict[str, object]:
        return {"word": self.word, "nearest": [asdict(near) for near in self.nearest], "unknown": list(self.unknown)}


class WordEvaluation(Evaluation):
    """The metrics of word vectors on a split, and those beside the judgements of people, with their coverage."""

    report: WordReport

    def __init__(self, model: "WordVectorsPredictor", options: EvaluationOptions) -> None:
        super().__init__(model, options)
        if self.report.missing:
            missing = ", ".join(self.report.missing)
            self.remarks = [f"not measured, since they are not in word_vectors_eval of SEQLOOM_DATA: {missing}"]

    @property
    def data(self) -> str:
        return super().data if self.report.held_out else "no text of its own"

    def to_json(self) -> dict[str, object]:
        report, keys = self.report, ("value", "interval", "evaluated", "total", "coverage")
        judged = {name: {key: getattr(one, key) for key in keys} for name, one in report.judged.items()}
        return {"run": self.model.name, "data": self.data, **report.held_out, **judged, "missing": report.missing}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield f"{self.model.name} on {self.data}: {len(self.model.space.words):,} words have vectors"
        for name, value in self.report.held_out.items():
            yield f"  {METRICS[name]:28} {value:9.4f}"
        for name, (label, unit) in JUDGED_METRICS.items():
            if (one := self.report.judged.get(name)) is None:
                continue
            covered = f"({one.evaluated:,} of {one.total:,} {unit}, {one.coverage:.1%})"
            if one.value is None or one.interval is None:
                yield f"  {label:28}         –  too few of its words have vectors {covered}"
            else:
                interval = f"{one.interval.low:.4f} to {one.interval.high:.4f}"
                yield f"  {label:28} {one.value:9.4f}  {interval}  {covered}"


class WordVectorsPredictor(Predictor[NearestWords]):
    """Trained word vectors. Get them from `seqloom.load`, `seqloom.train_recipe` or `import_vectors`."""

    what: ClassVar[str] = "word vectors"
    used_by: ClassVar[str] = "`seqloom words` asks them, `seqloom evaluate` measures them"
    evaluation_class = WordEvaluation

    @cached_property
    def space(self) -> WordSpace:
        return word_space(self)

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 1, window: int = 1, top: int = 10
    ) -> Iterator[NearestWords]:
        """Return the words nearest to the word of each line."""
        for line in as_lines(lines):
            word = line.strip()
            known = word in self.space.indices or (self.space.lowercase and word.lower() in self.space.indices)
            nearest = self.nearest(word, top) if known else []
            yield NearestWords(line, nearest, unknown=() if known or not word else (word,))

    def nearest(self, word: str, top: int = 10) -> list[NearWord]:
        """The words whose vectors point most nearly the same way, best first."""
        return self.space.similar(word, top)

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> list[NearWord]:
        """What stands to c as b stands to a, best first."""
        return self.space.analogy(a, b, c, top)

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        found = self.report(split)
        return {**found.held_out, **as_metrics(found.judged.items())}

    def report(self, split: str = "dev") -> WordReport:
        """All figures, with how sure they are; kept in the run for `compare`."""
        sets, held_out = read_word_sets(), {}
        judged = score_word_sets(self.space, sets)
        if self.run.recipe.get("data") is not None:
            held_out = self.task().held_out_metrics(self.model, split)
            self.save_metrics(split, {**held_out, **as_metrics(judged.items())})
        elif not judged:
            raise DataError(
                f"{self.name} was imported and has no text of its own, and the sets to measure it by "
                f"({', '.join(sets.missing)}) are not there. Set SEQLOOM_DATA to a folder that holds word_vectors_eval."
            )
        return WordReport(held_out, judged, tuple(sets.missing))


def word_space(trained: AnyPredictor) -> WordSpace:
    """The vectors of the words that a model reads, whatever it was trained for."""
    tokenizer, model = trained.tokenizer, trained.model  # a run that is not about text says so here
    if isinstance(model, Model):
        return space_of(model, tokenizer, trained.name)
    if not isinstance(tokenizer, Words):
        raise UsageError(
            f"{trained.name} reads {tokenizer.kind}, not whole words, so its words have no vectors of their own. "
            "Take a run with tokenizer.kind=words."
        )
    rows = token_vectors(model, len(tokenizer))
    if rows is None:
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has a model of kind {kind}, which has no vectors of words.")
    chosen = [id for id, word in enumerate(plain_words(tokenizer).tolist()) if word == id]
    words = [tokenizer.plain(tokenizer.token(id)) for id in chosen]
    return WordSpace(words, rows[chosen].float().cpu().numpy(), tokenizer.config.lowercase, trained.name)


def token_vectors(model: object, vocabulary: int) -> Tensor | None:
    """The input vectors (V, D) of a network's tokens; of a translator those of its source."""
    if not isinstance(model, nn.Module):
        return None
    found = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, nn.Embedding)
        and part.num_embeddings >= vocabulary
        and name.endswith("embed")
        and "spelling" not in name
    ]
    found.sort(key=lambda one: "target" in one[0])
    return found[0][1].weight.detach()[:vocabulary] if found else None


def import_vectors(file: str | Path, out: str | Path) -> WordVectorsPredictor:
    """Make a run of a file in word2vec's text or binary format, as GloVe and fastText write them too."""
    refuse_existing(Path(out))
    words, vectors = read_all_vectors(Path(file))
    return WordVectorsPredictor(create_vectors_run(words, torch.from_numpy(vectors), Path(out)), "cpu")


def export_vectors(run: str | Path, file: str | Path, form: Format = "text") -> WordSpace:
    """Write the word vectors of a run, those of any model that reads whole words, for other programs."""
    space = word_space(load(run, "cpu"))
    write_vectors(Path(file), space.words, space.vectors, form)
    return space


MOST = 20_000  # points
SHOWN = 300  # letters of a text by which it is named
LINES = 1_000  # of a split that are read


def kinds_of_points(trained: AnyPredictor) -> list[PointKind]:
    """What this model has vectors of, the most telling first."""
    model, tokenizer, found = trained.model, trained.tokenizer, list[PointKind]()
    if isinstance(model, WordModel) or token_vectors(model, len(tokenizer)) is not None:
        found.append("words" if isinstance(tokenizer, Words) else "tokens")
    with suppress(UsageError):
        reader_of(trained)
        found.append("sentences")
    return found


def points_of(trained: AnyPredictor, kind: PointKind, lines: Sequence[str] | None = None) -> Points:
    """Its words or tokens, the more frequent first; or these lines, or without any those of the dev split."""
    if kind not in get_args(PointKind):
        raise UsageError(f"There are no points of kind {kind!r}: {did_you_mean(kind, get_args(PointKind))}.")
    if kind == "words":
        return _words(trained)
    return _tokens(trained) if kind == "tokens" else _sentences(trained, lines)


def _words(trained: AnyPredictor) -> Points:
    space, model, counts = word_space(trained), trained.model, None
    space = WordSpace(space.words[:MOST], space.vectors[:MOST], space.lowercase, space.name)
    if isinstance(model, WordModel):
        counts = model.counts.sort(descending=True, stable=True).values[: len(space.words)].tolist()
    colourings = [
        colour_by_frequency(counts, len(space.words)),
        colour_by_kind(space.words),
        colour_by_length(space.words),
    ]
    if (tags := _usual_tags(trained, space)) is not None:
        colourings.insert(0, tags)
    return Points("words", space, colourings, f"{len(space.words):,} words of its vocabulary")


def _usual_tags(trained: AnyPredictor, space: WordSpace) -> Colouring | None:
    """Where the model was trained on tagged words: the tag that each has most often."""
    if trained.run.recipe.get("task") != "tag":
        return None
    with suppress(SeqloomError):  # data that has changed or is no longer there: then there is no such colouring
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in islice(trained.task().corpus.split("train"), MOST):
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                seen[word.lower() if space.lowercase else word][tag] += 1
        usual = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in seen.items()}
        return colour_by_group("label", "its most frequent tag", [usual.get(word, "") for word in space.words])
    return None


def _tokens(trained: AnyPredictor) -> Points:
    tokenizer = trained.tokenizer
    rows = token_vectors(trained.model, len(tokenizer))
    if rows is None:
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has a model of kind {kind}, which has no vectors of tokens.")
    count = min(len(rows), MOST)
    names = [tokenizer.token(number) for number in range(count)]
    space = WordSpace(names, rows[:count].float().cpu().numpy(), False, trained.name)
    pieces = tokenizer.kind not in ("characters", "words")
    colourings = [colour_by_kind(names, pieces), colour_by_length(names)]
    if pieces:
        order = np.arange(1.0, count + 1)
        colourings.append(Colouring("frequency", "place in the vocabulary", order, log=True))
    return Points("tokens", space, colourings, f"{count:,} tokens of its vocabulary ({tokenizer.kind})")


# --- texts ------------------------------------------------------------------------------------------------------------


def _sentences(trained: AnyPredictor, lines: Sequence[str] | None) -> Points:
    reader_of(trained)  # one that reads no texts says so before they are looked for
    if lines is None:
        rows = list(islice(labelled_texts(trained, "dev"), LINES))
        source = f"{len(rows):,} texts of {trained.run.data['corpus']}, dev"
    else:
        rows = [(line.strip(), "") for line in lines if line.strip()]
        source = f"{len(rows):,} lines of one's own"
    rows = list(dict(rows).items())[:MOST]  # each text once
    if len(rows) < 2:
        raise DataError("Points are made of two different lines or more.")
    names = [text[:SHOWN] for text, _ in rows]
    space = WordSpace(names, embed(trained, [text for text, _ in rows]), False, trained.name)
    colourings = [colour_by_length(names, words=True), colour_by_kind(names)]
    if any(label for _, label in rows):
        colourings.insert(0, colour_by_group("label", "its label in the data", [label for _, label in rows]))
    return Points("sentences", space, colourings, source)


def labelled_texts(trained: AnyPredictor, split: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a split, and the label of each where it has one."""
    for example in trained.task().corpus.split(split):
        if isinstance(example, str):
            yield from ((line.strip(), "") for line in example.splitlines() if len(line.split()) > 2)
        elif isinstance(example, TokenClassificationExample):
            yield example.text, ""
        elif isinstance(example, QuestionAnsweringExample):
            yield example.question, ""
        else:
            kind = example.kind if isinstance(example, ParallelExample) else ""
            yield next(filter(None, example.texts())), next(iter(example.labels()), kind)
