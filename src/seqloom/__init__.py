"""seqloom: train, compare, understand and use sequence models, from the n-gram to the Transformer."""

from importlib import import_module
from typing import TYPE_CHECKING

from seqloom.core import VERSION as __version__

if TYPE_CHECKING:
    from seqloom.estimators import Classifier, LanguageModel, PairClassifier, Tagger, Translator
    from seqloom.predict.ensembles import average, ensemble, interpolate
    from seqloom.predict.loader import export_hf, import_hf, import_minilm, load
    from seqloom.training import train_recipe

__all__ = [
    "Classifier",
    "LanguageModel",
    "PairClassifier",
    "Tagger",
    "Translator",
    "__version__",
    "average",
    "ensemble",
    "export_hf",
    "import_hf",
    "import_minilm",
    "interpolate",
    "load",
    "train_recipe",
]

MODULES = {
    **dict.fromkeys(("Classifier", "LanguageModel", "PairClassifier", "Tagger", "Translator"), "estimators"),
    "average": "predict.ensembles",
    "ensemble": "predict.ensembles",
    "export_hf": "predict.loader",
    "import_hf": "predict.loader",
    "import_minilm": "predict.loader",
    "interpolate": "predict.ensembles",
    "load": "predict.loader",
    "train_recipe": "training",
}


def __getattr__(name: str) -> object:
    """Import `seqloom.load` and the others on first use, so that importing the package stays instant."""
    if name in MODULES:
        return getattr(import_module(f"seqloom.{MODULES[name]}"), name)
    raise AttributeError(f"module 'seqloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
