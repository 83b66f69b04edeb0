"""Scenes: who did what, where, when and with whom. Told in several ways, they can be asked about and compared.

    Nora repaired a bicycle in Lisbon on Friday with Karim.     With Karim, Nora repaired a bicycle on Friday in Lisbon.

The words are few and all of them occur in train; what is new in dev and test is how they are put together.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

NAMES = (
    *("Ada", "Ali", "Anna", "Boris", "Carla", "Chen", "Elif", "Felix"),
    *("Hana", "Ines", "Karim", "Lars", "Nora", "Omar", "Priya", "Tom"),
)
PLACES = (
    *("Accra", "Bonn", "Cairo", "Delhi", "Hanoi", "Lima"),
    *("Lisbon", "Oslo", "Porto", "Quito", "Riga", "Tokyo"),
)
DEEDS = (
    *("baked bread", "built a boat", "cooked soup", "drew a map", "flew a kite", "lost a key", "planted trees"),
    *("played chess", "repaired a bicycle", "sang a song", "sold a violin", "wrote a letter"),
)
TIMES = (
    *("on Monday", "on Friday", "on Sunday", "in March", "in June", "in October"),
    *("at noon", "at midnight", "last night", "last week"),
)
TELLINGS = (
    "{who} {what} in {where} {when} with {whom}.",
    "{When}, {who} {what} in {where} with {whom}.",
    "In {where}, {who} {what} with {whom} {when}.",
    "With {whom}, {who} {what} {when} in {where}.",
    "It was {when} that {who} {what} in {where} with {whom}.",
    "{who} was in {where} {when} and {what} with {whom}.",
)
QUESTIONS = {
    "where": ("Where was {who}?", "In which city was {who}?", "In which city was {whom}?"),
    "when": ("When was {who} in {where}?", "When did {who} do this?"),
    "what": ("What did {who} do?", "What did {who} do with {whom}?"),
    "whom": ("Who was with {who}?", "With whom was {who}?"),
    "who": ("Who {what}?", "Who was with {whom}?"),
}
CLAIMS = {
    "where": ("{who} was in {where}.", "{whom} was in {where}."),
    "when": ("{who} {what} {when}.", "It was {when} that {who} {what}."),
    "what": ("{who} {what}.", "{who} and {whom} {what}."),
    "whom": ("{who} was with {whom}.", "{whom} was with {who}."),
    "who": ("{who} {what} in {where}.", "It was {who} who {what}."),
}
CHOICES = {"who": NAMES, "what": DEEDS, "where": PLACES, "when": TIMES, "whom": NAMES}
SLOTS = tuple(CHOICES)


@dataclass(frozen=True)
class Scene:
    who: str
    what: str
    where: str
    when: str
    whom: str

    def told(self, template: str) -> str:
        return self.parts(template)[0]

    def parts(self, template: str) -> tuple[str, dict[str, tuple[int, int]]]:
        """The sentence, and where in it each of its slots stands."""
        text, spans = "", {}
        for piece in template.replace("{", "\n{").replace("}", "}\n").split("\n"):
            if piece.startswith("{"):
                slot = piece[1:-1].lower()
                said = str(getattr(self, slot))
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
