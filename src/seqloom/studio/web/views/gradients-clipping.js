// Gradient clipping: the gradient norms during training and on the text, clipped at an adjustable θ.

import { h, setChildren, formatNumber, updateChildren } from "../lib/dom.js";
import { controls, slider } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { lineChart } from "../lib/chart.js";

export class Clipping {
    /** `onTheta` receives the selected θ. */
    constructor(onTheta) {
        this.onTheta = onTheta;
        this.fig = figure({ name: "gradient-clipping", title: "Gradient clipping" });
        this.controls = h("div");
        this.element = this.fig.element;
        this.element.querySelector(".figure-head").after(this.controls);
    }

    draw(results, wanted, room) {
        Object.assign(this, { results, room });
        const maximum = Math.max(1, ...results.flatMap((result) => [result.norm, ...result.sorted_norms.slice(-1)]));
        const theta = Number(wanted ?? results[0].clip ?? 1);
        const high = Math.log10(Math.max(maximum, theta) * 1.25);
        const low = Math.min(high - 2.5, Math.log10(theta));
        const options = { min: low, max: high, step: 0.01, value: Math.log10(theta), format: (v) => formatNumber(10 ** v) };
        updateChildren(
            this.controls,
            controls(
                slider("Clip at θ", options, (value) => {
                    this.onTheta(Number((10 ** value).toPrecision(3)));
                    this.drawAt(10 ** value);
                }),
            ),
        );
        this.drawAt(theta);
    }

    drawAt(theta) {
        const { results, room, fig } = this;
        const isComparison = results.length > 1;
        const trainedRuns = results.filter((result) => result.training.length);
        const chart = lineChart({
            series: [...trainedRuns.flatMap((result) => cutLines(result, results, theta)), lineAt(theta, trainedRuns)],
            width: room,
            height: 320,
            x: { title: "training step" },
            y: { title: "‖g‖ of all parameters", log: true },
            label: "Gradient norm in training, unclipped and clipped",
        });
        const words = (result) =>
            h("li", { dir: "auto" }, isComparison ? [h("b", {}, result.run.name), ": "] : "", clipWords(result, theta));
        setChildren(
            fig.body,
            trainedRuns.length
                ? chart.element
                : h("p", { class: "hint" }, "This run logged no gradient norms."),
            h("ul", { class: "clip-notes" }, results.map(words)),
        );
        fig.setText(
            "Gradient clipping: g ← g · min(1, θ/‖g‖)",
            "A gradient whose norm exceeds θ is scaled to norm θ; its direction does not change. Smaller gradients are unchanged.",
        );
        fig.table(() => clipTable(results, theta));
    }
}

function cutLines(result, results, theta) {
    const colour = results.indexOf(result);
    const name = results.length > 1 ? `${result.run.name}: ` : "";
    const cut = result.training.map(([step, norm]) => [step, Math.min(norm, theta)]);
    return [
        { name: `${name}‖g‖ in training`, points: result.training, colour, thin: true },
        { name: `${name}clipped at θ`, points: cut, colour },
    ];
}

function lineAt(theta, trained) {
    const last = Math.max(1, ...trained.map((result) => result.training.at(-1)[0]));
    const points = [
        [0, theta],
        [last, theta],
    ];
    return { name: `θ = ${formatNumber(theta)}`, points, colour: 7, dashed: true };
}

function clipTable(results, theta) {
    return {
        columns: [
            "run",
            "‖g‖ on this text",
            "θ",
            "factor",
            "clipped ‖g‖",
            "logged steps",
            "fraction above θ",
            "θ of the recipe",
        ],
        rows: results.map((result) => [
            result.run.name,
            result.norm,
            theta,
            Math.min(1, theta / result.norm),
            Math.min(result.norm, theta),
            result.logged,
            fractionAbove(result, theta),
            result.clip,
        ]),
    };
}

/** The fraction of all logged steps, not only of the drawn steps. */
function fractionAbove({ sorted_norms }, theta) {
    return sorted_norms.length ? sorted_norms.filter((norm) => norm > theta).length / sorted_norms.length : null;
}

function clipWords(result, theta) {
    const factor = Math.min(1, theta / result.norm);
    const text =
        factor < 1
            ? `‖g‖ = ${formatNumber(result.norm)} on this text would be scaled by ${formatNumber(factor)} to ${formatNumber(theta)}`
            : `‖g‖ = ${formatNumber(result.norm)} on this text would not be clipped`;
    const fraction = fractionAbove(result, theta);
    const steps = `${result.logged.toLocaleString("en")} logged steps`;
    const clippedNote = fraction === null ? "" : `; ${(100 * fraction).toFixed(0)} % of ${steps} would be clipped`;
    return `${text}${clippedNote}; the recipe ${result.clip === null ? "does not clip" : `clips at ${formatNumber(result.clip)}`}.`;
}
