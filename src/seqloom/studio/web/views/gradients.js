// Gradient flow: gradient norms over time for several runs, the singular values of the recurrent matrices, and gradient
// clipping. This module has the controls.

import { h, setChildren, formatNumber, updateChildren } from "../lib/dom.js";
import { figure } from "../lib/figure.js";
import { button, controls, runPicker, segmented, select, textBox } from "../lib/controls.js";
import { defaultRun } from "../lib/default_run.js";
import { displayToken } from "../lib/tokens.js";
import { toggleAfter, roomIn } from "./cell-unit.js";
import { Clipping } from "./gradients-clipping.js";
import { drawBound, drawFlow, drawTokens, flowLines } from "./gradients-flow.js";
import { drawValues } from "./gradients-matrices.js";

export const title = "Gradient flow";
export const lead =
    "The gradient norm ‖∂L/∂hₜ‖ shows how strongly the loss depends on the state at step t. Where it vanishes, the model cannot learn from the token that was read there. In an Elman cell, the gradient flows back only through h; an LSTM has a second path, the cell state c.";
export const needs =
    "This view needs a recurrent model: a language model, translator, tagger or classifier with lstm, gru or elman cells.";

const MAX_RUNS = 6; // runs in one chart

export async function show(page) {
    const view = new GradientView(page);
    setChildren(page.root, view.element);
    await view.refresh();
}

class GradientView {
    constructor(page) {
        this.page = page;
        this.top = h("div");
        this.options = h("div");
        this.summary = h("div", { class: "answer" });
        this.flow = figure({ name: "gradient-flow", title: "Gradient norm over time" });
        this.tokens = figure({ name: "gradient-tokens", title: "Gradient norm by token" });
        this.values = figure({ name: "singular-values", title: "Singular values of the recurrent matrices" });
        this.bound = figure({ name: "gradient-bound", title: "Jacobian norm and its upper bound" });
        this.clip = new Clipping((clip) => page.setParams({ clip }));
        this.stage = h("div", {}, this.flow.element, this.tokens.element, this.values.element, this.clip.element);
        this.element = h("div", {}, this.top, this.options, this.summary, this.stage);
        this.drawTop();
    }

    get(name, other = null) {
        return this.page.params.get(name) ?? other;
    }

    /** The runs in the address, or two language models with different cells. */
    get chosen() {
        const ids = [this.get("run"), ...this.page.params.getAll("runs")];
        const runs = [...new Set(ids)]
            .map((id) => this.page.runs.find((run) => run.id === id))
            .filter(Boolean)
            .slice(0, MAX_RUNS);
        return runs.length ? runs : defaultRuns(this.page.runs);
    }

    choose(runs) {
        this.page.setParams({
            run: runs[0].id,
            runs: runs.slice(1).map((run) => run.id),
            part: null,
            layer: null,
            at: null,
        });
        this.drawTop();
        return this.refresh();
    }

    change(changes) {
        this.page.setParams(changes);
        return this.refresh();
    }

    get text() {
        return this.get("text", this.chosen[0].example);
    }

    drawTop() {
        const runs = this.chosen;
        const free = this.page.runs.filter((run) => !runs.includes(run));
        updateChildren(
            this.top,
            controls(
                runs.map((run, i) =>
                    h(
                        "div",
                        { class: "chosen-run" },
                        runPicker(this.page, {
                            label: i ? `Run ${i + 1}` : "Run",
                            value: run.id,
                            onchange: (id) => this.choose(runs.map((item, k) => (k === i ? this.page.run(id) : item))),
                        }),
                        runs.length > 1 ? button("Remove", () => this.choose(runs.filter((item) => item !== run))) : null,
                    ),
                ),
                runs.length < MAX_RUNS && free.length
                    ? select(
                          "Compare with",
                          [["", "add a run …"], ...free.map((run) => [run.id, run.name])],
                          "",
                          (id) => id && this.choose([...runs, this.page.run(id)]),
                          "wide",
                      )
                    : null,
            ),
            controls(
                textBox("Text", this.text, (text) => this.change({ text, at: null })),
                runs.some(translates) &&
                    textBox(
                        "Force this translation",
                        this.get("target", ""),
                        (target) => this.change({ target, at: null }),
                        { button: "Force", placeholder: "output of the model" },
                    ),
                segmented(
                    "Loss L of",
                    [
                        ["last", "one prediction"],
                        ["total", "all predictions"],
                    ],
                    this.get("of", "last"),
                    (of) => this.change({ of, at: null }),
                ),
            ),
        );
    }

    async refresh() {
        const requestId = (this.latestRequest = {});
        this.stage.classList.add("busy");
        const [runs, text, of, at] = [this.chosen, this.text, this.get("of", "last"), this.get("at")];
        const target = (run) => (translates(run) ? this.get("target") : null);
        try {
            this.page.clearError();
            const position = at === null || of === "total" ? null : Number(at);
            const answers = await Promise.all(
                runs.map((run) => this.answer({ run: run.id, text, target: target(run), of, at: position })),
            );
            if (this.page.signal.aborted || this.latestRequest !== requestId) return; // superseded by a newer request
            this.results = runs.map((run, i) => ({ run, ...answers[i] }));
            this.drawOptions();
            this.drawSummary();
            this.draw();
        } catch (error) {
            if (this.latestRequest === requestId) this.page.fail(error);
        } finally {
            if (this.latestRequest === requestId) this.stage.classList.remove("busy");
        }
    }

    /** Tokenizations differ between runs. A position that a run does not have is replaced by the last position. */
    async answer(question) {
        try {
            return await this.page.request("gradients", question);
        } catch (error) {
            if (question.at === null || this.chosen.length === 1 || error.status !== 400) throw error;
            return this.page.request("gradients", { ...question, at: null });
        }
    }

    // --- selected states ----------------------------------------------------------------------------------

    get parts() {
        return [...new Map(this.results.flatMap((item) => item.parts.map((part) => [part.name, part.title]))).entries()];
    }

    get part() {
        const names = this.parts.map(([name]) => name);
        const requested = this.get("part");
        return requested === "all" || names.includes(requested) ? requested : "all";
    }

    get states() {
        return this.get("states", "both");
    }

    drawOptions() {
        const cells = this.results.some((item) => item.parts.some((part) => part.layers.some((layer) => layer.c)));
        const deep = this.results.some((item) => item.parts.some((part) => part.layers.length > 1));
        const predictions = this.results[0].predictions;
        updateChildren(
            this.options,
            controls(
                this.parts.length > 1
                    ? select("Cells", [["all", "all"], ...this.parts], this.part, (part) =>
                          this.redraw({ part }),
                      )
                    : null,
                deep
                    ? select(
                          "Layers",
                          [
                              ["top", "top"],
                              ["all", "all"],
                          ],
                          this.get("layer", "top"),
                          (layer) => this.redraw({ layer: layer === "top" ? null : layer }),
                      )
                    : null,
                cells
                    ? segmented(
                          "States",
                          [
                              ["both", "h and c"],
                              ["h", "h"],
                              ["c", "c"],
                          ],
                          this.states,
                          (states) => this.redraw({ states: states === "both" ? null : states }),
                      )
                    : null,
                segmented(
                    "Scale",
                    [
                        ["log", "logarithmic"],
                        ["linear", "linear"],
                    ],
                    this.get("scale", "log"),
                    (scale) => this.redraw({ scale: scale === "log" ? null : scale }),
                ),
                this.get("of", "last") === "last" && predictions.length > 1
                    ? select(
                          `Loss at ${this.results[0].prediction_kind}`,
                          predictions.map((word, i) => [
                              i,
                              `${i + 1}: ${displayToken(word)}${i + 1 === predictions.length ? " (last)" : ""}`,
                          ]),
                          this.results[0].at,
                          (at) => this.change({ at }),
                      )
                    : null,
            ),
        );
    }

    redraw(changes) {
        this.page.setParams(changes);
        this.draw();
    }

    drawSummary() {
        setChildren(
            this.summary,
            this.results.flatMap((item) =>
                item.notes.map((note) => h("p", { class: "note", dir: "auto" }, `${item.run.name}: ${note}`)),
            ),
            h(
                "p",
                { class: "hint", dir: "auto" },
                this.results.map((item, i) => [
                    i ? " · " : "",
                    h("bdi", {}, item.run.name),
                    ` (${[...new Set(item.parts.map((part) => part.cell))].join(", ")}): L = ${formatNumber(item.loss)} nats`,
                    item.at === null ? "" : [", target ", h("bdi", {}, displayToken(item.predictions[item.at]))],
                ]),
            ),
        );
    }

    draw() {
        const room = roomIn(this.page.root);
        const selection = { part: this.part, layer: this.get("layer", "top"), states: this.states };
        const lines = flowLines(this.results, selection);
        drawFlow(this.flow, lines, { room, log: this.get("scale", "log") === "log" });
        drawTokens(this.tokens, lines, { room });
        const bounded = this.results.some((item) => item.parts.some((part) => part.flows.length));
        toggleAfter(this.bound.element, bounded, this.tokens.element);
        if (bounded) drawBound(this.bound, this.results, { room });
        drawValues(this.values, this.results, { ...selection, room });
        this.clip.draw(this.results, this.get("clip"), room);
    }
}

const translates = (run) => run.task === "translate";

/** The default run and, for language models, a second run with another cell for comparison. */
function defaultRuns(runs) {
    const first = defaultRun("gradients", runs);
    const others = runs.filter((run) => run.task === first.task && run.cell !== first.cell);
    const rival = others.find((run) => run.cell === "elman") ?? others[0];
    return first.task === "language-model" && rival ? [first, rival] : [first];
}
