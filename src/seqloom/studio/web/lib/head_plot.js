// A scatter plot of attention heads: entropy against distance.

import { h, s } from "./dom.js";
import { colourOf, series } from "./colour.js";

const MAX_LABELLED = 24; // heads; with more, dots have no labels
const PLOT = { width: 480, height: 330, left: 56, right: 22, top: 16, bottom: 50 };

/**
 * One dot per head, coloured by layer. `statistics` are [{layer, head, entropy, distance} …], `part` is {name, layers}.
 */
export function headPlot(statistics, { layers, name }, { onPick, onHover }) {
    const maxDistance = roundUp(Math.max(...statistics.map(({ distance }) => distance), 0.5));
    const maxEntropy = roundUp(Math.max(...statistics.map(({ entropy }) => entropy), 0.5));
    const x = (value) => PLOT.left + (value / maxDistance) * (PLOT.width - PLOT.left - PLOT.right);
    const y = (value) => PLOT.height - PLOT.bottom - (value / maxEntropy) * (PLOT.height - PLOT.top - PLOT.bottom);
    const positions = statistics.map((item) => [x(item.distance), y(item.entropy)]);
    const words = statistics.map(({ layer, head }) => `${layer}.${head}`);
    const names = statistics.length <= MAX_LABELLED ? namesBeside(words, positions) : [];
    const dots = statistics.map((item, i) => {
        return dot(item, positions[i], names[i], layerColour(item.layer, layers), onPick, onHover);
    });
    const { width, height } = PLOT;
    const label = `Entropy against distance of ${statistics.length} heads of the ${name}; see the table for the values`;
    const drawing = s(
        "svg",
        {
            class: "head-plot",
            width,
            height,
            viewBox: `0 0 ${width} ${height}`,
            role: "img",
            "aria-label": label,
        },
        axes(maxDistance, maxEntropy, x, y),
        dots,
    );
    const keys = Array.from({ length: layers }, (_, layer) => key(layer + 1, layers));
    return h("div", {}, layers > 1 ? h("div", { class: "legend" }, keys) : null, drawing);
}

function key(layer, layers) {
    return s(
        "svg",
        { class: "head-dot-key", width: 84, height: 22, "aria-hidden": "true" },
        s("circle", { cx: 9, cy: 11, r: 6, fill: layerColour(layer, layers) }),
        s("text", { x: 21, y: 11, "dominant-baseline": "central" }, `layer ${layer}`),
    );
}

/** Series colours for up to eight layers, otherwise a sequential scale. */
function layerColour(layer, layers) {
    return layers <= 8 ? series(layer - 1) : colourOf(0.25 + (0.75 * layer) / layers, 0, 1);
}

/** Place labels right, left, above or below their dots; labels without room are omitted. */
function namesBeside(words, positions) {
    const occupied = positions.map(([x, y]) => [x - 8, y - 8, x + 8, y + 8]);
    return words.map((word, i) => {
        const [x, y] = positions[i];
        const size = 7.5 * word.length + 2;
        const free = [
            [x + 11, y - 8],
            [x - 11 - size, y - 8],
            [x - size / 2, y - 26],
            [x - size / 2, y + 10],
        ]
            .map(([left, top]) => [left, top, left + size, top + 16])
            .filter(([left, , right]) => left > PLOT.left && right < PLOT.width)
            .find((box) => !occupied.some((other) => overlap(box, other)));
        if (!free) return null;
        occupied.push(free);
        const [cx, cy] = [(free[0] + free[2]) / 2, free[1] + 8];
        const middle = { "text-anchor": "middle", "dominant-baseline": "central" };
        return s("text", { class: "tick", x: cx, y: cy, ...middle }, word);
    });
}

function overlap(item, other) {
    return item[0] < other[2] && item[2] > other[0] && item[1] < other[3] && item[3] > other[1];
}

function dot(item, [cx, cy], name, colour, onPick, onHover) {
    const { layer, head } = item;
    return s(
        "g",
        {
            class: "head-dot",
            dataset: { head: `${layer} ${head}` },
            onclick: () => onPick(item),
            onpointerenter: () => onHover(item),
            onpointerleave: () => onHover(null),
        },
        s("circle", { class: "head-dot-ring", cx, cy, r: 11 }),
        s("circle", { cx, cy, r: 6.5, fill: colour }),
        name,
    );
}

function axes(far, wide, x, y) {
    const [bottom, right] = [PLOT.height - PLOT.bottom, PLOT.width - PLOT.right];
    const middle = (PLOT.top + bottom) / 2;
    const marks = (most) => [0, 0.25, 0.5, 0.75, 1].map((fraction) => fraction * most);
    const tick = (value, at) => s("text", { class: "tick", ...at }, String(Number(value.toFixed(2))));
    const title = (words, at) => s("text", { class: "axis", "text-anchor": "middle", ...at }, words);
    return [
        marks(wide).map((value) => [
            s("line", { class: "grid", x1: PLOT.left, x2: right, y1: y(value), y2: y(value) }),
            tick(value, { x: PLOT.left - 8, y: y(value), "text-anchor": "end", "dominant-baseline": "central" }),
        ]),
        marks(far).map((value) => tick(value, { x: x(value), y: bottom + 20, "text-anchor": "middle" })),
        s("line", { class: "base", x1: PLOT.left, x2: right, y1: bottom, y2: bottom }),
        title("distance (tokens)", { x: (PLOT.left + right) / 2, y: PLOT.height - 8 }),
        title("entropy (bits)", { x: 14, y: middle, transform: `rotate(-90 14 ${middle})` }),
    ];
}

/** Round up to a number with round quarters. */
function roundUp(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    const round = [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].map((times) => times * power);
    return round.find((item) => item >= value) ?? value;
}
