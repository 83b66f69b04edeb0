"""What a ladder says, and what it takes for its rungs to be alike: equal sizes, an equal budget."""

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from seqloom.config import apply_overrides, build, config, load_yaml, parse_overrides
from seqloom.core.errors import SeqloomError, UsageError
from seqloom.core.words import HIGHER_IS_BETTER, nearest
from seqloom.inspect.rehearsal import budget_of, nearest_size, parameters_of
from seqloom.nn.cells import CELLS
from seqloom.recipes import RECIPES, build_recipe, recipe_mapping
from seqloom.tasks import task_info
from seqloom.tasks.base import Task
from seqloom.train.config import FitConfig

LADDERS = RECIPES / "ladders"
WITHIN = 0.01  # how far a rung's parameters, or the tokens it sees, may be from the others'
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

    def size_of(self, recipe: Any) -> str | None:
        """The key that is chosen in this recipe."""
        return self.size if isinstance(self.size, str) else self.size.get(recipe.model.kind)


@dataclass(frozen=True)
class Rung:
    name: str
    mapping: dict[str, Any]  # the recipe as plain values, without a seed of its own
    recipe: Any
    size_key: str | None = None  # the key that is chosen …
    size: int | None = None  # … and its value, chosen or as it stands
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
    def task(self) -> type[Task]:
        return task_info(self.rungs[0].recipe.task).task

    @property
    def metric(self) -> str:
        return self.config.metric or self.task.metric_of(self.rungs[0].recipe)

    @property
    def higher_is_better(self) -> bool:
        return self.config.best == "highest" if self.config.best else self.metric in HIGHER_IS_BETTER

    @property
    def sizes(self) -> str:
        """What was chosen: its key; if there are several, just `size`."""
        keys = {rung.size_key for rung in self.rungs if rung.size is not None}
        return keys.pop() or "size" if len(keys) == 1 else "size"


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
    base = recipe_mapping(_beside(path, chosen.base))[1] if isinstance(chosen.base, str) else chosen.base
    own = _rung_overrides(chosen)
    _refuse_for_all(overrides, own)
    rungs = [_rung(name, base, (chosen.overrides, words, overrides), chosen) for name, words in own.items()]
    _refuse_clashes(chosen, overrides, rungs)
    ladder = Ladder(name, chosen, tuple(rungs))
    if not ladder.metric:
        task = ladder.rungs[0].recipe.task
        raise UsageError(f"What the task {task} is measured by depends on its data. Say what to rank by: `metric`.")
    return ladder


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


def _rung(name: str, base: dict[str, Any], layers: Sequence[Sequence[str]], chosen: LadderConfig) -> Rung:
    """Layer by layer: a rung that chooses another kind of model begins that section afresh, whatever the ladder says of
    it for the others."""
    try:
        mapping = base
        for words in layers:
            mapping = apply_overrides(mapping, parse_overrides(words))
        recipe = build_recipe(mapping, "its recipe")
        return Rung(name, mapping, recipe, chosen.size_of(recipe))
    except SeqloomError as error:
        raise type(error)(f"rung {name}: {error}") from error


def _refuse_for_all(overrides: Sequence[str], own: dict[str, tuple[str, ...]]) -> None:
    """What the rungs are about cannot be set for all of them."""
    told, varied = _keys(overrides), set().union(*(_keys(words, rung) for rung, words in own.items()))
    if ("seed",) in told | varied:
        raise UsageError("seed cannot be set in a ladder: every rung is trained with each of --seeds.")
    if clashes := [path for path in told if any(_overlap(path, other) for other in varied)]:
        raise UsageError(f"{'.'.join(min(clashes))} is what the rungs differ in; it cannot be set for all of them.")


def _keys(words: Sequence[str], rung: str | None = None) -> set[tuple[str, ...]]:
    try:
        return {path for path, _ in parse_overrides(words)}
    except UsageError as error:
        raise error if rung is None else UsageError(f"rung {rung}: {error}") from error


def _refuse_clashes(chosen: LadderConfig, overrides: Sequence[str], rungs: Sequence[Rung]) -> None:
    """What is solved for cannot be set too, and figures of other data could not be compared."""
    told, own = _keys(overrides), {name: _keys(words) for name, words in _rung_overrides(chosen).items()}
    equal, keys = chosen.equal == "parameters", {rung.name: _path(rung.size_key) for rung in rungs}
    if chosen.parameters is not None and equal and (solved := told & set(keys.values())):
        key = ".".join(min(solved))
        raise UsageError(f"{key} is chosen for every rung so that the parameters are equal; set --parameters.")
    first = rungs[0].name if chosen.parameters is None else None  # the measure of the others stays as it stands
    if wrong := [name for name in own if equal and keys[name] in own[name] and name != first]:
        raise UsageError(
            f"rung {wrong[0]}: {'.'.join(keys[wrong[0]])} is chosen so that the parameters are equal. Leave it out, or "
            "set `equal: nothing` in the ladder."
        )
    if len({rung.recipe.task for rung in rungs}) > 1 or len({repr(rung.recipe.data) for rung in rungs}) > 1:
        raise UsageError("All rungs must have the same task and data, or their figures could not be compared.")


def _path(key: str | None) -> tuple[str, ...]:
    return tuple(key.split(".")) if key else ()


def _overlap(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether one of two keys is the other, or lies within it."""
    return all(x == y for x, y in zip(a, b, strict=False))


# --- equal sizes, equal budget --------------------------------------------------------------------------------------


def solve(ladder: Ladder) -> Ladder:
    """Read the data, choose every rung's size, and make sure all see as much of the text. Nothing is written."""
    target, rungs = ladder.config.parameters, []
    prepared: dict[str, Any] = {}
    for rung in ladder.rungs:
        try:
            task = _task(rung.recipe, prepared)
            solved = _sized(rung, task, ladder.config, target)
            tokens = _tokens(_with_recipe(task, solved.recipe))
        except SeqloomError as error:
            raise rung.named(error) from error
        target = target or solved.parameters
        rungs.append(replace(solved, tokens=tokens))
    if ladder.config.budget == "equal":
        _refuse_unequal(rungs)
    return replace(ladder, rungs=tuple(rungs))


def _task(recipe: Any, prepared: dict[str, Any]) -> Any:
    """The task of a rung. Where only model and training differ, the data is read once for all of them, unless the model
    says how: what of it does, the task knows."""
    kind = task_info(recipe.task).task
    shared = [getattr(recipe, entry.name) for entry in fields(recipe) if entry.name not in ("model", "train")]
    shared += [getattr(recipe.model, name, None) for name in kind.read_by_model]
    if (name := repr(shared)) not in prepared:
        prepared[name] = kind.prepare(recipe)
        return prepared[name]
    task = _with_recipe(prepared[name], recipe)
    task.check_model()  # as `prepare` would have done
    return task


def _with_recipe(task: Any, recipe: Any) -> Any:
    other = copy.copy(task)
    other.recipe = recipe
    return other


def _tokens(task: Any) -> int | None:
    budget = budget_of(task)
    return budget.tokens_per_step and budget.steps * budget.tokens_per_step


def _sized(rung: Rung, task: Any, chosen: LadderConfig, target: int | None) -> Rung:
    if not isinstance(rung.recipe.train, FitConfig):
        raise UsageError("a ladder's rungs are trained by gradient; what is counted has no size to choose.")
    path = _path(rung.size_key)
    as_it_stands = reduce(lambda part, name: getattr(part, name, None), path, rung.recipe) if path else None
    if chosen.equal == "nothing" or target is None:
        return replace(rung, size=as_it_stands, parameters=parameters_of(task))
    if not path:
        kind = rung.recipe.model.kind
        raise UsageError(f"`size` names no key for a model of kind {kind}. Add it, or set `equal: nothing`.")

    def built(value: int) -> Any:
        return build_recipe(apply_overrides(rung.mapping, [(path, value)]), f"its recipe with {rung.size_key}={value}")

    value, count = nearest_size(lambda n: parameters_of(_with_recipe(task, built(n))), target)
    if abs(count - target) > WITHIN * target:
        raise UsageError(
            f"no {rung.size_key} gives {target:,} parameters within {WITHIN:.0%}: the nearest, {value}, gives "
            f"{count:,}. Choose more --parameters: larger models come closer."
        )
    mapping = apply_overrides(rung.mapping, [(path, value)])
    return replace(rung, mapping=mapping, recipe=built(value), size=value, parameters=count)


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
