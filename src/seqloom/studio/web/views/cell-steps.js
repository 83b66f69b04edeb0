// One step of one unit: the cell's equations with the real numbers, line by line, step by step, or played.

import { h, fill, number, refill } from "../lib/dom.js";
import { button, controls } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { shown } from "../lib/tokens.js";
import { formulaWords, lineDrawing, stepTable, summandBars, termTable } from "./cell-step.js";
import { present } from "./cell-unit.js";

const PACE = 1600; // milliseconds a step is shown while it plays

export class Steps {
    /** `view` is the page inside the cell: the run, and which unit and place are chosen. */
    constructor(view) {
        this.view = view;
        this.picture = figure({ name: "cell-step", title: "One step, with its numbers" });
        this.term = figure({ name: "cell-term", title: "What a product adds up" });
        this.controls = h("div");
        this.note = h("div");
        this.picture.element.querySelector(".figure-head").after(this.controls, this.note);
        this.element = h("div", {}, this.picture.element);
        this.playing = null;
        view.page.signal.addEventListener("abort", () => this.stop());
    }

    async show() {
        const { view } = this;
        const [unit, place, asked] = [view.chosenUnit, view.chosenPlace, view.asked];
        const found = await view.page.ask("cell/step", { ...view.where(), unit, place });
        const same = unit === view.chosenUnit && place === view.chosenPlace && asked === view.asked;
        if (view.page.signal.aborted || !same) return;
        this.found = found;
        this.draw();
    }

    draw() {
        const { lines, unit, place, cell } = this.found;
        const { tokens } = this.view.found;
        const seen = Math.min(this.view.count("lines", lines.length), lines.length);
        this.picture.say(
            `Unit ${unit} reads ${shown(tokens[place])}: one step of the ${cell} cell`,
            "Every bar begins where the one above it ends, so the last one ends at their sum; red is above 0, blue below. The curve shows what the sum becomes. Click a product such as W x to see what it adds up.",
        );
        fill(this.note, this.words());
        fill(
            this.picture.body,
            h(
                "div",
                { class: "equations" },
                lines.slice(0, seen).map((line) => this.card(line)),
            ),
        );
        this.picture.table(() => stepTable(lines));
        this.drawControls(seen);
        this.drawTerm();
    }

    /** What is read, what should be said, and where the unit stood before. */
    words() {
        const { place, step, steps, before } = this.found;
        const { tokens, says } = this.view.found;
        const states = Object.entries(before).map(([name, value], i) => [
            i ? ", " : "",
            formulaWords(`${name}_{t-1}`),
            ` = ${number(value)}`,
        ]);
        return h(
            "p",
            { class: "step-note", dir: "auto" },
            `Step t = ${step + 1} of ${steps} reads `,
            h("b", {}, shown(tokens[place])),
            says[place] ? [" and should say ", h("b", {}, shown(says[place]))] : "",
            ". Before it the unit stood at ",
            states,
            ".",
        );
    }

    card(line) {
        const drawing = lineDrawing(line, { chosen: this.termOf(line), onTerm: (term) => this.openTerm(line, term) });
        return h("div", { class: "equation-card" }, drawing, line.does ? h("p", { class: "hint" }, line.does) : null);
    }

    drawControls(seen) {
        const { lines, order, step, steps } = this.found;
        const { view } = this;
        const to = (next) => view.pick(view.chosenUnit, order[next]);
        const reveal = (count) => {
            view.page.set({ lines: count >= lines.length ? null : count });
            this.draw();
            this.controls.querySelector(`button[data-act="more"]`)?.focus();
        };
        const made = (words, act, disabled, name) => {
            const node = button(words, act);
            node.disabled = disabled;
            node.dataset.act = name;
            return node;
        };
        refill(
            this.controls,
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
            const { order, step, steps } = this.found;
            if (step + 1 >= steps) this.stop();
            else this.view.pick(this.view.chosenUnit, order[step + 1]);
        }, PACE);
        this.draw();
    }

    stop() {
        clearInterval(this.playing);
        this.playing = null;
        if (this.found && !this.view.page.signal.aborted) this.draw();
    }

    // --- one product, and what it adds up ---

    /** Which of a line's terms is open, or null. */
    termOf(line) {
        const [name, term] = (this.view.get("term") ?? "").split(".");
        return name === line.name ? Number(term) : null;
    }

    openTerm(line, term) {
        const key = `${line.name}.${term}`;
        this.view.page.set({ term: this.view.get("term") === key ? null : key });
        this.draw();
        if (this.term.element.isConnected) this.term.element.scrollIntoView({ block: "nearest" });
    }

    drawTerm() {
        const line = this.found.lines.find((one) => this.termOf(one) !== null);
        const term = line?.terms[this.termOf(line)];
        present(this.term.element, term?.summands.length, this.picture.element);
        if (!this.term.element.isConnected) return;
        const whose = term.vector === "x_t" ? "the input vector" : "what the units said one step before";
        fill(this.term.body, summandBars(term));
        this.term.say(
            `${term.symbol.replaceAll("_{t-1}", "ₜ₋₁").replaceAll("_t", "ₜ")} adds up ${term.length} products`,
            `Each is one weight of unit ${this.found.unit} times one number of ${whose}. The ${term.summands.length} largest are shown, by size.`,
        );
        this.term.table(() => termTable(term));
    }
}
