// Words and tokens as a line of text, each with a shade of its own.

import { h, number, say } from "./dom.js";
import { colourOf, inkOn } from "./colour.js";

/** A token as people can see it: a space and the end of a line have signs. */
export function shown(token) {
    return token.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
}

/** Tokens in a row. `weights` shade them (signed: one colour for, another against); hovered and picked by number. */
export function tokenStrip(tokens, { weights = null, signed = false, high = null, onHover, onPick, picked = null, label } = {}) {
    const most = high ?? Math.max(1e-9, ...(weights ?? []).map(Math.abs));
    const nodes = tokens.map((token, place) => tokenNode(token, place));
    const strip = h("div", { class: "tokens", role: "group", "aria-label": label ?? "tokens", dir: "auto" }, nodes);

    function tokenNode(token, place) {
        const weight = weights?.[place];
        const words = weight === undefined || weight === null ? token : `${token}: ${number(weight)}`;
        const node = h(onPick ? "button" : "span", {
            class: "token", type: onPick ? "button" : null, dir: "auto", title: words,
            "aria-pressed": onPick ? String(place === picked) : null,
            onclick: onPick ? () => onPick(place) : null,
            onpointerenter: onHover ? () => onHover(place) : null,
            onpointerleave: onHover ? () => onHover(null) : null,
            onfocus: onHover ? () => { onHover(place); say(words); } : null,
            onblur: onHover ? () => onHover(null) : null,
        }, shown(token));
        if (weights) paint(node, weight ?? 0);
        return node;
    }

    function paint(node, weight) {
        node.style.background = colourOf(weight, signed ? -most : 0, most, signed);
        node.style.color = inkOn(weight, signed ? -most : 0, most, signed);
    }

    return {
        element: strip,
        shade(values) {
            nodes.forEach((node, place) => {
                if (values) paint(node, values[place] ?? 0);
                else node.style.background = node.style.color = "";
            });
        },
        pick(place) {
            nodes.forEach((node, at) => node.setAttribute("aria-pressed", String(at === place)));
        },
    };
}
