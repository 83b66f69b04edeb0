// A heat map of units over a text: one row per unit, one column per token.

import { h, roundFloat16 } from "../lib/dom.js";
import { heatmap, scaleBar } from "../lib/heatmap.js";
import { displayToken } from "../lib/tokens.js";
import { scaleOf, symbolOf } from "./cell-unit.js";

/** The heat map of a quantity with a colour bar, `width` pixels wide. */
export function unitMap({ tokens, units, quantity, quantities, maximum, arrays }, width, onPick) {
    const gate = quantities.find((item) => item.name === quantity).gate;
    const high = gate ? 1 : Math.max(maximum, 1e-6);
    const map = heatmap({
        rows: units.map(String),
        columns: tokens,
        values: arrays.map.data,
        low: gate ? 0 : -high,
        high,
        signed: scaleOf(gate),
        rowTitle: "unit",
        columnTitle: "input token",
        size: [width, 130 + units.length * 20],
        leastHeight: 18,
        onPick,
        label: `${symbolOf(quantity)} of ${units.length} units at ${tokens.length} tokens`,
    });
    const bar = scaleBar();
    bar.update({ low: gate ? 0 : -high, high, signed: scaleOf(gate), title: symbolOf(quantity) });
    return { heatmap: map, element: h("div", {}, map.element, bar.element) };
}

export function mapTable(units, tokens, { data }) {
    return {
        columns: ["unit", ...tokens.map(displayToken)],
        rows: units.map((unit, row) => [
            `${unit}`,
            ...tokens.map((_, column) => roundFloat16(data[row * tokens.length + column])),
        ]),
    };
}
