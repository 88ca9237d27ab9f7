//! Label and field selectors of lists and watches.
//!
//! In: the texts of the query. Out: a predicate on objects. Field selectors accept only the fields that
//! the kind names, as upstream's do.

use serde_json::Value;

use super::{
    json,
    kinds::kind::{COMMON_FIELDS, Kind},
    status::Refusal,
    validate::{is_name_part, is_qualified_name},
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
    Greater(i64),
    Less(i64),
}

/// What objects have to look like.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Vec<(String, Test)>,
    fields: Vec<(&'static str, String, bool)>,
}

impl Selector {
    /// Reads both selectors.
    ///
    /// # Errors
    /// A selector that cannot be read, or a field the kind cannot be selected by.
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, Refusal> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(kind, fields)? })
    }

    /// Does it take every object?
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Does it take this one?
    pub fn matches(&self, object: &Value) -> bool {
        let labels = json::map(object, "/metadata/labels");
        let has_labels = self.labels.iter().all(|(key, test)| {
            let value = labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
            match test {
                Test::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
                Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
                Test::Exists => value.is_some(),
                Test::Missing => value.is_none(),
                Test::Greater(bound) => {
                    value.and_then(|value| value.parse().ok()).is_some_and(|n: i64| n > *bound)
                }
                Test::Less(bound) => {
                    value.and_then(|value| value.parse().ok()).is_some_and(|n: i64| n < *bound)
                }
            }
        });
        has_labels && self.fields.iter().all(|field| matches_field(field, object))
    }

    /// Does it match by the fields that the server has an index of?
    pub fn matches_looked_up(&self, object: &Value) -> bool {
        let is_indexed = |path: &str| matches!(path, "/metadata/name" | "/spec/nodeName");
        let mut indexed = self.fields.iter().filter(|(path, _, is_equal)| *is_equal && is_indexed(path));
        indexed.all(|field| matches_field(field, object))
    }
}

fn matches_field((path, wanted, is_equal): &(&'static str, String, bool), object: &Value) -> bool {
    let found = match object.pointer(path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        _ if path.ends_with("unschedulable") || path.ends_with("hostNetwork") => "false".to_owned(),
        _ => String::new(),
    };
    (found == *wanted) == *is_equal
}

fn parse_fields(kind: &Kind, text: &str) -> Result<Vec<(&'static str, String, bool)>, Refusal> {
    let mut fields = Vec::new();
    for term in text.split(',').filter(|term| !term.is_empty()) {
        let (name, value, is_equal) = if let Some((name, value)) = term.split_once("!=") {
            (name, value, false)
        } else if let Some((name, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (name, value, true)
        } else {
            return Err(Refusal::bad_request(format!(
                "invalid selector: '{text}'; can't understand '{term}'"
            )));
        };
        let known = COMMON_FIELDS.iter().chain(kind.fields).find(|(known, _)| *known == name);
        let Some((_, path)) = known else {
            return Err(Refusal::bad_request(format!("field label not supported: {name}")));
        };
        fields.push((*path, value.to_owned(), is_equal));
    }
    Ok(fields)
}

fn parse_labels(text: &str) -> Result<Vec<(String, Test)>, Refusal> {
    let mut labels = Vec::new();
    for term in split_terms(text) {
        let unreadable = || Refusal::bad_request(format!("unable to parse requirement: {term:?}"));
        let (key, condition) = parse_term(term).ok_or_else(unreadable)?;
        if !is_qualified_name(key) {
            return Err(unreadable());
        }
        if let Test::In(values) | Test::NotIn(values) = &condition
            && values.iter().any(|value| !value.is_empty() && !is_name_part(value))
        {
            return Err(unreadable());
        }
        labels.push((key.to_owned(), condition));
    }
    Ok(labels)
}

/// Splits at commas that are not in parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut depth) = (0, 0_usize);
    for (position, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                terms.push(text.get(start..position).unwrap_or_default().trim());
                start = position + 1;
            }
            _ => {}
        }
    }
    let last = text.get(start..).unwrap_or_default().trim();
    if !(last.is_empty() && terms.is_empty()) {
        terms.push(last);
    }
    terms
}

fn parse_term(term: &str) -> Option<(&str, Test)> {
    if let Some(key) = term.strip_prefix('!') {
        return Some((key.trim(), Test::Missing));
    }
    if let Some((head, values)) = term.split_once('(') {
        let values = values.strip_suffix(')')?.split(',').map(|value| value.trim().to_owned()).collect();
        let (key, operator) = head.trim().split_once(' ')?;
        return match operator.trim() {
            "in" => Some((key, Test::In(values))),
            "notin" => Some((key, Test::NotIn(values))),
            _ => None,
        };
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Some((key.trim(), Test::NotIn(vec![value.trim().to_owned()])));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Some((key.trim(), Test::In(vec![value.trim().to_owned()])));
    }
    if let Some((key, bound)) = term.split_once('>') {
        return Some((key.trim(), Test::Greater(bound.trim().parse().ok()?)));
    }
    if let Some((key, bound)) = term.split_once('<') {
        return Some((key.trim(), Test::Less(bound.trim().parse().ok()?)));
    }
    Some((term, Test::Exists))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{node, pod};

    #[test]
    fn labels_and_fields_select() {
        let pod = json!({
            "metadata": {"name": "p", "labels": {"app": "db", "tier": "2"}}, "spec": {"nodeName": "n1"},
        });
        for (labels, fields, expected) in [
            ("app=db", "spec.nodeName=n1", true),
            ("app in (web, db),!gone", "", true),
            ("app notin (web),tier>1", "metadata.name=p", true),
            ("app!=db", "", false),
            ("app,gone", "", false),
            ("", "spec.nodeName!=n1", false),
        ] {
            let selector = Selector::parse(&pod::KIND, labels, fields).unwrap();
            assert_eq!(selector.matches(&pod), expected, "{labels} {fields}");
        }
        assert!(Selector::parse(&pod::KIND, "", "spec.foo=1").is_err());
        assert!(Selector::parse(&pod::KIND, "a b c", "").is_err());
        let schedulable = Selector::parse(&node::KIND, "", "spec.unschedulable=false").unwrap();
        assert!(schedulable.matches(&json!({"metadata": {"name": "n"}})));
    }
}
