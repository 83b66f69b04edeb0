"""Prompt tuning: a frozen language model predicts a label after learned vectors and a text.

A template such as `{text} = {label}` combines a text and its label. The loss is −log p of the tokens of the label and
END. Only the vectors before the text are trained. The prediction is the label with the highest log p per token, as in
`seqloom prompt`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.core.device import device_of, make_generator
from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import tensors_to_bytes
from seqloom.data.collate import PromptCompletion, encode_completion, shorten_prompt
from seqloom.data.corpora import CorpusConfig, is_multi_label
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TextClassificationExample
from seqloom.data.prompts import TEMPLATE, Template
from seqloom.evaluate.classification import report
from seqloom.evaluate.perplexity import common_prefix_length, continuation_log_probs
from seqloom.models.soft_prompt import FROZEN, SoftPromptConfig, SoftPromptModel
from seqloom.runs.layout import FROZEN_FILE
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.reading_base import BatchConfig
from seqloom.tasks.text_base import CompletionRecipe, CompletionTask
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.runs.run import Run


@config
class Recipe(CompletionRecipe):
    task: Literal["prompt-tune"] = "prompt-tune"
    data: CorpusConfig[TextClassificationExample]
    template: str = TEMPLATE  # template of a text and its label
    batch: BatchConfig = BatchConfig()
    model: Annotated[SoftPromptConfig, Discriminator("kind")] = SoftPromptConfig()
    # dev metric that selects the best checkpoint
    monitor: Literal["loss", "accuracy", "macro_f1", "matthews"] = "accuracy"
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.init.weights:
            yield "init.weights must be true: a prompt is learned for a trained language model"
        try:
            Template.parse(self.template)
        except UsageError as error:
            yield str(error)
        if is_multi_label(self.data):
            yield "data.multi_label must be false: a prompt is answered by a single label"


class Task(CompletionTask[Recipe, SoftPromptModel]):
    corpus: Corpus[TextClassificationExample]
    loss_unit = "nats per label token"
    measured_on = "texts with labels"
    frozen: dict[str, Tensor]  # the weights of the language model

    @classmethod
    def predicts_labels(cls, recipe: Recipe) -> bool:
        return True

    @classmethod
    def prepare(cls, recipe: Recipe) -> Self:
        task = super().prepare(recipe)
        assert task.pretrained is not None
        weights = task.pretrained.run.weights()
        task.frozen = {f"{FROZEN}{name}": tensor for name, tensor in weights.items()}
        return task

    @classmethod
    def of_corpus(cls, recipe: Recipe, run: "Run", corpus: Any) -> Self:
        task = super().of_corpus(recipe, run, corpus)
        task.frozen = run.frozen()
        return task

    @cached_property
    def template(self) -> Template:
        return Template.parse(self.recipe.template)

    @cached_property
    def label_tokens(self) -> dict[str, list[int]]:
        """The tokens of each label after a prompt."""
        encoded = {label: encode_completion(self.tokenizer, self.template.question("x"), label) for label in self.names}
        return {label: completion.ids[completion.start :] for label, completion in encoded.items()}

    def check(self) -> None:
        """Reject labels with tokens outside the vocabulary, because the model could not predict them."""
        for label, tokens in self.label_tokens.items():
            if self.tokenizer.unknown is not None and self.tokenizer.unknown in tokens:
                raise DataError(
                    f"The vocabulary of {self.recipe.init.from_} lacks tokens of the label {label!r}. Use labels in "
                    "words it was trained on, or a language model that reads characters or byte pairs."
                )

    def files(self) -> dict[str, bytes]:
        """Return the file of the language model, which all checkpoints share."""
        return {FROZEN_FILE: tensors_to_bytes(self.frozen)}

    def model(self) -> SoftPromptModel:
        model = self.recipe.model.build(len(self.tokenizer))
        if model.prompt.is_meta:  # the model is built only to count parameters
            return model
        model.load_state_dict({**model.state_dict(), **self.frozen})
        if self.recipe.model.init == "tokens":
            ids = torch.from_numpy(self.batches.texts.ids).long()
            draws = make_generator(self.recipe.seed, "prompt")
            model.init_from_tokens(ids[torch.randint(len(ids), (self.recipe.model.length,), generator=draws)])
        return model

    # --- data -------------------------------------------------------------------------------------------------------

    def fill_template(self, text: str) -> tuple[str, bool]:
        """Return a text in the template, truncated so that any label fits, and whether the text was truncated."""
        if self.max_length is None:
            return self.template.question(text), False
        label = max(map(len, self.label_tokens.values()))
        room, original = self.max_length - (label + 1), text  # one more token for END
        while (over := len(self.tokenizer.encode(self.template.question(text))) - room) > 0:
            shorter = shorten_prompt(self.tokenizer, text, over)
            if shorter == text:
                raise DataError(
                    f"The template, a label of {label} tokens and END need {self.max_length + over} tokens, but only "
                    f"{self.max_length} fit (batch.max_length, or the context of the language model). "
                    "Raise batch.max_length."
                )
            text = shorter
        return self.template.question(text), text != original

    def prompts(self, split: str) -> Iterator[PromptCompletion]:
        for example in self.corpus.split(split):
            question, cut = self.fill_template(example.text)
            yield replace(encode_completion(self.tokenizer, question, example.label), cut=cut)

    def truncation_note(self, count: int) -> str:
        return (
            f"{count:,} training texts do not fit in {self.max_length} tokens with their label and are truncated "
            "(batch.max_length)."
        )

    # --- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, model: SoftPromptModel, split: str) -> dict[str, float]:
        expected = [example.label for example in self.corpus.split(split)]
        label_report = report(expected, self.log_probs(model, split).numpy(), self.names)
        return {"loss": label_report.metrics["loss"], **label_report.metrics}

    def log_probs(self, model: SoftPromptModel, split: str) -> Tensor:
        """Return log p (N, L) of each label of each text: the log softmax of the mean log p per token."""
        rows, starts, encode = list[list[int]](), list[int](), self.tokenizer.encode
        for example in self.corpus.split(split):
            question, _ = self.fill_template(example.text)
            labelled = [encode(question + label) for label in self.names]
            starts += [common_prefix_length([encode(question), *labelled])] * len(labelled)
            rows += labelled
        batch_size = max(1, self.recipe.batch.eval_tokens // max(map(len, rows)))
        scores = continuation_log_probs(
            model, rows, starts, end=self.tokenizer.end, batch_size=batch_size, device=device_of(model)
        )
        means = torch.stack([row.mean() for row in scores]).view(-1, len(self.names))
        return means.log_softmax(dim=1)


INFO = TaskInfo(
    name="prompt-tune",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.language_model:LanguageModelPredictor",
    command="prompt {run}",
    pipeline_tag="text-classification",
    metric="accuracy",
    views=("write", "beam"),
)
