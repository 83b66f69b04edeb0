// Beam search as a tree, with the n-best list.

import { h, setChildren, debounce, formatNumber } from "../lib/dom.js";
import { button, checkbox, controls, examplesFor, numberBox, runPicker, slider, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { STATUS_LABELS, searchTree } from "../lib/search_tree.js";
import { displayToken } from "../lib/tokens.js";
import { generatorOf } from "../lib/generators.js";

export const title = "Beam search";
export const lead =
    "Beam search keeps the k best hypotheses at every step. Each is extended by its most probable tokens. Of all " +
    "extensions, the k best are kept and the others are pruned. Hypotheses that generate END are finished.";
export const needs = "This view needs a translator, a denoiser or a language model.";

const MAX_OTHERS = 12; // finished hypotheses listed below the n-best
const STEP_MS = 900; // milliseconds per step
const FIELDS = ["id", "parent", "step", "text", "logProb", "total", "score", "rank", "status", "best"]; // of a node, in the order of the response

export async function show(page) {
    const run = page.selectedRun();
    const state = startState(page, run);
    const view = parts(page, state);
    setChildren(page.root, view.panel, h("div", { class: "beam-stage" }, view.figure.element, view.list));
    page.signal.addEventListener("abort", () => clearInterval(state.playing));
    await search(page, state, view);
}

function startState(page, run) {
    const numberParam = (name) => {
        const value = page.params.has(name) ? Number(page.params.get(name)) : NaN;
        return Number.isFinite(value) ? value : null;
    };
    const writer = generatorOf(run);
    return {
        run,
        writer,
        text: page.params.get("text") ?? writer.example,
        beam: numberParam("beam"),
        nBest: numberParam("nbest"),
        penalty: numberParam("penalty"),
        length: numberParam("length") ?? 12,
        terms: run.task === "translate" ? (page.params.get("terms") ?? "") : "",
        steps: numberParam("steps"),
        pick: numberParam("pick"),
        pruned: page.params.get("pruned") !== "0",
        fit: page.params.get("fit") === "1",
        result: null,
        playing: null,
        latestRequest: 0,
    };
}

function keep(page, state) {
    page.setParams({
        run: state.run.id,
        text: state.text,
        beam: state.beam,
        nbest: state.nBest,
        penalty: state.penalty,
        length: state.writer.source ? null : state.length,
        terms: state.terms || null,
        steps: state.steps,
        pick: state.pick,
        pruned: state.pruned ? null : "0",
        fit: state.fit ? "1" : null,
    });
}

// --- the page -------------------------------------------------------------------------------------------------------

function parts(page, state) {
    const view = { list: h("section", { class: "figure beam-list", "aria-label": "Hypotheses" }) };
    const searchAgain = debounce(() => search(page, state, view).catch((error) => page.fail(error)), 120);
    const tree = searchTree({
        onHover: (id) => tree.highlight(id ?? state.pick),
        onPick: (id) => pick(page, state, view, id),
    });
    const fig = figure({ name: "beam", title: "Search tree" });
    view.turn = (name, value) => {
        Object.assign(state, { [name]: value, steps: null, pick: null });
        if (name === "beam" && state.nBest > value) state.nBest = value;
        searchAgain();
    };
    view.link = () => page.link("write", { run: state.run.id, text: state.text });
    view.pick = (id) => pick(page, state, view, id);
    Object.assign(view, {
        tree,
        figure: fig,
        dials: h("div", { class: "controls" }),
        walk: h("div", { class: "controls beam-steps" }),
    });
    const box = textBox(state.writer.label, state.text, (text) => view.turn("text", text), { button: "Search" });
    const options = { button: "Require", placeholder: "term; another term" };
    const terms = textBox("Required terms", state.terms, (text) => view.turn("terms", text), options);
    view.panel = h(
        "div",
        {},
        controls(runPicker(page, { value: state.run.id, onchange: (id) => page.navigate("beam", { run: id }) }), box),
        state.run.task === "translate" ? controls(terms) : null,
        examplesFor(state.run, box, state.writer.examples),
        h("div", { class: "beam-settings" }, view.dials, view.walk),
    );
    fig.body.append(tree.element);
    fig.element.insertBefore(legend(), fig.body);
    fig.body.after(tree.readout);
    fig.table(() => tableOf(state));
    return view;
}

/** The sliders, drawn when the response contains the options of the run. */
function dials(state, view) {
    const { beam, n_best, length_penalty } = state.result.options;
    const dial = (label, name, options) =>
        slider(label, { min: 1, step: 1, format: String, ...options }, (value) => view.turn(name, value));
    const longest = () =>
        numberBox("Max tokens", { min: 1, max: 100, value: state.length }, (value) =>
            view.turn("length", Math.round(value)),
        );
    setChildren(
        view.dials,
        dial("Beam size k", "beam", { max: 16, value: beam }),
        dial("Length penalty α", "penalty", {
            min: 0,
            max: 2,
            step: 0.1,
            value: length_penalty,
            format: (value) => formatNumber(value, 1),
        }),
        dial("n-best", "nBest", { max: beam, value: n_best }),
        state.writer.source ? null : longest(),
    );
}

function legend() {
    const key = (kind, words) => h("span", { class: "key" }, h("span", { class: `beam-legend ${kind}` }), words);
    return h(
        "p",
        { class: "legend" },
        key("first", "best"),
        key("best", "other n-best"),
        key("kept", "kept"),
        key("ended", "finished"),
        key("pruned", "pruned"),
        h("span", { class: "hint" }, "Edges: log p. Boxes: score."),
    );
}

/** The controls that show the search step by step. */
function walker(page, state, view) {
    const last = Math.max(state.result.steps - state.result.forced, 1);
    const options = {
        min: 1,
        max: last,
        step: 1,
        value: state.steps ?? last,
        format: (value) => `${value} of ${last}`,
    };
    const dial = slider("Steps shown", options, (value) => {
        state.steps = value >= last ? null : value;
        keep(page, state);
        paint(state, view);
    });
    const input = dial.querySelector("input");
    const play = button("▶ Play", () => (state.playing ? halt() : start()), { title: "Show the search step by step" });
    const halt = () => {
        clearInterval(state.playing);
        state.playing = null;
        play.textContent = "▶ Play";
    };
    const move = (value) => {
        input.value = value;
        input.dispatchEvent(new Event("input"));
        if (value >= last) halt();
    };
    const start = () => {
        play.textContent = "■ Stop";
        move(1);
        state.playing = setInterval(() => move(Number(input.value) + 1), STEP_MS);
    };
    halt(); // a new search
    const toggle = (name) => (on) => {
        state[name] = on;
        keep(page, state);
        paint(state, view);
    };
    const checks = h(
        "div",
        { class: "beam-checks" },
        checkbox("Show pruned", state.pruned, toggle("pruned")),
        checkbox("Fit to window", state.fit, toggle("fit")),
    );
    setChildren(view.walk, dial, play, checks);
}

// --- searching ------------------------------------------------------------------------------------------------------

async function search(page, state, view) {
    const requestId = ++state.latestRequest;
    page.clearError();
    keep(page, state);
    view.figure.body.classList.add("busy");
    try {
        const result = await page.request("beam", {
            run: state.run.id,
            text: state.text,
            beam: state.beam,
            n_best: state.nBest,
            length_penalty: state.penalty,
            max_tokens: state.length,
            terms: state.terms.split(";").filter((term) => term.trim()),
        });
        if (requestId !== state.latestRequest) return; // superseded by a newer request
        state.result = { ...result, nodes: nodesOf(result) };
    } finally {
        if (requestId === state.latestRequest) view.figure.body.classList.remove("busy");
    }
    if (!view.dials.contains(document.activeElement) || !view.dials.children.length) dials(state, view);
    else limits(state, view);
    walker(page, state, view);
    paint(state, view);
}

/** Update the limits of the other sliders while one of them is in use. */
function limits(state, view) {
    const inputs = view.dials.querySelectorAll("input[type=range]");
    const { beam, n_best } = state.result.options;
    inputs[2].max = beam;
    if (inputs[2] !== document.activeElement) {
        inputs[2].value = n_best;
        inputs[2].parentElement.querySelector("output").textContent = n_best;
    }
}

/** Nodes in drawing order: by step, those on the best paths first, then by rank. A prompt is the root. */
function nodesOf({ nodes, forced }) {
    const all = nodes.map((values) => Object.fromEntries(FIELDS.map((name, i) => [name, values[i]])));
    const root = all.find((node) => node.step === forced);
    const generatedNodes = all.filter((node) => node.step > forced);
    const weight = (node) => (node.best ?? 1000) * 1000 + node.rank;
    generatedNodes.sort((a, b) => a.step - b.step || weight(a) - weight(b));
    return [{ ...root, parent: null, status: "root" }, ...generatedNodes];
}

function paint(state, view) {
    const { result } = state;
    const steps = state.steps === null ? Infinity : state.steps + result.forced;
    view.tree.update({ nodes: result.nodes, root: rootOf(state), steps, pruned: state.pruned });
    view.tree.fit(state.fit);
    view.tree.highlight(state.pick);
    view.figure.setText(undefined, story(state));
    setChildren(view.list, ...listOf(state, view));
    view.figure.table(() => tableOf(state));
}

function rootOf({ writer, text }) {
    const letters = [...text.trim()];
    return writer.source || !letters.length
        ? "start"
        : letters.length > 12
          ? `…${letters.slice(-11).join("")}`
          : letters.join("");
}

function pick(page, state, view, id) {
    state.pick = state.pick === id ? null : id;
    keep(page, state);
    paint(state, view);
}

// --- text and tables ------------------------------------------------------------------------------------------------

function story({ result, writer }) {
    const { beam } = result.options;
    const open = result.nodes.filter((node) => node.status === "open").map((node) => node.score);
    const best = result.candidates[0];
    const steps = result.steps - result.forced;
    const words = [
        `Each step compares the ${2 * beam} best extensions of ${beam === 1 ? "one hypothesis" : `${beam} hypotheses`}; ` +
            `${result.pruned.toLocaleString("en")} were pruned in total.`,
        best?.finished
            ? `The search stopped after step ${steps}: the best hypothesis is finished with score ${formatNumber(best.score)}; ` +
              (open.length ? `the best open hypothesis has ${formatNumber(Math.max(...open))}.` : "no hypothesis is open.")
            : `No hypothesis finished within ${steps} steps; the best hypothesis is truncated.`,
        writer.source ? "" : "|y| and Σ log p include the prompt.",
        result.cut ? "The tree is too large to draw pruned nodes." : "",
    ];
    return words.filter(Boolean).join(" ");
}

function listOf(state, view) {
    const { candidates, ended, notes, options } = state.result;
    const items = (hypotheses) => hypotheses.map((candidate) => h("li", {}, entry(state, view, candidate)));
    return [
        h("h2", {}, candidates.length > 1 ? `${candidates.length} best hypotheses` : "Best hypothesis"),
        h(
            "p",
            { class: "hint" },
            `score = Σ log p / |y|^α, α = ${formatNumber(options.length_penalty, 1)}; |y| includes END`,
        ),
        h("ol", { class: "beam-candidates" }, items(candidates)),
        ended.length ? h("h3", {}, "Other finished hypotheses") : null,
        ended.length ? h("ul", { class: "beam-candidates others" }, items(ended.slice(0, MAX_OTHERS))) : null,
        notes.map((note) => h("p", { class: "note", dir: "auto" }, `Note: ${note}.`)),
        h("p", {}, h("a", { href: view.link() }, "Generate token by token")),
    ];
}

function entry(state, view, candidate) {
    const length = state.result.nodes.find((node) => node.id === candidate.node)?.step ?? 0;
    const text = candidate.text.trim() ? candidate.text : candidate.text && displayToken(candidate.text);
    const highlight = () => view.tree.highlight(candidate.node);
    const dim = () => view.tree.highlight(state.pick);
    return h(
        "button",
        {
            type: "button",
            class: "candidate",
            "aria-pressed": String(state.pick === candidate.node),
            onclick: () => view.pick(candidate.node),
            onpointerenter: highlight,
            onpointerleave: dim,
            onfocus: highlight,
            onblur: dim,
        },
        h("span", { class: "candidate-text", dir: "auto" }, text || "(empty)"),
        h(
            "span",
            { class: "candidate-sum" },
            `${formatNumber(candidate.log_prob)} / ${length}^α = `,
            h("b", {}, formatNumber(candidate.score)),
            candidate.finished ? "" : " · truncated",
        ),
    );
}

function tableOf({ result }) {
    const columns = ["step", "rank", "token", "previous", "log p", "Σ log p", "score", "status", "n-best"];
    if (!result) return { columns, rows: [] };
    const byId = new Map(result.nodes.map((node) => [node.id, node]));
    const after = ({ parent }) =>
        byId.get(parent)?.parent === null ? "start" : displayToken(byId.get(parent)?.text ?? "");
    const sorted = result.nodes.slice(1).sort((a, b) => a.step - b.step || a.rank - b.rank);
    return {
        columns,
        rows: sorted.map((node) => [
            node.step,
            node.rank,
            displayToken(node.text),
            after(node),
            node.logProb,
            node.total,
            node.score,
            STATUS_LABELS[node.status],
            node.best ?? "",
        ]),
    };
}
