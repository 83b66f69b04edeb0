"""The configuration of a ladder, and the adjustment of its variants to equal size and budget."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import reduce
from pathlib import Path
from typing import Literal

from seqloom.config import apply_overrides, build, config, load_yaml, parse_overrides
from seqloom.core import Json
from seqloom.core.errors import SeqloomError, UsageError
from seqloom.core.metrics import HIGHER_IS_BETTER
from seqloom.core.words import find_nearest
from seqloom.inspect.rehearsal import budget_of, nearest_size, parameters_of
from seqloom.nn.cells import CELLS
from seqloom.recipes import RECIPES, build_recipe, recipe_mapping
from seqloom.tasks import task_info
from seqloom.tasks.base import Task, TaskRecipe
from seqloom.train.config import FitConfig

LADDERS = RECIPES / "ladders"
TOLERANCE = 0.01  # maximum relative difference between variants in parameters or in training tokens
Key = tuple[str, ...]  # the path of a key in a recipe
# Registries that `variants` may name, with the key to vary: one variant per member
REGISTRIES = {"cells": ("model.cell", CELLS)}


@config
class LadderConfig:
    """The content of a ladder file."""

    base: str | dict[str, Json]  # a shipped recipe, a YAML file, or an inline recipe
    overrides: tuple[str, ...] = ()  # overrides for all variants
    variants: str | dict[str, tuple[str, ...]]  # overrides by name, or `cells` for one variant per cell
    equal: Literal["parameters", "nothing"] = "parameters"  # what is made equal in all variants by adjusting `size`
    size: str | dict[str, str] = "model.hidden"  # the recipe key to adjust, or one key per kind of model
    parameters: int | None = None  # the target number of parameters; default: the parameters of the first variant
    budget: Literal["equal", "free"] = "equal"  # whether all variants must train on the same number of tokens
    seeds: tuple[int, ...] = (1, 2, 3)
    metric: str | None = None  # dev metric for ranking and plotting; default: the metric that selects checkpoints
    best: Literal["lowest", "highest"] | None = None  # the best value of `metric`; the default depends on the metric
    also: tuple[str, ...] = ()  # other dev metrics for the table

    def problems(self) -> Iterator[str]:
        if isinstance(self.variants, str) and self.variants not in REGISTRIES:
            yield f"variants must map names to overrides, or be one of {', '.join(REGISTRIES)}"
        elif not self.variants:
            yield "variants must contain at least one variant"
        for name in self.variants if isinstance(self.variants, dict) else ():
            if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
                yield f"the name of a variant must consist of letters, digits and . _ + -; got {name!r}"
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            yield f"seeds must be distinct integers; got {list(self.seeds)}"
        if self.parameters is not None and self.parameters < 1:
            yield f"parameters must be at least 1; got {self.parameters}"
        if isinstance(self.size, dict) and not self.size:
            yield "size must be a key, or a mapping of kinds of models to keys"

    def differences(self) -> dict[str, tuple[str, ...]]:
        """Return the overrides of each variant."""
        if isinstance(self.variants, dict):
            return self.variants
        key, members = REGISTRIES[self.variants]
        return {name: (f"{key}={name}",) for name in members}

    def size_of(self, recipe: TaskRecipe) -> str | None:
        """Return the key whose value is adjusted in this recipe."""
        return self.size if isinstance(self.size, str) else self.size.get(recipe.model.kind)


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Prefix error messages with the name of a variant."""
    try:
        yield
    except SeqloomError as error:
        raise type(error)(f"variant {name}: {error}") from error


@dataclass(frozen=True)
class Variant:
    """One variant of the base recipe."""

    name: str
    mapping: dict[str, Json]  # the recipe as plain values
    recipe: TaskRecipe
    size_key: str | None = None  # the adjusted key
    size: int | None = None  # value of the adjusted key
    parameters: int | None = None  # None before `solve`
    tokens: int | None = None  # number of training tokens

    @property
    def size_path(self) -> tuple[str, ...]:
        """The path of the adjusted key."""
        return tuple(self.size_key.split(".")) if self.size_key else ()


@dataclass(frozen=True)
class Ladder:
    """A base recipe and its variants."""

    name: str
    config: LadderConfig
    variants: tuple[Variant, ...]

    @property
    def metric(self) -> str:
        """The dev metric that ranks the variants, or "" if it depends on the data."""
        recipe = self.variants[0].recipe
        return self.config.metric or task_info(recipe.task).task.metric_of(recipe)

    @property
    def higher_is_better(self) -> bool:
        """Whether the highest value of the metric is the best."""
        return self.config.best == "highest" if self.config.best else self.metric in HIGHER_IS_BETTER

    @property
    def sizes(self) -> str:
        """The adjusted key, or `size` if variants have different adjusted keys."""
        keys = {variant.size_key for variant in self.variants if variant.size is not None}
        return keys.pop() or "size" if len(keys) == 1 else "size"


# --- reading --------------------------------------------------------------------------------------------------------


def ladder_names() -> list[str]:
    """Return the names of the shipped ladders."""
    return sorted(path.stem for path in LADDERS.glob("*.yaml"))


def read_ladder(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    seeds: Sequence[int] | None = None,
    parameters: int | None = None,
) -> Ladder:
    """Read a shipped ladder by name or a YAML file by path, and check the recipe of every variant.

    Overrides apply to all variants. A variant with another kind of model starts with an empty model section.
    """
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        path = LADDERS / f"{source}.yaml"
        if str(source) not in ladder_names():
            guess = find_nearest(str(source), ladder_names())
            hint = f"did you mean {guess}?" if guess else "`seqloom list ladders` lists them."
            raise UsageError(
                f"There is no ladder {str(source)!r}; {hint} (The name of your own file must end in .yaml.)"
            )
    elif not path.is_file():
        raise UsageError(f"There is no ladder file {path}.")
    options = {"seeds": seeds and list(seeds), "parameters": parameters}
    mapping = {**load_yaml(path), **{key: value for key, value in options.items() if value is not None}}
    chosen = build(LadderConfig, mapping, source=f"ladder {source}")
    base = chosen.base
    if isinstance(base, str):
        recipe_path = path.parent / base  # a path is relative to the folder of the ladder file
        is_file = base.endswith((".yaml", ".yml")) and recipe_path.is_file()
        base = recipe_mapping(str(recipe_path) if is_file else base)[1]
    differences = chosen.differences()
    common, varied = override_keys(overrides), dict[str, set[Key]]()
    for name, changes in differences.items():
        with prefix_errors(name):
            varied[name] = override_keys(changes)
    check_overrides(common, set().union(*varied.values()))
    variants = []
    for name, changes in differences.items():
        with prefix_errors(name):
            mapping = base
            for layer in (chosen.overrides, changes, overrides):
                mapping = apply_overrides(mapping, parse_overrides(layer))
            recipe = build_recipe(mapping, "its recipe")
            variants.append(Variant(name, mapping, recipe, chosen.size_of(recipe)))
    check_variants(chosen, variants, common, varied)
    ladder = Ladder(path.stem, chosen, tuple(variants))
    if not ladder.metric:
        task = variants[0].recipe.task
        raise UsageError(f"The metric of task {task} depends on its data. Set `metric` in the ladder.")
    return ladder


def override_keys(overrides: Sequence[str]) -> set[Key]:
    """Return the keys that overrides set."""
    return {path for path, _ in parse_overrides(overrides)}


def check_overrides(common: set[Key], varied: set[Key]) -> None:
    """Check that no override for all variants sets a key that a variant also sets."""
    if ("seed",) in common | varied:
        raise UsageError("seed cannot be set in a ladder: every variant is trained with each of --seeds.")
    # Two keys clash if they are equal or if one key contains the other.
    clashes = [a for a in common if any(all(x == y for x, y in zip(a, b, strict=False)) for b in varied)]
    if clashes:
        raise UsageError(f"{'.'.join(min(clashes))} cannot be set for all variants, because it differs between them.")


def check_variants(
    chosen: LadderConfig, variants: Sequence[Variant], common: set[Key], varied: Mapping[str, set[Key]]
) -> None:
    """Check that the adjusted key is not set, and that the metrics of the variants are comparable."""
    equal = chosen.equal == "parameters"
    if chosen.parameters is not None and equal and (solved := common & {variant.size_path for variant in variants}):
        key = ".".join(min(solved))
        raise UsageError(f"{key} is adjusted for equal numbers of parameters; set --parameters instead.")
    first = variants[0].name if chosen.parameters is None else None  # the first variant defines the target
    for variant in variants:
        if equal and variant.size_path in varied[variant.name] and variant.name != first:
            raise UsageError(
                f"variant {variant.name}: {variant.size_key} is adjusted for equal numbers of parameters. "
                "Remove it, or set `equal: nothing` in the ladder."
            )
    if len({(variant.recipe.task, repr(variant.recipe.data)) for variant in variants}) > 1:
        raise UsageError("All variants must have the same task and data; otherwise their metrics are not comparable.")


# --- equal sizes, equal budget --------------------------------------------------------------------------------------


def solve(ladder: Ladder) -> Ladder:
    """Load the data, choose the size of every variant, and check that the budgets are equal. Write nothing."""
    target, variants = ladder.config.parameters, []
    prepared: dict[str, Task] = {}
    for variant in ladder.variants:
        with prefix_errors(variant.name):
            task = prepare_task(variant.recipe, prepared)
            solved = choose_size(variant, task, ladder.config, target)
            budget = budget_of(with_recipe(task, solved.recipe))
        target = target or solved.parameters
        variants.append(replace(solved, tokens=budget.tokens_per_step and budget.steps * budget.tokens_per_step))
    first = variants[0]
    for variant in variants if ladder.config.budget == "equal" else ():
        if variant.recipe.train.patience is not None:
            raise UsageError(
                f"variant {variant.name}: train.patience may stop one variant before the others. Remove it, or set "
                "`budget: free` in the ladder."
            )
        if variant.tokens and first.tokens and abs(variant.tokens - first.tokens) > TOLERANCE * first.tokens:
            raise UsageError(
                f"variant {variant.name} would train on {variant.tokens:,} tokens and variant {first.name} on "
                f"{first.tokens:,}. Set equal batches and steps, or set `budget: free` in the ladder."
            )
    return replace(ladder, variants=tuple(variants))


def prepare_task(recipe: TaskRecipe, prepared: dict[str, Task]) -> Task:
    """Return the task of a variant.

    Variants that differ only in their model and training share the loaded data, unless they differ in a model key that
    `Task.read_by_model` lists."""
    kind = task_info(recipe.task).task
    shared = [getattr(recipe, entry.name) for entry in fields(recipe) if entry.name not in ("model", "train")]
    shared += [getattr(recipe.model, name, None) for name in kind.read_by_model]
    if (name := repr(shared)) not in prepared:
        prepared[name] = kind.prepare(recipe)
        return prepared[name]
    task = with_recipe(prepared[name], recipe)
    task.check_model()  # `prepare` checks the model, too
    return task


def with_recipe(task: Task, recipe: TaskRecipe) -> Task:
    """Return the same task and data with another recipe."""
    other = copy.copy(task)
    other.recipe = recipe
    return other


def choose_size(variant: Variant, task: Task, chosen: LadderConfig, target: int | None) -> Variant:
    """Adjust the size of a variant to the target number of parameters. Without a target, keep its size."""
    if not isinstance(variant.recipe.train, FitConfig):
        raise UsageError("a ladder needs models that are trained by gradient descent.")
    path = variant.size_path
    if chosen.equal == "nothing" or target is None:
        section = getattr(variant.recipe, path[0], None) if path else None
        size = reduce(lambda part, name: getattr(part, name, None), path[1:], section)
        return replace(variant, size=size, parameters=parameters_of(task))
    if not path:
        kind = variant.recipe.model.kind
        raise UsageError(f"`size` has no key for models of kind {kind}. Add one, or set `equal: nothing`.")

    def resize(value: int) -> Variant:
        mapping = apply_overrides(variant.mapping, [(path, value)])
        recipe = build_recipe(mapping, f"its recipe with {variant.size_key}={value}")
        parameters = parameters_of(with_recipe(task, recipe))
        return replace(variant, mapping=mapping, recipe=recipe, size=value, parameters=parameters)

    value, count = nearest_size(lambda size: resize(size).parameters or 0, target)
    if abs(count - target) > TOLERANCE * target:
        raise UsageError(
            f"no value of {variant.size_key} gives {target:,} parameters within {TOLERANCE:.0%}: the nearest, "
            f"{value}, gives "
            f"{count:,}. Increase --parameters: larger models match more closely."
        )
    return resize(value)
