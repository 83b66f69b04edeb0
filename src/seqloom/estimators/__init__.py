"""Models as objects with `fit`, `predict`, `evaluate`, `save` and `load`, which follow the conventions of scikit-learn.

    model = seqloom.Classifier(model="bilstm").fit(texts, labels, validation=0.1)
    model.predict(["a dull film"])
    model.save("runs/mine")

`fit` writes the same recipe as `seqloom init`, and trains it. Texts may be lists, arrays, or columns of
pandas, polars and pyarrow.
"""

from seqloom.estimators.images import ImageClassifier
from seqloom.estimators.pairs import MultipleChoice, PairClassifier, QuestionAnswering
from seqloom.estimators.series import Forecaster, SeriesClassifier
from seqloom.estimators.texts import Classifier, InstructionModel, LanguageModel, Tagger, Translator, WordVectors

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
]
