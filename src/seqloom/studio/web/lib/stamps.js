// Colours and shapes of points, as stamps that a canvas can put down thousands of times, and as a key beside the picture.

import { s, number } from "./dom.js";
import { series, table, step as stepOf } from "./colour.js";

const SHADES = 48; // of a colour that stands for a number
const COLOURS = 7; // of groups; then the next shape
const SHAPES = ["circle", "square", "triangle"];
const PALEST = 70; // of the 256 shades: fainter ones could not be seen on the paper

/** A colour or a font of the page, by its name in the style sheet. */
export function ink(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function short(text, most = 24) {
    return text.length > most ? `${text.slice(0, most - 1)}…` : text.replace(/\n/g, "↵") || "∅";
}

/** The names of the groups, each with its mark; a click shows one of them alone. */
export function groupKey(node, colouring, wide, only, choose) {
    let [x, y] = [0, 14];
    colouring.groups.forEach((group, i) => {
        const room = 34 + 8.2 * Math.min(group.length, 28);
        if (x + room > wide && x > 0) [x, y] = [0, y + 28];
        node.append(s("g", {
            class: only !== null && only !== i ? "off" : null, role: "button", tabindex: "0", transform: `translate(${x} ${y})`,
            "aria-pressed": String(only === i), "aria-label": `Only ${group}`,
            onclick: () => choose(i), onkeydown: (event) => pressed(event, () => choose(i)),
        }, s("rect", { class: "hit", x: 0, y: -13, width: room - 8, height: 26, rx: 6 }), shape(colouring, i, 12, 0),
        s("text", { x: 24, y: 5, class: "label" }, short(group, 28))));
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
    const cells = Array.from({ length: SHADES }, (_, i) => s("rect", { x: 5 * i, y: 4, width: 5, height: 14, fill: shade(i), "shape-rendering": "crispEdges" }));
    const words = (value) => number(colouring.log ? 10 ** value : value, 0);
    node.append(s("text", { x: 0, y: 16, class: "tick" }, words(low)),
        s("g", { transform: `translate(${14 + 8 * words(low).length} 0)` }, ...cells,
            s("text", { x: 5 * SHADES + 10, y: 16, class: "tick" }, `${words(high)}   ${colouring.title}`)));
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
    const at = 4 * (PALEST + stepOf(i, 0, SHADES - 1) * (255 - PALEST) / 255 | 0);
    const [r, g, b] = table().subarray(at, at + 3);
    return `rgb(${r} ${g} ${b})`;
}

function lookOf(colouring, i) {
    if (!colouring.groups.length) return { colour: shade(i), form: "circle" };
    if (colouring.groups[i] === "other") return { colour: series(COLOURS), form: "circle" };
    return { colour: series(i % COLOURS), form: SHAPES[Math.floor(i / COLOURS) % SHAPES.length] };
}

function shape(colouring, i, x, y) {
    const { colour, form } = lookOf(colouring, i);
    if (form === "circle") return s("circle", { cx: x, cy: y, r: 6, fill: colour });
    if (form === "square") return s("rect", { x: x - 5.5, y: y - 5.5, width: 11, height: 11, fill: colour });
    return s("path", { d: `M${x} ${y - 7} L${x + 7} ${y + 5} L${x - 7} ${y + 5} Z`, fill: colour });
}

export function stamps(colouring, radius, ratio) {
    const count = colouring.groups.length || SHADES, edge = ink("--paper");
    const made = Array.from({ length: count }, (_, i) => stamp(lookOf(colouring, i), radius, ratio, edge));
    return Object.assign(made, { radius, ratio });
}

function stamp({ colour, form }, radius, ratio, edge) {
    const side = Math.ceil(2 * (radius + 1.5) * ratio);
    const canvas = new OffscreenCanvas(side, side), pen = canvas.getContext("2d"), middle = side / 2, r = radius * ratio;
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
    return canvas;
}

