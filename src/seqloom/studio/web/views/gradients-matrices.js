// Singular values of the recurrent matrices.

import { setChildren, formatNumber } from "../lib/dom.js";
import { lineChart } from "../lib/chart.js";

/** Draw the singular values for the selected part and layer. */
export function drawValues(fig, results, { part, layer, room }) {
    const isComparison = results.length > 1;
    const series = results.flatMap((result, colour) =>
        result.matrices
            .filter((matrix) => isShown(result, matrix, part, layer))
            .map((matrix) => ({
                name: `${isComparison ? `${result.run.name}: ` : ""}${matrixName(result, matrix)}`,
                points: matrix.values.map((value, k) => [k + 1, value]),
                ...looksOf(result, matrix, isComparison ? colour : null),
                matrix,
            })),
    );
    const chart = lineChart({
        series: [...series, lineAtOne(Math.max(...series.map((result) => result.points.length)))],
        width: room,
        height: 360,
        x: { title: "rank (largest first)" },
        y: { title: "singular value", zero: true },
        label: "Singular values of the recurrent matrices",
    });
    setChildren(fig.body, chart.element);
    const largest = series.reduce((best, result) => (result.points[0][1] > best.points[0][1] ? result : best));
    fig.setText(
        "Singular values of the recurrent matrices",
        `A singular value of W_h is its gain along one direction of the state: above 1 it amplifies, below 1 it attenuates. The largest singular value is ${formatNumber(largest.points[0][1])} (${largest.name}).`,
    );
    fig.table(() => ({
        columns: ["matrix", "largest", "median", "smallest", "spectral radius", "all"],
        rows: series.map(({ name, matrix }) => [
            name,
            matrix.values[0],
            matrix.values[Math.floor(matrix.values.length / 2)],
            matrix.values.at(-1),
            matrix.radius,
            matrix.values.map((value) => Number(value.toPrecision(6))).join(" "),
        ]),
    }));
}

/** Whether the part and layer of a matrix are selected. */
function isShown(result, matrix, part, layer) {
    const item = result.parts.find((other) => other.name === matrix.part);
    return (part === "all" || matrix.part === part) && (layer === "all" || matrix.layer === item?.layers.length);
}

function lineAtOne(count) {
    const points = [
        [1, 1],
        [count, 1],
    ];
    return { name: "1", points, colour: 7, dashed: true, thin: true };
}

function matrixName(result, { part, layer, name }) {
    const where = result.parts.find((item) => item.name === part);
    const words = [
        `W_h ${name === "candidate" ? "h̃" : name}`,
        result.parts.length > 1 ? (where?.title ?? part) : "",
        where?.layers.length > 1 ? `layer ${layer}` : "",
    ];
    return words.filter(Boolean).join(", ");
}

/** For several runs, colours by run and dashes by gate; for one run, colours by gate and dashes by part. */
function looksOf(result, { part, name }, run) {
    const gate = [...new Set(result.matrices.map((matrix) => matrix.name))].indexOf(name);
    const stroke = run === null ? result.parts.findIndex((item) => item.name === part) : gate;
    return { colour: run ?? gate, dashed: stroke === 1, dotted: stroke === 2, thin: stroke === 3 };
}
