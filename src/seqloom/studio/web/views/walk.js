// How it works: one text through a model, stage by stage. The address contains the current stage.

import { h, setChildren, updateChildren, announce } from "../lib/dom.js";
import { button, controls, examplesFor, runPicker, select, textBox } from "../lib/controls.js";
import { markOverflow } from "../lib/overflow.js";
import { renderPanel } from "../lib/walk_panels.js";

export const title = "How it works";
export const lead =
    "Follow one text through a model, stage by stage, from the input to the output. All values are computed by the model. Use Next or the arrow keys to continue.";
export const needs = "This view needs a language model, translator, tagger, classifier, GPT or BERT.";
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
        this.run = page.selectedRun().id;
        this.first = controls();
        this.second = controls();
        this.tries = h("div");
        this.typed = false; // whether the text box contains text that was not submitted
        this.rail = h("nav", { class: "walk-rail", "aria-label": "Stages" });
        this.more = markOverflow(this.rail);
        this.stage = h("article", { class: "walk-stage", "aria-live": "off" });
        this.body = h("div", { class: "walk answer" }, this.rail, this.stage);
        for (const kind of ["click", "keydown"]) this.body.addEventListener(kind, (event) => this.wait(event), true);
        setChildren(page.root, this.first, this.tries, this.second, this.body);
    }

    integerParam(name) {
        const value = Number(this.page.params.get(name));
        return Number.isInteger(value) && value > 0 ? value : null;
    }

    /** Load the walk and show the stage in the address. */
    async load() {
        const { page } = this;
        const requestId = (this.latestRequest = {});
        this.body.setAttribute("aria-busy", "true");
        try {
            const data = await page.request("walk", {
                run: this.run,
                text: page.params.get("text"),
                target: page.params.get("target"),
                word: this.integerParam("word"),
                step: this.integerParam("step"),
                layer: this.integerParam("layer") ?? 1,
                head: this.integerParam("head") ?? 1,
                numbers: this.integerParam("numbers") ?? 8,
            });
            if (this.latestRequest !== requestId) return; // superseded by a newer request
            this.data = data;
            page.clearError();
            this.drawControls();
            this.draw();
            this.body.hidden = false;
        } catch (error) {
            if (this.latestRequest !== requestId) return;
            if (!this.data) this.drawControls();
            this.body.hidden = !this.data;
            page.fail(error);
        }
        this.body.removeAttribute("aria-busy");
    }

    /** Ignore input on the old walk while a new walk is loading. */
    wait(event) {
        if (!this.loading || (event.type === "keydown" && !["Enter", " "].includes(event.key))) return;
        event.preventDefault();
        event.stopPropagation();
    }

    get loading() {
        return this.body.hasAttribute("aria-busy");
    }

    /** Change address parameters and reload. */
    change(values) {
        this.page.setParams(values);
        return this.load();
    }

    drawControls() {
        const { page, data } = this;
        const text = data?.text ?? page.params.get("text") ?? "";
        if (this.box?.box !== document.activeElement || !this.typed) {
            this.typed = false;
            this.box = textBox("Sentence", text, (line) => this.submit(line), {});
            this.box.box.addEventListener("input", () => {
                this.typed = true;
            });
        }
        const picker = runPicker(page, {
            value: this.run,
            onchange: (run) => {
                this.run = run;
                this.data = null;
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
        updateChildren(this.first, picker, this.box, page.run(this.run)?.task === "translate" && this.targetBox());
        setChildren(this.tries, examplesFor(page.run(this.run), this.box));
        updateChildren(this.second, data ? this.choices() : null);
    }

    targetBox() {
        const send = (target) => this.change({ target, step: null });
        const options = { button: "Force", placeholder: "output of the model" };
        return textBox("Force this translation", this.page.params.get("target") ?? "", send, options);
    }

    submit(line) {
        this.typed = false;
        return this.change({ text: line, target: null, word: null, step: null });
    }

    /** The menus for token, step, layer and head. */
    choices() {
        const { data } = this;
        const numbered = (count, name) =>
            Array.from({ length: count }, (_, i) => [i + 1, `${name} ${i + 1} of ${count}`]);
        const tokens = (list) => list.map((token, i) => [i + 1, `${i + 1}  ${token}`]);
        return [
            select("Input token", tokens(data.tokens), data.word, (word) => this.change({ word })),
            data.steps.length
                ? select("Output token", tokens(data.steps), data.step, (step) => this.change({ step }))
                : null,
            data.layers > 1
                ? select("Layer", numbered(data.layers, "layer"), data.follow.layer, (layer) => this.change({ layer }))
                : null,
            data.heads > 1
                ? select("Head", numbered(data.heads, "head"), data.follow.head, (head) => this.change({ head }))
                : null,
            select("Elements per vector", NUMBERS, data.follow.numbers, (numbers) => this.change({ numbers })),
        ].filter(Boolean);
    }

    get index() {
        const index = this.data.stages.findIndex((stage) => stage.key === this.page.params.get("stage"));
        return Math.max(0, index);
    }

    /** Go to another stage. */
    go(index) {
        if (index < 0 || index >= this.data.stages.length) return;
        this.page.setParams({ stage: this.data.stages[index].key });
        this.draw();
        this.stage.scrollIntoView({ block: "start", behavior: "instant" });
        const stage = this.data.stages[index];
        announce(`Stage ${index + 1} of ${this.data.stages.length}: ${stage.title}`);
    }

    /** Arrow keys change the stage, unless the focused element uses them. */
    key(event) {
        if (!this.data || this.loading || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
        if (event.target.closest?.("input, select, textarea, [role=application], .table-scroll")) return;
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        this.go(this.index + step);
    }

    draw() {
        const { data, index } = this;
        const stage = data.stages[index];
        updateChildren(
            this.rail,
            chapters(data.stages).map(([chapter, stages]) =>
                h(
                    "section",
                    {},
                    h("h2", {}, chapter),
                    h(
                        "ol",
                        { start: stages[0][0] + 1 },
                        stages.map(([at, item]) => h("li", {}, this.stop(at, item, index))),
                    ),
                ),
            ),
        );
        this.rail.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
        this.more();
        const below = this.stage.querySelector(".walk-buttons")?.contains(document.activeElement);
        updateChildren(this.stage, this.top(stage, index), this.words(stage), this.panels(stage), this.foot(stage, index));
        if (below) this.stage.querySelector(".walk-buttons .primary").focus({ preventScroll: true });
    }

    /** A stage in the list, with the shape of its output. */
    stop(at, stage, index) {
        return h(
            "button",
            { type: "button", "aria-current": at === index ? "step" : null, onclick: () => this.go(at) },
            h("span", { class: "stop-title", dir: "auto" }, stage.title),
            h("span", { class: "stop-shape" }, stage.output_shape),
        );
    }

    top(stage, index) {
        const { data } = this;
        return h(
            "header",
            { class: "walk-top" },
            h("p", { class: "walk-position" }, `${stage.chapter} · stage ${index + 1} of ${data.stages.length}`),
            h("h2", { class: "walk-title", dir: "auto" }, stage.title),
            h(
                "div",
                { class: "walk-quick" },
                disabled(
                    button("← Back", () => this.go(index - 1), { title: "Previous stage (left arrow)" }),
                    index === 0,
                ),
                disabled(
                    button("Next →", () => this.go(index + 1), { title: "Next stage (right arrow)" }),
                    index === data.stages.length - 1,
                ),
            ),
        );
    }

    words(stage) {
        return h(
            "div",
            { class: "walk-words" },
            h("p", { class: "walk-text", dir: "auto" }, stage.text),
            stage.input_shape
                ? h(
                      "div",
                      { class: "walk-shapes" },
                      h("span", {}, h("small", {}, "input"), stage.input_shape),
                      h("b", { "aria-hidden": "true" }, "→"),
                      h("span", {}, h("small", {}, "output"), stage.output_shape),
                      stage.equation
                          ? h("span", { class: "walk-equation" }, h("small", {}, "equation"), stage.equation)
                          : null,
                  )
                : null,
            stage.symbols.length
                ? h(
                      "div",
                      { class: "walk-symbols" },
                      h("p", {}, "Symbols"),
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
        const { data } = this;
        const acts = {
            follow: stage.key === "tokens" ? (index) => this.change({ word: index + 1 }) : null,
            visit: (key) => this.go(data.stages.findIndex((item) => item.key === key)),
            step: (index) => this.change(data.steps.length ? { step: index + 1 } : { word: index + 1 }),
        };
        const vectors = stage.panels.some(
            (panel) => ["matrix", "sum", "dot", "weighted-sum"].includes(panel.kind) && panel.probabilities !== true,
        );
        const gates = stage.panels.some((panel) => panel.gates || Number.isInteger(panel.gate));
        return h(
            "div",
            { class: "walk-panels" },
            stage.panels.map((panel, i) => renderPanel(panel, `walk-${stage.key}-${i + 1}`, acts)),
            vectors
                ? h(
                      "p",
                      { class: "hint" },
                      "Red values are above 0, blue values below.",
                      gates ? " Gates range from dark purple (closed) to yellow (open)." : "",
                  )
                : null,
        );
    }

    foot(stage, index) {
        const { data, page } = this;
        const run = page.run(this.run);
        const links = stage.links.filter((link) => run?.views.includes(link.view));
        const last = index === data.stages.length - 1;
        return h(
            "footer",
            { class: "walk-foot" },
            links.length
                ? h(
                      "p",
                      {},
                      "See also: ",
                      links.map((link, i) => [
                          i ? " · " : "",
                          h(
                              "a",
                              { href: page.link(link.view, { run: this.run, text: data.text, ...link.parameters }) },
                              link.text,
                          ),
                      ]),
                  )
                : null,
            h(
                "div",
                { class: "walk-buttons" },
                index > 0 ? button("← Back", () => this.go(index - 1)) : null,
                last
                    ? this.continueButton()
                    : button(`Next: ${data.stages[index + 1].title} →`, () => this.go(index + 1), { primary: true }),
            ),
            last ? h("p", { class: "hint" }, differenceText(data.difference)) : null,
        );
    }

    /** After the last stage: continue with the next token. */
    continueButton() {
        const { data } = this;
        const stages = data.stages.map((stage) => stage.key);
        const firstStage = ["decoder-start", "state", "text-queries", "window"].find((key) => stages.includes(key));
        const [name, now, count] = data.steps.length
            ? ["step", data.step, data.steps.length]
            : ["word", data.word, data.tokens.length];
        if (firstStage && now >= count && data.continued_text) {
            return button(
                `Append “${data.answer}” and continue →`,
                () => this.change({ text: data.continued_text, word: null, stage: firstStage }),
                { primary: true },
            );
        }
        if (!firstStage || now >= count || stages.includes("transform"))
            return button("Back to the first stage", () => this.go(0), { primary: true });
        return button(
            "Next token →",
            () => this.change({ [name]: now + 1, stage: firstStage }).then(() => this.stage.scrollIntoView()),
            { primary: true },
        );
    }
}

function disabled(control, is) {
    control.disabled = is;
    return control;
}

/** The difference between this computation and the forward pass of the model. */
function differenceText(difference) {
    const distance = difference === 0 ? "0" : `at most ${difference.toExponential(0)}`;
    return `The difference between these stages and the forward pass of the model is ${distance}.`;
}

/** Group stages by chapter: [[chapter, [[index, stage] …]] …]. */
function chapters(stages) {
    const groups = [];
    stages.forEach((stage, index) => {
        if (groups.at(-1)?.[0] !== stage.chapter) groups.push([stage.chapter, []]);
        groups.at(-1)[1].push([index, stage]);
    });
    return groups;
}
