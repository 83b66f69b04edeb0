"""From a run directory to what its model can do."""

from importlib import import_module
from pathlib import Path
from typing import Any

from seqloom.api.trained import Trained
from seqloom.core.errors import UsageError
from seqloom.runs.run import Run

# How models of a task are used, by the file here and the class in it; those of any other task can be measured, and that
# is all. What a run does not need is not imported.
USES = {
    "language-model": "writing:LanguageModel",
    "ngram": "writing:LanguageModel",
    "hmm": "writing:LanguageModel",
    "prompt-tune": "writing:LanguageModel",
    "instruct": "writing:LanguageModel",
    "masked-lm": "filling:MaskedLM",
    "bidirectional-lm": "bidirectional:BidirectionalLM",
    "denoise": "restoring:Restorer",
    "translate": "translating:Translator",
    "classify": "classifying:Classifier",
    "tag": "tagging:Tagger",
    "hmm-tag": "tagging:Tagger",
    "pair": "matching:Matcher",
    "choice": "matching:Chooser",
    "answer": "answering:Answerer",
    "word-vectors": "words:WordVectors",
    "forecast": "forecasting:Forecaster",
    "series-classify": "series_classifying:SeriesClassifier",
}


def load(path: str | Path, device: str = "auto", use: type[Trained] = Trained) -> Any:
    """A trained model from its run directory: of the class that can do what its task is about.

    With `use`, a model that can be used so, or a word on what it is instead.
    """
    run = Run.open(path)
    model = use_of(str(run.recipe.get("task")))(run, device)
    if isinstance(model, use):
        return model
    if use.reads_text:
        run.tokenizer  # noqa: B018 (a run that is not about text says so here)
    raise UsageError(f"{path} is {model.what}: {model.uses()}. What was asked for needs {use.what}.")


def use_of(task: str) -> type[Trained]:
    """The class that can do what a task is about."""
    if task not in USES:
        return Trained
    module, _, name = USES[task].partition(":")
    found: type[Trained] = getattr(import_module(f"seqloom.api.{module}"), name)
    return found
