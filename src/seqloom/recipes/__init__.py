"""Recipes: lookup by name or path, overrides, and validation."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from seqloom.config import apply_overrides, build, find_nearest, load_yaml, parse_overrides
from seqloom.core import Json
from seqloom.core.errors import CheckpointError, SeqloomError, UsageError
from seqloom.data.corpus import FilesConfig
from seqloom.data.files import locate_file
from seqloom.tasks import task_info

if TYPE_CHECKING:
    from seqloom.runs.run import Run

Recipe: TypeAlias = Any  # the `Recipe` class of a task; see `seqloom.tasks`
RECIPES = Path(__file__).parent


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_recipe(source: str | Path | Mapping[str, Json], overrides: Iterable[str] = ()) -> tuple[str, Recipe]:
    """Read a shipped recipe by name or a YAML file by path, and return its name and the recipe.

    Overrides are applied, and the recipe is validated. Paths of data files and of the run in `init.from` become
    absolute, so that they are valid in any folder.
    """
    if isinstance(source, Mapping):
        name, mapping, folder, source = str(source.get("task", "recipe")), dict(source), Path(), ""
    else:
        name, mapping = recipe_mapping(source)
        folder = _find_recipe(str(source))[1].parent
    mapping = apply_overrides(mapping, parse_overrides(overrides))
    init: Json = mapping.get("init")
    if isinstance(init, dict) and isinstance(init.get("from"), str):
        mapping["init"] = {**init, "from": locate_file(init["from"], folder)}
    recipe = build_recipe(mapping, f"recipe {source}" if source else "the recipe")
    data, vectors = vars(recipe).get("data"), vars(recipe.model).get("vectors")
    if isinstance(data, FilesConfig):
        recipe = replace(recipe, data=data.locate(folder))
    if vectors is not None:
        located = replace(vectors, file=locate_file(vectors.file, folder))
        recipe = replace(recipe, model=replace(recipe.model, vectors=located))
    return name, recipe


def recipe_mapping(source: str | Path) -> tuple[str, dict[str, Json]]:
    """Return the name of a recipe and its keys as written, without validation."""
    name, path = _find_recipe(str(source))
    mapping = load_yaml(path)
    if not mapping:
        raise UsageError(f"{path} is empty, but must contain a recipe. `seqloom init` writes one for your data.")
    for header in ("format", "seqloom"):  # the header of a recipe that was copied from a run
        mapping.pop(header, None)
    return name, mapping


def _find_recipe(source: str) -> tuple[str, Path]:
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UsageError(f"There is no recipe file {path}.")
        return (path.parent.resolve().name if path.stem == "recipe" else path.stem), path
    if re.fullmatch(r"[a-z0-9-]+", source) and (RECIPES / f"{source}.yaml").is_file():
        return source, RECIPES / f"{source}.yaml"
    if path.exists():
        raise UsageError(
            f"{path} is not a recipe: the name of a recipe must end in .yaml. For your data: seqloom init {path}"
        )
    own = f"{source}.yaml" if Path(f"{source}.yaml").is_file() else None
    guess = own or find_nearest(source, recipe_names())
    hint = f"did you mean {guess}?" if guess else "`seqloom list recipes` lists them."
    raise UsageError(f"No shipped recipe is called {source!r}; {hint} (The name of your own file must end in .yaml.)")


def build_recipe(mapping: dict[str, Json], source: str) -> Recipe:
    """Fill in the backbone of the run in `init.from` and the keys that the task derives. Then validate the recipe."""
    complete, filled = task_info(mapping.get("task")).task.complete, mapping
    if mapping.get("init") is not None:
        from seqloom.runs.transfer import fill_in  # imports every model that can be transferred

        try:
            filled = fill_in(mapping)
        except SeqloomError:
            refuse_unknown_keys(complete(mapping), source)  # a misspelled key may be the cause of the problem
            raise
    return whole_recipe(complete(filled), source)


def refuse_unknown_keys(mapping: dict[str, Json], source: str) -> None:
    """Raise UsageError for keys that no recipe of this task has.

    Other problems are ignored, because they may be due to missing derived keys.
    """
    try:
        whole_recipe(mapping, source)
    except UsageError as error:
        from seqloom.config.messages import NO_SUCH_KEY

        if NO_SUCH_KEY in str(error):
            raise


def whole_recipe(mapping: dict[str, Json], source: str) -> Recipe:
    """Validate a recipe in which all keys are filled in, such as the recipe of a run."""
    return build(task_info(mapping.get("task")).recipe, mapping, source=source)


def recipe_of(run: "Run") -> Recipe:
    """Return the validated recipe of a run."""
    try:
        return whole_recipe(run.recipe, str(run.path / "recipe.yaml"))
    except UsageError as error:
        raise CheckpointError(str(error)) from error
