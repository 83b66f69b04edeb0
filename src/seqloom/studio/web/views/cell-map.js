// Many units over a text: a row for each unit, a column for each token.

import { h, fromHalf } from "../lib/dom.js";
import { heatmap, scaleBar } from "../lib/heatmap.js";
import { shown } from "../lib/tokens.js";
import { scaleOf, symbolOf } from "./cell-unit.js";

/** Values of units (rows) at tokens (columns), `width` pixels wide, with what the colours stand for. */
export function unitMap({ tokens, units, quantity, quantities, reach, arrays }, width, onPick) {
    const gate = quantities.find((one) => one.name === quantity).gate;
    const high = gate ? 1 : Math.max(reach, 1e-6);
    const picture = heatmap({
        rows: units.map(String),
        columns: tokens,
        values: arrays.map.data,
        low: gate ? 0 : -high,
        high,
        signed: scaleOf(gate),
        rowTitle: "unit",
        columnTitle: "token read",
        size: [width, 130 + units.length * 20],
        leastHeight: 18,
        onPick,
        label: `${symbolOf(quantity)} of ${units.length} units at ${tokens.length} tokens`,
    });
    const bar = scaleBar();
    bar.update({ low: gate ? 0 : -high, high, signed: scaleOf(gate), title: symbolOf(quantity) });
    return { picture, element: h("div", {}, picture.element, bar.element) };
}

export function mapTable(units, tokens, { data }) {
    return {
        columns: ["unit", ...tokens.map(shown)],
        rows: units.map((unit, row) => [
            `${unit}`,
            ...tokens.map((_, column) => fromHalf(data[row * tokens.length + column])),
        ]),
    };
}
