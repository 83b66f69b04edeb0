"""Every kind of model a run can hold, by the name its recipe gives it."""

from typing import Any

from seqloom.classical.ngram import NGramConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_reader import RecurrentReaderConfig

MODELS: dict[str, Any] = {
    "recurrent-lm": RecurrentLMConfig,
    "recurrent-reader": RecurrentReaderConfig,
    "ngram": NGramConfig,
}
