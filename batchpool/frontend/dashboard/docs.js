// The API's page: openapi.json as text for people. Nothing here knows a path or an error by itself.

import { element } from "./dom.js";

const METHODS = ["get", "post", "put", "delete"];

function resolve(document, thing) {
  if (!thing?.$ref) return thing;
  const parts = thing.$ref.slice(2).split("/");
  return parts.reduce((found, part) => found[part.replaceAll("~1", "/").replaceAll("~0", "~")], document);
}

function show(api) {
  const base = location.href.replace(/\/docs\/?([?#].*)?$/, "");
  const told = api.servers[0].url;
  const here = (text) => text.replaceAll(told, base);
  document.getElementById("url").textContent = base;
  const main = document.getElementById("api");
  main.append(element("p", { class: "intro", text: plain(api.info.description) }));
  for (const tag of api.tags) main.append(section(api, tag, here));
  main.append(errors(api));
  const contents = document.getElementById("contents");
  for (const part of main.querySelectorAll("section")) {
    const name = part.querySelector("h2").textContent;
    contents.append(element("a", { href: `#${part.id}`, text: name }));
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

function plain(text) {
  return (text ?? "").replaceAll("`", "");
}

function section(api, tag, here) {
  const id = `tag-${tag.name}`;
  const made = element("section", { class: "card", id, "aria-labelledby": `${id}-title` });
  made.append(element("h2", { id: `${id}-title`, text: tag.name }));
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS) {
      const operation = item[method];
      if (operation?.tags?.includes(tag.name)) made.append(shown(api, path, method, operation, here));
    }
  }
  return made;
}

function shown(api, path, method, operation, here) {
  const head = [
    element("span", { class: `method ${method}`, text: method.toUpperCase() }),
    element("code", { class: "path", text: path }),
    element("span", { class: "muted", text: operation.summary }),
  ];
  if (!operation.requestBody) return element("p", { class: "operation" }, ...head);
  const made = element("div", {}, element("h3", { class: "operation" }, ...head));
  const samples = operation["x-codeSamples"] ?? [];
  for (const sample of samples) made.append(command(here(sample.source), sample.label));
  made.append(element("p", { text: plain(operation.description) }));
  const ask = schemaOf(api, operation.requestBody.content);
  made.append(ask.properties?.inputs ? tensors(api, operation) : members(ask));
  const named = (operation.parameters ?? []).map((parameter) => resolve(api, parameter));
  const headers = element("dl", { class: "pairs" });
  for (const { name, description } of named) {
    headers.append(
      element("dt", {}, element("code", { text: name })),
      element("dd", { text: plain(description) }),
    );
  }
  made.append(
    element("details", {}, element("summary", { text: "Headers that may be sent" }), headers),
  );
  return made;
}

// A command that works as it stands, with a button that copies it.
function command(text, label) {
  const button = element("button", { type: "button", text: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange(); // no clipboard without https: select it instead
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  const code = element("code", { text });
  const pre = element("pre", { tabindex: "0", "aria-label": `${label} command` }, code);
  return element("div", { class: "command" }, pre, button);
}

// Inputs, outputs and parameters from the schemas of request and answer.
function tensors(api, operation) {
  const ask = schemaOf(api, operation.requestBody.content);
  const answer = schemaOf(api, operation.responses["200"].content);
  const body = element("tbody");
  const add = (kind, name, type, note) =>
    body.append(
      element(
        "tr",
        {},
        element("td", { class: "muted", text: kind }),
        element("th", { scope: "row" }, element("code", { text: name })),
        element(
          "td",
          {},
          element("code", { text: type }),
          element("span", { class: "muted", text: note && ` ${note}` }),
        ),
      ),
    );
  for (const tensor of listed(ask.properties.inputs)) add("input", ...described(tensor));
  const parameters = first(ask.properties.parameters);
  const own = Object.entries(parameters.properties);
  const needed = parameters.required ?? [];
  for (const [name, schema] of own) {
    const value = "default" in schema ? `default ${schema.default}` : "";
    const note = schema.description ?? (needed.includes(name) ? "required" : value);
    add("parameter", name, [schema.type].flat().join(" or "), plain(note));
  }
  for (const tensor of listed(answer.properties.outputs)) add("output", ...described(tensor));
  const head = element("tr");
  for (const word of ["", "Name", "Type"]) head.append(element("th", { scope: "col", text: word }));
  return element("table", { class: "tensors" }, element("thead", {}, head), body);
}

// The members of a body that is no tensors.
function members(ask) {
  const body = element("tbody");
  for (const [name, schema] of Object.entries(ask.properties ?? {})) {
    const types = (schema.anyOf ?? [schema]).map((each) =>
      each.enum ? each.enum.map((value) => JSON.stringify(value)).join(" or ") : each.type,
    );
    body.append(
      element(
        "tr",
        {},
        element("td", { class: "muted", text: (ask.required ?? []).includes(name) ? "required" : "" }),
        element("th", { scope: "row" }, element("code", { text: name })),
        element("td", {}, element("code", { text: types.join(" or ") })),
      ),
    );
  }
  const head = element("tr");
  for (const word of ["", "Name", "Type"]) head.append(element("th", { scope: "col", text: word }));
  return element("table", { class: "tensors" }, element("thead", {}, head), body);
}

// Of JSON, or of the only form that there is, as of an upload.
function schemaOf(api, content) {
  const form = content["application/json"] ?? Object.values(content)[0];
  return resolve(api, first(form.schema));
}

// The first of several schemas, which is the protocol's own; plain JSON has the same tensors.
function first(schema) {
  return schema.anyOf ? schema.anyOf[0] : schema;
}

function listed({ items }) {
  const all = items.title ? [items] : items.oneOf;
  const name = (tensor) => tensor.properties.name.const;
  // An output stands there again as the text that it is where classes are asked for.
  return all.filter((tensor, i) => all.findIndex((other) => name(other) === name(tensor)) === i);
}

function described(tensor) {
  const [name, type] = tensor.title.split(": ");
  return [name, type, tensor.properties.data ? "" : "binary only"];
}

function errors(api) {
  const made = element("section", { class: "card", id: "errors", "aria-labelledby": "errors-title" });
  made.append(element("h2", { id: "errors-title", text: "errors" }));
  const body = element("tbody");
  for (const [name, response] of Object.entries(api.components.responses)) {
    for (const line of response.description.split("\n\n")) {
      const [code, text] = line.split(/:\s+(.*)/s);
      body.append(
        element(
          "tr",
          {},
          element("td", { class: "mono", text: name.replace("Error", "") }),
          element("th", { scope: "row" }, element("code", { text: plain(code) })),
          element("td", { text }),
        ),
      );
    }
  }
  const head = element("tr");
  for (const word of ["Status", "code", "When"]) head.append(element("th", { scope: "col", text: word }));
  made.append(element("table", { class: "tensors" }, element("thead", {}, head), body));
  return made;
}

try {
  const answer = await fetch("openapi.json");
  show(await answer.json());
} catch (error) {
  const notice = document.getElementById("notice");
  notice.hidden = false;
  notice.textContent = `openapi.json cannot be read: ${error}`;
}
