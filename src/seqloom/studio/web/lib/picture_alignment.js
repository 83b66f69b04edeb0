// Attention over a picture: one panel for each word that a model writes. The picture is chosen from disk and is sent
// only to the studio server, which returns the decoded pixels.

import { h, s, formatNumber, roundFloat16, setChildren } from "./dom.js";
import { controls, runPicker, textBox } from "./controls.js";
import { onThemeChange, table } from "./colour.js";
import { figure } from "./figure.js";
import { outputLine } from "./attention_map.js";

const MAX_BYTES = 12_000_000; // maximum size of a picture file, as in studio/views/pictures.py
const PANEL = 168; // pixels of the longer side of a panel
const LABEL_HEIGHT = 24;
const FAINT_CONTRAST = 0.45; // contrast of the picture below the weights
const OPACITY = 0.75; // opacity of the largest weight
const CHUNK = 0x8000; // bytes that are converted to a string in one call

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
        const input = h("input", {
            type: "file",
            id: "picture-file",
            accept: "image/*",
            onchange: () => input.files[0] && this.read(input.files[0]).catch((error) => page.fail(error)),
        });
        return controls(
            runPicker(page, { value: run.id, onchange: open }),
            h(
                "div",
                { class: "field" },
                h("label", { for: input.id }, "Picture"),
                input,
                h("span", { class: "hint" }, "The picture is sent only to this studio and is not stored."),
            ),
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

    async read(file) {
        if (file.size > MAX_BYTES) {
            throw new Error(`${file.name} must have at most ${MAX_BYTES / 1e6} MB. Choose a smaller picture.`);
        }
        picture = { name: file.name.slice(0, 200), content: toBase64(new Uint8Array(await file.arrayBuffer())) };
        await this.load();
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
        const shares = query.length ? " The percentage is the part of the attention that the picture receives." : "";
        const caption = `The attention weights of each word on the locations of the picture. ${scale}${shares}`;
        this.figure.setText(`Attention over ${picture.name}`, caption);
        this.figure.table(() => this.tableOfWeights());
        this.figure.element.dataset.shown = String(this.answer.requestId);
    }

    /** A panel with a label, which is drawn as SVG so that it is exported. */
    panel(name, canvas, word) {
        const [height, width] = this.answer.arrays.pixels.shape;
        const scale = PANEL / Math.max(height, width);
        Object.assign(canvas.style, { width: `${Math.round(width * scale)}px`, height: `${Math.round(height * scale)}px` });
        const text = s("text", { x: 0, y: LABEL_HEIGHT / 2, "dominant-baseline": "central" }, name);
        const label = s("svg", { class: "picture-label", width: PANEL, height: LABEL_HEIGHT, "aria-hidden": "true" }, text);
        return h(
            "div",
            {
                class: "picture-panel",
                role: "img",
                tabindex: "0",
                "aria-label": word === null ? name : this.describe(word),
                onpointermove: (event) => this.tell(event, canvas, word),
                onpointerleave: () => (this.readout.textContent = ""),
                onfocus: () => (this.readout.textContent = word === null ? "" : this.describe(word)),
            },
            label,
            canvas,
        );
    }

    weightsOf(word) {
        const [, rows, columns] = this.answer.arrays.maps.shape;
        return this.answer.arrays.maps.data.subarray(word * rows * columns, (word + 1) * rows * columns);
    }

    /** The picture, or a grey copy of the picture with the weights of a word in red. */
    paint(word) {
        const { maps, pixels } = this.answer.arrays;
        const [height, width] = pixels.shape;
        const [, rows, columns] = maps.shape;
        const weights = word === null ? null : this.weightsOf(word);
        const colours = table(true);
        const red = colours.subarray(colours.length - 4 * 32, colours.length - 4 * 32 + 3);
        const canvas = h("canvas", { class: "picture-canvas", width, height, "aria-hidden": "true" });
        const pen = canvas.getContext("2d");
        const image = pen.createImageData(width, height);
        for (let y = 0, i = 0; y < height; y++) {
            const row = Math.floor((y * rows) / height);
            for (let x = 0; x < width; x++, i++) {
                const rgb = pixels.data.subarray(3 * i, 3 * i + 3);
                const grey = 255 - FAINT_CONTRAST * (255 - (rgb[0] + rgb[1] + rgb[2]) / 3);
                const cell = row * columns + Math.floor((x * columns) / width);
                const opacity = weights ? (OPACITY * weights[cell]) / (maps.high || 1) : 0;
                for (let c = 0; c < 3; c++) {
                    image.data[4 * i + c] = weights ? grey + opacity * (red[c] - grey) : rgb[c];
                }
                image.data[4 * i + 3] = 255;
            }
        }
        pen.putImageData(image, 0, 0);
        return canvas;
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

function toBase64(bytes) {
    let text = "";
    for (let i = 0; i < bytes.length; i += CHUNK) text += String.fromCharCode(...bytes.subarray(i, i + CHUNK));
    return btoa(text);
}
