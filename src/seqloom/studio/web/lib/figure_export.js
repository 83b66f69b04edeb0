// Exports a figure with a heading as SVG, PNG or a standalone HTML page.

import { h, s } from "./dom.js";

const COPIED_STYLES = [
    "fill",
    "fill-opacity",
    "stroke",
    "stroke-width",
    "stroke-opacity",
    "stroke-dasharray",
    "stroke-linecap",
    "opacity",
    "font-family",
    "font-size",
    "font-weight",
    "font-style",
    "text-anchor",
    "dominant-baseline",
    "direction",
    "unicode-bidi",
    "visibility",
];
const STYLE =
    "body{font:16px system-ui,sans-serif;margin:2rem;max-width:80rem}svg{max-width:100%;height:auto}" +
    "table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid #ccc;text-align:start}";
const MARGIN = 16;
const MIN_WIDTH = 420; // pixels; leaves room for the heading
const SCALE = 2; // PNG pixels per screen pixel
const TITLE = { size: 18, weight: 600, high: 25, colour: "--ink" };
const ABOUT = { size: 13, weight: 400, high: 19, colour: "--soft" };
const VIEWS_WITHOUT_TEXT = new Set(["runs", "vectors"]); // views without an input text
const TEXT_PARAMS = ["text", "first", "second", "question", "context"];

const vectorDrawings = new WeakMap();

/** Register a vector version of a canvas: `make` returns an SVG of the same size, or null to omit the canvas. */
export function registerDrawing(canvas, make) {
    vectorDrawings.set(canvas, make);
}

/** {drawing(), headed(), about}: a figure without and with heading, and the lines about run and text. */
export function exportParts(element, body, title) {
    const about = aboutOf(element.closest("[data-run]")?.dataset.run);
    const legends = [...element.querySelectorAll(".legend")].filter(isSeen);
    const heading = [[title, TITLE], ...about.map((words) => [words, ABOUT])];
    return { about, drawing: () => combine(body, legends, []), headed: () => combine(body, legends, heading) };
}

/** The run and text of a figure, from the address or the controls, in one line, or two if a text is right-to-left. */
function aboutOf(run) {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    const params = new URLSearchParams(query);
    const runNames = ["run", "runs"].flatMap((name) => (params.get(name) ?? "").split(/[|\n]/)).filter(Boolean);
    const runs = run ? [run] : runNames.length ? runNames : [control("select.wide")];
    const texts = TEXT_PARAMS.map((name) => params.get(name)).filter(Boolean);
    const text = VIEWS_WITHOUT_TEXT.has(path) ? "" : texts.join(" · ") || control(".textbox .text");
    const lines = [runs.join(", "), text.replace(/\s+/g, " ").trim()].filter(Boolean);
    return lines.some(isRightToLeft) ? lines : lines.length ? [lines.join(" · ")] : [];
}

function control(selector) {
    return document.querySelector(`#main ${selector}`)?.value ?? "";
}

/** Whether a text is right-to-left, by its first letter, as in browsers. */
function isRightToLeft(words) {
    const first = words.match(/\p{L}/u)?.[0] ?? "";
    return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u.test(first);
}

// --- one drawing ----------------------------------------------------------------------------------------------------

/** Combine all drawings of the body in one SVG, with inline styles; canvases become images. */
function combine(body, legends, heading) {
    const outer = legends.filter((legend) => !body.contains(legend));
    const parts = [body, ...outer]
        .flatMap((item) => [...item.querySelectorAll("canvas, svg")])
        .filter((part) => !part.parentElement.closest("svg") && isSeen(part));
    const frame = {
        left: boundsOf(body, body).left,
        top: Math.min(...[body, ...outer].map((item) => boundsOf(item, body).top)),
    };
    const boxes = parts.map((part) => boundsOf(part, body));
    const all = [...boxes, ...legends.map((legend) => boundsOf(legend, body))];
    const right = Math.max(MIN_WIDTH, ...boxes.map((box) => box.left + box.width - frame.left));
    const bottom = Math.max(1, ...all.map((box) => box.top + box.height - frame.top));
    const lines = heading.flatMap(([words, look]) =>
        wrapText(words, look, right).map((line) => [line, look, isRightToLeft(words)]),
    );
    const above = lines.reduce((sum, [, look]) => sum + look.high, 0) + (lines.length ? MARGIN / 2 : 0);
    const [width, height] = [Math.ceil(right + 2 * MARGIN), Math.ceil(bottom + above + 2 * MARGIN)];
    const at = (box) => ({ x: box.left - frame.left + MARGIN, y: box.top - frame.top + MARGIN + above });
    return s(
        "svg",
        { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
        s("rect", { width, height, fill: cssValue("--paper") || "#ffffff" }),
        headingOf(lines),
        parts.map((part, i) => copyPart(part, at(boxes[i]), { width: boxes[i].width, height: boxes[i].height })),
        legends.map((legend) => legendOf(legend, (node) => at(boundsOf(node, body)))),
    );
}

/** The unscrolled position of a node or text range. */
function boundsOf(node, body) {
    const box = node.getBoundingClientRect();
    let [left, top] = [box.left, box.top];
    const inner = node.startContainer?.parentElement ?? node.parentElement;
    for (let item = inner; item && node !== body && item !== body.parentElement; item = item.parentElement) {
        left += item.scrollLeft ?? 0;
        top += item.scrollTop ?? 0;
    }
    return { left, top, width: box.width, height: box.height };
}

function isSeen(part) {
    return part.getClientRects().length > 0 && getComputedStyle(part).visibility !== "hidden";
}

function cssValue(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function copyPart(part, at, size) {
    if (part.tagName !== "CANVAS") return copyOf(part, at, size);
    if (!vectorDrawings.has(part)) return pixelsOf(part, at, size);
    const drawing = vectorDrawings.get(part)();
    for (const [name, value] of Object.entries({ ...at, ...size })) drawing?.setAttribute(name, value);
    return drawing;
}

function pixelsOf(canvas, at, size) {
    const sharp = getComputedStyle(canvas).imageRendering === "pixelated" ? "pixelated" : null;
    return s("image", {
        ...at,
        ...size,
        href: canvas.toDataURL("image/png"),
        preserveAspectRatio: "none",
        "image-rendering": sharp,
    });
}

function copyOf(drawing, at, size) {
    const copy = drawing.cloneNode(true);
    const [from, to] = [
        [drawing, ...drawing.querySelectorAll("*")],
        [copy, ...copy.querySelectorAll("*")],
    ];
    from.forEach((node, i) => {
        const style = getComputedStyle(node);
        for (const name of COPIED_STYLES) if (style[name]) to[i].setAttribute(name, style.getPropertyValue(name));
        to[i].removeAttribute("class");
    });
    for (const [name, value] of Object.entries({ ...at, ...size })) copy.setAttribute(name, value);
    return copy;
}

// --- words ----------------------------------------------------------------------------------------------------------

function headingOf(lines) {
    let y = MARGIN;
    return lines.map(([words, look, backwards]) => {
        y += look.high;
        return s(
            "text",
            {
                x: MARGIN,
                y: y - 6,
                fill: cssValue(look.colour),
                "font-family": cssValue("--text"),
                "font-size": look.size,
                "font-weight": look.weight,
                "unicode-bidi": "plaintext",
                direction: backwards ? "rtl" : null,
                "text-anchor": backwards ? "end" : null,
            },
            words,
        );
    });
}

/** Wrap a text to a width at word boundaries, also in scripts without spaces; longer words are split. */
function wrapText(words, look, width) {
    const pen = h("canvas").getContext("2d");
    pen.font = `${look.weight} ${look.size}px ${cssValue("--text")}`;
    const fits = (text) => pen.measureText(text).width <= width;
    const pieces = [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(words)].flatMap(({ segment }) =>
        fits(segment) ? [segment] : [...segment],
    );
    const lines = [""];
    for (const piece of pieces) {
        if (lines.at(-1) && !fits(lines.at(-1) + piece.trimEnd())) lines.push("");
        lines.push((lines.pop() + piece).trimStart());
    }
    return lines.filter(Boolean);
}

/** The texts and coloured boxes of a legend as SVG. */
function legendOf(legend, at) {
    const words = document.createTreeWalker(legend, NodeFilter.SHOW_TEXT);
    const elements = [...legend.querySelectorAll("span")]
        .filter((item) => !item.textContent && isSeen(item))
        .map((item) => boxOf(item, at(item)));
    for (let node = words.nextNode(); node; node = words.nextNode()) {
        if (node.data.trim() && !node.parentElement.closest("svg")) elements.push(wordsOf(node, at));
    }
    return elements;
}

function wordsOf(node, at) {
    const range = document.createRange();
    range.selectNodeContents(node);
    const { width, height } = range.getBoundingClientRect();
    const style = getComputedStyle(node.parentElement),
        { x, y } = at(range);
    return s(
        "text",
        {
            x: style.direction === "rtl" ? x + width : x,
            y: y + height / 2,
            "dominant-baseline": "central",
            fill: style.color,
            direction: style.direction,
            "font-family": style.fontFamily,
            "font-size": style.fontSize,
            "font-weight": style.fontWeight,
        },
        node.data.trim(),
    );
}

function boxOf(node, { x, y }) {
    const style = getComputedStyle(node),
        { width, height } = node.getBoundingClientRect();
    const line = parseFloat(style.borderTopWidth) || 0;
    return s("rect", {
        x: x + line / 2,
        y: y + line / 2,
        width: width - line,
        height: height - line,
        rx: parseFloat(style.borderTopLeftRadius) || 0,
        fill: style.backgroundColor,
        stroke: line ? style.borderTopColor : "none",
        "stroke-width": line,
        "stroke-dasharray": style.borderTopStyle === "dashed" ? "4 3" : null,
    });
}

// --- saving ---------------------------------------------------------------------------------------------------------

export function saveSvg({ name, headed }) {
    download(`${name}.svg`, new XMLSerializer().serializeToString(headed()), "image/svg+xml");
}

export async function savePng({ name, headed }) {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(headed()))}`;
    await image.decode();
    const canvas = h("canvas");
    canvas.width = SCALE * image.width;
    canvas.height = SCALE * image.height;
    const pen = canvas.getContext("2d");
    pen.scale(SCALE, SCALE);
    pen.drawImage(image, 0, 0);
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    download(`${name}.png`, blob, "image/png");
}

/** Save a standalone page with drawing and table. It is built as a document, so that text is escaped. */
export function saveHtml({ name, title, caption, about, drawing, table }) {
    const page = document.implementation.createHTMLDocument(title || name);
    page.documentElement.lang = "en";
    const meta = page.createElement("meta");
    meta.setAttribute("charset", "utf-8");
    page.head.prepend(meta);
    const textElement = (tag, words) => Object.assign(page.createElement(tag), { textContent: words, dir: "auto" });
    page.body.append(
        textElement("h1", title),
        ...about.map((words) => textElement("p", words)),
        page.importNode(drawing(), true),
        textElement("p", caption),
    );
    const numbers = table();
    if (numbers) page.body.append(page.importNode(numbers, true));
    const html = page.documentElement.outerHTML.replace("</head>", `<style>${STYLE}</style></head>`); // first occurrence: text is escaped
    download(`${name}.html`, `<!doctype html>\n${html}`, "text/html");
}

function download(name, content, kind) {
    const address = URL.createObjectURL(
        content instanceof Blob ? content : new Blob([content], { type: `${kind};charset=utf-8` }),
    );
    const link = h("a", { href: address, download: `seqloom-${name}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
}
