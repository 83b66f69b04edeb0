// Attention as links between words: who looks stands on the left, at whom on the right; a thick line is a large weight.

import { h, number, s, say } from "./dom.js";
import { shown } from "./tokens.js";

const MIN_WEIGHT = 0.04; // of a line that is drawn, unless a word is lit
const MOST = 1500; // lines drawn at once: of more, the strongest
const GAP = [150, 340]; // between the two columns of words, as there is room
const NUMBER = 52; // room for a percentage outside of them

/**
 * Links of a map (rows × columns, values row by row). A word is lit by pointing at it, or by keyboard: Tab to a column,
 * arrows along it. `onHover({row, column})` says which; the other of the two is null, and both are where none is lit.
 */
export function links({ rows, columns, values, rowTitle, columnTitle, label = "links", room = 560, onHover }) {
    let data = { rows, columns, values };
    let lit = { row: null, column: null };
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
        light(lit);
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
        return tokens.map((token, place) => {
            const x = left ? layout.left : layout.right;
            const y = layout.y(name, place);
            const share = s("text", {
                class: "link-share",
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
                    tabindex: place === 0 ? 0 : -1,
                    role: "img",
                    "aria-label": `${token}, ${left ? "looks" : "looked at"}`,
                    onpointerenter: () => choose(name, place),
                    onpointerleave: () => choose(name, null),
                    onfocus: () => {
                        choose(name, place);
                        say(spoken(name, place));
                    },
                    onblur: () => choose(name, null),
                    onkeydown: (event) => move(event, name, place),
                },
                back,
                text,
                share,
            );
            return { node, share, back };
        });
    }

    function choose(name, place) {
        const now = name === "row" ? { row: place, column: null } : { row: null, column: place };
        light(now);
        onHover?.(now);
    }

    function move(event, name, place) {
        const other = name === "row" ? "column" : "row";
        const goals = {
            ArrowDown: [name, place + 1],
            ArrowUp: [name, place - 1],
            Home: [name, 0],
            End: [name, words[name].length - 1],
            ArrowRight: ["column", Math.min(place, words.column.length - 1)],
            ArrowLeft: ["row", Math.min(place, words.row.length - 1)],
        };
        const goal = goals[event.key];
        if (!goal || (goal[0] === name && event.key.match(/Left|Right/))) return;
        const found = words[goal[0]][goal[1]];
        if (!found) return;
        event.preventDefault();
        words[name][place].node.setAttribute("tabindex", -1);
        found.node.setAttribute("tabindex", 0);
        if (goal[0] === other) words[name][0].node.setAttribute("tabindex", 0);
        found.node.focus();
    }

    /** Light the links of a row, or of a column; {row: null, column: null} lights none. */
    function light(which) {
        lit = { row: which.row ?? null, column: which.column ?? null };
        const some = lit.row !== null || lit.column !== null;
        svg.classList.toggle("some-lit", some);
        for (const link of lines) link.node.classList.toggle("lit", some && belongs(link));
        shares("column", lit.row === null ? null : (place) => at(lit.row, place));
        shares("row", lit.column === null ? null : (place) => at(place, lit.column));
        words.row.forEach(({ node }, place) => node.classList.toggle("chosen", place === lit.row));
        words.column.forEach(({ node }, place) => node.classList.toggle("chosen", place === lit.column));
    }

    function belongs({ row, column }) {
        return (lit.row === null || row === lit.row) && (lit.column === null || column === lit.column);
    }

    function shares(name, weightOf) {
        words[name].forEach(({ share, back, node }, place) => {
            const weight = weightOf?.(place) ?? 0;
            share.textContent = weightOf && weight >= 0.005 ? `${Math.round(100 * weight)} %` : "";
            back.style.setProperty("--weight", weight.toFixed(3));
            node.classList.toggle("reached", Boolean(weightOf) && weight >= MIN_WEIGHT);
        });
    }

    function at(row, column) {
        return data.values[row * data.columns.length + column];
    }

    function spoken(name, place) {
        const own = name === "row" ? data.rows[place] : data.columns[place];
        const others = name === "row" ? data.columns : data.rows;
        const weights = others.map((_, other) => (name === "row" ? at(place, other) : at(other, place)));
        const best = weights
            .map((weight, other) => [weight, others[other]])
            .sort((a, b) => b[0] - a[0])
            .slice(0, 3);
        return `${own}: ${best.map(([weight, word]) => `${word} ${number(weight, 2)}`).join(", ")}`;
    }

    draw();
    return {
        element,
        light,
        update(changes) {
            data = { ...data, ...changes };
            lit = { row: null, column: null };
            draw();
        },
    };
}

/** The links that are drawn: those of some weight, the strongest of them. */
export function strongest(values, columns, least) {
    const found = [];
    for (let place = 0; place < values.length; place++) {
        if (values[place] >= (least ?? MIN_WEIGHT)) {
            found.push({ row: Math.floor(place / columns), column: place % columns, weight: values[place] });
        }
    }
    return found
        .sort((a, b) => b.weight - a.weight)
        .slice(0, MOST)
        .reverse();
}

/** Where the words stand: as large as a projector needs them, smaller where there are many. */
function measured(rows, columns, room, titles) {
    const most = Math.max(rows.length, columns.length, 1);
    const step = most > 60 ? 20 : Math.max(22, Math.min(38, 700 / most));
    const font = Math.max(13, Math.min(20, step * 0.58));
    const wordWide = (word) => widthOf(clipped(word), font) + NUMBER;
    const wide = (words, title) => 8 + Math.max(widthOf(title, 14), ...words.map(wordWide));
    const [left, after] = [wide(rows, titles[0]), wide(columns, titles[1])];
    const right = left + Math.min(GAP[1], Math.max(GAP[0], room - left - after - 4));
    const top = 34;
    const offset = (name) => ((most - (name === "row" ? rows : columns).length) * step) / 2;
    return {
        step,
        font,
        left,
        right,
        width: Math.ceil(right + after),
        height: Math.ceil(top + most * step + 8),
        y: (name, place) => top + offset(name) + (place + 0.5) * step,
    };
}

let pen = null;

function widthOf(text, size) {
    pen ??= document.createElement("canvas").getContext("2d");
    pen.font = `700 ${size}px ${getComputedStyle(document.body).fontFamily}`; // as wide as when it is lit
    return pen.measureText(text).width;
}

function clipped(word) {
    const letters = [...shown(word)];
    return letters.length > 24 ? `${letters.slice(0, 23).join("")}…` : letters.join("");
}
