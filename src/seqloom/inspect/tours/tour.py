"""The way of one text through a trained model, from letters to the answer: a guided walk with the real numbers.

    walk = walk_through(seqloom.load("runs/translate-cldr-transformer"), "Sunday, November 15, 2026")
    for stage in walk.stages:
        print(stage.title, stage.takes, "→", stage.gives)

All numbers come from the model's own layers, called one by one; `difference` is how far the scores at the end are from
those that the model gives when it is asked as usual.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.inspect.tours.inputs import Follow, Intro
from seqloom.inspect.tours.panels import Stage, visible
from seqloom.inspect.views.alignment import Said, say, unknown_note
from seqloom.inspect.views.reading import evaluating
from seqloom.text.base import END

KINDS = ("recurrent-lm", "window-lm", "recurrent-seq2seq", "transformer", "gpt", "bert", "tagger", "classifier")


@dataclass(frozen=True, eq=False)
class Walk:
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
    difference: float  # of the last scores here and the model's own, at most
    steps: Sequence[str] = ()  # what is written, one token each; empty where all is said at once
    step: int | None = None  # which of them is looked at, from 1
    onward: str | None = None  # of a language model at the end of its text: the text with the likeliest token behind it
    notes: Sequence[str] = ()

    def stage(self, key: str) -> Stage:
        return next(stage for stage in self.stages if stage.key == key)

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name not in ("stages", "follow")}
        return {**plain, "follow": vars(self.follow), "stages": [stage.to_json() for stage in self.stages]}


def suits(recipe: Mapping[str, Any]) -> bool:
    """Whether there is a walk through a model of this recipe."""
    return recipe.get("model", {}).get("kind") in KINDS and recipe.get("task") in (
        "translate",
        "language-model",
        "instruct",
        "masked-lm",
        "tag",
        "classify",
    )


def walk_through(trained: Any, text: str, follow: Follow | None = None, said: Said | None = None) -> Walk:
    """`trained` is what `seqloom.load` gives. Of a translator, `said` is the translation to walk with, if it has been
    found already. Dropout is off."""
    kind = trained.run.recipe["model"]["kind"]
    if not suits(trained.run.recipe):
        raise UsageError(f"There is no walk through {trained.name}: it is of kind {kind}.")
    walkers: dict[str, Callable[..., Walk]] = {
        "transformer": _translate,
        "recurrent-seq2seq": _translate,
        "recurrent-lm": _continue,
        "window-lm": _continue,
        "gpt": _continue,
        "bert": _fill,
        "classifier": _understand,
        "tagger": _understand,
    }
    with evaluating(trained.model), torch.no_grad():
        return walkers[kind](trained, text, follow or Follow(), said)


def _translate(translator: Any, text: str, follow: Follow, said: Said | None) -> Walk:
    kind = translator.run.recipe["model"]["kind"]
    if kind == "transformer":
        from seqloom.inspect.tours.transformer import Translation
    else:
        from seqloom.inspect.tours.seq2seq import Translation  # type: ignore[assignment]

    said = said or say(translator, text)
    made = Translation(translator, said, follow)
    batch = said.batch(translator.model)
    own = translator.model.forward(batch["source"], batch["source_mask"], batch["inputs"])[0, made.step]
    return _walk(
        translator,
        made,
        own,
        made.stages(intro(translator, said.text)),
        text=said.source,
        answer=said.text,
        word=made.word + 1,
        steps=[visible(token) for token in said.target_tokens],
        step=made.step + 1,
        notes=said.notes,
    )


def _continue(writer: Any, text: str, follow: Follow, said: Said | None) -> Walk:
    from seqloom.inspect.tours.recurrent import Reading
    from seqloom.inspect.tours.text import Writing
    from seqloom.inspect.tours.window import Seeing

    ways: dict[str, Any] = {"recurrent-lm": Reading, "window-lm": Seeing, "gpt": Writing}
    made = ways[writer.run.recipe["model"]["kind"]](writer, text, follow)
    tokens = torch.tensor([made.ids[: made.row + 1]], device=writer.device)
    answer = visible(made.tokenizer.token(made.next))
    own = writer.model.step(tokens, writer.model.start(rows=1)).log_probs[0]
    return _walk(
        writer,
        made,
        own,
        made.stages(intro(writer, answer)),
        text=text,
        answer=answer,
        word=made.row + 1,
        onward=text + writer.continue_text(made.ids, [made.next])
        if made.row == len(made.ids) - 1 and made.next != END
        else None,
        notes=_unknown(writer, text),
    )


def _fill(reader: Any, text: str, follow: Follow, said: Said | None) -> Walk:
    from seqloom.inspect.tours.text import Filling

    made = Filling(reader, text, follow)
    h = reader.model.read(torch.tensor([made.ids], device=reader.device))
    if made.untrained:
        answer = "a vector for each token"
        own, made.logits = h[0, made.row], made.h[made.row]  # the walk ends at the vectors
    else:
        answer = visible(reader.tokenizer.token(int(made.logits.argmax())))
        own = reader.model.masked_logits(h)[0, made.row]
    stages = made.stages(intro(reader, answer, made.untrained))
    return _walk(reader, made, own, stages, text=made.text, answer=answer, word=made.row + 1)


def _understand(reader: Any, text: str, follow: Follow, said: Said | None) -> Walk:
    from seqloom.inspect.tours.readers import Labelling
    from seqloom.inspect.tours.tagger import Tagging

    tags = reader.run.recipe["model"]["kind"] == "tagger"
    made: Any = (Tagging if tags else Labelling)(reader, text, follow)
    own = reader.model(made.batch)[0]
    own = own[made.word] if tags else own
    stages = made.stages(intro(reader, made.answer))
    return _walk(reader, made, own, stages, text=made.text, answer=made.answer, word=made.row + 1)


def _walk(trained: Any, made: Any, own: Tensor, stages: Sequence[Stage], **options: Any) -> Walk:
    """`own` are the model's scores for what was walked to, or its log-probabilities: they differ by a constant."""
    here, there = (torch.log_softmax(scores.double(), dim=-1) for scores in (made.logits, own))
    return Walk(
        name=trained.name,
        kind=trained.run.recipe["model"]["kind"],
        tokens=made.read.tokens,
        layers=made.layers,
        heads=made.heads,
        follow=made.follow,
        stages=stages,
        difference=float((here - there).abs().max()),
        **options,
    )


def _unknown(writer: Any, text: str) -> list[str]:
    unknown = writer.tokenizer.unknown_pieces(text)
    return [unknown_note(unknown, "text")] if unknown else []


# --- what is said before the walk begins ------------------------------------------------------------------------------

NAMES = {
    "recurrent-lm": "a recurrent network",
    "window-lm": "a feed-forward network that sees a window of the text",
    "recurrent-seq2seq": "two recurrent networks: one reads, the other writes",
    "transformer": "a Transformer: one half reads, the other writes",
    "gpt": "a GPT: a Transformer that writes on",
    "bert": "a BERT: a Transformer that fills gaps",
    "tagger": "a tagger",
    "classifier": "a classifier",
}
CELLS = {
    "elman": "a simple recurrent network",
    "lstm": "a recurrent network of the kind LSTM",
    "gru": "a recurrent network of the kind GRU",
}


def intro(trained: Any, answer: str, untrained: bool = False) -> Intro:
    """`untrained` is a model whose output was never trained."""
    recipe = trained.run.recipe
    model, corpus = recipe["model"], (recipe.get("data") or {}).get("corpus")
    imported = "imported" in getattr(trained.run, "data", {})
    numbers = sum(parameter.numel() for parameter in trained.model.parameters())
    what = (
        CELLS.get(model.get("cell"), NAMES[model["kind"]]) if model["kind"] == "recurrent-lm" else NAMES[model["kind"]]
    )
    learned = "texts elsewhere: it was imported" if imported or corpus is None else _learned(str(corpus))
    facts = [
        ["what it is", "a BERT: a Transformer that reads" if untrained else what],
        ["learned from", learned],
        ["numbers it has", f"{numbers:,}, those of its output never trained"]
        if untrained
        else ["numbers it has learned", f"{numbers:,}"],
        ["tokens it knows", f"{len(trained.tokenizer):,}"],
    ]
    task = "This model reads a text and makes a vector of every token." if untrained else _task(trained)
    return Intro(task, facts, str((recipe.get("tokenizer") or {}).get("kind")), answer)


def _learned(corpus: str) -> str:
    """What a corpus is, in words; its name, where it has none."""
    name = corpus.replace("-", "_")
    with suppress(ImportError, AttributeError):
        if name.isidentifier():
            summary: str = import_module(f"seqloom.data.corpora.{name}").SUMMARY
            return summary.partition(";")[0]
    return corpus


def _task(trained: Any) -> str:
    """What the model does, in a sentence."""
    recipe = trained.run.recipe
    kind = recipe["model"]["kind"]
    if kind == "tagger":
        return "This model says of every word what it is: part of a person’s name, say, or of a place."
    if kind == "classifier":
        return f"This model reads a text and says which of {len(trained.labels)} labels it has."
    if kind == "bert":
        return "This model reads a text with gaps, written [MASK], and says what could stand there."
    if kind in ("gpt", "recurrent-lm", "window-lm"):
        return "This model reads a text from left to right, and at each token it says what could come next."
    languages = [_language((recipe.get("data") or {}).get(side)) for side in ("source", "target")]
    return (
        f"This model translates from {languages[0]} to {languages[1]}." if all(languages) else "This model translates."
    )


def _language(tag: Any) -> str | None:
    """Its English name; None where the tag is not one of a language."""
    if not isinstance(tag, str) or len(tag) > 8:
        return None
    with suppress(Exception):  # babel may be missing, or not know the tag
        from babel import Locale

        return str(Locale.parse(tag.replace("-", "_")).get_display_name("en"))
    return tag
