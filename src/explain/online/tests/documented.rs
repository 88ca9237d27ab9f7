//! The OpenAPI document: sound in itself, and true of every answer.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use super::{get, people::People, world::World};
use crate::explain::online::openapi::document;

/// All values behind a key, anywhere.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key));
            fields.values().for_each(|value| all(value, key, found));
        }
        Value::Array(values) => values.iter().for_each(|value| all(value, key, found)),
        _ => {}
    }
}

fn target<'a>(document: &'a Value, reference: &Value) -> &'a Value {
    let path = reference.as_str().unwrap().strip_prefix('#').unwrap();
    document.pointer(path).unwrap_or_else(|| panic!("{reference} leads nowhere"))
}

#[test]
fn it_is_sound_in_itself() {
    let document = document();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut references = Vec::new();
    all(&document, "$ref", &mut references);
    assert!(references.len() > 30);
    for reference in &references {
        target(&document, reference);
    }
    let mut ids = Vec::new();
    all(&document, "operationId", &mut ids);
    let distinct: BTreeSet<&str> = ids.iter().filter_map(|id| id.as_str()).collect();
    assert_eq!((distinct.len(), ids.len()), (9, 9), "each operation has an id of its own");
    for (path, item) in document["paths"].as_object().unwrap() {
        assert_eq!(item.as_object().unwrap().len(), 1, "{path}: it only reads");
        let operation = &item["get"];
        assert!(operation["summary"].is_string(), "{path}");
        for (status, answer) in operation["responses"].as_object().unwrap() {
            let answer = answer.get("$ref").map_or(answer, |reference| target(&document, reference));
            assert!(answer["description"].is_string(), "{path} {status}");
        }
        for status in ["200", "304", "401", "429", "503"] {
            assert!(operation["responses"][status].is_object(), "{path} lacks {status}");
        }
        let declared = operation["parameters"].as_array().unwrap().iter();
        let declared: BTreeSet<&str> =
            declared.filter(|it| it["in"] == "path").filter_map(|it| it["name"].as_str()).collect();
        let used: BTreeSet<&str> =
            path.split('/').filter_map(|it| it.strip_prefix('{')?.strip_suffix('}')).collect();
        assert_eq!(declared, used, "{path}");
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(schema["description"].is_string(), "{name}");
        let is_used = references.iter().any(|it| it.as_str().unwrap().ends_with(&format!("/{name}")));
        assert!(is_used, "{name} is used by nothing");
    }
}

/// What a schema of the document does not let through.
fn check(document: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    if let Some(reference) = schema.get("$ref") {
        return check(document, target(document, reference), value, at, wrong);
    }
    if let Some(choices) = schema.get("oneOf").and_then(Value::as_array) {
        let fits = |choice: &&Value| {
            let mut wrong = Vec::new();
            check(document, choice, value, at, &mut wrong);
            wrong.is_empty()
        };
        if choices.iter().filter(fits).count() != 1 {
            wrong.push(format!("{at}: {value} is none of {choices:?}"));
        }
        return;
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_allowed = match &schema["type"] {
        Value::String(one) => one == kind,
        Value::Array(some) => some.iter().any(|one| one == kind),
        _ => true,
    };
    if !is_allowed {
        wrong.push(format!("{at}: {value} is no {}", schema["type"]));
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array)
        && !values.contains(value)
    {
        wrong.push(format!("{at}: {value} is none of {values:?}"));
    }
    if schema.get("const").is_some_and(|only| only != value) {
        wrong.push(format!("{at}: {value} is not {}", schema["const"]));
    }
    if let Value::Array(items) = value {
        for (index, item) in items.iter().enumerate() {
            check(document, &schema["items"], item, &format!("{at}[{index}]"), wrong);
        }
    }
    let Value::Object(fields) = value else { return };
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(required) {
            wrong.push(format!("{at}: {required} is missing"));
        }
    }
    for (name, field) in fields {
        let at = format!("{at}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(schema), _) => check(document, schema, field, &at, wrong),
            (None, Value::Bool(false)) => wrong.push(format!("{at} is not in the document")),
            (None, Value::Object(_)) => check(document, &schema["additionalProperties"], field, &at, wrong),
            (None, _) => {}
        }
    }
}

fn wrong(name: &str, value: &Value) -> Vec<String> {
    let document = document();
    let mut wrong = Vec::new();
    check(&document, &document["components"]["schemas"][name], value, name, &mut wrong);
    wrong
}

#[test]
fn it_lets_every_answer_of_the_cases_through() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/explain");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let cases: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for case in cases.as_array().unwrap() {
            assert_eq!(wrong("Explanation", &case["answer"]), Vec::<String>::new(), "{}", path.display());
            count += 1;
        }
    }
    assert!(count > 20, "{count} answers");
}

#[tokio::test(start_paused = true)]
async fn it_lets_the_daemons_answers_through_and_no_others() {
    let gate = People::default().gate(World::held().knowledge());
    for (path, token, schema) in [
        (super::CLAIM, "admin", "Explanation"),
        (super::CLAIM, "shopkeeper", "Explanation"),
        (super::CLAIM, "neighbour", "Explanation"),
        ("/explain/v1/namespaces/shop/pods/web-1", "admin", "Explanation"),
        ("/explain/v1/persistentvolumes/pv-1", "admin", "Explanation"),
        ("/explain/v1/nodes/n2", "admin", "Explanation"),
        ("/explain/v1/storageclasses/fast", "admin", "Explanation"),
        ("/explain/v1/summary", "admin", "Summary"),
        ("/explain/v1/reasons", "neighbour", "Reasons"),
    ] {
        let (_, answer) = get(&gate, path, token).await;
        assert_eq!(wrong(schema, &answer), Vec::<String>::new(), "{path} {token}: {answer:#}");
        let mut more = answer.clone();
        more["more"] = Value::Null;
        assert!(!wrong(schema, &more).is_empty(), "{path}: a field that no one documented");
    }
    let (status, served) = get(&gate, "/explain/v1/openapi.json", "neighbour").await;
    assert_eq!((status, served), (200, document()));
}
