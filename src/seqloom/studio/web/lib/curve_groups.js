// Which curves share a chart: those that measure the same thing in the same unit.

const FIRST = [
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
const COMMON = "bits_per_character"; // the unit that language models over different tokens share

/** Whether a curve is drawn at all. */
export const isDrawn = (curve) => FIRST.includes(curve.group) && curve.points.length > 0;

/**
 * Charts by name: {group, unit, series: [{name, points, place, …}], several, compares}. `curves` are by run and name, as
 * the server gives them; the place of a run in `ids` chooses its colour. Two units of one group are two charts, loss and
 * loss-2: then `several`. The chart of bits per character comes first where it alone `compares` language models.
 */
export function chartsOf(curves, ids) {
    const charts = new Map();
    ids.forEach((id, place) => {
        for (const curve of Object.values(curves[id] ?? {}).filter(isDrawn)) {
            const key = JSON.stringify([curve.group, curve.scale]);
            if (!charts.has(key)) charts.set(key, { group: curve.group, unit: curve.unit, series: [] });
            charts.get(key).series.push(lineOf(curve, id, place));
        }
    });
    const of = (group) => [...charts.values()].filter((chart) => chart.group === group);
    for (const chart of charts.values()) {
        chart.several = of(chart.group).length > 1;
        chart.compares = chart.group === COMMON && chart.series.length > 1 && of("perplexity").length > 1;
    }
    const shown = [...charts.values()].filter(
        (chart) => chart.group !== COMMON || chart.compares || chart.series.some((line) => line.points.length > 1),
    );
    const rank = (chart) => (chart.compares ? -1 : FIRST.indexOf(chart.group));
    shown.sort((a, b) => rank(a) - rank(b));
    return new Map(shown.map((chart) => [nameOf(chart, of(chart.group)), chart]));
}

/** loss, loss-2 … */
function nameOf(chart, alike) {
    const place = alike.indexOf(chart);
    return place ? `${chart.group}-${place + 1}` : chart.group;
}

function lineOf(curve, id, place) {
    const train = curve.split === "train";
    const note = curve.remark ? ` (${curve.remark})` : "";
    return {
        name: `${id}: ${curve.split}${note}`,
        points: curve.points,
        place,
        thin: train && ["loss", "perplexity"].includes(curve.group),
        dots: !train && curve.points.length < 60,
        dotted: Boolean(curve.remark),
    };
}
