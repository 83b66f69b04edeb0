"""Dialogues about pictures of coloured shapes: each question can refer to the object of the previous questions.

    what colour is the star?               red
    how big is it?                         small         "it" is the star
    what is left of it?                    a circle
    how many others have the same colour?  one           the colour of the circle

The first question introduces an object. A later question refers to this object, or introduces another object, or counts
all objects. A question that refers back is never about a property that the dialogue has already stated, and its answer
is unique.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from seqloom.data.files import read_asset
from seqloom.data.generated import Dice
from seqloom.data.shapes import COLOURS, COLUMNS, RADII, ROWS, SHAPES, Scene, SceneObject

TEMPLATES = read_asset("picture_dialogues.txt")
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
EMPTY_RATE = 0.3  # probability of considering a question whose answer is "none" or "nothing", to balance the answers
REFERRING_RATE = 0.75  # probability that a question after the first refers back, if possible
NOTHING = "nothing"
PROPERTIES = ("shape", "colour", "size", "position")
# whether the first object is on a side of the second
SIDES: Mapping[str, Callable[[SceneObject, SceneObject], bool]] = {
    "left of": lambda one, other: one.column < other.column,
    "right of": lambda one, other: one.column > other.column,
    "above": lambda one, other: one.row < other.row,
    "below": lambda one, other: one.row > other.row,
}
POSITIONS = tuple(row if row == column else f"{row} {column}" for row in ROWS for column in COLUMNS)
REFERRING = (*(f"its {name}" for name in PROPERTIES), "others of its colour", "others of its shape", "its neighbour")
THINGS = (*(f"a {shape}" for shape in SHAPES), NOTHING)
CHOICES = {"shape": SHAPES, "colour": tuple(COLOURS), "size": tuple(RADII), "position": POSITIONS}


@dataclass(frozen=True)
class DialogueTurn:
    """A question and its answer."""

    kind: str  # a section of the templates
    question: str
    answer: str
    choices: Sequence[str]  # the answers that are possible for this kind of question
    needs_history: bool = False


@dataclass(frozen=True)
class Focus:
    """The object to which "it" refers."""

    thing: SceneObject
    known: frozenset[str]  # the properties and counts that the dialogue has stated


@dataclass(frozen=True)
class PossibleTurn:
    """A turn that can follow, and the focus after it."""

    turn: DialogueTurn
    focus: Focus | None


def draw_dialogue(scene: Scene, dice: Dice, turns: int) -> list[DialogueTurn]:
    """Draw a dialogue about a scene. No question is asked twice."""
    dialogue: list[DialogueTurn] = []
    focus: Focus | None = None
    asked: set[str] = set()
    while len(dialogue) < turns:
        introductions = [each for each in introduce(scene, dice) if each.turn.question not in asked]
        references = [] if focus is None else list(refer_back(scene, focus, dice))
        refers = references and (not introductions or dice.uniform() < REFERRING_RATE)
        chosen = draw_kind(references if refers else introductions, dice)
        if chosen is None:
            break
        dialogue.append(chosen.turn)
        asked.add(chosen.turn.question)
        focus = chosen.focus or focus
    return dialogue


def draw_kind(possible: Sequence[PossibleTurn], dice: Dice) -> PossibleTurn | None:
    """Draw a kind of question, then a question of this kind. Return None if there is none."""
    kinds = list(dict.fromkeys(each.turn.kind for each in possible))
    if not kinds:
        return None
    kind = dice.one_of(kinds)
    return dice.one_of([each for each in possible if each.turn.kind == kind])


def introduce(scene: Scene, dice: Dice) -> Iterator[PossibleTurn]:
    """Yield questions that need no history."""
    yield PossibleTurn(make_turn("count", NUMBERS[len(scene.objects)], counts(scene), dice), None)
    for thing in scene.objects:
        properties = describe(thing)
        alike = {name: sum(describe(other)[name] == properties[name] for other in scene.objects) for name in PROPERTIES}
        if alike["shape"] == 1:
            yield introduction("colour", thing, ("shape", "colour"), dice)
        if alike["colour"] == 1:
            yield introduction("shape", thing, ("shape", "colour"), dice)
        if sum((other.shape, other.colour) == (thing.shape, thing.colour) for other in scene.objects) == 1:
            for kind in ("size", "position"):
                yield introduction(kind, thing, ("shape", "colour", kind), dice)
        yield introduction("colour", thing, ("colour", "position"), dice, "colour at")
        answer = f"a {thing.shape}"
        turn = make_turn("object", answer, THINGS[:-1], dice, position=thing.position)
        yield PossibleTurn(turn, Focus(thing, frozenset(("shape", "position"))))


def introduction(name: str, thing: SceneObject, stated: Sequence[str], dice: Dice, kind: str = "") -> PossibleTurn:
    """Return a question about a property of an object that the question describes.

    `kind` is the section of its templates, by default the name of the property.
    """
    properties = describe(thing)
    turn = make_turn(kind or name, properties[name], CHOICES[name], dice, **properties)
    return PossibleTurn(turn, Focus(thing, frozenset(stated)))


def refer_back(scene: Scene, focus: Focus, dice: Dice) -> Iterator[PossibleTurn]:
    """Yield questions about the object in focus."""
    thing, known, properties = focus.thing, focus.known, describe(focus.thing)
    for name in PROPERTIES:
        if name not in known:
            turn = make_turn(f"its {name}", properties[name], CHOICES[name], dice)
            yield PossibleTurn(turn, Focus(thing, known | {name}))
    for name in ("colour", "shape"):
        if (kind := f"others of its {name}") not in known:
            others = sum(describe(other)[name] == properties[name] for other in scene.objects) - 1
            if not others and dice.uniform() >= EMPTY_RATE:
                continue
            turn = make_turn(kind, NUMBERS[others], counts(scene), dice)
            yield PossibleTurn(turn, Focus(thing, known | {kind}))
    for side, is_beside in SIDES.items():
        beside = [other for other in scene.objects if is_beside(other, thing)]
        if side in known or len(beside) > 1 or (not beside and dice.uniform() >= EMPTY_RATE):
            continue
        answer = f"a {beside[0].shape}" if beside else NOTHING
        turn = make_turn("its neighbour", answer, THINGS, dice, side=side)
        yield PossibleTurn(turn, Focus(beside[0], frozenset(("shape",))) if beside else Focus(thing, known | {side}))


def counts(scene: Scene) -> Sequence[str]:
    """Return the numbers that are possible answers."""
    return NUMBERS[: max(5, len(scene.objects) + 1)]


def describe(thing: SceneObject) -> dict[str, str]:
    """Return the properties of an object in words."""
    return {"shape": thing.shape, "colour": thing.colour, "size": thing.size, "position": thing.position}


def make_turn(kind: str, answer: str, choices: Sequence[str], dice: Dice, **words: str) -> DialogueTurn:
    """Return a question with a drawn template. A question about "it" needs the history."""
    question = dice.one_of(TEMPLATES[kind]).format(**words)
    return DialogueTurn(kind, question, answer, choices, needs_history=kind in REFERRING)
