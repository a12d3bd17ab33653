// Run in the page: what is hard to read or cut off. Returns sentences, none when all is well.
// Contrast as WCAG 2.2 has it (1.4.3 text, 1.4.11 graphics).

const found = [];
const name = (node) => {
  const id = node.id ? `#${node.id}` : "";
  const text = node.textContent.trim().slice(0, 30);
  return `${node.tagName.toLowerCase()}${id}.${node.className} "${text}"`;
};

const channels = (colour) => {
  const [red, green, blue, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
  return { red, green, blue, alpha };
};
const luminance = ({ red, green, blue }) => {
  const [r, g, b] = [red, green, blue].map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
  for (let at = node; at !== null; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour.alpha === 1) return colour;
    if (colour.alpha > 0) found.push(`${name(at)} has a ground that is partly clear`);
  }
  return { red: 255, green: 255, blue: 255 };
};
const contrast = (node) => {
  const [one, other] = [channels(getComputedStyle(node).color), ground(node)].map(luminance);
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
};

const isSeen = (node) =>
  node.checkVisibility({ visibilityProperty: true }) &&
  node.closest(".hidden, .skip, option") === null;
const hasText = (node) =>
  [...node.childNodes].some(
    (child) => child.nodeType === Node.TEXT_NODE && child.data.trim() !== "",
  );

for (const node of document.body.querySelectorAll("*")) {
  if (!isSeen(node)) continue;
  if (hasText(node) && contrast(node) < 4.5)
    found.push(`${name(node)} has a contrast of ${contrast(node).toFixed(2)}`);
  if (node.matches(".swatch") && contrast(node) < 3)
    found.push(`${name(node)} has a contrast of ${contrast(node).toFixed(2)}`);
}

const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > width)
  found.push(`the page is ${document.documentElement.scrollWidth} wide, the screen ${width}`);
for (const node of document.body.querySelectorAll("*")) {
  if (!isSeen(node) || node.closest(".scroll, .u-wrap") !== null) continue;
  if (node.getBoundingClientRect().right > width + 1)
    found.push(`${name(node)} reaches beyond the screen`);
}
for (const node of document.querySelectorAll("#tiles dd, .key, button, h2, h3")) {
  if (
    isSeen(node) &&
    node.scrollWidth > node.clientWidth + 1 &&
    getComputedStyle(node).display !== "inline"
  ) {
    found.push(`${name(node)} is cut off`);
  }
}

const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
for (const id of new Set(ids)) {
  if (ids.filter((other) => other === id).length > 1)
    found.push(`the identifier ${id} is there twice`);
}
return found;
