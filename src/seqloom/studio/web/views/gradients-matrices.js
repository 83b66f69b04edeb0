// The recurrent matrices that a gradient passes on its way back: how much each can stretch or shrink it.

import { fill, number } from "../lib/dom.js";
import { lineChart } from "../lib/chart.js";

/** The singular values of the matrices whose part and layer are shown. */
export function drawValues(picture, found, { part, layer, room }) {
    const several = found.length > 1;
    const series = found.flatMap((one, place) =>
        one.matrices
            .filter((matrix) => isShown(one, matrix, part, layer))
            .map((matrix) => ({
                name: `${several ? `${one.run.name}: ` : ""}${matrixName(one, matrix)}`,
                points: matrix.values.map((value, k) => [k + 1, value]),
                ...looksOf(one, matrix, several ? place : null),
                matrix,
            })),
    );
    const chart = lineChart({
        series: [...series, lineAtOne(Math.max(...series.map((one) => one.points.length)))],
        width: room,
        height: 360,
        x: { title: "from the largest to the smallest" },
        y: { title: "singular value", zero: true },
        label: "Singular values of the recurrent matrices",
    });
    fill(picture.body, chart.element);
    const largest = series.reduce((best, one) => (one.points[0][1] > best.points[0][1] ? one : best));
    picture.say(
        "Singular values of the recurrent matrices",
        `How much a matrix W_h can stretch a state, direction by direction. Above 1 it stretches, below 1 it shrinks. The largest here: ${number(largest.points[0][1])}, of ${largest.name}.`,
    );
    picture.table(() => ({
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

/** Of a matrix, as of a line: whether its part and its layer are shown. */
function isShown(one, matrix, part, layer) {
    const own = one.parts.find((other) => other.name === matrix.part);
    return (part === "all" || matrix.part === part) && (layer === "all" || matrix.layer === own?.layers.length);
}

function lineAtOne(count) {
    const points = [
        [1, 1],
        [count, 1],
    ];
    return { name: "1", points, place: 7, dashed: true, thin: true };
}

function matrixName(one, { part, layer, name }) {
    const where = one.parts.find((own) => own.name === part);
    const words = [
        `W_h ${name === "candidate" ? "h̃" : name}`,
        one.parts.length > 1 ? (where?.title ?? part) : "",
        where?.layers.length > 1 ? `layer ${layer}` : "",
    ];
    return words.filter(Boolean).join(", ");
}

/** Of several runs, a colour for each and strokes by gate; of one, a colour for each gate and strokes by part. */
function looksOf(one, { part, name }, run) {
    const gate = [...new Set(one.matrices.map((matrix) => matrix.name))].indexOf(name);
    const stroke = run === null ? one.parts.findIndex((own) => own.name === part) : gate;
    return { place: run ?? gate, dashed: stroke === 1, dotted: stroke === 2, thin: stroke === 3 };
}
