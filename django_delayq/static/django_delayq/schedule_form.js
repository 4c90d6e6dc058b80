/* The schedule's form: shows only the fields of the chosen kind, inputs for the arguments of the chosen task, and the
   next due points during typing. Without this script inputs and points appear after saving. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("schedule_form");
    const points = document.getElementById("delayq-upcoming");
    const about = document.getElementById("delayq-task");
    const VALUES = { cron: ["cron"], every: ["every", "every_from"], once: ["at_0", "at_1"] };
    const ONLY_CRON = ["dst_gap", "dst_overlap"];
    const PAUSE_MS = 250;

    const kind = () => form.querySelector("input[name=kind]:checked")?.value;

    // Return the largest element that contains these inputs and no others, in any theme.
    const rowOf = (names) => {
        let row = form.elements[names[0]];
        const isTheirs = (input) => !input.name || names.includes(input.name);
        while (row?.parentElement && [...row.parentElement.querySelectorAll("input, select, textarea")].every(isTheirs)) {
            row = row.parentElement;
        }
        return row;
    };

    const show = (names, isShown) => {
        const row = rowOf(names);
        row?.classList.toggle("delayq-away", !isShown && !row.querySelector(".errorlist"));
    };

    const showKind = () => {
        Object.entries(VALUES).forEach(([name, inputs]) => show(inputs, name === kind()));
        show(ONLY_CRON, kind() === "cron");
    };

    // Hidden inputs are sent empty: otherwise the server would refuse a second recurrence.
    const notMeant = () => Object.keys(VALUES).filter((name) => name !== kind())
        .flatMap((name) => VALUES[name]).filter((name) => name !== "every_from");

    const meant = () => {
        const values = new FormData(form);
        notMeant().forEach((name) => values.set(name, ""));
        return values;
    };

    const clearHidden = () => {
        for (const input of notMeant().map((name) => form.elements[name])) {
            if (input.closest(".delayq-away")) {
                input.value = "";
            }
        }
    };

    // Django's shortcuts "Now" and "Today" use the schedule's zone, like the typed times.
    const followZone = () => {
        const now = new Date();
        const shown = (timeZone) => new Date(now.toLocaleString("en-US", { timeZone }));
        try {
            document.body.dataset.adminUtcOffset = (shown(form.elements.timezone.value) - shown("UTC")) / 1000;
        } catch {
            // Not yet the name of a zone.
        }
    };

    // Arguments depend on the task; the checkbox decides whether they are JSON. The server renders them.
    const call = () => document.getElementById("delayq-call");
    let asked;
    let isStale = false;

    const followCall = ({ target }) => {
        const task = form.elements.task;
        const isTask = target === task && [...task.list.options].some((option) => option.value === task.value);
        if ((isTask && task.value !== call().dataset.task) || target.name === "call_as_json") {
            asked?.abort();
            isStale = true;
        }
    };

    let timer;
    const preview = async () => {
        asked?.abort();
        asked = new AbortController();
        try {
            const reply = await fetch(points.dataset.url, { method: "POST", body: meant(), signal: asked.signal });
            if (reply.ok) {
                const shown = await reply.json();
                points.innerHTML = shown.upcoming;
                about.innerHTML = shown.task;
                if (isStale) {
                    const isFocused = document.activeElement?.name === "call_as_json";
                    call().outerHTML = shown.call;
                    isStale = false;
                    if (isFocused) {
                        form.elements.call_as_json?.focus();
                    }
                }
            }
        } catch {
            // Offline, or overtaken by the next: what is shown stays.
        }
    };

    if (form && points && about && call() && form.elements.kind) {
        showKind();
        followZone();
        form.addEventListener("change", showKind);
        form.addEventListener("change", followZone);
        form.addEventListener("submit", clearHidden);
        form.addEventListener("input", followCall);
        points.addEventListener("click", (event) => {
            const offered = event.target.closest("[data-cron]")?.dataset.cron;
            if (offered) {
                form.elements.cron.value = offered;
                form.elements.cron.focus();
                preview();
            }
        });
        for (const event of ["input", "change", "focusout"]) {
            form.addEventListener(event, () => {
                clearTimeout(timer);
                timer = setTimeout(preview, PAUSE_MS);
            });
        }
        if (form.querySelector(".errorlist")) {
            preview();
        }
    }
});
