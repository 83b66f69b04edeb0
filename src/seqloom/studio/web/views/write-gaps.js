// A masked language model reads a text with gaps, [MASK], from both sides: what may stand at each, one of them as bars.

import { h, fill } from "../lib/dom.js";
import { controls, examplesFor, runPicker, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { percent, tokenBars } from "../lib/token_bars.js";
import { shown } from "../lib/tokens.js";
import { withGap } from "../lib/writers.js";

const ROWS = 14;
const HINT =
    "In each gap stands the token the model finds most probable, given all that stands around it. Choose a gap, then a " +
    "token: it is written there, and the other gaps are told anew.";
const CAPTION = "p of each token of the vocabulary, given the text on both sides. Choose one to write it there.";

export async function showGaps(page, run) {
    const text = page.params.get("text") ?? withGap(run.example ?? "");
    const state = { run, text, gap: Number(page.params.get("at")) || 0, found: null, asked: null };
    const view = parts(page, state);
    fill(page.root, view.panel, h("div", { class: "side-by-side writing" }, view.paper, view.figure.element));
    await ask(page, state, view, {});
}

function parts(page, state) {
    const again = (change) => ask(page, state, view, change).catch((error) => page.fail(error));
    const view = {
        figure: figure({ name: "next-token", title: "What stands here?", caption: CAPTION }),
        bars: tokenBars({ heads: ["token", "model", ""], onPick: (row) => again({ mask: state.gap, token: row.id }) }),
        summary: h("p", { class: "readout" }),
        text: h("div", { class: "written", dir: "auto", role: "group", "aria-label": "The text with its gaps" }),
        filled: h("p", { class: "readout", dir: "auto" }),
        notes: h("div", {}),
    };
    view.paper = h(
        "section",
        { class: "figure paper", "aria-label": "Text" },
        h("div", { class: "figure-head" }, h("h2", {}, "Text")),
        view.text,
        view.filled,
        h("p", { class: "hint" }, HINT),
        view.notes,
    );
    const form = textBox(
        "Text with gaps, each written [MASK]",
        state.text,
        (text) => {
            Object.assign(state, { text, gap: 0 });
            page.set({ text, at: null });
            again({});
        },
        { rows: 2, button: "Fill" },
    );
    view.panel = h(
        "div",
        {},
        controls(runPicker(page, { value: state.run.id, onchange: (id) => page.go("write", { run: id }) }), form),
        examplesFor(state.run, form, (state.run.examples ?? []).map(withGap)),
    );
    view.box = form.box;
    view.figure.body.append(view.summary, view.bars.element);
    view.figure.table(() => tableOf(state));
    view.choose = (gap) => {
        state.gap = gap;
        page.set({ at: gap || null });
        paint(state, view);
    };
    return view;
}

async function ask(page, state, view, change) {
    page.fine();
    const mine = (state.asked = {});
    const found = await page.ask("write/fill", { run: state.run.id, text: state.text, ...change });
    if (state.asked !== mine) return; // another text was asked for since
    state.found = found;
    state.text = view.box.value = state.found.text;
    state.gap = Math.min(state.gap, Math.max(state.found.masks.length - 1, 0));
    page.set({ run: state.run.id, text: state.text, at: state.gap || null });
    paint(state, view);
}

function paint(state, view) {
    const { around, masks, filled, notes } = state.found;
    fill(
        view.text,
        around.map((piece, place) => [piece, place < masks.length ? gapOf(state, view, place) : null]),
    );
    const none = "No gap is left. Write [MASK] where a token shall be told.";
    view.filled.textContent = masks.length ? `Filled: ${filled}` : none;
    fill(
        view.notes,
        notes.map((note) => h("p", { class: "note", dir: "auto" }, `Note: ${note}.`)),
    );
    const rows = rowsOf(state);
    view.bars.update(rows.slice(0, ROWS));
    view.figure.element.dataset.place = state.gap;
    view.figure.say(masks.length > 1 ? `Gap ${state.gap + 1}: what stands here?` : "What stands here?");
    const rest = rows.slice(0, ROWS).reduce((left, row) => left - row.p, 1);
    view.summary.textContent = rows.length ? `Tokens not shown hold ${percent(Math.max(rest, 0))}` : "";
    view.figure.table(() => tableOf(state));
}

function gapOf(state, view, place) {
    const [, token, p] = state.found.masks[place][0];
    return h(
        "button",
        {
            type: "button",
            class: "gap",
            "aria-pressed": String(place === state.gap),
            dir: "auto",
            title: `${shown(token)}: ${percent(p)}`,
            onclick: () => view.choose(place),
        },
        shown(token),
    );
}

function rowsOf({ found, gap }) {
    const guesses = found.masks[gap] ?? [];
    return guesses.map(([id, token, p], place) => ({
        id,
        token,
        p,
        chance: null,
        rank: place + 1,
        chosen: place === 0,
    }));
}

function tableOf(state) {
    const rows = state.found ? rowsOf(state).map((row) => [row.rank, shown(row.token), row.p]) : [];
    return { columns: ["rank", "token", "p of the model"], rows };
}
