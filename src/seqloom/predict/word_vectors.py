"""Word vectors of word-vector models and other word-level models, and points for plots of vectors."""

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

from seqloom.classical.word_vectors import WordVectorModel
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
from seqloom.predict.base import AnyPredictor, Prediction, Predictor, as_lines, ranked_columns
from seqloom.predict.embeddings import embed, get_state_reader
from seqloom.predict.evaluation import Evaluation, EvaluationOptions
from seqloom.predict.loader import load
from seqloom.predict.results import Metrics, returns_list
from seqloom.runs.layout import reject_existing
from seqloom.tasks.word_vectors import create_vectors_run, plain_words, score_word_sets, space_of
from seqloom.text import Words


@dataclass(frozen=True)
class WordReport:
    """The metrics of word vectors."""

    held_out: Mapping[str, float]  # metrics on a split; empty if the run has no data
    judged: Mapping[str, WordScore]  # agreement of the vectors with human judgements
    missing: tuple[str, ...]  # test sets that were not found


METRICS = {
    "loss": "loss, per prediction",
    "neighbours": "neighbours vs. noise",
    "unknown_rate": "words without a vector",
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
    """A word and its nearest words, best first. A word without a vector has no nearest words."""

    word: str
    nearest: list[NearWord]

    def to_line(self) -> str:
        """Return tab-separated words and cosines."""
        return "\t".join(f"{near.word}\t{near.score:z.4f}" for near in self.nearest)

    def to_json(self) -> dict[str, object]:
        return {"word": self.word, "nearest": [asdict(near) for near in self.nearest], "unknown": list(self.unknown)}

    def to_columns(self) -> dict[str, object]:
        return ranked_columns({"nearest": near.word, "score": near.score} for near in self.nearest)


class WordEvaluation(Evaluation):
    """The metrics of word vectors on a split and on human judgements, with coverage."""

    report: WordReport

    def __init__(self, model: "WordVectorsPredictor", options: EvaluationOptions) -> None:
        super().__init__(model, options)
        if self.report.missing:
            missing = ", ".join(self.report.missing)
            self.remarks = [f"skipped because they are not in the folder word_vectors_eval of SEQLOOM_DATA: {missing}"]

    @property
    def data(self) -> str:
        return super().data if self.report.held_out else "no data"

    def to_json(self) -> dict[str, object]:
        report, keys = self.report, ("value", "interval", "evaluated", "total", "coverage")
        judged = {name: {key: getattr(score, key) for key in keys} for name, score in report.judged.items()}
        return {"run": self.model.name, "data": self.data, **report.held_out, **judged, "missing": report.missing}

    def lines(self, console: Console) -> Iterator[RenderableType]:
        yield f"{self.model.name} on {self.data}: {len(self.model.space.words):,} words have vectors"
        for name, value in self.report.held_out.items():
            yield f"  {METRICS[name]:28} {value:9.4f}"
        for name, (label, unit) in JUDGED_METRICS.items():
            if (score := self.report.judged.get(name)) is None:
                continue
            covered = f"({score.evaluated:,} of {score.total:,} {unit}, {score.coverage:.1%})"
            if score.value is None or score.interval is None:
                yield f"  {label:28}         –  too few words have vectors {covered}"
            else:
                interval = f"{score.interval.low:.4f} to {score.interval.high:.4f}"
                yield f"  {label:28} {score.value:9.4f}  {interval}  {covered}"


class WordVectorsPredictor(Predictor[NearestWords]):
    """Trained word vectors, returned by `seqloom.load`, `seqloom.train_recipe` and `import_vectors`."""

    description: ClassVar[str] = "word vectors"
    usage: ClassVar[str] = "use `seqloom words` and `seqloom evaluate`"
    evaluation_class = WordEvaluation

    @cached_property
    def space(self) -> WordSpace:
        return build_word_space(self)

    @returns_list
    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 1, window: int = 1, top: int = 10
    ) -> Iterator[NearestWords]:
        """Return the nearest words to the word in each line."""
        for line in as_lines(lines):
            word = line.strip()
            known = word in self.space.indices or (self.space.lowercase and word.lower() in self.space.indices)
            nearest = self.nearest(word, top) if known else []
            yield NearestWords(line, nearest, unknown=() if known or not word else (word,))

    def nearest(self, word: str, top: int = 10) -> list[NearWord]:
        """Return the words with the highest cosine similarity, best first."""
        return self.space.similar(word, top)

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> list[NearWord]:
        """Return the words d for which "a is to b as c is to d" holds, best first."""
        return self.space.analogy(a, b, c, top)

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        report = self.report(split)
        return Metrics({**report.held_out, **as_metrics(report.judged.items())})

    def report(self, split: str = "dev") -> WordReport:
        """Compute all metrics with confidence intervals, and store them in the run."""
        sets, held_out = read_word_sets(), {}
        judged = score_word_sets(self.space, sets)
        if self.run.recipe.get("data") is not None:
            held_out = self.task().held_out_metrics(self.model, split)
            self.save_metrics(split, {**held_out, **as_metrics(judged.items())})
        elif not judged:
            raise DataError(
                f"{self.name} was imported without data, and the test sets {', '.join(sets.missing)} were not found. "
                "Set SEQLOOM_DATA to a folder with word_vectors_eval."
            )
        return WordReport(held_out, judged, tuple(sets.missing))


def build_word_space(trained: AnyPredictor) -> WordSpace:
    """Return the word vectors of a model. The model may belong to any task."""
    tokenizer, model = trained.tokenizer, trained.model  # raises an error for a run without text
    if isinstance(model, WordVectorModel):
        return space_of(model, tokenizer, trained.name)
    if not isinstance(tokenizer, Words):
        raise UsageError(
            f"{trained.name} has the tokenizer {tokenizer.kind}, so it has no word vectors. "
            "Use a run with tokenizer.kind=words."
        )
    rows = token_vectors(model, len(tokenizer))
    if rows is None:
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has a model of kind {kind}, which has no word vectors.")
    chosen = [id for id, word in enumerate(plain_words(tokenizer).tolist()) if word == id]
    words = [tokenizer.plain(tokenizer.token(id)) for id in chosen]
    return WordSpace(words, rows[chosen].float().cpu().numpy(), tokenizer.config.lowercase, trained.name)


def token_vectors(model: object, vocabulary: int) -> Tensor | None:
    """Return the input embeddings (V, D) of a network's tokens.

    For a translator, return the embeddings of the source tokens.
    """
    if not isinstance(model, nn.Module):
        return None
    embeddings = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, nn.Embedding)
        and part.num_embeddings >= vocabulary
        and name.endswith("embed")
        and "spelling" not in name
    ]
    embeddings.sort(key=lambda named: "target" in named[0])
    return embeddings[0][1].weight.detach()[:vocabulary] if embeddings else None


def import_vectors(file: str | Path, out: str | Path) -> WordVectorsPredictor:
    """Convert a word2vec file in text or binary format to a run. GloVe and fastText can also write these formats."""
    reject_existing(Path(out))
    words, vectors = read_all_vectors(Path(file))
    return WordVectorsPredictor(create_vectors_run(words, torch.from_numpy(vectors), Path(out)), "cpu")


def export_vectors(run: str | Path, file: str | Path, form: Format = "text") -> WordSpace:
    """Write the word vectors of a word-level model to a file for other programs."""
    space = build_word_space(load(run, "cpu"))
    write_vectors(Path(file), space.words, space.vectors, form)
    return space


MAX_POINTS = 20_000
MAX_NAME_CHARACTERS = 300  # maximum length of a text's name
MAX_EXAMPLES = 1_000  # maximum number of texts of a split


def list_point_kinds(trained: AnyPredictor) -> list[PointKind]:
    """Return the kinds of vectors of a model, most informative first."""
    model, tokenizer, kinds = trained.model, trained.tokenizer, list[PointKind]()
    if isinstance(model, WordVectorModel) or token_vectors(model, len(tokenizer)) is not None:
        kinds.append("words" if isinstance(tokenizer, Words) else "tokens")
    with suppress(UsageError):
        get_state_reader(trained)
        kinds.append("sentences")
    return kinds


def compute_points(trained: AnyPredictor, kind: PointKind, lines: Sequence[str] | None = None) -> Points:
    """Return the vectors of words or tokens, most frequent first, or of texts.

    By default, the texts are the texts of dev.
    """
    if kind not in get_args(PointKind):
        raise UsageError(f"There are no points of kind {kind!r}: {did_you_mean(kind, get_args(PointKind))}.")
    if kind == "words":
        return _words(trained)
    return _tokens(trained) if kind == "tokens" else _sentences(trained, lines)


def _words(trained: AnyPredictor) -> Points:
    space, model, counts = build_word_space(trained), trained.model, None
    space = WordSpace(space.words[:MAX_POINTS], space.vectors[:MAX_POINTS], space.lowercase, space.name)
    if isinstance(model, WordVectorModel):
        counts = model.counts.sort(descending=True, stable=True).values[: len(space.words)].tolist()
    colourings = [
        colour_by_frequency(counts, len(space.words)),
        colour_by_kind(space.words),
        colour_by_length(space.words),
    ]
    if (tags := _most_frequent_tags(trained, space)) is not None:
        colourings.insert(0, tags)
    return Points("words", space, colourings, f"{len(space.words):,} words of the vocabulary")


def _most_frequent_tags(trained: AnyPredictor, space: WordSpace) -> Colouring | None:
    """Return the most frequent tag of each word for a tagger, or None for other models."""
    if trained.run.recipe.get("task") != "tag":
        return None
    with suppress(SeqloomError):  # the tags require the training data
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in islice(trained.task().corpus.split("train"), MAX_POINTS):
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                seen[word.lower() if space.lowercase else word][tag] += 1
        usual = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in seen.items()}
        return colour_by_group("label", "most frequent tag", [usual.get(word, "") for word in space.words])
    return None


def _tokens(trained: AnyPredictor) -> Points:
    tokenizer = trained.tokenizer
    rows = token_vectors(trained.model, len(tokenizer))
    if rows is None:
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has a model of kind {kind}, which has no token vectors.")
    count = min(len(rows), MAX_POINTS)
    names = [tokenizer.token(number) for number in range(count)]
    space = WordSpace(names, rows[:count].float().cpu().numpy(), False, trained.name)
    pieces = tokenizer.kind not in ("characters", "words")
    colourings = [colour_by_kind(names, pieces), colour_by_length(names)]
    if pieces:
        order = np.arange(1.0, count + 1)
        colourings.append(Colouring("frequency", "position in the vocabulary", order, log=True))
    return Points("tokens", space, colourings, f"{count:,} tokens of the vocabulary ({tokenizer.kind})")


# --- texts ------------------------------------------------------------------------------------------------------------


def _sentences(trained: AnyPredictor, lines: Sequence[str] | None) -> Points:
    get_state_reader(trained)  # raises an error for a model without text vectors
    if lines is None:
        rows = list(islice(labelled_texts(trained, "dev"), MAX_EXAMPLES))
        source = f"{len(rows):,} texts of {trained.run.data['corpus']}, dev"
    else:
        rows = [(line.strip(), "") for line in lines if line.strip()]
        source = f"{len(rows):,} given lines"
    rows = list(dict(rows).items())[:MAX_POINTS]  # duplicates are omitted
    if len(rows) < 2:
        raise DataError("At least two different lines are needed.")
    names = [text[:MAX_NAME_CHARACTERS] for text, _ in rows]
    space = WordSpace(names, embed(trained, [text for text, _ in rows]), False, trained.name)
    colourings = [colour_by_length(names, words=True), colour_by_kind(names)]
    if any(label for _, label in rows):
        colourings.insert(0, colour_by_group("label", "label in the data", [label for _, label in rows]))
    return Points("sentences", space, colourings, source)


def labelled_texts(trained: AnyPredictor, split: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a split with their labels. If the data has no labels, they are ""."""
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
