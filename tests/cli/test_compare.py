import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.checksums import update_checksums

from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.plots.measurements import draw_curves
from seqloom.predict.loader import load
from seqloom.runs.run import Run

pytest.importorskip("rich")


def names(shown: Any) -> list[str]:
    return [Path(row["run"]).name for row in shown.json["runs"]]


def test_runs_of_one_vocabulary_are_ranked_by_loss(seqloom: Any, runs: Path) -> None:
    shown = seqloom("compare", runs / "chars", runs / "gru", "--json")
    loss = {name: (load(runs / name).run.metrics("dev") or {})["loss"] for name in ("chars", "gru")}
    assert shown.json["ranked_by"] == "loss"
    assert shown.json["not_ranked"] is None
    assert names(shown) == sorted(loss, key=loss.__getitem__)
    assert names(seqloom("compare", runs / "gru", runs / "chars", "--json")) == names(shown)
    assert {Path(row["run"]).name: row["metrics"]["loss"] for row in shown.json["runs"]} == loss


def test_runs_of_different_vocabularies_are_ranked_by_bits_per_character(seqloom: Any, runs: Path) -> None:
    shown = seqloom("compare", runs / "chars", runs / "pairs", "--json")
    bits = {name: (load(runs / name).run.metrics("dev") or {})["bits_per_character"] for name in ("chars", "pairs")}
    assert shown.json["ranked_by"] == "bits_per_character"
    assert names(shown) == sorted(bits, key=bits.__getitem__)


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_per_token_metrics_are_not_ranked_across_tokenizers(seqloom: Any, runs: Path, metric: str) -> None:
    shown = seqloom("compare", runs / "chars", runs / "pairs", "--by", metric)
    shown.fails_with(2, f"Not ranked by {metric}", "different tokenizers", "bits_per_character", lines=1)


@pytest.mark.parametrize("metric", ["word_perplexity", "bits_per_character"])
def test_per_word_and_per_character_metrics_are_ranked(seqloom: Any, runs: Path, metric: str) -> None:
    shown = seqloom("compare", runs / "chars", runs / "pairs", "--by", metric, "--json").json
    values = [row["metrics"][metric] for row in shown["runs"]]
    assert shown["ranked_by"] == metric
    assert values == sorted(values)


def test_runs_on_different_data_are_shown_but_not_ranked(seqloom: Any, runs: Path) -> None:
    shown = seqloom("compare", runs / "chars", runs / "toys", "--json")
    assert shown.json["ranked_by"] is None
    assert "different dev texts" in shown.json["not_ranked"]
    assert names(shown) == ["chars", "toys"]
    for metric in ("loss", "bits_per_character"):
        seqloom("compare", runs / "chars", runs / "toys", "--by", metric).fails_with(2, "different dev texts", lines=1)


def test_recipe_differences_are_shown(seqloom: Any, runs: Path) -> None:
    chars, gru = str(runs / "chars"), str(runs / "gru")
    differing = seqloom("compare", chars, gru, "--json").json["recipes"]
    assert differing == {"seed": {chars: 1, gru: 5}, "model.cell": {chars: "lstm", gru: "gru"}}
    lines = seqloom("compare", chars, gru).out.splitlines()
    order = ["chars", "gru"] if lines[2].split()[0].endswith("chars") else ["gru", "chars"]
    assert ["key", *order] in [line.split() for line in lines]
    assert ["model.cell", *({"chars": "lstm", "gru": "gru"}[name] for name in order)] in [
        line.split() for line in lines
    ]


def test_piped_table_is_not_truncated(seqloom: Any, runs: Path) -> None:
    shown = seqloom("compare", *(runs / name for name in ("chars", "gru", "pairs")))
    result = seqloom("compare", *(runs / name for name in ("chars", "gru", "pairs")), "--json").json
    title, heads, *rows = shown.out.splitlines()
    assert title.strip() == "3 runs on dev, best first by bits/char"
    for head in ("parameters", "tokens/s", "loss", "ppl/token", "ppl/word", "bits/char"):
        assert head in heads
    for row, expected in zip(rows, result["runs"], strict=False):
        cells = row.split()
        assert cells[0] == expected["run"]
        assert cells[1] == f"{expected['parameters']:,}"
        assert float(cells[3].replace(",", "")) == pytest.approx(expected["metrics"]["loss"], abs=1e-4)
        assert float(cells[6].replace(",", "")) == pytest.approx(expected["metrics"]["bits_per_character"], abs=1e-4)
    assert "…" not in shown.out


def test_parameters_and_speed_match_the_log(seqloom: Any, runs: Path) -> None:
    (row,) = seqloom("compare", runs / "gru", "--json").json["runs"]
    finished = json.loads((runs / "gru/log.jsonl").read_text().splitlines()[-1])
    assert row["parameters"] == finished["parameters"]
    assert row["tokens_per_second"] == finished["tokens_per_second"]
    assert row["parameters"] == sum(p.numel() for p in load(runs / "gru").model.parameters())


def test_test_split_requires_evaluation(seqloom: Any, copy: Any) -> None:
    chars, gru = copy("chars"), copy("gru")
    shown = seqloom("compare", chars, gru, "--split=test")
    assert shown.code == 0
    assert f"test metrics are missing for {chars}, {gru}" in re.sub(r"\s+", " ", shown.out)
    assert "seqloom evaluate RUN --split test" in re.sub(r"\s+", " ", shown.out)
    for run in (chars, gru):
        assert seqloom("evaluate", run, "--split=test").code == 0
    shown = seqloom("compare", chars, gru, "--split=test", "--json").json
    assert shown["ranked_by"] == "loss"
    assert {row["metrics"]["loss"] for row in shown["runs"]} == {
        load(run).evaluate("test")["loss"] for run in (chars, gru)
    }


def test_other_paths_and_damaged_runs_are_skipped(seqloom: Any, copy: Any, tmp_path: Path) -> None:
    _, _, broken = copy("chars"), copy("gru"), copy("toys")
    (broken / "tokenizer.json").write_text("{")
    (tmp_path / "notes.txt").write_text("not a run")
    (tmp_path / "empty").mkdir()
    shown = seqloom("compare", *sorted(tmp_path.iterdir()), "--json")
    assert sorted(names(shown)) == ["chars", "gru"]
    assert shown.json["ranked_by"] == "loss"
    passed = shown.err.splitlines()
    assert len(passed) == 3
    for line, name in zip(passed, ("empty", "notes.txt", "toys"), strict=True):
        assert line.startswith("skipped: ") and name in line


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_missing_run_is_reported_after_the_table(seqloom: Any, runs: Path, tmp_path: Path, options: list[str]) -> None:
    shown = seqloom("compare", runs / "chars", tmp_path / "nope", runs / "gru", *options)
    assert shown.code == 2 and str(runs / "gru") in re.sub(r"\n", "", shown.out)
    missing = f"{tmp_path / 'nope'} does not exist and is missing from the comparison. Check the name."
    assert shown.err == f"seqloom: {missing}\n"


def test_missing_readable_run_is_reported(seqloom: Any, tmp_path: Path) -> None:
    seqloom("compare", tmp_path).fails_with(4, "is not a run", lines=1)
    nothing = seqloom("compare", tmp_path, tmp_path / "nowhere")
    assert nothing.code == 4
    assert nothing.err.splitlines()[-1].startswith("seqloom: None of these paths is a readable run")
    seqloom("compare").fails_with(2, "Missing argument")


def test_unfinished_run_is_marked(seqloom: Any, copy: Any) -> None:
    run = copy("chars")
    log = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "log.jsonl").write_text("".join(log[:-1]) + log[-1][:20])  # and its last line is incomplete
    assert not seqloom("compare", run, "--json").json["runs"][0]["finished"]
    assert "(unfinished)" in seqloom("compare", run).out


def test_single_run_is_not_ranked(seqloom: Any, runs: Path) -> None:
    assert seqloom("compare", runs / "chars", "--json").json["ranked_by"] is None
    assert seqloom("compare", runs / "chars").out.startswith("1 run on dev\n")


def test_runs_with_lossy_tokenizers_are_not_ranked(seqloom: Any, copy: Any) -> None:
    chars, words = copy("chars"), copy("words")
    path = words / "metrics/dev.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "text_kept": 0.875}))
    shown = seqloom("compare", chars, words, "--json").json
    assert shown["ranked_by"] is None
    assert str(words) in shown["not_ranked"] and "lose part of the text" in shown["not_ranked"]


def test_brackets_in_names_are_not_markup(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "[bold]x[red]"
    run.symlink_to(runs / "chars")
    assert "[bold]x[red]" in seqloom("compare", run).out


def test_title_of_differences_is_not_wrapped(seqloom: Any, copy: Any, tmp_path: Path) -> None:
    """The title is on one line, even above a narrow table."""
    one, two = copy("chars"), tmp_path / "b"
    shutil.copytree(one, two)
    recipe = two / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("seed: 1", "seed: 2"))
    update_checksums(two)
    assert "\n\ndifferences between the recipes\n" in seqloom("compare", one, two).out


def test_curves_distinguish_kinds_of_losses(copy: Any) -> None:
    pytest.importorskip("matplotlib")
    run = copy("chars")
    plain = [line.get_label() for line in draw_curves([Run.open(run)]).axes[0].lines]
    assert plain == ["chars: train", "chars: dev"]
    log = run / "log.jsonl"
    log.write_text(log.read_text().replace('"remark": ""', '"remark": "of samples"'))
    train, dev = draw_curves([Run.open(run)]).axes[0].lines
    assert train.get_label() == "chars: train, of samples: not comparable" and train.get_linestyle() == ":"
    assert dev.get_label() == "chars: dev" and dev.get_linestyle() == "-"


def test_one_spike_does_not_determine_the_axis(copy: Any) -> None:
    pytest.importorskip("matplotlib")
    run = copy("chars")
    before = draw_curves([Run.open(run)]).axes[0]
    log = run / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    progress = [line for line in lines if line["event"] == "progress"]
    losses = [line["values"]["loss"] for line in progress]
    progress[len(progress) // 2]["values"]["loss"] = 5000.0
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    spiked = draw_curves([Run.open(run)]).axes[0]
    low, high = spiked.get_ylim()
    assert low < min(losses) and sorted(losses)[-3] < high < 2 * max(losses)
    assert [text.get_text() for text in spiked.texts] == ["beyond the axis: up to 5000"]
    assert not before.texts and before.get_ylim()[1] > max(losses)


@pytest.mark.parametrize(("points", "marker"), [(4, "o"), (60, "None")])
def test_markers_and_legends_do_not_hide_curves(copy: Any, points: int, marker: str) -> None:
    pytest.importorskip("matplotlib")
    run = copy("chars")
    log = run / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    last = next(line for line in lines if line["event"] == "evaluated" and line["split"] == "dev")
    others = [line for line in lines if line["event"] != "evaluated"]
    more = [last | {"step": 10 * number} for number in range(points)]
    log.write_text("".join(json.dumps(line) + "\n" for line in [*others, *more]))
    metric = draw_curves([Run.open(run)])
    to_bytes(metric)  # computes the layout
    panel: Any = metric.axes[0]
    assert panel.lines[1].get_marker() == marker
    assert not panel.get_legend().get_window_extent().overlaps(panel.get_window_extent())


def test_curves_are_plotted(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "curves.png"
    assert seqloom("compare", runs / "chars", runs / "grams", "--plot", plot, "--json").json
    assert plot.read_bytes().startswith(b"\x89PNG")
    seqloom("compare", runs / "chars", "--plot", tmp_path / "no/x.png").fails_with(2, "does not exist", lines=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--by", "los"], "did you mean loss?"), (["--split", "dve"], "did you mean dev?"), (["--by", "speed"], "choose")],
)
def test_errors_for_unknown_names_have_suggestions(seqloom: Any, runs: Path, words: list[str], message: str) -> None:
    seqloom("compare", runs / "chars", runs / "gru", *words).fails_with(2, message, lines=1)
