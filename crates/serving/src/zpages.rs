//! `/configz`, `/flagz`, `/statusz` and `/version`, as Kubernetes' components have them.
//!
//! In: the flags with their values, the configuration that came of them, what is running. Out: answers in the form
//! that is asked for.
//!
//! Upstream: apiserver's pkg/server/flagz and pkg/server/statusz, component-base's configz.

use std::{collections::BTreeMap, fmt::Write, sync::LazyLock};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{Answer, Router};

/// What is running.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// What it was built from.
    pub commit: &'static str,
    /// Version of the compiler.
    pub rustc: &'static str,
    /// What it was built for, such as `x86_64-unknown-linux-gnu`.
    pub target: &'static str,
}

/// The API group of the structured forms.
const GROUP: &str = "config.k8s.io";

/// Their version. Upstream also has v1alpha1, which it warns of.
const GROUP_VERSION: &str = "v1beta1";

/// When the process started, once that was asked.
static STARTED: LazyLock<Timestamp> = LazyLock::new(Timestamp::now);

/// Adds the pages, the last of all: one of them lists the others.
#[must_use]
pub fn add(router: Router, what: Component, flags: BTreeMap<String, String>, settings: Value) -> Router {
    let started = *STARTED;
    let router = router
        .json("/configz", move || json!({ what.name: settings }))
        .negotiated("/flagz", move |accept| what.flagz(&flags, accept))
        .json("/version", move || what.version());
    let mut paths: Vec<String> = router.paths().chain(["/statusz"]).map(first_segment).collect();
    paths.sort_unstable();
    paths.dedup();
    router.negotiated("/statusz", move |accept| what.statusz(started, Timestamp::now(), &paths, accept))
}

/// `/debug/watches` is below `/debug`.
fn first_segment(path: &str) -> String {
    let name = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    format!("/{name}")
}

/// In which form an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

/// The form that a request for a page of that kind accepts, if there is one: text unless something else is asked for,
/// JSON if the kind and its version are named.
// apiserver: pkg/server/flagz/negotiate/negotiation.go.
fn negotiated(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    let mut accepted: Vec<(f32, Form)> = Vec::new();
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        let asked = ["as", "g", "v"].map(|name| parameters.get(name).copied());
        let form = match (media_type, asked) {
            ("*/*" | "text/*" | "text/plain", [None, None, None]) => Form::Text,
            ("*/*" | "application/*" | "application/json", asked)
                if asked == [Some(kind), Some(GROUP), Some(GROUP_VERSION)] =>
            {
                Form::Json
            }
            _ => continue,
        };
        let quality = parameters.get("q").and_then(|quality| quality.parse().ok()).unwrap_or(1.0);
        accepted.push((quality, form));
    }
    // The first of the best.
    let best = accepted.iter().map(|(quality, _)| *quality).fold(0.0, f32::max);
    accepted.into_iter().find(|(quality, _)| *quality > 0.0 && *quality >= best).map(|(_, form)| form)
}

fn not_acceptable(kind: &str) -> Answer {
    let text = format!(
        "only the following media types are accepted: text/plain, \
         application/json;v={GROUP_VERSION};g={GROUP};as={kind}\n"
    );
    Answer::text(StatusCode::NOT_ACCEPTABLE, text)
}

impl Component {
    fn header(self, page: &str) -> String {
        format!(
            "\n{} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
             compatibility guarantees and is for debugging purposes only.\n",
            self.name
        )
    }

    fn structured(self, kind: &str, content: Value) -> Answer {
        let mut object = json!({
            "kind": kind,
            "apiVersion": format!("{GROUP}/{GROUP_VERSION}"),
            "metadata": { "name": self.name },
        });
        if let (Some(object), Value::Object(content)) = (object.as_object_mut(), content) {
            object.extend(content);
        }
        Answer::json(&object)
    }

    fn flagz(self, flags: &BTreeMap<String, String>, accept: &str) -> Answer {
        const KIND: &str = "Flagz";
        match negotiated(accept, KIND) {
            None => not_acceptable(KIND),
            Some(Form::Json) => self.structured(KIND, json!({ "flags": flags })),
            Some(Form::Text) => {
                let mut text = self.header("flagz");
                for (flag, value) in flags {
                    // Writing to a string cannot fail.
                    let _ = writeln!(text, "{flag}={value}");
                }
                Answer::text(StatusCode::OK, text)
            }
        }
    }

    fn statusz(self, started: Timestamp, now: Timestamp, paths: &[String], accept: &str) -> Answer {
        const KIND: &str = "Statusz";
        let up = now.as_second().saturating_sub(started.as_second()).max(0);
        match negotiated(accept, KIND) {
            None => not_acceptable(KIND),
            Some(Form::Json) => self.structured(
                KIND,
                json!({
                    "startTime": second(started),
                    "uptimeSeconds": up,
                    // There is none; upstream's type wants the field.
                    "goVersion": "",
                    "binaryVersion": self.version,
                    "paths": paths,
                }),
            ),
            Some(Form::Text) => {
                let text = format!(
                    "{}\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nRust version: {}\nBinary version: {}\n\n\
                     Paths: {}\n",
                    self.header("statusz"),
                    second(started),
                    up / 3600,
                    up / 60 % 60,
                    up % 60,
                    self.rustc,
                    self.version,
                    paths.join(" "),
                );
                Answer::text(StatusCode::OK, text)
            }
        }
    }

    /// With the fields of apimachinery's `version.Info`. What is built from equal sources is equal, so it has no date.
    fn version(self) -> Value {
        let mut numbers = self.version.split('.');
        let platform = self.target.split('-').next().map(|architecture| match architecture {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        });
        json!({
            "major": numbers.next(),
            "minor": numbers.next(),
            "gitVersion": format!("v{}", self.version),
            "gitCommit": self.commit,
            "gitTreeState": "",
            "buildDate": "",
            "goVersion": "",
            "compiler": format!("rustc {}", self.rustc),
            "platform": format!("linux/{}", platform.unwrap_or_default()),
        })
    }
}

fn second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOORING: Component = Component {
        name: "mooring",
        version: "1.2.3",
        commit: "0d2f9d0e",
        rustc: "1.95.0",
        target: "x86_64-unknown-linux-gnu",
    };

    #[test]
    fn text_is_given_unless_the_structured_form_is_named_whole() {
        let named = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        for (accept, expected) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Some(Form::Text)),
            (named, Some(Form::Json)),
            ("application/json; as=Flagz; v=v1beta1; g=config.k8s.io", Some(Form::Json)),
            ("text/plain;q=0.5,application/json;v=v1beta1;g=config.k8s.io;as=Flagz", Some(Form::Json)),
            ("text/plain,application/json;v=v1beta1;g=config.k8s.io;as=Flagz;q=0.5", Some(Form::Text)),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=v1alpha1;g=config.k8s.io;as=Flagz", None),
            ("application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("text/plain;q=0", None),
        ] {
            assert_eq!(negotiated(accept, "Flagz"), expected, "{accept}");
        }
    }

    #[test]
    fn the_structured_forms_are_upstreams() {
        let flags = BTreeMap::from([("v".to_owned(), "2".to_owned())]);
        let accept = |kind: &str| format!("application/json;v=v1beta1;g=config.k8s.io;as={kind}");
        let answer = MOORING.flagz(&flags, &accept("Flagz"));
        assert_eq!(answer.content_type, "application/json");
        let object: Value = serde_json::from_str(&answer.body).unwrap();
        let expected = json!({
            "kind": "Flagz", "apiVersion": "config.k8s.io/v1beta1", "metadata": {"name": "mooring"},
            "flags": {"v": "2"},
        });
        assert_eq!(object, expected);
        let at = |second| Timestamp::from_second(second).unwrap();
        let paths = ["/metrics".to_owned()];
        let answer = MOORING.statusz(at(10), at(3_735), &paths, &accept("Statusz"));
        let object: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(
            (&object["startTime"], &object["uptimeSeconds"], &object["paths"]),
            (&json!("1970-01-01T00:00:10Z"), &json!(3_725), &json!(["/metrics"]))
        );
        assert!(MOORING.statusz(at(10), at(3_735), &paths, "").body.contains("\nUp: 1 hr 02 min 05 sec\n"));
        assert_eq!(MOORING.statusz(at(10), at(9), &paths, "image/png").status, StatusCode::NOT_ACCEPTABLE);
    }
}
