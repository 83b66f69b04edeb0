// What can be turned inside the cell: which cells, which layer, what of them is shown, and which units in which order.

import { refill } from "../lib/dom.js";
import { controls, segmented, select, slider, textBox } from "../lib/controls.js";
import { symbolOf } from "./cell-unit.js";

const ORDERS = [
    ["variance", "how much they vary"],
    ["size", "mean size"],
    ["mean", "mean value"],
    ["number", "their number"],
];
const UNITS = { unit: null, units: null };
const RESET = { ...UNITS, layer: null, quantity: null, by: null, class: null, place: null, term: null };

/** The controls of a view, drawn anew only where something else can be turned, or stands elsewhere. */
export function drawOptions(view) {
    const { parts, part, layer, layers, quantities, quantity, classes, hidden } = view.found;
    const chosen = [quantity, view.get("by"), view.get("class")];
    const key = JSON.stringify([parts, part, layer, quantities, classes, hidden, view.run.id, chosen]);
    if (key === view.optionsKey) return;
    view.optionsKey = key;
    const named = parts.map((one) => [one.name, one.title]);
    const numbered = Array.from({ length: layers }, (_, i) => [i + 1, i + 1 === layers ? `${i + 1} (top)` : i + 1]);
    const shown = quantities.map((one) => [one.name, symbolOf(one.name)]);
    refill(
        view.options,
        controls(
            parts.length > 1 &&
                segmented("Which cells", named, part, (name) => view.change({ ...RESET, part: name })),
            layers > 1 && select("Layer", numbered, layer, (value) => view.change({ ...UNITS, layer: value })),
            segmented("Show", shown, quantity, (name) => view.change({ quantity: name })),
            orderOf(view, classes),
            containing(view),
            textBox("Only these units", view.get("units", ""), (units) => view.change({ units }), {
                button: "Pick",
                max: 600,
                placeholder: "3, 17, 20",
            }),
            howMany(view, hidden),
        ),
    );
    for (const box of view.options.querySelectorAll(".textbox")) box.classList.add("short");
}

function orderOf(view, classes) {
    const orders = [...ORDERS, ...classes.map((name) => [`class ${name}`, `going with: ${name}`])];
    const by = view.get("by", "variance");
    const chosen = by === "correlation" ? `class ${view.get("class")}` : by;
    return select("Order units by", orders, chosen, (value) =>
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
    return textBox("… or by tokens containing", view.get("containing", ""), (text) => view.change(order(text)), {
        button: "Order",
        max: 20,
    });
}

function howMany(view, hidden) {
    const value = Math.min(view.count("count", 24), hidden);
    const look = { min: 4, max: Math.min(hidden, 128), step: 1, value, format: String };
    return slider("Units shown", look, (count) => view.countCalmly(count));
}
