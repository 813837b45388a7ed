// The functions that the scripts of all of diglot's pages share.

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Characters that would not be seen get pictures, as in pages.py.
const visible = (text) => text.replace(/[\0-\x08\n-\x1f\x7f]/g, (c) =>
  String.fromCharCode(c === "\x7f" ? 0x2421 : 0x2400 + c.charCodeAt()));
