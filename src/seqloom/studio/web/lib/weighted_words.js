// Words coloured by their weights, and bar charts of label probabilities.

import { s, clear, formatNumber } from "./dom.js";
import { colourOf, inkOn, onThemeChange } from "./colour.js";

const LINE = 62;
const HIGH = 32; // height of a word's background
const GAP = 8;
const BAR = 34;
const RTL = /^[^\p{L}]*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}]/u;

/** `words` are [{text, weight} …]. Signed weights are green (for the label) or red (against it). */
export function weightedWords(words, { signed = false, width = 760, label = "Words and their weights", signal } = {}) {
    const drawing = s("svg", { class: "wordflow", role: "img", "aria-label": label });
    const maximum = Math.max(1e-9, ...words.map((word) => Math.abs(word.weight)));
    const layout = flow(words, width);

    function draw() {
        const [low, high] = [signed ? -maximum : 0, maximum];
        drawing.setAttribute("width", width);
        drawing.setAttribute("height", layout.height);
        clear(drawing).append(
            ...words.map((word, i) => {
                const { x, y, wide } = layout.boxes[i],
                    middle = { x: wide / 2, "text-anchor": "middle" };
                const shade = [word.weight, low, high, signed && "attribution"];
                return s(
                    "g",
                    { transform: `translate(${x} ${y})` },
                    s("rect", { class: "ground", width: wide, height: HIGH, rx: 6, fill: colourOf(...shade) }),
                    withFill(s("text", { ...middle, class: "flowing", y: 21.5 }, displayToken(word.text)), inkOn(...shade)),
                    s("text", { ...middle, class: "tick", y: HIGH + 16 }, short(word.weight, maximum)),
                );
            }),
        );
    }

    draw();
    onThemeChange(() => drawing.isConnected && draw(), signal);
    return drawing;
}

/** A bar for each label; with `onPick` the bars are buttons. */
export function labelBars(rows, { width = 560, picked = null, onPick = null, signal } = {}) {
    const drawing = s("svg", { class: "bars" });
    const measure = pen("15px");
    const left = Math.min(width * 0.45, 20 + Math.max(40, ...rows.map((row) => measure(clipped(row.label)))));
    const room = width - left - 70;

    function draw() {
        drawing.setAttribute("width", width);
        drawing.setAttribute("height", rows.length * BAR + 4);
        clear(drawing).append(
            ...rows.map((row, i) =>
                s(
                    "g",
                    {
                        class: row.label === picked ? "picked" : null,
                        transform: `translate(0 ${i * BAR})`,
                        ...(onPick ? button(row) : {}),
                    },
                    s("rect", { class: "hit", x: 0, y: 1, width, height: BAR - 3, rx: 6 }),
                    s("text", { class: "label", x: left - 10, y: 22, "text-anchor": "end" }, clipped(row.label)),
                    s("rect", { class: "track", x: left, y: 8, width: room, height: BAR - 16, rx: 4 }),
                    s("rect", {
                        class: "value",
                        x: left,
                        y: 8,
                        rx: 4,
                        width: Math.max(1.5, room * row.probability),
                        height: BAR - 16,
                    }),
                    s("text", { class: "tick", x: left + room + 8, y: 22 }, formatProbability(row.probability)),
                ),
            ),
        );
    }

    function button(row) {
        const pick = () => onPick(row.label);
        return {
            role: "button",
            tabindex: "0",
            "aria-pressed": String(row.label === picked),
            "aria-label": `Explain ${row.label}`,
            onclick: pick,
            onkeydown: (event) => act(event, pick),
        };
    }

    draw();
    onThemeChange(() => drawing.isConnected && draw(), signal);
    return drawing;
}

/** Whether a text is written from right to left. */
export function isRightToLeft(words) {
    return RTL.test(words.join(" "));
}

/** Format a probability. */
export function formatProbability(p) {
    return p < 0.001 ? "< 0.001" : formatNumber(p);
}

function withFill(node, colour) {
    node.style.fill = colour;
    return node;
}

function act(event, action) {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    action();
}

function clipped(text) {
    return text.length > 34 ? `${text.slice(0, 33)}…` : text;
}

function displayToken(text) {
    return text.trim() ? text : text.replace(/ /g, "␣").replace(/\n/g, "↵") || "∅";
}

function short(weight, most) {
    const digits = most >= 10 ? 1 : most >= 0.1 ? 2 : 3;
    const text = Math.abs(weight) < 0.5 * 10 ** -digits ? "0" : weight.toFixed(digits);
    return text.replace("-", "−");
}

function pen(font) {
    const paper = document.createElement("canvas").getContext("2d");
    paper.font = `${font} ${getComputedStyle(document.documentElement).getPropertyValue("--text")}`;
    return (text) => paper.measureText(text).width;
}

/** Lay out boxes in lines, from the right for right-to-left text. */
function flow(words, width) {
    const measure = pen("17px"),
        small = pen("13px");
    const maximum = Math.max(1e-9, ...words.map((word) => Math.abs(word.weight)));
    const isReversed = isRightToLeft(words.map((word) => word.text));
    let [x, y] = [0, 0];
    const boxes = words.map((word) => {
        const wide = Math.min(width, Math.max(measure(displayToken(word.text)) + 18, small(short(word.weight, maximum)) + 6));
        if (x > 0 && x + wide > width) [x, y] = [0, y + LINE];
        const box = { x: isReversed ? width - x - wide : x, y, wide };
        x += wide + GAP;
        return box;
    });
    return { boxes, height: y + LINE };
}
