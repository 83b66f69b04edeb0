"""How a corpus is shown: what all forms have in common, and texts with labels or tags."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seqloom.cli._output import escaped, print_json

if TYPE_CHECKING:
    from seqloom.data.corpus import Corpus
    from seqloom.data.examples import TextClassificationExample, TokenClassificationExample

WIDTH = 110  # characters of a line that are shown
SHARES_TO_A_LINE = 4
MOST_SHARES = 40  # labels, tags or kinds that are listed


def show_labelled(found: "Corpus[TextClassificationExample]", lines: int, as_json: bool) -> None:
    counts = {split: found.label_counts(split) for split in found.splits}
    if as_json:
        _print_json(
            found, {split: {"labels_of": labels} for split, labels in counts.items()}, labels=list(found.labels)
        )
        return
    print_head(found)
    _print_sizes(found)
    print_shares("labels", counts["train"])
    for split in counts if lines else ():
        print(f"\n{split} begins:")
        for example in found.split(split)[:lines]:
            print(f"  {_cut(f'{example.label}: {example.text}')}")


def show_tagged(found: "Corpus[TokenClassificationExample]", lines: int, as_json: bool) -> None:
    from seqloom.data.examples import has_spans, tag_counts

    spans = has_spans(found)
    counts = {split: tag_counts(found, split) for split in found.splits}
    if as_json:
        _print_json(found, {split: {"tags_of": tags} for split, tags in counts.items()}, tags=list(found.labels))
        return
    print_head(found)
    _print_sizes(found)
    print_shares("spans" if spans else "tags", counts["train"])
    for split in counts if lines else ():
        print(f"\n{split} begins:")
        for sentence in found.split(split)[:lines]:
            print(f"  {_cut(in_brackets(sentence) if spans else in_pairs(sentence))}")


def show_examples(found: "Corpus[Any]", lines: int, as_json: bool) -> None:
    """Pairs, choices, questions."""
    labels = {split: found.label_counts(split) for split in found.splits} if found.labels else {}
    if as_json:
        _print_json(found, {split: {"labels_of": labels[split]} if labels else {} for split in found.splits})
        return
    print_head(found)
    _print_sizes(found)
    if labels:
        print_shares("labels", labels["train"])
    for split in found.splits if lines else ():
        print(f"\n{split} begins:")
        for example in found.split(split)[:lines]:
            print("\n".join(f"  {_cut(line)}" for line in _told(example)))


def _told(example: Any) -> list[str]:
    """An example as its parts: a pair under its label, options under their text, a question over its context."""
    if hasattr(example, "first"):
        return [f"{example.label}: {example.first}", f"  {example.second}"]
    if hasattr(example, "instruction"):
        given = [f"  {example.input}"] if example.input else []
        return [example.instruction, *given, f"  → {example.output}"]
    if hasattr(example, "options"):
        marks = ["+" if place == example.answer else "-" for place in range(len(example.options))]
        return [example.text, *(f"  {mark} {option}" for mark, option in zip(marks, example.options, strict=True))]
    return [f"{example.question} {example.answer.text}", f"  {example.context}"]


def in_brackets(sentence: "TokenClassificationExample") -> str:
    """`[Anna Schmidt PER] lives in [Bonn LOC].`: the text as it was written."""
    from seqloom.core.iob import spans_of

    made, end = "", 0
    for span in spans_of(sentence.tags):
        begins, ends = sentence.spans[span.start][0], sentence.spans[span.end - 1][1]
        made += f"{sentence.text[end:begins]}[{sentence.text[begins:ends]} {span.type}]"
        end = ends
    return made + sentence.text[end:]


def in_pairs(sentence: "TokenClassificationExample") -> str:
    """`Anna/PROPN lives/VERB`: word for word."""
    return " ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True))


# --- what all have --------------------------------------------------------------------------------------------------


def facts(found: Any) -> dict[str, Any]:
    return {
        "corpus": found.name,
        "version": found.version,
        "licence": found.licence,
        "sha256": found.fingerprint(),
    }


def print_head(found: Any) -> None:
    print(f"{found.name}: {found.description}\nversion {found.version}\nlicence {found.licence}\n")


def print_absent(found: Any) -> None:
    for split, reason in found.absent.items():
        print(f"{split:8}absent: {reason}")


def print_shares(title: str, counts: Mapping[str, int]) -> None:
    """What there is of each kind in train, the most frequent first."""
    total, most = sum(counts.values()), dict(list(counts.items())[:MOST_SHARES])
    shares = [f"{escaped(name)} {count / total:.1%}" for name, count in most.items()]
    shares += [f"and {len(counts) - len(most)} more"] if len(most) < len(counts) else []
    for start in range(0, len(shares), SHARES_TO_A_LINE):
        lead = f"{title}:".ljust(8)
        print(("\n" + lead if start == 0 else " " * len(lead)) + ", ".join(shares[start : start + SHARES_TO_A_LINE]))


def _print_sizes(found: Any) -> None:
    """A row for each split; the last figure says how hard it is."""
    names = list(found.sizes("train"))
    print(f"{'split':8}" + "".join(f"{name:>12}" for name in names) + f"{'new words':>12}   sha256")
    for split in found.splits:
        cells = "".join(f"{count:>12,}" for count in found.sizes(split).values())
        print(f"{split:8}{cells}{found.new_words(split):>12.1%}   {found.fingerprint()[split][:12]}")
    print_absent(found)
    for note in found.notes:
        print(f"note: {note}")


def _print_json(found: Any, counts: Mapping[str, Mapping[str, Any]], **more: Any) -> None:
    sizes = {
        split: {**found.sizes(split), "new_words": found.new_words(split), **counts[split]} for split in found.splits
    }
    absent, notes = dict(found.absent), list(found.notes)
    print_json({**facts(found), **more, "counts": sizes, "absent": absent, "notes": notes})


def _cut(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))]
    line = indent + escaped(" ".join(line.split()))
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
