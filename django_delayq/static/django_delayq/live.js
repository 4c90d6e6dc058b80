/* Reloads a part of a page every few seconds while the page is visible. Without this script the page stays as it was
   loaded. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
    const ID = "delayq-live";
    let asked;

    const refresh = async () => {
        const part = document.getElementById(ID);
        if (document.hidden || !part || part.contains(document.activeElement) || getSelection().toString()) {
            return;
        }
        asked?.abort();
        asked = new AbortController();
        try {
            const reply = await fetch(location.href, { signal: asked.signal, credentials: "same-origin" });
            const text = reply.ok && !reply.redirected ? await reply.text() : "";
            const fresh = new DOMParser().parseFromString(text, "text/html").getElementById(ID);
            if (fresh) {
                const open = [...part.querySelectorAll("details")].map((each) => each.open);
                [...fresh.querySelectorAll("details")].forEach((each, at) => { each.open = Boolean(open[at]); });
                part.replaceWith(document.adoptNode(fresh));
            }
        } catch {
            // Offline, or overtaken by the next: what is shown stays.
        }
    };

    const part = document.getElementById(ID);
    if (part) {
        setInterval(refresh, Number(part.dataset.seconds) * 1000);
        document.addEventListener("visibilitychange", refresh);
    }
});
