// Elements without HTML: whatever comes from a model or a user becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("button", {class: "quiet", onclick: act}, "Save"). Strings become text nodes, null is nothing. */
export function h(tag, attributes = {}, ...children) {
    return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. Text takes its direction from its own letters, so Arabic and Hebrew stand right. */
export function s(tag, attributes = {}, ...children) {
    const node = filled(document.createElementNS(SVG, tag), attributes, children);
    if (tag === "text") node.classList.add("bidi");
    return node;
}

function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) give(node, name, value);
    append(node, children);
    return node;
}

function give(node, name, value) {
    if (value === null || value === undefined || value === false) return;
    if (name.startsWith("on") && typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
}

function append(node, children) {
    for (const child of children.flat(Infinity)) {
        if (child === null || child === undefined || child === false) continue;
        node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
}

/** Take everything out, and put these in. */
export function fill(node, ...children) {
    node.replaceChildren();
    append(node, children);
    return node;
}

/** The same where somebody may be at a control, by keyboard: then he is at the one in its place. */
export function refill(node, ...children) {
    const reachable = () => [...node.querySelectorAll("input, select, textarea, button, a[href], [tabindex='0']")];
    const before = document.activeElement;
    const place = reachable().indexOf(before);
    fill(node, ...children);
    if (place < 0) return node;
    const now = reachable();
    const alike = (other) => other?.tagName === before.tagName && calledBy(other) === calledBy(before);
    (alike(now[place]) ? now[place] : now.find(alike))?.focus({ preventScroll: true });
    return node;
}

/** The name of something to act on, as far as it is written on itself. */
function calledBy(node) {
    const written = ["BUTTON", "A"].includes(node.tagName) ? node.textContent : null;
    return node.getAttribute("aria-label") ?? written;
}

export function clear(node) {
    node.replaceChildren();
    return node;
}

/** Say something to whoever hears the page instead of seeing it. */
export function say(words) {
    document.getElementById("spoken").textContent = words;
}

/** A number for people: few digits, but never 0 for what is not. */
export function number(value, digits = 3) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 0.5 * 10 ** -digits)
        return value.toExponential(2).replaceAll("-", "−").replace("e+", "e");
    const text = size >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(size >= 100 ? 1 : digits);
    return text.replace("-", "−");
}

/** A number that came as float16, without the digits that it does not have. */
export function fromHalf(value) {
    return Number(value.toPrecision(4));
}

/** Call a function when it has not been called again for so many milliseconds. */
export function calmly(action, milliseconds = 200) {
    let waiting;
    return (...values) => {
        clearTimeout(waiting);
        waiting = setTimeout(() => action(...values), milliseconds);
    };
}
