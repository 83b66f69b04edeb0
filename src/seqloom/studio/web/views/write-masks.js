// Masked language models: the predictions for each [MASK], and bars for the selected mask.

import { h, setChildren } from "../lib/dom.js";
import { controls, examplesFor, runPicker, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { percent, tokenBars } from "../lib/token_bars.js";
import { displayToken } from "../lib/tokens.js";
import { withMask } from "../lib/generators.js";

const ROWS = 14;
const HINT =
    "Each mask shows its most probable token. Select a mask, then a token to insert it; the other masks are then " +
    "predicted again.";
const CAPTION = "p(token | text on both sides). Select a token to insert it.";

export async function showGaps(page, run) {
    const text = page.params.get("text") ?? withMask(run.example ?? "");
    const state = { run, text, gap: Number(page.params.get("at")) || 0, data: null, latestRequest: null };
    const view = parts(page, state);
    setChildren(page.root, view.panel, h("div", { class: "side-by-side writing" }, view.paper, view.figure.element));
    await load(page, state, view, {});
}

function parts(page, state) {
    const reload = (change) => load(page, state, view, change).catch((error) => page.fail(error));
    const view = {
        figure: figure({ name: "next-token", title: "Predictions for the mask", caption: CAPTION }),
        bars: tokenBars({ heads: ["token", "model", ""], onPick: (row) => reload({ mask: state.gap, token: row.id }) }),
        summary: h("p", { class: "readout" }),
        text: h("div", { class: "written", dir: "auto", role: "group", "aria-label": "Text with masks" }),
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
        "Text with [MASK] tokens",
        state.text,
        (text) => {
            Object.assign(state, { text, gap: 0 });
            page.setParams({ text, at: null });
            reload({});
        },
        { rows: 2, button: "Fill" },
    );
    view.panel = h(
        "div",
        {},
        controls(runPicker(page, { value: state.run.id, onchange: (id) => page.navigate("write", { run: id }) }), form),
        examplesFor(state.run, form, (state.run.examples ?? []).map(withMask)),
    );
    view.box = form.box;
    view.figure.body.append(view.summary, view.bars.element);
    view.figure.table(() => tableOf(state));
    view.choose = (gap) => {
        state.gap = gap;
        page.setParams({ at: gap || null });
        paint(state, view);
    };
    return view;
}

async function load(page, state, view, change) {
    page.clearError();
    const requestId = (state.latestRequest = {});
    const data = await page.request("write/fill", { run: state.run.id, text: state.text, ...change });
    if (state.latestRequest !== requestId) return; // superseded by a newer request
    state.data = data;
    state.text = view.box.value = state.data.text;
    state.gap = Math.min(state.gap, Math.max(state.data.masks.length - 1, 0));
    page.setParams({ run: state.run.id, text: state.text, at: state.gap || null });
    paint(state, view);
}

function paint(state, view) {
    const { around, masks, filled, notes } = state.data;
    setChildren(
        view.text,
        around.map((piece, index) => [piece, index < masks.length ? maskButton(state, view, index) : null]),
    );
    const noMaskMessage = "The text has no mask. Write [MASK] where a token should be predicted.";
    view.filled.textContent = masks.length ? `Filled: ${filled}` : noMaskMessage;
    setChildren(
        view.notes,
        notes.map((note) => h("p", { class: "note", dir: "auto" }, `Note: ${note}.`)),
    );
    const rows = rowsOf(state);
    view.bars.update(rows.slice(0, ROWS));
    view.figure.element.dataset.position = state.gap;
    view.figure.setText(masks.length > 1 ? `Predictions for mask ${state.gap + 1}` : "Predictions for the mask");
    const remaining = rows.slice(0, ROWS).reduce((left, row) => left - row.p, 1);
    view.summary.textContent = rows.length ? `Tokens not shown: ${percent(Math.max(remaining, 0))}` : "";
    view.figure.table(() => tableOf(state));
}

function maskButton(state, view, index) {
    const [, token, p] = state.data.masks[index][0];
    return h(
        "button",
        {
            type: "button",
            class: "gap",
            "aria-pressed": String(index === state.gap),
            dir: "auto",
            title: `${displayToken(token)}: ${percent(p)}`,
            onclick: () => view.choose(index),
        },
        displayToken(token),
    );
}

function rowsOf({ data, gap }) {
    const guesses = data.masks[gap] ?? [];
    return guesses.map(([id, token, p], index) => ({
        id,
        token,
        p,
        chance: null,
        rank: index + 1,
        chosen: index === 0,
    }));
}

function tableOf(state) {
    const rows = state.data ? rowsOf(state).map((row) => [row.rank, displayToken(row.token), row.p]) : [];
    return { columns: ["rank", "token", "p"], rows };
}
