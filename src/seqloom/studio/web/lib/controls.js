// Labelled form controls that work by keyboard.

import { h, formatNumber } from "./dom.js";

let count = 0;

function labelled(text, control, extra) {
    control.id ||= `control-${++count}`;
    return h("div", { class: "field" }, h("label", { for: control.id }, text), control, extra);
}

/** A row of controls. */
export function controls(...children) {
    return h("div", { class: "controls" }, children);
}

/** A menu of the runs that suit this view. */
export function runPicker(page, { label = "Run", value, onchange, empty = null }) {
    const options = page.runs.map((run) => [run.id, run.metric ? `${run.name} (${run.metric})` : run.name]);
    if (empty !== null) options.unshift(["", empty]);
    return select(label, options, value ?? "", onchange, "wide");
}

export function select(label, options, value, onchange, kind = "") {
    const node = h(
        "select",
        { class: kind, onchange: () => onchange(node.value) },
        options.map(([name, text]) => h("option", { value: name }, text)),
    );
    node.value = String(value);
    return labelled(label, node);
}

export function slider(label, { min, max, step, value, format = formatNumber }, oninput) {
    const output = h("output", {}, format(value));
    const node = h("input", {
        type: "range",
        min,
        max,
        step,
        value,
        oninput: () => {
            output.textContent = format(Number(node.value));
            oninput(Number(node.value));
        },
    });
    node.value = value;
    return labelled(label, node, output);
}

export function numberBox(label, { min, max, step = 1, value }, onchange) {
    const node = h("input", {
        type: "number",
        min,
        max,
        step,
        value,
        class: "narrow",
        onchange: () => {
            const entered = Number(node.value);
            if (!Number.isFinite(entered)) return;
            node.value = Math.min(Math.max(entered, min ?? -Infinity), max ?? Infinity);
            onchange(Number(node.value));
        },
    });
    return labelled(label, node);
}

export function checkbox(label, value, onchange) {
    const node = h("input", { type: "checkbox", onchange: () => onchange(node.checked) });
    node.checked = Boolean(value);
    node.id = `control-${++count}`;
    return h("div", { class: "field check" }, node, h("label", { for: node.id }, label));
}

/** A group of radio buttons, drawn as segments. */
export function segmented(label, options, value, onchange) {
    const name = `choice-${++count}`;
    const buttons = options.map(([choice, text]) => {
        const input = h("input", { type: "radio", name, value: choice, onchange: () => onchange(choice) });
        input.checked = String(choice) === String(value);
        return h("label", {}, input, h("span", {}, text));
    });
    return h("fieldset", { class: "field segmented" }, h("legend", {}, label), h("div", {}, buttons));
}

/** A text input with a submit button. Enter submits (with several rows: Ctrl+Enter). */
export function textBox(
    label,
    value,
    onsubmit,
    { rows = 1, button: words = "Show", max = 2000, placeholder = "" } = {},
) {
    const isMultiline = rows > 1;
    const box = h(isMultiline ? "textarea" : "input", {
        type: isMultiline ? null : "text",
        rows: isMultiline ? rows : null,
        dir: "auto",
        maxlength: max,
        placeholder,
        spellcheck: "false",
        autocomplete: "off",
        class: "text",
    });
    box.value = value ?? "";
    box.id = `control-${++count}`;
    const submit = (event) => {
        event.preventDefault();
        onsubmit(box.value);
    };
    box.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (!isMultiline || event.ctrlKey || event.metaKey)) submit(event);
    });
    const send = h("button", { type: "submit", class: "primary" }, words);
    const form = h("form", { class: "field textbox", onsubmit: submit }, h("label", { for: box.id }, label), box, send);
    form.box = box;
    return form;
}

/** The domain of a run and example texts; selecting one submits it in the text box. */
export function examplesFor(run, form, texts = run.examples ?? []) {
    if (!texts.length) return null;
    const send = (text) => {
        form.box.value = text;
        form.requestSubmit();
    };
    const pick = (text) =>
        h("button", { type: "button", class: "example", dir: "auto", onclick: () => send(text) }, text);
    return h(
        "p",
        { class: "examples" },
        h("span", {}, run.domain ? `Trained on ${run.domain}. Examples: ` : "Examples: "),
        texts.map(pick),
    );
}

export function button(words, onclick, { primary = false, pressed = null, title = null } = {}) {
    return h(
        "button",
        {
            type: "button",
            class: primary ? "primary" : "secondary",
            onclick,
            title,
            "aria-pressed": pressed === null ? null : String(pressed),
        },
        words,
    );
}
