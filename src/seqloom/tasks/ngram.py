"""An n-gram language model, estimated by counting: interpolated modified Kneser–Ney of any order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from seqloom.classical.ngram.backoff import NGram, NGramConfig
from seqloom.classical.ngram.kneser_ney import check_length, estimate
from seqloom.config import Discriminator, config, to_mapping
from seqloom.core.errors import DataError
from seqloom.core.protocols import Estimate
from seqloom.data.corpora import CorpusConfig
from seqloom.runs.run import Run
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.language_model import TextTask
from seqloom.text import TokenizerConfig, Words, WordsConfig
from seqloom.train.estimate import EstimateConfig

ADOPTED: dict[str, Any] = {"corpus": "none", "version": "", "licence": "unknown", "sha256": {}, "counts": {}}


@config
class Recipe:
    task: Literal["ngram"] = "ngram"
    seed: int = 1  # counting draws no random numbers; kept so that every recipe has the same head
    data: CorpusConfig[str] | None = None  # none in a run adopted from an ARPA file
    tokenizer: TokenizerConfig
    model: Annotated[NGramConfig, Discriminator("kind")] = NGramConfig()
    train: EstimateConfig = EstimateConfig()


class Task(TextTask):
    eval_chunk = 1 << 16  # counting has no gradient to hold: read much at once

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        task = super().prepare(recipe)
        check_length(task.stream("train").numpy(), recipe.model.order)  # before the run directory is made
        return task

    def estimates(self, model: Any, step: int) -> Iterator[Estimate]:
        """A checkpoint of an n-gram model is the finished model: there is nothing to go on with."""
        if model is None:
            stream = self.stream("train").numpy()
            yield from estimate(stream, self.recipe.model, len(self.tokenizer))


def adopt(model: NGram, words: list[str], path: Path) -> Run:
    """Make a run of a model that was estimated elsewhere. It has no data of its own to be evaluated on."""
    if words[:2] != ["</s>", "<unk>"]:
        raise DataError(
            "A model must know <unk>, so that any text can be read; this file has none. Estimate it with one."
        )
    recipe = Recipe(data=None, tokenizer=WordsConfig(), model=NGramConfig(order=model.order))
    tokenizer = Words(WordsConfig(), words[2:])
    run = Run.create(path, to_mapping(recipe), {"tokenizer.json": tokenizer.to_json(), "data.json": ADOPTED})
    run.store().save_best(model.state_dict())
    return run


INFO = TaskInfo(
    name="ngram",
    recipe=Recipe,
    task=Task,
    forms=("text",),
    predictor="seqloom.predict.language_model:LanguageModel",
    command="generate {run}",
    metric="perplexity",
    views=("write",),
)
