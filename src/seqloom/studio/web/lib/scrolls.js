// Boxes that scroll, and show it: what goes on beyond an edge fades there.

/** Marks a box by data-more, "down" and "right", as long as there is more to see there. `told` hears of every change. */
export function showsMore(box, told = () => {}) {
    box.classList.add("scrolls");
    const look = () => {
        const more = [];
        if (box.scrollTop + box.clientHeight < box.scrollHeight - 2) more.push("down");
        if (box.scrollLeft + box.clientWidth < box.scrollWidth - 2) more.push("right");
        if (box.dataset.more === more.join(" ")) return;
        box.dataset.more = more.join(" ");
        told(more);
    };
    box.addEventListener("scroll", look, { passive: true });
    const watching = new ResizeObserver(look);
    watching.observe(box);
    return look;
}
