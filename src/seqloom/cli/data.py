"""Look at a corpus."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import DataDir, JsonObject
from seqloom.cli._output import escaped, print_json
from seqloom.core.words import shorten

if TYPE_CHECKING:
    from seqloom.data.corpus import Corpus, TextCorpus
    from seqloom.data.examples import ParallelExample, TextClassificationExample, TokenClassificationExample
    from seqloom.data.series import LabelledSeries, Series
    from seqloom.data.vectors import Track

WIDTH = 110  # characters of a line that are shown
SHARES_TO_A_LINE = 4
MOST_SHARES = 40  # labels, tags or kinds that are listed

data = typer.Typer(help="Look at the corpora.", no_args_is_help=True, rich_markup_mode=None)


Column = tuple[str, str, int]  # a heading, the key in the counts of a split, the width


@dataclass(frozen=True)
class CorpusView:
    """How the corpora of one form are shown."""

    counts: Mapping[str, Mapping[str, Any]]  # by split
    columns: Sequence[Column]  # of the table of sizes
    begin: Callable[[str, int], Iterable[str]]  # the first so many examples of a split, as lines
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # how many of each kind in train, by title
    json: Mapping[str, Any] = field(default_factory=dict)  # more for --json
    has_notes: bool = True


@data.command()
def show(
    corpus: Annotated[str, typer.Argument(help="A corpus: `seqloom list corpora`.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its settings.")] = None,
    lines: Annotated[int, typer.Option(min=0, help="Lines, pairs or examples of each split to show.")] = 5,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """What a corpus is: source, version, licence, sizes, and how it begins. `seqloom data show cldr target=hu`."""
    from seqloom.config import apply_overrides, build, parse_overrides
    from seqloom.data import corpora
    from seqloom.data.files import use_data_folder

    mapping = apply_overrides({"corpus": corpus}, parse_overrides(overrides or []))
    module = corpora.find(corpus)
    config = build(module.Config, mapping, source=f"corpus {corpus}")
    with use_data_folder(data_dir):
        found = corpora.load(config) if module.FORM in VIEWS else module.load(config)
        view = VIEWS.get(module.FORM, _view_examples)(found)
        _print_json(found, view) if as_json else _print(found, view, lines)


def _print_json(found: "Corpus[Any]", view: CorpusView) -> None:
    facts = {"corpus": found.name, "version": found.version, "licence": found.licence, "sha256": found.fingerprint()}
    notes = {"notes": list(found.notes)} if view.has_notes else {}
    print_json({**facts, **view.json, "counts": view.counts, "absent": dict(found.absent), **notes})


def _print(found: "Corpus[Any]", view: CorpusView, lines: int) -> None:
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
    for title, counts in view.shares.items():
        _print_shares(title, counts)
    for split in found.splits if lines else ():
        print(f"\n{split} begins:")
        for line in view.begin(split, lines):
            print(f"  {line}")


def _print_shares(title: str, counts: Mapping[str, int]) -> None:
    """Print the share of each kind in train, the most frequent first."""
    total, most = sum(counts.values()), dict(list(counts.items())[:MOST_SHARES])
    shares = [f"{escaped(name)} {count / total:.1%}" for name, count in most.items()]
    shares += [f"and {len(counts) - len(most)} more"] if len(most) < len(counts) else []
    for start in range(0, len(shares), SHARES_TO_A_LINE):
        lead = f"{title}:".ljust(8)
        print(("\n" + lead if start == 0 else " " * len(lead)) + ", ".join(shares[start : start + SHARES_TO_A_LINE]))


def _cut(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))]
    return shorten(indent + escaped(" ".join(line.split())), WIDTH)


# --- forms ----------------------------------------------------------------------------------------------------------


def _view_text(found: "TextCorpus") -> CorpusView:
    counts = {split: found.sizes(split) for split in found.splits}
    columns = [("documents", "documents", 12), ("words", "words", 12), ("characters", "characters", 14)]

    def begin(split: str, lines: int) -> Iterable[str]:
        return (escaped(line)[:WIDTH] for line in "\n".join(found.split(split)[:lines]).split("\n")[:lines])

    return CorpusView(counts, columns, begin, has_notes=False)


def _view_parallel(found: "Corpus[ParallelExample]") -> CorpusView:
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
            yield " → ".join(shorten(escaped(side), WIDTH) for side in (pair.source, pair.target))

    languages = {"source": source, "target": target}
    return CorpusView(counts, columns, begin, {"kinds": counts["train"]["kinds"]}, languages)


def _view_texts(
    found: "Corpus[Any]",
    lines_of: Callable[[Any], Sequence[str]],
    title: str = "",
    name: str = "",
    kinds: Mapping[str, Mapping[str, int]] | None = None,
    **json: Any,
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
    columns = [*_size_columns(found), ("new words", "new_words", 12)]  # the last says how hard it is

    def begin(split: str, lines: int) -> Iterable[str]:
        return (_cut(line) for example in found.split(split)[:lines] for line in lines_of(example))

    return CorpusView(counts, columns, begin, {} if kinds is None else {title: kinds["train"]}, json)


def _view_labelled(found: "Corpus[TextClassificationExample]") -> CorpusView:
    labels = {split: found.label_counts(split) for split in found.splits}
    names = list(found.labels)
    return _view_texts(found, lambda one: [f"{one.label}: {one.text}"], "labels", "labels_of", labels, labels=names)


def _view_tagged(found: "Corpus[TokenClassificationExample]") -> CorpusView:
    from seqloom.data.examples import has_spans, tag_counts

    spans = has_spans(found)
    tags = {split: tag_counts(found, split) for split in found.splits}
    show_tags = _in_brackets if spans else _in_pairs
    title = "spans" if spans else "tags"
    return _view_texts(found, lambda one: [show_tags(one)], title, "tags_of", tags, tags=list(found.labels))


def _view_examples(found: "Corpus[Any]") -> CorpusView:
    """Sentence pairs, choices, questions, instructions."""
    labels = {split: found.label_counts(split) for split in found.splits} if found.labels else None
    return _view_texts(found, _parts, "labels", "labels_of", labels)


def _parts(example: Any) -> list[str]:
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


def _in_brackets(sentence: "TokenClassificationExample") -> str:
    """`[Anna Schmidt PER] lives in [Bonn LOC].`: the text as it was written."""
    from seqloom.core.iob import spans_of

    made, end = "", 0
    for span in spans_of(sentence.tags):
        begins, ends = sentence.spans[span.start][0], sentence.spans[span.end - 1][1]
        made += f"{sentence.text[end:begins]}[{sentence.text[begins:ends]} {span.type}]"
        end = ends
    return made + sentence.text[end:]


def _in_pairs(sentence: "TokenClassificationExample") -> str:
    """`Anna/PROPN lives/VERB`: word for word."""
    return " ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True))


def _view_series(found: "Corpus[Series]") -> CorpusView:
    from seqloom.data.series import columns_of, season_of

    def begin(split: str, lines: int) -> Iterable[str]:
        series = found.split(split)[0]
        labels = series.time_labels()
        yield f"{'time':16}" + "".join(f"{name[:13]:>14}" for name in columns_of(found))
        for place in range(series.begins, min(series.begins + lines, len(series))):
            cells = ("missing" if value != value else f"{value:,.6g}" for value in series.values[place])
            yield f"{labels[place]:16}" + "".join(f"{cell:>14}" for cell in cells)

    json = {"columns": list(columns_of(found)), "season": season_of(found)}
    return CorpusView(_sizes(found), _size_columns(found), begin, json=json)


def _view_labelled_series(found: "Corpus[LabelledSeries]") -> CorpusView:
    def begin(split: str, lines: int) -> Iterable[str]:
        return (shorten(f"{one.label}: {one.text}", WIDTH) for one in found.split(split)[:lines])

    shares, json = {"labels": found.label_counts("train")}, {"labels": list(found.labels)}
    return CorpusView(_sizes(found), _size_columns(found), begin, shares, json)


def _view_tracks(found: "Corpus[Track]") -> CorpusView:
    def begin(split: str, lines: int) -> Iterable[str]:
        first = found.split(split)[0]
        yield f"{'step':6}{'observed':>22}{'true':>26}"
        for step, (seen, true) in enumerate(zip(first.observed[:lines], first.truth[:lines], strict=True), start=1):
            yield f"{step:<6}{_point(seen):>22}{_point(true):>26}"

    return CorpusView(_sizes(found), _size_columns(found, 10), begin, has_notes=False)


def _point(values: Iterable[float]) -> str:
    return "  ".join("missing" if value != value else f"{value:.1f}" for value in values)


def _sizes(found: "Corpus[Any]") -> dict[str, dict[str, int]]:
    return {split: found.sizes(split) for split in found.splits}


def _size_columns(found: "Corpus[Any]", width: int = 12) -> list[Column]:
    return [(name, name, width) for name in found.sizes("train")]


VIEWS: dict[str, Callable[[Any], CorpusView]] = {
    "text": _view_text,
    "parallel": _view_parallel,
    "text-classification": _view_labelled,
    "token-classification": _view_tagged,
    "series": _view_series,
    "series-labelled": _view_labelled_series,
    "tracks": _view_tracks,
}
