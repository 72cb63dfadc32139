// Where the page is: the part of the address after `#`, so that every view can be linked to, in a report file too.

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

/** Another set of parameters for the same place, without a new entry in the history. */
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
