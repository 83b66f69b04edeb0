"""The runs of a ladder: an ordinary one for each rung and seed, begun or gone on with in turn."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqloom import api
from seqloom.core.errors import DivergedError, SeqloomError, UsageError
from seqloom.ladder.plan import Ladder, Rung
from seqloom.runs.run import Run
from seqloom.train.events import Event
from seqloom.train.stop import Stop


@dataclass(frozen=True)
class Place:
    """Where on the ladder something happens."""

    rung: Rung
    seed: int
    path: Path
    number: int  # of this run, from 1 …
    total: int  # … to this


def places(ladder: Ladder, out: Path) -> list[Place]:
    """Every run, all rungs with the first seed first."""
    pairs = [(rung, seed) for seed in ladder.config.seeds for rung in ladder.rungs]
    made = [(rung, seed, out / f"{rung.name}-seed{seed}") for rung, seed in pairs]
    return [Place(*one, number, len(made)) for number, one in enumerate(made, start=1)]


def climb(ladder: Ladder, out: Path, stop: Stop | None = None) -> Iterator[tuple[Place, Event | str | None]]:
    """Train every run that is not finished, yielding where and what happens: the events of its training, None for a run
    that was finished before, and the reason for one that diverged, with which the ladder goes on without it. After
    `Stopped` nothing follows."""
    stop = stop or Stop()
    if (out / "recipe.yaml").exists():
        raise UsageError(f"{out} is a run, not a ladder. Choose another place with --out.")
    for place in places(ladder, out):
        _refuse_other(place)  # before any of them is trained
    for place in places(ladder, out):
        with stop.interruptible():
            training = _training(place)
        if training is None:
            yield place, None
            continue
        try:
            yield from ((place, event) for event in training.events(stop))
        except DivergedError as error:
            yield place, str(error)
        if stop.requested:
            return


def _refuse_other(place: Place) -> None:
    """What lies where a run belongs must be that run."""
    try:
        if place.path.exists():
            api.refuse_other_recipe(Run.open(place.path), replace(place.rung.recipe, seed=place.seed))
    except SeqloomError as error:
        raise place.rung.named(error) from error


def _training(place: Place) -> api.Training | None:
    """The training of a run from where it is; None if it is over."""
    recipe = replace(place.rung.recipe, seed=place.seed)
    try:
        if not place.path.exists():
            return api.begin(recipe, place.path)
        run = Run.open(place.path)
        if not api.refuse_other_recipe(run, recipe) and finished(run):
            return None
        return api.resume(place.path, recipe=recipe)
    except SeqloomError as error:
        raise place.rung.named(error) from error


def finished(run: Run) -> dict[str, Any] | None:
    """How a run ended; None if it has not, or was taken up again since."""
    last = [*run.log()][-1:]
    return last[0] if last and last[0]["event"] == "finished" else None
