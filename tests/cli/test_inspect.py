import struct
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from seqloom.inspect.views.cells import gate_trace
from seqloom.inspect.views.gradients import gradient_trace
from seqloom.predict.loader import load

TEXT = "the cat sat on a mat ."


# --- gates ----------------------------------------------------------------------------------------------------------


def test_json_gates_match_the_trace(seqloom: Any, runs: Path) -> None:
    result = seqloom("inspect", "gates", runs / "chars", TEXT, "--json").json
    trace = gate_trace(load(runs / "chars", "cpu"), TEXT)
    assert result["tokens"] == ["</s>", *TEXT]
    assert (result["cell"], result["layer"], result["layers"], result["hidden"]) == ("lstm", 1, 1, 12)
    assert list(result["gates"]) == ["i", "f", "o"]
    assert result["gates"]["f"]["effect"] == "near 1 keeps the old content of the cell"
    assert 0 <= result["gates"]["f"]["closed"] <= result["gates"]["f"]["closed"] + result["gates"]["f"]["open"] <= 1
    assert list(result["levels"]) == ["i", "f", "o", "g", "c", "h"]
    for name, level in result["levels"].items():
        assert level == pytest.approx(trace.layers[0].level(name).tolist())
    assert result["most_varying"] == trace.layers[0].most_varying()
    assert result["unit"] is None and result["values"] is None


def test_json_values_of_a_unit_match_the_trace(seqloom: Any, runs: Path) -> None:
    result = seqloom("inspect", "gates", runs / "gru", TEXT, "--unit", 7, "--layer", 1, "--json").json
    trace = gate_trace(load(runs / "gru", "cpu"), TEXT)
    assert result["unit"] == 7
    for name, values in result["values"].items():
        assert values == pytest.approx(trace.layers[0].values[name][:, 7].tolist())


def test_table_has_a_row_per_token(seqloom: Any, runs: Path) -> None:
    shown = seqloom("inspect", "gates", runs / "chars", TEXT)
    assert shown.code == 0
    title, heads, *rest = shown.out.splitlines()
    assert title.strip() == f"{runs / 'chars'} (lstm): mean over 12 units"
    assert heads.split() == ["token", "i", "f", "o", "|g|", "|c|", "|h|"]
    rows = [line.split() for line in rest[: len(TEXT) + 1]]
    assert [row[0] for row in rows] == ["</s>", *TEXT.replace(" ", "␣")]
    trace = gate_trace(load(runs / "chars", "cpu"), TEXT)
    for place, row in enumerate(rows):
        assert float(row[2]) == pytest.approx(trace.layers[0].level("f")[place], abs=6e-4)
    assert "f near 1 keeps the old content of the cell   (above 0.9: " in shown.out
    assert f"Show one: --unit {trace.layers[0].most_varying()[0]}" in shown.out
    assert "\x1b" not in shown.out and "█" not in shown.out


def test_unit_option_shows_the_saturation_of_the_unit(
    seqloom: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = gate_trace(load(runs / "chars", "cpu"), TEXT).layers[0]
    layer.values["f"][:] = 0.5
    layer.values["f"][:3, 4] = 0.95
    assert layer.saturation("f", 4) == (3 / len(layer.values["f"]), 0)
    assert layer.saturation("f", 5) == (0, 0)
    monkeypatch.setattr("seqloom.inspect.views.cells.OPEN", 0.5)  # gates of an untrained model are rarely saturated
    layer = gate_trace(load(runs / "chars", "cpu"), TEXT).layers[0]
    unit = max(range(12), key=lambda unit: abs(layer.saturation("i", unit).open - layer.saturation("i").open))
    shown = seqloom("inspect", "gates", runs / "chars", TEXT, "--unit", unit).out
    line = next(line for line in shown.splitlines() if line.startswith("i near 1"))
    assert f"(above 0.9: {layer.saturation('i', unit).open:.0%}, " in line and line.endswith("of tokens)")
    assert f"{layer.saturation('i', unit).open:.0%}" != f"{layer.saturation('i').open:.0%}"


def test_gates_are_bars_on_a_terminal(seqloom: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "█" in seqloom("inspect", "gates", runs / "chars", "cat").out


@pytest.mark.parametrize("name", ["chars", "gru", "pairs", "words", "toys"])
def test_gates_are_shown_for_every_tokenizer(seqloom: Any, runs: Path, name: str) -> None:
    text = "a b" if name == "toys" else "the cat sat here ."
    run = load(runs / name, "cpu")
    if run.tokenizer.unknown_pieces(text):
        text = run.tokenizer.decode([5, 6])
    assert seqloom("inspect", "gates", runs / name, text, "--json").json["tokens"][0] == "</s>"
    assert seqloom("inspect", "gates", runs / name, text).code == 0


def test_unknown_words_are_rejected_unless_allowed(seqloom: Any, runs: Path) -> None:
    text = "the zebra sat"
    seqloom("inspect", "gates", runs / "words", text).fails_with(
        3, "does not have 'zebra' in the text", "--allow-unknown", lines=1
    )
    result = seqloom("inspect", "gates", runs / "words", text, "--allow-unknown", "--json").json
    assert "<unk>" in result["tokens"]
    shown = seqloom("inspect", "gradients", runs / "words", "--text", text)
    shown.fails_with(3, "does not have 'zebra' in the text", "--allow-unknown", lines=1)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["grams", "the cat"], 2, "is of kind ngram"),
        (["nowhere", "the cat"], 4, "is not a run"),
        (["chars", ""], 2, "The text is empty"),
        (["chars", "the Ж"], 3, "does not have 'Ж' in the text"),
        (["chars", "a", "--unit", "12"], 2, "The unit must be from 0 to 11, the units of the layer; got 12"),
        (["chars", "a", "--unit", "-1"], 2, "The unit must be from 0 to 11, the units of the layer; got -1"),
        (["chars", "a", "--layer", "2"], 2, "The layer must be from 1, the lowest, to 1; got 2"),
        (["chars", "a", "--layer", "0"], 2, "The layer must be from 1, the lowest, to 1; got 0"),
        (["chars", "a", "--part", "encoder"], 2, "This model has no part 'encoder'"),
    ],
)
def test_gates_require_a_recurrent_model(seqloom: Any, runs: Path, words: list[str], code: int, message: str) -> None:
    name, *rest = words
    seqloom("inspect", "gates", runs / name, *rest).fails_with(code, message, lines=1)


@pytest.mark.parametrize("command", [["gates", "a"], ["gradients"]])
def test_invalid_plot_path_is_rejected_before_the_run_is_opened(
    seqloom: Any, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def inspect(run: str, out: Path) -> Any:
        return seqloom("inspect", command[0], runs / run, *command[1:], "--out", out)

    for run in ("chars", "nowhere"):  # the error is raised before the run is opened
        inspect(run, tmp_path / "x.pdf").fails_with(2, "must end in .png or .svg", lines=1)
        inspect(run, tmp_path / "no/x.png").fails_with(2, "does not exist", lines=1)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    inspect("chars", tmp_path / "x.png").fails_with(5, "pip install 'seqloom[plot]'", lines=1)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("unit", [[], ["--unit", "3"]])
def test_gates_are_plotted(seqloom: Any, runs: Path, tmp_path: Path, unit: list[str]) -> None:
    pytest.importorskip("matplotlib")
    png = tmp_path / "gates.png"
    shown = seqloom("inspect", "gates", runs / "chars", TEXT, *unit, "--out", png, "--json")
    assert shown.json and shown.err == f"Wrote {png}.\n"
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert 1000 < width < 4000 and 500 < height < 3000


# --- gradients ------------------------------------------------------------------------------------------------------


def test_json_gradients_match_the_trace_and_the_log(seqloom: Any, runs: Path) -> None:
    result = seqloom("inspect", "gradients", runs / "chars", runs / "gru", "--text", TEXT, "--json").json
    assert result["of"] == "last"
    assert [(Path(run["run"]).name, run["cell"]) for run in result["runs"]] == [("chars", "lstm"), ("gru", "gru")]
    for run in result["runs"]:
        trace = gradient_trace(load(run["run"], "cpu"), TEXT)
        assert run["tokens"] == ["</s>", *TEXT[:-1]] and run["target"] == TEXT[-1]
        assert run["distances"][-1] == 0 and len(run["distances"]) == len(TEXT)
        assert run["loss"] == pytest.approx(trace.loss)
        for name, norms in run["layers"][0]["norms"].items():
            assert norms == pytest.approx(trace.layers[0][name].tolist())
        assert [matrix["layer"] for matrix in run["matrices"]] == [1] * len(run["matrices"])
        assert all(matrix["singular_values"][0] >= matrix["spectral_radius"] for matrix in run["matrices"])
        assert run["flows"] == []
        assert run["clipping"]["clipped"] == pytest.approx(min(run["clipping"]["norm"], run["clipping"]["clip"]))
        logged = [entry for entry in load(run["run"]).run.log() if entry["event"] == "progress"]
        assert [norm for _, norm in run["training"]] == [entry["values"]["gradient_norm"] for entry in logged]
    assert [matrix["name"] for matrix in result["runs"][0]["matrices"]] == ["i", "f", "g", "o"]


def test_gradients_of_elman_layers_are_below_their_bound(
    seqloom: Any, text_overrides: list[str], tmp_path: Path
) -> None:
    small = [
        "model.hidden=8",
        "model.layers=2",
        "train.steps=4",
        "batch.size=4",
        "batch.length=16",
        "train.clip_norm=null",
    ]
    run = tmp_path / "elman"
    assert seqloom("train", "lm-char-lstm", *text_overrides, *small, "model.cell=elman", "--out", run).code == 0
    result = seqloom("inspect", "gradients", run, "--json").json["runs"][0]
    assert [flow["layer"] for flow in result["flows"]] == [1, 2]
    for flow in result["flows"]:
        assert flow["gamma_g"] == 1
        assert flow["gamma_w"] == pytest.approx(result["matrices"][flow["layer"] - 1]["singular_values"][0])
        assert all(m <= b * (1 + 1e-9) for m, b in zip(flow["measured"], flow["bound"], strict=True))
    assert result["clipping"]["clip"] is None and result["clipped_fraction"] is None
    shown = seqloom("inspect", "gradients", run).out
    assert shown.count("(γ_W γ_g)^10 = (") == 2 and " 10 steps later" in shown
    assert " 1 step later" in seqloom("inspect", "gradients", run, "--text", "ca").out
    assert "the recipe does not clip" in shown


def test_default_text_is_the_dev_split(seqloom: Any, runs: Path, texts: Path) -> None:
    result = seqloom("inspect", "gradients", runs / "chars", "--json").json["runs"][0]
    lines = (texts / "dev.txt").read_text(encoding="utf-8").split("\n")
    read = [letter for line in lines for letter in [*line, "</s>"]]
    assert result["tokens"] == ["</s>", *read[:99]] and result["target"] == read[99]
    given = seqloom("inspect", "gradients", runs / "chars", "--text", lines[0][:20], "--json").json["runs"][0]
    assert given["tokens"] == ["</s>", *lines[0][:19]]


def test_text_output_shows_gradients_of_several_runs(seqloom: Any, runs: Path) -> None:
    shown = seqloom("inspect", "gradients", runs / "chars", runs / "gru", "--text", TEXT)
    assert shown.code == 0
    title, heads, *rows = [line.strip() for line in shown.out.splitlines()]
    assert title == "norm of the gradient of the last token's loss with respect to each state"
    assert heads.split() == ["tokens", "back", "chars:", "h", "chars:", "c", "gru:", "h"]
    assert [row.split()[0] for row in rows[:7]] == ["0", "1", "2", "5", "10", "20", str(len(TEXT) - 1)]
    trace = gradient_trace(load(runs / "chars", "cpu"), TEXT)
    assert float(rows[3].split()[1]) == pytest.approx(trace.layers[0]["h"][-6], rel=6e-3)
    for words in (
        "a tenth every",
        "spectral",
        "W_h candidate",
        "with clip_norm = 1 it",
        "of the logged steps were clipped",
    ):
        assert words in shown.out
    total = seqloom("inspect", "gradients", runs / "chars", "--of=total")
    assert "the sum of all tokens' losses" in total.out and "a tenth every" not in total.out


def test_runs_with_equal_names_are_shown_by_path(seqloom: Any, runs: Path, copy: Any) -> None:
    shown = seqloom("inspect", "gradients", runs / "gru", copy("gru"), "--text", "cat").out
    assert f"{runs / 'gru'}: h" in shown


def test_gradients_require_a_recurrent_model(seqloom: Any, runs: Path) -> None:
    for words in ([runs / "grams"], [runs / "chars", runs / "grams"], [runs / "grams", "--text", "the cat"]):
        seqloom("inspect", "gradients", *words).fails_with(2, "is of kind ngram", lines=1)
    seqloom("inspect", "gradients", runs / "chars", "--text", "").fails_with(2, "The text is empty", lines=1)
    seqloom("inspect", "gradients", runs / "chars", "--of", "first").fails_with(2, "one of last, total")
    seqloom("inspect", "gradients").fails_with(2, "Missing argument")


def test_gradients_are_plotted(seqloom: Any, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg = tmp_path / "flow.svg"
    assert seqloom("inspect", "gradients", runs / "chars", runs / "gru", "--out", svg).code == 0
    root = ElementTree.fromstring(svg.read_bytes())
    assert float(root.attrib["width"].removesuffix("pt")) > 900


# --- gradients of translators -----------------------------------------------------------------------------------------


def test_gradients_of_translators_are_shown_by_source_position(seqloom: Any, translators: Path, tmp_path: Path) -> None:
    names, out = ("one", "blind", "transformer"), tmp_path / "gradients.svg"
    runs = [translators / name for name in names]
    words = ["inspect", "gradients", *runs, "--text", "the cat sat", "--target", "der Hund"]
    result = seqloom(*words, "--of", "total", "--json").json
    assert result["of"] == "total"
    for run, shown in zip(runs, result["runs"], strict=True):
        assert shown["run"] == str(run) and shown["translation"] == "der Hund"
        assert shown["source_tokens"] == ["the", "cat", "sat", "</s>"]
        assert len(shown["by_token"]) == len(shown["target_tokens"]) == 3
        assert all(norm > 0 for norm in shown["total"])
    shown = seqloom(*words, "--out", out)
    assert shown.code == 0 and ElementTree.parse(out).getroot().tag.endswith("svg")
    lines = shown.out.splitlines()
    assert lines[0] == "norm of the gradient of the last token's loss with respect to each source position"
    assert lines[1].split() == ["position", "source", *names]
    last = [one["by_token"][-1] for one in result["runs"]]
    assert lines[3].split() == ["2", "cat", *(f"{norms[1]:.2e}" for norms in last)]
    single = tmp_path / "single.png"
    assert seqloom("inspect", "gradients", runs[0], "--text", "the cat sat", "--out", single).code == 0
    assert min(struct.unpack(">II", single.read_bytes()[16:24])) > 100


def test_invalid_gradients_of_translators_are_reported(seqloom: Any, translators: Path, runs: Path) -> None:
    seqloom("inspect", "gradients", translators / "one").fails_with(2, "Translators need a sentence: add --text TEXT")
    seqloom("inspect", "gradients", runs / "chars", "--target", "x").fails_with(2, "--target requires translators")
    both = [translators / "one", runs / "chars", "--text", "the cat"]
    seqloom("inspect", "gradients", *both).fails_with(2, "only translators have gradients by source position")
