"""`seqloom inspect states`: what the states of a hidden Markov model stand for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import DataDir, JsonObject, PictureOut
from seqloom.cli._output import check_out, print_json, write_picture

if TYPE_CHECKING:
    from seqloom.inspect.views.states import SeriesStates, TextStates


def states(
    run: Annotated[Path, typer.Argument(help="A run of a hidden Markov model.")],
    text: Annotated[
        str | None, typer.Argument(help="A text to let it read. [default: the beginning of its dev split]")
    ] = None,
    out: PictureOut = None,
    top: Annotated[int, typer.Option(min=1, help="How many symbols of each state.")] = 12,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """What each state says, and which follows which: `seqloom inspect states runs/hmm-letters --out states.png`."""
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.states import draw_states
    from seqloom.inspect.views.states import TextStates, states_view
    from seqloom.predict.loader import load

    check_out(out)
    with use_data_folder(data_dir):
        view = states_view(load(run, "cpu"), text, top=top)
    if out is not None:
        write_picture(out, draw_states(view, f"{run.name}: what its {view.states} states found"))
    if as_json:
        print_json({"run": str(run), **_object(view)})
    elif isinstance(view, TextStates):
        _print_text(run, view)
    else:
        _print_series(run, view)


def _object(view: "TextStates | SeriesStates") -> dict[str, Any]:
    from dataclasses import asdict

    found = asdict(view)
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in found.items()}


def _print_text(run: Path, view: "TextStates") -> None:
    from seqloom.inspect.plots.figures import visible

    print(f"{run}: {view.states} states; shares of {view.measured}")
    for number, (said, share) in enumerate(zip(view.said, view.share, strict=True), start=1):
        symbols = "  ".join(f"{visible(symbol)} {chance:.3f}" for symbol, chance in said)
        print(f"  state {number}, {share:.1%}: {symbols}")
    _print_transition(view.transition, [*map(str, range(1, view.states + 1)), "END"])
    if view.kinds is not None:
        print("\nwhat share of each kind of letter a state said")
        for kind, shares in view.kinds.items():
            print(f"  {kind:12}" + "".join(f"{share:9.1%}" for share in shares))
    print("\n" + mark_states(view))


def mark_states(view: "TextStates") -> str:
    """The beginning of the text, and below each token the number of its state, its digits one below the other."""
    from seqloom.inspect.plots.figures import visible
    from seqloom.inspect.plots.states import wrapped

    words = [visible(token) for token in view.tokens]
    places = wrapped(words, 92, spaces=any(len(token) > 1 for token in view.tokens))
    digits = len(str(view.states))
    lines = [[" " * 100] * (1 + digits) for _ in range(1 + max(line for line, _ in places))]
    for word, state, (line, column) in zip(words, view.path, places, strict=True):
        mark = "·" if state >= view.states else str(state + 1)
        for row, piece in enumerate((word, *mark.rjust(digits))):
            held = lines[line][row]
            lines[line][row] = held[:column] + piece + held[column + len(piece) :]
    return "\n".join(row.rstrip() for pair in lines[:3] for row in pair)


def _print_series(run: Path, view: "SeriesStates") -> None:
    print(f"{run}: {view.states} states; mean ± standard deviation of each variable")
    for number in range(view.states):
        figures = "  ".join(
            f"{name} {mean:.4g} ± {spread:.3g}"
            for name, mean, spread in zip(view.columns, view.means[number], view.deviations[number], strict=True)
        )
        print(f"  state {number + 1}, {view.share[number]:.1%}, {view.lasts(number)}: {figures}")
    _print_transition(view.transition, [str(number) for number in range(1, view.states + 1)])


def _print_transition(table: Any, names: list[str]) -> None:
    print("\nwhich state (column) follows which (row)")
    print("      " + "".join(f"{name:>7}" for name in names))
    for name, row in zip(names, table, strict=True):
        print(f"  {name:>4}" + "".join(f"{value:7.3f}" for value in row))
