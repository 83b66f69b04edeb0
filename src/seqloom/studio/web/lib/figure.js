// The frame of a figure: title, caption, table of values, and export (PNG, SVG, HTML).

import { h, setChildren, announce } from "./dom.js";
import { button } from "./controls.js";
import { exportParts, saveHtml, savePng, saveSvg } from "./figure_export.js";

const MAX_TABLE_ROWS = 2000; // of a table on the page; exported tables are complete

/**
 * A figure. Append canvases and SVGs to `body`; `table(make)` sets the function that returns the values as
 * {columns: [name …], rows: [[value …] …]}.
 */
export function figure({ name, title = "", caption = "" }) {
    const body = h("div", { class: "figure-body" });
    const tableBox = h("div", { class: "figure-table", hidden: true });
    const heading = h("h2", { dir: "auto" }, title);
    const captionNode = h("p", { class: "caption", dir: "auto" }, caption);
    let make = null;
    const tableButton = button("Table", () => toggle(tableBox.hidden), { pressed: false, title: "Show the values as a table" });
    const tools = h(
        "div",
        { class: "tools", role: "group", "aria-label": `Save ${title || name}` },
        tableButton,
        button("PNG", () => save(savePng), { title: "Save as PNG image" }),
        button("SVG", () => save(saveSvg), { title: "Save as SVG drawing" }),
        button("HTML", () => save(saveHtml), { title: "Save as HTML page with the table" }),
    );
    const element = h(
        "figure",
        { class: "figure", dataset: { figure: name } },
        h("div", { class: "figure-head" }, heading, tools),
        body,
        tableBox,
        captionNode,
    );

    function toggle(open) {
        tableBox.hidden = !open;
        tableButton.setAttribute("aria-pressed", String(open));
        if (open) setChildren(tableBox, make ? tableOf(make(), MAX_TABLE_ROWS) : "No data yet.");
    }
    function parts() {
        const texts = { title: heading.textContent, caption: captionNode.textContent };
        return { name, ...texts, table: () => make && tableOf(make()), ...exportParts(element, body, texts.title) };
    }
    const save = (how) =>
        Promise.resolve()
            .then(() => how(parts()))
            .then(
                () => announce("Saved."),
                () => announce("Saving failed."),
            );
    return {
        element,
        body,
        table(maker) {
            make = maker;
            if (!tableBox.hidden) toggle(true);
        },
        setText(newTitle, newCaption) {
            if (newTitle !== undefined) heading.textContent = newTitle;
            if (newCaption !== undefined) captionNode.textContent = newCaption;
        },
    };
}

/** A table of plain text. */
export function tableOf({ columns, rows, caption = null }, most = Infinity) {
    const visible = rows.slice(0, most);
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
                visible.map((row) =>
                    h(
                        "tr",
                        {},
                        row.map((cell, column) =>
                            column === 0
                                ? h("th", { scope: "row", dir: "auto" }, cell ?? "–")
                                : h(
                                      "td",
                                      { dir: "auto", class: typeof cell === "number" ? "number" : null },
                                      formatCell(cell),
                                  ),
                        ),
                    ),
                ),
            ),
        ),
        visible.length < rows.length
            ? h("p", { class: "hint" }, `${rows.length - visible.length} more rows. Save as HTML to get all rows.`)
            : null,
    );
}

function formatCell(cell) {
    if (cell === null || cell === undefined) return "–";
    return typeof cell === "number" && !Number.isInteger(cell) ? String(Number(cell.toPrecision(6))) : cell;
}
