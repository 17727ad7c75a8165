// Draws the Mermaid pictures of a page; without scripts they stay the text that they are made from.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight-mermaid")) {
    const picture = document.createElement("pre");
    picture.className = "mermaid";
    picture.textContent = block.textContent;
    block.replaceWith(picture);
  }
  const dark = document.body.dataset.theme === "dark"
    || (document.body.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral" });
  mermaid.run();
});
