"""The commands next and beam of `seqloom inspect`: next-token probabilities and trees of beam searches."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._options import JsonObject, PlotOut, drop_unset
from seqloom.cli._output import Json, check_plot_path, make_table, open_wide_console, print_notes, show_view
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.inspect.views.next_tokens import NextTokens, NextTokenStep
    from seqloom.inspect.views.search_tree import SearchTree, TreeNode

BAR_WIDTH = 30  # width of a full bar in characters
STEP_TOP = 4  # default number of tokens for each step of --each
Prefix = Annotated[str, typer.Option(help="The beginning of the output of a translator or denoiser.")]
MARKS = {"best": "*", "kept": "+", "ended": "=", "pruned": "-"}


def next_(
    run: Annotated[Path, typer.Argument(help="Run directory of a model that generates text.")],
    text: Annotated[str, typer.Argument(help="The text to continue, or the source text of a translator.")] = "",
    prefix: Prefix = "",
    top: Annotated[int | None, typer.Option(min=1, help="Number of tokens. [default: 10, or 4 with --each]")] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Show the distribution after each token that the model reads.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Sample from the smallest set of tokens with this total probability.")
    ] = 1.0,
    out: PlotOut = None,
    as_json: JsonObject = False,
) -> None:
    """Show next-token probabilities: `seqloom inspect next runs/lm-char-lstm "The clas" --top 5`."""
    from seqloom.inspect.plots.decoding import draw_next_steps, draw_next_tokens
    from seqloom.inspect.views.next_tokens import encode_prefix, next_token_steps, next_tokens, prepare_decoding
    from seqloom.predict.loader import load

    check_plot_path(out)
    sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    is_reshaped = any(value not in (1, None) for value in sampling.values())
    if each and is_reshaped:
        raise UsageError("--each shows the distributions of the model; leave out the sampling options.")
    model = load(run, "cpu")
    forced, notes = encode_prefix(model, prefix)
    print_notes([*prepare_decoding(model, text, forced).notes, *notes])
    count = top or (STEP_TOP if each else 10)
    read = " → ".join(part for part in (text, prefix) if part)
    title = f"{run.name} after “{read}”" if read else f"{run.name}, the beginning of a text"
    if each:
        steps = next_token_steps(model, text, forced, top=10**9)
        show_view(
            out,
            lambda: draw_next_steps(steps, title, top=count),
            as_json,
            lambda: {"run": str(run), "text": text, "prefix": prefix, "steps": steps_to_json(steps, count)},
            lambda: print_steps(steps, count),
        )
        return
    expected = next_tokens(model, text, forced, top=count, **sampling)
    show_view(
        out,
        lambda: draw_next_tokens(expected, title, sampling=is_reshaped),
        as_json,
        lambda: {"run": str(run), "text": text, "prefix": prefix, **expected_to_json(expected)},
        lambda: print_expected(expected, is_reshaped),
    )


def expected_to_json(expected: "NextTokens") -> Json:
    """Return the named tokens of a distribution as JSON values."""
    columns = zip(
        expected.tokens,
        expected.ids.tolist(),
        expected.probabilities.tolist(),
        expected.log_probs.tolist(),
        expected.sampling_probabilities.tolist(),
        strict=False,
    )
    names = ("token", "id", "probability", "log_prob", "sampling_probability")
    tokens = [dict(zip(names, column, strict=True)) for column in columns]
    return {"vocabulary": len(expected.ids), "entropy": expected.entropy, "tokens": tokens}


def steps_to_json(steps: "list[NextTokenStep]", top: int) -> list[Json]:
    rows = []
    for step in steps:
        values = expected_to_json(step.expected)
        known = None if step.following is None else step.expected.tokens[step.expected.rank(step.following) - 1]
        rank = None if step.following is None else step.expected.rank(step.following)
        following = {"token": known, "rank": rank, "probability": step.following_probability}
        shown = {"entropy": values["entropy"], "tokens": values["tokens"][:top]}  # type: ignore[index]
        rows.append({"read": step.read, **shown, "following": following if known is not None else None})
    return rows


def print_expected(expected: "NextTokens", is_reshaped: bool) -> None:
    """Print the most probable tokens with bars."""
    from rich.text import Text

    from seqloom.inspect.plots.figures import format_token

    console = open_wide_console()
    table = make_table(["token", "probability", "log p", *["for sampling"] * is_reshaped, ""])
    table.columns[-1].justify = "left"
    largest = max(float(expected.probabilities[0]), 1e-12)
    rows = zip(expected.tokens, expected.log_probs, expected.sampling_probabilities, strict=False)
    for number, (token, log_prob, sampled) in enumerate(rows):
        probability = float(expected.probabilities[number])
        bar = Text("█" * round(BAR_WIDTH * probability / largest))
        more = [f"{sampled:.4f}"] if is_reshaped else []
        table.add_row(Text(format_token(token)), f"{probability:.4f}", f"{log_prob:.3f}", *more, bar)
    console.print(table)
    total = float(expected.probabilities[: len(expected.tokens)].sum())
    console.print(
        f"\n{total:.1%} of the probability is on these {len(expected.tokens)} of {len(expected.ids):,} tokens; "
        f"the entropy is {expected.entropy:.2f} bits",
        markup=False,
    )


def print_steps(steps: "list[NextTokenStep]", top: int) -> None:
    """Print a row for each token that was read: the token that follows, and the most probable tokens."""
    from rich.text import Text

    from seqloom.inspect.plots.figures import format_token

    console = open_wide_console()
    table = make_table(["read", "followed by", "probability", "rank", "  most probable next tokens"], left=2)
    table.columns[-1].justify = "left"
    for step in steps:
        tokens = zip(step.expected.tokens[:top], step.expected.probabilities, strict=False)
        likely = "  ".join(f"{format_token(token)} {probability:.3f}" for token, probability in tokens)
        cells = ["", "", ""]
        if step.following is not None:
            rank = step.expected.rank(step.following)
            cells = [format_token(step.expected.tokens[rank - 1]), f"{step.following_probability:.4f}", str(rank)]
        table.add_row(Text(format_token(step.read)), Text(cells[0]), *cells[1:], Text(f"  {likely}"))
    console.print(table)


def beam(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory of a model that generates text; none with --example.")
    ] = None,
    text: Annotated[str, typer.Argument(help="The text to translate or to continue.")] = "",
    example: Annotated[
        bool, typer.Option("--example", help='Show the search for "he hit me with a pie" of the lectures.')
    ] = False,
    size: Annotated[
        int | None, typer.Option("--beam", min=1, help="Beam size. [default: 2 with --example, else the recipe's or 3]")
    ] = None,
    prefix: Prefix = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens of a language model.")] = 8,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, help="Exponent of the length penalty. [default: the recipe's or 1]")
    ] = None,
    stopping: Annotated[Literal["usual", "exact"] | None, typer.Option(help="The stopping rule.")] = None,
    pruned: Annotated[bool, typer.Option("--pruned/--no-pruned", help="Show continuations that were pruned.")] = True,
    out: PlotOut = None,
    as_json: JsonObject = False,
) -> None:
    """Show the tree of a beam search: `seqloom inspect beam runs/X "November 15, 2026" --beam 2 --out tree.png`.

    `seqloom inspect beam --example --out tree.png` shows the search of the lectures with k = 2.
    """
    from seqloom.inspect.plots.decoding import draw_search_tree

    check_plot_path(out)
    if example:
        if run is not None or prefix or length_penalty is not None or stopping is not None:
            raise UsageError("--example needs no model: leave out the run, the text and the options of its search.")
        from seqloom.inspect.views.lecture_tree import lecture_tree

        tree, name = lecture_tree(size or 2), "il a m'entarté"
    elif run is None:
        raise UsageError("Name a run and a text, or add --example.")
    else:
        tree, name = search_run(run, text, prefix, size, max_tokens, length_penalty, stopping), text or run.name
    title = [f"beam search, k = {tree.options.beam}: {name}", *(best.text for best in tree.candidates[:1])]
    show_view(
        out,
        lambda: draw_search_tree(tree, title, pruned=pruned),
        as_json,
        lambda: {"run": None if run is None else str(run), "text": text, **tree_to_json(tree)},
        lambda: print_tree(tree, pruned),
    )


def search_run(
    run: Path,
    text: str,
    prefix: str,
    size: int | None,
    max_tokens: int,
    length_penalty: float | None,
    stopping: str | None,
) -> "SearchTree":
    """Run a beam search with a trained model, and print its notes."""
    from seqloom.inspect.views.next_tokens import encode_prefix
    from seqloom.inspect.views.search_tree import search_tree
    from seqloom.predict.loader import load
    from seqloom.runs.trained import SearchingModel

    model = load(run, "cpu")
    forced, notes = encode_prefix(model, prefix)
    default = {} if isinstance(model, SearchingModel) else {"beam": 3}
    options = drop_unset(beam=size, length_penalty=length_penalty, stopping=stopping)
    tree = search_tree(model, text, forced, max_tokens=max_tokens, **{**default, **options})
    print_notes([*tree.notes, *notes])
    return tree


def tree_to_json(tree: "SearchTree") -> Json:
    """Return a tree as JSON values."""
    return {
        "beam": tree.options.beam,
        "length_penalty": tree.options.length_penalty,
        "nodes": [vars(node) for node in tree.nodes],
        "candidates": [vars(candidate) for candidate in tree.candidates],
        "others": [vars(other) for other in tree.others],
    }


def print_tree(tree: "SearchTree", pruned: bool) -> None:
    """Print a tree with the outcome and Σ log p of each continuation, then the hypotheses."""
    console = open_wide_console()
    for line in tree_lines(tree, pruned):
        console.print(line, markup=False, soft_wrap=True)
    console.print(
        "\n* best hypothesis   + kept in the beam   = complete" + "   - pruned" * pruned + "; the number is Σ log p\n",
        markup=False,
    )
    for number, best in enumerate([*tree.candidates, *tree.others], start=1):
        state = "" if best.finished else "  (not complete)"
        line = f"{number}  score {best.score:.4f}  log p {best.log_prob:.3f}  {best.text}{state}"
        console.print(line, markup=False, soft_wrap=True)


def tree_lines(tree: "SearchTree", pruned: bool) -> Iterator[str]:
    """Yield a line for each node, with box-drawing characters; the best continuation of a node comes first."""
    from seqloom.inspect.plots.decoding import outcome
    from seqloom.inspect.plots.figures import format_token

    children: dict[int, list[TreeNode]] = {}
    for node in tree.nodes:
        if node.parent is not None and (pruned or outcome(node) != "pruned"):
            children.setdefault(node.parent, []).append(node)
    yield format_token(tree.nodes[0].text)
    stack = [(child, "", last) for child, last in mark_last(children.get(0, []))]
    while stack:
        node, indent, is_last = stack.pop()
        yield f"{indent}{'└─' if is_last else '├─'}{MARKS[outcome(node)]} {format_token(node.text)}  {node.total:.3f}"
        inner = indent + ("   " if is_last else "│  ")
        stack += [(child, inner, last) for child, last in mark_last(children.get(node.id, []))]


def mark_last(nodes: "list[TreeNode]") -> "list[tuple[TreeNode, bool]]":
    """Return siblings in reverse order of rank, with a flag for the one that is printed last."""
    ordered = sorted(nodes, key=lambda node: -node.rank)
    return [(node, number == 0) for number, node in enumerate(ordered)]
