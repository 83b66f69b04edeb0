// The next-token distribution at one position, as bars: model probabilities and sampling probabilities. The full
// distribution is requested once; temperature, top-k and top-p are applied here.

import { h, formatNumber } from "../lib/dom.js";
import { figure } from "../lib/figure.js";
import { percent, tokenBars } from "../lib/token_bars.js";
import { samplingProbabilities } from "../lib/sampling.js";
import { displayToken } from "../lib/tokens.js";

export const ALL_TOKENS = null; // top-k without limit
const ROWS = 14; // bars; the table has 200 tokens
const MAX_CACHED = 300; // cached distributions
const CAPTION =
    "Pale bars are probabilities p of the model. Solid bars are sampling probabilities after temperature, top-k and top-p. " +
    "Select a token to force it here and continue.";

/**
 * `state` is the state of the view: run, text, tokens, at, ended, temperature, topK, topP. `place()` is the position whose
 * distribution is shown, `show()` requests it, `paint()` draws it; `onPick(id)` is called for a selected token.
 */
export function nextToken(page, state, onPick) {
    const fig = figure({ name: "next-token", title: "Next-token distribution", caption: CAPTION });
    const bars = tokenBars({ onPick: (row) => onPick(row.id) });
    const summary = h("p", { class: "readout" });
    const cache = new Map(); // distributions by prefix
    fig.body.append(summary, bars.element);

    /** The selected position, otherwise the newest token or, at the end, the token with the highest entropy. */
    function position() {
        if (state.at !== null) return state.at;
        if (state.ended === null) return Math.max(state.tokens.length - 1, 0);
        return state.tokens.reduce((best, token, i) => (token.entropy > state.tokens[best].entropy ? i : best), 0);
    }

    function before() {
        return state.tokens.slice(0, position()).map((token) => token.id);
    }

    function key() {
        return `${state.text}\n${before().join(",")}`;
    }

    async function show() {
        paint();
        const requestKey = key();
        try {
            if (!cache.has(requestKey))
                cache.set(
                    requestKey,
                    await page.request("write/next", { run: state.run.id, text: state.text, forced: before() }),
                );
        } catch (error) {
            return page.fail(error);
        }
        if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
        if (key() === requestKey) paint();
    }

    /** The rows of the full distribution if it is loaded, otherwise of the top tokens in the stream. */
    function rowsNow() {
        const token = state.tokens[position()];
        const distribution = cache.get(key());
        return distribution ? wholeRows(distribution, token, state) : { rows: fewRows(token) };
    }

    function paint() {
        const { rows, kept, count, entropy } = rowsNow();
        const visible = rows.filter((row, i) => i < ROWS || row.chosen);
        bars.update(visible);
        fig.setText(state.tokens.length ? `Next-token distribution at position ${position() + 1}` : "Next-token distribution");
        fig.table(table);
        fig.element.dataset.position = kept === undefined ? "" : position();
        if (kept === undefined) return;
        const remaining = Math.max(
            visible.reduce((left, row) => left - row.p, 1),
            0,
        );
        summary.textContent =
            `${kept.toLocaleString("en")} of ${count.toLocaleString("en")} tokens can be sampled · ` +
            `tokens not shown: ${percent(remaining)} · entropy ${formatNumber(entropy, 2)} bits`;
    }

    function table() {
        return {
            columns: ["rank", "token", "p (model)", "p (sampling)", ""],
            rows: rowsNow().rows.map((row) => [
                row.rank,
                displayToken(row.token),
                row.p,
                row.chance,
                row.chosen ? "selected" : "",
            ]),
        };
    }

    return { element: fig.element, position, show, paint };
}

/** The top tokens that the stream contains for a new token. */
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

function wholeRows(distribution, token, settings) {
    const logs = distribution.arrays.log_probs.data;
    const sampling = samplingProbabilities(logs, distribution.arrays.banned.data, settings);
    const row = (id, name, rank) => ({
        id,
        token: name,
        p: Math.exp(logs[rank - 1]),
        chance: sampling[rank - 1],
        rank,
        chosen: id === token?.id,
    });
    const rows = distribution.tokens.map((name, i) => row(distribution.ids[i], name, i + 1));
    if (token && token.rank > rows.length) rows.push(row(token.id, token.token, token.rank));
    return { rows, kept: sampling.filter((value) => value > 0).length, count: logs.length, entropy: distribution.entropy };
}
