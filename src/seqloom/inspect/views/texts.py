"""Which model to look into, and which tokens to let it read.

A text as a model with recurrent cells reads it, whatever it is for: what its cells read, and what it has to tell.

    read = read_text(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    read.tokens["encoder"]      the tokens of the source; those of "decoder" are END and the translation
    read.log_probs(model)       log p of each token told, with the right ones before it

Language models tell the next token, translators the translation, taggers the tag of each word, classifiers a label,
bidirectional language models every token from either side. A tag, a label or a translation that was not given is the
model's own answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import DecodeState
from seqloom.inspect.capture import cells_of, evaluating, model_of
from seqloom.inspect.views.alignment import one_line, say, unknown_note
from seqloom.models.bilm import BiLM
from seqloom.models.classifier import Labelling
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.recurrent_seq2seq import RecurrentSeq2Seq
from seqloom.models.tagger import Tagging
from seqloom.text import END, Tokenizer

Text = str | Sequence[int]  # ids need no tokenizer


def recurrent_lm(source: Any) -> RecurrentLM:
    """The recurrent language model of a `Trained`, or the one given."""
    model = model_of(source)
    if isinstance(model, RecurrentLM):
        return model
    run = getattr(source, "run", None)
    who, what = (run.path, run.recipe["model"]["kind"]) if run is not None else ("this", type(model).__name__)
    raise UsageError(f"Only a recurrent language model has gates and states to look at; {who} is of kind {what}.")


def encode(source: Any, text: Text, allow_unknown: bool = False) -> tuple[list[int], list[str]]:
    """The ids of a text, nothing added, and the token of each as it is shown to people."""
    tokenizer: Tokenizer | None = getattr(source, "tokenizer", None)
    if isinstance(text, str):
        if tokenizer is None:
            raise UsageError(
                "A model alone cannot read text: give the ids of its tokens, or what `seqloom.load` gives."
            )
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DataError(f"The text must be UTF-8, but this is not: {text!r}.")
        if not allow_unknown:
            _refuse_unknown(source, tokenizer, text)
        ids = tokenizer.encode(text)
    else:
        ids = list(text)
        _refuse_strange(ids, recurrent_lm(source).embed.num_embeddings)  # others read text alone
    if not ids:
        raise UsageError("The text is empty: give at least one word.")
    return ids, [str(token) if tokenizer is None else tokenizer.token(token) for token in [END, *ids]]


def _refuse_unknown(source: Any, tokenizer: Tokenizer, text: str) -> None:
    unknown = tokenizer.unknown_pieces(text)
    if unknown:
        listed = ", ".join(map(repr, unknown[:8])) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        raise DataError(
            f"The vocabulary of {source.run.path} cannot spell {listed} in the text. "
            "Leave them out, or have each read as <unk>: --allow-unknown, in Python allow_unknown=True."
        )


def _refuse_strange(ids: Sequence[int], vocabulary: int) -> None:
    strange = [token for token in ids if not 0 <= token < vocabulary]
    if strange:
        raise UsageError(f"Token ids go from 0 to {vocabulary - 1}; got {strange[0]}.")


def with_end(ids: Sequence[int], device: torch.device | None = None) -> Tensor:
    """END before the text, as in training: what a model reads (1, T)."""
    return torch.tensor([[END, *ids]], device=device)


# ---------------------------------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What a model thinks of what it has to tell."""

    each: Tensor  # log p (N,) of each thing told
    total: Tensor  # log p of all of it, ()


@dataclass(frozen=True, eq=False)
class ReadText:
    """Of each role that cells have: encoder and decoder, or reader."""

    tokens: dict[str, list[str]]
    order: dict[str, list[int]]  # in which order the tokens are read, by cells that go forwards
    told: list[str]  # what is told: tokens, tags or a label
    what: str  # the word for one of them
    log_probs: Callable[[Any], Told]  # of a model, this one or a copy of it
    let: Callable[[Any], Any]  # have a model read, no more
    answer: str = ""  # the translation, the tagged line, the label
    notes: tuple[str, ...] = ()
    says: dict[str, list[str]] = field(default_factory=dict)  # what must be told at each token, where that is so


def read_text(
    source: Any, text: Text, target: str | None = None, *, allow_unknown: bool = False, longest: int | None = None
) -> ReadText:
    """`source` is what `seqloom.load` gives, or, with ids for a text, a `RecurrentLM` alone. More tokens than `longest`
    are refused. Dropout is for others to turn off."""
    model = model_of(source)
    if not cells_of(model):
        raise UsageError(_no_cells(source, model))
    if target is not None and not isinstance(model, RecurrentSeq2Seq):
        raise UsageError(f"A translation is for translators; {_name(source)} is {getattr(source, 'what', 'none')}.")
    for kind, read in READERS.items():
        if isinstance(model, kind):
            return _short(read(source, model, text, target, allow_unknown), longest)
    raise UsageError(f"{_name(source)} has cells, but reads no single text that could be shown.")


def _no_cells(source: Any, model: Any) -> str:
    run = getattr(source, "run", None)
    who, what = (run.path, run.recipe["model"]["kind"]) if run is not None else ("this", type(model).__name__)
    return f"Only a model with recurrent cells has gates and states to look at; {who} is of kind {what}."


def _name(source: Any) -> str:
    return str(getattr(source, "name", "this model"))


def _short(read: ReadText, longest: int | None) -> ReadText:
    most = max(map(len, read.tokens.values()))
    if longest is not None and most > longest:
        raise UsageError(f"The text has {most:,} tokens; at most {longest} can be looked at. Shorten it.")
    return read


def _forwards(tokens: dict[str, list[str]]) -> dict[str, list[int]]:
    return {role: list(range(len(own))) for role, own in tokens.items()}


# --- language models --------------------------------------------------------------------------------------------------


def _language_model(source: Any, model: Any, text: Text, _: str | None, allow_unknown: bool) -> ReadText:
    """END and the text; the last token is read too, though nothing is told after it."""
    ids, shown = encode(source, text, allow_unknown)

    def log_probs(model: Any) -> Told:
        tokens, state, scores = with_end(ids, model.embed.weight.device), model.start(rows=1), []
        for t in range(len(ids)):  # one by one, so that every step starts from the state tensors of the one before
            score, state = model.score(tokens[:, t : t + 1], tokens[:, t + 1 : t + 2], DecodeState(state.carry))
            scores.append(score[0, 0])
        each = torch.stack(scores)
        return Told(each, each.sum())

    def let(model: Any) -> Any:
        return model.read(with_end(ids, model.embed.weight.device))

    tokens, says = {"reader": shown}, {"reader": [*shown[1:], ""]}
    notes = _unknown(source, text)
    return ReadText(tokens, _forwards(tokens), shown[1:], "token", log_probs, let, notes=notes, says=says)


def _both_ways(source: Any, model: Any, text: Text, _: str | None, allow_unknown: bool) -> ReadText:
    ids, shown = encode(source, text, allow_unknown)
    shown = [*shown, shown[0]]

    def row(model: Any) -> Tensor:
        return torch.tensor([[END, *ids, END]], device=model.body.embed.weight.device)

    def log_probs(model: Any) -> Told:
        tokens = row(model)
        right, left = model.log_probs({"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)})
        return Told(right[0], right.sum() + left.sum())

    def let(model: Any) -> Any:
        tokens = row(model)
        return model.read(tokens, torch.ones_like(tokens, dtype=torch.bool))

    tokens, notes = {"reader": shown}, _unknown(source, text)
    return ReadText(tokens, _forwards(tokens), shown[1:], "token, from the left", log_probs, let, notes=notes)


def _unknown(source: Any, text: Text) -> tuple[str, ...]:
    unknown = source.tokenizer.unknown_pieces(text) if isinstance(text, str) else []
    return (unknown_note(unknown, "text"),) if unknown else ()


# --- translators ------------------------------------------------------------------------------------------------------


def _translator(source: Any, model: Any, text: Text, target: str | None, _: bool) -> ReadText:
    said = say(source, _string(text), target)
    batch = said.batch(model)
    inputs = [source.tokenizer.token(token) for token in batch["inputs"][0].tolist()]
    tokens = {"encoder": said.source_tokens, "decoder": inputs}
    order = _forwards(tokens)
    if model.config.reverse:  # END stays last
        words = len(said.read) - 1
        order["encoder"] = [*range(words - 1, -1, -1), words]

    def log_probs(model: Any) -> Told:
        each = model.target_log_probs(_moved(batch, model))[0]
        return Told(each, each.sum())

    return ReadText(
        tokens,
        order,
        said.target_tokens,
        "token of the translation",
        log_probs,
        lambda model: model.taught(_moved(batch, model)),
        answer=said.text,
        notes=said.notes,
        says={"decoder": said.target_tokens},
    )


# --- classifiers and taggers ------------------------------------------------------------------------------------------


def _labelling(source: Any, model: Any, text: Text, _: str | None, __: bool) -> ReadText:
    looked, tokens = _looked(source, text)
    label = source.labels.index(looked.answer)

    def log_probs(model: Any) -> Told:
        each = model(_moved(looked.batch, model)).log_softmax(dim=1)[0, label : label + 1]
        return Told(each, each.sum())

    return _understood(source, looked, tokens, [looked.answer], "label", log_probs)


def _tagging(source: Any, model: Any, text: Text, _: str | None, __: bool) -> ReadText:
    """Of each word its own tag, whatever the others; with a CRF, of all together the whole sequence of tags."""
    looked, tokens = _looked(source, text)
    with evaluating(model):
        tags = model.predict(looked.batch)  # (1, W)
    batch = {**looked.batch, "tags": tags}
    words = [tokens["reader"][place] for place in batch["first"][0].tolist()]
    told = [f"{word}: {source.tags[tag]}" for word, tag in zip(words, tags[0].tolist(), strict=True)]

    def log_probs(model: Any) -> Told:
        own = _moved(batch, model)
        emissions, chain = model(own), model.chain  # (1, W, K)
        shares = chain.marginals(emissions, own["words"]) if chain.learned else emissions.softmax(dim=2)
        each = shares.gather(2, own["tags"].unsqueeze(2))[0, :, 0].log()
        if not chain.learned:
            return Told(each, each.sum())
        return Told(each, chain.log_likelihood(emissions, own["tags"], own["words"]).sum())

    return _understood(source, looked, tokens, told, "word's tag", log_probs)


def _looked(source: Any, text: Text) -> tuple[Any, dict[str, list[str]]]:
    if not hasattr(source, "looked"):
        raise UsageError(f"{_name(source)} reads no text that could be shown.")
    looked = source.looked(_string(text))
    names, before = ({}, 0) if looked.frame is None else (looked.frame.specials.names, looked.frame.before)
    ids = looked.batch["tokens"][0].tolist()
    shown = [names.get(token) or source.tokenizer.token(token) for token in ids]
    for place, (start, end) in enumerate(looked.spans[: len(ids) - before], start=before):
        if ids[place] == source.tokenizer.unknown:  # people know which word it was, and so may its spelling
            shown[place] = looked.text[start:end]
    return looked, {"reader": shown}


def _understood(
    source: Any,
    looked: Any,
    tokens: dict[str, list[str]],
    told: list[str],
    what: str,
    log_probs: Callable[[Any], Told],
) -> ReadText:
    return ReadText(
        tokens,
        _forwards(tokens),
        told,
        what,
        log_probs,
        lambda model: model(_moved(looked.batch, model)),
        answer=looked.answer,
        notes=(unknown_note(looked.unknown, "text"),) if looked.unknown and not source.spells else (),
    )


def _moved(batch: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def _string(text: Text | Sequence[int]) -> str:
    if not isinstance(text, str):
        raise UsageError("Token ids are for language models alone: give the text itself.")
    return one_line(text, "text")


READERS: dict[type, Callable[..., ReadText]] = {
    RecurrentLM: _language_model,
    BiLM: _both_ways,
    RecurrentSeq2Seq: _translator,
    Labelling: _labelling,
    Tagging: _tagging,
}
