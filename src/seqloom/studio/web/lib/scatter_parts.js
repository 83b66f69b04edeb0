// Parts of a scatter plot: sprites of the points, labels and their placement, and the legend.

import { s, formatNumber } from "./dom.js";
import { series, table, step as stepOf } from "./colour.js";

export const LABEL_PADDING = 3; // padding of a label in pixels
const SHADES = 48; // of a numeric colouring
const COLOURS = 7; // of groups; further groups use another shape
const SHAPES = ["circle", "square", "triangle"];
const MIN_SHADE = 70; // of the 256 shades; lighter shades are invisible on the background

/** The value of a CSS custom property. */
export function ink(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The font size of labels in pixels, which follows the font size of the page. */
export function letterSize() {
    return Math.round(0.88 * parseFloat(getComputedStyle(document.documentElement).fontSize));
}

export function palette() {
    const names = ["paper", "ink", "soft", "accent", "text"];
    return { ...Object.fromEntries(names.map((item) => [item, ink(`--${item}`)])), size: letterSize() };
}

/** Minimum and maximum of all x (`side` 0) or all y (`side` 1). */
export function extent(points, side) {
    let [low, high] = [Infinity, -Infinity];
    for (let i = side; i < points.length; i += 2) {
        if (points[i] < low) low = points[i];
        if (points[i] > high) high = points[i];
    }
    return high >= low ? [low, high] : [-1, 1];
}

export function short(text, most = 24) {
    return text.length > most ? `${text.slice(0, most - 1)}…` : text.replace(/\n/g, "↵") || "∅";
}

/** The legend of groups; a click isolates a group. */
export function groupKey(node, colouring, wide, only, choose) {
    let [x, y] = [0, 14];
    colouring.groups.forEach((group, i) => {
        const room = 38 + textWidth(short(group, 28), { text: ink("--text"), size: 14 });
        if (x + room > wide && x > 0) [x, y] = [0, y + 28];
        node.append(
            s(
                "g",
                {
                    class: only !== null && only !== i ? "off" : null,
                    role: "button",
                    tabindex: "0",
                    transform: `translate(${x} ${y})`,
                    "aria-pressed": String(only === i),
                    "aria-label": `Show only ${group}`,
                    onclick: () => choose(i),
                    onkeydown: (event) => pressed(event, () => choose(i)),
                },
                s("rect", { class: "hit", x: 0, y: -13, width: room - 8, height: 26, rx: 6 }),
                shape(colouring, i, 12, 0),
                s("text", { x: 24, y: 5, class: "label" }, short(group, 28)),
            ),
        );
        x += room + 4;
    });
    node.setAttribute("height", y + 16);
}

function pressed(event, act) {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
}

/** The legend of a numeric colouring. */
export function numberKey(node, colouring) {
    const { low, high } = rangeOf(colouring);
    const cell = { y: 4, width: 5, height: 14, "shape-rendering": "crispEdges" };
    const cells = Array.from({ length: SHADES }, (_, i) => s("rect", { ...cell, x: 5 * i, fill: shade(i) }));
    const words = (value) => formatNumber(colouring.log ? 10 ** value : value, 0);
    node.append(
        s("text", { x: 0, y: 16, class: "tick" }, words(low)),
        s(
            "g",
            { transform: `translate(${14 + 8 * words(low).length} 0)` },
            ...cells,
            s("text", { x: 5 * SHADES + 10, y: 16, class: "tick" }, `${words(high)}   ${colouring.title}`),
        ),
    );
    node.setAttribute("height", 26);
}

function rangeOf({ values, log }) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) {
        const scaled = log ? Math.log10(Math.max(value, 1e-9)) : value;
        if (scaled < low) low = scaled;
        if (scaled > high) high = scaled;
    }
    return { low, high: high > low ? high : low + 1 };
}

/** The sprite index of each point. */
export function spriteIndices(colouring) {
    if (colouring.groups.length) return Uint16Array.from(colouring.values);
    const { low, high } = rangeOf(colouring);
    return Uint16Array.from(colouring.values, (value) => {
        const scaled = colouring.log ? Math.log10(Math.max(value, 1e-9)) : value;
        return Math.round(((scaled - low) / (high - low)) * (SHADES - 1));
    });
}

function shade(i) {
    const at = 4 * ((MIN_SHADE + (stepOf(i, 0, SHADES - 1) * (255 - MIN_SHADE)) / 255) | 0);
    const [r, g, b] = table().subarray(at, at + 3);
    return `rgb(${r} ${g} ${b})`;
}

function lookOf(colouring, i) {
    if (!colouring.groups.length) return { colour: shade(i), form: "circle" };
    if (colouring.groups[i] === "other") return { colour: series(COLOURS), form: "circle" };
    return { colour: series(i % COLOURS), form: SHAPES[Math.floor(i / COLOURS) % SHAPES.length] };
}

/** The SVG mark of a group or shade. */
export function shape(colouring, i, x, y, r = 6) {
    const { colour, form } = lookOf(colouring, i);
    if (form === "circle") return s("circle", { cx: x, cy: y, r, fill: colour });
    if (form === "square")
        return s("rect", { x: x - 0.9 * r, y: y - 0.9 * r, width: 1.8 * r, height: 1.8 * r, fill: colour });
    return s("path", {
        d: `M${x} ${y - 1.15 * r} L${x + 1.1 * r} ${y + 0.85 * r} L${x - 1.1 * r} ${y + 0.85 * r} Z`,
        fill: colour,
    });
}

/** A bright and a dimmed sprite for each colour. */
export function makeSprites(colouring, radius, ratio, paper, dim) {
    const ground = rgb(paper),
        count = colouring.groups.length || SHADES;
    const sprites = Array.from({ length: count }, (_, i) => drawnPixels(lookOf(colouring, i), radius, ratio, paper));
    const laidOut = (opacity) => sprites.map((item) => blend(item, ground, opacity));
    return { radius, bright: laidOut(1), pale: laidOut(dim) };
}

/** The visible pixels of a mark, blended with the background: {x, y, colour}. */
function blend({ data, side }, ground, opacity) {
    const pixels = { x: [], y: [], colour: [], laidOut: new Map() };
    for (let at = 0; at < side * side; at++) {
        const alpha = (data[4 * at + 3] / 255) * opacity;
        if (data[4 * at + 3] < 24) continue;
        const [r, g, b] = [0, 1, 2].map((c) => Math.round(ground[c] + alpha * (data[4 * at + c] - ground[c])));
        pixels.x.push((at % side) - (side >> 1));
        pixels.y.push(Math.floor(at / side) - (side >> 1));
        pixels.colour.push(((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
    }
    return pixels;
}

/** A pixel buffer with a margin, so that sprites at the edge need no clipping. */
export function pixelBuffer(wide, high) {
    const margin = 24,
        row = wide + 2 * margin;
    const image = new ImageData(row, high + 2 * margin),
        pixels = new Uint32Array(image.data.buffer);
    return {
        wide,
        high,
        clear(paper) {
            const [r, g, b] = rgb(paper);
            pixels.fill(((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
        },
        put(sprite, x, y) {
            if (x <= -margin / 2 || y <= -margin / 2 || x >= wide + margin / 2 || y >= high + margin / 2) return;
            const { steps, colours } = offsetsOf(sprite, row),
                base = (y + margin) * row + x + margin;
            for (let k = 0; k < steps.length; k++) pixels[base + steps[k]] = colours[k];
        },
        show(pen) {
            pen.putImageData(image, -margin, -margin);
        },
    };
}

/** The pixel offsets of a sprite for a given row length, cached. */
function offsetsOf(sprite, row) {
    if (sprite.row !== row) {
        sprite.row = row;
        const steps = Int32Array.from(sprite.x, (x, k) => sprite.y[k] * row + x);
        sprite.laidOut = { steps, colours: Uint32Array.from(sprite.colour) };
    }
    return sprite.laidOut;
}

function rgb(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

let pad = null; // scratch canvas for sprites

function drawnPixels({ colour, form }, radius, ratio, edge) {
    const side = 2 * Math.ceil((radius + 1.5) * ratio) + 1;
    const [middle, r] = [side / 2, radius * ratio];
    pad ??= new OffscreenCanvas(64, 64).getContext("2d", { willReadFrequently: true });
    const pen = pad;
    pen.clearRect(0, 0, 64, 64);
    pen.fillStyle = colour;
    pen.strokeStyle = edge; // a thin outline separates overlapping points
    pen.lineWidth = 0.7 * ratio;
    pen.beginPath();
    if (form === "circle") pen.arc(middle, middle, r, 0, 2 * Math.PI);
    else if (form === "square") pen.rect(middle - 0.9 * r, middle - 0.9 * r, 1.8 * r, 1.8 * r);
    else {
        pen.moveTo(middle, middle - 1.15 * r);
        pen.lineTo(middle + 1.1 * r, middle + 0.85 * r);
        pen.lineTo(middle - 1.1 * r, middle + 0.85 * r);
        pen.closePath();
    }
    pen.fill();
    if (radius > 2.5) pen.stroke();
    return { data: pen.getImageData(0, 0, side, side).data, side };
}

let measure = null;

export function textWidth(text, { text: font, size }) {
    measure ??= new OffscreenCanvas(1, 1).getContext("2d");
    measure.font = `${size}px ${font}`;
    return measure.measureText(text).width;
}

/** An outlined label as an image. */
export function tagPicture(text, ratio, colour, { paper, text: font, size }) {
    const [wide, high] = [Math.ceil(textWidth(text, { text: font, size })) + 2 * LABEL_PADDING, size + 8];
    const image = new OffscreenCanvas(Math.ceil(wide * ratio), Math.ceil(high * ratio));
    const pen = image.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = measure.font;
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    pen.strokeStyle = paper;
    pen.lineWidth = 3.5;
    pen.strokeText(text, LABEL_PADDING, high / 2);
    pen.fillStyle = colour;
    pen.fillText(text, LABEL_PADDING, high / 2);
    return { image, wide, high };
}

/** Candidate label positions: right, left, above, below, then diagonal. */
export function labelPositions(x, y, away, width) {
    const [right, left_, middle, high] = [x + away, x - away - width, x - width / 2, away + 7];
    const aslant = [right, left_].flatMap((side) => [
        [side, y - high],
        [side, y + high],
    ]);
    return [[right, y], [left_, y], [middle, y - high], [middle, y + high], ...aslant];
}

/** Occupancy grid of 4 × 4 pixels: `take` reserves a rectangle if it is free. */
export function occupancyGrid(width, height) {
    const [columns, rows] = [Math.ceil(width / 4) + 1, Math.ceil(height / 4) + 1];
    const cells = new Uint8Array(columns * rows);
    return {
        take(x, y, w, h_) {
            const cell = (pixel, most) => Math.min(Math.max(Math.floor(pixel / 4), 0), most - 1);
            const [c1, c2] = [cell(x, columns), cell(x + w, columns)];
            const [r1, r2] = [cell(y, rows), cell(y + h_, rows)];
            for (let r = r1; r <= r2; r++) for (let c = c1; c <= c2; c++) if (cells[r * columns + c]) return false;
            for (let r = r1; r <= r2; r++) cells.fill(1, r * columns + c1, r * columns + c2 + 1);
            return true;
        },
    };
}
