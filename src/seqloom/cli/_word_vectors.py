"""What `evaluate` shows of word vectors."""

from typing import TYPE_CHECKING, Any

import typer

from seqloom.cli._output import print_json

if TYPE_CHECKING:
    from seqloom.evaluate.word_similarity import Judged
    from seqloom.predict.word_vectors import WordVectors

HELD_OUT = {
    "loss": "loss, per prediction",
    "neighbours": "neighbours told from noise",
    "unknown_rate": "share without a vector",
}
JUDGED = {
    "wordsim353": ("WordSim-353, Spearman", "pairs"),
    "simlex999": ("SimLex-999, Spearman", "pairs"),
    "analogies": ("analogies solved", "questions"),
    "analogies_semantic": ("  semantic", "questions"),
    "analogies_syntactic": ("  syntactic", "questions"),
}


def evaluate_word_vectors(model: "WordVectors", split: str, as_json: bool) -> None:
    """The figures on a split of the text, then those beside people's judgements, each with how much it covers."""
    found = model.report(split)
    own = bool(found.held_out)
    data = f"{model.run.data['corpus']}, {split}" if own else "no text of its own"
    if as_json:
        judged = {name: _plain(one) for name, one in found.judged.items()}
        print_json({"run": model.name, "data": data, **found.held_out, **judged, "missing": list(found.missing)})
        return
    print(f"{model.name} on {data}: {len(model.space.words):,} words have vectors")
    for name, value in found.held_out.items():
        print(f"  {HELD_OUT[name]:28} {value:9.4f}")
    for name, (label, unit) in JUDGED.items():
        if name in found.judged:
            print(f"  {label:28} {_figure(found.judged[name], unit)}")
    if found.missing:
        typer.echo(
            f"note: not measured, since they are not in word_vectors_eval of SEQLOOM_DATA: {', '.join(found.missing)}",
            err=True,
        )


def _figure(one: "Judged", unit: str) -> str:
    covered = f"{one.asked:,} of {one.total:,} {unit}, {one.coverage:.1%}"
    if one.value is None or one.interval is None:
        return f"        –  too few of its words have vectors ({covered})"
    return f"{one.value:9.4f}  {one.interval.low:.4f} to {one.interval.high:.4f}  ({covered})"


def _plain(one: "Judged") -> dict[str, Any]:
    return {
        "value": one.value,
        "interval": one.interval,
        "asked": one.asked,
        "total": one.total,
        "coverage": one.coverage,
    }
