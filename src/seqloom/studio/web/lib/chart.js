// A line chart in SVG with a readout of all series under the pointer.

import { h, s, clear, formatNumber } from "./dom.js";
import { onThemeChange, series as colour } from "./colour.js";

const ROOM = { left: 84, right: 18, top: 14, bottom: 50 };
const DASH = { dashed: "6 5", dotted: "2 4" };

/**
 * `series`: [{name, points: [[x, y] …], colour?, dashed?, dotted?, dots?, thin?}]; `colour` is a series index.
 * `x`, `y`: {title, log, format}; `width` and `height` in pixels; `legend` "always" also labels a single series.
 */
export function lineChart(options) {
    let now = { width: 860, height: 340, x: {}, y: {}, legend: true, ...options };
    const drawing = s("svg", { class: "chart", role: "img", "aria-label": now.label ?? now.y?.title ?? "Chart" });
    const key = h("div", { class: "legend" });
    const readout = h("p", { class: "readout", "aria-hidden": "true" });
    const element = h("div", { class: "chart-frame" }, key, drawing, readout);
    let scales = null;

    function draw() {
        drawing.setAttribute("viewBox", `0 0 ${now.width} ${now.height}`);
        drawing.setAttribute("width", now.width);
        drawing.setAttribute("height", now.height);
        scales = { x: axis(now, 0), y: axis(now, 1) };
        clear(drawing).append(
            ...ticks(now, scales),
            ...now.series.flatMap((curve, i) => line(curve, i, scales)),
            s("g", { class: "cursor" }),
        );
        clear(key);
        if (now.legend === "always" || (now.legend && now.series.length > 1)) key.append(...now.series.map(keyOf));
    }

    function keyOf(curve, i) {
        const swatch = s(
            "svg",
            { width: 28, height: 12, "aria-hidden": "true" },
            s("line", {
                x1: 0,
                x2: 28,
                y1: 6,
                y2: 6,
                stroke: colour(curve.colour ?? i),
                "stroke-width": curve.thin ? 1.5 : 3,
                "stroke-dasharray": dashes(curve),
            }),
        );
        return h("span", { class: "key", dir: "auto" }, swatch, curve.name);
    }

    function read(x) {
        const candidates = now.series.map((curve) => nearest(curve.points, x, now.x.log)).filter(Boolean);
        const at = candidates.length
            ? candidates.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best))[0]
            : null;
        const cursor = clear(drawing.querySelector(".cursor"));
        if (at === null) {
            readout.textContent = "";
            return;
        }
        const left = scales.x.toPixel(at);
        cursor.append(s("line", { class: "guide", x1: left, x2: left, y1: ROOM.top, y2: now.height - ROOM.bottom }));
        const words = now.series.map((curve, i) => {
            const point = nearest(curve.points, at, now.x.log);
            if (!point) return null;
            cursor.append(
                s("circle", {
                    cx: scales.x.toPixel(point[0]),
                    cy: scales.y.toPixel(point[1]),
                    r: 4,
                    fill: colour(curve.colour ?? i),
                }),
            );
            return `${curve.name}: ${formatNumber(point[1])}`;
        });
        readout.textContent = `${now.x.title ?? "x"} ${formatNumber(at)} · ${words.filter(Boolean).join(" · ")}`;
        now.onHover?.(at);
    }

    drawing.addEventListener("pointermove", (event) => {
        const box = drawing.getBoundingClientRect();
        if (scales) read(scales.x.value(((event.clientX - box.left) / box.width) * now.width));
    });
    drawing.addEventListener("pointerleave", () => {
        clear(drawing.querySelector(".cursor"));
        readout.textContent = "";
        now.onHover?.(null);
    });
    const stopListening = onThemeChange(() => (element.isConnected ? draw() : stopListening()));
    draw();
    return {
        element,
        update(changes) {
            now = { ...now, ...(Array.isArray(changes) ? { series: changes } : changes) };
            draw();
        },
    };
}

/** The table of a chart: one row per x, one column per series. */
export function chartTable(series, title = "step") {
    const steps = [...new Set(series.flatMap((curve) => curve.points.map(([x]) => x)))].sort((a, b) => a - b);
    const known = series.map((curve) => new Map(curve.points));
    return {
        columns: [title, ...series.map((curve) => curve.name)],
        rows: steps.map((x) => [x, ...known.map((values) => values.get(x) ?? null)]),
    };
}

function dashes(curve) {
    return curve.dashed ? DASH.dashed : curve.dotted ? DASH.dotted : null;
}

function axis(now, which) {
    const { log = false, zero = false } = which ? now.y : now.x;
    const values = now.series
        .flatMap((curve) => curve.points.map((point) => point[which]))
        .filter((v) => Number.isFinite(v) && (!log || v > 0));
    let [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [log ? 0.1 : 0, 1];
    if (zero && !log) low = Math.min(0, low);
    if (low === high)
        [low, high] = log
            ? [low / 2, high * 2]
            : [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
    const to = log ? Math.log10 : (v) => v;
    const from = log ? (v) => 10 ** v : (v) => v;
    const pad = which ? 0.04 * (to(high) - to(low)) : 0;
    const [first, last] = [to(low) - pad, to(high) + pad];
    const [begin, end] = which ? [now.height - ROOM.bottom, ROOM.top] : [ROOM.left, now.width - ROOM.right];
    return {
        low: from(first),
        high: from(last),
        log,
        toPixel: (v) => begin + ((to(Math.max(v, log ? 1e-300 : -Infinity)) - first) / (last - first)) * (end - begin),
        fromPixel: (p) => from(first + ((p - begin) / (end - begin)) * (last - first)),
    };
}

/** About five round numbers in a range. */
function roundTicks(low, high, count = 5) {
    const raw = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const width = [1, 2, 2.5, 5, 10].map((m) => m * power).find((w) => w >= raw) ?? raw;
    const values = [];
    for (let v = Math.ceil(low / width) * width; v <= high + width * 1e-9; v += width)
        values.push(Math.abs(v) < width * 1e-9 ? 0 : v);
    return values;
}

function logTicks(low, high) {
    const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
    const interval = Math.max(1, Math.ceil((last - first) / 6));
    const powers = [];
    for (let p = first; p <= last; p += interval) powers.push(10 ** p);
    return powers.length > 1 ? powers : roundTicks(low, high).filter((v) => v > 0);
}

function ticks(now, scales) {
    const elements = [];
    const marks = (scale) => (scale.log ? logTicks(scale.low, scale.high) : roundTicks(scale.low, scale.high));
    const heights = marks(scales.y);
    const hasPowers = scales.y.log && heights.some(needsPower); // powers of ten for a large range
    for (const value of heights) {
        const y = scales.y.toPixel(value);
        elements.push(s("line", { class: "grid", x1: ROOM.left, x2: now.width - ROOM.right, y1: y, y2: y }));
        elements.push(
            s(
                "text",
                { class: "tick", x: ROOM.left - 8, y, "text-anchor": "end", "dominant-baseline": "central" },
                hasPowers && !now.y.format ? power(value) : tick(value, now.y.format),
            ),
        );
    }
    for (const value of marks(scales.x)) {
        const x = scales.x.toPixel(value);
        elements.push(
            s(
                "text",
                { class: "tick", x, y: now.height - ROOM.bottom + 20, "text-anchor": "middle" },
                tick(value, now.x.format),
            ),
        );
    }
    const bottom = now.height - ROOM.bottom;
    elements.push(s("line", { class: "base", x1: ROOM.left, x2: now.width - ROOM.right, y1: bottom, y2: bottom }));
    if (now.x.title)
        elements.push(
            s(
                "text",
                {
                    class: "axis",
                    x: (ROOM.left + now.width - ROOM.right) / 2,
                    y: now.height - 8,
                    "text-anchor": "middle",
                },
                now.x.title,
            ),
        );
    const middle = (ROOM.top + bottom) / 2;
    if (now.y.title)
        elements.push(
            s(
                "text",
                { class: "axis", x: 15, y: middle, "text-anchor": "middle", transform: `rotate(-90 15 ${middle})` },
                now.y.title,
            ),
        );
    return elements;
}

function tick(value, format) {
    if (format) return format(value);
    if (needsPower(value)) return power(value);
    return String(Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 })).replace("-", "−");
}

/** Whether a number needs scientific notation. */
const needsPower = (value) => value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6);

/** Format 2e-7 as 2·10⁻⁷. */
function power(value) {
    const [digits, exponent] = value.toExponential().split("e");
    const raised = [...String(Number(exponent))].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)])).join("");
    return Number(digits) === 1 ? `10${raised}` : `${Number(Number(digits).toPrecision(2))}·10${raised}`;
}

function line(curve, i, scales) {
    const points = curve.points
        .filter(([, y]) => Number.isFinite(y) && (!scales.y.log || y > 0))
        .map(([x, y]) => [scales.x.toPixel(x), scales.y.toPixel(y)]);
    if (!points.length) return [];
    const stroke = colour(curve.colour ?? i);
    const path = `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
    const elements = [
        s("path", {
            class: "line",
            d: path,
            stroke,
            "stroke-width": curve.thin ? 1.4 : 2.6,
            "stroke-dasharray": dashes(curve),
            opacity: curve.thin ? 0.65 : 1,
        }),
    ];
    if (curve.dots || points.length === 1)
        elements.push(...points.map(([cx, cy]) => s("circle", { cx, cy, r: 3.6, fill: stroke })));
    return elements;
}

function nearest(points, x, log) {
    let best = null;
    const distance = (p) => (log ? Math.abs(Math.log(p[0] / x)) : Math.abs(p[0] - x));
    for (const point of points) if (Number.isFinite(point[1]) && (!best || distance(point) < distance(best))) best = point;
    return best;
}
