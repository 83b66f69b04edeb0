"""Tests of `seqloom inspect attention` by layer and head, and of `seqloom inspect positions`."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqloom.cli.app import main
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor

SOURCE, TARGET = "the cat sat, here", "القط جلس هنا"
PAIRS = [
    ("the cat sat, here", "القط جلس هنا"),
    ("a dog sat", "كلب جلس"),
    ("the dog is here", "الكلب هنا"),
    ("a cat", "猫"),
]
TRANSFORMER = "kind: transformer, d_model: 16, heads: 4, encoder_layers: 2, decoder_layers: 3"


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`heads` is a Transformer, and `learned` has learned positions.

    `reader` has no positions and a recurrent encoder. `recurrent` is not a Transformer.
    """
    folder = tmp_path_factory.mktemp("transformers")
    for side, ending in enumerate(("en", "xx")):
        for name, pairs in (("train", PAIRS), ("dev", [("the cat is here", "القط هنا")])):
            (folder / f"{name}.{ending}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    models = {
        "heads": TRANSFORMER,
        "learned": f"{TRANSFORMER}, positions: {{kind: learned, max_length: 16}}",
        "reader": f"{TRANSFORMER}, encoder_layer: recurrent, positions: {{kind: none}}",
        "recurrent": "kind: recurrent-seq2seq, hidden: 12",
    }
    files = ", ".join(f"{name}: [{folder / name}.en, {folder / name}.xx]" for name in ("train", "dev"))
    for name, model in models.items():
        recipe = folder / f"{name}.yaml"
        recipe.write_text(
            f"task: translate\ndata: {{corpus: parallel, {files}}}\ntokenizer: {{kind: byte-pair, size: 290}}\n"
            f"batch: {{tokens: 100, dev_pairs: 0}}\nmodel: {{{model}}}\ndecode: {{beam: 2, max_length: 8}}\n"
            "train: {steps: 4, lr: 0.01, schedule: constant}\n",
            "utf-8",
        )
        assert main(["train", str(recipe), "--out", str(folder / name)]) == 0, name
    return folder


def size(path: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_json_heads_match_the_python_api(seqloom: Any, translators: Path, part: str) -> None:
    result = seqloom(
        "inspect", "attention", translators / "heads", SOURCE, "--target", TARGET, "--part", part, "--json"
    ).json
    view = load(translators / "heads", "cpu", TranslatorPredictor).heads(SOURCE, TARGET)
    own = view.part(part)
    assert (result["part"], result["layers"], result["heads"]) == (part, own.layers, 4)
    assert (result["source"], result["translation"], result["given"]) == (SOURCE, TARGET, True)
    assert result["log_prob"] == pytest.approx(view.log_prob)
    assert result["row_words"] == own.words.rows and result["column_tokens"] == own.tokens.columns
    assert [(one["layer"], one["head"]) for one in result["maps"]] == [
        (layer, head) for layer in range(1, own.layers + 1) for head in range(1, 5)
    ]
    np.testing.assert_allclose(result["maps"][5]["weights"], own.tokens.weights[1, 1])
    np.testing.assert_allclose(result["maps"][5]["word_weights"], own.words.weights[1, 1])
    assert result["statistics"] == [item._asdict() for item in own.statistics()]


@pytest.mark.parametrize(
    ("words", "maps"),
    [
        (["--layer", "2", "--head", "3"], [(2, 3)]),
        (["--layer", "2"], [(2, 1), (2, 2), (2, 3), (2, 4)]),
        (["--head", "3"], [(1, 3), (2, 3), (3, 3)]),
        (["--view", "heat"], [(3, None)]),
        (["--view", "links", "--head", "3"], [(3, 3)]),
        (["--view", "links", "--layer", "1"], [(1, None)]),
        (["--view", "grid", "--layer", "2", "--head", "3"], [(2, 3)]),
    ],
)
def test_layer_and_head_options_select_maps(seqloom: Any, translators: Path, words: list[str], maps: list[Any]) -> None:
    command = ["inspect", "attention", translators / "heads", SOURCE, "--target", TARGET, "--part", "decoder", "--json"]
    result = seqloom(*command, *words).json["maps"]
    assert [(one["layer"], one["head"]) for one in result] == maps
    own = load(translators / "heads", "cpu", TranslatorPredictor).heads(SOURCE, TARGET).decoder
    layer, head = maps[0]
    np.testing.assert_allclose(result[0]["weights"], own.grid(layer, head, tokens=True).weights)


def test_default_is_the_alignment(seqloom: Any, translators: Path) -> None:
    command = ["inspect", "attention", translators / "heads", SOURCE, "--target", TARGET]
    shown = seqloom(*command)
    assert shown.code == 0 and shown.err == ""
    *_, scale, blank, more = shown.out.splitlines()
    assert (scale, blank) == ("0 ·░▒▓█ 1  fraction of the attention in each row", "")
    assert "--part cross, encoder or decoder" in more
    alignment = seqloom(*command, "--json").json
    heads = seqloom(*command, "--view", "heat", "--part", "cross", "--json").json
    np.testing.assert_allclose(alignment["word_weights"], heads["maps"][0]["word_weights"], atol=1e-6)
    assert "--part" not in seqloom("inspect", "attention", translators / "recurrent", SOURCE).out


def test_single_head_is_shown_as_text(seqloom: Any, translators: Path) -> None:
    command = ["inspect", "attention", translators / "heads", SOURCE, "--target", TARGET]
    shown = seqloom(*command, "--part", "decoder", "--layer", 2, "--head", 3)
    assert shown.code == 0 and shown.err == "" and "\x1b" not in shown.out
    lines = shown.out.splitlines()
    assert lines[4] == "decoder self-attention, layer 2 of 3, head 3 of 4"
    assert lines[6] == "rows: query (attends); columns: key (attended to)"
    read = ["</s>", "القط", "جلس", "هنا"]
    assert lines[8].replace("\u2068", "").replace("\u2069", "").split() == read
    assert [line.split()[0].strip("\u2068\u2069") for line in lines[9:13]] == read
    bare = seqloom(*command, "--part", "encoder", "--layer", 1, "--head", 1, "--no-end")
    assert "</s>" not in bare.out
    pieces = seqloom(*command, "--part", "encoder", "--layer", 1, "--head", 1, "--tokens")
    assert len(pieces.out) > len(bare.out)


def test_table_shows_statistics_of_every_head(seqloom: Any, translators: Path) -> None:
    run = translators / "heads"
    shown = seqloom("inspect", "attention", run, SOURCE, "--target", TARGET, "--part", "encoder")
    rows = [line.split() for line in shown.out.splitlines() if line.strip()[:1].isdigit()]
    statistics = load(run, "cpu", TranslatorPredictor).heads(SOURCE, TARGET).encoder.statistics()
    expected = [
        [f"{h.layer}", f"{h.head}", f"{h.entropy:.2f}", f"{h.distance:.2f}", f"{h.end:.0%}"] for h in statistics
    ]
    assert rows == expected and len(rows) == 8
    assert "encoder self-attention" in shown.out and "entropy" in shown.out
    assert shown.out.endswith("\nPlot them: --out heads.png. Show one: --layer 1 --head 1\n")


@pytest.mark.parametrize("run", ["heads", "recurrent"])
def test_links_view_shows_the_strongest_weights_of_each_word(seqloom: Any, translators: Path, run: str) -> None:
    command = ["inspect", "attention", translators / run, SOURCE, "--target", TARGET, "--view", "links"]
    result = seqloom(*command, "--json").json
    weights, columns = np.array(result["word_weights"]), result["source_words"]
    lines = [line for line in seqloom(*command).out.splitlines() if " → " in line]
    assert len(lines) == 4 and [line.split(" → ")[0].strip(" \u2068\u2069") for line in lines] == [
        *TARGET.split(),
        "</s>",
    ]
    for line, row in zip(lines, weights, strict=True):
        strongest = columns[int(row.argmax())]
        assert line.split(" → ")[1].startswith(f"{strongest} {row.max():.2f}")
        assert len(line.split(" → ")[1].split("   ")) == int((row >= 0.05).sum())


@pytest.mark.parametrize("view", ["heat", "grid", "links"])
def test_plots_are_written(seqloom: Any, translators: Path, tmp_path: Path, view: str) -> None:
    pytest.importorskip("matplotlib")
    command = ["inspect", "attention", translators / "heads", SOURCE, "--target", TARGET, "--part", "encoder"]
    png, svg = tmp_path / "x.png", tmp_path / "x.svg"
    shown = seqloom(*command, "--view", view, "--out", png)
    assert shown.code == 0 and shown.err == f"Wrote {png}.\n" and shown.out
    assert min(size(png)) > 250 and "Plot them" not in shown.out
    assert seqloom(*command, "--view", view, "--json", "--out", svg).json
    text = svg.read_text("utf-8")
    assert "encoder self-attention" in text and SOURCE in text and ">cat<" in text


def test_characters_without_font_are_noted(
    seqloom: Any, translators: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import font_manager

    brought = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", brought)
    for view in ("grid", "links"):
        command = ["inspect", "attention", translators / "heads", SOURCE, "--target", "猫", "--part", "cross"]
        shown = seqloom(*command, "--view", view, "--out", tmp_path / "x.png")
        assert shown.err.splitlines()[0].startswith("note: no installed font has 猫")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["heads", "a", "--layer", "0"], 2, "The layer must be from 1 to 3 in cross-attention; got 0."),
        (
            ["heads", "a", "--part", "encoder", "--layer", "3"],
            2,
            "The layer must be from 1 to 2 in encoder self-attention",
        ),
        (["heads", "a", "--head", "5"], 2, "The head must be from 1 to 4 in each layer of cross-attention; got 5."),
        (["heads", "a", "--view", "links", "--layer", "9"], 2, "The layer must be from 1 to 3"),
        (["heads", "a", "--part", "encode"], 2, "encode"),
        (["heads", "a", "--view", "map"], 2, "map"),
        (["heads", " ", "--part", "cross"], 2, "The text is empty"),
        (
            ["heads", "a", "--part", "cross", "--beam", "2", "--target", "b"],
            2,
            "--beam and --target cannot be used together",
        ),
        (["reader", "a", "--part", "encoder"], 2, "The encoder of"),
        (["recurrent", "a", "--part", "cross"], 2, "recurrent is not a Transformer: it has no layers and heads"),
        (["recurrent", "a", "--layer", "1"], 2, "recurrent is not a Transformer"),
        (["recurrent", "a", "--view", "grid"], 2, "recurrent is not a Transformer"),
        (["learned", "a cat and a dog and a cat and a dog", "--part", "cross"], 3, "16"),
        (["learned", "a cat", "--target", "a cat and a dog and a cat and a dog", "--part", "cross"], 2, "16 positions"),
    ],
)
def test_invalid_arguments_are_rejected(
    seqloom: Any, translators: Path, workdir: Path, words: list[str], code: int, message: str
) -> None:
    name, *rest = words
    seqloom("inspect", "attention", translators / name, *rest, "--out", workdir / "x.png").fails_with(code, message)
    assert not any(workdir.iterdir())


def test_decoder_heads_are_shown_for_a_recurrent_encoder(seqloom: Any, translators: Path) -> None:
    command = ["inspect", "attention", translators / "reader", SOURCE, "--target", TARGET]
    assert seqloom(*command, "--part", "decoder", "--json").json["layers"] == 3
    assert seqloom(*command).code == 0


# --- positions ------------------------------------------------------------------------------------------------------


def test_fixed_encodings_are_shown_without_a_run(seqloom: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "positions.png"
    shown = seqloom("inspect", "positions", "--width", 64, "--length", 50, "--layout", "halves", "--out", out)
    assert shown.code == 0 and shown.err == f"Wrote {out}.\n" and min(size(out)) > 600
    first = shown.out.splitlines()[0]
    assert first == "sinusoidal positions, 50 positions × 64 dimensions, halves, base 10000"
    assert "0 (sine), 32 (cosine)" in shown.out and "6.3 positions" in shown.out
    result = seqloom(
        "inspect", "positions", "--width", 4, "--length", 3, "--kind", "rotary", "--base", 10, "--json"
    ).json
    assert (result["run"], result["kind"], result["base"], result["layout"]) == (None, "rotary", 10, "interleaved")
    np.testing.assert_allclose(
        result["table"][1], [np.sin(1), np.cos(1), np.sin(10**-0.5), np.cos(10**-0.5)], atol=1e-6
    )
    assert "0 (sine), 1 (cosine)" in seqloom("inspect", "positions").out
    assert seqloom("inspect", "positions", "--length", 1).out.startswith("sinusoidal positions, 1 position × 128 ")


def test_learned_positions_match_the_weights_of_the_run(seqloom: Any, translators: Path) -> None:
    for side in ("source", "target"):
        result = seqloom("inspect", "positions", translators / "learned", "--side", side, "--json").json
        model = load(translators / "learned", "cpu").model
        own = getattr(model, f"{side}_embed").positions.weight.detach().numpy()
        assert (result["kind"], result["length"], result["wavelengths"]) == ("learned", 16, [])
        np.testing.assert_allclose(result["table"], own)
    assert (
        "learned, source: learned positions, 16 positions"
        in seqloom("inspect", "positions", translators / "learned").out
    )
    assert seqloom("inspect", "positions", translators / "heads", "--length", 5, "--json").json["length"] == 5


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--width", "7"], 2, "must be even and at least 2"),
        (["--length", "0"], 2, "--length must be from 1 to 2,000; got 0"),
        (["--length", "100000"], 2, "--length must be from 1 to 2,000; got 100000"),
        (["--base", "1"], 2, "base must be above 1"),
        (["--layout", "thirds"], 2, "thirds"),
        (["--kind", "learned"], 2, "learned"),
        (["--side", "source"], 2, "--side selects a table of a run"),
        (["heads", "--width", "8"], 2, "--width applies only to sinusoids"),
        (["learned", "--length", "17"], 2, "--length must be from 1 to 16, the positions of the run; got 17"),
        (["reader"], 2, "has no position encodings: its recipe has model.positions.kind=none"),
        (["recurrent"], 2, "has no position encodings"),
        (["nowhere"], 4, "is not a run"),
    ],
)
def test_invalid_positions_are_rejected(
    seqloom: Any, translators: Path, workdir: Path, words: list[str], code: int, message: str
) -> None:
    run = [] if words[0].startswith("--") else [translators / words[0]]
    rest = words[len(run) :]
    seqloom("inspect", "positions", *run, *rest, "--out", workdir / "x.png").fails_with(code, message)
    assert not any(workdir.iterdir())


def test_recurrent_language_model_has_no_positions(seqloom: Any, runs: Path) -> None:
    seqloom("inspect", "positions", runs / "chars").fails_with(
        2, "has no position encodings: it is of kind recurrent-lm"
    )
    seqloom("inspect", "positions", runs / "grams").fails_with(2, "has no position encodings")
