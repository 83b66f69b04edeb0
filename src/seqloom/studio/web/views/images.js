// Images: why an image has its label, the frames of a clip, and the steps of generated images.

import { h, s, formatNumber, roundFloat16, setChildren } from "../lib/dom.js";
import { button, controls, numberBox, runPicker, slider } from "../lib/controls.js";
import { onThemeChange, signColour } from "../lib/colour.js";
import { figure } from "../lib/figure.js";
import { capitalise } from "../lib/attention_map.js";
import { paintPicture, pictureAt, pictureInput, picturePanel } from "../lib/pictures.js";

export const title = "Images";
export const lead =
    "For an image classifier, this view shows the parts of the picture that determine the label, and the path of the " +
    "glimpses. For a model of clips, it shows the labels or weights of the frames. For an image generator, it shows the " +
    "canvas after each step.";
export const needs =
    "This view needs a model that classifies images or clips, labels the frames of clips, or generates images.";

const PANEL = 224; // pixels of the longer side of a picture
const FRAME_PANEL = 112; // of a frame of a clip, and of a generated image
const BAR_HEIGHT = 44;
const PLAY_MILLISECONDS = 150; // between two steps
const FIRST_COLOUR = [31, 95, 191]; // of the first glimpse
const LAST_COLOUR = [194, 81, 10]; // of the last glimpse
const MAPS = {
    occlusion: ["occlusion", "the decrease of p(label) if a square, or a frame, is removed"],
    gradient: ["gradient × input", "Σ_c x ∂logit/∂x, a linear approximation for each pixel"],
    rollout: ["attention roll-out", "the product of the attention weights of all layers"],
    attention: ["attention pooling", "the weights α of the pooling"],
};

/** The chosen file {name, content}; it is kept while the page is open, so that runs can be compared on it. */
let chosenFile = null;

export async function show(page) {
    const run = page.selectedRun();
    const stage = h("div", {});
    const open = (id) => {
        page.setParams({ run: id });
        page.clearError();
        return show(page).catch((error) => page.fail(error));
    };
    const picker = runPicker(page, { value: run.id, onchange: open });
    if (run.task === "generate-images") return showGenerated(page, run, picker, stage);
    const readsClips = run.task !== "classify-images";
    const draw = readsClips ? drawClip : drawReasons;
    let latest = 0;
    let answer = null;
    const load = async () => {
        if (!chosenFile) return setChildren(stage, h("p", { class: "hint" }, "Choose a file to see what the model predicts."));
        const requestId = ++latest;
        const request = { run: run.id, name: chosenFile.name, picture: chosenFile.content };
        const received = await page.request(readsClips ? "images/clip" : "images/classify", request);
        if (requestId !== latest) return;
        answer = received;
        page.clearError();
        draw(stage, answer, requestId);
    };
    const read = (file) => {
        chosenFile = file;
        return load();
    };
    const label = readsClips ? "Clip (an animated image)" : "Picture";
    setChildren(page.root, controls(picker, pictureInput(page, read, { label })), stage);
    onThemeChange(() => answer && stage.isConnected && draw(stage, answer, latest), page.signal);
    await load();
}

/** The most probable labels of a picture or a clip, and notes on the file. */
function labelLine({ labels, notes }) {
    const [best, ...others] = labels ?? [];
    const written = ({ label, probability }) => `${label} (${formatNumber(probability)})`;
    const rest = others.slice(0, 4).map(written).join(" · ");
    return [
        best && h("p", { class: "label-line" }, h("bdi", { class: "best" }, written(best)), rest && h("bdi", {}, ` · ${rest}`)),
        notes.map((note) => h("p", { class: "note", dir: "auto" }, `${capitalise(note)}.`)),
    ];
}

// --- a picture with its label ---

function drawReasons(stage, answer, requestId) {
    const { arrays, label, maps, glimpses } = answer;
    const picture = pictureAt(arrays.pixels);
    const panels = maps.map((name) => {
        const { data, shape, low, high } = arrays[name];
        const map = { values: data, rows: shape[0], columns: shape[1], high: Math.max(Math.abs(low), Math.abs(high)) };
        return picturePanel(MAPS[name][0], paintPicture(picture, map), { side: PANEL });
    });
    const meanings = maps.map((name) => `${capitalise(MAPS[name][0])}: ${MAPS[name][1]}.`).join(" ");
    const caption = `Red supports the label “${label}”, and blue opposes it. ${meanings}`;
    const parts = figure({ name: "maps", title: `Which parts of ${chosenFile.name} determine the label “${label}”`, caption });
    parts.body.append(
        h("div", { class: "picture-panels" }, picturePanel("picture", paintPicture(picture), { side: PANEL }), panels),
    );
    parts.table(() => tableOfMaps(answer));
    parts.element.dataset.shown = String(requestId);
    setChildren(stage, labelLine(answer), glimpses.length ? glimpseFigure(answer, picture).element : null, parts.element);
}

function tableOfMaps({ maps, arrays }) {
    const cells = (name) =>
        Array.from(arrays[name].data, (value, i) => {
            const columns = arrays[name].shape[1];
            return [MAPS[name][0], Math.floor(i / columns) + 1, (i % columns) + 1, roundFloat16(value)];
        });
    return { columns: ["map", "row", "column", "value"], rows: maps.flatMap(cells) };
}

/** The path of the glimpses, from blue to orange. */
function glimpseFigure({ label, glimpses }, picture) {
    const colour = (i) => {
        const part = i / Math.max(1, glimpses.length - 1);
        const mixed = FIRST_COLOUR.map((first, c) => Math.round(first + part * (LAST_COLOUR[c] - first)));
        return `rgb(${mixed.join(" ")})`;
    };
    const box = ({ row, column }, side, scale) => ({
        x: scale * (column - side / 2),
        y: scale * (row - side / 2),
        width: scale * side,
        height: scale * side,
    });
    const squares = (scale) =>
        glimpses.flatMap((glimpse, i) =>
            glimpse.sides.map((side) => s("rect", { ...box(glimpse, side, scale), class: "square", stroke: colour(i) })),
        );
    const path = (scale) => {
        const points = glimpses.map(({ row, column }) => `${scale * column},${scale * row}`).join(" ");
        return s("polyline", { class: "path", points });
    };
    const centres = (scale) =>
        glimpses.map(({ row, column }, i) =>
            s(
                "g",
                { transform: `translate(${scale * column} ${scale * row})` },
                s("circle", { r: 9, fill: colour(i) }),
                s("text", { class: "number", "text-anchor": "middle", "dominant-baseline": "central" }, String(i + 1)),
            ),
        );
    const overlay = (scale) => [squares(scale), path(scale), centres(scale)];
    const faint = paintPicture(picture, { values: [0], rows: 1, columns: 1, high: 1 });
    const describe = ({ probability }, i) => `after glimpse ${i + 1}: ${formatNumber(probability)}`;
    const fig = figure({
        name: "glimpses",
        title: "The path of the glimpses",
        caption: `The squares of each glimpse, from blue to orange. p(${label}) ${glimpses.map(describe).join(", ")}.`,
    });
    const panel = picturePanel("glimpses, in order", faint, { side: 2 * PANEL, overlay });
    fig.body.append(h("div", { class: "picture-panels" }, panel));
    fig.table(() => ({
        columns: ["glimpse", "row", "column", "sides", `p(${label})`],
        rows: glimpses.map(({ row, column, sides, probability }, i) => [i + 1, row, column, sides.join(", "), probability]),
    }));
    return fig;
}

// --- the frames of a clip ---

function drawClip(stage, answer, requestId) {
    const { arrays, frames, weights = {}, label } = answer;
    const count = arrays.pixels.shape[0];
    const names = Object.keys(weights);
    const high = Object.fromEntries(names.map((name) => [name, Math.max(1e-9, ...weights[name].map(Math.abs))]));
    const panels = Array.from({ length: count }, (_, i) => {
        const name = frames ? `${i + 1} ${frames[i].label}` : String(i + 1);
        const panel = picturePanel(name, paintPicture(pictureAt(arrays.pixels, i)), { side: FRAME_PANEL });
        panel.append(...names.map((kind) => frameBar(weights[kind][i], high[kind])));
        return panel;
    });
    const caption = frames
        ? "The number and the most probable label of each frame. The table contains the probabilities."
        : names.map((name, row) => `Bars in row ${row + 1}: ${MAPS[name].join(", ")}.`).join(" ");
    const words = frames ? "The frames and their labels" : `Which frames determine the label “${label}”`;
    const fig = figure({ name: "frames", title: `${words}: ${chosenFile.name}`, caption });
    fig.body.append(h("div", { class: "picture-panels" }, panels));
    fig.table(() => ({
        columns: ["frame", ...(frames ? ["label", "p"] : names.map((name) => MAPS[name][0]))],
        rows: panels.map((_, i) => [
            i + 1,
            ...(frames ? [frames[i].label, frames[i].probability] : names.map((name) => weights[name][i])),
        ]),
    }));
    fig.element.dataset.shown = String(requestId);
    setChildren(stage, labelLine(answer), fig.element);
}

/** A bar from a middle line, upwards for positive values. */
function frameBar(value, high) {
    const [middle, length] = [BAR_HEIGHT / 2, (Math.abs(value) / high) * (BAR_HEIGHT / 2 - 1)];
    const box = { x: 0, y: value < 0 ? middle : middle - length, width: 22, height: length, fill: signColour(value) };
    return s(
        "svg",
        { class: "frame-bars", width: FRAME_PANEL, height: BAR_HEIGHT, "aria-hidden": "true" },
        s("rect", box),
        s("line", { class: "ground", x1: 0, x2: FRAME_PANEL, y1: middle, y2: middle }),
        s("text", { x: 30, y: middle - 4 }, formatNumber(value)),
    );
}

// --- generated images ---

async function showGenerated(page, run, picker, stage) {
    let latest = 0;
    const load = async (changes = {}) => {
        page.setParams(changes);
        const requestId = ++latest;
        const [samples, seed] = [countParam(page, "samples", 9, 1, 36), countParam(page, "seed", 0, 0, 2 ** 31 - 1)];
        const answer = await page.request("images/generate", { run: run.id, samples, seed });
        if (requestId !== latest) return;
        page.clearError();
        drawSteps(page, stage, answer, requestId);
    };
    const reload = (name) => (value) => load({ [name]: String(Math.round(value)) }).catch((error) => page.fail(error));
    setChildren(
        page.root,
        controls(
            picker,
            numberBox("Images", { min: 1, max: 36, value: countParam(page, "samples", 9, 1, 36) }, reload("samples")),
            numberBox("Seed", { min: 0, max: 2 ** 31 - 1, value: countParam(page, "seed", 0, 0, 2 ** 31 - 1) }, reload("seed")),
        ),
        stage,
    );
    await load();
}

/** A whole number in the address, or its default. */
function countParam(page, name, otherwise, low, high) {
    const value = page.params.get(name);
    return /^[0-9]{1,10}$/.test(value ?? "") && value >= low && value <= high ? Number(value) : otherwise;
}

function drawSteps(page, stage, { arrays }, requestId) {
    const [count, steps] = arrays.canvases.shape;
    let step = countParam(page, "step", steps, 1, steps);
    const caption =
        "The brightness of a pixel is the probability that the pixel is white." +
        (arrays.frames ? " The red frame encloses the centres of the filters that write in this step." : "");
    const fig = figure({ name: "steps", title: "", caption });
    const grid = h("div", { class: "picture-panels" });
    fig.body.append(grid);
    const draw = () => {
        fig.setText(`The canvas after step ${step} of ${steps}`);
        setChildren(
            grid,
            Array.from({ length: count }, (_, i) => {
                const index = i * steps + step - 1;
                const picture = pictureAt(arrays.canvases, index);
                const overlay = arrays.frames && writtenRegion(arrays.frames.data.subarray(4 * index, 4 * index + 4));
                return picturePanel(`image ${i + 1}`, paintPicture(picture), { side: FRAME_PANEL, overlay });
            }),
        );
    };
    const turn = (next) => {
        step = next;
        page.setParams({ step: next === steps ? null : String(next) });
        draw();
    };
    const field = slider("Step", { min: 1, max: steps, step: 1, value: step, format: String }, turn);
    const input = field.querySelector("input");
    const turnTo = (next) => {
        input.value = next;
        input.dispatchEvent(new Event("input"));
    };
    fig.table(() => tableOfSteps(arrays));
    draw();
    fig.element.dataset.shown = String(requestId);
    setChildren(stage, steps > 1 ? controls(field, playButton(page, steps, () => step, turnTo)) : null, fig.element);
}

/** A button that shows all steps, one after the other. */
function playButton(page, steps, current, turnTo) {
    let timer = null;
    const stop = () => {
        clearInterval(timer);
        timer = null;
        node.textContent = "Play";
    };
    const advance = () => (current() < steps && node.isConnected ? turnTo(current() + 1) : stop());
    const node = button("Play", () => {
        if (timer !== null) return stop();
        turnTo(1);
        node.textContent = "Stop";
        timer = setInterval(advance, PLAY_MILLISECONDS);
    });
    page.signal.addEventListener("abort", stop);
    return node;
}

/** A frame around the region that a step writes: its first and last row, first and last column. */
const writtenRegion = ([top, bottom, left, right]) => (scale) =>
    s("rect", {
        class: "written",
        x: scale * (left + 0.5),
        y: scale * (top + 0.5),
        width: scale * (right - left),
        height: scale * (bottom - top),
    });

/** The mean value of the canvas after each step, and the region that the step writes. */
function tableOfSteps({ canvases, frames }) {
    const [count, steps, height, width] = canvases.shape;
    const rows = Array.from({ length: count * steps }, (_, index) => {
        const { data } = pictureAt(canvases, index);
        const mean = data.reduce((sum, value) => sum + value, 0) / (3 * 255 * height * width);
        const region = frames ? Array.from(frames.data.subarray(4 * index, 4 * index + 4)) : [];
        return [Math.floor(index / steps) + 1, (index % steps) + 1, mean, ...region];
    });
    const region = frames ? ["first row", "last row", "first column", "last column"] : [];
    return { columns: ["image", "step", "mean value", ...region], rows };
}
