// Drawings of one unit over a text: the shaded text, and gates and states as line charts.

import { h, s, clear, formatNumber, announce } from "../lib/dom.js";
import { colourOf, inkOn, onThemeChange, quantityColour } from "../lib/colour.js";
import { displayToken } from "../lib/tokens.js";

const CHARACTER_WIDTH = 9.1; // character width of the monospace font in pixels
const DOUBLE_WIDTH =
    /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Extended_Pictographic}/u; // double width
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/; // Hebrew, Arabic and related scripts
const LINE = 30;
const LEFT = 62;
const PANEL = 150;
const GAP = 34;
const [CLOSED, HALF, OPEN] = [0.05, 0.5, 0.95]; // gate values that give the colours of the three classes

/** The width of a drawing inside a figure, in units of the default font size. */
export function roomIn(node) {
    const larger = Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
    return Math.min(Math.max(node.clientWidth - 44 * larger, 640), 1500) / larger;
}

/** The colour scale of a quantity. */
export const scaleOf = (gate) => (gate ? "gates" : true);

/** The symbol of a quantity in equations. */
export const symbolOf = (name) => ({ candidate: "h̃" })[name] ?? name;

/** Insert a node after another one, or remove it. */
export function toggleAfter(node, wanted, after) {
    if (!wanted) node.remove();
    else if (!node.isConnected) after.after(node);
}

/** Redraw a drawing when the theme changes. */
function followTheme(drawing, draw) {
    draw();
    const stopListening = onThemeChange(() => (drawing.isConnected ? draw() : stopListening()));
    return drawing;
}

function widthOf(word) {
    return [...word].reduce((sum, letter) => sum + (DOUBLE_WIDTH.test(letter) ? 1.75 : 1), 0) * CHARACTER_WIDTH;
}

/** Whether most words are written from right to left. */
function isRightToLeft(tokens) {
    const words = tokens.filter((token) => /\p{L}/u.test(token) && !/^<.*>$/.test(token));
    return words.filter((token) => RIGHT_TO_LEFT.test(token)).length > words.length / 2;
}

/** A text whose tokens are coloured by values. */
export function shadedText(
    tokens,
    values,
    { signed, high, width = 900, picked = null, onPick = null, label = "", labels = values },
) {
    const low = signed === true ? -high : 0;
    const boxes = [];
    let [x, y] = [0, 0];
    tokens.forEach((token) => {
        const wide = widthOf(displayToken(token)) + 8;
        if (x + wide > width && x > 0) [x, y] = [0, y + LINE];
        boxes.push([x, y, wide]);
        x += wide + 2;
    });
    if (isRightToLeft(tokens)) for (const box of boxes) box[0] = width - box[0] - box[2];
    const drawing = s("svg", {
        class: "shaded",
        width,
        height: y + LINE,
        viewBox: `0 0 ${width} ${y + LINE}`,
        role: "img",
        "aria-label": label,
    });
    return followTheme(drawing, () =>
        clear(drawing).append(
            ...tokens.map((token, position) => {
                const [left, top, wide] = boxes[position];
                const value = values[position];
                const word = s(
                    "text",
                    {
                        class: "mono-text",
                        x: left + wide / 2,
                        y: top + LINE / 2,
                        "text-anchor": "middle",
                        "dominant-baseline": "central",
                    },
                    displayToken(token),
                );
                word.style.fill = inkOn(value, low, high, signed);
                return s(
                    "g",
                    { class: position === picked ? "chosen" : null, onclick: onPick ? () => onPick(position) : null },
                    s("title", {}, `${displayToken(token)}: ${formatNumber(labels[position])}`),
                    s("rect", {
                        x: left + 1,
                        y: top + 2,
                        width: wide - 1,
                        height: LINE - 5,
                        rx: 4,
                        fill: colourOf(value, low, high, signed),
                    }),
                    word,
                );
            }),
        ),
    );
}

/**
 * Line charts of one unit: `panels` are [{title, low, high, lines: [{name, quantity, values, colour}]}], stacked over the
 * same tokens. Arrow keys move the cursor; a click or Enter selects a token.
 */
export function unitChart({ tokens, panels, picked = 0, onPick, width = 900, label = "" }) {
    const step = (width - LEFT - 8) / tokens.length;
    const fits = (token) => widthOf(displayToken(token)) * 0.95 + 3 <= step;
    const flat = tokens.filter(fits).length > 0.85 * tokens.length;
    const words = tokens.every(fits)
        ? 30
        : 18 + 8 * Math.min(14, Math.max(...tokens.map((token) => [...displayToken(token)].length)));
    const height = panels.length * (PANEL + GAP) + words;
    const drawing = s("svg", {
        class: "unit-chart",
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        tabindex: "0",
        role: "application",
        "aria-roledescription": "chart",
        "aria-label": label,
    });
    const readout = h("p", { class: "readout", "aria-hidden": "true" });
    const at = (position) => LEFT + (position + 0.5) * step;
    let cursor = picked;

    function draw() {
        clear(drawing).append(...panels.flatMap(panelOf), ...tokenWords(), s("g", { class: "current" }));
        mark();
    }

    function panelOf(panel, i) {
        const top = GAP + i * (PANEL + GAP);
        const y = (value) => top + PANEL * (1 - (value - panel.low) / (panel.high - panel.low || 1));
        const marks = [...new Set([panel.low, 0, panel.low < 0 ? panel.high : panel.high / 2, panel.high])];
        const elements = [s("text", { class: "axis", x: LEFT, y: top - 9 }, panel.title)];
        for (const mark of marks) {
            elements.push(
                s("line", { class: mark === 0 ? "base" : "grid", x1: LEFT, x2: width - 8, y1: y(mark), y2: y(mark) }),
            );
            elements.push(
                s(
                    "text",
                    { class: "tick", x: LEFT - 7, y: y(mark), "text-anchor": "end", "dominant-baseline": "central" },
                    Number.isInteger(mark) ? String(mark).replace("-", "−") : formatNumber(mark, 2),
                ),
            );
        }
        let left = LEFT + 7.6 * [...panel.title].length + 30;
        for (const line of panel.lines) {
            const points = [...line.values].map((value, position) => `${at(position).toFixed(1)} ${y(value).toFixed(1)}`);
            elements.push(
                s("path", {
                    class: "line",
                    d: `M${points.join("L")}`,
                    stroke: quantityColour(line.quantity, line.colour),
                    "stroke-width": 2.4,
                    "stroke-dasharray": line.dashed ? "7 5" : null,
                }),
            );
            if (tokens.length === 1)
                elements.push(s("circle", { cx: at(0), cy: y(line.values[0]), r: 4, fill: quantityColour(line.quantity, line.colour) }));
            elements.push(
                s("line", {
                    x1: left,
                    x2: left + 24,
                    y1: top - 14,
                    y2: top - 14,
                    stroke: quantityColour(line.quantity, line.colour),
                    "stroke-width": 3,
                    "stroke-dasharray": line.dashed ? "7 5" : null,
                }),
            );
            elements.push(s("text", { class: "key-text", x: left + 30, y: top - 9 }, line.name));
            left += 30 + [...line.name].length * 9 + 22;
        }
        return elements;
    }

    function tokenWords() {
        const [interval, y] = [Math.ceil((flat ? 11 : 14) / step), panels.length * (PANEL + GAP) + 20];
        return tokens
            .map((token, position) => {
                if (position % interval) return null;
                const word = [...displayToken(token)];
                const cut = word.length > 14 ? `${word.slice(0, 13).join("")}…` : word.join("");
                const x = at(position);
                return s(
                    "text",
                    {
                        class: "label",
                        x: fits(token) ? x : x + 4,
                        y,
                        "text-anchor": fits(token) ? "middle" : "end",
                        transform: fits(token) ? null : `rotate(-90 ${x + 4} ${y - 8})`,
                    },
                    cut,
                );
            })
            .filter(Boolean);
    }

    function mark() {
        const band = { x: LEFT + cursor * step, width: step, height: PANEL + 6 };
        clear(drawing.querySelector(".current")).append(
            ...panels.map((_, i) => s("rect", { class: "band", y: GAP - 3 + i * (PANEL + GAP), ...band })),
        );
        const readings = panels
            .flatMap((panel) => panel.lines.map((line) => `${line.name} ${formatNumber(line.values[cursor])}`))
            .join(" · ");
        readout.textContent = `${displayToken(tokens[cursor])} (token ${cursor + 1}): ${readings}`;
    }

    drawing.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!move && event.key !== "Enter") return;
        event.preventDefault();
        if (!move) return void onPick?.(cursor);
        cursor = Math.min(Math.max(cursor + move, 0), tokens.length - 1);
        mark();
        announce(readout.textContent);
    });
    drawing.addEventListener("click", (event) => {
        const box = drawing.getBoundingClientRect();
        const position = Math.floor((((event.clientX - box.left) / box.width) * width - LEFT) / step);
        if (position >= 0 && position < tokens.length) onPick?.(position);
    });
    followTheme(drawing, draw);
    return { element: h("div", {}, drawing, readout) };
}

/** Gate activations over all units and tokens: the fractions that are nearly closed, in between, and nearly open. */
export function gateBars(gates, width = 900) {
    const [left, row, bar] = [34, 50, 300];
    const drawing = s("svg", {
        class: "gate-bars",
        width,
        height: gates.length * row + 26,
        viewBox: `0 0 ${width} ${gates.length * row + 26}`,
        role: "img",
        "aria-label": "Gate activations",
    });
    const draw = () =>
        clear(drawing).append(
            ...[
                ["below 0.1", CLOSED],
                ["0.1 to 0.9", HALF],
                ["above 0.9", OPEN],
            ].map(([words, value], i) =>
                s(
                    "g",
                    {},
                    s("rect", {
                        x: left + i * 104,
                        y: 4,
                        width: 13,
                        height: 13,
                        fill: colourOf(value, 0, 1, "gates"),
                    }),
                    s("text", { class: "tick", x: left + i * 104 + 19, y: 15 }, words),
                ),
            ),
            ...gates.flatMap((gate, i) => gateRow(gate, i)),
        );

    function gateRow(gate, i) {
        const y = 34 + i * row;
        const shares = [gate.closed, 1 - gate.closed - gate.open, gate.open];
        let x = left;
        const name = s("text", { class: "gate-name", x: 4, y: y + 17 }, gate.name);
        name.style.fill = quantityColour(gate.name, i);
        const elements = [name];
        shares.forEach((share, k) => {
            elements.push(
                s("rect", {
                    x,
                    y,
                    width: Math.max(0, share * bar),
                    height: 24,
                    fill: colourOf([CLOSED, HALF, OPEN][k], 0, 1, "gates"),
                }),
            );
            x += share * bar;
        });
        elements.push(s("rect", { class: "edge", x: left, y, width: bar, height: 24 }));
        const mean = { x1: left + gate.mean * bar, x2: left + gate.mean * bar, y1: y - 4, y2: y + 28 };
        elements.push(s("line", { class: "mean-ground", ...mean }), s("line", { class: "mean", ...mean }));
        elements.push(s("text", { class: "label", x: left + bar + 16, y: y + 10 }, `mean ${formatNumber(gate.mean, 2)}`));
        elements.push(s("text", { class: "tick", x: left + bar + 16, y: y + 28 }, gate.effect));
        return elements;
    }
    return followTheme(drawing, draw);
}
