// Vectors: embeddings of words, tokens or texts as a scatter plot, with nearest neighbours and analogies.

import { h, setChildren, formatNumber, updateChildren, announce, debounce } from "../lib/dom.js";
import { button, controls, runPicker, segmented, select, slider, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { scatter, valueOf } from "../lib/scatter.js";
import { SidePanel } from "./vectors-side.js";

export const title = "Vectors";
export const lead =
    "Each point is the vector of a word, token or text; similar vectors lie close together. PCA is a linear projection. " +
    "t-SNE preserves the neighbours of each point, but not the distances between groups.";
export const needs =
    "This view needs a model with vectors of words, tokens or texts: word vectors, a language model, a translator, a " +
    "tagger or a classifier.";

const KINDS = { words: "Words", tokens: "Tokens", sentences: "Texts" };
const COUNTS = [500, 1000, 2000, 5000, 10000, 20000];
const MAX_TSNE_POINTS = 10000;
const NO_SELECTION = { find: null, a: null, b: null, c: null }; // no selection, no analogy
const RESET = { ...NO_SELECTION, only: null, colour: null }; // parameters that are invalid for other points
const CAPTIONS = {
    pca: "Projection of the unit vectors v/‖v‖ onto the first two principal components.",
    tsne:
        "t-SNE of the first 50 principal components. Neighbourhoods are meaningful; the sizes of groups and the " +
        "distances between them are not.",
};

export async function show(page) {
    const view = new VectorsPage(page);
    setChildren(page.root, view.bar, view.ownTexts, view.stage);
    await view.load();
}

class VectorsPage {
    constructor(page) {
        Object.assign(this, { page, run: page.selectedRun(), answer: null, stop: null, loading: null });
        this.bar = h("div");
        this.ownTexts = h("div");
        this.figure = figure({ name: "vectors", title: "" });
        this.progress = h("p", { class: "tsne-progress", role: "status", hidden: true });
        this.plot = scatter({
            signal: page.signal,
            label: "Scatter plot; the search lists the names of the points",
            view: viewOf(page.params.get("at")),
            onPick: (i) => this.sidePanel.choose(i === null ? null : this.answer.names[i]),
            onView: (view) => page.setParams({ at: addressOf(view) }),
            onOnly: (group) => page.setParams({ only: group }),
        });
        this.plot.frame.append(this.tools());
        this.figure.body.append(this.plot.element);
        this.figure.element.append(this.progress);
        this.sidePanel = new SidePanel(this);
        this.stage = h("div", { class: "vectors-stage" }, this.figure.element, this.sidePanel.element);
    }

    // --- the points ---

    param(name, otherwise) {
        return this.page.params.get(name) ?? otherwise;
    }

    question(more = {}) {
        const lines = this.param("lines", null);
        return { run: this.run.id, kind: this.param("kind", null), lines, ...more };
    }

    get map() {
        return this.param("map", "pca") === "tsne" ? "tsne" : "pca";
    }

    get count() {
        const value = Number(this.param("n", 2000));
        const maximum = this.map === "tsne" ? MAX_TSNE_POINTS : COUNTS.at(-1);
        return Math.min(Math.max(Number.isFinite(value) ? Math.round(value) : 2000, 4), maximum);
    }

    async load() {
        const requestId = (this.loading = {});
        this.stop?.abort();
        this.stage.classList.add("busy");
        this.waiting(`Loading the vectors of ${this.run.name} …`);
        try {
            const answer = await this.page.request("vectors", this.question({ count: this.count }));
            if (this.loading !== requestId) return; // superseded by a newer request
            this.answer = answer;
        } catch (error) {
            return await this.showInputs(error, requestId);
        } finally {
            if (this.loading === requestId) {
                this.stage.classList.remove("busy");
                this.waiting(null);
            }
        }
        this.page.clearError();
        this.stage.hidden = false;
        this.controls();
        this.draw(this.answer.points, this.answer.size);
        const only = this.param("only", null);
        this.plot.update({ only: only === null ? null : Number(only) });
        await Promise.all([this.follow(), this.sidePanel.again()]);
    }

    /** Hide the figure but show the controls, so that the input can be corrected. */
    async showInputs(error, requestId) {
        if (this.loading !== requestId || error.name === "AbortError") return;
        this.stage.hidden = true;
        const kind = this.param("lines", null) === null ? null : "sentences";
        const sample = await this.page.request("vectors", { run: this.run.id, kind, count: 4 }).catch(() => null);
        if (this.loading !== requestId) return;
        this.answer = sample;
        if (sample) this.controls();
        else updateChildren(this.bar, controls(this.picker()));
        this.page.fail(error);
    }

    /** Load other points. */
    reloadWith(changes) {
        this.page.setParams({ ...changes, at: null });
        this.run = this.page.selectedRun();
        this.plot.fit();
        this.load().catch((error) => this.page.fail(error));
    }

    picker() {
        return runPicker(this.page, {
            value: this.run.id,
            onchange: (id) => this.reloadWith({ run: id, kind: null, ...RESET }),
        });
    }

    controls() {
        const { answer } = this;
        const reloadWith = (changes) => this.reloadWith(changes);
        const maximum = this.map === "tsne" ? Math.min(answer.total, MAX_TSNE_POINTS) : answer.total;
        const counts = COUNTS.filter((count) => count < maximum).map((count) => [count, count.toLocaleString("en")]);
        counts.push([maximum, `all ${maximum.toLocaleString("en")}`]);
        const kinds = answer.kinds.map((kind) => [kind, KINDS[kind]]);
        const colours = answer.colourings.map((item) => [item.name, item.title]);
        updateChildren(
            this.bar,
            controls(
                this.picker(),
                kinds.length > 1 && segmented("Vectors of", kinds, answer.kind, (kind) => reloadWith({ kind, ...RESET })),
                segmented(
                    "Projection",
                    [
                        ["pca", "PCA"],
                        ["tsne", "t-SNE"],
                    ],
                    this.map,
                    (map) => reloadWith({ map }),
                ),
                select("Points", counts, Math.min(this.count, maximum), (n) => reloadWith({ n })),
                select("Colour", colours, this.colouring.name, (colour) => this.recolour(colour), "wide"),
                this.map === "tsne" && this.perplexitySlider(),
            ),
        );
        updateChildren(this.ownTexts, answer.kind === "sentences" && this.ownLines(reloadWith));
    }

    perplexitySlider() {
        const options = { min: 5, max: 100, step: 5, value: this.perplexity, format: String };
        return slider(
            "Perplexity",
            options,
            debounce((perplexity) => {
                this.page.setParams({ perplexity });
                this.follow().catch((error) => this.page.fail(error));
            }, 400),
        );
    }

    ownLines(reloadWith) {
        const textParam = this.param("lines", null),
            look = { rows: 6, max: 6000, button: "Project" };
        return h(
            "details",
            { class: "text-input", open: textParam !== null },
            h("summary", {}, "Use your own texts, one per line"),
            textBox("Texts", textParam ?? "", (lines) => reloadWith({ lines: lines.trim() || null, find: null }), look),
        );
    }

    get colouring() {
        const value = this.param("colour", null);
        return this.answer.colourings.find((item) => item.name === value) ?? this.answer.colourings[0];
    }

    get perplexity() {
        return Math.min(Math.max(Number(this.param("perplexity", 30)) || 30, 2), 100);
    }

    recolour(colour) {
        this.page.setParams({ colour, only: null });
        this.plot.update({ colouring: this.colouring, only: null });
        this.table(this.points, this.size);
    }

    draw(points, size) {
        const { answer } = this;
        this.plot.update({ names: answer.names, points, colouring: this.colouring, marked: new Map(), arrows: [] });
        this.table(points, size);
        this.words();
    }

    words() {
        const { answer } = this;
        const [count, total] = [answer.names.length, answer.total].map((value) => value.toLocaleString("en"));
        const countText = count === total ? count : `The first ${count} of ${total}`;
        const kindName = answer.kind === "sentences" ? "texts" : answer.kind;
        const explained = answer.explained
            .slice(0, 2)
            .map((fraction) => `${formatNumber(100 * fraction, 1)} %`)
            .join(" and ");
        const varianceNote = this.map === "pca" ? ` They explain ${explained} of the variance.` : "";
        const caption = `${countText} ${kindName}, ${answer.width} dimensions. ${CAPTIONS[this.map]}${varianceNote}`;
        this.figure.setText(`${KINDS[answer.kind]} of ${this.run.name}`, caption);
    }

    /** Points are scaled to −1 … 1; multiplied by `size` they are the projected coordinates. */
    table(points, size) {
        const { answer } = this;
        Object.assign(this, { points, size });
        const coordinates = (i) => [size * points[2 * i], size * points[2 * i + 1]];
        this.figure.table(() => ({
            columns: [KINDS[answer.kind], "x", "y", this.colouring.title],
            rows: answer.names.map((name, i) => [name, ...coordinates(i), valueOf(this.colouring, i)]),
        }));
    }

    /** Stream t-SNE: the points move from their PCA positions. */
    async follow() {
        if (this.map !== "tsne") return;
        this.stop?.abort();
        this.stop = new AbortController();
        const controller = this.stop;
        this.waiting("Computing neighbours …");
        try {
            const question = this.question({ count: this.count, perplexity: this.perplexity });
            for await (const { step, of, points, size } of this.page.stream("vectors/tsne", question, controller.signal)) {
                this.plot.update({ points });
                this.waiting(step < of ? `t-SNE, step ${step} of ${of}` : null, step / of);
                if (step === of) this.table(points, size);
            }
            announce("t-SNE finished.");
        } catch (error) {
            if (error.name !== "AbortError" && !controller.signal.aborted) throw error;
        } finally {
            if (this.stop === controller) this.waiting(null);
        }
    }

    waiting(words, fraction = 0) {
        this.progress.hidden = words === null;
        this.stage.dataset.state = words === null ? "done" : "moving";
        const bar = h("progress", { value: fraction || null, max: 1, "aria-label": words });
        if (words !== null) setChildren(this.progress, bar, words);
    }

    tools() {
        return h(
            "div",
            { class: "scatter-tools", role: "group", "aria-label": "Zoom" },
            button("+", () => this.plot.magnify(1.5), { title: "Zoom in" }),
            button("−", () => this.plot.magnify(1 / 1.5), { title: "Zoom out" }),
            button("Fit", () => this.plot.fit(), { title: "Show all points" }),
        );
    }
}

/** The view as an address parameter, or null for the default view. */
function addressOf({ x, y, zoom }) {
    return zoom === 1 && x === 0 && y === 0 ? null : [x, y, zoom].map((value) => value.toFixed(3)).join(",");
}

/** Parse a view such as "0.1,−0.2,3"; the result is empty if it is invalid. */
function viewOf(text) {
    const [x, y, zoom] = (text ?? "").split(",").map(Number);
    return [x, y, zoom].every(Number.isFinite) && zoom > 0 ? { x, y, zoom: Math.min(zoom, 400) } : {};
}
