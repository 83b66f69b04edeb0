// Temperature, top-k and top-p in the browser, in the order of decoding/processors.py, so that sliders need no request.
// Tokens are sorted by descending probability.

const GREEDY_BELOW = 1e-5;

/**
 * The sampling probabilities, given log p and a mask of banned tokens.
 * `temperature` 0 is greedy; `topK` null and `topP` 1 keep all tokens.
 */
export function samplingProbabilities(logProbs, banned, { temperature, topK, topP }) {
    const p = normalize(Float64Array.from(logProbs, (value, i) => (banned[i] ? 0 : Math.exp(value))));
    if (temperature < GREEDY_BELOW)
        return oneHot(
            p,
            p.findIndex((value, i) => !banned[i]),
        );
    const shaped = temperature === 1 ? p : normalize(applyTemperature(logProbs, banned, temperature));
    const topTokens = topK === null ? shaped : normalize(keepFirst(shaped, banned, topK));
    return topP < 1 ? normalize(nucleus(topTokens, topP)) : topTokens;
}

/** p^(1/τ); the largest log p is subtracted first to avoid underflow at small τ. */
function applyTemperature(logProbs, banned, temperature) {
    const maximum = logProbs.find((value, i) => !banned[i]) ?? 0;
    return Float64Array.from(logProbs, (value, i) => (banned[i] ? 0 : Math.exp((value - maximum) / temperature)));
}

function keepFirst(p, banned, count) {
    let cumulative = 0;
    return p.map((value, i) => (!banned[i] && cumulative++ < count ? value : 0));
}

/** The smallest set of tokens whose probabilities sum to at least `mass`. */
function nucleus(p, mass) {
    let before = 0;
    return p.map((value) => {
        const needed = before < mass;
        before += value;
        return needed ? value : 0;
    });
}

function oneHot(p, index) {
    return p.map((value, i) => (i === index ? 1 : 0));
}

function normalize(p) {
    const total = p.reduce((sum, value) => sum + value, 0);
    return total > 0 ? p.map((value) => value / total) : p;
}
