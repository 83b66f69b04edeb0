// How far back a loss is felt: as lines over the steps, on the text itself, and, of Elman cells, what could be felt at most.

import { h, fill, number } from "../lib/dom.js";
import { chartTable, lineChart } from "../lib/chart.js";
import { shown } from "../lib/tokens.js";
import { shadedText } from "./cell-unit.js";

/** Every line of the picture: run, part, layer, state. A run keeps its colour. */
export function flowLines(found, { part: wanted, layer: which, states: wantedStates }) {
    const several = found.length > 1;
    const wants = (state, states) => wantedStates === "both" || state === wantedStates || !states[wantedStates];
    return found.flatMap((one, place) =>
        one.parts
            .filter((part) => wanted === "all" || part.name === wanted)
            .flatMap((part, nth, shownParts) =>
                layersOf(part, which).flatMap(([layer, states]) =>
                    Object.keys(states)
                        .filter((state) => wants(state, states))
                        .map((state) => ({
                            part,
                            layer,
                            state,
                            run: one.run,
                            norms: states[state],
                            name: lineName(one, part, layer, state, found.length, shownParts.length),
                            place: several ? place : nth,
                            dashed: state === "c",
                            dotted: several && nth > 0,
                            thin: layer < part.layers.length,
                        })),
                ),
            ),
    );
}

export function drawFlow(picture, lines, { room, log }) {
    const series = lines.map((one) => ({ ...one, points: backwards(one) }));
    const chart = lineChart({
        series,
        width: room,
        height: 420,
        x: { title: "steps back from the last one read", zero: true },
        y: { title: "‖∂L/∂hₜ‖", log },
        label: "Norm of the gradient by each state against steps back",
    });
    fill(picture.body, chart.element);
    const straight = "On this scale a straight line down is an exponential fall: the same factor at every step back. ";
    picture.say("How far back the loss is felt", `${log ? straight : ""}${fallWords(series)}`);
    picture.table(() => chartTable(series, "steps back"));
}

export function drawTokens(picture, lines, { room }) {
    const strip = (one) =>
        shadedText(one.part.tokens, scaled(one.norms), {
            signed: false,
            high: 1,
            width: room,
            label: `Tokens shaded by ${one.name}`,
            told: one.norms,
        });
    const named = (one) => lines.length > 1 && h("p", { class: "hint", dir: "auto" }, one.name);
    fill(
        picture.body,
        lines.map((one) => h("div", { class: "strip" }, named(one), strip(one))),
    );
    picture.say(
        "Where in the text",
        "Each token shaded by the norm at the state after reading it, on a scale of powers of ten down to a thousandth of the largest.",
    );
    picture.table(() => ({
        columns: ["token", ...lines.map((one) => one.name)],
        rows: lines[0].part.tokens.map((token, i) => [shown(token), ...lines.map((one) => one.norms[i] ?? null)]),
    }));
}

/** Of Elman cells: ‖∂hₜ/∂hₖ‖, and the power that it cannot exceed. */
export function drawBound(picture, found, { room }) {
    const flows = found.flatMap((one, place) =>
        one.parts.flatMap((part) => part.flows.map((flow) => ({ ...flow, one, part, place }))),
    );
    const series = flows.flatMap((flow) => {
        const name = `${flow.one.run.name}${flow.part.layers.length > 1 ? `, layer ${flow.layer}` : ""}${flow.one.parts.length > 1 ? `, ${flow.part.title}` : ""}`;
        const points = (values) => values.map((value, k) => [k, value]).filter((point) => point[1] !== null);
        return [
            { name: `${name}: ‖∂hₜ/∂hₖ‖`, points: points(flow.measured), place: flow.place },
            {
                name: `${name}: at most (γ_W γ_g)ᵗ⁻ᵏ = ${number(flow.gammaW * flow.gammaG)}ᵗ⁻ᵏ`,
                points: points(flow.bound),
                place: flow.place,
                dashed: true,
            },
        ];
    });
    const chart = lineChart({
        series,
        width: room,
        height: 360,
        x: { title: "t − k, steps between the two states" },
        y: { title: "‖∂hₜ/∂hₖ‖", log: true },
        label: "Jacobians of Elman cells and their bound",
    });
    fill(picture.body, chart.element);
    picture.say(
        "What arrives, and what could arrive at most",
        "For Elman cells each step back multiplies by diag(g′) W_hh, so that of a small change at most γ_W γ_g is left: γ_W the largest singular value of W_hh, γ_g the steepest slope of g (1 for tanh). The bound may grow while what arrives still dies out.",
    );
    picture.table(() => chartTable(series, "t − k"));
}

function layersOf(part, which) {
    const all = part.layers.map((states, i) => [i + 1, states]);
    return which === "all" ? all : all.slice(-1);
}

function lineName(one, part, layer, state, runs, parts) {
    const words = [
        runs > 1 ? one.run.name : "",
        parts > 1 || runs === 1 ? part.title : "",
        part.layers.length > 1 ? `layer ${layer}` : "",
        state,
    ];
    return words.filter(Boolean).join(", ");
}

/** [[steps back, norm] …], in the order the cells read. */
function backwards({ part, norms }) {
    const last = part.order.length - 1;
    return part.order.map((place, step) => [last - step, norms[place]]).reverse();
}

/** Over how many steps a line falls to a tenth, by the slope of its logarithm; of lines that do fall. */
function fallWords(series) {
    const words = series
        .map((one) => [one.name, tenth(one.points.filter(([, y]) => y > 0))])
        .filter(([, steps]) => steps !== null);
    return (
        words
            .map(([name, steps]) => `${name} falls to a tenth about every ${number(steps, 1)} steps`)
            .slice(0, 4)
            .join("; ") + (words.length ? "." : "")
    );
}

function tenth(points) {
    if (points.length < 3) return null;
    const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => Math.log10(y))];
    const [mx, my] = [mean(xs), mean(ys)];
    const slope =
        xs.reduce((sum, x, i) => sum + (x - mx) * (ys[i] - my), 0) / xs.reduce((sum, x) => sum + (x - mx) ** 2, 0);
    return slope < 0 ? -1 / slope : null;
}

/** 0 … 1 on three powers of ten. */
function scaled(norms) {
    const most = Math.max(...norms);
    return norms.map((norm) => (norm > 0 ? Math.max(0, 1 + Math.log10(norm / most) / 3) : 0));
}
