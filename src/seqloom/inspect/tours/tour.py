"""Guided tour that follows one text through a trained model, from characters to the prediction.

    walk = walk_through(seqloom.load("runs/translate-cldr-transformer"), "Sunday, November 15, 2026")
    for stage in walk.stages:
        print(stage.title, stage.input_shape, "→", stage.output_shape)

All numbers are captured while the model runs, or computed from captured values. `difference` is the largest difference
between a computed value and the corresponding value in the model. `templates/` contains the text of the stages.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.core.words import format_count
from seqloom.inspect.capture import TrainedModel, eval_mode
from seqloom.inspect.tours.panels import Stage
from seqloom.inspect.tours.template import Values, mark_whitespace, quote, render_stage
from seqloom.inspect.views.texts import SequencePair
from seqloom.models import MODELS
from seqloom.tasks import has_view
from seqloom.text.base import END_TEXT

READING, WRITING = "Reading the input", "Generating the output"  # names of the chapters
MAX_TOKENS = 64  # maximum length of a text
DEFAULT_NUMBERS = 8  # numbers shown of each vector


@dataclass(frozen=True)
class Follow:
    """The token, step, layer and head that a tour follows. Positions are counted from 1; None selects a default."""

    word: int | None = None  # input token
    step: int | None = None  # output token
    layer: int = 1
    head: int = 1
    numbers: int = DEFAULT_NUMBERS  # numbers shown of each vector

    def check(self, layers: int, heads: int) -> None:
        for value, count, name in ((self.layer, layers, "layer"), (self.head, heads, "head")):
            if not 1 <= value <= max(1, count):
                raise UsageError(f"There is no {name} {value}: the model has {format_count(max(1, count), name)}.")
        if self.numbers < 1:
            raise UsageError(f"At least one number of each vector must be shown; got {self.numbers}.")


@dataclass(frozen=True, eq=False)
class Walk:
    """A tour of one text through a model."""

    name: str  # name of the model
    kind: str
    text: str
    answer: str  # the prediction
    tokens: Sequence[str]
    word: int  # the followed token, counted from 1
    layers: int
    heads: int  # 0 if the model has no attention heads
    follow: Follow
    stages: Sequence[Stage]
    difference: float  # largest difference between a computed value and the value in the model
    steps: Sequence[str] = ()  # generated tokens; empty for models that do not generate
    step: int | None = None  # the followed step, counted from 1
    continued_text: str | None = None  # for a language model, the text with the most probable next token
    notes: Sequence[str] = ()

    def stage(self, key: str) -> Stage:
        """Return a stage by its key."""
        return next(stage for stage in self.stages if stage.key == key)


class TourBuilder:
    """The state of an unfinished tour: template values, rendered stages, and fields of the resulting `Walk`."""

    def __init__(self, trained: Any, text: str, follow: Follow) -> None:
        self.trained, self.model, self.tokenizer, self.follow = trained, trained.model, trained.tokenizer, follow
        self.stages: list[Stage] = []
        self.difference = 0.0
        self.walk_fields: dict[str, Any] = {"text": text}
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
            "output_kind": "token",
            "part": "",
            "chapter": READING,
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
        """Render stages with the values that have been set and the given values."""
        self.stages += [render_stage(section, {**self.values, **values}, key) for section in sections]

    def update_difference(self, computed: Tensor, captured: Tensor) -> None:
        """Update `difference` with the largest distance between computed and captured values."""
        self.difference = max(self.difference, float((computed.double() - captured.double()).abs().max()))

    def index_of_position(self, value: int | None, default: int, count: int, name: str) -> int:
        """Convert a position, counted from 1, to an index; None selects the default."""
        position = default if value is None else value - 1
        if not 0 <= position < count:
            raise UsageError(f"There is no {name} {value}: there are {count}.")
        return position

    def label_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of these ids as labels."""
        return [mark_whitespace(self.tokenizer.token(token)) for token in ids]

    def set_input(self, text: str, ids: Sequence[int], tokens: Sequence[str], row: int) -> None:
        """Set the input tokens and the followed position."""
        check_length(ids)
        self.set(tokens=tokens, ids=ids, row=row, followed=quote(tokens[row]), lookup_tokens=tokens)
        self.set(text=text.replace("\n", "↵"), token_names=[quote(token) for token in tokens])
        self.walk_fields |= {"text": text, "tokens": tokens, "word": row + 1}

    def set_lookup(self, table: nn.Embedding, rows: Tensor) -> None:
        """Set the rows (T, D) that are looked up in an embedding table."""
        self.set(lookup=rows, table_rows=table.num_embeddings, d_embedding=table.embedding_dim)

    def set_output(self, output: nn.Module, vector: Tensor, names: Sequence[str], chosen: int, letter: str) -> None:
        """Set the scores of an output layer for one vector (D,); `chosen` is the selected output."""
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
        """Set scores (V,) and their parameters: a bias, and a weight (V, D), or None if there are several matrices."""
        (weight, bias), probabilities = parameters, torch.softmax(logits.double(), dim=-1)
        self.set(
            vector=vector,
            vector_letter=letter,
            logits=logits,
            vocabulary=len(logits),
            probabilities=probabilities,
            names=list(names),
            quoted_names=[quote(name) for name in names],
            chosen=chosen,
            chosen_probability=float(probabilities[chosen]),
            chosen_logit=logits[chosen],
            output_weight=weight,
            output_bias=bias,
            chosen_weight=None if weight is None else weight[chosen],
            chosen_bias=None if bias is None else bias[chosen],
            best=int(logits.argmax()),
            answer_ids=[chosen],
        )

    def update_score_difference(self, scores: Tensor) -> None:
        """Update `difference` with the final scores of the tour and those of the model.

        The two sets of scores may differ by a constant.
        """
        computed, captured = (torch.log_softmax(each.double(), dim=-1) for each in (self.values["logits"], scores))
        self.update_difference(computed, captured)

    def most_probable(self, count: int = 5) -> list[tuple[int, float]]:
        """Return the indices of the most probable outputs and their probabilities."""
        probabilities = self.values["probabilities"]
        order = probabilities.argsort(descending=True, stable=True)[:count].tolist()
        return [(index, float(probabilities[index])) for index in order]

    def finish(self, answer: str, layers: int, heads: int, **options: object) -> Walk:
        """Return the tour with all its stages."""
        return Walk(
            name=self.trained.name,
            kind=self.values["kind"],
            answer=answer,
            layers=layers,
            heads=heads,
            follow=self.follow,
            stages=self.stages,
            difference=self.difference,
            **{**self.walk_fields, **options},
        )


def check_length(tokens: Sequence[object], name: str = "text") -> None:
    """Raise `UsageError` if a text is too long for a tour."""
    if len(tokens) > MAX_TOKENS:
        raise UsageError(
            f"A tour supports at most {MAX_TOKENS} tokens, but this {name} has {len(tokens):,}. Shorten it."
        )


def compute_logits(output: Any, vector: Tensor) -> Tensor:
    """Return the scores (V,) of a vector (D,), or log-probabilities if the output layer has several matrices."""
    logits: Tensor = output(vector) if isinstance(output, nn.Linear) else output.log_probs(vector.unsqueeze(0))[0]
    return logits


# --- tours by kind of model ---------------------------------------------------------------------------------------

KINDS = ("recurrent-lm", "window-lm", "recurrent-seq2seq", "transformer", "gpt", "bert", "tagger", "classifier")


def has_tour(recipe: Values) -> bool:
    """Return whether models of this recipe have a tour."""
    return MODELS.base(recipe.get("model", {}).get("kind")) in KINDS and has_view(recipe, "walk")


def walk_through(
    trained: TrainedModel, text: str, follow: Follow | None = None, pair: SequencePair | None = None
) -> Walk:
    """Compute the tour of a text. Dropout is disabled.

    `trained` is the result of `seqloom.load`. For a translator, `pair` is the translation to follow if it is already
    known.
    """
    from seqloom.inspect.tours import readers, translators

    kind = trained.run.recipe["model"]["kind"]
    if not has_tour(trained.run.recipe):
        raise UsageError(f"There is no tour for {trained.name}, whose model is of kind {kind}.")
    tours = {**readers.TOURS, **translators.TOURS}
    with eval_mode(trained.model), torch.no_grad():
        return tours[MODELS.base(kind)](TourBuilder(trained, text, follow or Follow()), pair)


def _describe_corpus(corpus: object) -> str | None:
    """Return the summary of a corpus, or its name if it has no summary."""
    name = str(corpus).replace("-", "_")
    with suppress(ImportError, AttributeError):
        if name.isidentifier():
            summary: str = import_module(f"seqloom.data.corpora.{name}").SUMMARY
            return summary.partition(";")[0]
    return None if corpus is None else str(corpus)


def _language_name(tag: object) -> str | None:
    """Return the English name of a language tag, or None for other values."""
    if not isinstance(tag, str) or len(tag) > 8:
        return None
    with suppress(Exception):  # babel may be missing, or it may not know the tag
        from babel import Locale

        return str(Locale.parse(tag.replace("-", "_")).get_display_name("en"))
    return tag
