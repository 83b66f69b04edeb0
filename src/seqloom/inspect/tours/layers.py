"""The values of one layer for a tour: a step of a recurrent cell, or the attention and the feed-forward of a block."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seqloom.inspect.capture import AttentionValues, BlockValues, Captured, CellStep, block_values, blocks_of
from seqloom.inspect.equations import Equation, symbol_of, trace_equations
from seqloom.inspect.tours.template import quote
from seqloom.inspect.tours.tour import Tour
from seqloom.inspect.views.attention import CROSS_ATTENTION, SELF_ATTENTION
from seqloom.nn.backbone import Embedded
from seqloom.nn.cells import Cell

SHOWN_AS = {"relu": "ReLU", "gelu": "GELU", "gelu-tanh": "GELU", "silu": "SiLU", "swiglu": "SwiGLU"}


# --- recurrent cells --------------------------------------------------------------------------------------------------


def changing_units(cell: Cell, step: CellStep, numbers: int) -> list[int]:
    """The units whose state a step changes most, in their order: there the gates have something to tell. Empty where
    all of them are shown, or where there are no gates: then the first ones do as well."""
    if not cell.gates or numbers >= cell.hidden:
        return []
    moved = (step.after["h"][0] - step.before["h"][0]).abs()
    return sorted(moved.topk(numbers).indices.tolist())


def set_cell_step(tour: Tour, cell: Cell, step: CellStep, *, state_letter: str = "h", input_symbol: str = "xₜ") -> None:
    """One step of a cell by its equations, whatever cell it is."""
    x, before = step.x[0], {name: value[0] for name, value in step.before.items()}
    equations = trace_equations(cell, x, before)
    for equation in equations:
        if equation.name in cell.state_names:
            tour.compare(equation.value, step.after[equation.name][0].cpu())
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
    """Symbols as a tour writes them: hₜ₋₁ for h_{t-1}, W and U for the blocks of the two matrices."""
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
    """What is computed on the way in one line, the new states in another; what is made alike stands together."""
    lines: list[str] = []
    for is_state in (False, True):
        alike: dict[str, list[str]] = {}
        for equation in equations:
            if (equation.name in cell.state_names) is is_state:
                alike.setdefault(write(equation.right_side), []).append(write(equation.symbol))
        lines.append("      ".join(f"{', '.join(symbols)} = {right}" for right, symbols in alike.items()))
    return [line for line in lines if line]


class StepPanel(NamedTuple):
    """How a value of a step is computed: sign, vector and label of each term."""

    title: str
    terms: list[tuple[str, Tensor, str]]
    gate: int | None = None


def _step_panels(cell: Cell, equation: Equation, write: Callable[[str], str]) -> list[StepPanel]:
    """The products of a value one by one, then their sum. Weighted sums of a gated cell are left out."""
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
    tour: Tour, activation: str, norm: str, norm_first: bool, residual: bool = True, scale: bool = True
) -> None:
    """How the blocks of a model are put together."""
    tour.set(
        activation=SHOWN_AS[activation],
        has_norm=norm != "none",
        norm_first=norm_first or norm == "none",
        has_residual=residual,
        is_scaled=scale,
        has_last_norm=norm_first,
    )


def read_blocks(tour: Tour, captured: Captured, part: nn.Module) -> list[BlockValues]:
    """What each block of an encoder, a decoder or a backbone computed."""
    norm_first, residual = tour.values["norm_first"], tour.values["has_residual"]
    return [block_values(captured, block, norm_first=norm_first, residual=residual) for block in blocks_of(part)]


def set_embedding(tour: Tour, embedded: Embedded, ids: Sequence[int], x: Tensor, kind: str) -> None:
    """What an `Embedded` made of tokens, part by part; x (T, D) is what goes into the first block."""
    tokens = torch.tensor(list(ids), device=x.device)
    rows = embedded.embed(tokens)
    scaled, row = rows * embedded.scale, min(tour.values["row"], len(ids) - 1)
    places = torch.arange(len(tokens), device=x.device)
    positions = None if embedded.positions is None else embedded.positions(places, like=scaled)
    segments = None if embedded.segments is None else embedded.segments.weight[0].expand_as(scaled)
    tour.set_lookup(embedded.embed, rows)
    set_positions(tour, scaled, positions, segments, x, row)
    tour.set(
        positions_kind=kind,
        embedding_scale=embedded.scale,
        has_embedding_norm=not isinstance(embedded.norm, nn.Identity),
    )


def set_positions(
    tour: Tour, scaled: Tensor, positions: Tensor | None, segments: Tensor | None, x: Tensor, row: int
) -> None:
    """Vectors (T, D) and what is added to them."""
    parts = [part for part in (scaled, positions, segments) if part is not None]
    tour.set(
        x=x,
        d_model=x.shape[1],
        scaled_row=scaled[row],
        positions=positions,
        position_row=None if positions is None else positions[row],
        place_names=[f"place {place + 1}" for place in range(len(x))],
        segments=segments,
        segment_row=None if segments is None else segments[row],
        embedding_sum=sum(part[row] for part in parts),
    )


def set_attention(
    tour: Tour,
    part: str,
    values: AttentionValues,
    before: Tensor,
    after: Tensor,
    asking: Sequence[str],
    answering: Sequence[str],
    row: int,
    produced: Sequence[str] = (),
) -> None:
    """One attention, for one position and one head. Only the first positions count, as many as `asking` has.

    `produced` are, of cross-attention, the tokens that the positions produce.
    """
    tour.compare(values.mixtures, values.captured_mixtures)
    rows, head = len(asking), tour.follow.head - 1
    columns = len(answering)
    scores, weights = values.scores[:, :rows, :columns], values.weights[:, :rows, :columns]
    seen = [int(place) for place in torch.isfinite(scores[head, row]).nonzero()]
    seen_scores = scores[head, row, seen]
    best = seen[int(seen_scores.argmax())]
    best_name = quote(answering[best])
    if list(answering).count(answering[best]) > 1:
        best_name += f" (token {best + 1})"
    seen_tokens = [answering[place] for place in seen]
    residual = tour.values["has_residual"]
    output = values.output[:rows]
    _set_part(tour, part, asking, row)
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
        row_names=[quote(token) for token in produced or asking],
        column_names=[quote(token) for token in answering],
        axes=CROSS_ATTENTION if produced else SELF_ATTENTION,
        mixture=values.mixtures[head, row],
        before_attention_row=before[row],
        attended_row=output[row],
        attention_sum=before[row] + output[row] if residual else output[row],
        after_attention=after[:rows],
        after_attention_row=after[row],
    )


ATTENTION_STAGES = ("queries", "scores", "weights", "mix", "heads")


def add_attention(tour: Tour, sections: Sequence[str] = ATTENTION_STAGES) -> None:
    """The stages of an attention."""
    for section in sections:
        tour.add(f"transformer/{section}", key=f"{tour.values['part']}-{section}")


def _set_part(tour: Tour, part: str, asking: Sequence[str], row: int) -> None:
    """Which part of the model this is, the tokens it computes with, and the one that is followed."""
    tour.set(
        part=part,
        chapter="Reading" if part in ("text", "encoder") else "Writing",
        asking=list(asking),
        asking_row=row,
        asking_token=[asking[row]],
        asking_name=[quote(asking[row])],
        name=quote(asking[row]),
    )


def add_feed_forward(tour: Tour, part: str, block: BlockValues, asking: Sequence[str], row: int) -> None:
    """The feed-forward layer of a block."""
    before, fed, after = (each[: len(asking)] for each in (block.before_feed_forward, block.fed, block.after))
    _set_part(tour, part, asking, row)
    tour.set(
        d_model=before.shape[1],
        d_ff=block.features.shape[1],
        features=block.features[row : row + 1],
        awake=int((block.features[row] > 0).sum()),
        before_feed_row=before[row],
        fed_row=fed[row],
        feed_sum=before[row] + fed[row] if tour.values["has_residual"] else fed[row],
        after_feed=after,
        after_feed_row=after[row],
    )
    tour.add("transformer/feed", key=f"{part}-feed")


def add_layers(tour: Tour, part: str, blocks: Sequence[BlockValues], top: Tensor, row: int) -> None:
    """How the vector of the followed token changes through all layers, and by the norm after them."""
    names = ["goes in", *(f"after layer {depth + 1}" for depth in range(len(blocks)))]
    vectors = [blocks[0].before[row], *(block.after[row] for block in blocks)]
    if tour.values["has_last_norm"]:
        names.append("normed once more")
        vectors.append(top[row])
    tour.add(
        "transformer/layers",
        key=f"{part}-layers",
        depth=len(blocks),
        top=top[: len(tour.values["asking"])],
        vectors_up=torch.stack(vectors),
        names_up=names,
        last_up=len(names) - 1,
    )


def add_block(
    tour: Tour, part: str, blocks: Sequence[BlockValues], top: Tensor, tokens: Sequence[str], row: int
) -> None:
    """The followed layer of a stack that reads, and the others in brief."""
    block = blocks[tour.follow.layer - 1]
    if block.self_attention is not None and block.after_self is not None:
        set_attention(tour, part, block.self_attention, block.before, block.after_self, tokens, tokens, row)
        add_attention(tour)
    add_feed_forward(tour, part, block, tokens, row)
    add_layers(tour, part, blocks, top, row)
