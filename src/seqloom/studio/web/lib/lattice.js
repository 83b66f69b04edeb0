// A lattice of words × tags: how probable each tag of each word is, the steps between them, and the best path.

import { h, s, clear, number, say } from "./dom.js";
import { colourOf, inkOn, onTheme } from "./colour.js";
import { fromTheRight } from "./wordflow.js";

const ROW = 40; // pixels between two tags
const NODE = 15; // radius
const HEAD = 84; // above the tags: words, and what they are on the best path
const MIN_WORD_PIXELS = 68; // from one word to the next
const WIDEST = 150; // where there is more room than needed
const LETTERS = 26; // of a word or a tag that are shown
const WRITTEN = 0.005; // probabilities from here on are written into their nodes

/**
 * `answer` {words, tags, posterior, steps, best} as the server gives it; `rows` the numbers of the tags to show;
 * `room` the pixels it may fill, `differs` the words at which another model says something else.
 */
export function lattice(answer, { rows, room = 0, differs = new Set(), label = "Tags", signal } = {}) {
    const spoken = `${label}: arrow keys move from word to word and from tag to tag`;
    const drawing = s("svg", { class: "lattice", role: "group", tabindex: "0", "aria-label": spoken });
    const readout = h("p", { class: "readout", dir: "auto", "aria-hidden": "true" });
    const place = layout(answer, rows, room);
    const cursor = s("circle", { class: "cursor", r: NODE + 5, visibility: "hidden" });
    const chances = new Map(answer.steps.map(([t, j, k, p]) => [`${t} ${j} ${k}`, p]));
    let at = { word: 0, row: Math.max(0, rows.indexOf(answer.best[0])) };

    function draw() {
        drawing.setAttribute("width", place.width);
        drawing.setAttribute("height", place.height);
        drawing.setAttribute("viewBox", `0 0 ${place.width} ${place.height}`);
        clear(drawing).append(...bands(), ...lines(), ...steps(), ...path(), ...nodes(), ...heads(), cursor);
    }

    function bands() {
        return [...differs].map((t) =>
            s("rect", {
                class: "differs",
                x: place.x[t] - place.wide[t] / 2 + 3,
                y: 2,
                rx: 8,
                width: place.wide[t] - 6,
                height: place.height - 4,
            }),
        );
    }

    function lines() {
        return rows.flatMap((tag, row) => [
            s("line", { class: "grid", x1: place.left - 6, x2: place.width - 8, y1: place.y(row), y2: place.y(row) }),
            s(
                "text",
                { class: "label", x: place.left - 14, y: place.y(row) + 5, "text-anchor": "end" },
                cut(answer.tags[tag]),
            ),
        ]);
    }

    /** Thicker and darker the more probable a step is. */
    function steps() {
        return answer.steps
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
        return { x1: place.x[t], y1: place.y(rows.indexOf(j)), x2: place.x[t + 1], y2: place.y(rows.indexOf(k)) };
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
                        transform: `translate(${place.x[t]} ${place.y(row)})`,
                        onpointerenter: () => read(t, row),
                        onpointerleave: () => (readout.textContent = words()),
                    },
                    s("circle", { r: p >= WRITTEN || best ? NODE : 4, fill: colourOf(p, 0, 1) }),
                    (p >= WRITTEN || best) && chance(p),
                );
            }),
        );
    }

    function chance(p) {
        const text = s("text", { class: "chance", "text-anchor": "middle", y: 4.5 }, percent(p));
        text.style.fill = inkOn(p, 0, 1);
        return text;
    }

    function heads() {
        return answer.words.flatMap((word, t) => {
            const tag = answer.best[t],
                middle = { x: place.x[t], "text-anchor": "middle" };
            return [
                s("text", { ...middle, class: "word", y: 24 }, cut(word)),
                s("text", { ...middle, class: "said", y: 47 }, called(answer.tags[tag])),
                s("text", { ...middle, class: "tick", y: 65 }, `p = ${number(answer.posterior[t][tag], 2)}`),
            ];
        });
    }

    function read(t, row) {
        const tag = rows[row],
            p = answer.posterior[t][tag];
        const before = t === 0 ? "" : incoming(t, tag),
            best = answer.best[t] === tag ? ", on the best path" : "";
        readout.textContent = `${answer.words[t]}: ${answer.tags[tag]} with p = ${number(p)}${before}${best}`;
        return readout.textContent;
    }

    function incoming(t, tag) {
        const from = answer.tags.map((name, j) => [name, chances.get(`${t - 1} ${j} ${tag}`) ?? 0]);
        const likely = from
            .filter(([, p]) => p > 0)
            .sort((one, other) => other[1] - one[1])
            .slice(0, 3);
        const some = likely.map(([name, p]) => `${name} ${number(p)}`);
        return some.length ? `; reached from ${some.join(", ")}` : "";
    }

    const words = () => "Point at a node, or move with the arrow keys, to read it.";

    function move(event) {
        const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
        if (!ways[event.key]) return;
        event.preventDefault();
        const [across, down] = ways[event.key],
            ahead = place.turned ? -across : across;
        at = { word: within(at.word + ahead, answer.words.length), row: within(at.row + down, rows.length) };
        cursor.setAttribute("cx", place.x[at.word]);
        cursor.setAttribute("cy", place.y(at.row));
        cursor.setAttribute("visibility", "visible");
        say(read(at.word, at.row));
    }

    drawing.addEventListener("keydown", move);
    drawing.addEventListener("blur", () => cursor.setAttribute("visibility", "hidden"));
    readout.textContent = words();
    draw();
    onTheme(() => drawing.isConnected && draw(), signal);
    return { element: h("div", {}, h("div", { class: "lattice-scroll" }, drawing), readout) };
}

function within(value, count) {
    return Math.min(Math.max(value, 0), count - 1);
}

function cut(text) {
    if (!text.trim()) return text.replace(/ /g, "␣").replace(/\n/g, "↵");
    return text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text;
}

/** A tag's name; of a state that has none, its number alone. */
function called(tag) {
    return cut(/^\d+: /.test(tag) ? tag.split(":")[0] : tag);
}

function percent(p) {
    return p >= 0.995 ? "1" : p < 0.095 ? `.0${Math.max(1, Math.round(100 * p))}` : `.${Math.round(100 * p)}`;
}

/** Where words and tags stand; a word has as much room as it, or its tag, needs. */
function layout(answer, rows, room) {
    const pen = document.createElement("canvas").getContext("2d");
    const width = (text, font) => {
        pen.font = font;
        return pen.measureText(cut(text)).width;
    };
    const fonts = getComputedStyle(document.documentElement).getPropertyValue("--text");
    const left = 30 + Math.max(20, ...rows.map((tag) => width(answer.tags[tag], `14px ${fonts}`)));
    const wide = answer.words.map((word, t) => {
        const said = called(answer.tags[answer.best[t]]);
        return Math.max(MIN_WORD_PIXELS, 22 + width(word, `600 16px ${fonts}`), 22 + width(said, `600 14px ${fonts}`));
    });
    const spare = Math.min(WIDEST * wide.length, room - left - 12) - wide.reduce((sum, own) => sum + own, 0);
    if (spare > 0) wide.forEach((own, t) => (wide[t] = own + spare / wide.length));
    let edge = left;
    const inOrder = wide.map((own) => (edge += own) - own / 2);
    const turned = fromTheRight(answer.words),
        x = turned ? inOrder.map((own) => left + edge - own) : inOrder;
    const y = (row) => HEAD + ROW / 2 + row * ROW;
    return { left, x, wide, turned, y, width: Math.ceil(edge + 12), height: HEAD + rows.length * ROW + 6 };
}
