// Self-attention: thumbnails of all heads, one enlarged head, and the entropy and distance of each head.

import { h, s, debounce, setChildren, formatNumber, updateChildren, announce } from "../lib/dom.js";
import { controls, examplesFor, runPicker, segmented, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { onThemeChange } from "../lib/colour.js";
import { headPlot } from "../lib/head_plot.js";
import { thumbnail } from "../lib/heatmap.js";
import {
    usesRootScale,
    capitalise,
    positiveParam,
    mapControls,
    mapFigure,
    mapRequest,
    outputLine,
    mapStyle,
} from "../lib/attention_map.js";

export const title = "Self-attention";
export const lead =
    "Each attention head computes weights α = softmax(q·k / √d) of every word over the words it can attend to. Each row " +
    "sums to 1. Select a head to enlarge it.";
export const needs =
    "This view needs a Transformer: a translator, denoiser, GPT, BERT or ELECTRA, or a classifier or tagger with a " +
    "Transformer encoder.";

const PARTS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" };
const CAPTIONS = {
    encoder: "Rows are queries, columns are keys. Each row sums to 1.",
    decoder:
        "Rows are queries, columns are keys. Each row sums to 1. The causal mask excludes the words above the diagonal, " +
        "which have not been read yet.",
    cross:
        "Rows are labelled with the predicted target word; its query comes from the word before it. Columns are keys: " +
        "source words. Each row sums to 1.",
};
const MAX_CACHED_MAPS = 48; // cached attention maps
const MANY_HEADS = 8; // heads per layer above which thumbnails get more room than the large map

export async function show(page) {
    const run = page.selectedRun();
    const text = page.params.get("text") ?? run.example ?? "";
    const view = new HeadsPage(page, run, text);
    setChildren(page.root, view.controls(), view.line, view.stage);
    await view.load();
}

class HeadsPage {
    constructor(page, run, text) {
        Object.assign(this, { page, run, text, answer: null, maps: new Map(), latestRequest: 0 });
        this.prefetch = debounce((layer, head) => this.map(layer, head), 60); // prefetch the hovered head
        this.line = h("div", { class: "heads-output answer" });
        this.partPicker = h("div");
        this.grid = figure({ name: "heads", title: "All heads" });
        this.statistics = figure({ name: "head-statistics", title: "Entropy and distance of each head" });
        this.large = mapFigure({ name: "head", size: () => this.room() });
        this.readout = h("p", { class: "readout head-readout", role: "status" });
        this.grid.element.append(this.readout);
        this.stage = h(
            "div",
            { class: "heads-stage" },
            h("div", { class: "heads-overview" }, this.grid.element, this.statistics.element),
            this.large.element,
        );
        onThemeChange(() => this.answer && this.stage.isConnected && this.drawAll(), page.signal);
    }

    controls() {
        const { page } = this;
        const other = (id) => {
            page.setParams({ run: id, part: null, layer: null, head: null, target: null });
            show(page).catch((error) => page.fail(error));
        };
        const read = (value) => {
            this.text = value;
            if (target) target.box.value = "";
            this.reload({ text: value, target: null });
        };
        const force = (value) => this.reload({ target: value });
        const target =
            this.run.task === "translate" &&
            textBox("Force this translation", page.params.get("target"), force, {
                button: "Force",
                placeholder: "output of the model",
            });
        const source = textBox("Text", this.text, read);
        return [
            controls(runPicker(page, { value: this.run.id, onchange: other }), source, target),
            examplesFor(this.run, source),
            controls(
                this.partPicker,
                ...mapControls(page, (name) => this.changed(name).catch((error) => page.fail(error))),
            ),
        ];
    }

    reload(changes) {
        this.page.setParams(changes);
        this.load().catch((error) => this.page.fail(error));
    }

    /** Redraw or reload after a change; the display style needs no request. */
    changed(name) {
        if (name === "shades") this.drawAll();
        return ["as", "shades"].includes(name) ? this.drawLarge() : this.load();
    }

    question() {
        const { page } = this;
        const [target, part] = ["target", "part"].map((name) => page.params.get(name));
        return { run: this.run.id, text: this.text, target, part, ...mapRequest(page) };
    }

    /** Load the thumbnails, then the enlarged map. */
    async load() {
        const requestId = ++this.latestRequest;
        this.maps.clear();
        this.stage.classList.add("busy");
        try {
            const answer = await this.page.request("heads", this.question());
            if (requestId !== this.latestRequest) return;
            this.answer = answer;
            this.page.clearError();
            this.drawAll();
            await this.drawLarge();
        } finally {
            if (requestId === this.latestRequest) this.stage.classList.remove("busy");
        }
    }

    get part() {
        return this.answer.parts.find((part) => part.name === this.answer.part);
    }

    /** The layer and head in the address, limited to those of the model. */
    chosen() {
        const { layers, heads, defaultLayer } = this.part;
        const layer = positiveParam(this.page, "layer") ?? defaultLayer;
        const head = this.page.params.get("head") === "mean" ? null : (positiveParam(this.page, "head") ?? 1);
        return { layer: Math.min(layer, layers), head: head === null ? null : Math.min(head, heads) };
    }

    pick(layer, head) {
        this.page.setParams({ layer, head: head ?? "mean" });
        this.markChosen();
        this.drawLarge().catch((error) => this.page.fail(error));
    }

    // --- all heads ----------------------------------------------------------------------------------------------

    drawAll() {
        setChildren(this.line, outputLine(this.answer));
        const parts = this.answer.parts.map(({ name }) => [name, PARTS[name]]);
        const change = (part) => this.reload({ part, layer: null, head: null });
        updateChildren(this.partPicker, parts.length > 1 ? segmented("Part", parts, this.answer.part, change) : null);
        this.drawGrid();
        this.drawHabits();
        this.markChosen();
    }

    drawGrid() {
        const { layers, heads, title: name } = this.part;
        const { shape, data, high } = this.answer.arrays.grid; // (layers, heads and their mean, rows, columns)
        const cells = shape[2] * shape[3];
        this.stage.classList.toggle("many", heads > MANY_HEADS);
        const room = (this.grid.body.clientWidth || 480) - 78;
        const size = Math.max(24, Math.min(96, Math.floor(room / (heads + 1)) - 6));
        const root = usesRootScale(this.page, this.answer);
        this.radios = new Map();
        const rows = Array.from({ length: layers }, (_, layer) => [
            label(`layer ${layer + 1}`, 58, size),
            ...Array.from({ length: heads + 1 }, (__, head) => {
                const begin = (layer * (heads + 1) + head) * cells;
                const canvas = thumbnail(data.subarray(begin, begin + cells), shape[2], shape[3], { high, root });
                return this.radio(layer + 1, head === heads ? null : head + 1, canvas, size);
            }),
        ]);
        const headLabel = (head) => (heads > 6 ? `${head}` : `head ${head}`);
        const names = Array.from({ length: heads }, (_, head) => label(headLabel(head + 1), size, 20));
        const all = h(
            "div",
            { class: "heads-grid", role: "radiogroup", "aria-label": `Heads of ${name}` },
            label("", 58, 20),
            names,
            label("mean", size, 20),
            rows,
        );
        all.style.gridTemplateColumns = `repeat(${heads + 2}, max-content)`;
        setChildren(this.grid.body, all);
        const how = root ? " (√ scale)" : "";
        const scale = `All heads share one colour scale from 0 to ${formatNumber(high, 2)}, the largest weight${how}.`;
        this.grid.setText(capitalise(name), scale);
        this.grid.table(() => this.statisticsTable());
        const { part, rows: down, columns: across } = this.answer;
        this.grid.element.dataset.shown = `${part} ${layers}×${heads} of ${down.length}×${across.length}`;
    }

    radio(layer, head, canvas, size) {
        const ratio = Math.min(2, Math.max(0.5, canvas.width / canvas.height));
        canvas.style.width = `${Math.round(size * Math.min(1, ratio))}px`;
        canvas.style.height = `${Math.round(size / Math.max(1, ratio))}px`;
        const node = h(
            "button",
            {
                type: "button",
                role: "radio",
                class: "head-thumb",
                tabindex: "-1",
                "aria-checked": "false",
                "aria-label": this.words(layer, head),
                onclick: () => this.pick(layer, head),
                onpointerenter: () => {
                    this.tell(layer, head);
                    this.prefetch(layer, head);
                },
                onpointerleave: () => this.tell(),
                onkeydown: (event) => this.moveKey(event, layer, head),
            },
            canvas,
        );
        this.radios.set(`${layer} ${head}`, node);
        return node;
    }

    moveKey(event, layer, head) {
        const { layers, heads } = this.part;
        const column = head ?? heads + 1;
        const target = {
            ArrowRight: [layer, column + 1],
            ArrowLeft: [layer, column - 1],
            ArrowDown: [layer + 1, column],
            ArrowUp: [layer - 1, column],
            Home: [layer, 1],
            End: [layer, heads + 1],
        }[event.key];
        if (!target) return;
        event.preventDefault();
        const clamp = (value, most) => Math.min(Math.max(value, 1), most);
        const [toLayer, toColumn] = [clamp(target[0], layers), clamp(target[1], heads + 1)];
        const to = toColumn === heads + 1 ? null : toColumn;
        this.pick(toLayer, to);
        this.radios.get(`${toLayer} ${to}`).focus();
        announce(this.words(toLayer, to));
    }

    markChosen() {
        const { layer, head } = this.chosen();
        for (const [name, node] of this.radios) {
            const isChosen = name === `${layer} ${head}`;
            node.setAttribute("aria-checked", String(isChosen));
            node.tabIndex = isChosen ? 0 : -1;
        }
        for (const dot of this.statistics.body.querySelectorAll(".head-dot")) {
            dot.classList.toggle("chosen", dot.dataset.head === `${layer} ${head}`);
        }
        this.tell();
    }

    tell(layer, head) {
        const selected = layer === undefined ? this.chosen() : { layer, head };
        this.readout.textContent = this.words(selected.layer, selected.head);
    }

    words(layer, head) {
        if (head === null) return `layer ${layer}, mean over its ${this.part.heads} heads`;
        const { entropy, distance, end } = this.answer.statistics[(layer - 1) * this.part.heads + head - 1];
        const does = `entropy ${formatNumber(entropy, 2)} bits, distance ${formatNumber(distance, 2)}`;
        return `layer ${layer}, head ${head}: ${does}, ${Math.round(100 * end)} % on ${this.answer.endName}`;
    }

    // --- statistics of the heads --------------------------------------------------------------------------------------

    drawHabits() {
        const { statistics, endName, part } = this.answer;
        const from = part === "cross" ? "the corresponding source position" : "the query";
        setChildren(
            this.statistics.body,
            headPlot(statistics, this.part, {
                onPick: ({ layer, head }) => this.pick(layer, head),
                onHover: (item) => this.tell(item?.layer, item?.head),
            }),
        );
        this.statistics.setText(
            undefined,
            "Entropy −Σ α log₂ α: 0 bits if all weight is on one token, 1 bit for two equal weights, 2 bits for four. " +
                `Distance: the mean number of tokens between a key and ${from}, weighted by α. ` +
                `Both are means over all rows, including ${endName}.`,
        );
        this.statistics.table(() => this.statisticsTable());
    }

    statisticsTable() {
        const { statistics, endName } = this.answer;
        return {
            columns: ["layer", "head", "entropy (bits)", "distance (tokens)", `weight on ${endName}`],
            rows: statistics.map(({ layer, head, entropy, distance, end }) => [layer, head, entropy, distance, end]),
        };
    }

    // --- one head -----------------------------------------------------------------------------------------------

    room() {
        const width = this.large.body.clientWidth || 680;
        return [Math.max(360, Math.min(980, width - 4)), Math.max(420, Math.min(820, innerHeight - 420))];
    }

    async drawLarge() {
        const { layer, head } = this.chosen();
        const requestId = (this.current = `${layer} ${head}`);
        const { answer } = this;
        const attention = await this.map(layer, head);
        if (this.current !== requestId || this.answer !== answer) return;
        const { rows, columns, axes } = answer;
        const headName = head === null ? `mean over ${this.part.heads} heads` : `head ${head}`;
        this.large.show({
            title: `${PARTS[answer.part]}: layer ${layer}, ${headName}`,
            caption: CAPTIONS[answer.part],
            rows,
            columns,
            axes,
            values: attention.arrays.map.data,
            high: attention.arrays.map.high || 1,
            as: mapStyle(this.page),
            root: usesRootScale(this.page, answer),
        });
        this.large.element.dataset.shown = requestId;
        const later = globalThis.requestIdleCallback ?? setTimeout; // not supported by all browsers
        later(() => this.answer === answer && this.current === requestId && this.prepare(layer, head));
    }

    /** Prefetch the neighbouring heads, which arrow keys select. */
    prepare(layer, head) {
        const { layers, heads } = this.part;
        const neighbours =
            head === null
                ? []
                : [
                      [layer, head + 1],
                      [layer, head - 1],
                      [layer + 1, head],
                      [layer - 1, head],
                  ];
        for (const [down, across] of neighbours) {
            if (down >= 1 && down <= layers && across >= 1 && across <= heads) this.map(down, across);
        }
    }

    /** Request the map of a head, or return the cached promise. */
    map(layer, head) {
        const name = `${layer} ${head}`;
        if (!this.maps.has(name)) {
            const promise = this.page.request("heads/map", { ...this.question(), part: this.answer.part, layer, head });
            promise.catch(() => this.maps.delete(name));
            this.maps.set(name, promise);
            if (this.maps.size > MAX_CACHED_MAPS) this.maps.delete(this.maps.keys().next().value);
        }
        return this.maps.get(name);
    }
}

/** A label of the thumbnails, drawn as SVG so that it is exported. */
function label(words, width, height) {
    return s(
        "svg",
        { class: "heads-label", width, height, "aria-hidden": "true" },
        s("text", { x: width / 2, y: height / 2, "text-anchor": "middle", "dominant-baseline": "central" }, words),
    );
}
