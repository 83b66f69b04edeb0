"""Golden digests: corpora and batches are bit-identical after changes of the code.

`fingerprints.json` contains the digests. After an intended change, run python -m tests.data.test_fingerprints.
"""

import gzip
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.example_files import SETTINGS, write
from tests.data.test_corpora import FILES as TEXT_FILES
from tests.data.test_parallel_corpora import FILES as PARALLEL_FILES

from seqloom.config import build
from seqloom.core.errors import DataError, ResourceError
from seqloom.core.tokens import Specials
from seqloom.data import corpora
from seqloom.data.batching import Ragged, SeriesWindows, StreamBatches
from seqloom.data.collate import (
    FIRST,
    ParallelBatches,
    PromptCompletionBatches,
    RowBatches,
    TextBatches,
    encode_completion,
)
from seqloom.data.files import (
    use_data_folder,
)
from seqloom.data.masking import MaskedBatches, MasksConfig, NextSentencePairs, pack
from seqloom.data.noise import BARTNoiseConfig, DenoisingBatches, SpansConfig, cut_pieces
from seqloom.data.text_inputs import (
    RowReader,
    SentenceReader,
    Spellings,
    TextFrame,
    TextReader,
)
from seqloom.text import Characters, CharactersConfig

GOLDEN = Path(__file__).with_name("fingerprints.json")
FIRST_EXAMPLES = 5
OWN_FILES = {
    **{name: text for name, text in TEXT_FILES.items() if name.startswith(("ptb/", "tinyshakespeare/"))},
    **{name: PARALLEL_FILES[name] for name in ("mine.en", "mine.de")},
    "mine.txt": "".join(f"my line {n}\n" + "\n" * (n % 3 == 0) for n in range(60)),
    "tasks.jsonl": "".join(
        json.dumps({"instruction": f"Double {n}.", "input": "in digits" * (n % 2), "output": str(2 * n)}) + "\n"
        for n in range(40)
    ),
    "series.csv": "day,a,b,note\n"
    + "".join(f"2024-01-{n:02d},{n * n % 7},{'' if n == 5 else n / 3},x\n" for n in range(1, 31) if n != 12),
    "rows.csv": "".join(f"{n % 3},{n},{n * n % 11},{n / 7},{n % 5}\n" for n in range(1, 40)),
    "marks.tsv": "".join(f"{n}\ttext {n % 30} here\t{n % 2}\n" for n in range(60)),
    "lists.csv": "text;a;b;right\n" + "".join(f"q {n};yes {n};no {n};{n % 2}\n" for n in range(20)),
}
SIZES = {"train": 300, "dev": 40, "test": 60}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"corpus": name} for name in corpora.CORPORA},
    **{name: {"corpus": name, **settings} for name, settings in SETTINGS.items()},
    **{name: {"corpus": name, **SIZES} for name in ("cldr", "facts", "known-facts", "toys")},
    "spoken-phonemes": {"corpus": "spoken-phonemes", "train": 12, "dev": 3, "test": 3},
    "people": {"corpus": "people", "train": 3000, "dev": 300, "test": 300},
    "text": {"corpus": "text", "train": "mine.txt"},
    "text paragraphs": {"corpus": "text", "train": "mine.txt", "documents": "paragraph", "dev_fraction": 0.2},
    "text lines": {"corpus": "text", "train": "mine.txt", "documents": "line", "test": "mine.en", "dev_fraction": 0.0},
    "parallel": {"corpus": "parallel", "train": ["mine.en", "mine.de"]},
    "pairs of a table": {
        "corpus": "parallel",
        "train": "pairs.tsv",
        "columns": ["first", "second"],
        "dev_fraction": 0.0,
    },
    "instructions": {"corpus": "instructions", "train": "tasks.jsonl"},
    "series-file": {"corpus": "series-file", "file": "series.csv"},
    "series-rows": {"corpus": "series-rows", "train": "rows.csv"},
    "table by number": {"corpus": "table", "train": "marks.tsv", "text": 2, "label": 3, "dev_fraction": 0.2},
    "table with a test": {"corpus": "table", "train": "table.csv", "test": "marks.tsv", "text": 1, "label": 2},
    "choices of a table": {
        "corpus": "choices",
        "train": "lists.csv",
        "options": ["a", "b"],
        "answer": "right",
    },
    "tatoeba": {"corpus": "tatoeba", "dev": 5, "test": 5},
    "toys recall": {"corpus": "toys", "task": "recall", "max_length": 6, **SIZES},
    "cldr en hu": {"corpus": "cldr", "target": "hu", **SIZES},
    **{f"series {name}": {"corpus": "series", "series": name} for name in ("stocks", "macro", "sea", "co2-weekly")},
    "digits pixels": {"corpus": "digits", "by": "pixels"},
    "wikitext2 articles": {"corpus": "wikitext2", "documents": "article"},
    "endings wikitext2": {"corpus": "endings", "text": "wikitext2"},
    "sst2 sentence": {"corpus": "sst2", "form": "sentence"},
    "squad all": {"corpus": "squad", "parts": "all"},
    "track drift": {"corpus": "track", "motion": "drift"},
}


def digest(value: Any) -> str:
    """Return a digest of nested values. Arrays and tensors are hashed by bytes, type and shape."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.numpy()
        if isinstance(value, np.ndarray):
            sha.update(f"{value.dtype} {value.shape}".encode())
            sha.update(np.ascontiguousarray(value).tobytes())
        elif is_dataclass(value) and not isinstance(value, type):
            add(asdict(value))
        elif isinstance(value, dict):
            for key in sorted(value):
                add((key, value[key]))
        elif isinstance(value, list | tuple):
            sha.update(b"[%d" % len(value))
            for item in value:
                add(item)
        else:
            sha.update(f"{type(value).__name__} {value!r};".encode())

    add(value)
    return sha.hexdigest()[:16]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("data"))


def prepare(folder: Path) -> Path:
    write(folder)
    for name, text in {**PARALLEL_FILES, **OWN_FILES}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder


def locate_files(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(item) for item in value]
        return str(folder / value) if isinstance(value, str) and (folder / value).is_file() else value

    return {key: absolute(value) for key, value in settings.items()}


def describe_corpus(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    config = build(corpora.find(settings["corpus"]).Config, locate_files(settings, folder))
    with use_data_folder(folder):
        corpus: Any = corpora.load(config)
    first = {split: list(corpus.split(split)[:FIRST_EXAMPLES]) for split in corpus.splits}
    texts = [text.replace(f"{folder}/", "") for text in (corpus.description, *corpus.notes, *corpus.absent.values())]
    return {
        "version": corpus.version,
        "sha256": {split: value[:16] for split, value in corpus.fingerprint().items()},
        "first": digest(first),
        "texts": digest([corpus.name, corpus.licence, *texts]),
        "sizes": digest([corpus.sizes(split) for split in corpus.splits]),
    }


def golden() -> dict[str, Any]:
    digests: dict[str, Any] = json.loads(GOLDEN.read_text())
    return digests


@pytest.mark.parametrize("name", CASES)
def test_corpus_is_unchanged(name: str, folder: Path) -> None:
    expected = golden()["corpora"].get(name)
    if expected is None:
        pytest.skip("no digest is recorded")
    try:
        description = describe_corpus(CASES[name], folder)
    except ResourceError as error:
        pytest.skip(str(error))
    if description["version"] != expected["version"] and not expected["version"].startswith("sha256"):
        pytest.skip(f"recorded with {expected['version']}, installed is {description['version']}")
    assert description == expected


def test_every_corpus_has_a_recorded_fingerprint() -> None:
    assert {settings["corpus"] for settings in CASES.values()} == set(corpora.CORPORA)


# --- batches ----------------------------------------------------------------------------------------------------------

VOCABULARY = 60
SPECIALS = Specials.after(VOCABULARY)
SENTENCES = [
    " ".join("".join(random.Random(f"{n}/{w}").choices("abcdefgh", k=1 + (n * w) % 7)) for w in range(1, 2 + n % 13))
    for n in range(80)
]


def ids(count: int, max_length: int, seed: str = "ids") -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(1, VOCABULARY) for _ in range(draw.randrange(1, max_length + 1))] for _ in range(count)]


def tokenizer() -> Characters:
    return Characters.train(CharactersConfig(), SENTENCES)


def documents() -> list[list[list[int]]]:
    return [ids(2 + n % 5, 14, f"document {n}") for n in range(30)]


def word_positions(count: int) -> dict[str, Ragged]:
    firsts = [list(range(0, len(text), 2)) for text in ids(count, 20)]
    return {FIRST: Ragged.plain(firsts), "tags": Ragged.plain([[n % 5 for n in first] for first in firsts])}


def rows(count: int) -> list[Any]:
    reader = RowReader(tokenizer(), TextFrame(SPECIALS, "bert"), 40)
    pairs = [reader.pair(SENTENCES[n], SENTENCES[-1 - n], symmetric=True) for n in range(count // 2)]
    return pairs + [reader.choice(SENTENCES[n], SENTENCES[n : n + 2]) for n in range(count // 2)]


def windows() -> list[Any]:
    reader = RowReader(tokenizer(), TextFrame(SPECIALS, "causal"), 30)
    return [window for n in range(9) for window in reader.windows(n, SENTENCES[n], " ".join(SENTENCES[n:40]), 8, None)]


def masked(source: Any, masking: Any) -> MaskedBatches:
    masks = MasksConfig()
    return MaskedBatches(source, masks=masks, masking=masking, size=6, specials=SPECIALS, vocabulary=VOCABULARY)


def series(length: int) -> Any:
    values = torch.arange(3 * length, dtype=torch.float64).reshape(length, 3).sin()
    return values, values > -0.5


def prompt_completion_batches(**options: Any) -> PromptCompletionBatches:
    coder = tokenizer()
    return PromptCompletionBatches(
        (encode_completion(coder, f"{text} ", text[::-1]) for text in SENTENCES), tokens=150, **options
    )


def tagger_batches(frame: TextFrame | None, shapes: int | None) -> Any:
    split = [text.split() for text in SENTENCES]
    spellings = Spellings.of_words(word for sentence in split for word in sentence)
    reader = SentenceReader(tokenizer(), None if frame else spellings, 24, frame)
    pieces = reader.pieces(split)
    tags = [[len(split[piece.sentence][n]) for n in range(piece.start, piece.end)] for piece in pieces]
    return reader.batches(split, pieces, tags=tags, tokens=120, shapes=shapes)


def classifier_batches(frame: TextFrame | None, shapes: int | None) -> Any:
    spellings = None if frame else Spellings.of_words(SENTENCES)
    labels = {"labels": [n % 4 for n in range(len(SENTENCES))]}
    return TextReader(tokenizer(), spellings, 20, frame).batches(SENTENCES, tokens=90, shapes=shapes, values=labels)


BATCHES: dict[str, Callable[[], Any]] = {
    "pairs": lambda: ParallelBatches(ids(90, 20, "a"), ids(90, 25, "b"), tokens=200, max_length=22),
    "pairs of four shapes": lambda: ParallelBatches(ids(90, 20, "a"), ids(90, 25, "b"), tokens=200, shapes=4),
    "texts": lambda: TextBatches(ids(90, 30), tokens=128, max_length=25, values={"labels": list(range(90))}),
    "texts of three shapes": lambda: TextBatches(ids(90, 30), tokens=128, shapes=3, values={"x": [1] * 90}),
    "texts with words": lambda: TextBatches(ids(50, 20), tokens=80, words=word_positions(50), max_length=15),
    "classifier": lambda: classifier_batches(None, None),
    "classifier of three shapes": lambda: classifier_batches(None, 3),
    "classifier on a backbone": lambda: classifier_batches(TextFrame(SPECIALS, "bert"), None),
    "tagger": lambda: tagger_batches(None, None),
    "tagger of three shapes": lambda: tagger_batches(None, 3),
    "tagger on a backbone": lambda: tagger_batches(TextFrame(SPECIALS, "ends"), None),
    "rows": lambda: RowBatches(rows(40), tokens=300, values={"y": [0.5] * 40, "answers": list(range(40))}),
    "rows of three shapes": lambda: RowBatches(rows(40), tokens=300, shapes=3),
    "windows": lambda: RowBatches([window.rows() for window in windows()], tokens=200),
    "masked": lambda: masked(pack(ids(70, 40), SPECIALS, 24), "dynamic"),
    "masked statically": lambda: masked(pack(ids(70, 40), SPECIALS, 24), "static"),
    "masked pairs": lambda: masked(NextSentencePairs(documents(), SPECIALS, 32), "dynamic"),
    "noise of spans": lambda: DenoisingBatches(
        cut_pieces(documents(), 20), SpansConfig(), vocabulary=VOCABULARY, tokens=150
    ),
    "noise of BART": lambda: DenoisingBatches(
        cut_pieces(documents(), 20),
        BARTNoiseConfig(rotate=0.5, mask=0.1, delete=0.1),
        vocabulary=VOCABULARY,
        tokens=150,
    ),
    "prompts": lambda: prompt_completion_batches(),
    "prompts of three shapes": lambda: prompt_completion_batches(shapes=3),
    "series": lambda: SeriesWindows([series(50), series(31)], 12, 8),
}


def describe_batches(batches: Any) -> dict[str, Any]:
    steps = batches.steps_per_epoch
    chosen = [0, 1, 2, steps - 1, steps, steps + 1]
    largest = batches.largest_step(5) if hasattr(batches, "largest_step") else None
    return {
        "steps": steps,
        "batches": digest([batches.batch(5, step) for step in chosen]),
        "ranks": digest([batches.batch(5, step, rank, 2) for step in (0, 1) for rank in (0, 1)]),
        "largest": largest,
    }


def describe_stream() -> dict[str, Any]:
    batches = StreamBatches(torch.arange(1, 400), 6, 17)
    stream_batches = [
        batches.batch(step, rank, 2, offset) for step in (0, 1, 3, 4) for rank in (0, 1) for offset in (0, 5)
    ]
    return {"steps": batches.steps_per_epoch, "batches": digest(stream_batches)}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_match_the_recorded_batches(name: str) -> None:
    assert describe_batches(BATCHES[name]()) == golden()["batches"][name]


def test_stream_batches_match_the_recorded_batches() -> None:
    assert describe_stream() == golden()["batches"]["stream"]


def test_evaluation_batches_are_unchanged() -> None:
    assert describe_evaluation() == golden()["batches"]["evaluation"]


def describe_evaluation() -> dict[str, str]:
    """Return digests of evaluation batches, which contain each example once."""
    seeded = {name: (3,) if name.startswith("noise") else (3, 4) for name in BATCHES if name[:5] in ("maske", "noise")}
    names = [name for name in BATCHES if hasattr(BATCHES[name](), "all_batches")]
    return {name: digest(list(BATCHES[name]().all_batches(*seeded.get(name, ())))) for name in names}


def test_digests_distinguish_values() -> None:
    different = [[1], [1.0], [[1]], [1, 1], {"a": 1}, {"b": 1}, np.ones(1), np.ones((1, 1)), torch.ones(1).bool()]
    assert len({digest(value) for value in different}) == len(different)


def record(folder: Path) -> None:
    digests: dict[str, Any] = {
        "corpora": {},
        "batches": {"stream": describe_stream(), "evaluation": describe_evaluation()},
    }
    for name, settings in CASES.items():
        try:
            digests["corpora"][name] = describe_corpus(settings, folder)
        except DataError as error:
            raise SystemExit(f"{name}: {error}") from error
    for name, create in BATCHES.items():
        digests["batches"][name] = describe_batches(create())
    GOLDEN.write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        record(prepare(Path(temporary)))
