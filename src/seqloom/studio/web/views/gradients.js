// Gradient flow: how much a loss depends on states further and further back, for several runs on one picture; the
// recurrent matrices it passes on the way, and what clipping makes of it.

import { h, fill, number, refill } from "../lib/dom.js";
import { figure } from "../lib/figure.js";
import { chartTable, lineChart } from "../lib/chart.js";
import { button, controls, runPicker, segmented, select, slider, textBox } from "../lib/controls.js";
import { preferred } from "../lib/preferred.js";
import { shown } from "../lib/tokens.js";
import { present, roomIn, shadedText } from "./cell-unit.js";

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
        this.clip = figure({ name: "gradient-clipping", title: "Clipping" });
        this.clipControls = h("div");
        this.clip.element.querySelector(".figure-head").after(this.clipControls);
        this.stage = h("div", {}, this.flow.element, this.tokens.element, this.values.element, this.clip.element);
        this.element = h("div", {}, this.top, this.options, this.said, this.stage);
        this.drawTop();
    }

    get(name, other = null) {
        return this.page.params.get(name) ?? other;
    }

    /** The runs on the picture: those of the address, or one language model of each kind of cell. */
    get chosen() {
        const ids = [this.get("run"), ...(this.get("runs") ?? "").split("\n")].filter(Boolean);
        const known = [...new Set(ids)]
            .map((id) => this.page.runs.find((run) => run.id === id))
            .filter(Boolean)
            .slice(0, MOST);
        return known.length ? known : firstOnes(this.page.runs);
    }

    choose(runs) {
        this.page.set({
            run: runs[0].id,
            runs: runs
                .slice(1)
                .map((run) => run.id)
                .join("\n"),
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
        try {
            this.page.fine();
            const place = at === null || of === "total" ? null : Number(at);
            const answers = await Promise.all(runs.map((run) => this.answer({ run: run.id, text, of, at: place })));
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
        this.drawFlow();
        this.drawTokens();
        this.drawBound();
        this.drawValues();
        this.drawClipping();
    }

    /** Every line of the picture: run, part, layer, state. A run keeps its colour. */
    lines() {
        return this.found.flatMap((one, place) =>
            one.parts
                .filter((part) => this.part === "all" || part.name === this.part)
                .flatMap((part, nth, shownParts) =>
                    layersOf(part, this.get("layer", "top")).flatMap(([layer, states]) =>
                        Object.keys(states)
                            .filter((state) => this.states === "both" || state === this.states || !states[this.states])
                            .map((state) => ({
                                part,
                                layer,
                                state,
                                run: one.run,
                                norms: states[state],
                                name: lineName(one, part, layer, state, this.found.length, shownParts.length),
                                place: this.found.length > 1 ? place : nth,
                                dashed: state === "c",
                                dotted: this.found.length > 1 && nth > 0,
                                thin: layer < part.layers.length,
                            })),
                    ),
                ),
        );
    }

    // --- the pictures -------------------------------------------------------------------------------------------------

    drawFlow() {
        const lines = this.lines();
        const series = lines.map((one) => ({ ...one, points: backwards(one) }));
        const log = this.get("scale", "log") === "log";
        const chart = lineChart({
            series,
            width: roomIn(this.page.root),
            height: 420,
            x: { title: "steps back from the last one read", zero: true },
            y: { title: "‖∂L/∂hₜ‖", log },
            label: "Norm of the gradient by each state against steps back",
        });
        fill(this.flow.body, chart.element);
        this.flow.say(
            "How far back the loss is felt",
            `${log ? "On this scale a straight line down is an exponential fall: the same factor at every step back. " : ""}${fallWords(series)}`,
        );
        this.flow.table(() => chartTable(series, "steps back"));
    }

    drawTokens() {
        const lines = this.lines();
        fill(
            this.tokens.body,
            lines.map((one) => {
                const strip = shadedText(one.part.tokens, scaled(one.norms), {
                    signed: false,
                    high: 1,
                    width: roomIn(this.page.root),
                    label: `Tokens shaded by ${one.name}`,
                    told: one.norms,
                });
                return h(
                    "div",
                    { class: "strip" },
                    lines.length > 1 ? h("p", { class: "hint", dir: "auto" }, one.name) : null,
                    strip,
                );
            }),
        );
        this.tokens.say(
            "Where in the text",
            "Each token shaded by the norm at the state after reading it, on a scale of powers of ten down to a thousandth of the largest.",
        );
        this.tokens.table(() => ({
            columns: ["token", ...lines.map((one) => one.name)],
            rows: lines[0].part.tokens.map((token, i) => [shown(token), ...lines.map((one) => one.norms[i] ?? null)]),
        }));
    }

    drawBound() {
        const flows = this.found.flatMap((one, place) =>
            one.parts.flatMap((part) => part.flows.map((flow) => ({ ...flow, one, part, place }))),
        );
        present(this.bound.element, flows.length, this.tokens.element);
        if (!flows.length) return;
        const series = flows.flatMap((flow) => {
            const name = `${flow.one.run.name}${flow.part.layers.length > 1 ? `, layer ${flow.layer}` : ""}${flow.one.parts.length > 1 ? `, ${flow.part.title}` : ""}`;
            const points = (values) => values.map((value, k) => [k, value]).filter((point) => point[1] !== null);
            return [
                { name: `${name}: ‖∂hₜ/∂hₖ‖`, points: points(flow.measured), place: flow.place },
                {
                    name: `${name}: at most (γ_W γ_g)ᵗ⁻ᵏ = ${number(flow.gammaW * flow.gammaG)}ᵗ⁻ᵏ`,
                    points: points(flow.bound),
                    place: flow.place,
                    dashed: true,
                },
            ];
        });
        fill(
            this.bound.body,
            lineChart({
                series,
                width: roomIn(this.page.root),
                height: 360,
                x: { title: "t − k, steps between the two states" },
                y: { title: "‖∂hₜ/∂hₖ‖", log: true },
                label: "Jacobians of Elman cells and their bound",
            }).element,
        );
        this.bound.say(
            "What arrives, and what could arrive at most",
            "For Elman cells each step back multiplies by diag(g′) W_hh, so that of a small change at most γ_W γ_g is left: γ_W the largest singular value of W_hh, γ_g the steepest slope of g (1 for tanh). The bound may grow while what arrives still dies out.",
        );
        this.bound.table(() => chartTable(series, "t − k"));
    }

    /** Of a matrix, as of a line: whether its part and its layer are shown. */
    shows(one, { part, layer }) {
        const own = one.parts.find((other) => other.name === part);
        return (
            (this.part === "all" || part === this.part) &&
            (this.get("layer", "top") === "all" || layer === own?.layers.length)
        );
    }

    drawValues() {
        const several = this.found.length > 1;
        const series = this.found.flatMap((one, place) =>
            one.matrices
                .filter((matrix) => this.shows(one, matrix))
                .map((matrix) => ({
                    name: `${several ? `${one.run.name}: ` : ""}${matrixName(one, matrix)}`,
                    points: matrix.values.map((value, k) => [k + 1, value]),
                    ...looksOf(one, matrix, several ? place : null),
                    matrix,
                })),
        );
        const count = Math.max(...series.map((one) => one.points.length));
        const drawn = [
            ...series,
            {
                name: "1",
                points: [
                    [1, 1],
                    [count, 1],
                ],
                place: 7,
                dashed: true,
                thin: true,
            },
        ];
        fill(
            this.values.body,
            lineChart({
                series: drawn,
                width: roomIn(this.page.root),
                height: 360,
                x: { title: "from the largest to the smallest" },
                y: { title: "singular value", zero: true },
                label: "Singular values of the recurrent matrices",
            }).element,
        );
        const largest = series.reduce((best, one) => (one.points[0][1] > best.points[0][1] ? one : best));
        this.values.say(
            "Singular values of the recurrent matrices",
            `How much a matrix W_h can stretch a state, direction by direction. Above 1 it stretches, below 1 it shrinks. The largest here: ${number(largest.points[0][1])}, of ${largest.name}.`,
        );
        this.values.table(() => ({
            columns: ["matrix", "largest", "median", "smallest", "spectral radius", "all"],
            rows: series.map(({ name, matrix }) => [
                name,
                matrix.values[0],
                matrix.values[Math.floor(matrix.values.length / 2)],
                matrix.values.at(-1),
                matrix.radius,
                matrix.values.map((value) => Number(value.toPrecision(6))).join(" "),
            ]),
        }));
    }

    // --- clipping -----------------------------------------------------------------------------------------------------

    drawClipping() {
        const norms = this.found.flatMap((one) => one.training.map(([, norm]) => norm));
        const most = Math.max(1, ...norms, ...this.found.map((one) => one.norm));
        const own = Number(this.get("clip") ?? this.found[0].clip ?? 1);
        const high = Math.log10(Math.max(most, own) * 1.25);
        const low = Math.min(high - 2.5, Math.log10(own));
        fill(
            this.clipControls,
            controls(
                slider(
                    "Clip at θ",
                    { min: low, max: high, step: 0.01, value: Math.log10(own), format: (value) => number(10 ** value) },
                    (value) => {
                        this.page.set({ clip: Number((10 ** value).toPrecision(3)) });
                        this.drawClipped(10 ** value);
                    },
                ),
            ),
        );
        this.drawClipped(own);
    }

    drawClipped(theta) {
        const several = this.found.length > 1;
        const trained = this.found.filter((one) => one.training.length);
        const series = trained.flatMap((one) => {
            const place = this.found.indexOf(one);
            const name = several ? `${one.run.name}: ` : "";
            return [
                { name: `${name}‖g‖ in training`, points: one.training, place, thin: true },
                {
                    name: `${name}clipped at θ`,
                    points: one.training.map(([step, norm]) => [step, Math.min(norm, theta)]),
                    place,
                },
            ];
        });
        const last = Math.max(1, ...trained.map((one) => one.training.at(-1)[0]));
        const drawn = [
            ...series,
            {
                name: `θ = ${number(theta)}`,
                points: [
                    [0, theta],
                    [last, theta],
                ],
                place: 7,
                dashed: true,
            },
        ];
        const chart = lineChart({
            series: drawn,
            width: roomIn(this.page.root),
            height: 320,
            x: { title: "step of the training" },
            y: { title: "‖g‖, of all parameters", log: true },
            label: "Norm of the gradient in training, and clipped",
        });
        fill(
            this.clip.body,
            trained.length
                ? chart.element
                : h("p", { class: "hint" }, "This training logged no norms of its gradients."),
            h(
                "ul",
                { class: "clip-words" },
                this.found.map((one) =>
                    h("li", { dir: "auto" }, several ? [h("b", {}, one.run.name), ": "] : "", clipWords(one, theta)),
                ),
            ),
        );
        this.clip.say(
            "Clipping: g ← g · min(1, θ/‖g‖)",
            "A gradient longer than θ is shortened to θ: its direction stays. Rare huge steps are tamed, all others go on as they were.",
        );
        this.clip.table(() => ({
            columns: ["run", "‖g‖ on this text", "θ", "factor", "clipped", "logged steps above θ", "θ of its recipe"],
            rows: this.found.map((one) => [
                one.run.name,
                one.norm,
                theta,
                Math.min(1, theta / one.norm),
                Math.min(one.norm, theta),
                shareAbove(one, theta),
                one.clip,
            ]),
        }));
    }
}

/** One run for each kind of cell that language models have, so that they can be compared; else the first. */
function firstOnes(runs) {
    const first = preferred("gradients", runs);
    const others = runs.filter((run) => run.task === first.task && run.cell !== first.cell);
    const rival = others.find((run) => run.cell === "elman") ?? others[0];
    return first.task === "language-model" && rival ? [first, rival] : [first];
}

function layersOf(part, which) {
    const all = part.layers.map((states, i) => [i + 1, states]);
    return which === "all" ? all : all.slice(-1);
}

function lineName(one, part, layer, state, runs, parts) {
    const words = [
        runs > 1 ? one.run.name : "",
        parts > 1 || runs === 1 ? part.title : "",
        part.layers.length > 1 ? `layer ${layer}` : "",
        state,
    ];
    return words.filter(Boolean).join(", ");
}

/** [[steps back, norm] …], in the order the cells read. */
function backwards({ part, norms }) {
    const last = part.order.length - 1;
    return part.order.map((place, step) => [last - step, norms[place]]).reverse();
}

/** Over how many steps a line falls to a tenth, by the slope of its logarithm; of lines that do fall. */
function fallWords(series) {
    const words = series
        .map((one) => [one.name, tenth(one.points.filter(([, y]) => y > 0))])
        .filter(([, steps]) => steps !== null);
    return (
        words
            .map(([name, steps]) => `${name} falls to a tenth about every ${number(steps, 1)} steps`)
            .slice(0, 4)
            .join("; ") + (words.length ? "." : "")
    );
}

function tenth(points) {
    if (points.length < 3) return null;
    const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => Math.log10(y))];
    const [mx, my] = [mean(xs), mean(ys)];
    const slope =
        xs.reduce((sum, x, i) => sum + (x - mx) * (ys[i] - my), 0) / xs.reduce((sum, x) => sum + (x - mx) ** 2, 0);
    return slope < 0 ? -1 / slope : null;
}

/** 0 … 1 on three powers of ten. */
function scaled(norms) {
    const most = Math.max(...norms);
    return norms.map((norm) => (norm > 0 ? Math.max(0, 1 + Math.log10(norm / most) / 3) : 0));
}

function matrixName(one, { part, layer, name }) {
    const where = one.parts.find((own) => own.name === part);
    const words = [
        `W_h ${name === "candidate" ? "h̃" : name}`,
        one.parts.length > 1 ? (where?.title ?? part) : "",
        where?.layers.length > 1 ? `layer ${layer}` : "",
    ];
    return words.filter(Boolean).join(", ");
}

/** Of several runs, a colour for each and strokes by gate; of one, a colour for each gate and strokes by part. */
function looksOf(one, { part, name }, run) {
    const gate = [...new Set(one.matrices.map((matrix) => matrix.name))].indexOf(name);
    const stroke = run === null ? one.parts.findIndex((own) => own.name === part) : gate;
    return { place: run ?? gate, dashed: stroke === 1, dotted: stroke === 2, thin: stroke === 3 };
}

function shareAbove({ training }, theta) {
    return training.length ? training.filter(([, norm]) => norm > theta).length / training.length : null;
}

function clipWords(one, theta) {
    const factor = Math.min(1, theta / one.norm);
    const text =
        factor < 1
            ? `on this text ‖g‖ = ${number(one.norm)} would be shortened to ${number(theta)}, × ${number(factor)}`
            : `on this text ‖g‖ = ${number(one.norm)} is left as it is`;
    const share = shareAbove(one, theta);
    const trained =
        share === null ? "" : `; in training ${(100 * share).toFixed(0)} % of the logged steps would be clipped`;
    return `${text}${trained}; its recipe ${one.clip === null ? "does not clip" : `clips at ${number(one.clip)}`}.`;
}
