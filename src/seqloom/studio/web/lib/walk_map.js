// An overview of a walk: boxes from left to right, with an optional loop back.

import { s, clear } from "./dom.js";
import { truncate, setSize, widthOf } from "./vector_rows.js";

const [HIGH, GAP, MARGIN, MIN_WIDTH, MAX_WIDTH] = [104, 17, 2, 98, 150];
const SMALL = '13px system-ui, "Noto Sans", "Liberation Sans", sans-serif';
const LINES = 3;

/** `stops` are {name, description, stage}; `back` is [index of a stop, label]; `onPick(stage)` opens a stage. */
export function stageMap({ stops, back, label, onPick, room = 822 }) {
    const drawing = s("svg", { class: "flow", role: "group", "aria-label": label });
    const boxWidth = Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, (room - (stops.length - 1) * GAP - 2 * MARGIN) / stops.length));
    const left = (index) => MARGIN + index * (boxWidth + GAP);
    clear(drawing);
    stops.forEach((stop, index) => {
        if (index) drawing.append(arrow(left(index) - GAP + 3, HIGH / 2 + MARGIN, left(index) - 3, HIGH / 2 + MARGIN));
        drawing.append(box(stop, left(index), index === 0 || index === stops.length - 1));
    });
    if (back) drawing.append(...loopBack(left(stops.length - 1) + boxWidth / 2, left(back[0]) + boxWidth / 2, back[1]));
    setSize(drawing, left(stops.length - 1) + boxWidth + MARGIN, HIGH + 2 * MARGIN + (back ? 50 : 2));
    return drawing;

    function box(stop, x, end) {
        const middle = x + boxWidth / 2;
        const lines = wrapText(stop.description, boxWidth - 14);
        const go = () => onPick?.(stop.stage);
        return s(
            "g",
            {
                class: end ? "way-stop end" : "way-stop",
                role: "button",
                tabindex: "0",
                "aria-label": `${stop.name}: ${stop.description}`,
                onclick: go,
                onkeydown: (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), go()),
            },
            s("rect", { x, y: MARGIN, width: boxWidth, height: HIGH, rx: 9 }),
            s("text", { class: "flow-name", x: middle, y: MARGIN + 24, "text-anchor": "middle" }, stop.name),
            lines.map((line, i) =>
                s("text", { class: "flow-note", x: middle, y: MARGIN + 48 + 18 * i, "text-anchor": "middle" }, line),
            ),
        );
    }
}

function arrow(x1, y, x2) {
    return s("path", { class: "flow-arrow", d: `M${x1} ${y}H${x2}m-6 -5l6 5l-6 5` });
}

/** An arrow from the last box back to another box. */
function loopBack(from, to, why) {
    const [y, low] = [HIGH + MARGIN + 2, HIGH + MARGIN + 24];
    return [
        s("path", {
            class: "flow-arrow",
            d: `M${from} ${y}V${low - 8}q0 8 -8 8H${to + 8}q-8 0 -8 -8V${y}m-5 6l5 -6l5 6`,
        }),
        s("text", { class: "flow-note", x: (from + to) / 2, y: low + 18, "text-anchor": "middle" }, why),
    ];
}

/** Wrap a text to at most LINES lines; longer texts are truncated. */
function wrapText(words, room) {
    const lines = [""];
    for (const word of words.split(" ")) {
        const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
        if (widthOf(longer, SMALL) <= room || !lines.at(-1)) lines[lines.length - 1] = longer;
        else lines.push(word);
    }
    const cut = lines.slice(0, LINES).map((line) => truncate(line, room, SMALL));
    if (lines.length > LINES) cut[LINES - 1] = truncate(`${cut[LINES - 1]} …`, room, SMALL);
    return cut;
}
