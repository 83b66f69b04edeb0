// A beam search as a tree: boxes show tokens and scores, edges show log p.

import { h, s, clear, formatNumber, announce } from "./dom.js";
import { markOverflow } from "./overflow.js";
import { displayToken } from "./tokens.js";
import { childrenOf, rowsOf } from "./tree.js";

const BOX = { width: 94, height: 44 };
const PITCH = { x: 152, y: 54 };
const MARGIN = 14;
const MIN_SCALE = 0.7; // minimum scale, still legible
const FIT_SCALE = 0.75; // a tree that fits at this scale is shrunk to fit
const MAX_HEIGHT_RATIO = 0.8; // maximum fraction of the window height when fitted
export const STATUS_LABELS = {
    root: "start",
    forced: "forced",
    kept: "kept in the beam",
    open: "in the beam when the search stopped",
    ended: "finished",
    pruned: "pruned",
};

/**
 * `update({nodes, root, steps, pruned})`: nodes [{id, parent, step, text, logProb, total, score, rank, status, best}];
 * nodes up to step `steps` are shown. `light(id)` highlights the path from the root to a node.
 */
export function searchTree({ onHover, onPick }) {
    const drawing = s("svg", {
        class: "search-tree",
        role: "group",
        "aria-label": "Search tree; navigate with the arrow keys",
    });
    const readout = h("p", { class: "readout" });
    let now = { nodes: [], root: "", steps: Infinity, pruned: true };
    let drawnNodes = new Map();
    let at = 0;
    let natural = { width: 1, height: 1 };
    let isFitted = false;
    const hint = h("p", { class: "hint tree-more", hidden: true }, "Scroll right for further steps →");
    const frame = h("div", { class: "tree-scroll" }, drawing);
    const updateOverflow = markOverflow(frame, (more) => (hint.hidden = !more.includes("right")));
    new ResizeObserver(setSize).observe(frame);

    /** Scale the drawing down to fit if it stays legible. */
    function setSize() {
        if (!frame.clientWidth) return;
        const across = frame.clientWidth / natural.width;
        const fits = isFitted
            ? Math.max(MIN_SCALE, Math.min(across, (MAX_HEIGHT_RATIO * innerHeight) / natural.height))
            : across >= FIT_SCALE
              ? across
              : 1;
        const scale = Math.min(fits, 1);
        drawing.setAttribute("width", Math.floor(scale * natural.width));
        drawing.setAttribute("height", Math.floor(scale * natural.height));
        updateOverflow();
    }

    function draw() {
        const nodes = now.nodes.filter((node) => node.step <= now.steps && (now.pruned || node.status !== "pruned"));
        const rows = rowsOf(nodes);
        const first = nodes[0]?.step ?? 0;
        const children = childrenOf(nodes);
        const placed = (node) => ({
            node,
            x: MARGIN + (node.step - first) * PITCH.x,
            y: MARGIN + rows.get(node.id) * PITCH.y,
            children: children.get(node.id),
        });
        drawnNodes = new Map(nodes.map((node) => [node.id, placed(node)]));
        const width = 2 * MARGIN + BOX.width + PITCH.x * Math.max(0, ...nodes.map((node) => node.step - first));
        const height = 2 * MARGIN + BOX.height + PITCH.y * Math.max(0, ...rows.values());
        drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
        natural = { width, height };
        if (!drawnNodes.has(at)) at = nodes[0]?.id ?? 0;
        const items = [...drawnNodes.values()];
        const behind = (item) => (item.node.status === "pruned" ? 0 : item.node.best ? 2 : 1);
        const edges = items.filter(({ node }) => drawnNodes.has(node.parent)).sort((a, b) => behind(a) - behind(b));
        clear(drawing).append(...edges.map(edgeOf), ...items.map(boxOf));
        setSize();
    }

    function edgeOf({ node, x, y }) {
        const from = drawnNodes.get(node.parent);
        const [x1, y1, y2] = [from.x + BOX.width, from.y + BOX.height / 2, y + BOX.height / 2];
        const flat = x - 48; // start of the horizontal part, which carries the number
        return s(
            "g",
            { class: kindOf("edge-of", node), "data-edge": node.id },
            s("path", { d: `M${x1} ${y1} C${x1 + 12} ${y1} ${flat - 8} ${y2} ${flat} ${y2} L${x} ${y2}` }),
            s("text", { class: "edge-log-prob", x: x - 5, y: y2 - 5, "text-anchor": "end" }, logarithm(node.logProb)),
        );
    }

    function boxOf({ node, x, y }) {
        const root = node.parent === null || node.status === "root";
        const words = root ? now.root : displayToken(node.text);
        const group = s(
            "g",
            {
                class: kindOf("box", node),
                transform: `translate(${x} ${y})`,
                role: "button",
                tabindex: node.id === at ? "0" : "-1",
                "aria-label": spoken(node),
                "data-node": node.id,
            },
            s("rect", { width: BOX.width, height: BOX.height, rx: 8 }),
            s("text", { class: "word", x: BOX.width / 2, y: root ? 27 : 19, "text-anchor": "middle" }, cut(words, 11)),
            root
                ? null
                : s(
                      "text",
                      { class: "score", x: BOX.width / 2, y: 37, "text-anchor": "middle" },
                      formatNumber(node.score, 3),
                  ),
            node.best && node.status !== "root" && isLeaf(node) ? rankMark(node.best) : null,
            s("title", {}, spoken(node)),
        );
        group.addEventListener("pointerenter", () => hover(node));
        group.addEventListener("pointerleave", () => hover(null));
        group.addEventListener("focus", () => hover(node));
        group.addEventListener("click", () => onPick?.(node.id));
        group.addEventListener("keydown", (event) => key(event, node));
        return group;
    }

    function isLeaf(node) {
        return node.status === "ended" || !now.nodes.some((other) => other.parent === node.id && other.best);
    }

    function rankMark(best) {
        return s(
            "g",
            { class: "rank", transform: `translate(${BOX.width - 2} 4)` },
            s("circle", { r: 11 }),
            s("text", { y: 5, "text-anchor": "middle" }, best),
        );
    }

    function hover(node) {
        readout.textContent = node ? spoken(node) : "";
        onHover?.(node?.id ?? null);
    }

    function spoken(node) {
        if (node.status === "root") return now.root;
        const best = node.best ? `; on the path to hypothesis ${node.best}` : "";
        const numbers = `log p ${formatNumber(node.logProb)}, sum ${formatNumber(node.total)}, score ${formatNumber(node.score)}`;
        return `${displayToken(node.text)}: ${numbers}; rank ${node.rank} at step ${node.step}, ${STATUS_LABELS[node.status]}${best}`;
    }

    function key(event, node) {
        const item = drawnNodes.get(node.id);
        const column = [...drawnNodes.values()].filter((other) => other.node.step === node.step).sort((a, b) => a.y - b.y);
        const columnIds = column.map((other) => other.node.id);
        const next = {
            ArrowLeft: node.parent,
            ArrowRight: item.children[0]?.id,
            ArrowUp: columnIds[columnIds.indexOf(node.id) - 1],
            ArrowDown: columnIds[columnIds.indexOf(node.id) + 1],
        }[event.key];
        if (event.key === "Enter" || event.key === " ") onPick?.(node.id);
        else if (next === undefined && !event.key.startsWith("Arrow")) return;
        else if (drawnNodes.has(next)) go(next);
        event.preventDefault();
    }

    function go(id) {
        drawing.querySelector(`[data-node="${at}"]`)?.setAttribute("tabindex", "-1");
        at = id;
        const box = drawing.querySelector(`[data-node="${id}"]`);
        box.setAttribute("tabindex", "0");
        box.focus();
        announce(spoken(drawnNodes.get(id).node));
    }

    /** Highlight the path from the root to a node, or nothing. */
    function highlight(id) {
        const path = new Set();
        for (let node = drawnNodes.get(id)?.node; node; node = drawnNodes.get(node.parent)?.node) path.add(String(node.id));
        drawing.classList.toggle("highlighted", path.size > 0);
        for (const part of drawing.children)
            part.classList.toggle("on-path", path.has(part.dataset.node ?? part.dataset.edge));
    }

    return {
        element: h("div", { class: "tree-frame" }, hint, frame),
        readout,
        highlight,
        update(given) {
            now = { ...now, ...given };
            draw();
        },
        fit(enabled) {
            isFitted = enabled;
            frame.classList.toggle("whole", isFitted);
            setSize();
        },
    };
}

/** Two decimals, three for values near 0. */
function logarithm(value) {
    return formatNumber(value, value > -0.095 ? 3 : 2);
}

function kindOf(kind, node) {
    return [kind, node.status, node.best && "best", node.best === 1 && "first"].filter(Boolean).join(" ");
}

function cut(text, most) {
    const letters = [...text];
    return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}
