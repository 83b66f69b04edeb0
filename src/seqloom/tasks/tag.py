"""Tagging: a model reads a sentence and predicts a tag for each word, such as its part of speech or entity type.

The model predicts only tags of the training data; a dev or test word with another tag counts as an error. The loss is
−log p of the tags per word. A CRF models the joint probability of the tags of a sentence. Entities are spans of words,
written as IOB2 tags.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch

from seqloom.config import config
from seqloom.core.device import device_of
from seqloom.core.errors import UsageError
from seqloom.core.iob import marks_spans
from seqloom.core.protocols import Monitor
from seqloom.core.tree import to_device
from seqloom.data.collate import TextBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TokenClassificationExample, has_spans
from seqloom.data.text_inputs import SentencePart, SentenceReader
from seqloom.evaluate.tagging import TagReport, report
from seqloom.models import MODELS
from seqloom.tasks.base import ModelSection, TaskInfo, TaskRecipe, cached_method
from seqloom.tasks.classify import length_problems
from seqloom.tasks.reading_base import BatchConfig, ReadingRecipe, ReadingTask, max_row_length, sentence_reader
from seqloom.text.word_spans import join_words
from seqloom.train.config import FitConfig


@config
class Recipe(ReadingRecipe):
    task: Literal["tag"] = "tag"
    data: CorpusConfig[TokenClassificationExample]
    batch: BatchConfig = BatchConfig()
    model: Annotated[ModelSection, MODELS.only("tagger", "fine-tuned-tagger")] = MODELS.default("tagger")
    # dev metric that selects the best checkpoint; null: span_f1 if tags mark spans, else token_accuracy
    monitor: Literal["loss", "token_accuracy", "span_f1"] | None = None
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from length_problems(self)


class Task(ReadingTask[TaskRecipe, Any]):
    corpus: Corpus[TokenClassificationExample]
    measured_on = "sentences with tags"

    @classmethod
    def predicts_labels(cls, recipe: TaskRecipe) -> bool:
        return True

    @classmethod
    def metric_of(cls, recipe: TaskRecipe) -> str:
        return recipe.monitor or ""

    def choose_monitor(self) -> Monitor:
        monitor = super().choose_monitor()
        metric = monitor.metric or ("span_f1" if marks_spans(self.names) else "token_accuracy")
        return replace(monitor, metric=metric)

    @classmethod
    def load(cls, recipe: TaskRecipe) -> Corpus[TokenClassificationExample]:
        corpus: Corpus[TokenClassificationExample] = super().load(recipe)
        if recipe.monitor == "span_f1" and not has_spans(corpus):
            raise UsageError(
                f"monitor span_f1 needs tags that mark spans, such as B-PER; the tags of {corpus.name} do not. "
                "Set monitor=token_accuracy."
            )
        return corpus

    @classmethod
    def training_texts(cls, recipe: TaskRecipe, corpus: Corpus[TokenClassificationExample]) -> Iterable[str]:
        return (join_words(sentence.words)[0] for sentence in corpus.split("train"))

    @classmethod
    def spelled_texts(cls, corpus: Corpus[TokenClassificationExample]) -> Iterable[str]:
        return (word for sentence in corpus.split("train") for word in sentence.words)

    def sizes(self) -> dict[str, int]:
        return {"tags": len(self.names), **super().sizes()}

    def model(self) -> Any:
        model = super().model()
        model.constrain(self.names)
        return model

    # --- data -------------------------------------------------------------------------------------------------------

    def reader(self) -> SentenceReader:
        return sentence_reader(self.recipe, self.tokenizer, self.spellings)

    def words(self, split: str) -> list[Sequence[str]]:
        """Return the words of each sentence of a split."""
        return [sentence.words for sentence in self.corpus.split(split)]

    def plain_texts(self, split: str) -> list[str]:
        return [join_words(words)[0] for words in self.words(split)]

    def truncated_count(self) -> int:
        return len({piece.sentence for piece in self.pieces("train") if piece.start})

    @cached_method
    def pieces(self, split: str) -> list[SentencePart]:
        """Return the pieces that the model reads separately: sentences, or parts of long sentences."""
        return self.reader().pieces(self.words(split))

    def tags(self, split: str) -> list[list[int]]:
        """Return the tag ids of each piece. If a span is split, its second part starts with B-."""
        sentences, tag_ids = self.corpus.split(split), []
        for piece in self.pieces(split):
            tags = list(sentences[piece.sentence].tags[piece.start : piece.end])
            if piece.start and has_spans(self.corpus) and tags[0].startswith("I"):
                tags[0] = f"B{tags[0][1:]}"
            tag_ids.append(self.label_ids(tags))
        return tag_ids

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> TextBatches:
        words, pieces, tags = self.words(split), self.pieces(split), self.tags(split)
        return self.reader().batches(words, pieces, tags=tags, tokens=tokens, shapes=shapes)

    def truncation_note(self, count: int) -> str:
        return (
            f"{count:,} of {len(self.corpus.split('train')):,} training sentences {'is' if count == 1 else 'are'} "
            f"longer than {max_row_length(self.recipe)} tokens and read in pieces (batch.max_length)."
        )

    # --- evaluation -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, model: Any, split: str) -> tuple[list[list[str]], float]:
        """Return the predicted tags of each sentence, and −log p per word with a known tag."""
        pieces, total, counted = self.pieces(split), 0.0, 0
        predicted: list[list[str]] = [[] for _ in pieces]
        for members, batch in self.eval_batches(split).all_batches():
            batch = to_device(batch, device_of(model))
            log_probs, counts = model.log_likelihood(batch)
            total, counted = total - log_probs.double().sum().item(), counted + int(counts.sum())
            for index, row in zip(members.tolist(), model.predict(batch).tolist(), strict=False):
                predicted[index] = [self.names[number] for number in row[: len(pieces[index].first)]]
        sentences: list[list[str]] = [[] for _ in self.corpus.split(split)]
        for piece, tags in zip(pieces, predicted, strict=True):  # in the order of the sentences
            sentences[piece.sentence] += tags
        return sentences, total / counted if counted else float("nan")

    def measure(self, outputs: tuple[Sequence[Sequence[str]], float], split: str) -> TagReport:
        tags, loss = outputs
        tag_report = report([sentence.tags for sentence in self.corpus.split(split)], tags, self.names)
        return replace(tag_report, metrics={"loss": loss, **tag_report.metrics})


INFO = TaskInfo(
    name="tag",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.tag:TaggerPredictor",
    command="tag {run}",
    pipeline_tag="token-classification",
    metric="token_accuracy",
    loss_per="word",
    examples="sentences",
    example="The old man saw the boats in the harbour.",
    views=("understand", "vectors", "walk", "heads", "cell"),
)
