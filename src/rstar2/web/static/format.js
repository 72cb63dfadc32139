// Formats numbers and names for people.

/** A number as a short text, with the significant digits. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${share < 0.1 ? Number((100 * share).toPrecision(2)) : Math.round(100 * share)}%`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return seconds === 0 ? "0 s" : `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** `tool_error_share_right` as words. */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

export function plural(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A moment in the reader's own time zone. */
export function moment(time) {
  const date = typeof time === "number" ? new Date(time * 1000) : new Date(time);
  return Number.isNaN(date.getTime()) ? "–" : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}
