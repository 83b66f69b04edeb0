"""The language modelling task with recurrent models: batches, and a loss that is computed in three ways."""

import math

import numpy as np
import pytest
import torch
from tests.standard import STANDARD_CELLS

from seqloom.core.files import tensors_from_file
from seqloom.core.tree import leaves, select_rows
from seqloom.predict.loader import load
from seqloom.tasks.language_model import Task
from seqloom.train.config import FitConfig
from seqloom.train.events import Evaluated
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.training import begin

# --- the cells in numpy, in double precision --------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def elman(w, x, state):
    return {"h": np.tanh(w["weight_x"] @ x + w["bias_x"] + w["weight_h"] @ state["h"] + w["bias_h"])}


def lstm(w, x, state):
    i, f, g, o = np.split(w["weight_x"] @ x + w["bias_x"] + w["weight_h"] @ state["h"] + w["bias_h"], 4)
    c = sigmoid(f) * state["c"] + sigmoid(i) * np.tanh(g)
    return {"h": sigmoid(o) * np.tanh(c), "c": c}


def gru(w, x, state):
    x_r, x_z, x_n = np.split(w["weight_x"] @ x + w["bias_x"], 3)
    h_r, h_z, h_n = np.split(w["weight_h"] @ state["h"] + w["bias_h"], 3)
    z = sigmoid(x_z + h_z)
    return {"h": z * state["h"] + (1 - z) * np.tanh(x_n + sigmoid(x_r + h_r) * h_n)}


def gru_cho(w, x, state):
    x_r, x_z, x_n = np.split(w["weight_x"] @ x + w["bias_x"], 3)
    w_r, w_z, w_n = np.split(w["weight_h"], 3)
    z = sigmoid(x_z + w_z @ state["h"])
    return {"h": z * state["h"] + (1 - z) * np.tanh(x_n + w_n @ (sigmoid(x_r + w_r @ state["h"]) * state["h"]))}


def mut1(w, x, state):
    x, h = w["weight_xp"] @ x, state["h"]
    (x_r, x_z), (w_r, w_n) = np.split(w["weight_x"] @ x, 2), np.split(w["weight_h"], 2)
    b_r, b_z, b_n = np.split(w["bias_x"], 3)
    z = sigmoid(x_z + b_z)
    return {"h": (1 - z) * h + z * np.tanh(w_n @ (sigmoid(x_r + w_r @ h + b_r) * h) + np.tanh(x) + b_n)}


def mut2(w, x, state):
    x, h = w["weight_xp"] @ x, state["h"]
    (x_z, x_n), (w_r, w_z, w_n) = np.split(w["weight_x"] @ x, 2), np.split(w["weight_h"], 3)
    b_r, b_z, b_n = np.split(w["bias_x"], 3)
    z = sigmoid(x_z + w_z @ h + b_z)
    return {"h": (1 - z) * h + z * np.tanh(w_n @ (sigmoid(x + w_r @ h + b_r) * h) + x_n + b_n)}


def mut3(w, x, state):
    x_r, x_z, x_n = np.split(w["weight_x"] @ x + w["bias_x"], 3)
    (w_r, w_z, w_n), h = np.split(w["weight_h"], 3), state["h"]
    z = sigmoid(x_z + w_z @ np.tanh(h))
    return {"h": (1 - z) * h + z * np.tanh(w_n @ (sigmoid(x_r + w_r @ h) * h) + x_n)}


EQUATIONS = {"elman": elman, "lstm": lstm, "gru": gru, "gru-cho": gru_cho, "mut1": mut1, "mut2": mut2, "mut3": mut3}


def total_by_hand(weights, cell, layers, hidden, ids):
    """Return −Σ log p of a stream of token ids, which are read one at a time, starting with END (0)."""
    w = {name: tensor.double().numpy() for name, tensor in weights.items()}
    states = [{"h": np.zeros(hidden), "c": np.zeros(hidden)} for _ in range(layers)]
    total = 0.0
    for before, target in zip([0, *ids[:-1]], ids, strict=True):
        x = w["embed.weight"][before]
        for layer in range(layers):
            prefix = f"stack.layers.{layer}.cell."
            layer_weights = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
            states[layer] = EQUATIONS[cell](layer_weights, x, states[layer])
            x = states[layer]["h"]
        logits = w["output.weight"] @ x + w["output.bias"]
        total += np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target]
    return total


CASES = [("elman", 1), ("lstm", 1), ("lstm", 2), ("gru", 2), ("gru-cho", 1), ("mut1", 1), ("mut2", 1), ("mut3", 2)]


@pytest.mark.parametrize(("cell", "layers"), CASES)
def test_evaluation_log_and_manual_computation_agree(recipe, tmp_path, cell, layers):
    config = recipe(f"model.cell={cell}", f"model.layers={layers}", "model.dropout=0.3")
    training = begin(config, tmp_path / "run")
    evaluated = [event for event in training.events() if isinstance(event, Evaluated)]
    best = min(evaluated, key=lambda event: event.metrics["loss"])

    documents = ["the cat sat on a log", "a dög and the cat"]
    alphabet = sorted(set((tmp_path / "train.txt").read_text(encoding="utf-8").replace("\n", "")))
    ids = []
    for document in documents:
        ids += [alphabet.index(letter) + 2 if letter in alphabet else 1 for letter in document] + [0]
    weights = tensors_from_file(tmp_path / "run" / "model.safetensors")
    total = total_by_hand(weights, cell, layers, 6, ids)
    characters = sum(len(document) + 1 for document in documents)
    words = sum(len(document.split()) + 1 for document in documents)
    size = sum(len(document.encode()) + 1 for document in documents)
    by_hand = {
        "loss": total / len(ids),
        "perplexity": math.exp(total / len(ids)),
        "word_perplexity": math.exp(total / words),
        "bits_per_character": total / math.log(2) / characters,
        "bits_per_byte": total / math.log(2) / size,
        "unknown_rate": 1 / len(ids),
        "text_kept": 1 - 1 / len(documents),
    }
    assert size == characters + 1
    logged = next(e for e in training.run.log() if e["event"] == "evaluated" and e["step"] == best.step)["metrics"]
    evaluated_metrics = load(tmp_path / "run", device="cpu").evaluate("dev")
    assert evaluated_metrics == logged == dict(best.metrics)
    assert evaluated_metrics == pytest.approx(by_hand, rel=1e-5)
    assert training.run.metrics("dev") == evaluated_metrics


def test_evaluation_rows_start_with_initial_state(recipe):
    """Evaluation with more rows is faster, and its loss is slightly higher. The default, one row, is exact."""
    single, four = Task.prepare(recipe()), Task.prepare(recipe("batch.eval_size=4"))
    torch.manual_seed(0)
    model = single.model().eval()
    assert single.evaluate(model, "dev")["loss"] != four.evaluate(model, "dev")["loss"]
    single.eval_chunk = 5
    assert single.evaluate(model, "dev") == pytest.approx(Task.prepare(recipe()).evaluate(model, "dev"), rel=1e-6)


# --- batches and loss -------------------------------------------------------------------------------------------------


def test_batches_do_not_depend_on_the_order_of_calls(recipe):
    a, b = Task.prepare(recipe()), Task.prepare(recipe())
    steps = list(range(2 * a.steps_per_epoch()))
    forwards = [a.batch(1, step) for step in steps]
    backwards = [b.batch(1, step) for step in reversed(steps)][::-1]
    for single, other in zip(forwards, backwards, strict=True):
        assert single["fresh"] == other["fresh"]
        assert all(map(torch.equal, leaves(single), leaves(other)))


def test_epoch_reads_text_without_gaps(recipe):
    task = Task.prepare(recipe())
    batches = [task.batch(1, step) for step in range(task.steps_per_epoch())]
    assert [batch["fresh"] for batch in batches] == [True] + [False] * (len(batches) - 1)
    assert task.batch(1, len(batches))["fresh"]
    targets = torch.cat([batch["targets"] for batch in batches], dim=1)
    inputs = torch.cat([batch["inputs"] for batch in batches], dim=1)
    stream = task.stream("train")
    length = len(stream) // 3
    assert torch.equal(targets.flatten(), stream[: 3 * length])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs[:, 0].tolist() == [0, *stream[[length - 1, 2 * length - 1]].tolist()]


@pytest.mark.parametrize("cell", STANDARD_CELLS)
def test_loss_is_batch_mean_given_carried_state(recipe, cell):
    """Compare two consecutive chunks with separate reading of each row from its start."""
    task = Task.prepare(recipe(f"model.cell={cell}", "batch.state_reset_probability=0"))
    torch.manual_seed(1)
    model = task.model().double()
    first, second = task.batch(1, 0), task.batch(1, 1)
    carried = task.loss(
        model, first, {"not": "used"}
    ).carry  # the first chunk of an epoch starts with the initial state
    loss = task.loss(model, second, carried)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    total = 0.0
    for row in range(3):
        ids = torch.cat([first["inputs"][row], second["inputs"][row], second["targets"][row, -1:]])[1:].tolist()
        start = first["inputs"][row, 0].item()
        reading = [total_from(weights, cell, start, ids[:length]) for length in (8, 16)]
        total += reading[1] - reading[0]
    assert loss.tokens == 24
    assert loss.value.item() == pytest.approx(total / 24, rel=1e-10)
    assert loss.value.requires_grad


def test_state_reset_affects_only_the_chosen_rows(recipe):
    task = Task.prepare(recipe("batch.state_reset_probability=0.5"))
    torch.manual_seed(1)
    model = task.model().double()
    carried = task.loss(model, task.batch(1, 0), None).carry
    step = next(step for step in range(1, 99) if 0 < task.batch(1, step)["remember"].sum() < 3)
    batch = {**task.batch(1, 1), "remember": task.batch(1, step)["remember"]}
    state = task.loss(model, batch, carried).carry[0]["h"]
    all_kept = task.loss(model, {**batch, "remember": torch.ones(3, 1, dtype=torch.bool)}, carried).carry[0]["h"]
    none_kept = task.loss(model, batch, None).carry[0]["h"]
    remember = batch["remember"][:, 0]
    assert torch.equal(state[remember], all_kept[remember])
    assert torch.equal(state[~remember], none_kept[~remember])
    assert not torch.allclose(all_kept, none_kept)  # control of the previous two lines
    draws = torch.cat([task.batch(1, step)["remember"] for step in range(500)])
    assert draws.float().mean().item() == pytest.approx(0.5, abs=0.05)
    never = Task.prepare(recipe("batch.state_reset_probability=0"))
    assert all(never.batch(1, step)["remember"].all() for step in range(50))


def test_fraction_of_unchanged_documents_is_measured(recipe):
    """Characters preserve every document in the known alphabet. Words lose repeated spaces."""
    characters = Task.prepare(recipe())
    assert characters.text_kept("train") == 1
    words = Task.prepare(recipe("tokenizer.kind=words"))
    documents = words.corpus.split("train")
    normal = sum(" ".join(text.split()) == text for text in documents) / len(documents)
    assert words.text_kept("train") == pytest.approx(normal)


def test_reset_rows_give_the_same_results_as_rows_with_initial_state(recipe):
    """The loss of each row uses its carried state, or the initial state if the state is reset."""
    task = Task.prepare(recipe("batch.state_reset_probability=0.5"))
    torch.manual_seed(1)
    model = task.model().double()
    steps = range(1, task.steps_per_epoch())
    remembered = torch.cat([task.batch(1, step)["remember"] for step in steps])
    assert 0 < remembered.double().mean() < 1
    assert not torch.equal(remembered, torch.cat([task.batch(2, step)["remember"] for step in steps]))
    batch = next(batch for step in steps if 0 < (batch := task.batch(1, step))["remember"].sum() < 3)
    carry = task.loss(model, task.batch(1, 0), None).carry
    for row in range(3):
        alone = {name: batch[name][row : row + 1] for name in ("inputs", "targets")}
        row_state = select_rows(carry, torch.tensor([row]))
        state = torch.tensor([[True]])
        expected = task.loss(model, {**alone, "fresh": not batch["remember"][row], "remember": state}, row_state).value
        actual = task.loss(
            model, {**alone, "fresh": False, "remember": batch["remember"][row : row + 1]}, row_state
        ).value
        assert actual.item() == pytest.approx(expected.item(), rel=1e-12)


def total_from(weights, cell, start, ids):
    """Return −Σ log p of ids after `start`, by `total_by_hand` with END and `start` swapped in both embeddings."""
    order = list(range(len(weights["embed.weight"])))
    order[0], order[start] = order[start], order[0]
    swapped = {**weights}
    for name in ("embed.weight", "output.weight", "output.bias"):
        swapped[name] = weights[name][order]
    return total_by_hand(swapped, cell, 1, 6, [order[token] for token in ids])


@pytest.mark.parametrize("cell", STANDARD_CELLS)
def test_eight_examples_are_memorized(recipe, tmp_path, cell):
    lines = ["abcdef", "fedcba", "badcfe", "aabbcc", "ffeedd", "abcabc", "fdbeca", "cdefab"]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    task = Task.prepare(
        recipe(f"model.cell={cell}", "model.hidden=48", "model.embedding=16", "batch.size=1", "batch.length=64")
    )
    assert task.steps_per_epoch() == 1
    trainer = TrainState(task, FitConfig(steps=250, lr=0.02, schedule="cosine", device="cpu"), seed=1)
    losses = [make_step(trainer).loss]
    while losses[-1] >= 0.01 and len(losses) < 250:
        losses.append(make_step(trainer).loss)
    assert losses[0] > 1.5
    assert losses[-1] < 0.01


# --- the registry -----------------------------------------------------------------------------------------------------


def test_random_offset_of_epoch_depends_on_seed(recipe):
    task = Task.prepare(recipe("batch.random_offset=true"))
    length = task.steps_per_epoch()
    firsts = [task.batch(1, epoch * length)["targets"] for epoch in range(3)]
    assert not torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[1], firsts[2])
    assert torch.equal(firsts[1], task.batch(1, length)["targets"])
    assert not torch.equal(firsts[1], task.batch(2, length)["targets"])
    whole = torch.cat([task.batch(1, step)["targets"] for step in range(length)], dim=1).flatten()
    state = len(task.stream("train")) - task.batches.left_out
    ring = task.stream("train").repeat(2).tolist()
    assert whole.tolist() in (ring[start : start + state] for start in range(len(task.stream("train"))))
