// The controls of the cell view: part, layer, quantity, units and their order.

import { updateChildren } from "../lib/dom.js";
import { controls, segmented, select, slider, textBox } from "../lib/controls.js";
import { symbolOf } from "./cell-unit.js";

const ORDERS = [
    ["variance", "variance"],
    ["size", "mean absolute value"],
    ["mean", "mean value"],
    ["number", "index"],
];
const UNITS = { unit: null, units: null };
const RESET = { ...UNITS, layer: null, quantity: null, by: null, class: null, position: null, term: null };

/** Draw the controls if their options have changed. */
export function drawOptions(view) {
    const { parts, part, layer, layers, quantities, quantity, classes, hidden } = view.data;
    const chosen = [quantity, view.get("by"), view.get("class")];
    const key = JSON.stringify([parts, part, layer, quantities, classes, hidden, view.run.id, chosen]);
    if (key === view.optionsKey) return;
    view.optionsKey = key;
    const partOptions = parts.map((item) => [item.name, item.title]);
    const numbered = Array.from({ length: layers }, (_, i) => [i + 1, i + 1 === layers ? `${i + 1} (top)` : i + 1]);
    const quantityOptions = quantities.map((item) => [item.name, symbolOf(item.name)]);
    updateChildren(
        view.options,
        controls(
            parts.length > 1 &&
                segmented("Cells", partOptions, part, (name) => view.change({ ...RESET, part: name })),
            layers > 1 && select("Layer", numbered, layer, (value) => view.change({ ...UNITS, layer: value })),
            segmented("Quantity", quantityOptions, quantity, (name) => view.change({ quantity: name })),
            orderOf(view, classes),
            containing(view),
            textBox("Select units", view.get("units", ""), (units) => view.change({ units }), {
                button: "Select",
                max: 600,
                placeholder: "3, 17, 20",
            }),
            countSlider(view, hidden),
        ),
    );
    for (const box of view.options.querySelectorAll(".textbox")) box.classList.add("short");
}

function orderOf(view, classes) {
    const orders = [...ORDERS, ...classes.map((name) => [`class ${name}`, `correlation with: ${name}`])];
    const order = view.get("by", "variance");
    const chosen = order === "correlation" ? `class ${view.get("class")}` : order;
    return select("Sort units by", orders, chosen, (value) =>
        view.change(
            value.startsWith("class ") ? { by: "correlation", class: value.slice(6) } : { by: value, class: null },
        ),
    );
}

function containing(view) {
    const order = (text) =>
        text
            ? { containing: text, by: "correlation", class: `contains ${text}` }
            : { containing: null, by: null, class: null };
    return textBox("… or by substring", view.get("containing", ""), (text) => view.change(order(text)), {
        button: "Sort",
        max: 20,
    });
}

function countSlider(view, hidden) {
    const value = Math.min(view.count("count", 24), hidden);
    const options = { min: 4, max: Math.min(hidden, 128), step: 1, value, format: String };
    return slider("Number of units", options, (count) => view.countCalmly(count));
}
