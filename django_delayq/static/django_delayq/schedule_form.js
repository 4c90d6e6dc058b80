/* The schedule's form: shows only the fields of the chosen kind, and the next due points while one types.
   Without it the form works the same; the points then appear after saving. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("schedule_form");
    const points = document.getElementById("delayq-upcoming");
    const task = document.getElementById("delayq-task");
    const VALUES = { cron: ["cron"], every: ["every"], once: ["at_0", "at_1"] };
    const ROWS = { cron: ".field-cron", every: ".field-every", once: ".field-at" };
    const PAUSE_MS = 250;

    const kind = () => form.querySelector("input[name=kind]:checked")?.value;

    const showKind = () => {
        for (const [name, selector] of Object.entries(ROWS)) {
            const row = form.querySelector(`.form-row${selector}`);
            const away = name !== kind() && !row?.querySelector(".errorlist");
            row?.classList.toggle("delayq-away", away);
        }
    };

    // What is hidden is not meant: it must not be refused as a second recurrence.
    const meant = () => {
        const values = new FormData(form);
        for (const [name, inputs] of Object.entries(VALUES)) {
            if (name !== kind()) {
                inputs.forEach((input) => values.set(input, ""));
            }
        }
        return values;
    };

    const clearHidden = () => {
        for (const [name, inputs] of Object.entries(VALUES)) {
            if (name !== kind() && form.querySelector(`.form-row${ROWS[name]}.delayq-away`)) {
                inputs.forEach((input) => { form.elements[input].value = ""; });
            }
        }
    };

    // "Now" and "Today" of Django's inputs are those of the schedule's zone, as is what one types.
    const followZone = () => {
        const now = new Date();
        const shown = (timeZone) => new Date(now.toLocaleString("en-US", { timeZone }));
        try {
            document.body.dataset.adminUtcOffset = (shown(form.elements.timezone.value) - shown("UTC")) / 1000;
        } catch {
            // Not yet the name of a zone.
        }
    };

    let timer;
    let asked;
    const preview = async () => {
        asked?.abort();
        asked = new AbortController();
        try {
            const reply = await fetch(points.dataset.url, { method: "POST", body: meant(), signal: asked.signal });
            if (reply.ok) {
                const shown = await reply.json();
                points.innerHTML = shown.upcoming;
                task.innerHTML = shown.task;
            }
        } catch {
            // Offline, or overtaken by the next: what is shown stays.
        }
    };

    if (form && points && task && form.querySelector("input[name=kind]")) {
        showKind();
        followZone();
        form.addEventListener("change", showKind);
        form.addEventListener("change", followZone);
        form.addEventListener("submit", clearHidden);
        for (const event of ["input", "change", "focusout"]) {
            form.addEventListener(event, () => {
                clearTimeout(timer);
                timer = setTimeout(preview, PAUSE_MS);
            });
        }
    }
});
