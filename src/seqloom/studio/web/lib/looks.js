// One attention map, as colours or as links between words, with its numbers: what alignment and heads share.

import { h, fromHalf, number } from "./dom.js";
import { checkbox, segmented } from "./controls.js";
import { figure } from "./figure.js";
import { heatmap, scaleBar } from "./heatmap.js";
import { links } from "./links.js";

const LINKED = 160; // words a side, up to which links can be told apart
const MANY = 24; // words a side, from which weights are small and shown by their roots

/** The controls both views have; their values are in the address as `by`, `end` and `as`. */
export function lookControls(page, changed) {
    const set = (name, usual) => (value) => {
        page.set({ [name]: value === usual ? null : value });
        changed(name);
    };
    const now = (name, usual) => page.params.get(name) ?? usual;
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
        segmented("View", looks, shownAs(page), set("as", "heat")),
        segmented(
            "By",
            [
                ["words", "Words"],
                ["tokens", "Tokens"],
            ],
            now("by", "words"),
            set("by", "words"),
        ),
        segmented("Shades", shades, now("shades", "auto"), set("shades", "auto")),
        checkbox("show the end", now("end", "yes") !== "no", (on) => set("end", "yes")(on ? "yes" : "no")),
    ];
}

/** What is asked of the server, as the controls stand. */
export function lookQuestion(page) {
    return { tokens: page.params.get("by") === "tokens", end: page.params.get("end") !== "no" };
}

export function shownAs(page) {
    return page.params.get("as") ?? "heat";
}

/** Whether colours go by the root of a weight: as the reader wants it, or else where there are many words. */
export function byRoot(page, { rows, columns }) {
    const wanted = page.params.get("shades");
    return wanted ? wanted === "root" : Math.max(rows.length, columns.length) > MANY;
}

/** A number of the address, or null where it is missing or none. */
export function counted(page, name) {
    const value = Number(page.params.get(name));
    return Number.isInteger(value) && value > 0 ? value : null;
}

/**
 * A figure of one map. `show({title, rows, columns, values, high, sides: {row, column}, as, root})` draws it;
 * `light(row, column)` lights one of its rows or columns; `onHover(row, column)` says which the reader lights.
 */
export function lookFigure({ name, size, onHover }) {
    const fig = figure({ name });
    const bar = scaleBar();
    const heat = h("div", { class: "look-heat" });
    const linked = h("div", { class: "look-links" });
    fig.body.append(h("div", { class: "look" }, heat, linked));
    let map = null;
    let web = null;
    let now = null;

    function lit(row, column) {
        map?.light(row, column);
        web?.light({ row, column });
    }

    function hovered(row, column, from) {
        if (from === "heat") web?.light({ row, column });
        else map?.light(row, column);
        onHover?.(row, column);
    }

    function drawHeat({ rows, columns, values, high, sides, title, root }) {
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
            rowTitle: sides.row,
            columnTitle: sides.column,
        };
        if (map) map.update(options);
        else {
            map = heatmap({ ...options, onHover: (row, column) => hovered(row, column, "heat") });
            heat.append(map.element, bar.element);
        }
        bar.update({ low: 0, high, root, title: root ? "weight, shades by its root" : "weight" });
    }

    /** How wide links may be: what the heat map leaves, or a line of their own where that is too little. */
    function besideHeat() {
        const all = fig.body.clientWidth;
        const left = heat.hidden ? all : all - heat.offsetWidth - 48;
        return left < 440 ? all : left;
    }

    function drawLinks({ rows, columns, values, sides, title }) {
        web = links({
            rows,
            columns,
            values,
            label: title,
            rowTitle: sides.row,
            columnTitle: sides.column,
            room: besideHeat(),
            onHover: ({ row, column }) => hovered(row, column, "links"),
        });
        linked.replaceChildren(web.element);
    }

    return {
        ...fig,
        light: lit,
        show(next) {
            now = next;
            const many = Math.max(next.rows.length, next.columns.length) > LINKED;
            const as = next.as;
            heat.hidden = as === "links" && !many;
            linked.hidden = as === "heat";
            if (!heat.hidden) drawHeat(next);
            web = null;
            if (!linked.hidden && many) linked.replaceChildren(tooMany(next));
            else if (!linked.hidden) drawLinks(next);
            fig.say(next.title, next.caption);
            fig.element.dataset.size = `${next.rows.length}×${next.columns.length}`;
            fig.table(() => tableOfMap(now));
        },
    };
}

function tooMany({ rows, columns }) {
    const count = Math.max(rows.length, columns.length);
    const why = `Links between ${count} words could not be told apart: shorten the text to ${LINKED}.`;
    return h("p", { class: "hint" }, why);
}

/** A row for each word that looks, a column for each it may look at, and what the row sums to. */
function tableOfMap({ rows, columns, values, sides }) {
    const width = columns.length;
    return {
        columns: [`${sides.row} ↓  ${sides.column} →`, ...columns, "sum"],
        rows: rows.map((word, row) => {
            const weights = Array.from(values.subarray(row * width, (row + 1) * width));
            return [word, ...weights.map(fromHalf), weights.reduce((sum, weight) => sum + weight, 0)];
        }),
    };
}

/** What a model made of the text, in a line, and what a person should know about it. */
export function sentenceLine(answer, ...more) {
    const own = answer.given ? "It is made to say" : "It says";
    const says = { label: "It calls this", tags: "It tags" }[answer.says] ?? own;
    const soft = (words) => h("span", { class: "said-how" }, words);
    const sure = answer.logProb === null ? null : soft(`log p = ${number(answer.logProb)}`);
    const what = h("bdi", { class: "said-what" }, answer.text.trim() || "nothing");
    const line = h("p", { class: "said-line" }, soft(says), " ", what, " ", sure, " ", more);
    return h(
        "div",
        { class: "said" },
        answer.says === "text" ? null : line,
        answer.notes.map((note) => h("p", { class: "note", dir: "auto" }, capital(note), ".")),
    );
}

export const capital = (words) => words[0].toUpperCase() + words.slice(1);
