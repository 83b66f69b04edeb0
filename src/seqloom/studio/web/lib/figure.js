// The frame around every picture: its title, its text twin, and its ways out of the page (PNG, SVG, HTML).

import { h, s, fill, say } from "./dom.js";
import { button } from "./controls.js";

const COPIED = [
    "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "opacity",
    "font-family", "font-size", "font-weight", "font-style", "text-anchor", "dominant-baseline", "direction",
    "unicode-bidi", "visibility",
];
const STYLE = "body{font:16px system-ui,sans-serif;margin:2rem;max-width:80rem}svg{max-width:100%;height:auto}" +
    "table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid #ccc;text-align:start}";
const MARGIN = 16;
const SCALE = 2; // pixels of a PNG for each of the screen's: sharp on a projector
const ROWS = 2000; // of a table on the page; a longer one is cut there, and whole when saved

/**
 * A figure. Put canvases and SVGs into `body`; `table(make)` says how to write the same numbers down, where `make`
 * gives {columns: [name …], rows: [[value …] …]}.
 */
export function figure({ name, title = "", caption = "" }) {
    const body = h("div", { class: "figure-body" });
    const twin = h("div", { class: "twin", hidden: true });
    const heading = h("h2", { dir: "auto" }, title);
    const words = h("p", { class: "caption", dir: "auto" }, caption);
    let make = null;
    const tableButton = button("Table", () => toggle(twin.hidden), { pressed: false, title: "The same as numbers" });
    const tools = h(
        "div", { class: "tools", role: "group", "aria-label": `Save ${title || name}` },
        tableButton,
        button("PNG", () => saved(savePng), { title: "Save as a picture" }),
        button("SVG", () => saved(saveSvg), { title: "Save as a drawing that stays sharp" }),
        button("HTML", () => saved(saveHtml), { title: "Save with its table as a page of its own" }),
    );
    const element = h("figure", { class: "figure", dataset: { figure: name } },
        h("div", { class: "figure-head" }, heading, tools), body, twin, words);

    function toggle(open) {
        twin.hidden = !open;
        tableButton.setAttribute("aria-pressed", String(open));
        if (open) fill(twin, make ? tableOf(make(), ROWS) : "There are no numbers yet.");
    }
    const parts = () => ({ name, title: heading.textContent, caption: words.textContent, drawing: drawingOf(body), table: make?.() });
    const saved = (how) => Promise.resolve(how(parts())).then(() => say("Saved."), () => say("It could not be saved."));
    return {
        element,
        body,
        table(maker) {
            make = maker;
            if (!twin.hidden) toggle(true);
        },
        say(newTitle, newCaption) {
            if (newTitle !== undefined) heading.textContent = newTitle;
            if (newCaption !== undefined) words.textContent = newCaption;
        },
    };
}

/** A table of plain text. */
export function tableOf({ columns, rows, caption = null }, most = Infinity) {
    const cut = rows.slice(0, most);
    return h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": caption ?? "Table" },
        h("table", {}, caption && h("caption", {}, caption),
            h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", dir: "auto" }, column)))),
            h("tbody", {}, cut.map((row) => h("tr", {}, row.map((cell, place) => place === 0
                ? h("th", { scope: "row", dir: "auto" }, cell ?? "–")
                : h("td", { dir: "auto", class: typeof cell === "number" ? "number" : null }, shownCell(cell))))))),
        cut.length < rows.length ? h("p", { class: "hint" }, `${rows.length - cut.length} more rows: save as HTML to have all.`) : null);
}

function shownCell(cell) {
    if (cell === null || cell === undefined) return "–";
    return typeof cell === "number" && !Number.isInteger(cell) ? String(Number(cell.toPrecision(6))) : cell;
}

/** One SVG with everything in the body, where it stands: drawings with their styles written in, canvases as pictures. */
export function drawingOf(body) {
    const frame = body.getBoundingClientRect();
    const parts = [...body.querySelectorAll("canvas, svg")].filter((part) => !part.parentElement.closest("svg") && isSeen(part));
    const boxes = parts.map((part) => part.getBoundingClientRect());
    const right = Math.max(1, ...boxes.map((box) => box.right - frame.left));
    const bottom = Math.max(1, ...boxes.map((box) => box.bottom - frame.top));
    const [width, height] = [Math.ceil(right + 2 * MARGIN), Math.ceil(bottom + 2 * MARGIN)];
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim() || "#ffffff";
    const whole = s("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
        s("rect", { width, height, fill: paper }));
    parts.forEach((part, i) => {
        const place = { x: boxes[i].left - frame.left + MARGIN, y: boxes[i].top - frame.top + MARGIN };
        const size = { width: boxes[i].width, height: boxes[i].height };
        whole.append(part.tagName === "CANVAS" ? pictureOf(part, place, size) : copyOf(part, place, size));
    });
    return whole;
}

function isSeen(part) {
    return part.getClientRects().length > 0 && getComputedStyle(part).visibility !== "hidden";
}

function pictureOf(canvas, place, size) {
    const sharp = getComputedStyle(canvas).imageRendering === "pixelated" ? "pixelated" : null;
    return s("image", { ...place, ...size, href: canvas.toDataURL("image/png"), preserveAspectRatio: "none", "image-rendering": sharp });
}

function copyOf(drawing, place, size) {
    const copy = drawing.cloneNode(true);
    const [from, to] = [[drawing, ...drawing.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
    from.forEach((node, i) => {
        const style = getComputedStyle(node);
        for (const name of COPIED) if (style[name]) to[i].setAttribute(name, style.getPropertyValue(name));
        to[i].removeAttribute("class");
    });
    for (const [name, value] of Object.entries({ ...place, ...size })) copy.setAttribute(name, value);
    return copy;
}

function saveSvg({ name, drawing }) {
    download(`${name}.svg`, new XMLSerializer().serializeToString(drawing), "image/svg+xml");
}

async function savePng({ name, drawing }) {
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(drawing))}`;
    await picture.decode();
    const canvas = h("canvas");
    canvas.width = SCALE * picture.width;
    canvas.height = SCALE * picture.height;
    const pen = canvas.getContext("2d");
    pen.scale(SCALE, SCALE);
    pen.drawImage(picture, 0, 0);
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    download(`${name}.png`, blob, "image/png");
}

/** A page that needs nothing else: the drawing and the table. It is built as a document and written out, so text stays text. */
function saveHtml({ name, title, caption, drawing, table }) {
    const page = document.implementation.createHTMLDocument(title || name);
    page.documentElement.lang = "en";
    const meta = page.createElement("meta");
    meta.setAttribute("charset", "utf-8");
    page.head.prepend(meta);
    const heading = page.createElement("h1");
    heading.textContent = title;
    const words = page.createElement("p");
    words.textContent = caption;
    page.body.append(heading, page.importNode(drawing, true), words);
    if (table) page.body.append(page.importNode(tableOf(table), true));
    const whole = page.documentElement.outerHTML.replace("</head>", `<style>${STYLE}</style></head>`); // the first is the real one
    download(`${name}.html`, `<!doctype html>\n${whole}`, "text/html");
}

function download(name, content, kind) {
    const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: `${kind};charset=utf-8` }));
    const link = h("a", { href: address, download: `seqloom-${name}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
}
