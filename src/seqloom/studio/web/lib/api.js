// Requests to the server. Responses are JSON, JSON with arrays, or JSON lines.

const STORAGE_KEY = "seqloom-token";
let token = null;

/** Store the access token of the start address for other tabs of this origin. */
export function useToken(fresh) {
    try {
        if (fresh) localStorage.setItem(STORAGE_KEY, fresh);
        token = fresh ?? localStorage.getItem(STORAGE_KEY);
    } catch {
        token = fresh ?? token; // storage may be unavailable inside a notebook
    }
}

export function hasToken() {
    return Boolean(token);
}

/** An error response of the server. */
export class RequestError extends Error {
    constructor(message, status) {
        super(message);
        this.status = status;
    }
}

async function post(path, body, signal) {
    let response;
    try {
        response = await fetch(`/api/${path}`, {
            method: "POST",
            headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
            body: JSON.stringify(body ?? {}),
            signal,
        });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new RequestError("The studio server does not respond. Start it again: seqloom studio", 0);
    }
    if (response.ok) return response;
    const details = await response.json().catch(() => ({}));
    throw new RequestError(details.error ?? `The server responded with status ${response.status}.`, response.status);
}

/** Send a request and return the response; its `arrays` are decoded to {shape, low, high, data: Float32Array}. */
export async function request(path, body, signal) {
    const response = await post(path, body, signal);
    const kind = response.headers.get("content-type") ?? "";
    if (!kind.startsWith("application/x-seqloom-arrays")) return response.json();
    return unpack(await response.arrayBuffer());
}

/** Iterate over the objects of a JSON-lines response. */
export async function* stream(path, body, signal) {
    const response = await post(path, body, signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    try {
        for (;;) {
            const { done, value } = await reader.read();
            const lines = (buffer + (value ?? "")).split("\n");
            buffer = done ? "" : lines.pop();
            for (const line of lines.filter(Boolean)) yield throwIfError(JSON.parse(line));
            if (done) return;
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}

function throwIfError(event) {
    if (event.error) throw new RequestError(event.error, 400);
    return event;
}

/** Decode the format that studio/endpoints.py describes. */
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

/** The values of all 65,536 float16 bit patterns: sign, 5 bits of exponent, 10 of mantissa. */
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
