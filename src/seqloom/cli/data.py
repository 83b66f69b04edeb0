"""`seqloom data show`: show the source, the sizes and the first examples of a corpus."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import DataDir, JsonObject
from seqloom.cli._output import check_plot_path, print_json, write_plot
from seqloom.core.errors import UsageError
from seqloom.core.words import escape_controls, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqloom.data.clips import ClipExample
    from seqloom.data.corpus import Corpus, Example, TextCorpus
    from seqloom.data.examples import ParallelExample, TextClassificationExample, TokenClassificationExample
    from seqloom.data.image_folders import LabelledImage
    from seqloom.data.image_texts import ImageTextExample
    from seqloom.data.series import LabelledSeries, Series
    from seqloom.data.transcriptions import TranscribedExample
    from seqloom.data.vectors import Track

MAX_WIDTH = 110  # maximum number of characters of a line
CLASSES_PER_LINE = 4
MAX_CLASSES = 40  # maximum number of labels, tags or kinds to print
MAX_IMAGES, MAX_CLIPS = 50, 6  # maximum number of images and of clips in a plot
MAX_RECORDINGS, MAX_SOUNDS = 24, 8  # maximum number of writings and of sounds in a plot
IMAGE_FORMS = ("image-classification", "image-captioning", "video", "visual-question-answering")
RECORDING_FORMS = ("transcription", "sound-labels")

data = typer.Typer(help="Show the corpora.", no_args_is_help=True, rich_markup_mode=None)


Column = tuple[str, str, int]  # heading, key in the counts of a split, width


@dataclass(frozen=True)
class CorpusView:
    """The sizes, classes and examples of a corpus to display."""

    counts: Mapping[str, Mapping[str, Any]]  # sizes of each split
    columns: Sequence[Column]  # columns of the table of sizes
    first_lines: Callable[[str, int], Iterable[str]]  # returns the first n examples of a split as lines
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # class counts of train, by title
    json: Mapping[str, object] = field(default_factory=dict)  # additional values for --json
    has_notes: bool = True


@data.command()
def show(
    corpus: Annotated[str, typer.Argument(help="The name of a corpus; see `seqloom list corpora`.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the corpus.")
    ] = None,
    lines: Annotated[int, typer.Option(min=0, help="Number of examples to show per split.")] = 5,
    out: Annotated[
        Path | None,
        typer.Option(help="Images and recordings: draw the first examples of train to this .png or .svg file."),
    ] = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Show a corpus: source, version, licence, sizes and first examples. `seqloom data show cldr target=hu`."""
    from seqloom.config import apply_overrides, build, parse_overrides
    from seqloom.data import corpora
    from seqloom.data.files import use_data_folder

    mapping = apply_overrides({"corpus": corpus}, parse_overrides(overrides or []))
    module = corpora.find(corpus)
    config = build(module.Config, mapping, source=f"corpus {corpus}")
    if out is not None and module.FORM not in (*IMAGE_FORMS, *RECORDING_FORMS):
        raise UsageError(f"--out requires a corpus of images, clips, sounds or pen strokes; {corpus} has none.")
    check_plot_path(out)
    with use_data_folder(data_dir):
        loaded = corpora.load(config) if module.FORM in VIEWS else module.load(config)
        view = VIEWS.get(module.FORM, view_examples)(loaded)
        if out is not None:
            write_plot(out, DRAWINGS.get(module.FORM, draw_first_images)(loaded))
        if not as_json:
            print_corpus(loaded, view, lines)
            return
        facts = {"corpus": loaded.name, "version": loaded.version, "licence": loaded.licence}
        notes = {"notes": loaded.notes} if view.has_notes else {}
        sizes = {"counts": view.counts, "absent": dict(loaded.absent)}
        print_json({**facts, "sha256": loaded.fingerprint(), **view.json, **sizes, **notes})


def draw_first_images(corpus: "Corpus[LabelledImage | ImageTextExample]") -> "Figure":
    """Draw the first images of train with their labels or first texts."""
    from seqloom.data.image_texts import ImageTextExample
    from seqloom.inspect.plots.images import draw_image_grid

    by_image = {example.image: example for example in reversed(corpus.split("train"))}  # the first example of an image
    first = list(reversed(by_image.values()))[:MAX_IMAGES]
    images = [example.image.decode().pixels for example in first]
    labels = [example.texts()[0] if isinstance(example, ImageTextExample) else example.label for example in first]
    return draw_image_grid(images, labels, [f"{corpus.name}: the first {len(first)} images of train"])


def draw_first_clips(corpus: "Corpus[ClipExample]") -> "Figure":
    """Draw the frames of the first clips of train, with the labels of the frames and the caption of each clip."""
    from seqloom.inspect.plots.video import draw_clips

    first = corpus.split("train")[:MAX_CLIPS]
    clips = [(each.clip.decode().pixels, each.frame_labels, f"{each.label}: {each.captions[0]}") for each in first]
    return draw_clips(clips, [f"{corpus.name}: the first {len(first)} clips of train"])


def draw_first_recordings(corpus: "Corpus[TranscribedExample]") -> "Figure":
    """Draw the first recordings of train with their texts."""
    from seqloom.data.sound import Sound
    from seqloom.data.strokes import Strokes
    from seqloom.inspect.plots.sound import draw_sounds
    from seqloom.inspect.plots.strokes import draw_writings

    first = corpus.split("train")[:MAX_RECORDINGS]
    if sounds := [(each.signal, each.text) for each in first[:MAX_SOUNDS] if isinstance(each.signal, Sound)]:
        return draw_sounds(sounds, [f"{corpus.name}: the first {len(sounds)} recordings of train"])
    writings = [(each.signal, each.text) for each in first if isinstance(each.signal, Strokes)]
    if not writings:
        raise UsageError(f"--out cannot draw the recordings of {corpus.name}.")
    return draw_writings(writings, [f"{corpus.name}: the first {len(writings)} recordings of train"])


DRAWINGS: dict[str, Callable[[Any], "Figure"]] = {
    "video": draw_first_clips,
    "transcription": draw_first_recordings,
    "sound-labels": draw_first_recordings,
}


def print_corpus(corpus: "Corpus[Example]", view: CorpusView, lines: int) -> None:
    """Print description, sizes, class frequencies and first examples of a corpus."""
    print(f"{corpus.name}: {corpus.description}\nversion {corpus.version}\nlicence {corpus.licence}\n")
    headings = "".join(f"{heading:>{width}}" for heading, _, width in view.columns)
    print(f"{'split':8}{headings}   sha256")
    for split, counts in view.counts.items():
        cells = "".join(
            f"{counts[key]:>{width}{'.1%' if key == 'new_words' else ','}}" for _, key, width in view.columns
        )
        print(f"{split:8}{cells}   {corpus.fingerprint()[split][:12]}")
    for split, reason in corpus.absent.items():
        print(f"{split:8}absent: {reason}")
    for note in corpus.notes if view.has_notes else ():
        print(f"note: {note}")
    for title, classes in view.classes.items():  # print classes in decreasing order of frequency
        total, listed = sum(classes.values()), list(classes.items())[:MAX_CLASSES]
        fractions = [f"{escape_controls(name)} {count / total:.1%}" for name, count in listed]
        fractions += [f"and {len(classes) - len(listed)} more"] if len(listed) < len(classes) else []
        lead = f"{title}:".ljust(8)
        for start in range(0, len(fractions), CLASSES_PER_LINE):
            margin = f"\n{lead}" if start == 0 else " " * len(lead)
            print(margin + ", ".join(fractions[start : start + CLASSES_PER_LINE]))
    for split in corpus.splits if lines else ():
        print(f"\n{split} begins:")
        for line in view.first_lines(split, lines):
            print(f"  {line}")


# --- forms ----------------------------------------------------------------------------------------------------------


def view_text(corpus: "TextCorpus") -> CorpusView:
    """Show the lines of documents."""
    counts = {split: corpus.sizes(split) for split in corpus.splits}
    columns = [("documents", "documents", 12), ("words", "words", 12), ("characters", "characters", 14)]

    def first_lines(split: str, lines: int) -> Iterable[str]:
        return (
            escape_controls(line)[:MAX_WIDTH] for line in "\n".join(corpus.split(split)[:lines]).split("\n")[:lines]
        )

    return CorpusView(counts, columns, first_lines, has_notes=False)


def view_parallel(corpus: "Corpus[ParallelExample]") -> CorpusView:
    """Show both sides of sentence pairs."""
    counts: dict[str, dict[str, Any]] = {}
    for split, pairs in corpus.splits.items():
        kinds = Counter(pair.kind for pair in pairs if pair.kind)
        counts[split] = {**corpus.sizes(split), "kinds": dict(kinds.most_common())}
    source, target = corpus.languages
    columns = [("pairs", "pairs", 10)]
    for side, language in (("source", source), ("target", target)):
        columns += [(f"{language or side} words", f"{side}_words", 14), ("characters", f"{side}_characters", 14)]

    def first_lines(split: str, lines: int) -> Iterable[str]:
        for pair in corpus.split(split)[:lines]:
            yield " → ".join(shorten(escape_controls(side), MAX_WIDTH) for side in (pair.source, pair.target))

    languages = {"source": source, "target": target}
    return CorpusView(counts, columns, first_lines, {"kinds": counts["train"]["kinds"]}, languages)


def view_texts(
    corpus: "Corpus[Example]",
    lines_of: Callable[[Any], Sequence[str]],
    title: str = "",
    name: str = "",
    classes: Mapping[str, Mapping[str, int]] | None = None,
    **json: object,
) -> CorpusView:
    """Show text examples; `classes` contains the class counts of each split."""
    counts = {
        split: {
            **corpus.sizes(split),
            "new_words": corpus.new_words(split),
            **({} if classes is None else {name: classes[split]}),
        }
        for split in corpus.splits
    }
    columns = [*build_size_columns(corpus), ("new words", "new_words", 12)]  # words that are not in train

    def first_lines(split: str, lines: int) -> Iterable[str]:
        for line in (line for example in corpus.split(split)[:lines] for line in lines_of(example)):
            indent = line[: len(line) - len(line.lstrip(" "))]
            yield shorten(indent + escape_controls(" ".join(line.split())), MAX_WIDTH)

    return CorpusView(counts, columns, first_lines, {} if classes is None else {title: classes["train"]}, json)


def view_labelled(corpus: "Corpus[TextClassificationExample]") -> CorpusView:
    """Show labels and texts."""
    labels = {split: corpus.label_counts(split) for split in corpus.splits}
    names = list(corpus.labels)
    return view_texts(
        corpus, lambda example: [f"{example.label or '-'}: {example.text}"], "labels", "labels_of", labels, labels=names
    )


def view_tagged(corpus: "Corpus[TokenClassificationExample]") -> CorpusView:
    """Show sentences with their spans or tags."""
    from seqloom.data.examples import has_spans, tag_counts

    spans = has_spans(corpus)
    tags = {split: tag_counts(corpus, split) for split in corpus.splits}
    title = "spans" if spans else "tags"
    return view_texts(
        corpus, lambda example: [mark_tags(example, spans)], title, "tags_of", tags, tags=list(corpus.labels)
    )


def mark_tags(sentence: "TokenClassificationExample", spans: bool) -> str:
    """Return a text with its spans, `[Anna Schmidt PER] lives in [Bonn LOC].`, or its tags, `Anna/PROPN lives/VERB`."""
    from seqloom.core.iob import extract_spans

    if not spans:
        return " ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True))
    marked, end = "", 0
    for span in extract_spans(sentence.tags):
        begins, ends = sentence.spans[span.start][0], sentence.spans[span.end - 1][1]
        marked += f"{sentence.text[end:begins]}[{sentence.text[begins:ends]} {span.type}]"
        end = ends
    return marked + sentence.text[end:]


def view_examples(corpus: "Corpus[Example]") -> CorpusView:
    """Show sentence pairs, multiple choices, questions and instructions."""
    labels = {split: corpus.label_counts(split) for split in corpus.splits} if corpus.labels else None
    return view_texts(corpus, format_example, "labels", "labels_of", labels)


def format_example(example: Any) -> list[str]:
    """Format the parts of an example: a pair with its label, a text with options, a question with its context."""
    from seqloom.data import examples

    if isinstance(example, examples.SentencePairExample):
        return [f"{example.label}: {example.first}", f"  {example.second}"]
    if isinstance(example, examples.Instruction):
        given = [f"  {example.input}"] if example.input else []
        return [example.instruction, *given, f"  → {example.output}"]
    if isinstance(example, examples.MultipleChoiceExample):
        marks = ["+" if index == example.answer else "-" for index in range(len(example.options))]
        return [example.text, *(f"  {mark} {option}" for mark, option in zip(marks, example.options, strict=True))]
    return [f"{example.question} {example.answer.text}", f"  {example.context}"]


def view_series(corpus: "Corpus[Series]") -> CorpusView:
    """Show the first steps of a series."""
    from seqloom.data.series import columns_of, season_of

    def first_lines(split: str, lines: int) -> Iterable[str]:
        series = corpus.split(split)[0]
        labels = series.time_labels()
        yield f"{'time':16}" + "".join(f"{name[:13]:>14}" for name in columns_of(corpus))
        for step in range(series.begins, min(series.begins + lines, len(series))):
            cells = ("missing" if value != value else f"{value:,.6g}" for value in series.values[step])
            yield f"{labels[step]:16}" + "".join(f"{cell:>14}" for cell in cells)

    json = {"columns": list(columns_of(corpus)), "season": season_of(corpus)}
    return CorpusView(count_sizes(corpus), build_size_columns(corpus), first_lines, json=json)


def view_labelled_items(corpus: "Corpus[LabelledSeries | LabelledImage]") -> CorpusView:
    """Show labelled series or images."""

    def first_lines(split: str, lines: int) -> Iterable[str]:
        return (
            shorten(escape_controls(f"{item.label}: {item.text}"), MAX_WIDTH) for item in corpus.split(split)[:lines]
        )

    classes, json = {"labels": corpus.label_counts("train")}, {"labels": list(corpus.labels)}
    return CorpusView(count_sizes(corpus), build_size_columns(corpus), first_lines, classes, json)


def view_image_texts(corpus: "Corpus[ImageTextExample]") -> CorpusView:
    """Show the names of images and their texts."""

    def first_lines(split: str, lines: int) -> Iterable[str]:
        for example in corpus.split(split)[:lines]:
            yield shorten(escape_controls(example.text), MAX_WIDTH)
            yield from (f"  {shorten(escape_controls(text), MAX_WIDTH)}" for text in example.texts())

    return CorpusView(count_sizes(corpus), build_size_columns(corpus), first_lines)


def view_clips(corpus: "Corpus[ClipExample]") -> CorpusView:
    """Show the label, the caption and the frame labels of clips."""

    def first_lines(split: str, lines: int) -> Iterable[str]:
        for example in corpus.split(split)[:lines]:
            yield shorten(escape_controls(f"{example.label}: {example.captions[0]}"), MAX_WIDTH)
            yield f"  {shorten(escape_controls(' '.join(example.frame_labels)), MAX_WIDTH)}"

    classes, json = {"labels": corpus.label_counts("train")}, {"labels": list(corpus.labels)}
    return CorpusView(count_sizes(corpus), build_size_columns(corpus), first_lines, classes, json)


def view_recordings(corpus: "Corpus[TranscribedExample]") -> CorpusView:
    """Show the groups and the texts of recordings."""

    def first_lines(split: str, lines: int) -> Iterable[str]:
        for example in corpus.split(split)[:lines]:
            yield shorten(escape_controls(": ".join(part for part in (example.group, example.text) if part)), MAX_WIDTH)

    return CorpusView(count_sizes(corpus), build_size_columns(corpus), first_lines)


def view_tracks(corpus: "Corpus[Track]") -> CorpusView:
    """Show the first steps of a track."""

    def first_lines(split: str, lines: int) -> Iterable[str]:
        first = corpus.split(split)[0]
        yield f"{'step':6}{'observed':>22}{'true':>26}"
        for step, points in enumerate(zip(first.observed[:lines], first.truth[:lines], strict=True), start=1):
            cells = ["  ".join("missing" if value != value else f"{value:.1f}" for value in point) for point in points]
            yield f"{step:<6}{cells[0]:>22}{cells[1]:>26}"

    return CorpusView(count_sizes(corpus), build_size_columns(corpus, 10), first_lines, has_notes=False)


def count_sizes(corpus: "Corpus[Example]") -> dict[str, dict[str, int]]:
    """Return the sizes of each split."""
    return {split: corpus.sizes(split) for split in corpus.splits}


def build_size_columns(corpus: "Corpus[Example]", width: int = 12) -> list[Column]:
    """Return a column for each size."""
    return [(name, name, width) for name in corpus.sizes("train")]


VIEWS: dict[str, Callable[[Any], CorpusView]] = {
    "text": view_text,
    "parallel": view_parallel,
    "text-classification": view_labelled,
    "multi-label": view_labelled,
    "token-classification": view_tagged,
    "series": view_series,
    "series-labelled": view_labelled_items,
    "image-classification": view_labelled_items,
    "image-captioning": view_image_texts,
    "video": view_clips,
    "visual-question-answering": view_image_texts,
    "transcription": view_recordings,
    "sound-labels": view_recordings,
    "tracks": view_tracks,
}
