// A next-token distribution as bars, one row per token: model probability and sampling probability.

import { h, s, clear } from "./dom.js";
import { displayToken } from "./tokens.js";

const ROW = 30;
const HEAD = 30;
const LABEL = 150; // left end of the bars
const BAR = 222; // length of the largest bar
const WIDTH = 550;

export function percent(value) {
    if (value === 0) return "0";
    if (value < 0.0001) return "< 0.01 %";
    if (value > 0.9995 && value < 1) return "> 99.9 %";
    return `${(100 * value).toFixed(value < 0.1 ? 2 : 1)} %`;
}

/**
 * `update([{token, p, chance, rank, chosen} …])` draws the rows; a chance of null means no sampling. `onPick(row)` is
 * called when a token is selected. Bars are scaled to the largest bar.
 */
export function tokenBars({ onPick, heads: names = ["token", "model", "sampling"] }) {
    const drawing = s("svg", { class: "token-bars chart" });
    let rows = [];

    function draw() {
        const height = HEAD + ROW * rows.length + 6;
        const maximum = Math.max(1e-9, ...rows.flatMap(({ p, chance }) => [p, chance ?? 0]));
        drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
        drawing.setAttribute("width", WIDTH);
        drawing.setAttribute("height", height);
        drawing.setAttribute("role", "group");
        drawing.setAttribute("aria-label", "Most probable tokens; select one to force it");
        const focused = [...drawing.querySelectorAll(".bar-row")].indexOf(document.activeElement);
        clear(drawing).append(...heads(), ...rows.map((row, index) => rowOf(row, index, maximum)));
        if (focused >= 0) drawing.querySelectorAll(".bar-row")[Math.min(focused, rows.length - 1)]?.focus();
    }

    function heads() {
        return [
            s("text", { class: "axis", x: LABEL - 12, y: 16, "text-anchor": "end" }, names[0]),
            s("text", { class: "axis", x: LABEL + BAR + 84, y: 16, "text-anchor": "end" }, names[1]),
            s("text", { class: "axis", x: WIDTH - 8, y: 16, "text-anchor": "end" }, names[2]),
        ];
    }

    function rowOf(row, index, most) {
        const top = HEAD + ROW * index;
        const middle = top + ROW / 2;
        const kind = ["bar-row", row.chosen && "chosen", row.chance === 0 && "cut"].filter(Boolean).join(" ");
        const group = s(
            "g",
            { class: kind, role: "button", tabindex: "0", "aria-label": spoken(row) },
            s("rect", { class: "hit", x: 2, y: top + 1, width: WIDTH - 4, height: ROW - 2, rx: 6 }),
            s("text", { class: "name", x: LABEL - 12, y: middle + 5, "text-anchor": "end" }, cut(displayToken(row.token))),
            s("rect", {
                class: "model-prob",
                x: LABEL,
                y: top + 5,
                width: Math.max((row.p / most) * BAR, 0.5),
                height: ROW - 10,
                rx: 3,
            }),
            s("rect", {
                class: "sampling-prob",
                x: LABEL,
                y: top + 10,
                width: ((row.chance ?? row.p) / most) * BAR,
                height: ROW - 20,
                rx: 2,
            }),
            s("text", { class: "value", x: LABEL + BAR + 84, y: middle + 5, "text-anchor": "end" }, percent(row.p)),
            s("text", { class: "value after", x: WIDTH - 8, y: middle + 5, "text-anchor": "end" }, drawnWith(row)),
            s("title", {}, spoken(row)),
        );
        group.addEventListener("click", () => onPick(row));
        group.addEventListener("keydown", (event) => key(event, row, index));
        return group;
    }

    function key(event, row, index) {
        if (event.key === "Enter" || event.key === " ") onPick(row);
        else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
            const other = drawing.querySelectorAll(".bar-row")[index + (event.key === "ArrowDown" ? 1 : -1)];
            other?.focus();
        } else return;
        event.preventDefault();
    }

    return {
        element: h("div", { class: "token-bars-frame" }, drawing),
        update(newRows) {
            rows = newRows;
            draw();
        },
    };
}

function drawnWith({ chance }) {
    if (chance === null) return "";
    return chance === 0 ? "cut" : percent(chance);
}

function spoken(row) {
    const sampling = row.chance === null ? "" : row.chance === 0 ? ", excluded" : `, sampling ${percent(row.chance)}`;
    return `${displayToken(row.token)}, rank ${row.rank}: model ${percent(row.p)}${sampling}${row.chosen ? "; selected" : ""}`;
}

function cut(text) {
    const letters = [...text];
    return letters.length > 16 ? `${letters.slice(0, 15).join("")}…` : text;
}
