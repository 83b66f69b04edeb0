// Points of a plane, ten thousand and more: moved, magnified, named where there is room, found under the pointer.

import { h, s, clear, calmly } from "./dom.js";
import { onTheme } from "./colour.js";
import { drawsItself } from "./saving.js";
import {
    TAG,
    around,
    extent,
    groupKey,
    numberKey,
    occupied,
    palette,
    shadesOf,
    shape,
    sheet,
    short,
    stamps,
    tagPicture,
    textWidth,
} from "./stamps.js";
import { moves } from "./scatter_moves.js";
import { arrow, flag, line, ring } from "./scatter_marks.js";
import { svgPen } from "./svg_pen.js";

const NEAR = 14; // pixels from the pointer within which a point is meant
const CELLS = 96; // along a side, of the grid by which points are found
const WIDEST = 1.5; // times as wide as high a unit is drawn, where there is room for it
const ROOM = 26; // pixels around the points
const RADII = [
    [300, 5],
    [1200, 4],
    [5000, 3],
    [Infinity, 2.3],
]; // of so many points at most
const MOST_NAMES = 170;
const TRIED = 2500; // points whose names look for room in a frame
const FARTHER = [0, 16, 36, 60, 90]; // pixels by which the name of a marked point may stand away from it
const MOST_DRAWN = 10000; // points of a drawing that is saved
const DIM = 0.3; // of the colour, of points that do not matter at the moment

/**
 * `names`, `points` [x, y, x, y …] between −1 and 1, `colouring` {title, values, groups, log}. The first points are the
 * most important: they lie on top and are named first. `marked`: {place: "chosen" | "near"}, `arrows`: [[from, to] …].
 */
export function scatter(options) {
    const state = {
        names: [],
        points: new Float32Array(0),
        colouring: null,
        marked: new Map(),
        arrows: [],
        only: null,
        ...options,
    };
    const canvas = h("canvas", {
        class: "scatter",
        tabindex: "0",
        role: "img",
        "aria-label": options.label ?? "Points",
    });
    const overlay = h("canvas", { class: "scatter-over", "aria-hidden": "true" });
    const readout = h("p", { class: "readout", dir: "auto" });
    const frame = h("div", { class: "scatter-frame" }, canvas, overlay);
    const key = s("svg", { class: "scatter-key", height: 26 });
    const element = h("div", { class: "scatter-whole" }, key, frame, readout);
    let size = { width: 0, height: 0, ratio: 1 };
    let view = { x: 0, y: 0, zoom: 1, ...options.view }; // from the middle of the points
    let middle = { x: 0, y: 0 },
        box = { x: 1, y: 1 }; // of all points, and half of how wide and high they lie
    let stamped = null,
        pixels = null,
        which = null,
        grid = null,
        colours = null,
        widths = new Float32Array(0);
    let waiting = 0,
        hovered = null;
    const tags = new Map(); // names as little pictures: writing them anew for every frame takes too long
    const told = calmly(() => options.onView?.({ ...view }), 300);

    // --- from points to pixels ---

    const scale = () => Math.min(roomX(), roomY()) * view.zoom;
    const stretch = () => Math.min(Math.max(roomX() / roomY(), 1), WIDEST); // wide screens show wide pictures
    const roomX = () => Math.max(size.width / 2 - ROOM, 1) / box.x;
    const roomY = () => Math.max(size.height / 2 - ROOM, 1) / box.y;
    const left = (x) => size.width / 2 + (x - middle.x - view.x) * scale() * stretch();
    const top = (y) => size.height / 2 - (y - middle.y - view.y) * scale();
    const radius = () => Math.round(2 * Math.min(7, baseRadius() * Math.min(view.zoom, 30) ** 0.22)) / 2;
    const baseRadius = () => RADII.find(([most]) => state.names.length <= most)[1];

    const across = (px) => middle.x + view.x + (px - size.width / 2) / (scale() * stretch());
    const up = (py) => middle.y + view.y - (py - size.height / 2) / scale();

    // --- drawing ---

    function resize() {
        const own = frame.getBoundingClientRect();
        if (!own.width || !own.height) return;
        size = { width: own.width, height: own.height, ratio: Math.min(devicePixelRatio || 1, 2) };
        for (const one of [canvas, overlay]) {
            one.width = Math.round(size.width * size.ratio);
            one.height = Math.round(size.height * size.ratio);
        }
        colours = null;
        tags.clear();
        widths.fill(0);
        paintKey();
        soon();
    }

    function soon() {
        if (!waiting) waiting = requestAnimationFrame(paint);
    }

    function paint() {
        waiting = 0;
        if (!size.width || !state.colouring) return;
        colours ??= palette();
        const pen = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
        pen.setTransform(1, 0, 0, 1, 0, 0);
        dots(pen);
        pen.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
        arrows(pen);
        marks(pen);
        namesOf(pen);
        light();
        options.onPaint?.();
    }

    /** All points as pixels, put down by stamps: many times faster than drawing circles. */
    function dots(pen) {
        const r = radius(),
            [wide, high] = [canvas.width, canvas.height];
        if (stamped?.radius !== r) stamped = stamps(state.colouring, r, size.ratio, colours.paper, DIM);
        if (pixels?.wide !== wide || pixels.high !== high) pixels = sheet(wide, high);
        const { points } = state,
            dim = state.only !== null || state.marked.size > 0;
        const [kx, ky] = [scale() * stretch() * size.ratio, scale() * size.ratio];
        const [ox, oy] = [wide / 2 - (middle.x + view.x) * kx, high / 2 + (middle.y + view.y) * ky];
        pixels.clear(colours.paper);
        for (const bright of dim ? [false, true] : [true]) {
            const marks_ = bright ? stamped.bright : stamped.pale;
            for (let i = which.length - 1; i >= 0; i--) {
                if (dim && bright !== stands(i)) continue;
                pixels.put(marks_[which[i]], (ox + points[2 * i] * kx) | 0, (oy - points[2 * i + 1] * ky) | 0);
            }
        }
        pixels.show(pen);
    }

    /** Whether a point stands out: of the chosen group, and, where some are marked, one of these. */
    function stands(i) {
        return ofGroup(i) && (state.marked.size === 0 || state.marked.has(i));
    }

    const ofGroup = (i) => state.only === null || state.colouring.values[i] === state.only;

    const spot = (i) => [left(state.points[2 * i]), top(state.points[2 * i + 1])];

    function marks(pen) {
        for (const [i, kind] of state.marked) {
            if (i >= state.names.length) continue;
            const [width, colour] = kind === "chosen" ? [3, colours.accent] : [1.8, colours.soft];
            ring(pen, spot(i), radius() + 3, width, colour);
        }
    }

    function arrows(pen) {
        for (const [from, to, kind] of state.arrows) {
            if (from >= state.names.length || to >= state.names.length) continue;
            if (kind === "thin") line(pen, spot(from), spot(to), 1, colours.soft);
            else arrow(pen, spot(from), spot(to), 2.5, colours.accent, radius() + 3);
        }
    }

    /** Names beside their points, the most important first, each only where it covers no other. */
    function namesOf(pen) {
        const taken = occupied(size.width, size.height);
        let left_ = MOST_NAMES;
        const marked = [...state.marked.keys()].filter((i) => i < state.names.length);
        for (const i of marked) name(pen, i, taken);
        for (let i = 0, tried = 0; i < state.names.length && left_ > 0 && tried < TRIED; i++) {
            if (state.marked.has(i) || (state.only !== null && !stands(i))) continue;
            if (state.marked.size > 0) break;
            if (!inside(i)) continue;
            tried++;
            if (name(pen, i, taken)) left_--;
        }
    }

    function inside(i) {
        const [x, y] = spot(i);
        return x >= 0 && y >= 0 && x <= size.width && y <= size.height;
    }

    function name(pen, i, taken) {
        if (!inside(i)) return false;
        const [x, y] = spot(i);
        const marked = state.marked.has(i),
            [width, high] = [widthOf(i), colours.size];
        for (const far of marked ? FARTHER : [0]) {
            const found = around(x, y, radius() + 4 + far, width)
                .slice(0, marked ? 8 : 4)
                .find(([a, b]) => within(a, b, width) && taken.take(a - 2, b - high / 2 - 1, width + 4, high + 2));
            if (!found) continue;
            // where it had to stand farther away, a thin line leads to it
            if (far) line(pen, [x, y], [Math.min(Math.max(x, found[0]), found[0] + width), found[1]], 1, colours.soft);
            written(pen, state.short[i], state.marked.get(i) === "chosen", found);
            return true;
        }
        return false;
    }

    const within = (x, y, width) => x > 2 && x + width < size.width - 2 && y > 10 && y < size.height - 10;

    function widthOf(i) {
        if (!widths[i]) widths[i] = textWidth(state.short[i], colours);
        return widths[i];
    }

    /** A name with a rim of paper around it: a picture, or text where the pen can write. */
    function written(pen, text, chosen, [x, y]) {
        const called = `${chosen} ${text}`,
            colour = chosen ? colours.accent : colours.ink;
        if (pen.write) return pen.write(text, x, y, colour, colours);
        if (!tags.has(called)) tags.set(called, tagPicture(text, size.ratio, colour, colours));
        const { picture, wide, high } = tags.get(called);
        pen.drawImage(picture, x - TAG, y - high / 2, wide, high);
    }

    /** What is in view, as shapes and text: for print. */
    function drawing() {
        const pen = svgPen(size),
            { points, colouring } = state,
            dim = state.only !== null || state.marked.size > 0;
        const seen = Array.from(which ?? [], (_, i) => i)
            .filter(inside)
            .slice(0, MOST_DRAWN)
            .reverse();
        for (const i of dim ? [...seen.filter((one) => !stands(one)), ...seen.filter(stands)] : seen) {
            pen.add(
                shape(colouring, which[i], left(points[2 * i]), top(points[2 * i + 1]), radius()),
                dim && !stands(i) ? DIM : null,
            );
        }
        for (const draw of [arrows, marks, namesOf]) draw(pen);
        return pen.drawing;
    }

    /** The point under the pointer, on a canvas of its own: moving the pointer draws nothing anew. */
    function light() {
        if (!colours) return;
        const pen = overlay.getContext("2d");
        pen.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
        pen.clearRect(0, 0, size.width, size.height);
        if (hovered === null || hovered >= state.names.length) return;
        ring(pen, spot(hovered), radius() + 3, 3, colours.ink);
        flag(pen, short(state.names[hovered], 60), spot(hovered), size.width, colours);
    }

    // --- what is where ---

    function regrid() {
        grid = new Map();
        const [[x1, x2], [y1, y2]] = [extent(state.points, 0), extent(state.points, 1)];
        middle = { x: (x1 + x2) / 2, y: (y1 + y2) / 2 };
        box = { x: Math.max((x2 - x1) / 2, 1e-6), y: Math.max((y2 - y1) / 2, 1e-6) };
        for (let i = 0; i < state.names.length; i++) {
            const cell = cellOf(state.points[2 * i], state.points[2 * i + 1]);
            if (grid.has(cell)) grid.get(cell).push(i);
            else grid.set(cell, [i]);
        }
    }

    /** The point nearest to a pixel, or null. */
    function under(px, py) {
        const [dx, dy] = [NEAR / (scale() * stretch()), NEAR / scale()];
        const [x, y] = [across(px), up(py)];
        let best = null,
            least = NEAR * NEAR;
        for (let column = column_(x - dx); column <= column_(x + dx); column++) {
            for (let row = column_(y - dy); row <= column_(y + dy); row++) {
                for (const i of grid.get(column * CELLS + row) ?? []) {
                    const far = (left(state.points[2 * i]) - px) ** 2 + (top(state.points[2 * i + 1]) - py) ** 2;
                    if (far < least && ofGroup(i)) [best, least] = [i, far];
                }
            }
        }
        return best;
    }

    function hover(i) {
        if (i === hovered) return;
        hovered = i;
        canvas.style.cursor = i === null ? "grab" : "pointer";
        const { names, colouring } = state;
        readout.textContent = i === null ? words() : `${names[i]} · ${colouring.title}: ${valueOf(colouring, i)}`;
        light();
        options.onHover?.(i);
    }

    const words = () => options.hint ?? "Drag to move, turn the wheel to magnify, click a point to see its neighbours.";

    // --- moving ---

    function magnify(times, px = size.width / 2, py = size.height / 2) {
        const [x, y] = [across(px), up(py)];
        view.zoom = Math.min(Math.max(view.zoom * times, 0.5), 400);
        view.x += x - across(px);
        view.y += y - up(py);
        changed();
    }

    function changed() {
        soon();
        told();
    }

    function shift(from, dx, dy) {
        view.x = from.x - dx / (scale() * stretch());
        view.y = from.y + dy / scale();
        changed();
    }

    function fit() {
        view = { x: 0, y: 0, zoom: 1 };
        changed();
    }

    moves(canvas, {
        view: () => ({ ...view }),
        shift,
        magnify,
        fit,
        hover: (at) => hover(at && under(...at)),
        pick: (at) => options.onPick?.(under(...at)),
    });

    // --- what the colours mean ---

    function paintKey() {
        if (!state.colouring || !size.width) return;
        clear(key);
        if (state.colouring.groups.length) groupKey(key, state.colouring, size.width, state.only, choose);
        else numberKey(key, state.colouring);
        key.setAttribute("width", size.width);
    }

    function choose(group) {
        state.only = state.only === group ? null : group;
        paintKey();
        soon();
        options.onOnly?.(state.only);
    }

    // --- from outside ---

    function update(changes) {
        Object.assign(state, changes);
        if (changes.points || changes.names) {
            state.points = Float32Array.from(state.points);
            regrid();
        }
        if (changes.names) {
            hovered = null;
            state.short = state.names.map((one) => short(one));
            widths = new Float32Array(state.names.length);
        }
        if (changes.colouring || changes.names) {
            which = shadesOf(state.colouring);
            stamped = null;
        }
        if (changes.colouring || "only" in changes) paintKey();
        readout.textContent = words();
        soon();
    }

    drawsItself(canvas, drawing);
    drawsItself(overlay, () => null);
    const watching = new ResizeObserver(resize);
    watching.observe(frame);
    onTheme(() => {
        stamped = null;
        tags.clear();
        colours = null;
        paintKey();
        soon();
    }, options.signal);
    options.signal?.addEventListener("abort", () => watching.disconnect());
    if (options.names?.length) update({ names: options.names, points: options.points, colouring: options.colouring });
    return {
        element,
        update,
        magnify,
        fit,
        /** Move so that a point is in the middle, if it is not to be seen. */
        reveal(i) {
            const [x, y] = spot(i);
            if (x > 40 && y > 40 && x < size.width - 40 && y < size.height - 40) return;
            [view.x, view.y] = [state.points[2 * i] - middle.x, state.points[2 * i + 1] - middle.y];
            changed();
        },
        frame,
        /** Magnify so that these points fill the picture. */
        frameThese(places) {
            const chosen = places.flatMap((i) => [state.points[2 * i], state.points[2 * i + 1]]);
            const [[x1, x2], [y1, y2]] = [extent(chosen, 0), extent(chosen, 1)];
            const fits = Math.min((1.2 * box.x) / (x2 - x1 || 1e-6), (1.2 * box.y) / (y2 - y1 || 1e-6));
            view = { x: (x1 + x2) / 2 - middle.x, y: (y1 + y2) / 2 - middle.y, zoom: Math.min(Math.max(fits, 1), 60) };
            changed();
        },
        pixel: spot,
        view: () => ({ ...view }),
    };
}

/** What a point's colour stands for, in words. */
export function valueOf(colouring, i) {
    const value = colouring.values[i];
    return colouring.groups.length ? colouring.groups[value] : value.toLocaleString("en");
}

const column_ = (value) => Math.min(Math.max(Math.floor(((value + 1) / 2) * CELLS), 0), CELLS - 1);

const cellOf = (x, y) => column_(x) * CELLS + column_(y);
