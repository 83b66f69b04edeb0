// Groups training curves into charts: curves of the same metric and unit share a chart.

const GROUP_ORDER = [
    "loss",
    "perplexity",
    "bleu",
    "accuracy",
    "span_f1",
    "token_accuracy",
    "bits_per_character",
    "learning_rate",
    "gradient_norm",
    "speed",
];
const COMPARABLE_GROUP = "bits_per_character"; // comparable between language models with different tokens

/** Whether a curve is drawn. */
export const isDrawn = (curve) => GROUP_ORDER.includes(curve.group) && curve.points.length > 0;

/**
 * Charts by name: {group, unit, series: [{name, points, colour, …}], several, compares}. `curves` are by run and name;
 * the index of a run in `ids` selects its colour. A group with `several` units has several charts, loss and loss-2.
 * Bits per character come first (`compares`) if they are the only comparable metric of the selected language models.
 */
export function chartsOf(curves, ids) {
    const charts = new Map();
    ids.forEach((id, index) => {
        for (const curve of Object.values(curves[id] ?? {}).filter(isDrawn)) {
            const key = JSON.stringify([curve.group, curve.scale]);
            if (!charts.has(key)) charts.set(key, { group: curve.group, unit: curve.unit, series: [] });
            charts.get(key).series.push(lineOf(curve, id, index));
        }
    });
    const of = (group) => [...charts.values()].filter((chart) => chart.group === group);
    for (const chart of charts.values()) {
        chart.several = of(chart.group).length > 1;
        chart.compares = chart.group === COMPARABLE_GROUP && chart.series.length > 1 && of("perplexity").length > 1;
    }
    const visibleCharts = [...charts.values()].filter(
        (chart) => chart.group !== COMPARABLE_GROUP || chart.compares || chart.series.some((line) => line.points.length > 1),
    );
    const rank = (chart) => (chart.compares ? -1 : GROUP_ORDER.indexOf(chart.group));
    visibleCharts.sort((a, b) => rank(a) - rank(b));
    return new Map(visibleCharts.map((chart) => [nameOf(chart, of(chart.group)), chart]));
}

/** loss, loss-2 … */
function nameOf(chart, alike) {
    const index = alike.indexOf(chart);
    return index ? `${chart.group}-${index + 1}` : chart.group;
}

function lineOf(curve, id, index) {
    const train = curve.split === "train";
    const note = curve.remark ? ` (${curve.remark})` : "";
    return {
        name: `${id}: ${curve.split}${note}`,
        points: curve.points,
        colour: index,
        thin: train && ["loss", "perplexity"].includes(curve.group),
        dots: !train && curve.points.length < 60,
        dotted: Boolean(curve.remark),
    };
}
