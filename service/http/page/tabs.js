// The tabs of the page; the address names the open one: `#labels`.

import { byId } from "./elements.js";

const tabs = () => [...document.querySelectorAll("[role=tab]")];
const panelOf = (tab) => byId(tab.getAttribute("aria-controls"));

/** Adds listeners and opens the tab that the address names. */
export function startTabs() {
  for (const tab of tabs()) {
    tab.addEventListener("click", () => openTab(panelOf(tab).id));
    tab.addEventListener("keydown", ({ key }) => {
      const all = tabs();
      const places = { ArrowLeft: all.indexOf(tab) - 1, ArrowRight: all.indexOf(tab) + 1, Home: 0, End: -1 };
      if (!(key in places)) return;
      const next = all.at(places[key] % all.length);
      next.focus();
      openTab(panelOf(next).id);
    });
  }
  const openNamed = () => {
    const named = tabs().find((tab) => `#${panelOf(tab).id}` === location.hash);
    if (named) openTab(panelOf(named).id);
  };
  addEventListener("hashchange", openNamed);
  openNamed();
}

/** Opens a panel by its id: `try`, `many`, `labels` or `api`. */
export function openTab(id) {
  for (const tab of tabs()) {
    const isOpen = panelOf(tab).id === id;
    tab.setAttribute("aria-selected", String(isOpen));
    tab.tabIndex = isOpen ? 0 : -1;
    panelOf(tab).hidden = !isOpen;
  }
  // Not a link: below a root path, `<base>` would make `#id` another page.
  if (location.hash !== `#${id}`) history.replaceState(null, "", `${location.pathname}${location.search}#${id}`);
}

export function isOpen(id) {
  return !byId(id).hidden;
}
