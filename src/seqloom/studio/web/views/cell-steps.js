// One step of one unit: the equations of the cell with their values, line by line or as an animation.

import { h, setChildren, formatNumber, updateChildren } from "../lib/dom.js";
import { button, controls } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { displayToken } from "../lib/tokens.js";
import { formulaWords, lineDrawing, stepTable, summandBars, termTable } from "./cell-step.js";
import { toggleAfter } from "./cell-unit.js";

const STEP_MS = 1600; // milliseconds per step of the animation

export class Steps {
    /** `view` is the CellView with the run and the selected unit and position. */
    constructor(view) {
        this.view = view;
        this.fig = figure({ name: "cell-step", title: "One step" });
        this.term = figure({ name: "cell-term", title: "Summands of a product" });
        this.controls = h("div");
        this.note = h("div");
        this.fig.element.querySelector(".figure-head").after(this.controls, this.note);
        this.element = h("div", {}, this.fig.element);
        this.playing = null;
        view.page.signal.addEventListener("abort", () => this.stop());
    }

    async show() {
        const { view } = this;
        const [unit, position, latestRequest] = [view.chosenUnit, view.chosenPosition, view.latestRequest];
        const data = await view.page.request("cell/step", { ...view.where(), unit, position });
        const isCurrent = unit === view.chosenUnit && position === view.chosenPosition && latestRequest === view.latestRequest;
        if (view.page.signal.aborted || !isCurrent) return;
        this.data = data;
        this.draw();
    }

    draw() {
        const { lines, unit, position, cell } = this.data;
        const { tokens } = this.view.data;
        const visible = Math.min(this.view.count("lines", lines.length), lines.length);
        this.fig.setText(
            `Unit ${unit} reads ${displayToken(tokens[position])}: one step of the ${cell} cell`,
            "Each bar starts where the previous bar ends, so the last bar ends at the sum. Red bars are positive, blue bars negative. The curve is the activation function. Click a product such as W x to see its summands.",
        );
        setChildren(this.note, this.words());
        setChildren(
            this.fig.body,
            h(
                "div",
                { class: "equations" },
                lines.slice(0, visible).map((line) => this.card(line)),
            ),
        );
        this.fig.table(() => stepTable(lines));
        this.drawControls(visible);
        this.drawTerm();
    }

    /** The input token, the target and the previous state of the unit. */
    words() {
        const { position, step, steps, before } = this.data;
        const { tokens, targets } = this.view.data;
        const states = Object.entries(before).map(([name, value], i) => [
            i ? ", " : "",
            formulaWords(`${name}_{t-1}`),
            ` = ${formatNumber(value)}`,
        ]);
        return h(
            "p",
            { class: "step-note", dir: "auto" },
            `Step t = ${step + 1} of ${steps} reads `,
            h("b", {}, displayToken(tokens[position])),
            targets[position] ? [", target ", h("b", {}, displayToken(targets[position]))] : "",
            ". Previous state: ",
            states,
            ".",
        );
    }

    card(line) {
        const drawing = lineDrawing(line, { chosen: this.termOf(line), onTerm: (term) => this.openTerm(line, term) });
        return h("div", { class: "equation-card" }, drawing, line.purpose ? h("p", { class: "hint" }, line.purpose) : null);
    }

    drawControls(seen) {
        const { lines, order, step, steps } = this.data;
        const { view } = this;
        const to = (next) => view.pick(view.chosenUnit, order[next]);
        const reveal = (count) => {
            view.page.setParams({ lines: count >= lines.length ? null : count });
            this.draw();
            this.controls.querySelector(`button[data-act="more"]`)?.focus();
        };
        const actionButton = (words, act, disabled, name) => {
            const node = button(words, act);
            node.disabled = disabled;
            node.dataset.act = name;
            return node;
        };
        updateChildren(
            this.controls,
            controls(
                h(
                    "div",
                    { class: "row", role: "group", "aria-label": "Steps" },
                    actionButton("◀ Previous step", () => to(step - 1), step === 0, "before"),
                    actionButton("Next step ▶", () => to(step + 1), step + 1 >= steps, "next"),
                    actionButton(this.playing ? "Pause" : "Play", () => this.play(), false, "play"),
                ),
                h(
                    "div",
                    { class: "row", role: "group", "aria-label": "Lines" },
                    actionButton("Only the first line", () => reveal(1), seen === 1, "first"),
                    actionButton("Next line", () => reveal(seen + 1), seen >= lines.length, "more"),
                    actionButton("All lines", () => reveal(lines.length), seen >= lines.length, "all"),
                ),
            ),
        );
    }

    play() {
        if (this.playing) return this.stop();
        this.playing = setInterval(() => {
            const { order, step, steps } = this.data;
            if (step + 1 >= steps) this.stop();
            else this.view.pick(this.view.chosenUnit, order[step + 1]);
        }, STEP_MS);
        this.draw();
    }

    stop() {
        clearInterval(this.playing);
        this.playing = null;
        if (this.data && !this.view.page.signal.aborted) this.draw();
    }

    // --- the summands of one product ---

    /** The open term of a line, or null. */
    termOf(line) {
        const [name, term] = (this.view.get("term") ?? "").split(".");
        return name === line.name ? Number(term) : null;
    }

    openTerm(line, term) {
        const key = `${line.name}.${term}`;
        this.view.page.setParams({ term: this.view.get("term") === key ? null : key });
        this.draw();
        if (this.term.element.isConnected) this.term.element.scrollIntoView({ block: "nearest" });
    }

    drawTerm() {
        const line = this.data.lines.find((item) => this.termOf(item) !== null);
        const term = line?.terms[this.termOf(line)];
        toggleAfter(this.term.element, term?.summands.length, this.fig.element);
        if (!this.term.element.isConnected) return;
        const whose = term.vector === "x_t" ? "the input vector" : "the previous hidden state";
        setChildren(this.term.body, summandBars(term));
        this.term.setText(
            `${term.symbol.replaceAll("_{t-1}", "ₜ₋₁").replaceAll("_t", "ₜ")} is a sum of ${term.length} products`,
            `Each product is a weight of unit ${this.data.unit} times an element of ${whose}. The ${term.summands.length} largest are shown.`,
        );
        this.term.table(() => termTable(term));
    }
}
