"""Constrained beam search compared with enumeration, and the automata of terms compared with regular expressions."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.test_beam import END, Tables, score_of, sources
from tests.decoding.test_ensemble import some_source, team

from seqloom.core.words import is_word_letter
from seqloom.decoding.beam import BeamConfig, Hypothesis, beam_search
from seqloom.decoding.constraints import Constraints, SourceTerms
from seqloom.decoding.mixture import Ensemble
from seqloom.decoding.terms import ACCEPTED, START, Form, TokenTexts

CPU = torch.device("cpu")
TEXTS = [b"", b" a", b"b", b" ab", b"."]  # END, followed by tokens that spell some texts in several ways


def terms_of(texts: TokenTexts, required: Sequence[Sequence[str]] = (), forbidden: Sequence[Sequence[str]] = ()) -> Any:
    required_automata, forbidden_automata = (
        [texts.automaton(tuple(Form(form.encode()) for form in forms)) for forms in terms]
        for terms in (required, forbidden)
    )
    return SourceTerms(required_automata, forbidden_automata)


def occurs(form: str, text: str) -> bool:
    """Search for a form with a regular expression."""
    first, last = ("" if not is_word_letter(letter) else r"\b" for letter in (form[0], form[-1]))
    return re.search(f"{first}{re.escape(form)}{last}", text) is not None


# --- automata ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.text("aé. ", min_size=1, max_size=3), min_size=1, max_size=6, unique=True),
    forms=st.lists(st.text("aé.", min_size=1, max_size=3), min_size=1, max_size=2, unique=True),
    words=st.lists(st.integers(0, 5), max_size=6),
)
def test_automaton_accepts_exactly_the_texts_that_contain_a_form(texts: Any, forms: Any, words: Any) -> None:
    spellings = TokenTexts([b"", *(text.encode() for text in texts)])
    automaton = spellings.automaton(tuple(Form(form.encode()) for form in forms))
    state, text = START, ""
    for word in words:
        token = 1 + word % len(texts)
        state = automaton.successors[state].get(token, automaton.defaults[state][spellings.kinds[token]])
        text += texts[token - 1]
    assert (state == ACCEPTED or automaton.complete[state]) == any(occurs(form, text) for form in forms)


def test_form_is_recognized_in_any_division_into_bytes() -> None:
    word = "über".encode()
    texts = TokenTexts([b"", b" ", b"n", b".", *(bytes([byte]) for byte in word), word, b" " + word[:1]])
    ids = {text: tokens[0] for text, tokens in texts.ids.items()}
    automaton = texts.automaton((Form(word),))

    def is_found(*parts: bytes) -> bool:
        state = START
        for part in parts:
            token = ids[part]
            state = automaton.successors[state].get(token, automaton.defaults[state][texts.kinds[token]])
        return state == ACCEPTED or automaton.complete[state]

    letters = [bytes([byte]) for byte in word]
    assert is_found(*letters) and is_found(word) and is_found(b" " + word[:1], *letters[1:])
    assert is_found(*letters, b".", b"n") and is_found(b"n", b" ", *letters)
    assert not is_found(b"n", *letters) and not is_found(*letters, b"n") and not is_found(*letters[:-1])


def test_capitalized_form_counts_only_at_the_start() -> None:
    texts = TokenTexts([b"", b" der", b" Der", b" x"])
    automaton = texts.automaton((Form(b"der"), Form(b"Der", is_first=True)))
    first = automaton.successors[START]
    assert automaton.complete[first[1]] and automaton.complete[first[2]]
    after_x = automaton.defaults[START][texts.kinds[3]]
    assert automaton.complete[automaton.successors[after_x][1]]
    assert 2 not in automaton.successors[after_x]


def test_term_without_tokens_has_no_distance() -> None:
    texts = TokenTexts([b"", b"a", b"b"])
    assert texts.automaton((Form(b"abc"),)).distance == []
    assert texts.automaton((Form(b"ab"),)).distance != []


def test_tokens_with_a_space_are_proposed_between_words() -> None:
    spellings = [b"", b"cat", b" cat", b".", b" x"]
    for starts_with_space, first in ((False, [1]), (True, [2])):
        texts = TokenTexts(spellings, starts_with_space)
        automaton = texts.automaton((Form(b"cat"),))
        assert automaton.advancing[START] == first
        for token in (3, 4):  # after `.`, `cat` also completes the term, but is not proposed
            state = automaton.defaults[START][texts.kinds[token]]
            assert automaton.advancing[state] == [2]
    assert automaton.complete[automaton.successors[automaton.defaults[START][texts.kinds[3]]][1]]


# --- search -----------------------------------------------------------------------------------------------------------


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(TEXTS[token] for token in tokens).decode()


def search(model: Any, options: BeamConfig, terms: Any, source: Any = None, **more: Any) -> list[list[Hypothesis]]:
    texts = TokenTexts(TEXTS)
    rows = 1 if source is None else len(source["tokens"])
    each = [terms_of(texts, *given) for given in (terms if isinstance(terms, list) else [terms] * rows)]
    constraints = Constraints(each, texts.kinds, END, CPU)
    return beam_search(model, options=options, end=END, source=source, constraints=constraints, **more)


def satisfies(
    tokens: Sequence[int], required: Sequence[Sequence[str]], forbidden: Sequence[Sequence[str]] = ()
) -> bool:
    text = text_of(tokens)
    return all(any(occurs(form, text) for form in forms) for forms in required) and not any(
        occurs(form, text) for forms in forbidden for form in forms
    )


def enumerate_best(
    model: Tables, options: BeamConfig, required: Any, forbidden: Any = (), source: Any = None, prefix: Any = ()
) -> list[tuple[float, tuple[int, ...]]]:
    """Enumerate all finished hypotheses that satisfy the constraints, best first."""
    assert options.max_length is not None
    found = []
    for size in range(options.max_length):
        for tokens in itertools.product(range(1, model.vocabulary), repeat=size):
            if tokens[: len(prefix)] == prefix and satisfies(tokens, required, forbidden):
                found.append((score_of(model, tokens, True, options, source), tokens))
    return sorted(found, key=lambda each: -each[0])


CASES: list[Any] = [
    ([["ab"]],),
    ([["ab"], ["a"]],),
    ([["abb", "a."]],),
    ([["b", "."], ["ab"]],),
    ([], [["ab"]]),
    ([["a"]], [["ab"], ["."]]),
    ([["a ab a"]],),
]
WIDE = BeamConfig(beam=700, n_best=3, max_length=5, stopping="exact")


@pytest.mark.parametrize("terms", CASES, ids=str)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_wide_beam_finds_the_constrained_optimum(terms: Any, seed: int, penalty: float) -> None:
    model, options = Tables(len(TEXTS), seed), replace(WIDE, length_penalty=penalty)
    (found,) = search(model, options, terms, rows=1)
    expected = enumerate_best(model, options, *terms)[:3]
    assert [tuple(hypothesis.tokens) for hypothesis in found] == [tokens for _, tokens in expected]
    for hypothesis, (score, _) in zip(found, expected, strict=True):
        assert hypothesis.finished and hypothesis.score == pytest.approx(score, abs=1e-9)


def test_unconstrained_optimum_violates_the_constraints_in_some_cases() -> None:
    """Negative control: without constraints, the enumeration gives another result."""
    differs = 0
    for terms in CASES:
        for seed in range(3):
            model = Tables(len(TEXTS), seed)
            ((best,),) = beam_search(model, options=replace(WIDE, n_best=1), end=END, rows=1)
            differs += not satisfies(best.tokens, *terms)
    assert differs >= 10


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("terms", CASES, ids=str)
def test_narrow_beam_satisfies_the_constraints(terms: Any, beam: int) -> None:
    for seed in range(10):
        options = BeamConfig(beam=beam, max_length=12)
        ((best,),) = search(Tables(len(TEXTS), seed), options, terms, rows=1)
        assert satisfies(best.tokens, *terms)
        assert best.finished or len(best.tokens) == 12


def test_constraints_of_sources_in_a_batch_are_independent() -> None:
    batch = sources([1, 2, END], [3, END], [2, 2, 4, END])
    terms = [([["ab"]],), ([],), ([["a"], ["."]], [["ab"]])]
    options = BeamConfig(beam=4, n_best=2, max_length=9, coverage_penalty=0.2)
    model = Tables(len(TEXTS), 5)
    together = search(model, options, terms, batch)
    for row, its_terms in enumerate(terms):
        width = int(batch["mask"][row].sum())
        alone = {key: values[row : row + 1, :width] for key, values in batch.items()}
        (expected,) = search(model, options, [its_terms], alone)
        assert [(h.tokens, h.finished) for h in together[row]] == [(h.tokens, h.finished) for h in expected]
        assert [h.score for h in together[row]] == pytest.approx([h.score for h in expected], abs=1e-9)
    plain = beam_search(model, options=options, end=END, source=batch)
    # A source without terms gives the same result
    assert [h.tokens for h in together[1]] == [h.tokens for h in plain[1]]
    assert not satisfies(plain[2][0].tokens, *terms[2])


def test_forced_prefix_counts_and_may_contain_forbidden_terms() -> None:
    model, options = Tables(len(TEXTS), 1), WIDE
    for prefix in ((3,), (1, 2), (4, 1)):
        prompt = torch.tensor([prefix])
        (found,) = search(model, options, ([["ab"]],), prompt=prompt)
        expected = enumerate_best(model, options, [["ab"]], prefix=prefix)[:3]
        assert [tuple(h.tokens) for h in found] == [tokens for _, tokens in expected]
    ((best, *_),) = search(model, options, ([], [["ab"]]), prompt=torch.tensor([[3, 4]]))
    assert best.tokens[:2] == [3, 4] and best.finished


def test_unfinished_hypotheses_with_fewer_missing_tokens_come_first() -> None:
    ((best,),) = search(Tables(len(TEXTS), 0), BeamConfig(beam=3, max_length=2), ([["a a a a"]],), rows=1)
    assert not best.finished and best.tokens == [1, 1]


def test_complete_term_is_not_continued() -> None:
    """The most probable tokens continue the last word. The tokens that end it are therefore proposed as well."""
    texts = TokenTexts([b"", b" a", b"b", b"c", b"."])
    model = Tables(5, 0)
    model.table = torch.tensor([[-9.0, -9.0, -0.5, -1.0, -9.0]], dtype=torch.float64).log_softmax(-1).expand(997, -1)
    constraints = Constraints([terms_of(texts, [["a"]])], texts.kinds, END, CPU)
    options = BeamConfig(beam=1, max_length=6)
    ((best,),) = beam_search(model, options=options, end=END, rows=1, constraints=constraints)
    assert best.finished and best.tokens == [1]


def test_end_token_requires_all_terms() -> None:
    """A model that prefers END continues until the term has occurred."""
    model = Tables(len(TEXTS), 0)
    model.table = torch.tensor([[0.0, -4.0, -9.0, -9.0, -8.0]], dtype=torch.float64).log_softmax(-1).expand(997, -1)
    ((best,),) = search(model, BeamConfig(beam=2, max_length=6), ([["a a"]],), rows=1)
    assert best.tokens == [1, 1] and best.finished
    ((best,),) = beam_search(model, options=BeamConfig(beam=2, max_length=6), end=END, rows=1)
    assert best.tokens == []
    assert math.isfinite(best.log_prob)


def test_hypotheses_without_the_terms_do_not_delay_the_search() -> None:
    """Repetition raises the mean log p of a hypothesis that must not end.

    The usual stopping rule does not wait for it.
    """
    model = Tables(len(TEXTS), 0)
    model.table = torch.tensor([[-0.2, -9.0, -9.0, -2.0, -9.0]], dtype=torch.float64).log_softmax(-1).expand(997, -1)
    usual = BeamConfig(beam=3, max_length=20)
    ((best,),) = search(model, usual, ([["."]],), rows=1)
    assert best.finished and len(best.tokens) <= 2
    ((exact,),) = search(model, replace(usual, stopping="exact"), ([["."]],), rows=1)
    assert len(exact.tokens) == 19 and exact.score > best.score  # control: a longer hypothesis has a better score


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("luong",), ("blind",), ("transformer",), ("luong", "transformer")], ids="+".join)
@torch.no_grad()
def test_models_and_ensembles_find_the_constrained_optimum(names: tuple[str, ...]) -> None:
    models = team(*names, vocabulary=len(TEXTS))
    model = models[0] if len(models) == 1 else Ensemble(models)
    source = some_source(vocabulary=len(TEXTS))
    terms: list[Any] = [([["ab"]],), ([["."], ["b a", "a"]],), ([["b"]], [["ab"]])]
    options = BeamConfig(beam=400, max_length=4, stopping="exact")
    found = search(model, options, terms, source)
    texts = [tokens for size in range(4) for tokens in itertools.product(range(1, len(TEXTS)), repeat=size)]
    for row, its_terms in enumerate(terms):
        allowed = [tokens for tokens in texts if satisfies(tokens, *its_terms)]
        targets = torch.full((len(allowed), 4), END)
        for index, tokens in enumerate(allowed):
            targets[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        lengths = torch.tensor([len(tokens) + 1 for tokens in allowed])
        batch = {
            "source": source["tokens"][row].expand(len(allowed), -1),
            "source_mask": source["mask"][row].expand(len(allowed), -1),
            "inputs": torch.cat([torch.full((len(allowed), 1), END), targets[:, :-1]], dim=1),
            "targets": targets,
            "target_mask": torch.arange(4) < lengths.unsqueeze(1),
        }
        scores = model.target_log_probs(batch).sum(1) / lengths
        assert 0 < len(allowed) < len(texts)
        assert tuple(found[row][0].tokens) == allowed[int(scores.argmax())]
        assert found[row][0].score == pytest.approx(scores.max().item(), abs=1e-9)


def test_hidden_state_and_attention_follow_the_hypotheses() -> None:
    """The attention weights of a constrained hypothesis equal those of the same tokens as a forced prefix."""
    (model,) = team("luong", vocabulary=len(TEXTS))
    source = some_source((4,), vocabulary=len(TEXTS))
    options = BeamConfig(beam=4, max_length=8)
    ((best,),) = search(model, options, ([["a a"], ["."]],), source, attention=True)
    prompt = torch.tensor([best.tokens])
    longer = replace(options, max_length=9)
    ((forced,),) = beam_search(model, options=longer, end=END, source=source, prompt=prompt, attention=True)
    assert best.attention is not None and forced.attention is not None
    rows = len(best.tokens)
    torch.testing.assert_close(best.attention[:rows], forced.attention[:rows])
    assert best.token_log_probs[:rows] == pytest.approx(forced.token_log_probs[:rows])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_gpu_finds_the_same_hypotheses() -> None:
    texts, results = TokenTexts(TEXTS), []
    for device in ("cpu", "cuda"):
        (model,) = team("transformer", vocabulary=len(TEXTS))
        source = {key: value.repeat(4, 1).to(device) for key, value in some_source(vocabulary=len(TEXTS)).items()}
        terms = [terms_of(texts, [["ab"], ["."]], [["a"]])] * 12
        constraints = Constraints(terms, texts.kinds, END, torch.device(device))
        found = beam_search(
            model.to(device), options=BeamConfig(beam=4), end=END, source=source, constraints=constraints
        )
        results.append([hypotheses[0].tokens for hypotheses in found])
    assert results[0] == results[1]
