"""Word vectors from plain text, trained by word2vec (skip-gram or CBOW with negative sampling) or GloVe.

Each word of the tokenizer has one vector, regardless of whether a space precedes the word. Line breaks, END and unknown
words have no vectors and are skipped when neighbours are determined. Words of different documents are never neighbours.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import torch
from torch import Tensor

from seqloom.classical.word_vectors import WordVectorModel, WordVectorsConfig, glove, negative_sampling
from seqloom.classical.word_vectors.negative_sampling import Sampler, Text
from seqloom.classical.word_vectors.trainer import WordTrainConfig, WordVectorTrainer, select_engine
from seqloom.config import Discriminator, config
from seqloom.core.device import WITHOUT_NUMBA
from seqloom.core.errors import DataError, DivergedError
from seqloom.core.protocols import Estimate
from seqloom.data.corpora import CorpusConfig
from seqloom.data.word_vectors import WordSets, read_word_sets
from seqloom.evaluate.word_space import Analogy, RatedPair, WordScore, WordSpace, as_metrics, measure
from seqloom.runs.run import Run
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.text_base import TextRecipe, TextTask, create_run
from seqloom.text import END, Tokenizer, Words, WordsConfig
from seqloom.text.vocabularies import NEWLINE

HELD_OUT_SEED = 0  # the sampling seed of evaluations, which is equal for all runs
MAX_EVAL_WORDS = 500_000  # maximum number of words of a split that are evaluated


@config
class Recipe(TextRecipe):
    task: Literal["word-vectors"] = "word-vectors"
    data: CorpusConfig[str] | None = None  # null in a run imported from a file of vectors
    model: Annotated[WordVectorsConfig, Discriminator("kind")] = WordVectorsConfig()
    train: WordTrainConfig = WordTrainConfig()

    def problems(self) -> Iterator[str]:
        if self.tokenizer.kind != "words":
            yield f"tokenizer.kind must be words, because vectors belong to words; got {self.tokenizer.kind}"


class Task(TextTask[Recipe, WordVectorModel]):
    @classmethod
    def prepare(cls, recipe: Recipe) -> Self:
        select_engine(recipe.train)  # fails early if this machine cannot train the recipe
        return super().prepare(recipe)

    def check(self) -> None:
        if int((self.counts() > 0).sum()) < 2:
            raise DataError(
                "Word vectors need at least two different words. Lower tokenizer.min_count, or use more text."
            )

    def text(self, split: str) -> Text:
        """Return the words of a split that have vectors."""
        return text_of(self.tokenizer, self.stream(split))

    def counts(self) -> Tensor:
        """Return the number of occurrences of each word (V,) in the training text."""
        return torch.bincount(self.text("train").words, minlength=len(self.tokenizer))

    def scale(self) -> tuple[int, str]:
        model, train = self.recipe.model, self.recipe.train
        engine, device = select_engine(train)
        threads = f", {train.workers} threads" if engine == "numba" and train.workers > 1 else ""
        numbers = 2 * len(self.tokenizer) * (model.vector_size + (model.objective == "glove"))
        return numbers, f"{device} ({engine}{threads})"

    def warnings(self) -> list[str]:
        engine, device = select_engine(self.recipe.train)
        if engine == "torch" and device.type == "cpu" and self.recipe.train.engine == "auto":
            return [WITHOUT_NUMBA]
        return []

    # --- training ---------------------------------------------------------------------------------------------------

    def estimates(self, model: WordVectorModel | None, step: int) -> Iterator[Estimate]:
        """Yield one stage for each logged line.

        A stage includes the model after each epoch or every `save_every` steps.
        """
        train = self.recipe.train
        if model is None:
            model = self.model().draw(self.recipe.seed, self.counts())
        trainer = WordVectorTrainer(model, self.text("train"), train, seed=self.recipe.seed)
        blocks = trainer.sampler.blocks
        interval = blocks if train.save_every is None else -(-train.save_every // train.block)
        while step < trainer.total:
            ends = (step + train.log_every, *((step // size + 1) * size for size in (interval, blocks)), trainer.total)
            rate, stage = trainer.rate(step), range(step, min(ends))
            result = trainer.run(stage)
            step = stage.stop
            if not math.isfinite(result.loss):
                hint = ", or train.batch" if trainer.engine == "torch" else ""
                raise DivergedError(f"The loss is not finite at step {step}. Lower train.lr{hint}.")
            is_saved = step % interval == 0 or step == trainer.total
            values = {"loss": result.loss, "learning_rate": rate, "epoch": step / blocks}
            speed_unit, unit = "pairs" if model.glove else "words", f"objective of {self.recipe.model.objective}"
            yield Estimate(step, trainer.total, model if is_saved else None, values, result.read, speed_unit, unit)

    # --- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, model: WordVectorModel, split: str) -> dict[str, float]:
        word_scores = score_word_sets(space_of(model, self.tokenizer), read_word_sets())
        return {**self.held_out_metrics(model, split), **as_metrics(word_scores.items())}

    def held_out_metrics(self, model: WordVectorModel, split: str) -> dict[str, float]:
        """Return the metrics of a split of the text."""
        text = self.text(split)
        text = Text(text.words[:MAX_EVAL_WORDS], text.documents[:MAX_EVAL_WORDS])
        if not len(text):
            raise DataError(f"No word of {split} has a vector. Use a text in the language of the training text.")
        return {
            "loss": held_out_loss(model, text),
            "neighbours": neighbour_accuracy(model, text),
            "unknown_rate": self.unknown_rate(split),
        }


def text_of(tokenizer: Tokenizer, stream: Tensor) -> Text:
    """Return the words of a stream that have vectors."""
    documents = (stream == END).cumsum(0) - (stream == END).long()
    words = plain_words(tokenizer)[stream]
    return Text(words[words >= 0], documents[words >= 0])


def plain_words(tokenizer: Tokenizer) -> Tensor:
    """Return the word of each token (V,), without the space before it, or −1 if the token is not a word."""
    assert isinstance(tokenizer, Words)
    ids = {word: id for id, word in enumerate(tokenizer.words, start=2)}
    words = [-1 if word == NEWLINE else ids.get(tokenizer.plain(word), id) for word, id in ids.items()]
    return torch.tensor([-1, -1, *words])


def space_of(model: WordVectorModel, tokenizer: Tokenizer, name: str = "this model") -> WordSpace:
    """Return the words that have vectors, most frequent first."""
    assert isinstance(tokenizer, Words)
    counts = model.counts.cpu()
    order = [id for id in torch.argsort(-counts, stable=True).tolist() if counts[id] > 0]
    words = [tokenizer.plain(tokenizer.token(id)) for id in order]
    vectors = model.words.float().cpu().numpy()[np.array(order, dtype=np.int64)]
    return WordSpace(words, vectors, tokenizer.config.lowercase, name)


def score_word_sets(space: WordSpace, sets: WordSets) -> dict[str, WordScore]:
    """Compare the vectors with human judgements for the word sets that are available."""
    rated = {name: [RatedPair(*pair) for pair in pairs] for name, pairs in sets.rated.items()}
    questions = [Analogy(*words, syntactic=section.startswith("gram")) for section, words in sets.analogies]
    return measure(space, rated, questions)


@torch.no_grad()
def held_out_loss(model: WordVectorModel, text: Text) -> float:
    """Return the loss on a held-out text, per prediction or per pair."""
    text = text.to(model.device)
    if model.glove:
        pairs = glove.count_pairs(text.to("cpu"), model.config.window, model.vocabulary)
        if not len(pairs):
            return math.nan
        fitted = glove.weigh_pairs(model.config, pairs, model.device)
        return float(glove.losses(fitted, glove.residuals(model, fitted)[2]).mean())
    total, count = 0.0, 0
    sampler = Sampler(model.config, text, model.counts, seed=HELD_OUT_SEED, block=10_000)
    for step in range(sampler.blocks):
        for batch in sampler.predictions(sampler.block(step)).batches(1 << 14):
            total += float(negative_sampling.losses(negative_sampling.scores(model, batch)[2], batch).sum())
            count += len(batch)
    return total / count if count else math.nan


@torch.no_grad()
def neighbour_accuracy(model: WordVectorModel, text: Text) -> float:
    """Return the rate at which the cosine of two neighbours exceeds that of the first neighbour and a noise word.

    The metric is the same for all training methods, and chance is 0.5. Words that are more frequent than the mean are
    subsampled, as in training.
    """
    mean = 1 / max(1, int((model.counts > 0).sum()))
    config = WordVectorsConfig(window=5, negatives=1, subsample=mean)
    unit = torch.nn.functional.normalize(model.words.float(), dim=1)
    sampler = Sampler(config, text.to(model.device), model.counts, seed=HELD_OUT_SEED, block=10_000)
    correct, count = 0.0, 0
    for step in range(sampler.blocks):
        for batch in sampler.predictions(sampler.block(step)).batches(1 << 16):
            near, far = torch.einsum("pd,pkd->kp", unit[batch.inputs[:, 0]], unit[batch.candidates])
            correct += float((near > far).sum() + 0.5 * (near == far).sum())
            count += len(near)
    return correct / count if count else math.nan


def create_vectors_run(words: list[str], vectors: Tensor, path: Path) -> Run:
    """Create a run without data for vectors that were trained elsewhere."""
    tokenizer = Words(WordsConfig(), words)
    config = WordVectorsConfig(vector_size=vectors.shape[1])
    recipe = Recipe(data=None, tokenizer=WordsConfig(), model=config)
    model = config.build(len(tokenizer))
    model.vectors[2:] = vectors
    # A file has no counts, so the order of the words gives their ranks
    model.counts[2:] = torch.arange(len(words), 0, -1)
    return create_run(path, recipe, tokenizer, model)


INFO = TaskInfo(
    name="word-vectors",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.word_vectors:WordVectorsPredictor",
    command="words plot {run} --out words.png",
    pipeline_tag="feature-extraction",
    loss_per="prediction",
    views=("vectors",),
)
