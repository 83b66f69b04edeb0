"""SST-2, the Stanford Sentiment Treebank with two classes: sentences of film reviews and their phrases."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Gt, Le
from seqloom.core.errors import DataError
from seqloom.core.words import format_value
from seqloom.data.corpus import SPLITS, Corpus
from seqloom.data.examples import TextClassificationExample, sample_fraction
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
    form: Literal["phrases", "sentence"] = "phrases"  # train on the phrases of GLUE, or only on complete sentences
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0  # fraction of the training texts of each label to use
    seed: int = 0  # seed of the selection if fraction < 1


def load(config: Config) -> Corpus[TextClassificationExample]:
    """Load the texts; dev has 872 sentences and test 1,821 sentences, in the spelling of the training texts."""
    notes: tuple[str, ...] = ()
    if config.form == "sentence":
        splits = {split: _sentences(split) for split in SPLITS}
    else:
        held_out = {"dev": _glue("dev"), "test": _add_labels(_glue_test(), _sentences("test"))}
        phrases = _glue("train")
        train = exclude_sentences(phrases, [example.text for examples in held_out.values() for example in examples])
        splits = {"train": train, **held_out}
        excluded = len(phrases) - len(train)
        notes = (f"{excluded:,} of {len(phrases):,} phrases of GLUE are sentences of dev or test and were left out",)
    if config.fraction < 1:
        texts, splits["train"] = splits["train"], sample_fraction(splits["train"], config.fraction, config.seed)
        notes = (*notes, f"{len(splits['train']):,} of {len(texts):,} training texts are used (data.fraction)")
    return Corpus(
        name="sst2",
        licence="none stated by its sources",
        description=f"Stanford Sentiment Treebank, two classes, trained on {config.form.removesuffix('s')}s",
        splits=splits,
        notes=notes,
    )


def sentences() -> dict[str, list[str]]:
    """Return the complete sentences of each split without labels, in the spelling of GLUE and without overlap."""
    held_out = {"dev": [example.text for example in _glue("dev")], "test": _glue_test()}
    spellings = {_letters(phrase.text): phrase.text for phrase in reversed(_glue("train"))}  # first occurrence
    seen = {_letters(text) for texts in held_out.values() for text in texts}
    keys = [key for key in (_letters(sentence.text) for sentence in _sentences("train")) if key not in seen]
    return {"train": [spellings[key] for key in dict.fromkeys(keys) if key in spellings], **held_out}


def exclude_sentences(
    phrases: Sequence[TextClassificationExample], sentences: Iterable[str]
) -> list[TextClassificationExample]:
    """Remove the phrases that equal one of the sentences, ignoring punctuation.

    A phrase that is only part of a sentence is kept: the label of `funny` does not reveal the label of a review.
    """
    excluded = set(map(_letters, sentences))
    return [phrase for phrase in phrases if _letters(phrase.text) not in excluded]


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


def _add_labels(texts: Sequence[str], labelled: Sequence[TextClassificationExample]) -> list[TextClassificationExample]:
    """Label the unlabelled test sentences of GLUE with the labels of the sentences that have the same letters."""
    labels = {_letters(sentence.text): sentence.label for sentence in labelled}
    for text in texts:
        if _letters(text) not in labels:
            raise DataError(
                f"sst2/sentence/test.tsv must contain all test sentences of GLUE, but lacks {format_value(text)}."
            )
    return [TextClassificationExample(text, labels[_letters(text)]) for text in texts]


def _letters(text: str) -> str:
    """Reduce a text to the characters that both sources share.

    These are the ASCII letters and digits, without LRB, and with `our` replaced by `or`.
    """
    plain = re.sub(r"-?\b[lr]rb\b-?", "", text.lower()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain).replace("our", "or").replace("learnt", "learned")
