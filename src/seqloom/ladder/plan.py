"""What a ladder says, and what it takes for its rungs to be alike: equal sizes, an equal budget."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from seqloom.config import apply_overrides, build, config, load_yaml, parse_overrides
from seqloom.core.errors import SeqloomError, UsageError
from seqloom.core.words import HIGHER_IS_BETTER, find_nearest
from seqloom.inspect.rehearsal import budget_of, nearest_size, parameters_of
from seqloom.nn.cells import CELLS
from seqloom.recipes import RECIPES, build_recipe, recipe_mapping
from seqloom.tasks import task_info
from seqloom.tasks.base import Task
from seqloom.train.config import FitConfig

LADDERS = RECIPES / "ladders"
WITHIN = 0.01  # how far a rung's parameters, or the tokens it sees, may be from the others'
Key = tuple[str, ...]  # of a recipe, by its parts
REGISTRIES = {"cells": ("model.cell", CELLS)}  # what `rungs` may name: a rung for every member


@config
class LadderConfig:
    """What a ladder file says."""

    base: str | dict[str, Any]  # a shipped recipe, a YAML file, or a recipe written out
    overrides: tuple[str, ...] = ()  # for every rung
    rungs: str | dict[str, tuple[str, ...]]  # name -> its overrides; or `cells`: a rung for every cell there is
    equal: Literal["parameters", "nothing"] = "parameters"  # what is made alike by choosing `size`
    size: str | dict[str, str] = "model.hidden"  # the key that is chosen; or for each kind of model its key
    parameters: int | None = None  # how many; if left out, as many as the first rung has as it stands
    budget: Literal["equal", "free"] = "equal"  # whether all rungs must see as many tokens
    seeds: tuple[int, ...] = (1, 2, 3)
    metric: str | None = None  # on dev, to rank by and to draw; if left out, what the task chooses checkpoints by
    best: Literal["lowest", "highest"] | None = None  # of that metric; if left out, what is better of it
    also: tuple[str, ...] = ()  # other metrics of dev to stand in the table

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
        if isinstance(self.size, dict) and not self.size:
            yield "size must be a key, or name a key for each kind of model"

    def differences(self) -> dict[str, tuple[str, ...]]:
        """The overrides of each rung."""
        if isinstance(self.rungs, dict):
            return self.rungs
        key, members = REGISTRIES[self.rungs]
        return {name: (f"{key}={name}",) for name in members}

    def size_of(self, recipe: Any) -> str | None:
        """The key that is chosen in this recipe."""
        return self.size if isinstance(self.size, str) else self.size.get(recipe.model.kind)


@contextmanager
def naming_rung(name: str) -> Iterator[None]:
    """Say in an error which rung it is about."""
    try:
        yield
    except SeqloomError as error:
        raise type(error)(f"rung {name}: {error}") from error


@dataclass(frozen=True)
class Rung:
    """One variant of the base recipe."""

    name: str
    mapping: dict[str, Any]  # the recipe as plain values, without a seed of its own
    recipe: Any
    size_key: str | None = None  # the key that is chosen …
    size: int | None = None  # … and its value, chosen or as it stands
    parameters: int | None = None  # None until solved, and for what is counted
    tokens: int | None = None  # that training will see

    @property
    def size_path(self) -> tuple[str, ...]:
        """The key that is chosen, by its parts."""
        return tuple(self.size_key.split(".")) if self.size_key else ()


@dataclass(frozen=True)
class Ladder:
    """A base recipe and its rungs."""

    name: str
    config: LadderConfig
    rungs: tuple[Rung, ...]

    @property
    def metric(self) -> str:
        """The metric of dev that ranks the rungs; "" where that depends on the data."""
        recipe = self.rungs[0].recipe
        return self.config.metric or task_info(recipe.task).task.metric_of(recipe)

    @property
    def higher_is_better(self) -> bool:
        """Whether the highest metric is the best."""
        return self.config.best == "highest" if self.config.best else self.metric in HIGHER_IS_BETTER

    @property
    def sizes(self) -> str:
        """What was chosen: its key; if there are several, just `size`."""
        keys = {rung.size_key for rung in self.rungs if rung.size is not None}
        return keys.pop() or "size" if len(keys) == 1 else "size"


# --- reading --------------------------------------------------------------------------------------------------------


def ladder_names() -> list[str]:
    """The names of the shipped ladders."""
    return sorted(path.stem for path in LADDERS.glob("*.yaml"))


def read_ladder(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    seeds: Sequence[int] | None = None,
    parameters: int | None = None,
) -> Ladder:
    """Read a shipped ladder by name or a YAML file by path, and check every rung's recipe. Overrides are for all rungs.

    A rung that chooses another kind of model begins that section afresh, whatever the ladder says
    of it for the others.
    """
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        path = LADDERS / f"{source}.yaml"
        if str(source) not in ladder_names():
            guess = find_nearest(str(source), ladder_names())
            hint = f"did you mean {guess}?" if guess else "`seqloom list ladders` shows them all."
            raise UsageError(f"No shipped ladder is called {str(source)!r}, and a file must end in .yaml; {hint}")
    elif not path.is_file():
        raise UsageError(f"There is no ladder file {path}.")
    options = {"seeds": seeds and list(seeds), "parameters": parameters}
    mapping = {**load_yaml(path), **{key: value for key, value in options.items() if value is not None}}
    chosen = build(LadderConfig, mapping, source=f"ladder {source}")
    base = chosen.base
    if isinstance(base, str):
        beside = path.parent / base  # a recipe file is named as seen from the ladder's own folder
        is_file = base.endswith((".yaml", ".yml")) and beside.is_file()
        base = recipe_mapping(str(beside) if is_file else base)[1]
    differences = chosen.differences()
    told, varied = override_keys(overrides), dict[str, set[Key]]()
    for name, words in differences.items():
        with naming_rung(name):
            varied[name] = override_keys(words)
    check_overrides(told, set().union(*varied.values()))
    rungs = []
    for name, words in differences.items():
        with naming_rung(name):
            mapping = base
            for layer in (chosen.overrides, words, overrides):
                mapping = apply_overrides(mapping, parse_overrides(layer))
            recipe = build_recipe(mapping, "its recipe")
            rungs.append(Rung(name, mapping, recipe, chosen.size_of(recipe)))
    check_rungs(chosen, rungs, told, varied)
    ladder = Ladder(path.stem, chosen, tuple(rungs))
    if not ladder.metric:
        task = rungs[0].recipe.task
        raise UsageError(f"What the task {task} is measured by depends on its data. Say what to rank by: `metric`.")
    return ladder


def override_keys(words: Sequence[str]) -> set[Key]:
    """The keys that overrides set."""
    return {path for path, _ in parse_overrides(words)}


def check_overrides(told: set[Key], varied: set[Key]) -> None:
    """Refuse to set for all rungs what they differ in."""
    if ("seed",) in told | varied:
        raise UsageError("seed cannot be set in a ladder: every rung is trained with each of --seeds.")
    # One of two keys is the other, or lies within it.
    clashes = [a for a in told if any(all(x == y for x, y in zip(a, b, strict=False)) for b in varied)]
    if clashes:
        raise UsageError(f"{'.'.join(min(clashes))} is what the rungs differ in; it cannot be set for all of them.")


def check_rungs(chosen: LadderConfig, rungs: Sequence[Rung], told: set[Key], varied: Mapping[str, set[Key]]) -> None:
    """Refuse to set what is solved for, and rungs whose metrics could not be compared."""
    equal = chosen.equal == "parameters"
    if chosen.parameters is not None and equal and (solved := told & {rung.size_path for rung in rungs}):
        key = ".".join(min(solved))
        raise UsageError(f"{key} is chosen for every rung so that the parameters are equal; set --parameters.")
    first = rungs[0].name if chosen.parameters is None else None  # the measure of the others stays as it stands
    for rung in rungs:
        if equal and rung.size_path in varied[rung.name] and rung.name != first:
            raise UsageError(
                f"rung {rung.name}: {rung.size_key} is chosen so that the parameters are equal. Leave it out, or "
                "set `equal: nothing` in the ladder."
            )
    if len({rung.recipe.task for rung in rungs}) > 1 or len({repr(rung.recipe.data) for rung in rungs}) > 1:
        raise UsageError("All rungs must have the same task and data, or their figures could not be compared.")


# --- equal sizes, equal budget --------------------------------------------------------------------------------------


def solve(ladder: Ladder) -> Ladder:
    """Read the data, choose every rung's size, and make sure all see as much of the text. Nothing is written."""
    target, rungs = ladder.config.parameters, []
    prepared: dict[str, Task] = {}
    for rung in ladder.rungs:
        with naming_rung(rung.name):
            task = prepare_task(rung.recipe, prepared)
            solved = choose_size(rung, task, ladder.config, target)
            budget = budget_of(with_recipe(task, solved.recipe))
        target = target or solved.parameters
        rungs.append(replace(solved, tokens=budget.tokens_per_step and budget.steps * budget.tokens_per_step))
    first = rungs[0]
    for rung in rungs if ladder.config.budget == "equal" else ():
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
    return replace(ladder, rungs=tuple(rungs))


def prepare_task(recipe: Any, prepared: dict[str, Task]) -> Task:
    """The task of a rung. Where only model and training differ, the data is read once for all of them, unless the model
    says how: what of it does, the task knows."""
    kind = task_info(recipe.task).task
    shared = [getattr(recipe, entry.name) for entry in fields(recipe) if entry.name not in ("model", "train")]
    shared += [getattr(recipe.model, name, None) for name in kind.read_by_model]
    if (name := repr(shared)) not in prepared:
        prepared[name] = kind.prepare(recipe)
        return prepared[name]
    task = with_recipe(prepared[name], recipe)
    task.check_model()  # as `prepare` would have done
    return task


def with_recipe(task: Task, recipe: Any) -> Task:
    """The same task, with its data, for another recipe."""
    other = copy.copy(task)
    other.recipe = recipe
    return other


def choose_size(rung: Rung, task: Task, chosen: LadderConfig, target: int | None) -> Rung:
    """A rung with the size whose parameters are nearest to the target; as it stands where there is none."""
    if not isinstance(rung.recipe.train, FitConfig):
        raise UsageError("a ladder's rungs are trained by gradient; what is counted has no size to choose.")
    path = rung.size_path
    if chosen.equal == "nothing" or target is None:
        size = reduce(lambda part, name: getattr(part, name, None), path, rung.recipe) if path else None
        return replace(rung, size=size, parameters=parameters_of(task))
    if not path:
        kind = rung.recipe.model.kind
        raise UsageError(f"`size` names no key for a model of kind {kind}. Add it, or set `equal: nothing`.")

    def resize(value: int) -> Rung:
        mapping = apply_overrides(rung.mapping, [(path, value)])
        recipe = build_recipe(mapping, f"its recipe with {rung.size_key}={value}")
        parameters = parameters_of(with_recipe(task, recipe))
        return replace(rung, mapping=mapping, recipe=recipe, size=value, parameters=parameters)

    value, count = nearest_size(lambda size: resize(size).parameters or 0, target)
    if abs(count - target) > WITHIN * target:
        raise UsageError(
            f"no {rung.size_key} gives {target:,} parameters within {WITHIN:.0%}: the nearest, {value}, gives "
            f"{count:,}. Choose more --parameters: larger models come closer."
        )
    return resize(value)
