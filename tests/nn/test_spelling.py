"""Word features from characters: padding, order and gradients."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.nn.cells import CELLS
from seqloom.nn.lexicon import CharacterCNNConfig, CharacterRNNConfig, Spelling

C = 9
KINDS: dict[str, Any] = {
    "cnn": CharacterCNNConfig(embedding=5, filters=4, widths=(2, 3)),
    **{f"rnn-{cell}": CharacterRNNConfig(embedding=5, cell=cell, hidden=4) for cell in CELLS},
}
WORDS = [[[3, 4, 5], [3], []], [[8, 8, 8, 8, 8], [5, 4, 3], [1, 2]]]  # two sentences of three words


def padded(words: list[list[list[int]]] = WORDS, width: int = 5) -> Tensor:
    return torch.tensor([[[*word, *[0] * (width - len(word))] for word in row] for row in words])


@pytest.fixture(params=KINDS)
def spelling(request) -> Spelling:
    torch.manual_seed(0)
    return KINDS[request.param].build(C).double()


def test_single_word_gives_the_same_result_as_in_a_batch(spelling) -> None:
    result = spelling(padded())
    assert result.shape == (2, 3, spelling.output_size)
    for row, words in enumerate(WORDS):
        for position, word in enumerate(words):
            alone = spelling(torch.tensor([word])) if word else torch.zeros(1, spelling.output_size)
            torch.testing.assert_close(result[row, position], alone[0].double(), atol=1e-10, rtol=0)


def test_padding_has_no_effect_and_no_gradient(spelling) -> None:
    result, wider = spelling(padded()), spelling(F.pad(padded(width=8), (0, 0, 0, 2)))
    torch.testing.assert_close(wider[:, :3], result, atol=1e-10, rtol=0)
    assert not wider[:, 3:].any()
    (gradient,) = torch.autograd.grad(result.square().sum(), spelling.embed.weight)
    used = sorted({letter for row in WORDS for word in row for letter in word})
    assert gradient.any(dim=1).nonzero().flatten().tolist() == used


def test_output_depends_on_the_order_of_letters(spelling) -> None:
    result = spelling(torch.tensor([[3, 4, 5, 0], [5, 4, 3, 0]]))
    assert not torch.allclose(result[0], result[1])


def test_recurrent_spelling_matches_its_equation() -> None:
    """Compute [→h_n; ←h_1] with the cells, letter by letter."""
    torch.manual_seed(0)
    spelling: Any = CharacterRNNConfig(embedding=5, cell="gru", hidden=4).build(C).double()
    layer, letters = spelling.stack.layers[0], [7, 2, 2, 6]
    ends = []
    for cell, order in ((layer.forwards.cell, letters), (layer.backwards.cell, letters[::-1])):
        state = cell.initial_state(1)
        for letter in order:
            state = cell(spelling.embed(torch.tensor([letter])), state)
        ends.append(state["h"])
    result = spelling(torch.tensor([[*letters, 0, 0]]))
    torch.testing.assert_close(result, torch.cat(ends, dim=1), atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (CharacterCNNConfig, {"embedding": 0, "filters": 0, "widths": [0]}, "embedding: must be at least 1"),
        (CharacterCNNConfig, {"embedding": 0, "filters": 0, "widths": [0]}, "filters: must be at least 1"),
        (CharacterCNNConfig, {"embedding": 0, "filters": 0, "widths": [0]}, "widths must be"),
        (CharacterRNNConfig, {"hidden": 0, "cell": "lsmt"}, "hidden: must be at least 1"),
        (CharacterRNNConfig, {"hidden": 0, "cell": "lsmt"}, "did you mean lstm"),
    ],
)
def test_invalid_settings_are_rejected(config, options, words) -> None:
    with pytest.raises(UsageError, match=words):
        build(config, options)
