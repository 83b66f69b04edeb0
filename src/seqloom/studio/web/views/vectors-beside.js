// Beside the points: a search, who is near whom, and what stands to c as b stands to a.

import { h, fill, number, say } from "../lib/dom.js";
import { button } from "../lib/controls.js";

const TYPED = { dir: "auto", autocomplete: "off", spellcheck: "false", maxlength: 200 };
const FOUND = 60; // names in the list of what a search found
const UNCHOSEN = "Click a point or search for one: its nearest neighbours are listed here, by cosine.";
const UNSOLVED = "b − a + c: the word nearest to it stands to c as b stands to a.";

export class Beside {
    /** `view` is the page of the points: its answer, its picture, and how to ask. */
    constructor(view) {
        Object.assign(this, { view, page: view.page, plot: view.plot, asked: null });
        this.analogy = this.analogies();
        this.element = h("div", { class: "vectors-side" }, this.search(), this.nearest(), this.analogy);
    }

    get names() {
        return this.view.answer.names;
    }

    has(place) {
        return place < this.names.length;
    }

    /** What the address says of other points: a word and its neighbours, an analogy, or nothing. */
    async again() {
        const [find, a, b, c] = ["find", "a", "b", "c"].map((name) => this.view.param(name, null));
        this.asked = null;
        this.analogy.hidden = this.view.answer.kind === "sentences";
        this.boxes.forEach((box, i) => (box.value = [a, b, c][i] ?? ""));
        fill(this.near, hint(UNCHOSEN));
        fill(this.solved, hint(UNSOLVED));
        this.list();
        if (a && b && c) await this.solve(a, b, c);
        else if (find) await this.choose(find);
    }

    // --- search ---

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
        const all = this.names.map((name, i) => [name, i, name.toLowerCase()]);
        return all.filter(([, , name]) => name.includes(wanted)).sort((one, other) => rank(one[2]) - rank(other[2]));
    }

    /** What is meant by what was typed: a name as it is, or else the first that was found. */
    best() {
        const typed = this.searchBox.value.trim();
        return this.names.includes(typed) ? typed : (this.matches()[0]?.[0] ?? typed);
    }

    find() {
        const found = this.list();
        const marked = new Map(found.slice(0, FOUND).map(([, i]) => [i, "near"]));
        this.plot.update({ marked, arrows: [] });
        say(found.length ? `${found.length} found` : "");
    }

    list() {
        const found = this.matches(),
            none = this.searchBox.value.trim() && !found.length;
        const item = (words) => h("li", { class: "hint" }, words);
        fill(
            this.found,
            found.slice(0, FOUND).map(([name]) => h("li", {}, this.nameButton(name))),
            found.length > FOUND && item(`and ${found.length - FOUND} more`),
            none && item("None of the points shown. Enter asks the whole vocabulary."),
        );
        return found;
    }

    nameButton(name, extra = null) {
        const look = { type: "button", class: "name", dir: "auto", onclick: () => this.choose(name) };
        return h("button", look, name, extra);
    }

    // --- nearest neighbours ---

    nearest() {
        this.near = h("div", {}, hint(UNCHOSEN));
        return panel("near", "Nearest neighbours", this.near);
    }

    async choose(name) {
        const mine = (this.asked = {});
        this.page.set({ find: name, a: null, b: null, c: null });
        if (name === null) {
            this.plot.update({ marked: new Map(), arrows: [] });
            return fill(this.near, hint("Nothing is chosen."));
        }
        try {
            const answer = await this.page.ask("vectors/near", this.view.question({ name, top: 10 }));
            if (this.asked !== mine) return; // something else was chosen since
            this.page.fine();
            const near = answer.near.map((one) => one.place);
            const marked = new Map([[answer.place, "chosen"], ...near.map((place) => [place, "near"])]);
            const arrows = near.map((place) => [answer.place, place, "thin"]);
            this.plot.update({ marked, arrows });
            if (this.has(answer.place)) this.plot.reveal(answer.place);
            fill(this.near, chosen(answer.name), this.bars(answer.near), this.closer([answer.place, ...near]));
            const first = answer.near.slice(0, 5).map((one) => one.name);
            say(`Nearest to ${answer.name}: ${first.join(", ")}`);
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

    bars(near) {
        const most = Math.max(1e-9, ...near.map((one) => one.cosine));
        return h(
            "ol",
            { class: "near" },
            near.map((one) => {
                const bar = h("span", { class: "bar" });
                bar.style.width = `${Math.max(0, (100 * one.cosine) / most)}%`;
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

    // --- analogies ---

    analogies() {
        this.boxes = ["a", "b", "c"].map((name) =>
            h("input", { type: "text", "aria-label": name, placeholder: name, name, ...TYPED }),
        );
        this.solved = h("div", {}, hint(UNSOLVED));
        const submit = (event) => {
            event.preventDefault();
            const given = this.boxes.map((box) => box.value.trim());
            if (given.every(Boolean)) this.solve(...given);
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
        const mine = (this.asked = {});
        this.page.set({ a, b, c, find: null });
        try {
            const answer = await this.page.ask("vectors/analogy", this.view.question({ a, b, c, top: 6 }));
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

const hint = (words) => h("p", { class: "hint" }, words);
const chosen = (words) => h("p", { class: "chosen", dir: "auto" }, words);
