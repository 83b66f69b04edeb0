"""What tasks on plain text share: documents as a stream of tokens, and the perplexity of a language model."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from seqloom.config import config, to_mapping
from seqloom.core.device import device_of
from seqloom.core.errors import DataError
from seqloom.core.protocols import Loss
from seqloom.core.tree import Tree
from seqloom.data.collate import PromptCompletion, PromptCompletionBatches
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import TextCorpus
from seqloom.evaluate.perplexity import Totals, metrics, stream_log_probs
from seqloom.runs.models import InitConfig
from seqloom.tasks.base import BatchedTask, TaskRecipe, TokenTask, dropout_problems
from seqloom.text import Tokenizer, TokenizerConfig, encode_documents

if TYPE_CHECKING:
    from seqloom.runs.run import Run
    from seqloom.runs.transfer import Pretrained


@config
class TextRecipe(TaskRecipe):
    """The keys of a recipe that learns a tokenizer from plain text."""

    data: CorpusConfig[str] | None
    tokenizer: TokenizerConfig

    def problems(self) -> Iterator[str]:
        yield from dropout_problems(self.tokenizer)


class TextTask(TokenTask):
    """A task on plain text: its corpus, its tokenizer, its streams, its perplexity."""

    corpus: TextCorpus
    measures_text = True
    eval_chunk = 256  # tokens read at once in evaluation

    def __init__(self, recipe: Any, corpus: TextCorpus, tokenizer: Tokenizer, names: Sequence[str] = ()):
        super().__init__(recipe, corpus, tokenizer, names)
        self._streams: dict[str, Tensor] = {}
        self._kept: dict[str, float] = {}

    @classmethod
    def load(cls, recipe: Any) -> Any:
        if recipe.data is None:
            raise DataError(
                "There is no data: the recipe has no `data` section, as when a model was imported. "
                "Name a corpus there, or evaluate a text: --text FILE."
            )
        return super().load(recipe)

    @classmethod
    def of_documents(cls, recipe: Any, run: "Run", documents: Sequence[str]) -> Self:
        return cls(recipe, TextCorpus("other text", "", {"other": documents}), run.tokenizer)

    def warnings(self) -> list[str]:
        return []

    def stream(self, split: str) -> Tensor:
        """The tokens of all documents of a split, END after each."""
        if split not in self._streams:
            self._streams[split] = encode_documents(self.tokenizer, self.corpus.split(split))
        return self._streams[split]

    def eval_rows(self) -> int:
        """Rows into which the stream is cut to be evaluated."""
        return 1

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return {**self.metrics(self.log_probs(model, split), split), **self.recall_accuracy(model, split)}

    def recall_accuracy(self, model: Any, split: str) -> dict[str, float]:
        """Where the corpus has questions: the share of right answers, by how often the text gave them before."""
        asked = self.corpus.asked
        if asked is None:
            return {}
        from seqloom.evaluate.perplexity import RecallQuestion, recall

        documents, questions = self.corpus.split(split), []
        for document in documents:
            ends = [end for _, end in self.tokenizer.spans(document)]
            questions.append(
                [
                    RecallQuestion(bisect_right(ends, part.start), bisect_left(ends, part.end) + 1, part.group)
                    for part in asked(document)
                ]
            )
        encoded = list(self.tokenizer.encode_batch(documents))
        return recall(model, encoded, questions, end=self.tokenizer.end, device=device_of(model))

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
        """Every metric of a split, given log p of each of its tokens (N,)."""
        counts = self.corpus.counts(split)
        found = metrics(Totals.of(log_probs), words=counts.words, characters=counts.characters, size=counts.bytes)
        return {**found, **self.tokenizer_metrics(split)}

    def tokenizer_metrics(self, split: str) -> dict[str, float]:
        """What the tokenizer loses of a split: it need not be predicted, so metrics per character are too good."""
        return {"unknown_rate": self.unknown_rate(split), "text_kept": self.text_kept(split)}

    def text_kept(self, split: str) -> float:
        """The share of documents that come back from their tokens unchanged, white space at their ends aside."""
        if split not in self._kept:
            documents = self.corpus.split(split)
            texts = map(self.tokenizer.decode, self.tokenizer.encode_batch(documents))
            same = [text.strip() == document.strip() for text, document in zip(texts, documents, strict=True)]
            self._kept[split] = sum(same) / len(same)
        return self._kept[split]

    def unknown_rate(self, split: str) -> float:
        """The share of tokens read as <unk> for words outside the vocabulary; a literal <unk> is not counted."""
        unknown = self.tokenizer.unknown
        if unknown is None:
            return 0.0
        count = int((self.stream(split) == unknown).sum())
        if self.tokenizer.encode("<unk>") == [unknown]:
            count -= sum(document.split().count("<unk>") for document in self.corpus.split(split))
        return count / len(self.stream(split))


def create_run(path: Path, recipe: Any, tokenizer: Tokenizer, model: Any) -> "Run":
    """Make a run of a model that was trained elsewhere. It has no data of its own to be evaluated on."""
    from seqloom.runs.run import Run

    data = {"corpus": "none", "version": "", "licence": "unknown", "sha256": {}, "counts": {}}
    run = Run.create(path, to_mapping(recipe), {"tokenizer.json": tokenizer.to_json(), "data.json": data})
    run.store().save_best(model.state_dict())
    return run


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
