"""Language modelling by gradient descent on a stream of text.

The documents of a split, each followed by END, form one stream. The stream is divided into `batch.size` contiguous
sequences. The sequences are read in parallel in chunks of `batch.length` tokens. A recurrent model carries its state
from chunk to chunk and detaches it (truncated backpropagation through time). A feed-forward model carries the tokens of
its window. A GPT reads only its chunk. Without cross-document attention, feed-forward models and GPTs read only the
current document.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.config.constraints import PositiveInt, Probability
from seqloom.core.device import device_of, make_generator
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
    """Batches of the stream."""

    size: PositiveInt = 32  # number of sequences per batch
    length: PositiveInt = 64  # number of tokens per chunk; gradients do not cross chunk boundaries
    state_reset_probability: Probability = 0.02  # probability that a sequence starts a chunk with the initial state
    random_offset: bool = False  # start every epoch at a random offset, so that chunks are cut at different positions
    # whether tokens attend to earlier documents; must be true for recurrent models
    cross_document_attention: bool = True
    # number of sequences in evaluation; more are faster, but each starts with the initial state
    eval_size: PositiveInt = 1


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
                f"batch.length must be at most {most}, the context of the model (model.context, "
                f"model.positions.max_length); got {self.batch.length}. Set batch.length={most}"
            )


class Task(TextTask[Recipe, Any]):
    @property
    def loss_remark(self) -> str:
        """A remark on a sampled softmax, whose training loss cannot be converted to a perplexity."""
        model = self.recipe.model
        return "of samples" if model.kind != "gpt" and model.softmax.kind == "sampled" else ""

    def check_model(self) -> None:
        if self.recipe.model.kind != "gpt":
            self.recipe.model.check(len(self.tokenizer))

    def model(self) -> Any:
        model = self.recipe.model.build(len(self.tokenizer))
        if self.recipe.model.kind != "gpt":
            model.set_counts(torch.bincount(self.stream("train"), minlength=len(self.tokenizer)))
        self.load_pretrained(model)
        return model

    @cached_property
    def batches(self) -> "StreamBatches":
        from seqloom.data.batching import StreamBatches

        return StreamBatches(self.stream("train"), size=self.recipe.batch.size, length=self.recipe.batch.length)

    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def warnings(self) -> list[str]:
        """Return warnings about a text that is too short for one chunk per sequence, and about untrained positions."""
        model, notes = self.recipe.model, []
        rows, chunk, length = self.batches.size, self.batches.length, self.batches.row_length
        if length < chunk:
            tokens = len(self.stream("train"))
            change = f"batch.size to {tokens // chunk} or less" if tokens >= chunk else "batch.length"
            carried = "" if model.kind == "gpt" else " without a carried state"
            notes.append(
                f"The training text is shorter than one chunk per sequence: {tokens:,} tokens in {rows} sequences are "
                f"{length} each, but batch.length is {chunk}. Each epoch is one short step{carried}. "
                f"Use more text, or lower {change}."
            )
        if self.recipe.init is None and model.kind == "gpt" and model.window > self.recipe.batch.length:
            chunk = self.recipe.batch.length
            is_relative = model.longest is None
            effect = "longer distances are not learned" if is_relative else "later position embeddings are not trained"
            notes.append(
                f"The model has a context of {model.window} tokens, but training uses batch.length={chunk}: "
                f"{effect}. Set batch.length to {model.window}, or model.context to {chunk}."
            )
        return notes

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        """Return a chunk of each sequence. The seed determines state resets and the offsets of epochs."""
        offset, epoch = 0, step // self.steps_per_epoch()
        if self.recipe.batch.random_offset:
            offset = int(torch.randint(len(self.stream("train")), (), generator=make_generator(seed, "shift", epoch)))
        batch = self.batches.batch(step, rank, world, offset)
        draws = torch.rand(len(batch["inputs"]), 1, generator=make_generator(seed, "forget", step, rank))
        return {**batch, "remember": draws >= self.recipe.batch.state_reset_probability}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        apart, kind = self.recipe.batch.cross_document_attention is False, self.recipe.model.kind
        if kind == "gpt":
            documents = number_documents(batch["inputs"]) if apart else None
            value, _ = model.loss(batch["inputs"], batch["targets"], documents=documents)
            return Loss(value, None, batch["targets"].numel())
        before = None if batch["fresh"] or carry is None else tree_map(lambda leaf: leaf * batch["remember"], carry)
        options = {"split_documents": apart} if kind == "window-lm" else {}
        value, state = model.loss(batch["inputs"], batch["targets"], before, **options)
        return Loss(value, state, batch["targets"].numel())

    def log_probs(self, model: Any, split: str, rows: int = 1) -> Tensor:
        """Return log p of each token. Without cross-document attention, each document is scored separately."""
        if self.recipe.batch.cross_document_attention:
            return super().log_probs(model, split, self.recipe.batch.eval_size)
        encoded = list(self.tokenizer.encode_batch(self.corpus.split(split)))
        from seqloom.evaluate.perplexity import score_texts

        return torch.cat(score_texts(model, encoded, end=self.tokenizer.end, device=device_of(model)))


def number_documents(inputs: Tensor) -> Tensor:
    """Return the index of each token's document in its sequence (B, T). A document starts at the preceding END."""
    return (inputs == END).cumsum(dim=1)


INFO = TaskInfo(
    name="language-model",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.language_model:LanguageModelPredictor",
    command="generate {run}",
    pipeline_tag="text-generation",
    metric="perplexity",
    views=("write", "beam", "vectors", "walk", "heads", "cell"),
)
