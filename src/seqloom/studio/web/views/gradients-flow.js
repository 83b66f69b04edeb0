// Gradient norms over time: as lines, on the text, and for Elman cells with their upper bound.

import { h, setChildren, formatNumber } from "../lib/dom.js";
import { chartTable, lineChart } from "../lib/chart.js";
import { displayToken } from "../lib/tokens.js";
import { shadedText } from "./cell-unit.js";

/** One line per run, part, layer and state; the colour depends on the run. */
export function flowLines(results, { part: selectedPart, layer: which, states: selectedStates }) {
    const isComparison = results.length > 1;
    const isSelected = (state, states) => selectedStates === "both" || state === selectedStates || !states[selectedStates];
    return results.flatMap((item, colour) =>
        item.parts
            .filter((part) => selectedPart === "all" || part.name === selectedPart)
            .flatMap((part, nth, shownParts) =>
                layersOf(part, which).flatMap(([layer, states]) =>
                    Object.keys(states)
                        .filter((state) => isSelected(state, states))
                        .map((state) => ({
                            part,
                            layer,
                            state,
                            run: item.run,
                            norms: states[state],
                            name: lineName(item, part, layer, state, results.length, shownParts.length),
                            colour: isComparison ? colour : nth,
                            dashed: state === "c",
                            dotted: isComparison && nth > 0,
                            thin: layer < part.layers.length,
                        })),
                ),
            ),
    );
}

export function drawFlow(fig, lines, { room, log }) {
    const series = lines.map((item) => ({ ...item, points: backwards(item) }));
    const chart = lineChart({
        series,
        width: room,
        height: 420,
        x: { title: "steps back from the last token", zero: true },
        y: { title: "‖∂L/∂hₜ‖", log },
        label: "Gradient norm of each state, by steps back from the last token",
    });
    setChildren(fig.body, chart.element);
    const straight = "On a logarithmic scale, exponential decay is a straight line. ";
    fig.setText("Gradient norm over time", `${log ? straight : ""}${fallWords(series)}`);
    fig.table(() => chartTable(series, "steps back"));
}

export function drawTokens(fig, lines, { room }) {
    const strip = (item) =>
        shadedText(item.part.tokens, scaled(item.norms), {
            signed: false,
            high: 1,
            width: room,
            label: `Tokens coloured by ${item.name}`,
            labels: item.norms,
        });
    const runName = (item) => lines.length > 1 && h("p", { class: "hint", dir: "auto" }, item.name);
    setChildren(
        fig.body,
        lines.map((item) => h("div", { class: "strip" }, runName(item), strip(item))),
    );
    fig.setText(
        "Gradient norm by token",
        "Each token is coloured by the gradient norm of the state after reading it, on a logarithmic scale down to 1/1000 of the maximum.",
    );
    fig.table(() => ({
        columns: ["token", ...lines.map((item) => item.name)],
        rows: lines[0].part.tokens.map((token, i) => [displayToken(token), ...lines.map((item) => item.norms[i] ?? null)]),
    }));
}

/** For Elman cells: the Jacobian norm ‖∂hₜ/∂hₖ‖ and its upper bound. */
export function drawBound(fig, results, { room }) {
    const flows = results.flatMap((item, colour) =>
        item.parts.flatMap((part) => part.flows.map((flow) => ({ ...flow, item, part, colour }))),
    );
    const series = flows.flatMap((flow) => {
        const name = `${flow.item.run.name}${flow.part.layers.length > 1 ? `, layer ${flow.layer}` : ""}${flow.item.parts.length > 1 ? `, ${flow.part.title}` : ""}`;
        const points = (values) => values.map((value, k) => [k, value]).filter((point) => point[1] !== null);
        return [
            { name: `${name}: ‖∂hₜ/∂hₖ‖`, points: points(flow.measured), colour: flow.colour },
            {
                name: `${name}: upper bound (γ_W γ_g)ᵗ⁻ᵏ = ${formatNumber(flow.gammaW * flow.gammaG)}ᵗ⁻ᵏ`,
                points: points(flow.bound),
                colour: flow.colour,
                dashed: true,
            },
        ];
    });
    const chart = lineChart({
        series,
        width: room,
        height: 360,
        x: { title: "t − k, steps between the states" },
        y: { title: "‖∂hₜ/∂hₖ‖", log: true },
        label: "Jacobian norms of Elman cells and their upper bound",
    });
    setChildren(fig.body, chart.element);
    fig.setText(
        "Jacobian norm and its upper bound",
        "In an Elman cell, each step back multiplies the gradient by diag(g′) W_hh. Its norm is at most γ_W γ_g, where γ_W is the largest singular value of W_hh and γ_g is the maximum slope of g (1 for tanh). The bound can grow while the gradient vanishes.",
    );
    fig.table(() => chartTable(series, "t − k"));
}

function layersOf(part, which) {
    const all = part.layers.map((states, i) => [i + 1, states]);
    return which === "all" ? all : all.slice(-1);
}

function lineName(item, part, layer, state, runs, parts) {
    const words = [
        runs > 1 ? item.run.name : "",
        parts > 1 || runs === 1 ? part.title : "",
        part.layers.length > 1 ? `layer ${layer}` : "",
        state,
    ];
    return words.filter(Boolean).join(", ");
}

/** [[steps back, norm] …], from the last step to the first. */
function backwards({ part, norms }) {
    const last = part.order.length - 1;
    return part.order.map((position, step) => [last - step, norms[position]]).reverse();
}

/** The number of steps per factor of 10, from the slope of the logarithm, for decaying lines. */
function fallWords(series) {
    const words = series
        .map((item) => [item.name, tenth(item.points.filter(([, y]) => y > 0))])
        .filter(([, steps]) => steps !== null);
    return (
        words
            .map(([name, steps]) => `${name} decays by a factor of 10 about every ${formatNumber(steps, 1)} steps`)
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

/** Map norms to 0 … 1 over three powers of ten. */
function scaled(norms) {
    const maximum = Math.max(...norms);
    return norms.map((norm) => (norm > 0 ? Math.max(0, 1 + Math.log10(norm / maximum) / 3) : 0));
}
