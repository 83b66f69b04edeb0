"""Automata that recognize a term in the text of a sequence of tokens.

A term has one or more forms. The term occurs if one of its forms occurs as whole words. The text of a hypothesis is the
concatenation of the bytes of its tokens, so a form is recognized regardless of its division into tokens. After every
token, an automaton is in one of finitely many states. A state contains the beginnings of forms with which the text
ends, whether the text ends within a word, and whether a form is complete. A complete form counts unless the next token
continues its last word: `Haus` is complete before `.` and END, but not before `boot`.

Most tokens do not affect the forms. An automaton therefore stores the successors of a state for the tokens that affect
the forms, and one successor for each kind of other tokens.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from seqloom.core.words import is_word_letter

# Kinds of tokens: without text, white space, and four kinds of other tokens, which start and end within a word or not.
NO_TEXT, SPACE, OTHER = 0, 1, 2
KINDS = 6
BOUNDARY_KINDS = (SPACE, OTHER, OTHER + 1)  # kinds of tokens that end the word before them
START, ACCEPTED = 0, 1  # states of every automaton
CACHED_TERMS = 4096


class Form(NamedTuple):
    """A form of a term."""

    text: bytes
    is_first: bool = False  # whether the form occurs only at the start of the text


class _State(NamedTuple):
    """The state of a text with respect to the forms of a term."""

    is_empty: bool  # whether the text contains only white space
    in_word: bool  # whether the text ends within a word
    begun: frozenset[tuple[Form, int]]  # the forms that have begun, and the number of their bytes so far
    is_complete: bool  # whether the text ends with a form whose last word must not continue


_ACCEPTED: _State | None = None
_BETWEEN_WORDS = _State(False, False, frozenset(), False)


@dataclass(frozen=True, eq=False)
class Automaton:
    """The states of a term, and their successors."""

    successors: list[dict[int, int]]  # for each state, the successor after each token that affects the forms
    defaults: list[list[int]]  # successors of each state by the kind of other tokens
    complete: list[bool]  # for each state, whether a form is complete unless a letter follows
    distance: list[int]  # for each state, number of tokens until a form is complete; empty if no tokens have this text
    advancing: list[list[int]]  # for each state, the tokens that reduce the distance

    def accepting(self, state: int) -> list[int]:
        """Return the tokens whose text completes a form and ends its last word."""
        return [token for token, after in self.successors[state].items() if after == ACCEPTED != state]


class TokenTexts:
    """The texts of all tokens, indexed by the parts with which a form may start or continue."""

    def __init__(self, texts: Sequence[bytes], starts_with_space: bool = True) -> None:
        """Index the bytes that each token adds to a text; special tokens add no bytes.

        `starts_with_space` states whether the first token of a text includes a space, which is not part of the text.
        """
        self._spaced = {token for token, text in enumerate(texts) if text[:1].isspace()}
        self._starts_with_space = starts_with_space
        self.ids: dict[bytes, list[int]] = defaultdict(list)
        for token, text in enumerate(texts):
            if text:
                self.ids[text].append(token)
        kinds = {text: _kind(text) for text in self.ids}
        self.kinds = [kinds[text] if text else NO_TEXT for text in texts]
        self.sorted = sorted(self.ids)
        self.automaton: Callable[[tuple[Form, ...]], Automaton] = lru_cache(CACHED_TERMS)(self._automaton)

    @cached_property
    def _at_words(self) -> "_Suffixes":
        return _Suffixes(self.ids, lambda text, offset: not _ends_in_word(text, offset))

    @cached_property
    def _anywhere(self) -> "_Suffixes":
        return _Suffixes(self.ids, lambda text, offset: text[offset] & 0xC0 != 0x80)  # starts of characters

    def _starting(self, form: Form) -> set[bytes]:
        """Return the texts within which a form may start."""
        suffixes = self._at_words if _continues_word(form.text, 0) else self._anywhere
        parts = {form.text[:size] for size in range(1, len(form.text))}.intersection(suffixes.texts)
        parts.update(_with_prefix(suffixes.sorted, form.text))
        return {text for part in parts for text in suffixes.texts[part]}

    def _continuing(self, rest: bytes) -> set[bytes]:
        """Return the token texts that are a prefix of the rest of a form, or have the rest as a prefix."""
        parts = {rest[:size] for size in range(1, len(rest))}.intersection(self.ids)
        return parts.union(_with_prefix(self.sorted, rest))

    def _automaton(self, forms: tuple[Form, ...]) -> Automaton:
        """Build the automaton of a term by following its tokens from an empty text."""
        starting = set[bytes]().union(*map(self._starting, forms))
        states: list[_State | None] = [_State(True, False, frozenset(), False), _ACCEPTED, _BETWEEN_WORDS]
        numbers = {state: number for number, state in enumerate(states)}

        def number(state: _State | None) -> int:
            if state not in numbers:
                numbers[state] = len(states)
                states.append(state)
            return numbers[state]

        successors, defaults = list[dict[int, int]](), list[list[int]]()
        for state in states:  # the list grows during the loop
            default = [number(_follow_kind(state, kind)) for kind in range(KINDS)]
            by_token: dict[int, int] = {}
            if state is not None:
                touching = starting.union(*(self._continuing(form.text[size:]) for form, size in state.begun))
                for text in sorted(touching):
                    after = number(_follow(state, text, forms))
                    if after != default[_kind(text)]:
                        by_token.update(dict.fromkeys(self.ids[text], after))
            successors.append(by_token)
            defaults.append(default)
        complete = [state is not None and state.is_complete for state in states]
        distance = _distances(successors, complete, numbers[_BETWEEN_WORDS])
        advancing = [
            self._advancing(number, by_token, distance, is_within=state is not None and bool(state.begun))
            for number, (state, by_token) in enumerate(zip(states, successors, strict=True))
            if distance
        ]
        return Automaton(successors, defaults, complete, distance, advancing)

    def _advancing(
        self, state: int, by_token: Mapping[int, int], distance: Sequence[int], is_within: bool
    ) -> list[int]:
        """Return the tokens that reduce the distance; if a new word requires a space, the tokens must include a space.

        A form may also follow a punctuation mark without a space, but is not proposed at this position.
        """
        tokens = [token for token, after in by_token.items() if distance[after] < distance[state]]
        if is_within:
            return tokens
        is_spaced = state != START or self._starts_with_space
        proper = [token for token in tokens if (token in self._spaced) == is_spaced]
        return proper if proper or state == START else tokens


class _Suffixes:
    """The texts of tokens, sorted by their suffixes from the offsets at which a form may start."""

    def __init__(self, texts: Iterable[bytes], may_start: Callable[[bytes, int], bool]) -> None:
        self.texts: dict[bytes, list[bytes]] = defaultdict(list)
        for text in texts:
            for offset in range(len(text)):
                if offset == 0 or may_start(text, offset):
                    self.texts[text[offset:]].append(text)
        self.sorted = sorted(self.texts)


def _with_prefix(texts: Sequence[bytes], prefix: bytes) -> Iterator[bytes]:
    """Yield the sorted texts that start with a prefix."""
    for index in range(bisect_left(texts, prefix), len(texts)):
        if not texts[index].startswith(prefix):
            return
        yield texts[index]


# --- transitions ------------------------------------------------------------------------------------------------------


def _follow(state: _State, text: bytes, forms: Sequence[Form]) -> _State | None:
    """Return the state after a token with this text."""
    if state.is_complete and not _continues_word(text, 0):
        return _ACCEPTED
    begun, is_complete = set[tuple[Form, int]](), False
    places = [(form, size, 0) for form, size in state.begun]  # a form, its bytes before an offset, and the offset
    for offset in range(len(text)):
        in_word = _ends_in_word(text, offset) if offset else state.in_word
        is_first = state.is_empty and not text[:offset].strip()
        places += [
            (form, 0, offset)
            for form in forms
            if (is_first or not form.is_first) and not (in_word and _continues_word(form.text, 0))
        ]
    for form, size, offset in places:
        rest, there = form.text[size:], text[offset:]
        if not there.startswith(rest):
            begun |= {(form, size + len(there))} if rest.startswith(there) else set()
        elif not _ends_in_word(form.text, len(form.text)):
            return _ACCEPTED
        elif len(there) == len(rest):
            is_complete = True
        elif not _continues_word(there, len(rest)):
            return _ACCEPTED
    is_empty = state.is_empty and not text.strip()
    return _State(is_empty, _ends_in_word(text, len(text)), frozenset(begun), is_complete)


def _follow_kind(state: _State | None, kind: int) -> _State | None:
    """Return the state after a token that has this kind and does not affect the forms."""
    if state is None or kind == NO_TEXT:
        return state
    if state.is_complete and kind in BOUNDARY_KINDS:
        return _ACCEPTED
    if kind == SPACE:
        return _BETWEEN_WORDS._replace(is_empty=state.is_empty)
    return _BETWEEN_WORDS._replace(in_word=(kind - OTHER) % 2 == 1)


def _distances(successors: Sequence[dict[int, int]], complete: Sequence[bool], base: int) -> list[int]:
    """Return the number of tokens from each state until a form is complete.

    A state outside the forms has the distance of `base`, the state between two words, so that the distance depends only
    on the tokens of the term. The result is empty if tokens cannot complete a form.
    """
    before = defaultdict[int, set[int]](set)
    for state, by_token in enumerate(successors):
        for after in by_token.values():
            before[after].add(state)
    distance = {state: 0 for state in range(len(successors)) if state == ACCEPTED or complete[state]}
    remaining = deque(distance)
    while remaining:
        after = remaining.popleft()
        for state in before[after] - distance.keys():
            distance[state] = distance[after] + 1
            remaining.append(state)
    if START not in distance and base not in distance:
        return []
    default = distance.get(base, max(distance.values()) + 1)
    return [distance.get(state, default) for state in range(len(successors))]


# --- words in bytes ---------------------------------------------------------------------------------------------------


def _kind(text: bytes) -> int:
    if not text.strip():
        return SPACE
    return OTHER + 2 * _continues_word(text, 0) + _ends_in_word(text, len(text))


def _continues_word(text: bytes, offset: int) -> bool:
    """Return whether the character that starts at an offset belongs to a word; an incomplete character does so."""
    return _is_in_word(text[offset : offset + 4].decode(errors="replace")[:1])


def _ends_in_word(text: bytes, offset: int) -> bool:
    """Return whether the character that ends at an offset belongs to a word; an incomplete character does so."""
    return _is_in_word(text[max(0, offset - 4) : offset].decode(errors="replace")[-1:])


def _is_in_word(letter: str) -> bool:
    return letter == "\N{REPLACEMENT CHARACTER}" or (letter != "" and is_word_letter(letter))
