// Numbers and moments as people read them.
const STEPS = [
  [86400, "d", 3600, "h"],
  [3600, "h", 60, "min"],
  [60, "min", 1, "s"],
];

/** Seconds as "0.4 s", "12 s", "3 min 20 s", "2 h 5 min", "1 d 4 h"; null and undefined give a dash. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [size, unit, part, partUnit] of STEPS) {
    if (seconds >= size) {
      const whole = Math.floor(seconds / size);
      const rest = Math.floor((seconds % size) / part);
      return rest ? `${whole} ${unit} ${rest} ${partUnit}` : `${whole} ${unit}`;
    }
  }
  return seconds >= 10 || seconds === 0 ? `${Math.round(seconds)} s` : `${seconds.toFixed(1)} s`;
}

/** Accelerator-seconds; many are counted in hours, as they are paid. */
export function acceleratorTime(seconds) {
  return seconds < 7200 ? duration(seconds) : `${count(Math.round(seconds / 3600))} h`;
}

/** Bytes in binary units. */
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** An amount of a currency; null when no price is set. Small amounts keep the digits that say something. */
export function money(amount, currency) {
  if (amount === null || amount === undefined) return null;
  const digits = amount === 0 || amount >= 0.1 ? 2 : 4;
  const form = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return `${amount.toLocaleString(undefined, form)} ${currency ?? ""}`.trim();
}

/** A whole number with separators. */
export function count(value) {
  return value.toLocaleString();
}

/** A moment as a date and time of day where the reader is. */
export function moment(iso) {
  return new Date(iso).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

/** How long ago, for the last day; the date and time before that. */
export function ago(iso) {
  const seconds = (Date.now() - Date.parse(iso)) / 1000;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return moment(iso);
}

/** "1 clip", "2 clips". */
export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** What a clip is called: its first name, with the beginning of its id where others have that name, or the id alone. */
export function clipName(clip) {
  const id = clip.clip_id.slice(0, 12);
  if (!clip.names[0]) return id;
  return clip.shares_name ? `${clip.names[0]} (${id})` : clip.names[0];
}

/** A flag in words: `one_coloured` is "one coloured". */
export function flagName(flag) {
  return flag.replaceAll("_", " ");
}
