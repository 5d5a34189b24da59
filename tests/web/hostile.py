"""Texts that would act if a page executed or loaded any part of them, or took it for a part of itself."""

from __future__ import annotations

_HIT = "window.hit=1"
_JS = f"javascript:{_HIT}"
_BAD_IMAGE = f"<img src=x onerror={_HIT}>"

#: Elements that execute something, load something, or change what is around them.
ELEMENTS = [
    f"<script>{_HIT}</script>",
    f"<script type=module>{_HIT}</script>",
    "<script src=//tracker.invalid/x.js></script>",
    f"<scr<script>ipt>{_HIT}</scr</script>ipt>",
    f"<SCRIPT\n>{_HIT}</SCRIPT >",
    _BAD_IMAGE,
    f"<img/src=x/onerror={_HIT}//",
    f"<IMG SRC=x ONERROR='{_HIT}'>",
    '<img src=x srcset="https://tracker.invalid/a.png 2x">',
    f"<svg onload={_HIT}><a xlink:href='{_JS}'>x</a></svg>",
    f"<svg><script>{_HIT}</script></svg>",
    f"<svg><animate onbegin={_HIT} attributeName=x dur=1s>",
    f"<svg><style><img src=x onerror={_HIT}></style></svg>",
    "<svg><foreignObject><iframe srcdoc='<script>parent.hit=1</script>'></foreignObject></svg>",
    '<svg><use href="https://tracker.invalid/a.svg#x"/></svg>',
    "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    f'<iframe src="{_JS}"></iframe>',
    f'<object data="{_JS}"></object>',
    '<embed src="https://tracker.invalid/x.swf">',
    f"<video><source onerror={_HIT}></video>",
    f"<audio src=x onerror={_HIT}></audio>",
    f"<details open ontoggle={_HIT}>x</details>",
    f"<input autofocus onfocus={_HIT}>",
    f"<body onload={_HIT}>",
    f"<marquee onstart={_HIT}>x</marquee>",
    f"<b style='animation-name:x' onanimationstart={_HIT}>x</b>",
    "<style>@import url(/x.css);*{display:none}</style>",
    '<link rel=stylesheet href="https://tracker.invalid/x.css">',
    f'<meta http-equiv=refresh content="0;url={_JS}">',
    '<base href="https://tracker.invalid/">',
    '<form action="https://tracker.invalid/"><button>Log in again</button></form>',
    f'<form><button formaction="{_JS}">x</button></form>',
    '<div style="position:fixed;inset:0;background:url(https://tracker.invalid)">x</div>',
    f"<template shadowrootmode=open><script>{_HIT}</script></template>",
]
#: Texts that parsers of HTML read in different ways.
CONFUSING = [
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hit=1>",
    f'<noscript><p title="</noscript>{_BAD_IMAGE}">',
    f"</textarea>{_BAD_IMAGE}",
    f"</title></script>{_BAD_IMAGE}",
    f"<!--><!-- -->{_BAD_IMAGE}-->",
    f"<![CDATA[{_BAD_IMAGE}]]>",
    f"<?xml version='1.0'?>{_BAD_IMAGE}",
    "<\u017fcript>window.hit=1</\u017fcript>",
    f"\u202e{_BAD_IMAGE}\u202c",
    f"&lt;script&gt;{_HIT}&lt;/script&gt;",
    f'"><script>{_HIT}</script>',
    f"'-({_HIT})-'",
    f"{{{{constructor.constructor('{_HIT}')()}}}}",
    f"${{{_HIT}}}",
    # An element with such an id or name would replace a property of the window or the document.
    "<a id=hit></a><form id=app><input name=attributes></form><img name=cookie>",
    "<div id=app class='shell ask'><button class='button-main'>Allow once</button></div>",
]
MARKDOWN = [
    f"<a href='{_JS}'>x</a>",
    f"[x]({_JS})",
    "[x](JaVaScRiPt:window.hit=1)",
    "[x](java&#x0A;script:window.hit=1)",
    "[x](java\\\nscript:window.hit=1)",
    "[x](&#106;avascript:window.hit=1)",
    f"[x](<\x01{_JS}>)",
    f"[x](data:text/html,<script>{_HIT}</script>)",
    "[x](data:text/html;base64,PHNjcmlwdD5wYXJlbnQuaGl0PTE8L3NjcmlwdD4=)",
    "[x](vbscript:hit)",
    "[x](file:///etc/passwd)",
    "[x](//tracker.invalid/x)",
    f"![x]({_JS})",
    "![x](https://tracker.invalid/a.png)",
    f'![x](https://tracker.invalid/a.png" onerror="{_HIT})',
    f'[x](https://a.invalid "\\" onmouseover=\\"{_HIT}")',
    f"[x]: {_JS}\n\n[x]",
    f"[![x](https://tracker.invalid/a.png)]({_JS})",
    f"<{_JS}>",
    f'<https://a.invalid/"onclick={_HIT}>',
    f"# {_BAD_IMAGE}\n\n> {_BAD_IMAGE}\n\n1. {_BAD_IMAGE}",
    f"| {_BAD_IMAGE} | b |\n|---|---|\n| <script>{_HIT}</script> | [x]({_JS}) |",
    f"`{_BAD_IMAGE}` ~~{_BAD_IMAGE}~~ **<b onclick={_HIT}>x</b>**",
]
FENCES = [
    '```"><img/src=x/onerror=window.hit=1>\nx\n```',
    f'```mermaid\ngraph LR; a["{_BAD_IMAGE}"]; click a "{_JS}"\n```',
    f"```mermaid\n%%{{init: {{'themeCSS': '</style>{_BAD_IMAGE}'}}}}%%\n```",
    f"```svg\n<svg onload={_HIT}><script>{_HIT}</script></svg>\n```",
    f"```html\n<script>{_HIT}</script>{_BAD_IMAGE}\n```",
    f"```js\n</code></pre>{_BAD_IMAGE}\n```",
    f"$$\\href{{{_JS}}}{{x}}$$",
]
HOSTILE = ELEMENTS + CONFUSING + MARKDOWN + FENCES

#: What a page has made of them: the names of properties that they set, and elements that they must not become. Elements
#: of the page itself are known: its one script and style sheet, links to its own paths, and pictures of the Lane.
INSPECT = """() => {
    const own = (url) => new URL(url, location.href).origin === location.origin;
    const isBad = (element) => {
        const name = element.tagName.toLowerCase();
        const isContent = element.closest(".markdown, pre, .diff-code, .user-text") !== null;
        if (/^(iframe|object|embed|base|math|marquee|video|audio|source|template)$/.test(name)) return true;
        if (isContent && /^(img|svg|script|style|form|input|button|link|meta)$/.test(name))
            return !element.matches(".code-head *, .more");
        if (isContent && (element.id || element.hasAttribute("name"))) return true;
        if (name === "script" || name === "img") return !own(element.src) || (name === "script" && !element.src);
        if (name === "style" || (name === "meta" && element.httpEquiv)) return true;
        if (name === "form" && element.hasAttribute("action")) return true;
        if (name === "link") return !own(element.href);
        if (name === "a" && element.hasAttribute("href"))
            return !/^(https?:|mailto:|[/#](?![/]))/.test(element.getAttribute("href"));
        return false;
    };
    const names = (element) => Element.prototype.getAttributeNames.call(element);
    const bad = [...document.querySelectorAll("*")].filter(
        (element) => isBad(element) || names(element).some((name) => /^(on|formaction|srcdoc)/i.test(name)),
    );
    return [window.hit ?? null, bad.map((element) => element.outerHTML.slice(0, 300))];
}"""
