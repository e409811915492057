// Scrolling inside Airflow's layout, where not the window but some box of the page scrolls.
import { useLayoutEffect } from "./react.js";

const positions = new Map();

/** The element that scrolls what lies in `element`, or null for the window. */
export function scroller(element) {
  for (let parent = element.parentElement; parent; parent = parent.parentElement) {
    if (/auto|scroll/.test(getComputedStyle(parent).overflowY)) return parent;
  }
  return null;
}

/** Bring the beginning of a page into sight. */
export function toTop(element) {
  (scroller(element) ?? window).scrollTo(0, 0);
}

/** Come back to where one had scrolled when the same thing was shown before, but after the heading went to the top. */
export function useScrollMemory(box, name) {
  useLayoutEffect(() => {
    const scrolling = scroller(box.current) ?? document.scrollingElement;
    if (positions.has(name)) scrolling.scrollTop = positions.get(name);
    const keep = () => positions.set(name, scrolling.scrollTop);
    const source = scrolling === document.scrollingElement ? window : scrolling;
    source.addEventListener("scroll", keep, { passive: true });
    return () => source.removeEventListener("scroll", keep);
  }, [name]);
}
