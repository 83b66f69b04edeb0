// What clipping does: the norms of a whole training, cut at a θ that can be moved, and what it would do on this text.

import { h, fill, number, refill } from "../lib/dom.js";
import { controls, slider } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { lineChart } from "../lib/chart.js";

export class Clipping {
    /** `onTheta` is told which θ was chosen. */
    constructor(onTheta) {
        this.onTheta = onTheta;
        this.picture = figure({ name: "gradient-clipping", title: "Clipping" });
        this.controls = h("div");
        this.element = this.picture.element;
        this.element.querySelector(".figure-head").after(this.controls);
    }

    draw(found, wanted, room) {
        Object.assign(this, { found, room });
        const most = Math.max(1, ...found.flatMap((one) => [one.norm, ...one.sizes.slice(-1)]));
        const theta = Number(wanted ?? found[0].clip ?? 1);
        const high = Math.log10(Math.max(most, theta) * 1.25);
        const low = Math.min(high - 2.5, Math.log10(theta));
        const look = { min: low, max: high, step: 0.01, value: Math.log10(theta), format: (v) => number(10 ** v) };
        refill(
            this.controls,
            controls(
                slider("Clip at θ", look, (value) => {
                    this.onTheta(Number((10 ** value).toPrecision(3)));
                    this.drawAt(10 ** value);
                }),
            ),
        );
        this.drawAt(theta);
    }

    drawAt(theta) {
        const { found, room, picture } = this;
        const several = found.length > 1;
        const trained = found.filter((one) => one.training.length);
        const chart = lineChart({
            series: [...trained.flatMap((one) => cutLines(one, found, theta)), lineAt(theta, trained)],
            width: room,
            height: 320,
            x: { title: "step of the training" },
            y: { title: "‖g‖, of all parameters", log: true },
            label: "Norm of the gradient in training, and clipped",
        });
        const words = (one) =>
            h("li", { dir: "auto" }, several ? [h("b", {}, one.run.name), ": "] : "", clipWords(one, theta));
        fill(
            picture.body,
            trained.length
                ? chart.element
                : h("p", { class: "hint" }, "This training logged no norms of its gradients."),
            h("ul", { class: "clip-words" }, found.map(words)),
        );
        picture.say(
            "Clipping: g ← g · min(1, θ/‖g‖)",
            "A gradient longer than θ is shortened to θ: its direction stays. Rare huge steps are tamed, all others go on as they were.",
        );
        picture.table(() => clipTable(found, theta));
    }
}

function cutLines(one, found, theta) {
    const place = found.indexOf(one);
    const name = found.length > 1 ? `${one.run.name}: ` : "";
    const cut = one.training.map(([step, norm]) => [step, Math.min(norm, theta)]);
    return [
        { name: `${name}‖g‖ in training`, points: one.training, place, thin: true },
        { name: `${name}clipped at θ`, points: cut, place },
    ];
}

function lineAt(theta, trained) {
    const last = Math.max(1, ...trained.map((one) => one.training.at(-1)[0]));
    const points = [
        [0, theta],
        [last, theta],
    ];
    return { name: `θ = ${number(theta)}`, points, place: 7, dashed: true };
}

function clipTable(found, theta) {
    return {
        columns: [
            "run",
            "‖g‖ on this text",
            "θ",
            "factor",
            "clipped",
            "logged steps",
            "share of them above θ",
            "θ of its recipe",
        ],
        rows: found.map((one) => [
            one.run.name,
            one.norm,
            theta,
            Math.min(1, theta / one.norm),
            Math.min(one.norm, theta),
            one.logged,
            shareAbove(one, theta),
            one.clip,
        ]),
    };
}

/** Of all steps that were logged, not of those that are drawn. */
function shareAbove({ sizes }, theta) {
    return sizes.length ? sizes.filter((norm) => norm > theta).length / sizes.length : null;
}

function clipWords(one, theta) {
    const factor = Math.min(1, theta / one.norm);
    const text =
        factor < 1
            ? `on this text ‖g‖ = ${number(one.norm)} would be shortened to ${number(theta)}, × ${number(factor)}`
            : `on this text ‖g‖ = ${number(one.norm)} is left as it is`;
    const share = shareAbove(one, theta);
    const steps = `${one.logged.toLocaleString("en")} logged steps`;
    const trained = share === null ? "" : `; in training ${(100 * share).toFixed(0)} % of ${steps} would be clipped`;
    return `${text}${trained}; its recipe ${one.clip === null ? "does not clip" : `clips at ${number(one.clip)}`}.`;
}
