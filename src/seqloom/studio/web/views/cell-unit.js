// Drawings of one unit over a text: the text shaded by it, and its gates and states as lines, one column a token.

import { h, s, clear, number, say } from "../lib/dom.js";
import { colourOf, inkOn, onTheme, quantityColour } from "../lib/colour.js";
import { shown } from "../lib/tokens.js";

const LETTER = 9.1; // pixels of a letter that is as wide as all others
const BROAD =
    /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Extended_Pictographic}/u; // as wide as two
const FROM_RIGHT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/; // Hebrew, Arabic and their kin
const LINE = 30;
const LEFT = 62;
const PANEL = 150;
const GAP = 34;
const [CLOSED, HALF, OPEN] = [0.05, 0.5, 0.95]; // values of a gate that stand for all that are nearly closed, or open

/** How wide a drawing inside a figure can be. On a projector, where text is larger, it is drawn smaller and stretched. */
export function roomIn(node) {
    const larger = Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
    return Math.min(Math.max(node.clientWidth - 44 * larger, 640), 1500) / larger;
}

/** The colours of a quantity's values: those of gates, or those of numbers with a sign. */
export const scaleOf = (gate) => (gate ? "gates" : true);

/** A quantity as it stands in formulas. */
export const symbolOf = (name) => ({ candidate: "h̃" })[name] ?? name;

/** Put a node after another one, or take it out: a picture that is not there has no frame. */
export function present(node, wanted, after) {
    if (!wanted) node.remove();
    else if (!node.isConnected) after.after(node);
}

/** A drawing that follows the theme. */
function redrawn(drawing, draw) {
    draw();
    const forget = onTheme(() => (drawing.isConnected ? draw() : forget()));
    return drawing;
}

function widthOf(word) {
    return [...word].reduce((sum, letter) => sum + (BROAD.test(letter) ? 1.75 : 1), 0) * LETTER;
}

/** Whether most words of a text are written from right to left. */
function goesLeft(tokens) {
    const words = tokens.filter((token) => /\p{L}/u.test(token) && !/^<.*>$/.test(token));
    return words.filter((token) => FROM_RIGHT.test(token)).length > words.length / 2;
}

/** The text, each token on the colour of a value: one sees what the unit goes with. */
export function shadedText(
    tokens,
    values,
    { signed, high, width = 900, picked = null, onPick = null, label = "", told = values },
) {
    const low = signed === true ? -high : 0;
    const places = [];
    let [x, y] = [0, 0];
    tokens.forEach((token) => {
        const wide = widthOf(shown(token)) + 8;
        if (x + wide > width && x > 0) [x, y] = [0, y + LINE];
        places.push([x, y, wide]);
        x += wide + 2;
    });
    if (goesLeft(tokens)) for (const place of places) place[0] = width - place[0] - place[2];
    const drawing = s("svg", {
        class: "shaded",
        width,
        height: y + LINE,
        viewBox: `0 0 ${width} ${y + LINE}`,
        role: "img",
        "aria-label": label,
    });
    return redrawn(drawing, () =>
        clear(drawing).append(
            ...tokens.map((token, place) => {
                const [left, top, wide] = places[place];
                const value = values[place];
                const word = s(
                    "text",
                    {
                        class: "mono-text",
                        x: left + wide / 2,
                        y: top + LINE / 2,
                        "text-anchor": "middle",
                        "dominant-baseline": "central",
                    },
                    shown(token),
                );
                word.style.fill = inkOn(value, low, high, signed);
                return s(
                    "g",
                    { class: place === picked ? "chosen" : null, onclick: onPick ? () => onPick(place) : null },
                    s("title", {}, `${shown(token)}: ${number(told[place])}`),
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
 * Lines of one unit: `panels` are [{title, low, high, lines: [{name, quantity, values, place}]}], one above the other over the
 * same tokens. A click or Enter picks a token; arrow keys move.
 */
export function unitChart({ tokens, panels, picked = 0, onPick, width = 900, label = "" }) {
    const step = (width - LEFT - 8) / tokens.length;
    const lies = (token) => widthOf(shown(token)) * 0.95 + 3 <= step;
    const flat = tokens.filter(lies).length > 0.85 * tokens.length;
    const words = tokens.every(lies)
        ? 30
        : 18 + 8 * Math.min(14, Math.max(...tokens.map((token) => [...shown(token)].length)));
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
    const at = (place) => LEFT + (place + 0.5) * step;
    let cursor = picked;

    function draw() {
        clear(drawing).append(...panels.flatMap(panelOf), ...tokenWords(), s("g", { class: "here" }));
        mark();
    }

    function panelOf(panel, i) {
        const top = GAP + i * (PANEL + GAP);
        const y = (value) => top + PANEL * (1 - (value - panel.low) / (panel.high - panel.low || 1));
        const marks = [...new Set([panel.low, 0, panel.low < 0 ? panel.high : panel.high / 2, panel.high])];
        const found = [s("text", { class: "axis", x: LEFT, y: top - 9 }, panel.title)];
        for (const mark of marks) {
            found.push(
                s("line", { class: mark === 0 ? "base" : "grid", x1: LEFT, x2: width - 8, y1: y(mark), y2: y(mark) }),
            );
            found.push(
                s(
                    "text",
                    { class: "tick", x: LEFT - 7, y: y(mark), "text-anchor": "end", "dominant-baseline": "central" },
                    Number.isInteger(mark) ? String(mark).replace("-", "−") : number(mark, 2),
                ),
            );
        }
        let left = LEFT + 7.6 * [...panel.title].length + 30;
        for (const one of panel.lines) {
            const points = [...one.values].map((value, place) => `${at(place).toFixed(1)} ${y(value).toFixed(1)}`);
            found.push(
                s("path", {
                    class: "line",
                    d: `M${points.join("L")}`,
                    stroke: quantityColour(one.quantity, one.place),
                    "stroke-width": 2.4,
                    "stroke-dasharray": one.dashed ? "7 5" : null,
                }),
            );
            if (tokens.length === 1)
                found.push(s("circle", { cx: at(0), cy: y(one.values[0]), r: 4, fill: quantityColour(one.quantity, one.place) }));
            found.push(
                s("line", {
                    x1: left,
                    x2: left + 24,
                    y1: top - 14,
                    y2: top - 14,
                    stroke: quantityColour(one.quantity, one.place),
                    "stroke-width": 3,
                    "stroke-dasharray": one.dashed ? "7 5" : null,
                }),
            );
            found.push(s("text", { class: "key-text", x: left + 30, y: top - 9 }, one.name));
            left += 30 + [...one.name].length * 9 + 22;
        }
        return found;
    }

    function tokenWords() {
        const [every, y] = [Math.ceil((flat ? 11 : 14) / step), panels.length * (PANEL + GAP) + 20];
        return tokens
            .map((token, place) => {
                if (place % every) return null;
                const word = [...shown(token)];
                const cut = word.length > 14 ? `${word.slice(0, 13).join("")}…` : word.join("");
                const x = at(place);
                return s(
                    "text",
                    {
                        class: "label",
                        x: lies(token) ? x : x + 4,
                        y,
                        "text-anchor": lies(token) ? "middle" : "end",
                        transform: lies(token) ? null : `rotate(-90 ${x + 4} ${y - 8})`,
                    },
                    cut,
                );
            })
            .filter(Boolean);
    }

    function mark() {
        const place = { x: LEFT + cursor * step, width: step, height: PANEL + 6 };
        clear(drawing.querySelector(".here")).append(
            ...panels.map((_, i) => s("rect", { class: "band", y: GAP - 3 + i * (PANEL + GAP), ...place })),
        );
        const told = panels
            .flatMap((panel) => panel.lines.map((one) => `${one.name} ${number(one.values[cursor])}`))
            .join(" · ");
        readout.textContent = `${shown(tokens[cursor])} (token ${cursor + 1}): ${told}`;
    }

    drawing.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!move && event.key !== "Enter") return;
        event.preventDefault();
        if (!move) return void onPick?.(cursor);
        cursor = Math.min(Math.max(cursor + move, 0), tokens.length - 1);
        mark();
        say(readout.textContent);
    });
    drawing.addEventListener("click", (event) => {
        const box = drawing.getBoundingClientRect();
        const place = Math.floor((((event.clientX - box.left) / box.width) * width - LEFT) / step);
        if (place >= 0 && place < tokens.length) onPick?.(place);
    });
    redrawn(drawing, draw);
    return { element: h("div", {}, drawing, readout) };
}

/** How open each gate is over all units and tokens: shares that are nearly closed, between, nearly open. */
export function gateBars(gates, width = 900) {
    const [left, row, bar] = [34, 50, 300];
    const drawing = s("svg", {
        class: "gate-bars",
        width,
        height: gates.length * row + 26,
        viewBox: `0 0 ${width} ${gates.length * row + 26}`,
        role: "img",
        "aria-label": "How open the gates are",
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
        const found = [name];
        shares.forEach((share, k) => {
            found.push(
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
        found.push(s("rect", { class: "edge", x: left, y, width: bar, height: 24 }));
        const mean = { x1: left + gate.mean * bar, x2: left + gate.mean * bar, y1: y - 4, y2: y + 28 };
        found.push(s("line", { class: "mean-ground", ...mean }), s("line", { class: "mean", ...mean }));
        found.push(s("text", { class: "label", x: left + bar + 16, y: y + 10 }, `mean ${number(gate.mean, 2)}`));
        found.push(s("text", { class: "tick", x: left + bar + 16, y: y + 28 }, gate.does));
        return found;
    }
    return redrawn(drawing, draw);
}
