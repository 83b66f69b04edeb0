"""Tagging: a model reads a sentence and says what each of its words is: a part of speech, or part of a name.

The tags are those of train; a word of dev or test with another one counts as wrong. The loss is −log p of the tags of a
sentence, all together where the model has a CRF, per word. Names are spans of words, written as IOB2 tags.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import torch

from seqloom.config import Discriminator, config
from seqloom.core.errors import UsageError
from seqloom.core.iob import marks_spans
from seqloom.core.protocols import Loss, Monitor
from seqloom.core.tree import Tree, to_device
from seqloom.data import corpora
from seqloom.data.collate import TextBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TokenClassificationExample, has_spans
from seqloom.data.readers import Piece, SentenceReader, Spellings
from seqloom.evaluate.tagging import TagReport, report
from seqloom.models.fine_tuned import FineTunedTaggerConfig
from seqloom.models.tagger import TaggerConfig
from seqloom.runs.init import InitConfig, frame_of, pretrained, read_length, still_needed
from seqloom.runs.run import Run
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.classify import UNSEEN, BatchConfig, ReadingTask, reading_problems, spellings_of, tokenizer_for
from seqloom.tasks.language_model import device_of, refuse_changed_data
from seqloom.text import Tokenizer, TokenizerConfig
from seqloom.text.word_spans import join_words
from seqloom.train.config import FitConfig


@config
class Recipe:
    task: Literal["tag"] = "tag"
    seed: int = 1
    init: InitConfig | None = None  # begin with a run that was trained on something else
    data: CorpusConfig[TokenClassificationExample]
    tokenizer: TokenizerConfig | None = None  # with init, that of the run
    batch: BatchConfig = BatchConfig()
    model: Annotated[TaggerConfig | FineTunedTaggerConfig, Discriminator("kind")] = TaggerConfig()
    goal: Literal["loss", "token_accuracy", "span_f1"] | None = None  # null: span_f1 if tags mark spans, else accuracy
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from reading_problems(self)


class Task(ReadingTask):
    corpus: Corpus[TokenClassificationExample]

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus[TokenClassificationExample],
        tokenizer: Tokenizer,
        tags: Sequence[str],
        spellings: Spellings | None,
    ):
        super().__init__()
        self.recipe, self.corpus, self.tokenizer = recipe, corpus, tokenizer
        self.names, self.spellings = tags, spellings
        self._numbers = {tag: number for number, tag in enumerate(tags)}
        self._pieces: dict[str, list[Piece]] = {}
        metric = recipe.goal or ("span_f1" if marks_spans(tags) else "token_accuracy")
        self.monitor = Monitor(metric, higher_is_better=metric != "loss", unit="nats per word")

    @classmethod
    def metric_of(cls, recipe: Recipe) -> str:
        return recipe.goal or ""

    @classmethod
    def prepare(cls, recipe: Recipe) -> Self:
        source = pretrained(recipe)
        corpus = corpora.load(recipe.data)
        corpus.split("dev")  # there is no choosing without one: say so before the work, not after it
        if recipe.goal == "span_f1" and not has_spans(corpus):
            raise UsageError(
                f"goal span_f1 needs tags that mark spans, such as B-PER; the tags of {corpus.name} do not. "
                "Set goal=token_accuracy."
            )
        sentences = [sentence.words for sentence in corpus.split("train")]
        tokenizer, spellings = tokenizer_for(recipe, source, (join_words(words)[0] for words in sentences)), None
        if recipe.model.characters is not None:
            spellings = Spellings.learned(word for words in sentences for word in words)
        task = cls(recipe, corpus, tokenizer, corpus.labels, spellings)
        task.begins_with(source)
        return task

    @classmethod
    def reopen(cls, recipe: Recipe, run: Run) -> Self:
        corpus = corpora.load(recipe.data)
        refuse_changed_data(run, corpus)
        task = cls(recipe, corpus, run.tokenizer, run.labels, spellings_of(run))
        task.pretrained = still_needed(recipe, run)
        return task

    @classmethod
    def of_documents(cls, recipe: Recipe, run: Run, documents: Sequence[str]) -> Self:
        raise UsageError(
            f"{run.path} tags: it is measured on sentences with tags, not on a text. Name a --split, or let it "
            f"answer: seqloom tag {run.path} < FILE."
        )

    def sizes(self) -> dict[str, int]:
        return {"tags": len(self.names), **self.alphabet_size()}

    def model(self) -> Any:
        model = self.built()
        model.constrain(self.names)
        return model

    # --- data -------------------------------------------------------------------------------------------------------

    def reader(self) -> SentenceReader:
        return sentence_reader(self.recipe, self.tokenizer, self.spellings)

    def words(self, split: str) -> list[Sequence[str]]:
        return [sentence.words for sentence in self.corpus.split(split)]

    def plain_texts(self, split: str) -> list[str]:
        return [join_words(words)[0] for words in self.words(split)]

    def cut(self) -> int:
        return len({piece.sentence for piece in self.pieces("train") if piece.start})

    def pieces(self, split: str) -> list[Piece]:
        """What is read at once: a sentence, or a part of a long one."""
        if split not in self._pieces:
            self._pieces[split] = self.reader().pieces(self.words(split))
        return self._pieces[split]

    def tags(self, split: str) -> list[list[int]]:
        """The numbers of the tags of each piece. A span that is cut begins anew: what follows is still valid."""
        sentences, found = self.corpus.split(split), []
        for piece in self.pieces(split):
            tags = list(sentences[piece.sentence].tags[piece.start : piece.end])
            if piece.start and has_spans(self.corpus) and tags[0].startswith("I"):
                tags[0] = f"B{tags[0][1:]}"
            found.append([self._numbers.get(tag, UNSEEN) for tag in tags])
        return found

    def _batches(self, split: str, **options: Any) -> TextBatches:
        return self.reader().batches(self.words(split), self.pieces(split), tags=self.tags(split), **options)

    def warnings(self) -> list[str]:
        found = super().warnings()
        if long := self.cut():
            found.append(
                f"{long:,} of {len(self.corpus.split('train')):,} training sentences {'is' if long == 1 else 'are'} "
                f"longer than {read_length(self.recipe)} tokens, and read in pieces (batch.max_length)."
            )
        return found

    # --- training and measuring -------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Every sentence is read by itself, so nothing is carried. What is counted are the tokens read."""
        value, count = model.loss(batch)
        return Loss(value, None, batch["read"], count)

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return self.report(model, split).metrics

    def report(self, model: Any, split: str) -> TagReport:
        """Every figure of a split."""
        return self.figures(*self.answers(model, split), split)

    def figures(self, found: Sequence[Sequence[str]], loss: float, split: str) -> TagReport:
        """Every figure, given the tags that a model said, and its loss."""
        made = report([sentence.tags for sentence in self.corpus.split(split)], found, self.names)
        return replace(made, metrics={"loss": loss, **made.metrics})

    @torch.no_grad()
    def answers(self, model: Any, split: str) -> tuple[list[list[str]], float]:
        """The tags a model gives the words of a split, and the mean of −log p over the words whose tag it knows."""
        pieces, total, counted = self.pieces(split), 0.0, 0
        said: list[list[str]] = [[] for _ in pieces]
        for members, batch in self.read(split).every():
            batch = to_device(batch, device_of(model))
            log_probs, counts = model.log_likelihood(batch)
            total, counted = total - log_probs.double().sum().item(), counted + int(counts.sum())
            for place, row in zip(members.tolist(), model.predict(batch).tolist(), strict=False):
                said[place] = [self.names[number] for number in row[: len(pieces[place].first)]]
        found: list[list[str]] = [[] for _ in self.corpus.split(split)]
        for piece, tags in zip(pieces, said, strict=True):  # in the order of their sentences
            found[piece.sentence] += tags
        return found, total / counted if counted else float("nan")


def sentence_reader(recipe: Any, tokenizer: Tokenizer, spellings: Spellings | None) -> SentenceReader:
    """How sentences are read, in training and in use."""
    return SentenceReader(tokenizer, spellings, read_length(recipe), frame_of(recipe.model, tokenizer))


INFO = TaskInfo(
    name="tag",
    recipe=Recipe,
    task=Task,
    forms=("tagged",),
    predictor="seqloom.predict.tagger:Tagger",
    command="tag {run}",
    metric="token_accuracy",
    loss_per="word",
    examples="sentences",
    views=("understand", "vectors", "walk", "heads", "cell"),
)
