"""Beam search in steps of one fixed shape, which a GPU records once and then repeats without being told again.

A step of a small model is hundreds of small kernels, and to launch them takes longer than to run them. So everything a
step changes stands in fixed places, sources that are done stay where they are and keep what they found, and no step
asks the device for anything: whether all are done is looked at every few steps. Then, too, sources move together, to
places for half as many, or to places with room for more tokens.

It finds what `seqloom.decoding.beam` finds.
"""

import contextlib
import math
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from seqloom.core.cancellation import check_cancelled
from seqloom.core.errors import DivergedError, out_of_memory
from seqloom.core.graphs import record
from seqloom.core.protocols import DecodeState, FixedSteppable
from seqloom.core.tree import Tree, leaves, select_rows, tree_map
from seqloom.decoding.candidates import Finished, first_there
from seqloom.decoding.choosing import Rule, choose
from seqloom.decoding.hypotheses import Hypothesis, Nodes, collect

LOOK = 8  # steps after which somebody looks whether all are done
ROOM = 32  # steps that there is room for at first; then twice as many, and so on
ALIKE = 8  # sources are padded to a multiple of so many tokens, so that there are few shapes
WARM = 3  # steps of a shape that are run before it is recorded
FEWEST = 8  # sources that are moved together no more
SHARE = 8  # of a GPU's memory this part is kept for what was recorded of a model,
KEPT = 1 << 30  # and so many bytes elsewhere

BROKEN = "The model's probabilities are not numbers: its weights are bad. Use another checkpoint."


@dataclass
class Places:
    """Tensors of one shape, and the step on them once it is recorded."""

    tree: dict[str, Tree]
    banned: Tensor
    ran: int = 0
    graph: Any = None

    @property
    def bytes(self) -> int:
        return sum(leaf.nbytes for leaf in leaves(self.tree))


@dataclass
class Recorded:
    """What was recorded of a model, while its weights lie where they lay."""

    weights: Hashable
    places: dict[Hashable, Places] = field(default_factory=dict)  # those used last stand last
    pool: Any = None
    stream: Any = None
    refused: bool = False  # whether a step could not be recorded


_recorded: WeakKeyDictionary[Any, Recorded] = WeakKeyDictionary()
_busy = threading.Lock()  # places are one search's at a time


def captured_search(
    model: FixedSteppable,
    source: dict[str, Tensor],
    limit: Tensor,
    rule: Rule,
    record: bool = True,
) -> list[list[Hypothesis]] | None:
    """The `n_best` hypotheses of each source, at most `limit` (B,) tokens long, a tensor on the CPU.

    None where the plain search must do it. `record=False` runs every step as it is, on any device.
    """
    if not model.fixable:
        return None
    # Places outlive the search, and any inference mode it is made in.
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(source["tokens"]):
        try:
            return _Search(model, rule, record).found_of(source, limit)
        except Exception as error:
            if not out_of_memory(error):
                raise
    forget(model)
    torch.cuda.empty_cache()
    return None


def forget(model: Any) -> None:
    """What was recorded of a model, and the memory it takes."""
    with contextlib.suppress(KeyError), _busy:
        del _recorded[model]


class _Search:
    def __init__(self, model: FixedSteppable, rule: Rule, record: bool) -> None:
        self.model, self.rule, self.record = model, rule, record
        self.nodes, self.found = Nodes(), list[Finished]()

    def found_of(self, source: dict[str, Tensor], limit: Tensor) -> list[list[Hypothesis]]:
        begun = self.begin(source, limit)
        with _busy:  # meanwhile another search may begin, or write down what it found
            self.run(begun, int(limit.max()))
        return collect(self.nodes, self.found, len(limit))

    def run(self, tree: dict[str, Tree], longest: int) -> None:
        """All steps, until nothing is left to be found."""
        steps, at = _room(longest), 0
        while True:
            places = self._places(tree, steps)
            tree = places.tree
            check_cancelled()
            for _ in range(min(LOOK, steps - at, longest - at)):
                self._advance(places)
                at += 1
            search = tree["search"]
            done, broken = torch.cat([search["done"], search["broken"]]).cpu().split([len(search["done"]), 1])
            if bool(broken):
                raise DivergedError(BROKEN)
            staying = (~done).nonzero().squeeze(1)
            if len(staying) and at >= longest:
                raise RuntimeError("a search went on beyond its longest hypothesis")
            if len(staying) == 0 or 2 * len(staying) <= len(done) > FEWEST:
                self._collect(search, done.nonzero().squeeze(1), at)
                if len(staying) == 0:
                    return
                tree = _fewer(tree, staying, self.rule.beam)
            if at == steps:
                steps *= 2
                tree = self._with_room(tree, steps)

    def begin(self, source: dict[str, Tensor], limit: Tensor) -> dict[str, Tree]:
        """All places before the first step: nothing is said, and what only fills up the shape is done."""
        k, device, steps = self.rule.beam, source["tokens"].device, _room(int(limit.max()))
        padded, sources = _padded(source, getattr(self.model, "longest_source", None)), len(limit)
        state = self.model.fixed(self.model.start(padded), k, steps)
        b = len(padded["tokens"])
        limits = torch.zeros(b, dtype=torch.long)
        limits[:sources] = limit
        log_prob = torch.full((b, k), -math.inf, dtype=torch.float64, device=device)
        log_prob[:, 0] = 0
        none = torch.full((b, k), -math.inf, dtype=torch.float64, device=device)
        number = torch.zeros(b, k, dtype=torch.long, device=device)
        search = {
            "at": torch.zeros((), dtype=torch.long, device=device),  # tokens said so far
            "source": torch.arange(b, device=device),
            "limit": limits.to(device),
            "done": torch.arange(b, device=device) >= sources,
            "length": torch.zeros(b, dtype=torch.long, device=device),  # when it was done
            "token": torch.full((b, k), self.rule.end, device=device),
            "log_prob": log_prob,
            "before": none.clone(),  # log_prob a step earlier
            "finished": {
                "score": none.clone(),
                "log_prob": none.clone(),
                "end": none.clone(),
                "node": number.clone(),
                "length": number.clone(),
                "finished": torch.zeros(b, k, dtype=torch.bool, device=device),
            },
            "history": {
                "token": torch.zeros(b, steps, k, dtype=torch.long, device=device),
                "parent": torch.zeros(b, steps, k, dtype=torch.long, device=device),
                "own": torch.zeros(b, steps, k, dtype=torch.float64, device=device),
            },
            "broken": torch.zeros(1, dtype=torch.bool, device=device),
        }
        return {"carry": state.carry, "memory": state.memory, "search": search}

    # Places and what is recorded of them.

    def _places(self, tree: dict[str, Tree], steps: int) -> Places:
        """The fixed places for a tree, with the tree in them."""
        device = tree["search"]["at"].device
        if not self.record:
            return Places(tree, torch.tensor(self.rule.banned, device=device))
        known = _recorded.get(self.model)
        if known is None or known.weights != self.model.weights_key():
            known = _recorded[self.model] = Recorded(self.model.weights_key())
        key = self.rule, steps, tuple((leaf.shape, leaf.dtype) for leaf in leaves(tree))
        places = known.places.pop(key, None)
        if places is None:
            _make_room(known.places, device)
            places = Places(tree_map(Tensor.clone, tree), torch.tensor(self.rule.banned, device=device))
        elif places.tree is not tree:
            _put(tree, places.tree)
        known.places[key] = places
        return places

    def _advance(self, places: Places) -> None:
        """One step, recorded once it has been run a few times."""
        if places.graph is None and self.record and places.ran >= WARM:
            self._record(places, _recorded[self.model])
        if places.graph is None:
            self._step(places)
            places.ran += 1
        else:
            places.graph.replay()

    def _record(self, places: Places, known: Recorded) -> None:
        """What cannot be recorded is run as it is."""
        if known.refused:
            return
        known.pool = known.pool or torch.cuda.graph_pool_handle()
        known.stream = known.stream or torch.cuda.Stream(places.banned.device)
        try:
            places.graph = record(lambda: self._step(places), known.pool, known.stream)
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            known.refused = True

    def _with_room(self, tree: dict[str, Tree], steps: int) -> dict[str, Tree]:
        search, k = tree["search"], self.rule.beam
        state = self.model.fixed_room(DecodeState(tree["carry"], tree["memory"]), k, steps)
        history = {
            name: torch.cat([one, one.new_zeros(len(one), steps - one.shape[1], k)], dim=1)
            for name, one in search["history"].items()
        }
        return {"carry": state.carry, "memory": state.memory, "search": {**search, "history": history}}

    # A step. Nothing here may wait for the device, or depend in its shapes on what it finds.

    def _step(self, places: Places) -> None:
        rule, tree = self.rule, places.tree
        search: dict[str, Any] = tree["search"]
        state, count = DecodeState(tree["carry"], tree["memory"]), rule.beam + 1 + len(rule.banned)
        values, ids, carry = self.model.fixed_step(search["token"].view(-1, 1), state, search["at"], count)
        rows = choose(search, values, ids, places.banned, rule)
        _put(select_rows(carry, rows), tree["carry"])
        search["at"].add_(1)

    # What was found.

    def _collect(self, search: dict[str, Any], rows: Tensor, at: int) -> None:
        """The n best of sources that are done; history becomes nodes of a tree, (1 + at) · k for each source."""
        k = self.rule.beam
        device = search["at"].device
        every = {key: value for key, value in search.items() if key not in ("at", "broken")}
        chosen = every if len(rows) == len(search["source"]) else select_rows(every, rows.to(device))
        own: dict[str, Any] = tree_map(lambda part: part.to("cpu", non_blocking=True, copy=True), chosen)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # once for all
        own = select_rows(own, (own["length"] > 0).nonzero().squeeze(1))  # what filled up the shape never began
        g, length = len(own["length"]), own["length"].unsqueeze(1)
        if g == 0:
            return
        first = self.nodes.size + torch.arange(g).unsqueeze(1) * (1 + at) * k  # (g, 1)
        slots = torch.arange(k)
        parts = [
            own["finished"],
            self._cut(own["log_prob"], length * k + slots, length),
            self._cut(own["before"], (length - 1) * k + slots, length - 1),
        ]
        stuck = own["log_prob"][:, :1].isneginf() & own["finished"]["score"][:, :1].isneginf()
        parts[2]["score"] = parts[2]["score"].masked_fill(~stuck, -math.inf)
        found = first_there(parts, self.rule.n_best)
        self.found.append({**found, "node": found["node"] + first, "source": own["source"]})
        levels = torch.arange(at).view(1, at, 1) * k + first.unsqueeze(2)  # (g, at, 1) where their parents begin
        history = {name: one[:, :at] for name, one in own["history"].items()}
        root = torch.zeros(g, 1, k, dtype=torch.long)
        self.nodes.grow(
            torch.cat([root + self.rule.end, history["token"]], dim=1).flatten(),
            torch.cat([root + first.unsqueeze(2), history["parent"] + levels], dim=1).flatten(),
            torch.cat([root.double(), history["own"]], dim=1).flatten(),
        )

    def _cut(self, log_prob: Tensor, node: Tensor, length: Tensor) -> Finished:
        """Hypotheses without an end, best first."""
        score, order = self.rule.score(log_prob, length.clamp(min=1)).sort(dim=1, descending=True, stable=True)
        return {
            "score": score,
            "log_prob": log_prob.gather(1, order),
            "end": torch.zeros_like(score),
            "node": node.gather(1, order),
            "length": length.expand_as(order),
            "finished": torch.zeros_like(score, dtype=torch.bool),
        }


def _make_room(places: dict[Hashable, Places], device: torch.device) -> None:
    """Let go what was not used for longest, as long as there is more than is to be kept."""
    most = torch.cuda.get_device_properties(device).total_memory // SHARE if device.type == "cuda" else KEPT
    while places and sum(one.bytes for one in places.values()) > most:
        del places[next(iter(places))]


def _room(longest: int) -> int:
    """How many steps there is room for at first."""
    return min(ROOM, -(-longest // 8) * 8)


def _padded(source: dict[str, Tensor], longest: int | None) -> dict[str, Tensor]:
    """A source whose shape is one of few: more tokens, which are masked, and more sources, the first one again."""
    tokens, mask = source["tokens"], source["mask"]
    B, S = tokens.shape
    wide = max(S, min(-(-S // ALIKE) * ALIKE, longest or 1 << 30))
    rows = torch.arange(1 << (B - 1).bit_length(), device=tokens.device)
    rows = rows.where(rows < B, 0)
    pad = torch.nn.functional.pad
    return {
        "tokens": pad(tokens, (0, wide - S)).index_select(0, rows),
        "mask": pad(mask, (0, wide - S)).index_select(0, rows),
    }


def _fewer(tree: dict[str, Tree], staying: Tensor, k: int) -> dict[str, Tree]:
    """The sources that stay, in half as many places, or a quarter …; the first fills up the rest, and is done there."""
    number, search = len(staying), tree["search"]
    rows = torch.full((1 << (number - 1).bit_length(),), int(staying[0]))
    rows[:number] = staying
    rows = rows.to(search["at"].device)
    alone = ("at", "broken")
    fewer = select_rows({key: value for key, value in search.items() if key not in alone}, rows)
    place = torch.arange(len(rows), device=rows.device)
    fewer["done"] = place >= number
    fewer["length"] = fewer["length"].masked_fill(fewer["done"], 0)
    hypotheses = (rows.unsqueeze(1) * k + torch.arange(k, device=rows.device)).flatten()
    return {
        "carry": select_rows(tree["carry"], hypotheses),
        "memory": select_rows(tree["memory"], rows),
        "search": {**fewer, **{key: search[key] for key in alone}},
    }


def _put(new: Tree, places: Tree) -> None:
    for value, place in zip(leaves(new), leaves(places), strict=True):
        place.copy_(value)
