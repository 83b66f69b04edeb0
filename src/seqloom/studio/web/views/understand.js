// Understand: classification, tagging, sentence pairs, multiple choice and question answering.

import { h, clear, setChildren, formatNumber, updateChildren } from "../lib/dom.js";
import { checkbox, controls, examplesFor, runPicker, segmented, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { lattice } from "../lib/lattice.js";
import { tagHelp } from "../lib/tag_help.js";
import { labelBars, formatProbability, weightedWords } from "../lib/weighted_words.js";

export const title = "Understand";
export const lead =
    "A classifier predicts a label, and each word contributes to its score. A tagger predicts a tag for each word: every " +
    "path through the lattice is a tag sequence, and the best path is the prediction. Two models can be compared on the " +
    "same text.";
export const needs =
    "This view needs a classifier, a tagger, a hidden Markov model, or a model for sentence pairs, multiple choice or " +
    "question answering.";

const TAGS = ["tag", "hmm-tag", "hmm"];
const MAX_BARS = 12; // bars; the table has all labels
const MAX_NAMED_WORDS = 6; // words listed when two models differ
const MIN_TAG_PROBABILITY = 0.01; // tags below this probability at every word are omitted
// Attribution methods: label, and caption for words or characters.
const KINDS = {
    influence: [
        "Gradient × input",
        (part) =>
            `xᵀ ∂s/∂x: the contribution of each ${part} to the score s of the label, to first order. ` +
            "Green values support the label; red values (below 0) oppose it.",
    ],
    attention: [
        "Attention",
        (part) => `The attention weight of each ${part}, from 0 to 1. It does not show which label the ${part} supports.`,
    ],
    "occlusion": [
        "Occlusion",
        (part) =>
            `The decrease in the probability of the label when the ${part} is removed. ` +
            "Green: the probability decreases. Red (below 0): the probability increases.",
    ],
};
const LATTICE_CAPTION =
    "Nodes are the marginals p(tag | sentence); each column sums to 1. Grey lines are transitions, thicker if more " +
    "probable. The bold line is the Viterbi path. A dashed ring marks a tag whose marginal is larger than that of the " +
    "tag on the path.";
const VIEWS_BY_TASK = {
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
    setChildren(page.root, bar, stage);
    let latestRequest = null;

    /** Draw the view for the current address; the controls keep the keyboard focus. */
    async function draw() {
        const requestId = (latestRequest = {});
        const run = page.selectedRun();
        if (stage.dataset.run !== run.id) clear(stage).dataset.run = run.id;
        page.clearError();
        const isStale = () => latestRequest !== requestId; // superseded by a newer request
        try {
            await VIEWS_BY_TASK[run.task]({ page, run, again, bar, stage, isStale, picker: picker(page, run, again) });
        } catch (error) {
            if (!isStale()) throw error;
        }
    }

    function again(changes) {
        page.setParams(changes);
        draw().catch((error) => page.fail(error));
    }

    await draw();
}

function picker(page, run, again) {
    return runPicker(page, {
        value: run.id,
        onchange(id) {
            const text = sameKind(page, run, id) ? page.params.get("text") : null;
            again({ run: id, label: null, kind: null, other: null, text });
        },
    });
}

function sameKind(page, run, id) {
    const other = page.run(id);
    return TAGS.includes(run.task) === TAGS.includes(other?.task);
}

/** The run to compare with, and its menu. */
function comparison({ page, run, again }, suits) {
    const otherRuns = page.runs.filter((item) => item.id !== run.id && suits(item));
    const selected = page.params.get("other");
    const chosen = otherRuns.find((item) => (selected === null ? isDefaultComparison(run, item) : item.id === selected));
    if (!otherRuns.length) return [null, null];
    const onchange = (id) => again({ other: id || "none" });
    const options = { label: "Compare with", value: chosen?.id, empty: "none", onchange };
    return [chosen, runPicker({ ...page, runs: otherRuns }, options)];
}

/** Whether two runs are compared by default: an HMM tagger and a neural tagger of the same corpus. */
function isDefaultComparison(run, other) {
    return run.corpus === other.corpus && [run.task, other.task].sort().join(" ") === "hmm-tag tag";
}

function remarks(answer, run) {
    const words = [];
    const unknown = answer.unknown?.slice(0, 12).join(", ");
    if (unknown) words.push(`Not in the vocabulary of ${run.name}: ${unknown}`);
    if (answer.cut) words.push("The text was truncated to the maximum length of the model.");
    return words.map((text) => h("p", { class: "note", dir: "auto" }, text));
}

// --- classification ---

async function showLabels(context) {
    const { page, run, again, bar, stage, picker: runs } = context;
    const text = page.params.get("text") ?? run.example ?? "";
    const [other, otherRuns] = comparison(context, (item) => item.task === "classify");
    const box = textBox("Text", text, (value) => again({ text: value, label: null }));
    updateChildren(bar, controls(runs, otherRuns, box), examplesFor(run, box));
    if (!text.trim() && !page.params.has("text")) return setChildren(stage, emptyHint("Enter a text to classify."));
    const compared = [run, ...(other ? [other] : [])];
    const columns = columnsOf(stage, compared);
    await Promise.all(compared.map((item, i) => showColumn(context, item, text, columns[i], i === 0 ? "" : "-2")));
}

/** One column per run; existing columns are kept. */
function columnsOf(stage, runs) {
    const oldColumns = [...stage.querySelectorAll(":scope > .labels > div")];
    const ids = (all) => JSON.stringify(all);
    if (ids(oldColumns.map((column) => column.dataset.run)) === ids(runs.map((run) => run.id))) return oldColumns;
    const columns = runs.map((run) => h("div", { dataset: { run: run.id } }));
    setChildren(stage, h("div", { class: runs.length > 1 ? "labels side-by-side" : "labels" }, columns));
    return columns;
}

async function showColumn({ page, again, isStale }, run, text, column, suffix) {
    const selected = { label: page.params.get(`label${suffix}`), kind: page.params.get("kind") };
    const answer = await page.request("understand/classify", { run: run.id, text, ...selected });
    if (isStale()) return;
    const options = { width: roomOf(column), signal: page.signal };
    const labelsFigure = labelFigure(run, answer, suffix, { ...options, onPick: (label) => again({ [`label${suffix}`]: label }) });
    const why = whyFigure(answer, suffix, options);
    const names = answer.kinds.map((kind) => [kind, KINDS[kind][0]]);
    const kinds = segmented("Attribution", names, answer.why.kind, (kind) => again({ kind }));
    kinds.classList.add("weights-by");
    why.body.before(kinds);
    updateChildren(column, labelsFigure.element, why.element, remarks(answer, run));
}

function labelFigure(run, answer, suffix, look) {
    const { labels, label, predicted } = answer,
        more = labels.length - MAX_BARS;
    const best = `${labels[0].label}, p = ${formatNumber(labels[0].probability)}`;
    const fig = figure({
        name: `labels${suffix}`,
        title: `${run.name}: ${predicted ? predicted.join(", ") || "no label" : best}`,
        caption:
            (predicted
                ? "p(label | text), the sigmoid of each score. A label is predicted if its probability reaches its " +
                  "threshold. "
                : "p(label | text), the softmax of the scores. ") +
            "Select a label to explain it." +
            (more > 0 ? ` ${more} less probable labels are in the table.` : ""),
    });
    fig.body.append(labelBars(labels.slice(0, MAX_BARS), { ...look, picked: label }));
    fig.table(() => ({ columns: ["label", "p"], rows: labels.map((item) => [item.label, item.probability]) }));
    return fig;
}

function whyFigure({ why, label }, suffix, look) {
    const part = partOf(why);
    const fig = figure({
        name: `why${suffix}`,
        title: `Attribution of “${label}” to ${part}s`,
        caption: KINDS[why.kind][1](part) + around(why),
    });
    const signed = why.kind !== "attention";
    fig.body.append(weightedWords(why.words, { ...look, signed, label: `Attribution of ${label} to ${part}s` }));
    fig.table(() => ({ columns: [part, "weight"], rows: why.words.map((word) => [word.text, word.weight]) }));
    return fig;
}

const partOf = (why) => (why.words.every((word) => [...word.text].length === 1) ? "character" : "word");

function around(why) {
    if (why.kind === "occlusion" || Math.abs(why.end) < 5e-4) return "";
    return ` END and special tokens contribute ${formatNumber(why.end)}.`;
}

/** The width of a drawing in a column, without the frame of the figure. */
function roomOf(column, most = 1100) {
    return Math.max(320, Math.min(most, Math.floor(column.getBoundingClientRect().width) - 48));
}

function emptyHint(words) {
    return h("p", { class: "hint" }, words);
}

// --- tagging ---

async function showTags(context) {
    const { page, run, again, bar, stage, isStale, picker: runs } = context;
    const text = page.params.get("text") ?? run.example ?? "";
    const [other, otherRuns] = comparison(context, (item) => TAGS.includes(item.task));
    const all = page.params.get("all") === "1";
    const box = textBox("Sentence", text, (value) => again({ text: value }));
    updateChildren(
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
        return setChildren(stage, emptyHint("Enter a sentence to tag."));
    const compared = [run, ...(other ? [other] : [])];
    const answers = await Promise.all(compared.map((item) => page.request("understand/tag", { run: item.id, text })));
    if (isStale()) return;
    const differing = differences(answers);
    const rows = rowsOf(answers, all);
    const room = roomOf(stage, 2000);
    const figures = answers.map((answer, i) => {
        const options = { rows: rows[i], room, differs: differing, label: compared[i].name, signal: page.signal };
        return tagFigure(compared[i], answer, options, i === 0 ? "" : "-2");
    });
    updateChildren(
        stage,
        verdict(answers, differing),
        figures,
        answers.flatMap((answer, i) => remarks(answer, compared[i])),
        tagHelp([...new Set(answers.flatMap((answer) => answer.tags))], stage.querySelector(".tag-words")?.open),
    );
}

function tagFigure(run, answer, look, suffix) {
    const { words, tags, best, posterior } = answer;
    const pathCaption = `The best path has p(path | sentence) = ${formatNumber(Math.exp(answer.log_prob), 3)}.`;
    const fig = figure({
        name: `lattice${suffix}`,
        title: `${run.name} · ${answer.scoring}`,
        caption: suffix ? pathCaption : `${pathCaption} ${LATTICE_CAPTION}`,
    });
    fig.element.dataset.run = run.id;
    fig.body.append(lattice(answer, look).element);
    fig.table(() => ({
        columns: ["word", "tag", "p", ...tags],
        rows: words.map((word, t) => [word, tags[best[t]], posterior[t][best[t]], ...posterior[t]]),
    }));
    return fig.element;
}

/** The indices of words for which two models predict different tags. */
function differences(answers) {
    const [item, other] = answers;
    if (!other || item.words.join("\n") !== other.words.join("\n")) return new Set();
    const names = (answer) => answer.best.map((tag) => answer.tags[tag]);
    if (!other.tags.some((tag) => item.tags.includes(tag))) return new Set();
    return new Set(names(item).flatMap((tag, t) => (tag === names(other)[t] ? [] : [t])));
}

/** The tags shown in each lattice; models with the same tags show the same rows. */
function rowsOf(answers, all) {
    const counts = (answer, k) => all || answer.best.includes(k) || answer.posterior.some((row) => row[k] >= MIN_TAG_PROBABILITY);
    const shownTags = (answer) => answer.tags.filter((_, k) => counts(answer, k));
    const names = new Set(answers.flatMap(shownTags));
    const areEqual = answers.every((answer) => answer.tags.join("\n") === answers[0].tags.join("\n"));
    return answers.map((answer) => {
        const visibleTags = new Set(areEqual ? names : shownTags(answer));
        return answer.tags.flatMap((tag, k) => (visibleTags.has(tag) ? [k] : []));
    });
}

function verdict(answers, differing) {
    const [item, other] = answers,
        note = (words) => h("p", { class: "note", dir: "auto" }, words);
    if (!other) return null;
    if (item.words.join("\n") !== other.words.join("\n")) return note("The models split the sentence into different words.");
    if (!other.tags.some((tag) => item.tags.includes(tag))) return null;
    if (!differing.size) return note("Both models predict the same tags.");
    const words = [...differing]
        .slice(0, MAX_NAMED_WORDS)
        .map((t) => `${item.words[t]}: ${item.tags[item.best[t]]} or ${other.tags[other.best[t]]}`);
    return note(
        `The models differ at ${differing.size === 1 ? "one word" : `${differing.size} words`}: ${words.join(" · ")}${differing.size > MAX_NAMED_WORDS ? " · …" : ""}`,
    );
}

// --- pairs, choices and answers ---

async function showPair(context) {
    const { page, run, again, bar, stage, isStale, picker: runs } = context;
    const [first, second] = ["first", "second"].map((name) => page.params.get(name) ?? "");
    const box = (label, name, value) => textBox(label, value, (text) => again({ [name]: text }), {});
    updateChildren(bar, controls(runs), controls(box("First text", "first", first), box("Second text", "second", second)));
    const message = "Enter two texts; press Enter after each.";
    if (!first.trim() || !second.trim()) return setChildren(stage, emptyHint(message));
    const answer = await page.request("understand/match", { run: run.id, first, second });
    if (isStale()) return;
    if (typeof answer.score === "number") return setChildren(stage, scoreFigure(run, answer.score), remarks(answer, run));
    choices(context, answer, "predicted relation", "p(label | both texts)");
}

function scoreFigure(run, score) {
    const caption = "The predicted score of the pair, in the units of the training data.";
    const fig = figure({ name: "score", title: `${run.name}: ${formatNumber(score)}`, caption });
    fig.table(() => ({ columns: ["score"], rows: [[score]] }));
    return fig.element;
}

async function showChoice(context) {
    const { page, run, again, bar, stage, isStale, picker: runs } = context;
    const [text, optionsText] = [page.params.get("text") ?? "", page.params.get("options") ?? ""];
    updateChildren(
        bar,
        controls(
            runs,
            textBox("Text", text, (value) => again({ text: value })),
        ),
        controls(
            textBox("Options, one per line (Ctrl+Enter)", optionsText, (value) => again({ options: value }), {
                rows: 4,
                button: "Choose",
            }),
        ),
    );
    const options = optionsText.split("\n").filter((line) => line.trim());
    if (!text.trim() || options.length < 2) return setChildren(stage, emptyHint("Enter a text and at least two options."));
    const answer = await page.request("understand/choose", { run: run.id, text, options });
    if (isStale()) return;
    choices(context, answer, "options by probability", "p(option | text)");
}

function choices({ page, run, stage }, answer, words, caption) {
    const fig = figure({ name: "labels", title: `${run.name}: ${words}`, caption });
    setChildren(stage, fig.element, remarks(answer, run));
    fig.body.append(labelBars(answer.labels, { width: roomOf(stage), signal: page.signal }));
    fig.table(() => ({ columns: ["label", "p"], rows: answer.labels.map((item) => [item.label, item.probability]) }));
}

async function showAnswer(context) {
    const { page, run, again, bar, stage, isStale, picker: runs } = context;
    const [question, text] = [page.params.get("question") ?? "", page.params.get("context") ?? ""];
    updateChildren(
        bar,
        controls(
            runs,
            textBox("Question", question, (value) => again({ question: value })),
        ),
        controls(
            textBox("Context (Ctrl+Enter)", text, (value) => again({ context: value }), {
                rows: 5,
                max: 20000,
                button: "Answer",
            }),
        ),
    );
    const message = "Enter a context and a question. The answer is a span of the context.";
    if (!question.trim() || !text.trim()) return setChildren(stage, emptyHint(message));
    const answer = await page.request("understand/answer", { run: run.id, question, context: text });
    if (isStale()) return;
    const rows = answer.answers.map((item) => ({ label: item.text, probability: item.probability }));
    const fig = figure({
        name: "answers",
        title: `${run.name}: ${rows[0]?.label ?? "no answer"}`,
        caption:
            "p(start) · p(end) of each span, best first. " +
            `Probability that the context contains no answer: ${formatProbability(answer.no_answer_probability)}.`,
    });
    const read = h("div", { class: "panel context", dir: "auto" }, marked(text, answer.answers[0]));
    setChildren(stage, fig.element, read, remarks(answer, run));
    fig.body.append(labelBars(rows, { width: roomOf(stage), signal: page.signal }));
    fig.table(() => ({
        columns: ["answer", "p", "start", "end"],
        rows: answer.answers.map((item) => [item.text, item.probability, item.start, item.end]),
    }));
}

/** Mark the best answer. Its offsets count code points, not UTF-16 units. */
function marked(text, best) {
    if (!best) return text;
    const letters = [...text],
        part = (from, to) => letters.slice(from, to).join("");
    return [part(0, best.start), h("mark", {}, part(best.start, best.end)), part(best.end)];
}
