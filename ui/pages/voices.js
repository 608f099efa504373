// The tab of voices: one's own with preview, renaming and deleting, the ready-made ones, and the way to a new one.
"use strict";
(() => {
  const { setup, t, api, url, el, find, notice, repeat, shelf, cloned, rich, languageName, loadVoices } = window.cosyd;
  const day = new Intl.DateTimeFormat(setup.language === "zh" ? "zh-CN" : "en", { dateStyle: "medium" });
  let adding = null;  // the form, kept while one visits another tab

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

    function askName() {
      const box = el("input", { type: "text", maxlength: "80", value: voice.name, "aria-label": t("voice.name") });
      const change = async (event) => {
        event.preventDefault();
        try {
          await api("PATCH", `api/voices/${voice.id}`, { name: box.value });
          await loadVoices();
          notice(t("voice.renamed"));
        } catch (error) { notice(error.message, "error"); }
      };
      place.replaceChildren(el("form", { class: "cosyd-clip-row", onsubmit: change }, box,
        el("button", { type: "submit", class: "cosyd-button" }, t("voice.rename_save")),
        el("button", { type: "button", class: "cosyd-link", onclick: () => place.replaceChildren() }, t("voice.cancel"))));
      box.select();
    }

    function askDelete() {
      const remove = async () => {
        try {
          await api("DELETE", `api/voices/${voice.id}`);
          await loadVoices();
          notice(t("voice.removed"));
        } catch (error) { notice(error.message, "error"); }
      };
      const sure = el("button", { type: "button", class: "cosyd-button cosyd-danger-button", onclick: remove }, t("voice.remove_do"));
      place.replaceChildren(el("div", { class: "cosyd-sure", role: "alertdialog" },
        el("p", {}, t("voice.remove_sure", { name: voice.name })),
        el("div", { class: "cosyd-clip-row" }, sure,
          el("button", { type: "button", class: "cosyd-link", onclick: () => place.replaceChildren() }, t("voice.cancel")))));
    }

    return el("article", { class: "cosyd-voice cosyd-voice-own", "data-id": voice.id },
      el("div", { class: "cosyd-voice-head" }, listen, title),
      tags(...voice.languages.map(languageName), voice.seconds ? t("voice.clip_seconds", { seconds: voice.seconds }) : null,
        voice.transcript ? null : t("voice.without_words"), said && date ? `${said} · ${date}` : said),
      place,
      el("div", { class: "cosyd-item-acts" },
        voice.modes.length
          ? el("button", { type: "button", class: "cosyd-button", onclick: () => useVoice(voice.id) }, t("voice_use"))
          : el("button", { type: "button", class: "cosyd-button", disabled: true, title: shelf.cloning.message ?? "" }, t("voice_use")),
        el("button", { type: "button", class: "cosyd-link", onclick: askName }, t("voice.rename")),
        el("button", { type: "button", class: "cosyd-link cosyd-danger", onclick: askDelete }, t("delete"))));
  }

  function draw() {
    const box = find("voices");
    if (!box || !shelf.known) return;
    box.dataset.drawn = "1";
    const { available, message } = shelf.cloning;
    const mine = cloned();
    const open = el("button", { type: "button", id: "cosyd-add-open", class: "cosyd-button cosyd-primary", disabled: !available, onclick: openForm }, t("voice_add"));
    box.replaceChildren(
      el("div", { class: "cosyd-voices-head" }, el("h3", { class: "cosyd-h" }, t("voice.yours")), adding ? null : open),
      ...(available ? [] : [el("p", { class: "cosyd-note cosyd-needs" }, ...rich(message))]),
      ...(adding ? [adding] : []),
      mine.length ? el("div", { class: "cosyd-voices" }, ...mine.map(own))
        : available && !adding ? el("p", { class: "cosyd-empty" }, `${t("voice.none_yet")} ${t("voice.add_intro")}`) : "",
      el("h3", { class: "cosyd-h" }, t("voice.ready_made")),
      el("div", { class: "cosyd-voices" }, ...shelf.voices.filter((voice) => voice.builtin).map(readyMade)));
  }

  function openForm() {
    adding = window.cosyd.addingForm(() => { adding = null; draw(); });
    draw();
    adding.scrollIntoView({ block: "nearest" });
  }

  window.addEventListener("cosyd-voices", draw);
  window.cosyd.useVoice = useVoice;
  repeat(() => {
    const box = find("voices");
    if (box && !box.dataset.drawn) draw();
    return 250;
  }, 250);
})();
