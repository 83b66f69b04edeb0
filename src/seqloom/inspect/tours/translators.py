"""Tours of translators: the encoder, and one step of the decoder with its attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core import END
from seqloom.inspect.capture import BlockValues, Captured, capture
from seqloom.inspect.tours.layers import (
    add_attention,
    add_block,
    add_feed_forward,
    add_layers,
    read_blocks,
    set_attention,
    set_cell_step,
    set_embedding,
    set_form,
)
from seqloom.inspect.tours.template import mark_whitespace, quote
from seqloom.inspect.tours.tour import READING, WRITING, TourBuilder, Walk, check_length, compute_logits
from seqloom.inspect.views.texts import SequencePair, translate_pair
from seqloom.nn.bidirectional import BidirectionalStack
from seqloom.nn.cells import Cell


def _follow_step(tour: TourBuilder, pair: SequencePair) -> int:
    """Set the translation and return the index of the followed step."""
    check_length(pair.source_ids)
    check_length(pair.target_ids, "translation")
    step = tour.index_of_position(tour.follow.step, min(1, len(pair.target_ids) - 1), len(pair.target_ids), "step")
    tour.set(answer=pair.text.replace("\n", "↵"), is_given=pair.given, step=step, steps=pair.target_ids)
    return step


def _finish(
    tour: TourBuilder, pair: SequencePair, step: int, vectors: Tensor, letter: str, layers: int, heads: int
) -> Walk:
    """Add the last stages. `vectors` (steps, D) are the inputs of the output layer."""
    output = tour.model.output
    logits = torch.stack([compute_logits(output, vector) for vector in vectors])
    names = [tour.tokenizer.token(token) for token in range(logits.shape[1])]
    token, written, ids = pair.target_ids[step], tour.values["written"], tour.values["written_ids"]
    tour.set_output(output, vectors[step], names, token, letter)
    batch = pair.batch(tour.model)
    tour.update_score_difference(tour.model.forward(batch["source"], batch["source_mask"], batch["inputs"])[0, step])
    is_short = tour.values["has_memory"] and not (token == END and ids)
    probabilities = torch.softmax(logits.double(), dim=-1)
    read = [written[len(written) - 1 - step], *(names[token] for token in pair.target_ids)]
    tour.set(
        is_tied=tour.model.config.tied != "none",
        is_end=token == END,
        next_ids=[token] if is_short else [*ids, token],
        next_tokens=tour.label_tokens([token]) if is_short else [*written, *tour.label_tokens([token])],
        last_next=0 if is_short else len(ids),
        steps=[  # number, input token, output token, and probability of the output token
            [number + 1, quote(before), quote(names[now]), float(probabilities[number, now])]
            for number, (before, now) in enumerate(zip(read, pair.target_ids, strict=False))
        ],
    )
    tour.add("outputs/logits", "outputs/softmax")
    tour.add("outputs/next-token", key="next")
    tokens = [mark_whitespace(each) for each in pair.target_tokens]
    return tour.finish(pair.text, layers, heads, steps=tokens, step=step + 1, notes=pair.notes)


# --- Transformers -----------------------------------------------------------------------------------------------------


def tour_transformer(tour: TourBuilder, pair: SequencePair | None) -> Walk:
    """Tour an encoder–decoder Transformer: the encoder, and one step of the decoder."""
    model, config, follow = tour.model, tour.model.config, tour.follow
    pair = pair or translate_pair(tour.trained, tour.walk_fields["text"])
    step = _follow_step(tour, pair)
    layers = min(len(model.encoder), len(model.decoder))
    follow.check(layers, config.heads)
    set_form(tour, config.activation, config.norm, config.norm_first, config.residual, config.scale)
    with capture(model) as captured:
        model.attentions(pair.batch(model))
    encoder, decoder = (read_blocks(tour, captured, part) for part in (model.encoder, model.decoder))
    memory, y = model.encoder_norm(encoder[-1].after), model.decoder_norm(decoder[-1].after)
    # The tokens that the encoder and the decoder embed. They include the start tokens of the model.
    calls = captured.calls(model.source_embed.embed)
    is_shared = model.target_embed.embed is model.source_embed.embed
    target_calls = calls[1:] if is_shared else captured.calls(model.target_embed.embed)
    read, written = (each.inputs[0][0].tolist() for each in (calls[0], target_calls[-1]))
    row = step + len(written) - len(pair.target_ids)  # position in the decoder's input
    source, target = tour.label_tokens(read), tour.label_tokens(written)[: row + 1]
    aligned = decoder[model.aligned].cross_attention
    assert aligned is not None
    default = int(aligned.weights[:, row, : max(1, len(read) - 1)].mean(dim=0).argmax())
    word = tour.index_of_position(follow.word, default, len(read), "token")
    tour.set_input(pair.source, read, source, word)
    set_embedding(tour, model.source_embed, read, encoder[0].before, config.positions.kind)
    tour.set(
        vocabulary=model.output.weight.shape[0],
        encoder_layers=len(encoder),
        decoder_layers=len(decoder),
        attends=encoder[0].self_attention is not None,
        is_causal=False,
        written=target,
        written_ids=written[: row + 1],
        written_row=row,
        written_name=quote(target[row]),
    )
    tour.add("inputs/text", "inputs/tokens", "inputs/embeddings", "inputs/positions")
    add_block(tour, "encoder", encoder, memory, source, word)
    start_tokens = target[1 : row - step + 1]
    produced = [*start_tokens, *tour.label_tokens(pair.target_ids[: step + 1])]
    _add_decoder(tour, decoder, y, source, produced)
    return _finish(tour, pair, step, y[row - step :], "x", layers, config.heads)


def _add_decoder(
    tour: TourBuilder, blocks: Sequence[BlockValues], top: Tensor, source: Sequence[str], produced: Sequence[str]
) -> None:
    """Add the stages of the decoder up to its top layer."""
    model, values = tour.model, tour.values
    written, row = values["written"], values["written_row"]
    block = blocks[tour.follow.layer - 1]
    attention, after_self = block.self_attention, block.after_self
    cross, after_cross = block.cross_attention, block.after_cross
    assert attention is not None and cross is not None and after_self is not None and after_cross is not None
    indices = torch.arange(len(written), device=top.device)
    scaled = model.target_embed.embed(torch.tensor(values["written_ids"], device=top.device)) * model.target_embed.scale
    positions = model.target_embed.positions
    position_row = None if positions is None else positions(indices, like=scaled)[row]
    tour.add(
        "transformer/decoder-start",
        target_x=blocks[0].before[: row + 1],
        target_scaled=scaled[row],
        target_positions=position_row,
        target_sum=None if position_row is None else scaled[row] + position_row,
    )
    tour.set(is_causal=model.config.causal)
    set_attention(tour, "decoder", attention, block.before, after_self, written, written, row)
    add_attention(tour, ["self"])
    tour.set(is_causal=False)
    set_attention(tour, "cross", cross, after_self, after_cross, written, source, row, produced)
    add_attention(tour, ["scores", "weights", "mix", "heads"])
    add_feed_forward(tour, "decoder", block, written, row)
    add_layers(tour, "decoder", blocks, top, row)


# --- recurrent translators --------------------------------------------------------------------------------------------


def tour_recurrent_seq2seq(tour: TourBuilder, pair: SequencePair | None) -> Walk:
    """Tour a recurrent encoder–decoder, with attention if the model has it."""
    model, config, follow = tour.model, tour.model.config, tour.follow
    pair = pair or translate_pair(tour.trained, tour.walk_fields["text"])
    step = _follow_step(tour, pair)
    layers = len(model.decoder.cells)
    follow.check(layers, 1)
    batch = pair.batch(model)
    with capture(model) as captured:
        model(batch["source"], batch["source_mask"], batch["inputs"])
    encoder_states = model.encoder_states(batch["source"])[0]
    order = list(range(len(pair.source_ids)))
    if config.reverse:  # END stays at the last position
        order = [*reversed(order[:-1]), order[-1]]
    attention = _attention_step(captured, model, step)
    default = 0 if attention is None else int(attention[2][: max(1, len(pair.source_ids) - 1)].argmax())
    word = tour.index_of_position(follow.word, default, len(pair.source_ids), "token")
    tour.set_input(pair.source, pair.source_ids, [mark_whitespace(token) for token in pair.source_tokens], word)
    written = [END, *pair.target_ids[:-1]][: step + 1]
    embedding = model.source_embed(batch["source"][0])
    tour.set_lookup(model.source_embed, embedding)
    tour.set(
        has_memory=True,
        vocabulary=model.output.weight.shape[0],
        attends=model.attend is not None,
        layers=layers,
        written=tour.label_tokens(written),
        written_ids=written,
        written_name=quote(tour.label_tokens(written)[-1]),
        reads_both_ways=isinstance(model.encoder, BidirectionalStack),
        is_reversed=config.reverse,
        encoder_states=encoder_states,
    )
    tour.add("inputs/text", "inputs/tokens", "inputs/embeddings")
    add_recurrent_encoder(
        tour,
        captured,
        model.encoder,
        "encoder",
        position=order.index(word),
        combine=config.combine,
        encoder_states=encoder_states,
        embedding=embedding[word] if config.residual and model.attend is not None else None,
    )
    _add_recurrent_decoder(tour, captured, step, attention)
    vectors = captured.calls(model.project)[-1].output[0]
    return _finish(tour, pair, step, vectors, "s" if model.readout is None else "result", layers, 0)


def add_recurrent_encoder(
    tour: TourBuilder,
    captured: Captured,
    stack: nn.Module,
    part: str,
    *,
    position: int,
    combine: str,
    encoder_states: Tensor,
    embedding: Tensor | None = None,
) -> None:
    """Add one step of the lowest layer of a recurrent encoder, then the encoder states (S, M).

    `position` is the index of the followed token in reading order. `embedding` is its vector if a residual connection
    adds the vector.
    """
    names = {name: module for name, module in captured.names.items() if isinstance(module, Cell)}
    within = {id(module) for module in stack.modules()}
    steps = {name: captured.steps(name) for name, module in names.items() if id(module) in within}
    backwards = {name for name in steps if ".backwards." in name or ".directions.1." in name}
    forwards = [name for name in steps if name not in backwards]
    tour.set(part=part, chapter=READING)
    first = forwards[0]
    set_cell_step(tour, names[first], steps[first][position])
    tour.add("recurrent/step", key="encoder-step" if part == "encoder" else "step")
    right = steps[forwards[-1]][position].after["h"][0]
    left = steps[sorted(backwards)[-1]][len(encoder_states) - 1 - position].after["h"][0] if backwards else None
    row = tour.values["row"]
    tour.add(
        "recurrent/encoder-states",
        reads_both_ways=bool(backwards),
        combine=combine,
        adds_embedding=embedding is not None,
        from_left=right,
        from_right=left,
        embedding_row=embedding,
        combined_row=None if embedding is None else encoder_states[row] - embedding,
        encoder_states=encoder_states,
        encoder_state_row=encoder_states[row],
    )


ATTENTION = ("recurrent/scores", "recurrent/weights", "recurrent/context")
AttentionStep = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # query, scores, weights, context, coverage before


def _attention_step(captured: Captured, model: Any, step: int) -> AttentionStep | None:
    """Return the inputs and outputs of attention in one step."""
    if model.attend is None:
        return None
    calls, scored = captured.calls(model.attend), captured.calls(model.attend.score)
    number = step if len(calls) > 1 else 0  # either one call for all steps, or one call per step
    within = 0 if len(calls) > 1 else step
    query, coverage = calls[number].inputs[0].flatten(0, -2), calls[number].inputs[2]
    context, weights = (each.flatten(0, -2) for each in calls[number].output)
    scores = scored[number].output.flatten(0, -2)
    covered = None if coverage is None else coverage.flatten(0, -2)[within]
    return query[within], scores[within], weights[within], context[within], covered


def _add_recurrent_decoder(tour: TourBuilder, captured: Captured, step: int, attention: AttentionStep | None) -> None:
    model, config, depth = tour.model, tour.model.config, tour.follow.layer - 1
    order = config.attention.order if config.attention is not None else None
    final_state = captured.input(model.bridge)
    cells = {name: module for name, module in captured.names.items() if module in model.decoder.cells}
    steps = [captured.steps(name) for name in cells]
    y = captured.calls(model.target_embed)[-1].output[0, step]
    tour.add("recurrent/bridge", final_state=final_state, first_state=steps[0][0].before["h"][0])
    tour.add("recurrent/decoder-start", y=y, top_state_before=steps[-1][step].before["h"][0])
    if attention is not None:
        _set_attention_step(tour, attention)
    if attention is not None and order == "bahdanau":
        tour.add(*ATTENTION)
    tour.set(
        part="decoder",
        chapter=WRITING,
        followed=tour.values["written_name"],
        reads_context=order == "bahdanau",
        reads_readout=config.attention is not None and config.attention.input_feeding,
        reads_final_state=config.context == "every",
    )
    symbol = "xₜ" if depth else "yₜ₋₁"
    set_cell_step(tour, list(cells.values())[depth], steps[depth][step], state_letter="s", input_symbol=symbol)
    tour.add("recurrent/step", key="decoder-step")
    if attention is not None and order != "bahdanau":
        tour.add(*ATTENTION)
    if model.readout is not None:
        joined = [*(["yₜ₋₁"] if config.reads_token else []), "s", *(["context"] if attention is not None else [])]
        joined += ["enc"] if config.context == "every" else []
        readout = captured.calls(model.project)[-1].inputs[0][0, step]
        tour.add(
            "recurrent/readout",
            joined=joined,
            d_joined=model.readout.in_features,
            readout=readout,
            y=y,
            top_state=steps[-1][step].after["h"][0],
            final_state=final_state,
        )


def _set_attention_step(tour: TourBuilder, attention: AttentionStep) -> None:
    """Set the details of the largest score, all weights, and the context vector."""
    score, kind = tour.model.attend.score, tour.model.config.attention.score
    query, scores, weights, context, coverage = attention
    encoder_states, best = tour.values["encoder_states"], int(scores.argmax())
    mask = torch.ones(1, len(encoder_states), dtype=torch.bool, device=encoder_states.device)
    key = score.prepare(encoder_states[None], mask)[0, best]
    computed = torch.softmax(scores.double(), dim=-1)
    tour.update_difference(computed, weights)
    tour.update_difference(weights.to(encoder_states.dtype) @ encoder_states, context)
    covered = None
    if coverage is not None:
        covered = coverage[best] * score.covered if kind == "additive" else score.covered.sum() * coverage[best]
    tour.set(
        score=kind,
        scores=scores,
        weights=weights,
        context=context,
        coverage=coverage,
        covered=covered,
        best=best,
        best_name=quote(tour.values["tokens"][best]),
        best_score=scores[best],
        query=query,
        key_best=key,
    )
    if kind == "additive":
        from_s = score.weight_s(query)
        total = from_s + key if covered is None else from_s + key + covered
        tour.set(from_s=from_s, score_sum=total, score_tanh=torch.tanh(total), score_v=score.v.weight[0])
    elif kind == "location":
        tour.set(key_best=score.weight.weight[best])
    elif kind == "scaled-dot":
        tour.set(scaled_score=query @ key / score.query**0.5)
    elif kind == "cosine":
        direction = torch.nn.functional.normalize(query, dim=-1)
        tour.set(query=direction, strength=float(score.strength), scaled_score=score.strength * (direction @ key))


TOURS = {"transformer": tour_transformer, "recurrent-seq2seq": tour_recurrent_seq2seq}
