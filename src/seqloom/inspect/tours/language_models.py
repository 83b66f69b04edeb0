"""Tours of models that read one text: language models, which continue it, and BERTs, which fill its gaps."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.inspect.capture import block_values, blocks_of, capture
from seqloom.inspect.tours.layers import Form, add_block, changing_units, set_cell_step, set_embedding, set_form
from seqloom.inspect.tours.template import quoted, visible
from seqloom.inspect.tours.tour import Tour, Walk, check_length, logits_of
from seqloom.inspect.views.texts import Said, one_line, unknown_notes
from seqloom.models.window_lm import ACTIVATIONS, windows
from seqloom.text.base import END
from seqloom.text.specials import framed, read_gaps

CARRIED = 12  # units of a memory over time that are shown, at least
WINDOW_ACTIVATIONS = {"tanh": "tanh", "relu": "ReLU", "sigmoid": "σ", "gelu": "GELU"}


class _Continuation:
    """What all language models share: a text is read up to one of its tokens, and the next one is predicted."""

    def __init__(self, tour: Tour) -> None:
        self.tour, writer = tour, tour.trained
        self.ids = [END, *tour.tokenizer.encode(writer.as_taught(tour.walk["text"], whole=False))]
        check_length(self.ids)
        self.row = tour.choose(tour.follow.word, len(self.ids) - 1, len(self.ids), "token")
        tour.read(self.ids, tour.names(self.ids), self.row)
        tour.set(
            is_causal=True,
            so_far=tour.values["tokens"][: self.row + 1],
            layer_names=[],
            is_tied=bool(tour.model.config.tied),
        )

    def finish(
        self, vectors: Tensor, letter: str, layers: int, heads: int, next_window: Sequence[int] | None = None
    ) -> Walk:
        """The last stages; `vectors` (T, D) go into the output layer. The next step reads the new token after
        `next_window`, or after all tokens so far."""
        tour, row, ids = self.tour, self.row, self.ids
        all_logits = torch.stack([logits_of(tour.model.output, vector) for vector in vectors])
        is_given = row + 1 < len(ids)
        chosen = ids[row + 1] if is_given else int(all_logits[row].argmax())
        names = [tour.tokenizer.token(token) for token in range(all_logits.shape[1])]
        tour.set_output(tour.model.output, vectors[row], names, chosen, letter)
        own = tour.model.step(
            torch.tensor([ids[: row + 1]], device=vectors.device), tour.model.start(rows=1)
        ).log_probs[0]
        tour.compare_log_probs(own)
        shares = torch.softmax(all_logits.double(), dim=-1)
        is_end = chosen == END
        if tour.values["has_memory"] and not (is_end and row):
            read: Sequence[int] = []
        else:
            read = ids[: row + 1] if next_window is None else next_window
        following = [*ids[1:], int(shares[-1].argmax())]
        tour.set(
            is_given=is_given,
            is_end=is_end,
            next_ids=[*read, chosen],
            next_tokens=tour.names([*read, chosen]),
            last_next=len(read),
            step=row,
            steps=[
                [t + 1, quoted(now), quoted(names[after]), float(shares[t, after])]
                for t, (now, after) in enumerate(zip(tour.values["tokens"], following, strict=True))
            ],
        )
        tour.add("outputs/logits")
        tour.add("outputs/softmax")
        tour.add("outputs/next-token", key="next")
        text, unknown = tour.walk["text"], tour.tokenizer.unknown_pieces(tour.walk["text"])
        at_end = row == len(ids) - 1 and chosen != END
        return tour.finish(
            visible(names[chosen]),
            layers,
            heads,
            onward=text + tour.trained.continue_text(ids, [chosen]) if at_end else None,
            notes=unknown_notes(unknown, "text"),
        )

    def answer(self, vectors: Tensor) -> str:
        """The token that comes, as the map at the beginning announces it."""
        logits = logits_of(self.tour.model.output, vectors[self.row])
        self.tour.set(vocabulary=len(logits))
        chosen = self.ids[self.row + 1] if self.row + 1 < len(self.ids) else int(logits.argmax())
        return visible(self.tour.tokenizer.token(chosen))


def tour_recurrent_lm(tour: Tour, _: Said | None) -> Walk:
    model, follow = tour.model, tour.follow
    layers = len(model.stack.cells)
    text = _Continuation(tour)
    follow.check(layers, 1)
    with capture(model) as captured:
        x = model.embed(torch.tensor([text.ids], device=tour.trained.device))
        handed_on, _ = model.stack.run_layers(x)
        vectors = model.project(handed_on[-1])[0]
    cells = model.stack.cells
    steps = [captured.steps(name) for name in captured.names if captured.names[name] in cells]
    step, cell = steps[follow.layer - 1][text.row], cells[follow.layer - 1]
    is_projected = not isinstance(model.project, nn.Identity)
    tour.set(layers=layers, has_memory=True, answer=text.answer(vectors))
    tour.set_lookup(model.embed, x[0])
    set_cell_step(tour, cell, step)
    for section in ("inputs/text", "inputs/tokens", "inputs/embeddings", "recurrent/memory", "recurrent/step"):
        tour.add(section)
    tour.add(
        "recurrent/carried",
        lookup_tokens=tour.values["so_far"],
        states=torch.stack([each.after["h"][0] for each in steps[follow.layer - 1]])[: text.row + 1],
        carried_numbers=max(follow.numbers, CARRIED),
        carried_units=changing_units(cell, step, max(follow.numbers, CARRIED)),
    )
    if layers > 1:
        tour.add(
            "recurrent/stack",
            key="layers",
            handed_on=torch.stack([layer[0, text.row] for layer in handed_on]),
            layer_names=[f"layer {depth + 1}" for depth in range(layers)],
            top_layer=layers - 1,
            connections=model.config.connections,
        )
    tour.set(vector_origin="projection" if is_projected else "state", projected_from="the state h")
    return text.finish(vectors, "result" if is_projected else "h", layers, 0)


def tour_window_lm(tour: Tour, _: Said | None) -> Walk:
    model, config, follow = tour.model, tour.model.config, tour.follow
    layers = len(model.hidden)
    text = _Continuation(tour)
    follow.check(layers, 1)
    row = text.row
    tokens = torch.tensor([text.ids], device=tour.trained.device)
    seen = windows(tokens, model.start(rows=1).carry)[0][0]  # (T, K)
    x = model.embed(seen).flatten(-2)  # (T, K·D)
    sums: list[Tensor] = []
    hidden = [x]
    for layer in model.hidden:
        sums.append(layer(hidden[-1]))
        hidden.append(ACTIVATIONS[config.activation](sums[-1]))
    is_joined = bool(config.direct and layers)
    joined = torch.cat([hidden[-1], x], dim=-1) if is_joined else hidden[-1]
    vectors = model.project(joined)
    window_ids = seen[row].tolist()
    tour.set_lookup(model.embed, model.embed(tokens[0]))
    tour.set(
        layers=layers,
        answer=text.answer(vectors),
        window=config.window,
        window_ids=window_ids,
        window_tokens=tour.names(window_ids),
        window_last=config.window - 1,
        window_row=x[row],
        window_vectors=x[row].view(config.window, config.embedding),
        top_hidden=hidden[-1][row],
        joined_row=joined[row],
    )
    for section in ("inputs/text", "inputs/tokens", "inputs/embeddings", "other/window"):
        tour.add(section)
    if layers:
        depth = follow.layer - 1
        h, layer = hidden[depth + 1][row], model.hidden[depth]
        unit = int(h.abs().argmax())
        tour.add(
            "other/hidden",
            activation=WINDOW_ACTIVATIONS[config.activation],
            below=hidden[depth][row],
            h=h,
            sums=sums[depth][row],
            unit=unit,
            unit_weight=layer.weight[unit],
            unit_bias=layer.bias[unit],
            unit_sum=sums[depth][row, unit],
        )
    if is_joined:
        tour.add("other/direct")
    is_projected = not isinstance(model.project, nn.Identity)
    letter = "v" if is_joined else "h" if layers else "x"
    tour.set(vector_origin="projection" if is_projected else "itself", projected_from=letter)
    return text.finish(vectors, "result" if is_projected else letter, layers, 0, next_window=window_ids[1:])


def tour_gpt(tour: Tour, _: Said | None) -> Walk:
    model, config = tour.model, tour.model.config
    text = _Continuation(tour)
    if len(text.ids) > config.window:
        raise UsageError(
            f"{tour.trained.name} sees {config.window} tokens at once, and the text has {len(text.ids)}: shorten it."
        )
    rows = text.row + 1  # what has been read by then: no token attends to later ones
    top = _add_body(tour, model.body, torch.tensor([text.ids], device=tour.trained.device), rows, text.answer)
    return text.finish(top, "x", len(model.body.blocks), config.heads)


def tour_bert(tour: Tour, _: Said | None) -> Walk:
    reader, model, tokenizer = tour.trained, tour.model, tour.tokenizer
    text = one_line(tour.walk["text"], "text")
    gaps = read_gaps(tokenizer, reader.specials, text)
    ids = framed(reader.specials, "bert", gaps.ids).tokens
    check_length(ids)
    if reader.longest is not None and len(ids) > reader.longest:
        raise UsageError(
            f"{reader.name} reads {reader.longest} tokens at once, and the text has {len(ids)}: shorten it."
        )
    usual = gaps.masks[0] + 1 if gaps.masks else min(1, len(ids) - 1)
    row = tour.choose(tour.follow.word, usual, len(ids), "token")
    names = reader.specials.names
    tour.read(ids, [names.get(token) or visible(tokenizer.token(token)) for token in ids], row)
    is_untrained = lacks_output(reader)
    tour.set(text=text, is_untrained=is_untrained, is_causal=False)
    tour.walk["text"] = text
    tokens = torch.tensor([ids], device=reader.device)
    weight = model.body.embed.weight[: model.vocabulary] if model.output is None else model.output

    def scored(top: Tensor) -> tuple[Tensor, Tensor]:
        vector = model.dense_norm(model.activation(model.dense(top[row])))
        return vector, weight @ vector + model.bias

    def announced(top: Tensor) -> str:
        logits = scored(top)[1]
        tour.set(vocabulary=len(logits))
        return "a vector for each token" if is_untrained else visible(tokenizer.token(int(logits.argmax())))

    top = _add_body(tour, model.body, tokens, len(ids), announced)
    own = model.read(tokens)
    tour.set(top=top, d_model=top.shape[1])
    if is_untrained:
        tour.compare(top, own[0])
        tour.add("outputs/next-vectors", key="next")
    else:
        vector, logits = scored(top)
        best = int(logits.argmax())
        spelled = [tokenizer.token(token) for token in range(len(logits))]
        tour.set_scores(logits, weight, model.bias, vector, spelled, best, "result")
        tour.compare_log_probs(model.masked_logits(own)[0, row])
        shares = tour.values["probabilities"]
        likeliest = shares.argsort(descending=True, stable=True)[:5].tolist()
        tour.set(
            top_row=top[row],
            is_tied=model.output is None,
            is_gap=ids[row] == reader.specials.mask,
            best_rows=[
                [place + 1, quoted(spelled[token]), float(shares[token])] for place, token in enumerate(likeliest)
            ],
        )
        for section in ("told", "logits", "softmax"):
            tour.add(f"outputs/{section}")
        tour.add("outputs/next-gap", key="next")
    return tour.finish(tour.values["answer"], len(model.body.blocks), model.body.shape.heads)


def lacks_output(reader: Any) -> bool:
    """Whether a BERT was imported without the layers that fill gaps: what they would say means nothing."""
    return "dense.weight" in getattr(reader.run, "data", {}).get("imported", {}).get("drawn", ())


def _add_body(tour: Tour, body: Any, tokens: Tensor, rows: int, announce: Any) -> Tensor:
    """From ids (1, T) to the top of a Transformer, h (T, D); the first `rows` positions are shown."""
    shape, follow = body.shape, tour.follow
    follow.check(len(body.blocks), shape.heads)
    set_form(tour, Form(shape.activation, shape.norm, shape.norm_first))
    with capture(body) as captured:
        body.attentions(tokens)
    norm_first = tour.values["norm_first"]
    blocks = [block_values(captured, block, norm_first=norm_first, residual=True) for block in blocks_of(body)]
    top = body.norm(blocks[-1].after)
    read = captured.calls(body.embedded.embed)[-1].inputs[0][0].tolist()
    set_embedding(tour, body.embedded, read[:rows], blocks[0].before[:rows], shape.positions.kind)
    tour.set(answer=announce(top), layers=len(body.blocks), attends=True)
    shown = tour.values["tokens"][:rows]
    tour.add("inputs/text")
    tour.add("inputs/tokens")
    tour.set(lookup_tokens=shown)
    tour.add("inputs/embeddings")
    tour.add("inputs/positions")
    add_block(tour, "text", blocks, top, shown, tour.values["row"], is_normed=shape.norm_first)
    return top


TOURS = {
    "recurrent-lm": tour_recurrent_lm,
    "window-lm": tour_window_lm,
    "gpt": tour_gpt,
    "bert": tour_bert,
}
