// Inside the cell: gates and states of any recurrent cell over a text, its units one by one, and one step's arithmetic.
// What can be turned is in cell-options.js, the step in cell-steps.js, the other text in cell-other.js.

import { h, fill, number, refill } from "../lib/dom.js";
import { figure } from "../lib/figure.js";
import { controls, runPicker, textBox } from "../lib/controls.js";
import { shown } from "../lib/tokens.js";
import { mapTable, unitMap } from "./cell-map.js";
import { drawOptions } from "./cell-options.js";
import { OtherText } from "./cell-other.js";
import { Steps } from "./cell-steps.js";
import { gateBars, present, roomIn, scaleOf, shadedText, symbolOf, unitChart } from "./cell-unit.js";

export const title = "Inside the cell";
export const lead =
    "A recurrent cell reads one token after another and keeps what it has read in a list of numbers, its units. Here every unit of a trained model is seen at every token: what its gates let pass, what it remembers, and the arithmetic of a single step.";
export const needs =
    "It needs a model with recurrent cells: a language model, translator, tagger or classifier with lstm, gru or elman.";

export async function show(page) {
    const view = new CellView(page);
    fill(page.root, view.element);
    await view.refresh();
}

class CellView {
    constructor(page) {
        this.page = page;
        this.run = page.chosen();
        this.top = h("div");
        this.options = h("div");
        this.said = h("div", { class: "answer" });
        this.map = figure({ name: "cell-units", title: "Units over the text" });
        this.gates = figure({ name: "cell-gates", title: "How open the gates are" });
        this.unit = figure({ name: "cell-unit", title: "One unit" });
        this.steps = new Steps(this);
        this.other = new OtherText(this);
        this.stage = h("div", {}, this.map.element, this.unit.element, this.steps.element, this.other.element);
        this.element = h("div", {}, this.top, this.options, this.said, this.stage);
        this.drawTop();
    }

    /** Pixels that a drawing may be wide. */
    get wide() {
        return roomIn(this.page.root);
    }

    /** The same for a column a token: a long text is wider than the page, and scrolled. */
    wideFor(tokens) {
        return Math.max(this.wide, 80 + 8 * tokens.length);
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

    /** Where we look: what every question needs. */
    where(text = this.get("text", this.run.example)) {
        const target = this.translates ? this.get("target") : null;
        return { run: this.run.id, text, target, part: this.get("part"), layer: this.count("layer") };
    }

    change(changes) {
        this.page.set(changes);
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
            place: null,
            by: null,
            class: null,
            containing: null,
            lines: null,
            term: null,
            other: null,
        };
        refill(
            this.top,
            controls(
                runPicker(this.page, {
                    value: this.run.id,
                    onchange: (id) => {
                        this.run = this.page.run(id);
                        this.page.set({ ...fresh, run: id });
                        this.drawTop();
                        this.refresh();
                    },
                }),
                textBox("Text to read", this.get("text", this.run.example), (text) =>
                    this.change({ text, place: null, term: null }),
                ),
                this.translates
                    ? textBox(
                          "Translation it is made to say",
                          this.get("target", ""),
                          (target) => this.change({ target, place: null }),
                          { button: "Say", placeholder: "its own" },
                      )
                    : null,
            ),
        );
    }

    /** Ask for all that is shown, and draw it. */
    async refresh() {
        const mine = (this.asked = {});
        this.stage.classList.add("busy");
        try {
            this.page.fine();
            const found = await this.page.ask("cell", { ...this.where(), ...this.order() });
            if (this.page.signal.aborted || this.asked !== mine) return; // something else was asked for since
            this.found = found;
            drawOptions(this);
            this.drawSaid();
            this.drawMap();
            this.drawGates();
            await Promise.all([this.showUnit(), this.steps.show(), this.other.show()]);
        } catch (error) {
            if (this.asked === mine) this.page.fail(error);
        } finally {
            if (this.asked === mine) this.stage.classList.remove("busy");
        }
    }

    order() {
        const by = this.get("by", "variance");
        return {
            quantity: this.get("quantity"),
            by,
            count: this.count("count", 24),
            units: this.named,
            token_class: by === "correlation" ? this.get("class") : null,
            containing: this.get("containing", ""),
        };
    }

    /** The units that were asked for by number; null for those that come first. */
    get named() {
        const found = (this.get("units", "").match(/\d+/g) ?? []).map(Number).slice(0, 128);
        return found.length ? [...new Set(found)] : null;
    }

    get chosenUnit() {
        const unit = this.count("unit");
        return unit !== null && unit < this.found.hidden ? unit : this.found.units[0];
    }

    get chosenPlace() {
        const place = this.count("place");
        return place !== null && place < this.found.tokens.length ? place : Math.min(1, this.found.tokens.length - 1);
    }

    countCalmly(count) {
        clearTimeout(this.waiting);
        this.waiting = setTimeout(() => this.change({ count }), 200);
    }

    drawSaid() {
        const { notes, answer, hidden, cell, layers } = this.found;
        const says = { translate: "The translation", tag: "Its answer", classify: "Its answer" }[this.run.task];
        fill(
            this.said,
            notes.map((note) => h("p", { class: "note", dir: "auto" }, note)),
            h(
                "p",
                { class: "hint", dir: "auto" },
                `${cell} cell${layers > 1 ? `, ${layers} layers` : ""}, ${hidden} units each`,
                answer && says ? ` · ${says}: ` : "",
                answer && says ? h("bdi", {}, answer) : null,
            ),
        );
    }

    // --- all units ----------------------------------------------------------------------------------------------------

    drawMap() {
        const { tokens, units, quantity, quantities, title: part, parts, arrays } = this.found;
        const words = quantities.find((one) => one.name === quantity);
        const drawing = unitMap(this.found, this.wideFor(tokens), (row, column) => this.pick(units[row], column));
        this.mapDrawing = drawing.picture;
        fill(this.map.body, drawing.element);
        this.map.say(
            `${nameOf(words)} of ${units.length} units${parts.length > 1 ? ` (${part})` : ""}`,
            `${sentenceOf(words)} One row is one unit over the whole text, one column is one token. ${this.orderWords()} Pick a cell to follow its unit and to see that step's arithmetic.`,
        );
        this.map.table(() => mapTable(units, tokens, arrays.map));
        this.mark();
    }

    orderWords() {
        const { units, scores } = this.found;
        if (this.named) return "These are the units that were named.";
        const by = this.get("by", "variance");
        const best = `${units[0]} (${number(scores[0])})`;
        if (by === "correlation")
            return `Units are ordered by how their value goes with the tokens of the class “${this.get("class")}” (Pearson’s r): first ${best}.`;
        if (by === "variance") return `The units that vary most over this text come first: unit ${best}.`;
        if (by === "number") return "Units stand in their own order.";
        return `Units with the largest ${by === "size" ? "mean size" : "mean value"} come first: unit ${best}.`;
    }

    mark() {
        const row = this.found.units.indexOf(this.chosenUnit);
        this.mapDrawing?.light(row < 0 ? null : row, this.chosenPlace);
    }

    pick(unit, place) {
        this.page.set({ unit, place, term: null });
        this.mark();
        this.showUnit().catch((error) => this.page.fail(error));
        this.steps.show().catch((error) => this.page.fail(error));
        this.other.drawText().catch((error) => this.page.fail(error));
    }

    drawGates() {
        const { gates, title: part, parts } = this.found;
        present(this.gates.element, gates.length > 0, this.stage.lastElementChild);
        if (!gates.length) return;
        fill(this.gates.body, gateBars(gates, Math.min(900, this.wide)));
        this.gates.say(
            `How open the gates are${parts.length > 1 ? ` (${part})` : ""}`,
            "Shares of all units at all tokens of this text. A gate below 0.1 is nearly closed (dark purple), one above 0.9 nearly open (yellow); the line marks the mean.",
        );
        this.gates.table(() => ({
            columns: ["gate", "mean", "below 0.1", "above 0.9", "near 1"],
            rows: gates.map((gate) => [gate.name, gate.mean, gate.closed, gate.open, gate.does]),
        }));
    }

    // --- one unit -----------------------------------------------------------------------------------------------------

    async showUnit() {
        const [unit, asked] = [this.chosenUnit, this.asked];
        const found = await this.page.ask("cell/unit", { ...this.where(), unit });
        if (this.page.signal.aborted || unit !== this.chosenUnit || asked !== this.asked) return;
        this.unitFound = found;
        const { quantity, quantities } = this.found;
        const isGate = Object.fromEntries(quantities.map((one) => [one.name, one.gate]));
        const names = Object.keys(found.values);
        const bounded = ["g", "candidate", "h", "y"];
        const panels = [
            ["gates, from closed 0 to open 1", names.filter((name) => isGate[name])],
            ["content of the cell", names.filter((name) => !isGate[name] && !bounded.includes(name))],
            [
                names.length > 1 ? "new content, and what the unit says" : "what the unit says",
                names.filter((name) => bounded.includes(name)),
            ],
        ];
        const line = (name) => ({
            name: symbolOf(name),
            quantity: name,
            values: found.values[name],
            place: names.indexOf(name),
            dashed: name === "g" || name === "candidate",
        });
        const chart = unitChart({
            tokens: found.tokens,
            picked: this.chosenPlace,
            onPick: (place) => this.pick(unit, place),
            width: this.wideFor(found.tokens),
            label: `Unit ${unit} over the text`,
            panels: panels
                .filter(([, own]) => own.length)
                .map(([words, own]) => ({
                    title: words,
                    lines: own.map(line),
                    ...reachOf(
                        own.map((name) => found.values[name]),
                        isGate[own[0]],
                    ),
                })),
        });
        fill(this.unit.body, this.shade(found.tokens, found.values[quantity]), chart.element);
        this.unit.say(
            `Unit ${unit} while the text is read`,
            `Above, the text itself: each token on the colour of ${symbolOf(quantity)} of this unit after reading it. Below, all that the cell computes of the unit. Click a token for its arithmetic.`,
        );
        this.unit.table(() => ({
            columns: ["token", ...names.map(symbolOf)],
            rows: found.tokens.map((token, place) => [shown(token), ...names.map((name) => found.values[name][place])]),
        }));
    }

    shade(tokens, values) {
        const { quantity, quantities } = this.found;
        const gate = quantities.find((one) => one.name === quantity).gate;
        const high = gate ? 1 : Math.max(1e-6, ...values.map(Math.abs));
        return shadedText(tokens, values, {
            signed: scaleOf(gate),
            high,
            width: this.wide,
            picked: this.chosenPlace,
            onPick: (place) => this.pick(this.chosenUnit, place),
            label: `The text shaded by unit ${this.chosenUnit}`,
        });
    }
}

const NAMES = { c: "Content c", h: "Hidden state h", g: "New content g", candidate: "New content h̃", y: "Output y" };
const nameOf = ({ name, gate }) => NAMES[name] ?? (gate ? `Gate ${name}` : name);

/** “f near 1 keeps …” as a sentence. */
function sentenceOf({ name, words, gate }) {
    const rest = words.slice(name.length).replace(/^[:\s]+/, "");
    return gate ? `The gate ${name}: ${rest}. Yellow is open, dark purple is closed.` : `${symbolOf(name)}: ${rest}.`;
}

function reachOf(all, gates) {
    if (gates) return { low: 0, high: 1 };
    const values = all.flat();
    const most = Math.max(...values.map(Math.abs));
    if (most <= 1) return { low: -1, high: 1 };
    const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)].map(
        (value) => Math.sign(value) * Math.ceil(Math.abs(value)),
    );
    return { low, high };
}
