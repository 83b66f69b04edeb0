"""Two scenes and how similar they are: in how many of who, what, where, when and with whom they agree."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpora.scene_claims import TwoOrMore
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import SentencePairExample
from seqloom.data.generated import SLOTS, SceneDrawing, scene_corpus

SUMMARY = "two scenes and how much alike they are, from 0 to 5; no download"
FORM = "sentence-pair"


@config
class Config(GeneratedConfig):
    corpus: Literal["scene-likeness"] = "scene-likeness"
    train: TwoOrMore = 12_000  # pairs
    dev: TwoOrMore = 500
    test: TwoOrMore = 1_000


def load(config: Config) -> Corpus[SentencePairExample]:
    """Both scenes are told in ways of their own, so the order of the words says little."""
    return scene_corpus(
        config,
        "two scenes: in how many of who, what, where, when and with whom they agree",
        lambda drawing, _, count: [draw_pair(drawing, number % (len(SLOTS) + 1)) for number in range(count)],
    )


def draw_pair(drawing: SceneDrawing, shared_slots: int) -> SentencePairExample:
    first = drawing.scene()
    second = drawing.scene([first])
    for slot in drawing.draws.sample(SLOTS, shared_slots):
        second = second.with_value(slot, first.value(slot))
    telling = drawing.telling()
    other_telling = drawing.telling(but=telling)
    score = sum(first.value(slot) == second.value(slot) for slot in SLOTS)
    return SentencePairExample.of(first.tell(telling), second.tell(other_telling), str(score))
