"""Base classes of tasks on plain text: streams of tokens, perplexity, prompts and completions."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from seqloom.config import config, to_mapping
from seqloom.core.device import device_of
from seqloom.core.errors import DataError
from seqloom.core.protocols import Loss, Model
from seqloom.core.tree import Tree
from seqloom.data.corpus import TextCorpus, TextCounts
from seqloom.models import InitConfig
from seqloom.tasks.base import BatchedTask, M, R, Task, TaskRecipe, cached_method, dropout_problems, lora_problems
from seqloom.text import Tokenizer, TokenizerConfig, encode_documents
from seqloom.text.base import split_sentences

if TYPE_CHECKING:
    from seqloom.data.collate import PromptCompletion, PromptCompletionBatches
    from seqloom.evaluate.perplexity import Totals
    from seqloom.runs.run import Run
    from seqloom.runs.transfer import Pretrained


@config
class TextRecipe(TaskRecipe):
    """The keys of a recipe that trains a tokenizer on plain text."""

    data: object
    tokenizer: TokenizerConfig

    def problems(self) -> Iterator[str]:
        yield from dropout_problems(self.tokenizer)


class TextTask(Task[R, M]):
    """A task on plain text, evaluated by perplexity."""

    corpus: TextCorpus
    eval_chunk = 256  # tokens per chunk in evaluation

    @classmethod
    def load(cls, recipe: R) -> TextCorpus:
        if recipe.data is None:
            raise DataError(
                "The recipe has no `data` section, because the model was imported. "
                "Add a section with a corpus, or evaluate a text: seqloom evaluate RUN FILE."
            )
        corpus: TextCorpus = super().load(recipe)
        return corpus

    @classmethod
    def of_documents(cls, recipe: R, run: "Run", documents: Sequence[str]) -> Self:
        return cls(recipe, TextCorpus("other text", "", {"other": documents}), run.tokenizer)

    def warnings(self) -> list[str]:
        return []

    @cached_method
    def stream(self, split: str) -> Tensor:
        """Return the tokens of all documents of a split, each followed by END."""
        return encode_documents(self.tokenizer, self.corpus.split(split))

    def encode_sentences(self, split: str) -> list[list[list[int]]]:
        """Return the tokens of each sentence of each document of a split."""
        documents = [split_sentences(document) for document in self.corpus.split(split)]
        encoded = iter(self.tokenizer.encode_batch(sentence for document in documents for sentence in document))
        return [[next(encoded) for _ in document] for document in documents]

    # --- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, model: M, split: str) -> dict[str, float]:
        return {**self.metrics(self.log_probs(model, split), split), **self.recall_accuracy(model, split)}

    def recall_accuracy(self, model: Any, split: str) -> dict[str, float]:
        """Return the accuracy on the corpus's probed spans by group.

        If the corpus has no probes, return an empty mapping.
        """
        from seqloom.evaluate.perplexity import RecallQuestion, recall

        probe = self.corpus.probe
        if probe is None:
            return {}
        documents, questions = self.corpus.split(split), []
        for document in documents:
            ends = [end for _, end in self.tokenizer.spans(document)]
            questions.append(
                [
                    RecallQuestion(bisect_right(ends, span.start), bisect_left(ends, span.end) + 1, span.group)
                    for span in probe(document)
                ]
            )
        encoded = list(self.tokenizer.encode_batch(documents))
        return recall(model, encoded, questions, end=self.tokenizer.end, device=device_of(model))

    def log_probs(self, model: Any, split: str, rows: int = 1) -> Tensor:
        """Return log p of every token of a split (N,) on the CPU. The split is read in `rows` rows."""
        from seqloom.evaluate.perplexity import stream_log_probs

        return stream_log_probs(
            model,
            self.stream(split),
            end=self.tokenizer.end,
            rows=rows,
            chunk=self.eval_chunk,
            device=device_of(model),
        )

    def metrics(self, log_probs: Tensor, split: str) -> dict[str, float]:
        """Return every metric of a split, computed from log p of each of its tokens (N,)."""
        from seqloom.evaluate.perplexity import Totals

        return {**perplexity_metrics(Totals.of(log_probs), self.corpus.counts(split)), **self.tokenizer_metrics(split)}

    def tokenizer_metrics(self, split: str) -> dict[str, float]:
        """Measure the information that the tokenizer loses. A lossy tokenizer makes other metrics look better."""
        return {"unknown_rate": self.unknown_rate(split), "text_kept": self.text_kept(split)}

    @cached_method
    def text_kept(self, split: str) -> float:
        """Return the fraction of documents that encoding and decoding leave unchanged, apart from outer white space."""
        documents = self.corpus.split(split)
        texts = map(self.tokenizer.decode, self.tokenizer.encode_batch(documents))
        same = [text.strip() == document.strip() for text, document in zip(texts, documents, strict=True)]
        return sum(same) / len(same)

    def unknown_rate(self, split: str) -> float:
        """Return the fraction of tokens that are <unk>, without occurrences of <unk> in the text itself."""
        unknown = self.tokenizer.unknown
        if unknown is None:
            return 0.0
        count = int((self.stream(split) == unknown).sum())
        if self.tokenizer.encode("<unk>") == [unknown]:
            count -= sum(document.split().count("<unk>") for document in self.corpus.split(split))
        return count / len(self.stream(split))


def perplexity_metrics(totals: "Totals", counts: TextCounts) -> dict[str, float]:
    """Return the metrics of a language model: per token, word, character and byte."""
    from seqloom.evaluate.perplexity import metrics

    return metrics(totals, words=counts.words, characters=counts.characters, size=counts.bytes)


def create_run(path: Path, recipe: TaskRecipe, tokenizer: Tokenizer, model: Model) -> "Run":
    """Create a run without data for a model that was trained elsewhere."""
    from seqloom.runs.run import Run

    data = {"corpus": "none", "version": "", "licence": "unknown", "sha256": {}, "counts": {}}
    run = Run.create(path, to_mapping(recipe), {"tokenizer.json": tokenizer.to_json(), "data.json": data})
    run.store().save_best(model.state_dict())
    return run


# --- prompts and their completions ------------------------------------------------------------------------------------


@config
class CompletionRecipe(TaskRecipe):
    """The keys of a recipe that starts from a complete language model."""

    init: InitConfig = field()  # required: the run of the language model
    data: object
    tokenizer: TokenizerConfig | None = None  # always the tokenizer of the run in init.from

    def problems(self) -> Iterator[str]:
        if self.tokenizer is not None:
            yield "tokenizer comes from the run in init.from: leave the section out"
        yield from lora_problems(self.init, self.model)


class CompletionTask(BatchedTask[R, M]):
    """A task whose language model reads a prompt and learns its completion."""

    @classmethod
    def open_pretrained(cls, recipe: R) -> "Pretrained":
        """Open the run of a language model, including its output layer."""
        from seqloom.runs.transfer import Pretrained

        source = Pretrained.open(recipe.init.from_).as_language_model()
        source.check_weights()
        return source

    def prompts(self, split: str) -> "Iterable[PromptCompletion]":
        """Return the tokens of the prompts and completions of a split."""
        raise NotImplementedError

    def truncation_note(self, count: int) -> str:
        """Return a sentence about `count` training examples that are too long."""
        raise NotImplementedError

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of an example, including END."""
        length, model = self.recipe.batch.max_length, self.recipe.model
        context = None if model.kind in ("recurrent-lm", "window-lm") else model.window
        return length if context is None else min(length or context, context)

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> "PromptCompletionBatches":
        from seqloom.data.collate import PromptCompletionBatches

        return PromptCompletionBatches(self.prompts(split), tokens=tokens, shapes=shapes)

    def tokens_per_step(self) -> float:
        """Return the mean number of target tokens."""
        return int(self.batches.counted) / self.steps_per_epoch()

    def warnings(self) -> list[str]:
        notes = super().warnings()
        return [*notes, self.truncation_note(self.batches.cut)] if self.batches.cut else notes

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Return −1/N Σ log p over the N targets of the loss."""
        scores, _ = model.score(batch["inputs"], batch["targets"], model.start(rows=len(batch["inputs"])))  # (B, T)
        value = -(scores * batch["counted"]).sum() / batch["counted"].sum().clamp(min=1)
        return Loss(value, None, batch["read"], batch["counted"].sum())
