// Translate and generate: streamed tokens, the next-token distribution at each position with temperature, top-k and
// top-p, and forced tokens.

import { h, clear, setChildren, debounce, formatNumber, announce } from "../lib/dom.js";
import { colourOf, inkOn, onThemeChange } from "../lib/colour.js";
import { button, checkbox, controls, examplesFor, numberBox, runPicker, slider, textBox } from "../lib/controls.js";
import { lineChart } from "../lib/chart.js";
import { figure } from "../lib/figure.js";
import { percent } from "../lib/token_bars.js";
import { displayToken } from "../lib/tokens.js";
import { generatorOf } from "../lib/generators.js";
import { ALL_TOKENS, nextToken } from "./write-next.js";
import { showGaps } from "./write-masks.js";

export const title = "Translate and generate";
export const lead =
    "A model generates one token at a time: it assigns a probability to every token of its vocabulary, and one token is " +
    "sampled. Select a position in the text to see the alternatives; select another token to force it.";
export const needs = "This view needs a language model, a masked language model, a translator or a denoiser.";

const TOP_K_VALUES = [1, 2, 3, 4, 5, 8, 10, 15, 20, 30, 40, 50, 75, 100, 200, 500, 1000, ALL_TOKENS];
const MAX_BITS = 12; // bits at the end of the colour scale
const COLOUR_RANGE = 3; // only the lightest third of the colour scale is used, for legible text
const PAUSE_MS = 250; // milliseconds between the last slider input and resampling
const END_REASONS = { end: "END generated", length: "maximum length reached", stopped: "stopped" };

export async function show(page) {
    const run = page.selectedRun();
    if (run.task === "masked-lm") return showGaps(page, run);
    const state = startState(page, run);
    const view = parts(page, state);
    const left = h("div", {}, view.paper, view.bits.element);
    setChildren(page.root, view.panel, h("div", { class: "side-by-side writing" }, left, view.next.element));
    onThemeChange(() => paintAll(view, state), page.signal);
    paintAll(view, state);
    await writeText(page, state, view);
}

/** The state: the parameters of the address and the generated tokens. */
function startState(page, run) {
    const writer = generatorOf(run);
    const numberParam = (name, otherwise, low, high) => {
        const value = page.params.has(name) ? Number(page.params.get(name)) : NaN;
        return Number.isFinite(value) ? Math.min(Math.max(value, low), high) : otherwise;
    };
    return {
        run,
        writer,
        text: page.params.get("text") ?? writer.example,
        temperature: numberParam("temperature", writer.source ? 0 : 1, 0, 2),
        topK: TOP_K_VALUES[indexOfK(numberParam("k", ALL_TOKENS, 1, 1e7))],
        topP: numberParam("p", 1, 0.01, 1),
        seed: numberParam("seed", 0, 0, 2 ** 31 - 1),
        length: numberParam("length", writer.source ? 100 : 60, 1, 400),
        forced: (page.params.get("forced") ?? "").split(",").filter(Boolean).map(Number),
        at: numberParam("at", null, 0, 399), // selected position
        redraw: page.params.get("redraw") !== "0",
        tokens: [],
        ended: null,
        stop: null,
    };
}

function keep(page, state) {
    page.setParams({
        run: state.run.id,
        text: state.text,
        temperature: state.temperature,
        k: state.topK,
        p: state.topP === 1 ? null : state.topP,
        seed: state.seed || null,
        length: state.length,
        forced: state.forced.join(",") || null,
        at: state.at,
        redraw: state.redraw ? null : "0",
    });
}

// --- the page -------------------------------------------------------------------------------------------------------

function parts(page, state) {
    const view = {
        text: h("div", { class: "written", dir: "auto", role: "group", "aria-label": "Generated tokens" }),
        status: h("p", { class: "readout" }),
        notes: h("div", {}),
        halt: button("Stop", () => state.stop?.abort(), { title: "Stop generating" }),
    };
    view.again = () => writeText(page, state, view).catch((error) => page.fail(error));
    view.fresh = (changes) => {
        Object.assign(state, { forced: [], at: null }, changes);
        view.again();
    };
    view.next = nextToken(page, state, (token) => {
        const position = view.next.position();
        state.forced = [...idsBefore(state, position), token];
        state.at = position;
        view.again();
    });
    view.choose = (position) => {
        state.at = position;
        keep(page, state);
        mark(view);
        view.next.show();
    };
    view.seed = numberBox("Seed", { min: 0, max: 2 ** 31 - 1, value: state.seed }, (value) =>
        view.fresh({ seed: Math.round(value) }),
    );
    view.paper = paperOf(page, state, view);
    view.panel = panelOf(page, state, view);
    drawSurprisal(state, view);
    return view;
}

function idsBefore(state, position) {
    return state.tokens.slice(0, position).map((token) => token.id);
}

function paperOf(page, state, view) {
    view.another = button("Another seed", () => {
        view.seed.querySelector("input").value = state.seed + 1;
        view.fresh({ seed: state.seed + 1 });
    });
    updateSeedButton(state, view);
    const start = button("Restart", () => view.fresh({}), { title: "Generate again without forced tokens" });
    view.beam = h("a", {}, "Compare with beam search");
    view.link = () => (view.beam.href = page.link("beam", { run: state.run.id, text: state.text }));
    return h(
        "section",
        { class: "figure paper", "aria-label": "Text" },
        h(
            "div",
            { class: "figure-head" },
            h("h2", {}, state.writer.output),
            h("div", { class: "tools" }, view.halt, view.another, start),
        ),
        view.text,
        view.status,
        legend(),
        view.notes,
        h("p", { class: "other" }, view.beam),
    );
}

/** Greedy decoding gives the same text for every seed. */
function updateSeedButton(state, view) {
    const isGreedy = state.temperature === 0 || state.topK === 1;
    view.another.disabled = isGreedy;
    view.another.title = isGreedy
        ? "The most probable token is always chosen. Raise the temperature or k to sample."
        : "Sample with another random seed";
}

function panelOf(page, state, view) {
    const { label, act, examples } = state.writer;
    const turn = turner(page, state, view);
    const box = textBox(label, state.text, (text) => view.fresh({ text }), {
        rows: state.writer.source ? 1 : 2,
        button: act,
    });
    return h(
        "div",
        {},
        controls(runPicker(page, { value: state.run.id, onchange: (id) => page.navigate("write", { run: id }) }), box),
        examplesFor(state.run, box, examples),
        controls(
            slider(
                "Temperature τ",
                { min: 0, max: 2, step: 0.05, value: state.temperature, format: formatTemperature },
                turn("temperature"),
            ),
            slider(
                "Top-k",
                { min: 0, max: TOP_K_VALUES.length - 1, step: 1, value: indexOfK(state.topK), format: formatTopK },
                (position) => turn("topK")(TOP_K_VALUES[position]),
            ),
            slider("Top-p", { min: 0.05, max: 1, step: 0.01, value: state.topP, format: formatTopP }, turn("topP")),
            numberBox("Max tokens", { min: 1, max: 400, value: state.length }, (value) =>
                view.fresh({ length: Math.round(value) }),
            ),
            view.seed,
            checkbox("Resample when sliders move", state.redraw, (on) => {
                state.redraw = on;
                keep(page, state);
            }),
        ),
    );
}

/** Sliders update the bars immediately; after a pause, the text after the selected position is resampled. */
function turner(page, state, view) {
    const redraw = debounce(() => {
        if (!state.redraw || page.signal.aborted) return;
        if (state.at > 0 && state.at < state.tokens.length) state.forced = idsBefore(state, state.at);
        view.again();
    }, PAUSE_MS);
    return (name) => (value) => {
        state[name] = value;
        keep(page, state);
        updateSeedButton(state, view);
        view.next.paint();
        redraw();
    };
}

function indexOfK(k) {
    const index = k === ALL_TOKENS ? -1 : TOP_K_VALUES.findIndex((item) => item !== ALL_TOKENS && item >= k);
    return index < 0 ? TOP_K_VALUES.length - 1 : index;
}

function formatTemperature(value) {
    if (value === 0) return "0: greedy";
    return value === 1 ? "1: unchanged" : formatNumber(value, 2);
}

function formatTopK(position) {
    return TOP_K_VALUES[position] === ALL_TOKENS ? "all tokens" : TOP_K_VALUES[position];
}

function formatTopP(p) {
    return p === 1 ? "100 %" : `${Math.round(100 * p)} %`;
}

function legend() {
    const steps = [0, 3, 6, 9].map((bits) =>
        h(
            "span",
            { class: "key" },
            h("span", { class: "swatch", dataset: { bits } }),
            bits === 0 ? "certain" : `1 in ${2 ** bits}`,
        ),
    );
    return h(
        "p",
        { class: "legend surprisal" },
        h("span", { class: "hint" }, "Probability of each token:"),
        steps,
        h("span", { class: "key" }, h("span", { class: "forced-mark" }, "abc"), "forced"),
    );
}

// --- writing --------------------------------------------------------------------------------------------------------

async function writeText(page, state, view) {
    state.stop?.abort();
    const stop = (state.stop = new AbortController());
    Object.assign(state, { tokens: [], ended: null });
    keep(page, state);
    page.clearError();
    setChildren(view.text, (view.output = h("span", { class: "generated" })));
    clear(view.notes);
    view.halt.disabled = false;
    view.status.textContent = "Generating …";
    try {
        for await (const event of page.stream("write/stream", questionOf(state), stop.signal)) take(state, view, event);
    } catch (error) {
        if (state.stop !== stop || page.signal.aborted) return; // superseded by a newer request
        view.status.textContent = "";
        if (error.name !== "AbortError") throw error;
        state.ended = "stopped";
    } finally {
        if (state.stop === stop) view.halt.disabled = true;
    }
    finish(state, view);
}

function questionOf(state) {
    return {
        run: state.run.id,
        text: state.text,
        forced: state.forced,
        temperature: state.temperature,
        top_k: state.topK,
        top_p: state.topP,
        seed: state.seed,
        max_tokens: state.length,
    };
}

function take(state, view, event) {
    if (event.begin) return showPrompt(view, event.begin);
    if (event.end) return (state.ended = event.end);
    state.tokens.push(event);
    view.output.append(spanOf(view, event, state.tokens.length - 1));
    if (view.next.position() === state.tokens.length - 1) requestPaint(view);
}

/** Update the bars for the newest token, at most once per frame. */
function requestPaint(view) {
    view.due ??= requestAnimationFrame(() => {
        view.due = null;
        view.next.paint();
        view.text.scrollTop = view.text.scrollHeight;
    });
}

function showPrompt(view, { prompt, notes }) {
    if (prompt) view.text.prepend(h("span", { class: "prompt" }, prompt));
    setChildren(
        view.notes,
        notes.map((note) => h("p", { class: "note", dir: "auto" }, `Note: ${note}.`)),
    );
}

function finish(state, view) {
    const count = state.tokens.length;
    if (state.at !== null && state.at >= count) state.at = count ? count - 1 : null;
    const bits = state.tokens.reduce((sum, token) => sum - Math.log2(token.p), 0);
    const each = count ? ` · ${formatNumber(bits / count, 2)} bits per token` : "";
    const end = state.ended === "end" && state.tokens.at(-1)?.forced ? "END forced" : END_REASONS[state.ended];
    view.status.textContent = `${count} tokens, ${end} · seed ${state.seed}${each}`;
    announce(`${count} tokens, ${end}.`);
    view.link();
    view.bits.element.hidden = count < 2;
    view.chart.update(bitsOf(state));
    mark(view);
    view.next.show();
}

/** The surprisal and entropy of each token. */
function drawSurprisal(state, view) {
    view.bits = figure({
        name: "surprisal",
        title: "Surprisal",
        caption:
            "Surprisal is −log₂ p of the generated token; entropy is its expected value. If both are high, the model is " +
            "uncertain. If only surprisal is high, an unlikely token was sampled.",
    });
    view.chart = lineChart({
        series: bitsOf(state),
        x: { title: "token", format: (value) => (Number.isInteger(value) ? value : "") },
        y: { title: "bits", zero: true },
        width: 520,
        height: 220,
        label: "Surprisal and entropy of each token",
    });
    view.bits.body.append(view.chart.element);
    view.bits.table(() => ({
        columns: ["position", "token", "p", "surprisal (bits)", "entropy (bits)"],
        rows: state.tokens.map((token, i) => [i + 1, displayToken(token.token), token.p, -Math.log2(token.p), token.entropy]),
    }));
    view.bits.element.hidden = true;
}

function bitsOf({ tokens }) {
    return [
        { name: "surprisal", points: tokens.map(({ p }, i) => [i + 1, -Math.log2(p)]), dots: tokens.length < 40 },
        { name: "entropy", points: tokens.map(({ entropy }, i) => [i + 1, entropy]), dashed: true, thin: true },
    ];
}

// --- the text -------------------------------------------------------------------------------------------------------

/** The element of a token, without space around it, so that joined scripts render correctly. */
function spanOf(view, token, position) {
    const end = token.id === 0;
    const words = `${displayToken(token.token)}, ${percent(token.p)}`;
    const node = h(
        "span",
        {
            class: ["tok", token.forced && "kept", end && "end"].filter(Boolean).join(" "),
            role: "button",
            tabindex: position === 0 ? "0" : "-1",
            title: words,
            "aria-label": words,
            onclick: () => view.choose(position),
            onkeydown: (event) => walk(event, view, position),
        },
        token.text || (end ? " ⟨end⟩" : "\u200b"),
    );
    paint(node, token.p);
    return node;
}

/** Arrow keys move between tokens in visual order. */
function walk(event, view, position) {
    const nodes = view.text.querySelectorAll(".tok");
    const backwards = runsLeft([...nodes]) ? -1 : 1;
    const offsets = {
        ArrowRight: backwards,
        ArrowLeft: -backwards,
        ArrowDown: 1,
        ArrowUp: -1,
        Home: -Infinity,
        End: Infinity,
    };
    const offset = { ...offsets, Enter: 0, " ": 0 }[event.key];
    if (offset === undefined) return;
    event.preventDefault();
    const next = Math.min(Math.max(position + offset, 0), nodes.length - 1);
    nodes[next].focus();
    view.choose(next);
}

/** Whether the text runs from right to left. */
function runsLeft(nodes) {
    const boxes = nodes
        .slice(0, 40)
        .map((node) => node.getBoundingClientRect())
        .filter((box) => box.width > 0);
    const second = boxes.findIndex((box, i) => i > 0 && box.top === boxes[i - 1].top);
    return second > 0 && boxes[second].left < boxes[second - 1].left;
}

function mark(view) {
    view.text.querySelectorAll(".tok").forEach((node, position) => {
        node.classList.toggle("at", position === view.next.position());
        node.tabIndex = position === view.next.position() ? 0 : -1;
        if (position === view.next.position()) reveal(view.text, node);
    });
}

/** Scroll the text box, not the page, to a token. */
function reveal(frame, node) {
    const [outer, inner] = [frame.getBoundingClientRect(), node.getBoundingClientRect()];
    if (inner.top < outer.top) frame.scrollTop -= outer.top - inner.top + inner.height;
    if (inner.bottom > outer.bottom) frame.scrollTop += inner.bottom - outer.bottom + inner.height;
}

function paint(node, p) {
    const bits = Math.min(-Math.log2(p), MAX_BITS);
    node.style.background = colourOf(bits, 0, COLOUR_RANGE * MAX_BITS);
    node.style.color = inkOn(bits, 0, COLOUR_RANGE * MAX_BITS);
}

function paintAll(view, state) {
    view.text.querySelectorAll(".tok").forEach((node, position) => paint(node, state.tokens[position].p));
    for (const swatch of view.paper.querySelectorAll(".swatch")) paint(swatch, 2 ** -swatch.dataset.bits);
}
