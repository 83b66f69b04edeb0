// A scatter plot for ten thousand or more points, with pan, zoom, labels and hit testing.

import { h, s, clear, debounce } from "./dom.js";
import { onThemeChange } from "./colour.js";
import { registerDrawing } from "./figure_export.js";
import {
    LABEL_PADDING,
    labelPositions,
    extent,
    groupKey,
    numberKey,
    occupancyGrid,
    palette,
    spriteIndices,
    shape,
    pixelBuffer,
    short,
    makeSprites,
    tagPicture,
    textWidth,
} from "./scatter_parts.js";
import { handleInput } from "./scatter_input.js";
import { arrow, flag, line, ring } from "./scatter_marks.js";
import { svgPen } from "./svg_pen.js";

const HIT_PIXELS = 14; // maximum pixels between pointer and point
const CELLS = 96; // per side of the hit-test grid
const MAX_ASPECT_RATIO = 1.5; // maximum aspect ratio of a unit
const MARGIN = 26; // margin in pixels
const RADII = [
    [300, 5],
    [1200, 4],
    [5000, 3],
    [Infinity, 2.3],
]; // [maximum number of points, radius]
const MAX_LABELS = 170;
const MAX_LABELS_TRIED = 2500; // labels tried per frame
const LABEL_OFFSETS = [0, 16, 36, 60, 90]; // offsets in pixels tried for the label of a marked point
const MAX_EXPORTED_POINTS = 10000; // points of an exported drawing
const DIM_OPACITY = 0.3; // opacity of points that are not selected

/**
 * `names`, `points` [x, y, x, y …] between −1 and 1, `colouring` {title, values, groups, log}. Earlier points are drawn
 * on top and labelled first. `marked`: {index: "chosen" | "near"}, `arrows`: [[from, to] …].
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
    const element = h("div", { class: "scatter-container" }, key, frame, readout);
    let size = { width: 0, height: 0, ratio: 1 };
    let view = { x: 0, y: 0, zoom: 1, ...options.view }; // relative to the centre of the points
    let middle = { x: 0, y: 0 },
        box = { x: 1, y: 1 }; // centre and half extent of all points
    let sprites = null,
        pixels = null,
        which = null,
        grid = null,
        colours = null,
        widths = new Float32Array(0);
    let frameRequest = 0,
        hovered = null;
    const tags = new Map(); // labels cached as images: drawing text in every frame is too slow
    const notifyView = debounce(() => options.onView?.({ ...view }), 300);

    // --- from points to pixels ---

    const scale = () => Math.min(roomX(), roomY()) * view.zoom;
    const stretch = () => Math.min(Math.max(roomX() / roomY(), 1), MAX_ASPECT_RATIO); // uses the width of wide screens
    const roomX = () => Math.max(size.width / 2 - MARGIN, 1) / box.x;
    const roomY = () => Math.max(size.height / 2 - MARGIN, 1) / box.y;
    const left = (x) => size.width / 2 + (x - middle.x - view.x) * scale() * stretch();
    const top = (y) => size.height / 2 - (y - middle.y - view.y) * scale();
    const radius = () => Math.round(2 * Math.min(7, baseRadius() * Math.min(view.zoom, 30) ** 0.22)) / 2;
    const baseRadius = () => RADII.find(([most]) => state.names.length <= most)[1];

    const across = (px) => middle.x + view.x + (px - size.width / 2) / (scale() * stretch());
    const up = (py) => middle.y + view.y - (py - size.height / 2) / scale();

    // --- drawing ---

    function resize() {
        const bounds = frame.getBoundingClientRect();
        if (!bounds.width || !bounds.height) return;
        size = { width: bounds.width, height: bounds.height, ratio: Math.min(devicePixelRatio || 1, 2) };
        for (const item of [canvas, overlay]) {
            item.width = Math.round(size.width * size.ratio);
            item.height = Math.round(size.height * size.ratio);
        }
        colours = null;
        tags.clear();
        widths.fill(0);
        paintKey();
        requestPaint();
    }

    function requestPaint() {
        if (!frameRequest) frameRequest = requestAnimationFrame(paint);
    }

    function paint() {
        frameRequest = 0;
        if (!size.width || !state.colouring) return;
        colours ??= palette();
        const pen = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
        pen.setTransform(1, 0, 0, 1, 0, 0);
        dots(pen);
        pen.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
        arrows(pen);
        marks(pen);
        namesOf(pen);
        drawHover();
        options.onPaint?.();
    }

    /** Draw all points by copying precomputed sprites, which is many times faster than drawing circles. */
    function dots(pen) {
        const r = radius(),
            [wide, high] = [canvas.width, canvas.height];
        if (sprites?.radius !== r) sprites = makeSprites(state.colouring, r, size.ratio, colours.paper, DIM_OPACITY);
        if (pixels?.wide !== wide || pixels.high !== high) pixels = pixelBuffer(wide, high);
        const { points } = state,
            dim = state.only !== null || state.marked.size > 0;
        const [kx, ky] = [scale() * stretch() * size.ratio, scale() * size.ratio];
        const [ox, oy] = [wide / 2 - (middle.x + view.x) * kx, high / 2 + (middle.y + view.y) * ky];
        pixels.clear(colours.paper);
        for (const bright of dim ? [false, true] : [true]) {
            const marks_ = bright ? sprites.bright : sprites.pale;
            for (let i = which.length - 1; i >= 0; i--) {
                if (dim && bright !== isProminent(i)) continue;
                pixels.put(marks_[which[i]], (ox + points[2 * i] * kx) | 0, (oy - points[2 * i + 1] * ky) | 0);
            }
        }
        pixels.show(pen);
    }

    /** Whether a point is in the selected group and, if points are marked, marked. */
    function isProminent(i) {
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

    /** Draw labels beside their points in order of importance, without overlaps. */
    function namesOf(pen) {
        const occupied = occupancyGrid(size.width, size.height);
        let left_ = MAX_LABELS;
        const marked = [...state.marked.keys()].filter((i) => i < state.names.length);
        for (const i of marked) name(pen, i, occupied);
        for (let i = 0, tried = 0; i < state.names.length && left_ > 0 && tried < MAX_LABELS_TRIED; i++) {
            if (state.marked.has(i) || (state.only !== null && !isProminent(i))) continue;
            if (state.marked.size > 0) break;
            if (!inside(i)) continue;
            tried++;
            if (name(pen, i, occupied)) left_--;
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
        for (const far of marked ? LABEL_OFFSETS : [0]) {
            const corner = labelPositions(x, y, radius() + 4 + far, width)
                .slice(0, marked ? 8 : 4)
                .find(([a, b]) => isInside(a, b, width) && taken.take(a - 2, b - high / 2 - 1, width + 4, high + 2));
            if (!corner) continue;
            // a thin line connects a distant label to its point
            if (far) line(pen, [x, y], [Math.min(Math.max(x, corner[0]), corner[0] + width), corner[1]], 1, colours.soft);
            drawLabel(pen, state.short[i], state.marked.get(i) === "chosen", corner);
            return true;
        }
        return false;
    }

    const isInside = (x, y, width) => x > 2 && x + width < size.width - 2 && y > 10 && y < size.height - 10;

    function widthOf(i) {
        if (!widths[i]) widths[i] = textWidth(state.short[i], colours);
        return widths[i];
    }

    /** A label with an outline: text if the pen can write, otherwise an image. */
    function drawLabel(pen, text, chosen, [x, y]) {
        const labelKey = `${chosen} ${text}`,
            colour = chosen ? colours.accent : colours.ink;
        if (pen.write) return pen.write(text, x, y, colour, colours);
        if (!tags.has(labelKey)) tags.set(labelKey, tagPicture(text, size.ratio, colour, colours));
        const { image, wide, high } = tags.get(labelKey);
        pen.drawImage(image, x - LABEL_PADDING, y - high / 2, wide, high);
    }

    /** The visible part as SVG, for export. */
    function drawing() {
        const pen = svgPen(size),
            { points, colouring } = state,
            dim = state.only !== null || state.marked.size > 0;
        const visible = Array.from(which ?? [], (_, i) => i)
            .filter(inside)
            .slice(0, MAX_EXPORTED_POINTS)
            .reverse();
        for (const i of dim ? [...visible.filter((item) => !isProminent(item)), ...visible.filter(isProminent)] : visible) {
            pen.add(
                shape(colouring, which[i], left(points[2 * i]), top(points[2 * i + 1]), radius()),
                dim && !isProminent(i) ? DIM_OPACITY : null,
            );
        }
        for (const draw of [arrows, marks, namesOf]) draw(pen);
        return pen.drawing;
    }

    /** Draw the hovered point on the overlay canvas, so that hovering does not redraw all points. */
    function drawHover() {
        if (!colours) return;
        const pen = overlay.getContext("2d");
        pen.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
        pen.clearRect(0, 0, size.width, size.height);
        if (hovered === null || hovered >= state.names.length) return;
        ring(pen, spot(hovered), radius() + 3, 3, colours.ink);
        flag(pen, short(state.names[hovered], 60), spot(hovered), size.width, colours);
    }

    // --- hit testing ---

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
        const [dx, dy] = [HIT_PIXELS / (scale() * stretch()), HIT_PIXELS / scale()];
        const [x, y] = [across(px), up(py)];
        let best = null,
            least = HIT_PIXELS * HIT_PIXELS;
        for (let column = column_(x - dx); column <= column_(x + dx); column++) {
            for (let row = column_(y - dy); row <= column_(y + dy); row++) {
                for (const i of grid.get(column * CELLS + row) ?? []) {
                    const distance = (left(state.points[2 * i]) - px) ** 2 + (top(state.points[2 * i + 1]) - py) ** 2;
                    if (distance < least && ofGroup(i)) [best, least] = [i, distance];
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
        drawHover();
        options.onHover?.(i);
    }

    const words = () => options.hint ?? "Drag to pan, scroll to zoom, click a point to see its neighbours.";

    // --- pan and zoom ---

    function magnify(times, px = size.width / 2, py = size.height / 2) {
        const [x, y] = [across(px), up(py)];
        view.zoom = Math.min(Math.max(view.zoom * times, 0.5), 400);
        view.x += x - across(px);
        view.y += y - up(py);
        changed();
    }

    function changed() {
        requestPaint();
        notifyView();
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

    handleInput(canvas, {
        view: () => ({ ...view }),
        shift,
        magnify,
        fit,
        hover: (at) => hover(at && under(...at)),
        pick: (at) => options.onPick?.(under(...at)),
    });

    // --- legend ---

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
        requestPaint();
        options.onOnly?.(state.only);
    }

    // --- interface ---

    function update(changes) {
        Object.assign(state, changes);
        if (changes.points || changes.names) {
            state.points = Float32Array.from(state.points);
            regrid();
        }
        if (changes.names) {
            hovered = null;
            state.short = state.names.map((item) => short(item));
            widths = new Float32Array(state.names.length);
        }
        if (changes.colouring || changes.names) {
            which = spriteIndices(state.colouring);
            sprites = null;
        }
        if (changes.colouring || "only" in changes) paintKey();
        readout.textContent = words();
        requestPaint();
    }

    registerDrawing(canvas, drawing);
    registerDrawing(overlay, () => null);
    const observer = new ResizeObserver(resize);
    observer.observe(frame);
    onThemeChange(() => {
        sprites = null;
        tags.clear();
        colours = null;
        paintKey();
        requestPaint();
    }, options.signal);
    options.signal?.addEventListener("abort", () => observer.disconnect());
    if (options.names?.length) update({ names: options.names, points: options.points, colouring: options.colouring });
    return {
        element,
        update,
        magnify,
        fit,
        /** Centre a point if it is outside the view. */
        reveal(i) {
            const [x, y] = spot(i);
            if (x > 40 && y > 40 && x < size.width - 40 && y < size.height - 40) return;
            [view.x, view.y] = [state.points[2 * i] - middle.x, state.points[2 * i + 1] - middle.y];
            changed();
        },
        frame,
        /** Zoom to these points. */
        frameThese(indices) {
            const chosen = indices.flatMap((i) => [state.points[2 * i], state.points[2 * i + 1]]);
            const [[x1, x2], [y1, y2]] = [extent(chosen, 0), extent(chosen, 1)];
            const fits = Math.min((1.2 * box.x) / (x2 - x1 || 1e-6), (1.2 * box.y) / (y2 - y1 || 1e-6));
            view = { x: (x1 + x2) / 2 - middle.x, y: (y1 + y2) / 2 - middle.y, zoom: Math.min(Math.max(fits, 1), 60) };
            changed();
        },
        pixel: spot,
        view: () => ({ ...view }),
    };
}

/** The value that determines the colour of a point. */
export function valueOf(colouring, i) {
    const value = colouring.values[i];
    return colouring.groups.length ? colouring.groups[value] : value.toLocaleString("en");
}

const column_ = (value) => Math.min(Math.max(Math.floor(((value + 1) / 2) * CELLS), 0), CELLS - 1);

const cellOf = (x, y) => column_(x) * CELLS + column_(y);
