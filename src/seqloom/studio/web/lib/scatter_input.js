// Pointer and keyboard input of a scatter plot: drag to pan, wheel or keys to zoom, hover, click to select.

const CLICK_PIXELS = 4; // a press that moves less is a click
const STEP = 60; // pixels per arrow key
const KEYS = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] };

/** `actions`: view(), shift(from, dx, dy), magnify(factor, x, y), fit(), hover([x, y] | null), pick([x, y]); in pixels. */
export function handleInput(canvas, actions) {
    let moving = null;

    function pointerPosition(event) {
        const bounds = canvas.getBoundingClientRect();
        return [event.clientX - bounds.left, event.clientY - bounds.top];
    }

    function wheel(event) {
        event.preventDefault();
        actions.magnify(Math.exp(-event.deltaY * (event.deltaMode ? 0.03 : 0.0015)), ...pointerPosition(event));
    }

    function press(event) {
        if (event.button !== 0) return;
        canvas.setPointerCapture(event.pointerId);
        moving = { at: pointerPosition(event), from: actions.view(), far: 0 };
    }

    function move(event) {
        const at = pointerPosition(event);
        if (!moving) return actions.hover(at);
        const [dx, dy] = [at[0] - moving.at[0], at[1] - moving.at[1]];
        moving.far = Math.max(moving.far, Math.hypot(dx, dy));
        if (moving.far < CLICK_PIXELS) return;
        canvas.style.cursor = "grabbing";
        actions.shift(moving.from, dx, dy);
    }

    function release(event) {
        const clicked = moving && moving.far < CLICK_PIXELS;
        moving = null;
        canvas.style.cursor = "grab";
        if (clicked) actions.pick(pointerPosition(event));
    }

    function key(event) {
        if (KEYS[event.key]) actions.shift(actions.view(), ...KEYS[event.key]);
        else if (event.key === "0") actions.fit();
        else if (event.key === "+" || event.key === "=") return actions.magnify(1.3);
        else if (event.key === "-") return actions.magnify(1 / 1.3);
        else return;
        event.preventDefault();
    }

    canvas.addEventListener("wheel", wheel, { passive: false });
    canvas.addEventListener("pointerdown", press);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", () => (moving = null));
    canvas.addEventListener("pointerleave", () => actions.hover(null));
    canvas.addEventListener("dblclick", (event) => actions.magnify(2, ...pointerPosition(event)));
    canvas.addEventListener("keydown", key);
}
