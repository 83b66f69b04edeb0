"""Every kind of model a run can hold, by the name its recipe gives it."""

from typing import Any

from seqloom.classical.ngram import NGramConfig
from seqloom.models.classifier import ClassifierConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.tagger import TaggerConfig
from seqloom.models.transformer import TransformerConfig

MODELS: dict[str, Any] = {
    "recurrent-lm": RecurrentLMConfig,
    "recurrent-reader": RecurrentReaderConfig,
    "recurrent-seq2seq": RecurrentSeq2SeqConfig,
    "classifier": ClassifierConfig,
    "tagger": TaggerConfig,
    "transformer": TransformerConfig,
    "ngram": NGramConfig,
}
