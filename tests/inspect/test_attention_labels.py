"""Labels of attention maps, checked against models whose attention is forced to a known pattern.

Head 1 of every forced attention attends to its own position, and head 2 to the previous position. The text alone
therefore determines the label of each row and the label of the column with the largest weight.
"""

from typing import Any

import numpy as np
import pytest
import torch
from tests.inspect.walk_checks import Trained, build_tokenizer

from seqloom.inspect.plots.heatmaps import draw_alignment, draw_heads, draw_links
from seqloom.inspect.tours.panels import MatrixPanel
from seqloom.inspect.tours.tour import Follow, walk_through
from seqloom.inspect.views.attention import (
    CROSS_ATTENTION,
    SELF_ATTENTION,
    AttentionMap,
    Part,
    alignment_view,
    bert_heads_view,
    gpt_heads_view,
    heads_view,
)
from seqloom.inspect.views.texts import translate_pair
from seqloom.models.bert import BERTConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.positions import PositionsConfig
from seqloom.text import CharactersConfig, train_tokenizer

POSITIONS = 24
WIDTH = 2 * POSITIONS
LEARNED = PositionsConfig(kind="learned", max_length=POSITIONS)
END = "</s>"


def set_pattern(attention: Any, before: tuple[int, int] = (0, 1)) -> None:
    """Let head n attend `before[n]` positions back, for any tokens."""
    parameters = dict(attention.named_parameters())
    q, k = torch.zeros(WIDTH, WIDTH), torch.zeros(WIDTH, WIDTH)
    for head, back in enumerate(before):
        for position in range(POSITIONS):
            q[head * POSITIONS + position, position] = 60
            if position + back < POSITIONS:
                k[head * POSITIONS + position + back, position] = 1
    parameters["q.weight"].copy_(q)
    parameters["k.weight"].copy_(k)
    for name in ("q.bias", "k.bias"):
        parameters[name].zero_()


def show_positions_only(embedded: Any) -> None:
    """Make the vector of a token its one-hot position, independent of the token."""
    embedded.embed.weight.zero_()
    embedded.positions.weight.copy_(torch.eye(POSITIONS, WIDTH))


@pytest.fixture(scope="module")
def gpt() -> Trained:
    tokenizer = build_tokenizer()
    model = GPTConfig(d_model=WIDTH, heads=2, layers=1, positions=LEARNED, tied=False).build(len(tokenizer)).double()
    with torch.no_grad():
        show_positions_only(model.backbone.embedded)
        set_pattern(model.backbone.blocks[0].self_attention)
    return Trained(model, tokenizer, "gpt", "language-model")


@pytest.fixture(scope="module")
def translator() -> Trained:
    tokenizer = build_tokenizer()
    config = TransformerConfig(d_model=WIDTH, heads=2, encoder_layers=1, decoder_layers=1, positions=LEARNED)
    model = config.build(len(tokenizer)).double()
    with torch.no_grad():
        show_positions_only(model.source_embed)
        show_positions_only(model.target_embed)
        set_pattern(model.encoder[0].self_attention)
        set_pattern(model.decoder[0].self_attention)
    return Trained(model, tokenizer, "transformer", "translate")


@pytest.fixture(scope="module")
def bert() -> Trained:
    tokenizer = build_tokenizer()
    model = BERTConfig(d_model=WIDTH, heads=2, layers=1, positions=LEARNED).build(len(tokenizer)).double()
    with torch.no_grad():
        show_positions_only(model.backbone.embedded)
        set_pattern(model.backbone.blocks[0].self_attention)
    return Trained(model, tokenizer, "bert", "masked-lm")


def strongest(grid: AttentionMap) -> list[tuple[str, str]]:
    """Return the label of each row and of the column with the row's largest weight, which is close to 1."""
    assert grid.weights[1:].max(axis=1).min() > 0.9  # the first position has no previous position
    return [(row, grid.columns[int(index)]) for row, index in zip(grid.rows, grid.weights.argmax(axis=1), strict=True)]


def check_self_attention(part: Part, read: list[str]) -> None:
    itself, previous = (part.grid(1, head, tokens=True) for head in (1, 2))
    assert itself.axes == previous.axes == SELF_ATTENTION
    assert strongest(itself) == [(token, token) for token in read]
    assert strongest(previous)[1:] == list(zip(read[1:], read[:-1], strict=True))


def test_gpt_rows_are_queries(gpt: Trained) -> None:
    check_self_attention(gpt_heads_view(gpt, "the cats").decoder, [END, *"the cats"])


def test_decoder_rows_are_queries(translator: Trained) -> None:
    view = heads_view(translator, "the cat", "gatto qui")
    check_self_attention(view.decoder, [END, *"gatto qui"])
    check_self_attention(view.encoder, [*"the cat", END])


def test_bert_rows_are_queries(bert: Trained) -> None:
    check_self_attention(bert_heads_view(bert, "the cat").encoder, ["[CLS]", *"the cat", "[SEP]"])


def test_attention_weights_of_words_are_aggregated_from_their_tokens(gpt: Trained) -> None:
    grid = gpt_heads_view(gpt, "the cat sat").decoder.grid(1, 1)
    assert strongest(grid) == [(word, word) for word in (END, "the", "cat", "sat")]
    assert np.abs(np.triu(grid.weights, 1)).max() == 0  # no word attends to later words
    shorter = gpt_heads_view(gpt, "the cat sat").decoder.grid(1, 1, end=False)
    assert strongest(shorter) == [(word, word) for word in ("the", "cat", "sat")]


def test_cross_attention_rows_are_predicted_tokens(translator: Trained) -> None:
    """Position t reads target token t - 1 and predicts target token t, which is the label of the row."""
    view = heads_view(translator, "the cat", "gatto")
    assert view.cross.tokens.axes == CROSS_ATTENTION
    assert view.cross.tokens.rows == [*"gatto", END]
    aligned = alignment_view(translator, "the cat", "gatto").tokens
    assert (aligned.rows, aligned.axes) == (view.cross.tokens.rows, CROSS_ATTENTION)


def test_recurrent_alignment_rows_are_predicted_tokens() -> None:
    tokenizer = train_tokenizer(CharactersConfig(), ["abc"])
    model = RecurrentSeq2SeqConfig(hidden=8, embedding=4).build(len(tokenizer))
    view = alignment_view(Trained(model, tokenizer, "recurrent-seq2seq", "translate"), "abc", "cba")
    assert view.tokens.rows == ["c", "b", "a", END] and view.tokens.axes == CROSS_ATTENTION


def weights_panel(walk: Any, key: str) -> MatrixPanel:
    (stage,) = (stage for stage in walk.stages if stage.key == key)
    (panel,) = (
        panel
        for panel in stage.panels
        if isinstance(panel, MatrixPanel) and panel.probabilities and len(panel.rows) > 1
    )
    return panel


def check_same_map(panel: MatrixPanel, grid: AttentionMap) -> None:
    """Check that labels and numbers of a tour equal those of the view, up to the step of the tour."""
    count = len(panel.rows)
    assert (panel.row_title, panel.column_title) == tuple(grid.axes)
    assert [label.strip("“”") for label in panel.rows] == [label.replace(" ", "␣") for label in grid.rows[:count]]
    columns = len(panel.columns)
    shown = [label.replace(" ", "␣") for label in grid.columns[:columns]]
    assert [label.strip("“”") for label in panel.columns] == shown
    np.testing.assert_allclose(panel.values, grid.weights[:count, :columns], atol=1e-6)


def test_gpt_tour_has_labels_of_heads_view(gpt: Trained) -> None:
    walk = walk_through(gpt, "the cats", Follow(head=2))
    grid = gpt_heads_view(gpt, "the cats").decoder.grid(1, 2, tokens=True)
    check_same_map(weights_panel(walk, "text-weights"), grid)


def test_translator_tour_has_labels_of_heads_view(translator: Trained) -> None:
    walk = walk_through(translator, "the cat", Follow(step=4, head=2), translate_pair(translator, "the cat", "gatto"))
    view = heads_view(translator, "the cat", "gatto")
    check_same_map(weights_panel(walk, "encoder-weights"), view.encoder.grid(1, 2, tokens=True))
    check_same_map(weights_panel(walk, "decoder-self"), view.decoder.grid(1, 2, tokens=True))
    check_same_map(weights_panel(walk, "cross-weights"), view.cross.grid(1, 2, tokens=True))
    assert weights_panel(walk, "cross-weights").rows == ["“g”", "“a”", "“t”", "“t”"]


@pytest.mark.parametrize("part", ["decoder", "cross"])
def test_plots_have_titles_on_both_axes(translator: Trained, part: str) -> None:
    pytest.importorskip("matplotlib")
    heads = heads_view(translator, "the cat", "gatto").part(part)
    row, column = heads.tokens.axes
    assert (row, column) == (("query (attends)", "key (attended to)") if part == "decoder" else CROSS_ATTENTION)
    heat: Any = draw_alignment(heads.grid()).axes[0]
    assert (heat.get_ylabel(), heat.get_xlabel()) == (row, column)
    many = draw_heads(heads.maps())
    assert (many.get_supylabel(), many.get_supxlabel()) == (row, column)
    links: Any = draw_links(heads.grid()).axes[0]
    assert {row, column} <= {text.get_text() for text in links.texts}
