"""A hidden Markov model of a text, estimated by Baum–Welch with several restarts.

The model is a language model: it can generate and score texts, and it has a perplexity. On a tagged corpus, training
ignores the tags, and the evaluation compares them with the states (many-to-one accuracy, V-measure).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch

from seqloom.classical.hmm import HiddenMarkov, HMMConfig, check_seen
from seqloom.classical.hmm.restarts import RestartSearch, SearchConfig, run_search
from seqloom.config import Discriminator, config
from seqloom.core.device import WITHOUT_NUMBA, has_numba
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Estimate
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus, TextCorpus
from seqloom.data.examples import TokenClassificationExample
from seqloom.evaluate.classification import cluster_metrics
from seqloom.tasks.base import TaskInfo, count_parameters
from seqloom.tasks.text_base import TextRecipe, TextTask
from seqloom.text.word_spans import first_tokens

if TYPE_CHECKING:
    from seqloom.runs.run import Run

SENTENCES_PER_BATCH = 512  # batch size of Viterbi decoding


@config
class Recipe(TextRecipe):
    task: Literal["hmm"] = "hmm"
    data: CorpusConfig[str | TokenClassificationExample]
    # letters: convert text to lower-case letters, with one space for everything between them
    read: Literal["text", "letters"] = "text"
    model: Annotated[HMMConfig, Discriminator("kind")] = HMMConfig()
    train: SearchConfig = SearchConfig()


@dataclass(frozen=True)
class SentenceCorpus(TextCorpus):
    """Plain texts, and the same sentences with the tags of their words."""

    sentences: Corpus[TokenClassificationExample] | None = None


class Task(TextTask[Recipe, Any]):
    eval_chunk = 1 << 16  # large, because no gradients are stored

    @classmethod
    def load(cls, recipe: Recipe) -> TextCorpus:
        """Load the texts. If the corpus has tags, also load the tagged sentences."""
        corpus: TextCorpus | Corpus[TokenClassificationExample] = super().load(recipe)
        if isinstance(corpus, TextCorpus):
            if recipe.read == "text":
                return corpus
            splits = {
                name: [normalize_text(text, recipe) for text in documents] for name, documents in corpus.splits.items()
            }
            return replace(corpus, splits=splits, probe=None)
        if recipe.read != "text":
            raise UsageError(
                "read=letters needs a corpus of plain texts, but this corpus has tagged words. Set read=text."
            )
        spaced = {  # words are separated by spaces, so that the tokenizer finds the same words
            split: [TokenClassificationExample.of(sentence.words, sentence.tags) for sentence in sentences]
            for split, sentences in corpus.splits.items()
        }
        texts = {split: [sentence.text for sentence in sentences] for split, sentences in spaced.items()}
        sentences = replace(corpus, splits=spaced)
        origin = corpus.licence, corpus.version, corpus.absent
        return SentenceCorpus(corpus.name, corpus.description, texts, *origin, sentences=sentences)

    @classmethod
    def of_documents(cls, recipe: Recipe, run: "Run", documents: Sequence[str]) -> Self:
        return super().of_documents(recipe, run, [normalize_text(document, recipe) for document in documents])

    def check_model(self) -> None:
        names = [self.tokenizer.token(number) for number in range(len(self.tokenizer))]
        counts = torch.bincount(self.stream("train"), minlength=len(names))
        check_seen(counts, names, self.recipe.model.smoothing)

    def build(self) -> HiddenMarkov:
        """Return a model of this size without weights."""
        return self.recipe.model.build(len(self.tokenizer))

    def model(self) -> RestartSearch:
        return RestartSearch(self.build, self.recipe.train)

    def scale(self) -> tuple[int, str]:
        return count_parameters(self.build().state_dict())

    def warnings(self) -> list[str]:
        return [] if has_numba() else [WITHOUT_NUMBA]

    def estimates(self, model: Any, step: int) -> Iterator[Estimate]:
        search = model if model is not None else self.model()
        stream, shape, seed = self.stream("train"), self.build(), self.recipe.seed
        if not search.finished:
            yield from run_search(
                search,
                self.recipe.train,
                lambda restart: shape.draw_start(stream, seed, restart),
                lambda current: current.improve(stream),
                read=len(stream),
            )

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        model = model.best if isinstance(model, RestartSearch) else model
        return {**super().evaluate(model, split), **self.agreement(model, split)}

    def agreement(self, model: HiddenMarkov, split: str) -> dict[str, float]:
        """Compare the states with the tags of the words if the corpus has tags."""
        if not isinstance(self.corpus, SentenceCorpus) or self.corpus.sentences is None:
            return {}
        sentences = [sentence for sentence in self.corpus.sentences.split(split) if sentence.words]
        word_states: list[int] = []
        for first in range(0, len(sentences), SENTENCES_PER_BATCH):
            batch = sentences[first : first + SENTENCES_PER_BATCH]
            tokens = [self.tokenizer.encode(sentence.text) for sentence in batch]
            stream = torch.tensor([token for ids in tokens for token in [*ids, self.tokenizer.end]])
            states = model.likeliest_states(stream).tolist()
            start = 0
            for sentence, ids in zip(batch, tokens, strict=True):
                words = first_tokens(self.tokenizer.spans(sentence.text), sentence.spans)
                word_states += [states[start + position] for position in words]
                start += len(ids) + 1
        return cluster_metrics([tag for sentence in sentences for tag in sentence.tags], word_states)


def normalize_text(text: str, recipe: Recipe) -> str:
    """Return a text as the model reads it."""
    return text if recipe.read == "text" else keep_letters(text).rstrip()


def keep_letters(text: str) -> str:
    """Keep lower-case letters, and replace the characters between and after them by one space."""
    return re.sub(r"[\W\d_]+", " ", text.lower()).lstrip()


INFO = TaskInfo(
    name="hmm",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.language_model:LanguageModelPredictor",
    command="generate {run}",
    pipeline_tag="text-generation",
    metric="perplexity",
    views=("write", "beam", "understand"),
)
