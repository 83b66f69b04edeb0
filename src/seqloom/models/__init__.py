"""Models, one file each with its Config, and the table of model kinds that recipes use.

A kind is imported on first use. A package that depends on `seqloom.models` can extend a kind: its file
`model_kinds.json` maps the new kind to the kind it extends and to the import paths of its config and its backbone.
`InitConfig` is the section `init` of a recipe; see `seqloom.runs.transfer`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from seqloom.config import Kinds, config
from seqloom.config.constraints import Fraction, PositiveFloat, PositiveInt

EXTENSIONS: dict[str, dict[str, str]] = {
    kind: extension
    for file in sorted(Path(__file__).parents[1].glob("*/model_kinds.json"))
    for kind, extension in json.loads(file.read_text(encoding="utf-8")).items()
}
MODELS = Kinds(
    "kind",
    {
        "recurrent-lm": "seqloom.models.recurrent_lm:RecurrentLMConfig",
        "gpt": "seqloom.models.gpt:GPTConfig",
        "window-lm": "seqloom.models.window_lm:WindowLMConfig",
        "soft-prompt": "seqloom.models.soft_prompt:SoftPromptConfig",
        "bert": "seqloom.models.bert:BERTConfig",
        "electra": "seqloom.models.electra:ElectraConfig",
        "bilm": "seqloom.models.bilm:BiLMConfig",
        "recurrent-reader": "seqloom.models.recurrent_reader:RecurrentReaderConfig",
        "recurrent-seq2seq": "seqloom.models.recurrent_seq2seq:RecurrentSeq2SeqConfig",
        "transformer": "seqloom.models.transformer:TransformerConfig",
        "image-to-text": "seqloom.models.image_to_text:ImageToTextConfig",
        "video-to-text": "seqloom.models.video:VideoToTextConfig",
        "vectors-to-text": "seqloom.models.vectors_to_text:VectorsToTextConfig",
        "classifier": "seqloom.models.classifier:ClassifierConfig",
        "tagger": "seqloom.models.tagger:TaggerConfig",
        "fine-tuned-classifier": "seqloom.models.fine_tuned:FineTunedClassifierConfig",
        "fine-tuned-tagger": "seqloom.models.fine_tuned:FineTunedTaggerConfig",
        "fine-tuned-pair": "seqloom.models.fine_tuned:FineTunedPairConfig",
        "fine-tuned-choice": "seqloom.models.fine_tuned:FineTunedChoiceConfig",
        "fine-tuned-answer": "seqloom.models.fine_tuned:FineTunedAnswerConfig",
        "series-classifier": "seqloom.models.classifier:SeriesClassifierConfig",
        "image-classifier": "seqloom.models.image_classifier:ImageClassifierConfig",
        "glimpses": "seqloom.models.glimpse_classifier:GlimpseClassifierConfig",
        "draw": "seqloom.models.draw:DrawConfig",
        "image-vae": "seqloom.models.image_vae:ImageVAEConfig",
        "video-classifier": "seqloom.models.video:VideoClassifierConfig",
        "video-tagger": "seqloom.models.video:VideoTaggerConfig",
        "vectors-tagger": "seqloom.models.vectors_tagger:VectorsTaggerConfig",
        "ffn": "seqloom.models.forecaster:WindowForecasterConfig",
        "lstm": "seqloom.models.forecaster:RecurrentForecasterConfig",
        "ar": "seqloom.classical.autoregressive:AutoregressiveConfig",
        "kalman": "seqloom.classical.kalman:KalmanConfig",
        "ngram": "seqloom.classical.ngram:NGramConfig",
        "hmm": "seqloom.classical.hmm:HMMConfig",
        "hmm-tagger": "seqloom.classical.hmm.tagger:HMMTaggerConfig",
        "gaussian-hmm": "seqloom.classical.hmm.gaussian:GaussianHMMConfig",
        "word-vectors": "seqloom.classical.word_vectors:WordVectorsConfig",
        **{kind: extension["config"] for kind, extension in EXTENSIONS.items()},
    },
    bases={kind: extension["extends"] for kind, extension in EXTENSIONS.items()},
)
FORECASTERS = Kinds(
    "kind",
    {
        **{name: MODELS.paths[name] for name in ("ar", "kalman", "ffn", "lstm")},
        "transformer": "seqloom.models.forecaster:TransformerForecasterConfig",
    },
)


def find_config(task: object, kind: object) -> Any:
    """Return the config class that a task uses for a model kind, or None if the kind is unknown."""
    return (FORECASTERS if task == "forecast" else MODELS).find(kind)


FINE_TUNED_PREFIX = "fine-tuned-"  # prefix of model kinds with a pretrained backbone
TRANSFORMERS = ("gpt", "bert", "electra", "transformer")  # model kinds that consist of Transformer blocks
Projection = Literal["q", "k", "v", "out", "up", "gate", "down"]  # a linear layer of a Transformer block


@config
class LoRAConfig:
    """Low-rank updates of a frozen Transformer; see `seqloom.nn.lora`."""

    rank: PositiveInt = 8  # rank r of an update
    alpha: PositiveFloat = 16.0  # α; an update is scaled by α/r
    dropout: Fraction = 0.0  # dropout on the inputs of an update
    # layers of a block that have updates
    targets: tuple[Projection, ...] = ("q", "k", "v", "out", "up", "gate", "down")

    def problems(self) -> Iterator[str]:
        if not self.targets:
            yield "targets must name at least one layer: q, k, v, out, up, gate or down"


@config
class InitConfig:
    """The run that provides the tokenizer and the initial weights."""

    from_: str  # directory of the pretrained run
    weights: bool = True  # false: copy the tokenizer and the backbone's config, and initialize all weights randomly
    lora: LoRAConfig | None = None  # train low-rank updates of a frozen Transformer instead of its weights

    def problems(self) -> Iterator[str]:
        if self.lora is not None and not self.weights:
            yield "lora updates pretrained weights, so weights must be true"


def has_backbone(model: Any) -> bool:
    """Return whether a model's config has a backbone that `init.from` can fill in."""
    return str(model.kind).startswith(FINE_TUNED_PREFIX)
