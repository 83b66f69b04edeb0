"""What each place of a feed-forward language model's window is worth to it.

    worth(d) = loss, the tokens d places back dealt out anew among all windows − loss

in nats per token: how much worse the model predicts a text when one place tells it nothing true and all others are as
they were. The dealing keeps how often each token stands there.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.seeding import generator
from seqloom.inspect.plots.figures import COLOURS, legend, literal, new_figure, tidy
from seqloom.inspect.views.reading import evaluating
from seqloom.models.window_lm import WindowLM, windows, within_document
from seqloom.nn.softmax import SCORED_AT_ONCE
from seqloom.tasks import task_info
from seqloom.tasks.language_model import device_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP"


@dataclass(frozen=True)
class WindowView:
    """Of one model and one text."""

    name: str
    tokens: int  # how many were predicted
    loss: float  # nats per token, the window as it is
    shuffled: list[float]  # the same where the tokens 1, 2 … K places back are dealt out anew

    @property
    def worth(self) -> list[float]:
        return [loss - self.loss for loss in self.shuffled]


def window_lm(trained: Any) -> WindowLM:
    """The feed-forward model of a `Trained`; refused if it is another."""
    if isinstance(trained.model, WindowLM):
        return trained.model
    raise UsageError(
        f"Only a feed-forward language model (model.kind window-lm) has a window to look at; {trained.run.path} is of "
        f"kind {trained.run.recipe['model']['kind']}."
    )


def window_view(trained: Any, recipe: Any, split: str = "dev", most: int | None = None, name: str = "") -> WindowView:
    """What the window of a run, as `seqloom.load` gives it, is worth on a split, or on its first `most` tokens."""
    model = window_lm(trained)
    task: Any = task_info(recipe.task).task.reopen(recipe, trained.run)
    targets = task.stream(split)[:most].to(device_of(model))
    seen = _seen(model, targets, apart=recipe.batch.documents == "apart")
    losses = [_loss(model, _dealt(seen, place), targets) for place in range(1, model.config.window + 1)]
    return WindowView(name or trained.run.path.name, len(targets), _loss(model, seen, targets), losses)


def _seen(model: WindowLM, targets: Tensor, apart: bool) -> Tensor:
    """The window before each token of a stream (N, K)."""
    nothing = model.start().carry  # (1, K)
    inputs = torch.cat([nothing[:, -1:], targets[None, :-1]], dim=1)
    found = windows(inputs, nothing)[0][0]
    return within_document(found) if apart else found


def _dealt(seen: Tensor, place: int) -> Tensor:
    """Windows (N, K) in which the tokens so many places back have changed places with each other."""
    order = torch.randperm(len(seen), generator=generator(0, "window", place)).to(seen.device)
    found = seen.clone()
    found[:, -place] = seen[order, -place]
    return found


@torch.no_grad()
def _loss(model: WindowLM, seen: Tensor, targets: Tensor) -> float:
    pieces = zip(seen.split(SCORED_AT_ONCE), targets.split(SCORED_AT_ONCE), strict=True)
    with evaluating(model):
        scores = [model.output.target_log_probs(model.features(some), wanted) for some, wanted in pieces]
    return -torch.cat(scores).double().mean().item()


def draw_window(views: list[WindowView]) -> "Figure":
    """A line for each model: what the word one, two … places back is worth."""
    figure = new_figure(8, 4.6)
    axes = tidy(figure.add_subplot())
    for number, view in enumerate(views):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        label = literal(f"{view.name}: {view.loss:.2f} nats with all of its window")
        axes.plot(range(1, len(view.worth) + 1), view.worth, linewidth=2, label=label, **style)
    longest = max(len(view.worth) for view in views)
    axes.set_xticks(range(1, longest + 1))
    axes.set_xlabel("tokens back from the one that is predicted")
    if min(min(view.worth) for view in views) > 0:  # the nearest places are worth many times the farthest
        axes.set_yscale("log", subs=[])
        axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        axes.yaxis.set_major_formatter(lambda nats, _: f"{nats:g}")
    else:
        axes.axhline(0, color="0.4", linestyle=":")
    axes.set_ylabel("nats per token lost\nif this place says nothing true")
    axes.set_title("What each place of the window is worth", fontsize=12)
    legend(axes, "upper right")
    return figure
