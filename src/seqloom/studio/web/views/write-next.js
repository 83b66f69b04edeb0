// The distribution before one token of a text, as bars: the model's own, and what temperature, top-k and top-p make of
// it. The whole distribution is asked for once; the sliders then act here.

import { h, number } from "../lib/dom.js";
import { figure } from "../lib/figure.js";
import { percent, tokenBars } from "../lib/token_bars.js";
import { chances } from "../lib/sampling.js";
import { shown } from "../lib/tokens.js";

export const ALL = null; // of top-k: no limit
const ROWS = 14; // tokens that are drawn as bars; the table has 200
const KNOWN = 300; // distributions that are kept
const CAPTION =
    "Pale: p, what the model says. Solid: what is drawn from, p^(1/τ) of the tokens that top-k and top-p leave, made to " +
    "sum to 1. Choose a token to put it here and let the model go on.";

/**
 * `state` is that of the view: run, text, tokens, at, ended, temperature, topK, topP. `place()` is the token whose
 * distribution is shown, `show()` asks for it, `paint()` draws what is known of it; `onPick(id)` chooses another token.
 */
export function nextToken(page, state, onPick) {
    const fig = figure({ name: "next-token", title: "The next token", caption: CAPTION });
    const bars = tokenBars({ onPick: (row) => onPick(row.id) });
    const summary = h("p", { class: "readout" });
    const known = new Map(); // distributions by the tokens before them
    fig.body.append(summary, bars.element);

    /** The one chosen; else the newest, and in the end the one least foreseeable. */
    function place() {
        if (state.at !== null) return state.at;
        if (state.ended === null) return Math.max(state.tokens.length - 1, 0);
        return state.tokens.reduce((best, token, i) => (token.entropy > state.tokens[best].entropy ? i : best), 0);
    }

    function before() {
        return state.tokens.slice(0, place()).map((token) => token.id);
    }

    function key() {
        return `${state.text}\n${before().join(",")}`;
    }

    async function show() {
        paint();
        const mine = key();
        try {
            if (!known.has(mine))
                known.set(
                    mine,
                    await page.ask("write/next", { run: state.run.id, text: state.text, forced: before() }),
                );
        } catch (error) {
            return page.fail(error);
        }
        if (known.size > KNOWN) known.delete(known.keys().next().value);
        if (key() === mine) paint();
    }

    /** Rows of all tokens that have names: from the whole distribution, or else from what came with the token. */
    function rowsNow() {
        const token = state.tokens[place()];
        const found = known.get(key());
        return found ? wholeRows(found, token, state) : { rows: fewRows(token) };
    }

    function paint() {
        const { rows, kept, count, entropy } = rowsNow();
        const few = rows.filter((row, i) => i < ROWS || row.chosen);
        bars.update(few);
        fig.say(state.tokens.length ? `Before token ${place() + 1}: what comes next?` : "What comes next?");
        fig.table(table);
        fig.element.dataset.place = kept === undefined ? "" : place();
        if (kept === undefined) return;
        const rest = Math.max(
            few.reduce((left, row) => left - row.p, 1),
            0,
        );
        summary.textContent =
            `${kept.toLocaleString("en")} of ${count.toLocaleString("en")} tokens can be drawn · ` +
            `those not shown hold ${percent(rest)} · entropy ${number(entropy, 2)} bits`;
    }

    function table() {
        return {
            columns: ["rank", "token", "p of the model", "drawn with", ""],
            rows: rowsNow().rows.map((row) => [
                row.rank,
                shown(row.token),
                row.p,
                row.chance,
                row.chosen ? "stands here" : "",
            ]),
        };
    }

    return { element: fig.element, place, show, paint };
}

/** Of a token that has just come: its likeliest rivals, as the server drew. */
function fewRows(token) {
    return (token?.top ?? []).map(([id, name, p, chance], i) => ({
        id,
        token: name,
        p,
        chance,
        rank: i + 1,
        chosen: id === token.id,
    }));
}

function wholeRows(found, token, settings) {
    const logs = found.arrays.log_probs.data;
    const drawn = chances(logs, found.arrays.banned.data, settings);
    const row = (id, name, rank) => ({
        id,
        token: name,
        p: Math.exp(logs[rank - 1]),
        chance: drawn[rank - 1],
        rank,
        chosen: id === token?.id,
    });
    const rows = found.tokens.map((name, i) => row(found.ids[i], name, i + 1));
    if (token && token.rank > rows.length) rows.push(row(token.id, token.token, token.rank));
    return { rows, kept: drawn.filter((value) => value > 0).length, count: logs.length, entropy: found.entropy };
}
