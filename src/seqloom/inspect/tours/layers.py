"""Values of one layer for a tour: a step of a recurrent cell, or attention and feed-forward of a Transformer block."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqloom.inspect.capture import AttentionValues, BlockValues, Captured, CellStep, block_values, blocks_of
from seqloom.inspect.equations import Equation, symbol_of, trace_equations
from seqloom.inspect.tours.template import quote
from seqloom.inspect.tours.tour import READING, WRITING, TourBuilder
from seqloom.inspect.views.attention import CROSS_ATTENTION, SELF_ATTENTION
from seqloom.nn.backbone import Embedded
from seqloom.nn.cells import Cell

ACTIVATION_NAMES = {"relu": "ReLU", "gelu": "GELU", "gelu-tanh": "GELU", "silu": "SiLU", "swiglu": "SwiGLU"}


# --- recurrent cells --------------------------------------------------------------------------------------------------


def changing_units(cell: Cell, step: CellStep, numbers: int) -> list[int]:
    """Return the units whose states change most in a step, in ascending order of their indices.

    The list is empty if all units are shown, or if the cell has no gates.
    """
    if not cell.gates or numbers >= cell.hidden:
        return []
    change = (step.after["h"][0] - step.before["h"][0]).abs()
    return sorted(change.topk(numbers).indices.tolist())


def set_cell_step(
    tour: TourBuilder, cell: Cell, step: CellStep, *, state_letter: str = "h", input_symbol: str = "xₜ"
) -> None:
    """Set the values of one step of any cell, derived from its equations."""
    x, before = step.x[0], {name: value[0] for name, value in step.before.items()}
    equations = trace_equations(cell, x, before)
    for equation in equations:
        if equation.name in cell.state_names:
            tour.update_difference(equation.value, step.after[equation.name][0].cpu())
    write = partial(_write_symbols, state_letter=state_letter, input_symbol=input_symbol)
    gates = [equation for equation in equations if equation.name in cell.gates]
    content = [equation for equation in equations if equation.name not in cell.gates]
    intermediate = [each for each in content if each.symbol not in (f"{each.name}_t", symbol_of(each.name))]
    intermediate += [each for each in content if each.name not in (*cell.blocks, *cell.state_names)]
    new = [each for each in content if each.name not in cell.state_names and each not in intermediate]
    panels = [panel for each in content for panel in _step_panels(cell, each, write)]
    tour.set(
        hidden=cell.hidden,
        state_names=cell.state_names,
        state_letter=state_letter,
        input_symbol=input_symbol,
        step_inputs=cell.inputs,
        state_before=before["h"],
        state_after=step.after["h"][0],
        states_before=torch.stack([before[name] for name in cell.state_names]),
        states_before_names=[f"{'state' if name == 'h' else 'cell'} {name} before" for name in cell.state_names],
        units=changing_units(cell, step, tour.follow.numbers),
        gates={equation.symbol: cell.gates[equation.name] for equation in gates},
        gate_names=[equation.symbol for equation in gates],
        gate_values=torch.stack([equation.value for equation in gates]) if gates else None,
        content_functions=list(dict.fromkeys(each.function for each in content if each.function)),
        content_symbols=[write(each.symbol) for each in new],
        intermediate_symbols=list(dict.fromkeys(write(each.symbol) for each in intermediate)),
        uses_weights=any(term.operation == "matrix" for each in equations for term in each.terms),
        equation_lines=_equation_lines(cell, equations, write),
        step_panels=panels,
        **{f"step_terms_{number}": panel.terms for number, panel in enumerate(panels)},
    )


def _write_symbols(text: str, state_letter: str, input_symbol: str) -> str:
    """Rewrite symbols for a tour: h_{t-1} becomes hₜ₋₁, and the blocks of the two matrices become W and U."""
    for pattern, replacement in (
        (r"\bW_x\w", "W"),
        (r"\bW_h\w", "U"),
        (r"\bb_\w+", "b"),
        (r"_\{t-1\}", "ₜ₋₁"),
        (r"_t\b", "ₜ"),
        (r"\bh(?=ₜ|̃)", state_letter),
        (r"\bxₜ", input_symbol),
    ):
        text = re.sub(pattern, replacement, text)
    return text


def _equation_lines(cell: Cell, equations: Sequence[Equation], write: Callable[[str], str]) -> list[str]:
    """Return a line for the intermediate values and a line for the new states. Equal right-hand sides are merged."""
    lines: list[str] = []
    for is_state in (False, True):
        symbols_by_side: dict[str, list[str]] = {}
        for equation in equations:
            if (equation.name in cell.state_names) is is_state:
                symbols_by_side.setdefault(write(equation.right_side), []).append(write(equation.symbol))
        lines.append("      ".join(f"{', '.join(symbols)} = {right}" for right, symbols in symbols_by_side.items()))
    return [line for line in lines if line]


class StepPanel(NamedTuple):
    """The computation of one value of a step: the sign, the vector and the label of each term."""

    title: str
    terms: list[tuple[str, Tensor, str]]
    gate: int | None = None


def _step_panels(cell: Cell, equation: Equation, write: Callable[[str], str]) -> list[StepPanel]:
    """Return panels for the products in the sum of a value, and for their sum; gated cells have no such panels."""
    if cell.gates and any(term.operation == "matrix" for term in equation.terms):
        return []
    label = write(equation.symbol)
    if equation.name in cell.state_names:
        label = f"{'state' if equation.name == 'h' else 'cell'} {label[:-1]}"
    panels, is_alone = [], len(equation.terms) == 1 and not equation.function
    for term in equation.terms:
        factors = term.parts("product")
        if len(factors) > 1:
            terms = [("×" if number else "", each.value, write(str(each))) for number, each in enumerate(factors)]
            terms.append(("=", term.value, label if is_alone else write(str(term))))
            gate = next((number for number, factor in enumerate(factors) if str(factor) in cell.gates), None)
            panels.append(StepPanel(write(str(term)), terms, gate))
    if not (is_alone and panels):
        terms = [("+" if number else "", term.value, write(str(term))) for number, term in enumerate(equation.terms)]
        if equation.function and len(terms) > 1:
            terms.append(("=", equation.total, "sum"))
        result = ("→", f"{equation.function}: {label}") if equation.function else ("=", label)
        terms.append((result[0], equation.value, result[1]))
        panels.append(StepPanel(write(equation.formula), terms))
    return panels


# --- blocks of a Transformer ------------------------------------------------------------------------------------------


def set_form(
    tour: TourBuilder, activation: str, norm: str, norm_first: bool, residual: bool = True, scale: bool = True
) -> None:
    """Set the structure of the blocks of a model."""
    tour.set(
        activation=ACTIVATION_NAMES[activation],
        has_norm=norm != "none",
        norm_first=norm_first or norm == "none",
        has_residual=residual,
        is_scaled=scale,
        has_last_norm=norm_first,
    )


def read_blocks(tour: TourBuilder, captured: Captured, part: nn.Module) -> list[BlockValues]:
    """Return the values of each block of an encoder, a decoder or a backbone."""
    norm_first, residual = tour.values["norm_first"], tour.values["has_residual"]
    return [block_values(captured, block, norm_first=norm_first, residual=residual) for block in blocks_of(part)]


def set_embedding(tour: TourBuilder, embedded: Embedded, ids: Sequence[int], x: Tensor, kind: str) -> None:
    """Set the values of an embedding layer. `x` (T, D) is the input of the first block."""
    tokens = torch.tensor(list(ids), device=x.device)
    rows = embedded.embed(tokens)
    scaled, row = rows * embedded.scale, min(tour.values["row"], len(ids) - 1)
    indices = torch.arange(len(tokens), device=x.device)
    positions = None if embedded.positions is None else embedded.positions(indices, like=scaled)
    segments = None if embedded.segments is None else embedded.segments.weight[0].expand_as(scaled)
    tour.set_lookup(embedded.embed, rows)
    set_positions(tour, scaled, positions, segments, x, row)
    tour.set(
        positions_kind=kind,
        embedding_scale=embedded.scale,
        has_embedding_norm=not isinstance(embedded.norm, nn.Identity),
    )


def set_positions(
    tour: TourBuilder, scaled: Tensor, positions: Tensor | None, segments: Tensor | None, x: Tensor, row: int
) -> None:
    """Set the vectors (T, D), and the positional encodings and segments that are added to the vectors."""
    parts = [part for part in (scaled, positions, segments) if part is not None]
    tour.set(
        x=x,
        d_model=x.shape[1],
        scaled_row=scaled[row],
        positions=positions,
        position_row=None if positions is None else positions[row],
        position_names=[f"position {index + 1}" for index in range(len(x))],
        segments=segments,
        segment_row=None if segments is None else segments[row],
        embedding_sum=sum(part[row] for part in parts),
    )


def set_attention(
    tour: TourBuilder,
    part: str,
    values: AttentionValues,
    before: Tensor,
    after: Tensor,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    row: int,
    produced: Sequence[str] = (),
) -> None:
    """Set the values of attention for one position and one head.

    Only the positions of `query_tokens` are used. In cross-attention, `produced` contains the tokens that the queries
    produce.
    """
    tour.update_difference(values.mixtures, values.captured_mixtures)
    rows, head = len(query_tokens), tour.follow.head - 1
    columns = len(key_tokens)
    scores, weights = values.scores[:, :rows, :columns], values.weights[:, :rows, :columns]
    seen = [int(index) for index in torch.isfinite(scores[head, row]).nonzero()]
    seen_scores = scores[head, row, seen]
    best = seen[int(seen_scores.argmax())]
    best_name = quote(key_tokens[best])
    if list(key_tokens).count(key_tokens[best]) > 1:
        best_name += f" (token {best + 1})"
    seen_tokens = [key_tokens[index] for index in seen]
    residual = tour.values["has_residual"]
    output = values.output[:rows]
    _set_part(tour, part, query_tokens, row)
    tour.set(
        attention_part=part if part != "text" else "decoder" if tour.values["is_causal"] else "encoder",
        heads=len(values.q),
        head_index=head,
        head_names=[f"head\N{NO-BREAK SPACE}{number + 1}" for number in range(len(values.q))],
        d_head=values.q.shape[2],
        d_model=before.shape[1],
        q=values.q[head, :rows],
        q_row=values.q[head, row : row + 1],
        q_vector=values.q[head, row],
        seen_tokens=seen_tokens,
        seen_names=[quote(token) for token in seen_tokens],
        k_seen=values.k[head, seen],
        v_seen=values.v[head, seen],
        k_best=values.k[head, best],
        best_name=best_name,
        best_seen=seen.index(best),
        best_score=scores[head, row, best],
        scores=seen_scores,
        weights=weights[head],
        weights_row=weights[head, row],
        weights_seen=weights[head, row, seen],
        weights_by_head=weights[:, row, seen],
        row_names=[quote(token) for token in produced or query_tokens],
        column_names=[quote(token) for token in key_tokens],
        axes=CROSS_ATTENTION if produced else SELF_ATTENTION,
        mixture=values.mixtures[head, row],
        before_attention_row=before[row],
        attended_row=output[row],
        attention_sum=before[row] + output[row] if residual else output[row],
        after_attention=after[:rows],
        after_attention_row=after[row],
    )


ATTENTION_STAGES = ("queries", "scores", "weights", "mix", "heads")


def add_attention(tour: TourBuilder, sections: Sequence[str] = ATTENTION_STAGES) -> None:
    """Add the stages of attention."""
    for section in sections:
        tour.add(f"transformer/{section}", key=f"{tour.values['part']}-{section}")


def _set_part(tour: TourBuilder, part: str, query_tokens: Sequence[str], row: int) -> None:
    """Set the name of the model part, its tokens, and the followed token."""
    tour.set(
        part=part,
        chapter=READING if part in ("text", "encoder") else WRITING,
        query_tokens=list(query_tokens),
        query_index=row,
        query_token=[query_tokens[row]],
        query_names=[quote(query_tokens[row])],
        name=quote(query_tokens[row]),
    )


def add_feed_forward(tour: TourBuilder, part: str, block: BlockValues, query_tokens: Sequence[str], row: int) -> None:
    """Add the feed-forward layer of a block."""
    values = block.before_feed_forward, block.feed_forward_output, block.after
    before, fed, after = (each[: len(query_tokens)] for each in values)
    _set_part(tour, part, query_tokens, row)
    tour.set(
        d_model=before.shape[1],
        d_ff=block.features.shape[1],
        features=block.features[row : row + 1],
        active_features=int((block.features[row] > 0).sum()),
        before_feed_row=before[row],
        feed_output_row=fed[row],
        feed_sum=before[row] + fed[row] if tour.values["has_residual"] else fed[row],
        after_feed=after,
        after_feed_row=after[row],
    )
    tour.add("transformer/feed", key=f"{part}-feed")


def add_layers(tour: TourBuilder, part: str, blocks: Sequence[BlockValues], top: Tensor, row: int) -> None:
    """Add the vectors of the followed token after each layer and after the final norm."""
    names = ["input", *(f"after layer {depth + 1}" for depth in range(len(blocks)))]
    vectors = [blocks[0].before[row], *(block.after[row] for block in blocks)]
    if tour.values["has_last_norm"]:
        names.append("after the final norm")
        vectors.append(top[row])
    tour.add(
        "transformer/layers",
        key=f"{part}-layers",
        depth=len(blocks),
        top=top[: len(tour.values["query_tokens"])],
        layer_vectors=torch.stack(vectors),
        layer_vector_names=names,
        last_layer_vector=len(names) - 1,
    )


def add_block(
    tour: TourBuilder, part: str, blocks: Sequence[BlockValues], top: Tensor, tokens: Sequence[str], row: int
) -> None:
    """Add the followed layer of an encoder in detail, and a summary of the other layers."""
    block = blocks[tour.follow.layer - 1]
    if block.self_attention is not None and block.after_self is not None:
        set_attention(tour, part, block.self_attention, block.before, block.after_self, tokens, tokens, row)
        add_attention(tour)
    add_feed_forward(tour, part, block, tokens, row)
    add_layers(tour, part, blocks, top, row)
