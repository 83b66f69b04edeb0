// Inside the cell: gates and states of a recurrent cell over a text, single units, and the arithmetic of one step.
// The controls are in cell-options.js, the step in cell-steps.js, the second text in cell-comparison.js.

import { h, setChildren, formatNumber, updateChildren } from "../lib/dom.js";
import { figure } from "../lib/figure.js";
import { controls, runPicker, textBox } from "../lib/controls.js";
import { displayToken } from "../lib/tokens.js";
import { mapTable, unitMap } from "./cell-map.js";
import { drawOptions } from "./cell-options.js";
import { OtherText } from "./cell-comparison.js";
import { Steps } from "./cell-steps.js";
import { gateBars, toggleAfter, roomIn, scaleOf, shadedText, symbolOf, unitChart } from "./cell-unit.js";

export const title = "Inside the cell";
export const lead =
    "A recurrent cell reads one token per step and stores what it has read in the state of its units. This view shows the gates and states of all units at every token, and the arithmetic of a single step.";
export const needs =
    "This view needs a recurrent model: a language model, translator, tagger or classifier with lstm, gru or elman cells.";

export async function show(page) {
    const view = new CellView(page);
    setChildren(page.root, view.element);
    await view.refresh();
}

class CellView {
    constructor(page) {
        this.page = page;
        this.run = page.selectedRun();
        this.top = h("div");
        this.options = h("div");
        this.summary = h("div", { class: "answer" });
        this.map = figure({ name: "cell-units", title: "Hidden units" });
        this.gates = figure({ name: "cell-gates", title: "Gate activations" });
        this.unit = figure({ name: "cell-unit", title: "One unit" });
        this.steps = new Steps(this);
        this.other = new OtherText(this);
        this.stage = h("div", {}, this.map.element, this.unit.element, this.steps.element, this.other.element);
        this.element = h("div", {}, this.top, this.options, this.summary, this.stage);
        this.drawTop();
    }

    /** The width of a drawing in pixels. */
    get width() {
        return roomIn(this.page.root);
    }

    /** The width of a drawing with one column per token; long texts scroll. */
    widthFor(tokens) {
        return Math.max(this.width, 80 + 8 * tokens.length);
    }

    get(name, other = null) {
        return this.page.params.get(name) ?? other;
    }

    count(name, other = null) {
        const value = Number.parseInt(this.get(name), 10);
        return Number.isFinite(value) ? value : other;
    }

    get translates() {
        return this.run.task === "translate";
    }

    /** The parameters common to all requests. */
    where(text = this.get("text", this.run.example)) {
        const target = this.translates ? this.get("target") : null;
        return { run: this.run.id, text, target, part: this.get("part"), layer: this.count("layer") };
    }

    change(changes) {
        this.page.setParams(changes);
        return this.refresh();
    }

    drawTop() {
        const fresh = {
            text: null,
            target: null,
            part: null,
            layer: null,
            quantity: null,
            unit: null,
            units: null,
            position: null,
            by: null,
            class: null,
            containing: null,
            lines: null,
            term: null,
            other: null,
        };
        updateChildren(
            this.top,
            controls(
                runPicker(this.page, {
                    value: this.run.id,
                    onchange: (id) => {
                        this.run = this.page.run(id);
                        this.page.setParams({ ...fresh, run: id });
                        this.drawTop();
                        this.refresh();
                    },
                }),
                textBox("Text", this.get("text", this.run.example), (text) =>
                    this.change({ text, position: null, term: null }),
                ),
                this.translates
                    ? textBox(
                          "Force this translation",
                          this.get("target", ""),
                          (target) => this.change({ target, position: null }),
                          { button: "Force", placeholder: "output of the model" },
                      )
                    : null,
            ),
        );
    }

    /** Load all data and draw it. */
    async refresh() {
        const requestId = (this.latestRequest = {});
        this.stage.classList.add("busy");
        try {
            this.page.clearError();
            const data = await this.page.request("cell", { ...this.where(), ...this.order() });
            if (this.page.signal.aborted || this.latestRequest !== requestId) return; // superseded by a newer request
            this.data = data;
            drawOptions(this);
            this.drawSummary();
            this.drawMap();
            this.drawGates();
            await Promise.all([this.showUnit(), this.steps.show(), this.other.show()]);
        } catch (error) {
            if (this.latestRequest === requestId) this.page.fail(error);
        } finally {
            if (this.latestRequest === requestId) this.stage.classList.remove("busy");
        }
    }

    order() {
        const order = this.get("by", "variance");
        return {
            quantity: this.get("quantity"),
            by: order,
            count: this.count("count", 24),
            units: this.named,
            token_class: order === "correlation" ? this.get("class") : null,
            containing: this.get("containing", ""),
        };
    }

    /** The units that are selected by number, or null. */
    get named() {
        const units = (this.get("units", "").match(/\d+/g) ?? []).map(Number).slice(0, 128);
        return units.length ? [...new Set(units)] : null;
    }

    get chosenUnit() {
        const unit = this.count("unit");
        return unit !== null && unit < this.data.hidden ? unit : this.data.units[0];
    }

    get chosenPosition() {
        const position = this.count("position");
        return position !== null && position < this.data.tokens.length ? position : Math.min(1, this.data.tokens.length - 1);
    }

    countCalmly(count) {
        clearTimeout(this.waiting);
        this.waiting = setTimeout(() => this.change({ count }), 200);
    }

    drawSummary() {
        const { notes, answer, hidden, cell, layers } = this.data;
        const outputLabel = { translate: "Translation", tag: "Predicted tags", classify: "Predicted label" }[this.run.task];
        setChildren(
            this.summary,
            notes.map((note) => h("p", { class: "note", dir: "auto" }, note)),
            h(
                "p",
                { class: "hint", dir: "auto" },
                `${cell} cell${layers > 1 ? `, ${layers} layers` : ""}, ${hidden} units each`,
                answer && outputLabel ? ` · ${outputLabel}: ` : "",
                answer && outputLabel ? h("bdi", {}, answer) : null,
            ),
        );
    }

    // --- all units ----------------------------------------------------------------------------------------------------

    drawMap() {
        const { tokens, units, quantity, quantities, title: part, parts, arrays } = this.data;
        const words = quantities.find((item) => item.name === quantity);
        const drawing = unitMap(this.data, this.widthFor(tokens), (row, column) => this.pick(units[row], column));
        this.mapDrawing = drawing.heatmap;
        setChildren(this.map.body, drawing.element);
        this.map.setText(
            `${nameOf(words)} of ${units.length} units${parts.length > 1 ? ` (${part})` : ""}`,
            `${sentenceOf(words)} Rows are units, columns are tokens. ${this.orderWords()} Select a cell to see its unit and its step below.`,
        );
        this.map.table(() => mapTable(units, tokens, arrays.map));
        this.mark();
    }

    orderWords() {
        const { units, scores } = this.data;
        if (this.named) return "";
        const order = this.get("by", "variance");
        const best = `${units[0]} (${formatNumber(scores[0])})`;
        if (order === "correlation")
            return `Units are sorted by their correlation (Pearson’s r) with the token class “${this.get("class")}”; the first is unit ${best}.`;
        if (order === "number") return "Units are sorted by index.";
        const measure = { variance: "variance over the text", size: "mean absolute value", mean: "mean value" }[order];
        return `Units are sorted by ${measure}; the first is unit ${best}.`;
    }

    mark() {
        const row = this.data.units.indexOf(this.chosenUnit);
        this.mapDrawing?.highlight(row < 0 ? null : row, this.chosenPosition);
    }

    pick(unit, position) {
        this.page.setParams({ unit, position, term: null });
        this.mark();
        this.showUnit().catch((error) => this.page.fail(error));
        this.steps.show().catch((error) => this.page.fail(error));
        this.other.drawText().catch((error) => this.page.fail(error));
    }

    drawGates() {
        const { gates, title: part, parts } = this.data;
        toggleAfter(this.gates.element, gates.length > 0, this.stage.lastElementChild);
        if (!gates.length) return;
        setChildren(this.gates.body, gateBars(gates, Math.min(900, this.width)));
        this.gates.setText(
            `Gate activations${parts.length > 1 ? ` (${part})` : ""}`,
            "The bars are fractions of all units and tokens of this text. A gate below 0.1 is nearly closed (dark purple); a gate above 0.9 is nearly open (yellow). The vertical line is the mean.",
        );
        this.gates.table(() => ({
            columns: ["gate", "mean", "below 0.1", "above 0.9", "effect near 1"],
            rows: gates.map((gate) => [gate.name, gate.mean, gate.closed, gate.open, gate.effect]),
        }));
    }

    // --- one unit -----------------------------------------------------------------------------------------------------

    async showUnit() {
        const [unit, latestRequest] = [this.chosenUnit, this.latestRequest];
        const data = await this.page.request("cell/unit", { ...this.where(), unit });
        if (this.page.signal.aborted || unit !== this.chosenUnit || latestRequest !== this.latestRequest) return;
        this.unitData = data;
        const { quantity, quantities } = this.data;
        const isGate = Object.fromEntries(quantities.map((item) => [item.name, item.gate]));
        const names = Object.keys(data.values);
        const bounded = ["g", "candidate", "h", "y"];
        const panels = [
            ["gates (0 closed, 1 open)", names.filter((name) => isGate[name])],
            ["cell state", names.filter((name) => !isGate[name] && !bounded.includes(name))],
            [
                names.length > 1 ? "candidate and hidden state" : "hidden state",
                names.filter((name) => bounded.includes(name)),
            ],
        ];
        const line = (name) => ({
            name: symbolOf(name),
            quantity: name,
            values: data.values[name],
            colour: names.indexOf(name),
            dashed: name === "g" || name === "candidate",
        });
        const chart = unitChart({
            tokens: data.tokens,
            picked: this.chosenPosition,
            onPick: (position) => this.pick(unit, position),
            width: this.widthFor(data.tokens),
            label: `Unit ${unit} over the text`,
            panels: panels
                .filter(([, members]) => members.length)
                .map(([words, members]) => ({
                    title: words,
                    lines: members.map(line),
                    ...reachOf(
                        members.map((name) => data.values[name]),
                        isGate[members[0]],
                    ),
                })),
        });
        setChildren(this.unit.body, this.shade(data.tokens, data.values[quantity]), chart.element);
        this.unit.setText(
            `Unit ${unit} over the text`,
            `Top: the text, each token coloured by ${symbolOf(quantity)} of this unit after reading it. Bottom: all quantities of the unit. Click a token to see its step.`,
        );
        this.unit.table(() => ({
            columns: ["token", ...names.map(symbolOf)],
            rows: data.tokens.map((token, position) => [displayToken(token), ...names.map((name) => data.values[name][position])]),
        }));
    }

    shade(tokens, values) {
        const { quantity, quantities } = this.data;
        const gate = quantities.find((item) => item.name === quantity).gate;
        const high = gate ? 1 : Math.max(1e-6, ...values.map(Math.abs));
        return shadedText(tokens, values, {
            signed: scaleOf(gate),
            high,
            width: this.width,
            picked: this.chosenPosition,
            onPick: (position) => this.pick(this.chosenUnit, position),
            label: `Text coloured by unit ${this.chosenUnit}`,
        });
    }
}

const NAMES = { c: "Cell state c", h: "Hidden state h", g: "Candidate g", candidate: "Candidate h̃", y: "Output y" };
const nameOf = ({ name, gate }) => NAMES[name] ?? (gate ? `Gate ${name}` : name);

/** The description of a quantity as a sentence. */
function sentenceOf({ name, words, gate }) {
    const description = words.slice(name.length).replace(/^[:\s]+/, "");
    return gate ? `Gate ${name}: ${description}. Yellow is open, dark purple is closed.` : `${symbolOf(name)}: ${description}.`;
}

function reachOf(all, gates) {
    if (gates) return { low: 0, high: 1 };
    const values = all.flat();
    const maximum = Math.max(...values.map(Math.abs));
    if (maximum <= 1) return { low: -1, high: 1 };
    const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)].map(
        (value) => Math.sign(value) * Math.ceil(Math.abs(value)),
    );
    return { low, high };
}
