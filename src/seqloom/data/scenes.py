"""Scenes: who did what, where, when and with whom. Told in several ways, they can be asked about and compared.

    Nora repaired a bicycle in Lisbon on Friday with Karim.     With Karim, Nora repaired a bicycle on Friday in Lisbon.

The words are few and all of them occur in train; what is new in dev and test is how they are put together.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from seqloom.data.corpus import Corpus, Example
from seqloom.data.corpus_config import GeneratedConfig
from seqloom.data.files import read_asset

VERSION = 1  # of the words and sentences; a change of them is a new version
ExampleT = TypeVar("ExampleT", bound=Example)

_ASSET = read_asset("scenes.txt")
NAMES, TELLINGS = _ASSET["names"], _ASSET["tellings"]
CHOICES = {
    "who": NAMES,
    "what": _ASSET["deeds"],
    "where": _ASSET["places"],
    "when": _ASSET["times"],
    "whom": NAMES,
}
SLOTS = tuple(CHOICES)
QUESTIONS = {slot: _ASSET[f"question {slot}"] for slot in SLOTS}
CLAIMS = {slot: _ASSET[f"claim {slot}"] for slot in SLOTS}


@dataclass(frozen=True)
class Scene:
    who: str
    what: str
    where: str
    when: str
    whom: str

    def value(self, slot: str) -> str:
        return str(getattr(self, slot))

    def told(self, template: str) -> str:
        return self.parts(template)[0]

    def parts(self, template: str) -> tuple[str, dict[str, tuple[int, int]]]:
        """The sentence, and where in it each of its slots stands."""
        text, spans = "", {}
        for piece in template.replace("{", "\n{").replace("}", "}\n").split("\n"):
            if piece.startswith("{"):
                slot = piece[1:-1].lower()
                said = self.value(slot)
                said = said[0].upper() + said[1:] if piece[1].isupper() else said
                spans[slot] = (len(text), len(text) + len(said))
                text += said
            else:
                text += piece
        return text, spans

    def shared(self, other: "Scene") -> int:
        """In how many of the five two scenes agree."""
        return sum(getattr(self, slot) == getattr(other, slot) for slot in SLOTS)

    def changed(self, slot: str, value: str) -> "Scene":
        return replace(self, **{slot: value})


class Drawing:
    """Scenes, one after the other, from a seed; none is drawn twice, in whichever split."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(f"scenes {seed}")
        self._seen: set[Scene] = set()

    def scene(self, without: Sequence[Scene] = ()) -> Scene:
        """A new one that has nothing in common with those it is told with."""
        used = {slot: {getattr(one, slot) for one in without} for slot in ("what", "where", "when")}
        people = {name for one in without for name in (one.who, one.whom)}
        while True:
            who, whom = self.draws.sample([name for name in NAMES if name not in people], 2)
            rest = {slot: self.other(slot, taken) for slot, taken in used.items()}
            scene = Scene(who=who, whom=whom, **rest)
            if scene not in self._seen:
                self._seen.add(scene)
                return scene

    def other(self, slot: str, but: Collection[str]) -> str:
        """A value of a slot that is none of these."""
        return self.draws.choice([value for value in CHOICES[slot] if value not in but])

    def scenes(self, count: int) -> list[Scene]:
        found: list[Scene] = []
        while len(found) < count:
            found.append(self.scene(found))
        return found

    def telling(self, but: str = "") -> str:
        return self.draws.choice([template for template in TELLINGS if template != but])


def scene_corpus(
    config: GeneratedConfig, description: str, draw: Callable[[Drawing, str, int], list[ExampleT]]
) -> Corpus[ExampleT]:
    """Return a corpus of examples that are drawn, so many of each split."""
    drawing = Drawing(config.seed)
    return Corpus(
        name=config.corpus,
        version=f"scenes {VERSION} seed {config.seed}",
        licence="none needed: made by seqloom",
        description=description,
        splits={split: draw(drawing, split, count) for split, count in config.counts().items()},
    )
