// Alignment: attention weights of target words over source words, for one or two runs, or over a picture.

import { h, setChildren, updateChildren } from "../lib/dom.js";
import { button, controls, examplesFor, runPicker, select, textBox } from "../lib/controls.js";
import { onThemeChange } from "../lib/colour.js";
import { readsPictures, showPictures } from "../lib/picture_alignment.js";
import { usesRootScale, positiveParam, mapControls, mapFigure, mapRequest, outputLine, mapStyle } from "../lib/attention_map.js";

export const title = "Alignment";
export const lead =
    "A translator with attention computes weights α over the source words for each target word. Row t shows the weights " +
    "for target word t and sums to 1. Point at a word to highlight its row or column. A model that describes images " +
    "attends to the locations of a picture.";
export const needs =
    "This view needs a translator with attention, a Transformer that translates or denoises, or a model that describes " +
    "images.";

export async function show(page) {
    const run = page.selectedRun();
    if (readsPictures(run)) {
        const open = (id) => {
            page.setParams({ run: id, text: null, target: null });
            page.clearError();
            return show(page).catch((error) => page.fail(error));
        };
        return showPictures(page, run, open);
    }
    const readers = { ...page, runs: page.runs.filter((item) => !readsPictures(item)) };
    const text = page.params.get("text") ?? run.example ?? "";
    const other = readers.runs.find((item) => item.id === page.params.get("other"));
    const panels = [new Panel(page, run, text, ""), ...(other ? [new Panel(page, other, text, "2")] : [])];
    for (const panel of panels) panel.onHover = (row, column) => highlightOthers(panels, panel, column);
    const failed = (error) => page.fail(error);
    const reload = (changes) => {
        page.setParams(changes);
        show(page).catch(failed);
    };
    const force = (words) => {
        if (target) target.box.value = words ?? "";
        page.setParams({ target: words });
        load(page, panels, force).catch(failed);
    };
    const readText = (words) => {
        page.setParams({ text: words });
        for (const panel of panels) panel.text = words;
        force(null);
    };
    const changed = (name) => {
        if (["as", "shades"].includes(name)) panels.forEach((panel) => panel.answer && panel.draw());
        else load(page, panels, force).catch(failed);
    };
    const placeholder = "output of the model";
    const target =
        panels.some((panel) => panel.translates) &&
        textBox("Force this translation", page.params.get("target"), force, { button: "Force", placeholder });
    const source = textBox("Text", text, readText);
    setChildren(
        page.root,
        controls(
            runPicker(page, { value: run.id, onchange: (id) => reload({ run: id, layer: null, head: null }) }),
            runPicker(readers, {
                label: "Compare with",
                value: other?.id ?? "",
                empty: "none",
                onchange: (id) => reload({ other: id, layer2: null, head2: null }),
            }),
            source,
        ),
        examplesFor(run, source),
        h("div", { class: "alignment-controls" }, controls(target, ...mapControls(page, changed))),
        h(
            "div",
            { class: other ? "alignment-pair" : "alignment-one" },
            panels.map((panel) => panel.element),
        ),
    );
    onThemeChange(() => panels.forEach((panel) => panel.answer && panel.element.isConnected && panel.draw()), page.signal);
    await load(page, panels, force);
}

/** Load the maps of all panels. If the outputs differ, offer to force one of them for both runs. */
async function load(page, panels, force) {
    await Promise.all(panels.map((panel) => panel.load()));
    if (panels.some((panel) => !panel.answer)) return; // superseded by a newer request
    page.clearError();
    if (new Set(panels.map(({ answer }) => answer.text)).size > 1) panels.forEach((panel) => panel.offer(force));
}

/** Highlight the same source word in the other panels. */
function highlightOthers(panels, from, column) {
    for (const panel of panels) {
        if (panel === from || !panel.answer) continue;
        const isSameWord = column !== null && panel.answer.columns[column] === from.answer.columns[column];
        panel.figure.highlight(null, isSameWord ? column : null);
    }
}

class Panel {
    /** `mark` is the suffix of the address parameters: "" or "2". */
    constructor(page, run, text, mark) {
        Object.assign(this, { page, run, text, mark, answer: null, onHover: null });
        this.figure = mapFigure({
            name: `alignment${mark}`,
            size: () => this.room(),
            onHover: (row, column) => this.onHover?.(row, column),
        });
        this.line = h("div", { class: "answer" });
        this.which = h("div", { class: "alignment-selects" });
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
        return this.page.params.get(`head${this.mark}`) === "mean" ? null : positiveParam(this.page, `head${this.mark}`);
    }

    async load() {
        const { page, run, text } = this;
        const { target, head } = this;
        const layer = positiveParam(page, `layer${this.mark}`);
        const question = { run: run.id, text, target, layer, head, ...mapRequest(page) };
        const requestId = (this.latestRequest = JSON.stringify(question));
        this.element.classList.add("busy");
        try {
            const answer = await page.request("alignment", question);
            if (this.latestRequest !== requestId) return;
            this.answer = answer;
            setChildren(this.line, outputLine(answer));
            updateChildren(this.which, this.pickers());
            this.draw();
        } finally {
            if (this.latestRequest === requestId) this.element.classList.remove("busy");
        }
    }

    draw() {
        const { rows, columns, axes, arrays, layers, heads, layer, head } = this.answer;
        const headName = head === null ? `mean over ${heads} heads` : `head ${head}`;
        this.figure.show({
            title: layers ? `Layer ${layer}, ${headName}` : "Attention",
            rows,
            columns,
            values: arrays.map.data,
            high: arrays.map.high || 1,
            axes,
            as: mapStyle(this.page),
            root: usesRootScale(this.page, this.answer),
            caption: "Rows are target words, columns are source words. Each row sums to 1.",
        });
        this.figure.element.dataset.shown = this.latestRequest;
    }

    /** A button that forces the output of this run for both runs. */
    offer(force) {
        if (!this.translates || !this.answer.text.trim()) return;
        setChildren(
            this.line,
            outputLine(
                this.answer,
                button("Force this translation for both models", () => force(this.answer.text)),
            ),
        );
    }

    /** The menus for layer and head of a Transformer. */
    pickers() {
        const { layers, heads, layer, head } = this.answer;
        if (!layers) return null;
        const change = (name) => (value) => {
            this.page.setParams({ [`${name}${this.mark}`]: value });
            this.load().catch((error) => this.page.fail(error));
        };
        const count = (most, word) => Array.from({ length: most }, (_, i) => [String(i + 1), `${word} ${i + 1}`]);
        const headOptions = [["mean", "mean over heads"], ...count(heads, "head")];
        return [
            select("Layer", count(layers, "layer"), String(layer), change("layer")),
            select("Head", headOptions, head === null ? "mean" : String(head), change("head")),
        ];
    }

    room() {
        const width = this.figure.body.clientWidth || 600;
        return [Math.max(340, Math.min(980, width - 4)), Math.max(420, Math.min(820, innerHeight - 420))];
    }
}
