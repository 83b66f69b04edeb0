"""Tours of classifiers and taggers: a text is read, and a label, or a tag for each word, is the answer."""

from typing import Any

import torch
from torch import Tensor

from seqloom.core.iob import marks_spans
from seqloom.inspect.capture import blocks_of, capture
from seqloom.inspect.tours.layers import add_block, read_blocks, set_form, set_positions
from seqloom.inspect.tours.template import quoted, visible
from seqloom.inspect.tours.tour import Tour, Walk
from seqloom.inspect.tours.translators import add_reading
from seqloom.inspect.views.texts import Said
from seqloom.nn.encoders import ConvolutionEncoder, RecurrentEncoder, TransformerEncoder
from seqloom.text.word_spans import word_spans

ENCODERS: dict[type, tuple[str, str]] = {  # what templates call them, and the first stage of reading
    RecurrentEncoder: ("recurrent", "step"),
    ConvolutionEncoder: ("convolution", "windows"),
    TransformerEncoder: ("transformer", "text-queries"),
}


class _Text:
    """A text as a classifier or a tagger reads it: tokens to vectors, and vectors to what is known at each."""

    def __init__(self, tour: Tour) -> None:
        self.tour, model = tour, tour.model
        read = tour.trained.looked(tour.walk["text"])
        self.line, self.batch, self.answer = read.line, read.batch, read.answer
        ids = self.batch["tokens"][0].tolist()
        self.encoder = model.encoder
        blocks = [] if self.encoder is None else blocks_of(self.encoder)
        self.layers, self.heads = max(1, len(blocks)), self.encoder.config.heads if blocks else 0
        tour.follow.check(self.layers, max(1, self.heads))
        self.first = self.batch["first"][0].tolist() if "first" in self.batch else []
        self.row = tour.choose(tour.follow.word, 0, len(ids), "token")
        tour.read(self.line, ids, tour.names(ids), self.row)
        with capture(model) as self.captured:
            self.output = model(self.batch)[0]
            if blocks:
                model.attentions(self.batch)
        encoder, stage = ENCODERS.get(type(self.encoder), ("bag", ""))
        tour.set(
            answer=self.answer,
            is_causal=False,
            is_lowercased=self.line != self.line.lower() and all(each == each.lower() for each in tour.names(ids)),
            encoder=encoder,
            first_reading_stage=stage,
        )

    def add_reading(self) -> tuple[Tensor, Tensor]:
        """The first stages and those of reading: h (S, H), and where the reading ended (H,)."""
        tour, captured, lexicon = self.tour, self.captured, self.tour.model.lexicon
        x = captured.output(lexicon)
        lookup = captured.output(lexicon.embed)
        tour.set_lookup(lexicon.embed, lookup)
        tour.set(d_read=x.shape[1], x_read=x, spelled=x[:, lookup.shape[1] :])
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
                add_reading(tour, captured, encoder.stack, "", place=self.row, combine=combine, known=h)
            case TransformerEncoder() as encoder:
                h = self._add_transformer(encoder)
                ends = h[-1]
            case ConvolutionEncoder() as encoder:
                layer: Any = encoder.layers[0]
                tour.add("other/windows", window_widths=layer.widths)
        return h, ends

    def _add_transformer(self, encoder: TransformerEncoder) -> Tensor:
        tour, config = self.tour, encoder.config
        set_form(tour, config.activation, config.norm, config.norm_first)
        blocks = read_blocks(tour, self.captured, encoder)
        x, scaled = blocks[0].before, self.captured.output(encoder.project) * encoder.width**0.5
        if encoder.positions is not None:
            positions = encoder.positions(torch.arange(len(x), device=x.device), like=x).to(x.dtype)
            set_positions(tour, scaled, positions, None, x, self.row)
            tour.add(
                "inputs/positions",
                positions_kind=config.positions.kind,
                embedding_scale=encoder.width**0.5,
                has_embedding_norm=False,
                is_projected=True,
            )
        top: Tensor = encoder.norm(blocks[-1].after)
        add_block(tour, "text", blocks, top, tour.values["tokens"], self.row)
        return top

    def finish(self) -> Walk:
        """The tour with all its stages."""
        return self.tour.finish(self.answer, self.layers, self.heads)


def tour_classifier(tour: Tour, _: Said | None) -> Walk:
    """A classifier: the text is read, pooled, and each label scored."""
    labels = tour.trained.labels
    tour.set(labels=labels, what="label", vocabulary=len(labels))
    text, model = _Text(tour), tour.model
    h, ends = text.add_reading()
    mask, weights = text.batch["mask"], None
    if model.bag is not None:
        pooling = "bag"
        weights = model.bag.position_weights(text.batch["tokens"], mask)[0].to(h.dtype)
        vector = weights @ h
    else:
        pooling = model.config.pooling or "mean"
        pooled, found = model.pooling(h[None], mask, ends[None])
        vector, weights = pooled[0], None if found is None else found[0]
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
        largest_place=int(h[:, largest].argmax()) if largest < h.shape[1] else 0,
    )
    logits = model.output(vector)
    tour.set_output(model.output, vector, labels, int(logits.argmax()), "summary")
    tour.compare_log_probs(text.output)
    tour.add("outputs/logits", "outputs/softmax")
    best_rows = [[labels[label], probability] for label, probability in tour.likeliest()]
    tour.add("outputs/next-label", key="next", best_rows=best_rows)
    return text.finish()


def tour_tagger(tour: Tour, _: Said | None) -> Walk:
    """A tagger: the text is read, each word's tags are scored, and the best path is chosen."""
    tags = tour.trained.tags
    tour.set(labels=tags, what="tag", vocabulary=len(tags))
    text, model = _Text(tour), tour.model
    h, _ends = text.add_reading()
    words = [text.line[start:end] for start, end in word_spans(text.line)][: len(text.first)]
    word = max((number for number, place in enumerate(text.first) if place <= text.row), default=0)
    emissions = model.output(h[text.first])  # (W, K)
    chain, count = model.chain, text.batch["words"]
    path = chain.viterbi(emissions[None], count)[0][0]
    marginals = chain.marginals(emissions[None], count)[0]  # (W, K)
    tour.set_output(model.output, h[text.first[word]], tags, int(path[word]), "known")
    tour.compare_log_probs(text.output[word])
    tour.set(vector_origin="word", word_name=quoted(words[word]), words=words, word=word)
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
    answer = visible(text.answer).replace("␣", " ")
    tour.add(
        "outputs/next-tags", key="next", path=path, tag_rows=tag_rows, marks_spans=marks_spans(tags), answer=answer
    )
    return text.finish()


TOURS = {"classifier": tour_classifier, "tagger": tour_tagger}
