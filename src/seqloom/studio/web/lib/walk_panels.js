// The panels of a walk: figures of vectors, sums and softmaxes, each with a table.

import { h, formatNumber } from "./dom.js";
import { figure, tableOf } from "./figure.js";
import { heatmap } from "./heatmap.js";
import { digitsFor, percent, softmaxRows, shortNumber, vectorRows, tokenTiles, zoom } from "./vector_rows.js";
import { stageMap } from "./walk_map.js";

const MAX_NAMED_COLUMNS = 9; // columns whose values are written into the cells

/** Render one panel. `acts` has the optional click handlers follow(token), step(row) and visit(stage). */
export function renderPanel(panel, name, acts) {
    if (panel.kind === "table") return tablePanelOf(panel, name, acts);
    const fig = figure({ name, title: panel.title, caption: panel.note });
    const [drawing, table] = DRAWERS[panel.kind](panel, acts);
    fig.body.append(drawing);
    fig.table(table);
    return fig.element;
}

const DRAWERS = {
    map: mapOf,
    tokens: tokensOf,
    matrix: matrixOf,
    sum: sumOf,
    dot: dotOf,
    softmax: softmaxOf,
    "weighted-sum": weightedSumOf,
};

/** Column names: consecutive numbers, or the units of the panel. */
const columnNames = (count, column, units = []) =>
    Array.from({ length: count }, (_, i) => `${column} ${units[i] ?? i + 1}`);
const unitNames = (panel) => (panel.units?.length ? panel.units.map(String) : null);
const plus = (value) => (value < 0 ? "−" : "+");

function mapOf(panel, acts) {
    const drawing = stageMap({ stops: panel.stops, back: panel.back, label: panel.title, onPick: acts.visit });
    return [
        drawing,
        () => ({ columns: ["stage", "description"], rows: panel.stops.map((stop) => [stop.name, stop.description]) }),
    ];
}

function tokensOf(panel, acts) {
    const drawing = tokenTiles({
        tokens: panel.tokens,
        ids: panel.ids,
        followed: panel.followed,
        label: panel.title,
        onPick: acts.follow,
    });
    return [drawing, () => ({ columns: ["token", "id"], rows: panel.tokens.map((token, i) => [token, panel.ids[i]]) })];
}

function matrixOf(panel) {
    const columns = panel.columns.length
        ? panel.columns
        : columnNames(panel.values[0].length, panel.column_title, panel.units);
    const table = () => ({
        columns: [panel.row_title, ...columns],
        rows: panel.rows.map((row, i) => [row, ...panel.values[i]]),
    });
    const hasColumnNames = panel.columns.length && panel.columns.length <= MAX_NAMED_COLUMNS && !panel.probabilities;
    if (panel.columns.length && !hasColumnNames) return [heatmapOf(panel), table];
    const rows = panel.rows.map((name, i) => ({
        name,
        values: panel.values[i],
        marked: i === panel.marked,
        gate: panel.gates,
    }));
    const options = panel.probabilities ? { low: 0, high: 1, signed: false } : {};
    return [
        vectorRows({
            rows,
            of: panel.of,
            column: panel.column_title,
            names: hasColumnNames ? panel.columns : unitNames(panel),
            label: panel.title,
            ...options,
        }),
        table,
    ];
}

function heatmapOf(panel) {
    const values = Float32Array.from(panel.values.flat());
    const maximum = panel.probabilities ? 1 : Math.max(1e-9, ...values.map(Math.abs));
    const map = heatmap({
        rows: panel.rows,
        columns: panel.columns,
        values,
        low: panel.probabilities ? 0 : -maximum,
        high: maximum,
        signed: !panel.probabilities,
        root: panel.probabilities,
        rowTitle: panel.row_title,
        columnTitle: panel.column_title,
        size: [760 * zoom(), 460 * zoom()],
        label: panel.title,
    });
    if (panel.marked !== null && panel.rows.length > 1) map.highlight(panel.marked, null);
    return map.element;
}

function sumOf(panel) {
    const rows = panel.terms.map((term, i) => ({
        gate: i === panel.gate,
        sign: term.sign,
        name: term.name,
        values: term.values,
        rule: term.sign === "=" || term.sign === "→",
        marked: term === panel.terms.at(-1),
    }));
    const elementName = panel.units.length ? "unit" : "element";
    const columns = columnNames(panel.terms[0].values.length, elementName, panel.units);
    const table = () => ({
        columns: ["", ...columns],
        rows: panel.terms.map((term) => [`${term.sign} ${term.name}`.trim(), ...term.values]),
    });
    return [vectorRows({ rows, of: panel.of, column: elementName, names: unitNames(panel), label: panel.title }), table];
}

function dotOf(panel) {
    const more = panel.of - panel.products.length;
    const digits = digitsFor(panel.products);
    const rows = [
        { name: panel.names[0], values: panel.a },
        { sign: "×", name: panel.names[1], values: panel.b },
        { sign: "=", name: "products", values: panel.products, digits, rule: true },
    ];
    const drawing = h("div", {}, vectorRows({ rows, of: panel.of, label: panel.title }), sumLine(panel, more, digits));
    const table = () => ({
        columns: ["", ...columnNames(panel.a.length, "element"), ...(more > 0 ? ["others"] : []), "sum"],
        rows: [
            [panel.names[0], ...panel.a, ...(more > 0 ? [null] : []), null],
            [panel.names[1], ...panel.b, ...(more > 0 ? [null] : []), null],
            ["products", ...panel.products, ...(more > 0 ? [panel.rest] : []), panel.total],
            ...panel.after.map(([words, value]) => [
                words,
                ...panel.a.map(() => null),
                ...(more > 0 ? [null] : []),
                value,
            ]),
        ],
    });
    return [drawing, table];
}

/** The sum of all products and the further operations, as a line of text. */
function sumLine(panel, more, digits) {
    const format = (value) => shortNumber(value, digits);
    const terms = panel.products.map((value, i) => (i === 0 ? format(value) : `${plus(value)} ${format(Math.abs(value))}`));
    const remainder = more > 0 ? `${plus(panel.rest)} ${format(Math.abs(panel.rest))} (${more} others)` : "";
    const parts = [terms.join(" "), remainder, `= ${format(panel.total)}`].filter(Boolean);
    return h(
        "p",
        { class: "arithmetic" },
        h("span", { class: "arithmetic-label" }, "sum: "),
        parts.join(" "),
        panel.after.map(([words, value]) =>
            h("span", { class: "arithmetic-after" }, ` ${words} `, h("b", {}, format(value))),
        ),
    );
}

function softmaxOf(panel) {
    const drawing = softmaxRows({ ...panel, label: panel.title });
    const table = () => ({
        columns: [panel.of, "score", "exp(score − max)", "softmax"],
        rows: [
            ...panel.labels.map((label, i) => [label, panel.scores[i], panel.exponentials[i], panel.probabilities[i]]),
            ...(panel.rest ? [[panel.rest[0], null, panel.rest[1], panel.rest[2]]] : []),
            ["sum", null, panel.total, 1],
        ],
    });
    return [drawing, table];
}

function weightedSumOf(panel) {
    const rows = panel.labels.map((name, i) => ({
        sign: i ? "+" : "",
        name,
        weight: `${percent(panel.weights[i])} ×`,
        values: panel.vectors[i],
    }));
    rows.push({ sign: "=", name: panel.names[1], values: panel.result, rule: true, marked: true });
    const columns = columnNames(panel.result.length, "element");
    const table = () => ({
        columns: ["", "weight", ...columns],
        rows: [
            ...panel.labels.map((name, i) => [name, panel.weights[i], ...panel.vectors[i]]),
            [panel.names[1], null, ...panel.result],
        ],
    });
    return [h("div", {}, vectorRows({ rows, of: panel.of, label: panel.title }), weightedSumLine(panel)), table];
}

/** The first element of a weighted sum: the terms with the largest weights, and the sum of the others. */
function weightedSumLine(panel) {
    const order = panel.weights
        .map((weight, i) => [weight, i])
        .sort((a, b) => b[0] - a[0])
        .slice(0, 3);
    const shownSum = order.reduce((sum, [weight, i]) => sum + weight * panel.vectors[i][0], 0);
    const others = panel.result[0] - shownSum;
    const digits = panel.weights.length > 3 ? digitsFor([others]) : 2;
    const format = (value) => shortNumber(value, digits);
    const terms = order.map(([weight, i]) => `${percent(weight)} × ${format(panel.vectors[i][0])}`);
    const remainder = panel.weights.length > 3 ? ` ${plus(others)} ${format(Math.abs(others))} (others)` : "";
    return h(
        "p",
        { class: "arithmetic" },
        h("span", { class: "arithmetic-label" }, "element 1: "),
        `${terms.join(" + ")}${remainder} = `,
        h("b", {}, format(panel.result[0])),
    );
}

/** A small table; rows that are steps can be selected. */
function tablePanelOf(panel, name, acts) {
    const probability = panel.columns.indexOf("probability");
    const rows = panel.rows.map((row) =>
        row.map((cell, i) =>
            i === probability ? percent(cell) : typeof cell === "number" && !Number.isInteger(cell) ? formatNumber(cell, 2) : cell,
        ),
    );
    const picked = panel.columns[0] === "step" ? acts.step : null;
    const table = picked
        ? stepTable(panel, rows, picked)
        : tableOf({ columns: panel.columns, rows, caption: panel.title });
    [...table.querySelectorAll("tbody tr")][panel.marked ?? -1]?.classList.add("walk-chosen");
    return h(
        "section",
        { class: "walk-lines", dataset: { lines: name } },
        h("h3", { dir: "auto" }, panel.title),
        table,
        panel.note && h("p", { class: "hint" }, panel.note),
    );
}

function stepTable(panel, rows, picked) {
    const line = (row, index) =>
        h(
            "tr",
            {},
            h(
                "th",
                { scope: "row" },
                h(
                    "button",
                    {
                        type: "button",
                        class: "secondary",
                        onclick: () => picked(index),
                        "aria-label": `Show step ${row[0]}`,
                    },
                    row[0],
                ),
            ),
            row.slice(1).map((cell) => h("td", { dir: "auto" }, cell)),
        );
    return h(
        "div",
        { class: "table-scroll", tabindex: "0", role: "region", "aria-label": panel.title },
        h(
            "table",
            {},
            h(
                "thead",
                {},
                h(
                    "tr",
                    {},
                    panel.columns.map((column) => h("th", { scope: "col" }, column)),
                ),
            ),
            h("tbody", {}, rows.map(line)),
        ),
    );
}
