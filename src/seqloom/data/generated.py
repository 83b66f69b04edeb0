"""Generated corpora: draws that every version of Python repeats, and scenes to ask about and to compare."""

import random
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from seqloom.data.corpus import Corpus, Example, GeneratedConfig
from seqloom.data.files import read_asset

T = TypeVar("T")
ExampleT = TypeVar("ExampleT", bound=Example)


class Dice:
    """Draws from `random()` alone: no other method is promised to stay the same from one Python to the next."""

    def __init__(self, seed: str) -> None:
        self.uniform = random.Random(seed).random

    def below(self, limit: int) -> int:
        return int(self.uniform() * limit)

    def between(self, first: int, last: int) -> int:
        return first + self.below(last - first + 1)

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def take(self, options: list[T]) -> T:
        """Draw an option and remove it from the list."""
        return options.pop(self.below(len(options)))

    def some_of(self, options: Sequence[T], count: int) -> list[T]:
        """Draw different options."""
        chosen: list[T] = []
        while len(chosen) < count:
            option = self.one_of(options)
            if option not in chosen:
                chosen.append(option)
        return chosen


def draw_distinct(draw: Callable[[], T], key: Callable[[T], Hashable]) -> Iterator[T]:
    """Yield draws without end; one whose key was drawn before is left out."""
    seen: set[Hashable] = set()
    while True:
        drawn = draw()
        if key(drawn) not in seen:
            seen.add(key(drawn))
            yield drawn


# --- scenes -----------------------------------------------------------------------------------------------------------
#
#     Nora repaired a bicycle in Lisbon on Friday with Karim.   With Karim, Nora repaired a bicycle on Friday in Lisbon.
#
# The words are few and all of them occur in train; what is new in dev and test is how they are put together.

SCENES_VERSION = 1  # of the words and sentences; a change of them is a new version
_ASSET = read_asset("scenes.txt")
NAMES, TELLINGS = _ASSET["names"], _ASSET["tellings"]
CHOICES = {"who": NAMES, "what": _ASSET["deeds"], "where": _ASSET["places"], "when": _ASSET["times"], "whom": NAMES}
SLOTS = tuple(CHOICES)
QUESTIONS = {slot: _ASSET[f"question {slot}"] for slot in SLOTS}
CLAIMS = {slot: _ASSET[f"claim {slot}"] for slot in SLOTS}


@dataclass(frozen=True)
class Scene:
    """Who did what, where, when and with whom."""

    who: str
    what: str
    where: str
    when: str
    whom: str

    def value(self, slot: str) -> str:
        return str(getattr(self, slot))

    def tell(self, template: str) -> str:
        return self.parts(template)[0]

    def parts(self, template: str) -> tuple[str, dict[str, tuple[int, int]]]:
        """Return the sentence, and the span of each slot in it."""
        text, spans = "", {}
        for piece in template.replace("{", "\n{").replace("}", "}\n").split("\n"):
            if piece.startswith("{"):
                slot = piece[1:-1].lower()
                word = self.value(slot)
                word = word[0].upper() + word[1:] if piece[1].isupper() else word
                spans[slot] = (len(text), len(text) + len(word))
                text += word
            else:
                text += piece
        return text, spans

    def with_value(self, slot: str, value: str) -> "Scene":
        return replace(self, **{slot: value})


class SceneDrawing:
    """Scenes, one after the other, from a seed; none is drawn twice, in whichever split."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(f"scenes {seed}")
        self._seen: set[Scene] = set()

    def scene(self, without: Sequence[Scene] = ()) -> Scene:
        """Draw a new scene that has nothing in common with those it is told with."""
        used = {slot: {scene.value(slot) for scene in without} for slot in ("what", "where", "when")}
        people = {name for scene in without for name in (scene.who, scene.whom)}
        while True:
            who, whom = self.draws.sample([name for name in NAMES if name not in people], 2)
            rest = {slot: self.other(slot, taken) for slot, taken in used.items()}
            scene = Scene(who=who, whom=whom, **rest)
            if scene not in self._seen:
                self._seen.add(scene)
                return scene

    def other(self, slot: str, but: Collection[str]) -> str:
        """Draw a value of a slot that is none of these."""
        return self.draws.choice([value for value in CHOICES[slot] if value not in but])

    def scenes(self, count: int) -> list[Scene]:
        scenes: list[Scene] = []
        while len(scenes) < count:
            scenes.append(self.scene(scenes))
        return scenes

    def telling(self, but: str = "") -> str:
        return self.draws.choice([template for template in TELLINGS if template != but])


def scene_corpus(
    config: GeneratedConfig, description: str, draw: Callable[[SceneDrawing, str, int], list[ExampleT]]
) -> Corpus[ExampleT]:
    """Return a corpus of examples that are drawn, so many of each split."""
    drawing = SceneDrawing(config.seed)
    return Corpus(
        name=config.corpus,
        version=f"scenes {SCENES_VERSION} seed {config.seed}",
        description=description,
        splits=config.draw(lambda split, count: draw(drawing, split, count)),
    )
