// Renders a run card: a subset of Markdown (headings, tables, lists, paragraphs). Links remain text.

import { h } from "./dom.js";

/** Render a card as elements. Unsupported syntax is shown verbatim. */
export function renderCard(markdown) {
    const blocks = markdown.split(/\n\s*\n/).filter((block) => block.trim());
    return h("div", { class: "card", dir: "auto" }, blocks.flatMap(blockOf));
}

function blockOf(block) {
    const lines = block.split("\n");
    const heading = /^(#{1,4})\s+(.*)$/.exec(lines[0]);
    if (heading) {
        const description = lines.slice(1).join("\n");
        return [h(heading[1].length === 1 ? "h3" : "h4", {}, spans(heading[2])), ...(description.trim() ? blockOf(description) : [])];
    }
    if (lines.length > 1 && lines.every((line) => line.startsWith("|"))) return [tableBlock(lines)];
    if (lines.every((line) => /^\s*[-*] /.test(line)))
        return [
            h(
                "ul",
                {},
                lines.map((line) => h("li", {}, spans(line.replace(/^\s*[-*] /, "")))),
            ),
        ];
    if (lines[0].startsWith("```")) return [h("pre", {}, lines.filter((line) => !line.startsWith("```")).join("\n"))];
    return [h("p", {}, spans(lines.join(" ")))];
}

function tableBlock(lines) {
    const cells = (line) =>
        line
            .split(/(?<!\\)\|/)
            .slice(1, -1)
            .map((cell) => cell.trim().replaceAll("\\|", "|"));
    const ruled = /^\|[\s:|-]+\|$/.test(lines[1]);
    const body = lines.slice(ruled ? 2 : 1);
    return h(
        "table",
        {},
        h(
            "thead",
            {},
            h(
                "tr",
                {},
                cells(lines[0]).map((cell) => h("th", { scope: "col" }, spans(cell))),
            ),
        ),
        h(
            "tbody",
            {},
            body.map((line) =>
                h(
                    "tr",
                    {},
                    cells(line).map((cell) => h("td", {}, spans(cell))),
                ),
            ),
        ),
    );
}

/** Render `code` and **strong**. */
function spans(text) {
    return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
        if (/^`[^`]+`$/.test(part)) return h("code", {}, part.slice(1, -1));
        if (/^\*\*[^*]+\*\*$/.test(part)) return h("strong", {}, part.slice(2, -2));
        return part;
    });
}
