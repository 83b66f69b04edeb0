"""Tests of `seqloom words`, and of `seqloom evaluate` with word vectors."""

import random

import pytest

from seqloom.predict.loader import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("words")


@pytest.fixture(scope="module")
def vectors(folder):
    """A run with word vectors that were imported from a file with known numbers."""
    from seqloom.predict.word_vectors import import_vectors

    generator = random.Random(2)
    groups = {"king": 0, "queen": 0, "prince": 0, "milk": 1, "bread": 1, "cheese": 1, "red": 2, "blue": 2, "Green": 2}
    lines = []
    for word, group in groups.items():
        numbers = [3.0 * (place == group) + generator.uniform(-0.3, 0.3) for place in range(4)]
        lines.append(" ".join([word, *(f"{number:.4f}" for number in numbers)]))
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n")
    import_vectors(folder / "vectors.txt", folder / "vectors")
    return folder / "vectors"


@pytest.fixture(scope="module")
def text(folder):
    generator = random.Random(3)
    lines = [" ".join(generator.choices(["cat", "dog", "owl", "sat", "ran"], k=9)) for _ in range(40)]
    path = folder / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_similar_lists_nearest_neighbours_of_each_word(seqloom, vectors):
    result = seqloom("words", "similar", vectors, "king", "--top", 2)
    assert result.code == 0 and {line.split("\t")[1] for line in result.out.splitlines()} == {"queen", "prince"}
    several = seqloom("words", "similar", vectors, "king", "milk", "--top", 1)
    assert several.out.splitlines()[0] == "king:" and "milk:" in several.out
    created = seqloom("words", "similar", vectors, "red", "--json").json
    assert created["similar"][0]["word"] == "red" and created["similar"][0]["best"][0]["word"] in ("blue", "Green")


def test_analogy_lists_the_nearest_words(seqloom, vectors):
    best = [
        line.split("\t")[1] for line in seqloom("words", "analogy", vectors, "king", "queen", "milk").out.splitlines()
    ]
    assert len(best) == 5 and best[0] in ("bread", "cheese")
    assert (
        seqloom("words", "analogy", vectors, "king", "queen", "milk", "--top", 1, "--json").json["best"][0]["score"]
        > 0.5
    )


def test_unknown_word_is_rejected(seqloom, vectors):
    seqloom("words", "similar", vectors, "chese").fails_with(2, "no vector of 'chese'; did you mean cheese?")
    seqloom("words", "analogy", vectors, "king", "queen", "green").fails_with(2, "did you mean Green?")
    seqloom("words", "similar", vectors, "xylophone").fails_with(2, "none of its 9 words has a similar spelling")
    seqloom("words", "plot", vectors, "--near", "quen", "--out", "x.png").fails_with(2, "did you mean queen")


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_plot_is_written(seqloom, vectors, folder, method):
    pytest.importorskip("matplotlib")
    for name, more in (("all.png", []), ("near.svg", ["--near", "king", "--near", "milk", "--top", 3])):
        out = folder / f"{method}-{name}"
        assert seqloom("words", "plot", vectors, "--method", method, "--out", out, *more).code == 0
        assert out.stat().st_size > 3000


def test_invalid_plots_are_rejected(seqloom, vectors, folder):
    seqloom("words", "plot", vectors, "--out", folder / "x.jpeg").fails_with(2, ".png or .svg")
    seqloom("words", "plot", vectors, "--out", folder / "x.png", "--word", "king").fails_with(
        2, "at least four words; got 1"
    )
    both = seqloom("words", "plot", vectors, "--out", folder / "x.png", "--word", "king", "--near", "king")
    both.fails_with(2, "--word and --near cannot be used together")


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_equal_vectors_are_not_plotted_but_single_numbers_are(seqloom, folder, method):
    """Vectors with one number are plotted. Equal vectors, for which t-SNE fails, are rejected."""
    pytest.importorskip("matplotlib")
    for name, numbers in (("alike", "1 1 1 1 1"), ("narrow", "1 2 -1 3 -4")):
        lines = [f"{word} {number}" for word, number in zip("abcde", numbers.split(), strict=True)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        run, out = folder / f"{name}-{method}", folder / f"{name}-{method}.png"
        assert seqloom("words", "import", folder / f"{name}.txt", run).code == 0
        drawn = seqloom("words", "plot", run, "--method", method, "--out", out)
        if name == "alike":
            drawn.fails_with(2, "all of these are equal")
        else:
            assert "5 words: a b c d e" in drawn.out


def test_file_with_one_word_is_rejected(seqloom, folder):
    (folder / "one.txt").write_text("a 1 2\n")
    seqloom("words", "import", folder / "one.txt", folder / "one").fails_with(
        3, "must have vectors of at least two words, but has 1 word"
    )
    assert not (folder / "one").exists()


def test_file_with_unknown_word_is_imported(seqloom, folder):
    """A GloVe file ends with the unknown word."""
    (folder / "unk.txt").write_text("cat 1 2\n</s> 2 1\nNew York 3 1\n<unk> 1 1\n")
    assert "3 words" in seqloom("words", "import", folder / "unk.txt", folder / "unk").out
    assert "cat" in seqloom("words", "similar", folder / "unk", "New York").out
    seqloom("words", "similar", folder / "unk", "<unk>").fails_with(2, "no vector of '<unk>'")


@pytest.mark.parametrize("name", ["out.txt", "out.bin", "out.txt.gz"])
def test_exported_vectors_are_imported_unchanged(seqloom, vectors, folder, name):
    assert "9 words" in seqloom("words", "export", vectors, folder / name).out
    created = seqloom("words", "import", folder / name, folder / f"{name}-run")
    assert "9 words, vectors of 4 numbers" in created.out and "seqloom words similar" in created.out
    same = [seqloom("words", "similar", run, "king").out for run in (vectors, folder / f"{name}-run")]
    assert same[0] == same[1]
    assert (folder / name).read_bytes().startswith(b"9 4\n") or name.endswith(".gz")
    seqloom("words", "export", vectors, folder / name).fails_with(2, "exists")
    seqloom("words", "import", folder / name, vectors).fails_with(2, "exists")


def test_invalid_line_is_reported_by_number(seqloom, folder):
    (folder / "bad.txt").write_text("a 1 2\nb 1 two\n")
    seqloom("words", "import", folder / "bad.txt", folder / "bad").fails_with(3, "Line 2 of", "'two'")
    seqloom("words", "import", folder / "none.txt", folder / "bad").fails_with(3, "does not exist")
    assert not (folder / "bad").exists()


def test_only_word_level_models_have_word_vectors(seqloom, folder, text):
    """A word-level language model has word vectors. Character-level and n-gram models do not."""
    small = [
        "batch.size=4",
        "batch.length=16",
        "model.hidden=8",
        "train.steps=2",
        "train.evaluate_every=2",
        "train.schedule=constant",
        "train.warmup=0",
    ]
    data = ["data.corpus=text", f"data.train={text}", "data.documents=line"]
    for name, kind in (("lm", "words"), ("characters", "characters")):
        created = seqloom("train", "lm-char-lstm", *data, f"tokenizer.kind={kind}", *small, "--out", folder / name)
        assert created.code == 0, created.err
    result = seqloom("words", "similar", folder / "lm", "cat")
    assert len(result.out.splitlines()) == 4
    model = load(folder / "lm", "cpu")
    assert result.code == 0 and model.model.embed.weight.shape[0] == len(model.tokenizer)
    seqloom("words", "similar", folder / "characters", "cat").fails_with(
        2, "has the tokenizer characters, so it has no word vectors"
    )
    assert seqloom("train", "ngram-kn5", *data, "tokenizer.kind=words", "--out", folder / "ngram").code == 0
    seqloom("words", "similar", folder / "ngram", "cat").fails_with(2, "kind ngram, which has no word vectors")


def test_trained_vectors_work_with_other_commands(seqloom, folder, text, monkeypatch):
    monkeypatch.delenv("SEQLOOM_DATA", raising=False)
    data = ["data.corpus=text", f"data.train={text}", "data.documents=line"]
    small = [
        "tokenizer.min_count=1",
        "tokenizer.split=whitespace",
        "model.vector_size=6",
        "train.epochs=2",
        "train.device=cpu",
    ]
    for objective in ("skipgram", "glove"):
        words = ["train", "word2vec-pydocs", *data, *small, f"model.objective={objective}", "--out", folder / objective]
        created = seqloom(*words)
        assert created.code == 0, created.err
        assert (
            f"{'pairs' if objective == 'glove' else 'words'}/s" in created.out and "seqloom words plot" in created.out
        )
    shown = seqloom("evaluate", folder / "skipgram", "--split", "test")
    assert "neighbours vs. noise" in shown.out and "5 words have vectors" in shown.out
    assert "WordSim-353, SimLex-999, Google's analogies" in shown.err
    assert seqloom("evaluate", folder / "skipgram", "--json").json["missing"][0] == "WordSim-353"
    other = seqloom("evaluate", folder / "skipgram", text, "--json").json
    assert other["data"] == str(text) and other["documents"] > 0
    compared = seqloom("compare", folder / "skipgram", folder / "glove", "--json").json
    assert compared["ranked_by"] == "neighbours" and len(compared["runs"]) == 2
    seqloom("compare", folder / "skipgram", folder / "glove", "--by", "loss").fails_with(2, "are not comparable")
    monkeypatch.chdir(folder.parent)
    assert seqloom("list", "tasks").out.count("word-vectors") == 1
    assert seqloom("doctor", "word2vec-pydocs", *data, *small).code == 0
    assert seqloom("train", "--resume", folder / "skipgram").code == 0
    seqloom("generate", folder / "skipgram").fails_with(2, "word vectors: use `seqloom words`")


def test_human_similarity_is_reported_with_coverage(seqloom, vectors, folder, monkeypatch):
    sets = folder / "data" / "word_vectors_eval"
    sets.mkdir(parents=True)
    pairs = [("king", "queen"), ("king", "milk"), ("red", "blue"), ("red", "milk"), ("bread", "cheese")]
    pairs += [("milk", "cheese"), ("queen", "bread"), ("prince", "king"), ("blue", "green"), ("prince", "blue")]
    pairs += [("tiger", "cat")]
    rows = [f"{a},{b},{n}" for n, (a, b) in enumerate(pairs)]
    (sets / "wordsim353_combined.csv").write_text("\n".join(["a,b,c", *rows]) + "\n")
    monkeypatch.setenv("SEQLOOM_DATA", str(folder / "data"))
    result = seqloom("evaluate", vectors)
    assert "(10 of 11 pairs, 90.9%)" in result.out and "on no data" in result.out
    assert "SimLex-999, Google's analogies" in result.err
    created = seqloom("evaluate", vectors, "--json").json["wordsim353"]
    assert (
        created["evaluated"] == 10 and -1 <= created["interval"][0] <= created["value"] <= created["interval"][1] <= 1
    )
