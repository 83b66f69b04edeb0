"""seqloom from Python: train by recipe, load a run, use it.

import seqloom

lm = seqloom.train_recipe("lm-char-lstm", "train.steps=200", out="runs/mine")
lm = seqloom.load("runs/mine")
print("".join(lm.generate("The class", temperature=0.8, seed=7)))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqloom.api.answering import Answered, Answerer, FoundAnswer
    from seqloom.api.averaging import Averaged, average, make_average
    from seqloom.api.classifying import Classification, Classifier, Judging, Understanding
    from seqloom.api.ensembles import Ensemble, ensemble
    from seqloom.api.exchanging import export_hf, import_hf, import_minilm
    from seqloom.api.filling import Filled, Guess, MaskedLM
    from seqloom.api.forecasting import Forecaster
    from seqloom.api.loading import load
    from seqloom.api.matching import Chooser, Chosen, Match, Matcher
    from seqloom.api.mixing import Interpolated, interpolate
    from seqloom.api.prompting import Completion, Picked, Prompted
    from seqloom.api.recipes import RECIPES, build_recipe, read_recipe, recipe_mapping, recipe_names, recipe_of
    from seqloom.api.restoring import Restored, Restorer
    from seqloom.api.series_classifying import SeriesClassifier
    from seqloom.api.similarity import Found, Near
    from seqloom.api.tagging import TaggedLine, Tagger
    from seqloom.api.trained import Trained
    from seqloom.api.training import RESUMABLE, Training, begin, refuse_other_recipe, resume, train_recipe
    from seqloom.api.translating import Candidate, Translating, Translation, Translator
    from seqloom.api.words import WordReport, WordVectors, export_vectors, import_vectors, word_space
    from seqloom.api.writing import Continuation, LanguageModel, Scored, Writer
    from seqloom.evaluate.word_space import NearWord, WordSpace
    from seqloom.inspect.views.forecasts import Forecasted

# Where each name is at home: it is imported when it is first asked for, so that a command loads what it needs.
HOMES = {
    "api.answering": "Answered Answerer FoundAnswer",
    "api.averaging": "Averaged average make_average",
    "api.classifying": "Classification Classifier Judging Understanding",
    "api.ensembles": "Ensemble ensemble",
    "api.exchanging": "export_hf import_hf import_minilm",
    "api.filling": "Filled Guess MaskedLM",
    "api.forecasting": "Forecaster",
    "api.loading": "load",
    "api.matching": "Chooser Chosen Match Matcher",
    "api.mixing": "Interpolated interpolate",
    "api.prompting": "Completion Picked Prompted",
    "api.recipes": "RECIPES build_recipe read_recipe recipe_mapping recipe_names recipe_of",
    "api.restoring": "Restored Restorer",
    "api.series_classifying": "SeriesClassifier",
    "api.similarity": "Found Near",
    "api.tagging": "TaggedLine Tagger",
    "api.trained": "Trained",
    "api.training": "RESUMABLE Training begin refuse_other_recipe resume train_recipe",
    "api.translating": "Candidate Translating Translation Translator",
    "api.words": "WordReport WordVectors export_vectors import_vectors word_space",
    "api.writing": "Continuation LanguageModel Scored Writer",
    "evaluate.word_space": "NearWord WordSpace",
    "inspect.forecasts": "Forecasted",
}

__all__ = [
    "RECIPES",
    "RESUMABLE",
    "Answered",
    "Answerer",
    "Averaged",
    "Candidate",
    "Chooser",
    "Chosen",
    "Classification",
    "Classifier",
    "Completion",
    "Continuation",
    "Ensemble",
    "Filled",
    "Forecasted",
    "Forecaster",
    "Found",
    "FoundAnswer",
    "Guess",
    "Interpolated",
    "Judging",
    "LanguageModel",
    "MaskedLM",
    "Match",
    "Matcher",
    "Near",
    "NearWord",
    "Picked",
    "Prompted",
    "Restored",
    "Restorer",
    "Scored",
    "SeriesClassifier",
    "TaggedLine",
    "Tagger",
    "Trained",
    "Training",
    "Translating",
    "Translation",
    "Translator",
    "Understanding",
    "WordReport",
    "WordSpace",
    "WordVectors",
    "Writer",
    "average",
    "begin",
    "build_recipe",
    "ensemble",
    "export_hf",
    "export_vectors",
    "import_hf",
    "import_minilm",
    "import_vectors",
    "interpolate",
    "load",
    "make_average",
    "read_recipe",
    "recipe_mapping",
    "recipe_names",
    "recipe_of",
    "refuse_other_recipe",
    "resume",
    "train_recipe",
    "word_space",
]


def __getattr__(name: str) -> Any:
    home = next((home for home, names in HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module 'seqloom.api' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"seqloom.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
