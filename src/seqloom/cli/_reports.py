"""What `evaluate` shows of translators, word vectors and forecasters."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seqloom.cli._output import check_answers, escaped, format_metric, print_json
from seqloom.core.words import counted

if TYPE_CHECKING:
    from seqloom.evaluate.translation import TranslationReport
    from seqloom.evaluate.word_space import Judged
    from seqloom.predict.forecast import ForecasterPredictor
    from seqloom.predict.translate import TranslatorPredictor
    from seqloom.predict.word_vectors import WordVectorsPredictor
    from seqloom.tasks.forecast import ForecastReport

TRANSLATION_METRICS = {
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
FORECAST_METRICS = {
    "mase": "MASE",
    "smape": "sMAPE, %",
    "crps": "CRPS, in the unit of MASE",
    "coverage_80": "in the 80 % interval",
    "coverage_95": "in the 95 % interval",
}
STEPS = 12  # ahead that are listed one by one


def evaluate_translations(
    model: "TranslatorPredictor",
    split: str,
    files: tuple[Path, Path] | None,
    options: dict[str, float | None],
    out: Path | None,
    as_json: bool,
) -> None:
    """Translate a split of the run's own data, or the first of two files, and compare with what should have come.

    Of an ensemble also what each of its parts can do alone.
    """
    from seqloom.predict.ensembles import TranslatorEnsemble

    check_answers(out, "translations")
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    parts = model.parts if isinstance(model, TranslatorEnsemble) else []
    first = parts[0] if parts else model
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
        print_json({**named, **_translations_object(data, found), **_alone_object(names, alone)})
        return
    _print_translations(model.name, data, [first.run.data.get(side) or "" for side in ("source", "target")], found)
    if parts:
        _print_alone(names, found, alone)


def _translations_object(data: str, found: "TranslationReport") -> dict[str, Any]:
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


def _alone_object(names: list[str], alone: list["TranslationReport"]) -> dict[str, Any]:
    rows = [{"run": name, **one.metrics, "decoding": one.decoding} for name, one in zip(names, alone, strict=True)]
    return {"alone": rows} if rows else {}


def _print_alone(names: list[str], together: "TranslationReport", alone: list["TranslationReport"]) -> None:
    shown = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact", "loss": "loss"}
    print("  Each alone, and together:" + "".join(f"  {head:>9}" for head in shown.values()))
    for name, one in [*zip(names, alone, strict=True), ("together", together)]:
        figures = "".join(f"  {_metric(metric, one.metrics[metric]):>9}" for metric in shown)
        other = f"   {one.decoding}" if one.decoding != together.decoding else ""
        print(f"    {name:23}{figures}{other}")


def _print_translations(run: str, data: str, languages: list[str], found: "TranslationReport") -> None:
    between = f", {' to '.join(languages)}" if all(languages) else ""  # an imported model may not say
    blank = sum(not (line.source.strip() or line.reference.strip()) for line in found.lines)
    without = f", {blank:,} of them blank" if blank else ""
    print(f"{run} on {data}: {counted(len(found.lines), 'pair')}{without}{between}; {found.decoding}")
    for name in [*TRANSLATION_METRICS, *(name for name in found.metrics if name not in TRANSLATION_METRICS)]:
        if name in found.metrics:
            signature = f"   {found.signatures[name]}" if name in found.signatures else ""
            print(f"  {TRANSLATION_METRICS.get(name, name):22} {_metric(name, found.metrics[name]):>9}{signature}")
    print(f"  BLEU by length of the source:\n    {found.unit:>12}  {'pairs':>7}  {'BLEU':>6}")
    for row in found.by_length:
        between = f"{row.low}" if row.low == row.high else f"{row.low} to {row.high}"
        print(f"    {between:>12}  {row.pairs:7,}  {row.bleu:6.2f}")
    _print_mistakes(found)


def _metric(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name == "exact_match" else format_metric(name, value)


def _print_mistakes(found: "TranslationReport") -> None:
    wrong = [line for line in found.examples(EXAMPLES) if line.hypothesis.split() != line.reference.split()]
    if not wrong:
        return
    print("  Some that differ from their reference (source, reference, translation):")
    shown = [map(escaped, (line.source, line.reference, line.hypothesis)) for line in wrong]
    print("\n\n".join("\n".join(f"    {text}" for text in texts) for texts in shown))


def evaluate_word_vectors(model: "WordVectorsPredictor", split: str, as_json: bool) -> None:
    """The figures on a split of the text, then those beside people's judgements, each with how much it covers."""
    found = model.report(split)
    own = bool(found.held_out)
    data = f"{model.run.data['corpus']}, {split}" if own else "no text of its own"
    if as_json:
        judged = {name: _judged_object(one) for name, one in found.judged.items()}
        print_json({"run": model.name, "data": data, **found.held_out, **judged, "missing": list(found.missing)})
        return
    print(f"{model.name} on {data}: {len(model.space.words):,} words have vectors")
    for name, value in found.held_out.items():
        print(f"  {HELD_OUT[name]:28} {value:9.4f}")
    for name, (label, unit) in JUDGED.items():
        if name in found.judged:
            print(f"  {label:28} {_judged_metric(found.judged[name], unit)}")
    if found.missing:
        typer.echo(
            f"note: not measured, since they are not in word_vectors_eval of SEQLOOM_DATA: {', '.join(found.missing)}",
            err=True,
        )


def _judged_metric(one: "Judged", unit: str) -> str:
    covered = f"{one.asked:,} of {one.total:,} {unit}, {one.coverage:.1%}"
    if one.value is None or one.interval is None:
        return f"        –  too few of its words have vectors ({covered})"
    return f"{one.value:9.4f}  {one.interval.low:.4f} to {one.interval.high:.4f}  ({covered})"


def _judged_object(one: "Judged") -> dict[str, Any]:
    names = ("value", "interval", "asked", "total", "coverage")
    return {name: getattr(one, name) for name in names}


def evaluate_forecasts(model: "ForecasterPredictor", split: str, as_json: bool) -> None:
    """All figures of a split, with those of the seasonal naive forecast beside them."""
    found = model.report(split)
    data = f"{model.run.data['corpus']}, {split}"
    if as_json:
        steps = {"by_step": found.by_step, "naive_by_step": found.naive_by_step, "by_variable": found.by_variable}
        print_json({"run": model.name, "data": data, **found.kept(), **steps})
        return
    origins = "1 origin" if found.origins == 1 else f"{found.origins} origins"
    print(f"{model.name} on {data}: {found.horizon} steps ahead, from {origins}")
    print(f"  {'':28}{'model':>10}{'naive':>10}")
    for name, words in FORECAST_METRICS.items():
        print(f"  {words:28}{found.metrics[name]:>10.4f}{found.metrics[f'naive_{name}']:>10.4f}")
    print(f"  {'loss, nats of the next value':28}{found.metrics['loss']:>10.4f}")
    _print_steps(found)
    if len(found.by_variable) > 1:
        print("\nMASE of each variable")
        for column, figures in found.by_variable.items():
            print(f"  {column[:26]:28}{figures['mase']:>10.4f}{figures['naive_mase']:>10.4f}")
    print(f"\nnaive: what was there {_season(model.season)} ago")


def _season(season: int) -> str:
    return "one step" if season == 1 else f"a season, {season} steps,"


def _print_steps(found: "ForecastReport") -> None:
    """MASE by how far ahead; of a long horizon a few steps."""
    count = len(found.by_step)
    every = max(1, -(-count // STEPS))
    print("\nMASE by steps ahead")
    for step in range(every - 1, count, every):
        print(f"  {step + 1:<28}{found.by_step[step]:>10.4f}{found.naive_by_step[step]:>10.4f}")
