// Models that write, by what they are given: a text to translate or to restore, or a prompt to continue.

const GIVEN = {
    translate: { label: "Text to translate", act: "Translate", made: "Translation" },
    denoise: { label: "Damaged text, a gap written [MASK]", act: "Restore", made: "What it says" },
};
const PROMPT = { label: "Prompt", act: "Write", made: "Text" };

/** Words for the page, and a text to begin with; `source` says whether the text is read, or else continued. */
export function writerOf(run) {
    const given = { translate: (text) => text, denoise: withGap }[run.task] ?? prompt;
    const examples = [...new Set((run.examples ?? []).map(given))];
    return { ...(GIVEN[run.task] ?? PROMPT), source: run.task in GIVEN, examples, example: examples[0] ?? given("") };
}

/** The beginning of a text. */
function prompt(text) {
    return text.split(" ").slice(0, 2).join(" ");
}

/** A text whose third word is hidden. */
export function withGap(text) {
    const words = text.split(" ");
    if (text.includes("[MASK]") || words.length < 3) return text || "the [MASK] statement";
    words[2] = "[MASK]";
    return words.join(" ");
}
