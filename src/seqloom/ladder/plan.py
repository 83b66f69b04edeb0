"""What a ladder says, and what it takes for its rungs to be alike: equal sizes, an equal budget."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from seqloom import api
from seqloom.core.config import apply_overrides, build, config, load_yaml, parse_overrides
from seqloom.core.errors import SeqloomError, UsageError
from seqloom.core.words import nearest
from seqloom.inspect.doctor import budget_of, parameters_of
from seqloom.nn.cells import CELLS
from seqloom.tasks import task_module
from seqloom.train.fit import FitConfig

LADDERS = api.RECIPES / "ladders"
WITHIN = 0.01  # how far a rung's parameters, or the tokens it sees, may be from the others'
LARGEST = 1 << 20  # no size is looked for beyond this
REGISTRIES = {"cells": ("model.cell", CELLS)}  # what `rungs` may name: a rung for every member


@config
class LadderConfig:
    """What a ladder file says."""

    base: str | dict[str, Any]  # a shipped recipe, a YAML file, or a recipe written out
    overrides: tuple[str, ...] = ()  # for every rung
    rungs: str | dict[str, tuple[str, ...]]  # name -> its overrides; or `cells`: a rung for every cell there is
    equal: Literal["parameters", "nothing"] = "parameters"  # what is made alike by choosing `size`
    size: str = "model.hidden"  # the key that is chosen
    parameters: int | None = None  # how many; if left out, as many as the first rung has as it stands
    budget: Literal["equal", "free"] = "equal"  # whether all rungs must see as many tokens
    seeds: tuple[int, ...] = (1, 2, 3)
    metric: str | None = None  # on dev, to rank by and to draw; if left out, what the task chooses checkpoints by
    best: Literal["lowest", "highest"] | None = None  # of that metric; if left out, as the task has it

    def problems(self) -> Iterator[str]:
        if isinstance(self.rungs, str) and self.rungs not in REGISTRIES:
            yield f"rungs must name overrides for each rung, or be one of {', '.join(REGISTRIES)}"
        elif not self.rungs:
            yield "rungs must name at least one rung"
        for name in self.rungs if isinstance(self.rungs, dict) else ():
            if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
                yield f"a rung's name becomes a folder: letters, digits and . _ + - only, got {name!r}"
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            yield f"seeds must be whole numbers that differ from each other, got {list(self.seeds)}"
        if self.parameters is not None and self.parameters < 1:
            yield f"parameters must be at least 1, got {self.parameters}"


@dataclass(frozen=True)
class Rung:
    name: str
    mapping: dict[str, Any]  # the recipe as plain values, without a seed of its own
    recipe: Any
    size: int | None = None  # the ladder's `size`, chosen or as it stands
    parameters: int | None = None  # None until solved, and for what is counted
    tokens: int | None = None  # that training will see

    def named(self, error: SeqloomError) -> SeqloomError:
        """The same error, saying whose it is."""
        return type(error)(f"rung {self.name}: {error}")


@dataclass(frozen=True)
class Ladder:
    name: str
    config: LadderConfig
    rungs: tuple[Rung, ...]

    @property
    def task(self) -> Any:
        return task_module(self.rungs[0].recipe.task).Task

    @property
    def metric(self) -> str:
        return self.config.metric or str(self.task.goal.metric)

    @property
    def higher_is_better(self) -> bool:
        return self.config.best == "highest" if self.config.best else bool(self.task.goal.higher_is_better)


# --- reading --------------------------------------------------------------------------------------------------------


def ladder_names() -> list[str]:
    return sorted(path.stem for path in LADDERS.glob("*.yaml"))


def read_ladder(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    seeds: Sequence[int] | None = None,
    parameters: int | None = None,
) -> Ladder:
    """A shipped ladder by name or a YAML file by path; every rung's recipe is checked. Overrides are for all rungs."""
    name, path = _find_ladder(str(source))
    told = {"seeds": seeds and list(seeds), "parameters": parameters}
    mapping = {**load_yaml(path), **{key: value for key, value in told.items() if value is not None}}
    chosen = build(LadderConfig, mapping, source=f"ladder {source}")
    base = api.recipe_mapping(_beside(path, chosen.base))[1] if isinstance(chosen.base, str) else chosen.base
    everyone = [*parse_overrides(chosen.overrides), *parse_overrides(overrides)]
    rungs = [_rung(name, base, everyone, own) for name, own in _rung_overrides(chosen).items()]
    _refuse_clashes(chosen, overrides, rungs)
    return Ladder(name, chosen, tuple(rungs))


def _find_ladder(source: str) -> tuple[str, Path]:
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UsageError(f"There is no ladder file {path}.")
        return path.stem, path
    if source in ladder_names():
        return source, LADDERS / f"{source}.yaml"
    guess = nearest(source, ladder_names())
    hint = f"did you mean {guess}?" if guess else "`seqloom list ladders` shows them all."
    raise UsageError(f"No shipped ladder is called {source!r}, and a file must end in .yaml; {hint}")


def _beside(ladder: Path, base: str) -> str:
    """A recipe file is named as seen from the ladder's own folder."""
    beside = ladder.parent / base
    return str(beside) if base.endswith((".yaml", ".yml")) and beside.is_file() else base


def _rung_overrides(chosen: LadderConfig) -> dict[str, tuple[str, ...]]:
    if isinstance(chosen.rungs, dict):
        return chosen.rungs
    key, members = REGISTRIES[chosen.rungs]
    return {name: (f"{key}={name}",) for name in members}


def _rung(name: str, base: dict[str, Any], everyone: Sequence[Any], own: Sequence[str]) -> Rung:
    try:
        mapping = apply_overrides(base, [*everyone, *parse_overrides(own)])
        return Rung(name, mapping, api.build_recipe(mapping, "its recipe"))
    except SeqloomError as error:
        raise type(error)(f"rung {name}: {error}") from error


def _refuse_clashes(chosen: LadderConfig, overrides: Sequence[str], rungs: Sequence[Rung]) -> None:
    """What the rungs are about, and what is solved for, cannot be set for all of them."""
    own = {
        name: {".".join(path) for path, _ in parse_overrides(words)} for name, words in _rung_overrides(chosen).items()
    }
    told = {".".join(path) for path, _ in parse_overrides(overrides)}
    varied = set().union(*own.values())
    if told & varied:
        raise UsageError(f"{min(told & varied)} is what the rungs differ in; it cannot be set for all of them.")
    if chosen.size in told and chosen.equal == "parameters" and chosen.parameters is not None:
        raise UsageError(f"{chosen.size} is chosen for every rung so that the parameters are equal; set --parameters.")
    if "seed" in told | varied:
        raise UsageError("seed cannot be set in a ladder: every rung is trained with each of --seeds.")
    free = [rung.name for rung in rungs if chosen.equal == "parameters" and chosen.size in own[rung.name]]
    first = rungs[0].name if chosen.parameters is None else None  # the measure of the others stays as it stands
    if wrong := [name for name in free if name != first]:
        raise UsageError(
            f"rung {wrong[0]}: {chosen.size} is chosen so that the parameters are equal. Leave it out, or set "
            "`equal: nothing` in the ladder."
        )
    if len({rung.recipe.task for rung in rungs}) > 1 or len({repr(rung.recipe.data) for rung in rungs}) > 1:
        raise UsageError("All rungs must have the same task and data, or their figures could not be compared.")


# --- equal sizes, equal budget --------------------------------------------------------------------------------------


def solve(ladder: Ladder) -> Ladder:
    """Read the data, choose every rung's size, and make sure all see as much of the text. Nothing is written."""
    target, rungs = ladder.config.parameters, []
    for rung in ladder.rungs:
        try:
            task = task_module(rung.recipe.task).Task.prepare(rung.recipe)
            solved = _sized(rung, task, ladder.config, target)
            gradient = isinstance(solved.recipe.train, FitConfig)
            tokens = _tokens(_with_recipe(task, solved.recipe)) if gradient else None
        except SeqloomError as error:
            raise rung.named(error) from error
        target = target or solved.parameters
        rungs.append(replace(solved, tokens=tokens))
    if ladder.config.budget == "equal":
        _refuse_unequal(rungs)
    return replace(ladder, rungs=tuple(rungs))


def _with_recipe(task: Any, recipe: Any) -> Any:
    other = copy.copy(task)
    other.recipe = recipe
    return other


def _tokens(task: Any) -> int | None:
    budget = budget_of(task, task.recipe)
    return budget.tokens_per_step and budget.steps * budget.tokens_per_step


def _sized(rung: Rung, task: Any, chosen: LadderConfig, target: int | None) -> Rung:
    if not isinstance(rung.recipe.train, FitConfig):
        raise UsageError("a ladder's rungs are trained by gradient; what is counted has no size to choose.")
    path = tuple(chosen.size.split("."))
    as_it_stands = getattr(getattr(rung.recipe, path[0], None), path[-1], None)
    if chosen.equal == "nothing" or target is None:
        return replace(rung, size=as_it_stands, parameters=parameters_of(task))

    def built(value: int) -> Any:
        return api.build_recipe(
            apply_overrides(rung.mapping, [(path, value)]), f"its recipe with {chosen.size}={value}"
        )

    value, count = nearest_size(lambda n: parameters_of(_with_recipe(task, built(n))), target)
    if abs(count - target) > WITHIN * target:
        raise UsageError(
            f"no {chosen.size} gives {target:,} parameters within {WITHIN:.0%}: the nearest, {value}, gives {count:,}. "
            "Choose more --parameters: larger models come closer."
        )
    mapping = apply_overrides(rung.mapping, [(path, value)])
    return replace(rung, mapping=mapping, recipe=built(value), size=value, parameters=count)


def nearest_size(count: Callable[[int], int], target: int) -> tuple[int, int]:
    """The whole number n ≥ 1 whose count(n), which grows with n, is nearest to the target; and that count."""
    above = 1
    while count(above) < target and above < LARGEST:
        above *= 2
    below = max(1, above // 2)
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (middle, above) if count(middle) < target else (below, middle)
    return min(((n, count(n)) for n in (below, above)), key=lambda found: abs(found[1] - target))


def _refuse_unequal(rungs: Sequence[Rung]) -> None:
    first = rungs[0]
    for rung in rungs:
        if rung.recipe.train.patience is not None:
            raise UsageError(
                f"rung {rung.name}: train.patience may end one rung before the others; leave it out, or set "
                "`budget: free` in the ladder."
            )
        if rung.tokens and first.tokens and abs(rung.tokens - first.tokens) > WITHIN * first.tokens:
            raise UsageError(
                f"rung {rung.name} would see {rung.tokens:,} tokens and rung {first.name} {first.tokens:,}. Give all "
                "as many steps of as many tokens, or set `budget: free` in the ladder."
            )
