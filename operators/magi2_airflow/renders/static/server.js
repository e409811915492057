// Asking the server, and asking again while something runs and somebody looks.
import { useEffect, useState } from "./react.js";

/** Where the plugin is mounted, and Airflow's own page. */
export const BASE = new URL("..", import.meta.url).pathname;
export const HOME = new URL("../..", import.meta.url).pathname;

const POLL_MS = 4000;
const POLL_AFTER_ERROR_MS = 15000;
const REMEMBERED = 60;
const remembered = new Map();
const listeners = new Set();

/** What the server refused: its status and its reason, fit to be shown. */
export class ServerError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Carry out an action; the answer. Throws ServerError. */
export async function act(path, body) {
  const answer = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  refresh();
  return answer;
}

/** Make every part of the page ask again now. */
export function refresh() {
  remembered.clear();
  for (const listener of listeners) listener();
}

/**
 * What the server has at `path` (null: ask nothing): `{data, error, reload}`.
 * While `isLive(data)` it is asked again every few seconds, but not when the page is hidden.
 */
export function useServer(path, isLive = () => false) {
  const [answer, setAnswer] = useState({});
  useEffect(() => {
    if (path === null) return undefined;
    const asking = new Asking(path, isLive, setAnswer);
    asking.begin();
    return () => asking.end();
    // `isLive` decides by the answer alone, so a new function of the same kind changes nothing.
  }, [path]);
  const own = answer.path === path ? answer : { data: remembered.get(path), error: null };
  return { data: own.data, error: own.error, reload: refresh };
}

class Asking {
  constructor(path, isLive, tell) {
    Object.assign(this, { path, isLive, tell, timer: null, abort: null, data: remembered.get(path) });
  }

  begin() {
    this.ask = () => this.load();
    this.show = () => !document.hidden && this.isDue && this.load();
    listeners.add(this.ask);
    document.addEventListener("visibilitychange", this.show);
    this.load();
  }

  end() {
    listeners.delete(this.ask);
    document.removeEventListener("visibilitychange", this.show);
    clearTimeout(this.timer);
    this.abort?.abort();
  }

  async load() {
    clearTimeout(this.timer);
    this.isDue = false;
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    let error = null;
    try {
      this.data = await request(this.path, { signal: abort.signal });
      remember(this.path, this.data);
    } catch (reason) {
      error = reason;
    }
    if (abort.signal.aborted) return;
    this.tell({ path: this.path, data: this.data, error });
    if (this.data !== undefined && this.isLive(this.data)) this.wait(error ? POLL_AFTER_ERROR_MS : POLL_MS);
  }

  wait(milliseconds) {
    this.timer = setTimeout(() => {
      this.isDue = true;
      this.show();
    }, milliseconds);
  }
}

function remember(path, data) {
  remembered.delete(path);
  remembered.set(path, data);
  if (remembered.size > REMEMBERED) remembered.delete(remembered.keys().next().value);
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(`${BASE}api/${path}`, options);
  } catch (reason) {
    if (reason.name === "AbortError") throw reason;
    throw new ServerError(0, "The server does not answer.");
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new ServerError(answer.status, detailOf(body) ?? `The server answered ${answer.status}.`);
  return body;
}

function detailOf(body) {
  const detail = body?.detail;
  if (Array.isArray(detail)) return detail.map((each) => `${(each.loc ?? []).join(".")}: ${each.msg}`).join("; ");
  return detail === undefined || typeof detail === "string" ? detail : JSON.stringify(detail);
}

/** A query string of the values that are given; "" when there are none. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
