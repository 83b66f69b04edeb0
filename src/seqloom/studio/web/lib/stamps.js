// What a picture of points is made of: marks as stamps to be put down thousands of times, names, room for them, a key.

import { s, number } from "./dom.js";
import { series, table, step as stepOf } from "./colour.js";

export const TAG = 3; // pixels around a name
const SHADES = 48; // of a colour that stands for a number
const COLOURS = 7; // of groups; then the next shape
const SHAPES = ["circle", "square", "triangle"];
const PALEST = 70; // of the 256 shades: fainter ones could not be seen on the paper

/** A colour or a font of the page, by its name in the style sheet. */
export function ink(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Pixels of the letters of a name: larger on a projector, as everything is there. */
export function letterSize() {
    return Math.round(0.88 * parseFloat(getComputedStyle(document.documentElement).fontSize));
}

export function palette() {
    const names = ["paper", "ink", "soft", "accent", "text"];
    return { ...Object.fromEntries(names.map((one) => [one, ink(`--${one}`)])), size: letterSize() };
}

/** The least and the largest of every second number: of all x, or of all y. */
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

/** The names of the groups, each with its mark; a click shows one of them alone. */
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
                    "aria-label": `Only ${group}`,
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

/** The shades from the least to the largest number. */
export function numberKey(node, colouring) {
    const { low, high } = rangeOf(colouring);
    const cell = { y: 4, width: 5, height: 14, "shape-rendering": "crispEdges" };
    const cells = Array.from({ length: SHADES }, (_, i) => s("rect", { ...cell, x: 5 * i, fill: shade(i) }));
    const words = (value) => number(colouring.log ? 10 ** value : value, 0);
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
        const own = log ? Math.log10(Math.max(value, 1e-9)) : value;
        if (own < low) low = own;
        if (own > high) high = own;
    }
    return { low, high: high > low ? high : low + 1 };
}

/** The number of each point's stamp. */
export function shadesOf(colouring) {
    if (colouring.groups.length) return Uint16Array.from(colouring.values);
    const { low, high } = rangeOf(colouring);
    return Uint16Array.from(colouring.values, (value) => {
        const own = colouring.log ? Math.log10(Math.max(value, 1e-9)) : value;
        return Math.round(((own - low) / (high - low)) * (SHADES - 1));
    });
}

function shade(i) {
    const at = 4 * ((PALEST + (stepOf(i, 0, SHADES - 1) * (255 - PALEST)) / 255) | 0);
    const [r, g, b] = table().subarray(at, at + 3);
    return `rgb(${r} ${g} ${b})`;
}

function lookOf(colouring, i) {
    if (!colouring.groups.length) return { colour: shade(i), form: "circle" };
    if (colouring.groups[i] === "other") return { colour: series(COLOURS), form: "circle" };
    return { colour: series(i % COLOURS), form: SHAPES[Math.floor(i / COLOURS) % SHAPES.length] };
}

/** The mark of a group or a shade. */
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

/** For each colour its stamp, and a pale one. */
export function stamps(colouring, radius, ratio, paper, dim) {
    const ground = rgb(paper),
        count = colouring.groups.length || SHADES;
    const drawn = Array.from({ length: count }, (_, i) => drawnPixels(lookOf(colouring, i), radius, ratio, paper));
    const made = (share) => drawn.map((one) => solid(one, ground, share));
    return { radius, bright: made(1), pale: made(dim) };
}

/** The pixels of a mark that can be seen, as if it lay on paper: {x, y, colour}. */
function solid({ data, side }, ground, share) {
    const found = { x: [], y: [], colour: [], made: new Map() };
    for (let at = 0; at < side * side; at++) {
        const alpha = (data[4 * at + 3] / 255) * share;
        if (data[4 * at + 3] < 24) continue;
        const [r, g, b] = [0, 1, 2].map((c) => Math.round(ground[c] + alpha * (data[4 * at + c] - ground[c])));
        found.x.push((at % side) - (side >> 1));
        found.y.push(Math.floor(at / side) - (side >> 1));
        found.colour.push(((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
    }
    return found;
}

/** A sheet of pixels with a margin, so that no stamp at the edge needs to be cut. */
export function sheet(wide, high) {
    const margin = 24,
        row = wide + 2 * margin;
    const picture = new ImageData(row, high + 2 * margin),
        pixels = new Uint32Array(picture.data.buffer);
    return {
        wide,
        high,
        clear(paper) {
            const [r, g, b] = rgb(paper);
            pixels.fill(((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
        },
        put(stamp, x, y) {
            if (x <= -margin / 2 || y <= -margin / 2 || x >= wide + margin / 2 || y >= high + margin / 2) return;
            const { steps, colours } = laid(stamp, row),
                base = (y + margin) * row + x + margin;
            for (let k = 0; k < steps.length; k++) pixels[base + steps[k]] = colours[k];
        },
        show(pen) {
            pen.putImageData(picture, -margin, -margin);
        },
    };
}

/** A stamp as steps from its middle, on a sheet with rows so wide. */
function laid(stamp, row) {
    if (stamp.row !== row) {
        stamp.row = row;
        const steps = Int32Array.from(stamp.x, (x, k) => stamp.y[k] * row + x);
        stamp.made = { steps, colours: Uint32Array.from(stamp.colour) };
    }
    return stamp.made;
}

function rgb(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

let pad = null; // to draw a mark on, before it is made a stamp

function drawnPixels({ colour, form }, radius, ratio, edge) {
    const side = 2 * Math.ceil((radius + 1.5) * ratio) + 1;
    const [middle, r] = [side / 2, radius * ratio];
    pad ??= new OffscreenCanvas(64, 64).getContext("2d", { willReadFrequently: true });
    const pen = pad;
    pen.clearRect(0, 0, 64, 64);
    pen.fillStyle = colour;
    pen.strokeStyle = edge; // a thin edge tells points apart that lie on each other
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

/** A name with a rim of paper, as a picture. */
export function tagPicture(text, ratio, colour, { paper, text: font, size }) {
    const [wide, high] = [Math.ceil(textWidth(text, { text: font, size })) + 2 * TAG, size + 8];
    const picture = new OffscreenCanvas(Math.ceil(wide * ratio), Math.ceil(high * ratio));
    const pen = picture.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = measure.font;
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    pen.strokeStyle = paper;
    pen.lineWidth = 3.5;
    pen.strokeText(text, TAG, high / 2);
    pen.fillStyle = colour;
    pen.fillText(text, TAG, high / 2);
    return { picture, wide, high };
}

/** Where a name so wide may begin, and its middle line: right of its point, left, above, below, then aslant. */
export function around(x, y, away, width) {
    const [right, left_, middle, high] = [x + away, x - away - width, x - width / 2, away + 7];
    const aslant = [right, left_].flatMap((side) => [
        [side, y - high],
        [side, y + high],
    ]);
    return [[right, y], [left_, y], [middle, y - high], [middle, y + high], ...aslant];
}

/** Which pixels are taken, in squares of 4: a name takes its own, if all of them are free. */
export function occupied(width, height) {
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
