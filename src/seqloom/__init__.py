"""seqloom: train, compare, understand and use sequence models, from the n-gram to the Transformer."""

from importlib import import_module
from typing import TYPE_CHECKING

from seqloom.core import VERSION as __version__

if TYPE_CHECKING:
    from seqloom.estimators import (
        Classifier,
        Forecaster,
        ImageClassifier,
        InstructionModel,
        LanguageModel,
        MultipleChoice,
        PairClassifier,
        QuestionAnswering,
        SeriesClassifier,
        Tagger,
        Translator,
        WordVectors,
    )
    from seqloom.predict.ensembles import average, ensemble, interpolate
    from seqloom.predict.loader import export_hf, import_hf, import_minilm, load
    from seqloom.training import train_recipe
    from seqloom.tuning import tune_recipe

__all__ = [
    "Classifier",
    "Forecaster",
    "ImageClassifier",
    "InstructionModel",
    "LanguageModel",
    "MultipleChoice",
    "PairClassifier",
    "QuestionAnswering",
    "SeriesClassifier",
    "Tagger",
    "Translator",
    "WordVectors",
    "__version__",
    "average",
    "ensemble",
    "export_hf",
    "import_hf",
    "import_minilm",
    "interpolate",
    "load",
    "train_recipe",
    "tune_recipe",
]

ESTIMATORS = (
    *("Classifier", "Forecaster", "ImageClassifier", "InstructionModel", "LanguageModel", "MultipleChoice"),
    *("PairClassifier", "QuestionAnswering", "SeriesClassifier", "Tagger", "Translator", "WordVectors"),
)
MODULES = {
    **dict.fromkeys(ESTIMATORS, "estimators"),
    "average": "predict.ensembles",
    "ensemble": "predict.ensembles",
    "export_hf": "predict.loader",
    "import_hf": "predict.loader",
    "import_minilm": "predict.loader",
    "interpolate": "predict.ensembles",
    "load": "predict.loader",
    "train_recipe": "training",
    "tune_recipe": "tuning",
}


def __getattr__(name: str) -> object:
    """Import `seqloom.load` and the other public names on first use, so that importing the package is fast."""
    if name in MODULES:
        return getattr(import_module(f"seqloom.{MODULES[name]}"), name)
    raise AttributeError(f"module 'seqloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
