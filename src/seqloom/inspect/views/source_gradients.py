"""Gradients of a translation with respect to each source position.

    x_1 … x_S              the inputs of the encoder: embeddings, in a Transformer with positions
    ‖∂L_t/∂x_j‖            L_t = −log p(y_t | y_1 … y_{t-1}, x), for every target token t
    ‖∂L/∂x_j‖              L = Σ_t L_t

    gradients = source_gradients(seqloom.load("runs/quickstart-en-fr"), "Sunday, November 15, 2026")
    gradients.by_token[t, j], gradients.total[j]

Everything is computed in float64 on the CPU, on a copy of the model, without dropout.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.progress import check_cancelled
from seqloom.inspect.capture import TrainedModel, capture
from seqloom.inspect.values import Array
from seqloom.inspect.views.gradients import exact_copy
from seqloom.inspect.views.texts import translate_pair
from seqloom.models.recurrent_seq2seq import RecurrentSeq2Seq
from seqloom.models.transformer import Transformer


@dataclass(frozen=True, eq=False)
class SourceGradients:
    """The gradient norms of one translation."""

    name: str
    text: str  # the translation
    source: list[str]  # S tokens, END last
    target: list[str]  # T tokens
    losses: Array  # (T,): L_t in nats
    by_token: Array  # (T, S): ‖∂L_t/∂x_j‖
    total: Array  # (S,): ‖∂L/∂x_j‖
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The norm at the first source token relative to the norm at the last word before END, for the sum L."""
        return float(self.total[0] / self.total[max(len(self.total) - 2, 0)])


def source_gradients(
    trained: TrainedModel, text: str, target: str | None = None, name: str | None = None
) -> SourceGradients:
    """Compute the gradients for a given translation, or for the translation of the model."""
    if not isinstance(trained.model, RecurrentSeq2Seq | Transformer):
        raise UsageError(
            f"{trained.name} is {trained.description}: only translators have gradients by source position."
        )
    pair = translate_pair(trained, text, target)
    model = exact_copy(trained.model)
    with capture(model, type(model.source_embed)) as captured:
        losses = -model.target_log_probs(pair.batch(model))[0]  # (T,)
    x = captured.calls(model.source_embed)[0].output  # (1, S, D), in the order in which the encoder reads
    order = list(range(x.shape[1]))
    if isinstance(model, RecurrentSeq2Seq) and model.config.reverse:
        order = [*order[-2::-1], order[-1]]  # END stays at the end
    rows = []
    for loss in losses:
        check_cancelled()
        rows.append(position_norms(loss, x, order))
    return SourceGradients(
        name or trained.name,
        pair.text,
        pair.source_tokens,
        pair.target_tokens,
        losses.detach().numpy(),
        np.stack(rows),
        position_norms(losses.sum(), x, order),
        pair.notes,
    )


def position_norms(loss: Tensor, x: Tensor, order: list[int]) -> Array:
    """Return ‖∂loss/∂x_j‖ (S,) in the order of the source."""
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    norms: Array = gradient[0].norm(dim=1)[order].numpy()
    return norms
