// Keeps the current view in the address after `#`, so that every view has a link, in a report file too.

/** `#/run/tiny/step/12?show=wrong` as its decoded parts and its parameters. */
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, params: new URLSearchParams(query ?? "") };
}

export function link(parts, params = {}) {
  const path = parts.map((part) => encodeURIComponent(String(part).toWellFormed())).join("/");
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "" && value !== null));
  return `#/${path}${query.size ? "?" + query : ""}`;
}

/** Set the parameters of the current place, without a new entry in the history. */
export function setParams(params) {
  history.replaceState(null, "", link(place().parts, params));
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
