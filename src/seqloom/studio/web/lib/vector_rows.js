// Vectors as rows of coloured cells, softmax tables, and token tiles.

import { s, clear, formatNumber } from "./dom.js";
import { colourOf, inkOn, onThemeChange } from "./colour.js";

const HEIGHT = 30;
const MAX_CELL_PIXELS = 58; // maximum cell width
const MIN_CELL_PIXELS = 13; // minimum cell width
const MIN_NUMBERED_PIXELS = 46; // minimum cell width with a number
const ROOM = 560; // total width of the cells
const FONT = '14px system-ui, "Noto Sans", "Liberation Sans", sans-serif';
const MAX_NAME_PIXELS = 260; // maximum width of a name
const WIDE_SCREEN_PIXELS = 1800; // window width from which drawings are enlarged
const pen = document.createElement("canvas").getContext("2d");

/** The width of a text in pixels. */
export function widthOf(text, font = FONT) {
    pen.font = font;
    return pen.measureText(text).width;
}

/** Truncate a text to a width. */
export function truncate(text, most, font = FONT) {
    if (widthOf(text, font) <= most) return text;
    const letters = [...text];
    while (letters.length > 1 && widthOf(`${letters.join("")}…`, font) > most) letters.pop();
    return `${letters.join("")}…`;
}

/** The scale factor of drawings on wide screens. */
export function zoom() {
    return innerWidth >= WIDE_SCREEN_PIXELS ? 1.35 : 1;
}

/** Set the size of a drawing, in its own units. */
export function setSize(drawing, width, height) {
    const [w, high] = [Math.ceil(width), Math.ceil(height)];
    drawing.setAttribute("viewBox", `0 0 ${w} ${high}`);
    drawing.setAttribute("width", Math.round(w * zoom()));
    drawing.setAttribute("height", Math.round(high * zoom()));
}

/** Format an element of a vector with two decimals; zero has no sign. */
export function shortNumber(value, digits = 2) {
    const size = Math.abs(value);
    const text = value.toFixed(digits > 2 ? digits : size >= 100 ? 0 : size >= 10 ? 1 : 2);
    return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** The number of decimals, 2 to 4, that shows all nonzero values as nonzero. */
export function digitsFor(values) {
    const smallest = Math.min(...values.map(Math.abs).filter((size) => size > 0));
    return [2, 3].find((digits) => smallest >= 0.5 * 10 ** -digits) ?? 4;
}

/**
 * Rows of {sign, name, weight, values, digits, after, marked, rule}. `of` is the full length of the vectors, `column`
 * the label of the columns, `names` their names.
 */
export function vectorRows({
    rows,
    of,
    column = "element",
    names: titles = null,
    low = null,
    high = null,
    signed = true,
    label = "Vectors",
    onPick = null,
}) {
    const drawing = s("svg", { class: "strips", role: "img", "aria-label": label });
    const maximum = high ?? Math.max(1e-9, ...rows.filter((row) => !row.gate).flatMap((row) => row.values.map(Math.abs)));
    const scaleOf = (row) => (row.gate ? [0, 1, "gates"] : [low ?? (signed ? -maximum : 0), maximum, signed]);

    function draw() {
        const count = Math.max(...rows.map((row) => row.values.length));
        const cell = Math.min(MAX_CELL_PIXELS, Math.max(MIN_CELL_PIXELS, ROOM / count));
        const names = rows.map((row) => truncate(row.name, MAX_NAME_PIXELS));
        const signs = rows.some((row) => row.sign) ? 26 : 0;
        const nameWidth = Math.ceil(Math.max(widthOf(column), ...names.map((name) => widthOf(name)))) + 12;
        const weighed = Math.ceil(Math.max(0, ...rows.map((row) => (row.weight ? widthOf(row.weight) + 18 : 0))));
        const left = signs + nameWidth + weighed;
        const more = of > count ? `… ${of - count} more` : "";
        const beyond = left + count * cell + 8;
        const after = beyond + (more ? widthOf(more) + 14 : 6);
        const sums = Math.max(0, ...rows.map((row) => (row.after ? widthOf(row.after, `600 ${FONT}`) + 10 : 0)));
        const top = 24;
        clear(drawing);
        drawing.append(...heads(count, cell, left, column, titles));
        let y = top;
        rows.forEach((row, index) => {
            if (row.rule) {
                drawing.append(s("line", { class: "rule", x1: signs, x2: after + sums, y1: y + 3, y2: y + 3 }));
                y += 6;
            }
            drawing.append(
                line(row, names[index], {
                    y,
                    signs,
                    named: nameWidth,
                    left,
                    cell,
                    beyond,
                    after,
                    more: index === 0 || row.rule ? more : more && "…",
                    index,
                }),
            );
            y += HEIGHT;
        });
        setSize(drawing, after + sums + 4, y + 6);
    }

    function line(row, name, at) {
        const middle = at.y + HEIGHT / 2;
        const text = (x, words, kind, anchor = "start") =>
            s("text", { class: kind, x, y: middle, "text-anchor": anchor, "dominant-baseline": "central" }, words);
        const group = s("g", { class: row.marked ? "marked" : null });
        if (row.marked)
            group.append(s("rect", { class: "mark", x: 0, y: at.y, width: at.left - 4, height: HEIGHT - 2, rx: 5 }));
        if (row.sign) group.append(text(4, row.sign, "sign"));
        group.append(text(at.signs + at.named - 8, name, "name", "end"));
        if (row.weight) group.append(text(at.left - 10, row.weight, "weight", "end"));
        row.values.forEach((value, column) =>
            group.append(...cellOf(value, at.left + column * at.cell, at.y, at.cell, row)),
        );
        if (at.more) group.append(text(at.beyond, at.more, "tick"));
        if (row.after) group.append(text(at.after, row.after, "after"));
        if (onPick) {
            group.classList.add("pick");
            group.addEventListener("click", () => onPick(at.index));
        }
        return group;
    }

    function cellOf(value, x, y, width, row) {
        const scale = scaleOf(row);
        const box = s(
            "rect",
            {
                class: "cell",
                x: x + 0.5,
                y,
                width: width - 1,
                height: HEIGHT - 2,
                rx: width > 20 ? 3 : 0,
                fill: colourOf(value, ...scale),
            },
            s("title", {}, formatNumber(value, 6)),
        );
        if (width < MIN_NUMBERED_PIXELS) return [box];
        const ink = s(
            "text",
            {
                class: "number",
                x: x + width / 2,
                y: y + HEIGHT / 2 - 1,
                "text-anchor": "middle",
                "dominant-baseline": "central",
            },
            shortNumber(value, row.digits),
        );
        ink.style.fill = inkOn(value, ...scale);
        return [box, ink];
    }

    const forget = onThemeChange(() => (drawing.isConnected ? draw() : forget()));
    draw();
    return drawing;
}

/** Column numbers or names, and the column label. */
function heads(count, cell, left, column, titles) {
    const interval = Math.ceil(26 / cell);
    const elements = Array.from({ length: count }, (_, i) => i)
        .filter((i) => i % interval === 0)
        .map((i) =>
            s(
                "text",
                { class: "tick", x: left + (i + 0.5) * cell, y: 13, "text-anchor": "middle" },
                titles ? truncate(titles[i], cell - 2) : i + 1,
            ),
        );
    elements.push(s("text", { class: "tick", x: left - 10, y: 13, "text-anchor": "end" }, column));
    return elements;
}

/** A softmax as a table: score, exponential, and a bar for the result. */
export function softmaxRows({ labels, scores, exponentials, probabilities, rest, total, followed, label, onPick = null }) {
    const drawing = s("svg", { class: "strips", role: "img", "aria-label": label });
    const BAR = 230;

    function draw() {
        const names = labels.map((name) => truncate(name, MAX_NAME_PIXELS));
        const left = Math.ceil(Math.max(60, ...[...names, rest?.[0] ?? ""].map((name) => widthOf(name)))) + 16;
        const columns = [left + 84, left + 240, left + 326, left + 342];
        clear(drawing);
        const text = (x, y, words, kind, anchor = "end") =>
            s("text", { class: kind, x, y, "text-anchor": anchor, "dominant-baseline": "central" }, words);
        drawing.append(
            ...["score", "exp(score − max)", "softmax"].map((title, i) => text(columns[i], 12, title, "tick")),
        );
        let y = 24;
        const row = (name, cells, share, marked, index) => {
            const middle = y + HEIGHT / 2;
            const group = s("g", { class: index !== null && onPick ? "pick" : null });
            if (marked) group.append(s("rect", { class: "mark", x: 0, y, width: left - 4, height: HEIGHT - 2, rx: 5 }));
            group.append(text(left - 12, middle, name, "name"));
            cells.forEach(
                (value, i) => value !== null && group.append(text(columns[i], middle, value, "figure-number")),
            );
            if (share !== null)
                group.append(
                    s("rect", {
                        class: marked ? "bar strong" : "bar",
                        x: columns[3],
                        y: y + 5,
                        width: Math.max(1.5, BAR * share),
                        height: HEIGHT - 12,
                        rx: 3,
                    }),
                );
            if (index !== null && onPick) group.addEventListener("click", () => onPick(index));
            drawing.append(group);
            y += HEIGHT;
        };
        labels.forEach((_, i) =>
            row(
                names[i],
                [formatNumber(scores[i], 2), formatNumber(exponentials[i], 4), percent(probabilities[i])],
                probabilities[i],
                i === followed,
                i,
            ),
        );
        if (rest) row(rest[0], [null, formatNumber(rest[1], 4), percent(rest[2])], rest[2], false, null);
        drawing.append(s("line", { class: "rule", x1: 0, x2: columns[2], y1: y + 2, y2: y + 2 }));
        y += 5;
        row("sum", [null, formatNumber(total, 4), "100%"], null, false, null);
        setSize(drawing, columns[3] + BAR + 8, y + 6);
    }

    draw();
    return drawing;
}

export function percent(share) {
    const value = 100 * share;
    if (value > 0 && value < 0.1) return "< 0.1%";
    return value > 99.9 && value < 100 ? "> 99.9%" : `${value.toFixed(1)}%`;
}

/** Tokens as tiles with their ids; selectable by pointer and keyboard. */
export function tokenTiles({ tokens, ids, followed, label, onPick = null, room = 815 }) {
    const drawing = s("svg", { class: "strips", role: "group", "aria-label": label });
    const big = '17px system-ui, "Noto Sans", "Liberation Sans", sans-serif';
    const [high, gap] = [62, 8];
    let [x, y, widest] = [2, 2, 0];
    tokens.forEach((token, index) => {
        const word = truncate(token, MAX_NAME_PIXELS, big);
        const wide = Math.max(44, widthOf(word, big) + 22, widthOf(String(ids[index])) + 16);
        if (x + wide > room && x > 2) [x, y] = [2, y + high + gap];
        drawing.append(tile(token, word, ids[index], index, x, y, wide));
        x += wide + gap;
        widest = Math.max(widest, x);
    });
    setSize(drawing, widest + 2, y + high + 4);

    function tile(token, word, id, index, left, top, wide) {
        const group = s(
            "g",
            {
                class: `tile${index === followed ? " followed" : ""}${onPick ? " pick" : ""}`,
                role: onPick ? "button" : null,
                tabindex: onPick ? "0" : null,
                "aria-label": `${token}, ${id}`,
                "aria-pressed": onPick ? String(index === followed) : null,
                onclick: onPick ? () => onPick(index) : null,
                onkeydown: onPick
                    ? (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), onPick(index))
                    : null,
            },
            s("rect", { x: left, y: top, width: wide, height: 38, rx: 7 }),
            s(
                "text",
                {
                    class: "tile-word",
                    x: left + wide / 2,
                    y: top + 19,
                    "text-anchor": "middle",
                    "dominant-baseline": "central",
                },
                word,
            ),
            s(
                "text",
                {
                    class: "tick",
                    x: left + wide / 2,
                    y: top + 53,
                    "text-anchor": "middle",
                    "dominant-baseline": "central",
                },
                id,
            ),
        );
        return group;
    }

    return drawing;
}
