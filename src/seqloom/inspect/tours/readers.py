"""Tours of models with one input text: language models, masked language models, classifiers and taggers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core import END
from seqloom.core.errors import UsageError
from seqloom.core.iob import marks_spans
from seqloom.inspect.capture import TrainedModel, blocks_of, capture
from seqloom.inspect.tours.layers import (
    add_block,
    changing_units,
    read_blocks,
    set_cell_step,
    set_embedding,
    set_form,
    set_positions,
)
from seqloom.inspect.tours.template import mark_whitespace, quote
from seqloom.inspect.tours.tour import TourBuilder, Walk, compute_logits
from seqloom.inspect.tours.translators import add_recurrent_encoder
from seqloom.inspect.views.texts import SequencePair, one_line, unknown_notes
from seqloom.models.window_lm import ACTIVATIONS, token_windows
from seqloom.nn.backbone import TransformerBackbone
from seqloom.nn.encoders import ConvolutionEncoder, RecurrentEncoder, TransformerEncoder
from seqloom.text.model_inputs import frame_texts, read_gaps
from seqloom.text.word_spans import word_spans

MAX_DECISIONS = 12  # maximum labels of a multi-label classifier in a table
MIN_STATE_UNITS = 12  # minimum number of units for which the states over time are shown
WINDOW_ACTIVATIONS = {"tanh": "tanh", "relu": "ReLU", "sigmoid": "σ", "gelu": "GELU"}


class _Continuation:
    """The common part of language-model tours: read a text up to the followed token and predict the next token."""

    def __init__(self, tour: TourBuilder) -> None:
        self.tour, text = tour, tour.walk_fields["text"]
        self.ids = [END, *tour.tokenizer.encode(tour.trained.to_training_format(text, complete=False))]
        self.row = tour.index_of_position(tour.follow.word, len(self.ids) - 1, len(self.ids), "token")
        self.tokens = torch.tensor([self.ids], device=tour.trained.device)
        tour.set_input(text, self.ids, tour.label_tokens(self.ids), self.row)
        tour.set(
            is_causal=True,
            prefix_tokens=tour.values["tokens"][: self.row + 1],
            layer_names=[],
            is_tied=bool(tour.model.config.tied),
        )

    def predict(self, vectors: Tensor) -> str:
        """Choose the next token and return it. `vectors` (T, D) are the inputs of the output layer."""
        self.vectors, ids, row = vectors, self.ids, self.row
        self.logits = torch.stack([compute_logits(self.tour.model.output, vector) for vector in vectors])
        self.chosen = ids[row + 1] if row + 1 < len(ids) else int(self.logits[row].argmax())
        self.tour.set(vocabulary=self.logits.shape[1])
        return mark_whitespace(self.tour.tokenizer.token(self.chosen))

    def finish(self, letter: str, layers: int, heads: int, next_window: Sequence[int] | None = None) -> Walk:
        """Add the last stages.

        The next step reads the tokens `next_window` (default: all tokens so far) and the new token.
        """
        tour, row, ids, chosen = self.tour, self.row, self.ids, self.chosen
        names = [tour.tokenizer.token(token) for token in range(self.logits.shape[1])]
        tour.set_output(tour.model.output, self.vectors[row], names, chosen, letter)
        tour.update_score_difference(tour.model.step(self.tokens[:, : row + 1], tour.model.start(rows=1)).log_probs[0])
        probabilities = torch.softmax(self.logits.double(), dim=-1)
        is_end = chosen == END
        if tour.values["has_memory"] and not (is_end and row):
            read: Sequence[int] = []
        else:
            read = ids[: row + 1] if next_window is None else next_window
        following = [*ids[1:], int(probabilities[-1].argmax())]
        tour.set(
            is_given=row + 1 < len(ids),
            is_end=is_end,
            next_ids=[*read, chosen],
            next_tokens=tour.label_tokens([*read, chosen]),
            last_next=len(read),
            step=row,
            steps=[
                [t + 1, quote(now), quote(names[after]), float(probabilities[t, after])]
                for t, (now, after) in enumerate(zip(tour.values["tokens"], following, strict=True))
            ],
        )
        tour.add("outputs/logits", "outputs/softmax")
        tour.add("outputs/next-token", key="next")
        text, unknown = tour.walk_fields["text"], tour.tokenizer.unknown_pieces(tour.walk_fields["text"])
        at_end = row == len(ids) - 1 and chosen != END
        return tour.finish(
            mark_whitespace(names[chosen]),
            layers,
            heads,
            continued_text=text + tour.trained.continue_text(ids, [chosen]) if at_end else None,
            notes=unknown_notes(unknown, "text"),
        )


def tour_recurrent_lm(tour: TourBuilder, _: SequencePair | None) -> Walk:
    """Tour a recurrent language model: show one step of a cell, and the states over time."""
    model, follow = tour.model, tour.follow
    layers = len(model.stack.cells)
    text = _Continuation(tour)
    follow.check(layers, 1)
    with capture(model) as captured:
        x = model.embed(text.tokens)
        layer_outputs, _ = model.stack.run_layers(x)
        vectors = model.project(layer_outputs[-1])[0]
    cells = model.stack.cells
    steps = [captured.steps(name) for name in captured.names if captured.names[name] in cells]
    step, cell = steps[follow.layer - 1][text.row], cells[follow.layer - 1]
    is_projected = not isinstance(model.project, nn.Identity)
    tour.set(layers=layers, has_memory=True, answer=text.predict(vectors))
    tour.set_lookup(model.embed, x[0])
    set_cell_step(tour, cell, step)
    tour.add("inputs/text", "inputs/tokens", "inputs/embeddings", "recurrent/state", "recurrent/step")
    tour.add(
        "recurrent/states",
        lookup_tokens=tour.values["prefix_tokens"],
        states=torch.stack([each.after["h"][0] for each in steps[follow.layer - 1]])[: text.row + 1],
        state_numbers=max(follow.numbers, MIN_STATE_UNITS),
        state_units=changing_units(cell, step, max(follow.numbers, MIN_STATE_UNITS)),
    )
    if layers > 1:
        tour.add(
            "recurrent/stack",
            key="layers",
            layer_outputs=torch.stack([output[0, text.row] for output in layer_outputs]),
            layer_names=[f"layer {depth + 1}" for depth in range(layers)],
            top_layer=layers - 1,
            connections=model.config.connections,
        )
    tour.set(vector_origin="projection" if is_projected else "state", projected_from="the hidden state h")
    return text.finish("result" if is_projected else "h", layers, 0)


def tour_window_lm(tour: TourBuilder, _: SequencePair | None) -> Walk:
    """Tour a feed-forward language model: show a window of tokens, and the hidden layers."""
    model, config, follow = tour.model, tour.model.config, tour.follow
    layers = len(model.hidden)
    text = _Continuation(tour)
    follow.check(layers, 1)
    row = text.row
    seen = token_windows(text.tokens, model.start(rows=1).hidden)[0][0]  # (T, K)
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
        window_tokens=tour.label_tokens(window_ids),
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


def tour_gpt(tour: TourBuilder, _: SequencePair | None) -> Walk:
    """Tour a GPT: show its blocks of causal attention."""
    model, config = tour.model, tour.model.config
    text = _Continuation(tour)
    if len(text.ids) > config.window:
        raise UsageError(
            f"{tour.trained.name} reads at most {config.window} tokens, but the text has {len(text.ids)}. Shorten "
            "the text."
        )
    rows = text.row + 1  # not needed: later tokens, because no token attends to them
    _add_backbone(tour, model.backbone, text.tokens, rows, text.predict)
    return text.finish("x", len(model.backbone.blocks), config.heads)


def tour_bert(tour: TourBuilder, _: SequencePair | None) -> Walk:
    """Tour a masked language model: show the prediction for the followed token."""
    reader, model, tokenizer = tour.trained, tour.model, tour.tokenizer
    text = one_line(tour.walk_fields["text"], "text")
    gaps = read_gaps(tokenizer, reader.specials, text)
    ids = frame_texts(reader.specials, "bert", gaps.ids).tokens
    default = gaps.masks[0] + 1 if gaps.masks else min(1, len(ids) - 1)
    row = tour.index_of_position(tour.follow.word, default, len(ids), "token")
    names = reader.specials.names
    tour.set_input(text, ids, [names.get(token) or mark_whitespace(tokenizer.token(token)) for token in ids], row)
    if reader.max_length is not None and len(ids) > reader.max_length:
        raise UsageError(
            f"{reader.name} reads at most {reader.max_length} tokens, but the text has {len(ids)}. Shorten the text."
        )
    is_untrained = lacks_output(reader)
    tour.set(is_untrained=is_untrained, is_causal=False)
    tokens = torch.tensor([ids], device=reader.device)
    weight = model.backbone.embed.weight[: model.vocabulary] if model.output is None else model.output

    def compute_scores(top: Tensor) -> tuple[Tensor, Tensor]:
        vector = model.dense_norm(model.activation(model.dense(top[row])))
        return vector, weight @ vector + model.bias

    def predict(top: Tensor) -> str:
        logits = compute_scores(top)[1]
        tour.set(vocabulary=len(logits))
        return "a vector for each token" if is_untrained else mark_whitespace(tokenizer.token(int(logits.argmax())))

    top = _add_backbone(tour, model.backbone, tokens, len(ids), predict)
    captured = model.read(tokens)
    tour.set(top=top, d_model=top.shape[1])
    if is_untrained:
        tour.update_difference(top, captured[0])
        tour.add("outputs/next-vectors", key="next")
    else:
        vector, logits = compute_scores(top)
        words = [tokenizer.token(token) for token in range(len(logits))]
        tour.set_scores(logits, (weight, model.bias), vector, words, int(logits.argmax()), "result")
        tour.update_score_difference(model.masked_logits(captured)[0, row])
        tour.set(
            top_row=top[row],
            is_tied=model.output is None,
            is_gap=ids[row] == reader.specials.mask,
            best_rows=[[rank + 1, quote(words[token]), p] for rank, (token, p) in enumerate(tour.most_probable())],
        )
        tour.add("outputs/transform", "outputs/logits", "outputs/softmax")
        tour.add("outputs/next-gap", key="next")
    return tour.finish(tour.values["answer"], len(model.backbone.blocks), model.backbone.shape.heads)


def lacks_output(reader: TrainedModel) -> bool:
    """Return whether a BERT model was imported without an output layer, so that its predictions are meaningless."""
    return "dense.weight" in reader.run.data.get("imported", {}).get("initialized", ())


def _add_backbone(
    tour: TourBuilder, backbone: TransformerBackbone, tokens: Tensor, rows: int, predict: Callable[[Tensor], str]
) -> Tensor:
    """Add the stages from ids (1, T) to the top of a Transformer and return its output (T, D).

    Only the first `rows` positions are shown.
    """
    shape = backbone.shape
    tour.follow.check(len(backbone.blocks), shape.heads)
    set_form(tour, shape.activation, shape.norm, shape.norm_first)
    with capture(backbone) as captured:
        backbone.attentions(tokens)
    blocks = read_blocks(tour, captured, backbone)
    top: Tensor = backbone.norm(blocks[-1].after)
    read = captured.calls(backbone.embedded.embed)[-1].inputs[0][0].tolist()
    set_embedding(tour, backbone.embedded, read[:rows], blocks[0].before[:rows], shape.positions.kind)
    tour.set(answer=predict(top), layers=len(backbone.blocks), attends=True)
    shown = tour.values["tokens"][:rows]
    tour.add("inputs/text", "inputs/tokens")
    tour.set(lookup_tokens=shown)
    tour.add("inputs/embeddings", "inputs/positions")
    add_block(tour, "text", blocks, top, shown, tour.values["row"])
    return top


# --- classifiers and taggers ------------------------------------------------------------------------------------------

ENCODERS: dict[type, tuple[str, str]] = {  # name of the encoder in the templates, and its first stage
    RecurrentEncoder: ("recurrent", "step"),
    ConvolutionEncoder: ("convolution", "windows"),
    TransformerEncoder: ("transformer", "text-queries"),
}


class _Text:
    """The common part of the tours of classifiers and taggers: from tokens to encoder states."""

    def __init__(self, tour: TourBuilder) -> None:
        self.tour, model = tour, tour.model
        read = tour.trained.read_line(tour.walk_fields["text"])
        self.line, self.batch, self.answer = read.line, read.batch, read.answer
        ids = self.batch["tokens"][0].tolist()
        self.encoder = model.encoder
        blocks = [] if self.encoder is None else blocks_of(self.encoder)
        self.layers, self.heads = max(1, len(blocks)), self.encoder.config.heads if blocks else 0
        tour.follow.check(self.layers, max(1, self.heads))
        self.first = self.batch["first"][0].tolist() if "first" in self.batch else []
        self.row = tour.index_of_position(tour.follow.word, 0, len(ids), "token")
        tour.set_input(self.line, ids, tour.label_tokens(ids), self.row)
        with capture(model) as self.captured:
            self.output = model(self.batch)[0]
            if blocks:
                model.attentions(self.batch)
        encoder, stage = ENCODERS.get(type(self.encoder), ("bag", ""))
        tour.set(
            answer=self.answer,
            is_causal=False,
            is_lowercased=self.line != self.line.lower()
            and all(each == each.lower() for each in tour.label_tokens(ids)),
            encoder=encoder,
            first_reading_stage=stage,
        )

    def add_encoder(self) -> tuple[Tensor, Tensor]:
        """Add the stages of the input and the encoder. Return the encoder states (S, H) and the final state (H,)."""
        tour, captured, lexicon = self.tour, self.captured, self.tour.model.lexicon
        x = captured.output(lexicon)
        lookup = captured.output(lexicon.embed)
        tour.set_lookup(lexicon.embed, lookup)
        tour.set(d_read=x.shape[1], x_read=x, spelling_vectors=x[:, lookup.shape[1] :])
        tour.add("inputs/text", "inputs/tokens", "inputs/embeddings")
        if x.shape[1] != lookup.shape[1]:
            tour.add("inputs/spelling")
        if self.encoder is None:
            return x, x[-1]
        h, ends = (each[0] for each in self.encoder.read(x[None], self.batch["mask"]))
        tour.set(top=h, d_top=h.shape[1])
        match self.encoder:
            case RecurrentEncoder() as encoder:
                combine = encoder.config.combine
                add_recurrent_encoder(
                    tour, captured, encoder.stack, "", position=self.row, combine=combine, encoder_states=h
                )
            case TransformerEncoder() as encoder:
                h = self._add_transformer(encoder)
                ends = h[-1]
            case ConvolutionEncoder() as encoder:
                tour.add("other/windows", window_widths=encoder.layers[0].widths)
        return h, ends

    def _add_transformer(self, encoder: TransformerEncoder) -> Tensor:
        tour, config = self.tour, encoder.config
        set_form(tour, config.activation, config.norm, config.norm_first)
        blocks = read_blocks(tour, self.captured, encoder)
        x, scaled = blocks[0].before, self.captured.output(encoder.project) * encoder.output_size**0.5
        if encoder.positions is not None:
            positions = encoder.positions(torch.arange(len(x), device=x.device), like=x).to(x.dtype)
            set_positions(tour, scaled, positions, None, x, self.row)
            tour.add(
                "inputs/positions",
                positions_kind=config.positions.kind,
                embedding_scale=encoder.output_size**0.5,
                has_embedding_norm=False,
                is_projected=True,
            )
        top: Tensor = encoder.norm(blocks[-1].after)
        add_block(tour, "text", blocks, top, tour.values["tokens"], self.row)
        return top

    def finish(self) -> Walk:
        """Return the tour with all its stages."""
        return self.tour.finish(self.answer, self.layers, self.heads)


def tour_classifier(tour: TourBuilder, _: SequencePair | None) -> Walk:
    """Tour a classifier: show the encoder, the pooling, and the scores of the labels."""
    labels = tour.trained.labels
    tour.set(labels=labels, output_kind="label", vocabulary=len(labels))
    text, model = _Text(tour), tour.model
    h, ends = text.add_encoder()
    mask, weights = text.batch["mask"], None
    if model.bag is not None:
        pooling = "bag"
        weights = model.bag.position_weights(text.batch["tokens"], mask)[0].to(h.dtype)
        vector = weights @ h
    else:
        pooling = model.config.pooling or "mean"
        pooled, pooling_weights = model.pooling(h[None], mask, ends[None])
        vector, weights = pooled[0], None if pooling_weights is None else pooling_weights[0]
        if pooling == "mean":
            weights = torch.full((len(h),), 1 / len(h), device=h.device, dtype=h.dtype)
    largest = int(vector[: tour.follow.numbers].argmax())
    tour.add(
        "other/pooling",
        top=h,
        d_top=h.shape[1],
        vector=vector,
        pooling=pooling,
        pooling_weights=weights,
        largest_number=largest,
        largest_position=int(h[:, largest].argmax()) if largest < h.shape[1] else 0,
    )
    logits = model.output(vector)
    tour.set_output(model.output, vector, labels, int(logits.argmax()), "pooled")
    if model.multi_label:
        add_label_decisions(tour, text.output)
        return text.finish()
    tour.update_score_difference(text.output)
    tour.add("outputs/logits", "outputs/softmax")
    best_rows = [[labels[label], probability] for label, probability in tour.most_probable()]
    tour.add("outputs/next-label", key="next", best_rows=best_rows)
    return text.finish()


def add_label_decisions(tour: TourBuilder, captured: Tensor) -> None:
    """Add the stages of a multi-label classifier, which computes a probability and a decision for each label."""
    trained: Any = tour.trained
    logits, temperature = tour.values["logits"], trained.model.temperature
    tour.update_difference(logits, captured)
    tour.set(probabilities=torch.sigmoid(logits.double() / temperature), temperature=temperature)
    scores, decisions, predicted = [], [], []
    for index, probability in tour.most_probable(MAX_DECISIONS):
        label, threshold = trained.labels[index], trained.threshold(trained.labels[index])
        is_predicted = probability >= threshold
        scores.append([label, float(logits[index]), probability])
        shown = threshold if math.isfinite(threshold) else "never predicted"
        decisions.append([label, probability, shown, "yes" if is_predicted else "no"])
        predicted += [quote(label)] * is_predicted
    tour.add("outputs/logits")
    tour.add("outputs/sigmoid", score_rows=scores)
    tour.add("outputs/next-labels", key="next", decisions=decisions, predicted=predicted)


def tour_tagger(tour: TourBuilder, _: SequencePair | None) -> Walk:
    """Tour a tagger: show the encoder, the scores of the tags, and the best path."""
    tags = tour.trained.tags
    tour.set(labels=tags, output_kind="tag", vocabulary=len(tags))
    text, model = _Text(tour), tour.model
    h, _ends = text.add_encoder()
    words = [text.line[start:end] for start, end in word_spans(text.line)][: len(text.first)]
    word = max((number for number, position in enumerate(text.first) if position <= text.row), default=0)
    emissions = model.output(h[text.first])  # (W, K)
    chain, count = model.chain, text.batch["words"]
    path = chain.viterbi(emissions[None], count)[0][0]
    marginals = chain.marginals(emissions[None], count)[0]  # (W, K)
    tour.set_output(model.output, h[text.first[word]], tags, int(path[word]), "h")
    tour.update_score_difference(text.output[word])
    tour.set(vector_origin="word", word_name=quote(words[word]), words=words, word=word)
    tour.add("outputs/logits")
    if chain.learned:
        tour.add(
            "outputs/chain",
            emissions=emissions,
            transitions=chain.transitions,
            marginals=marginals,
            all_pairs_allowed=bool(chain.allowed.all()),
        )
    else:
        tour.add("outputs/softmax")
    tag_rows = [
        [each, tags[int(tag)], float(marginals[number, tag])]
        for number, (each, tag) in enumerate(zip(words, path, strict=True))
    ]
    answer = mark_whitespace(text.answer).replace("␣", " ")
    tour.add(
        "outputs/next-tags", key="next", path=path, tag_rows=tag_rows, marks_spans=marks_spans(tags), answer=answer
    )
    return text.finish()


TOURS = {
    "recurrent-lm": tour_recurrent_lm,
    "window-lm": tour_window_lm,
    "gpt": tour_gpt,
    "bert": tour_bert,
    "classifier": tour_classifier,
    "tagger": tour_tagger,
}
