"""Similarity: two scenes and the number of slots (who, what, where, when, with whom) in which they agree."""

from typing import Literal

from seqloom.config import config
from seqloom.data.corpora.scene_claims import TwoOrMore
from seqloom.data.corpus import Corpus, GeneratedConfig
from seqloom.data.examples import SentencePairExample
from seqloom.data.generated import SLOTS, SceneDrawing, scene_corpus

SUMMARY = "two scenes and their similarity, from 0 to 5; no download"
FORM = "sentence-pair"


@config
class Config(GeneratedConfig):
    corpus: Literal["scene-likeness"] = "scene-likeness"
    train: TwoOrMore = 12_000  # number of training pairs
    dev: TwoOrMore = 500
    test: TwoOrMore = 1_000


def load(config: Config) -> Corpus[SentencePairExample]:
    """Generate pairs of scenes with different templates, so that word order reveals little."""
    return scene_corpus(
        config,
        "two scenes and the number of slots (who, what, where, when, with whom) in which they agree",
        lambda drawing, _, count: [draw_pair(drawing, number % (len(SLOTS) + 1)) for number in range(count)],
    )


def draw_pair(drawing: SceneDrawing, shared_slots: int) -> SentencePairExample:
    first = drawing.draw_scene()
    second = drawing.draw_scene([first])
    for slot in drawing.draws.sample(SLOTS, shared_slots):
        second = second.with_value(slot, first.value(slot))
    telling = drawing.draw_telling()
    other_telling = drawing.draw_telling(excluded=telling)
    score = sum(first.value(slot) == second.value(slot) for slot in SLOTS)
    return SentencePairExample.of(first.tell(telling), second.tell(other_telling), str(score))
