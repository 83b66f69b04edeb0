// A heat map: a canvas for the cells, SVG for the labels, and a cursor that follows pointer and arrow keys.

import { h, s, clear, formatNumber, announce } from "./dom.js";
import { onThemeChange, table } from "./colour.js";
import { displayToken } from "./tokens.js";

const LABEL = 14; // font size in pixels …
const CHARACTER_WIDTH = 8; // … and approximate character width
const MIN_LABEL_PIXELS = 17; // minimum pixels between labels
const MAX_CELL_PIXELS = 44;
const MAX_OVERHANG = 46;
const MAX_LABEL_PIXELS = 190; // maximum pixels for labels
const LABEL_ANGLE = 48; // degrees of rotated column labels
const SLOPE = Math.tan((LABEL_ANGLE * Math.PI) / 180);

/** Paint values (rows × columns) onto a canvas, one pixel per cell. `root` uses a √ scale from 0 to high. */
export function paint(canvas, values, rows, columns, { low = 0, high = 1, signed = false, root = false } = {}) {
    canvas.width = columns;
    canvas.height = rows;
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = new Uint32Array(table(signed).buffer);
    const last = colours.length - 1;
    const scale = root ? last / Math.sqrt(high || 1) : last / (high - low || 1);
    for (let i = 0; i < pixels.length; i++) {
        const index = (scale * (root ? Math.sqrt(values[i]) : values[i] - low) + 0.5) | 0; // NaN becomes 0
        pixels[i] = colours[index < 0 ? 0 : index > last ? last : index];
    }
    pen.putImageData(image, 0, 0);
    return canvas;
}

/** A heat map without labels. */
export function thumbnail(values, rows, columns, options = {}) {
    return paint(h("canvas", { class: "cells", "aria-hidden": "true" }), values, rows, columns, options);
}

/**
 * A heat map with labels. `values` are in row-major order. `onHover(row, column)` is called on pointer and keyboard
 * events, and with (null, null) on leave. In pixels, `size` is the maximum width and height, `largest` the maximum cell
 * size, and `leastHeight` a minimum row height; without it, cells are at most as high as wide.
 */
export function heatmap(options) {
    let settings = { low: 0, high: 1, signed: false, size: [860, 640], rowTitle: "", columnTitle: "", ...options };
    const canvas = h("canvas", { class: "cells" });
    const drawing = s("svg", { class: "labels", "aria-hidden": "true" });
    const readout = h("p", { class: "readout", "aria-hidden": "true" });
    const stage = h(
        "div",
        {
            class: "heatmap",
            tabindex: "0",
            role: "application",
            "aria-roledescription": "matrix",
            "aria-label": settings.label ?? "Matrix",
        },
        canvas,
        drawing,
    );
    const element = h("div", { class: "heatmap-frame" }, stage, readout);
    let cursor = null;
    let shape = null;

    function draw() {
        shape = layout(settings);
        paint(canvas, settings.values, settings.rows.length, settings.columns.length, settings);
        Object.assign(stage.style, { width: `${shape.width}px`, height: `${shape.height}px` });
        Object.assign(canvas.style, {
            left: `${shape.left}px`,
            top: `${shape.top}px`,
            width: `${shape.cell * settings.columns.length}px`,
            height: `${shape.cellHeight * settings.rows.length}px`,
        });
        drawing.setAttribute("width", shape.width);
        drawing.setAttribute("height", shape.height);
        clear(drawing).append(...labels(settings, shape), s("g", { class: "highlighted" }));
        mark();
    }

    function mark() {
        const marks = drawing.querySelector(".highlighted");
        if (!marks) return;
        clear(marks);
        if (!cursor) return;
        const [row, column] = cursor;
        const { left, top, cell, cellHeight } = shape;
        if (column !== null) {
            marks.append(
                s("rect", {
                    class: "band",
                    x: left + column * cell,
                    y: top,
                    width: cell,
                    height: cellHeight * settings.rows.length,
                }),
            );
        }
        if (row !== null) {
            marks.append(
                s("rect", {
                    class: "band",
                    x: left,
                    y: top + row * cellHeight,
                    width: cell * settings.columns.length,
                    height: cellHeight,
                }),
            );
        }
    }

    function move(row, column, from) {
        cursor = row === null && column === null ? null : [row, column];
        mark();
        if (cursor && row !== null && column !== null) {
            const words = `${displayToken(settings.rows[row])} → ${displayToken(settings.columns[column])}: ${formatNumber(settings.values[row * settings.columns.length + column])}`;
            readout.textContent = words;
            if (from === "keys") announce(words);
        } else readout.textContent = cursor ? strongest(row, column) : "";
        if (from) settings.onHover?.(row, column);
    }

    /** The largest values of a row or column. */
    function strongest(row, column) {
        const [word, others] = row === null ? [settings.columns[column], settings.rows] : [settings.rows[row], settings.columns];
        const value = (i) => settings.values[row === null ? i * settings.columns.length + column : row * settings.columns.length + i];
        const size = ([item]) => Math.abs(item);
        const sorted = others.map((other, i) => [value(i), other]).sort((a, b) => size(b) - size(a));
        const best = sorted.slice(0, 4).filter((item) => size(item) >= settings.high / 1000);
        return `${displayToken(word)}: ${best.map(([most, other]) => `${displayToken(other)} ${formatNumber(most)}`).join(", ")}`;
    }

    /** The cell under the pointer; on a label, its row or column. */
    const cellAt = (event) => {
        const box = canvas.getBoundingClientRect();
        const above = Math.max(0, box.top - event.clientY);
        const x = event.clientX - box.left - (shape.upright ? 0 : above / SLOPE);
        const [column, row] = [
            Math.floor((x / box.width) * settings.columns.length),
            Math.floor(((event.clientY - box.top) / box.height) * settings.rows.length),
        ];
        const [inRow, inColumn] = [row >= 0 && row < settings.rows.length, column >= 0 && column < settings.columns.length];
        if (inRow && inColumn) return [row, column];
        if (inRow && column < 0) return [row, null];
        return inColumn && row < 0 ? [null, column] : [null, null];
    };
    stage.addEventListener("pointermove", (event) => {
        const [row, column] = cellAt(event);
        if (row !== (cursor?.[0] ?? null) || column !== (cursor?.[1] ?? null)) move(row, column, "pointer");
    });
    stage.addEventListener("pointerleave", () => move(null, null, "pointer"));
    stage.addEventListener("click", (event) => {
        const [row, column] = cellAt(event);
        if (row !== null && column !== null) settings.onPick?.(row, column);
    });
    stage.addEventListener("keydown", (event) => {
        const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (steps) {
            event.preventDefault();
            const [row, column] = cursor ? [cursor[0] ?? 0, cursor[1] ?? 0] : [-steps[0], -steps[1]];
            move(clamp(row + steps[0], settings.rows.length), clamp(column + steps[1], settings.columns.length), "keys");
        } else if (event.key === "Enter" && cursor) settings.onPick?.(...cursor);
        else if (event.key === "Escape") move(null, null, "keys");
    });
    const stopListening = onThemeChange(() => (element.isConnected ? draw() : stopListening()));
    draw();
    return {
        element,
        update(changes) {
            settings = { ...settings, ...changes };
            cursor = null;
            readout.textContent = "";
            if (changes.label) stage.setAttribute("aria-label", changes.label);
            draw();
        },
        highlight(row, column) {
            move(row, column, null);
        },
        get shape() {
            return shape;
        },
        get values() {
            return settings.values;
        },
    };
}

const clamp = (index, count) => Math.min(Math.max(index, 0), count - 1);

/** Compute the cell size and the margins for labels. */
function layout({ rows, columns, size, rowTitle, columnTitle, largest = MAX_CELL_PIXELS, leastHeight = 0 }) {
    const longest = (words) => Math.min(MAX_LABEL_PIXELS, 14 + CHARACTER_WIDTH * Math.max(1, ...words.map((word) => [...displayToken(word)].length)));
    const left = longest(rows) + (rowTitle ? 34 : 0);
    const columnRoom = longest(columns);
    const upright = fitsFlat(columns, size, left, largest);
    const top = (upright ? 26 : Math.ceil(0.75 * columnRoom) + 16) + (columnTitle ? 24 : 0);
    const right = upright
        ? columns.length > 1 && [...displayToken(columns.at(-1))].length > 2
            ? 44
            : 12
        : Math.ceil(0.7 * columnRoom);
    const cell = Math.min(largest, Math.max((size[0] - left - right) / columns.length, size[0] / 900));
    const cellHeight = Math.min(largest * 0.9, Math.max(cell, leastHeight), Math.max((size[1] - top) / rows.length, 1));
    return {
        left,
        top,
        cell,
        cellHeight,
        upright,
        width: Math.ceil(left + cell * columns.length + right),
        height: Math.ceil(top + cellHeight * rows.length + 10),
    };
}

/** Whether all column labels fit without rotation; the first and the last, often </s>, may overhang. */
function fitsFlat(columns, size, left, largest) {
    const cell = Math.min(largest, (size[0] - left - 12) / columns.length);
    const fits = (word, i) =>
        [...displayToken(word)].length * CHARACTER_WIDTH + 6 <= (i % (columns.length - 1 || 1) ? cell : Math.max(cell, MAX_OVERHANG));
    return columns.every(fits);
}

/** The anchor of an unrotated label: the first and the last may overhang outwards. */
function held(columns, i, cell) {
    if ([...displayToken(columns[i])].length * CHARACTER_WIDTH + 6 <= cell || i % (columns.length - 1 || 1)) return ["middle", 0];
    return i ? ["start", -0.4 * cell] : ["end", 0.4 * cell];
}

function labels({ rows, columns, rowTitle, columnTitle }, { left, top, cell, cellHeight, upright, width, height }) {
    const elements = [];
    const everyRow = Math.ceil(MIN_LABEL_PIXELS / cellHeight);
    const everyColumn = Math.ceil((upright ? MIN_LABEL_PIXELS : 1.3 * MIN_LABEL_PIXELS) / cell);
    rows.forEach((word, i) => {
        if (i % everyRow) return;
        elements.push(
            s(
                "text",
                {
                    class: "label",
                    x: left - 7,
                    y: top + (i + 0.5) * cellHeight,
                    "text-anchor": "end",
                    "dominant-baseline": "central",
                },
                cut(word),
            ),
        );
    });
    columns.forEach((word, i) => {
        if (i % everyColumn) return;
        const [x, y] = [left + (i + 0.5) * cell, top - 8];
        const rotation = upright ? null : `rotate(${-LABEL_ANGLE} ${x} ${y})`;
        const [anchor, shift] = upright ? held(columns, i, cell) : ["start", 0];
        elements.push(
            s(
                "text",
                {
                    class: "label",
                    x: x + shift,
                    y,
                    "text-anchor": anchor,
                    "dominant-baseline": upright ? null : "central",
                    transform: rotation,
                },
                cut(word),
            ),
        );
    });
    elements.push(
        s("rect", {
            class: "edge",
            x: left - 0.5,
            y: top - 0.5,
            width: cell * columns.length + 1,
            height: cellHeight * rows.length + 1,
        }),
    );
    if (columnTitle) elements.push(s("text", { class: "axis", x: left, y: LABEL }, columnTitle));
    if (rowTitle) {
        const tall = cellHeight * rows.length;
        const fits = CHARACTER_WIDTH * rowTitle.length <= tall; // otherwise it extends above the first row
        const y = top + (fits ? tall / 2 : tall);
        elements.push(
            s(
                "text",
                {
                    class: "axis",
                    x: LABEL,
                    y,
                    "text-anchor": fits ? "middle" : "start",
                    transform: `rotate(-90 ${LABEL} ${y})`,
                },
                rowTitle,
            ),
        );
    }
    return elements;
}

function cut(word) {
    const letters = [...displayToken(word)];
    const maxCharacters = Math.floor((MAX_LABEL_PIXELS - 14) / CHARACTER_WIDTH);
    return letters.length > maxCharacters ? `${letters.slice(0, maxCharacters - 1).join("")}…` : letters.join("");
}

/** A colour bar. */
export function scaleBar() {
    const [width, height] = [200, 12];
    const canvas = h("canvas", { class: "cells scale-colours", "aria-hidden": "true" });
    const words = s("svg", { width, height: 38, "aria-hidden": "true" });
    const element = h("div", { class: "scale-bar" }, canvas, words);
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    let settings = { low: 0, high: 1, signed: false, root: false, title: "" };
    function draw() {
        paint(
            canvas,
            Float32Array.from({ length: 128 }, (_, i) => i / 127),
            1,
            128,
            { signed: settings.signed },
        );
        const middle = settings.root ? settings.high / 4 : (settings.low + settings.high) / 2;
        const ticks = [
            [0, "start", settings.low],
            [width / 2, "middle", middle],
            [width, "end", settings.high],
        ];
        clear(words).append(
            ...ticks.map(([x, anchor, value]) =>
                s("text", { class: "tick", x, y: 15, "text-anchor": anchor }, formatNumber(value, 2)),
            ),
            s("text", { class: "tick", x: width / 2, y: 33, "text-anchor": "middle" }, settings.title),
        );
    }
    const stopListening = onThemeChange(() => (element.isConnected ? draw() : stopListening()));
    draw();
    return {
        element,
        update(changes) {
            settings = { ...settings, ...changes };
            draw();
        },
    };
}
