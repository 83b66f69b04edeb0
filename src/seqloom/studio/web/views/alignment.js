// Alignment: which words of the source a model looks at while it says each word of the translation; of two runs, too.

import { h, fill, refill } from "../lib/dom.js";
import { button, controls, examplesFor, runPicker, select, textBox } from "../lib/controls.js";
import { onTheme } from "../lib/colour.js";
import { byRoot, counted, lookControls, lookFigure, lookQuestion, sentenceLine, shownAs } from "../lib/looks.js";

export const title = "Alignment";
export const lead =
    "To say a word, a translator with attention looks back at the source: row t holds its weights α over the " +
    "source's words while it said word t, and sums to 1. Point at a word to light where it looked, or who looked at it.";
export const needs = "It takes a translator with attention, or a Transformer that translates or restores texts.";

export async function show(page) {
    const run = page.chosen();
    const text = page.params.get("text") ?? run.example ?? "";
    const other = page.runs.find((one) => one.id === page.params.get("other"));
    const panels = [new Panel(page, run, text, ""), ...(other ? [new Panel(page, other, text, "2")] : [])];
    for (const panel of panels) panel.beside = (row, column) => light(panels, panel, column);
    const failed = (error) => page.fail(error);
    const again = (changes) => {
        page.set(changes);
        show(page).catch(failed);
    };
    const say = (words) => {
        if (target) target.box.value = words ?? "";
        page.set({ target: words });
        load(page, panels, say).catch(failed);
    };
    const read = (words) => {
        page.set({ text: words });
        for (const panel of panels) panel.text = words;
        say(null);
    };
    const changed = (name) => {
        if (["as", "shades"].includes(name)) panels.forEach((panel) => panel.answer && panel.draw());
        else load(page, panels, say).catch(failed);
    };
    const placeholder = other ? "each model's own" : "the model's own";
    const target =
        panels.some((panel) => panel.translates) &&
        textBox("Translation", page.params.get("target"), say, { placeholder });
    const source = textBox("Text", text, read);
    fill(
        page.root,
        controls(
            runPicker(page, { value: run.id, onchange: (id) => again({ run: id, layer: null, head: null }) }),
            runPicker(page, {
                label: "Beside it",
                value: other?.id ?? "",
                empty: "no other run",
                onchange: (id) => again({ other: id, layer2: null, head2: null }),
            }),
            source,
        ),
        examplesFor(run, source),
        h("div", { class: "alignment-controls" }, controls(target, ...lookControls(page, changed))),
        h(
            "div",
            { class: other ? "alignment-pair" : "alignment-one" },
            panels.map((panel) => panel.element),
        ),
    );
    onTheme(() => panels.forEach((panel) => panel.answer && panel.element.isConnected && panel.draw()), page.signal);
    await load(page, panels, say);
}

/** Ask for every panel's map; where two runs say different things, offer to make both say the same. */
async function load(page, panels, say) {
    await Promise.all(panels.map((panel) => panel.load()));
    if (panels.some((panel) => !panel.answer)) return; // what was asked for since will come
    page.fine();
    if (new Set(panels.map(({ answer }) => answer.text)).size > 1) panels.forEach((panel) => panel.offer(say));
}

/** The same word of the source is lit in both, where both have it. */
function light(panels, from, column) {
    for (const panel of panels) {
        if (panel === from || !panel.answer) continue;
        const same = column !== null && panel.answer.columns[column] === from.answer.columns[column];
        panel.figure.light(null, same ? column : null);
    }
}

class Panel {
    /** `mark` tells the second run's parameters in the address from the first's. */
    constructor(page, run, text, mark) {
        Object.assign(this, { page, run, text, mark, answer: null, beside: null });
        this.figure = lookFigure({
            name: `alignment${mark}`,
            size: () => this.room(),
            onHover: (row, column) => this.beside?.(row, column),
        });
        this.line = h("div", { class: "answer" });
        this.which = h("div", { class: "alignment-which" });
        this.element = h(
            "section",
            { class: "alignment-panel", "aria-label": run.name, dataset: { run: run.id } },
            h(
                "div",
                { class: "alignment-head" },
                h("h2", { class: "alignment-run", dir: "auto" }, run.name),
                this.which,
            ),
            this.line,
            this.figure.element,
        );
    }

    get translates() {
        return this.run.task === "translate";
    }

    get target() {
        return this.translates ? this.page.params.get("target") : null;
    }

    get head() {
        return this.page.params.get(`head${this.mark}`) === "mean" ? null : counted(this.page, `head${this.mark}`);
    }

    async load() {
        const { page, run, text } = this;
        const { target, head } = this;
        const layer = counted(page, `layer${this.mark}`);
        const question = { run: run.id, text, target, layer, head, ...lookQuestion(page) };
        const mine = (this.asked = JSON.stringify(question));
        this.element.classList.add("busy");
        try {
            const answer = await page.ask("alignment", question);
            if (this.asked !== mine) return;
            this.answer = answer;
            fill(this.line, sentenceLine(answer));
            refill(this.which, this.pickers());
            this.draw();
        } finally {
            if (this.asked === mine) this.element.classList.remove("busy");
        }
    }

    draw() {
        const { rows, columns, sides, arrays, layers, heads, layer, head } = this.answer;
        const which = head === null ? `mean over ${heads} heads` : `head ${head}`;
        this.figure.show({
            title: layers ? `Layer ${layer}, ${which}` : "Attention",
            rows,
            columns,
            values: arrays.map.data,
            high: arrays.map.high || 1,
            sides,
            as: shownAs(this.page),
            root: byRoot(this.page, this.answer),
            caption: "Each row is the word that is produced there; it sums to 1. Each column is a word of the source.",
        });
        this.figure.element.dataset.shown = this.asked;
    }

    /** A button to make both runs say what this one says. */
    offer(say) {
        if (!this.translates || !this.answer.text.trim()) return;
        fill(
            this.line,
            sentenceLine(
                this.answer,
                button("Let both say this", () => say(this.answer.text)),
            ),
        );
    }

    /** A Transformer's layers and heads. */
    pickers() {
        const { layers, heads, layer, head } = this.answer;
        if (!layers) return null;
        const change = (name) => (value) => {
            this.page.set({ [`${name}${this.mark}`]: value });
            this.load().catch((error) => this.page.fail(error));
        };
        const count = (most, word) => Array.from({ length: most }, (_, i) => [String(i + 1), `${word} ${i + 1}`]);
        const every = [["mean", "mean over heads"], ...count(heads, "head")];
        return [
            select("Layer", count(layers, "layer"), String(layer), change("layer")),
            select("Head", every, head === null ? "mean" : String(head), change("head")),
        ];
    }

    room() {
        const wide = this.figure.body.clientWidth || 600;
        return [Math.max(340, Math.min(980, wide - 4)), Math.max(420, Math.min(820, innerHeight - 420))];
    }
}
