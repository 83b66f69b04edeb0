"""Tests of `seqloom denoise`, and of other commands with denoisers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.denoising import denoise_recipe
from tests.understanding import trained

from seqloom.core.errors import DataError
from seqloom.core.protocols import BestOutput
from seqloom.core.tokens import Specials
from seqloom.inspect.views.curves import curves
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.text.model_inputs import decode_gaps, read_gaps

GAPS = "The cats [MASK] all [MASK] ."
WHOLE = "The cats purr all day . We hear them purr . They eat milk ."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with at most 30 positions: `spans` (words), `bytes` (byte pairs) and `bart`."""
    folder = tmp_path_factory.mktemp("denoisers")
    places = [
        "model.positions.kind=learned",
        "model.positions.max_length=30",
        "train.steps=4",
        "train.evaluate_every=2",
    ]
    for name, changes in {
        "spans": ["noise.sentinels=8"],
        "bytes": ["tokenizer.kind=byte-pair", "tokenizer.size=300"],
        "bart": ["noise.kind=bart"],
    }.items():
        trained(denoise_recipe(folder, *places, *changes), folder / name)
    return folder


class Told:
    """A model that predicts given tokens."""

    def __init__(self, model: Any, said: list[int]):
        self.model, self.said = model, [*said, 0]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # other attributes are those of the real model
        return type(self.model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def step(self, tokens: Any, state: Any, mask: Any = None) -> Any:
        found = self.model.step(tokens, state, mask)
        place = int(state.hidden["cache"]["read"])  # END precedes the first token
        forced = torch.full_like(found.log_probs, -50.0)
        forced[:, self.said[min(place, len(self.said) - 1)]] = 0.0
        return type(found)(forced, found.state, found.attention)

    def step_best(self, tokens: Any, state: Any, count: int) -> BestOutput:
        found = self.step(tokens, state)
        values, ids = found.log_probs.topk(count)
        return BestOutput(values, ids, found.state)


@pytest.mark.parametrize("name", ["spans", "bytes"])
def test_spans_replace_the_gaps(folder: Path, name: str) -> None:
    model = load(folder / name, "cpu")
    first, second, third = list(model.sentinels)[:3]
    purr, day = (model.tokenizer.encode(f" {word}") for word in ("purr", "day"))
    model.__dict__["model"] = Told(model.model, [first, *purr, second, *day, third])
    (result,) = model.denoise(GAPS)
    assert result.spans == ["purr", "day"] and result.denoised == "The cats purr all day ."
    assert result.corrupted == GAPS and result.finished


def test_gap_without_prediction_is_empty(folder: Path) -> None:
    model = load(folder / "spans", "cpu")
    model.__dict__["model"] = Told(model.model, [model.sentinels[1], *model.tokenizer.encode("day")])
    (result,) = model.denoise(GAPS)
    assert result.spans == ["", "day"] and result.denoised == "The cats all day ."


@pytest.mark.parametrize("name", ["spans", "bytes", "bart"])
def test_each_line_is_denoised_and_blank_lines_have_blank_output(seqloom: Any, folder: Path, name: str) -> None:
    shown = seqloom("denoise", folder / name, GAPS, "", "They eat [MASK] .", "--json")
    one, blank, two = shown.objects
    assert one["text"] == GAPS and blank["denoised"] == "" and blank["log_prob"] == 0
    assert (one["spans"], two["spans"]) == (None, None) if name == "bart" else len(two["spans"]) == 1
    assert one["log_prob"] < 0
    plain = seqloom("denoise", folder / name, GAPS, "", "They eat [MASK] .").out.split("\n")
    assert len(plain) == 4 and plain[1].strip() == ""
    assert plain[0].count("\t") == (0 if name == "bart" else 2)


def test_output_matches_a_handwritten_greedy_search(folder: Path) -> None:
    model = load(folder / "bart", "cpu")
    (result,) = model.denoise(WHOLE, beam=1)
    source = torch.tensor([[*model.tokenizer.encode(WHOLE), 0]])
    state = model.model.start({"tokens": source, "mask": source >= 0})
    output: list[int] = []
    token, total = 0, 0.0
    banned = [*Specials.after(len(model.tokenizer)).names, model.tokenizer.unknown]
    for _ in range(2 * source.shape[1] + 20):
        with torch.no_grad():
            out = model.model.step(torch.tensor([[token]]), state)
        log_probs, state = out.log_probs[0].clone(), out.state
        log_probs[banned] = -torch.inf
        token = int(log_probs.argmax())
        total += float(log_probs[token])
        if not token or len(output) == model.model.longest_target - 1:
            break
        output.append(token)
    assert result.denoised == model.tokenizer.decode(output).strip()
    if result.finished:
        assert result.log_prob == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("name", ["spans", "bytes", "bart"])
def test_noise_depends_on_seed_and_line_number(seqloom: Any, folder: Path, name: str) -> None:
    one, two, other = (
        seqloom("denoise", folder / name, "--noise", "--seed", seed, WHOLE, WHOLE, "--json").objects
        for seed in (1, 1, 2)
    )
    assert one == two and one != other
    assert one[0]["corrupted"] != one[1]["corrupted"] and "[MASK]" in one[0]["corrupted"] + one[1]["corrupted"]
    fields = seqloom("denoise", folder / name, "--noise", WHOLE).out.rstrip("\n").split("\t")
    assert fields[0] == one[0]["corrupted"] and fields[1] == one[0]["denoised"]


def test_batched_results_match_single_results(folder: Path) -> None:
    model = load(folder / "spans", "cpu")
    lines = [GAPS, "They [MASK] .", "[MASK] is what cows eat ."] * 3
    together = [one.denoised for one in model.denoise(lines, batch_size=4, window=5)]
    assert together == [one.denoised for line in lines for one in model.denoise(line)]


def test_invalid_line_is_rejected_after_previous_lines(seqloom: Any, folder: Path) -> None:
    shown = seqloom("denoise", folder / "spans", GAPS, "no gap here")
    assert shown.code == 3 and shown.out.count("\n") == 1
    assert "must contain a gap, written [MASK]; got 'no gap here'. --noise" in shown.err
    seqloom("denoise", folder / "spans", "a <extra_id_0> b").fails_with(3, "written [MASK], not <extra_id_0>")
    seqloom("denoise", folder / "spans", "[MASK] " * 8).fails_with(3, "at most 7 gaps", "got 8")
    seqloom("denoise", folder / "bart", "cats " * 40).fails_with(3, "Line 1 has 41 tokens", "has only 29 positions")
    seqloom("denoise", folder / "spans", GAPS, "--beam", "0").fails_with(2)
    with pytest.raises(TypeError, match="there is no option 'width': choose from beam"):
        list(load(folder / "spans").denoise(GAPS, width=3))
    with pytest.raises(DataError, match="must contain a gap"):
        list(load(folder / "spans").denoise("nothing"))


def test_denoiser_is_rejected_by_other_commands(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    run = folder / "spans"
    for words in (["fill-mask", run, "x"], ["generate", run], ["translate", run, "x"], ["classify", run, "x"]):
        seqloom(*words).fails_with(2, "a denoiser", "use `seqloom denoise`")
    shape = ["model.norm_first=false", "model.embed_norm=true", "model.positions.kind=learned", "train.steps=1"]
    fits = trained(denoise_recipe(tmp_path, *shape, "noise.kind=bart"), tmp_path / "fits")
    seqloom("export-hf", fits, tmp_path / "out").fails_with(2, "its model has 3 noise tokens")


def test_unknown_words_are_noted(seqloom: Any, folder: Path) -> None:
    shown = seqloom("denoise", folder / "spans", "The zebras [MASK] .")
    assert shown.code == 0 and "note: the vocabulary lacks parts of 1 line; the first is line 1: 'zebras'" in shown.err


def test_denoisers_are_evaluated_compared_and_averaged(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    result = seqloom("evaluate", folder / "spans", "--split", "test", "--json").json
    assert {"loss", "hidden_accuracy", "target_accuracy", "exact_spans"} <= result.keys()
    assert "exact texts" in seqloom("evaluate", folder / "bart").out
    table = seqloom("compare", folder / "spans", folder / "bart", "--json").json
    assert {"hidden_accuracy"} <= table["runs"][0].keys() | table["runs"][0].get("metrics", {}).keys()
    assert [step for step, _ in curves(Run.open(folder / "spans"))["hidden_accuracy"]] == [2, 4]
    assert load(folder / "bart").embed(["The cats purr .", ""]).shape == (2, 16)
    assert seqloom("average", folder / "spans", "--last", 2, "--out", tmp_path / "mean").code == 0
    assert seqloom("denoise", tmp_path / "mean", GAPS).code == 0


def test_training_prints_next_command(seqloom: Any, tmp_path: Path) -> None:
    small = [
        "train.steps=1",
        "model.d_model=8",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "batch.dev_texts=0",
    ]
    shown = seqloom(
        "train", "denoise-pydocs", *small, "tokenizer.size=300", "train.device=cpu", "--out", tmp_path / "run"
    )
    assert shown.code == 0 and f"Try: seqloom denoise {tmp_path / 'run'}" in shown.out


@pytest.mark.parametrize("name", ["spans", "bytes"])
def test_decoded_gaps_encode_to_the_same_ids(folder: Path, name: str) -> None:
    model = load(folder / name, "cpu")
    specials = Specials.after(len(model.tokenizer))
    for text in (GAPS, "[MASK] eat milk .", "They eat [MASK]", "a [MASK] [MASK] b".replace("b", "day")):
        ids = read_gaps(model.tokenizer, specials, text).ids
        again = decode_gaps(model.tokenizer, ids)
        assert read_gaps(model.tokenizer, specials, again).ids == ids
        if name == "bytes":
            assert again == text


@pytest.mark.parametrize("name", ["spans", "bytes", "bart"])
@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_json_heads_have_weights_for_every_token_and_word(seqloom: Any, folder: Path, name: str, part: str) -> None:
    result = seqloom("inspect", "attention", folder / name, GAPS, "--part", part, "--json").json
    weights = torch.tensor(result["maps"][0]["weights"])
    assert weights.shape == (len(result["row_tokens"]), len(result["column_tokens"]))
    sums = weights.sum(1)
    assert torch.all(sums > 0.5) and torch.all(sums < 1.001)  # the other weights are on tokens before the source
    by_words = torch.tensor(result["maps"][0]["word_weights"])
    assert by_words.shape == (len(result["row_words"]), len(result["column_words"]))
    assert torch.isclose(by_words[0].sum(), sums[0], atol=1e-5) and torch.isclose(by_words[-1].sum(), sums[-1])
    read = result["row_words" if part == "encoder" else "column_words"]
    if part != "decoder":
        assert [word for word in read if "MASK" in word] and read[-1] == "</s>"
    (answer,) = load(folder / name, "cpu").denoise([GAPS])
    assert result["source"] == GAPS and result["log_prob"] == pytest.approx(answer.log_prob, abs=1e-4)
    if name == "bart":
        assert result["denoised"].strip() == answer.denoised


def test_spans_follow_their_sentinels(folder: Path) -> None:
    model = load(folder / "spans", "cpu")
    first, second, *_ = model.sentinels
    purr, day = model.tokenizer.encode("purr day")
    object.__setattr__(model, "model", Told(model.model, [first, purr, second, day]))
    view = model.heads(GAPS)
    assert view.text == "<1> purr <2> day"
    assert view.cross.words.rows == ["<1>", "purr", "<2>", "day", "</s>"]
    assert view.cross.tokens.columns == ["The", "cats", "<1>", "all", "<2>", ".", "</s>"]
    assert view.decoder.words.columns == ["</s>", "<1>", "purr", "<2>", "day"]
    for part in view.parts.values():  # a token is a word here
        assert part.words.weights == pytest.approx(part.tokens.weights)


def test_heads_are_shown_as_text_and_target_is_rejected(seqloom: Any, folder: Path) -> None:
    assert "cross-attention, heads" in seqloom("inspect", "attention", folder / "bart", GAPS).out
    shown = seqloom("inspect", "attention", folder / "bart", GAPS, "--target", "x")
    shown.fails_with(2, "--beam and --target require a translator")
