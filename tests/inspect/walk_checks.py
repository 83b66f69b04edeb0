"""Helpers for tests of walks: models with random weights in double precision, and checks of stages and panels."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.core.tokens import Specials
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.inspect.tours.panels import (
    DotPanel,
    MapPanel,
    MatrixPanel,
    Panel,
    SoftmaxPanel,
    SumPanel,
    WeightedSumPanel,
)
from seqloom.inspect.tours.tour import Walk
from seqloom.runs.trained import TranslatingModel
from seqloom.text import CharactersConfig, Tokenizer, train_tokenizer

TEXTS = ["the cat sat, here", "il gatto è qui", "القط هنا", "猫はここ"]


def build_tokenizer() -> Tokenizer:
    return train_tokenizer(CharactersConfig(), TEXTS)


@dataclass
class Trained(TranslatingModel):
    """The parts of a trained model that a walk uses."""

    model: Any
    tokenizer: Tokenizer
    kind: str
    task_name: str
    name: str = "runs/x"
    description: str = "a model"
    labels: list[str] = field(default_factory=list)
    max_length: int | None = None
    longest_source: int | None = None

    @property
    def run(self) -> Any:
        data = {"corpus": "made-up", "source": "en", "target": "it"}
        model = {"kind": self.kind, "cell": getattr(self.model.config, "cell", None)}
        return SimpleNamespace(
            path=self.name,
            data={},
            recipe={"task": self.task_name, "model": model, "data": data, "tokenizer": {"kind": "characters"}},
        )

    @property
    def device(self) -> Any:
        return torch.device("cpu")

    def task(self) -> Any:
        raise NotImplementedError

    @property
    def specials(self) -> Specials:
        return Specials.after(len(self.tokenizer))

    def to_training_format(self, text: str, complete: bool = True) -> str:
        return text

    def continue_text(self, before: Any, tokens: Any) -> str:
        return self.tokenizer.decode(tokens)

    def decode_options(self, **changes: Any) -> BeamConfig:
        return BeamConfig(**changes)

    def translate(self, lines: list[str], **options: Any) -> Any:
        tokens = torch.tensor([[*self.tokenizer.encode(lines[0]), 0]])
        source = {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}
        with torch.no_grad():
            (hypotheses,) = beam_search(
                self.model.eval(), source=source, options=BeamConfig(beam=2, max_length=6), end=0, attention=False
            )
        best = SimpleNamespace(ids=hypotheses[0].tokens, finished=hypotheses[0].finished)
        yield SimpleNamespace(candidates=[best])


def randomize(model: Any) -> Any:
    """Give a model large random weights in double precision.

    It is in training mode, so that dropout would be noticed.
    """
    torch.manual_seed(5)
    model = model.double().train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def check_walk(walk: Walk, tolerance: float = 1e-9) -> None:
    """Check that every panel is correct, and that every stage has a title, a shape and two to six sentences."""
    assert walk.stages
    assert len({stage.key for stage in walk.stages}) == len(walk.stages)
    for stage in walk.stages:
        assert stage.title
        assert stage.output_shape
        assert 2 <= count_sentences(stage.text) <= 6, stage.text
        for panel in stage.panels:
            check_panel(panel, tolerance)
    targets = {stop.stage for panel in walk.stages[0].panels if isinstance(panel, MapPanel) for stop in panel.stops}
    assert targets <= {stage.key for stage in walk.stages}


def count_sentences(words: str) -> int:
    return sum(words.count(mark) for mark in (". ", "! ", "? ")) + 1


def check_panel(panel: Panel, tolerance: float) -> None:
    match panel:
        case SumPanel():
            check_sum(panel, tolerance)
        case DotPanel():
            np.testing.assert_allclose(panel.a * panel.b, panel.products, atol=tolerance)
            np.testing.assert_allclose(panel.products.sum() + panel.rest, panel.total, atol=tolerance)
            check_operations(panel, tolerance)
        case SoftmaxPanel():
            np.testing.assert_allclose(
                np.exp(panel.scores - panel.scores.max()), panel.exponentials / panel.exponentials.max(), atol=tolerance
            )
            np.testing.assert_allclose(panel.exponentials / panel.total, panel.probabilities, atol=tolerance)
            rest = panel.rest[2] if panel.rest else 0.0
            np.testing.assert_allclose(panel.probabilities.sum() + rest, 1, atol=tolerance)
        case WeightedSumPanel():
            np.testing.assert_allclose(panel.weights @ panel.vectors, panel.result, atol=tolerance)
        case MatrixPanel(probabilities=True):
            np.testing.assert_allclose(panel.values.sum(axis=1), 1, atol=tolerance)


def check_sum(panel: SumPanel, tolerance: float) -> None:
    total = panel.terms[0].values
    for term in panel.terms[1:]:
        if term.sign == "+":
            total = total + term.values
        elif term.sign == "×":
            total = total * term.values
        elif term.sign == "=":
            np.testing.assert_allclose(total, term.values, atol=tolerance)
        else:
            assert term.sign in ("→", "&")


def check_operations(panel: DotPanel, tolerance: float) -> None:
    """Check operations such as ÷ √16, + a bias and × β. The last line is the result."""
    result = panel.total
    for words, value in panel.after:
        if words.startswith("÷ √"):
            result /= math.sqrt(float(words.split("√")[1].split()[0]))
            assert value == pytest.approx(result, abs=tolerance)
        elif words.startswith("+"):
            result += value
        elif words.startswith("×"):
            result = value
        else:
            assert value == pytest.approx(result, abs=tolerance)


def stage_output(walk: Walk, key: str) -> Any:
    values = walk.stage(key).output
    assert values is not None
    return values


def keys(stages: Any) -> list[str]:
    return [stage.key for stage in stages]
