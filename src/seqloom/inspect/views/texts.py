"""Texts as model inputs, and the model's predictions for them. All views of texts use this module.

    read = read_text(seqloom.load("runs/translate-gru"), "Sunday, November 15, 2026")
    read.tokens["encoder"]      the source tokens; read.tokens["decoder"] contains END and the translation
    read.log_probs(model)       log p of each prediction, computed with teacher forcing

A language model predicts the next token, a translator the translation, a tagger the tag of each word, a classifier a
label, and a bidirectional language model every token from both sides. If a translation, label or tag is missing, the
model predicts it.
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
from seqloom.data.text_inputs import TextFrame
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

Text = str | Sequence[int]  # ids, which do not need a tokenizer, or a text
MAX_LISTED_PIECES = 8  # maximum number of unknown pieces in a message

# --- lines ------------------------------------------------------------------------------------------------------------


def check_unicode(text: str, what: str) -> None:
    """Raise an error for text that UTF-8 cannot encode."""
    if not is_unicode(text):
        raise DataError(f"The {what} must be UTF-8; got {text!r}.")


def one_line(text: str, what: str) -> str:
    """Strip white space, and raise an error for a text that is empty or cannot be encoded."""
    check_unicode(text, what)
    if not text.strip():
        raise UsageError(f"The {what} is empty. Give at least one word.")
    return text.strip()


def list_pieces(pieces: Sequence[str]) -> str:
    """Return a list of pieces such as `'ä', 'ö' and 3 more`."""
    more = f" and {len(pieces) - MAX_LISTED_PIECES} more" if len(pieces) > MAX_LISTED_PIECES else ""
    return ", ".join(map(repr, pieces[:MAX_LISTED_PIECES])) + more


def unknown_notes(unknown: Sequence[str], what: str) -> tuple[str, ...]:
    """Return a note about the pieces of a text that are not in the vocabulary."""
    return (f"the model reads {list_pieces(unknown)} of the {what} as <unk>",) if unknown else ()


def cut_notes(finished: bool, what: str) -> tuple[str, ...]:
    """Return a note about an output that was truncated at the maximum length."""
    return () if finished else (f"{what} was truncated at the maximum length, since the model did not predict END",)


def show_tokens(tokenizer: Tokenizer, ids: Sequence[int], names: Mapping[int, str] | None = None) -> list[str]:
    """Return the display names of tokens. `names` contains the names of tokens that are not in the tokenizer."""
    return [(names or {}).get(token) or tokenizer.token(token) for token in ids]


def special_names(tokenizer: Tokenizer, sentinels: Sequence[int] = ()) -> dict[int, str]:
    """Return the names of a denoiser's special tokens: [MASK] and others, and <1>, <2> … for its sentinels."""
    numbered = {sentinel: f"<{number}>" for number, sentinel in enumerate(sentinels, start=1)}
    return {**Specials.after(len(tokenizer)).names, **numbered}


# --- source and target ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequencePair:
    """A source and a predicted or forced target. Both end with END unless the target was truncated."""

    source: str
    text: str
    given: bool  # whether the target was given and not predicted
    finished: bool
    source_ids: list[int]
    target_ids: list[int]
    source_tokens: list[str]
    target_tokens: list[str]
    source_words: list[Word]  # with their tokens
    target_words: list[Word]
    notes: tuple[str, ...]

    def batch(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the pair as a training batch for teacher forcing."""
        device = device_of(model)
        source, target = torch.tensor([self.source_ids], device=device), torch.tensor([self.target_ids], device=device)
        return {
            "source": source,
            "source_mask": torch.ones_like(source, dtype=torch.bool),
            "inputs": torch.cat([torch.full_like(target[:, :1], END), target[:, :-1]], dim=1),
            "targets": target,
            "target_mask": torch.ones_like(target, dtype=torch.bool),
        }


def translate_pair(translator: TrainedModel, source: str, target: str | None = None, **options: Any) -> SequencePair:
    """Translate a line, or use the given translation."""
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
        text, finished, target_tokenizer = one_line(target, "translation"), True, tokenizer.of_targets
        ids, spans = target_tokenizer.encode(text), target_tokenizer.spans(text)
        notes += unknown_notes(target_tokenizer.unknown_pieces(text), "translation")
    source_ids, target_ids = [*tokenizer.encode(source), END], [*ids, *[END] * finished]
    return SequencePair(
        source,
        text,
        target is not None,
        finished,
        source_ids,
        target_ids,
        show_tokens(tokenizer, source_ids),
        show_tokens(tokenizer, target_ids),
        group_words(source, tokenizer.spans(source), END_TEXT),
        group_words(text, spans, END_TEXT if finished else None),
        notes,
    )


def denoise_pair(denoiser: TrainedModel, text: str, **options: Any) -> SequencePair:
    """Denoise a text. If the target consists of spans, a sentinel <1>, <2> … precedes each span."""
    assert isinstance(denoiser, DenoisingModel)
    text, tokenizer = one_line(text, "text"), denoiser.tokenizer
    source_ids, best = denoiser.search(text, **options)
    gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
    target_ids, names = [*best.tokens, *[END] * best.finished], special_names(tokenizer, denoiser.sentinels)
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
        source_ids,
        target_ids,
        show_tokens(tokenizer, source_ids, names),
        show_tokens(tokenizer, target_ids, names),
        group_words(text, gaps.spans, END_TEXT),
        [*words, *[Word(END_TEXT, (len(best.tokens),))] * best.finished],
        unknown_notes(gaps.unknown, "text") + cut_notes(best.finished, "the output"),
    )


def shift_words(words: Sequence[Word], by: int) -> list[Word]:
    """Shift the token positions of words."""
    return [Word(word.text, tuple(token + by for token in word.tokens)) for word in words]


# --- single texts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LinePrediction:
    """A line that a classifier or tagger reads, and its prediction."""

    line: str
    text: str  # the text that is tokenized
    spans: Sequence[Span]  # spans of all tokens in the text, including tokens beyond the maximum length
    batch: Tree  # a batch with only this line
    output_kind: Literal["label", "tags"]
    answer: str
    log_prob: float
    unknown: Sequence[str]  # pieces that are not in the vocabulary
    frame: TextFrame | None = None  # the special tokens around the text, if the model uses them instead of END

    @property
    def before(self) -> int:
        """The number of special tokens before the text."""
        return 0 if self.frame is None else self.frame.before

    def notes(self, run: Run) -> tuple[str, ...]:
        """Return a note about unknown words, unless the model reads characters."""
        return unknown_notes(self.unknown, "text") if run.characters is None else ()

    def tokens(self, tokenizer: Tokenizer) -> list[str]:
        names = {} if self.frame is None else self.frame.specials.names
        return show_tokens(tokenizer, self.batch["tokens"][0].tolist(), names)


# --- inputs of recurrent cells ----------------------------------------------------------------------------------------


class LogProbs(NamedTuple):
    """Log-probabilities of the targets."""

    each: Tensor  # log p (N,) of each target
    total: Tensor  # log p of all targets together, ()


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text that recurrent cells read, by role: encoder and decoder, or reader."""

    tokens: dict[str, list[str]]
    predictions: list[str]  # tokens, tags or a label
    prediction_kind: str  # the kind of prediction: token, label …
    log_probs: Callable[[Any], LogProbs]  # a function of a model: the trained model or a copy
    answer: str = ""  # the translation, the tagged line or the label
    notes: tuple[str, ...] = ()
    targets: dict[str, list[str]] = field(default_factory=dict)  # the target at each token, by role
    is_reversed: bool = False  # whether the encoder reads the source from the end; END still comes last
    # A function that runs the model, if the model reads more tokens than those with predictions
    read: Callable[[Any], object] | None = None

    def order(self, role: str) -> list[int]:
        """Return the token positions in the order in which forward cells read them."""
        count = len(self.tokens[role])
        if role == "encoder" and self.is_reversed:
            return [*range(count - 2, -1, -1), count - 1]
        return list(range(count))

    def run(self, model: nn.Module) -> None:
        """Run a model on the text."""
        (self.read or self.log_probs)(model)


def recurrent_lm(source: Source) -> RecurrentLM:
    """Return the recurrent language model of a trained model, or the module itself."""
    model = model_of(source)
    if isinstance(model, RecurrentLM):
        return model
    raise UsageError(f"Only a recurrent language model is supported here; {_kind_of(source)}.")


def _kind_of(source: Source) -> str:
    if isinstance(source, nn.Module):
        return f"this is of kind {type(source).__name__}"
    return f"{source.run.path} is of kind {source.run.recipe['model']['kind']}"


def read_text(
    source: Source, text: Text, target: str | None = None, *, allow_unknown: bool = False, max_tokens: int | None = None
) -> ReadText:
    """Encode a text for a model with recurrent cells. The caller must disable dropout.

    Ids are accepted only for a `RecurrentLM` without a tokenizer. Texts with more than `max_tokens` tokens are
    rejected.
    """
    model = model_of(source)
    if not cells_of(model):
        raise UsageError(f"Only a model with recurrent cells has gates and states; {_kind_of(source)}.")
    if target is not None and not isinstance(model, RecurrentSeq2Seq):
        kind = "this is not a translator" if isinstance(source, nn.Module) else f"{source.name} is {source.description}"
        raise UsageError(f"Only translators accept a translation; {kind}.")
    match model:
        case RecurrentLM() | BiLM():
            read = _read_tokens(source, model, text, allow_unknown)
        case _ if not isinstance(text, str):
            raise UsageError("Only recurrent language models accept token ids; give a text.")
        case RecurrentSeq2Seq() if not isinstance(source, nn.Module):
            read = _read_translation(translate_pair(source, one_line(text, "text"), target), source.tokenizer, model)
        case ClassifierBase() | TaggerBase() if not isinstance(source, nn.Module) and isinstance(
            source, LineReadingModel
        ):
            read = _read_answer(source, model, source.read_line(one_line(text, "text")))
        case _:
            name = "This model" if isinstance(source, nn.Module) else source.name
            raise UsageError(f"{name} has recurrent cells, but does not read a single text.")
    count = max(map(len, read.tokens.values()))
    if max_tokens is not None and count > max_tokens:
        raise UsageError(f"The text has {count:,} tokens; at most {max_tokens} can be shown. Shorten it.")
    return read


def _read_tokens(source: Source, model: RecurrentLM | BiLM, text: Text, allow_unknown: bool) -> ReadText:
    """Read END and the text, followed by END for a bidirectional model.

    The last token has no target.
    """
    tokenizer = None if isinstance(source, nn.Module) else source.tokenizer
    notes: tuple[str, ...] = ()
    if isinstance(text, str):
        if tokenizer is None or isinstance(source, nn.Module):
            raise UsageError(
                "A model without a tokenizer cannot read text. Give token ids, or the result of `seqloom.load`."
            )
        check_unicode(text, "text")
        unknown = tokenizer.unknown_pieces(text)
        if unknown and not allow_unknown:
            raise DataError(
                f"The vocabulary of {source.run.path} does not have {list_pieces(unknown)} in the text. "
                "Remove them, or read each as <unk>: --allow-unknown, in Python allow_unknown=True."
            )
        ids, notes = tokenizer.encode(text), unknown_notes(unknown, "text")
    else:
        ids, vocabulary = list(text), recurrent_lm(source).embed.num_embeddings  # other models read only text
        for token in ids:
            if not 0 <= token < vocabulary:
                raise UsageError(f"Token ids must be from 0 to {vocabulary - 1}; got {token}.")
    if not ids:
        raise UsageError("The text is empty. Give at least one word.")
    row = [END, *ids] if isinstance(model, RecurrentLM) else [END, *ids, END]
    tokens = list(map(str, row)) if tokenizer is None else show_tokens(tokenizer, row)

    def predict_next(model: RecurrentLM) -> LogProbs:
        inputs, state, scores = torch.tensor([row], device=device_of(model)), model.start(rows=1), []
        for t in range(len(ids)):  # one step at a time, so that each step uses the state tensors of the previous step
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


def _read_translation(pair: SequencePair, tokenizer: Tokenizer, model: RecurrentSeq2Seq) -> ReadText:
    inputs = show_tokens(tokenizer, pair.batch(model)["inputs"][0].tolist())

    def predict_translation(model: RecurrentSeq2Seq) -> LogProbs:
        each = model.target_log_probs(pair.batch(model))[0]
        return LogProbs(each, each.sum())

    return ReadText(
        {"encoder": pair.source_tokens, "decoder": inputs},
        pair.target_tokens,
        "token of the translation",
        predict_translation,
        answer=pair.text,
        notes=pair.notes,
        targets={"decoder": pair.target_tokens},
        is_reversed=model.config.reverse,
    )


def _read_answer(source: TrainedModel, model: ClassifierBase | TaggerBase, line: LinePrediction) -> ReadText:
    """Read a label or the tag of each word. With a CRF, the total is the log-probability of the tag sequence."""
    ids, tokens = line.batch["tokens"][0].tolist(), line.tokens(source.tokenizer)
    for position, (start, end) in enumerate(line.spans[: len(ids) - line.before], start=line.before):
        # Show the word itself, because a character encoder may represent it
        if ids[position] == source.tokenizer.unknown:
            tokens[position] = line.text[start:end]
    labels, batch = source.run.labels, line.batch
    with eval_mode(model):
        if isinstance(model, TaggerBase):
            batch = {**batch, "tags": model.predict(batch)}  # (1, W)
            words = [tokens[position] for position in batch["first"][0].tolist()]
            tags = [labels[tag] for tag in batch["tags"][0].tolist()]
            predictions, what = [f"{word}: {tag}" for word, tag in zip(words, tags, strict=True)], "word's tag"
        else:
            predictions, what = [line.answer], "label"

    def predict_answer(model: ClassifierBase | TaggerBase) -> LogProbs:
        device = device_of(model)
        moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
        scores = model(moved)  # (1, L), or emissions (1, W, K)
        if isinstance(model, ClassifierBase):
            label = labels.index(line.answer)
            each = model.normalize(scores)[0, label : label + 1]
            return LogProbs(each, each.sum())
        probabilities = model.chain.marginals(scores, moved["words"]) if model.chain.learned else scores.softmax(dim=2)
        each = probabilities.gather(2, moved["tags"].unsqueeze(2))[0, :, 0].log()
        if not model.chain.learned:
            return LogProbs(each, each.sum())
        return LogProbs(each, model.chain.log_likelihood(scores, moved["tags"], moved["words"]).sum())

    notes = line.notes(source.run)
    return ReadText({"reader": tokens}, predictions, what, predict_answer, answer=line.answer, notes=notes)
