"""Training speed of an LSTM language model in tokens per second, for seqloom and a plain torch loop.

Both programs read the same batches of the same text, with the same sizes, dropout, clipping and optimizer (AdamW,
updated by one fused kernel). Both carry their state from chunk to chunk, and both read their losses at the end of a
round. Their rounds alternate in one process. The report has medians over rounds with their ranges, and the ratios of
rounds. On a GPU, the steps of seqloom are CUDA graphs, as in training; `train.cuda_graphs=false` disables them.

    python benchmarks/training_speed.py --rounds 7 --steps 40
"""

import platform
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from peers.options import Parser, count, print_load, run_main
from peers.turns import Spread, ratios
from torch import nn

from seqloom import accel
from seqloom.core.tree import to_device
from seqloom.recipes import read_recipe
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import wrap
from seqloom.training import begin


class BareLM(nn.Module):
    """A plain torch implementation of the language model."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, dropout: float):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.output = nn.Linear(hidden, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens, state):
        hidden, state = self.lstm(self.dropout(self.embed(tokens)), state)
        return self.output(self.dropout(hidden)), state


def bare_loop(task, recipe, device):
    """Return a function that trains for `steps` steps and returns the number of tokens read."""
    m = recipe.model
    model = BareLM(len(task.tokenizer), m.embedding or m.hidden, m.hidden, m.layers, m.dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.train.lr, weight_decay=0.0, fused=True)
    progress = {"step": 0, "state": None}

    def run(steps: int) -> int:
        model.train()
        tokens, losses = 0, []
        for _ in range(steps):
            batch = to_device(task.batch(0, progress["step"]), device)
            state = None if batch["fresh"] else progress["state"]
            logits, state = model(batch["inputs"], state)
            loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.train.clip_norm)
            optimizer.step()
            losses.append(loss.detach())
            progress["state"] = tuple(part.detach() for part in state)
            progress["step"] += 1
            tokens += batch["targets"].numel()
        torch.stack(losses).tolist()
        return tokens

    return run


def seqloom_loop(task, recipe):
    accel.install()
    state = TrainState(task, recipe.train, recipe.seed)
    step = wrap(state)

    def run(steps: int) -> int:
        before = state.tally.tokens
        for _ in range(steps):
            make_step(state, step)
        state.settle()
        return state.tally.tokens - before

    return run


def timed(run, steps: int, device: torch.device) -> float:
    start = time.perf_counter()
    tokens = run(steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - start)


def show(name: str, speeds: list[float]) -> None:
    print(f"  {name:22} {Spread.of(speeds).format():>28} tokens/s")


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--recipe", default="lm-char-lstm")
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--steps", type=count, default=40, help="training steps per round")
    parser.add_argument("--device", default="auto")
    parser.add_argument("overrides", nargs="*", help="recipe overrides, e.g. model.hidden=650 model.layers=2")
    arguments = parser.parse_args()

    _, recipe = read_recipe(arguments.recipe, [*arguments.overrides, f"train.device={arguments.device}"])
    with tempfile.TemporaryDirectory() as folder:
        task = begin(recipe, Path(folder) / "run").task
    print_load(torch.get_num_threads())
    ours = seqloom_loop(task, recipe)
    device = torch.device("cuda" if torch.cuda.is_available() and arguments.device != "cpu" else "cpu")
    bare = bare_loop(task, recipe, device)
    for run in (ours, bare):  # warm-up
        run(5)
    speeds: dict[str, list[float]] = {"ours": [], "bare": []}
    for round_number in range(arguments.rounds):
        order = [("ours", ours), ("bare", bare)]
        for name, run in order if round_number % 2 == 0 else reversed(order):
            speeds[name].append(timed(run, arguments.steps, device))
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    m, b = recipe.model, recipe.batch
    print(
        f"{m.layers}×{m.hidden} LSTM, {b.size} sequences × {b.length} tokens, vocabulary {len(task.tokenizer):,}; "
        f"{where}, torch {torch.__version__}, {platform.machine()}; "
        f"{arguments.rounds} rounds of {arguments.steps} steps"
    )
    show("seqloom", speeds["ours"])
    show("plain nn.LSTM loop", speeds["bare"])
    print(f"  seqloom is × as fast   {ratios(speeds['ours'], speeds['bare']).format('.3f'):>28}")


if __name__ == "__main__":
    run_main(main)
