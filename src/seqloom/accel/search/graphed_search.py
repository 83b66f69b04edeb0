"""Beam search in steps of a fixed shape, which are captured as a CUDA graph and replayed.

A step of a small model launches hundreds of small kernels, and the launches take longer than the execution. All state
of a step is therefore in static buffers. Finished sources keep their rows and results, and steps do not synchronize the
device. Every few steps, the search checks which sources are done. The remaining sources then move to smaller buffers,
or to buffers for more tokens.

A Triton kernel applies the rules of `seqloom.decoding.rules` in one launch.
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
from seqloom.decoding.constraints import Constraints
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

MIN_SOURCES = 8  # with fewer sources, the capture takes longer than it saves
STEPS_BETWEEN_CHECKS = 8
FIRST_CAPACITY = 32  # number of steps in the first buffers; each enlargement doubles this number
PADDING_MULTIPLE = 8  # sources are padded to a multiple of this length, which limits the number of shapes
WARM_UP_STEPS = 3  # number of eager steps of a shape before the capture
GPU_MEMORY_DIVISOR = 8  # the graphs of a model may use 1/8 of the GPU memory
MAX_CPU_BYTES = 1 << 30
MAX_KERNEL_CANDIDATES = 1024  # continuations per source
GLOBAL_ENTRIES = ("step", "diverged")  # entries of a search that do not have a row per source


@dataclass
class Buffers:
    """Static buffers of one shape and, once captured, the graph of their step."""

    tree: dict[str, Tree]
    banned: Tensor
    steps_run: int = 0
    graph: Any = None

    @property
    def bytes(self) -> int:
        return sum(leaf.nbytes for leaf in leaves(self.tree))


@dataclass
class ModelGraphs:
    """The graphs of a model, valid for one version of its weights."""

    weights: Hashable
    buffers: dict[Hashable, Buffers] = field(default_factory=dict)  # least recently used first
    pool: Any = None
    stream: Any = None
    capture_failed: bool = False


_graphs: WeakKeyDictionary[Any, ModelGraphs] = WeakKeyDictionary()
_lock = threading.Lock()  # one search at a time uses the buffers


def can_graph_search(
    model: Steppable,
    *_: object,
    options: BeamConfig,
    source: Tree = None,
    prompt: Tensor | None = None,
    constraints: Constraints | None = None,
    attention: bool = False,
    recorder: Recorder | None = None,
    **__: object,
) -> bool:
    if any(each is not None for each in (prompt, constraints, recorder)) or attention or source is None:
        return False
    first = next(leaves(source))
    return first.is_cuda and len(first) >= MIN_SOURCES and can_fix_shapes(model, source, options)


def can_fix_shapes(model: Steppable, source: Tree, options: BeamConfig) -> bool:
    """Return whether a model supports steps of a fixed shape for this source."""
    with torch.no_grad():  # as in the search, because packed weights have no gradients
        if options.coverage_penalty > 0 or fixed_steps(model) is None:
            return False
    mask = source.get("mask") if isinstance(source, dict) else None
    return mask is not None and bool(mask.any(dim=1).all())


def graphed_beam_search(
    model: Steppable, *, options: BeamConfig, end: int, source: Tree = None, banned: Collection[int] = (), **_: object
) -> list[list[Hypothesis]]:
    """Run `beam_search` with CUDA graphs; if memory runs out, run its reference implementation."""
    rules = BeamRules(options, end, tuple(sorted(set(banned) - {end})))
    hypotheses = search_fixed(model, source, rules)
    if hypotheses is None:
        return beam_search.definition(model, options=options, end=end, source=source, banned=banned)
    return hypotheses


def search_fixed(
    model: Steppable, source: dict[str, Tensor], rules: BeamRules, capture: bool = True
) -> list[list[Hypothesis]] | None:
    """Search in steps of a fixed shape; return None if memory runs out.

    Without `capture`, steps run eagerly, on any device.
    """
    limit = length_limits(rules.options, source["mask"], torch.zeros(len(source["mask"]), dtype=torch.long))
    if (longest := longest_target(model)) is not None:
        limit = limit.clamp(max=longest)
    # Buffers outlive the search, so they must not be inference tensors.
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(source["mask"]):
        try:
            return FixedSearch(model, rules, capture).search(source, limit)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    release_graphs(model)
    torch.cuda.empty_cache()
    return None


def release_graphs(model: Any) -> None:
    """Release the graphs of a model and their memory."""
    with contextlib.suppress(KeyError), _lock:
        del _graphs[model]


class FixedSearch:
    """A beam search in steps of a fixed shape."""

    def __init__(self, model: Steppable, rules: BeamRules, capture: bool) -> None:
        steps = fixed_steps(model)
        assert steps is not None, "call `can_fix_shapes` first"
        self.steps, self.model, self.rules, self.k, self.capture = steps, model, rules, rules.options.beam, capture
        self.nodes, self.results = Nodes(), list[Finished]()

    def search(self, source: dict[str, Tensor], limit: Tensor) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source, of at most `limit` (B,) tokens; `limit` is on the CPU."""
        tree = self.start(source, limit)
        with _lock:  # meanwhile, other searches can prepare sources and collect results
            self.run(tree, int(limit.max()))
        return collect(self.nodes, self.results, len(limit))

    def run(self, tree: dict[str, Tree], longest: int) -> None:
        """Run steps until all sources are done."""
        capacity, step = first_capacity(longest), 0
        while True:
            buffers = self._buffers(tree, capacity)
            tree = buffers.tree
            check_cancelled()
            for _ in range(min(STEPS_BETWEEN_CHECKS, capacity - step, longest - step)):
                self._advance(buffers)
                step += 1
            search = tree["search"]
            done, diverged = torch.cat([search["done"], search["diverged"]]).cpu().split([len(search["done"]), 1])
            if bool(diverged):
                raise DivergedError(NOT_NUMBERS)
            remaining = (~done).nonzero().squeeze(1)
            if len(remaining) and step >= longest:
                raise RuntimeError("the search did not stop at its maximum length")
            if len(remaining) == 0 or 2 * len(remaining) <= len(done) > MIN_SOURCES:
                self._collect(search, done.nonzero().squeeze(1), step)
                if len(remaining) == 0:
                    return
                tree = keep_sources(tree, remaining, self.k)
            if step == capacity:
                capacity *= 2
                tree = self._with_capacity(tree, capacity)

    def start(self, source: dict[str, Tensor], limit: Tensor) -> dict[str, Tree]:
        """Return the state before the first step. Sources that pad the batch are marked as done."""
        k, device, capacity = self.k, source["mask"].device, first_capacity(int(limit.max()))
        padded, sources = pad_source(source, getattr(self.model, "longest_source", None)), len(limit)
        state = self.steps.begin(self.model.start(padded), k, capacity)
        b = len(padded["mask"])
        limits = torch.zeros(b, dtype=torch.long)
        limits[:sources] = limit
        impossible = torch.full((b, k), -math.inf, dtype=torch.float64, device=device)
        log_prob = impossible.clone()
        log_prob[:, 0] = 0
        history = torch.zeros(b, capacity, k, dtype=torch.long, device=device)
        search = {
            "step": torch.zeros((), dtype=torch.long, device=device),  # number of tokens chosen so far
            "source": torch.arange(b, device=device),
            "limit": limits.to(device),
            "done": torch.arange(b, device=device) >= sources,
            "length": torch.zeros(b, dtype=torch.long, device=device),  # length at which the source was done
            "token": torch.full((b, k), self.rules.end, device=device),
            "log_prob": log_prob,
            "before": impossible,  # log_prob one step earlier
            "finished": no_finished(b, k, torch.float64, device),
            "history": {"token": history, "parent": history.clone(), "log_prob": history.double()},
            "diverged": torch.zeros(1, dtype=torch.bool, device=device),
        }
        return {"hidden": state.hidden, "memory": state.memory, "search": search}

    # --- buffers and their graphs -------------------------------------------------------------------------------------

    def _buffers(self, tree: dict[str, Tree], capacity: int) -> Buffers:
        """Return the static buffers for a tree, filled with the values of the tree."""
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
        """Run one step, and capture it after a few eager steps."""
        if buffers.graph is None and self.capture and buffers.steps_run >= WARM_UP_STEPS:
            self._capture(buffers, _graphs[self.model])
        if buffers.graph is None:
            self._step(buffers)
            buffers.steps_run += 1
        else:
            buffers.graph.replay()

    def _capture(self, buffers: Buffers, graphs: ModelGraphs) -> None:
        """Capture a step; if that fails, steps run eagerly."""
        if graphs.capture_failed:
            return
        graphs.pool = graphs.pool or torch.cuda.graph_pool_handle()
        graphs.stream = graphs.stream or torch.cuda.Stream(buffers.banned.device)
        try:
            buffers.graph = capture(lambda: self._step(buffers), graphs.pool, graphs.stream)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            graphs.capture_failed = True

    def _with_capacity(self, tree: dict[str, Tree], capacity: int) -> dict[str, Tree]:
        search = tree["search"]
        state = self.steps.enlarge(DecodeState(tree["hidden"], tree["memory"]), self.k, capacity)
        history = {
            name: torch.cat([values, values.new_zeros(len(values), capacity - values.shape[1], self.k)], dim=1)
            for name, values in search["history"].items()
        }
        return {"hidden": state.hidden, "memory": state.memory, "search": {**search, "history": history}}

    def _step(self, buffers: Buffers) -> None:
        """Run one step, without synchronization or data-dependent shapes."""
        tree = buffers.tree
        search: dict[str, Any] = tree["search"]
        state, count = DecodeState(tree["hidden"], tree["memory"]), self.k + 1 + len(self.rules.banned)
        values, ids, hidden = self.steps.step(search["token"].view(-1, 1), state, search["step"], count)
        rows = choose(search, values, ids, buffers.banned, self.rules)
        _copy(select_rows(hidden, rows), tree["hidden"])
        search["step"].add_(1)

    # --- results ------------------------------------------------------------------------------------------------------

    def _collect(self, search: dict[str, Any], sources: Tensor, step: int) -> None:
        """Collect the n best hypotheses of sources that are done; each source adds (1 + step) · k nodes to the tree."""
        k, device = self.k, search["step"].device
        finished = {key: value for key, value in search.items() if key not in GLOBAL_ENTRIES}
        finished = finished if len(sources) == len(search["source"]) else select_rows(finished, sources.to(device))
        finished = tree_map(lambda part: part.to("cpu", non_blocking=True, copy=True), finished)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        finished = select_rows(finished, (finished["length"] > 0).nonzero().squeeze(1))  # without padding sources
        count, length = len(finished["length"]), finished["length"].unsqueeze(1)
        if count == 0:
            return
        first_node = self.nodes.size + torch.arange(count).unsqueeze(1) * (1 + step) * k  # (g, 1)
        slots = torch.arange(k)
        current = self.rules.unfinished(finished["log_prob"], length * k + slots, length)
        previous = self.rules.unfinished(finished["before"], (length - 1) * k + slots, length - 1)
        results = self.rules.results(finished["finished"], current, previous)
        self.results.append({**results, "node": results["node"] + first_node, "source": finished["source"]})
        parents = torch.arange(step).view(1, step, 1) * k + first_node.unsqueeze(2)  # (g, step, 1)
        history = {name: values[:, :step] for name, values in finished["history"].items()}
        root = torch.zeros(count, 1, k, dtype=torch.long)
        self.nodes.grow(
            torch.cat([root + self.rules.end, history["token"]], dim=1).flatten(),
            torch.cat([root + first_node.unsqueeze(2), history["parent"] + parents], dim=1).flatten(),
            torch.cat([root.double(), history["log_prob"]], dim=1).flatten(),
        )


def choose(search: dict[str, Any], values: Tensor, ids: Tensor, banned: Tensor, rules: BeamRules) -> Tensor:
    """Apply the rules to tokens `ids` (R, K) with log-probabilities `values`, most probable first.

    The buffers of the search are updated; the results of a source that is done do not change. Return the previous row
    (R,) of each hypothesis.
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
    is_nan = chosen.total[:, 0].isnan() | finished["score"][:, 0].isnan()
    search["diverged"].logical_or_((is_nan & ~done).any())
    search["done"].logical_or_(rules.is_done(finished, chosen.total, search["limit"], length))
    updates = {"before": search["log_prob"], "log_prob": chosen.total, "length": length, "finished": finished}
    _copy_where(~done, updates, search)
    search["token"].copy_(chosen.token)
    for name, value in (("token", chosen.token), ("parent", chosen.slot), ("log_prob", chosen.token_log_prob)):
        search["history"][name].index_copy_(1, step.view(1), value.unsqueeze(1))
    return (torch.arange(b, device=step.device).unsqueeze(1) * k + chosen.slot).flatten()


def choose_by_kernel(search: dict[str, Any], values: Tensor, ids: Tensor, banned: Tensor, rules: BeamRules) -> Tensor:
    """Apply the rules on a GPU, in one kernel."""
    (b, k), (R, count) = search["log_prob"].shape, values.shape
    finished, history, options = search["finished"], search["history"], rules.options
    rows = torch.empty(R, dtype=torch.long, device=values.device)
    with torch.cuda.device_of(values):
        importlib.import_module("seqloom.accel.search.choose_triton").choose[(b,)](
            values.contiguous(), ids.contiguous(), banned,
            search["step"], search["limit"], search["done"].view(torch.uint8), search["length"],
            search["token"], search["log_prob"], search["before"],
            finished["score"], finished["log_prob"], finished["end"], finished["node"], finished["length"],
            finished["finished"].view(torch.uint8),
            history["token"], history["parent"], history["log_prob"],
            search["diverged"].view(torch.uint8), rows, history["token"].shape[1],
            K=k, COUNT=count, CANDIDATES=_next_power_of_two(k * count), FINISHED_SLOTS=_next_power_of_two(2 * k),
            BANNED=len(banned), END=rules.end, N_BEST=options.n_best, ALPHA=options.length_penalty,
            MIN_LENGTH=options.min_length, EXACT=options.stopping == "exact", num_warps=1,
        )  # fmt: skip
    return rows


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _copy_where(is_running: Tensor, values: dict[str, Any], buffers: dict[str, Any]) -> None:
    """Copy the rows (b, …) of running sources (b,) to the buffers of the same names."""
    for name, value in values.items():
        buffer = buffers[name]
        if isinstance(value, dict):
            _copy_where(is_running, value, buffer)
        else:
            torch.where(is_running.view(-1, *(1,) * (buffer.dim() - 1)), value, buffer, out=buffer)


def drop_oldest(buffers: dict[Hashable, Buffers], device: torch.device) -> None:
    """Drop the least recently used buffers until the remaining buffers fit into the memory limit."""
    max_bytes = MAX_CPU_BYTES
    if device.type == "cuda":
        max_bytes = torch.cuda.get_device_properties(device).total_memory // GPU_MEMORY_DIVISOR
    while buffers and sum(entry.bytes for entry in buffers.values()) > max_bytes:
        del buffers[next(iter(buffers))]


def first_capacity(max_length: int) -> int:
    """Return the number of steps of the first buffers."""
    return min(FIRST_CAPACITY, -(-max_length // 8) * 8)


def pad_source(source: dict[str, Tensor], max_length: int | None) -> dict[str, Tensor]:
    """Pad a batch of sources to one of few shapes, with masked tokens and copies of the first source.

    Sources other than texts keep their length.
    """
    tokens, mask = source["tokens"], source["mask"]
    B, S = mask.shape
    if isinstance(tokens, torch.Tensor) and tokens.shape == mask.shape:
        width = max(S, min(-(-S // PADDING_MULTIPLE) * PADDING_MULTIPLE, max_length or 1 << 30))
        tokens, mask = (torch.nn.functional.pad(each, (0, width - S)) for each in (tokens, mask))
    sources = torch.arange(_next_power_of_two(B), device=mask.device)
    return select_rows({"tokens": tokens, "mask": mask}, sources.where(sources < B, 0))


def keep_sources(tree: dict[str, Tree], remaining: Tensor, k: int) -> dict[str, Tree]:
    """Keep the remaining sources, padded to a power of two with copies of the first source that are marked as done."""
    count, search = len(remaining), tree["search"]
    sources = torch.full((_next_power_of_two(count),), int(remaining[0]))
    sources[:count] = remaining
    sources = sources.to(search["step"].device)
    entries = select_rows({key: value for key, value in search.items() if key not in GLOBAL_ENTRIES}, sources)
    entries["done"] = torch.arange(len(sources), device=sources.device) >= count
    entries["length"] = entries["length"].masked_fill(entries["done"], 0)
    hypotheses = (sources.unsqueeze(1) * k + torch.arange(k, device=sources.device)).flatten()
    return {
        "hidden": select_rows(tree["hidden"], hypotheses),
        "memory": select_rows(tree["memory"], sources),
        "search": {**entries, **{key: search[key] for key in GLOBAL_ENTRIES}},
    }


def _copy(tree: Tree, buffers: Tree) -> None:
    for value, buffer in zip(leaves(tree), leaves(buffers), strict=True):
        buffer.copy_(value)
