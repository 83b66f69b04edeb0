// Questions to the server, and its answers: JSON, JSON with arrays behind it, or a line after another.

const KEPT = "seqloom-token";
let token = null;

/** The token of the opening address is kept for further tabs of this same address, and sent in a header. */
export function useToken(fresh) {
    try {
        if (fresh) localStorage.setItem(KEPT, fresh);
        token = fresh ?? localStorage.getItem(KEPT);
    } catch {
        token = fresh ?? token; // inside a notebook there may be no storage
    }
}

export function hasToken() {
    return Boolean(token);
}

/** What the server refused, in its own words. */
export class Refused extends Error {
    constructor(message, status) {
        super(message);
        this.status = status;
    }
}

async function post(path, body, signal) {
    let answer;
    try {
        answer = await fetch(`/api/${path}`, {
            method: "POST",
            headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
            body: JSON.stringify(body ?? {}),
            signal,
        });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Refused("The studio does not answer: it was ended. Start it again: seqloom studio", 0);
    }
    if (answer.ok) return answer;
    const told = await answer.json().catch(() => ({}));
    throw new Refused(told.error ?? `The studio answered with ${answer.status}.`, answer.status);
}

/** Ask, and get an object; its `arrays` are decoded to {shape, low, high, data: Float32Array}. */
export async function ask(path, body, signal) {
    const answer = await post(path, body, signal);
    const kind = answer.headers.get("content-type") ?? "";
    if (!kind.startsWith("application/x-seqloom-arrays")) return answer.json();
    return unpack(await answer.arrayBuffer());
}

/** An async iterator over the objects of an answer that comes line by line. */
export async function* stream(path, body, signal) {
    const answer = await post(path, body, signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
        for (;;) {
            const { done, value } = await reader.read();
            const lines = (rest + (value ?? "")).split("\n");
            rest = done ? "" : lines.pop();
            for (const line of lines.filter(Boolean)) yield checked(JSON.parse(line));
            if (done) return;
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}

function checked(event) {
    if (event.error) throw new Refused(event.error, 400);
    return event;
}

/** See studio/arrays.py for how it is laid out. */
function unpack(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    const first = 4 + length;
    for (const array of Object.values(head.arrays)) {
        const size = array.shape.reduce((product, n) => product * n, 1);
        array.data = READERS[array.kind](buffer, first, array, size);
    }
    return head;
}

const READERS = { u1: fromBytes, f2: fromHalves, f4: fromSingles };

function fromSingles(buffer, first, { begin }, size) {
    return new Float32Array(buffer, first + begin, size);
}

function fromBytes(buffer, first, { begin, low, high }, size) {
    const bytes = new Uint8Array(buffer, first + begin, size);
    const step = (high - low) / 255;
    const floats = new Float32Array(size);
    for (let i = 0; i < size; i++) floats[i] = low + bytes[i] * step;
    return floats;
}

function fromHalves(buffer, first, { begin }, size) {
    const halves = new Uint16Array(buffer, first + begin, size);
    const floats = new Float32Array(size);
    const table = halfTable();
    for (let i = 0; i < size; i++) floats[i] = table[halves[i]];
    return floats;
}

let halfValues = null;

/** The value of each of the 65,536 float16 numbers: sign, 5 bits of exponent, 10 of mantissa. */
function halfTable() {
    if (halfValues) return halfValues;
    halfValues = new Float32Array(65536);
    for (let bits = 0; bits < 65536; bits++) {
        const sign = bits & 0x8000 ? -1 : 1;
        const exponent = (bits >> 10) & 31;
        const mantissa = bits & 1023;
        if (exponent === 0) halfValues[bits] = (sign * mantissa * 2 ** -14) / 1024;
        else if (exponent === 31) halfValues[bits] = mantissa ? NaN : sign * Infinity;
        else halfValues[bits] = sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
    }
    return halfValues;
}
