"""Look at a corpus."""

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._corpora import (
    WIDTH,
    facts,
    print_absent,
    print_head,
    print_shares,
    show_examples,
    show_labelled,
    show_tagged,
)
from seqloom.cli._options import DataDir, JsonObject
from seqloom.cli._output import escaped, print_json
from seqloom.cli._series import show_labelled_series, show_series
from seqloom.cli._tracks import show_tracks

if TYPE_CHECKING:
    from seqloom.data.corpus import Corpus, TextCorpus
    from seqloom.data.examples import ParallelExample

data = typer.Typer(help="Look at the corpora.", no_args_is_help=True, rich_markup_mode=None)


@data.command()
def show(
    corpus: Annotated[str, typer.Argument(help="A corpus: `seqloom list corpora`.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its settings.")] = None,
    lines: Annotated[int, typer.Option(min=0, help="Lines, pairs or examples of each split to show.")] = 5,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """What a corpus is: source, version, licence, sizes, and how it begins. `seqloom data show cldr target=hu`."""
    from seqloom.config import apply_overrides, build, parse_overrides
    from seqloom.data import corpora
    from seqloom.data.files import use_data_folder

    mapping = apply_overrides({"corpus": corpus}, parse_overrides(overrides or []))
    config = build(corpora.find(corpus).Config, mapping, source=f"corpus {corpus}")
    with use_data_folder(data_dir):
        if corpus in corpora.of_form("text"):
            _show_text(corpora.load(config), lines, as_json)
        elif corpus in corpora.of_form("parallel"):
            _show_pairs(corpora.load(config), lines, as_json)
        elif corpus in corpora.of_form("text-classification"):
            show_labelled(corpora.load(config), lines, as_json)
        elif corpus in corpora.of_form("series"):
            show_series(corpora.load(config), lines, as_json)
        elif corpus in corpora.of_form("series-labelled"):
            show_labelled_series(corpora.load(config), lines, as_json)
        elif corpus in corpora.of_form("tracks"):
            show_tracks(corpora.load(config), lines, as_json)
        elif corpus in corpora.of_form("token-classification"):
            show_tagged(corpora.load(config), lines, as_json)
        else:
            show_examples(corpora.find(corpus).load(config), lines, as_json)


def _show_text(found: "TextCorpus", lines: int, as_json: bool) -> None:
    counts = {split: asdict(value) for split, value in found.statistics().items()}
    if as_json:
        print_json({**facts(found), "counts": counts, "absent": dict(found.absent)})
        return
    print_head(found)
    print(f"{'split':8}{'documents':>12}{'words':>12}{'characters':>14}   sha256")
    for split, sizes in counts.items():
        digest = found.fingerprint()[split][:12]
        print(f"{split:8}{sizes['documents']:>12,}{sizes['words']:>12,}{sizes['characters']:>14,}   {digest}")
    print_absent(found)
    for split in counts if lines else ():
        print(f"\n{split} begins:")
        for line in "\n".join(found.split(split)[:lines]).split("\n")[:lines]:
            print(f"  {escaped(line)[:WIDTH]}")


def _show_pairs(found: "Corpus[ParallelExample]", lines: int, as_json: bool) -> None:
    """Both sides side by side."""
    counts: dict[str, dict[str, Any]] = {}
    for split, pairs in found.splits.items():
        kinds = Counter(pair.kind for pair in pairs if pair.kind)
        counts[split] = {**found.sizes(split), "kinds": dict(kinds.most_common())}
    if as_json:
        languages = dict(zip(("source", "target"), found.languages, strict=True))
        absent, notes = dict(found.absent), list(found.notes)
        print_json({**facts(found), **languages, "counts": counts, "absent": absent, "notes": notes})
        return
    print_head(found)
    source, target = found.languages
    names = [f"{source or 'source'} words", "characters", f"{target or 'target'} words", "characters"]
    print(f"{'split':8}{'pairs':>10}" + "".join(f"{name:>14}" for name in names) + "   sha256")
    for split, sizes in counts.items():
        cells = [count for name, count in sizes.items() if name not in ("pairs", "kinds")]
        digest = found.fingerprint()[split][:12]
        print(f"{split:8}{sizes['pairs']:>10,}" + "".join(f"{count:>14,}" for count in cells) + f"   {digest}")
    print_absent(found)
    for note in found.notes:
        print(f"note: {note}")
    print_shares("kinds", counts["train"]["kinds"])
    for split in counts if lines else ():
        print(f"\n{split} begins:")
        for pair in found.split(split)[:lines]:
            print(f"  {_beside(pair)}")


def _beside(pair: "ParallelExample") -> str:
    sides = map(escaped, (pair.source, pair.target))
    source, target = (side if len(side) <= WIDTH else f"{side[: WIDTH - 1]}…" for side in sides)
    return f"{source} → {target}"
