// Moves the focus, fetches the slow parts of a page, remembers light or dark. Every page works without it.
(() => {
  "use strict";
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept) root.dataset.theme = kept;

  document.getElementById("theme")?.addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });

  async function load(section) {
    const part = section.querySelector(".part");
    try {
      const reply = await fetch(section.dataset.part, { headers: { "x-part": "1" } });
      if (reply.status === 401) return location.reload();
      if (!reply.ok) throw new Error(String(reply.status));
      const open = [...part.querySelectorAll("details[open] summary")].map((s) => s.textContent);
      part.innerHTML = await reply.text();
      for (const summary of part.querySelectorAll("details summary"))
        if (open.includes(summary.textContent)) summary.parentElement.open = true;
    } catch (error) {
      part.textContent = `This part could not be loaded (${error.message}). Reload to try again.`;
      return;
    }
    if (section.dataset.every) setTimeout(() => load(section), 1000 * Number(section.dataset.every));
  }
  for (const section of document.querySelectorAll("[data-part]")) load(section);

  let waits = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (waits === "g") {
      waits = "";
      if (event.key === "a") location.href = "/approvals";
      if (event.key === "h") location.href = "/";
      return;
    }
    const places = [...document.querySelectorAll("a.go, .go-step")].filter((e) => e.offsetParent !== null);
    const at = places.indexOf(document.activeElement);
    if (event.key === "j") places[Math.min(at + 1, places.length - 1)]?.focus();
    else if (event.key === "k") places[Math.max(at - 1, 0)]?.focus();
    else if (event.key === "g") waits = "g";
    else if (event.key === "/") document.getElementById("find")?.focus();
    else return;
    event.preventDefault();
  });
})();
