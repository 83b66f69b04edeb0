// Pictures: a file chosen from disk, panels with a label, and maps of weights over a grey copy of a picture.
// A chosen file is sent only to the studio server, which returns the decoded pixels.

import { h, s } from "./dom.js";
import { table } from "./colour.js";

const MAX_BYTES = 12_000_000; // maximum size of a file, as in studio/views/pictures.py
const CHUNK = 0x8000; // bytes that are converted to a string in one call
const LABEL_HEIGHT = 24;
const FAINT_CONTRAST = 0.45; // contrast of the picture below a map
const OPACITY = 0.75; // opacity of the largest weight
const INSET = 32; // steps between the end of a colour table and the colour of the largest weight

/** A labelled file input. `onread({name, content})` receives the content of a chosen file in base64. */
export function pictureInput(page, onread, { label = "Picture", accept = "image/*" } = {}) {
    const read = async (file) => {
        if (file.size > MAX_BYTES) {
            throw new Error(`${file.name} must have at most ${MAX_BYTES / 1e6} MB. Choose a smaller picture.`);
        }
        await onread({ name: file.name.slice(0, 200), content: toBase64(new Uint8Array(await file.arrayBuffer())) });
    };
    const input = h("input", {
        type: "file",
        id: "picture-file",
        accept,
        onchange: () => input.files[0] && read(input.files[0]).catch((error) => page.fail(error)),
    });
    return h(
        "div",
        { class: "field" },
        h("label", { for: input.id }, label),
        input,
        h("span", { class: "hint" }, "The file is sent only to this studio and is not stored."),
    );
}

function toBase64(bytes) {
    let text = "";
    for (let i = 0; i < bytes.length; i += CHUNK) text += String.fromCharCode(...bytes.subarray(i, i + CHUNK));
    return btoa(text);
}

/** The picture with this index in an array of pixels (…, H, W, 3), or the only picture (H, W, 3). */
export function pictureAt({ data, shape }, index = 0) {
    const [height, width] = shape.slice(-3);
    const size = 3 * height * width;
    return { data: data.subarray(index * size, (index + 1) * size), height, width };
}

/**
 * A panel: a label, which is drawn as SVG so that it is exported, and a canvas whose longer side has `side` pixels.
 * `overlay(scale)` draws over the canvas; `scale` is the size of a pixel of the picture.
 */
export function picturePanel(name, canvas, { side, overlay = null, ...attributes }) {
    const scale = side / Math.max(canvas.height, canvas.width);
    const [width, height] = [Math.round(canvas.width * scale), Math.round(canvas.height * scale)];
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const text = s("text", { x: 0, y: LABEL_HEIGHT / 2, "dominant-baseline": "central" }, name);
    const label = s("svg", { class: "picture-label", width: side, height: LABEL_HEIGHT, "aria-hidden": "true" }, text);
    const drawing = overlay && s("svg", { class: "picture-overlay", width, height, "aria-hidden": "true" }, overlay(scale));
    return h(
        "div",
        { class: "picture-panel", role: "img", "aria-label": name, ...attributes },
        label,
        h("div", { class: "picture-frame" }, canvas, drawing),
    );
}

/**
 * A canvas with a picture, or with a grey copy of the picture below a map {values, rows, columns, high}. Positive values
 * are red, and negative values are blue. A dark picture is inverted.
 */
export function paintPicture({ data, height, width }, map = null) {
    const canvas = h("canvas", { class: "picture-canvas", width, height, "aria-hidden": "true" });
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(width, height);
    const isDark = data.reduce((sum, value) => sum + value, 0) < 128 * data.length;
    for (let y = 0, i = 0; y < height; y++) {
        for (let x = 0; x < width; x++, i++) {
            const rgb = data.subarray(3 * i, 3 * i + 3);
            image.data.set(map ? mixed(rgb, valueAt(map, x / width, y / height) / (map.high || 1), isDark) : rgb, 4 * i);
            image.data[4 * i + 3] = 255;
        }
    }
    pen.putImageData(image, 0, 0);
    return canvas;
}

/** The value of a map at a position between 0 and 1. */
export function valueAt({ values, rows, columns }, x, y) {
    return values[Math.floor(y * rows) * columns + Math.floor(x * columns)];
}

/** The colour of a map with a value between −1 and 1 over a grey copy of a pixel. */
function mixed(rgb, value, isDark) {
    const mean = (rgb[0] + rgb[1] + rgb[2]) / 3;
    const grey = 255 - FAINT_CONTRAST * (isDark ? mean : 255 - mean);
    const colours = table(true);
    const start = value < 0 ? 4 * INSET : colours.length - 4 * INSET;
    return Array.from(colours.subarray(start, start + 3), (part) => grey + OPACITY * Math.abs(value) * (part - grey));
}
