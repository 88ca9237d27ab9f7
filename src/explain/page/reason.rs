//! *Reason*: the page about a reason's code, from its Markdown. Pure.
//!
//! In: a page of `docs/reasons`. Out: HTML. Links to other reasons lead to their pages here; what else a page links to is in the
//! repository, which the program does not have, and stays as words.

use maud::PreEscaped;
use pulldown_cmark::{Event, Parser, Tag, TagEnd, html};

use super::{layout, links::Links};

/// The page.
pub(super) fn page(links: &Links, code: &str, text: &str) -> String {
    let mut is_led = false;
    let events = Parser::new(text).filter_map(|event| match event {
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            let path = dest_url.strip_suffix(".md").and_then(|code| links.reason(code));
            is_led = path.is_some();
            let dest_url = path?.into();
            Some(Event::Start(Tag::Link { link_type, dest_url, title, id }))
        }
        Event::End(TagEnd::Link) => is_led.then_some(event),
        // What may be wider than the window is scrolled by keyboard, too.
        Event::Start(Tag::CodeBlock(_)) => Some(Event::Html("<pre tabindex=\"0\"><code>".into())),
        Event::End(TagEnd::CodeBlock) => Some(Event::Html("</code></pre>\n".into())),
        event => Some(event),
    });
    let mut content = String::new();
    html::push_html(&mut content, events);
    layout::page(links, code, None, &PreEscaped(content))
}
