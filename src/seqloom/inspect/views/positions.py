"""What a model is told of places, as plain arrays: the sinusoids, or a run's own.

    view = sinusoids_view(width=128, length=100)
    view.table          (length, width): row p is what place p is told
    view.products       (length, length): PE(p) · PE(q)
    view.by_distance    (length,): the mean of PE(p) · PE(p + k) over p, as a share of that at k = 0

Of sinusoids PE(p) · PE(p + k) = Σ_i cos(k / base^(2i/d)), whatever p is: they tell how far apart two places are. Rotary
positions leave the same sum in q·k, for q = k with all pairs equally long.

What a task made of the layers below it: h = γ Σ_j s_j h_j, where it begins with a bidirectional language model.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.inspect.values import Array
from seqloom.models.bodies import BiLMBody
from seqloom.nn.positions import BASE, Layout, PositionsConfig, sinusoid_table

Side = Literal["source", "target"]
WIDTH, LENGTH = 128, 100
LONGEST = 2000  # places: products are made of any two
CURVES = 4


@dataclass(frozen=True, eq=False)
class PositionsView:
    kind: Literal["sinusoidal", "learned", "rotary"]
    table: Array  # (length, width); of rotary the sine and cosine of the angles, which are as wide as a head
    layout: Layout | None = None  # None of what is learned
    base: float | None = None
    name: str = ""  # of the run

    @property
    def length(self) -> int:
        return len(self.table)

    @property
    def width(self) -> int:
        return self.table.shape[1]

    @cached_property
    def products(self) -> Array:
        found: Array = self.table @ self.table.T
        return found

    @cached_property
    def by_distance(self) -> Array:
        return np.array([self._at(distance).mean() for distance in range(self.length)]) / self._level

    @cached_property
    def spread(self) -> tuple[Array, Array]:
        """The smallest and the largest product at each distance, as shares too."""
        at = [self._at(distance) for distance in range(self.length)]
        low, high = (np.array([choose(found) for found in at]) / self._level for choose in (np.min, np.max))
        return low, high

    def _at(self, distance: int) -> Array:
        return np.diagonal(self.products, distance)

    @property
    def _level(self) -> float:
        """The mean of PE(p) · PE(p)."""
        return float(self._at(0).mean()) or 1.0

    @property
    def wavelengths(self) -> list[float]:
        """After how many places each pair of sine and cosine begins again; [] of what is learned."""
        if self.base is None:
            return []
        return [2 * math.pi * self.base ** (2 * pair / self.width) for pair in range(self.width // 2)]

    def sines(self, pair: int) -> int:
        """The dimension of a pair's sine."""
        return 2 * pair if self.layout == "interleaved" else pair

    def telling(self, count: int = CURVES) -> list[int]:
        """A few dimensions worth a curve: sines from the fastest to one that still moves within the length; of what is
        learned, those that vary most."""
        if not self.wavelengths:
            return sorted(np.argsort(-self.table.std(axis=0), kind="stable")[:count].tolist())
        moving = sum(wave <= 4 * self.length for wave in self.wavelengths)
        pairs = np.linspace(0, max(moving - 1, 0), min(count, max(moving, 1))).round().astype(int)
        return [self.sines(int(pair)) for pair in dict.fromkeys(pairs.tolist())]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "layout": self.layout,
            "base": self.base,
            "length": self.length,
            "width": self.width,
            "wavelengths": self.wavelengths,
            "by_distance": self.by_distance.tolist(),
            "table": self.table.tolist(),
        }


def sinusoids_view(
    width: int = WIDTH,
    length: int = LENGTH,
    layout: Layout = "interleaved",
    base: float = BASE,
    kind: Literal["sinusoidal", "rotary"] = "sinusoidal",
    name: str = "",
) -> PositionsView:
    """Sinusoids of any size. Rotary positions turn by the same angles; their `width` is that of a head."""
    if width < 2 or width % 2:
        raise UsageError(f"A sine and its cosine make a pair, so the width must be even, 2 at least; got {width}.")
    if base <= 1:
        raise UsageError(f"The base must be above 1; got {base:g}.")
    _check_length(length)
    return PositionsView(kind, _array(sinusoid_table(length, width, layout, base)), layout, base, name)


def run_positions(trained: Any, length: int | None = None, side: Side | None = None) -> PositionsView:
    """A run's own: what it adds to the tokens of its source (or its target: `side`) or of its text, a learned table or
    sinusoids; or the angles by which it turns queries and keys. `trained` is what `seqloom.load` gives."""
    positions: PositionsConfig | None = getattr(getattr(trained.model, "config", None), "positions", None)
    if positions is None:
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has no positions to look at: it is of kind {kind}, not a transformer.")
    if positions.kind == "none":
        raise UsageError(f"{trained.name} knows no positions: its recipe says model.positions.kind=none.")
    config, known = trained.model.config, positions.longest
    layout, base = positions.layout or "interleaved", positions.base or BASE
    length = min(LENGTH, known or LENGTH) if length is None else length
    if positions.kind == "rotary":
        return sinusoids_view(config.width // config.heads, length, layout, base, "rotary", trained.name)
    _check_length(length, known)
    embedded, which = _embedded(trained, side)
    with torch.no_grad():
        table = _array(embedded.positions(torch.arange(length)))
    if positions.kind == "learned":
        return PositionsView("learned", table, name=f"{trained.name}{which}")
    return PositionsView("sinusoidal", table, layout, base, trained.name)


def _embedded(trained: Any, side: Side | None) -> tuple[Any, str]:
    """What embeds the tokens of a side, and how it is named; a model that reads a text alone has one table."""
    if not hasattr(trained.model, "body"):
        side = side or "source"
        return getattr(trained.model, f"{side}_embed"), f", {side}"
    if side is not None:
        raise UsageError(f"{trained.name} reads a text alone, and has one table: leave --side out.")
    return trained.model.body.embedded, ""


def _array(table: Tensor) -> Array:
    found: Array = table.detach().double().cpu().numpy()
    return found


def _check_length(length: int, known: int | None = None) -> None:
    longest = LONGEST if known is None else min(known, LONGEST)
    if not 1 <= length <= longest:
        what = (
            f"{longest:,} positions can be shown at once"
            if longest == LONGEST
            else f"The run knows {longest:,} positions"
        )
        raise UsageError(f"{what}, and at least 1 must be; got --length {length}.")


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MixView:
    """How much each layer has of the mix, the lowest first."""

    layers: list[str]
    shares: list[float]  # s, which sum to 1
    scale: float  # γ


def mix_view(trained: Any) -> MixView:
    """Of what `seqloom.load` gives for a run that was fine-tuned."""
    trained.run.tokenizer  # noqa: B018 (a run that is not about text says so here)
    body = getattr(trained.model, "body", None)
    if not isinstance(body, BiLMBody):
        raise UsageError(
            f"Only a model that was fine-tuned from a bidirectional language model (init.from) mixes its layers; "
            f"{trained.name} is {trained.what}."
        )
    shares = body.mix.shares.tolist()
    names = ["token vectors", *(f"layer {depth}" for depth in range(1, len(shares)))]
    return MixView(names, shares, body.mix.scale.item())
