// What tags and their figures mean, for who meets them for the first time.

import { h } from "./dom.js";

const NAMES = {
    PER: "a person",
    LOC: "a place",
    ORG: "an organisation: a company, an office, a club",
    MISC: "any other name: a language, a prize, an event",
};
const PLACES = { B: "begins", I: "goes on with", E: "ends" };
const FIGURES = [
    ["accuracy", "Of all words, the share with the right tag. Where most words are O, that is easily high."],
    [
        "span F1",
        "Spans count, not words: one is right if it begins, ends and is named right. Precision is the share of the spans " +
            "found that are right, recall the share of the right ones that were found; F1 = 2 · precision · recall / " +
            "(precision + recall).",
    ],
];

/** Of the tags that mark spans, such as B-PER, what each says; nothing where none does. */
export function tagWords(tags, open = false) {
    const spans = tags.filter((tag) => /^[BIES]-./u.test(tag));
    if (!spans.length) return null;
    const rows = [...spans.map((tag) => [tag, spanWords(tag)]), ...(tags.includes("O") ? [["O", "no name"]] : [])];
    return h(
        "details",
        { class: "tag-words", open },
        h("summary", {}, "What the tags mean"),
        h("p", {}, "A name may have several words, so a tag says two things: where in the name a word stands, and what the name is of."),
        list(rows),
        h("p", {}, "How good a tagger is, the list of runs says by one of these:"),
        list(FIGURES),
    );
}

function spanWords(tag) {
    const kind = tag.slice(2);
    const of = NAMES[kind] ? `the name of ${NAMES[kind]}` : `a span “${kind}”`;
    return tag[0] === "S" ? `is ${of}, one word long` : `${PLACES[tag[0]]} ${of}`;
}

function list(rows) {
    return h(
        "dl",
        {},
        rows.map(([name, words]) => h("div", {}, h("dt", { dir: "auto" }, name), h("dd", { dir: "auto" }, words))),
    );
}
