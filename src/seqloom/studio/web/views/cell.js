// Inside the cell: gates and states of any recurrent cell over a text, its units one by one, and one step's arithmetic.

import { h, fill, fromHalf, number, refill } from "../lib/dom.js";
import { figure } from "../lib/figure.js";
import { heatmap, scaleBar } from "../lib/heatmap.js";
import { button, controls, runPicker, segmented, select, slider, textBox } from "../lib/controls.js";
import { shown } from "../lib/tokens.js";
import { gateBars, present, roomIn, shadedText, unitChart } from "./cell-unit.js";
import { formulaWords, lineDrawing, stepTable, summandBars, termTable } from "./cell-step.js";

export const title = "Inside the cell";
export const lead =
    "A recurrent cell reads one token after another and keeps what it has read in a list of numbers, its units. Here every unit of a trained model is seen at every token: what its gates let pass, what it remembers, and the arithmetic of a single step.";
export const needs =
    "It needs a model with recurrent cells: a language model, translator, tagger or classifier with lstm, gru or elman.";

const ORDERS = [
    ["variance", "how much they vary"],
    ["size", "mean size"],
    ["mean", "mean value"],
    ["number", "their number"],
];
const PACE = 1600; // milliseconds a step is shown while it plays

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
        this.other = figure({ name: "cell-other", title: "The same units on another text" });
        this.step = figure({ name: "cell-step", title: "One step, with its numbers" });
        this.term = figure({ name: "cell-term", title: "What a product adds up" });
        this.stepControls = h("div");
        this.otherBox = h("div");
        this.stepNote = h("div");
        this.step.element.querySelector(".figure-head").after(this.stepControls, this.stepNote);
        this.stage = h("div", {}, this.map.element, this.unit.element, this.step.element, this.otherBox);
        this.element = h("div", {}, this.top, this.options, this.said, this.stage);
        this.playing = null;
        page.signal.addEventListener("abort", () => this.stop());
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
                          "Translation it is made to say (empty: its own)",
                          this.get("target", ""),
                          (target) => this.change({ target, place: null }),
                          { button: "Say" },
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
            this.drawOptions();
            this.drawSaid();
            this.drawMap();
            this.drawGates();
            await Promise.all([this.showUnit(), this.showStep(), this.showOther()]);
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

    // --- what can be turned -------------------------------------------------------------------------------------------

    drawOptions() {
        const { parts, part, layer, layers, quantities, quantity, classes, hidden } = this.found;
        const key = JSON.stringify([
            parts,
            part,
            layer,
            quantities,
            classes,
            hidden,
            this.run.id,
            quantity,
            this.get("by"),
            this.get("class"),
        ]);
        if (key === this.optionsKey) return;
        this.optionsKey = key;
        const [by, which] = [this.get("by", "variance"), this.get("class")];
        const orders = [...ORDERS, ...classes.map((name) => [`class ${name}`, `going with: ${name}`])];
        const reset = {
            layer: null,
            quantity: null,
            unit: null,
            units: null,
            by: null,
            class: null,
            place: null,
            term: null,
        };
        refill(
            this.options,
            controls(
                parts.length > 1
                    ? segmented(
                          "Which cells",
                          parts.map((one) => [one.name, one.title]),
                          part,
                          (name) => this.change({ ...reset, part: name }),
                      )
                    : null,
                layers > 1
                    ? select(
                          "Layer",
                          Array.from({ length: layers }, (_, i) => [
                              i + 1,
                              i + 1 === layers ? `${i + 1} (top)` : i + 1,
                          ]),
                          layer,
                          (value) => this.change({ layer: value, unit: null, units: null }),
                      )
                    : null,
                segmented(
                    "Show",
                    quantities.map((one) => [one.name, symbolOf(one.name)]),
                    quantity,
                    (name) => this.change({ quantity: name }),
                ),
                select("Order units by", orders, by === "correlation" ? `class ${which}` : by, (value) =>
                    this.change(
                        value.startsWith("class ")
                            ? { by: "correlation", class: value.slice(6) }
                            : { by: value, class: null },
                    ),
                ),
                textBox(
                    "… or by tokens containing",
                    this.get("containing", ""),
                    (containing) =>
                        this.change(
                            containing
                                ? { containing, by: "correlation", class: `contains ${containing}` }
                                : { containing: null, by: null, class: null },
                        ),
                    { button: "Order", max: 20 },
                ),
                textBox("Only these units", this.get("units", ""), (units) => this.change({ units }), {
                    button: "Pick",
                    max: 600,
                    placeholder: "3, 17, 20",
                }),
                slider(
                    "Units shown",
                    {
                        min: 4,
                        max: Math.min(hidden, 128),
                        step: 1,
                        value: Math.min(this.count("count", 24), hidden),
                        format: String,
                    },
                    (count) => this.countCalmly(count),
                ),
            ),
        );
        for (const box of this.options.querySelectorAll(".textbox")) box.classList.add("short");
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
        const drawing = this.unitMap(this.found, (row, column) => this.pick(units[row], column));
        this.mapDrawing = drawing.picture;
        fill(this.map.body, drawing.element);
        this.map.say(
            `${nameOf(words)} of ${units.length} units${parts.length > 1 ? ` (${part})` : ""}`,
            `${sentenceOf(words)} One row is one unit over the whole text, one column is one token. ${this.orderWords()} Pick a cell to follow its unit and to see that step's arithmetic.`,
        );
        this.map.table(() => mapTable(units, tokens, arrays.map));
        this.mark();
    }

    unitMap({ tokens, units, quantity, quantities, reach, arrays }, onPick) {
        const gate = quantities.find((one) => one.name === quantity).gate;
        const high = gate ? 1 : Math.max(reach, 1e-6);
        const picture = heatmap({
            rows: units.map(String),
            columns: tokens,
            values: arrays.map.data,
            low: gate ? 0 : -high,
            high,
            signed: !gate,
            rowTitle: "unit",
            columnTitle: "token read",
            size: [this.wideFor(tokens), 130 + units.length * 20],
            leastHeight: 18,
            onPick,
            label: `${symbolOf(quantity)} of ${units.length} units at ${tokens.length} tokens`,
        });
        const bar = scaleBar();
        bar.update({ low: gate ? 0 : -high, high, signed: !gate, title: symbolOf(quantity) });
        return { picture, element: h("div", {}, picture.element, bar.element) };
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
        this.showStep().catch((error) => this.page.fail(error));
        this.drawOtherText().catch((error) => this.page.fail(error));
    }

    drawGates() {
        const { gates, title: part, parts } = this.found;
        present(this.gates.element, gates.length > 0, this.stage.lastElementChild);
        if (!gates.length) return;
        fill(this.gates.body, gateBars(gates, Math.min(900, this.wide)));
        this.gates.say(
            `How open the gates are${parts.length > 1 ? ` (${part})` : ""}`,
            "Shares of all units at all tokens of this text. A gate below 0.1 is nearly closed, one above 0.9 nearly open; the line marks the mean.",
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
            signed: !gate,
            high,
            width: this.wide,
            picked: this.chosenPlace,
            onPick: (place) => this.pick(this.chosenUnit, place),
            label: `The text shaded by unit ${this.chosenUnit}`,
        });
    }

    // --- another text -------------------------------------------------------------------------------------------------

    async showOther() {
        if (!this.otherBox.firstChild || this.otherRun !== this.run.id) {
            this.otherRun = this.run.id;
            fill(
                this.otherBox,
                controls(
                    textBox(
                        "Another text, the same units in the same order",
                        this.get("other", ""),
                        (other) => {
                            this.page.set({ other });
                            this.showOther().catch((error) => this.page.fail(error));
                        },
                        { placeholder: "Type a sentence to compare with" },
                    ),
                ),
            );
        }
        const text = this.get("other");
        present(this.other.element, text, this.otherBox);
        this.otherFound = null;
        if (!text) return;
        const [{ units, quantity }, { asked }] = [this.found, this];
        const found = await this.page.ask("cell", { ...this.where(text), target: null, quantity, units });
        if (this.page.signal.aborted || text !== this.get("other") || asked !== this.asked) return;
        this.otherFound = found;
        this.otherMap = this.unitMap({ ...found, reach: Math.max(found.reach, this.found.reach) }, (row) =>
            this.pick(units[row], this.chosenPlace),
        );
        this.otherShade = h("div");
        fill(this.other.body, this.otherShade, this.otherMap.element);
        this.other.say(
            "The same units on another text",
            "Rows are the units of the picture above, in the same order and with the same colours: what a unit stands for should hold here, too.",
        );
        this.other.table(() => mapTable(found.units, found.tokens, found.arrays.map));
        await this.drawOtherText();
    }

    async drawOtherText() {
        if (!this.otherFound) return;
        const [unit, found] = [this.chosenUnit, this.otherFound];
        const { values, tokens } = await this.page.ask("cell/unit", {
            ...this.where(this.get("other")),
            target: null,
            unit,
        });
        if (this.page.signal.aborted || unit !== this.chosenUnit || found !== this.otherFound) return;
        const own = this.unitFound?.values[this.found.quantity] ?? [];
        const gate = this.found.quantities.find((one) => one.name === this.found.quantity).gate;
        const high = gate ? 1 : Math.max(1e-6, ...values[this.found.quantity].map(Math.abs), ...own.map(Math.abs));
        fill(
            this.otherShade,
            h("p", { class: "hint" }, `${symbolOf(this.found.quantity)} of unit ${unit}:`),
            shadedText(tokens, values[this.found.quantity], {
                signed: !gate,
                high,
                width: this.wide,
                label: `The other text shaded by unit ${unit}`,
            }),
        );
        this.otherMap.picture.light(this.found.units.indexOf(unit) < 0 ? null : this.found.units.indexOf(unit), null);
    }

    // --- one step -----------------------------------------------------------------------------------------------------

    async showStep() {
        const [unit, place, asked] = [this.chosenUnit, this.chosenPlace, this.asked];
        const found = await this.page.ask("cell/step", { ...this.where(), unit, place });
        const same = unit === this.chosenUnit && place === this.chosenPlace && asked === this.asked;
        if (this.page.signal.aborted || !same) return;
        this.stepFound = found;
        this.drawStep();
    }

    drawStep() {
        const { lines, unit, place, step, steps, before, cell } = this.stepFound;
        const seen = Math.min(this.count("lines", lines.length), lines.length);
        const { tokens, says } = this.found;
        const states = Object.entries(before).map(([name, value]) => [
            formulaWords(`${name}_{t-1}`),
            ` = ${number(value)}`,
        ]);
        this.step.say(
            `Unit ${unit} reads ${shown(tokens[place])}: one step of the ${cell} cell`,
            "Every bar begins where the one above it ends, so the last one ends at their sum; orange is negative. The curve shows what the sum becomes. Click a product such as W x to see what it adds up.",
        );
        fill(
            this.stepNote,
            h(
                "p",
                { class: "step-note", dir: "auto" },
                `Step t = ${step + 1} of ${steps} reads `,
                h("b", {}, shown(tokens[place])),
                says[place] ? [" and should say ", h("b", {}, shown(says[place]))] : "",
                ". Before it the unit stood at ",
                states.map((words, i) => [i ? ", " : "", words]),
                ".",
            ),
        );
        fill(
            this.step.body,
            h(
                "div",
                { class: "equations" },
                lines.slice(0, seen).map((line) =>
                    h(
                        "div",
                        { class: "equation-card" },
                        lineDrawing(line, {
                            chosen: this.get("term") === null ? null : this.termOf(line),
                            onTerm: (term) => this.openTerm(line, term),
                        }),
                        line.does ? h("p", { class: "hint" }, line.does) : null,
                    ),
                ),
            ),
        );
        this.step.table(() => stepTable(lines));
        this.drawStepControls(seen);
        this.drawTerm();
    }

    drawStepControls(seen) {
        const { lines, order, step, steps } = this.stepFound;
        const to = (next) => this.pick(this.chosenUnit, order[next]);
        const reveal = (count) => {
            this.page.set({ lines: count >= lines.length ? null : count });
            this.drawStep();
            this.stepControls.querySelector(`button[data-act="more"]`)?.focus();
        };
        const made = (words, act, disabled, name) => {
            const node = button(words, act);
            node.disabled = disabled;
            node.dataset.act = name;
            return node;
        };
        refill(
            this.stepControls,
            controls(
                h(
                    "div",
                    { class: "row", role: "group", "aria-label": "Steps" },
                    made("◀ step before", () => to(step - 1), step === 0, "before"),
                    made("next step ▶", () => to(step + 1), step + 1 >= steps, "next"),
                    made(this.playing ? "Pause" : "Play", () => this.play(), false, "play"),
                ),
                h(
                    "div",
                    { class: "row", role: "group", "aria-label": "Lines" },
                    made("First line only", () => reveal(1), seen === 1, "first"),
                    made("Next line", () => reveal(seen + 1), seen >= lines.length, "more"),
                    made("All lines", () => reveal(lines.length), seen >= lines.length, "all"),
                ),
            ),
        );
    }

    play() {
        if (this.playing) return this.stop();
        this.playing = setInterval(() => {
            const { order, step, steps } = this.stepFound;
            if (step + 1 >= steps) this.stop();
            else this.pick(this.chosenUnit, order[step + 1]);
        }, PACE);
        this.drawStep();
    }

    stop() {
        clearInterval(this.playing);
        this.playing = null;
        if (this.stepFound && !this.page.signal.aborted) this.drawStep();
    }

    termOf(line) {
        const [name, term] = (this.get("term") ?? "").split(".");
        return name === line.name ? Number(term) : null;
    }

    openTerm(line, term) {
        const key = `${line.name}.${term}`;
        this.page.set({ term: this.get("term") === key ? null : key });
        this.drawStep();
        if (this.term.element.isConnected) this.term.element.scrollIntoView({ block: "nearest" });
    }

    drawTerm() {
        const line = this.stepFound.lines.find((one) => this.termOf(one) !== null);
        const term = line?.terms[this.termOf(line)];
        present(this.term.element, term?.summands.length, this.step.element);
        if (!this.term.element.isConnected) return;
        const whose = term.vector === "x_t" ? "the input vector" : "what the units said one step before";
        fill(this.term.body, summandBars(term));
        this.term.say(
            `${term.symbol.replaceAll("_{t-1}", "ₜ₋₁").replaceAll("_t", "ₜ")} adds up ${term.length} products`,
            `Each is one weight of unit ${this.stepFound.unit} times one number of ${whose}. The ${term.summands.length} largest are shown, by size.`,
        );
        this.term.table(() => termTable(term));
    }
}

const NAMES = { c: "Content c", h: "Hidden state h", g: "New content g", candidate: "New content h̃", y: "Output y" };
const nameOf = ({ name, gate }) => NAMES[name] ?? (gate ? `Gate ${name}` : name);
const symbolOf = (name) => ({ candidate: "h̃" })[name] ?? name;

/** “f near 1 keeps …” as a sentence. */
function sentenceOf({ name, words, gate }) {
    const rest = words.slice(name.length).replace(/^[:\s]+/, "");
    return gate ? `The gate ${name}: ${rest}.` : `${symbolOf(name)}: ${rest}.`;
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

function mapTable(units, tokens, { data }) {
    return {
        columns: ["unit", ...tokens.map(shown)],
        rows: units.map((unit, row) => [
            `${unit}`,
            ...tokens.map((_, column) => fromHalf(data[row * tokens.length + column])),
        ]),
    };
}
