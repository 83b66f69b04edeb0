"""What a task made of the layers below it: h = γ Σ_j s_j h_j, where it begins with a bidirectional language model."""

from dataclasses import dataclass
from typing import Any

from seqloom.core.errors import UsageError
from seqloom.models.bodies import BiLMBody


@dataclass(frozen=True)
class MixView:
    """How much each layer has of the mix, the lowest first."""

    layers: list[str]
    shares: list[float]  # s, which sum to 1
    scale: float  # γ


def mix_view(trained: Any) -> MixView:
    """Of what `seqloom.load` gives for a run that was fine-tuned."""
    trained.run.tokenizer  # noqa: B018 (a run that is not about text says so here)
    body = getattr(trained.model, "body", None)
    if not isinstance(body, BiLMBody):
        raise UsageError(
            f"Only a model that was fine-tuned from a bidirectional language model (init.from) mixes its layers; "
            f"{trained.name} is {trained.what}."
        )
    shares = body.mix.shares.tolist()
    names = ["token vectors", *(f"layer {depth}" for depth in range(1, len(shares)))]
    return MixView(names, shares, body.mix.scale.item())
