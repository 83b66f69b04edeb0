// The side panel of the vectors view: search, nearest neighbours and analogies.

import { h, setChildren, formatNumber, announce } from "../lib/dom.js";
import { button } from "../lib/controls.js";

const INPUT_ATTRIBUTES = { dir: "auto", autocomplete: "off", spellcheck: "false", maxlength: 200 };
const MAX_RESULTS = 60; // maximum search results
const NEIGHBOURS_HINT = "Click a point or search for one to list its nearest neighbours by cosine similarity.";
const ANALOGY_HINT = "The solution is the word nearest to b − a + c.";

export class SidePanel {
    /** `view` is the VectorsPage with its data and plot. */
    constructor(view) {
        Object.assign(this, { view, page: view.page, plot: view.plot, latestRequest: null });
        this.analogy = this.analogies();
        this.element = h("div", { class: "vectors-side" }, this.search(), this.nearest(), this.analogy);
    }

    get names() {
        return this.view.answer.names;
    }

    has(place) {
        return place < this.names.length;
    }

    /** Restore the selection or analogy in the address. */
    async again() {
        const [find, a, b, c] = ["find", "a", "b", "c"].map((name) => this.view.param(name, null));
        this.latestRequest = null;
        this.analogy.hidden = this.view.answer.kind === "sentences";
        this.boxes.forEach((box, i) => (box.value = [a, b, c][i] ?? ""));
        setChildren(this.near, hint(NEIGHBOURS_HINT));
        setChildren(this.solved, hint(ANALOGY_HINT));
        this.list();
        if (a && b && c) await this.solve(a, b, c);
        else if (find) await this.choose(find);
    }

    // --- search ---

    search() {
        this.resultList = h("ul", { class: "names", "aria-label": "Search results" });
        this.searchBox = h("input", { type: "search", id: "vectors-search", ...INPUT_ATTRIBUTES, oninput: () => this.find() });
        this.searchBox.addEventListener("keydown", (event) => {
            if (event.key === "Enter" && this.searchBox.value.trim()) this.choose(this.best());
        });
        const label = h("label", { class: "panel-title", for: "vectors-search" }, "Search");
        return h("section", { class: "panel" }, label, this.searchBox, this.resultList);
    }

    matches() {
        const query = this.searchBox.value.trim().toLowerCase();
        if (!query) return [];
        const rank = (name) => (name.trim() === query ? 0 : name.trim().startsWith(query) ? 1 : 2);
        const all = this.names.map((name, i) => [name, i, name.toLowerCase()]);
        return all.filter(([, , name]) => name.includes(query)).sort((item, other) => rank(item[2]) - rank(other[2]));
    }

    /** The exact match of the search text, or the first result. */
    best() {
        const typed = this.searchBox.value.trim();
        return this.names.includes(typed) ? typed : (this.matches()[0]?.[0] ?? typed);
    }

    find() {
        const matches = this.list();
        const marked = new Map(matches.slice(0, MAX_RESULTS).map(([, i]) => [i, "near"]));
        this.plot.update({ marked, arrows: [] });
        announce(matches.length ? `${matches.length} found` : "");
    }

    list() {
        const matches = this.matches(),
            none = this.searchBox.value.trim() && !matches.length;
        const item = (words) => h("li", { class: "hint" }, words);
        setChildren(
            this.resultList,
            matches.slice(0, MAX_RESULTS).map(([name]) => h("li", {}, this.nameButton(name))),
            matches.length > MAX_RESULTS && item(`and ${matches.length - MAX_RESULTS} more`),
            none && item("No match among the points shown. Press Enter to search the full vocabulary."),
        );
        return matches;
    }

    nameButton(name, extra = null) {
        const attributes = { type: "button", class: "name", dir: "auto", onclick: () => this.choose(name) };
        return h("button", attributes, name, extra);
    }

    // --- nearest neighbours ---

    nearest() {
        this.near = h("div", {}, hint(NEIGHBOURS_HINT));
        return panel("near", "Nearest neighbours", this.near);
    }

    async choose(name) {
        const requestId = (this.latestRequest = {});
        this.page.setParams({ find: name, a: null, b: null, c: null });
        if (name === null) {
            this.plot.update({ marked: new Map(), arrows: [] });
            return setChildren(this.near, hint("No point is selected."));
        }
        try {
            const answer = await this.page.request("vectors/near", this.view.question({ name, top: 10 }));
            if (this.latestRequest !== requestId) return; // superseded by a newer request
            this.page.clearError();
            const near = answer.near.map((item) => item.index);
            const marked = new Map([[answer.index, "chosen"], ...near.map((place) => [place, "near"])]);
            const arrows = near.map((place) => [answer.index, place, "thin"]);
            this.plot.update({ marked, arrows });
            if (this.has(answer.index)) this.plot.reveal(answer.index);
            setChildren(this.near, chosen(answer.name), this.bars(answer.near), this.zoomButton([answer.index, ...near]));
            const first = answer.near.slice(0, 5).map((item) => item.name);
            announce(`Nearest to ${answer.name}: ${first.join(", ")}`);
        } catch (error) {
            if (this.latestRequest === requestId) this.showError(error, this.near);
        }
    }

    /** Show an error in the panel and clear the marks. */
    showError(error, place) {
        this.plot.update({ marked: new Map(), arrows: [] });
        this.page.fail(error, place);
    }

    zoomButton(places) {
        const visible = places.filter((place) => this.has(place));
        return visible.length > 1 && button("Zoom to these", () => this.plot.frameThese(visible));
    }

    bars(near) {
        const maximum = Math.max(1e-9, ...near.map((item) => item.cosine));
        return h(
            "ol",
            { class: "near" },
            near.map((item) => {
                const bar = h("span", { class: "bar" });
                bar.style.width = `${Math.max(0, (100 * item.cosine) / maximum)}%`;
                const away = this.has(item.index) ? null : h("span", { class: "hint" }, " (not shown)");
                return h(
                    "li",
                    {},
                    this.nameButton(item.name, away),
                    h("span", { class: "cosine" }, formatNumber(item.cosine)),
                    h("span", { class: "track" }, bar),
                );
            }),
        );
    }

    // --- analogies ---

    analogies() {
        this.boxes = ["a", "b", "c"].map((name) =>
            h("input", { type: "text", "aria-label": name, placeholder: name, name, ...INPUT_ATTRIBUTES }),
        );
        this.solved = h("div", {}, hint(ANALOGY_HINT));
        const submit = (event) => {
            event.preventDefault();
            const words = this.boxes.map((box) => box.value.trim());
            if (words.every(Boolean)) this.solve(...words);
        };
        const [a, b, c] = this.boxes;
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
        const requestId = (this.latestRequest = {});
        this.page.setParams({ a, b, c, find: null });
        try {
            const answer = await this.page.request("vectors/analogy", this.view.question({ a, b, c, top: 6 }));
            if (this.latestRequest !== requestId) return;
            this.page.clearError();
            const [from, to, second] = answer.indices;
            const best = answer.near[0];
            const visible = [...answer.indices, best.index].filter((place) => this.has(place));
            const marked = new Map(visible.map((place) => [place, place === best.index ? "chosen" : "near"]));
            const arrows = [
                [from, to],
                [second, best.index],
            ].filter((pair) => pair.every((place) => this.has(place)));
            this.plot.update({ marked, arrows });
            const [item, other, third] = answer.names;
            const solved = chosen(`${item} : ${other} = ${third} : ${best.name}`);
            setChildren(this.solved, solved, this.bars(answer.near), this.zoomButton(visible));
            announce(`${item} is to ${other} as ${third} is to ${best.name}`);
        } catch (error) {
            if (this.latestRequest === requestId) this.showError(error, this.solved);
        }
    }
}

function panel(name, words, ...children) {
    const heading = h("h2", { class: "panel-title" }, words);
    return h("section", { class: "panel", dataset: { panel: name } }, heading, children);
}

const hint = (words) => h("p", { class: "hint" }, words);
const chosen = (words) => h("p", { class: "chosen", dir: "auto" }, words);
