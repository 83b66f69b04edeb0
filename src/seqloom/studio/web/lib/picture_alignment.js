// Attention over a picture: one panel for each word that a model writes. The picture is chosen from disk and is sent
// only to the studio server, which returns the decoded pixels.

import { h, formatNumber, roundFloat16, setChildren } from "./dom.js";
import { controls, runPicker, textBox } from "./controls.js";
import { onThemeChange } from "./colour.js";
import { figure } from "./figure.js";
import { outputLine } from "./attention_map.js";
import { paintPicture, pictureAt, pictureInput, picturePanel } from "./pictures.js";

const PANEL = 168; // pixels of the longer side of a panel

/** The selected picture {name, content}; it is kept while the page is open, so that runs can be compared on it. */
let picture = null;

/** Whether a run reads pictures. */
export const readsPictures = (run) => run.kind === "image-to-text";

export async function showPictures(page, run, open) {
    const view = new PicturePage(page, run);
    setChildren(page.root, view.controls(open), view.line, view.figure.element);
    await view.load();
}

class PicturePage {
    constructor(page, run) {
        Object.assign(this, { page, run, answer: null, latestRequest: 0 });
        this.line = h("div", { class: "answer" });
        this.figure = figure({ name: "alignment", title: "Attention over the picture" });
        this.readout = h("p", { class: "readout", role: "status" });
        this.figure.element.append(this.readout);
        onThemeChange(() => this.answer && this.figure.element.isConnected && this.draw(), page.signal);
    }

    controls(open) {
        const { page, run } = this;
        const load = (changes) => {
            page.setParams(changes);
            this.load().catch((error) => page.fail(error));
        };
        return controls(
            runPicker(page, { value: run.id, onchange: open }),
            pictureInput(page, (chosen) => {
                picture = chosen;
                return this.load();
            }),
            this.asks && textBox("Question", this.question, (text) => load({ text }), { button: "Ask" }),
            textBox("Force this text", page.params.get("target"), (target) => load({ target }), {
                button: "Force",
                placeholder: "output of the model",
            }),
        );
    }

    /** Whether the model reads a question with a picture. */
    get asks() {
        return this.run.task !== "caption";
    }

    get question() {
        return this.asks ? (this.page.params.get("text") ?? this.run.example.split("\t")[1] ?? "") : "";
    }

    async load() {
        const { page, run } = this;
        if (!picture) {
            this.figure.element.hidden = true;
            return setChildren(this.line, h("p", { class: "hint" }, "Choose a picture to see what the model writes."));
        }
        const requestId = ++this.latestRequest;
        this.figure.element.classList.add("busy");
        const target = page.params.get("target");
        const request = { run: run.id, name: picture.name, picture: picture.content, text: this.question, target };
        try {
            const answer = await page.request("alignment/picture", request);
            if (requestId !== this.latestRequest) return;
            this.answer = { ...answer, requestId };
            page.clearError();
            this.figure.element.hidden = false;
            setChildren(this.line, outputLine(answer));
            this.draw();
        } finally {
            if (requestId === this.latestRequest) this.figure.element.classList.remove("busy");
        }
    }

    draw() {
        const { words, query, arrays } = this.answer;
        const share = (word) => this.weightsOf(word).reduce((sum, weight) => sum + weight, 0);
        const title = (name, word) => (query.length ? `${name} (${Math.round(100 * share(word))} %)` : name);
        const panels = words.map((name, word) => this.panel(title(name, word), this.paint(word), word));
        setChildren(
            this.figure.body,
            h("div", { class: "picture-panels" }, this.panel("picture", this.paint(null), null), panels),
        );
        const scale = `The strongest red is the largest weight, ${formatNumber(arrays.maps.high)}.`;
        const shares = query.length
            ? " The percentage is the fraction of the attention weight that is on the picture."
            : "";
        const caption = `The attention weights of each word on the locations of the picture. ${scale}${shares}`;
        this.figure.setText(`Attention over ${picture.name}`, caption);
        this.figure.table(() => this.tableOfWeights());
        this.figure.element.dataset.shown = String(this.answer.requestId);
    }

    panel(name, canvas, word) {
        return picturePanel(name, canvas, {
            side: PANEL,
            tabindex: "0",
            "aria-label": word === null ? name : this.describe(word),
            onpointermove: (event) => this.tell(event, canvas, word),
            onpointerleave: () => (this.readout.textContent = ""),
            onfocus: () => (this.readout.textContent = word === null ? "" : this.describe(word)),
        });
    }

    weightsOf(word) {
        const [, rows, columns] = this.answer.arrays.maps.shape;
        return this.answer.arrays.maps.data.subarray(word * rows * columns, (word + 1) * rows * columns);
    }

    /** The picture, or a grey copy of the picture with the weights of a word in red. */
    paint(word) {
        const { maps, pixels } = this.answer.arrays;
        const [, rows, columns] = maps.shape;
        const map = word === null ? null : { values: this.weightsOf(word), rows, columns, high: maps.high };
        return paintPicture(pictureAt(pixels), map);
    }

    /** The location with the largest weight of a word. */
    describe(word) {
        const weights = this.weightsOf(word);
        return this.words(word, weights.indexOf(Math.max(...weights)), "the largest weight is at ");
    }

    words(word, cell, prefix = "") {
        const columns = this.answer.arrays.maps.shape[2];
        const place = `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
        return `${this.answer.words[word]}: ${prefix}${place}: ${formatNumber(this.weightsOf(word)[cell])}`;
    }

    tell(event, canvas, word) {
        const box = canvas.getBoundingClientRect();
        const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
        if (word === null || x < 0 || x >= 1 || y < 0 || y >= 1) return;
        const [, rows, columns] = this.answer.arrays.maps.shape;
        this.readout.textContent = this.words(word, Math.floor(y * rows) * columns + Math.floor(x * columns));
    }

    tableOfWeights() {
        const { words, query, arrays } = this.answer;
        const [, rows, columns] = arrays.maps.shape;
        const cells = Array.from({ length: rows * columns }, (_, i) => `${Math.floor(i / columns) + 1}, ${(i % columns) + 1}`);
        const queryWeights = (word) => arrays.onQuery.data.subarray(word * query.length, (word + 1) * query.length);
        return {
            columns: ["word ↓  row, column →", ...cells, ...query.map((name) => name || "END")],
            rows: words.map((name, word) => [
                name,
                ...Array.from(this.weightsOf(word), roundFloat16),
                ...Array.from(queryWeights(word), roundFloat16),
            ]),
        };
    }
}
