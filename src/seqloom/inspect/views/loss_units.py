"""The unit in which a run's figures are measured, and which runs can share an axis.

    loss_scale(Run.open("runs/lm-char-lstm"))      Scale("nats per character", "nats per character")
    loss_scale(Run.open("runs/gpt-pydocs"))        Scale("nats per token (vocabulary 2,000)", "nats per token 5f0c…")

A nat per character and a nat per token are different units, and so are nats per token of two vocabularies: the more a
token spells, the more nats it costs. Curves share an axis only where `Scale.key` is equal.
"""

from typing import NamedTuple

from seqloom.runs.run import Run

# What the loss is a mean over, for tasks whose log gives "nats" alone. Other tasks: tokens.
PER = {
    "classify": "text",
    "series-classify": "series",
    "forecast": "value",
    "hmm-series": "value",
    "track": "value",
    "tag": "word",
    "hmm-tag": "word",
    "pair": "pair",
    "choice": "example",
    "answer": "window",
}
UNNAMED = ("nats", "of samples")  # units of the log that do not say what they are per


class Scale(NamedTuple):
    unit: str  # the title of an axis
    key: str  # equal for curves that may share an axis


class TokenUnit(NamedTuple):
    name: str  # "character" or "token"
    note: str  # which tokens: " (vocabulary 800)"
    key: str


def loss_scale(run: Run) -> Scale:
    """The unit of the loss, in training and on dev."""
    unit = _logged_unit(run)
    task = str(run.recipe.get("task"))
    if unit in UNNAMED:
        if task == "word-vectors":
            unit = f"objective of {run.recipe['model']['objective']}"
        else:
            unit = f"nats per {PER.get(task, 'token')}" if run.of_text else "nats"
    return _per_token(run, unit) if "token" in unit and run.of_text else Scale(unit, unit)


def perplexity_scale(run: Run) -> Scale:
    return _per_token(run, "perplexity per token") if run.of_text else Scale("perplexity", "perplexity")


def speed_scale(run: Run, counted: str) -> Scale:
    unit = f"{counted}/s"
    return _per_token(run, unit) if counted == "tokens" and run.of_text else Scale(unit, unit)


def _logged_unit(run: Run) -> str:
    """The unit of the last loss in the log, without remarks on how training changes it."""
    units = [
        str(entry.get("unit", "nats"))
        for entry in run.log()
        if entry["event"] == "progress" and entry["values"].get("loss") is not None
    ]
    return units[-1].partition(", ")[0] if units else "nats"


def _per_token(run: Run, unit: str) -> Scale:
    """A unit that counts tokens, with the name of this run's tokens."""
    token = _token_unit(run)
    return Scale(unit.replace("token", token.name) + token.note, f"{unit} {token.key}")


def _token_unit(run: Run) -> TokenUnit:
    tokenizer = run.tokenizer
    if tokenizer.kind == "characters":  # a character is the same in every vocabulary
        return TokenUnit("character", "", "characters")
    return TokenUnit("token", f" (vocabulary {len(tokenizer):,})", tokenizer.fingerprint())
