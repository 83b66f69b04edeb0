"""From a run directory to what its model can do."""

from pathlib import Path
from typing import Any

from seqloom.api.answering import Answerer
from seqloom.api.bidirectional import BidirectionalLM
from seqloom.api.classifying import Classifier
from seqloom.api.filling import MaskedLM
from seqloom.api.forecasting import Forecaster
from seqloom.api.matching import Chooser, Matcher
from seqloom.api.restoring import Restorer
from seqloom.api.series_classifying import SeriesClassifier
from seqloom.api.tagging import Tagger
from seqloom.api.trained import Trained
from seqloom.api.translating import Translator
from seqloom.api.words import WordVectors
from seqloom.api.writing import LanguageModel
from seqloom.core.errors import UsageError
from seqloom.runs.run import Run

# How models of a task are used; those of any other task can be measured, and that is all.
USES: dict[str, type[Trained]] = {
    "language-model": LanguageModel,
    "ngram": LanguageModel,
    "hmm": LanguageModel,
    "prompt-tune": LanguageModel,
    "instruct": LanguageModel,
    "masked-lm": MaskedLM,
    "bidirectional-lm": BidirectionalLM,
    "denoise": Restorer,
    "translate": Translator,
    "classify": Classifier,
    "tag": Tagger,
    "hmm-tag": Tagger,
    "pair": Matcher,
    "choice": Chooser,
    "answer": Answerer,
    "word-vectors": WordVectors,
    "forecast": Forecaster,
    "series-classify": SeriesClassifier,
}


def load(path: str | Path, device: str = "auto", use: type[Trained] = Trained) -> Any:
    """A trained model from its run directory: of the class that can do what its task is about.

    With `use`, a model that can be used so, or a word on what it is instead.
    """
    run = Run.open(path)
    model = USES.get(str(run.recipe.get("task")), Trained)(run, device)
    if isinstance(model, use):
        return model
    if use.reads_text:
        run.tokenizer  # noqa: B018 (a run that is not about text says so here)
    raise UsageError(f"{path} is {model.what}: {model.uses()}. What was asked for needs {use.what}.")
