"""Look at a corpus."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import DataDir, JsonObject
from seqloom.cli._output import print_json
from seqloom.core.words import escape_controls, shorten

if TYPE_CHECKING:
    from seqloom.data.corpus import Corpus, Example, TextCorpus
    from seqloom.data.examples import ParallelExample, TextClassificationExample, TokenClassificationExample
    from seqloom.data.series import LabelledSeries, Series
    from seqloom.data.vectors import Track

WIDTH = 110  # characters of a line that are shown
SHARES_TO_A_LINE = 4
MOST_SHARES = 40  # labels, tags or kinds that are listed

data = typer.Typer(help="Show the corpora.", no_args_is_help=True, rich_markup_mode=None)


Column = tuple[str, str, int]  # a heading, the key in the counts of a split, the width


@dataclass(frozen=True)
class CorpusView:
    """How the corpora of one form are shown."""

    counts: Mapping[str, Mapping[str, Any]]  # by split
    columns: Sequence[Column]  # of the table of sizes
    begin: Callable[[str, int], Iterable[str]]  # the first so many examples of a split, as lines
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # how many of each kind in train, by title
    json: Mapping[str, object] = field(default_factory=dict)  # more for --json
    has_notes: bool = True


@data.command()
def show(
    corpus: Annotated[str, typer.Argument(help="The name of a corpus; see `seqloom list corpora`.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the corpus.")
    ] = None,
    lines: Annotated[int, typer.Option(min=0, help="Number of examples to show per split.")] = 5,
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
    with use_data_folder(data_dir):
        found = corpora.load(config) if module.FORM in VIEWS else module.load(config)
        view = VIEWS.get(module.FORM, view_examples)(found)
        if not as_json:
            print_corpus(found, view, lines)
            return
        facts = {"corpus": found.name, "version": found.version, "licence": found.licence}
        notes = {"notes": found.notes} if view.has_notes else {}
        sizes = {"counts": view.counts, "absent": dict(found.absent)}
        print_json({**facts, "sha256": found.fingerprint(), **view.json, **sizes, **notes})


def print_corpus(found: "Corpus[Example]", view: CorpusView, lines: int) -> None:
    """Print what a corpus is, its sizes, the shares of its kinds, and how each split begins."""
    print(f"{found.name}: {found.description}\nversion {found.version}\nlicence {found.licence}\n")
    headings = "".join(f"{heading:>{width}}" for heading, _, width in view.columns)
    print(f"{'split':8}{headings}   sha256")
    for split, counts in view.counts.items():
        cells = "".join(
            f"{counts[key]:>{width}{'.1%' if key == 'new_words' else ','}}" for _, key, width in view.columns
        )
        print(f"{split:8}{cells}   {found.fingerprint()[split][:12]}")
    for split, reason in found.absent.items():
        print(f"{split:8}absent: {reason}")
    for note in found.notes if view.has_notes else ():
        print(f"note: {note}")
    for title, kinds in view.shares.items():  # the most frequent first
        total, most = sum(kinds.values()), dict(list(kinds.items())[:MOST_SHARES])
        shares = [f"{escape_controls(name)} {count / total:.1%}" for name, count in most.items()]
        shares += [f"and {len(kinds) - len(most)} more"] if len(most) < len(kinds) else []
        lead = f"{title}:".ljust(8)
        for start in range(0, len(shares), SHARES_TO_A_LINE):
            margin = f"\n{lead}" if start == 0 else " " * len(lead)
            print(margin + ", ".join(shares[start : start + SHARES_TO_A_LINE]))
    for split in found.splits if lines else ():
        print(f"\n{split} begins:")
        for line in view.begin(split, lines):
            print(f"  {line}")


# --- forms ----------------------------------------------------------------------------------------------------------


def view_text(found: "TextCorpus") -> CorpusView:
    """Show documents by their lines."""
    counts = {split: found.sizes(split) for split in found.splits}
    columns = [("documents", "documents", 12), ("words", "words", 12), ("characters", "characters", 14)]

    def begin(split: str, lines: int) -> Iterable[str]:
        return (escape_controls(line)[:WIDTH] for line in "\n".join(found.split(split)[:lines]).split("\n")[:lines])

    return CorpusView(counts, columns, begin, has_notes=False)


def view_parallel(found: "Corpus[ParallelExample]") -> CorpusView:
    """Both sides side by side."""
    counts: dict[str, dict[str, Any]] = {}
    for split, pairs in found.splits.items():
        kinds = Counter(pair.kind for pair in pairs if pair.kind)
        counts[split] = {**found.sizes(split), "kinds": dict(kinds.most_common())}
    source, target = found.languages
    columns = [("pairs", "pairs", 10)]
    for side, language in (("source", source), ("target", target)):
        columns += [(f"{language or side} words", f"{side}_words", 14), ("characters", f"{side}_characters", 14)]

    def begin(split: str, lines: int) -> Iterable[str]:
        for pair in found.split(split)[:lines]:
            yield " → ".join(shorten(escape_controls(side), WIDTH) for side in (pair.source, pair.target))

    languages = {"source": source, "target": target}
    return CorpusView(counts, columns, begin, {"kinds": counts["train"]["kinds"]}, languages)


def view_texts(
    found: "Corpus[Example]",
    lines_of: Callable[[Any], Sequence[str]],
    title: str = "",
    name: str = "",
    kinds: Mapping[str, Mapping[str, int]] | None = None,
    **json: object,
) -> CorpusView:
    """Examples of texts, with how many of each of their `kinds` there are in each split."""
    counts = {
        split: {
            **found.sizes(split),
            "new_words": found.new_words(split),
            **({} if kinds is None else {name: kinds[split]}),
        }
        for split in found.splits
    }
    columns = [*size_columns(found), ("new words", "new_words", 12)]  # the last says how hard it is

    def begin(split: str, lines: int) -> Iterable[str]:
        for line in (line for example in found.split(split)[:lines] for line in lines_of(example)):
            indent = line[: len(line) - len(line.lstrip(" "))]
            yield shorten(indent + escape_controls(" ".join(line.split())), WIDTH)

    return CorpusView(counts, columns, begin, {} if kinds is None else {title: kinds["train"]}, json)


def view_labelled(found: "Corpus[TextClassificationExample]") -> CorpusView:
    """Show texts after their labels."""
    labels = {split: found.label_counts(split) for split in found.splits}
    names = list(found.labels)
    return view_texts(found, lambda one: [f"{one.label}: {one.text}"], "labels", "labels_of", labels, labels=names)


def view_tagged(found: "Corpus[TokenClassificationExample]") -> CorpusView:
    """Show sentences with their spans or tags."""
    from seqloom.data.examples import has_spans, tag_counts

    spans = has_spans(found)
    tags = {split: tag_counts(found, split) for split in found.splits}
    title = "spans" if spans else "tags"
    return view_texts(found, lambda one: [mark_tags(one, spans)], title, "tags_of", tags, tags=list(found.labels))


def mark_tags(sentence: "TokenClassificationExample", spans: bool) -> str:
    """Return `[Anna Schmidt PER] lives in [Bonn LOC].`, the text as it was written; or `Anna/PROPN lives/VERB`."""
    from seqloom.core.iob import extract_spans

    if not spans:
        return " ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True))
    marked, end = "", 0
    for span in extract_spans(sentence.tags):
        begins, ends = sentence.spans[span.start][0], sentence.spans[span.end - 1][1]
        marked += f"{sentence.text[end:begins]}[{sentence.text[begins:ends]} {span.type}]"
        end = ends
    return marked + sentence.text[end:]


def view_examples(found: "Corpus[Example]") -> CorpusView:
    """Show sentence pairs, choices, questions and instructions by their parts."""
    labels = {split: found.label_counts(split) for split in found.splits} if found.labels else None
    return view_texts(found, example_lines, "labels", "labels_of", labels)


def example_lines(example: Any) -> list[str]:
    """Return an example as its parts: a pair under its label, options under their text, a question over its context."""
    from seqloom.data import examples

    if isinstance(example, examples.SentencePairExample):
        return [f"{example.label}: {example.first}", f"  {example.second}"]
    if isinstance(example, examples.Instruction):
        given = [f"  {example.input}"] if example.input else []
        return [example.instruction, *given, f"  → {example.output}"]
    if isinstance(example, examples.MultipleChoiceExample):
        marks = ["+" if place == example.answer else "-" for place in range(len(example.options))]
        return [example.text, *(f"  {mark} {option}" for mark, option in zip(marks, example.options, strict=True))]
    return [f"{example.question} {example.answer.text}", f"  {example.context}"]


def view_series(found: "Corpus[Series]") -> CorpusView:
    """Show the first steps of a series."""
    from seqloom.data.series import columns_of, season_of

    def begin(split: str, lines: int) -> Iterable[str]:
        series = found.split(split)[0]
        labels = series.time_labels()
        yield f"{'time':16}" + "".join(f"{name[:13]:>14}" for name in columns_of(found))
        for place in range(series.begins, min(series.begins + lines, len(series))):
            cells = ("missing" if value != value else f"{value:,.6g}" for value in series.values[place])
            yield f"{labels[place]:16}" + "".join(f"{cell:>14}" for cell in cells)

    json = {"columns": list(columns_of(found)), "season": season_of(found)}
    return CorpusView(default_sizes(found), size_columns(found), begin, json=json)


def view_labelled_series(found: "Corpus[LabelledSeries]") -> CorpusView:
    """Show labelled series."""

    def begin(split: str, lines: int) -> Iterable[str]:
        return (shorten(f"{one.label}: {one.text}", WIDTH) for one in found.split(split)[:lines])

    shares, json = {"labels": found.label_counts("train")}, {"labels": list(found.labels)}
    return CorpusView(default_sizes(found), size_columns(found), begin, shares, json)


def view_tracks(found: "Corpus[Track]") -> CorpusView:
    """Show the first steps of a track."""

    def begin(split: str, lines: int) -> Iterable[str]:
        first = found.split(split)[0]
        yield f"{'step':6}{'observed':>22}{'true':>26}"
        for step, points in enumerate(zip(first.observed[:lines], first.truth[:lines], strict=True), start=1):
            cells = ["  ".join("missing" if value != value else f"{value:.1f}" for value in point) for point in points]
            yield f"{step:<6}{cells[0]:>22}{cells[1]:>26}"

    return CorpusView(default_sizes(found), size_columns(found, 10), begin, has_notes=False)


def default_sizes(found: "Corpus[Example]") -> dict[str, dict[str, int]]:
    """Return the sizes of each split."""
    return {split: found.sizes(split) for split in found.splits}


def size_columns(found: "Corpus[Example]", width: int = 12) -> list[Column]:
    """Return a column for each size."""
    return [(name, name, width) for name in found.sizes("train")]


VIEWS: dict[str, Callable[[Any], CorpusView]] = {
    "text": view_text,
    "parallel": view_parallel,
    "text-classification": view_labelled,
    "token-classification": view_tagged,
    "series": view_series,
    "series-labelled": view_labelled_series,
    "tracks": view_tracks,
}
