"""Prompt tuning: a few vectors before the text are learned, and a frozen language model answers with a label.

A text and its label are written as a template says, `{text} = {label}`. The loss is −log p of the label's tokens and of
END after them, and it changes nothing but the vectors. The answer is the label that is likeliest per token, as
`seqloom prompt` chooses it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import tensors_to_bytes
from seqloom.core.protocols import Loss, Monitor
from seqloom.core.seeding import generator
from seqloom.core.tree import Tree
from seqloom.data import corpora
from seqloom.data.collate import PromptCompletion, PromptCompletionBatches, encode_completion, shorten_prompt
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.prompts import TEMPLATE, Template
from seqloom.evaluate.classification import report
from seqloom.evaluate.continuations import continuation_log_probs, in_common
from seqloom.models.soft_prompt import FROZEN, SoftPromptConfig
from seqloom.runs.init import InitConfig, Pretrained
from seqloom.runs.run import FROZEN_FILE, Run
from seqloom.tasks import base
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.classify import BatchConfig, describe
from seqloom.tasks.language_model import device_of, refuse_changed_data
from seqloom.text import Tokenizer, TokenizerConfig
from seqloom.train.config import FitConfig


@config
class Recipe:
    task: Literal["prompt-tune"] = "prompt-tune"
    seed: int = 1
    init: InitConfig  # the language model
    data: CorpusConfig[TextClassificationExample]
    tokenizer: TokenizerConfig | None = None  # that of the run in init.from
    template: str = TEMPLATE  # how a text and its label are written
    batch: BatchConfig = BatchConfig()
    model: Annotated[SoftPromptConfig, Discriminator("kind")] = SoftPromptConfig()
    goal: Literal["loss", "accuracy", "macro_f1", "matthews"] = "accuracy"  # which figure of dev chooses the best
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from language_model_problems(self)
        if not self.init.weights:
            yield "init.weights must be true: a prompt is learned for a language model that has learned before"
        try:
            Template.parse(self.template)
        except UsageError as error:
            yield str(error)


def language_model_problems(recipe: Any) -> Iterator[str]:
    """What does not go together where a language model is taken over whole."""
    if recipe.tokenizer is not None:
        yield "tokenizer is that of the run in init.from: leave the section out"


class ToldTask(base.Task, ABC):
    """What tasks share whose language model is told a question and learns the answer."""

    recipe: Any
    corpus: Any

    @abstractmethod
    def examples(self, split: str) -> list[PromptCompletion]:
        """The questions and answers of a split."""

    @abstractmethod
    def about_cut(self, count: int) -> str:
        """A word on so many training examples that were too long."""

    @cached_property
    def batches(self) -> PromptCompletionBatches:
        """The training split, as training reads it."""
        return PromptCompletionBatches(
            self.examples("train"), tokens=self.recipe.batch.tokens, shapes=self.recipe.batch.shapes
        )

    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def tokens_per_step(self) -> float:
        """On average, those that are learned."""
        return self.batches.counted / self.steps_per_epoch()

    def largest_step(self, seed: int) -> int:
        return self.batches.largest_step(seed)

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        return self.batches.batch(seed, step, rank, world)

    def warnings(self) -> list[str]:
        notes = [f"{note}." for note in self.corpus.notes]
        return [*notes, self.about_cut(self.batches.cut)] if self.batches.cut else notes

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        return Loss(answer_loss(model, batch), None, batch["read"], batch["counted"].sum())


class Task(ToldTask):
    counted = "tokens"

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus[TextClassificationExample],
        tokenizer: Tokenizer,
        labels: Sequence[str],
        frozen: dict[str, Tensor] | None,
        described: dict[str, Any],
    ):
        self.recipe, self.corpus, self.tokenizer, self.names = recipe, corpus, tokenizer, list(labels)
        self.template = Template.parse(recipe.template)
        self.frozen, self.described = frozen, described
        self.monitor = Monitor(recipe.goal, higher_is_better=recipe.goal != "loss", unit="nats per token of the label")

    @classmethod
    def metric_of(cls, recipe: Recipe) -> str:
        return recipe.goal

    @classmethod
    def prepare(cls, recipe: Recipe) -> Self:
        source = whole_model(recipe.init)
        corpus = corpora.load(recipe.data)
        corpus.split("dev")  # there is no choosing without one: say so before the work, not after it
        weights = {f"{FROZEN}{name}": tensor for name, tensor in source.run.weights().items()}
        described = source.described(recipe.init)
        task = cls(recipe, corpus, source.tokenizer, corpus.labels, weights, described)
        task.check_labels()
        return task

    @classmethod
    def reopen(cls, recipe: Recipe, run: Run) -> Self:
        corpus = corpora.load(recipe.data)
        refuse_changed_data(run, corpus)
        return cls(recipe, corpus, run.tokenizer, run.labels, run.frozen(), run.data.get("init", {}))

    @classmethod
    def of_documents(cls, recipe: Recipe, run: Run, documents: Sequence[str]) -> Self:
        raise UsageError(
            f"{run.path} answers with labels: it is measured on texts that have some. Name a --split, or let it "
            f"answer: seqloom prompt {run.path} < FILE."
        )

    def check_labels(self) -> None:
        """A label that the vocabulary cannot spell could never be said."""
        for label in self.names:
            made, unknown = (
                encode_completion(self.tokenizer, self.template.question("x"), label),
                self.tokenizer.unknown,
            )
            if unknown is not None and unknown in made.ids[made.start :]:
                raise DataError(
                    f"The vocabulary of {self.recipe.init.from_} does not have the label {label!r}. Take labels in "
                    "words it was trained on, or a language model that reads characters or byte pairs."
                )

    def documents(self) -> dict[str, Any]:
        return {
            "tokenizer.json": self.tokenizer.to_json(),
            "labels.json": self.names,
            "data.json": {**describe(self.corpus), "init": self.described},
        }

    def files(self) -> dict[str, bytes]:
        """The language model, once for all checkpoints."""
        assert self.frozen is not None
        return {FROZEN_FILE: tensors_to_bytes(self.frozen)}

    def model(self) -> Any:
        model = self.recipe.model.build(len(self.tokenizer))
        if model.prompt.is_meta:  # it was only built to be counted
            return model
        model.load_state_dict({**model.state_dict(), **(self.frozen or {})})
        if self.recipe.model.begin == "tokens":
            read = torch.from_numpy(self.batches.texts.ids).long()
            drawn = generator(self.recipe.seed, "prompt")
            model.begin_as(read[torch.randint(len(read), (self.recipe.model.length,), generator=drawn)])
        return model

    # --- data -------------------------------------------------------------------------------------------------------

    @property
    def longest(self) -> int | None:
        """The most tokens of a text with its label, END included."""
        own, most = self.recipe.batch.max_length, self.recipe.model.window
        return own if most is None else min(own or most, most)

    @cached_property
    def most_said(self) -> int:
        """The most tokens of a label, END after it included."""
        made = [encode_completion(self.tokenizer, self.template.question("x"), label) for label in self.names]
        return 1 + max(len(one.ids) - one.start for one in made)

    def question(self, text: str) -> tuple[str, bool]:
        """A text as the template says, so long that any label has room after it; and whether it had to be cut."""
        if self.longest is None:
            return self.template.question(text), False
        room, whole = self.longest - self.most_said, text
        while (over := len(self.tokenizer.encode(self.template.question(text))) - room) > 0:
            shorter = shorten_prompt(self.tokenizer, text, over)
            if shorter == text:
                raise DataError(
                    f"{self.longest} tokens (batch.max_length, or what the language model sees at once) are {over} too "
                    f"few for a text with the template, a label of {self.most_said - 1} tokens, and END."
                )
            text = shorter
        return self.template.question(text), text != whole

    def examples(self, split: str) -> list[PromptCompletion]:
        return [self._one(example.text, example.label) for example in self.corpus.split(split)]

    def _one(self, text: str, label: str) -> PromptCompletion:
        question, cut = self.question(text)
        made = encode_completion(self.tokenizer, question, label)
        return PromptCompletion(made.ids, made.start, cut)

    def about_cut(self, count: int) -> str:
        return (
            f"{count:,} training texts are too long to be read with their label in {self.longest} tokens: only their "
            "beginning is read (batch.max_length)."
        )

    # --- training and measuring -------------------------------------------------------------------------------------

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        expected = [example.label for example in self.corpus.split(split)]
        found = report(expected, self.log_probs(model, split).numpy(), self.names)
        return {"loss": found.metrics["loss"], **found.metrics}

    def log_probs(self, model: Any, split: str) -> Tensor:
        """log p (N, L) of every label of every text among all labels, on the CPU: softmax of the mean per token."""
        rows, starts = list[list[int]](), list[int]()
        for example in self.corpus.split(split):
            question, encode = self.question(example.text)[0], self.tokenizer.encode
            own = [encode(question + label) for label in self.names]
            starts += [in_common([encode(question), *own])] * len(own)
            rows += own
        at_once = max(1, self.recipe.batch.eval_tokens // max(map(len, rows)))
        found = continuation_log_probs(
            model, rows, starts, end=self.tokenizer.end, at_once=at_once, device=device_of(model)
        )
        means = torch.stack([scores.mean() for scores in found]).view(-1, len(self.names))
        return means.log_softmax(dim=1)


def answer_loss(model: Any, batch: Tree) -> Tensor:
    """−1/N Σ log p of the N targets that count."""
    scores, _ = model.score(batch["inputs"], batch["targets"], model.start(rows=len(batch["inputs"])))  # (B, T)
    return -(scores * batch["counted"]).sum() / batch["counted"].sum().clamp(min=1)


def whole_model(init: InitConfig) -> Pretrained:
    """A run whose language model is taken over with what predicts the next token."""
    source = Pretrained.open(init.from_).as_language_model()
    source.sha256  # noqa: B018 (says so where it has no weights yet)
    return source


INFO = TaskInfo(
    name="prompt-tune",
    recipe=Recipe,
    task=Task,
    forms=("labelled",),
    predictor="seqloom.predict.language_model:LanguageModel",
    command="prompt {run}",
    metric="accuracy",
    views=("write",),
)
