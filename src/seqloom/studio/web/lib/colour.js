// Colour scales and series colours of both themes, for canvases and SVG; style.css has the other colours.

import { PALETTE } from "./palette.js";

// The colour-blind-safe palette of Okabe and Ito, darker in the light theme.
const SERIES = {
    light: ["#1f5fbf", "#c2510a", "#0a7d5a", "#a83279", "#8a6d00", "#3d87b5", "#6b4fbb", "#5c5c5c"],
    dark: ["#7db2ff", "#ff9d5c", "#4fd1a5", "#f08cc6", "#e8cf5a", "#8fd3f5", "#b9a4ff", "#c4c4c4"],
};
// SEQUENTIAL for values from 0; DIVERGING from negative (blue) to positive (red), as in the plots of `seqloom inspect`;
// ATTRIBUTION from against (red) to for (green), as in `seqloom classify --why`.
const SEQUENTIAL = {
    light: ["#fbfcfe", "#d3e3f7", "#93bce9", "#4a87cf", "#1b4f9e", "#0a2a5c"],
    dark: ["#171a21", "#1c3557", "#23609c", "#3d93d6", "#86c8f5", "#e6f5ff"],
};
const DIVERGING = {
    light: ["#123f86", "#5f96d8", "#c5daf3", "#fbfcfe", "#f7d0c8", "#d9685a", "#9a1420"],
    dark: ["#b5dcff", "#4b8fd9", "#1f4270", "#171a21", "#5c2226", "#cf524d", "#ffb5aa"],
};
const ATTRIBUTION = {
    light: ["#9a1420", "#d9685a", "#f7d0c8", "#fbfcfe", "#c3e6d6", "#46a17d", "#0a5a40"],
    dark: ["#ffb5aa", "#cf524d", "#5c2226", "#171a21", "#17452f", "#3f9e78", "#a9ecd0"],
};
const SCALES = { attribution: ATTRIBUTION, gates: { light: PALETTE.gateScale, dark: PALETTE.gateScale } };
const STEPS = 256;
const tables = new Map();
const listeners = new Set();

export function theme() {
    return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

export function setTheme(name) {
    document.documentElement.dataset.theme = name;
    for (const listener of [...listeners]) listener(name);
}

/** Call a listener when the theme changes, until the signal aborts. */
export function onThemeChange(listener, signal) {
    listeners.add(listener);
    signal?.addEventListener("abort", () => listeners.delete(listener));
    return () => listeners.delete(listener);
}

export function series(index) {
    const colours = SERIES[theme()];
    return colours[index % colours.length];
}

/** The colour of a quantity of a cell; `index` selects one for unknown names. */
export function quantityColour(name, index = 0) {
    const others = PALETTE.others[theme()];
    return PALETTE.quantities[name]?.[theme()] ?? others[index % others.length];
}

/** The colour of a bar for a signed value. */
export function signColour(value) {
    return DIVERGING[theme()][value < 0 ? 1 : 5];
}

/** 256 colours as RGBA bytes. `signed` is false, true, "attribution" or "gates". */
export function table(signed = false) {
    const name = `${theme()} ${signed}`;
    const stops = SCALES[signed] ?? (signed ? DIVERGING : SEQUENTIAL);
    if (!tables.has(name)) tables.set(name, interpolate(stops[theme()]));
    return tables.get(name);
}

function interpolate(stops) {
    const parts = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
    const bytes = new Uint8ClampedArray(4 * STEPS);
    for (let step = 0; step < STEPS; step++) {
        const index = (step / (STEPS - 1)) * (parts.length - 1);
        const left = Math.min(Math.floor(index), parts.length - 2);
        for (let c = 0; c < 3; c++) {
            bytes[4 * step + c] = parts[left][c] + (index - left) * (parts[left + 1][c] - parts[left][c]);
        }
        bytes[4 * step + 3] = 255;
    }
    return bytes;
}

/** The index (0 to 255) in the colour table of a value between low and high. */
export function step(value, low, high) {
    const index = Math.round(((value - low) / (high - low || 1)) * (STEPS - 1));
    return Math.min(Math.max(index || 0, 0), STEPS - 1);
}

/** The CSS colour of a value. */
export function colourOf(value, low, high, signed = false) {
    const at = 4 * step(value, low, high);
    const [r, g, b] = table(signed).subarray(at, at + 3);
    return `rgb(${r} ${g} ${b})`;
}

/** Black or white, whichever has more contrast on the colour of a value. */
export function inkOn(value, low, high, signed = false) {
    const at = 4 * step(value, low, high);
    const [r, g, b] = table(signed).subarray(at, at + 3);
    const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) > 0.2 ? "#10141c" : "#ffffff";
}
