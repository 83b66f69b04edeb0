// Vectors: words, tokens or texts as points of a plane; who is near whom; and what stands to c as b stands to a.

import { h, fill, number, refill, say, calmly } from "../lib/dom.js";
import { button, controls, runPicker, segmented, select, slider, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { scatter, valueOf } from "../lib/scatter.js";
import { Beside } from "./vectors-beside.js";

export const title = "Vectors";
export const lead =
    "A model knows words as vectors of many numbers. Here each vector is a point: what the model uses alike lies " +
    "together. PCA is a plain shadow of the vectors, t-SNE keeps the neighbours of each point and bends everything else.";
export const needs =
    "It takes a model that reads words, tokens or texts: word vectors, a language model, a translator, a tagger, " +
    "a classifier.";

const KINDS = { words: "Words", tokens: "Tokens", sentences: "Texts" };
const COUNTS = [500, 1000, 2000, 5000, 10000, 20000];
const TSNE_MOST = 10000;
const UNASKED = { find: null, a: null, b: null, c: null }; // nothing is chosen, no analogy
const OTHERS = { ...UNASKED, only: null, colour: null }; // what does not hold for other points
const NOTES = {
    pca:
        "The two directions along which the unit vectors v/‖v‖ differ most. Distances are true as far as two of many " +
        "directions can show.",
    tsne:
        "t-SNE of the first 50 principal components. Who is near is near; how far apart groups are, and how large, " +
        "means nothing.",
};

export async function show(page) {
    const view = new VectorsPage(page);
    fill(page.root, view.bar, view.own, view.stage);
    await view.load();
}

class VectorsPage {
    constructor(page) {
        Object.assign(this, { page, run: page.chosen(), answer: null, stop: null, loading: null });
        this.bar = h("div");
        this.own = h("div");
        this.figure = figure({ name: "vectors", title: "" });
        this.progress = h("p", { class: "tsne-progress", role: "status", hidden: true });
        this.plot = scatter({
            signal: page.signal,
            label: "Points; the search beside them lists their names",
            view: viewOf(page.params.get("at")),
            onPick: (i) => this.beside.choose(i === null ? null : this.answer.names[i]),
            onView: (view) => page.set({ at: addressOf(view) }),
            onOnly: (group) => page.set({ only: group }),
        });
        this.plot.frame.append(this.tools());
        this.figure.body.append(this.plot.element);
        this.figure.element.append(this.progress);
        this.beside = new Beside(this);
        this.stage = h("div", { class: "vectors-stage" }, this.figure.element, this.beside.element);
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
        const wanted = Number(this.param("n", 2000));
        const most = this.map === "tsne" ? TSNE_MOST : COUNTS.at(-1);
        return Math.min(Math.max(Number.isFinite(wanted) ? Math.round(wanted) : 2000, 4), most);
    }

    async load() {
        const mine = (this.loading = {});
        this.stop?.abort();
        this.stage.classList.add("busy");
        this.waiting(`Reading the vectors of ${this.run.name} …`);
        try {
            const answer = await this.page.ask("vectors", this.question({ count: this.count }));
            if (this.loading !== mine) return; // other points were asked for since
            this.answer = answer;
        } catch (error) {
            return await this.mend(error, mine);
        } finally {
            if (this.loading === mine) {
                this.stage.classList.remove("busy");
                this.waiting(null);
            }
        }
        this.page.fine();
        this.stage.hidden = false;
        this.controls();
        this.draw(this.answer.points, this.answer.size);
        const only = this.param("only", null);
        this.plot.update({ only: only === null ? null : Number(only) });
        await Promise.all([this.follow(), this.beside.again()]);
    }

    /** No picture, but all that can be turned, so that what was asked can be mended: texts of one's own, above all. */
    async mend(error, mine) {
        if (this.loading !== mine || error.name === "AbortError") return;
        this.stage.hidden = true;
        const kind = this.param("lines", null) === null ? null : "sentences";
        const some = await this.page.ask("vectors", { run: this.run.id, kind, count: 4 }).catch(() => null);
        if (this.loading !== mine) return;
        this.answer = some;
        if (some) this.controls();
        else refill(this.bar, controls(this.picker()));
        this.page.fail(error);
    }

    /** Other points in the place of these. */
    ask(changes) {
        this.page.set({ ...changes, at: null });
        this.run = this.page.chosen();
        this.plot.fit();
        this.load().catch((error) => this.page.fail(error));
    }

    picker() {
        return runPicker(this.page, {
            value: this.run.id,
            onchange: (id) => this.ask({ run: id, kind: null, ...OTHERS }),
        });
    }

    controls() {
        const { answer } = this;
        const ask = (changes) => this.ask(changes);
        const most = this.map === "tsne" ? Math.min(answer.total, TSNE_MOST) : answer.total;
        const counts = COUNTS.filter((count) => count < most).map((count) => [count, count.toLocaleString("en")]);
        counts.push([most, `all ${most.toLocaleString("en")}`]);
        const kinds = answer.kinds.map((kind) => [kind, KINDS[kind]]);
        const colours = answer.colourings.map((one) => [one.name, one.title]);
        refill(
            this.bar,
            controls(
                this.picker(),
                kinds.length > 1 && segmented("Vectors of", kinds, answer.kind, (kind) => ask({ kind, ...OTHERS })),
                segmented(
                    "As a plane by",
                    [
                        ["pca", "PCA"],
                        ["tsne", "t-SNE"],
                    ],
                    this.map,
                    (map) => ask({ map }),
                ),
                select("Points", counts, Math.min(this.count, most), (n) => ask({ n })),
                select("Colour", colours, this.colouring.name, (colour) => this.recolour(colour), "wide"),
                this.map === "tsne" && this.perplexitySlider(),
            ),
        );
        refill(this.own, answer.kind === "sentences" && this.ownLines(ask));
    }

    perplexitySlider() {
        const look = { min: 5, max: 100, step: 5, value: this.perplexity, format: String };
        return slider(
            "Perplexity (neighbours)",
            look,
            calmly((perplexity) => {
                this.page.set({ perplexity });
                this.follow().catch((error) => this.page.fail(error));
            }, 400),
        );
    }

    ownLines(ask) {
        const given = this.param("lines", null),
            look = { rows: 6, max: 6000, button: "Place them" };
        return h(
            "details",
            { class: "own-lines", open: given !== null },
            h("summary", {}, "Texts of your own, one a line"),
            textBox("Texts", given ?? "", (lines) => ask({ lines: lines.trim() || null, find: null }), look),
        );
    }

    get colouring() {
        const wanted = this.param("colour", null);
        return this.answer.colourings.find((one) => one.name === wanted) ?? this.answer.colourings[0];
    }

    get perplexity() {
        return Math.min(Math.max(Number(this.param("perplexity", 30)) || 30, 2), 100);
    }

    recolour(colour) {
        this.page.set({ colour, only: null });
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
        const many = count === total ? count : `The first ${count} of ${total}`;
        const what = answer.kind === "sentences" ? "texts" : answer.kind;
        const shares = answer.shares
            .slice(0, 2)
            .map((share) => `${number(100 * share, 1)} %`)
            .join(" and ");
        const held = this.map === "pca" ? ` These two hold ${shares} of the variance.` : "";
        const told = `${many} ${what}, vectors of ${answer.width} numbers. ${NOTES[this.map]}${held}`;
        this.figure.say(`${KINDS[answer.kind]} of ${this.run.name}`, told);
    }

    /** Points travel between −1 and 1; times their `size` they are what was computed. */
    table(points, size) {
        const { answer } = this;
        Object.assign(this, { points, size });
        const place = (i) => [size * points[2 * i], size * points[2 * i + 1]];
        this.figure.table(() => ({
            columns: [KINDS[answer.kind], "x", "y", this.colouring.title],
            rows: answer.names.map((name, i) => [name, ...place(i), valueOf(this.colouring, i)]),
        }));
    }

    /** t-SNE while it is made: the points walk from where PCA put them. */
    async follow() {
        if (this.map !== "tsne") return;
        this.stop?.abort();
        this.stop = new AbortController();
        const mine = this.stop;
        this.waiting("Looking for neighbours …");
        try {
            const question = this.question({ count: this.count, perplexity: this.perplexity });
            for await (const { step, of, points, size } of this.page.stream("vectors/tsne", question, mine.signal)) {
                this.plot.update({ points });
                this.waiting(step < of ? `t-SNE, step ${step} of ${of}` : null, step / of);
                if (step === of) this.table(points, size);
            }
            say("t-SNE is done.");
        } catch (error) {
            if (error.name !== "AbortError" && !mine.signal.aborted) throw error;
        } finally {
            if (this.stop === mine) this.waiting(null);
        }
    }

    waiting(words, share = 0) {
        this.progress.hidden = words === null;
        this.stage.dataset.state = words === null ? "done" : "moving";
        const bar = h("progress", { value: share || null, max: 1, "aria-label": words });
        if (words !== null) fill(this.progress, bar, words);
    }

    tools() {
        return h(
            "div",
            { class: "scatter-tools", role: "group", "aria-label": "Move the picture" },
            button("+", () => this.plot.magnify(1.5), { title: "Magnify" }),
            button("−", () => this.plot.magnify(1 / 1.5), { title: "Make smaller" }),
            button("Fit", () => this.plot.fit(), { title: "Show all points" }),
        );
    }
}

/** Where the picture stands, for the address; nothing where all of it is seen. */
function addressOf({ x, y, zoom }) {
    return zoom === 1 && x === 0 && y === 0 ? null : [x, y, zoom].map((value) => value.toFixed(3)).join(",");
}

/** "0.1,−0.2,3" of the address as a view; nothing where it is none. */
function viewOf(text) {
    const [x, y, zoom] = (text ?? "").split(",").map(Number);
    return [x, y, zoom].every(Number.isFinite) && zoom > 0 ? { x, y, zoom: Math.min(zoom, 400) } : {};
}
