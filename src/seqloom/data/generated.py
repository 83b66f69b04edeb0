"""Generated corpora: random draws that are stable across versions of Python, and scenes for questions and pairs."""

import random
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from seqloom.data.corpus import Corpus, Example, GeneratedConfig
from seqloom.data.files import read_asset

T = TypeVar("T")
ExampleT = TypeVar("ExampleT", bound=Example)


class Dice:
    """Random draws based only on `random()`, because only its results are stable across versions of Python."""

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
        """Draw distinct options."""
        chosen: list[T] = []
        while len(chosen) < count:
            option = self.one_of(options)
            if option not in chosen:
                chosen.append(option)
        return chosen


def draw_distinct(draw: Callable[[], T], key: Callable[[T], Hashable]) -> Iterator[T]:
    """Yield draws indefinitely, skipping draws whose key was drawn before."""
    seen: set[Hashable] = set()
    while True:
        item = draw()
        if key(item) not in seen:
            seen.add(key(item))
            yield item


# --- scenes -----------------------------------------------------------------------------------------------------------
#
#     Nora repaired a bicycle in Lisbon on Friday with Karim.   With Karim, Nora repaired a bicycle on Friday in Lisbon.
#
# All words occur in train; dev and test combine them in new ways.

SCENES_VERSION = 1  # increase this number when a change of the words or templates alters the scenes
_ASSET = read_asset("scenes.txt")
NAMES, TELLINGS = _ASSET["names"], _ASSET["tellings"]
CHOICES = {"who": NAMES, "what": _ASSET["deeds"], "where": _ASSET["places"], "when": _ASSET["times"], "whom": NAMES}
SLOTS = tuple(CHOICES)
QUESTIONS = {slot: _ASSET[f"question {slot}"] for slot in SLOTS}
CLAIMS = {slot: _ASSET[f"claim {slot}"] for slot in SLOTS}


@dataclass(frozen=True)
class TextScene:
    """Who did what, where, when and with whom."""

    who: str
    what: str
    where: str
    when: str
    whom: str

    def value(self, slot: str) -> str:
        return str(getattr(self, slot))

    def tell(self, template: str) -> str:
        return self.fill_template(template)[0]

    def fill_template(self, template: str) -> tuple[str, dict[str, tuple[int, int]]]:
        """Return the sentence and the span of each slot in the sentence."""
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

    def with_value(self, slot: str, value: str) -> "TextScene":
        return replace(self, **{slot: value})


class SceneDrawing:
    """A seeded generator of distinct scenes."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(f"scenes {seed}")
        self._seen: set[TextScene] = set()

    def draw_scene(self, others: Sequence[TextScene] = ()) -> TextScene:
        """Draw a new scene that shares no value with `others`."""
        used = {slot: {scene.value(slot) for scene in others} for slot in ("what", "where", "when")}
        people = {name for scene in others for name in (scene.who, scene.whom)}
        while True:
            who, whom = self.draws.sample([name for name in NAMES if name not in people], 2)
            values = {slot: self.draw_value(slot, taken) for slot, taken in used.items()}
            scene = TextScene(who=who, whom=whom, **values)
            if scene not in self._seen:
                self._seen.add(scene)
                return scene

    def draw_value(self, slot: str, excluded: Collection[str]) -> str:
        """Draw a value of a slot."""
        return self.draws.choice([value for value in CHOICES[slot] if value not in excluded])

    def draw_scenes(self, count: int) -> list[TextScene]:
        scenes: list[TextScene] = []
        while len(scenes) < count:
            scenes.append(self.draw_scene(scenes))
        return scenes

    def draw_telling(self, excluded: str = "") -> str:
        return self.draws.choice([template for template in TELLINGS if template != excluded])


def scene_corpus(
    config: GeneratedConfig, description: str, draw: Callable[[SceneDrawing, str, int], list[ExampleT]]
) -> Corpus[ExampleT]:
    """Generate a corpus with `draw(drawing, split, count)`."""
    drawing = SceneDrawing(config.seed)
    return Corpus(
        name=config.corpus,
        version=f"scenes {SCENES_VERSION} seed {config.seed}",
        description=description,
        splits=config.draw(lambda split, count: draw(drawing, split, count)),
    )
