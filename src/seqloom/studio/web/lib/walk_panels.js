// The panels of a walk: each draws numbers that add up, and can write them down as a table.

import { h, number } from "./dom.js";
import { figure, tableOf } from "./figure.js";
import { heatmap } from "./heatmap.js";
import { digitsFor, percent, shareRows, short, strips, tiles, zoom } from "./strips.js";
import { wayMap } from "./walk_map.js";

const FEW = 9; // columns with a name of their own that have room for their numbers

/** One panel as an element. `acts` may have follow(place) and step(row): what a click on a token or a step does. */
export function panelOf(panel, name, acts) {
    if (panel.kind === "lines") return linesOf(panel, name, acts);
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
    shares: sharesOf,
    mix: mixOf,
};

/** What each column is: the first numbers, or those units that the panel names. */
const counted = (count, column, units = []) =>
    Array.from({ length: count }, (_, i) => `${column} ${units[i] ?? i + 1}`);
const unitNames = (panel) => (panel.units?.length ? panel.units.map(String) : null);
const plus = (value) => (value < 0 ? "−" : "+");

function mapOf(panel, acts) {
    const drawing = wayMap({ stops: panel.stops, back: panel.back, label: panel.title, onPick: acts.visit });
    return [
        drawing,
        () => ({ columns: ["stop", "what it is"], rows: panel.stops.map((stop) => [stop.name, stop.words]) }),
    ];
}

function tokensOf(panel, acts) {
    const drawing = tiles({
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
        : counted(panel.values[0].length, panel.column_title, panel.units);
    const table = () => ({
        columns: [panel.row_title, ...columns],
        rows: panel.rows.map((row, i) => [row, ...panel.values[i]]),
    });
    const named = panel.columns.length && panel.columns.length <= FEW && !panel.shares;
    if (panel.columns.length && !named) return [heatmapOf(panel), table];
    const rows = panel.rows.map((name, i) => ({
        name,
        values: panel.values[i],
        marked: i === panel.marked,
        gate: panel.gates,
    }));
    const options = panel.shares ? { low: 0, high: 1, signed: false } : {};
    return [
        strips({
            rows,
            of: panel.of,
            column: panel.column_title,
            names: named ? panel.columns : unitNames(panel),
            label: panel.title,
            ...options,
        }),
        table,
    ];
}

function heatmapOf(panel) {
    const values = Float32Array.from(panel.values.flat());
    const most = panel.shares ? 1 : Math.max(1e-9, ...values.map(Math.abs));
    const map = heatmap({
        rows: panel.rows,
        columns: panel.columns,
        values,
        low: panel.shares ? 0 : -most,
        high: most,
        signed: !panel.shares,
        root: panel.shares,
        rowTitle: panel.row_title,
        columnTitle: panel.column_title,
        size: [760 * zoom(), 460 * zoom()],
        label: panel.title,
    });
    if (panel.marked !== null && panel.rows.length > 1) map.light(panel.marked, null);
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
    const what = panel.units.length ? "unit" : "number";
    const columns = counted(panel.terms[0].values.length, what, panel.units);
    const table = () => ({
        columns: ["", ...columns],
        rows: panel.terms.map((term) => [`${term.sign} ${term.name}`.trim(), ...term.values]),
    });
    return [strips({ rows, of: panel.of, column: what, names: unitNames(panel), label: panel.title }), table];
}

function dotOf(panel) {
    const more = panel.of - panel.products.length;
    const digits = digitsFor(panel.products);
    const rows = [
        { name: panel.names[0], values: panel.a },
        { sign: "×", name: panel.names[1], values: panel.b },
        { sign: "=", name: "products", values: panel.products, digits, rule: true },
    ];
    const drawing = h("div", {}, strips({ rows, of: panel.of, label: panel.title }), sumLine(panel, more, digits));
    const table = () => ({
        columns: ["", ...counted(panel.a.length, "number"), ...(more > 0 ? ["the others"] : []), "sum"],
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

/** All products added up, and what is done with the sum, in a line that can be read aloud. */
function sumLine(panel, more, digits) {
    const told = (value) => short(value, digits);
    const terms = panel.products.map((value, i) => (i === 0 ? told(value) : `${plus(value)} ${told(Math.abs(value))}`));
    const rest = more > 0 ? `${plus(panel.rest)} ${told(Math.abs(panel.rest))} (the other ${more})` : "";
    const parts = [terms.join(" "), rest, `= ${told(panel.total)}`].filter(Boolean);
    return h(
        "p",
        { class: "arithmetic" },
        h("span", { class: "arithmetic-label" }, "added up: "),
        parts.join(" "),
        panel.after.map(([words, value]) =>
            h("span", { class: "arithmetic-after" }, ` ${words} `, h("b", {}, told(value))),
        ),
    );
}

function sharesOf(panel) {
    const drawing = shareRows({ ...panel, label: panel.title });
    const table = () => ({
        columns: [panel.of, "score", "exp(score − highest)", "share"],
        rows: [
            ...panel.labels.map((label, i) => [label, panel.scores[i], panel.powers[i], panel.shares[i]]),
            ...(panel.rest ? [[panel.rest[0], null, panel.rest[1], panel.rest[2]]] : []),
            ["together", null, panel.total, 1],
        ],
    });
    return [drawing, table];
}

function mixOf(panel) {
    const rows = panel.labels.map((name, i) => ({
        sign: i ? "+" : "",
        name,
        weight: `${percent(panel.weights[i])} ×`,
        values: panel.vectors[i],
    }));
    rows.push({ sign: "=", name: panel.names[1], values: panel.result, rule: true, marked: true });
    const columns = counted(panel.result.length, "number");
    const table = () => ({
        columns: ["", "share", ...columns],
        rows: [
            ...panel.labels.map((name, i) => [name, panel.weights[i], ...panel.vectors[i]]),
            [panel.names[1], null, ...panel.result],
        ],
    });
    return [h("div", {}, strips({ rows, of: panel.of, label: panel.title }), mixLine(panel)), table];
}

/** How the first number of a mixture comes about: the largest shares, and all others together. */
function mixLine(panel) {
    const order = panel.weights
        .map((weight, i) => [weight, i])
        .sort((a, b) => b[0] - a[0])
        .slice(0, 3);
    const said = order.reduce((sum, [weight, i]) => sum + weight * panel.vectors[i][0], 0);
    const others = panel.result[0] - said;
    const digits = panel.weights.length > 3 ? digitsFor([others]) : 2;
    const told = (value) => short(value, digits);
    const terms = order.map(([weight, i]) => `${percent(weight)} × ${told(panel.vectors[i][0])}`);
    const rest = panel.weights.length > 3 ? ` ${plus(others)} ${told(Math.abs(others))} (all others)` : "";
    return h(
        "p",
        { class: "arithmetic" },
        h("span", { class: "arithmetic-label" }, "number 1: "),
        `${terms.join(" + ")}${rest} = `,
        h("b", {}, told(panel.result[0])),
    );
}

/** A small table of words and numbers; rows can be picked where each is a step. */
function linesOf(panel, name, acts) {
    const shares = panel.columns.indexOf("probability");
    const rows = panel.rows.map((row) =>
        row.map((cell, i) =>
            i === shares ? percent(cell) : typeof cell === "number" && !Number.isInteger(cell) ? number(cell, 2) : cell,
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
    const line = (row, place) =>
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
                        class: "quiet",
                        onclick: () => picked(place),
                        "aria-label": `Walk through step ${row[0]}`,
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
