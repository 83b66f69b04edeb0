"""Tours of models that read one text: language models, which continue it, and BERTs, which fill its gaps."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UsageError
from seqloom.inspect.capture import TrainedModel, capture
from seqloom.inspect.tours.layers import (
    add_block,
    changing_units,
    read_blocks,
    set_cell_step,
    set_embedding,
    set_form,
)
from seqloom.inspect.tours.template import quoted, visible
from seqloom.inspect.tours.tour import Tour, Walk, compute_logits
from seqloom.inspect.views.texts import Said, one_line, unknown_notes
from seqloom.models.window_lm import ACTIVATIONS, windows
from seqloom.text.base import END
from seqloom.text.specials import framed, read_gaps

CARRIED = 12  # units of a memory over time that are shown, at least
WINDOW_ACTIVATIONS = {"tanh": "tanh", "relu": "ReLU", "sigmoid": "σ", "gelu": "GELU"}


class _Continuation:
    """What all language models share: a text is read up to one of its tokens, and the next one is predicted."""

    def __init__(self, tour: Tour) -> None:
        self.tour, text = tour, tour.walk["text"]
        self.ids = [END, *tour.tokenizer.encode(tour.trained.as_taught(text, whole=False))]
        self.row = tour.choose(tour.follow.word, len(self.ids) - 1, len(self.ids), "token")
        self.tokens = torch.tensor([self.ids], device=tour.trained.device)
        tour.read(text, self.ids, tour.names(self.ids), self.row)
        tour.set(
            is_causal=True,
            so_far=tour.values["tokens"][: self.row + 1],
            layer_names=[],
            is_tied=bool(tour.model.config.tied),
        )

    def predict(self, vectors: Tensor) -> str:
        """Choose the token that comes, as the map at the beginning announces it; `vectors` (T, D) go into the output
        layer."""
        self.vectors, ids, row = vectors, self.ids, self.row
        self.logits = torch.stack([compute_logits(self.tour.model.output, vector) for vector in vectors])
        self.chosen = ids[row + 1] if row + 1 < len(ids) else int(self.logits[row].argmax())
        self.tour.set(vocabulary=self.logits.shape[1])
        return visible(self.tour.tokenizer.token(self.chosen))

    def finish(self, letter: str, layers: int, heads: int, next_window: Sequence[int] | None = None) -> Walk:
        """The last stages. The next step reads the new token after `next_window`, or after all tokens so far."""
        tour, row, ids, chosen = self.tour, self.row, self.ids, self.chosen
        names = [tour.tokenizer.token(token) for token in range(self.logits.shape[1])]
        tour.set_output(tour.model.output, self.vectors[row], names, chosen, letter)
        tour.compare_log_probs(tour.model.step(self.tokens[:, : row + 1], tour.model.start(rows=1)).log_probs[0])
        shares = torch.softmax(self.logits.double(), dim=-1)
        is_end = chosen == END
        if tour.values["has_memory"] and not (is_end and row):
            read: Sequence[int] = []
        else:
            read = ids[: row + 1] if next_window is None else next_window
        following = [*ids[1:], int(shares[-1].argmax())]
        tour.set(
            is_given=row + 1 < len(ids),
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
        tour.add("outputs/logits", "outputs/softmax")
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


def tour_recurrent_lm(tour: Tour, _: Said | None) -> Walk:
    """A recurrent language model: one step of a cell, and what is handed on."""
    model, follow = tour.model, tour.follow
    layers = len(model.stack.cells)
    text = _Continuation(tour)
    follow.check(layers, 1)
    with capture(model) as captured:
        x = model.embed(text.tokens)
        handed_on, _ = model.stack.run_layers(x)
        vectors = model.project(handed_on[-1])[0]
    cells = model.stack.cells
    steps = [captured.steps(name) for name in captured.names if captured.names[name] in cells]
    step, cell = steps[follow.layer - 1][text.row], cells[follow.layer - 1]
    is_projected = not isinstance(model.project, nn.Identity)
    tour.set(layers=layers, has_memory=True, answer=text.predict(vectors))
    tour.set_lookup(model.embed, x[0])
    set_cell_step(tour, cell, step)
    tour.add("inputs/text", "inputs/tokens", "inputs/embeddings", "recurrent/memory", "recurrent/step")
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
    return text.finish("result" if is_projected else "h", layers, 0)


def tour_window_lm(tour: Tour, _: Said | None) -> Walk:
    """A feed-forward language model: a window of tokens, and hidden layers."""
    model, config, follow = tour.model, tour.model.config, tour.follow
    layers = len(model.hidden)
    text = _Continuation(tour)
    follow.check(layers, 1)
    row = text.row
    seen = windows(text.tokens, model.start(rows=1).carry)[0][0]  # (T, K)
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
    tour.set_lookup(model.embed, model.embed(text.tokens[0]))
    tour.set(
        layers=layers,
        answer=text.predict(vectors),
        window=config.window,
        window_ids=window_ids,
        window_tokens=tour.names(window_ids),
        window_last=config.window - 1,
        window_row=x[row],
        window_vectors=x[row].view(config.window, config.embedding),
        top_hidden=hidden[-1][row],
        joined_row=joined[row],
    )
    tour.add("inputs/text", "inputs/tokens", "inputs/embeddings", "other/window")
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
    return text.finish("result" if is_projected else letter, layers, 0, next_window=window_ids[1:])


def tour_gpt(tour: Tour, _: Said | None) -> Walk:
    """A GPT: blocks of causal attention."""
    model, config = tour.model, tour.model.config
    text = _Continuation(tour)
    if len(text.ids) > config.window:
        raise UsageError(
            f"{tour.trained.name} sees {config.window} tokens at once, and the text has {len(text.ids)}: shorten it."
        )
    rows = text.row + 1  # what has been read by then: no token attends to later ones
    _add_backbone(tour, model.body, text.tokens, rows, text.predict)
    return text.finish("x", len(model.body.blocks), config.heads)


def tour_bert(tour: Tour, _: Said | None) -> Walk:
    """A masked language model: what may stand at the token that is followed."""
    reader, model, tokenizer = tour.trained, tour.model, tour.tokenizer
    text = one_line(tour.walk["text"], "text")
    gaps = read_gaps(tokenizer, reader.specials, text)
    ids = framed(reader.specials, "bert", gaps.ids).tokens
    usual = gaps.masks[0] + 1 if gaps.masks else min(1, len(ids) - 1)
    row = tour.choose(tour.follow.word, usual, len(ids), "token")
    names = reader.specials.names
    tour.read(text, ids, [names.get(token) or visible(tokenizer.token(token)) for token in ids], row)
    if reader.longest is not None and len(ids) > reader.longest:
        raise UsageError(
            f"{reader.name} reads {reader.longest} tokens at once, and the text has {len(ids)}: shorten it."
        )
    is_untrained = lacks_output(reader)
    tour.set(is_untrained=is_untrained, is_causal=False)
    tokens = torch.tensor([ids], device=reader.device)
    weight = model.body.embed.weight[: model.vocabulary] if model.output is None else model.output

    def compute_scores(top: Tensor) -> tuple[Tensor, Tensor]:
        vector = model.dense_norm(model.activation(model.dense(top[row])))
        return vector, weight @ vector + model.bias

    def predict(top: Tensor) -> str:
        logits = compute_scores(top)[1]
        tour.set(vocabulary=len(logits))
        return "a vector for each token" if is_untrained else visible(tokenizer.token(int(logits.argmax())))

    top = _add_backbone(tour, model.body, tokens, len(ids), predict)
    captured = model.read(tokens)
    tour.set(top=top, d_model=top.shape[1])
    if is_untrained:
        tour.compare(top, captured[0])
        tour.add("outputs/next-vectors", key="next")
    else:
        vector, logits = compute_scores(top)
        words = [tokenizer.token(token) for token in range(len(logits))]
        tour.set_scores(logits, (weight, model.bias), vector, words, int(logits.argmax()), "result")
        tour.compare_log_probs(model.masked_logits(captured)[0, row])
        tour.set(
            top_row=top[row],
            is_tied=model.output is None,
            is_gap=ids[row] == reader.specials.mask,
            best_rows=[[rank + 1, quoted(words[token]), p] for rank, (token, p) in enumerate(tour.likeliest())],
        )
        tour.add("outputs/told", "outputs/logits", "outputs/softmax")
        tour.add("outputs/next-gap", key="next")
    return tour.finish(tour.values["answer"], len(model.body.blocks), model.body.shape.heads)


def lacks_output(reader: TrainedModel) -> bool:
    """Whether a BERT was imported without the layers that fill gaps: what they would say means nothing."""
    return "dense.weight" in reader.run.data.get("imported", {}).get("drawn", ())


def _add_backbone(tour: Tour, body: Any, tokens: Tensor, rows: int, predict: Callable[[Tensor], str]) -> Tensor:
    """From ids (1, T) to the top of a Transformer, h (T, D); the first `rows` positions are shown."""
    shape = body.shape
    tour.follow.check(len(body.blocks), shape.heads)
    set_form(tour, shape.activation, shape.norm, shape.norm_first)
    with capture(body) as captured:
        body.attentions(tokens)
    blocks = read_blocks(tour, captured, body)
    top: Tensor = body.norm(blocks[-1].after)
    read = captured.calls(body.embedded.embed)[-1].inputs[0][0].tolist()
    set_embedding(tour, body.embedded, read[:rows], blocks[0].before[:rows], shape.positions.kind)
    tour.set(answer=predict(top), layers=len(body.blocks), attends=True)
    shown = tour.values["tokens"][:rows]
    tour.add("inputs/text", "inputs/tokens")
    tour.set(lookup_tokens=shown)
    tour.add("inputs/embeddings", "inputs/positions")
    add_block(tour, "text", blocks, top, shown, tour.values["row"])
    return top


TOURS = {
    "recurrent-lm": tour_recurrent_lm,
    "window-lm": tour_window_lm,
    "gpt": tour_gpt,
    "bert": tour_bert,
}
