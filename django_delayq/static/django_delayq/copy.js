/* A button beside each text that users copy: tracebacks, output, arguments, ids. Without this script, or without access
   to the clipboard, users select the text. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
    const words = document.getElementById("delayq-copy")?.dataset;

    const copy = async (text, part) => {
        if (navigator.clipboard) {
            await navigator.clipboard.writeText(text);
            return;
        }
        getSelection().selectAllChildren(part); // no clipboard without HTTPS
        const done = document.execCommand("copy");
        getSelection().removeAllRanges();
        if (!done) {
            throw new Error("not copied");
        }
    };

    const addButton = (part) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "delayq-copy";
        button.textContent = words.copy;
        button.setAttribute("aria-live", "polite");
        button.addEventListener("click", async () => {
            try {
                await copy(part.textContent, part);
                button.textContent = words.copied;
            } catch {
                button.textContent = words.failed;
            }
            setTimeout(() => { button.textContent = words.copy; }, 2000);
        });
        part.before(button);
    };

    if (words) {
        document.querySelectorAll("#content pre.delayq-pre, #content .delayq-id").forEach(addButton);
    }
});
