"""The way of one text through a trained model, from letters to the answer: a guided tour with the real numbers.

    walk = walk_through(seqloom.load("runs/translate-cldr-transformer"), "Sunday, November 15, 2026")
    for stage in walk.stages:
        print(stage.title, stage.takes, "→", stage.gives)

All numbers are captured while the model runs, or computed from what was captured; `difference` is
how far those that were computed are from the model's own. The text of the stages is in
`templates/`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.inspect.capture import TrainedModel, eval_mode
from seqloom.inspect.tours.panels import Stage
from seqloom.inspect.tours.template import Values, mark_whitespace, quote, render_stage
from seqloom.inspect.views.texts import SequencePair
from seqloom.models import MODELS
from seqloom.tasks import has_view
from seqloom.text.base import END_TEXT

MAX_TOKENS = 64  # tokens of a text
DEFAULT_NUMBERS = 8  # of each vector, unless a number is given


@dataclass(frozen=True)
class Follow:
    """What a tour follows. Places are counted from 1; None is what the tour would choose."""

    word: int | None = None  # the token of the text that is followed
    step: int | None = None  # the token of the answer that is being written
    layer: int = 1
    head: int = 1
    numbers: int = DEFAULT_NUMBERS  # of each vector that are shown

    def check(self, layers: int, heads: int) -> None:
        for value, most, what in ((self.layer, layers, "layer"), (self.head, heads, "head")):
            if not 1 <= value <= max(1, most):
                raise UsageError(f"There is no {what} {value}: the model has {max(1, most)} of them.")
        if self.numbers < 1:
            raise UsageError(f"At least one number of each vector must be shown; got {self.numbers}.")


@dataclass(frozen=True, eq=False)
class Walk:
    """A tour through a model with one text."""

    name: str  # of the model
    kind: str
    text: str
    answer: str  # what the model says, in the end
    tokens: Sequence[str]  # what may be followed …
    word: int  # … and what is, from 1
    layers: int
    heads: int  # 0 where there are none
    follow: Follow
    stages: Sequence[Stage]
    difference: float  # of what was computed here and what the model computed, at most
    steps: Sequence[str] = ()  # what is written, one token each; empty where all is said at once
    step: int | None = None  # which of them is looked at, from 1
    onward: str | None = None  # of a language model at the end of its text: the text with the likeliest token behind it
    notes: Sequence[str] = ()

    def stage(self, key: str) -> Stage:
        """Return a stage by its key."""
        return next(stage for stage in self.stages if stage.key == key)


class Tour:
    """The values that templates fill in, and the stages made of them so far."""

    def __init__(self, trained: Any, text: str, follow: Follow) -> None:
        self.trained, self.model, self.tokenizer, self.follow = trained, trained.model, trained.tokenizer, follow
        self.stages: list[Stage] = []
        self.difference = 0.0
        self.walk: dict[str, Any] = {"text": text}  # of `Walk`, as it becomes known
        recipe = trained.run.recipe
        data, kind = recipe.get("data") or {}, MODELS.base(recipe["model"]["kind"])
        self.values: dict[str, Any] = {
            "kind": kind,
            "cell": recipe["model"].get("cell"),
            "text": text.replace("\n", "↵"),
            "numbers": follow.numbers,
            "layer": follow.layer,
            "head": follow.head,
            "end_token": END_TEXT,
            "what": "token",
            "part": "",
            "chapter": "Reading",
            "zero": 0,
            "corpus": None if "imported" in trained.run.data else _describe_corpus(data.get("corpus")),
            "source_language": _language_name(data.get("source")),
            "target_language": _language_name(data.get("target")),
            "tokenizer_kind": (recipe.get("tokenizer") or {}).get("kind"),
            "known_tokens": len(trained.tokenizer),
            "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
            "is_translator": kind in ("transformer", "recurrent-seq2seq"),
            "is_untrained": False,
            "is_lowercased": False,
            "is_projected": False,
            "has_memory": False,
            "is_tied": False,
            "vector_origin": "",
            "first_reading_stage": "",
        }

    def set(self, **values: object) -> None:
        """Provide values for the templates."""
        self.values |= values

    def add(self, *sections: str, key: str | None = None, **values: object) -> None:
        """Render stages with the values known so far and these."""
        self.stages += [render_stage(section, {**self.values, **values}, key) for section in sections]

    def compare(self, computed: Tensor, captured: Tensor) -> None:
        """Note how far what was computed here is from what the model computed."""
        self.difference = max(self.difference, float((computed.double() - captured.double()).abs().max()))

    def choose(self, value: int | None, default: int, count: int, what: str) -> int:
        """A position from 0, of one that people count from 1."""
        position = default if value is None else value - 1
        if not 0 <= position < count:
            raise UsageError(f"There is no {what} {value}: there are {count}.")
        return position

    def names(self, ids: Sequence[int]) -> list[str]:
        """The tokens of these ids, as they are shown."""
        return [mark_whitespace(self.tokenizer.token(token)) for token in ids]

    def read(self, text: str, ids: Sequence[int], tokens: Sequence[str], row: int) -> None:
        """What the model reads, and the position that is followed."""
        check_length(ids)
        self.set(tokens=tokens, ids=ids, row=row, followed=quote(tokens[row]), lookup_tokens=tokens)
        self.set(text=text.replace("\n", "↵"), token_names=[quote(token) for token in tokens])
        self.walk |= {"text": text, "tokens": tokens, "word": row + 1}

    def set_lookup(self, table: nn.Embedding, rows: Tensor) -> None:
        """The rows (T, D) that were looked up in a table."""
        self.set(lookup=rows, table_rows=table.num_embeddings, d_embedding=table.embedding_dim)

    def set_output(self, output: nn.Module, vector: Tensor, names: Sequence[str], chosen: int, letter: str) -> None:
        """One vector (D,) to a score for each of the names; one of them is chosen."""
        weight, bias = (output.weight, output.bias) if isinstance(output, nn.Linear) else (None, None)
        self.set_scores(compute_logits(output, vector), (weight, bias), vector, names, chosen, letter)

    def set_scores(
        self,
        logits: Tensor,
        parameters: tuple[Tensor | None, Tensor | None],
        vector: Tensor,
        names: Sequence[str],
        chosen: int,
        letter: str,
    ) -> None:
        """The same where scores (V,) were made by a weight (V, D) and a bias; None where there is no single matrix."""
        (weight, bias), shares = parameters, torch.softmax(logits.double(), dim=-1)
        self.set(
            vector=vector,
            vector_letter=letter,
            logits=logits,
            vocabulary=len(logits),
            probabilities=shares,
            names=list(names),
            quoted_names=[quote(name) for name in names],
            chosen=chosen,
            chosen_share=float(shares[chosen]),
            chosen_logit=logits[chosen],
            output_weight=weight,
            output_bias=bias,
            chosen_weight=None if weight is None else weight[chosen],
            chosen_bias=None if bias is None else bias[chosen],
            best=int(logits.argmax()),
            answer_ids=[chosen],
        )

    def compare_log_probs(self, captured: Tensor) -> None:
        """Compare the scores at the end with the model's own, or its log-probabilities: they differ by a constant."""
        here, there = (torch.log_softmax(scores.double(), dim=-1) for scores in (self.values["logits"], captured))
        self.compare(here, there)

    def likeliest(self, count: int = 5) -> list[tuple[int, float]]:
        """The indices of the most probable outputs, and their probabilities."""
        probabilities = self.values["probabilities"]
        order = probabilities.argsort(descending=True, stable=True)[:count].tolist()
        return [(index, float(probabilities[index])) for index in order]

    def finish(self, answer: str, layers: int, heads: int, **options: object) -> Walk:
        """The tour with all its stages."""
        return Walk(
            name=self.trained.name,
            kind=self.values["kind"],
            answer=answer,
            layers=layers,
            heads=heads,
            follow=self.follow,
            stages=self.stages,
            difference=self.difference,
            **{**self.walk, **options},
        )


def check_length(tokens: Sequence[object], what: str = "text") -> None:
    """Refuse a text that is too long to be walked through."""
    if len(tokens) > MAX_TOKENS:
        raise UsageError(
            f"A walk is for a sentence of at most {MAX_TOKENS} tokens; this {what} has {len(tokens):,}. Shorten it."
        )


def compute_logits(output: Any, vector: Tensor) -> Tensor:
    """Scores (V,) of a vector (D,): where an output layer has no single matrix, log p serves as well."""
    logits: Tensor = output(vector) if isinstance(output, nn.Linear) else output.log_probs(vector.unsqueeze(0))[0]
    return logits


# --- tours by the kind of model ---------------------------------------------------------------------------------------

KINDS = ("recurrent-lm", "window-lm", "recurrent-seq2seq", "transformer", "gpt", "bert", "tagger", "classifier")


def has_tour(recipe: Values) -> bool:
    """Whether there is a tour through a model of this recipe."""
    return MODELS.base(recipe.get("model", {}).get("kind")) in KINDS and has_view(recipe, "walk")


def walk_through(
    trained: TrainedModel, text: str, follow: Follow | None = None, pair: SequencePair | None = None
) -> Walk:
    """Make the tour of a text. `trained` is what `seqloom.load` gives; of a translator, `pair` is the translation to
    follow, if it has been found already. Dropout is off."""
    from seqloom.inspect.tours import readers, translators

    kind = trained.run.recipe["model"]["kind"]
    if not has_tour(trained.run.recipe):
        raise UsageError(f"There is no walk through {trained.name}: it is of kind {kind}.")
    tours = {**readers.TOURS, **translators.TOURS}
    with eval_mode(trained.model), torch.no_grad():
        return tours[MODELS.base(kind)](Tour(trained, text, follow or Follow()), pair)


def _describe_corpus(corpus: object) -> str | None:
    """What a corpus is, in words; its name, where it has none."""
    name = str(corpus).replace("-", "_")
    with suppress(ImportError, AttributeError):
        if name.isidentifier():
            summary: str = import_module(f"seqloom.data.corpora.{name}").SUMMARY
            return summary.partition(";")[0]
    return None if corpus is None else str(corpus)


def _language_name(tag: object) -> str | None:
    """Its English name; None where the tag is not one of a language."""
    if not isinstance(tag, str) or len(tag) > 8:
        return None
    with suppress(Exception):  # babel may be missing, or not know the tag
        from babel import Locale

        return str(Locale.parse(tag.replace("-", "_")).get_display_name("en"))
    return tag
