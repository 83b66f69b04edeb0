// A figure's ways out of the page: all that is seen of it as one drawing with a heading, saved as SVG, PNG or a page.

import { h, s } from "./dom.js";

const COPIED = [
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
const NARROWEST = 420; // pixels, so that a heading has room
const SCALE = 2; // pixels of a PNG for each of the screen's: sharp on a projector
const TITLE = { size: 18, weight: 600, high: 25, colour: "--ink" };
const ABOUT = { size: 13, weight: 400, high: 19, colour: "--soft" };
const WITHOUT_TEXT = new Set(["runs", "vectors"]); // views that show no sentence
const SENTENCES = ["text", "first", "second", "question", "context"];

const own = new WeakMap();

/** A canvas that can be drawn otherwise than as its pixels: `make` gives an SVG as large as it, or null for nothing. */
export function drawsItself(canvas, make) {
    own.set(canvas, make);
}

/** {drawing(), headed(), about}: what is seen of a figure, without and with its heading, and whose it is. */
export function pictureOf(element, body, title) {
    const about = aboutOf(element.closest("[data-run]")?.dataset.run);
    const legends = [...element.querySelectorAll(".legend")].filter(isSeen);
    const heading = [[title, TITLE], ...about.map((words) => [words, ABOUT])];
    return { about, drawing: () => drawn(body, legends, []), headed: () => drawn(body, legends, heading) };
}

/** The run of the figure or those of the page, and the sentence, as the address or the controls say: one line, or two where they are written both ways. */
function aboutOf(run) {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    const params = new URLSearchParams(query);
    const given = ["run", "runs"].flatMap((name) => (params.get(name) ?? "").split(/[|\n]/)).filter(Boolean);
    const runs = run ? [run] : given.length ? given : [control("select.wide")];
    const texts = SENTENCES.map((name) => params.get(name)).filter(Boolean);
    const text = WITHOUT_TEXT.has(path) ? "" : texts.join(" · ") || control(".textbox .text");
    const lines = [runs.join(", "), text.replace(/\s+/g, " ").trim()].filter(Boolean);
    return lines.some(isRightToLeft) ? lines : lines.length ? [lines.join(" · ")] : [];
}

function control(selector) {
    return document.querySelector(`#main ${selector}`)?.value ?? "";
}

/** By the first letter that has a direction, as browsers do. */
function isRightToLeft(words) {
    const first = words.match(/\p{L}/u)?.[0] ?? "";
    return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u.test(first);
}

// --- one drawing ----------------------------------------------------------------------------------------------------

/** One SVG with everything in the body, where it stands: drawings with their styles written in, canvases as pictures. */
function drawn(body, legends, heading) {
    const outer = legends.filter((legend) => !body.contains(legend));
    const parts = [body, ...outer]
        .flatMap((one) => [...one.querySelectorAll("canvas, svg")])
        .filter((part) => !part.parentElement.closest("svg") && isSeen(part));
    const frame = {
        left: place(body, body).left,
        top: Math.min(...[body, ...outer].map((one) => place(one, body).top)),
    };
    const boxes = parts.map((part) => place(part, body));
    const all = [...boxes, ...legends.map((legend) => place(legend, body))];
    const right = Math.max(NARROWEST, ...boxes.map((box) => box.left + box.width - frame.left));
    const bottom = Math.max(1, ...all.map((box) => box.top + box.height - frame.top));
    const lines = heading.flatMap(([words, look]) =>
        wrapped(words, look, right).map((line) => [line, look, isRightToLeft(words)]),
    );
    const above = lines.reduce((sum, [, look]) => sum + look.high, 0) + (lines.length ? MARGIN / 2 : 0);
    const [width, height] = [Math.ceil(right + 2 * MARGIN), Math.ceil(bottom + above + 2 * MARGIN)];
    const at = (box) => ({ x: box.left - frame.left + MARGIN, y: box.top - frame.top + MARGIN + above });
    return s(
        "svg",
        { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
        s("rect", { width, height, fill: styled("--paper") || "#ffffff" }),
        headingOf(lines),
        parts.map((part, i) => copied(part, at(boxes[i]), { width: boxes[i].width, height: boxes[i].height })),
        legends.map((legend) => legendOf(legend, (node) => at(place(node, body)))),
    );
}

/** Where something stands, were nothing scrolled. `node` may also be a range of text. */
function place(node, body) {
    const box = node.getBoundingClientRect();
    let [left, top] = [box.left, box.top];
    const inner = node.startContainer?.parentElement ?? node.parentElement;
    for (let one = inner; one && node !== body && one !== body.parentElement; one = one.parentElement) {
        left += one.scrollLeft ?? 0;
        top += one.scrollTop ?? 0;
    }
    return { left, top, width: box.width, height: box.height };
}

function isSeen(part) {
    return part.getClientRects().length > 0 && getComputedStyle(part).visibility !== "hidden";
}

function styled(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function copied(part, at, size) {
    if (part.tagName !== "CANVAS") return copyOf(part, at, size);
    if (!own.has(part)) return pixelsOf(part, at, size);
    const drawing = own.get(part)();
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
        for (const name of COPIED) if (style[name]) to[i].setAttribute(name, style.getPropertyValue(name));
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
                fill: styled(look.colour),
                "font-family": styled("--text"),
                "font-size": look.size,
                "font-weight": look.weight,
                "unicode-bidi": "plaintext",
                direction: backwards ? "rtl" : null,
                "text-anchor": backwards ? "end" : null, // at the left, too
            },
            words,
        );
    });
}

/** Lines no wider than this, broken between words, also of scripts that write no spaces; within one where it must be. */
function wrapped(words, look, width) {
    const pen = h("canvas").getContext("2d");
    pen.font = `${look.weight} ${look.size}px ${styled("--text")}`;
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

/** What a legend says in words, and its coloured boxes; the drawings in it are copied as all drawings are. */
function legendOf(legend, at) {
    const words = document.createTreeWalker(legend, NodeFilter.SHOW_TEXT);
    const found = [...legend.querySelectorAll("span")]
        .filter((one) => !one.textContent && isSeen(one))
        .map((one) => boxOf(one, at(one)));
    for (let node = words.nextNode(); node; node = words.nextNode()) {
        if (node.data.trim() && !node.parentElement.closest("svg")) found.push(wordsOf(node, at));
    }
    return found;
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
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(headed()))}`;
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
export function saveHtml({ name, title, caption, about, drawing, table }) {
    const page = document.implementation.createHTMLDocument(title || name);
    page.documentElement.lang = "en";
    const meta = page.createElement("meta");
    meta.setAttribute("charset", "utf-8");
    page.head.prepend(meta);
    const said = (tag, words) => Object.assign(page.createElement(tag), { textContent: words, dir: "auto" });
    page.body.append(
        said("h1", title),
        ...about.map((words) => said("p", words)),
        page.importNode(drawing(), true),
        said("p", caption),
    );
    const numbers = table();
    if (numbers) page.body.append(page.importNode(numbers, true));
    const whole = page.documentElement.outerHTML.replace("</head>", `<style>${STYLE}</style></head>`); // the first is the real one
    download(`${name}.html`, `<!doctype html>\n${whole}`, "text/html");
}

function download(name, content, kind) {
    const address = URL.createObjectURL(
        content instanceof Blob ? content : new Blob([content], { type: `${kind};charset=utf-8` }),
    );
    const link = h("a", { href: address, download: `seqloom-${name}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
}
