"""What the tests of walks share: models with random weights in double precision, and a check that panels add up."""

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
    Stage,
    SumPanel,
    WeightedSumPanel,
)
from seqloom.inspect.tours.tour import Walk
from seqloom.runs.trained import TranslatingModel
from seqloom.text import CharactersConfig, Tokenizer, train_tokenizer

TEXTS = ["the cat sat, here", "il gatto è qui", "القط هنا", "猫はここ"]


def letters() -> Tokenizer:
    return train_tokenizer(CharactersConfig(), TEXTS)


@dataclass
class Trained(TranslatingModel):
    """What a walk asks of a trained model."""

    model: Any
    tokenizer: Tokenizer
    kind: str
    task_name: str
    name: str = "runs/x"
    what: str = "a model"
    labels: list[str] = field(default_factory=list)
    longest: int | None = None
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
            (found,) = beam_search(
                self.model.eval(), source=source, options=BeamConfig(beam=2, max_length=6), end=0, attention=False
            )
        best = SimpleNamespace(ids=found[0].tokens, finished=found[0].finished)
        yield SimpleNamespace(candidates=[best])


def drawn(model: Any) -> Any:
    """Weights that make a difference, in double precision; the model is left in training, where dropout would show."""
    torch.manual_seed(5)
    model = model.double().train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def follows(walk: Walk, close: float = 1e-9) -> None:
    """Every panel of a walk adds up, and every stage can be understood by itself."""
    assert walk.stages
    assert len({stage.key for stage in walk.stages}) == len(walk.stages)
    for stage in walk.stages:
        assert stage.title
        assert stage.gives
        assert 2 <= sentences(stage.words) <= 6, stage.words
        for panel in stage.panels:
            adds_up(panel, close)
    ways = {stop.stage for panel in walk.stages[0].panels if isinstance(panel, MapPanel) for stop in panel.stops}
    assert ways <= {stage.key for stage in walk.stages}


def sentences(words: str) -> int:
    return sum(words.count(mark) for mark in (". ", "! ", "? ")) + 1


def adds_up(panel: Panel, close: float) -> None:
    match panel:
        case SumPanel():
            assert_sum(panel, close)
        case DotPanel():
            np.testing.assert_allclose(panel.a * panel.b, panel.products, atol=close)
            np.testing.assert_allclose(panel.products.sum() + panel.rest, panel.total, atol=close)
            assert_after(panel, close)
        case SoftmaxPanel():
            np.testing.assert_allclose(
                np.exp(panel.scores - panel.scores.max()), panel.powers / panel.powers.max(), atol=close
            )
            np.testing.assert_allclose(panel.powers / panel.total, panel.shares, atol=close)
            rest = panel.rest[2] if panel.rest else 0.0
            np.testing.assert_allclose(panel.shares.sum() + rest, 1, atol=close)
        case WeightedSumPanel():
            np.testing.assert_allclose(panel.weights @ panel.vectors, panel.result, atol=close)
        case MatrixPanel(shares=True):
            np.testing.assert_allclose(panel.values.sum(axis=1), 1, atol=close)


def assert_sum(panel: SumPanel, close: float) -> None:
    total = panel.terms[0].values
    for term in panel.terms[1:]:
        if term.sign == "+":
            total = total + term.values
        elif term.sign == "×":
            total = total * term.values
        elif term.sign == "=":
            np.testing.assert_allclose(total, term.values, atol=close)
        else:
            assert term.sign in ("→", "&")


def assert_after(panel: DotPanel, close: float) -> None:
    """÷ √16 =, + a bonus, × β: each line says what is done, the last is the result."""
    now = panel.total
    for words, value in panel.after:
        if words.startswith("÷ √"):
            now /= math.sqrt(float(words.split("√")[1].split()[0]))
            assert value == pytest.approx(now, abs=close)
        elif words.startswith("+"):
            now += value
        elif words.startswith("×"):
            now = value
        else:
            assert value == pytest.approx(now, abs=close)


def output(walk: Walk, key: str) -> Any:
    found = walk.stage(key).output
    assert found is not None
    return found


def keys(stages: Any) -> list[str]:
    return [stage.key for stage in stages]


__all__ = ["Stage", "Trained", "adds_up", "drawn", "follows", "keys", "letters", "output", "sentences"]
