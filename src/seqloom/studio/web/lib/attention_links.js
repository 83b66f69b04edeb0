// Attention as links between words: queries on the left, keys on the right; line width is the weight.

import { h, formatNumber, s, announce } from "./dom.js";
import { displayToken } from "./tokens.js";

const MIN_WEIGHT = 0.04; // minimum weight of a drawn link
const MAX_LINKS = 1500; // maximum number of links
const GAP = [150, 340]; // minimum and maximum gap between the columns
const PERCENTAGE_PIXELS = 52; // width of a percentage

/**
 * Links of a map (rows × columns, row-major values). Hovering or focusing a word highlights its links; arrow keys move
 * the focus. `onHover({row, column})` reports the highlighted word; the other index, or both, are null.
 */
export function links({ rows, columns, values, rowTitle, columnTitle, label = "links", room = 560, onHover }) {
    let data = { rows, columns, values };
    let highlighted = { row: null, column: null };
    const svg = s("svg", { class: "links", role: "group", "aria-label": label });
    const element = h("div", { class: "links-scroll" }, svg);
    let lines = [];
    let words = { row: [], column: [] };
    let layout = null;

    function draw() {
        layout = measured(data.rows, data.columns, room, [rowTitle ?? "", columnTitle ?? ""]);
        svg.setAttribute("viewBox", `0 0 ${layout.width} ${layout.height}`);
        svg.setAttribute("width", layout.width);
        svg.setAttribute("height", layout.height);
        svg.style.setProperty("--word-size", `${layout.font}px`);
        const group = s("g", { class: "link-lines" });
        lines = strongest(data.values, data.columns.length, null).map((link) => line(link));
        group.append(...lines.map(({ node }) => node));
        words = { row: side("row", data.rows), column: side("column", data.columns) };
        svg.replaceChildren(
            s("text", { class: "link-title", x: layout.left, y: 18, "text-anchor": "end" }, rowTitle ?? ""),
            s("text", { class: "link-title", x: layout.right, y: 18, "text-anchor": "start" }, columnTitle ?? ""),
            group,
            ...words.row.map(({ node }) => node),
            ...words.column.map(({ node }) => node),
        );
        highlight(highlighted);
    }

    function line({ row, column, weight }) {
        const [x1, y1, x2, y2] = [layout.left + 8, layout.y("row", row), layout.right - 8, layout.y("column", column)];
        const bend = (x2 - x1) * 0.42;
        const node = s("path", {
            class: "link",
            d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`,
            "stroke-width": (0.6 + 6.4 * weight).toFixed(2),
            "stroke-opacity": (0.08 + 0.87 * Math.sqrt(weight)).toFixed(3),
        });
        return { row, column, weight, node };
    }

    function side(name, tokens) {
        const left = name === "row";
        return tokens.map((token, index) => {
            const x = left ? layout.left : layout.right;
            const y = layout.y(name, index);
            const weightText = s("text", {
                class: "link-weight",
                y,
                x: left ? 4 : layout.width - 4,
                "text-anchor": left ? "start" : "end",
            });
            const text = s("text", { class: "link-text", x, y, "text-anchor": left ? "end" : "start" }, clipped(token));
            const back = s("rect", {
                class: "link-back",
                rx: 4,
                height: layout.step,
                x: left ? 0 : layout.right - 6,
                y: y - layout.step / 2,
                width: left ? layout.left + 6 : layout.width - layout.right + 6,
            });
            const node = s(
                "g",
                {
                    class: "link-word",
                    tabindex: index === 0 ? 0 : -1,
                    role: "img",
                    "aria-label": `${token}, ${left ? "query" : "key"}`,
                    onpointerenter: () => choose(name, index),
                    onpointerleave: () => choose(name, null),
                    onfocus: () => {
                        choose(name, index);
                        announce(spoken(name, index));
                    },
                    onblur: () => choose(name, null),
                    onkeydown: (event) => move(event, name, index),
                },
                back,
                text,
                weightText,
            );
            return { node, weightText, back };
        });
    }

    function choose(name, index) {
        const selection = name === "row" ? { row: index, column: null } : { row: null, column: index };
        highlight(selection);
        onHover?.(selection);
    }

    function move(event, name, index) {
        const other = name === "row" ? "column" : "row";
        const targets = {
            ArrowDown: [name, index + 1],
            ArrowUp: [name, index - 1],
            Home: [name, 0],
            End: [name, words[name].length - 1],
            ArrowRight: ["column", Math.min(index, words.column.length - 1)],
            ArrowLeft: ["row", Math.min(index, words.row.length - 1)],
        };
        const target = targets[event.key];
        if (!target || (target[0] === name && event.key.match(/Left|Right/))) return;
        const result = words[target[0]][target[1]];
        if (!result) return;
        event.preventDefault();
        words[name][index].node.setAttribute("tabindex", -1);
        result.node.setAttribute("tabindex", 0);
        if (target[0] === other) words[name][0].node.setAttribute("tabindex", 0);
        result.node.focus();
    }

    /** Highlight the links of a row or column; {row: null, column: null} clears the highlight. */
    function highlight(which) {
        highlighted = { row: which.row ?? null, column: which.column ?? null };
        const isAny = highlighted.row !== null || highlighted.column !== null;
        svg.classList.toggle("some-highlighted", isAny);
        for (const link of lines) link.node.classList.toggle("highlighted", isAny && belongs(link));
        showWeights("column", highlighted.row === null ? null : (index) => at(highlighted.row, index));
        showWeights("row", highlighted.column === null ? null : (index) => at(index, highlighted.column));
        words.row.forEach(({ node }, index) => node.classList.toggle("chosen", index === highlighted.row));
        words.column.forEach(({ node }, index) => node.classList.toggle("chosen", index === highlighted.column));
    }

    function belongs({ row, column }) {
        return (highlighted.row === null || row === highlighted.row) && (highlighted.column === null || column === highlighted.column);
    }

    function showWeights(name, weightOf) {
        words[name].forEach(({ weightText, back, node }, index) => {
            const weight = weightOf?.(index) ?? 0;
            weightText.textContent = weightOf && weight >= 0.005 ? `${Math.round(100 * weight)} %` : "";
            back.style.setProperty("--weight", weight.toFixed(3));
            node.classList.toggle("reached", Boolean(weightOf) && weight >= MIN_WEIGHT);
        });
    }

    function at(row, column) {
        return data.values[row * data.columns.length + column];
    }

    function spoken(name, index) {
        const source = name === "row" ? data.rows[index] : data.columns[index];
        const others = name === "row" ? data.columns : data.rows;
        const weights = others.map((_, other) => (name === "row" ? at(index, other) : at(other, index)));
        const best = weights
            .map((weight, other) => [weight, others[other]])
            .sort((a, b) => b[0] - a[0])
            .slice(0, 3);
        return `${source}: ${best.map(([weight, word]) => `${word} ${formatNumber(weight, 2)}`).join(", ")}`;
    }

    draw();
    return {
        element,
        highlight,
        update(changes) {
            data = { ...data, ...changes };
            highlighted = { row: null, column: null };
            draw();
        },
    };
}

/** The links above the minimum weight, at most MOST. */
export function strongest(values, columns, least) {
    const result = [];
    for (let index = 0; index < values.length; index++) {
        if (values[index] >= (least ?? MIN_WEIGHT)) {
            result.push({ row: Math.floor(index / columns), column: index % columns, weight: values[index] });
        }
    }
    return result
        .sort((a, b) => b.weight - a.weight)
        .slice(0, MAX_LINKS)
        .reverse();
}

/** The layout of the words; many words are drawn smaller. */
function measured(rows, columns, room, titles) {
    const maxWords = Math.max(rows.length, columns.length, 1);
    const step = maxWords > 60 ? 20 : Math.max(22, Math.min(38, 700 / maxWords));
    const font = Math.max(13, Math.min(20, step * 0.58));
    const wordWide = (word) => widthOf(clipped(word), font) + PERCENTAGE_PIXELS;
    const columnWidth = (words, title) => 8 + Math.max(widthOf(title, 14), ...words.map(wordWide));
    const [left, after] = [columnWidth(rows, titles[0]), columnWidth(columns, titles[1])];
    const right = left + Math.min(GAP[1], Math.max(GAP[0], room - left - after - 4));
    const top = 34;
    const offset = (name) => ((maxWords - (name === "row" ? rows : columns).length) * step) / 2;
    return {
        step,
        font,
        left,
        right,
        width: Math.ceil(right + after),
        height: Math.ceil(top + maxWords * step + 8),
        y: (name, index) => top + offset(name) + (index + 0.5) * step,
    };
}

let pen = null;

function widthOf(text, size) {
    pen ??= document.createElement("canvas").getContext("2d");
    pen.font = `700 ${size}px ${getComputedStyle(document.body).fontFamily}`; // bold, as when highlighted
    return pen.measureText(text).width;
}

function clipped(word) {
    const letters = [...displayToken(word)];
    return letters.length > 24 ? `${letters.slice(0, 23).join("")}…` : letters.join("");
}
