"""Tagging with a hidden Markov model: tags are states, words are emissions, and probabilities are relative frequencies.

The task has the same sentences, tags and metrics as the task `tag`. The loss is −log p of the tags of a sentence given
its words, per word.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import torch

from seqloom.classical.hmm.tagger import HMMTagger, HMMTaggerConfig, TaggedWords
from seqloom.config import Discriminator, config
from seqloom.core.protocols import Estimate
from seqloom.data.corpora import CorpusConfig
from seqloom.data.examples import TokenClassificationExample
from seqloom.data.text_inputs import MAX_SPELLING
from seqloom.tasks.base import TaskInfo, TaskRecipe
from seqloom.tasks.reading_base import BatchConfig
from seqloom.tasks.tag import Task as TagTask
from seqloom.text import TokenizerConfig, WordsConfig
from seqloom.train.estimate import EstimateConfig


@config
class Recipe(TaskRecipe):
    task: Literal["hmm-tag"] = "hmm-tag"
    data: CorpusConfig[TokenClassificationExample]
    tokenizer: TokenizerConfig = WordsConfig(lowercase=True)
    batch: BatchConfig = BatchConfig()
    model: Annotated[HMMTaggerConfig, Discriminator("kind")] = HMMTaggerConfig()
    train: EstimateConfig = EstimateConfig()

    def problems(self) -> Iterator[str]:
        if self.tokenizer.kind != "words" or self.tokenizer.split != "whitespace":
            yield "tokenizer must be of kind words with split: whitespace, because every word has a tag"


class Task(TagTask):
    def estimates(self, model: Any, step: int) -> Iterator[Estimate]:
        """Estimate the model. A checkpoint always contains the complete model, so it is not estimated again."""
        if model is not None:
            return
        model = self.model()
        weights = model.count_transitions(self.tags("train"), self.names)
        yield Estimate(1, 2, None, {f"lambda_{n}": weight for n, weight in enumerate(weights, start=1)})
        model.count_words(self.training_words(), [] if self.spellings is None else self.spellings.alphabet.alphabet)
        values = {"words": float((model.word_counts.sum(dim=1) > 0).sum()), "endings": float(len(model.suffix_keys))}
        yield Estimate(2, 2, model, values)

    def model(self) -> HMMTagger:
        model: HMMTagger = self.recipe.model.build(len(self.tokenizer), **self.sizes())
        return model

    def training_words(self) -> TaggedWords:
        """Return the words of the training sentences."""
        pieces, tags = self.pieces("train"), self.tags("train")
        words = np.array([piece.tokens[position] for piece in pieces for position in piece.first])
        first = np.array([position == 0 for piece in pieces for position in range(len(piece.first))])
        characters = np.zeros((len(words), MAX_SPELLING), dtype=np.int64)
        if self.spellings is not None:
            sentences = self.words("train")
            spelled = (word for piece in pieces for word in sentences[piece.sentence][piece.start : piece.end])
            rows = self.spellings.characters(torch.tensor(self.spellings.numbers(spelled))).numpy()
            characters[:, : rows.shape[1]] = rows
        return TaggedWords(words, np.concatenate([np.array(row) for row in tags]), characters, first)


INFO = TaskInfo(
    name="hmm-tag",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.tag:TaggerPredictor",
    command="tag {run}",
    pipeline_tag="token-classification",
    metric="token_accuracy",
    loss_per="word",
    examples="sentences",
    example="The old man saw the boats in the harbour.",
    views=("understand",),
)
