"""The section `init` of a recipe: the run that a training begins with. `seqloom.runs.transfer` does what it says."""

from typing import Any

from seqloom.config import config

ON_A_BODY = "fine-tuned-"  # how the kinds of models begin that have a body of another run


@config
class InitConfig:
    from_: str  # a run: its tokenizer, and the weights of its body
    weights: bool = True  # false: its tokenizer and the shape of its body alone, every weight drawn anew


def has_body(model: Any) -> bool:
    """Whether a model's config has a body, which may be taken over from another run."""
    return str(model.kind).startswith(ON_A_BODY)
