"""Predictors of small models with random weights, which generate or translate letters."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from seqloom.classical.hmm import HMMConfig
from seqloom.classical.ngram import NGramConfig
from seqloom.classical.ngram.kneser_ney import kneser_ney
from seqloom.decoding.beam import BeamConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.models.window_lm import WindowLMConfig
from seqloom.predict.language_model import LanguageModelPredictor
from seqloom.predict.translate import TranslatorPredictor
from seqloom.text.vocabularies import Characters

LETTERS = " abcdef"  # the vocabulary also contains </s> and <unk>
TEXTS = ["abc def", "fed cab", "a bad cab", "dead beef", "a face"] * 3


class ModelWithoutRun:
    """A predictor that uses a model without a run."""

    name, description = "", "a small model"
    model: Any = None
    tokenizer = Characters(LETTERS)
    longest_source, longest_key = None, "model.positions.max_length"
    decode = BeamConfig(beam=3)
    run: Any = SimpleNamespace(recipe={"task": "language-model"})

    def __init__(self, name: str, model: Any):
        self.name, self.model = name, model


class SmallLanguageModel(ModelWithoutRun, LanguageModelPredictor):
    pass


class SmallTranslator(ModelWithoutRun, TranslatorPredictor):
    pass


def writer(kind: str) -> SmallLanguageModel:
    size = len(Characters(LETTERS))
    if kind == "ngram":
        ids = [token for text in TEXTS for token in [*Characters(LETTERS).encode(text), 0]]
        return SmallLanguageModel(kind, kneser_ney(np.array(ids), NGramConfig(order=3), size))
    if kind == "hmm":
        generator = torch.Generator().manual_seed(5)
        counts = [torch.rand(shape, generator=generator, dtype=torch.float64) ** 3 for shape in ((5, 5), (5, size))]
        counts[0][:, -1] *= 0.1  # avoids empty texts
        return SmallLanguageModel(kind, HMMConfig(states=4).build(size).set(*counts))
    configs: dict[str, Any] = {
        "lstm": RecurrentLMConfig(cell="lstm", hidden=6, embedding=5, layers=1, dropout=0.4),
        "gpt": GPTConfig(d_model=8, heads=2, layers=2, context=12),
        "window": WindowLMConfig(window=3, embedding=4, hidden=8),
    }
    return SmallLanguageModel(kind, randomize_weights(configs[kind].build(size)))


def translator(kind: str = "gru") -> SmallTranslator:
    configs: dict[str, Any] = {
        "gru": RecurrentSeq2SeqConfig(hidden=6, dropout=0.4),
        "transformer": TransformerConfig(d_model=8, heads=2, encoder_layers=1, decoder_layers=1),
    }
    return SmallTranslator(kind, randomize_weights(configs[kind].build(len(Characters(LETTERS)))))


def randomize_weights(model: nn.Module) -> nn.Module:
    """Set evaluation mode, and fixed random weights that are large enough for outputs to depend on inputs."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weights in model.parameters():
            mean = (
                torch.ones_like(weights) if weights.dim() == 1 and bool((weights == 1).all()) else 0.0
            )  # 1 for the gains of norms
            weights.copy_(mean + 0.6 * torch.randn(weights.shape, generator=generator))
    return model.eval()
