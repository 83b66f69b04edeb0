"""What tasks share whose language model reads a prompt and learns its completion."""

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from seqloom.config import config
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.collate import PromptCompletion, PromptCompletionBatches
from seqloom.runs.init import InitConfig
from seqloom.tasks.base import BatchedTask, TaskRecipe
from seqloom.text import TokenizerConfig

if TYPE_CHECKING:
    from seqloom.runs.transfer import Pretrained


@config
class CompletionRecipe(TaskRecipe):
    """The keys of a recipe that takes over a whole language model."""

    init: InitConfig = field()  # the language model; required
    data: Any
    tokenizer: TokenizerConfig | None = None  # that of the run in init.from

    def problems(self) -> Iterator[str]:
        if self.tokenizer is not None:
            yield "tokenizer is that of the run in init.from: leave the section out"


class CompletionTask(BatchedTask):
    """A task whose language model reads a prompt and learns its completion."""

    @classmethod
    def open_pretrained(cls, recipe: Any) -> "Pretrained":
        """Open a run whose language model is taken over with what predicts the next token."""
        from seqloom.runs.transfer import Pretrained

        source = Pretrained.open(recipe.init.from_).as_language_model()
        source.check_weights()
        return source

    def prompts(self, split: str) -> Iterable[PromptCompletion]:
        """The prompts and completions of a split, in tokens."""
        raise NotImplementedError

    def about_cut(self, count: int) -> str:
        """A sentence on so many training examples that were too long."""
        raise NotImplementedError

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> PromptCompletionBatches:
        return PromptCompletionBatches(self.prompts(split), tokens=tokens, shapes=shapes)

    def tokens_per_step(self) -> float:
        """On average, those that are learned."""
        learned: int = self.batches.counted
        return learned / self.steps_per_epoch()

    def warnings(self) -> list[str]:
        notes = super().warnings()
        return [*notes, self.about_cut(self.batches.cut)] if self.batches.cut else notes

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        return Loss(completion_loss(model, batch), None, batch["read"], batch["counted"].sum())


def completion_loss(model: Any, batch: Tree) -> Tensor:
    """−1/N Σ log p of the N targets that count."""
    scores, _ = model.score(batch["inputs"], batch["targets"], model.start(rows=len(batch["inputs"])))  # (B, T)
    return -(scores * batch["counted"]).sum() / batch["counted"].sum().clamp(min=1)
