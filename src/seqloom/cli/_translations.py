"""What `evaluate` shows of a translator."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seqloom.cli._output import check_answers, escaped, print_json
from seqloom.core.metrics import OF_HUNDRED
from seqloom.core.words import counted

if TYPE_CHECKING:
    from seqloom.evaluate.translation import Report
    from seqloom.predict.ensembles import TranslatorEnsemble
    from seqloom.predict.translator import Translator

LABELS = {
    "bleu": "BLEU",
    "bleu_lowercase": "BLEU, lowercased",
    "chrf": "chrF",
    "exact_match": "lines exactly right",
    "loss": "loss, nats per token",
    "perplexity": "perplexity per token",
    "alignment_error_rate": "alignment error rate",
    "alignment_error_rate_diagonal": "  of the diagonal",
    "alignment_error_rate_chance": "  by chance",
    "alignment_accuracy": "links in their slot",
    "alignment_slots": "slots wholly right",
    "copy_bleu": "BLEU of copying",
}
EXAMPLES = 3


def evaluate_translations(
    model: "Translator | TranslatorEnsemble",
    split: str,
    files: tuple[Path, Path] | None,
    options: dict[str, float | None],
    out: Path | None,
    as_json: bool,
) -> None:
    """Translate a split of the run's own data, or the first of two files, and compare with what should have come.

    Of an ensemble also what each of its parts can do alone.
    """
    check_answers(out, "translations")
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    parts: list[Translator] = getattr(model, "parts", [])
    first: Translator = getattr(model, "parts", [model])[0]
    if files is None:
        found, *alone = [each.report(split, **changes) for each in (model, *parts)]
        data = f"{first.run.data['corpus']}, {split}"
    else:
        from seqloom.data.files import read_parallel

        pairs, data = read_parallel(*files), " and ".join(map(str, files))
        found, *alone = [each.report_pairs(*pairs, **changes) for each in (model, *parts)]
    if out is not None:
        from seqloom.core.files import write_atomic

        lines = (text.replace("\r", " ").replace("\n", " ") for text in found.hypotheses)
        write_atomic(out, "".join(f"{line}\n" for line in lines))
        typer.echo(f"The translations are in {out}.", err=True)
    for note in found.notes:
        typer.echo(f"note: {note}.", err=True)
    names = [part.name for part in parts]
    if as_json:
        named = {"runs": names} if parts else {"run": model.name}
        print_json({**named, **_object(data, found), **_alone_object(names, alone)})
        return
    _print(model.name, data, [first.run.data.get(side) or "" for side in ("source", "target")], found)
    if parts:
        _print_alone(names, found, alone)


def _object(data: str, found: "Report") -> dict[str, Any]:
    return {
        "data": data,
        "pairs": len(found.lines),
        **found.metrics,
        "signatures": found.signatures,
        "decoding": found.decoding,
        "length_unit": found.unit,
        "by_length": [asdict(row) for row in found.by_length],
        "examples": [asdict(line) for line in found.examples()],
    }


def _alone_object(names: list[str], alone: list["Report"]) -> dict[str, Any]:
    rows = [{"run": name, **one.metrics, "decoding": one.decoding} for name, one in zip(names, alone, strict=True)]
    return {"alone": rows} if rows else {}


def _print_alone(names: list[str], together: "Report", alone: list["Report"]) -> None:
    shown = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact", "loss": "loss"}
    print("  Each alone, and together:" + "".join(f"  {head:>9}" for head in shown.values()))
    for name, one in [*zip(names, alone, strict=True), ("together", together)]:
        figures = "".join(f"  {_figure(metric, one.metrics[metric]):>9}" for metric in shown)
        other = f"   {one.decoding}" if one.decoding != together.decoding else ""
        print(f"    {name:23}{figures}{other}")


def _print(run: str, data: str, languages: list[str], found: "Report") -> None:
    between = f", {' to '.join(languages)}" if all(languages) else ""  # an imported model may not say
    blank = sum(not (line.source.strip() or line.reference.strip()) for line in found.lines)
    without = f", {blank:,} of them blank" if blank else ""
    print(f"{run} on {data}: {counted(len(found.lines), 'pair')}{without}{between}; {found.decoding}")
    for name in [*LABELS, *(name for name in found.metrics if name not in LABELS)]:
        if name in found.metrics:
            signature = f"   {found.signatures[name]}" if name in found.signatures else ""
            print(f"  {LABELS.get(name, name):22} {_figure(name, found.metrics[name]):>9}{signature}")
    print(f"  BLEU by length of the source:\n    {found.unit:>12}  {'pairs':>7}  {'BLEU':>6}")
    for row in found.by_length:
        between = f"{row.low}" if row.low == row.high else f"{row.low} to {row.high}"
        print(f"    {between:>12}  {row.pairs:7,}  {row.bleu:6.2f}")
    _print_mistakes(found)


def _figure(name: str, value: float) -> str:
    if name in OF_HUNDRED:
        return f"{value:.2f}"
    return f"{100 * value:.2f} %" if name == "exact_match" else f"{value:{'.4f' if value < 1e6 else '.3e'}}"


def _print_mistakes(found: "Report") -> None:
    wrong = [line for line in found.examples(EXAMPLES) if line.hypothesis.split() != line.reference.split()]
    if not wrong:
        return
    print("  Some that differ from their reference (source, reference, translation):")
    shown = [map(escaped, (line.source, line.reference, line.hypothesis)) for line in wrong]
    print("\n\n".join("\n".join(f"    {text}" for text in texts) for texts in shown))
