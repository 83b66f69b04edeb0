"""A hidden Markov model of a text, learned from the text alone by Baum–Welch, from several beginnings.

It is a language model: it writes, scores, and has a perplexity. On a corpus whose words have tags it never sees them;
what its states have to do with them is measured afterwards (many to one, V-measure).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import torch

from seqloom.classical.hmm.restarts import Search, SearchConfig, climb
from seqloom.classical.hmm.symbols import HiddenMarkov, HMMConfig, check_seen
from seqloom.config import Discriminator, config
from seqloom.core.device import WITHOUT_NUMBA, has_numba
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Estimate
from seqloom.data import corpora
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus, TextCorpus
from seqloom.data.examples import TokenClassificationExample
from seqloom.evaluate.clusters import cluster_figures
from seqloom.runs.run import Run
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.language_model import TextTask, refuse_changed_data
from seqloom.text import TokenizerConfig, train_tokenizer
from seqloom.text.spans import token_spans
from seqloom.text.word_spans import first_tokens


@config
class Recipe:
    task: Literal["hmm"] = "hmm"
    seed: int = 1  # decides where each restart begins
    data: CorpusConfig[str | TokenClassificationExample]
    tokenizer: TokenizerConfig
    read: Literal["text", "letters"] = "text"  # letters: small letters alone, and one space for all between them
    model: Annotated[HMMConfig, Discriminator("kind")] = HMMConfig()
    train: SearchConfig = SearchConfig()


class Task(TextTask):
    eval_chunk = 1 << 16  # no gradient to hold: read much at once
    tagged: Corpus[TokenClassificationExample] | None = None  # where its data has tags

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        if getattr(recipe.tokenizer, "dropout", 0):
            raise UsageError("tokenizer.dropout is for translation: a stream of text is segmented once. Set it to 0.")
        corpus, tagged = load(recipe)
        corpus.split("dev")
        task = cls(recipe, corpus, train_tokenizer(recipe.tokenizer, corpus.split("train")))
        task.tagged = tagged
        names = [task.tokenizer.token(number) for number in range(len(task.tokenizer))]
        counts = torch.bincount(task.stream("train"), minlength=len(names))
        check_seen(counts, names, recipe.model.smoothing)  # before the run directory is made
        return task

    @classmethod
    def reopen(cls, recipe: Any, run: Run) -> Self:
        corpus, tagged = load(recipe)
        refuse_changed_data(run, corpus)
        task = cls(recipe, corpus, run.tokenizer)
        task.tagged = tagged
        return task

    @classmethod
    def of_documents(cls, recipe: Any, run: Run, documents: Sequence[str]) -> Self:
        return super().of_documents(recipe, run, [read(document, recipe) for document in documents])

    def model(self) -> Search:
        return Search(self._built, self.recipe.train)

    def scale(self) -> tuple[int, str]:
        """How many numbers it learns, and where."""
        return sum(table.numel() for table in self._built().state_dict().values()), "cpu"

    def warnings(self) -> list[str]:
        return [] if has_numba() else [WITHOUT_NUMBA]

    def _built(self) -> HiddenMarkov:
        built: HiddenMarkov = self.recipe.model.build(len(self.tokenizer))
        return built

    def estimates(self, model: Any, step: int) -> Iterator[Estimate]:
        search = model if model is not None else self.model()
        stream, shape, seed = self.stream("train"), self._built(), self.recipe.seed
        if not search.finished:
            yield from climb(
                search,
                self.recipe.train,
                lambda restart: shape.drawn(stream, seed, restart),
                lambda current: current.improved(stream),
                read=len(stream),
            )

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        model = model.best if isinstance(model, Search) else model
        return {**super().evaluate(model, split), **self.agreement(model, split)}

    def agreement(self, model: HiddenMarkov, split: str) -> dict[str, float]:
        """What its states have to do with the tags of the words, where there are tags."""
        if self.tagged is None:
            return {}
        sentences = [sentence for sentence in self.tagged.split(split) if sentence.words]
        found: list[int] = []
        for some in _together(sentences):
            tokens = [self.tokenizer.encode(sentence.text) for sentence in some]
            states = model.likeliest(torch.tensor([t for own in tokens for t in [*own, self.tokenizer.end]])).tolist()
            begin = 0
            for sentence, own in zip(some, tokens, strict=True):
                first = first_tokens(token_spans(self.tokenizer, sentence.text), sentence.spans)
                found += [states[begin + place] for place in first]
                begin += len(own) + 1
        return cluster_figures([tag for sentence in sentences for tag in sentence.tags], found)


def _together(
    sentences: Sequence[TokenClassificationExample], most: int = 512
) -> Iterator[Sequence[TokenClassificationExample]]:
    for begin in range(0, len(sentences), most):
        yield sentences[begin : begin + most]


def load(recipe: Any) -> tuple[TextCorpus, Corpus[TokenClassificationExample] | None]:
    """The texts, as they are read; and where they have tags, those sentences."""
    if recipe.data.corpus not in corpora.of_form("token-classification"):
        corpus = corpora.load(recipe.data)
        if recipe.read == "text":
            return corpus, None
        splits = {name: [read(text, recipe) for text in documents] for name, documents in corpus.splits.items()}
        return replace(corpus, splits=splits, asked=None), None
    if recipe.read != "text":
        raise UsageError("read=letters is for texts; the sentences of this corpus have words with tags. Set read=text.")
    found = corpora.load(recipe.data)
    spaced = {
        split: [TokenClassificationExample.of(sentence.words, sentence.tags) for sentence in sentences]
        for split, sentences in found.splits.items()
    }
    found = replace(found, splits=spaced)  # a space between any two words, so that words are what the tokenizer sees
    texts = {split: [sentence.text for sentence in sentences] for split, sentences in spaced.items()}
    return TextCorpus(found.name, found.version, found.licence, found.description, texts, found.absent), found


def read(text: str, recipe: Any) -> str:
    return text if recipe.read == "text" else letters(text).rstrip()


def letters(text: str) -> str:
    """Small letters alone, and one space for all between and after them."""
    return re.sub(r"[\W\d_]+", " ", text.lower()).lstrip()


INFO = TaskInfo(
    name="hmm",
    recipe=Recipe,
    task=Task,
    forms=("text", "tagged"),
    predictor="seqloom.predict.language_model:LanguageModel",
    command="generate {run}",
    metric="perplexity",
    views=("write", "understand"),
)
