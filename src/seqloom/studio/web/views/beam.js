// Beam search as a tree: what was compared at each step, what was kept, what ended, what was cut; the n-best beside it.

import { h, fill, calmly, number } from "../lib/dom.js";
import { button, checkbox, controls, examplesFor, numberBox, runPicker, slider, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { FATES, searchTree } from "../lib/search_tree.js";
import { shown } from "../lib/tokens.js";
import { writerOf } from "../lib/writers.js";

export const title = "Beam search";
export const lead =
    "To find a probable text, the k best beginnings are kept at every step: each is continued by its best tokens, and " +
    "of all these continuations the k best go on. Those that end are set aside; the rest is pruned.";
export const needs = "It needs a translator, a denoiser or a language model.";

const OTHERS = 12; // hypotheses that ended without being among the n-best, in the list
const PLAY = 900; // milliseconds a step
const FIELDS = ["id", "parent", "step", "text", "own", "total", "score", "rank", "status", "best"]; // of a node, as they come

export async function show(page) {
    const run = page.chosen();
    const state = startState(page, run);
    const view = parts(page, state);
    fill(page.root, view.panel, h("div", { class: "beam-stage" }, view.figure.element, view.list));
    page.signal.addEventListener("abort", () => clearInterval(state.playing));
    await search(page, state, view);
}

function startState(page, run) {
    const given = (name) => {
        const value = page.params.has(name) ? Number(page.params.get(name)) : NaN;
        return Number.isFinite(value) ? value : null;
    };
    const writer = writerOf(run);
    return {
        run,
        writer,
        text: page.params.get("text") ?? writer.example,
        beam: given("beam"),
        nBest: given("nbest"),
        penalty: given("penalty"),
        length: given("length") ?? 12,
        steps: given("steps"),
        pick: given("pick"),
        pruned: page.params.get("pruned") !== "0",
        fit: page.params.get("fit") === "1",
        found: null,
        playing: null,
        asked: 0,
    };
}

function keep(page, state) {
    page.set({
        run: state.run.id,
        text: state.text,
        beam: state.beam,
        nbest: state.nBest,
        penalty: state.penalty,
        length: state.writer.source ? null : state.length,
        steps: state.steps,
        pick: state.pick,
        pruned: state.pruned ? null : "0",
        fit: state.fit ? "1" : null,
    });
}

// --- the page -------------------------------------------------------------------------------------------------------

function parts(page, state) {
    const view = { list: h("section", { class: "figure beam-list", "aria-label": "What was found" }) };
    const again = calmly(() => search(page, state, view).catch((error) => page.fail(error)), 120);
    const tree = searchTree({
        onHover: (id) => tree.light(id ?? state.pick),
        onPick: (id) => pick(page, state, view, id),
    });
    const fig = figure({ name: "beam", title: "The search" });
    view.turn = (name, value) => {
        Object.assign(state, { [name]: value, steps: null, pick: null });
        if (name === "beam" && state.nBest > value) state.nBest = value;
        again();
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
    view.panel = h(
        "div",
        {},
        controls(runPicker(page, { value: state.run.id, onchange: (id) => page.go("beam", { run: id }) }), box),
        examplesFor(state.run, box, state.writer.examples),
        h("div", { class: "beam-dials" }, view.dials, view.walk),
    );
    fig.body.append(tree.element);
    fig.element.insertBefore(legend(), fig.body);
    fig.body.after(tree.readout);
    fig.table(() => tableOf(state));
    return view;
}

/** What can be turned; made anew when the answer says how the run searches by itself. */
function dials(state, view) {
    const { beam, n_best, length_penalty } = state.found.options;
    const dial = (label, name, options) =>
        slider(label, { min: 1, step: 1, format: String, ...options }, (value) => view.turn(name, value));
    const longest = () =>
        numberBox("Longest, tokens", { min: 1, max: 100, value: state.length }, (value) =>
            view.turn("length", Math.round(value)),
        );
    fill(
        view.dials,
        dial("Width k: kept at a step", "beam", { max: 16, value: beam }),
        dial("Length penalty α", "penalty", {
            min: 0,
            max: 2,
            step: 0.1,
            value: length_penalty,
            format: (value) => number(value, 1),
        }),
        dial("n-best", "nBest", { max: beam, value: n_best }),
        state.writer.source ? null : longest(),
    );
}

function legend() {
    const key = (kind, words) => h("span", { class: "key" }, h("span", { class: `beam-fate ${kind}` }), words);
    return h(
        "p",
        { class: "legend" },
        key("first", "the best"),
        key("best", "other n-best"),
        key("kept", "kept"),
        key("ended", "ended"),
        key("pruned", "pruned"),
        h("span", { class: "hint" }, "Edges: log p. Boxes: score."),
    );
}

/** Steps of the search, one after another. */
function walker(page, state, view) {
    const last = Math.max(state.found.steps - state.found.forced, 1);
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
        state.playing = setInterval(() => move(Number(input.value) + 1), PLAY);
    };
    halt(); // another search is shown
    const toggle = (name) => (on) => {
        state[name] = on;
        keep(page, state);
        paint(state, view);
    };
    const checks = h(
        "div",
        { class: "beam-checks" },
        checkbox("Pruned branches", state.pruned, toggle("pruned")),
        checkbox("Small: more in sight", state.fit, toggle("fit")),
    );
    fill(view.walk, dial, play, checks);
}

// --- searching ------------------------------------------------------------------------------------------------------

async function search(page, state, view) {
    const mine = ++state.asked;
    page.fine();
    keep(page, state);
    view.figure.body.classList.add("busy");
    try {
        const found = await page.ask("beam", {
            run: state.run.id,
            text: state.text,
            beam: state.beam,
            n_best: state.nBest,
            length_penalty: state.penalty,
            max_tokens: state.length,
        });
        if (mine !== state.asked) return; // another search was asked for since
        state.found = { ...found, nodes: nodesOf(found) };
    } finally {
        if (mine === state.asked) view.figure.body.classList.remove("busy");
    }
    if (!view.dials.contains(document.activeElement) || !view.dials.children.length) dials(state, view);
    else limits(state, view);
    walker(page, state, view);
    paint(state, view);
}

/** While somebody turns a dial it stays where it is; only its neighbours learn what it changed. */
function limits(state, view) {
    const inputs = view.dials.querySelectorAll("input[type=range]");
    const { beam, n_best } = state.found.options;
    inputs[2].max = beam;
    if (inputs[2] !== document.activeElement) {
        inputs[2].value = n_best;
        inputs[2].parentElement.querySelector("output").textContent = n_best;
    }
}

/** Objects in the order they are drawn: on each step what leads to the best first, then by rank. A prompt is the root. */
function nodesOf({ nodes, forced }) {
    const found = nodes.map((values) => Object.fromEntries(FIELDS.map((name, i) => [name, values[i]])));
    const root = found.find((node) => node.step === forced);
    const kept = found.filter((node) => node.step > forced);
    const weight = (node) => (node.best ?? 1000) * 1000 + node.rank;
    kept.sort((a, b) => a.step - b.step || weight(a) - weight(b));
    return [{ ...root, parent: null, status: "root" }, ...kept];
}

function paint(state, view) {
    const { found } = state;
    const steps = state.steps === null ? Infinity : state.steps + found.forced;
    view.tree.update({ nodes: found.nodes, root: rootOf(state), steps, pruned: state.pruned });
    view.tree.fit(state.fit);
    view.tree.light(state.pick);
    view.figure.say(undefined, story(state));
    fill(view.list, ...listOf(state, view));
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

// --- words and numbers ----------------------------------------------------------------------------------------------

function story({ found, writer }) {
    const { beam } = found.options;
    const open = found.nodes.filter((node) => node.status === "open").map((node) => node.score);
    const best = found.candidates[0];
    const steps = found.steps - found.forced;
    const words = [
        `Each step compares the ${2 * beam} best continuations of ${beam === 1 ? "one hypothesis" : `${beam} hypotheses`}; ` +
            `${found.pruned.toLocaleString("en")} were pruned in all.`,
        best?.finished
            ? `The search stopped after step ${steps}: the best has ended and scores ${number(best.score)}; ` +
              (open.length ? `the best still open stood at ${number(Math.max(...open))}.` : "nothing was left open.")
            : `Nothing has ended within ${steps} steps: the best is cut there.`,
        writer.source ? "" : "The prompt counts in |y| and in Σ log p.",
        found.cut ? "There are so many nodes that pruned ones are not drawn." : "",
    ];
    return words.filter(Boolean).join(" ");
}

function listOf(state, view) {
    const { candidates, ended, notes, options } = state.found;
    const items = (found) => found.map((one) => h("li", {}, entry(state, view, one)));
    return [
        h("h2", {}, candidates.length > 1 ? `The ${candidates.length} best` : "The best"),
        h(
            "p",
            { class: "hint" },
            `score = Σ log p / |y|^α, α = ${number(options.length_penalty, 1)}; |y| counts the end`,
        ),
        h("ol", { class: "beam-found" }, items(candidates)),
        ended.length ? h("h3", {}, "Ended, but not among them") : null,
        ended.length ? h("ul", { class: "beam-found others" }, items(ended.slice(0, OTHERS))) : null,
        notes.map((note) => h("p", { class: "note", dir: "auto" }, `Note: ${note}.`)),
        h("p", {}, h("a", { href: view.link() }, "See it written token by token")),
    ];
}

function entry(state, view, one) {
    const length = state.found.nodes.find((node) => node.id === one.node)?.step ?? 0;
    const text = one.text.trim() ? one.text : one.text && shown(one.text);
    const light = () => view.tree.light(one.node);
    const dim = () => view.tree.light(state.pick);
    return h(
        "button",
        {
            type: "button",
            class: "candidate",
            "aria-pressed": String(state.pick === one.node),
            onclick: () => view.pick(one.node),
            onpointerenter: light,
            onpointerleave: dim,
            onfocus: light,
            onblur: dim,
        },
        h("span", { class: "candidate-text", dir: "auto" }, text || "(nothing)"),
        h(
            "span",
            { class: "candidate-sum" },
            `${number(one.log_prob)} / ${length}^α = `,
            h("b", {}, number(one.score)),
            one.finished ? "" : " · cut",
        ),
    );
}

function tableOf({ found }) {
    const columns = ["step", "rank", "token", "after", "log p", "Σ log p", "score", "fate", "n-best"];
    if (!found) return { columns, rows: [] };
    const byId = new Map(found.nodes.map((node) => [node.id, node]));
    const after = ({ parent }) =>
        byId.get(parent)?.parent === null ? "the start" : shown(byId.get(parent)?.text ?? "");
    const sorted = found.nodes.slice(1).sort((a, b) => a.step - b.step || a.rank - b.rank);
    return {
        columns,
        rows: sorted.map((node) => [
            node.step,
            node.rank,
            shown(node.text),
            after(node),
            node.own,
            node.total,
            node.score,
            FATES[node.status],
            node.best ?? "",
        ]),
    };
}
