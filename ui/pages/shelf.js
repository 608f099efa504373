// Which voices there are and what each can be asked, for every tab; and small helpers that other scripts share.
"use strict";
(() => {
  const { setup, t, api, url, el, find, repeat, Refused } = window.cosyd;
  const shelf = { voices: [], cloning: { available: false, message: null }, fallback: "", known: false };
  let wish = null;  // the voice that the form's list is to show next

  const displayNames = new Intl.DisplayNames([setup.language === "zh" ? "zh-CN" : "en"], { type: "language" });
  function languageName(tag) {
    try { return displayNames.of(tag); } catch { return tag; }
  }

  function label(voice) {
    // As `_languages` in blocks.py says it.
    const known = voice.languages.map((tag) => (tag === "zh" || tag === "en" ? t(`language_${tag}`) : tag));
    const first = known.slice(0, 2).join(t("language_and"));
    const shown = known.length > 2 ? t("language_more", { shown: first, count: known.length - 2 }) : first;
    const rest = voice.builtin ? shown : t("voice.mine");
    return rest ? `${voice.name} · ${rest}` : voice.name;
  }

  const get = (id) => shelf.voices.find((voice) => voice.id === id);
  const cloned = () => shelf.voices.filter((voice) => !voice.builtin);

  async function load() {
    const found = await api("GET", "api/voices");
    const before = JSON.stringify(shelf.voices.map((v) => [v.id, v.name]));
    Object.assign(shelf, { voices: found.voices, cloning: found.cloning, fallback: found.default, known: true });
    if (JSON.stringify(shelf.voices.map((v) => [v.id, v.name])) !== before) find("shelf-fill")?.click();
    window.dispatchEvent(new CustomEvent("cosyd-voices"));
  }

  // Given to the form's list: its choices, and the voice that was wished for.
  function takeVoices() {
    const update = { __type__: "update", choices: shelf.voices.map((voice) => [label(voice), voice.id]) };
    if (wish !== null) update.value = wish;
    wish = null;
    return update;
  }

  function chooseVoice(id) {
    wish = id;
    find("shelf-fill")?.click();
  }

  // A form with a file; `sent` is called when all of it is out. The server's sentence comes as `Refused`.
  function upload(path, fields, sent = () => {}) {
    const form = new FormData();
    for (const [name, value] of Object.entries(fields)) {
      if (value === null || value === undefined || value === "") continue;
      if (value instanceof Blob) form.append(name, value, value.name ?? "recording.wav"); else form.append(name, String(value));
    }
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("POST", url(path));
      request.responseType = "json";
      request.upload.addEventListener("load", sent);
      request.addEventListener("load", () => {
        const data = request.response;
        if (request.status === 401) location.reload();
        if (request.status < 300) resolve(data);
        else reject(data?.error?.message ? new Refused(data.error.message) : new Error(t("failed_fetch")));
      });
      request.addEventListener("error", () => reject(new Error(t("failed_fetch"))));
      request.send(form);
    });
  }

  Object.assign(window.cosyd, { shelf, get, cloned, languageName, upload, takeVoices, chooseVoice, loadVoices: load });

  let filled = false;
  repeat(async () => {
    if (!shelf.known) await load();
    // The form is mounted later than this runs; a list that was built before a voice was added is brought up to date.
    if (shelf.known && !filled && find("shelf-fill")) { filled = true; find("shelf-fill").click(); }
    return shelf.known && filled ? 60000 : 300;
  }, 300);
})();
