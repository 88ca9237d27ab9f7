//! Paths of the page: what leads where. Pure.
//!
//! In: objects by kind, namespace and name. Out: links. Names that Kubernetes would not allow make no link.

use apiserver::kinds::ObjectRef;
use maud::{Markup, html};

use super::text::Text;
use crate::explain::{
    reasons,
    subject::{self, is_name},
};

/// What comes before `/explain/` in each path: the secret of a page that is for one person.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    base: String,
    /// The name under which the program was called.
    pub program: &'static str,
}

impl Links {
    pub(super) fn new(base: &str, program: &'static str) -> Self {
        Self { base: base.trim_end_matches('/').to_owned(), program }
    }

    /// A path of the page.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("{}/explain/{rest}", self.base)
    }

    /// The path of an object's page, if its names are names.
    pub(super) fn path_of(&self, subject: &ObjectRef) -> Option<String> {
        let (namespace, name) = subject.names();
        let parts = [Some(subject::word(subject)), namespace, Some(name)];
        let parts: Vec<&str> = parts.into_iter().flatten().collect();
        parts.iter().all(|part| is_name(part)).then(|| self.path(&format!("o/{}", parts.join("/"))))
    }

    /// The path of a node's page.
    pub(super) fn node(&self, name: &str) -> Option<String> {
        is_name(name).then(|| self.path(&format!("node/{name}")))
    }

    /// The path of the page about a code, if there is one.
    pub(super) fn reason(&self, code: &str) -> Option<String> {
        reasons::page(code).map(|_| self.path(&format!("reason/{code}")))
    }

    /// A reason's code, which leads to the page about it.
    pub(super) fn code(&self, code: &str) -> Markup {
        html! {
            @match self.reason(code) {
                Some(path) => a href=(path) { (Text(code)) },
                None => b { (Text(code)) },
            }
        }
    }

    /// An object as it is shown, which leads to its page; programs have none.
    pub(super) fn shown(&self, subject: Option<&ObjectRef>, shown: &str) -> Markup {
        html! {
            @match subject.and_then(|subject| self.path_of(subject)) {
                Some(path) => a href=(path) { (Text(shown)) },
                None => (Text(shown)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use apiserver::ids::ClaimKey;

    use super::*;
    #[test]
    fn objects_have_paths_unless_their_names_are_no_names() {
        let links = Links::new("/t/secret", "mooring");
        let claim = ObjectRef::Claim(ClaimKey::new("shop", "data"));
        assert_eq!(links.path_of(&claim).as_deref(), Some("/t/secret/explain/o/pvc/shop/data"));
        let volume = ObjectRef::Volume("pv-1".into());
        assert_eq!(links.path_of(&volume).as_deref(), Some("/t/secret/explain/o/pv/pv-1"));
        for name in ["a\"b", "a/b", "..", "", "ä", &"a".repeat(254)] {
            assert_eq!(links.path_of(&ObjectRef::Volume(name.into())), None, "{name}");
        }
    }
}
