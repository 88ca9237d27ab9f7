//! Paths of the page: what leads where, and what a path asks for. Pure.
//!
//! In: objects by kind, namespace and name; paths as browsers send them. Out: links, and questions. Names that Kubernetes would
//! not allow make no link, and a path that holds one asks for nothing, so that nothing has to be decoded.

use maud::{Markup, html};
use serde_json::Value;

use super::text::Text;
use crate::{
    explain::{
        reasons,
        subject::{Subject, is_name},
    },
    kube_api::ids::NodeName,
};

/// What comes before `/explain/` in each path: the secret of a page that is for one person.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    base: String,
}

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Everything that waits.
    Waiting,
    /// One object.
    Object(Subject),
    /// A node.
    Node(NodeName),
    /// The page about a reason's code.
    Reason(&'static str, &'static str),
    /// The form: leads on.
    Go,
    /// How it looks.
    Style,
    /// What counts down and copies.
    Script,
    /// The sign in a browser's tab.
    Icon,
}

impl Links {
    pub(super) fn new(base: &str) -> Self {
        Self { base: base.trim_end_matches('/').to_owned() }
    }

    /// A path of the page.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("{}/explain/{rest}", self.base)
    }

    /// The path of an object's page, if its names are names.
    pub(super) fn path_of(&self, subject: &Subject) -> Option<String> {
        let kind = subject.to_string().split('/').next()?.to_owned();
        let parts = [Some(kind.as_str()), subject.namespace(), Some(subject.name())];
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

    /// An object's name, which leads to its page.
    pub(super) fn name(&self, subject: &Subject) -> Markup {
        let name = match subject.namespace() {
            None => subject.name().to_owned(),
            Some(namespace) => format!("{namespace}/{}", subject.name()),
        };
        html! {
            @match self.path_of(subject) {
                Some(path) => a href=(path) { (Text(&name)) },
                None => (Text(&name)),
            }
        }
    }

    /// Kind and name of an object of an answer; programs have no page.
    pub(super) fn object(&self, object: &Value) -> Markup {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        html! {
            span .kind { (Text(text("kind"))) } " "
            @match Subject::of(object) { Some(subject) => (self.name(&subject)), None => (Text(text("name"))) }
        }
    }

    /// What a path asks for.
    pub(super) fn asked(&self, path: &str) -> Option<Asked> {
        let path = path.strip_prefix(&self.base)?.strip_prefix("/explain")?;
        let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
        let is_sound = |part: &&str| is_name(part);
        match parts.as_slice() {
            [""] => Some(Asked::Waiting),
            ["page.css"] => Some(Asked::Style),
            ["page.js"] => Some(Asked::Script),
            ["icon.svg"] => Some(Asked::Icon),
            ["go"] => Some(Asked::Go),
            ["reason", code] => {
                let known = reasons::codes().find(|known| known == code)?;
                reasons::page(known).map(|text| Asked::Reason(known, text))
            }
            ["node", name] if is_name(name) => Some(Asked::Node((*name).into())),
            ["o", parts @ ..] if parts.iter().all(is_sound) => match parts {
                [kind, name] => Subject::new(kind, "", name).ok().filter(|it| it.namespace().is_none()),
                [kind, namespace, name] => {
                    Subject::new(kind, namespace, name).ok().filter(|it| it.namespace().is_some())
                }
                _ => None,
            }
            .map(Asked::Object),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::ids::ClaimKey;

    #[test]
    fn paths_and_objects_lead_to_each_other() {
        for base in ["", "/t/secret"] {
            let links = Links::new(base);
            let claim = Subject::Claim(ClaimKey::new("shop", "data"));
            let subjects = [claim, Subject::Volume("pv-1".into()), Subject::Class("gp3".into())];
            for subject in subjects {
                let path = links.path_of(&subject).unwrap();
                assert_eq!(links.asked(&path), Some(Asked::Object(subject)), "{path}");
            }
            let reason = links.asked(&links.reason("HeldByNode").unwrap());
            assert!(matches!(reason, Some(Asked::Reason("HeldByNode", _))), "{reason:?}");
            assert_eq!(links.asked(&links.node("n1").unwrap()), Some(Asked::Node("n1".into())));
            let fixed = [
                ("", Asked::Waiting),
                ("go", Asked::Go),
                ("page.css", Asked::Style),
                ("page.js", Asked::Script),
                ("icon.svg", Asked::Icon),
            ];
            for (rest, asked) in fixed {
                assert_eq!(links.asked(&links.path(rest)), Some(asked));
            }
        }
        assert_eq!(Links::default().asked("/explain"), Some(Asked::Waiting));
    }

    #[test]
    fn what_is_no_name_makes_no_link_and_asks_for_nothing() {
        let links = Links::new("/t/secret");
        for path in [
            "/explain/",
            "/t/other/explain/",
            "/t/secret/explain/o/pvc/data",
            "/t/secret/explain/o/pv/shop/data",
            "/t/secret/explain/o/job/shop/data",
            "/t/secret/explain/o/pv/..",
            "/t/secret/explain/o/pv/a%2fb",
            "/t/secret/explain/o/pv/",
            "/t/secret/explain/o/pv/a/b/c",
            "/t/secret/explain/node/a b",
            "/t/secret/explain/reason/Nonsense",
            "/t/secret/explainer",
        ] {
            assert_eq!(links.asked(path), None, "{path}");
        }
        for name in ["a\"b", "a/b", "..", "", "ä", &"a".repeat(254)] {
            assert_eq!(links.path_of(&Subject::Volume(name.into())), None, "{name}");
        }
    }
}
