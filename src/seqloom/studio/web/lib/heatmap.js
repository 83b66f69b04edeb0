// A matrix as colours: a canvas for the cells, SVG for the words beside it, a cursor that arrow keys move.

import { h, s, clear, number, say } from "./dom.js";
import { onTheme, table } from "./colour.js";
import { shown } from "./tokens.js";

const LABEL = 14; // pixels of a letter's height …
const WIDE = 8; // … and of its width, roughly
const MIN_LABEL_PIXELS = 17; // from one label to the next
const LARGEST = 44;
const STICKS_OUT = 46;
const ROOM = 190; // most pixels for labels
const TURN = 48; // degrees, of a column's word that has no room to lie flat …
const SLOPE = Math.tan((TURN * Math.PI) / 180); // … and how steep that is

/** Paint values (rows × columns) onto a canvas, a pixel a cell. With `root`, from 0 to high by √: small ones show. */
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
        const place = (scale * (root ? Math.sqrt(values[i]) : values[i] - low) + 0.5) | 0; // NaN becomes 0
        pixels[i] = colours[place < 0 ? 0 : place > last ? last : place];
    }
    pen.putImageData(image, 0, 0);
    return canvas;
}

/** A small picture of a matrix, without words. */
export function thumbnail(values, rows, columns, options = {}) {
    return paint(h("canvas", { class: "cells", "aria-hidden": "true" }), values, rows, columns, options);
}

/**
 * A matrix with its words. `values` are row by row. `onHover(row, column)` also comes from the keyboard, with (null,
 * null) on leaving. `size` is the widest and highest it may become, `largest` the most that a cell may, in pixels;
 * rows are no higher than columns are wide, unless `leastHeight` says so.
 */
export function heatmap(options) {
    let now = { low: 0, high: 1, signed: false, size: [860, 640], rowTitle: "", columnTitle: "", ...options };
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
            "aria-label": now.label ?? "Matrix",
        },
        canvas,
        drawing,
    );
    const element = h("div", { class: "heatmap-frame" }, stage, readout);
    let cursor = null;
    let shape = null;

    function draw() {
        shape = layout(now);
        paint(canvas, now.values, now.rows.length, now.columns.length, now);
        Object.assign(stage.style, { width: `${shape.width}px`, height: `${shape.height}px` });
        Object.assign(canvas.style, {
            left: `${shape.left}px`,
            top: `${shape.top}px`,
            width: `${shape.cell * now.columns.length}px`,
            height: `${shape.cellHeight * now.rows.length}px`,
        });
        drawing.setAttribute("width", shape.width);
        drawing.setAttribute("height", shape.height);
        clear(drawing).append(...labels(now, shape), s("g", { class: "lit" }));
        mark();
    }

    function mark() {
        const lit = drawing.querySelector(".lit");
        if (!lit) return;
        clear(lit);
        if (!cursor) return;
        const [row, column] = cursor;
        const { left, top, cell, cellHeight } = shape;
        if (column !== null) {
            lit.append(
                s("rect", {
                    class: "band",
                    x: left + column * cell,
                    y: top,
                    width: cell,
                    height: cellHeight * now.rows.length,
                }),
            );
        }
        if (row !== null) {
            lit.append(
                s("rect", {
                    class: "band",
                    x: left,
                    y: top + row * cellHeight,
                    width: cell * now.columns.length,
                    height: cellHeight,
                }),
            );
        }
    }

    function move(row, column, from) {
        cursor = row === null && column === null ? null : [row, column];
        mark();
        if (cursor && row !== null && column !== null) {
            const words = `${shown(now.rows[row])} → ${shown(now.columns[column])}: ${number(now.values[row * now.columns.length + column])}`;
            readout.textContent = words;
            if (from === "keys") say(words);
        } else readout.textContent = cursor ? strongest(row, column) : "";
        if (from) now.onHover?.(row, column);
    }

    /** What a row or a column has most of. */
    function strongest(row, column) {
        const [word, others] = row === null ? [now.columns[column], now.rows] : [now.rows[row], now.columns];
        const value = (i) => now.values[row === null ? i * now.columns.length + column : row * now.columns.length + i];
        const size = ([one]) => Math.abs(one);
        const sorted = others.map((other, i) => [value(i), other]).sort((a, b) => size(b) - size(a));
        const best = sorted.slice(0, 4).filter((one) => size(one) >= now.high / 1000);
        return `${shown(word)}: ${best.map(([most, other]) => `${shown(other)} ${number(most)}`).join(", ")}`;
    }

    /** The cell under the pointer; beside the cells, the row or the column of the word that stands there. */
    const placeOf = (event) => {
        const box = canvas.getBoundingClientRect();
        const above = Math.max(0, box.top - event.clientY);
        const x = event.clientX - box.left - (shape.upright ? 0 : above / SLOPE);
        const [column, row] = [
            Math.floor((x / box.width) * now.columns.length),
            Math.floor(((event.clientY - box.top) / box.height) * now.rows.length),
        ];
        const [inRow, inColumn] = [row >= 0 && row < now.rows.length, column >= 0 && column < now.columns.length];
        if (inRow && inColumn) return [row, column];
        if (inRow && column < 0) return [row, null];
        return inColumn && row < 0 ? [null, column] : [null, null];
    };
    stage.addEventListener("pointermove", (event) => {
        const [row, column] = placeOf(event);
        if (row !== (cursor?.[0] ?? null) || column !== (cursor?.[1] ?? null)) move(row, column, "pointer");
    });
    stage.addEventListener("pointerleave", () => move(null, null, "pointer"));
    stage.addEventListener("click", (event) => {
        const [row, column] = placeOf(event);
        if (row !== null && column !== null) now.onPick?.(row, column);
    });
    stage.addEventListener("keydown", (event) => {
        const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (steps) {
            event.preventDefault();
            const [row, column] = cursor ? [cursor[0] ?? 0, cursor[1] ?? 0] : [-steps[0], -steps[1]];
            move(within(row + steps[0], now.rows.length), within(column + steps[1], now.columns.length), "keys");
        } else if (event.key === "Enter" && cursor) now.onPick?.(...cursor);
        else if (event.key === "Escape") move(null, null, "keys");
    });
    const forget = onTheme(() => (element.isConnected ? draw() : forget()));
    draw();
    return {
        element,
        update(changes) {
            now = { ...now, ...changes };
            cursor = null;
            readout.textContent = "";
            if (changes.label) stage.setAttribute("aria-label", changes.label);
            draw();
        },
        light(row, column) {
            move(row, column, null);
        },
        get shape() {
            return shape;
        },
        get values() {
            return now.values;
        },
    };
}

const within = (place, count) => Math.min(Math.max(place, 0), count - 1);

/** How large cells are, and how much room their words need. */
function layout({ rows, columns, size, rowTitle, columnTitle, largest = LARGEST, leastHeight = 0 }) {
    const longest = (words) => Math.min(ROOM, 14 + WIDE * Math.max(1, ...words.map((word) => [...shown(word)].length)));
    const left = longest(rows) + (rowTitle ? 34 : 0);
    const across = longest(columns);
    const upright = fitsFlat(columns, size, left, largest);
    const top = (upright ? 26 : Math.ceil(0.75 * across) + 16) + (columnTitle ? 24 : 0);
    const right = upright
        ? columns.length > 1 && [...shown(columns.at(-1))].length > 2
            ? 44
            : 12
        : Math.ceil(0.7 * across);
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

/** Whether every column's word has room above it without being turned; the first and the last, often </s>, may stick out. */
function fitsFlat(columns, size, left, largest) {
    const cell = Math.min(largest, (size[0] - left - 12) / columns.length);
    const fits = (word, i) =>
        [...shown(word)].length * WIDE + 6 <= (i % (columns.length - 1 || 1) ? cell : Math.max(cell, STICKS_OUT));
    return columns.every(fits);
}

/** Where a word that lies flat is held: one that is too wide for the first or the last column leans outwards. */
function held(columns, i, cell) {
    if ([...shown(columns[i])].length * WIDE + 6 <= cell || i % (columns.length - 1 || 1)) return ["middle", 0];
    return i ? ["start", -0.4 * cell] : ["end", 0.4 * cell];
}

function labels({ rows, columns, rowTitle, columnTitle }, { left, top, cell, cellHeight, upright, width, height }) {
    const found = [];
    const everyRow = Math.ceil(MIN_LABEL_PIXELS / cellHeight);
    const everyColumn = Math.ceil((upright ? MIN_LABEL_PIXELS : 1.3 * MIN_LABEL_PIXELS) / cell);
    rows.forEach((word, i) => {
        if (i % everyRow) return;
        found.push(
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
        const turned = upright ? null : `rotate(${-TURN} ${x} ${y})`;
        const [anchor, shift] = upright ? held(columns, i, cell) : ["start", 0];
        found.push(
            s(
                "text",
                {
                    class: "label",
                    x: x + shift,
                    y,
                    "text-anchor": anchor,
                    "dominant-baseline": upright ? null : "central",
                    transform: turned,
                },
                cut(word),
            ),
        );
    });
    found.push(
        s("rect", {
            class: "edge",
            x: left - 0.5,
            y: top - 0.5,
            width: cell * columns.length + 1,
            height: cellHeight * rows.length + 1,
        }),
    );
    if (columnTitle) found.push(s("text", { class: "axis", x: left, y: LABEL }, columnTitle));
    if (rowTitle) {
        const tall = cellHeight * rows.length;
        const fits = WIDE * rowTitle.length <= tall; // otherwise it begins at the last row and reaches above the first
        const y = top + (fits ? tall / 2 : tall);
        found.push(
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
    return found;
}

function cut(word) {
    const letters = [...shown(word)];
    const most = Math.floor((ROOM - 14) / WIDE);
    return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
}

/** What the colours of a matrix mean: a bar from low to high. */
export function scaleBar() {
    const [width, height] = [200, 12];
    const canvas = h("canvas", { class: "cells scale-colours", "aria-hidden": "true" });
    const words = s("svg", { width, height: 38, "aria-hidden": "true" });
    const element = h("div", { class: "scale-bar" }, canvas, words);
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    let now = { low: 0, high: 1, signed: false, root: false, title: "" };
    function draw() {
        paint(
            canvas,
            Float32Array.from({ length: 128 }, (_, i) => i / 127),
            1,
            128,
            { signed: now.signed },
        );
        const middle = now.root ? now.high / 4 : (now.low + now.high) / 2;
        const ticks = [
            [0, "start", now.low],
            [width / 2, "middle", middle],
            [width, "end", now.high],
        ];
        clear(words).append(
            ...ticks.map(([x, anchor, value]) =>
                s("text", { class: "tick", x, y: 15, "text-anchor": anchor }, number(value, 2)),
            ),
            s("text", { class: "tick", x: width / 2, y: 33, "text-anchor": "middle" }, now.title),
        );
    }
    const forget = onTheme(() => (element.isConnected ? draw() : forget()));
    draw();
    return {
        element,
        update(changes) {
            now = { ...now, ...changes };
            draw();
        },
    };
}
