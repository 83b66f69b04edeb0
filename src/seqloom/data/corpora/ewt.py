"""The English Web Treebank of Universal Dependencies: blogs, emails, reviews and questions with part-of-speech tags."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpora.conll import Field, parse_tags, read_conllu
from seqloom.data.corpus import Corpus
from seqloom.data.examples import TokenClassificationExample
from seqloom.data.files import DataSet

SUMMARY = "UD English EWT: 16,600 sentences from the web with part-of-speech tags (needs SEQLOOM_DATA)"
FORM = "token-classification"
SOURCE = DataSet(
    "UD English EWT", "https://github.com/UniversalDependencies/UD_English-EWT (release 2.16, CC BY-SA 4.0)"
)


@config
class Config:
    corpus: Literal["ewt"] = "ewt"
    field: Field = "upos"  # tags to use: upos, 17 universal tags; xpos, Penn Treebank tags; feats; deprel


def load(config: Config) -> Corpus[TokenClassificationExample]:
    splits = {}
    for split in ("train", "dev", "test"):
        path = SOURCE.file(f"ud_english_ewt/en_ewt-ud-{split}.conllu.gz")
        splits[split], _ = parse_tags(read_conllu(path, config.field), None, "refuse", str(path))
    return Corpus(
        name="ewt",
        licence="CC BY-SA 4.0",
        description=f"Universal Dependencies, English Web Treebank, {config.field}",
        splits=splits,
    )
