// An attention map as heat map or links, with a table; shared by the views alignment and heads.

import { h, roundFloat16, formatNumber } from "./dom.js";
import { checkbox, segmented } from "./controls.js";
import { figure } from "./figure.js";
import { heatmap, scaleBar } from "./heatmap.js";
import { links } from "./attention_links.js";

const MAX_LINKED_WORDS = 160; // maximum words per side for links
const ROOT_SCALE_WORDS = 24; // words per side above which the √ scale is the default

/** The controls of both views; their values are the address parameters `as`, `by`, `shades` and `end`. */
export function mapControls(page, changed) {
    const set = (name, usual) => (value) => {
        page.setParams({ [name]: value === usual ? null : value });
        changed(name);
    };
    const current = (name, usual) => page.params.get(name) ?? usual;
    const looks = [
        ["heat", "Heat map"],
        ["links", "Links"],
        ["both", "Both"],
    ];
    const shades = [
        ["auto", "Auto"],
        ["linear", "Linear"],
        ["root", "√"],
    ];
    return [
        segmented("View", looks, mapStyle(page), set("as", "heat")),
        segmented(
            "Labels",
            [
                ["words", "Words"],
                ["tokens", "Tokens"],
            ],
            current("by", "words"),
            set("by", "words"),
        ),
        segmented("Colour scale", shades, current("shades", "auto"), set("shades", "auto")),
        checkbox("Show END", current("end", "yes") !== "no", (on) => set("end", "yes")(on ? "yes" : "no")),
    ];
}

/** The request parameters from the controls. */
export function mapRequest(page) {
    return { tokens: page.params.get("by") === "tokens", end: page.params.get("end") !== "no" };
}

export function mapStyle(page) {
    return page.params.get("as") ?? "heat";
}

/** Whether the √ scale is used: as selected, or by default for many words. */
export function usesRootScale(page, { rows, columns }) {
    const requested = page.params.get("shades");
    return requested ? requested === "root" : Math.max(rows.length, columns.length) > ROOT_SCALE_WORDS;
}

/** A positive integer from the address, or null. */
export function positiveParam(page, name) {
    const value = Number(page.params.get(name));
    return Number.isInteger(value) && value > 0 ? value : null;
}

/**
 * A figure of one attention map. `show({title, rows, columns, values, high, axes: {row, column}, as, root})` draws it;
 * `light(row, column)` highlights a row or column; `onHover(row, column)` reports the hovered cell.
 */
export function mapFigure({ name, size, onHover }) {
    const fig = figure({ name });
    const bar = scaleBar();
    const heat = h("div", { class: "map-heat" });
    const linked = h("div", { class: "map-links" });
    fig.body.append(h("div", { class: "map-panel" }, heat, linked));
    let map = null;
    let web = null;
    let current = null;

    function highlight(row, column) {
        map?.highlight(row, column);
        web?.highlight({ row, column });
    }

    function hovered(row, column, from) {
        if (from === "heat") web?.highlight({ row, column });
        else map?.highlight(row, column);
        onHover?.(row, column);
    }

    function drawHeat({ rows, columns, values, high, axes, title, root }) {
        const options = {
            rows,
            columns,
            values,
            low: 0,
            high,
            root,
            label: title,
            size: size(),
            largest: 58,
            rowTitle: axes.row,
            columnTitle: axes.column,
        };
        if (map) map.update(options);
        else {
            map = heatmap({ ...options, onHover: (row, column) => hovered(row, column, "heat") });
            heat.append(map.element, bar.element);
        }
        bar.update({ low: 0, high, root, title: root ? "attention weight (√ scale)" : "attention weight" });
    }

    /** The width for links: the space beside the heat map, or the full width if that is too narrow. */
    function besideHeat() {
        const all = fig.body.clientWidth;
        const left = heat.hidden ? all : all - heat.offsetWidth - 48;
        return left < 440 ? all : left;
    }

    function drawLinks({ rows, columns, values, axes, title }) {
        web = links({
            rows,
            columns,
            values,
            label: title,
            rowTitle: axes.row,
            columnTitle: axes.column,
            room: besideHeat(),
            onHover: ({ row, column }) => hovered(row, column, "links"),
        });
        linked.replaceChildren(web.element);
    }

    return {
        ...fig,
        highlight,
        show(next) {
            current = next;
            const isTooLarge = Math.max(next.rows.length, next.columns.length) > MAX_LINKED_WORDS;
            const as = next.as;
            heat.hidden = as === "links" && !isTooLarge;
            linked.hidden = as === "heat";
            if (!heat.hidden) drawHeat(next);
            web = null;
            if (!linked.hidden && isTooLarge) linked.replaceChildren(tooMany(next));
            else if (!linked.hidden) drawLinks(next);
            fig.setText(next.title, next.caption);
            fig.element.dataset.size = `${next.rows.length}×${next.columns.length}`;
            fig.table(() => tableOfMap(current));
        },
    };
}

function tooMany({ rows, columns }) {
    const count = Math.max(rows.length, columns.length);
    const reason = `Links support at most ${MAX_LINKED_WORDS} words per side, but this map has ${count}. Shorten the text.`;
    return h("p", { class: "hint" }, reason);
}

/** One row per query, one column per key, and the sum of each row. */
function tableOfMap({ rows, columns, values, axes }) {
    const width = columns.length;
    return {
        columns: [`${axes.row} ↓  ${axes.column} →`, ...columns, "sum"],
        rows: rows.map((word, row) => {
            const weights = Array.from(values.subarray(row * width, (row + 1) * width));
            return [word, ...weights.map(roundFloat16), weights.reduce((sum, weight) => sum + weight, 0)];
        }),
    };
}

/** The output of the model with its log-probability, and notes. */
export function outputLine(answer, ...more) {
    const output = answer.given ? "Forced output:" : "Output:";
    const prefix = { label: "Predicted label:", tags: "Predicted tags:" }[answer.outputKind] ?? output;
    const soft = (words) => h("span", { class: "output-note" }, words);
    const sure = answer.logProb === null ? null : soft(`log p = ${formatNumber(answer.logProb)}`);
    const text = h("bdi", { class: "output-text" }, answer.text.trim() || "(empty)");
    const line = h("p", { class: "output-line" }, soft(prefix), " ", text, " ", sure, " ", more);
    return h(
        "div",
        { class: "model-output" },
        answer.outputKind === "text" ? null : line,
        answer.notes.map((note) => h("p", { class: "note", dir: "auto" }, capitalise(note), ".")),
    );
}

export const capitalise = (words) => words[0].toUpperCase() + words.slice(1);
