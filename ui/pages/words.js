// The settings tab: how names and words are to be read, with a way to hear it at once.
"use strict";
(() => {
  const { t, api, el, find, notice, repeat, languageName, audioUrl, shelf } = window.cosyd;
  const LANGUAGES = ["zh", "en"];
  const HEAR_EVERY_MS = 300;
  let entries = null;
  const player = el("audio", { preload: "none" });

  const field = (label, box, hint) => el("label", { class: "cosyd-field" }, el("span", {}, label), box, hint ? el("small", {}, hint) : null);

  const word = el("input", { id: "cosyd-word", type: "text", maxlength: "60", autocomplete: "off", placeholder: t("words.word_hint") });
  const spoken = el("input", { id: "cosyd-word-spoken", type: "text", maxlength: "200", autocomplete: "off", placeholder: t("words.spoken_hint") });
  const tag = el("select", { id: "cosyd-word-language" }, el("option", { value: "" }, t("words.any_language")),
    ...LANGUAGES.map((code) => el("option", { value: code }, languageName(code))));
  const list = el("div", { class: "cosyd-words" });
  const form = el("form", { class: "cosyd-word-form", novalidate: true, onsubmit: add },
    field(t("words.word"), word), field(t("words.spoken"), spoken), field(t("words.language"), tag),
    el("button", { type: "submit", class: "cosyd-button cosyd-primary" }, t("words.add")));
  const panel = el("div", {}, el("h3", { class: "cosyd-h" }, t("words.title")),
    el("p", { class: "cosyd-lead" }, t("words.intro")), form, el("small", { class: "cosyd-word-help" }, t("words.help")), list);

  async function add(event) {
    event.preventDefault();
    const empty = [word, spoken].find((box) => !box.value.trim());
    if (empty) { notice(t("words.missing"), "error"); empty.focus(); return; }
    try {
      const made = await api("POST", "api/pronunciations", { pattern: word.value, replacement: spoken.value, language: tag.value });
      word.value = spoken.value = "";
      notice(t("words.added", { word: made.pattern }));
      await load();
      word.focus();
    } catch (error) { notice(error.message, "error"); }
  }

  async function remove(entry) {
    try {
      await api("DELETE", `api/pronunciations/${entry.id}`);
      notice(t("words.removed", { word: entry.pattern }));
      await load();
    } catch (error) { notice(error.message, "error"); }
  }

  // Spoken as a text would be, so that one hears what a listener will.
  async function hear(entry, button) {
    button.disabled = true;
    try {
      const voice = shelf.fallback || shelf.voices[0]?.id;
      const job = await api("POST", "api/jobs", { v: 1, text: entry.pattern, voice, source: "page", language: entry.language || "auto" });
      for (;;) {
        const view = await api("GET", `api/jobs/${job.id}`);
        if (view.state === "done") break;
        if (view.error) throw new Error(view.error.message);
        if (view.state === "cancelled") throw new Error(t("cancelled"));
        await new Promise((later) => setTimeout(later, HEAR_EVERY_MS));
      }
      player.src = audioUrl(job.id, "mp3");
      await player.play().catch(() => {});
      window.dispatchEvent(new CustomEvent("cosyd-done"));
    } catch (error) { notice(error.message, "error"); }
    button.disabled = false;
  }

  function row(entry) {
    const play = el("button", { type: "button", class: "cosyd-play cosyd-play-small", title: t("words.hear"), "aria-label": `${t("words.hear")}: ${entry.pattern}`, onclick: () => hear(entry, play) });
    return el("article", { class: "cosyd-word", "data-word": entry.pattern }, play,
      el("p", {}, el("b", {}, entry.pattern), el("span", { "aria-hidden": "true" }, "→"), el("span", { class: "cosyd-word-as" }, entry.replacement),
        entry.language ? el("span", { class: "cosyd-tag" }, languageName(entry.language)) : null),
      el("button", { type: "button", class: "cosyd-link cosyd-danger", "aria-label": `${t("delete")}: ${entry.pattern}`, onclick: () => remove(entry) }, t("delete")));
  }

  function draw() {
    list.replaceChildren(...(entries.length ? entries.map(row) : [el("p", { class: "cosyd-empty" }, t("words.none"))]));
  }

  async function load() {
    entries = (await api("GET", "api/pronunciations")).pronunciations;
    draw();
  }

  repeat(async () => {
    const box = find("words");
    if (box && box.firstChild !== panel) box.replaceChildren(panel);
    if (box && box.offsetParent !== null && entries === null) await load();
    return 250;
  }, 250);
})();
