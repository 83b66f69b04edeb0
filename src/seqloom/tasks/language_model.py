"""A language model trained by gradient on a stream of text.

The documents of a split, each followed by END, make one stream. It is cut into `batch.rows` contiguous rows, read side
by side `batch.chunk` tokens at a time. A recurrent model carries its state from chunk to chunk, and the gradient is cut
between them: truncated backpropagation through time. A feed-forward model carries the tokens of its window on. A GPT
sees no more than its chunk. Where documents are kept apart, the latter two see no more than one document.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.core.errors import ChangedDataError, DataError, UsageError
from seqloom.core.protocols import Loss, Monitor
from seqloom.core.seeding import generator
from seqloom.core.tree import Tree, tree_map
from seqloom.data import corpora
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Fingerprinted, TextCorpus
from seqloom.data.stream import StreamBatches
from seqloom.evaluate.in_context import Question, recall
from seqloom.evaluate.perplexity import Totals, metrics, score_texts, stream_log_probs
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.window_lm import WindowLMConfig
from seqloom.runs.init import InitConfig, Pretrained, StillNeeded, Whole, pretrained, still_needed
from seqloom.runs.run import Run
from seqloom.tasks import base
from seqloom.tasks.base import TaskInfo
from seqloom.text import END, Tokenizer, TokenizerConfig, encode_documents, train_tokenizer
from seqloom.text.spans import token_spans
from seqloom.train.config import FitConfig

ModelConfig = RecurrentLMConfig | GPTConfig | WindowLMConfig


@config
class BatchConfig:
    """How the stream is cut."""

    rows: int = 32  # sequences read side by side
    chunk: int = 64  # tokens between two cuts of the gradient
    forget: float = 0.02  # chance that a row begins a chunk without a memory, so that the model also learns to begin
    shift: bool = False  # every epoch begins at another place of the stream, so that it is cut elsewhere
    documents: Literal["join", "apart"] = "join"  # whether a document sees those before it; apart: not if recurrent
    eval_rows: int = 1  # rows in evaluation: more is faster, but each begins without a memory

    def problems(self) -> Iterator[str]:
        for name in ("rows", "chunk", "eval_rows"):
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1, got {getattr(self, name)}"
        if not 0 <= self.forget <= 1:
            yield f"forget must be from 0 to 1, got {self.forget}"


@config
class Recipe:
    task: Literal["language-model"] = "language-model"
    seed: int = 1
    init: InitConfig | None = None  # go on with a language model that was trained on something else
    data: CorpusConfig[str]
    tokenizer: TokenizerConfig | None = None  # with init, that of the run
    batch: BatchConfig = BatchConfig()
    model: Annotated[ModelConfig, Discriminator("kind")] = RecurrentLMConfig()
    train: FitConfig

    def problems(self) -> Iterator[str]:
        if self.init is not None and self.tokenizer is not None:
            yield "tokenizer is that of the run in init.from: leave the section out"
        if self.init is None and self.tokenizer is None:
            yield "tokenizer: missing; it must be a section, or init.from, a run that has one"
        if isinstance(self.model, RecurrentLMConfig) and self.batch.documents == "apart":
            yield "batch.documents=apart is for model.kind gpt or window-lm: a recurrent model carries its state on"
        if isinstance(self.model, GPTConfig) and self.batch.chunk > self.model.window:
            most = self.model.window
            yield (
                f"batch.chunk must be at most the {most} tokens that the model sees at once (model.context, "
                f"model.positions.max_length); got {self.batch.chunk}. Set batch.chunk={most}"
            )


class TextTask(base.Task):
    """What every task on plain text shares: its corpus, its tokenizer, its streams, its perplexity."""

    monitor = Monitor("loss")
    eval_chunk = 256  # tokens read at once in evaluation

    def __init__(self, recipe: Any, corpus: TextCorpus, tokenizer: Tokenizer):
        self.recipe, self.corpus, self.tokenizer = recipe, corpus, tokenizer
        self._streams: dict[str, Tensor] = {}
        self._kept: dict[str, float] = {}

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        if getattr(recipe.tokenizer, "dropout", 0):
            raise UsageError("tokenizer.dropout is for translation: a stream of text is segmented once. Set it to 0.")
        corpus = load_corpus(recipe)
        corpus.split("dev")  # there is no choosing without one: say so before the work, not after it
        return cls(recipe, corpus, cls.learn_tokenizer(recipe, corpus))

    @classmethod
    def learn_tokenizer(cls, recipe: Any, corpus: TextCorpus) -> Tokenizer:
        return train_tokenizer(recipe.tokenizer, corpus.split("train"))

    @classmethod
    def reopen(cls, recipe: Any, run: Run) -> Self:
        corpus = load_corpus(recipe)
        refuse_changed_data(run, corpus)
        return cls(recipe, corpus, run.tokenizer)

    def documents(self) -> dict[str, Any]:
        return {"tokenizer.json": self.tokenizer.to_json(), "data.json": describe(self.corpus)}

    def stream(self, split: str) -> Tensor:
        if split not in self._streams:
            self._streams[split] = encode_documents(self.tokenizer, self.corpus.split(split))
        return self._streams[split]

    def model(self) -> Any:
        return self.recipe.model.build(len(self.tokenizer))

    def eval_rows(self) -> int:
        return 1

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return {**self.metrics(self.log_probs(model, split), split), **self.recalled(model, split)}

    def recalled(self, model: Any, split: str) -> dict[str, float]:
        """Where the corpus has questions: the share of right answers, by how often the text had told them before."""
        if self.corpus.asked is None:
            return {}
        documents = self.corpus.split(split)
        encoded, questions = list(self.tokenizer.encode_batch(documents)), [self._questions(one) for one in documents]
        return recall(model, encoded, questions, end=self.tokenizer.end, device=device_of(model))

    def _questions(self, document: str) -> list[Question]:
        """What is asked of a document, in tokens."""
        assert self.corpus.asked is not None
        ends = [end for _, end in token_spans(self.tokenizer, document)]
        return [
            Question(bisect_right(ends, one.start), bisect_left(ends, one.end) + 1, one.group)
            for one in self.corpus.asked(document)
        ]

    def log_probs(self, model: Any, split: str) -> Tensor:
        """log p of every token of the split's stream (N,), on the CPU."""
        return stream_log_probs(
            model,
            self.stream(split),
            end=self.tokenizer.end,
            rows=self.eval_rows(),
            chunk=self.eval_chunk,
            device=device_of(model),
        )

    def metrics(self, log_probs: Tensor, split: str) -> dict[str, float]:
        """Every metric of a split, given what a model thought of each of its tokens (N,)."""
        counts = self.corpus.counts(split)
        found = metrics(Totals.of(log_probs), words=counts.words, characters=counts.characters, size=counts.bytes)
        return {**found, "unknown_rate": self.unknown_rate(split), "text_kept": self.text_kept(split)}

    def text_kept(self, split: str) -> float:
        """The share of documents that come back from their tokens unchanged, white space at their ends aside.

        What a tokenizer loses need not be predicted, so figures per character flatter the model.
        """
        if split not in self._kept:
            documents = self.corpus.split(split)
            texts = map(self.tokenizer.decode, self.tokenizer.encode_batch(documents))
            same = [text.strip() == document.strip() for text, document in zip(texts, documents, strict=True)]
            self._kept[split] = sum(same) / len(same)
        return self._kept[split]

    def unknown_rate(self, split: str) -> float:
        """The share of tokens read as <unk> for want of the word itself; an <unk> the text itself writes is no such."""
        unknown = self.tokenizer.unknown
        if unknown is None:
            return 0.0
        found = int((self.stream(split) == unknown).sum())
        if self.tokenizer.encode("<unk>") == [unknown]:
            found -= sum(document.split().count("<unk>") for document in self.corpus.split(split))
        return found / len(self.stream(split))

    @classmethod
    def of_documents(cls, recipe: Any, run: Run, documents: Sequence[str]) -> Self:
        """The same task on any other text, its only split "other"."""
        return cls(recipe, TextCorpus("other text", "", "", "", {"other": documents}), run.tokenizer)


class Task(TextTask):
    recipe: Recipe
    pretrained: Pretrained | StillNeeded | None = None

    def __init__(self, recipe: Any, corpus: TextCorpus, tokenizer: Tokenizer):
        super().__init__(recipe, corpus, tokenizer)
        if _sampled(recipe.model):  # the loss is that of an easier problem: its exp is no perplexity
            self.monitor = replace(self.monitor, unit="nats, of samples")

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        task = super().prepare(recipe)
        task.pretrained = pretrained(recipe)
        if not isinstance(recipe.model, GPTConfig):
            recipe.model.check(len(task.tokenizer))  # before the run directory is made
        return task

    @classmethod
    def learn_tokenizer(cls, recipe: Any, corpus: TextCorpus) -> Tokenizer:
        source = pretrained(recipe)
        return super().learn_tokenizer(recipe, corpus) if source is None else source.tokenizer

    @classmethod
    def reopen(cls, recipe: Any, run: Run) -> Self:
        task = super().reopen(recipe, run)
        task.pretrained = still_needed(recipe, run)
        return task

    def documents(self) -> dict[str, Any]:
        found = super().documents()
        if isinstance(self.pretrained, Pretrained):
            assert self.recipe.init is not None
            found["data.json"] |= {"init": self.pretrained.described(self.recipe.init)}
        return found

    def model(self) -> Any:
        model = super().model()
        if not isinstance(self.recipe.model, GPTConfig):
            model.set_counts(torch.bincount(self.stream("train"), minlength=len(self.tokenizer)))
        if self.pretrained is not None and self.recipe.init is not None and self.recipe.init.weights:
            self.pretrained.give(Whole(model))
        return model

    def eval_rows(self) -> int:
        return self.recipe.batch.eval_rows

    @cached_property
    def batches(self) -> StreamBatches:
        return StreamBatches(self.stream("train"), size=self.recipe.batch.rows, length=self.recipe.batch.chunk)

    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def warnings(self) -> list[str]:
        return [*self._short_text(), *self._unread_places()]

    def _short_text(self) -> list[str]:
        """A text of less than one chunk per row is still read, as one short chunk: that works, but is rarely meant."""
        rows, chunk, length = self.batches.size, self.batches.length, self.batches.row_length
        if length >= chunk:
            return []
        tokens = len(self.stream("train"))
        change = f"batch.rows to {tokens // chunk} or less" if tokens >= chunk else "batch.chunk"
        carried = "" if isinstance(self.recipe.model, GPTConfig) else ", and no state is ever carried on"
        return [
            f"The training text is shorter than one chunk per row: {tokens:,} tokens in {rows} rows are {length} a "
            f"row, and batch.chunk is {chunk}. Each epoch is then one short step{carried}. "
            f"Give more text, or lower {change}."
        ]

    def _unread_places(self) -> list[str]:
        """What is learned of a place is learned from the tokens that stand there."""
        model, chunk = self.recipe.model, self.recipe.batch.chunk
        if self.recipe.init is not None or not isinstance(model, GPTConfig) or model.window <= chunk:
            return []
        beyond = (
            "it never learns to look so far" if model.longest is None else "the learned positions beyond stay as drawn"
        )
        return [
            f"The model will see {model.window} tokens at once, and in training only batch.chunk, {chunk}: {beyond}. "
            f"Set batch.chunk to {model.window}, or model.context to {chunk}."
        ]

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """The stream is read in order, epoch after epoch; the seed decides which rows forget and where epochs begin."""
        batch = self.batches.batch(step, rank, world, self._offset(seed, step // self.steps_per_epoch()))
        draws = torch.rand(len(batch["inputs"]), 1, generator=generator(seed, "forget", step, rank))
        return {**batch, "remember": draws >= self.recipe.batch.forget}

    def _offset(self, seed: int, epoch: int) -> int:
        if not self.recipe.batch.shift:
            return 0
        return int(torch.randint(len(self.stream("train")), (), generator=generator(seed, "shift", epoch)))

    def log_probs(self, model: Any, split: str) -> Tensor:
        """Documents that are kept apart in training are also read one by one here: each after its END alone."""
        if self.recipe.batch.documents == "join":
            return super().log_probs(model, split)
        encoded = list(self.tokenizer.encode_batch(self.corpus.split(split)))
        return torch.cat(score_texts(model, encoded, end=self.tokenizer.end, device=device_of(model)))

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        apart = self.recipe.batch.documents == "apart"
        if isinstance(self.recipe.model, GPTConfig):
            documents = numbered(batch["inputs"]) if apart else None
            value, _ = model.loss(batch["inputs"], batch["targets"], documents=documents)
            return Loss(value, None, batch["targets"].numel())
        before = None if batch["fresh"] or carry is None else tree_map(lambda leaf: leaf * batch["remember"], carry)
        more = {"apart": apart} if isinstance(self.recipe.model, WindowLMConfig) else {}
        value, state = model.loss(batch["inputs"], batch["targets"], before, **more)
        return Loss(value, state, batch["targets"].numel())


def numbered(inputs: Tensor) -> Tensor:
    """Which document of its row each token (B, T) belongs to. END stands before a document: it is the first of it."""
    return (inputs == END).cumsum(dim=1)


def _sampled(model: ModelConfig) -> bool:
    return not isinstance(model, GPTConfig) and model.softmax.kind == "sampled"


def device_of(model: Any) -> torch.device:
    """Where a model computes: what it says itself, or else where its weights are."""
    found: torch.device = getattr(model, "device", None) or next(iter(model.state_dict().values())).device
    return found


def load_corpus(recipe: Any) -> TextCorpus:
    if recipe.data is None:
        raise DataError(
            "There is no data: the recipe has no `data` section, as when a model was imported. "
            "Name a corpus there, or evaluate a text: --text FILE."
        )
    return corpora.load(recipe.data)


def describe(corpus: TextCorpus) -> dict[str, Any]:
    """What a run remembers of its data."""
    return {
        "corpus": corpus.name,
        "version": corpus.version,
        "licence": corpus.licence,
        "sha256": corpus.fingerprint(),
        "counts": {split: asdict(corpus.counts(split)) for split in corpus.splits},
    }


def refuse_changed_data(run: Run, corpus: Fingerprinted) -> None:
    """Two versions of a corpus are not the same data, whatever they are called."""
    now, then = corpus.fingerprint(), run.data["sha256"]
    changed = sorted(split for split in now.keys() | then.keys() if now.get(split) != then.get(split))
    if changed:
        raise ChangedDataError(
            f"The data of {run.path} has changed since it was trained: {', '.join(changed)} of {corpus.name} differ "
            f"(then {run.data['version']}, now {corpus.version}). Bring the old data back, or train anew on the new."
        )


INFO = TaskInfo(
    name="language-model",
    recipe=Recipe,
    task=Task,
    forms=("text",),
    predictor="seqloom.predict.language_model:LanguageModel",
    command="generate {run}",
    metric="perplexity",
    views=("write", "vectors", "walk", "heads", "cell"),
)
