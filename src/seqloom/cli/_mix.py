"""`seqloom inspect mix`: what a task made of the layers of a bidirectional language model."""

from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._options import JsonObject
from seqloom.cli._output import print_json

BAR = 40  # letters of a whole


def mix(
    run: Annotated[Path, typer.Argument(help="A run that began with a bidirectional language model.")],
    as_json: JsonObject = False,
) -> None:
    """How much of each layer a task reads: `seqloom inspect mix runs/tag-people-finetune`."""
    from seqloom.inspect.views.positions import mix_view
    from seqloom.predict.loader import load

    view = mix_view(load(run, "cpu"))
    if as_json:
        layers = [{"layer": name, "share": share} for name, share in zip(view.layers, view.shares, strict=True)]
        print_json({"run": str(run), "scale": view.scale, "layers": layers})
        return
    print(f"{run}: h = γ Σ_j s_j h_j, γ = {view.scale:.3f}")
    widest = max(map(len, view.layers))
    for name, share in zip(view.layers, view.shares, strict=True):
        print(f"  {name:{widest}}  {share:6.1%}  {'█' * round(BAR * share)}".rstrip())
