"""A language model trained by gradient on a stream of text.

The documents of a split, each followed by END, make one stream. It is cut into `batch.size`
contiguous rows, read side by side `batch.length` tokens at a time. A recurrent model carries its
state from chunk to chunk, and the gradient is cut between them: truncated backpropagation through
time. A feed-forward model carries the tokens of its window on. A GPT sees no more than its chunk.
Where documents are kept apart, the latter two see no more than one document.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import PositiveInt, Probability
from seqloom.core.device import device_of, generator
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree, tree_map
from seqloom.data.corpora import CorpusConfig
from seqloom.models import MODELS
from seqloom.tasks.base import InitRecipe, ModelSection, TaskInfo, dropout_problems
from seqloom.tasks.text_base import TextTask
from seqloom.text import END
from seqloom.train.config import FitConfig

if TYPE_CHECKING:
    from seqloom.data.batching import StreamBatches


@config
class BatchConfig:
    """How the stream is cut."""

    size: PositiveInt = 32  # sequences read side by side
    length: PositiveInt = 64  # tokens between two cuts of the gradient
    state_reset_probability: Probability = (
        0.02  # chance that a row begins a chunk without a memory, so that the model learns to begin
    )
    random_offset: bool = False  # every epoch begins at another place of the stream, so that it is cut elsewhere
    cross_document_attention: bool = True  # whether a document sees those before it; apart: not if recurrent
    eval_size: PositiveInt = 1  # rows in evaluation: more is faster, but each begins without a memory


@config
class Recipe(InitRecipe):
    task: Literal["language-model"] = "language-model"
    data: CorpusConfig[str]
    batch: BatchConfig = BatchConfig()
    model: Annotated[ModelSection, MODELS.only("recurrent-lm", "gpt", "window-lm")] = MODELS.default("recurrent-lm")
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from dropout_problems(self.tokenizer)
        if self.model.kind == "recurrent-lm" and self.batch.cross_document_attention is False:
            yield "batch.cross_document_attention=false needs model.kind gpt or window-lm: recurrent models carry state"
        if self.model.kind == "gpt" and self.batch.length > self.model.window:
            most = self.model.window
            yield (
                f"batch.length must be at most the {most} tokens that the model sees at once (model.context, "
                f"model.positions.max_length); got {self.batch.length}. Set batch.length={most}"
            )


class Task(TextTask[Recipe, Any]):
    @property
    def loss_remark(self) -> str:
        """The loss of samples is that of an easier problem: its exp is no perplexity."""
        model = self.recipe.model
        return "of samples" if model.kind != "gpt" and model.softmax.kind == "sampled" else ""

    def check_model(self) -> None:
        if self.recipe.model.kind != "gpt":
            self.recipe.model.check(len(self.tokenizer))

    def model(self) -> Any:
        model = self.recipe.model.build(len(self.tokenizer))
        if self.recipe.model.kind != "gpt":
            model.set_counts(torch.bincount(self.stream("train"), minlength=len(self.tokenizer)))
        self.take_over_weights(model)
        return model

    @cached_property
    def batches(self) -> "StreamBatches":
        from seqloom.data.batching import StreamBatches

        return StreamBatches(self.stream("train"), size=self.recipe.batch.size, length=self.recipe.batch.length)

    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def warnings(self) -> list[str]:
        """Warn of a text of less than one chunk per row, and of positions that are not learned."""
        model, notes = self.recipe.model, []
        rows, chunk, length = self.batches.size, self.batches.length, self.batches.row_length
        if length < chunk:
            tokens = len(self.stream("train"))
            change = f"batch.size to {tokens // chunk} or less" if tokens >= chunk else "batch.length"
            carried = "" if model.kind == "gpt" else ", and no state is ever carried on"
            notes.append(
                f"The training text is shorter than one chunk per row: {tokens:,} tokens in {rows} rows are {length} a "
                f"row, and batch.length is {chunk}. Each epoch is then one short step{carried}. "
                f"Give more text, or lower {change}."
            )
        if self.recipe.init is None and model.kind == "gpt" and model.window > self.recipe.batch.length:
            chunk = self.recipe.batch.length  # a position is learned from the tokens that stand there
            relative = model.longest is None
            beyond = "it never learns to look so far" if relative else "the learned positions beyond stay as drawn"
            notes.append(
                f"The model will see {model.window} tokens at once, and in training only batch.length, {chunk}: "
                f"{beyond}. Set batch.length to {model.window}, or model.context to {chunk}."
            )
        return notes

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Read the stream in order; the seed decides which rows forget and where epochs begin."""
        offset, epoch = 0, step // self.steps_per_epoch()
        if self.recipe.batch.random_offset:
            offset = int(torch.randint(len(self.stream("train")), (), generator=generator(seed, "shift", epoch)))
        batch = self.batches.batch(step, rank, world, offset)
        draws = torch.rand(len(batch["inputs"]), 1, generator=generator(seed, "forget", step, rank))
        return {**batch, "remember": draws >= self.recipe.batch.state_reset_probability}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        apart, kind = self.recipe.batch.cross_document_attention is False, self.recipe.model.kind
        if kind == "gpt":
            documents = number_documents(batch["inputs"]) if apart else None
            value, _ = model.loss(batch["inputs"], batch["targets"], documents=documents)
            return Loss(value, None, batch["targets"].numel())
        before = None if batch["fresh"] or carry is None else tree_map(lambda leaf: leaf * batch["remember"], carry)
        options = {"apart": apart} if kind == "window-lm" else {}
        value, state = model.loss(batch["inputs"], batch["targets"], before, **options)
        return Loss(value, state, batch["targets"].numel())

    def log_probs(self, model: Any, split: str, rows: int = 1) -> Tensor:
        """Read documents one by one if training keeps them apart."""
        if self.recipe.batch.cross_document_attention:
            return super().log_probs(model, split, self.recipe.batch.eval_size)
        encoded = list(self.tokenizer.encode_batch(self.corpus.split(split)))
        from seqloom.evaluate.perplexity import score_texts

        return torch.cat(score_texts(model, encoded, end=self.tokenizer.end, device=device_of(model)))


def number_documents(inputs: Tensor) -> Tensor:
    """Return the document of each token (B, T) in its row; END before it is its first token."""
    return (inputs == END).cumsum(dim=1)


INFO = TaskInfo(
    name="language-model",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.language_model:LanguageModelPredictor",
    command="generate {run}",
    metric="perplexity",
    views=("write", "beam", "vectors", "walk", "heads", "cell"),
)
