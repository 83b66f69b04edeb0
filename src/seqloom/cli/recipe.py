"""`seqloom recipe`: show, copy and explain recipes."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from seqloom.cli._options import RecipeWords
from seqloom.cli._output import check_parent_folder
from seqloom.core import Json
from seqloom.core.errors import UsageError
from seqloom.core.words import find_nearest, format_value

recipe = typer.Typer(help="Show, copy and explain recipes.", no_args_is_help=True, rich_markup_mode=None)


@recipe.command("show")
def show(arguments: RecipeWords = None) -> None:
    """Show a recipe with all defaults and overrides: `seqloom recipe show lm-char-lstm model.cell=gru`."""
    from seqloom.cli.train import split_arguments
    from seqloom.config import dump_yaml, to_mapping
    from seqloom.recipes import read_recipe

    name, overrides = split_arguments(arguments or [])
    if name is None:
        raise UsageError("Name a recipe (`seqloom list recipes`) or a YAML file.")
    print(dump_yaml(to_mapping(read_recipe(name, overrides)[1])), end="")


@recipe.command("copy")
def copy(
    name: Annotated[str, typer.Argument(help="The name of a shipped recipe; see `seqloom list recipes`.")],
    file: Annotated[Path, typer.Argument(help="The .yaml file to write.")],
) -> None:
    """Copy a shipped recipe with its comments for editing: `seqloom recipe copy lm-char-lstm mine.yaml`."""
    from seqloom.core.files import write_atomic
    from seqloom.recipes import RECIPES, recipe_names

    if name not in recipe_names():
        close = find_nearest(name, recipe_names())
        hint = f"did you mean {close}?" if close else "`seqloom list recipes` lists them."
        raise UsageError(f"No shipped recipe is called {name!r}: {hint}")
    if file.suffix not in (".yaml", ".yml"):
        raise UsageError(f"The name of a recipe must end in .yaml; got {file}.")
    if file.exists():
        raise UsageError(f"{file} exists. Choose another name, or remove it first.")
    check_parent_folder(file)
    write_atomic(file, (RECIPES / f"{name}.yaml").read_text("utf-8"))
    print(f"Wrote {file}. Edit it, then run: seqloom train {file}")


@recipe.command("explain")
def explain(
    key: Annotated[
        str, typer.Argument(help="A key, such as train.clip_norm or clip_norm, or a section, such as train.")
    ],
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Explain only keys of this recipe.")] = None,
) -> None:
    """Explain a key of recipes: `seqloom recipe explain train.clip_norm`, or `… model lm-char-lstm`."""
    from seqloom import tasks
    from seqloom.recipes import recipe_mapping
    from seqloom.recipes.reference import all_sections, default_of, meaning_of

    wanted = tasks.names() if name is None else [str(recipe_mapping(name)[1].get("task"))]
    section, _, last = key.rpartition(".")
    rows: dict[tuple[str, str, str], list[str]] = {}
    known: dict[str, None] = {}
    for path, place, config in key_sections(all_sections(wanted)):
        for field in fields(config):
            full = f"{path}.{field.name}"
            known[full] = None
            is_in_section = path == key and field.name not in ("kind", "corpus")
            if full == key or is_in_section or (not section and field.name == last):
                row = full, format_value(default_of(field)), meaning_of(config, field).replace("\\|", "|")
                rows.setdefault(row, []).append(place)
    if not rows:
        raise UsageError(f"No recipe has the key {key!r}: {suggest_key(key, list(known))}")
    for (full, default, meaning), places in rows.items():
        where = f" ({', '.join(places[:4])}{', …' if len(places) > 4 else ''})"
        print(f"{full}  default {default}{where}\n    {meaning or 'the kind of the section'}")


def key_sections(sections: dict[str, Json]) -> Iterator[tuple[str, str, Any]]:
    """Yield the path of each section, such as model.encoder, with the rest of its heading and its config."""
    for heading, config in sections.items():
        path, _, place = heading.removeprefix("`").partition("`")
        yield path, place.strip(", ").replace("`", ""), config


def suggest_key(key: str, known: list[str]) -> str:
    """Suggest the most similar key, because the list of all keys is too long for a message."""
    last = key.rpartition(".")[2]
    close = find_nearest(key, known) or find_nearest(last, [name.rpartition(".")[2] for name in known])
    return f"did you mean {close}?" if close else "`seqloom recipe explain train` lists the keys of a section."
