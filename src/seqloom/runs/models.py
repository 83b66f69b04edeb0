"""Every kind of model a run can hold, by the name its recipe gives it."""

from typing import Any

from seqloom.classical.autoregressive import AutoregressiveConfig
from seqloom.classical.hmm import HMMConfig
from seqloom.classical.hmm_gaussian import GaussianHMMConfig
from seqloom.classical.hmm_tagger import HMMTaggerConfig
from seqloom.classical.linear_dynamical import KalmanConfig
from seqloom.classical.ngram import NGramConfig
from seqloom.classical.word_vectors import WordVectorsConfig
from seqloom.models.bert import BERTConfig
from seqloom.models.bilm import BiLMConfig
from seqloom.models.classifier import ClassifierConfig
from seqloom.models.electra import ElectraConfig
from seqloom.models.fine_tuned import FineTunedClassifierConfig, FineTunedTaggerConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.matching import FineTunedAnswerConfig, FineTunedChoiceConfig, FineTunedPairConfig
from seqloom.models.recurrent_forecaster import RecurrentForecasterConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.series_classifier import SeriesClassifierConfig
from seqloom.models.soft_prompt import SoftPromptConfig
from seqloom.models.tagger import TaggerConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.models.transformer_forecaster import TransformerForecasterConfig
from seqloom.models.window_forecaster import WindowForecasterConfig
from seqloom.models.window_lm import WindowLMConfig

MODELS: dict[str, Any] = {
    "recurrent-lm": RecurrentLMConfig,
    "gpt": GPTConfig,
    "window-lm": WindowLMConfig,
    "soft-prompt": SoftPromptConfig,
    "bert": BERTConfig,
    "electra": ElectraConfig,
    "bilm": BiLMConfig,
    "recurrent-reader": RecurrentReaderConfig,
    "recurrent-seq2seq": RecurrentSeq2SeqConfig,
    "classifier": ClassifierConfig,
    "tagger": TaggerConfig,
    "fine-tuned-classifier": FineTunedClassifierConfig,
    "fine-tuned-tagger": FineTunedTaggerConfig,
    "fine-tuned-pair": FineTunedPairConfig,
    "fine-tuned-choice": FineTunedChoiceConfig,
    "fine-tuned-answer": FineTunedAnswerConfig,
    "transformer": TransformerConfig,
    "ngram": NGramConfig,
    "hmm": HMMConfig,
    "hmm-tagger": HMMTaggerConfig,
    "gaussian-hmm": GaussianHMMConfig,
    "kalman": KalmanConfig,
    "series-classifier": SeriesClassifierConfig,
    "ar": AutoregressiveConfig,
    "ffn": WindowForecasterConfig,
    "lstm": RecurrentForecasterConfig,
    "forecast/transformer": TransformerForecasterConfig,  # a kind may mean another model in one task
    "word-vectors": WordVectorsConfig,
}


def find_config(task: object, kind: object) -> Any:
    """The config of a kind of model, as its task has it; None where there is none."""
    return MODELS.get(f"{task}/{kind}") or MODELS.get(str(kind))
