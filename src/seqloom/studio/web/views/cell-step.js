// One step of one unit along the cell's equations: summands, activation function and result.

import { h, s, clear, formatNumber } from "../lib/dom.js";
import { onThemeChange, signColour } from "../lib/colour.js";

const WIDTH = 536;
const BARS = [136, 296]; // horizontal range of the bars
const CURVE = { x: 372, size: 70 };
const ROW = 27;
const HEAD = 62;
const SUB = 5; // pixels by which a subscript is lowered
const FUNCTIONS = { σ: (a) => 1 / (1 + Math.exp(-a)), tanh: Math.tanh, ReLU: (a) => Math.max(0, a) };

/** Draw one equation. `onTerm(index)` is called for a matrix product that is clicked. */
export function lineDrawing(line, { chosen = null, onTerm }) {
    const height = HEAD + Math.max(line.terms.length * ROW, CURVE.size + 16) + 10;
    const drawing = s("svg", {
        class: "equation",
        width: WIDTH,
        height,
        viewBox: `0 0 ${WIDTH} ${height}`,
        role: "group",
        "aria-label": spoken(line),
    });
    const draw = () =>
        clear(drawing).append(
            formulaText({ class: "formula", x: 0, y: 20 }, line.formula),
            s("text", { class: "numbers", x: 0, y: 44 }, inNumbers(line)),
            ...termRows(line, chosen, onTerm),
            ...curve(line),
            ...outcome(line),
        );
    draw();
    const stopListening = onThemeChange(() => (drawing.isConnected ? draw() : stopListening()));
    return drawing;
}

/** SVG text with subscripts: h_{t-1}, W_xf. */
function formulaText(attributes, formula) {
    const parts = formula.split(/_(\{[^}]*\}|[A-Za-z]+)/);
    let [elements, lowered] = [[], false];
    parts.forEach((part, i) => {
        if (!part) return;
        const sub = i % 2 === 1;
        const words = sub ? part.replace(/[{}]/g, "").replace("-", "−") : part;
        elements.push(s("tspan", { class: sub ? "sub" : null, dy: sub === lowered ? null : sub ? SUB : -SUB }, words));
        lowered = sub;
    });
    return s("text", attributes, elements);
}

/** HTML text with subscripts. */
export function formulaWords(formula) {
    return formula
        .split(/_(\{[^}]*\}|[A-Za-z]+)/)
        .map((part, i) => (i % 2 ? h("sub", {}, part.replace(/[{}]/g, "").replace("-", "−")) : part));
}

/** σ(0.41 − 0.13 + 1.02) = σ(1.30) = 0.786 */
function inNumbers(line) {
    const added = line.terms
        .map((term, i) => {
            const words = term.factors.length
                ? term.factors.map((factor) => bracketed(factor.value)).join(" · ")
                : formatNumber(term.factors.length || i === 0 ? term.value : Math.abs(term.value));
            if (i === 0) return words;
            return term.factors.length ? ` + ${words}` : `${term.value < 0 ? " − " : " + "}${words}`;
        })
        .join("");
    if (line.function)
        return `= ${line.function}(${added}) = ${line.function}(${formatNumber(line.total)}) = ${formatNumber(line.value)}`;
    return `= ${added} = ${formatNumber(line.value)}`;
}

const bracketed = (value) => (value < 0 ? `(${formatNumber(value)})` : formatNumber(value));

function spoken(line) {
    return `${line.formula} ${inNumbers(line)}. ${line.purpose}`;
}

/** Terms as bars. Each starts where the previous bar ends, so that the last bar ends at the sum. */
function termRows(line, chosen, onTerm) {
    const ends = [0];
    for (const term of line.terms) ends.push(ends.at(-1) + term.value);
    const position = ruler(ends, ...BARS);
    const bottom = HEAD + line.terms.length * ROW;
    const elements = [s("line", { class: "base", x1: position(0), x2: position(0), y1: HEAD - 4, y2: bottom })];
    line.terms.forEach((term, i) => {
        const [from, to, y] = [position(ends[i]), position(ends[i + 1]), HEAD + i * ROW];
        const opens = term.summands.length > 0;
        const act = opens ? () => onTerm(i) : null;
        elements.push(
            s(
                "g",
                {
                    class: `term${opens ? " opens" : ""}${chosen === i ? " chosen" : ""}`,
                    onclick: act,
                    tabindex: opens ? "0" : null,
                    role: opens ? "button" : null,
                    "aria-pressed": opens ? String(chosen === i) : null,
                    "aria-label": `${term.symbol} = ${formatNumber(term.value)}${opens ? ": show its summands" : ""}`,
                    onkeydown: opens
                        ? (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), act())
                        : null,
                },
                s("rect", { class: "hit", x: 0, y: y - 1, width: 360, height: ROW - 3, rx: 5 }),
                formulaText({ class: "symbol", x: BARS[0] - 12, y: y + 16, "text-anchor": "end" }, term.symbol),
                s("rect", {
                    x: Math.min(from, to),
                    y: y + 3,
                    width: Math.max(1.5, Math.abs(to - from)),
                    height: ROW - 11,
                    rx: 2,
                    fill: signColour(term.value),
                }),
                i + 1 < line.terms.length
                    ? s("line", { class: "guide", x1: to, x2: to, y1: y + ROW - 8, y2: y + ROW + 3 })
                    : null,
                s("text", { class: "amount", x: BARS[1] + 60, y: y + 16, "text-anchor": "end" }, formatNumber(term.value)),
            ),
        );
    });
    return elements;
}

/** A scale from values to pixels that includes all values and 0. */
function ruler(values, left, right) {
    const [minimum, maximum] = [Math.min(0, ...values), Math.max(0, ...values)];
    return (value) => left + 4 + ((value - minimum) / (maximum - minimum || 1)) * (right - left - 8);
}

/** The activation function as a curve, with the sum marked. */
function curve(line) {
    const { x, size } = CURVE;
    const f = FUNCTIONS[line.function];
    if (!f) return [];
    const reach = Math.max(4, 1.15 * Math.abs(line.total));
    const [bottom, top] = line.function === "σ" ? [0, 1] : line.function === "tanh" ? [-1, 1] : [-reach, reach];
    const px = (a) => x + ((a + reach) / (2 * reach)) * size;
    const py = (v) => HEAD + size - ((v - bottom) / (top - bottom)) * size;
    const path = Array.from({ length: 61 }, (_, i) => -reach + (i / 60) * 2 * reach).map(
        (a) => `${px(a).toFixed(1)} ${py(f(a)).toFixed(1)}`,
    );
    return [
        s("rect", { class: "edge", x, y: HEAD, width: size, height: size }),
        s("line", { class: "grid", x1: px(0), x2: px(0), y1: HEAD, y2: HEAD + size }),
        s("line", { class: "grid", x1: x, x2: x + size, y1: py(Math.max(0, bottom)), y2: py(Math.max(0, bottom)) }),
        s("path", { class: "line curve", d: `M${path.join("L")}` }),
        s("line", { class: "guide", x1: px(line.total), x2: px(line.total), y1: HEAD + size, y2: py(line.value) }),
        s("circle", { class: "current", cx: px(line.total), cy: py(line.value), r: 5 }),
        s(
            "text",
            { class: "tick", x: x + size / 2, y: HEAD + size + 15, "text-anchor": "middle" },
            `${line.function}(${formatNumber(line.total, 2)})`,
        ),
    ];
}

function outcome(line) {
    const [x, words] = [456, formatNumber(line.value, Math.abs(line.value) < 10 ? 3 : 2)];
    return [
        formulaText({ class: "outcome-name", x, y: HEAD + 18 }, `${line.symbol} =`),
        s("text", { class: words.length > 6 ? "outcome long" : "outcome", x, y: HEAD + 46 }, words),
    ];
}

/** The largest summands of a matrix product, as bars. */
export function summandBars(term) {
    const width = 860;
    const [left, right] = [330, 700];
    const rows = [
        ...term.summands.map(({ place, weight, input, product }) => [
            `${term.vector}[${place}]`,
            `${formatNumber(weight)} · ${bracketed(input)}`,
            product,
        ]),
    ];
    if (term.length > term.summands.length)
        rows.push([`${term.length - term.summands.length} others`, "sum of", term.remainder]);
    rows.push([term.symbol, "sum", term.value]);
    const position = ruler(
        rows.map((row) => row[2]),
        left,
        right,
    );
    const middle = position(0);
    const height = rows.length * ROW + 10;
    const drawing = s("svg", {
        class: "summands",
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `Summands of ${term.symbol}`,
    });
    const draw = () =>
        clear(drawing).append(
            s("line", { class: "base", x1: middle, x2: middle, y1: 0, y2: height }),
            ...rows.map(([name, product, value], i) => {
                const [y, end] = [4 + i * ROW, position(value)];
                return s(
                    "g",
                    { class: i === rows.length - 1 ? "sum" : null },
                    formulaText({ class: "symbol", x: 140, y: y + 16, "text-anchor": "end" }, name),
                    s("text", { class: "label", x: left - 14, y: y + 16, "text-anchor": "end" }, product),
                    s("rect", {
                        x: Math.min(middle, end),
                        y: y + 2,
                        width: Math.max(1.5, Math.abs(end - middle)),
                        height: ROW - 9,
                        rx: 2,
                        fill: signColour(value),
                    }),
                    s("text", { class: "amount", x: right + 84, y: y + 16, "text-anchor": "end" }, formatNumber(value)),
                );
            }),
        );
    draw();
    const stopListening = onThemeChange(() => (drawing.isConnected ? draw() : stopListening()));
    return drawing;
}

/** The table of all equations. */
export function stepTable(lines) {
    return {
        columns: ["line", "formula", "terms", "sum", "value"],
        rows: lines.map((line) => [
            line.name,
            line.formula,
            line.terms.map((term) => `${term.symbol} = ${Number(term.value.toPrecision(6))}`).join("; "),
            line.total,
            line.value,
        ]),
    };
}

export function termTable(term) {
    return {
        columns: ["index", "weight", "input", "product"],
        rows: [...term.summands.map(Object.values), ["others", null, null, term.remainder], ["sum", null, null, term.value]],
    };
}
