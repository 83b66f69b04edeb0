// The frame around every picture: its title, its text twin, and its ways out of the page (PNG, SVG, HTML).

import { h, fill, say } from "./dom.js";
import { button } from "./controls.js";
import { pictureOf, saveHtml, savePng, saveSvg } from "./saving.js";

const ROWS = 2000; // of a table on the page; a longer one is cut there, and whole when saved

/**
 * A figure. Put canvases and SVGs into `body`; `table(make)` says how to write the same numbers down, where `make`
 * gives {columns: [name …], rows: [[value …] …]}.
 */
export function figure({ name, title = "", caption = "" }) {
    const body = h("div", { class: "figure-body" });
    const twin = h("div", { class: "twin", hidden: true });
    const heading = h("h2", { dir: "auto" }, title);
    const words = h("p", { class: "caption", dir: "auto" }, caption);
    let make = null;
    const tableButton = button("Table", () => toggle(twin.hidden), { pressed: false, title: "The same as numbers" });
    const tools = h(
        "div",
        { class: "tools", role: "group", "aria-label": `Save ${title || name}` },
        tableButton,
        button("PNG", () => saved(savePng), { title: "Save as a picture" }),
        button("SVG", () => saved(saveSvg), { title: "Save as a drawing that stays sharp" }),
        button("HTML", () => saved(saveHtml), { title: "Save with its table as a page of its own" }),
    );
    const element = h(
        "figure",
        { class: "figure", dataset: { figure: name } },
        h("div", { class: "figure-head" }, heading, tools),
        body,
        twin,
        words,
    );

    function toggle(open) {
        twin.hidden = !open;
        tableButton.setAttribute("aria-pressed", String(open));
        if (open) fill(twin, make ? tableOf(make(), ROWS) : "There are no numbers yet.");
    }
    function parts() {
        const said = { title: heading.textContent, caption: words.textContent };
        return { name, ...said, table: () => make && tableOf(make()), ...pictureOf(element, body, said.title) };
    }
    const saved = (how) =>
        Promise.resolve()
            .then(() => how(parts()))
            .then(
                () => say("Saved."),
                () => say("It could not be saved."),
            );
    return {
        element,
        body,
        table(maker) {
            make = maker;
            if (!twin.hidden) toggle(true);
        },
        say(newTitle, newCaption) {
            if (newTitle !== undefined) heading.textContent = newTitle;
            if (newCaption !== undefined) words.textContent = newCaption;
        },
    };
}

/** A table of plain text. */
export function tableOf({ columns, rows, caption = null }, most = Infinity) {
    const cut = rows.slice(0, most);
    return h(
        "div",
        { class: "table-scroll", tabindex: "0", role: "region", "aria-label": caption ?? "Table" },
        h(
            "table",
            {},
            caption && h("caption", {}, caption),
            h(
                "thead",
                {},
                h(
                    "tr",
                    {},
                    columns.map((column) => h("th", { scope: "col", dir: "auto" }, column)),
                ),
            ),
            h(
                "tbody",
                {},
                cut.map((row) =>
                    h(
                        "tr",
                        {},
                        row.map((cell, place) =>
                            place === 0
                                ? h("th", { scope: "row", dir: "auto" }, cell ?? "–")
                                : h(
                                      "td",
                                      { dir: "auto", class: typeof cell === "number" ? "number" : null },
                                      shownCell(cell),
                                  ),
                        ),
                    ),
                ),
            ),
        ),
        cut.length < rows.length
            ? h("p", { class: "hint" }, `${rows.length - cut.length} more rows: save as HTML to have all.`)
            : null,
    );
}

function shownCell(cell) {
    if (cell === null || cell === undefined) return "–";
    return typeof cell === "number" && !Number.isInteger(cell) ? String(Number(cell.toPrecision(6))) : cell;
}
