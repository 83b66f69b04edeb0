// Vectors as rows of numbers on colour: what is added, multiplied or mixed stands under each other, and adds up.

import { s, clear, number } from "./dom.js";
import { colourOf, inkOn, onTheme } from "./colour.js";

const HEIGHT = 30;
const CELL = 58; // widest cell, with its number …
const MIN_CELL_PIXELS = 13; // … and the narrowest, without
const NUMBERED = 46; // narrowest cell that has room for its number
const ROOM = 560; // for all cells
const FONT = '14px system-ui, "Noto Sans", "Liberation Sans", sans-serif';
const LONGEST = 260; // of a name
const WIDE = 1800; // pixels of a window on a projector
const pen = document.createElement("canvas").getContext("2d");

/** How wide a text is, in pixels. */
export function widthOf(text, font = FONT) {
    pen.font = font;
    return pen.measureText(text).width;
}

/** A name that has no more room than this; its beginning tells most. */
export function fitted(text, most, font = FONT) {
    if (widthOf(text, font) <= most) return text;
    const letters = [...text];
    while (letters.length > 1 && widthOf(`${letters.join("")}…`, font) > most) letters.pop();
    return `${letters.join("")}…`;
}

/** How much larger drawings are than their own measures: on a projector there is room. */
export function zoom() {
    return innerWidth >= WIDE ? 1.35 : 1;
}

/** Give a drawing its size, in its own measures. */
export function sized(drawing, width, height) {
    const [w, high] = [Math.ceil(width), Math.ceil(height)];
    drawing.setAttribute("viewBox", `0 0 ${w} ${high}`);
    drawing.setAttribute("width", Math.round(w * zoom()));
    drawing.setAttribute("height", Math.round(high * zoom()));
}

/** A number of a vector: two digits are enough for the eye, and what is nothing by these has no sign. */
export function short(value, digits = 2) {
    const size = Math.abs(value);
    const text = value.toFixed(digits > 2 ? digits : size >= 100 ? 0 : size >= 10 ? 1 : 2);
    return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** Digits by which all of these can be told from nothing, as far as two to four will do. */
export function digitsFor(values) {
    const least = Math.min(...values.map(Math.abs).filter((size) => size > 0));
    return [2, 3].find((digits) => least >= 0.5 * 10 ** -digits) ?? 4;
}

/**
 * Rows of {sign, name, weight, values, digits, after, marked, rule}: a sign and a name before, a weight, the numbers,
 * and what they come to. `of` is how many numbers there are in all, `column` what each is, `names` what each is called.
 */
export function strips({
    rows,
    of,
    column = "number",
    names: titles = null,
    low = null,
    high = null,
    signed = true,
    label = "Numbers",
    onPick = null,
}) {
    const drawing = s("svg", { class: "strips", role: "img", "aria-label": label });
    const most = high ?? Math.max(1e-9, ...rows.filter((row) => !row.gate).flatMap((row) => row.values.map(Math.abs)));
    const scaleOf = (row) => (row.gate ? [0, 1, "gates"] : [low ?? (signed ? -most : 0), most, signed]);

    function draw() {
        const count = Math.max(...rows.map((row) => row.values.length));
        const cell = Math.min(CELL, Math.max(MIN_CELL_PIXELS, ROOM / count));
        const names = rows.map((row) => fitted(row.name, LONGEST));
        const signs = rows.some((row) => row.sign) ? 26 : 0;
        const named = Math.ceil(Math.max(widthOf(column), ...names.map((name) => widthOf(name)))) + 12;
        const weighed = Math.ceil(Math.max(0, ...rows.map((row) => (row.weight ? widthOf(row.weight) + 18 : 0))));
        const left = signs + named + weighed;
        const more = of > count ? `… ${of - count} more` : "";
        const beyond = left + count * cell + 8;
        const after = beyond + (more ? widthOf(more) + 14 : 6);
        const sums = Math.max(0, ...rows.map((row) => (row.after ? widthOf(row.after, `600 ${FONT}`) + 10 : 0)));
        const top = 24;
        clear(drawing);
        drawing.append(...heads(count, cell, left, column, titles));
        let y = top;
        rows.forEach((row, place) => {
            if (row.rule) {
                drawing.append(s("line", { class: "rule", x1: signs, x2: after + sums, y1: y + 3, y2: y + 3 }));
                y += 6;
            }
            drawing.append(
                line(row, names[place], {
                    y,
                    signs,
                    named,
                    left,
                    cell,
                    beyond,
                    after,
                    more: place === 0 || row.rule ? more : more && "…",
                    place,
                }),
            );
            y += HEIGHT;
        });
        sized(drawing, after + sums + 4, y + 6);
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
            group.addEventListener("click", () => onPick(at.place));
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
            s("title", {}, number(value, 6)),
        );
        if (width < NUMBERED) return [box];
        const ink = s(
            "text",
            {
                class: "number",
                x: x + width / 2,
                y: y + HEIGHT / 2 - 1,
                "text-anchor": "middle",
                "dominant-baseline": "central",
            },
            short(value, row.digits),
        );
        ink.style.fill = inkOn(value, ...scale);
        return [box, ink];
    }

    const forget = onTheme(() => (drawing.isConnected ? draw() : forget()));
    draw();
    return drawing;
}

/** 1, 2, 3 … above the columns, and what they count. */
function heads(count, cell, left, column, titles) {
    const every = Math.ceil(26 / cell);
    const found = Array.from({ length: count }, (_, i) => i)
        .filter((i) => i % every === 0)
        .map((i) =>
            s(
                "text",
                { class: "tick", x: left + (i + 0.5) * cell, y: 13, "text-anchor": "middle" },
                titles ? fitted(titles[i], cell - 2) : i + 1,
            ),
        );
    found.push(s("text", { class: "tick", x: left - 10, y: 13, "text-anchor": "end" }, column));
    return found;
}

/** Scores, their powers and their shares: a softmax, line by line, with a bar for each share. */
export function shareRows({ labels, scores, powers, shares, rest, total, followed, label, onPick = null }) {
    const drawing = s("svg", { class: "strips", role: "img", "aria-label": label });
    const BAR = 230;

    function draw() {
        const names = labels.map((name) => fitted(name, LONGEST));
        const left = Math.ceil(Math.max(60, ...[...names, rest?.[0] ?? ""].map((name) => widthOf(name)))) + 16;
        const places = [left + 84, left + 240, left + 326, left + 342];
        clear(drawing);
        const text = (x, y, words, kind, anchor = "end") =>
            s("text", { class: kind, x, y, "text-anchor": anchor, "dominant-baseline": "central" }, words);
        drawing.append(
            ...["score", "exp(score − highest)", "share"].map((title, i) => text(places[i], 12, title, "tick")),
        );
        let y = 24;
        const row = (name, cells, share, marked, place) => {
            const middle = y + HEIGHT / 2;
            const group = s("g", { class: place !== null && onPick ? "pick" : null });
            if (marked) group.append(s("rect", { class: "mark", x: 0, y, width: left - 4, height: HEIGHT - 2, rx: 5 }));
            group.append(text(left - 12, middle, name, "name"));
            cells.forEach(
                (value, i) => value !== null && group.append(text(places[i], middle, value, "figure-number")),
            );
            if (share !== null)
                group.append(
                    s("rect", {
                        class: marked ? "bar strong" : "bar",
                        x: places[3],
                        y: y + 5,
                        width: Math.max(1.5, BAR * share),
                        height: HEIGHT - 12,
                        rx: 3,
                    }),
                );
            if (place !== null && onPick) group.addEventListener("click", () => onPick(place));
            drawing.append(group);
            y += HEIGHT;
        };
        labels.forEach((_, i) =>
            row(
                names[i],
                [number(scores[i], 2), number(powers[i], 4), percent(shares[i])],
                shares[i],
                i === followed,
                i,
            ),
        );
        if (rest) row(rest[0], [null, number(rest[1], 4), percent(rest[2])], rest[2], false, null);
        drawing.append(s("line", { class: "rule", x1: 0, x2: places[2], y1: y + 2, y2: y + 2 }));
        y += 5;
        row("together", [null, number(total, 4), "100%"], null, false, null);
        sized(drawing, places[3] + BAR + 8, y + 6);
    }

    draw();
    return drawing;
}

export function percent(share) {
    const value = 100 * share;
    if (value > 0 && value < 0.1) return "< 0.1%";
    return value > 99.9 && value < 100 ? "> 99.9%" : `${value.toFixed(1)}%`;
}

/** Tokens as tiles, each with its number below; they can be picked by pointer and by keyboard. */
export function tiles({ tokens, ids, followed, label, onPick = null, room = 815 }) {
    const drawing = s("svg", { class: "strips", role: "group", "aria-label": label });
    const big = '17px system-ui, "Noto Sans", "Liberation Sans", sans-serif';
    const [high, gap] = [62, 8];
    let [x, y, widest] = [2, 2, 0];
    tokens.forEach((token, place) => {
        const word = fitted(token, LONGEST, big);
        const wide = Math.max(44, widthOf(word, big) + 22, widthOf(String(ids[place])) + 16);
        if (x + wide > room && x > 2) [x, y] = [2, y + high + gap];
        drawing.append(tile(token, word, ids[place], place, x, y, wide));
        x += wide + gap;
        widest = Math.max(widest, x);
    });
    sized(drawing, widest + 2, y + high + 4);

    function tile(token, word, id, place, left, top, wide) {
        const group = s(
            "g",
            {
                class: `tile${place === followed ? " followed" : ""}${onPick ? " pick" : ""}`,
                role: onPick ? "button" : null,
                tabindex: onPick ? "0" : null,
                "aria-label": `${token}, ${id}`,
                "aria-pressed": onPick ? String(place === followed) : null,
                onclick: onPick ? () => onPick(place) : null,
                onkeydown: onPick
                    ? (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), onPick(place))
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
