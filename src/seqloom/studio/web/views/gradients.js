// Gradient flow: how much a loss depends on states further and further back, for several runs on one picture; the
// recurrent matrices it passes on the way, and what clipping makes of it. Here is what can be turned.

import { h, fill, number, refill } from "../lib/dom.js";
import { figure } from "../lib/figure.js";
import { button, controls, runPicker, segmented, select, textBox } from "../lib/controls.js";
import { preferred } from "../lib/preferred.js";
import { shown } from "../lib/tokens.js";
import { present, roomIn } from "./cell-unit.js";
import { Clipping } from "./gradients-clipping.js";
import { drawBound, drawFlow, drawTokens, flowLines } from "./gradients-flow.js";
import { drawValues } from "./gradients-matrices.js";

export const title = "Gradient flow";
export const lead =
    "Training asks of every state: would the loss have been smaller, had you been a little different? The size of the answer, ‖∂L/∂hₜ‖, says how far back through time a model can learn: where it has died out, nothing can be learned from what was read. A plain Elman cell has one way back, through h; an LSTM has a second one, the content c of its cell.";
export const needs =
    "It needs a model with recurrent cells: a language model, translator, tagger or classifier with lstm, gru or elman.";

const MOST = 6; // runs on one picture

export async function show(page) {
    const view = new GradientView(page);
    fill(page.root, view.element);
    await view.refresh();
}

class GradientView {
    constructor(page) {
        this.page = page;
        this.top = h("div");
        this.options = h("div");
        this.said = h("div", { class: "answer" });
        this.flow = figure({ name: "gradient-flow", title: "How far back the loss is felt" });
        this.tokens = figure({ name: "gradient-tokens", title: "Where in the text" });
        this.values = figure({ name: "singular-values", title: "Singular values of the recurrent matrices" });
        this.bound = figure({ name: "gradient-bound", title: "What arrives, and what could arrive at most" });
        this.clip = new Clipping((clip) => page.set({ clip }));
        this.stage = h("div", {}, this.flow.element, this.tokens.element, this.values.element, this.clip.element);
        this.element = h("div", {}, this.top, this.options, this.said, this.stage);
        this.drawTop();
    }

    get(name, other = null) {
        return this.page.params.get(name) ?? other;
    }

    /** The runs on the picture: those of the address, or one language model of each kind of cell. */
    get chosen() {
        const ids = [this.get("run"), ...this.page.params.getAll("runs")];
        const known = [...new Set(ids)]
            .map((id) => this.page.runs.find((run) => run.id === id))
            .filter(Boolean)
            .slice(0, MOST);
        return known.length ? known : firstOnes(this.page.runs);
    }

    choose(runs) {
        this.page.set({
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
        this.page.set(changes);
        return this.refresh();
    }

    get text() {
        return this.get("text", this.chosen[0].example);
    }

    drawTop() {
        const runs = this.chosen;
        const free = this.page.runs.filter((run) => !runs.includes(run));
        refill(
            this.top,
            controls(
                runs.map((run, i) =>
                    h(
                        "div",
                        { class: "chosen-run" },
                        runPicker(this.page, {
                            label: i ? `Run ${i + 1}` : "Run",
                            value: run.id,
                            onchange: (id) => this.choose(runs.map((one, k) => (k === i ? this.page.run(id) : one))),
                        }),
                        runs.length > 1 ? button("Remove", () => this.choose(runs.filter((one) => one !== run))) : null,
                    ),
                ),
                runs.length < MOST && free.length
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
                textBox("Text to read", this.text, (text) => this.change({ text, at: null })),
                runs.some(translates) &&
                    textBox(
                        "Translation it is made to say",
                        this.get("target", ""),
                        (target) => this.change({ target, at: null }),
                        { button: "Say", placeholder: "its own" },
                    ),
                segmented(
                    "Loss L of",
                    [
                        ["last", "one prediction"],
                        ["total", "all of them"],
                    ],
                    this.get("of", "last"),
                    (of) => this.change({ of, at: null }),
                ),
            ),
        );
    }

    async refresh() {
        const mine = (this.asked = {});
        this.stage.classList.add("busy");
        const [runs, text, of, at] = [this.chosen, this.text, this.get("of", "last"), this.get("at")];
        const target = (run) => (translates(run) ? this.get("target") : null);
        try {
            this.page.fine();
            const place = at === null || of === "total" ? null : Number(at);
            const answers = await Promise.all(
                runs.map((run) => this.answer({ run: run.id, text, target: target(run), of, at: place })),
            );
            if (this.page.signal.aborted || this.asked !== mine) return; // something else was asked for since
            this.found = runs.map((run, i) => ({ run, ...answers[i] }));
            this.drawOptions();
            this.drawSaid();
            this.draw();
        } catch (error) {
            if (this.asked === mine) this.page.fail(error);
        } finally {
            if (this.asked === mine) this.stage.classList.remove("busy");
        }
    }

    /** Runs may cut the text differently: a place that only one of them has falls back to the last. */
    async answer(question) {
        try {
            return await this.page.ask("gradients", question);
        } catch (error) {
            if (question.at === null || this.chosen.length === 1 || error.status !== 400) throw error;
            return this.page.ask("gradients", { ...question, at: null });
        }
    }

    // --- which of the states are shown --------------------------------------------------------------------------------

    get parts() {
        return [...new Map(this.found.flatMap((one) => one.parts.map((part) => [part.name, part.title]))).entries()];
    }

    get part() {
        const names = this.parts.map(([name]) => name);
        const wanted = this.get("part");
        return wanted === "all" || names.includes(wanted) ? wanted : "all";
    }

    get states() {
        return this.get("states", "both");
    }

    drawOptions() {
        const cells = this.found.some((one) => one.parts.some((part) => part.layers.some((layer) => layer.c)));
        const deep = this.found.some((one) => one.parts.some((part) => part.layers.length > 1));
        const told = this.found[0].told;
        refill(
            this.options,
            controls(
                this.parts.length > 1
                    ? select("Cells", [["all", "all of them"], ...this.parts], this.part, (part) =>
                          this.redraw({ part }),
                      )
                    : null,
                deep
                    ? select(
                          "Layers",
                          [
                              ["top", "top one"],
                              ["all", "all"],
                          ],
                          this.get("layer", "top"),
                          (layer) => this.redraw({ layer: layer === "top" ? null : layer }),
                      )
                    : null,
                cells
                    ? segmented(
                          "By the states",
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
                        ["log", "powers of ten"],
                        ["linear", "linear"],
                    ],
                    this.get("scale", "log"),
                    (scale) => this.redraw({ scale: scale === "log" ? null : scale }),
                ),
                this.get("of", "last") === "last" && told.length > 1
                    ? select(
                          `L of which ${this.found[0].what}`,
                          told.map((word, i) => [
                              i,
                              `${i + 1}: ${shown(word)}${i + 1 === told.length ? " (last)" : ""}`,
                          ]),
                          this.found[0].at,
                          (at) => this.change({ at }),
                      )
                    : null,
            ),
        );
    }

    redraw(changes) {
        this.page.set(changes);
        this.draw();
    }

    drawSaid() {
        fill(
            this.said,
            this.found.flatMap((one) =>
                one.notes.map((note) => h("p", { class: "note", dir: "auto" }, `${one.run.name}: ${note}`)),
            ),
            h(
                "p",
                { class: "hint", dir: "auto" },
                this.found.map((one, i) => [
                    i ? " · " : "",
                    h("bdi", {}, one.run.name),
                    ` (${[...new Set(one.parts.map((part) => part.cell))].join(", ")}): L = ${number(one.loss)} nats`,
                    one.at === null ? "" : [` for `, h("bdi", {}, shown(one.told[one.at]))],
                ]),
            ),
        );
    }

    draw() {
        const room = roomIn(this.page.root);
        const which = { part: this.part, layer: this.get("layer", "top"), states: this.states };
        const lines = flowLines(this.found, which);
        drawFlow(this.flow, lines, { room, log: this.get("scale", "log") === "log" });
        drawTokens(this.tokens, lines, { room });
        const bounded = this.found.some((one) => one.parts.some((part) => part.flows.length));
        present(this.bound.element, bounded, this.tokens.element);
        if (bounded) drawBound(this.bound, this.found, { room });
        drawValues(this.values, this.found, { ...which, room });
        this.clip.draw(this.found, this.get("clip"), room);
    }
}

const translates = (run) => run.task === "translate";

/** One run for each kind of cell that language models have, so that they can be compared; else the first. */
function firstOnes(runs) {
    const first = preferred("gradients", runs);
    const others = runs.filter((run) => run.task === first.task && run.cell !== first.cell);
    const rival = others.find((run) => run.cell === "elman") ?? others[0];
    return first.task === "language-model" && rival ? [first, rival] : [first];
}
