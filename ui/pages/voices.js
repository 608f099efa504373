// The tab of voices: one's own with preview, renaming and deleting, the ready-made ones, and the way to a new one.
"use strict";
(() => {
  const { setup, t, url, el, find, repeat, shelf, cloned, rich, languageName, voiceActs } = window.cosyd;
  const day = new Intl.DateTimeFormat(setup.language === "zh" ? "zh-CN" : "en", { dateStyle: "medium" });
  let adding = null;  // the form, kept while one visits another tab
  let told = null;    // what was just done, until the next thing

  function useVoice(id) {
    const text = document.querySelector("#cosyd-text textarea")?.value ?? "";
    document.querySelectorAll('[role="tab"]')[0]?.click();
    window.cosyd.chooseVoice(id);
    if (text === "") setTimeout(() => document.querySelector("#cosyd-text textarea")?.focus(), 300);
  }

  const tags = (...texts) => el("p", { class: "cosyd-tags" }, ...texts.filter(Boolean).map((text) => el("span", { class: "cosyd-tag" }, text)));

  function readyMade(voice) {
    const more = voice.languages.length - 6;
    return el("article", { class: "cosyd-voice" }, el("b", {}, voice.name),
      tags(...voice.languages.slice(0, 6).map(languageName), more > 0 ? `+${more}` : null),
      el("button", { type: "button", class: "cosyd-button", onclick: () => useVoice(voice.id) }, t("voice_use")));
  }

  function own(voice) {
    const place = el("div", { class: "cosyd-voice-ask" });
    const title = el("b", {}, voice.name);
    const said = voice.consent?.choice ? t(`voice.said_${voice.consent.choice}`, { person: voice.consent.person }) : null;
    const date = voice.consent?.at ? day.format(new Date(voice.consent.at)) : null;
    const listen = el("button", {
      type: "button", class: "cosyd-play cosyd-play-small", title: t("voice.listen_clip"), "aria-label": `${t("voice.listen_clip")}: ${voice.name}`,
      onclick: () => {
        const player = el("audio", { controls: true, src: url(`api/voices/${voice.id}/preview`) });
        place.replaceChildren(player);
        player.play().catch(() => {});
      },
    });

    return el("article", { class: "cosyd-voice cosyd-voice-own", "data-id": voice.id },
      el("div", { class: "cosyd-voice-head" }, listen, title),
      tags(...voice.languages.map(languageName), voice.seconds ? t("voice.clip_seconds", { seconds: voice.seconds }) : null,
        voice.transcript ? null : t("voice.without_words"), said && date ? `${said} · ${date}` : said, ...voice.tags.map((tag) => `# ${tag}`)),
      place,
      el("div", { class: "cosyd-item-acts" },
        voice.modes.length
          ? el("button", { type: "button", class: "cosyd-button", onclick: () => useVoice(voice.id) }, t("voice_use"))
          : el("button", { type: "button", class: "cosyd-button", disabled: true, title: shelf.cloning.message ?? "" }, t("voice_use")),
        el("button", { type: "button", class: "cosyd-link", onclick: () => voiceActs.askEdit(voice, place), "aria-label": `${t("voice.edit")}: ${voice.name}` }, t("voice.edit")),
        voiceActs.exportLink(voice),
        el("button", { type: "button", class: "cosyd-link cosyd-danger", onclick: () => voiceActs.askDelete(voice, place), "aria-label": `${t("delete")}: ${voice.name}` }, t("delete"))));
  }

  function draw() {
    const box = find("voices");
    if (!box || !shelf.known) return;
    box.dataset.drawn = "1";
    const { available, message } = shelf.cloning;
    const mine = cloned();
    const open = el("button", { type: "button", id: "cosyd-add-open", class: "cosyd-button cosyd-primary", disabled: !available, onclick: openForm }, t("voice_add"));
    const take = el("button", { type: "button", id: "cosyd-import-open", class: "cosyd-link", onclick: openImport }, t("voice.import"));
    box.replaceChildren(
      el("div", { class: "cosyd-voices-head" }, el("h3", { class: "cosyd-h" }, t("voice.yours")), adding ? null : el("div", { class: "cosyd-voices-ways" }, take, open)),
      ...(told ? [told] : []),
      ...(available ? [] : [el("p", { class: "cosyd-note cosyd-needs" }, ...rich(message))]),
      ...(adding ? [adding] : []),
      mine.length ? el("div", { class: "cosyd-voices" }, ...mine.map(own))
        : available && !adding ? el("p", { class: "cosyd-empty" }, `${t("voice.none_yet")} ${t("voice.add_intro")}`) : "",
      el("h3", { class: "cosyd-h" }, t("voice.ready_made")),
      el("div", { class: "cosyd-voices" }, ...shelf.voices.filter((voice) => voice.builtin).map(readyMade)));
  }

  function openAs(form) {
    adding = form;
    told = null;
    draw();
    adding.scrollIntoView({ block: "nearest" });
  }
  const closed = () => { adding = null; draw(); };
  const openForm = () => openAs(window.cosyd.addingForm(closed));
  const openImport = () => openAs(voiceActs.importForm(closed));

  function tellVoices(element) {
    told = element;
    draw();
    element.scrollIntoView({ block: "nearest" });
  }

  window.addEventListener("cosyd-voices", draw);
  Object.assign(window.cosyd, { useVoice, tellVoices });
  repeat(() => {
    const box = find("voices");
    if (box && !box.dataset.drawn) draw();
    return 250;
  }, 250);
})();
