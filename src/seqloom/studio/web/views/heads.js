// Self-attention: a thumbnail of every head, one of them large, and what each does in two numbers.

import { h, s, calmly, fill, number, refill, say } from "../lib/dom.js";
import { controls, examplesFor, runPicker, segmented, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { onTheme } from "../lib/colour.js";
import { habitPlot } from "../lib/habits.js";
import { thumbnail } from "../lib/heatmap.js";
import {
    byRoot,
    capital,
    counted,
    lookControls,
    lookFigure,
    lookQuestion,
    sentenceLine,
    shownAs,
} from "../lib/looks.js";

export const title = "Self-attention";
export const lead =
    "Every head of a Transformer decides for each word how much of every other word it takes in: " +
    "weights α = softmax(q·k / √d), which sum to 1 in each row. Choose a head to see it large.";
export const needs =
    "It takes a model with heads: a Transformer that translates or restores, a GPT, a BERT or ELECTRA, " +
    "or a classifier or tagger that reads with one.";

const PARTS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" };
const CAPTIONS = {
    encoder: "Each row is a query: the word that attends. The columns are the keys it attends to. A row sums to 1.",
    decoder:
        "Each row is a query: the word that attends, which the model has just read. The columns are the keys it " +
        "attends to; on the diagonal a word attends to itself. A row sums to 1. Above the diagonal there is nothing: " +
        "the words after it have not been read yet.",
    cross:
        "Each row is named by the word that is produced there, as in an alignment; its query comes from the word " +
        "before it. The columns are the keys: words of the source. A row sums to 1.",
};
const KEPT = 48; // maps of heads that were looked at, kept for going back to them
const MANY = 8; // heads of a layer, from which thumbnails get more room than the large map

export async function show(page) {
    const run = page.chosen();
    const text = page.params.get("text") ?? run.example ?? "";
    const view = new HeadsPage(page, run, text);
    fill(page.root, view.controls(), view.line, view.stage);
    await view.load();
}

class HeadsPage {
    constructor(page, run, text) {
        Object.assign(this, { page, run, text, answer: null, maps: new Map(), asked: 0 });
        this.soon = calmly((layer, head) => this.map(layer, head), 60); // what is pointed at is likely to be chosen
        this.line = h("div", { class: "heads-said answer" });
        this.partPicker = h("div");
        this.grid = figure({ name: "heads", title: "All heads" });
        this.habits = figure({ name: "head-habits", title: "What each head does" });
        this.one = lookFigure({ name: "head", size: () => this.room() });
        this.told = h("p", { class: "readout head-told", role: "status" });
        this.grid.element.append(this.told);
        this.stage = h(
            "div",
            { class: "heads-stage" },
            h("div", { class: "heads-all" }, this.grid.element, this.habits.element),
            this.one.element,
        );
        onTheme(() => this.answer && this.stage.isConnected && this.drawAll(), page.signal);
    }

    controls() {
        const { page } = this;
        const other = (id) => {
            page.set({ run: id, part: null, layer: null, head: null, target: null });
            show(page).catch((error) => page.fail(error));
        };
        const read = (value) => {
            this.text = value;
            if (target) target.box.value = "";
            this.reload({ text: value, target: null });
        };
        const say = (value) => this.reload({ target: value });
        const target =
            this.run.task === "translate" &&
            textBox("Translation", page.params.get("target"), say, { placeholder: "the model's own" });
        const source = textBox("Text", this.text, read);
        return [
            controls(runPicker(page, { value: this.run.id, onchange: other }), source, target),
            examplesFor(this.run, source),
            controls(
                this.partPicker,
                ...lookControls(page, (name) => this.changed(name).catch((error) => page.fail(error))),
            ),
        ];
    }

    reload(changes) {
        this.page.set(changes);
        this.load().catch((error) => this.page.fail(error));
    }

    /** What a control asks for: most of them for other numbers, some only for another look. */
    changed(name) {
        if (name === "shades") this.drawAll();
        return ["as", "shades"].includes(name) ? this.drawOne() : this.load();
    }

    question() {
        const { page } = this;
        const [target, part] = ["target", "part"].map((name) => page.params.get(name));
        return { run: this.run.id, text: this.text, target, part, ...lookQuestion(page) };
    }

    /** Ask for everything but the large map, then for that. */
    async load() {
        const mine = ++this.asked;
        this.maps.clear();
        this.stage.classList.add("busy");
        try {
            const answer = await this.page.ask("heads", this.question());
            if (mine !== this.asked) return;
            this.answer = answer;
            this.page.fine();
            this.drawAll();
            await this.drawOne();
        } finally {
            if (mine === this.asked) this.stage.classList.remove("busy");
        }
    }

    get part() {
        return this.answer.parts.find((part) => part.name === this.answer.part);
    }

    /** The head in the address, as far as this model has it. */
    chosen() {
        const { layers, heads, usual } = this.part;
        const layer = counted(this.page, "layer") ?? usual;
        const head = this.page.params.get("head") === "mean" ? null : (counted(this.page, "head") ?? 1);
        return { layer: Math.min(layer, layers), head: head === null ? null : Math.min(head, heads) };
    }

    pick(layer, head) {
        this.page.set({ layer, head: head ?? "mean" });
        this.markChosen();
        this.drawOne().catch((error) => this.page.fail(error));
    }

    // --- all heads ----------------------------------------------------------------------------------------------

    drawAll() {
        fill(this.line, sentenceLine(this.answer));
        const parts = this.answer.parts.map(({ name }) => [name, PARTS[name]]);
        const change = (part) => this.reload({ part, layer: null, head: null });
        refill(this.partPicker, parts.length > 1 ? segmented("Part", parts, this.answer.part, change) : null);
        this.drawGrid();
        this.drawHabits();
        this.markChosen();
    }

    drawGrid() {
        const { layers, heads, title: name } = this.part;
        const { shape, data, high } = this.answer.arrays.grid; // (layers, heads and their mean, rows, columns)
        const cells = shape[2] * shape[3];
        this.stage.classList.toggle("many", heads > MANY);
        const room = (this.grid.body.clientWidth || 480) - 78;
        const size = Math.max(24, Math.min(96, Math.floor(room / (heads + 1)) - 6));
        const root = byRoot(this.page, this.answer);
        this.radios = new Map();
        const rows = Array.from({ length: layers }, (_, layer) => [
            label(`layer ${layer + 1}`, 58, size),
            ...Array.from({ length: heads + 1 }, (__, head) => {
                const begin = (layer * (heads + 1) + head) * cells;
                const picture = thumbnail(data.subarray(begin, begin + cells), shape[2], shape[3], { high, root });
                return this.radio(layer + 1, head === heads ? null : head + 1, picture, size);
            }),
        ]);
        const named = (head) => (heads > 6 ? `${head}` : `head ${head}`);
        const names = Array.from({ length: heads }, (_, head) => label(named(head + 1), size, 20));
        const all = h(
            "div",
            { class: "heads-grid", role: "radiogroup", "aria-label": `Heads of ${name}` },
            label("", 58, 20),
            names,
            label("mean", size, 20),
            rows,
        );
        all.style.gridTemplateColumns = `repeat(${heads + 2}, max-content)`;
        fill(this.grid.body, all);
        const how = root ? "; shades by the root" : "";
        const scale = `All on one scale, from 0 to ${number(high, 2)}, the largest weight of all${how}.`;
        this.grid.say(capital(name), scale);
        this.grid.table(() => this.habitTable());
        const { part, rows: down, columns: across } = this.answer;
        this.grid.element.dataset.shown = `${part} ${layers}×${heads} of ${down.length}×${across.length}`;
    }

    radio(layer, head, picture, size) {
        const ratio = Math.min(2, Math.max(0.5, picture.width / picture.height));
        picture.style.width = `${Math.round(size * Math.min(1, ratio))}px`;
        picture.style.height = `${Math.round(size / Math.max(1, ratio))}px`;
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
                    this.soon(layer, head);
                },
                onpointerleave: () => this.tell(),
                onkeydown: (event) => this.moveKey(event, layer, head),
            },
            picture,
        );
        this.radios.set(`${layer} ${head}`, node);
        return node;
    }

    moveKey(event, layer, head) {
        const { layers, heads } = this.part;
        const place = head ?? heads + 1;
        const goal = {
            ArrowRight: [layer, place + 1],
            ArrowLeft: [layer, place - 1],
            ArrowDown: [layer + 1, place],
            ArrowUp: [layer - 1, place],
            Home: [layer, 1],
            End: [layer, heads + 1],
        }[event.key];
        if (!goal) return;
        event.preventDefault();
        const within = (value, most) => Math.min(Math.max(value, 1), most);
        const [toLayer, toPlace] = [within(goal[0], layers), within(goal[1], heads + 1)];
        const to = toPlace === heads + 1 ? null : toPlace;
        this.pick(toLayer, to);
        this.radios.get(`${toLayer} ${to}`).focus();
        say(this.words(toLayer, to));
    }

    markChosen() {
        const { layer, head } = this.chosen();
        for (const [name, node] of this.radios) {
            const own = name === `${layer} ${head}`;
            node.setAttribute("aria-checked", String(own));
            node.tabIndex = own ? 0 : -1;
        }
        for (const dot of this.habits.body.querySelectorAll(".habit")) {
            dot.classList.toggle("chosen", dot.dataset.head === `${layer} ${head}`);
        }
        this.tell();
    }

    tell(layer, head) {
        const which = layer === undefined ? this.chosen() : { layer, head };
        this.told.textContent = this.words(which.layer, which.head);
    }

    words(layer, head) {
        if (head === null) return `layer ${layer}, mean over its ${this.part.heads} heads`;
        const { entropy, distance, end } = this.answer.habits[(layer - 1) * this.part.heads + head - 1];
        const does = `entropy ${number(entropy, 2)} bits, distance ${number(distance, 2)}`;
        return `layer ${layer}, head ${head}: ${does}, ${Math.round(100 * end)} % on ${this.answer.endName}`;
    }

    // --- what each head does ------------------------------------------------------------------------------------

    drawHabits() {
        const { habits, endName, part } = this.answer;
        const from = part === "cross" ? "the place as far through the source" : "where it stands";
        fill(
            this.habits.body,
            habitPlot(habits, this.part, {
                onPick: ({ layer, head }) => this.pick(layer, head),
                onHover: (habit) => this.tell(habit?.layer, habit?.head),
            }),
        );
        this.habits.say(
            undefined,
            "Entropy, −Σ α log₂ α: 0 bits is all on one token, 1 as if on two, 2 as if on four. " +
                `Distance, Σ α·|places|: how many tokens away from ${from} it looks. ` +
                `Both are means over the rows, ${endName} included.`,
        );
        this.habits.table(() => this.habitTable());
    }

    habitTable() {
        const { habits, endName } = this.answer;
        return {
            columns: ["layer", "head", "entropy (bits)", "distance (tokens)", `share on ${endName}`],
            rows: habits.map(({ layer, head, entropy, distance, end }) => [layer, head, entropy, distance, end]),
        };
    }

    // --- one head -----------------------------------------------------------------------------------------------

    room() {
        const wide = this.one.body.clientWidth || 680;
        return [Math.max(360, Math.min(980, wide - 4)), Math.max(420, Math.min(820, innerHeight - 420))];
    }

    async drawOne() {
        const { layer, head } = this.chosen();
        const mine = (this.wanted = `${layer} ${head}`);
        const { answer } = this;
        const found = await this.map(layer, head);
        if (this.wanted !== mine || this.answer !== answer) return;
        const { rows, columns, sides } = answer;
        const which = head === null ? `mean over ${this.part.heads} heads` : `head ${head}`;
        this.one.show({
            title: `${PARTS[answer.part]}: layer ${layer}, ${which}`,
            caption: CAPTIONS[answer.part],
            rows,
            columns,
            sides,
            values: found.arrays.map.data,
            high: found.arrays.map.high || 1,
            as: shownAs(this.page),
            root: byRoot(this.page, answer),
        });
        this.one.element.dataset.shown = mine;
        const later = globalThis.requestIdleCallback ?? setTimeout; // not every browser knows when it is idle
        later(() => this.answer === answer && this.wanted === mine && this.prepare(layer, head));
    }

    /** Ask for the heads beside this one before anybody does: where arrow keys lead, and most clicks. */
    prepare(layer, head) {
        const { layers, heads } = this.part;
        const beside =
            head === null
                ? []
                : [
                      [layer, head + 1],
                      [layer, head - 1],
                      [layer + 1, head],
                      [layer - 1, head],
                  ];
        for (const [down, across] of beside) {
            if (down >= 1 && down <= layers && across >= 1 && across <= heads) this.map(down, across);
        }
    }

    /** A head's map, asked for once. */
    map(layer, head) {
        const name = `${layer} ${head}`;
        if (!this.maps.has(name)) {
            const asked = this.page.ask("heads/map", { ...this.question(), part: this.answer.part, layer, head });
            asked.catch(() => this.maps.delete(name));
            this.maps.set(name, asked);
            if (this.maps.size > KEPT) this.maps.delete(this.maps.keys().next().value);
        }
        return this.maps.get(name);
    }
}

/** A word beside the thumbnails: drawn, so that it is in the picture that is saved, too. */
function label(words, width, height) {
    return s(
        "svg",
        { class: "heads-label", width, height, "aria-hidden": "true" },
        s("text", { x: width / 2, y: height / 2, "text-anchor": "middle", "dominant-baseline": "central" }, words),
    );
}
