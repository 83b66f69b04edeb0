"""Every kind of model a run can hold, by the name its recipe gives it."""

from typing import Any

from seqloom.classical.ngram import NGramConfig
from seqloom.models.bert import BERTConfig
from seqloom.models.bilm import BiLMConfig
from seqloom.models.classifier import ClassifierConfig
from seqloom.models.electra import ElectraConfig
from seqloom.models.fine_tuned import FineTunedClassifierConfig, FineTunedTaggerConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.matching import FineTunedAnswerConfig, FineTunedChoiceConfig, FineTunedPairConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.soft_prompt import SoftPromptConfig
from seqloom.models.tagger import TaggerConfig
from seqloom.models.transformer import TransformerConfig

MODELS: dict[str, Any] = {
    "recurrent-lm": RecurrentLMConfig,
    "gpt": GPTConfig,
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
}
