"""Look at a corpus."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._json import print_json

data = typer.Typer(help="Look at the corpora.", no_args_is_help=True, rich_markup_mode=None)


@data.command()
def show(
    corpus: Annotated[str, typer.Argument(help="A corpus: `seqloom list corpora`.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its settings.")] = None,
    lines: Annotated[int, typer.Option(min=0, help="Lines of each split to show.")] = 5,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the real data sets (else SEQLOOM_DATA).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """What a corpus is: source, version, licence, sizes, and how it begins. `seqloom data show pydocs`."""
    from seqloom.core.config import apply_overrides, build, parse_overrides
    from seqloom.data import corpora
    from seqloom.data.folder import use_data_folder

    mapping = apply_overrides({"corpus": corpus}, parse_overrides(overrides or []))
    with use_data_folder(data_dir):
        found = corpora.load(build(corpora.CorpusConfig, mapping, source=f"corpus {corpus}"))
    counts = {split: asdict(value) for split, value in found.statistics().items()}
    if as_json:
        facts = {"corpus": found.name, "version": found.version, "licence": found.licence}
        absent = dict(found.absent)
        print_json({**facts, "sha256": found.fingerprint(), "counts": counts, "absent": absent})
        return
    print(f"{found.name}: {found.description}\nversion {found.version}\nlicence {found.licence}\n")
    print(f"{'split':8}{'documents':>12}{'words':>12}{'characters':>14}   sha256")
    for split, sizes in counts.items():
        digest = found.fingerprint()[split][:12]
        print(f"{split:8}{sizes['documents']:>12,}{sizes['words']:>12,}{sizes['characters']:>14,}   {digest}")
    for split, reason in found.absent.items():
        print(f"{split:8}absent: {reason}")
    for split in counts if lines else ():
        print(f"\n{split} begins:")
        for line in "\n".join(found.split(split)[:lines]).split("\n")[:lines]:
            print(f"  {line[:110]}")
