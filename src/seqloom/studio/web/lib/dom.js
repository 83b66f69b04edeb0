// Creates elements without parsing HTML: strings of models and users always become text nodes.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: h("button", {class: "secondary", onclick: act}, "Save"). Strings become text nodes; null is skipped. */
export function h(tag, attributes = {}, ...children) {
    return setUp(document.createElement(tag), attributes, children);
}

/** Create an SVG element. The direction of text follows its first strong character. */
export function s(tag, attributes = {}, ...children) {
    const node = setUp(document.createElementNS(SVG, tag), attributes, children);
    if (tag === "text") node.classList.add("bidi");
    return node;
}

function setUp(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) applyAttribute(node, name, value);
    append(node, children);
    return node;
}

function applyAttribute(node, name, value) {
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

/** Replace the children of a node. */
export function setChildren(node, ...children) {
    node.replaceChildren();
    append(node, children);
    return node;
}

/** Replace the children of a node and keep the keyboard focus on the corresponding control. */
export function updateChildren(node, ...children) {
    const focusable = () => [...node.querySelectorAll("input, select, textarea, button, a[href], [tabindex='0']")];
    const before = document.activeElement;
    const index = focusable().indexOf(before);
    setChildren(node, ...children);
    if (index < 0) return node;
    const controls = focusable();
    const isSame = (other) => other?.tagName === before.tagName && nameOf(other) === nameOf(before);
    (isSame(controls[index]) ? controls[index] : controls.find(isSame))?.focus({ preventScroll: true });
    return node;
}

/** The accessible name of a control, from its label or text. */
function nameOf(node) {
    const text = ["BUTTON", "A"].includes(node.tagName) ? node.textContent : null;
    return node.getAttribute("aria-label") ?? text;
}

export function clear(node) {
    node.replaceChildren();
    return node;
}

/** Announce a message to screen readers. */
export function announce(words) {
    document.getElementById("spoken").textContent = words;
}

/** Format a number with few digits; a nonzero value is never shown as 0. */
export function formatNumber(value, digits = 3) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 0.5 * 10 ** -digits)
        return value.toExponential(2).replaceAll("-", "−").replace("e+", "e");
    const text = size >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(size >= 100 ? 1 : digits);
    return text.replace("-", "−");
}

/** Round a float16 value to its significant digits. */
export function roundFloat16(value) {
    return Number(value.toPrecision(4));
}

/** Debounce: call `action` after a pause of this many milliseconds. */
export function debounce(action, milliseconds = 200) {
    let timer;
    return (...values) => {
        clearTimeout(timer);
        timer = setTimeout(() => action(...values), milliseconds);
    };
}
