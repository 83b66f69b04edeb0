"""Texts as models read them, and what models say of them: where every view of a text begins.

    read = read_text(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    read.tokens["encoder"]      the tokens of the source; those of "decoder" are END and the translation
    read.log_probs(model)       log p of each prediction, given the right ones before it

A language model predicts the next token, a translator the translation, a tagger the tag of each
word, a classifier a label, a bidirectional language model every token from either side. A tag, a
label or a translation that is not given is the model's own answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from seqloom.core.device import device_of
from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import DecodeState
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree
from seqloom.core.words import is_unicode
from seqloom.data.readers import TextFrame
from seqloom.evaluate.alignment import Word, group_words
from seqloom.inspect.capture import Source, TrainedModel, cells_of, eval_mode, model_of
from seqloom.models.bilm import BiLM
from seqloom.models.classifier import ClassifierBase
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.recurrent_seq2seq import RecurrentSeq2Seq
from seqloom.models.tagger import TaggerBase
from seqloom.runs.run import Run
from seqloom.runs.trained import DenoisingModel, LineReadingModel, TranslatingModel
from seqloom.text import END, Tokenizer
from seqloom.text.base import END_TEXT, Span
from seqloom.text.model_inputs import read_gaps

Text = str | Sequence[int]  # ids need no tokenizer
LISTED = 8  # unknown pieces that a message names

# --- lines ------------------------------------------------------------------------------------------------------------


def check_unicode(text: str, what: str) -> None:
    """Refuse what UTF-8 cannot encode."""
    if not is_unicode(text):
        raise DataError(f"The {what} must be UTF-8, but this is not: {text!r}.")


def one_line(text: str, what: str) -> str:
    """Strip white space from both ends; refuse a text that is empty or cannot be encoded."""
    check_unicode(text, what)
    if not text.strip():
        raise UsageError(f"The {what} is empty: give at least one word.")
    return text.strip()


def list_pieces(pieces: Sequence[str]) -> str:
    """`'ä', 'ö' and 3 more`"""
    more = f" and {len(pieces) - LISTED} more" if len(pieces) > LISTED else ""
    return ", ".join(map(repr, pieces[:LISTED])) + more


def unknown_notes(unknown: Sequence[str], what: str) -> tuple[str, ...]:
    """A note on the pieces of a text that the vocabulary lacks; none if it has them all."""
    return (f"the vocabulary lacks {list_pieces(unknown)} of the {what}: read as <unk>",) if unknown else ()


def cut_notes(finished: bool, what: str) -> tuple[str, ...]:
    """A note on an answer that did not come to its end."""
    return () if finished else (f"{what} was cut at the longest allowed: the model did not end it",)


def show_tokens(tokenizer: Tokenizer, ids: Sequence[int], names: Mapping[int, str] | None = None) -> list[str]:
    """The tokens as they are shown to people; `names` are of those that are not the tokenizer's."""
    return [(names or {}).get(token) or tokenizer.token(token) for token in ids]


def special_names(tokenizer: Tokenizer, sentinels: Sequence[int] = ()) -> dict[int, str]:
    """The names of the tokens a denoiser has beside its tokenizer's: [MASK] …, and <1>, <2> … of its sentinels."""
    numbered = {sentinel: f"<{number}>" for number, sentinel in enumerate(sentinels, start=1)}
    return {**Specials.after(len(tokenizer)).names, **numbered}


# --- a sentence and its translation -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequencePair:
    """What the model reads and what it says, or is made to say; END ends both, unless the translation was cut."""

    source: str
    text: str
    given: bool  # whether the translation was given, or else found
    finished: bool
    source_ids: list[int]
    target_ids: list[int]
    source_tokens: list[str]
    target_tokens: list[str]
    source_words: list[Word]  # and which tokens they are
    target_words: list[Word]
    notes: tuple[str, ...]

    def batch(self, model: nn.Module) -> dict[str, Tensor]:
        """The pair as in training, teacher forced."""
        device = device_of(model)
        read, said = torch.tensor([self.source_ids], device=device), torch.tensor([self.target_ids], device=device)
        return {
            "source": read,
            "source_mask": torch.ones_like(read, dtype=torch.bool),
            "inputs": torch.cat([torch.full_like(said[:, :1], END), said[:, :-1]], dim=1),
            "targets": said,
            "target_mask": torch.ones_like(said, dtype=torch.bool),
        }


def translate_pair(translator: TrainedModel, source: str, target: str | None = None, **options: Any) -> SequencePair:
    """Let a translator find a translation, or take the given one."""
    source, tokenizer = one_line(source, "text"), translator.tokenizer
    notes = unknown_notes(tokenizer.unknown_pieces(source), "text")
    if target is None:
        if not isinstance(translator, TranslatingModel):
            raise UsageError(f"{translator.name} is {translator.description}: it does not translate.")
        (translation,) = translator.translate([source], **options)
        ids, finished = translation.candidates[0].ids, translation.candidates[0].finished
        text, spans = tokenizer.decode(ids), tokenizer.decoded_spans(ids)
        notes += cut_notes(finished, "the translation")
    else:
        text, finished, speaker = one_line(target, "translation"), True, tokenizer.of_targets
        ids, spans = speaker.encode(text), speaker.spans(text)
        notes += unknown_notes(speaker.unknown_pieces(text), "translation")
    read, said = [*tokenizer.encode(source), END], [*ids, *[END] * finished]
    return SequencePair(
        source,
        text,
        target is not None,
        finished,
        read,
        said,
        show_tokens(tokenizer, read),
        show_tokens(tokenizer, said),
        group_words(source, tokenizer.spans(source), END_TEXT),
        group_words(text, spans, END_TEXT if finished else None),
        notes,
    )


def denoise_pair(denoiser: TrainedModel, text: str, **options: Any) -> SequencePair:
    """Let a denoiser restore a text. One that says what gaps hide, and nothing else, names the gap first: <1>, <2> …"""
    assert isinstance(denoiser, DenoisingModel)
    text, tokenizer = one_line(text, "text"), denoiser.tokenizer
    read, best = denoiser.search(text, **options)
    gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
    said, names = [*best.tokens, *[END] * best.finished], special_names(tokenizer, denoiser.sentinels)
    words: list[Word] = []
    for is_special, run in groupby(enumerate(best.tokens), key=lambda pair: pair[1] in names):
        positions, tokens = zip(*run, strict=True)
        if is_special:
            words += [Word(names[token], (position,)) for position, token in zip(positions, tokens, strict=True)]
        else:
            words += shift_words(group_words(tokenizer.decode(tokens), tokenizer.decoded_spans(tokens)), positions[0])
    return SequencePair(
        text,
        " ".join(word.text for word in words) if denoiser.predicts_spans else tokenizer.decode(best.tokens),
        False,
        best.finished,
        read,
        said,
        show_tokens(tokenizer, read, names),
        show_tokens(tokenizer, said, names),
        group_words(text, gaps.spans, END_TEXT),
        [*words, *[Word(END_TEXT, (len(best.tokens),))] * best.finished],
        unknown_notes(gaps.unknown, "text") + cut_notes(best.finished, "what it says"),
    )


def shift_words(words: Sequence[Word], by: int) -> list[Word]:
    """The same words, their tokens so many positions later."""
    return [Word(word.text, tuple(token + by for token in word.tokens)) for word in words]


# --- a text with an answer --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LinePrediction:
    """A line as a classifier or a tagger reads it, and what it says of it."""

    line: str
    text: str  # what its tokens are taken from
    spans: Sequence[Span]  # where they stand in that, those that were not read too
    batch: Tree  # it alone
    output_kind: Literal["label", "tags"]
    answer: str
    log_prob: float
    unknown: Sequence[str]  # pieces the vocabulary does not have
    frame: TextFrame | None = None  # of special tokens, in the place of END

    @property
    def before(self) -> int:
        """How many special tokens the row begins with."""
        return 0 if self.frame is None else self.frame.before

    def notes(self, run: Run) -> tuple[str, ...]:
        """A note on unknown words, unless the model reads how they are spelled."""
        return unknown_notes(self.unknown, "text") if run.characters is None else ()

    def tokens(self, tokenizer: Tokenizer) -> list[str]:
        names = {} if self.frame is None else self.frame.specials.names
        return show_tokens(tokenizer, self.batch["tokens"][0].tolist(), names)


# --- a text as recurrent cells read it --------------------------------------------------------------------------------


class LogProbs(NamedTuple):
    """What a model thinks of what it has to predict."""

    each: Tensor  # log p (N,) of each prediction
    total: Tensor  # log p of all of them, ()


@dataclass(frozen=True, eq=False)
class ReadText:
    """Of each role that cells have: encoder and decoder, or reader."""

    tokens: dict[str, list[str]]
    predictions: list[str]  # what is predicted: tokens, tags or a label
    prediction_kind: str  # the word for one of them
    log_probs: Callable[[Any], LogProbs]  # of a model, this one or a copy of it
    answer: str = ""  # the translation, the tagged line, the label
    notes: tuple[str, ...] = ()
    targets: dict[str, list[str]] = field(
        default_factory=dict
    )  # what must be predicted at each token, where that is so
    is_reversed: bool = False  # whether the encoder reads its source from the end, END last all the same
    read: Callable[[Any], object] | None = None  # where a model reads more than it predicts from

    def order(self, role: str) -> list[int]:
        """The positions of the tokens in the order in which cells that go forwards read them."""
        count = len(self.tokens[role])
        if role == "encoder" and self.is_reversed:
            return [*range(count - 2, -1, -1), count - 1]
        return list(range(count))

    def run(self, model: nn.Module) -> None:
        """Let a model read the text."""
        (self.read or self.log_probs)(model)


def recurrent_lm(source: Source) -> RecurrentLM:
    """The recurrent language model of a `TrainedModel`, or the one given."""
    model = model_of(source)
    if isinstance(model, RecurrentLM):
        return model
    raise UsageError(f"Only a recurrent language model has gates and states to look at; {_kind_of(source)}.")


def _kind_of(source: Source) -> str:
    if isinstance(source, nn.Module):
        return f"this is of kind {type(source).__name__}"
    return f"{source.run.path} is of kind {source.run.recipe['model']['kind']}"


def read_text(
    source: Source, text: Text, target: str | None = None, *, allow_unknown: bool = False, longest: int | None = None
) -> ReadText:
    """Encode a text for a model with recurrent cells; ids are for a `RecurrentLM`, which needs no tokenizer then.

    More tokens than `longest` are refused. Dropout is for the caller to turn off.
    """
    model = model_of(source)
    if not cells_of(model):
        raise UsageError(f"Only a model with recurrent cells has gates and states to look at; {_kind_of(source)}.")
    if target is not None and not isinstance(model, RecurrentSeq2Seq):
        who = "this is none" if isinstance(source, nn.Module) else f"{source.name} is {source.description}"
        raise UsageError(f"A translation is for translators; {who}.")
    match model:
        case RecurrentLM() | BiLM():
            read = _read_tokens(source, model, text, allow_unknown)
        case _ if not isinstance(text, str):
            raise UsageError("Token ids are for language models alone: give the text itself.")
        case RecurrentSeq2Seq() if not isinstance(source, nn.Module):
            read = _read_translation(translate_pair(source, one_line(text, "text"), target), source.tokenizer, model)
        case ClassifierBase() | TaggerBase() if not isinstance(source, nn.Module) and isinstance(
            source, LineReadingModel
        ):
            read = _read_answer(source, model, source.read_line(one_line(text, "text")))
        case _:
            name = "This model" if isinstance(source, nn.Module) else source.name
            raise UsageError(f"{name} has cells, but reads no single text that could be shown.")
    most = max(map(len, read.tokens.values()))
    if longest is not None and most > longest:
        raise UsageError(f"The text has {most:,} tokens; at most {longest} can be looked at. Shorten it.")
    return read


def _read_tokens(source: Source, model: RecurrentLM | BiLM, text: Text, allow_unknown: bool) -> ReadText:
    """END and the text, END after it too where it is read both ways. The last token is read, though none follows it."""
    tokenizer = None if isinstance(source, nn.Module) else source.tokenizer
    notes: tuple[str, ...] = ()
    if isinstance(text, str):
        if tokenizer is None or isinstance(source, nn.Module):
            raise UsageError(
                "A model alone cannot read text: give the ids of its tokens, or what `seqloom.load` gives."
            )
        check_unicode(text, "text")
        unknown = tokenizer.unknown_pieces(text)
        if unknown and not allow_unknown:
            raise DataError(
                f"The vocabulary of {source.run.path} cannot spell {list_pieces(unknown)} in the text. "
                "Leave them out, or have each read as <unk>: --allow-unknown, in Python allow_unknown=True."
            )
        ids, notes = tokenizer.encode(text), unknown_notes(unknown, "text")
    else:
        ids, vocabulary = list(text), recurrent_lm(source).embed.num_embeddings  # others read text alone
        for token in ids:
            if not 0 <= token < vocabulary:
                raise UsageError(f"Token ids go from 0 to {vocabulary - 1}; got {token}.")
    if not ids:
        raise UsageError("The text is empty: give at least one word.")
    row = [END, *ids] if isinstance(model, RecurrentLM) else [END, *ids, END]
    tokens = list(map(str, row)) if tokenizer is None else show_tokens(tokenizer, row)

    def predict_next(model: RecurrentLM) -> LogProbs:
        inputs, state, scores = torch.tensor([row], device=device_of(model)), model.start(rows=1), []
        for t in range(len(ids)):  # one by one, so that every step starts from the state tensors of the one before
            score, state = model.score(inputs[:, t : t + 1], inputs[:, t + 1 : t + 2], DecodeState(state.hidden))
            scores.append(score[0, 0])
        each = torch.stack(scores)
        return LogProbs(each, each.sum())

    def predict_both_ways(model: BiLM) -> LogProbs:
        inputs = torch.tensor([row], device=device_of(model))
        right, left = model.log_probs({"tokens": inputs, "mask": torch.ones_like(inputs, dtype=torch.bool)})
        return LogProbs(right[0], right.sum() + left.sum())

    if isinstance(model, BiLM):
        return ReadText({"reader": tokens}, tokens[1:], "token, from the left", predict_both_ways, notes=notes)
    return ReadText(
        {"reader": tokens},
        tokens[1:],
        "token",
        predict_next,
        notes=notes,
        targets={"reader": [*tokens[1:], ""]},
        read=lambda model: model.read(torch.tensor([row], device=device_of(model))),
    )


def _read_translation(said: SequencePair, tokenizer: Tokenizer, model: RecurrentSeq2Seq) -> ReadText:
    inputs = show_tokens(tokenizer, said.batch(model)["inputs"][0].tolist())

    def predict_translation(model: RecurrentSeq2Seq) -> LogProbs:
        each = model.target_log_probs(said.batch(model))[0]
        return LogProbs(each, each.sum())

    return ReadText(
        {"encoder": said.source_tokens, "decoder": inputs},
        said.target_tokens,
        "token of the translation",
        predict_translation,
        answer=said.text,
        notes=said.notes,
        targets={"decoder": said.target_tokens},
        is_reversed=model.config.reverse,
    )


def _read_answer(source: TrainedModel, model: ClassifierBase | TaggerBase, looked: LinePrediction) -> ReadText:
    """A label, or each word's tag, whatever the others are; with a CRF, the total is of the whole sequence of tags."""
    ids, tokens = looked.batch["tokens"][0].tolist(), looked.tokens(source.tokenizer)
    for position, (start, end) in enumerate(looked.spans[: len(ids) - looked.before], start=looked.before):
        if ids[position] == source.tokenizer.unknown:  # people know which word it was, and so may its spelling
            tokens[position] = looked.text[start:end]
    labels, batch = source.run.labels, looked.batch
    with eval_mode(model):
        if isinstance(model, TaggerBase):
            batch = {**batch, "tags": model.predict(batch)}  # (1, W)
            words = [tokens[position] for position in batch["first"][0].tolist()]
            tags = [labels[tag] for tag in batch["tags"][0].tolist()]
            told, what = [f"{word}: {tag}" for word, tag in zip(words, tags, strict=True)], "word's tag"
        else:
            told, what = [looked.answer], "label"

    def predict_answer(model: ClassifierBase | TaggerBase) -> LogProbs:
        device = device_of(model)
        moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
        scores = model(moved)  # (1, L), or emissions (1, W, K)
        if isinstance(model, ClassifierBase):
            label = labels.index(looked.answer)
            each = scores.log_softmax(dim=1)[0, label : label + 1]
            return LogProbs(each, each.sum())
        shares = model.chain.marginals(scores, moved["words"]) if model.chain.learned else scores.softmax(dim=2)
        each = shares.gather(2, moved["tags"].unsqueeze(2))[0, :, 0].log()
        if not model.chain.learned:
            return LogProbs(each, each.sum())
        return LogProbs(each, model.chain.log_likelihood(scores, moved["tags"], moved["words"]).sum())

    notes = looked.notes(source.run)
    return ReadText({"reader": tokens}, told, what, predict_answer, answer=looked.answer, notes=notes)
