// Vectors: words, tokens or texts as points of a plane; who is near whom; and what stands to c as b stands to a.

import { h, fill, number, say, calmly } from "../lib/dom.js";
import { button, controls, runPicker, segmented, select, slider, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { scatter, valueOf } from "../lib/scatter.js";

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
const TYPED = { dir: "auto", autocomplete: "off", spellcheck: "false", maxlength: 200 };
const FOUND = 60; // names in the list of what a search found
const NOTES = {
    pca:
        "The two directions along which the unit vectors v/‖v‖ differ most. Distances are true as far as two of many " +
        "directions can show.",
    tsne:
        "t-SNE of the first 50 principal components. Who is near is near; how far apart groups are, and how large, " +
        "means nothing.",
};

export async function show(page) {
    const run = page.chosen();
    const view = new VectorsPage(page, run);
    fill(page.root, view.bar, view.own, view.stage);
    await view.load();
}

class VectorsPage {
    constructor(page, run) {
        Object.assign(this, { page, run, answer: null, stop: null, left: false, asked: null });
        this.bar = h("div");
        this.own = h("div");
        this.figure = figure({ name: "vectors", title: "" });
        this.progress = h("p", { class: "tsne-progress", role: "status", hidden: true });
        this.plot = scatter({
            signal: page.signal,
            label: "Points; the search beside them lists their names",
            view: viewOf(page.params.get("at")),
            onPick: (i) => this.choose(i === null ? null : this.answer.names[i]),
            onView: (view) => page.set({ at: addressOf(view) }),
            onOnly: (group) => page.set({ only: group }),
        });
        this.plot.frame.append(this.tools());
        this.figure.body.append(this.plot.element);
        this.figure.element.append(this.progress);
        this.side = h("div", { class: "vectors-side" }, this.search(), this.nearest(), this.analogies());
        this.stage = h("div", { class: "vectors-stage" }, this.figure.element, this.side);
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
        this.stop?.abort();
        this.stop = new AbortController();
        this.stage.classList.add("busy");
        this.waiting(`Reading the vectors of ${this.run.name} …`);
        try {
            this.answer = await this.page.ask("vectors", this.question({ count: this.count }));
        } catch (error) {
            return await this.mend(error);
        } finally {
            this.stage.classList.remove("busy");
            this.waiting(null);
        }
        if (this.left) return;
        this.page.fine();
        this.controls();
        this.side.lastChild.hidden = this.answer.kind === "sentences";
        this.draw(this.answer.points);
        const only = this.param("only", null);
        this.plot.update({ only: only === null ? null : Number(only) });
        await Promise.all([this.follow(), this.again()]);
    }

    /** No picture, but all that can be turned, so that what was asked can be mended: texts of one's own, above all. */
    async mend(error) {
        if (this.left || error.name === "AbortError") return;
        this.stage.hidden = true;
        const kind = this.param("lines", null) === null ? null : "sentences";
        this.answer = await this.page.ask("vectors", { run: this.run.id, kind, count: 4 }).catch(() => null);
        if (this.left) return;
        if (this.answer) this.controls();
        else fill(this.bar, controls(this.picker()));
        this.page.fail(error);
    }

    /** Other points take the place of these: nobody waits for their picture any more. */
    leave() {
        this.left = true;
        this.stop?.abort();
    }

    /** What was chosen before: a word and its neighbours, or an analogy. */
    async again() {
        const [find, a, b, c] = ["find", "a", "b", "c"].map((name) => this.param(name, null));
        if (a && b && c) await this.solve(a, b, c);
        else if (find) await this.choose(find);
    }

    /** Other points in the place of these. */
    ask(changes) {
        this.leave();
        this.page.set({ ...changes, at: null });
        show(this.page).catch((error) => this.page.fail(error));
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
        fill(
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
        fill(this.own, answer.kind === "sentences" && this.ownLines(ask));
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
        this.table(this.shown);
    }

    draw(points) {
        const { answer } = this;
        this.plot.update({ names: answer.names, points, colouring: this.colouring, marked: new Map(), arrows: [] });
        this.table(points);
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

    table(points) {
        const { answer } = this;
        this.shown = points;
        this.figure.table(() => ({
            columns: [KINDS[answer.kind], "x", "y", this.colouring.title],
            rows: answer.names.map((name, i) => [name, points[2 * i], points[2 * i + 1], valueOf(this.colouring, i)]),
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
            for await (const { step, of, points } of this.page.stream("vectors/tsne", question, mine.signal)) {
                this.plot.update({ points });
                this.waiting(step < of ? `t-SNE, step ${step} of ${of}` : null, step / of);
                if (step === of) this.table(points);
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

    // --- beside the points ---

    search() {
        this.found = h("ul", { class: "names", "aria-label": "Found" });
        this.searchBox = h("input", { type: "search", id: "vectors-search", ...TYPED, oninput: () => this.find() });
        this.searchBox.addEventListener("keydown", (event) => {
            if (event.key === "Enter" && this.searchBox.value.trim()) this.choose(this.best());
        });
        const label = h("label", { class: "panel-title", for: "vectors-search" }, "Search");
        return h("section", { class: "panel" }, label, this.searchBox, this.found);
    }

    matches() {
        const wanted = this.searchBox.value.trim().toLowerCase();
        if (!wanted) return [];
        const rank = (name) => (name.trim() === wanted ? 0 : name.trim().startsWith(wanted) ? 1 : 2);
        const all = this.answer.names.map((name, i) => [name, i, name.toLowerCase()]);
        return all.filter(([, , name]) => name.includes(wanted)).sort((one, other) => rank(one[2]) - rank(other[2]));
    }

    /** What is meant by what was typed: a name as it is, or else the first that was found. */
    best() {
        const typed = this.searchBox.value.trim();
        return this.answer.names.includes(typed) ? typed : (this.matches()[0]?.[0] ?? typed);
    }

    find() {
        const found = this.matches(),
            none = this.searchBox.value.trim() && !found.length;
        const hint = (words) => h("li", { class: "hint" }, words);
        fill(
            this.found,
            found.slice(0, FOUND).map(([name]) => h("li", {}, this.nameButton(name))),
            found.length > FOUND && hint(`and ${found.length - FOUND} more`),
            none && hint("None of the points shown. Enter asks the whole vocabulary."),
        );
        const marked = new Map(found.slice(0, FOUND).map(([, i]) => [i, "near"]));
        this.plot.update({ marked, arrows: [] });
        say(found.length ? `${found.length} found` : "");
    }

    nameButton(name, extra = null) {
        const look = { type: "button", class: "name", dir: "auto", onclick: () => this.choose(name) };
        return h("button", look, name, extra);
    }

    nearest() {
        const words = "Click a point or search for one: its nearest neighbours are listed here, by cosine.";
        this.near = h("div", {}, h("p", { class: "hint" }, words));
        return panel("near", "Nearest neighbours", this.near);
    }

    async choose(name) {
        const mine = (this.asked = {});
        this.page.set({ find: name, a: null, b: null, c: null });
        if (name === null) {
            this.plot.update({ marked: new Map(), arrows: [] });
            return fill(this.near, h("p", { class: "hint" }, "Nothing is chosen."));
        }
        try {
            const answer = await this.page.ask("vectors/near", this.question({ name, top: 10 }));
            if (this.asked !== mine) return; // something else was chosen since
            this.page.fine();
            const near = answer.near.map((one) => one.place);
            const marked = new Map([[answer.place, "chosen"], ...near.map((place) => [place, "near"])]);
            const arrows = near.map((place) => [answer.place, place, "thin"]);
            this.plot.update({ marked, arrows });
            if (this.has(answer.place)) this.plot.reveal(answer.place);
            fill(this.near, chosen(answer.name), this.bars(answer.near), this.closer([answer.place, ...near]));
            say(
                `Nearest to ${answer.name}: ${answer.near
                    .slice(0, 5)
                    .map((one) => one.name)
                    .join(", ")}`,
            );
        } catch (error) {
            if (this.asked === mine) this.refuse(error, this.near);
        }
    }

    /** A question about points that has no answer: said where the answer would stand; what was marked before is not. */
    refuse(error, place) {
        this.plot.update({ marked: new Map(), arrows: [] });
        this.page.fail(error, place);
    }

    closer(places) {
        const seen = places.filter((place) => this.has(place));
        return seen.length > 1 && button("Magnify these", () => this.plot.frameThese(seen));
    }

    has(place) {
        return place < this.answer.names.length;
    }

    bars(near) {
        const most = Math.max(1e-9, ...near.map((one) => one.cosine));
        return h(
            "ol",
            { class: "near" },
            near.map((one) => {
                const bar = h("span", { class: "bar" });
                bar.style.width = `${Math.max(0, (100 * one.cosine) / Math.max(most, 1e-9))}%`;
                const away = this.has(one.place) ? null : h("span", { class: "hint" }, " (not shown)");
                return h(
                    "li",
                    {},
                    this.nameButton(one.name, away),
                    h("span", { class: "cosine" }, number(one.cosine)),
                    h("span", { class: "track" }, bar),
                );
            }),
        );
    }

    analogies() {
        const words = "b − a + c: the word nearest to it stands to c as b stands to a.";
        const [a, b, c] = ["a", "b", "c"].map((name) =>
            h("input", {
                type: "text",
                "aria-label": name,
                placeholder: name,
                name,
                value: this.param(name, ""),
                ...TYPED,
            }),
        );
        this.solved = h("div", {}, h("p", { class: "hint" }, words));
        const submit = (event) => {
            event.preventDefault();
            const given = [a, b, c].map((box) => box.value.trim());
            if (given.every(Boolean)) this.solve(...given);
        };
        const form = h(
            "form",
            { class: "analogy", onsubmit: submit },
            a,
            h("span", {}, ":"),
            b,
            h("span", {}, "="),
            c,
            h("span", {}, ": ?"),
            h("button", { type: "submit" }, "Solve"),
        );
        return panel("analogy", "Analogy", form, this.solved);
    }

    async solve(a, b, c) {
        const mine = (this.asked = {});
        this.page.set({ a, b, c, find: null });
        try {
            const answer = await this.page.ask("vectors/analogy", this.question({ a, b, c, top: 6 }));
            if (this.asked !== mine) return;
            this.page.fine();
            const [from, to, second] = answer.places;
            const best = answer.near[0];
            const seen = [...answer.places, best.place].filter((place) => this.has(place));
            const marked = new Map(seen.map((place) => [place, place === best.place ? "chosen" : "near"]));
            const arrows = [
                [from, to],
                [second, best.place],
            ].filter((pair) => pair.every((place) => this.has(place)));
            this.plot.update({ marked, arrows });
            const [one, other, third] = answer.names;
            const solved = chosen(`${one} : ${other} = ${third} : ${best.name}`);
            fill(this.solved, solved, this.bars(answer.near), this.closer(seen));
            say(`${one} is to ${other} as ${third} is to ${best.name}`);
        } catch (error) {
            if (this.asked === mine) this.refuse(error, this.solved);
        }
    }
}

function panel(name, words, ...children) {
    const heading = h("h2", { class: "panel-title" }, words);
    return h("section", { class: "panel", dataset: { panel: name } }, heading, children);
}

function chosen(words) {
    return h("p", { class: "chosen", dir: "auto" }, words);
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
