"""Beam search in steps of one fixed shape, which a GPU captures as a CUDA graph and then replays.

A step of a small model is hundreds of small kernels, and to launch them takes longer than to run
them. So everything a step changes lies in static buffers, sources that are done stay where they are
and keep what they found, and no step waits for the device: whether all are done is read every few
steps. Then, too, sources move together, to buffers for half as many, or to buffers with room for
more tokens.

The rules are those of `seqloom.decoding.rules`; a Triton kernel applies them in one launch.
"""

import contextlib
import importlib
import math
import threading
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from seqloom.accel.cuda_graphs import capture
from seqloom.accel.decoding.fixed_steps import fixed_steps
from seqloom.core.device import has_triton
from seqloom.core.errors import DivergedError, is_out_of_memory
from seqloom.core.progress import check_cancelled
from seqloom.core.protocols import DecodeState, Steppable, longest_target
from seqloom.core.tree import Tree, leaves, select_rows, tree_map
from seqloom.decoding.beam import beam_search, length_limits
from seqloom.decoding.rules import (
    NOT_NUMBERS,
    BeamConfig,
    BeamRules,
    Finished,
    Hypothesis,
    Nodes,
    Recorder,
    best_candidates,
    collect,
    no_finished,
)

MIN_SOURCES = 8  # to capture steps takes as long as to search for fewer
STEPS_BETWEEN_READS = 8  # after so many it is read whether all are done
FIRST_CAPACITY = 32  # steps that there is room for at first; then twice as many, and so on
PADDING_MULTIPLE = 8  # sources are padded to a multiple of so many tokens, so that there are few shapes
WARM_UP_STEPS = 3  # steps of a shape that are run before it is captured
MEMORY_SHARE = 8  # this part of a GPU's memory is kept for the graphs of a model,
MAX_BYTES = 1 << 30  # and so many bytes elsewhere
MAX_KERNEL_CANDIDATES = 1024  # continuations of a source that the kernel is for
FIXED = ("step", "broken")  # entries of a search that have no row for each source


@dataclass
class Buffers:
    """Tensors of one shape, and the graph of the step on them once it is captured."""

    tree: dict[str, Tree]
    banned: Tensor
    steps_run: int = 0
    graph: Any = None

    @property
    def bytes(self) -> int:
        return sum(leaf.nbytes for leaf in leaves(self.tree))


@dataclass
class ModelGraphs:
    """The graphs of a model, while its weights lie where they lay."""

    weights: Hashable
    buffers: dict[Hashable, Buffers] = field(default_factory=dict)  # the latest used come last
    pool: Any = None
    stream: Any = None
    refused: bool = False  # whether a step could not be captured


_graphs: WeakKeyDictionary[Any, ModelGraphs] = WeakKeyDictionary()
_lock = threading.Lock()  # buffers are one search's at a time


def can_graph_search(
    model: Steppable,
    *_: object,
    options: BeamConfig,
    source: Tree = None,
    prompt: Tensor | None = None,
    attention: bool = False,
    recorder: Recorder | None = None,
    **__: object,
) -> bool:
    if prompt is not None or recorder is not None or attention or source is None:
        return False
    first = next(leaves(source))
    return first.is_cuda and len(first) >= MIN_SOURCES and can_fix_shapes(model, source, options)


def can_fix_shapes(model: Steppable, source: Tree, options: BeamConfig) -> bool:
    """Whether a model can search this source by steps of one shape."""
    if options.coverage_penalty > 0 or fixed_steps(model) is None:
        return False
    mask = source.get("mask") if isinstance(source, dict) else None
    return mask is not None and bool(mask.any(dim=1).all())


def graphed_beam_search(
    model: Steppable, *, options: BeamConfig, end: int, source: Tree = None, banned: Collection[int] = (), **_: object
) -> list[list[Hypothesis]]:
    """`beam_search` by CUDA graphs; without memory for them, by definition."""
    rules = BeamRules(options, end, tuple(sorted(set(banned) - {end})))
    hypotheses = search_fixed(model, source, rules)
    if hypotheses is None:
        return beam_search.definition(model, options=options, end=end, source=source, banned=banned)
    return hypotheses


def search_fixed(
    model: Steppable, source: dict[str, Tensor], rules: BeamRules, capture: bool = True
) -> list[list[Hypothesis]] | None:
    """Search by steps of one shape; None if there is not enough memory.

    Without `capture` every step is run one operation at a time, on any device.
    """
    limit = length_limits(rules.options, source["mask"], torch.zeros(len(source["mask"]), dtype=torch.long))
    if (longest := longest_target(model)) is not None:
        limit = limit.clamp(max=longest)
    # Buffers outlive the search, and any inference mode it is made in.
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(source["tokens"]):
        try:
            return FixedSearch(model, rules, capture).search(source, limit)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    release_graphs(model)
    torch.cuda.empty_cache()
    return None


def release_graphs(model: Any) -> None:
    """Release the graphs of a model, and the memory they take."""
    with contextlib.suppress(KeyError), _lock:
        del _graphs[model]


class FixedSearch:
    """A search whose steps all have one shape."""

    def __init__(self, model: Steppable, rules: BeamRules, capture: bool) -> None:
        steps = fixed_steps(model)
        assert steps is not None, "`can_fix_shapes` must be asked first"
        self.steps, self.model, self.rules, self.k, self.capture = steps, model, rules, rules.options.beam, capture
        self.nodes, self.results = Nodes(), list[Finished]()

    def search(self, source: dict[str, Tensor], limit: Tensor) -> list[list[Hypothesis]]:
        """The hypotheses of each source, at most `limit` (B,) tokens long, a tensor on the CPU."""
        tree = self.begin(source, limit)
        with _lock:  # meanwhile another search may begin, or write down what it found
            self.run(tree, int(limit.max()))
        return collect(self.nodes, self.results, len(limit))

    def run(self, tree: dict[str, Tree], longest: int) -> None:
        """Make all steps, until all sources are done."""
        capacity, step = first_capacity(longest), 0
        while True:
            buffers = self._buffers(tree, capacity)
            tree = buffers.tree
            check_cancelled()
            for _ in range(min(STEPS_BETWEEN_READS, capacity - step, longest - step)):
                self._advance(buffers)
                step += 1
            search = tree["search"]
            done, broken = torch.cat([search["done"], search["broken"]]).cpu().split([len(search["done"]), 1])
            if bool(broken):
                raise DivergedError(NOT_NUMBERS)
            staying = (~done).nonzero().squeeze(1)
            if len(staying) and step >= longest:
                raise RuntimeError("a search went on beyond its longest hypothesis")
            if len(staying) == 0 or 2 * len(staying) <= len(done) > MIN_SOURCES:
                self._collect(search, done.nonzero().squeeze(1), step)
                if len(staying) == 0:
                    return
                tree = keep_sources(tree, staying, self.k)
            if step == capacity:
                capacity *= 2
                tree = self._with_capacity(tree, capacity)

    def begin(self, source: dict[str, Tensor], limit: Tensor) -> dict[str, Tree]:
        """Everything before the first step. The sources that only fill up the shape are done."""
        k, device, capacity = self.k, source["tokens"].device, first_capacity(int(limit.max()))
        padded, sources = pad_source(source, getattr(self.model, "longest_source", None)), len(limit)
        state = self.steps.begin(self.model.start(padded), k, capacity)
        b = len(padded["tokens"])
        limits = torch.zeros(b, dtype=torch.long)
        limits[:sources] = limit
        impossible = torch.full((b, k), -math.inf, dtype=torch.float64, device=device)
        log_prob = impossible.clone()
        log_prob[:, 0] = 0
        history = torch.zeros(b, capacity, k, dtype=torch.long, device=device)
        search = {
            "step": torch.zeros((), dtype=torch.long, device=device),  # tokens chosen so far
            "source": torch.arange(b, device=device),
            "limit": limits.to(device),
            "done": torch.arange(b, device=device) >= sources,
            "length": torch.zeros(b, dtype=torch.long, device=device),  # when it was done
            "token": torch.full((b, k), self.rules.end, device=device),
            "log_prob": log_prob,
            "before": impossible,  # log_prob a step earlier
            "finished": no_finished(b, k, torch.float64, device),
            "history": {"token": history, "parent": history.clone(), "own": history.double()},
            "broken": torch.zeros(1, dtype=torch.bool, device=device),
        }
        return {"hidden": state.hidden, "memory": state.memory, "search": search}

    # --- buffers and their graphs -------------------------------------------------------------------------------------

    def _buffers(self, tree: dict[str, Tree], capacity: int) -> Buffers:
        """The static buffers for a tree, with the tree in them."""
        device = tree["search"]["step"].device
        if not self.capture:
            return Buffers(tree, torch.tensor(self.rules.banned, device=device))
        graphs = _graphs.get(self.model)
        if graphs is None or graphs.weights != self.steps.weights_key():
            graphs = _graphs[self.model] = ModelGraphs(self.steps.weights_key())
        key = self.rules, capacity, tuple((leaf.shape, leaf.dtype) for leaf in leaves(tree))
        buffers = graphs.buffers.pop(key, None)
        if buffers is None:
            drop_oldest(graphs.buffers, device)
            buffers = Buffers(tree_map(Tensor.clone, tree), torch.tensor(self.rules.banned, device=device))
        elif buffers.tree is not tree:
            _copy(tree, buffers.tree)
        graphs.buffers[key] = buffers
        return buffers

    def _advance(self, buffers: Buffers) -> None:
        """Make one step; it is captured once it has been run a few times."""
        if buffers.graph is None and self.capture and buffers.steps_run >= WARM_UP_STEPS:
            self._capture(buffers, _graphs[self.model])
        if buffers.graph is None:
            self._step(buffers)
            buffers.steps_run += 1
        else:
            buffers.graph.replay()

    def _capture(self, buffers: Buffers, graphs: ModelGraphs) -> None:
        """Capture a step; one that cannot be captured is run one operation at a time."""
        if graphs.refused:
            return
        graphs.pool = graphs.pool or torch.cuda.graph_pool_handle()
        graphs.stream = graphs.stream or torch.cuda.Stream(buffers.banned.device)
        try:
            buffers.graph = capture(lambda: self._step(buffers), graphs.pool, graphs.stream)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            graphs.refused = True

    def _with_capacity(self, tree: dict[str, Tree], capacity: int) -> dict[str, Tree]:
        search = tree["search"]
        state = self.steps.enlarge(DecodeState(tree["hidden"], tree["memory"]), self.k, capacity)
        history = {
            name: torch.cat([values, values.new_zeros(len(values), capacity - values.shape[1], self.k)], dim=1)
            for name, values in search["history"].items()
        }
        return {"hidden": state.hidden, "memory": state.memory, "search": {**search, "history": history}}

    def _step(self, buffers: Buffers) -> None:
        """One step. Nothing here may wait for the device, or depend in its shapes on what it finds."""
        tree = buffers.tree
        search: dict[str, Any] = tree["search"]
        state, count = DecodeState(tree["hidden"], tree["memory"]), self.k + 1 + len(self.rules.banned)
        values, ids, hidden = self.steps.step(search["token"].view(-1, 1), state, search["step"], count)
        rows = choose(search, values, ids, buffers.banned, self.rules)
        _copy(select_rows(hidden, rows), tree["hidden"])
        search["step"].add_(1)

    # --- results ------------------------------------------------------------------------------------------------------

    def _collect(self, search: dict[str, Any], rows: Tensor, step: int) -> None:
        """The n best of sources that are done; history becomes nodes of a tree, (1 + step) · k for each source."""
        k, device = self.k, search["step"].device
        own = {key: value for key, value in search.items() if key not in FIXED}
        own = own if len(rows) == len(search["source"]) else select_rows(own, rows.to(device))
        own = tree_map(lambda part: part.to("cpu", non_blocking=True, copy=True), own)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # once for all
        own = select_rows(own, (own["length"] > 0).nonzero().squeeze(1))  # what filled up the shape never began
        g, length = len(own["length"]), own["length"].unsqueeze(1)
        if g == 0:
            return
        first = self.nodes.size + torch.arange(g).unsqueeze(1) * (1 + step) * k  # (g, 1)
        slots = torch.arange(k)
        after = self.rules.unfinished(own["log_prob"], length * k + slots, length)
        before = self.rules.unfinished(own["before"], (length - 1) * k + slots, length - 1)
        results = self.rules.results(own["finished"], after, before)
        self.results.append({**results, "node": results["node"] + first, "source": own["source"]})
        parents = torch.arange(step).view(1, step, 1) * k + first.unsqueeze(2)  # (g, step, 1) where they begin
        history = {name: values[:, :step] for name, values in own["history"].items()}
        root = torch.zeros(g, 1, k, dtype=torch.long)
        self.nodes.grow(
            torch.cat([root + self.rules.end, history["token"]], dim=1).flatten(),
            torch.cat([root + first.unsqueeze(2), history["parent"] + parents], dim=1).flatten(),
            torch.cat([root.double(), history["own"]], dim=1).flatten(),
        )


def choose(search: dict[str, Any], values: Tensor, ids: Tensor, banned: Tensor, rules: BeamRules) -> Tensor:
    """Apply the rules to tokens `ids` (R, K) of log p `values`, most probable first, in the buffers of a search.

    A source that is done keeps what it found. Returned is which row (R,) each hypothesis was
    before.
    """
    if values.is_cuda and rules.options.beam * values.shape[1] <= MAX_KERNEL_CANDIDATES and has_triton():
        return choose_by_kernel(search, values, ids, banned, rules)
    (b, k), done, step = search["log_prob"].shape, search["done"].clone(), search["step"]
    length = step + 1
    values = rules.forbid(values.double(), ids, length, banned)
    best = best_candidates(values.view(b, k, -1), ids.view(b, k, -1), search["log_prob"], 2 * k)
    chosen = best.unended(rules.end, k)
    node = (step * k + torch.arange(k, device=step.device)).expand(b, k)
    finished = rules.add_finished(search["finished"], best, node, length)
    is_broken = chosen.total[:, 0].isnan() | finished["score"][:, 0].isnan()
    search["broken"].logical_or_((is_broken & ~done).any())
    search["done"].logical_or_(rules.is_done(finished, chosen.total, search["limit"], length))
    kept = {"before": search["log_prob"], "log_prob": chosen.total, "length": length, "finished": finished}
    _copy_where(~done, kept, search)
    search["token"].copy_(chosen.token)
    for name, value in (("token", chosen.token), ("parent", chosen.slot), ("own", chosen.own)):
        search["history"][name].index_copy_(1, step.view(1), value.unsqueeze(1))
    return (torch.arange(b, device=step.device).unsqueeze(1) * k + chosen.slot).flatten()


def choose_by_kernel(search: dict[str, Any], values: Tensor, ids: Tensor, banned: Tensor, rules: BeamRules) -> Tensor:
    """The same, of tensors on a GPU, in one kernel."""
    (b, k), (R, count) = search["log_prob"].shape, values.shape
    ended, history, options = search["finished"], search["history"], rules.options
    rows = torch.empty(R, dtype=torch.long, device=values.device)
    with torch.cuda.device_of(values):
        importlib.import_module("seqloom.accel.search.choose_triton").choose[(b,)](
            values.contiguous(), ids.contiguous(), banned,
            search["step"], search["limit"], search["done"].view(torch.uint8), search["length"],
            search["token"], search["log_prob"], search["before"],
            ended["score"], ended["log_prob"], ended["end"], ended["node"], ended["length"],
            ended["finished"].view(torch.uint8),
            history["token"], history["parent"], history["own"],
            search["broken"].view(torch.uint8), rows, history["token"].shape[1],
            K=k, COUNT=count, CANDIDATES=_power_of_two(k * count), PLACES=_power_of_two(2 * k),
            BANNED=len(banned), END=rules.end, N_BEST=options.n_best, ALPHA=options.length_penalty,
            MIN_LENGTH=options.min_length, EXACT=options.stopping == "exact", num_warps=1,
        )  # fmt: skip
    return rows


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _copy_where(going: Tensor, new: dict[str, Any], buffers: dict[str, Any]) -> None:
    """Copy tensors into those of the same names, the rows (b, …) of sources that still go on (b,)."""
    for name, value in new.items():
        buffer = buffers[name]
        if isinstance(value, dict):
            _copy_where(going, value, buffer)
        else:
            torch.where(going.view(-1, *(1,) * (buffer.dim() - 1)), value, buffer, out=buffer)


def drop_oldest(buffers: dict[Hashable, Buffers], device: torch.device) -> None:
    """Drop the buffers that were not used for longest, as long as there is more than is to be kept."""
    most = MAX_BYTES
    if device.type == "cuda":
        most = torch.cuda.get_device_properties(device).total_memory // MEMORY_SHARE
    while buffers and sum(each.bytes for each in buffers.values()) > most:
        del buffers[next(iter(buffers))]


def first_capacity(longest: int) -> int:
    """How many steps there is room for at first."""
    return min(FIRST_CAPACITY, -(-longest // 8) * 8)


def pad_source(source: dict[str, Tensor], longest: int | None) -> dict[str, Tensor]:
    """A source whose shape is one of few: more tokens, which are masked, and more sources, the first one again."""
    tokens, mask = source["tokens"], source["mask"]
    B, S = tokens.shape
    width = max(S, min(-(-S // PADDING_MULTIPLE) * PADDING_MULTIPLE, longest or 1 << 30))
    rows = torch.arange(_power_of_two(B), device=tokens.device)
    rows = rows.where(rows < B, 0)
    pad = torch.nn.functional.pad
    return {
        "tokens": pad(tokens, (0, width - S)).index_select(0, rows),
        "mask": pad(mask, (0, width - S)).index_select(0, rows),
    }


def keep_sources(tree: dict[str, Tree], staying: Tensor, k: int) -> dict[str, Tree]:
    """The sources that stay, in half as many rows, or a quarter …; the first fills up the rest, and is done there."""
    number, search = len(staying), tree["search"]
    rows = torch.full((_power_of_two(number),), int(staying[0]))
    rows[:number] = staying
    rows = rows.to(search["step"].device)
    kept = select_rows({key: value for key, value in search.items() if key not in FIXED}, rows)
    kept["done"] = torch.arange(len(rows), device=rows.device) >= number
    kept["length"] = kept["length"].masked_fill(kept["done"], 0)
    hypotheses = (rows.unsqueeze(1) * k + torch.arange(k, device=rows.device)).flatten()
    return {
        "hidden": select_rows(tree["hidden"], hypotheses),
        "memory": select_rows(tree["memory"], rows),
        "search": {**kept, **{key: search[key] for key in FIXED}},
    }


def _copy(new: Tree, buffers: Tree) -> None:
    for value, buffer in zip(leaves(new), leaves(buffers), strict=True):
        buffer.copy_(value)
