// The shelf: all runs, the curves of those that are chosen over one another, and in what their recipes differ.

import { h, fill, clear, number, refill } from "../lib/dom.js";
import { quickstart } from "../lib/advice.js";
import { controls } from "../lib/controls.js";
import { figure, tableOf } from "../lib/figure.js";
import { cardOf } from "../lib/card.js";
import { chartTable, lineChart } from "../lib/chart.js";
import { chartsOf, isDrawn } from "../lib/curve_groups.js";
import { showsMore } from "../lib/scrolls.js";

export const title = "Runs";
export const lead =
    "Every model that was trained into this folder. Choose some to lay their curves over one another; they move while a run trains.";

const MOST = 8; // lines that can still be told apart
const CURVE = 3; // points at least, that it is one
const LOOKED = 8; // runs, the newest, among which one with a curve is looked for
const AGAIN = 3000; // milliseconds between two looks at a run that trains
const NAMES = {
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
    token_accuracy: "Accuracy of words",
};
const COMPARES =
    "These runs count their loss per different tokens, so their losses and perplexities cannot be compared. This can.";
const VIEW_NAMES = {
    write: "write",
    alignment: "alignment",
    heads: "heads",
    beam: "beam",
    cell: "cell",
    gradients: "gradients",
    vectors: "vectors",
    walk: "how it works",
    understand: "understand",
};

export async function show(page) {
    if (!page.all.length) return fill(page.root, empty(page.folder));
    const chosen = new Set(page.params.getAll("runs").filter((id) => page.run(id)));
    if (!chosen.size) (await telling(page)).forEach((id) => chosen.add(id));
    page.set({ runs: [...chosen] });
    const list = h("div", { class: "runs-scroll", tabindex: "0", role: "region", "aria-label": "Runs" });
    const more = showsMore(list);
    const below = h("div", {});
    const search = h("input", {
        type: "search",
        id: "search-runs",
        placeholder: "name, task, cell, corpus …",
        oninput: () => draw(),
    });
    search.value = page.params.get("search") ?? "";
    const counted = h("p", { class: "hint", role: "status" });
    fill(
        page.root,
        controls(h("div", { class: "field" }, h("label", { for: "search-runs" }, "Search"), search)),
        counted,
        list,
        below,
    );

    function draw() {
        page.set({ search: search.value });
        const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
        const found = page.all.filter((run) => words.every((word) => haystack(run).includes(word)));
        counted.textContent =
            found.length === page.all.length ? `${found.length} runs` : `${found.length} of ${page.all.length} runs`;
        fill(
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
                        ["", "Run", "Task", "Model", "Data", "On dev", "See it in"].map((name) =>
                            h("th", { scope: "col" }, name || h("span", { class: "unseen" }, "Chosen")),
                        ),
                    ),
                ),
                h("tbody", {}, found.map(row)),
            ),
        );
        more();
    }

    /** The first that is chosen stands in sight, below the heads of the columns. */
    function reveal() {
        const row_ = list.querySelector("tr.chosen");
        if (row_ && row_.offsetTop + row_.offsetHeight > list.clientHeight)
            list.scrollTop = row_.offsetTop - list.clientHeight / 2;
    }

    function row(run) {
        const line = h("tr", { class: chosen.has(run.id) ? "chosen" : null, dataset: { run: run.id } });
        return fill(line, cells(run));
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
                      h("td", { class: "best" }, run.figure ?? (run.ready ? "–" : "not yet")),
                      h("td", {}, h("div", { class: "chips" }, run.views.map(chip))),
                  ],
        ];
    }

    /** While a run trains, the list follows: who still does, what is ready by now, and how good it is. */
    async function watch() {
        while (page.all.some((run) => run.live)) {
            await new Promise((done) => setTimeout(done, AGAIN));
            if (page.signal.aborted) return;
            const before = page.all;
            await page.news();
            if (page.signal.aborted) return;
            const known = new Map(before.map((run) => [run.id, told(run)]));
            if (page.all.length !== before.length || page.all.some((run) => !known.has(run.id))) draw();
            else page.all.filter((run) => told(run) !== known.get(run.id)).forEach(renew);
        }
    }

    function renew(run) {
        const line = [...list.querySelectorAll("tr")].find((one) => one.dataset.run === run.id);
        if (line) refill(line, cells(run));
    }

    function choose(id, box) {
        if (box.checked && chosen.size >= MOST) {
            box.checked = false;
            return page.fail(new Error(`${MOST} runs at once are as many as can be told apart. Take one away first.`));
        }
        page.fine();
        if (box.checked) chosen.add(id);
        else chosen.delete(id);
        box.closest("tr").classList.toggle("chosen", box.checked);
        page.set({ runs: [...chosen] });
        compare().catch(page.fail);
    }

    const panels = h("div", { class: "side-by-side" });
    const rest = h("div", {});
    fill(below, panels, rest);
    let charts = new Map();
    let drawn = ""; // which charts these are, and in what units
    let wanted = 0;
    const readable = () => [...chosen].filter((id) => !page.run(id)?.problem);

    /** Curves, and what there is to read; while a run trains, after a while the curves alone, again and again. */
    async function compare(again = false) {
        const mine = ++wanted;
        const ids = readable();
        if (!ids.length) {
            drawn = "";
            return (fill(panels, h("p", { class: "empty" }, "Choose a run above to see how it learned.")), clear(rest));
        }
        const answer = await page.ask("runs/curves", { runs: ids });
        if (mine !== wanted) return;
        paintCurves(answer, ids);
        const trains = answer.live.length > 0;
        const look = () => mine === wanted && !page.signal.aborted && compare(true).catch(page.fail);
        if (trains) setTimeout(look, AGAIN);
        if (!(again && trains)) await about(ids, answer.differences);
    }

    function paintCurves(answer, ids) {
        const groups = chartsOf(answer.curves, ids);
        const kinds = JSON.stringify([...groups].map(([name, { unit }]) => [name, unit]));
        if (kinds !== drawn) {
            drawn = kinds;
            const width = roomFor(groups.size, panels.clientWidth);
            charts = new Map([...groups].map(([name, one]) => [name, panelOf(name, one, width)]));
            fill(
                panels,
                charts.size
                    ? [...charts.values()].map((panel) => panel.element)
                    : h("p", { class: "empty" }, "These runs have no curves: they were counted or imported in one go."),
            );
        } else groups.forEach((one, name) => charts.get(name).update(one));
    }

    async function about(ids, differences) {
        const parts = [];
        if (ids.length > 1) {
            const shownDifferences = {
                columns: ["Recipe", ...ids],
                rows: differences.map(({ key, values }) => [key, ...ids.map((id) => said(values[id]))]),
            };
            parts.push(
                h(
                    "section",
                    { class: "figure", "aria-label": "What differs" },
                    h("h2", {}, "What differs between their recipes"),
                    differences.length
                        ? tableOf({ ...shownDifferences, caption: "Keys of the recipes that are not the same" })
                        : h("p", {}, "Nothing: the recipes are the same."),
                ),
            );
        }
        const id = ids.at(-1);
        const { card, recipe, metrics } = await page.ask("runs/card", { run: id });
        if (JSON.stringify(ids) !== JSON.stringify(readable())) return; // others were chosen meanwhile
        parts.push(
            h(
                "section",
                { class: "figure", "aria-label": "Card" },
                h("h2", { dir: "auto" }, `The card of ${id}`),
                metricsTable(metrics),
                card === null
                    ? h("p", { class: "hint" }, "This run has no card yet: it is written when training ends.")
                    : cardOf(card),
                h(
                    "details",
                    {},
                    h("summary", {}, "Its whole recipe"),
                    h("pre", { dir: "auto", tabindex: "0" }, recipe),
                ),
            ),
        );
        fill(rest, parts);
    }

    draw();
    reveal();
    await compare();
    watch().catch(page.fail);
}

function empty(folder) {
    return h(
        "div",
        { class: "empty" },
        h("p", {}, "No runs yet. Train a small translator in about two minutes:"),
        h("pre", {}, quickstart(folder)),
        h("p", {}, "or the models that bring every view of this studio alive:"),
        h("pre", {}, "seqloom studio --demo"),
    );
}

/** The newest run that has a curve to see, or the newest of all: one id, or none. */
async function telling(page) {
    const newest = page.all
        .filter((run) => !run.problem)
        .sort((a, b) => (b.changed ?? 0) - (a.changed ?? 0))
        .slice(0, LOOKED)
        .map((run) => run.id);
    for (const id of newest) {
        const { curves } = await page.ask("runs/curves", { runs: [id] }).catch(() => ({ curves: {} })); // said when it is chosen
        if (Object.values(curves[id] ?? {}).some((curve) => isDrawn(curve) && curve.points.length >= CURVE)) return [id];
    }
    return newest.slice(0, 1);
}

/** All that the list says of a run, to see whether it is news. */
const told = (run) => JSON.stringify({ ...run, changed: null });

const haystack = (run) => [run.name, run.task, run.kind, run.cell, run.corpus, run.figure].join(" ").toLowerCase();

/** Pixels for each of so many charts side by side: at their own size, what is written in them can be read. */
function roomFor(count, wide) {
    const [gap, least, frame] = [1.25, 30, 2.6].map(
        (rem) => rem * Number.parseFloat(getComputedStyle(document.documentElement).fontSize),
    );
    const columns = Math.max(1, Math.min(count, Math.floor((wide + gap) / (least + gap))));
    return Math.max(360, Math.min(900, (wide - gap * (columns - 1)) / columns - frame));
}

function panelOf(name, { group, unit, series, several, compares }, width) {
    const words = NAMES[group] ?? group.replaceAll("_", " ");
    const named = unit.startsWith(words.toLowerCase()) ? words[0] + unit.slice(1) : `${words}, ${unit}`;
    const title = several ? named : words;
    const panel = figure({ name: `curve-${name}`, title, caption: compares ? COMPARES : "" });
    const log = group === "perplexity";
    const chart = lineChart({
        width,
        height: 300,
        series,
        x: { title: "step" },
        y: { title: unit || words, log },
        label: `${words} over the steps of training`,
        legend: "always",
    });
    panel.body.append(chart.element);
    panel.table(() => chartTable(series));
    return {
        element: panel.element,
        update(one) {
            chart.update(one.series);
            panel.table(() => chartTable(one.series));
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
        h("summary", {}, "Its figures"),
        tableOf({
            columns: ["Figure", ...splits],
            rows: names.map((name) => [
                name.replaceAll("_", " "),
                ...splits.map((split) =>
                    typeof metrics[split][name] === "number" ? number(metrics[split][name], 4) : "–",
                ),
            ]),
            caption: "Figures by split",
        }),
    );
}

const said = (value) =>
    value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
