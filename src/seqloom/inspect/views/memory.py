"""How far back a cell remembers: success at a memory test against the lag, for several cells on equal terms.

    plan = MemoryPlan(test="recall", cells=("elman", "lstm", "gru"), lags=(5, 10, 20), steps=500)
    found = collect(plan, measure(plan))
    found.success            # (cells, lags, seeds), shares of right answers on sequences no training has seen

All cells get the same number of parameters (those of an LSTM `hidden` wide), updates, sequences and learning rate, and
a fresh training for every lag and seed. What `lag` means is up to the test:

    recall   symbols between the one to remember and the question
    adding   the steps the first number must be kept, at least: the sequence is twice as long
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqloom import accel
from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean
from seqloom.inspect.plots.figures import COLOURS, legend, new_figure, tidy
from seqloom.models.recurrent_reader import RecurrentReaderConfig
from seqloom.nn.cells import CELLS
from seqloom.tasks import task_info
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import wrap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = {"recall": 500, "adding": 1000}  # updates, where the plan does not say
TITLES = {"recall": "Recall: which symbol came first?", "adding": "Adding: what is the sum of the two marked numbers?"}
MEANINGS = {
    "recall": "lag: other symbols between the one to remember and the question",
    "adding": "lag: steps the first number must be kept at least (half the sequence)",
}
MARKERS = "osD^vPX"


@dataclass(frozen=True)
class MemoryPlan:
    """What to measure. Everything is checked when a plan is made, before any training."""

    test: str = "recall"
    cells: tuple[str, ...] = ("elman", "lstm", "gru")
    lags: tuple[int, ...] = (5, 10, 20, 40)
    seeds: tuple[int, ...] = (1, 2, 3)
    steps: int | None = None  # updates of each training; None is as many as the test usually needs
    hidden: int = 32  # width of the LSTM whose number of parameters all cells get
    rows: int = 32  # sequences per update
    lr: float = 5e-3
    forget_bias: float | None = None  # of the lstm; None is its own habit
    exact: bool = False  # recall: train at the lag that is tested alone, not at all up to it
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.test not in STEPS:
            raise UsageError(f"There is no memory test {self.test!r}: {did_you_mean(self.test, STEPS)}.")
        for name in self.cells:
            if name not in CELLS:
                raise UsageError(f"There is no cell {name!r}: {did_you_mean(name, CELLS)}.")
        for name in ("cells", "lags", "seeds"):
            values = getattr(self, name)
            if not values:
                raise UsageError(f"A memory test needs at least one of {name}; got none.")
            if len(set(values)) < len(values):
                raise UsageError(f"The {name} of a memory test must differ from each other; got {_listed(values)}.")
        if min(self.lags) < 1:
            raise UsageError(f"A lag must be at least 1; got {_listed(self.lags)}.")
        for name in ("updates", "hidden", "rows", "lr"):
            if getattr(self, name) <= 0:
                raise UsageError(
                    f"{'steps' if name == 'updates' else name} must be above 0; got {getattr(self, name)}."
                )
        if self.exact and self.test != "recall":
            raise UsageError("Only recall is trained at lags shorter than the one tested; leave out exact for adding.")
        if self.forget_bias is not None and "lstm" not in self.cells:
            raise UsageError(f"A forget bias is for the lstm cell, which is not among {_listed(self.cells)}.")

    @property
    def updates(self) -> int:
        return STEPS[self.test] if self.steps is None else self.steps

    def recipe(self, cell: str, lag: int, seed: int, hidden: int) -> Any:
        """An ordinary recipe: `seqloom train` would do the same with it."""
        data = {"length": 2 * lag} if self.test == "adding" else {"lag": lag, "shortest": lag if self.exact else 1}
        model = {"kind": "recurrent-reader", "cell": cell, "hidden": hidden}
        if cell == "lstm":
            model["forget_bias"] = self.forget_bias
        fit = {"steps": self.updates, "lr": self.lr, "schedule": "cosine", "clip": 1.0, "device": self.device}
        mapping = {"task": self.test, "seed": seed, "data": data, "batch": {"rows": self.rows}, "model": model}
        return build(task_info(self.test).recipe, {**mapping, "train": fit}, source="the memory test")

    def sizes(self) -> dict[str, tuple[int, int]]:
        """For each cell its width, and the parameters it then has: as near as can be to those of the LSTM."""
        task = task_info(self.test).task.prepare(self.recipe("lstm", self.lags[0], 1, self.hidden))
        wanted = parameters("lstm", self.hidden, **task.sizes())
        widths = {cell: equal_width(cell, wanted, **task.sizes()) for cell in self.cells}
        return {cell: (width, parameters(cell, width, **task.sizes())) for cell, width in widths.items()}


def parameters(cell: str, hidden: int, inputs: int, outputs: int) -> int:
    model = RecurrentReaderConfig(cell=cell, hidden=hidden).build(inputs, outputs)
    return sum(parameter.numel() for parameter in model.parameters())


def equal_width(cell: str, wanted: int, inputs: int, outputs: int) -> int:
    """The width at which a cell's parameters come nearest to the number wanted; more width is always more of them."""
    low, high = 1, 2
    while parameters(cell, high, inputs, outputs) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameters(cell, middle, inputs, outputs) < wanted else (low, middle)
    return min((low, high), key=lambda width: abs(parameters(cell, width, inputs, outputs) - wanted))


@dataclass(frozen=True)
class Outcome:
    """One training."""

    cell: str
    lag: int
    seed: int
    success: float
    blind: float  # the success of one who has not read


def measure(plan: MemoryPlan) -> Iterator[Outcome]:
    """Every training of the plan, one after another, each as soon as it is over."""
    accel.install()
    sizes = plan.sizes()
    for cell in plan.cells:
        for lag in plan.lags:
            for seed in plan.seeds:
                recipe = plan.recipe(cell, lag, seed, sizes[cell][0])
                task = task_info(plan.test).task.prepare(recipe)
                state = TrainState(task, recipe.train, seed)
                step = wrap(state)
                for _ in range(plan.updates):
                    make_step(state, step)
                metrics = task.evaluate(state.model.eval(), "test")  # nothing was chosen by it
                yield Outcome(cell, lag, seed, metrics["success"], metrics["blind_success"])


@dataclass(frozen=True)
class Memory:
    """What was found, as plain arrays."""

    plan: MemoryPlan
    success: NDArray[np.float64]  # (cells, lags, seeds)
    blind: float  # mean success of blind guesses
    hidden: dict[str, int]  # by cell
    parameters: dict[str, int]

    def reach(self, cell: str) -> int | None:
        """The longest lag, all shorter ones included, at which a cell is at least halfway from guessing to perfect."""
        enough, found = (1 + self.blind) / 2, None
        means = dict(zip(self.plan.lags, self.success[self.plan.cells.index(cell)].mean(axis=1), strict=True))
        for lag in sorted(means):
            if means[lag] < enough:
                break
            found = lag
        return found


def collect(plan: MemoryPlan, outcomes: Iterable[Outcome]) -> Memory:
    success = np.full((len(plan.cells), len(plan.lags), len(plan.seeds)), np.nan)
    blind = []
    for one in outcomes:
        place = plan.cells.index(one.cell), plan.lags.index(one.lag), plan.seeds.index(one.seed)
        success[place] = one.success
        blind.append(one.blind)
    sizes = plan.sizes()
    hidden = {cell: size[0] for cell, size in sizes.items()}
    return Memory(plan, success, float(np.mean(blind)), hidden, {cell: size[1] for cell, size in sizes.items()})


def draw_memory(found: Memory) -> "Figure":
    """A line for the mean over seeds, a band from the worst seed to the best, and a level line for guessing."""
    plan = found.plan
    figure = new_figure(8, 5)
    axes = tidy(figure.add_subplot())
    order = np.argsort(plan.lags)
    lags = np.array(plan.lags)[order]
    for number, cell in enumerate(plan.cells):
        colour, rows = COLOURS[number % len(COLOURS)], found.success[number][order]  # (lags, seeds)
        axes.fill_between(lags, rows.min(axis=1), rows.max(axis=1), color=colour, alpha=0.18, linewidth=0)
        label = f"{cell}: {found.hidden[cell]} wide, {found.parameters[cell]:,} parameters"
        marker, style = MARKERS[number % len(MARKERS)], "-" if number < len(COLOURS) else "--"
        axes.plot(lags, rows.mean(axis=1), style, color=colour, marker=marker, linewidth=2, label=label)
    axes.axhline(found.blind, color="0.4", linestyle=":", label=f"blind guess: {found.blind:.1%}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lags, [str(lag) for lag in lags])
    axes.minorticks_off()
    axes.set_xlabel(MEANINGS[plan.test])
    axes.set_ylim(-0.03, 1.05)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylabel("answered right")
    seeds = f"{len(plan.seeds)} seeds: mean, and band from worst to best" if len(plan.seeds) > 1 else "1 seed"
    axes.set_title(f"{TITLES[plan.test]}\n{plan.updates:,} updates of {plan.rows} sequences each, {seeds}", fontsize=11)
    legend(axes)
    return figure


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
