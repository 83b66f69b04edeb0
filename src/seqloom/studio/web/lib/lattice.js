// A tag lattice: marginal probabilities as nodes, transitions as edges, and the best path.

import { h, s, clear, formatNumber, announce } from "./dom.js";
import { colourOf, inkOn, onThemeChange } from "./colour.js";
import { isRightToLeft } from "./weighted_words.js";

const ROW = 40; // pixels between two tags
const NODE = 15; // radius
const HEAD = 84; // height of the words and their predicted tags
const MIN_WORD_PIXELS = 68; // minimum pixels between two words
const MAX_WORD_PIXELS = 150; // maximum mean pixels between two words
const MAX_CHARACTERS = 26; // maximum length of a word or tag
const MIN_WRITTEN_PROBABILITY = 0.005; // minimum probability that is written into its node

/**
 * `answer` is {words, tags, posterior, transitions, best}; `rows` the indices of the tags to show; `room` the available
 * width, `differs` the words for which another model predicts another tag.
 */
export function lattice(answer, { rows, room = 0, differs = new Set(), label = "Tags", signal } = {}) {
    const ariaLabel = `${label}: navigate words and tags with the arrow keys`;
    const drawing = s("svg", { class: "lattice", role: "group", tabindex: "0", "aria-label": ariaLabel });
    const readout = h("p", { class: "readout", dir: "auto", "aria-hidden": "true" });
    const geometry = layout(answer, rows, room);
    const cursor = s("circle", { class: "cursor", r: NODE + 5, visibility: "hidden" });
    const chances = new Map(answer.transitions.map(([t, j, k, p]) => [`${t} ${j} ${k}`, p]));
    let at = { word: 0, row: Math.max(0, rows.indexOf(answer.best[0])) };

    function draw() {
        drawing.setAttribute("width", geometry.width);
        drawing.setAttribute("height", geometry.height);
        drawing.setAttribute("viewBox", `0 0 ${geometry.width} ${geometry.height}`);
        clear(drawing).append(...bands(), ...lines(), ...steps(), ...path(), ...nodes(), ...heads(), cursor);
    }

    function bands() {
        return [...differs].map((t) =>
            s("rect", {
                class: "differs",
                x: geometry.x[t] - geometry.wide[t] / 2 + 3,
                y: 2,
                rx: 8,
                width: geometry.wide[t] - 6,
                height: geometry.height - 4,
            }),
        );
    }

    function lines() {
        return rows.flatMap((tag, row) => [
            s("line", { class: "grid", x1: geometry.left - 6, x2: geometry.width - 8, y1: geometry.y(row), y2: geometry.y(row) }),
            s(
                "text",
                { class: "label", x: geometry.left - 14, y: geometry.y(row) + 5, "text-anchor": "end" },
                cut(answer.tags[tag]),
            ),
        ]);
    }

    /** Transitions. More probable transitions are thicker and darker. */
    function steps() {
        return answer.transitions
            .filter(([, j, k]) => rows.includes(j) && rows.includes(k))
            .map(([t, j, k, p]) =>
                s("line", {
                    class: "step",
                    ...between(t, j, k),
                    "stroke-width": 1 + 6 * p,
                    "stroke-opacity": 0.15 + 0.5 * p,
                }),
            );
    }

    function path() {
        return answer.best.slice(1).map((tag, t) => s("line", { class: "path", ...between(t, answer.best[t], tag) }));
    }

    function between(t, j, k) {
        return { x1: geometry.x[t], y1: geometry.y(rows.indexOf(j)), x2: geometry.x[t + 1], y2: geometry.y(rows.indexOf(k)) };
    }

    function nodes() {
        return answer.words.flatMap((_, t) =>
            rows.map((tag, row) => {
                const p = answer.posterior[t][tag],
                    best = answer.best[t] === tag;
                const likeliest = !best && p === Math.max(...answer.posterior[t]);
                return s(
                    "g",
                    {
                        class: best ? "node best" : likeliest ? "node likeliest" : "node",
                        transform: `translate(${geometry.x[t]} ${geometry.y(row)})`,
                        onpointerenter: () => read(t, row),
                        onpointerleave: () => (readout.textContent = words()),
                    },
                    s("circle", { r: p >= MIN_WRITTEN_PROBABILITY || best ? NODE : 4, fill: colourOf(p, 0, 1) }),
                    (p >= MIN_WRITTEN_PROBABILITY || best) && chance(p),
                );
            }),
        );
    }

    function chance(p) {
        const text = s("text", { class: "probability", "text-anchor": "middle", y: 4.5 }, percent(p));
        text.style.fill = inkOn(p, 0, 1);
        return text;
    }

    function heads() {
        return answer.words.flatMap((word, t) => {
            const tag = answer.best[t],
                middle = { x: geometry.x[t], "text-anchor": "middle" };
            return [
                s("text", { ...middle, class: "word", y: 24 }, cut(word)),
                s("text", { ...middle, class: "tag-label", y: 47 }, tagLabel(answer.tags[tag])),
                s("text", { ...middle, class: "tick", y: 65 }, `p = ${formatNumber(answer.posterior[t][tag], 2)}`),
            ];
        });
    }

    function read(t, row) {
        const tag = rows[row],
            p = answer.posterior[t][tag];
        const before = t === 0 ? "" : incoming(t, tag),
            best = answer.best[t] === tag ? ", on the best path" : "";
        readout.textContent = `${answer.words[t]}: ${answer.tags[tag]} with p = ${formatNumber(p)}${before}${best}`;
        return readout.textContent;
    }

    function incoming(t, tag) {
        const from = answer.tags.map((name, j) => [name, chances.get(`${t - 1} ${j} ${tag}`) ?? 0]);
        const likely = from
            .filter(([, p]) => p > 0)
            .sort((item, other) => other[1] - item[1])
            .slice(0, 3);
        const alternatives = likely.map(([name, p]) => `${name} ${formatNumber(p)}`);
        return alternatives.length ? `; reached from ${alternatives.join(", ")}` : "";
    }

    const words = () => "Point at a node or use the arrow keys to see its probability.";

    function move(event) {
        const offsets = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
        if (!offsets[event.key]) return;
        event.preventDefault();
        const [across, down] = offsets[event.key],
            ahead = geometry.turned ? -across : across;
        at = { word: within(at.word + ahead, answer.words.length), row: within(at.row + down, rows.length) };
        cursor.setAttribute("cx", geometry.x[at.word]);
        cursor.setAttribute("cy", geometry.y(at.row));
        cursor.setAttribute("visibility", "visible");
        announce(read(at.word, at.row));
    }

    drawing.addEventListener("keydown", move);
    drawing.addEventListener("blur", () => cursor.setAttribute("visibility", "hidden"));
    readout.textContent = words();
    draw();
    onThemeChange(() => drawing.isConnected && draw(), signal);
    return { element: h("div", {}, h("div", { class: "lattice-scroll" }, drawing), readout) };
}

function within(value, count) {
    return Math.min(Math.max(value, 0), count - 1);
}

function cut(text) {
    if (!text.trim()) return text.replace(/ /g, "␣").replace(/\n/g, "↵");
    return text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS - 1)}…` : text;
}

/** The name of a tag, or only the number of an unnamed state. */
function tagLabel(tag) {
    return cut(/^\d+: /.test(tag) ? tag.split(":")[0] : tag);
}

function percent(p) {
    return p >= 0.995 ? "1" : p < 0.095 ? `.0${Math.max(1, Math.round(100 * p))}` : `.${Math.round(100 * p)}`;
}

/** The layout; the width of a column fits its word and tag. */
function layout(answer, rows, room) {
    const pen = document.createElement("canvas").getContext("2d");
    const width = (text, font) => {
        pen.font = font;
        return pen.measureText(cut(text)).width;
    };
    const fonts = getComputedStyle(document.documentElement).getPropertyValue("--text");
    const left = 30 + Math.max(20, ...rows.map((tag) => width(answer.tags[tag], `14px ${fonts}`)));
    const widths = answer.words.map((word, t) => {
        const tagName = tagLabel(answer.tags[answer.best[t]]);
        return Math.max(MIN_WORD_PIXELS, 22 + width(word, `600 16px ${fonts}`), 22 + width(tagName, `600 14px ${fonts}`));
    });
    const spare = Math.min(MAX_WORD_PIXELS * widths.length, room - left - 12) - widths.reduce((sum, size) => sum + size, 0);
    if (spare > 0) widths.forEach((size, t) => (widths[t] = size + spare / widths.length));
    let edge = left;
    const inOrder = widths.map((size) => (edge += size) - size / 2);
    const isReversed = isRightToLeft(answer.words),
        x = isReversed ? inOrder.map((size) => left + edge - size) : inOrder;
    const y = (row) => HEAD + ROW / 2 + row * ROW;
    return { left, x, wide: widths, turned: isReversed, y, width: Math.ceil(edge + 12), height: HEAD + rows.length * ROW + 6 };
}
