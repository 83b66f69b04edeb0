"""From a run directory to what its model can do."""

from importlib import import_module
from pathlib import Path
from typing import Any

from seqloom.core.errors import UsageError
from seqloom.predict.base import Predictor
from seqloom.runs.run import Run

# How models of a task are used, by the file here and the class in it; those of any other task can be measured, and that
# is all. What a run does not need is not imported.
USES = {
    "language-model": "language_model:LanguageModel",
    "ngram": "language_model:LanguageModel",
    "hmm": "language_model:LanguageModel",
    "prompt-tune": "language_model:LanguageModel",
    "instruct": "language_model:LanguageModel",
    "masked-lm": "masked_lm:MaskedLM",
    "bidirectional-lm": "embeddings:BidirectionalLM",
    "denoise": "denoiser:Restorer",
    "translate": "translator:Translator",
    "classify": "classifier:Classifier",
    "tag": "tagger:Tagger",
    "hmm-tag": "tagger:Tagger",
    "pair": "matcher:Matcher",
    "choice": "matcher:Chooser",
    "answer": "answerer:Answerer",
    "word-vectors": "word_vectors:WordVectors",
    "forecast": "forecaster:Forecaster",
    "series-classify": "classifier:SeriesClassifier",
}


def load(path: str | Path, device: str = "auto", use: type[Predictor] = Predictor) -> Any:
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


def use_of(task: str) -> type[Predictor]:
    """The class that can do what a task is about."""
    if task not in USES:
        return Predictor
    module, _, name = USES[task].partition(":")
    found: type[Predictor] = getattr(import_module(f"seqloom.predict.{module}"), name)
    return found
