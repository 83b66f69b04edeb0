"""The KV cache compared with attention in one call: chunks, padding and reordered hypotheses."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nn.torch_layers import D, N, exactly, randomize

from seqloom.core.tree import GrowingBuffer, clone, select_rows
from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.cache import STEPS_OF_GROWTH as ROOM
from seqloom.nn.cache import empty_cache, empty_state, extend_caches
from seqloom.nn.positions import Rotary


def attention(**options):
    torch.manual_seed(2)
    return randomize(MultiHeadAttention(D, N, **options)).eval()


class CachedReader:
    """A layer that reads x (R, T, D) in pieces for a given number of sources."""

    def __init__(self, ours, sources):
        self.ours, self.sources, self.state = ours, sources, empty_state()
        self.caches: tuple[GrowingBuffer, ...] = (empty_cache(ours, sources),)

    def read(self, x, mask=None):
        (R, T, _), B = x.shape, self.sources
        self.caches, update = extend_caches(self.caches, self.state, x[..., 0], mask, B)
        x = x.reshape(B, -1, D)
        cache = update.write(self.caches[0], self.ours.keys_values(x, update.positions))
        q = self.ours.queries(x, update.positions.clamp(min=0))
        output, _ = self.ours.attend(q, update.read(cache), update.mask, update.mask is None)
        self.caches, self.state = (cache,), update.state
        return output.view(R, T, D)

    def reorder(self, rows):
        self.state = select_rows(self.state, rows)

    def leave(self, rows, sources):
        self.reorder(rows)
        self.caches, self.sources = select_rows(self.caches, sources), len(sources)


def read(ours, x, pieces, masks):
    """Read x (R, T, D) in pieces, each with a mask or None. Return the outputs and the reader."""
    reader = CachedReader(ours, len(x))
    pairs = zip(x.split(pieces, dim=1), masks, strict=True)
    return torch.cat([reader.read(piece, mask) for piece, mask in pairs], dim=1), reader


@settings(max_examples=25)
@given(st.data())
def test_reading_in_chunks_is_equivalent_to_reading_in_one_call(data):
    """For any pieces and padding, the outputs of real tokens equal those of a single row that is read in one call."""
    rotary = data.draw(st.sampled_from([None, Rotary()]))
    ours = attention(kv_heads=data.draw(st.sampled_from([None, 1])), rotary=rotary)
    pieces = data.draw(st.lists(st.sampled_from([1, 1, 2, 3, ROOM + 1]), min_size=1, max_size=5))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    x = torch.randn(3, sum(pieces), D, dtype=torch.float64)
    masks = [data.draw(st.sampled_from([None, torch.rand(3, size) < 0.6])) for size in pieces]
    with torch.set_grad_enabled(data.draw(st.booleans())):
        result, reader = read(ours, x, pieces, masks)
    real = torch.cat([x.new_ones(3, n) > 0 if m is None else m for n, m in zip(pieces, masks, strict=True)], dim=1)
    length = reader.state["length"]
    assert real.all() if length is None else torch.equal(length, real.sum(dim=1))
    for row in range(3):
        real_inputs = x[row, real[row]].unsqueeze(0)
        if real_inputs.shape[1]:
            exactly(result[row, real[row]].unsqueeze(0), ours(real_inputs, is_causal=True)[0])


@settings(max_examples=25)
@given(st.data())
@torch.no_grad()
def test_reordered_hypotheses_give_the_same_results_as_separate_rows(data):
    """Hypotheses are reordered and sources are removed.

    The outputs of each hypothesis equal those of its tokens in a separate row.

    The beam size changes, and a step may have several tokens and padding.
    """
    rotary = data.draw(st.sampled_from([None, Rotary()]))
    ours = attention(kv_heads=data.draw(st.sampled_from([None, 1])), rotary=rotary)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    reader, inputs, k = CachedReader(ours, 3), [torch.empty(0, D, dtype=torch.float64)] * 3, 1
    for _ in range(data.draw(st.integers(1, 3 * ROOM))):
        T = data.draw(st.sampled_from([1, 1, 1, 2]))
        x = torch.randn(len(inputs), T, D, dtype=torch.float64)
        real = data.draw(st.sampled_from([None, None, None, torch.rand(len(inputs), T) < 0.7]))
        result = reader.read(x, real)
        real = torch.ones(len(inputs), T, dtype=torch.bool) if real is None else real
        inputs = [torch.cat([before, new[selected]]) for before, new, selected in zip(inputs, x, real, strict=True)]
        for row, tokens in enumerate(inputs):
            new = int(real[row].sum())
            exactly(result[row, real[row]], ours(tokens.unsqueeze(0), is_causal=True)[0][0, len(tokens) - new :])
        sources = torch.randperm(reader.sources)
        if data.draw(st.booleans()) and len(sources) > 1:
            sources = sources[:-1]
        wider = data.draw(st.sampled_from([k, k, 1, 3]))
        rows = (sources.unsqueeze(1) * k + torch.randint(k, (len(sources), wider))).flatten()
        reader.leave(rows, sources)
        inputs, k = [inputs[row] for row in rows.tolist()], wider


@torch.no_grad()
def test_reordering_copies_no_keys_and_drops_unused_slots():
    """Reordering does not copy the cache, which contains the slots in use and space for a few steps."""
    ours, k = attention(), 4
    reader, buffers = CachedReader(ours, 2), set()
    reader.read(torch.randn(2, 1, D, dtype=torch.float64))
    reader.reorder(torch.arange(2).repeat_interleave(k))
    for _ in range(10 * ROOM):
        reader.read(torch.randn(2 * k, 1, D, dtype=torch.float64))
        buffers.add(reader.caches[0].buffer.data_ptr())
        reader.reorder(torch.arange(2).repeat_interleave(k) * k)  # all hypotheses continue the first hypothesis
    living = 10 * ROOM + 1
    assert reader.caches[0].buffer.shape[3] <= living + (ROOM + 1) * k < living * k
    assert len(buffers) <= 12
    assert torch.equal(reader.state["owned"].sum(dim=1), torch.full((2 * k,), living))


def test_cached_keys_have_a_gradient():
    ours = attention()
    x = torch.randn(2, ROOM + 2, D, dtype=torch.float64)
    gradients = []
    for cached in (True, False):
        inputs = x.clone().requires_grad_()
        result = (
            read(ours, inputs, [1] * (ROOM + 2), [None] * (ROOM + 2))[0] if cached else ours(inputs, is_causal=True)[0]
        )
        (result**2).sum().backward()
        gradients.append(inputs.grad)
    exactly(*gradients)


@torch.no_grad()
def test_cloned_cache_does_not_change():
    ours, x = attention(), torch.randn(3, 4, D, dtype=torch.float64)
    _, reader = read(ours, x[:, :3], [3], [None])
    kept = clone((reader.caches, reader.state))
    before = clone(kept)
    reader.read(x[:, 3:])
    torch.testing.assert_close(kept[0][0].buffer[:, :, :, :3], before[0][0].buffer[:, :, :, :3])
    other = CachedReader(ours, 3)
    other.caches, other.state = kept
    exactly(other.read(x[:, 3:]), ours(x, is_causal=True)[0][:, 3:])


@torch.no_grad()
def test_cache_grows_in_blocks_and_is_written_in_place():
    ours, x = attention(), torch.randn(1, 3 * ROOM, D, dtype=torch.float64)
    reader, positions = CachedReader(ours, 1), set()
    for t in range(3 * ROOM):
        reader.read(x[:, t : t + 1])
        positions.add(reader.caches[0].buffer.data_ptr())
        assert t + 1 <= reader.caches[0].buffer.shape[3] < t + 1 + ROOM
        assert reader.caches[0].length.tolist() == [t + 1]
    assert len(positions) <= 3
    exactly(reader.caches[0].buffer[:, :, 0, : 3 * ROOM].transpose(1, 2).flatten(2), ours.k(x))
