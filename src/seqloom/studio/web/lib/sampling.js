// What temperature, top-k and top-p make of a model's distribution: the same, in the same order, as the server's
// decoding/processors.py, so that sliders act at once. All tokens come sorted, the most probable first.

const GREEDY_BELOW = 1e-5;

/**
 * From log p of every token (banned ones marked) to the chances a token is drawn with.
 * `temperature` 0 takes the most probable; `topK` null keeps all; `topP` 1 keeps all.
 */
export function chances(logProbs, banned, { temperature, topK, topP }) {
    const p = normalised(Float64Array.from(logProbs, (value, i) => (banned[i] ? 0 : Math.exp(value))));
    if (temperature < GREEDY_BELOW)
        return only(
            p,
            p.findIndex((value, i) => !banned[i]),
        );
    const shaped = temperature === 1 ? p : normalised(sharpened(logProbs, banned, temperature));
    const few = topK === null ? shaped : normalised(firstOnes(shaped, banned, topK));
    return topP < 1 ? normalised(nucleus(few, topP)) : few;
}

/** p^(1/τ); the largest log p is taken off first, so that a small τ cannot make all of them vanish. */
function sharpened(logProbs, banned, temperature) {
    const most = logProbs.find((value, i) => !banned[i]) ?? 0;
    return Float64Array.from(logProbs, (value, i) => (banned[i] ? 0 : Math.exp((value - most) / temperature)));
}

function firstOnes(p, banned, count) {
    let taken = 0;
    return p.map((value, i) => (!banned[i] && taken++ < count ? value : 0));
}

/** The fewest tokens that hold the share `wanted`: one is needed if those before it do not suffice. */
function nucleus(p, wanted) {
    let before = 0;
    return p.map((value) => {
        const needed = before < wanted;
        before += value;
        return needed ? value : 0;
    });
}

function only(p, place) {
    return p.map((value, i) => (i === place ? 1 : 0));
}

function normalised(p) {
    const total = p.reduce((sum, value) => sum + value, 0);
    return total > 0 ? p.map((value) => value / total) : p;
}
