// The page around the views: menu, addresses, theme, and words where there is nothing to see.

import { h, fill, clear } from "./lib/dom.js";
import { quickstart } from "./lib/advice.js";
import { ask, hasToken, Refused, stream, useToken } from "./lib/api.js";
import { setTheme, theme } from "./lib/colour.js";
import { preferred } from "./lib/preferred.js";

// The menu: address, name in the menu. Every view is web/views/<address>.js.
const VIEWS = [
    ["runs", "Runs"],
    ["write", "Translate, generate"],
    ["alignment", "Alignment"],
    ["heads", "Self-attention"],
    ["beam", "Beam search"],
    ["cell", "Inside the cell"],
    ["gradients", "Gradient flow"],
    ["vectors", "Vectors"],
    ["walk", "How it works"],
    ["understand", "Understand"],
];
const main = document.getElementById("main");
let shelf = { runs: [], folder: "" };
let leaving = new AbortController();

/** #/heads?run=gpt → ["heads", URLSearchParams, "heads"], the last as it was asked for. The token is taken out at once. */
function address() {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    const params = new URLSearchParams(query);
    if (params.has("token")) {
        useToken(params.get("token"));
        params.delete("token");
        history.replaceState(null, "", link(path || "runs", params));
    }
    return [VIEWS.some(([name]) => name === path) ? path : "runs", params, path || "runs"];
}

function link(view, params = {}) {
    const given =
        params instanceof URLSearchParams
            ? params
            : new URLSearchParams(Object.entries(params).filter(([, v]) => v !== null && v !== undefined));
    const query = given.toString();
    return `#/${view}${query ? `?${query}` : ""}`;
}

async function open() {
    const [view, params, asked] = address();
    leaving.abort();
    leaving = new AbortController();
    const mine = leaving.signal;
    main.dataset.state = "opening";
    menu(view, params);
    if (!hasToken()) return fill(main, locked());
    let page = null;
    try {
        const [module] = await Promise.all([import(`./views/${view}.js`), refresh()]);
        if (mine.aborted) return;
        menu(view, params);
        page = pageOf(view, params, mine);
        if (asked !== view) fill(page.astray, problem(`There is no view called “${asked}”: these are the runs.`));
        document.title = `${module.title} · seqloom studio`;
        fill(
            main,
            h(
                "div",
                { class: "view", dataset: { view } },
                h("h1", {}, module.title),
                h("p", { class: "lead" }, module.lead),
                page.astray,
                page.notice,
                page.root,
            ),
        );
        if (view !== "runs" && !page.runs.length) return fill(page.root, nothing(module));
        await module.show(page);
    } catch (error) {
        if (error.name === "AbortError" || mine.aborted) return;
        if (error instanceof Refused && error.status === 401) return fill(main, locked());
        if (page) return page.fail(error);
        fill(main, problem(error.message));
        if (!(error instanceof Refused)) console.error(error);
    } finally {
        if (!mine.aborted) main.dataset.state = "open";
    }
}

async function refresh(signal) {
    shelf = await ask("runs", {}, signal);
    document.getElementById("folder").textContent = shelf.folder;
}

function problem(words) {
    return h("p", { class: "problem", role: "alert", dir: "auto" }, words);
}

/** What is wrong with the run that the address names, if anything. */
function strange(id, runs) {
    if (!id || runs.some((run) => run.id === id)) return null;
    const known = shelf.runs.some((run) => run.id === id);
    return problem(
        `${known ? `The run “${id}” has nothing to show here` : `No run is called “${id}” here`}: another one is shown.`,
    );
}

/** What a view is given. */
function pageOf(view, params, signal) {
    const notice = h("div", { class: "notice" });
    const root = h("div", { class: "stage" });
    const runs = shelf.runs.filter((run) => view === "runs" || run.views.includes(view));
    const first = preferred(view, runs);
    const page = {
        root,
        notice,
        astray: h("div", {}, runs.length && view !== "runs" ? strange(params.get("run"), runs) : null),
        params,
        signal,
        all: shelf.runs,
        folder: shelf.folder,
        runs,
        /** All runs as they are now: some may train, or have ended. */
        async news() {
            await refresh(signal);
            page.all = shelf.runs;
            return page.all;
        },
        /** The run to show: the one that the address names, or else the one this view begins with. */
        chosen() {
            return runs.find((run) => run.id === params.get("run")) ?? first;
        },
        run(id) {
            return page.all.find((run) => run.id === id);
        },
        /** Write these into the address; null takes one out, a list is written one by one. */
        set(changes) {
            for (const [name, value] of Object.entries(changes)) {
                const cleared = value === "" && name !== "text"; // an empty text is one, not the example
                params.delete(name);
                if (Array.isArray(value)) value.forEach((one) => params.append(name, one));
                else if (value !== null && value !== undefined && !cleared) params.set(name, value);
            }
            if (changes.run && changes.run !== first?.id) clear(page.astray);
            if (!signal.aborted) history.replaceState(null, "", link(view, params));
        },
        link,
        go(other, given) {
            location.hash = link(other, given);
        },
        ask: (path, body) => ask(path, body, signal),
        stream: (path, body, stop) => stream(path, body, stop ? AbortSignal.any([signal, stop]) : signal),
        /** Say what went wrong, in sight; pictures of what was asked before grow pale. Beside a part: that part alone. */
        fail(error, place = notice) {
            if (error.name === "AbortError" || signal.aborted) return;
            fill(place, problem(error.message));
            if (!(error instanceof Refused)) console.error(error);
            if (place !== notice) return;
            root.classList.toggle("failed", view !== "runs"); // curves are of all that was chosen before, and stay true
            notice.scrollIntoView({ block: "nearest" });
        },
        fine() {
            clear(notice);
            root.classList.remove("failed");
        },
    };
    return page;
}

/** The views; those that have nothing to show are pale, but can be opened: they say what they need. */
function menu(view, params) {
    const run = shelf.runs.find((one) => one.id === params.get("run"));
    fill(
        document.getElementById("views"),
        h(
            "ul",
            {},
            VIEWS.map(([name, words]) => {
                const suits = name === "runs" || shelf.runs.some((one) => one.views.includes(name));
                const keep = run?.views.includes(name) ? { run: run.id, text: params.get("text") || null } : {};
                return h(
                    "li",
                    {},
                    h(
                        "a",
                        {
                            href: name === view ? link(name, params) : link(name, keep),
                            "aria-current": name === view ? "page" : null,
                            class: suits ? null : "pale",
                        },
                        words,
                    ),
                );
            }),
        ),
    );
}

function nothing(module) {
    const first = shelf.runs.length
        ? `None of the ${shelf.runs.length} runs in ${shelf.folder} has this to show. `
        : `There are no runs in ${shelf.folder} yet. `;
    return h(
        "div",
        { class: "empty" },
        h("p", { dir: "auto" }, first, module.needs ?? ""),
        h(
            "p",
            {},
            "Train a small translator in about two minutes: ",
            h("code", {}, quickstart(shelf.folder)),
            "; or the models that bring every view alive: ",
            h("code", {}, "seqloom studio --demo"),
        ),
    );
}

function locked() {
    return h(
        "div",
        { class: "empty" },
        h("h1", {}, "This studio is locked"),
        h(
            "p",
            {},
            "Open it by the address that ",
            h("code", {}, "seqloom studio"),
            " printed in the terminal. It ends with a token that lets this browser in; the token changes every time the studio is started.",
        ),
    );
}

function chooseTheme(name, keep) {
    setTheme(name);
    const other = name === "dark" ? "light" : "dark";
    const button = document.getElementById("theme");
    button.textContent = other === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Use the ${other} theme`);
    try {
        if (keep) localStorage.setItem("seqloom-theme", name);
    } catch {
        // without storage the choice lasts as long as the page
    }
}

function firstTheme() {
    try {
        const kept = localStorage.getItem("seqloom-theme");
        if (kept === "dark" || kept === "light") return kept;
    } catch {
        // no storage: what the system says
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

useToken(null);
chooseTheme(firstTheme(), false);
document
    .getElementById("theme")
    .addEventListener("click", () => chooseTheme(theme() === "dark" ? "light" : "dark", true));
document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
});
addEventListener("hashchange", open);
open();
