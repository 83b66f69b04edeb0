// The list of runs, the training curves of selected runs, their recipe differences and run cards.

import { h, setChildren, clear, formatNumber, updateChildren } from "../lib/dom.js";
import { quickstartCommand } from "../lib/quickstart.js";
import { controls } from "../lib/controls.js";
import { figure, tableOf } from "../lib/figure.js";
import { renderCard } from "../lib/card.js";
import { chartTable, lineChart } from "../lib/chart.js";
import { chartsOf, isDrawn } from "../lib/curve_groups.js";
import { markOverflow } from "../lib/overflow.js";

export const title = "Runs";
export const lead =
    "All runs in this folder. Select runs to compare their training curves, which update during training.";

const MAX_RUNS = 8; // runs that can be compared
const MIN_CURVE_POINTS = 3; // minimum points of a curve
const SEARCHED_RUNS = 8; // newest runs that are searched for a curve
const UPDATE_MS = 3000; // milliseconds between updates during training
const METRIC_NAMES = {
    loss: "Loss",
    perplexity: "Perplexity",
    bleu: "BLEU",
    learning_rate: "Learning rate",
    gradient_norm: "Gradient norm, before clipping",
    speed: "Speed",
    accuracy: "Accuracy",
    bits_per_character: "Bits per character",
    chrf: "chrF",
    span_f1: "Span F1",
    token_accuracy: "Token accuracy",
};
const COMPARABLE_NOTE =
    "These runs use different tokenizers, so their losses and perplexities are not comparable. Bits per character are.";
const VIEW_NAMES = {
    write: "generate",
    alignment: "alignment",
    heads: "heads",
    beam: "beam",
    cell: "cell",
    gradients: "gradients",
    vectors: "vectors",
    walk: "how it works",
    understand: "understand",
    images: "images",
};

export async function show(page) {
    if (!page.allRuns.length) return setChildren(page.root, emptyState(page.folder));
    const chosen = new Set(page.params.getAll("runs").filter((id) => page.run(id)));
    if (!chosen.size) (await defaultSelection(page)).forEach((id) => chosen.add(id));
    page.setParams({ runs: [...chosen] });
    const list = h("div", { class: "runs-scroll", tabindex: "0", role: "region", "aria-label": "Runs" });
    const more = markOverflow(list);
    const below = h("div", {});
    const search = h("input", {
        type: "search",
        id: "search-runs",
        placeholder: "name, task, cell, corpus …",
        oninput: () => draw(),
    });
    search.value = page.params.get("search") ?? "";
    const countNode = h("p", { class: "hint", role: "status" });
    setChildren(
        page.root,
        controls(h("div", { class: "field" }, h("label", { for: "search-runs" }, "Search"), search)),
        countNode,
        list,
        below,
    );

    function draw() {
        page.setParams({ search: search.value });
        const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
        const matching = page.allRuns.filter((run) => words.every((word) => haystack(run).includes(word)));
        countNode.textContent =
            matching.length === page.allRuns.length ? `${matching.length} runs` : `${matching.length} of ${page.allRuns.length} runs`;
        setChildren(
            list,
            h(
                "table",
                { class: "runs-table" },
                h(
                    "thead",
                    {},
                    h(
                        "tr",
                        {},
                        ["", "Run", "Task", "Model", "Data", "Dev metric", "Views"].map((name) =>
                            h("th", { scope: "col" }, name || h("span", { class: "visually-hidden" }, "Selected")),
                        ),
                    ),
                ),
                h("tbody", {}, matching.map(row)),
            ),
        );
        more();
    }

    /** Scroll the first selected run into view. */
    function reveal() {
        const row_ = list.querySelector("tr.chosen");
        if (row_ && row_.offsetTop + row_.offsetHeight > list.clientHeight)
            list.scrollTop = row_.offsetTop - list.clientHeight / 2;
    }

    function row(run) {
        const line = h("tr", { class: chosen.has(run.id) ? "chosen" : null, dataset: { run: run.id } });
        return setChildren(line, cells(run));
    }

    function cells(run) {
        const box = h("input", {
            type: "checkbox",
            "aria-label": `Show the curves of ${run.name}`,
            onchange: () => choose(run.id, box),
        });
        box.checked = chosen.has(run.id);
        const chip = (view) => h("a", { href: page.link(view, { run: run.id }) }, VIEW_NAMES[view]);
        return [
            h("td", {}, box),
            h("td", { class: "name", dir: "auto" }, run.name, run.live && h("span", { class: "badge" }, "training")),
            run.problem
                ? h("td", { colspan: 5, class: "hint", dir: "auto" }, run.problem)
                : [
                      h("td", { dir: "auto" }, run.task),
                      h("td", { dir: "auto" }, run.cell ? `${run.kind}, ${run.cell}` : run.kind),
                      h("td", { dir: "auto" }, run.corpus),
                      h("td", { class: "best" }, run.metric ?? (run.ready ? "–" : "no model yet")),
                      h("td", {}, h("div", { class: "chips" }, run.views.map(chip))),
                  ],
        ];
    }

    /** Update the list during training. */
    async function watch() {
        while (page.allRuns.some((run) => run.live)) {
            await new Promise((done) => setTimeout(done, UPDATE_MS));
            if (page.signal.aborted) return;
            const before = page.allRuns;
            await page.refreshRuns();
            if (page.signal.aborted) return;
            const knownRuns = new Map(before.map((run) => [run.id, entryKey(run)]));
            if (page.allRuns.length !== before.length || page.allRuns.some((run) => !knownRuns.has(run.id))) draw();
            else page.allRuns.filter((run) => entryKey(run) !== knownRuns.get(run.id)).forEach(renew);
        }
    }

    function renew(run) {
        const line = [...list.querySelectorAll("tr")].find((item) => item.dataset.run === run.id);
        if (line) updateChildren(line, cells(run));
    }

    function choose(id, box) {
        if (box.checked && chosen.size >= MAX_RUNS) {
            box.checked = false;
            return page.fail(new Error(`At most ${MAX_RUNS} runs can be compared. Deselect one first.`));
        }
        page.clearError();
        if (box.checked) chosen.add(id);
        else chosen.delete(id);
        box.closest("tr").classList.toggle("chosen", box.checked);
        page.setParams({ runs: [...chosen] });
        compare().catch(page.fail);
    }

    const panels = h("div", { class: "side-by-side" });
    const container = h("div", {});
    setChildren(below, panels, container);
    let charts = new Map();
    let drawnKey = ""; // key of the drawn charts and units
    let latestRequest = 0;
    const readable = () => [...chosen].filter((id) => !page.run(id)?.problem);

    /** Draw curves, differences and card. During training, the curves are updated periodically. */
    async function compare(again = false) {
        const requestId = ++latestRequest;
        const ids = readable();
        if (!ids.length) {
            drawnKey = "";
            return (setChildren(panels, h("p", { class: "empty" }, "Select a run above to see its training curves.")), clear(container));
        }
        const answer = await page.request("runs/curves", { runs: ids });
        if (requestId !== latestRequest) return;
        paintCurves(answer, ids);
        const trains = answer.live.length > 0;
        const refresh = () => requestId === latestRequest && !page.signal.aborted && compare(true).catch(page.fail);
        if (trains) setTimeout(refresh, UPDATE_MS);
        if (!(again && trains)) await about(ids, answer.differences);
    }

    function paintCurves(answer, ids) {
        const groups = chartsOf(answer.curves, ids);
        const kinds = JSON.stringify([...groups].map(([name, { unit }]) => [name, unit]));
        if (kinds !== drawnKey) {
            drawnKey = kinds;
            const width = roomFor(groups.size, panels.clientWidth);
            charts = new Map([...groups].map(([name, item]) => [name, panelOf(name, item, width)]));
            setChildren(
                panels,
                charts.size
                    ? [...charts.values()].map((panel) => panel.element)
                    : h("p", { class: "empty" }, "These runs have no training curves: their models were estimated by counting or imported."),
            );
        } else groups.forEach((item, name) => charts.get(name).update(item));
    }

    async function about(ids, differences) {
        const parts = [];
        if (ids.length > 1) {
            const shownDifferences = {
                columns: ["Recipe", ...ids],
                rows: differences.map(({ key, values }) => [key, ...ids.map((id) => formatValue(values[id]))]),
            };
            parts.push(
                h(
                    "section",
                    { class: "figure", "aria-label": "Recipe differences" },
                    h("h2", {}, "Recipe differences"),
                    differences.length
                        ? tableOf({ ...shownDifferences, caption: "Recipe keys with different values" })
                        : h("p", {}, "The recipes are identical."),
                ),
            );
        }
        const id = ids.at(-1);
        const { card, recipe, metrics } = await page.request("runs/card", { run: id });
        if (JSON.stringify(ids) !== JSON.stringify(readable())) return; // the selection has changed
        parts.push(
            h(
                "section",
                { class: "figure", "aria-label": "Card" },
                h("h2", { dir: "auto" }, `Run card of ${id}`),
                metricsTable(metrics),
                card === null
                    ? h("p", { class: "hint" }, "This run has no card yet. The card is written at the end of training.")
                    : renderCard(card),
                h(
                    "details",
                    {},
                    h("summary", {}, "Full recipe"),
                    h("pre", { dir: "auto", tabindex: "0" }, recipe),
                ),
            ),
        );
        setChildren(container, parts);
    }

    draw();
    reveal();
    await compare();
    watch().catch(page.fail);
}

function emptyState(folder) {
    return h(
        "div",
        { class: "empty" },
        h("p", {}, "No runs yet. Train a small translator in about two minutes:"),
        h("pre", {}, quickstartCommand(folder)),
        h("p", {}, "Or train small models for all views:"),
        h("pre", {}, "seqloom studio --demo"),
    );
}

/** The id of the newest run with a curve, or else of the newest run, in a list. */
async function defaultSelection(page) {
    const newest = page.allRuns
        .filter((run) => !run.problem)
        .sort((a, b) => (b.changed ?? 0) - (a.changed ?? 0))
        .slice(0, SEARCHED_RUNS)
        .map((run) => run.id);
    for (const id of newest) {
        const { curves } = await page.request("runs/curves", { runs: [id] }).catch(() => ({ curves: {} })); // reported when the run is selected
        if (Object.values(curves[id] ?? {}).some((curve) => isDrawn(curve) && curve.points.length >= MIN_CURVE_POINTS)) return [id];
    }
    return newest.slice(0, 1);
}

/** The list entry of a run as a string, to detect changes. */
const entryKey = (run) => JSON.stringify({ ...run, changed: null });

const haystack = (run) => [run.name, run.task, run.kind, run.cell, run.corpus, run.metric].join(" ").toLowerCase();

/** The width of each of `count` charts side by side. */
function roomFor(count, wide) {
    const [gap, minimum, frame] = [1.25, 30, 2.6].map(
        (rem) => rem * Number.parseFloat(getComputedStyle(document.documentElement).fontSize),
    );
    const columns = Math.max(1, Math.min(count, Math.floor((wide + gap) / (minimum + gap))));
    return Math.max(360, Math.min(900, (wide - gap * (columns - 1)) / columns - frame));
}

function panelOf(name, { group, unit, series, several, compares }, width) {
    const words = METRIC_NAMES[group] ?? group.replaceAll("_", " ");
    const named = unit.startsWith(words.toLowerCase()) ? words[0] + unit.slice(1) : `${words}, ${unit}`;
    const title = several ? named : words;
    const panel = figure({ name: `curve-${name}`, title, caption: compares ? COMPARABLE_NOTE : "" });
    const log = group === "perplexity";
    const chart = lineChart({
        width,
        height: 300,
        series,
        x: { title: "step" },
        y: { title: unit || words, log },
        label: `${words} over training steps`,
        legend: "always",
    });
    panel.body.append(chart.element);
    panel.table(() => chartTable(series));
    return {
        element: panel.element,
        update(item) {
            chart.update(item.series);
            panel.table(() => chartTable(item.series));
        },
    };
}

function metricsTable(metrics) {
    const splits = Object.keys(metrics);
    if (!splits.length) return null;
    const names = [...new Set(splits.flatMap((split) => Object.keys(metrics[split])))].filter((name) =>
        splits.some((split) => typeof metrics[split][name] === "number"),
    );
    return h(
        "details",
        {},
        h("summary", {}, "Metrics"),
        tableOf({
            columns: ["Metric", ...splits],
            rows: names.map((name) => [
                name.replaceAll("_", " "),
                ...splits.map((split) =>
                    typeof metrics[split][name] === "number" ? formatNumber(metrics[split][name], 4) : "–",
                ),
            ]),
            caption: "Metrics by split",
        }),
    );
}

const formatValue = (value) =>
    value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
