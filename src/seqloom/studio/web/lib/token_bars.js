// The next token's distribution as bars, one row a token: what the model thinks, and what is drawn from.

import { h, s, clear } from "./dom.js";
import { shown } from "./tokens.js";

const ROW = 30;
const HEAD = 30;
const LABEL = 150; // where the bars begin
const BAR = 222; // how long one of 100 % is
const WIDTH = 550;

export function percent(value) {
    if (value === 0) return "0";
    if (value < 0.0001) return "< 0.01 %";
    if (value > 0.9995 && value < 1) return "> 99.9 %";
    return `${(100 * value).toFixed(value < 0.1 ? 2 : 1)} %`;
}

/**
 * `update([{token, p, chance, rank, chosen} …])`, a chance of null where nothing is drawn; `onPick(row)` when another
 * token is chosen. Bars are as long as the largest of them allows, so small ones can be compared, too.
 */
export function tokenBars({ onPick, heads: names = ["token", "model", "drawn from"] }) {
    const drawing = s("svg", { class: "token-bars chart" });
    let rows = [];

    function draw() {
        const height = HEAD + ROW * rows.length + 6;
        const most = Math.max(1e-9, ...rows.flatMap(({ p, chance }) => [p, chance ?? 0]));
        drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
        drawing.setAttribute("width", WIDTH);
        drawing.setAttribute("height", height);
        drawing.setAttribute("role", "group");
        drawing.setAttribute("aria-label", "Probable tokens; choose one to write it in this place");
        const focused = [...drawing.querySelectorAll(".bar-row")].indexOf(document.activeElement);
        clear(drawing).append(...heads(), ...rows.map((row, place) => rowOf(row, place, most)));
        if (focused >= 0) drawing.querySelectorAll(".bar-row")[Math.min(focused, rows.length - 1)]?.focus();
    }

    function heads() {
        return [
            s("text", { class: "axis", x: LABEL - 12, y: 16, "text-anchor": "end" }, names[0]),
            s("text", { class: "axis", x: LABEL + BAR + 84, y: 16, "text-anchor": "end" }, names[1]),
            s("text", { class: "axis", x: WIDTH - 8, y: 16, "text-anchor": "end" }, names[2]),
        ];
    }

    function rowOf(row, place, most) {
        const top = HEAD + ROW * place;
        const middle = top + ROW / 2;
        const kind = ["bar-row", row.chosen && "chosen", row.chance === 0 && "cut"].filter(Boolean).join(" ");
        const group = s(
            "g",
            { class: kind, role: "button", tabindex: "0", "aria-label": spoken(row) },
            s("rect", { class: "hit", x: 2, y: top + 1, width: WIDTH - 4, height: ROW - 2, rx: 6 }),
            s("text", { class: "name", x: LABEL - 12, y: middle + 5, "text-anchor": "end" }, cut(shown(row.token))),
            s("rect", {
                class: "own",
                x: LABEL,
                y: top + 5,
                width: Math.max((row.p / most) * BAR, 0.5),
                height: ROW - 10,
                rx: 3,
            }),
            s("rect", {
                class: "chance",
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
        group.addEventListener("keydown", (event) => key(event, row, place));
        return group;
    }

    function key(event, row, place) {
        if (event.key === "Enter" || event.key === " ") onPick(row);
        else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
            const other = drawing.querySelectorAll(".bar-row")[place + (event.key === "ArrowDown" ? 1 : -1)];
            other?.focus();
        } else return;
        event.preventDefault();
    }

    return {
        element: h("div", { class: "token-bars-frame" }, drawing),
        update(found) {
            rows = found;
            draw();
        },
    };
}

function drawnWith({ chance }) {
    if (chance === null) return "";
    return chance === 0 ? "cut" : percent(chance);
}

function spoken(row) {
    const drawn = row.chance === null ? "" : row.chance === 0 ? ", cut" : `, drawn with ${percent(row.chance)}`;
    return `${shown(row.token)}, number ${row.rank}: the model says ${percent(row.p)}${drawn}${row.chosen ? "; this stands here" : ""}`;
}

function cut(text) {
    const letters = [...text];
    return letters.length > 16 ? `${letters.slice(0, 15).join("")}…` : text;
}
