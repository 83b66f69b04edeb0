"""The terms that translations must or must not contain, as constraints of a search."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_value
from seqloom.data.glossary import Glossary, Term, capitalize
from seqloom.decoding.constraints import Constraints, SourceTerms
from seqloom.decoding.terms import Automaton, Form, TokenTexts
from seqloom.text import Tokenizer


class TermSearch:
    """The terms of a glossary, the required terms of all lines, and forbidden terms, for a translator's vocabulary."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        texts: TokenTexts,
        glossary: Glossary | None = None,
        force: Sequence[str] = (),
        forbid: Sequence[str] = (),
    ) -> None:
        """Check all terms. `token_texts` computes the argument `texts`."""
        self.tokenizer, self.texts, self.glossary = tokenizer, texts, glossary
        self.forced = tuple(Term.parse(text) for text in force)
        self.forbidden = [Term.parse(text) for text in forbid]
        for term in self.forced:
            if self.automaton(term) is None:
                raise DataError(self.describe_unwritable(term))
            if set(term.forms) <= {form for other in self.forbidden for form in other.forms}:
                raise UsageError(f"The term {format_value(term.forms[0])} is both required and forbidden.")

    def required(self, line: str, more: Sequence[str] = ()) -> tuple[Term, ...]:
        """Return the terms that the translation of a line must contain, in the forms that the tokenizer can write.

        `more` contains additional terms of the line.
        """
        found = [] if self.glossary is None else self.glossary.find(line)
        terms = dict.fromkeys([*found, *self.forced, *map(Term.parse, more)])
        return tuple(replace(term, forms=self._forms(term) or term.forms) for term in terms)

    def constraints(self, lines: Sequence[Sequence[Term]], device: torch.device) -> Constraints | None:
        """Return the constraints for lines with required terms, or None if there are no terms."""
        if not any(lines) and not self.forbidden:
            return None
        forbidden = self._automata(self.forbidden)
        sources = [SourceTerms(self._automata(terms), forbidden) for terms in lines]
        return Constraints(sources, self.texts.kinds, self.tokenizer.end, device)

    def _automata(self, terms: Sequence[Term]) -> list[Automaton]:
        return [automaton for term in terms if (automaton := self.automaton(term)) is not None]

    def automaton(self, term: Term) -> Automaton | None:
        """Return the automaton of a term, or None if the tokenizer cannot write any of its forms."""
        written = self._forms(term)
        forms = [Form(text.encode()) for text in written]
        forms += [Form(capitalize(text).encode(), is_first=True) for text in written if capitalize(text) != text]
        automaton = self.texts.automaton(tuple(forms))
        return automaton if automaton.distance else None

    def unwritable(self, terms: Sequence[Term]) -> tuple[str, ...]:
        """Return the first form of each term that the tokenizer cannot write."""
        return tuple(term.forms[0] for term in terms if self.automaton(term) is None)

    def _forms(self, term: Term) -> tuple[str, ...]:
        """Return the forms as the tokenizer writes them, for example in lowercase.

        Forms with unknown parts are omitted.
        """
        tokenizer = self.tokenizer.of_targets
        known = [form for form in term.forms if not tokenizer.unknown_pieces(form)]
        written = (tokenizer.decode(tokenizer.encode(form)).strip() for form in known)
        return tuple(dict.fromkeys(filter(None, written)))

    def describe_unwritable(self, term: Term) -> str:
        """Return the message for a term that the tokenizer cannot write."""
        unknown = [piece for form in term.forms for piece in self.tokenizer.of_targets.unknown_pieces(form)]
        missing = f"lacks {format_value(unknown[0])}" if unknown else "has no tokens for it"
        return (
            f"The term {format_value(term.forms[0])} cannot be generated: the vocabulary of the model {missing}. "
            "Choose another form, or train with tokenizer.kind=byte-pair, which can write any text."
        )


def token_texts(tokenizer: Tokenizer) -> TokenTexts:
    """Return the texts of the tokens that a model with this tokenizer can generate."""
    targets, banned = tokenizer.of_targets, set(tokenizer.banned)
    texts = [b"" if token in banned else targets.spell(token) for token in range(len(targets))]
    first = next((token for token, text in enumerate(texts) if text.startswith(b" ") and text.strip()), None)
    return TokenTexts(texts, starts_with_space=first is not None and not targets.decode([first]).startswith(" "))


def require_terms(tokenizer: Tokenizer, terms: Sequence[str], device: torch.device) -> Constraints | None:
    """Return the constraints for one source with these terms, or None without terms."""
    search = TermSearch(tokenizer, token_texts(tokenizer), force=terms) if terms else None
    return None if search is None else search.constraints([search.forced], device)
