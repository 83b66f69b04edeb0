// The page around the views: menu, addresses, theme, and words where there is nothing to see.

import { h, fill, clear } from "./lib/dom.js";
import { ask, hasToken, Refused, stream, useToken } from "./lib/api.js";
import { setTheme, theme } from "./lib/colour.js";

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
let current = null;

/** #/heads?run=gpt&layer=2 → ["heads", URLSearchParams]. The token is taken out of the address at once. */
function address() {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    const params = new URLSearchParams(query);
    if (params.has("token")) {
        useToken(params.get("token"));
        params.delete("token");
        history.replaceState(null, "", link(path || "runs", params));
    }
    return [VIEWS.some(([name]) => name === path) ? path : "runs", params];
}

function link(view, params = {}) {
    const given = params instanceof URLSearchParams ? params : new URLSearchParams(Object.entries(params).filter(([, v]) => v !== null && v !== undefined));
    const query = given.toString();
    return `#/${view}${query ? `?${query}` : ""}`;
}

async function open() {
    const [view, params] = address();
    leaving.abort();
    leaving = new AbortController();
    const mine = leaving.signal;
    current = view;
    menu(view, params);
    if (!hasToken()) return fill(main, locked());
    try {
        const [module] = await Promise.all([import(`./views/${view}.js`), refresh()]);
        if (mine.aborted) return;
        menu(view, params);
        const page = pageOf(view, params, mine);
        document.title = `${module.title} · seqloom studio`;
        fill(main, h("div", { class: "view", dataset: { view } }, h("h1", {}, module.title), h("p", { class: "lead" }, module.lead), page.notice, page.root));
        if (view !== "runs" && !page.runs.length) return fill(page.root, nothing(module));
        await module.show(page);
    } catch (error) {
        if (error.name === "AbortError" || mine.aborted) return;
        if (error instanceof Refused && error.status === 401) return fill(main, locked());
        const place = main.querySelector(".notice") ?? main;
        fill(place, h("p", { class: "problem", role: "alert", dir: "auto" }, error.message));
        if (!(error instanceof Refused)) console.error(error);
    }
}

async function refresh() {
    shelf = await ask("runs", {});
    document.getElementById("folder").textContent = shelf.folder;
}

/** What a view is given. */
function pageOf(view, params, signal) {
    const notice = h("div", { class: "notice" });
    const page = {
        root: h("div", { class: "stage" }),
        notice,
        params,
        signal,
        all: shelf.runs,
        runs: shelf.runs.filter((run) => view === "runs" || run.views.includes(view)),
        run(id) {
            return page.all.find((run) => run.id === id);
        },
        set(changes) {
            for (const [name, value] of Object.entries(changes)) {
                if (value === null || value === undefined || value === "") params.delete(name);
                else params.set(name, value);
            }
            if (!signal.aborted) history.replaceState(null, "", link(view, params));
        },
        link,
        go(other, given) {
            location.hash = link(other, given);
        },
        ask: (path, body) => ask(path, body, signal),
        stream: (path, body, stop) => stream(path, body, stop ? AbortSignal.any([signal, stop]) : signal),
        fail(error) {
            if (error.name === "AbortError" || signal.aborted) return;
            fill(notice, h("p", { class: "problem", role: "alert", dir: "auto" }, error.message));
            if (!(error instanceof Refused)) console.error(error);
        },
        fine() {
            clear(notice);
        },
        refresh,
    };
    return page;
}

/** The views; those that have nothing to show are pale, but can be opened: they say what they need. */
function menu(view, params) {
    const run = shelf.runs.find((one) => one.id === params.get("run"));
    fill(document.getElementById("views"), h("ul", {}, VIEWS.map(([name, words]) => {
        const suits = name === "runs" || shelf.runs.some((one) => one.views.includes(name));
        const keep = run?.views.includes(name) ? { run: run.id, text: params.get("text") } : {};
        return h("li", {}, h("a", {
            href: name === view ? link(name, params) : link(name, keep), "aria-current": name === view ? "page" : null, class: suits ? null : "pale",
        }, words));
    })));
}

function nothing(module) {
    const first = shelf.runs.length ? `None of the ${shelf.runs.length} runs in ${shelf.folder} has this to show. ` : `There are no runs in ${shelf.folder} yet. `;
    return h("div", { class: "empty" },
        h("p", { dir: "auto" }, first, module.needs ?? ""),
        h("p", {}, "Train a small translator in about two minutes: ", h("code", {}, "seqloom quickstart"), "; or the models that bring every view alive: ", h("code", {}, "seqloom studio --demo")));
}

function locked() {
    return h("div", { class: "empty" },
        h("h1", {}, "This studio is locked"),
        h("p", {}, "Open it by the address that ", h("code", {}, "seqloom studio"), " printed in the terminal. It ends with a token that lets this browser in; the token changes every time the studio is started."));
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
document.getElementById("theme").addEventListener("click", () => chooseTheme(theme() === "dark" ? "light" : "dark", true));
document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
});
addEventListener("hashchange", open);
open();
