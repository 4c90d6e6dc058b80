/* The schedule's form: shows only the fields of the chosen kind, inputs for the arguments of the chosen task, and the
   next due points while one types. Without it the form works the same: inputs and points then appear after saving. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("schedule_form");
    const points = document.getElementById("delayq-upcoming");
    const about = document.getElementById("delayq-task");
    const VALUES = { cron: ["cron"], every: ["every", "every_from"], once: ["at_0", "at_1"] };
    const ONLY_CRON = ["dst_gap", "dst_overlap"];
    const JSON_INPUTS = ["args", "kwargs"];
    const PAUSE_MS = 250;

    const kind = () => form.querySelector("input[name=kind]:checked")?.value;

    // What holds these inputs and no other, in whatever theme.
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

    // What is hidden is not meant: it must not be refused as a second recurrence.
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

    // Arguments: as inputs or as JSON, and those of each task that was chosen meanwhile.
    const call = () => document.getElementById("delayq-call");
    const toggle = document.createElement("button");
    const kept = new Map();
    let asked;
    let task;
    let asJSON = false;
    let isStale = false;

    const showArguments = () => {
        const box = call();
        const isJSON = asJSON || !("inputs" in box.dataset);
        JSON_INPUTS.forEach((name) => show([name], isJSON || "differs" in box.dataset));
        box.querySelectorAll(".delayq-argument").forEach((each) => each.classList.toggle("delayq-away", isJSON));
        toggle.textContent = isJSON ? box.dataset.asInputs : box.dataset.asJson;
        toggle.hidden = "none" in box.dataset;
        box.after(toggle);
    };

    const askAgain = () => {
        asked?.abort();
        isStale = true;
    };

    const takeOver = (reply) => {
        call().outerHTML = reply.call;
        JSON_INPUTS.forEach((name) => { form.elements[name].value = call().dataset[name]; });
        isStale = false;
        showArguments();
    };

    const followTask = () => {
        const [before, now] = [task, form.elements.task.value];
        if (now === before || ![...form.elements.task.list.options].some((option) => option.value === now)) {
            return;
        }
        const values = JSON_INPUTS.map((name) => form.elements[name].value);
        kept.set(before, { box: isStale ? null : call(), values });
        const earlier = kept.get(now) ?? { values: before ? ["[]", "{}"] : values };
        JSON_INPUTS.forEach((name, index) => { form.elements[name].value = earlier.values[index]; });
        task = now;
        askAgain();
        if (earlier.box) {
            call().replaceWith(earlier.box);
            isStale = false;
            showArguments();
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
                    takeOver(shown);
                }
            }
        } catch {
            // Offline, or overtaken by the next: what is shown stays.
        }
    };

    if (form && points && about && call() && form.elements.kind) {
        showKind();
        followZone();
        toggle.type = "button";
        toggle.className = "delayq-toggle";
        task = call().dataset.task;
        toggle.addEventListener("click", () => {
            asJSON = !asJSON && "inputs" in call().dataset;
            askAgain();
            preview();
        });
        showArguments();
        form.addEventListener("change", showKind);
        form.addEventListener("change", followZone);
        form.addEventListener("submit", clearHidden);
        form.elements.task.addEventListener("input", followTask);
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
