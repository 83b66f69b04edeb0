"""SST-2, the Stanford Sentiment Treebank in two classes: sentences of film reviews, and phrases of them."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Gt, Le
from seqloom.core.errors import DataError
from seqloom.core.words import shown
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import TextClassificationExample, sample_share
from seqloom.data.files import DataSet
from seqloom.data.tables import read_columns

SUMMARY = "SST-2: film reviews, positive or negative; 67,000 phrases or 6,900 sentences (needs SEQLOOM_DATA)"
FORM = "text-classification"
SOURCE = DataSet(
    "SST-2",
    "https://gluebenchmark.com/tasks (sst2/glue) and https://github.com/clairett/pytorch-sentiment-classification, "
    "data/SST2 (sst2/sentence); no licence is stated",
)
LABELS = {"0": "negative", "1": "positive"}


@config
class Config:
    corpus: Literal["sst2"] = "sst2"
    form: Literal["phrases", "sentence"] = "phrases"  # phrases: GLUE's, of the training sentences; or these alone
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0  # of the training texts, and of those of each label
    seed: int = 0  # decides which


def load(config: Config) -> Corpus[TextClassificationExample]:
    """872 sentences are dev and 1,821 test in both forms, written as the training texts of the form are."""
    notes: tuple[str, ...] = ()
    if config.form == "sentence":
        splits = {split: _sentences(split) for split in SPLITS}
    else:
        held = {"dev": _glue("dev"), "test": _label(_glue_test(), _sentences("test"))}
        phrases = _glue("train")
        kept = without(phrases, [example.text for examples in held.values() for example in examples])
        splits = {"train": kept, **held}
        out = len(phrases) - len(kept)
        notes = (f"{out:,} of GLUE's {len(phrases):,} phrases are a sentence of dev or test and were left out",)
    if config.fraction < 1:
        whole, splits["train"] = splits["train"], sample_share(splits["train"], config.fraction, config.seed)
        notes = (*notes, f"of {len(whole):,} training texts {len(splits['train']):,} are read (data.fraction)")
    return Corpus(
        name="sst2",
        licence="none stated by its sources",
        description=f"Stanford Sentiment Treebank, two classes, trained on {config.form.removesuffix('s')}s",
        splits=splits,
        notes=notes,
    )


def sentences() -> dict[str, list[str]]:
    """The whole sentences of each split without labels, written as GLUE writes them; none of train is in another."""
    held = {"dev": [example.text for example in _glue("dev")], "test": _glue_test()}
    written = {_letters(phrase.text): phrase.text for phrase in reversed(_glue("train"))}  # of several the first
    seen = {_letters(text) for texts in held.values() for text in texts}
    names = [name for name in (_letters(one.text) for one in _sentences("train")) if name not in seen]
    return {"train": [written[name] for name in dict.fromkeys(names) if name in written], **held}


def without(phrases: Sequence[TextClassificationExample], sentences: Iterable[str]) -> list[TextClassificationExample]:
    """The phrases that are none of these sentences, however they are punctuated.

    A phrase within a longer sentence stays: what `funny` says of itself tells nothing of a review
    it stands in.
    """
    known = set(map(_letters, sentences))
    return [phrase for phrase in phrases if _letters(phrase.text) not in known]


def _read(part: str, columns: tuple[int, int] | tuple[str, str]) -> list[TextClassificationExample]:
    _, rows = read_columns(SOURCE.file(f"sst2/{part}.tsv.gz"), columns)
    return [TextClassificationExample(text.strip(), LABELS[label.strip()]) for text, label in rows]


def _sentences(split: str) -> list[TextClassificationExample]:
    return _read(f"sentence/{split}", (1, 2))


def _glue(split: str) -> list[TextClassificationExample]:
    return _read(f"glue/{split}", ("sentence", "label"))


def _glue_test() -> list[str]:
    _, rows = read_columns(SOURCE.file("sst2/glue/test.tsv.gz"), ("sentence",))
    return [text.strip() for (text,) in rows]


def _label(texts: Sequence[str], sentences: Sequence[TextClassificationExample]) -> list[TextClassificationExample]:
    """GLUE keeps the labels of test to itself; the same sentences have them where they are written without hyphens,
    accents and most punctuation. So the letters tell which is which."""
    labels = {_letters(sentence.text): sentence.label for sentence in sentences}
    for text in texts:
        if _letters(text) not in labels:
            raise DataError(f"A test sentence of GLUE is not among those of sst2/sentence/test.tsv: {shown(text)}.")
    return [TextClassificationExample(text, labels[_letters(text)]) for text in texts]


def _letters(text: str) -> str:
    """What both copies have: ASCII letters and digits; brackets are LRB in one of them, and humour is humor."""
    plain = re.sub(r"-?\b[lr]rb\b-?", "", text.lower()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain).replace("our", "or").replace("learnt", "learned")
