// Understand: what a text is and which words say so; what each word is, and the paths of two models beside each other.

import { h, clear, fill, number, refill } from "../lib/dom.js";
import { checkbox, controls, examplesFor, runPicker, segmented, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { lattice } from "../lib/lattice.js";
import { tagWords } from "../lib/tag_words.js";
import { bars, chance, wordFlow } from "../lib/wordflow.js";

export const title = "Understand";
export const lead =
    "Classifiers say what a text is, and each word weighs in for it or against it. Taggers say what each word is: every " +
    "path through the lattice is a reading of the sentence, and the best one wins. Put two models beside each other on " +
    "one sentence.";
export const needs =
    "It takes a model that understands texts: a classifier, a tagger, a hidden Markov model, a model of pairs, choices " +
    "or questions.";

const TAGS = ["tag", "hmm-tag", "hmm"];
const LABELS = 12; // bars; the table has all
const NAMED = 6; // words at which two models differ, by name
const SMALL = 0.01; // a tag that is less probable than this everywhere is left out of the lattice
// Ways to weigh the parts of a text, which are words or letters: what each is called, and what it tells.
const KINDS = {
    influence: [
        "Influence",
        (part) =>
            `xᵀ ∂s/∂x, gradient × input: what each ${part} adds to the score s of the label, to first order. ` +
            "Green speaks for it; red, below 0, against it.",
    ],
    attention: [
        "Attention",
        (part) =>
            `How much of its answer the model took from each ${part}, from 0 to 1: where it looked, not for what.`,
    ],
    "left out": [
        "Left out",
        (part) =>
            `The text is read again without the ${part}: how much less probable the label would be then. ` +
            "Green is less probable; red, below 0, more probable.",
    ],
};
const READ =
    "Each node is p(tag | sentence), whatever the other words are, so every column sums to 1. Grey lines are the steps " +
    "from tag to tag, thicker if more probable. The bold line is the best path, by Viterbi. A dashed ring is a tag that " +
    "is more probable by itself than the one on the path.";
const SHOWS = {
    classify: showLabels,
    tag: showTags,
    "hmm-tag": showTags,
    hmm: showTags,
    pair: showPair,
    choice: showChoice,
    answer: showAnswer,
};

export async function show(page) {
    const stage = h("div", { class: "understand-stage" });
    const bar = h("div");
    fill(page.root, bar, stage);
    let asked = null;

    /** All that hangs on the address; bar and stage stay, and who is at one of their controls stays there. */
    async function draw() {
        const mine = (asked = {});
        const run = page.chosen();
        if (stage.dataset.run !== run.id) clear(stage).dataset.run = run.id;
        page.fine();
        const late = () => asked !== mine; // something else was asked for since
        try {
            await SHOWS[run.task]({ page, run, again, bar, stage, late, picker: picker(page, run, again) });
        } catch (error) {
            if (!late()) throw error;
        }
    }

    function again(changes) {
        page.set(changes);
        draw().catch((error) => page.fail(error));
    }

    await draw();
}

function picker(page, run, again) {
    return runPicker(page, {
        value: run.id,
        onchange(id) {
            const text = sameKind(page, run, id) ? page.params.get("text") : null;
            again({ run: id, label: null, kind: null, beside: null, text });
        },
    });
}

function sameKind(page, run, id) {
    const other = page.run(id);
    return TAGS.includes(run.task) === TAGS.includes(other?.task);
}

/** A second run on the same text. */
function beside({ page, run, again }, suits) {
    const others = page.runs.filter((one) => one.id !== run.id && suits(one));
    const wanted = page.params.get("beside");
    const chosen = others.find((one) => (wanted === null ? rival(run, one) : one.id === wanted));
    if (!others.length) return [null, null];
    const onchange = (id) => again({ beside: id || "none" });
    const look = { label: "Beside it", value: chosen?.id, empty: "nothing", onchange };
    return [chosen, runPicker({ ...page, runs: others }, look)];
}

/** Whether two runs are worth comparing unasked: a counted tagger and a learned one, of the same data. */
function rival(run, other) {
    return run.corpus === other.corpus && [run.task, other.task].sort().join(" ") === "hmm-tag tag";
}

function remarks(answer, run) {
    const words = [];
    const unknown = answer.unknown?.slice(0, 12).join(", ");
    if (unknown) words.push(`Not in the vocabulary of ${run.name}: ${unknown}`);
    if (answer.cut) words.push("Only the beginning was read: the text is longer than the model reads.");
    return words.map((text) => h("p", { class: "note", dir: "auto" }, text));
}

// --- what a text is ---

async function showLabels(context) {
    const { page, run, again, bar, stage, picker: runs } = context;
    const text = page.params.get("text") ?? run.example ?? "";
    const [other, otherRuns] = beside(context, (one) => one.task === "classify");
    const box = textBox("Text", text, (value) => again({ text: value, label: null }));
    refill(bar, controls(runs, otherRuns, box), examplesFor(run, box));
    if (!text.trim() && !page.params.has("text")) return fill(stage, empty("Type a text to see what it is."));
    const both = [run, ...(other ? [other] : [])];
    const columns = columnsOf(stage, both);
    await Promise.all(both.map((one, i) => labelled(context, one, text, columns[i], i === 0 ? "" : "-2")));
}

/** A column for each run; those that are there already are kept. */
function columnsOf(stage, runs) {
    const kept = [...stage.querySelectorAll(":scope > .labels > div")];
    const ids = (all) => JSON.stringify(all);
    if (ids(kept.map((column) => column.dataset.run)) === ids(runs.map((run) => run.id))) return kept;
    const columns = runs.map((run) => h("div", { dataset: { run: run.id } }));
    fill(stage, h("div", { class: runs.length > 1 ? "labels side-by-side" : "labels" }, columns));
    return columns;
}

async function labelled({ page, again, late }, run, text, column, suffix) {
    const wanted = { label: page.params.get(`label${suffix}`), kind: page.params.get("kind") };
    const answer = await page.ask("understand/classify", { run: run.id, text, ...wanted });
    if (late()) return;
    const look = { width: roomOf(column), signal: page.signal };
    const said = labelFigure(run, answer, suffix, { ...look, onPick: (label) => again({ [`label${suffix}`]: label }) });
    const why = whyFigure(answer, suffix, look);
    const names = answer.kinds.map((kind) => [kind, KINDS[kind][0]]);
    const kinds = segmented("Weights by", names, answer.why.kind, (kind) => again({ kind }));
    kinds.classList.add("weights-by");
    why.body.before(kinds);
    refill(column, said.element, why.element, remarks(answer, run));
}

function labelFigure(run, answer, suffix, look) {
    const { labels, chosen } = answer,
        more = labels.length - LABELS;
    const own = figure({
        name: `labels${suffix}`,
        title: `${run.name}: ${labels[0].label}, p = ${number(labels[0].probability)}`,
        caption:
            `p(label | text) = softmax of the scores. Choose a label to see which ${partOf(answer.why)}s speak for it.` +
            (more > 0 ? ` ${more} less probable labels are in the table.` : ""),
    });
    own.body.append(bars(labels.slice(0, LABELS), { ...look, picked: chosen }));
    own.table(() => ({ columns: ["label", "p"], rows: labels.map((one) => [one.label, one.probability]) }));
    return own;
}

function whyFigure({ why, chosen }, suffix, look) {
    const part = partOf(why);
    const own = figure({
        name: `why${suffix}`,
        title: `Which ${part}s say “${chosen}”`,
        caption: KINDS[why.kind][1](part) + around(why),
    });
    const signed = why.kind !== "attention";
    own.body.append(wordFlow(why.words, { ...look, signed, label: `Weights of the ${part}s for ${chosen}` }));
    own.table(() => ({ columns: [part, "weight"], rows: why.words.map((word) => [word.text, word.weight]) }));
    return own;
}

const partOf = (why) => (why.words.every((word) => [...word.text].length === 1) ? "letter" : "word");

function around(why) {
    if (why.kind === "left out" || Math.abs(why.end) < 5e-4) return "";
    return ` The end of the text, and special tokens, weigh ${number(why.end)}.`;
}

/** Pixels for a picture in a column: what there is, less the frame of its figure. */
function roomOf(column, most = 1100) {
    return Math.max(320, Math.min(most, Math.floor(column.getBoundingClientRect().width) - 48));
}

function empty(words) {
    return h("p", { class: "hint" }, words);
}

// --- what each word is ---

async function showTags(context) {
    const { page, run, again, bar, stage, late, picker: runs } = context;
    const text = page.params.get("text") ?? run.example ?? "";
    const [other, otherRuns] = beside(context, (one) => TAGS.includes(one.task));
    const all = page.params.get("all") === "1";
    const box = textBox("Sentence", text, (value) => again({ text: value }));
    refill(
        bar,
        controls(
            runs,
            otherRuns,
            checkbox("All tags", all, (value) => again({ all: value ? "1" : null })),
            box,
        ),
        examplesFor(run, box),
    );
    if (!text.trim() && !page.params.has("text"))
        return fill(stage, empty("Type a sentence to see what its words are."));
    const both = [run, ...(other ? [other] : [])];
    const answers = await Promise.all(both.map((one) => page.ask("understand/tag", { run: one.id, text })));
    if (late()) return;
    const differs = differences(answers);
    const rows = rowsOf(answers, all);
    const room = roomOf(stage, 2000);
    const figures = answers.map((answer, i) => {
        const look = { rows: rows[i], room, differs, label: both[i].name, signal: page.signal };
        return tagFigure(both[i], answer, look, i === 0 ? "" : "-2");
    });
    refill(
        stage,
        verdict(answers, differs),
        figures,
        answers.flatMap((answer, i) => remarks(answer, both[i])),
        tagWords([...new Set(answers.flatMap((answer) => answer.tags))], stage.querySelector(".tag-words")?.open),
    );
}

function tagFigure(run, answer, look, suffix) {
    const { words, tags, best, posterior } = answer;
    const whole = `The whole best path has p(path | sentence) = ${number(Math.exp(answer.log_prob), 3)}.`;
    const own = figure({
        name: `lattice${suffix}`,
        title: `${run.name} · ${answer.judged}`,
        caption: suffix ? whole : `${whole} ${READ}`,
    });
    own.element.dataset.run = run.id;
    own.body.append(lattice(answer, look).element);
    own.table(() => ({
        columns: ["word", "tag", "p", ...tags],
        rows: words.map((word, t) => [word, tags[best[t]], posterior[t][best[t]], ...posterior[t]]),
    }));
    return own.element;
}

/** The words at which two models that know the same tags say different ones. */
function differences(answers) {
    const [one, other] = answers;
    if (!other || one.words.join("\n") !== other.words.join("\n")) return new Set();
    const names = (answer) => answer.best.map((tag) => answer.tags[tag]);
    if (!other.tags.some((tag) => one.tags.includes(tag))) return new Set();
    return new Set(names(one).flatMap((tag, t) => (tag === names(other)[t] ? [] : [t])));
}

/** The tags worth a row in each lattice: the same where both know the same. */
function rowsOf(answers, all) {
    const counts = (answer, k) => all || answer.best.includes(k) || answer.posterior.some((row) => row[k] >= SMALL);
    const worth = (answer) => answer.tags.filter((_, k) => counts(answer, k));
    const names = new Set(answers.flatMap(worth));
    const same = answers.every((answer) => answer.tags.join("\n") === answers[0].tags.join("\n"));
    return answers.map((answer) => {
        const own = new Set(same ? names : worth(answer));
        return answer.tags.flatMap((tag, k) => (own.has(tag) ? [k] : []));
    });
}

function verdict(answers, differs) {
    const [one, other] = answers,
        note = (words) => h("p", { class: "note", dir: "auto" }, words);
    if (!other) return null;
    if (one.words.join("\n") !== other.words.join("\n")) return note("They cut the sentence into different words.");
    if (!other.tags.some((tag) => one.tags.includes(tag))) return null;
    if (!differs.size) return note("Both say the same.");
    const said = [...differs]
        .slice(0, NAMED)
        .map((t) => `${one.words[t]}: ${one.tags[one.best[t]]} or ${other.tags[other.best[t]]}`);
    return note(
        `They differ at ${differs.size === 1 ? "one word" : `${differs.size} words`}: ${said.join(" · ")}${differs.size > NAMED ? " · …" : ""}`,
    );
}

// --- texts that go together ---

async function showPair(context) {
    const { page, run, again, bar, stage, late, picker: runs } = context;
    const [first, second] = ["first", "second"].map((name) => page.params.get(name) ?? "");
    const box = (label, name, value) => textBox(label, value, (text) => again({ [name]: text }), { button: "Read" });
    refill(bar, controls(runs), controls(box("First text", "first", first), box("Second text", "second", second)));
    const lacking = "Type two texts, Enter after each, to see how they go together.";
    if (!first.trim() || !second.trim()) return fill(stage, empty(lacking));
    const answer = await page.ask("understand/match", { run: run.id, first, second });
    if (late()) return;
    if (typeof answer.score === "number") return fill(stage, scored(run, answer.score), remarks(answer, run));
    choices(context, answer, "How they go together", "p(label | both texts)");
}

function scored(run, score) {
    const caption = "The score of the pair, in the units of the data.";
    const own = figure({ name: "score", title: `${run.name}: ${number(score)}`, caption });
    own.table(() => ({ columns: ["score"], rows: [[score]] }));
    return own.element;
}

async function showChoice(context) {
    const { page, run, again, bar, stage, late, picker: runs } = context;
    const [text, given] = [page.params.get("text") ?? "", page.params.get("options") ?? ""];
    refill(
        bar,
        controls(
            runs,
            textBox("Text", text, (value) => again({ text: value })),
        ),
        controls(
            textBox("Options, one a line (Ctrl+Enter)", given, (value) => again({ options: value }), {
                rows: 4,
                button: "Choose",
            }),
        ),
    );
    const options = given.split("\n").filter((line) => line.trim());
    if (!text.trim() || options.length < 2) return fill(stage, empty("Type a text and two options or more."));
    const answer = await page.ask("understand/choose", { run: run.id, text, options });
    if (late()) return;
    choices(context, answer, "Which goes with it", "p(option | text)");
}

function choices({ page, run, stage }, answer, words, caption) {
    const own = figure({ name: "labels", title: `${run.name}: ${words}`, caption });
    fill(stage, own.element, remarks(answer, run));
    own.body.append(bars(answer.labels, { width: roomOf(stage), signal: page.signal }));
    own.table(() => ({ columns: ["label", "p"], rows: answer.labels.map((one) => [one.label, one.probability]) }));
}

async function showAnswer(context) {
    const { page, run, again, bar, stage, late, picker: runs } = context;
    const [question, text] = [page.params.get("question") ?? "", page.params.get("context") ?? ""];
    refill(
        bar,
        controls(
            runs,
            textBox("Question", question, (value) => again({ question: value })),
        ),
        controls(
            textBox("Text it is about (Ctrl+Enter)", text, (value) => again({ context: value }), {
                rows: 5,
                max: 20000,
                button: "Read",
            }),
        ),
    );
    const lacking = "Type a text and a question about it: the model answers with words of the text.";
    if (!question.trim() || !text.trim()) return fill(stage, empty(lacking));
    const answer = await page.ask("understand/answer", { run: run.id, question, context: text });
    if (late()) return;
    const rows = answer.answers.map((one) => ({ label: one.text, probability: one.probability }));
    const own = figure({
        name: "answers",
        title: `${run.name}: ${rows[0]?.label ?? "no answer"}`,
        caption:
            "p(start) · p(end) of each answer, best first. " +
            `That the answer is not in the text: ${chance(answer.absent)}.`,
    });
    const read = h("div", { class: "panel context", dir: "auto" }, marked(text, answer.answers[0]));
    fill(stage, own.element, read, remarks(answer, run));
    own.body.append(bars(rows, { width: roomOf(stage), signal: page.signal }));
    own.table(() => ({
        columns: ["answer", "p", "from", "to"],
        rows: answer.answers.map((one) => [one.text, one.probability, one.start, one.end]),
    }));
}

/** Places are counted in whole characters there, in halves here. */
function marked(text, best) {
    if (!best) return text;
    const letters = [...text],
        part = (from, to) => letters.slice(from, to).join("");
    return [part(0, best.start), h("mark", {}, part(best.start, best.end)), part(best.end)];
}
