from typing import Any

import pytest
from tests.estimators.examples import CASES, Case


@pytest.fixture(scope="session")
def case_of() -> dict[str, Case]:
    return CASES


@pytest.fixture(scope="session")
def fitted(case_of: dict[str, Case]) -> dict[str, Any]:
    """Return a trained model of each class, and a language model that was fine-tuned on instructions."""
    import seqloom

    models = {name: case.fit() for name, case in case_of.items()}
    texts = case_of["LanguageModel"].data["texts"]
    tuned = seqloom.InstructionModel(pretrained=models["LanguageModel"], overrides=["train.epochs=1"])
    return models | {"InstructionModel": tuned.fit(texts, texts)}
