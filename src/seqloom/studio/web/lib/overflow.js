// Scroll containers that fade at the edge where content continues.

/** Set data-more to "down" and "right" while a box overflows there. `onChange` receives every change. */
export function markOverflow(box, onChange = () => {}) {
    box.classList.add("scrollable");
    const update = () => {
        const more = [];
        if (box.scrollTop + box.clientHeight < box.scrollHeight - 2) more.push("down");
        if (box.scrollLeft + box.clientWidth < box.scrollWidth - 2) more.push("right");
        if (box.dataset.more === more.join(" ")) return;
        box.dataset.more = more.join(" ");
        onChange(more);
    };
    box.addEventListener("scroll", update, { passive: true });
    const observer = new ResizeObserver(update);
    observer.observe(box);
    return update;
}
