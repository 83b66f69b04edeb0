"""An n-gram language model of any order, estimated from counts with interpolated modified Kneser–Ney smoothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from seqloom.classical.ngram import NGram, NGramConfig
from seqloom.classical.ngram.kneser_ney import check_length, estimate
from seqloom.config import Discriminator, config
from seqloom.core.errors import DataError
from seqloom.core.protocols import Estimate
from seqloom.data.corpora import CorpusConfig
from seqloom.runs.run import Run
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.text_base import TextRecipe, TextTask, create_run
from seqloom.text import Words, WordsConfig
from seqloom.train.estimate import EstimateConfig


@config
class Recipe(TextRecipe):
    task: Literal["ngram"] = "ngram"
    data: CorpusConfig[str] | None = None  # null in a run imported from an ARPA file
    model: Annotated[NGramConfig, Discriminator("kind")] = NGramConfig()
    train: EstimateConfig = EstimateConfig()


class Task(TextTask[Recipe, NGram]):
    eval_chunk = 1 << 16  # large, because no gradients are stored

    def check_model(self) -> None:
        check_length(self.stream("train").numpy(), self.recipe.model.order)

    def estimates(self, model: NGram | None, step: int) -> Iterator[Estimate]:
        """Estimate the model. A checkpoint always contains the complete model, so it is not estimated again."""
        if model is None:
            stream = self.stream("train").numpy()
            yield from estimate(stream, self.recipe.model, len(self.tokenizer))


def create_ngram_run(model: NGram, words: list[str], path: Path) -> Run:
    """Create a run without data for a model that was estimated elsewhere."""
    if words[:2] != ["</s>", "<unk>"]:
        raise DataError(
            "The file must contain <unk>, so that the model can read any text. Estimate the model with <unk>."
        )
    recipe = Recipe(data=None, tokenizer=WordsConfig(), model=NGramConfig(order=model.order))
    tokenizer = Words(WordsConfig(), words[2:])
    return create_run(path, recipe, tokenizer, model)


INFO = TaskInfo(
    name="ngram",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.language_model:LanguageModelPredictor",
    command="generate {run}",
    pipeline_tag="text-generation",
    metric="perplexity",
    views=("write", "beam"),
)
