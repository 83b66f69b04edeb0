"""Every kind of model a run can hold, by the name its recipe gives it."""

from typing import Any

from seqloom.classical.ngram import NGramConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig

MODELS: dict[str, Any] = {"recurrent-lm": RecurrentLMConfig, "ngram": NGramConfig}
