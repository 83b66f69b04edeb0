// Hands on a picture of points: drag to move, wheel or keys to magnify, point to read a name, click to choose.

const STILL = 4; // pixels within which a press is a click
const STEP = 60; // pixels by an arrow key
const KEYS = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] };

/** `acts`: view(), shift(from, dx, dy), magnify(times, x, y), fit(), hover([x, y] | null), pick([x, y]); in pixels. */
export function moves(canvas, acts) {
    let moving = null;

    function place(event) {
        const own = canvas.getBoundingClientRect();
        return [event.clientX - own.left, event.clientY - own.top];
    }

    function wheel(event) {
        event.preventDefault();
        acts.magnify(Math.exp(-event.deltaY * (event.deltaMode ? 0.03 : 0.0015)), ...place(event));
    }

    function press(event) {
        if (event.button !== 0) return;
        canvas.setPointerCapture(event.pointerId);
        moving = { at: place(event), from: acts.view(), far: 0 };
    }

    function move(event) {
        const at = place(event);
        if (!moving) return acts.hover(at);
        const [dx, dy] = [at[0] - moving.at[0], at[1] - moving.at[1]];
        moving.far = Math.max(moving.far, Math.hypot(dx, dy));
        if (moving.far < STILL) return;
        canvas.style.cursor = "grabbing";
        acts.shift(moving.from, dx, dy);
    }

    function release(event) {
        const clicked = moving && moving.far < STILL;
        moving = null;
        canvas.style.cursor = "grab";
        if (clicked) acts.pick(place(event));
    }

    function key(event) {
        if (KEYS[event.key]) acts.shift(acts.view(), ...KEYS[event.key]);
        else if (event.key === "0") acts.fit();
        else if (event.key === "+" || event.key === "=") return acts.magnify(1.3);
        else if (event.key === "-") return acts.magnify(1 / 1.3);
        else return;
        event.preventDefault();
    }

    canvas.addEventListener("wheel", wheel, { passive: false });
    canvas.addEventListener("pointerdown", press);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", () => (moving = null));
    canvas.addEventListener("pointerleave", () => acts.hover(null));
    canvas.addEventListener("dblclick", (event) => acts.magnify(2, ...place(event)));
    canvas.addEventListener("keydown", key);
}
