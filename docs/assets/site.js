// Wide tables scroll sideways; the keyboard must reach them.
addEventListener("load", () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre")) box.tabIndex = 0;
});
