// Translate and generate: the text as it is written, token by token; the distribution each token was drawn from, as
// temperature, top-k and top-p shape it; and other tokens to put in its place.

import { h, clear, fill, calmly, number, say } from "../lib/dom.js";
import { colourOf, inkOn, onTheme } from "../lib/colour.js";
import { button, checkbox, controls, examplesFor, numberBox, runPicker, slider, textBox } from "../lib/controls.js";
import { lineChart } from "../lib/chart.js";
import { figure } from "../lib/figure.js";
import { percent } from "../lib/token_bars.js";
import { shown } from "../lib/tokens.js";
import { writerOf } from "../lib/writers.js";
import { ALL, nextToken } from "./write-next.js";
import { showGaps } from "./write-gaps.js";

export const title = "Translate and generate";
export const lead =
    "A model writes one token after another: it gives every token of its vocabulary a probability, one is drawn, and " +
    "it goes on from there. Choose a place in the text to see what else might have stood there; choose another token " +
    "to force it.";
export const needs = "It needs a language model, a masked one too, a translator or a denoiser.";

const KS = [1, 2, 3, 4, 5, 8, 10, 15, 20, 30, 40, 50, 75, 100, 200, 500, 1000, ALL];
const SURPRISED = 12; // bits from which a token has the deepest shade
const CALM = 3; // only a third of the scale of colours is used, so that text stays easy to read
const REST = 250; // milliseconds sliders must rest before the text is redrawn
const ENDS = { end: "ended by the model", length: "cut at the longest allowed", stopped: "stopped" };

export async function show(page) {
    const run = page.chosen();
    if (run.task === "masked-lm") return showGaps(page, run);
    const state = startState(page, run);
    const view = parts(page, state);
    const left = h("div", {}, view.paper, view.bits.element);
    fill(page.root, view.panel, h("div", { class: "side-by-side writing" }, left, view.next.element));
    onTheme(() => paintAll(view, state), page.signal);
    paintAll(view, state);
    await writeText(page, state, view);
}

/** All that the address says, and what was written so far. */
function startState(page, run) {
    const writer = writerOf(run);
    const given = (name, otherwise, low, high) => {
        const value = page.params.has(name) ? Number(page.params.get(name)) : NaN;
        return Number.isFinite(value) ? Math.min(Math.max(value, low), high) : otherwise;
    };
    return {
        run,
        writer,
        text: page.params.get("text") ?? writer.example,
        temperature: given("temperature", writer.source ? 0 : 1, 0, 2),
        topK: KS[placeOfK(given("k", ALL, 1, 1e7))],
        topP: given("p", 1, 0.01, 1),
        seed: given("seed", 0, 0, 2 ** 31 - 1),
        length: given("length", writer.source ? 100 : 60, 1, 400),
        forced: (page.params.get("forced") ?? "").split(",").filter(Boolean).map(Number),
        at: given("at", null, 0, 399), // the place that was chosen
        redraw: page.params.get("redraw") !== "0",
        tokens: [],
        ended: null,
        stop: null,
    };
}

function keep(page, state) {
    page.set({
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
        text: h("div", { class: "written", dir: "auto", role: "group", "aria-label": "The text, token by token" }),
        status: h("p", { class: "readout" }),
        notes: h("div", {}),
        halt: button("Stop", () => state.stop?.abort(), { title: "Stop writing" }),
    };
    view.again = () => writeText(page, state, view).catch((error) => page.fail(error));
    view.fresh = (changes) => {
        Object.assign(state, { forced: [], at: null }, changes);
        view.again();
    };
    view.next = nextToken(page, state, (token) => {
        const place = view.next.place();
        state.forced = [...idsBefore(state, place), token];
        state.at = place;
        view.again();
    });
    view.choose = (place) => {
        state.at = place;
        keep(page, state);
        mark(view);
        view.next.show();
    };
    view.seed = numberBox("Seed", { min: 0, max: 2 ** 31 - 1, value: state.seed }, (value) =>
        view.fresh({ seed: Math.round(value) }),
    );
    view.paper = paperOf(page, state, view);
    view.panel = panelOf(page, state, view);
    surprise(state, view);
    return view;
}

function idsBefore(state, place) {
    return state.tokens.slice(0, place).map((token) => token.id);
}

function paperOf(page, state, view) {
    view.another = button("Another seed", () => {
        view.seed.querySelector("input").value = state.seed + 1;
        view.fresh({ seed: state.seed + 1 });
    });
    chance(state, view);
    const start = button("From the start", () => view.fresh({}), { title: "Write again, nothing forced" });
    view.beam = h("a", {}, "What beam search finds");
    view.link = () => (view.beam.href = page.link("beam", { run: state.run.id, text: state.text }));
    return h(
        "section",
        { class: "figure paper", "aria-label": "Text" },
        h(
            "div",
            { class: "figure-head" },
            h("h2", {}, state.writer.made),
            h("div", { class: "tools" }, view.halt, view.another, start),
        ),
        view.text,
        view.status,
        legend(),
        view.notes,
        h("p", { class: "other" }, view.beam),
    );
}

/** Where the likeliest token is always taken, every seed gives the same text. */
function chance(state, view) {
    const none = state.temperature === 0 || state.topK === 1;
    view.another.disabled = none;
    view.another.title = none
        ? "Nothing is drawn here: the likeliest token is always taken. Raise the temperature, or k."
        : "Draw again, by other chance";
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
        controls(runPicker(page, { value: state.run.id, onchange: (id) => page.go("write", { run: id }) }), box),
        examplesFor(state.run, box, examples),
        controls(
            slider(
                "Temperature τ",
                { min: 0, max: 2, step: 0.05, value: state.temperature, format: warmth },
                turn("temperature"),
            ),
            slider(
                "Top-k",
                { min: 0, max: KS.length - 1, step: 1, value: placeOfK(state.topK), format: few },
                (place) => turn("topK")(KS[place]),
            ),
            slider("Top-p", { min: 0.05, max: 1, step: 0.01, value: state.topP, format: share }, turn("topP")),
            numberBox("Longest, tokens", { min: 1, max: 400, value: state.length }, (value) =>
                view.fresh({ length: Math.round(value) }),
            ),
            view.seed,
            checkbox("Redraw as sliders move", state.redraw, (on) => {
                state.redraw = on;
                keep(page, state);
            }),
        ),
    );
}

/** Sliders act on the bars at once; the text after the chosen place is drawn again once they rest. */
function turner(page, state, view) {
    const redraw = calmly(() => {
        if (!state.redraw || page.signal.aborted) return;
        if (state.at > 0 && state.at < state.tokens.length) state.forced = idsBefore(state, state.at);
        view.again();
    }, REST);
    return (name) => (value) => {
        state[name] = value;
        keep(page, state);
        chance(state, view);
        view.next.paint();
        redraw();
    };
}

function placeOfK(k) {
    const found = k === ALL ? -1 : KS.findIndex((one) => one !== ALL && one >= k);
    return found < 0 ? KS.length - 1 : found;
}

function warmth(value) {
    if (value === 0) return "0: always the likeliest";
    return value === 1 ? "1: as the model says" : number(value, 2);
}

function few(place) {
    return KS[place] === ALL ? "all tokens" : KS[place];
}

function share(p) {
    return p === 1 ? "all of it" : `${Math.round(100 * p)} %`;
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
        { class: "legend surprise" },
        h("span", { class: "hint" }, "Probability of each token:"),
        steps,
        h("span", { class: "key" }, h("span", { class: "kept-mark" }, "abc"), "forced"),
    );
}

// --- writing --------------------------------------------------------------------------------------------------------

async function writeText(page, state, view) {
    state.stop?.abort();
    const stop = (state.stop = new AbortController());
    Object.assign(state, { tokens: [], ended: null });
    keep(page, state);
    page.fine();
    fill(view.text, (view.made = h("span", { class: "made" })));
    clear(view.notes);
    view.halt.disabled = false;
    view.status.textContent = "Writing …";
    try {
        for await (const event of page.stream("write/stream", questionOf(state), stop.signal)) take(state, view, event);
    } catch (error) {
        if (state.stop !== stop || page.signal.aborted) return; // another text is being written
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
    if (event.begin) return begun(view, event.begin);
    if (event.end) return (state.ended = event.end);
    state.tokens.push(event);
    view.made.append(spanOf(view, event, state.tokens.length - 1));
    if (view.next.place() === state.tokens.length - 1) soon(view);
}

/** Bars follow the newest token, once for each picture the screen shows. */
function soon(view) {
    view.due ??= requestAnimationFrame(() => {
        view.due = null;
        view.next.paint();
        view.text.scrollTop = view.text.scrollHeight;
    });
}

function begun(view, { prompt, notes }) {
    if (prompt) view.text.prepend(h("span", { class: "prompt" }, prompt));
    fill(
        view.notes,
        notes.map((note) => h("p", { class: "note", dir: "auto" }, `Note: ${note}.`)),
    );
}

function finish(state, view) {
    const count = state.tokens.length;
    if (state.at !== null && state.at >= count) state.at = count ? count - 1 : null;
    const bits = state.tokens.reduce((sum, token) => sum - Math.log2(token.p), 0);
    const each = count ? ` · ${number(bits / count, 2)} bits a token` : "";
    const end = state.ended === "end" && state.tokens.at(-1)?.forced ? "its end was forced" : ENDS[state.ended];
    view.status.textContent = `${count} tokens, ${end} · seed ${state.seed}${each}`;
    say(`${count} tokens, ${end}.`);
    view.link();
    view.bits.element.hidden = count < 2;
    view.chart.update(bitsOf(state));
    mark(view);
    view.next.show();
}

/** How surprising each token was, and how surprising the model expected one to be. */
function surprise(state, view) {
    view.bits = figure({
        name: "surprise",
        title: "Surprise",
        caption:
            "Surprise: −log₂ p of the token that came. Entropy: the surprise the model expects on average. Where both " +
            "are high, it does not know; where only surprise is, chance took an unlikely token.",
    });
    view.chart = lineChart({
        series: bitsOf(state),
        x: { title: "token", format: (value) => (Number.isInteger(value) ? value : "") },
        y: { title: "bits", zero: true },
        width: 520,
        height: 220,
        label: "Surprise and entropy of each token",
    });
    view.bits.body.append(view.chart.element);
    view.bits.table(() => ({
        columns: ["place", "token", "p", "surprise, bits", "entropy, bits"],
        rows: state.tokens.map((token, i) => [i + 1, shown(token.token), token.p, -Math.log2(token.p), token.entropy]),
    }));
    view.bits.element.hidden = true;
}

function bitsOf({ tokens }) {
    return [
        { name: "surprise", points: tokens.map(({ p }, i) => [i + 1, -Math.log2(p)]), dots: tokens.length < 40 },
        { name: "entropy", points: tokens.map(({ entropy }, i) => [i + 1, entropy]), dashed: true, thin: true },
    ];
}

// --- the text -------------------------------------------------------------------------------------------------------

/** A token in the text: its own letters, nothing between it and the next, so that scripts join as they should. */
function spanOf(view, token, place) {
    const end = token.id === 0;
    const words = `${shown(token.token)}, ${percent(token.p)}`;
    const node = h(
        "span",
        {
            class: ["tok", token.forced && "kept", end && "end"].filter(Boolean).join(" "),
            role: "button",
            tabindex: place === 0 ? "0" : "-1",
            title: words,
            "aria-label": words,
            onclick: () => view.choose(place),
            onkeydown: (event) => walk(event, view, place),
        },
        token.text || (end ? " ⟨end⟩" : "\u200b"),
    );
    paint(node, token.p);
    return node;
}

/** Arrow keys go from token to token, as the eye sees them. */
function walk(event, view, place) {
    const nodes = view.text.querySelectorAll(".tok");
    const backwards = runsLeft([...nodes]) ? -1 : 1;
    const ways = {
        ArrowRight: backwards,
        ArrowLeft: -backwards,
        ArrowDown: 1,
        ArrowUp: -1,
        Home: -Infinity,
        End: Infinity,
    };
    const way = { ...ways, Enter: 0, " ": 0 }[event.key];
    if (way === undefined) return;
    event.preventDefault();
    const next = Math.min(Math.max(place + way, 0), nodes.length - 1);
    nodes[next].focus();
    view.choose(next);
}

/** Whether the second token on a line stands left of the first. */
function runsLeft(nodes) {
    const boxes = nodes
        .slice(0, 40)
        .map((node) => node.getBoundingClientRect())
        .filter((box) => box.width > 0);
    const second = boxes.findIndex((box, i) => i > 0 && box.top === boxes[i - 1].top);
    return second > 0 && boxes[second].left < boxes[second - 1].left;
}

function mark(view) {
    view.text.querySelectorAll(".tok").forEach((node, place) => {
        node.classList.toggle("at", place === view.next.place());
        node.tabIndex = place === view.next.place() ? 0 : -1;
        if (place === view.next.place()) reveal(view.text, node);
    });
}

/** A long text scrolls by itself: the page stays where it is. */
function reveal(frame, node) {
    const [outer, inner] = [frame.getBoundingClientRect(), node.getBoundingClientRect()];
    if (inner.top < outer.top) frame.scrollTop -= outer.top - inner.top + inner.height;
    if (inner.bottom > outer.bottom) frame.scrollTop += inner.bottom - outer.bottom + inner.height;
}

function paint(node, p) {
    const bits = Math.min(-Math.log2(p), SURPRISED);
    node.style.background = colourOf(bits, 0, CALM * SURPRISED);
    node.style.color = inkOn(bits, 0, CALM * SURPRISED);
}

function paintAll(view, state) {
    view.text.querySelectorAll(".tok").forEach((node, place) => paint(node, state.tokens[place].p));
    for (const swatch of view.paper.querySelectorAll(".swatch")) paint(swatch, 2 ** -swatch.dataset.bits);
}
