// The page around the views: menu, routing, theme and empty states.

import { h, setChildren, clear } from "./lib/dom.js";
import { quickstartCommand } from "./lib/quickstart.js";
import { request, hasToken, RequestError, stream, useToken } from "./lib/api.js";
import { setTheme, theme } from "./lib/colour.js";
import { defaultRun } from "./lib/default_run.js";

// The menu: name and label, written by the server. Each view is web/views/<name>.js.
const VIEWS = JSON.parse(document.getElementById("views").dataset.views);
const main = document.getElementById("main");
let listing = { runs: [], folder: "" };
let currentPage = new AbortController();

/** Parse #/heads?run=gpt into [view, URLSearchParams, requested view]. The token is removed from the address. */
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
    const token =
        params instanceof URLSearchParams
            ? params
            : new URLSearchParams(Object.entries(params).filter(([, v]) => v !== null && v !== undefined));
    const query = token.toString();
    return `#/${view}${query ? `?${query}` : ""}`;
}

async function openView() {
    const [view, params, requestedView] = address();
    currentPage.abort();
    currentPage = new AbortController();
    const pageSignal = currentPage.signal;
    main.dataset.state = "opening";
    drawMenu(view, params);
    if (!hasToken()) return setChildren(main, lockedPage());
    let page = null;
    try {
        const [module] = await Promise.all([import(`./views/${view}.js`), refresh()]);
        if (pageSignal.aborted) return;
        drawMenu(view, params);
        page = createPage(view, params, pageSignal);
        if (requestedView !== view) setChildren(page.addressProblem, problem(`Unknown view “${requestedView}”. Showing the list of runs.`));
        document.title = `${module.title} · seqloom studio`;
        setChildren(
            main,
            h(
                "div",
                { class: "view", dataset: { view } },
                h("h1", {}, module.title),
                h("p", { class: "lead" }, module.lead),
                page.addressProblem,
                page.notice,
                page.root,
            ),
        );
        if (view !== "runs" && !page.runs.length) return setChildren(page.root, noSuitableRuns(module));
        await module.show(page);
    } catch (error) {
        if (error.name === "AbortError" || pageSignal.aborted) return;
        if (error instanceof RequestError && error.status === 401) return setChildren(main, lockedPage());
        if (page) return page.fail(error);
        setChildren(main, problem(error.message));
        if (!(error instanceof RequestError)) console.error(error);
    } finally {
        if (!pageSignal.aborted) main.dataset.state = "open";
    }
}

async function refresh(signal) {
    listing = await request("runs", {}, signal);
    document.getElementById("folder").textContent = listing.folder;
}

function problem(words) {
    return h("p", { class: "problem", role: "alert", dir: "auto" }, words);
}

/** An error message if the run in the address does not exist or does not suit the view. */
function runProblem(id, runs) {
    if (!id || runs.some((run) => run.id === id)) return null;
    const isListed = listing.runs.some((run) => run.id === id);
    return problem(
        `${isListed ? `The run “${id}” does not support this view` : `There is no run “${id}”`}. Showing another run.`,
    );
}

/** The object that a view receives. */
function createPage(view, params, signal) {
    const notice = h("div", { class: "notice" });
    const root = h("div", { class: "stage" });
    const runs = listing.runs.filter((run) => view === "runs" || run.views.includes(view));
    const first = defaultRun(view, runs);
    const page = {
        root,
        notice,
        addressProblem: h("div", {}, runs.length && view !== "runs" ? runProblem(params.get("run"), runs) : null),
        params,
        signal,
        allRuns: listing.runs,
        folder: listing.folder,
        runs,
        /** Reload the list of runs, since a training run may have started or ended. */
        async refreshRuns() {
            await refresh(signal);
            page.allRuns = listing.runs;
            return page.allRuns;
        },
        /** The run in the address, or the default run of this view. */
        selectedRun() {
            return runs.find((run) => run.id === params.get("run")) ?? first;
        },
        run(id) {
            return page.allRuns.find((run) => run.id === id);
        },
        /** Write parameters to the address; null removes one, a list is written as repeated parameters. */
        setParams(changes) {
            for (const [name, value] of Object.entries(changes)) {
                const cleared = value === "" && name !== "text"; // an empty text is valid and differs from the default
                params.delete(name);
                if (Array.isArray(value)) value.forEach((item) => params.append(name, item));
                else if (value !== null && value !== undefined && !cleared) params.set(name, value);
            }
            if (changes.run && changes.run !== first?.id) clear(page.addressProblem);
            if (!signal.aborted) history.replaceState(null, "", link(view, params));
        },
        link,
        navigate(other, given) {
            location.hash = link(other, given);
        },
        request: (path, body) => request(path, body, signal),
        stream: (path, body, stop) => stream(path, body, stop ? AbortSignal.any([signal, stop]) : signal),
        /** Show an error, at the top or at a given element. An error at the top dims the outdated figures. */
        fail(error, place = notice) {
            if (error.name === "AbortError" || signal.aborted) return;
            setChildren(place, problem(error.message));
            if (!(error instanceof RequestError)) console.error(error);
            if (place !== notice) return;
            root.classList.toggle("failed", view !== "runs"); // the curves remain valid
            notice.scrollIntoView({ block: "nearest" });
        },
        clearError() {
            clear(notice);
            root.classList.remove("failed");
        },
    };
    return page;
}

/** Draw the menu. Views without suitable runs are pale, and explain what they need. */
function drawMenu(view, params) {
    const run = listing.runs.find((item) => item.id === params.get("run"));
    setChildren(
        document.getElementById("views"),
        h(
            "ul",
            {},
            VIEWS.map(([name, words]) => {
                const suits = name === "runs" || listing.runs.some((item) => item.views.includes(name));
                const keep = run?.views.includes(name) ? { run: run.id, text: params.get("text") || null } : {};
                return h(
                    "li",
                    {},
                    h(
                        "a",
                        {
                            href: name === view ? link(name, params) : link(name, keep),
                            "aria-current": name === view ? "page" : null,
                            class: suits ? null : "muted",
                        },
                        words,
                    ),
                );
            }),
        ),
    );
}

function noSuitableRuns(module) {
    const first = listing.runs.length
        ? `None of the ${listing.runs.length} runs in ${listing.folder} supports this view. `
        : `There are no runs in ${listing.folder} yet. `;
    return h(
        "div",
        { class: "empty" },
        h("p", { dir: "auto" }, first, module.needs ?? ""),
        h(
            "p",
            {},
            "Train a small translator in about two minutes: ",
            h("code", {}, quickstartCommand(listing.folder)),
            ". Or train small models for all views: ",
            h("code", {}, "seqloom studio --demo"),
        ),
    );
}

function lockedPage() {
    return h(
        "div",
        { class: "empty" },
        h("h1", {}, "This studio is locked"),
        h(
            "p",
            {},
            "Open the address that ",
            h("code", {}, "seqloom studio"),
            " printed in the terminal. It contains an access token, which changes every time the studio starts.",
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
        // without storage the choice is not saved
    }
}

function firstTheme() {
    try {
        const storedTheme = localStorage.getItem("seqloom-theme");
        if (storedTheme === "dark" || storedTheme === "light") return storedTheme;
    } catch {
        // without storage the system preference applies
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
addEventListener("hashchange", openView);
openView();
