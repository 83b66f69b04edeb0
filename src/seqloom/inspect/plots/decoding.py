"""Plots of decoding: probabilities of the next token, and trees of beam searches."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from seqloom.inspect.plots.figures import (
    COLOURS,
    Style,
    display_width,
    draw_cell_borders,
    format_token,
    new_figure,
    text_style,
    tidy,
    truncate,
)
from seqloom.inspect.views.next_tokens import NextTokens, NextTokenStep
from seqloom.inspect.views.search_tree import SearchTree, Status, TreeNode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NAME = 24  # maximum characters of the name of a token
FOLLOWING_COLOUR = COLOURS[1]
WRITTEN_PROBABILITY = 0.05  # smaller probabilities are not written into the cells
WHITE_TEXT_SHADE = 0.55  # text is white on darker shades

# --- next tokens ------------------------------------------------------------------------------------------------------


def draw_next_tokens(expected: NextTokens, title: str, *, sampling: bool = False) -> "Figure":
    """Draw the probabilities of the named tokens as bars; with `sampling`, also the probabilities for sampling."""
    names = [truncate(format_token(token), MAX_NAME) for token in expected.tokens]
    count = len(names)
    figure = new_figure(7.5, 1.4 + 0.3 * count)
    axes = tidy(figure.add_subplot(), grid=False)
    rows, style = np.arange(count), text_style([*names, title])
    height = 0.4 if sampling else 0.75
    axes.barh(rows - sampling * height / 2, expected.probabilities[:count], height, color=COLOURS[0], label="model")
    if sampling:
        values = expected.sampling_probabilities[:count]
        axes.barh(rows + height / 2, values, height, color=COLOURS[1], label="for sampling")
        axes.legend(loc="lower right", frameon=False)
    largest = max(float(expected.probabilities[:count].max()), 1e-6)
    for row, probability in enumerate(expected.probabilities[:count]):
        axes.text(probability + 0.01 * largest, row - sampling * height / 2, f"{probability:.3f}", va="center", size=8)
    axes.set_yticks(rows, names, **style)
    axes.set_xlabel("probability")
    axes.set_xlim(0, min(1.12 * max(largest, float(expected.sampling_probabilities[:count].max())), 1.1))
    axes.invert_yaxis()
    figure.suptitle(truncate(title, 76), fontsize=11, **style)
    return figure


def draw_next_steps(steps: Sequence[NextTokenStep], title: str, *, top: int) -> "Figure":
    """Draw a column of probabilities for each token that was read; outlines mark the tokens of the text.

    The rows are all tokens that are among the `top` most probable tokens of a step or follow in the text.
    """
    from matplotlib.patches import Rectangle

    names = row_names(steps, top)
    tokens = list(names)
    heads = [truncate(format_token(step.read), MAX_NAME) for step in steps]
    sides = [truncate(format_token(name), MAX_NAME) for name in names.values()]
    longest = max(map(display_width, heads))
    height = 1.6 + 0.27 * len(sides) + (0.09 * longest if longest > 3 else 0)
    figure = new_figure(max(5.0, 2.6 + 0.5 * len(steps)), height)
    axes, style = figure.add_subplot(), text_style([*heads, *sides, title])
    values = np.array(
        [[step.expected.probabilities[step.expected.rank(token) - 1] for step in steps] for token in tokens]
    )
    image = axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(heads)), heads, **style)
    for head, tick in zip(heads, axes.get_xticklabels(), strict=True):
        tick.set_rotation(90 if display_width(head) > 3 else 0)
    axes.set_yticks(range(len(sides)), sides, **style)
    axes.spines[:].set_visible(False)
    draw_cell_borders(axes, len(sides), len(heads), "white", 1.2)
    for (row, column), value in np.ndenumerate(values):
        if value >= WRITTEN_PROBABILITY and len(steps) <= 40:
            colour = "white" if value > WHITE_TEXT_SHADE else "black"
            axes.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", color=colour, size=7)
    for column, step in enumerate(steps):
        if step.following in names:
            corner = (column - 0.47, tokens.index(step.following) - 0.47)
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=FOLLOWING_COLOUR, linewidth=1.8))
    axes.set_xlabel("token read")
    axes.set_ylabel("next token")
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18)
    bar.set_label("probability")
    bar.outline.set_visible(False)
    figure.suptitle(truncate(title, int(11 * figure.get_figwidth())), fontsize=11, **style)
    return figure


def row_names(steps: Sequence[NextTokenStep], top: int) -> dict[int, str]:
    """Return the tokens of the rows with their names: the tokens of the text in their order, then other tokens."""
    names = {
        step.following: step.expected.tokens[step.expected.rank(step.following) - 1]
        for step in steps
        if step.following is not None
    }
    for step in steps:
        likely = zip(step.expected.ids.tolist(), step.expected.tokens[:top], strict=False)
        names |= {token: name for token, name in likely if token not in names}
    return names


# --- search trees -----------------------------------------------------------------------------------------------------

ROW, COLUMN = 0.42, 1.25  # inches of a leaf and of a step
MAX_SIDE = 60.0  # maximum inches of a side of a tree
LABELS = {  # the outcome of a continuation
    "best": "best hypothesis",
    "kept": "kept in the beam",
    "ended": "complete",
    "pruned": "pruned",
}
NODE_COLOURS = {"best": COLOURS[1], "kept": COLOURS[0], "ended": COLOURS[2], "pruned": "0.6"}


def outcome(node: TreeNode) -> str:
    """Return the key of `LABELS` for a node."""
    if node.best == 1:
        return "best"
    groups: dict[Status, str] = {"ended": "ended", "pruned": "pruned"}
    return groups.get(node.status, "kept")


def draw_search_tree(tree: SearchTree, title: Sequence[str], *, pruned: bool = True) -> "Figure":
    """Draw a tree from left to right, with Σ log p below each token. Without `pruned`, only the beam is drawn."""
    nodes = [node for node in tree.nodes if pruned or outcome(node) != "pruned"]
    rows = leaf_rows(nodes)
    labels = {node.id: truncate(format_token(node.text), MAX_NAME) for node in nodes}
    widest = max(display_width(label) for label in labels.values())
    across = max(COLUMN, 0.42 + 0.1 * widest) * (tree.steps + 1)
    leaves = max(rows.values()) + 1
    figure = new_figure(
        min(max(6.0, across), MAX_SIDE), min(max(2.5, ROW * leaves + 1.2 + 0.25 * len(title)), MAX_SIDE)
    )
    axes, style = figure.add_subplot(), text_style([*labels.values(), *title])
    axes.axis("off")
    for node in nodes:
        if node.parent is not None:
            draw_edge(
                axes, (tree.nodes[node.parent].step, rows[node.parent]), (node.step, rows[node.id]), outcome(node)
            )
    for node in nodes:
        group = outcome(node)
        weight = "bold" if group in ("best", "ended") else "normal"
        box: Style = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": NODE_COLOURS[group]}
        text: Style = {"ha": "center", "va": "center", "size": 9, "weight": weight, "bbox": box, **style}
        axes.text(node.step, rows[node.id], labels[node.id], color="0.45" if group == "pruned" else "black", **text)
        if node.parent is not None:
            axes.annotate(
                f"{node.total:.1f}" if is_coarse(tree) else f"{node.total:.2f}",
                (node.step, rows[node.id]),
                xytext=(0, -11),
                textcoords="offset points",
                ha="center",
                va="top",
                size=7.5,
                color=NODE_COLOURS[group],
            )
    axes.set_xlim(-0.5, tree.steps + 0.5)
    axes.set_ylim(leaves - 0.3, -0.7)
    add_outcome_legend(axes, [outcome(node) for node in nodes])
    lines = [truncate(line, int(figure.get_figwidth() / 0.095)) for line in title]
    figure.suptitle("\n".join(lines), fontsize=11, linespacing=1.5, **style)
    return figure


def is_coarse(tree: SearchTree) -> bool:
    """Return whether all scores of a tree have one decimal, as in the lectures."""
    return all(abs(node.total - round(node.total, 1)) < 1e-9 for node in tree.nodes)


def leaf_rows(nodes: Sequence[TreeNode]) -> dict[int, float]:
    """Return the vertical position of each node: leaves are in consecutive rows, and a parent is between its children.

    Siblings are ordered by rank, so that the best continuation is at the top.
    """
    children: dict[int, list[TreeNode]] = {node.id: [] for node in nodes}
    for node in nodes:
        if node.parent is not None:
            children[node.parent].append(node)
    order: list[TreeNode] = []  # parents before children, in the order of the plot
    stack = [nodes[0]]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += sorted(children[node.id], key=lambda child: -child.rank)
    leaves = (node.id for node in order if not children[node.id])
    rows = {leaf: float(row) for row, leaf in enumerate(leaves)}
    for node in reversed(order):
        if children[node.id]:
            rows[node.id] = sum(rows[child.id] for child in children[node.id]) / len(children[node.id])
    return rows


def draw_edge(axes: "Axes", start: tuple[float, float], end: tuple[float, float], group: str) -> None:
    """Draw the line from a parent to its child."""
    line: Style = {"color": NODE_COLOURS[group], "zorder": 0, "linewidth": 2.2 if group == "best" else 1.1}
    axes.plot([start[0], end[0]], [start[1], end[1]], linestyle=":" if group == "pruned" else "-", **line)


def add_outcome_legend(axes: "Axes", groups: Sequence[str]) -> None:
    """Add a legend below the tree for the outcomes that occur."""
    from matplotlib.lines import Line2D

    shown = [group for group in LABELS if group in groups]
    handles = [
        Line2D([], [], color=NODE_COLOURS[group], linestyle=":" if group == "pruned" else "-", label=LABELS[group])
        for group in shown
    ]
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=len(shown), frameon=False, fontsize=9
    )
