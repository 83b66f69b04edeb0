// Explanations of span tags and tagging metrics.

import { h } from "./dom.js";

const NAMES = {
    PER: "a person",
    LOC: "a location",
    ORG: "an organization, such as a company or a club",
    MISC: "another entity, such as a language, a prize or an event",
};
const TAG_PREFIXES = { B: "first word of", I: "inside", E: "last word of", S: "single word:" };
const METRICS = [
    [
        "accuracy",
        "The fraction of words with the correct tag. If most words are O, even a tagger that always predicts O has a " +
            "high accuracy.",
    ],
    [
        "span F1",
        "A predicted span is correct if its start, end and label are correct. Precision is the fraction of predicted " +
            "spans that are correct, recall is the fraction of true spans that are predicted; F1 = 2 · precision · recall / " +
            "(precision + recall).",
    ],
];

/** Explain span tags such as B-PER; null if there are none. */
export function tagHelp(tags, open = false) {
    const spans = tags.filter((tag) => /^[BIES]-./u.test(tag));
    if (!spans.length) return null;
    const rows = [...spans.map((tag) => [tag, spanWords(tag)]), ...(tags.includes("O") ? [["O", "outside of any name"]] : [])];
    return h(
        "details",
        { class: "tag-words", open },
        h("summary", {}, "What the tags mean"),
        h("p", {}, "A name can span several words. A tag combines the position of a word within the name and the type of the name."),
        list(rows),
        h("p", {}, "Metrics of taggers in the list of runs:"),
        list(METRICS),
    );
}

function spanWords(tag) {
    const kind = tag.slice(2);
    return `${TAG_PREFIXES[tag[0]]} ${NAMES[kind] ? `the name of ${NAMES[kind]}` : `a span “${kind}”`}`;
}

function list(rows) {
    return h(
        "dl",
        {},
        rows.map(([name, words]) => h("div", {}, h("dt", { dir: "auto" }, name), h("dd", { dir: "auto" }, words))),
    );
}
