"""Small files in the layout of the real data sets, for tests of classification, tagging and answering corpora."""

import gzip
import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from seqloom.data.corpora.names_18 import LANGUAGES
from seqloom.data.images import encode_png

_SENTENCES = ["a fine film", "dull and long", "re imagining of humour", "not bad"]
_GLUE = ["a fine film .", "dull and long .", "re-imagining of humor .", "-lrb- not bad -rrb-"]


def _conllu(words: list[tuple[str, str]], text: str) -> str:
    rows = [
        f"{n}\t{word}\t_\t{tag}\tX{tag}\t_\t{n - 1}\t{'dep' if n > 1 else 'root'}\t_\t_"
        for n, (word, tag) in enumerate(words, start=1)
    ]
    return "\n".join([f"# text = {text}", *rows, "", ""])


def squad(articles: int, questions: int = 2) -> str:
    """Return a file in SQuAD format with articles of one paragraph."""

    def paragraph(number: int) -> dict[str, Any]:
        context = f"The river {number} is {number} miles long. It ends in lake {number}."
        lake = {"text": f"lake {number}", "answer_start": context.index("lake")}
        long = {"text": f"{number} miles", "answer_start": context.index(f"{number} miles")}
        return {
            "context": context,
            "qas": [
                {"id": f"q{number}-{n}", "question": f"Where does river {number} end?", "answers": [lake, long, lake]}
                for n in range(questions)
            ],
        }

    data = [{"title": f"Article {number}", "paragraphs": [paragraph(number)]} for number in range(articles)]
    return json.dumps({"version": "1.1", "data": data})


def _rte(count: int, start: int = 0) -> str:
    rows = [
        f"{n}\tFirst text {n // 2}.\tSecond {n}.\t{'not_' * (n % 2)}entailment" for n in range(start, start + count)
    ]
    return "\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n"


_PICTURES = {"train": range(8), "dev": range(8, 11), "test": range(11, 14)}
_WIKI = "".join(
    f" = Town {n} = \n \n Town {n} is old and small . It has a bridge of stone {n} . A river runs by town {n} . \n \n"
    for n in range(6)
)
FILES = {
    "glue/RTE/train.tsv.gz": _rte(40),
    "glue/RTE/dev.tsv.gz": _rte(6, start=38),
    "flickr8k/Flickr8k.token.txt.gz": "".join(
        f"{n}.jpg#{k}\tA dog {n} runs {k} .\n" for n in range(15) for k in range(5)
    ),
    **{
        f"flickr8k/Flickr_8k.{split}Images.txt.gz": "".join(f"{n}.jpg\n" for n in pictures)
        for split, pictures in _PICTURES.items()
    },
    **{f"wikitext-2/{split}.txt.gz": _WIKI for split in ("train", "valid", "test")},
    "squad/dev-v1.1.json.gz": squad(20),
    "squad/train-v1.1.json.gz": squad(40),
    "mine.json": squad(30),
    "pairs.tsv": "first\tsecond\tlabel\n" + "".join(f"one {n}\tother {n}\t{n % 3}\n" for n in range(60)),
    "choices.jsonl": "".join(
        json.dumps({"text": f"text {n}", "options": [f"yes {n}", f"no {n}", "maybe"], "answer": n % 3}) + "\n"
        for n in range(40)
    ),
    "sst2/sentence/train.tsv.gz": "great fun\t1\nno fun at all\t0\nso so\t0\n",
    "sst2/sentence/dev.tsv.gz": "one long bore\t0\nlovely\t1\n",
    "sst2/sentence/test.tsv.gz": "".join(f"{text}\t{n % 2}\n" for n, text in enumerate(_SENTENCES)),
    "sst2/glue/train.tsv.gz": "sentence\tlabel\ngreat fun \t1\nno fun at all . \t0\nfine film \t1\n"
    "long bore \t0\na fine film \t1\nlovely . \t1\n",
    "sst2/glue/dev.tsv.gz": "sentence\tlabel\none long bore . \t0\nlovely \t1\n",
    "sst2/glue/test.tsv.gz": "index\tsentence\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(_GLUE[::-1])),
    "glue/CoLA/train.tsv.gz": "".join(f"gj04\t{n % 2}\t{'*' * (n % 2)}\tSentence {n}.\n" for n in range(30)),
    "glue/CoLA/dev.tsv.gz": "gj04\t1\t\tSentence 3.\ngj04\t0\t*\tAsked this.",
    "ud_english_ewt/en_ewt-ud-train.conllu.gz": _conllu([("Do", "AUX"), ("n't", "PART"), (".", "PUNCT")], "Don't.")
    + _conllu([("Go", "VERB"), ("home", "NOUN")], "Go home"),
    "ud_english_ewt/en_ewt-ud-dev.conllu.gz": _conllu([("Do", "AUX"), ("it", "PRON")], "Do it"),
    "ud_english_ewt/en_ewt-ud-test.conllu.gz": _conllu([("Run", "VERB"), ("!", "PUNCT")], "Run!"),
    "wnut17/wnut17train.conll.gz": "@ann\tB-person\nwas\tO\n\t\nin\tO\nNew\tB-location\nYork\tI-location\n\n",
    "wnut17/emerging.dev.conll.gz": "Bob\tB-person\nran\tO\n\n",
    "wnut17/emerging.test.annotated.gz": "&\tO\nCy\tB-person\nDoe\tI-person\n\n",
    "table.csv": "text,label\n" + "".join(f'"text, no. {n}",{"good" if n % 3 else "bad"}\n' for n in range(40)),
    "trees.conllu": "".join(_conllu([("Go", "VERB"), (f"home{n}", "NOUN")], f"Go home{n}") for n in range(40)),
    "mine.conll": "".join(f"Ann{n} B-PER\nran O\n. O\n\n" for n in range(40)),
    **{f"names/{language}.txt": "".join(f"{language[:4]}{n:c}\n" for n in range(97, 120)) for language in LANGUAGES},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "names": {"train": 240, "dev": 48, "test": 48},
    "people": {"train": 200, "dev": 40, "test": 60},
    "languages": {"train": 102, "dev": 34, "test": 34},
    "table": {"train": "table.csv"},
    "conll": {"train": "mine.conll"},
    "conllu-trees": {"train": "trees.conllu"},
    "sentence-pairs": {"train": "pairs.tsv"},
    "choices": {"train": "choices.jsonl"},
    "squad-files": {"train": "mine.json"},
    "scene-claims": {"train": 200, "dev": 40, "test": 60},
    "scene-choices": {"train": 100, "dev": 20, "test": 30},
    "scene-likeness": {"train": 200, "dev": 40, "test": 60},
    "scene-questions": {"train": 200, "dev": 40, "test": 60},
}


def write_pictures(folder: Path) -> None:
    """Write the archives of pictures of Flickr8k, with one colour for each picture."""
    for split, numbers in _PICTURES.items():
        with ZipFile(folder / f"images_128_{split}.zip", "w") as archive:
            for n in numbers:
                pixels = np.full((16, 16, 3), (17 * n, 255 - 17 * n, 90), dtype=np.uint8)
                archive.writestr(f"{n}.jpg", encode_png(pixels))


def write(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    write_pictures(folder / "flickr8k")
    return folder


def settings(name: str, folder: Path) -> dict[str, Any]:
    options = SETTINGS.get(name, {})
    if isinstance(options.get("train"), str):
        options = {**options, "train": str(folder / options["train"])}
    return {"corpus": name, **options}
