"""The permutation importance of a window position equals a manual computation, and only one position is permuted."""

from typing import Any

import pytest
import torch

from seqloom.inspect.plots.figures import to_bytes
from seqloom.inspect.plots.measurements import draw_window
from seqloom.inspect.views.memory import WindowView, permute_position, window_loss, windows_before
from seqloom.models.window_lm import WindowLMConfig
from seqloom.text import END

V, K = 9, 3


def model() -> Any:
    torch.manual_seed(0)
    lm = WindowLMConfig(window=K, embedding=4, hidden=6, dropout=0.5).build(V).double()
    for parameter in lm.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    return lm


def test_windows_contain_preceding_tokens_or_stop_at_documents() -> None:
    stream = torch.tensor([5, END, 6, 7, 8])
    joined = [[END, END, END], [END, END, 5], [END, 5, END], [5, END, 6], [END, 6, 7]]
    assert windows_before(model(), stream, within_documents=False).tolist() == joined
    apart = [[END, END, END], [END, END, 5], [END, END, END], [END, END, 6], [END, 6, 7]]
    assert windows_before(model(), stream, within_documents=True).tolist() == apart


@pytest.mark.parametrize("distance", range(1, K + 1))
def test_permutation_changes_only_one_position(distance: int) -> None:
    inputs = torch.arange(60).view(20, K)
    permuted = permute_position(inputs, distance)
    others = [column for column in range(K) if column != K - distance]
    assert torch.equal(permuted[:, others], inputs[:, others])
    assert not torch.equal(permuted, inputs) and torch.equal(
        permuted[:, K - distance].sort()[0], inputs[:, K - distance]
    )
    assert torch.equal(permuted, permute_position(inputs, distance))


def test_loss_is_computed_without_dropout() -> None:
    lm, stream = model(), torch.randint(V, (50,), generator=torch.Generator().manual_seed(1))
    loss = window_loss(lm, windows_before(lm, stream, within_documents=False), stream)
    assert lm.training  # the training mode is restored
    inputs = torch.cat([torch.tensor([END]), stream[:-1]])[None]
    scores, _ = lm.eval().score(inputs, stream[None], lm.start())
    assert loss == pytest.approx(-scores.mean().item(), rel=1e-12)


def test_ignored_position_has_no_importance() -> None:
    lm, stream = model(), torch.randint(V, (80,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        lm.hidden[0].weight[:, : 2 * 4] = 0  # only the last token has an effect
    inputs = windows_before(lm, stream, within_documents=False)
    losses = [window_loss(lm, permute_position(inputs, distance), stream) for distance in (1, 2, 3)]
    full_loss = window_loss(lm, inputs, stream)
    assert losses[1] == losses[2] == full_loss != losses[0]


@pytest.mark.parametrize("shuffled", [[3.0, 2.5, 2.1], [3.0, 1.9, 2.1]])
def test_plot_shows_importance(shuffled: list[float]) -> None:
    views = [WindowView("a $1 run", 100, 2.0, shuffled), WindowView("other", 100, 2.2, [2.5])]
    figure = draw_window(views)
    (axes,) = figure.axes
    assert axes.get_yscale() == ("log" if min(shuffled) > 2 else "linear")
    assert axes.lines[0].get_ydata() == pytest.approx([loss - 2.0 for loss in shuffled])
    assert to_bytes(figure)[:4] == b"\x89PNG"
