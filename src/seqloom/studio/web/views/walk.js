// How it works: one sentence on its way through a model, stage by stage. The address says where we stand.

import { h, fill, refill, say } from "../lib/dom.js";
import { button, controls, examplesFor, runPicker, select, textBox } from "../lib/controls.js";
import { showsMore } from "../lib/scrolls.js";
import { panelOf } from "../lib/walk_panels.js";

export const title = "How it works";
export const lead =
    "Walk with one sentence through a model, from the letters you type to its answer. Every number is the model’s own. Go on with Next, or with the arrow keys.";
export const needs = "It walks through language models, translators, taggers, classifiers, GPT and BERT.";
const NUMBERS = [
    ["8", "8"],
    ["16", "16"],
    ["32", "32"],
    ["64", "64"],
];

export async function show(page) {
    const walk = new Walk(page);
    addEventListener("keydown", (event) => walk.key(event), { signal: page.signal });
    await walk.load();
}

class Walk {
    constructor(page) {
        this.page = page;
        this.run = page.chosen().id;
        this.first = controls();
        this.second = controls();
        this.tries = h("div");
        this.typed = false; // whether somebody is typing a sentence that has not been sent yet
        this.rail = h("nav", { class: "walk-rail", "aria-label": "Stages" });
        this.more = showsMore(this.rail);
        this.stage = h("article", { class: "walk-stage", "aria-live": "off" });
        this.body = h("div", { class: "walk answer" }, this.rail, this.stage);
        for (const kind of ["click", "keydown"]) this.body.addEventListener(kind, (event) => this.wait(event), true);
        fill(page.root, this.first, this.tries, this.second, this.body);
    }

    number(name) {
        const value = Number(this.page.params.get(name));
        return Number.isInteger(value) && value > 0 ? value : null;
    }

    /** Ask for the walk that the address names, and show the stage it names. */
    async load() {
        const { page } = this;
        const mine = (this.asked = {});
        this.body.setAttribute("aria-busy", "true");
        try {
            const found = await page.ask("walk", {
                run: this.run,
                text: page.params.get("text"),
                target: page.params.get("target"),
                word: this.number("word"),
                step: this.number("step"),
                layer: this.number("layer") ?? 1,
                head: this.number("head") ?? 1,
                numbers: this.number("numbers") ?? 8,
            });
            if (this.asked !== mine) return; // another walk was asked for since
            this.found = found;
            page.fine();
            this.drawControls();
            this.draw();
            this.body.hidden = false;
        } catch (error) {
            if (this.asked !== mine) return;
            if (!this.found) this.drawControls();
            this.body.hidden = !this.found;
            page.fail(error);
        }
        this.body.removeAttribute("aria-busy");
    }

    /** While a walk is on its way, nothing happens in the one that stands there. */
    wait(event) {
        if (!this.loading || (event.type === "keydown" && !["Enter", " "].includes(event.key))) return;
        event.preventDefault();
        event.stopPropagation();
    }

    get loading() {
        return this.body.hasAttribute("aria-busy");
    }

    /** Change the address, then everything that hangs on it. */
    change(values) {
        this.page.set(values);
        return this.load();
    }

    drawControls() {
        const { page, found } = this;
        const text = found?.text ?? page.params.get("text") ?? "";
        if (this.box?.box !== document.activeElement || !this.typed) {
            this.typed = false;
            this.box = textBox("Sentence", text, (line) => this.submit(line), { button: "Walk" });
            this.box.box.addEventListener("input", () => {
                this.typed = true;
            });
        }
        const picker = runPicker(page, {
            value: this.run,
            onchange: (run) => {
                this.run = run;
                this.found = null;
                this.change({
                    run,
                    text: null,
                    target: null,
                    word: null,
                    step: null,
                    layer: null,
                    head: null,
                    stage: null,
                });
            },
        });
        refill(this.first, picker, this.box, page.run(this.run)?.task === "translate" && this.targetBox());
        fill(this.tries, examplesFor(page.run(this.run), this.box));
        refill(this.second, found ? this.choices() : null);
    }

    targetBox() {
        const send = (target) => this.change({ target, step: null });
        const look = { button: "Say", placeholder: "its own" };
        return textBox("Translation it is made to say", this.page.params.get("target") ?? "", send, look);
    }

    submit(line) {
        this.typed = false;
        return this.change({ text: line, target: null, word: null, step: null });
    }

    /** What is followed: a token, a step, a layer, a head. */
    choices() {
        const { found } = this;
        const counted = (count, name) =>
            Array.from({ length: count }, (_, i) => [i + 1, `${name} ${i + 1} of ${count}`]);
        const tokens = (list) => list.map((token, i) => [i + 1, `${i + 1}  ${token}`]);
        return [
            select("Follow this token", tokens(found.tokens), found.word, (word) => this.change({ word })),
            found.steps.length
                ? select("while this one is written", tokens(found.steps), found.step, (step) => this.change({ step }))
                : null,
            found.layers > 1
                ? select("Layer", counted(found.layers, "layer"), found.follow.layer, (layer) => this.change({ layer }))
                : null,
            found.heads > 1
                ? select("Head", counted(found.heads, "head"), found.follow.head, (head) => this.change({ head }))
                : null,
            select("Numbers of each vector", NUMBERS, found.follow.numbers, (numbers) => this.change({ numbers })),
        ].filter(Boolean);
    }

    get place() {
        const place = this.found.stages.findIndex((stage) => stage.key === this.page.params.get("stage"));
        return Math.max(0, place);
    }

    /** To another stage of the same walk. */
    go(place) {
        if (place < 0 || place >= this.found.stages.length) return;
        this.page.set({ stage: this.found.stages[place].key });
        this.draw();
        this.stage.scrollIntoView({ block: "start", behavior: "instant" });
        const stage = this.found.stages[place];
        say(`Stage ${place + 1} of ${this.found.stages.length}: ${stage.title}`);
    }

    /** Arrow keys walk, unless they belong to what has the focus. */
    key(event) {
        if (!this.found || this.loading || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
        if (event.target.closest?.("input, select, textarea, [role=application], .table-scroll")) return;
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        this.go(this.place + step);
    }

    draw() {
        const { found, place } = this;
        const stage = found.stages[place];
        refill(
            this.rail,
            chapters(found.stages).map(([chapter, stages]) =>
                h(
                    "section",
                    {},
                    h("h2", {}, chapter),
                    h(
                        "ol",
                        { start: stages[0][0] + 1 },
                        stages.map(([at, one]) => h("li", {}, this.stop(at, one, place))),
                    ),
                ),
            ),
        );
        this.rail.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
        this.more();
        const below = this.stage.querySelector(".walk-buttons")?.contains(document.activeElement);
        refill(this.stage, this.top(stage, place), this.words(stage), this.panels(stage), this.foot(stage, place));
        if (below) this.stage.querySelector(".walk-buttons .primary").focus({ preventScroll: true });
    }

    /** A stop of the way, with the shape of what leaves it. */
    stop(at, stage, place) {
        return h(
            "button",
            { type: "button", "aria-current": at === place ? "step" : null, onclick: () => this.go(at) },
            h("span", { class: "stop-title", dir: "auto" }, stage.title),
            h("span", { class: "stop-shape" }, stage.gives),
        );
    }

    top(stage, place) {
        const { found } = this;
        return h(
            "header",
            { class: "walk-top" },
            h("p", { class: "walk-where" }, `${stage.chapter} · stage ${place + 1} of ${found.stages.length}`),
            h("h2", { class: "walk-title", dir: "auto" }, stage.title),
            h(
                "div",
                { class: "walk-quick" },
                disabled(
                    button("← Back", () => this.go(place - 1), { title: "The stage before (arrow left)" }),
                    place === 0,
                ),
                disabled(
                    button("Next →", () => this.go(place + 1), { title: "The next stage (arrow right)" }),
                    place === found.stages.length - 1,
                ),
            ),
        );
    }

    words(stage) {
        return h(
            "div",
            { class: "walk-words" },
            h("p", { class: "walk-text", dir: "auto" }, stage.words),
            stage.takes
                ? h(
                      "div",
                      { class: "walk-shapes" },
                      h("span", {}, h("small", {}, "comes in"), stage.takes),
                      h("b", { "aria-hidden": "true" }, "→"),
                      h("span", {}, h("small", {}, "goes out"), stage.gives),
                      stage.equation
                          ? h("span", { class: "walk-equation" }, h("small", {}, "as a formula"), stage.equation)
                          : null,
                  )
                : null,
            stage.symbols.length
                ? h(
                      "div",
                      { class: "walk-symbols" },
                      h("p", {}, "In this formula"),
                      h(
                          "dl",
                          {},
                          stage.symbols.map(([symbol, words]) =>
                              h("div", {}, h("dt", {}, symbol), h("dd", { dir: "auto" }, words)),
                          ),
                      ),
                  )
                : null,
        );
    }

    panels(stage) {
        const { found } = this;
        const acts = {
            follow: stage.key === "tokens" ? (place) => this.change({ word: place + 1 }) : null,
            visit: (key) => this.go(found.stages.findIndex((one) => one.key === key)),
            step: (place) => this.change(found.steps.length ? { step: place + 1 } : { word: place + 1 }),
        };
        const vectors = stage.panels.some(
            (panel) => ["matrix", "sum", "dot", "mix"].includes(panel.kind) && panel.shares !== true,
        );
        const gates = stage.panels.some((panel) => panel.gates || Number.isInteger(panel.gate));
        return h(
            "div",
            { class: "walk-panels" },
            stage.panels.map((panel, i) => panelOf(panel, `walk-${stage.key}-${i + 1}`, acts)),
            vectors
                ? h(
                      "p",
                      { class: "hint" },
                      "Red numbers are above 0, blue ones below; the stronger the colour, the farther from 0.",
                      gates ? " Gates run from dark purple, closed, to yellow, open." : "",
                  )
                : null,
        );
    }

    foot(stage, place) {
        const { found, page } = this;
        const run = page.run(this.run);
        const links = stage.links.filter((link) => run?.views.includes(link.view));
        const last = place === found.stages.length - 1;
        return h(
            "footer",
            { class: "walk-foot" },
            links.length
                ? h(
                      "p",
                      {},
                      "Look closer: ",
                      links.map((link, i) => [
                          i ? " · " : "",
                          h(
                              "a",
                              { href: page.link(link.view, { run: this.run, text: found.text, ...link.parameters }) },
                              link.text,
                          ),
                      ]),
                  )
                : null,
            h(
                "div",
                { class: "walk-buttons" },
                place > 0 ? button("← Back", () => this.go(place - 1)) : null,
                last
                    ? this.onwards()
                    : button(`Next: ${found.stages[place + 1].title} →`, () => this.go(place + 1), { primary: true }),
            ),
            last ? h("p", { class: "hint" }, proof(found.difference)) : null,
        );
    }

    /** After the last stage: the same way with the next token. */
    onwards() {
        const { found } = this;
        const stages = found.stages.map((stage) => stage.key);
        const again = ["decoder-start", "memory", "text-queries", "window"].find((key) => stages.includes(key));
        const [name, now, count] = found.steps.length
            ? ["step", found.step, found.steps.length]
            : ["word", found.word, found.tokens.length];
        if (again && now >= count && found.onward) {
            return button(
                `Take “${found.answer}” and go on →`,
                () => this.change({ text: found.onward, word: null, stage: again }),
                { primary: true },
            );
        }
        if (!again || now >= count || stages.includes("told"))
            return button("Walk again from the beginning", () => this.go(0), { primary: true });
        return button(
            "On to the next token →",
            () => this.change({ [name]: now + 1, stage: again }).then(() => this.stage.scrollIntoView()),
            { primary: true },
        );
    }
}

function disabled(control, is) {
    control.disabled = is;
    return control;
}

/** How far what was computed step by step is from what the model says by itself. */
function proof(difference) {
    const apart = difference === 0 ? "not at all" : `by ${difference.toExponential(0)} at most`;
    return `All this was computed step by step. What the model gives by itself, computed at once, differs ${apart}.`;
}

/** Stages by chapter, in their order: [[chapter, [[place, stage] …]] …]. */
function chapters(stages) {
    const found = [];
    stages.forEach((stage, place) => {
        if (found.at(-1)?.[0] !== stage.chapter) found.push([stage.chapter, []]);
        found.at(-1)[1].push([place, stage]);
    });
    return found;
}
