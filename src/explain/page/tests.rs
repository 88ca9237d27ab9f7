//! Pages as they are made of values (`tests/cases/page`; `MOORING_BLESS=1` writes what is expected), and what no text of a
//! stranger can do to them.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use axum::{Router, body::Body};
use futures::{FutureExt, executor::block_on, future::ready};
use http::{Method, Request, header};
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{
    guard::Guard, links::Links, reason, routes::router, serve::PagePlace, source::PageSource, views,
};
use crate::explain::{
    doctor::{Finding, Findings, Severity},
    drain::{DrainStage, DrainView, DrainedVolume},
    read::Question,
    reasons,
    report::{Explanation, Verdict},
    snapshot::{Snapshot, Unseen},
};

/// Keys whose texts are no stranger's: words of a closed list, and times.
const FIXED: [&str; 8] = ["verdict", "risk", "source", "at", "since", "until", "notBefore", "stage"];

/// A case: what the source says.
struct Case {
    name: String,
    view: String,
    value: Value,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cases/page")
}

fn cases() -> Vec<Case> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    let case = |path: &PathBuf| {
        let mut case: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let word = |key: &str| case[key].as_str().unwrap_or_default().to_owned();
        Case {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            view: word("view"),
            value: case["value"].take(),
        }
    };
    let cases: Vec<Case> = paths.iter().map(case).collect();
    assert!(cases.len() >= 8, "{} cases", cases.len());
    cases
}

/// What a case leaves out.
fn fill(value: &mut Value, missing: &Value) {
    let (Some(value), Some(missing)) = (value.as_object_mut(), missing.as_object()) else { return };
    for (key, missing) in missing {
        value.entry(key).or_insert_with(|| missing.clone());
    }
}

fn explanation(mut value: Value) -> Explanation {
    fill(
        &mut value,
        &json!({
            "headline": "", "reason": "", "steps": [], "candidates": [], "evidence": [], "timeline": [], "actions": [], "unseen": [],
            "unknown": [],
        }),
    );
    for step in value["steps"].as_array_mut().unwrap() {
        fill(step, &json!({ "detail": "", "message": "", "isBlocker": false, "blockedBy": [] }));
    }
    for action in value["actions"].as_array_mut().unwrap() {
        fill(action, &json!({ "command": [] }));
    }
    serde_json::from_value(value).unwrap()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// What a case has under a key, or as much as nothing.
fn read<T: serde::de::DeserializeOwned + Default>(value: &Value, key: &str) -> T {
    value.get(key).map_or_else(T::default, |it| serde_json::from_value(it.clone()).unwrap())
}

fn findings(value: &Value) -> Findings {
    let finding = |row: &Value| Finding {
        severity: if row["verdict"] == "Blocked" { Severity::Blocked } else { Severity::Waiting },
        reason: text(row, "reason").leak(),
        about: String::new(),
        count: row["count"].as_u64().map_or(1, |count| usize::try_from(count).unwrap()),
        unit: "object",
        pods: 0,
        oldest: read(row, "since"),
        next_at: read(row, "until"),
        summary: text(row, "message"),
        examples: vec![row["object"].clone()],
        command: Vec::new(),
    };
    Findings {
        api_version: "",
        kind: "",
        verdict: Verdict::Waiting,
        observed: serde_json::from_value(value["observed"].clone()).unwrap(),
        findings: value["rows"].as_array().into_iter().flatten().map(finding).collect(),
        waiting_pods: BTreeMap::new(),
        fine: Vec::new(),
        unchecked: read(value, "unseen"),
    }
}

fn node_volumes(value: &Value) -> DrainView {
    let volume = |row: &Value| DrainedVolume {
        volume: text(row, "volume"),
        driver: String::new(),
        claim: None,
        pod: read(row, "pod"),
        stage: if row["stage"] == "InUse" { DrainStage::InUse } else { DrainStage::Mounted },
        since: read(row, "since"),
        waits_for: text(row, "message"),
        is_timed: false,
        is_stuck: false,
    };
    DrainView {
        api_version: "",
        kind: "",
        node: text(value, "name"),
        verdict: serde_json::from_value(value["verdict"].clone()).unwrap(),
        observed: serde_json::from_value(value["observed"].clone()).unwrap(),
        exists: Some(true),
        ready: true,
        unready_since: None,
        cordoned: Some(true),
        taints: Vec::new(),
        is_drained: false,
        detached: None,
        volumes: value["volumes"].as_array().into_iter().flatten().map(volume).collect(),
        attachers: Vec::new(),
        unseen: read(value, "unseen"),
        unknown: Vec::new(),
    }
}

fn page(view: &str, value: Value) -> String {
    let links = Links::new("", "mooring");
    match view {
        "object" => views::object(&links, &explanation(value)),
        "waiting" => views::waiting(&links, &findings(&value)),
        "reason" => {
            let code = value["code"].as_str().unwrap();
            reason::page(&links, code, reasons::page(code).unwrap())
        }
        "node" => views::node(&links, &node_volumes(&value)),
        other => panic!("no view {other}"),
    }
}

/// As few lines as hold it, so that a difference can be read: where one thing is told, the next begins a line.
fn lines(html: &str) -> String {
    const BEGIN: [&str; 9] = ["<h", "<p", "<li", "<tr", "<section", "<footer", "<link", "<label", "</tbody"];
    let borders = html.match_indices("><").map(|(at, _)| at + 1);
    let (mut text, mut line, mut begin) = (String::new(), String::new(), 0);
    for end in borders.chain([html.len()]) {
        let tag = &html[begin..end];
        let fits = line.len() + tag.find('\n').unwrap_or(tag.len()) <= 118;
        let is_told = line.contains("</") && BEGIN.iter().any(|it| tag.starts_with(it));
        if !line.is_empty() && (is_told || !fits) {
            text = text + &line + "\n";
            line.clear();
        }
        line += tag;
        if let Some(at) = line.rfind('\n') {
            text += &line[..=at];
            line.drain(..=at);
        }
        begin = end;
    }
    text + &line + "\n"
}

/// What a page has of its own, its title and from its content on what was looked at, and the frame around it.
fn apart(html: &str) -> (String, String) {
    let before = |rest: &str, mark: &str| rest.find(mark).unwrap();
    let (head, rest) = html.split_at(before(html, "<title>"));
    let (title, rest) = rest.split_at(before(rest, "<link"));
    let (middle, rest) = rest.split_at(before(rest, "<main"));
    let (content, foot) = rest.split_at(before(rest, "<p>Nothing here changes "));
    let [head, title, middle, content, foot] = [head, title, middle, content, foot].map(lines);
    (title + &content, head + "{title}\n" + &middle + "{content}\n" + &foot)
}

#[test]
fn pages_are_as_expected() {
    let mut wrong = Vec::new();
    let mut check = |name: &str, found: &str| {
        let path = folder().join(format!("{name}.html"));
        if env::var_os("MOORING_BLESS").is_some() {
            fs::write(&path, found).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        if found != expected {
            let first = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
            wrong.push(format!("{name}: {first:?}"));
        }
    };
    for case in cases() {
        let (own, frame) = apart(&page(&case.view, case.value));
        check(&case.name, &own);
        check("frame", &frame);
    }
    assert!(wrong.is_empty(), "MOORING_BLESS=1 writes them anew, to be read:\n{}", wrong.join("\n"));
}

/// Every text of a stranger, by what makes another of it; equal ones stay equal, and none becomes a name that makes a link.
fn rewritten(value: &Value, texts: &mut BTreeMap<String, usize>, make: &dyn Fn(usize) -> String) -> Value {
    match value {
        Value::String(text) if !text.is_empty() => {
            let count = texts.len();
            Value::String(make(*texts.entry(text.clone()).or_insert(count)))
        }
        Value::Array(values) => values.iter().map(|value| rewritten(value, texts, make)).collect(),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                let is_fixed = FIXED.contains(&key.as_str());
                let value = if is_fixed { value.clone() } else { rewritten(value, texts, make) };
                (key.clone(), value)
            };
            // A map of its own for each walk would make equal texts differ.
            Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

/// A tag: its name, and its attributes with their values.
type Tag = (String, Vec<(String, String)>);

/// All tags, as a browser would find them.
fn tags(html: &str) -> Vec<Tag> {
    let mut tags = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let (mut name, mut attributes, mut quoted) = (String::new(), Vec::new(), false);
        let mut end = rest.len();
        let mut word = String::new();
        for (place, letter) in rest.char_indices() {
            match letter {
                '"' => quoted = !quoted,
                '>' | ' ' if !quoted => {
                    if name.is_empty() {
                        name = std::mem::take(&mut word);
                    } else if !word.is_empty() {
                        let (key, value) = word.split_once('=').unwrap_or((&word, ""));
                        attributes.push((key.to_owned(), value.to_owned()));
                        word.clear();
                    }
                    if letter == '>' {
                        end = place + 1;
                        break;
                    }
                }
                letter => word.push(letter),
            }
        }
        rest = &rest[end..];
        tags.push((name, attributes));
    }
    tags
}

#[test]
fn no_text_of_a_stranger_gets_out_of_its_place() {
    let nasty = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "</pre></main><h1>Nothing is waiting</h1>",
        "javascript:alert(1)",
        "--><!--",
        "&lt;b&gt;&#60;",
        "]]></title></style>",
        "a\u{202e}b\u{0}c\r\nd",
        "//evil.example/",
        "{{7*7}}`${1}`",
    ];
    let random = fastrand::Rng::with_seed(7);
    for case in cases().into_iter().filter(|case| case.view != "reason") {
        let calm = |index: usize| format!("ä{index}");
        let value = rewritten(&case.value, &mut BTreeMap::new(), &calm);
        let expected = tags(&page(&case.view, value));
        let bare = |tags: &[Tag]| -> Vec<(String, Vec<String>)> {
            let keys = |tag: &Tag| tag.1.iter().map(|(key, _)| key.clone()).collect();
            tags.iter().map(|tag| (tag.0.clone(), keys(tag))).collect()
        };
        for _ in 0..20 {
            let seed = random.clone().u64(..);
            let hostile = move |index: usize| {
                let mut random = fastrand::Rng::with_seed(seed.wrapping_add(index as u64));
                let parts: String =
                    (0..random.usize(1..4)).map(|_| nasty[random.usize(..nasty.len())]).collect();
                format!("ä{index}{parts}")
            };
            let value = rewritten(&case.value, &mut BTreeMap::new(), &hostile);
            let html = page(&case.view, value);
            let found = tags(&html);
            assert_eq!(bare(&found), bare(&expected), "{}: {html}", case.name);
            for (name, attributes) in &found {
                for (key, value) in attributes {
                    let leads = ["href", "src", "action"].contains(&key.as_str());
                    assert!(
                        !leads || value.starts_with("/explain/") || value.starts_with('#'),
                        "{name} {key}={value}"
                    );
                    assert!(!key.starts_with("on") && key != "style", "{name} {key}={value}");
                }
            }
        }
    }
}

#[test]
fn a_page_without_script_or_with_words_of_others_runs_nothing_else() {
    for case in cases() {
        let html = page(&case.view, case.value);
        let scripts: Vec<Tag> = tags(&html).into_iter().filter(|(name, _)| name == "script").collect();
        let own = ("src".to_owned(), "/explain/page.js".to_owned());
        assert_eq!(scripts.len(), 1, "{}", case.name);
        assert!(scripts[0].1.contains(&own), "{}", case.name);
    }
}

/// Two objects, one that is hidden, and others that are gone; knows no node, and is out of order for one object.
fn double() -> PageSource {
    let read = |question| {
        let mut snapshot = Snapshot::new("2026-11-22T12:03:05Z".parse().unwrap());
        let object = |kind: &str, metadata: Value| json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {} });
        match question {
            Question::Drain(name) => return ready(Err(format!("node {name} is not known"))).boxed(),
            Question::Object(subject) => match subject.names().1 {
                "broken" => {
                    return ready(Err("the API server <b>does not answer</b>".to_owned())).boxed();
                }
                "gone" => snapshot.note_absent(subject),
                "hidden" => {
                    let what = subject.to_string();
                    snapshot.unseen.push(Unseen { what, why: "no".to_owned(), forbidden: true });
                }
                name => {
                    let metadata = json!({ "name": name, "namespace": subject.names().0.unwrap_or_default(), "uid": "u" });
                    snapshot.take(object(subject.kind(), metadata)).unwrap();
                }
            },
            _ => {}
        }
        ready(Ok(snapshot)).boxed()
    };
    PageSource { program: "mooring", namespace: "shop".to_owned(), of: None, read: Box::new(read) }
}

fn get(pages: &Router, method: Method, path: &str, host: &str) -> http::Response<String> {
    let request = Request::builder().method(method).uri(path).header(header::HOST, host);
    block_on(async {
        let answer = pages.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        http::Response::from_parts(head, String::from_utf8(body).unwrap())
    })
}

#[test]
fn every_path_is_answered_with_headers_that_keep_the_page_to_itself() {
    let guard = Guard::new("127.0.0.1:7000".parse().unwrap()).unwrap();
    let base = guard.base();
    let site = router(double(), guard);
    let get = |method, path: &str| get(&site, method, &format!("{base}{path}"), "127.0.0.1:7000");
    let rows = [
        (Method::GET, "/explain/", 200, "Waiting now"),
        (Method::GET, "/explain", 200, "Waiting now"),
        (Method::HEAD, "/explain/?utm=x", 200, ""),
        (Method::GET, "/explain/o/pvc/shop/data", 200, "PersistentVolumeClaim shop/data"),
        (Method::GET, "/explain/o/pv/pv-1", 200, "PersistentVolume pv-1"),
        (Method::GET, "/explain/o/pv/gone", 404, "Not found"),
        (Method::GET, "/explain/o/pv/hidden", 403, "Forbidden"),
        (Method::GET, "/explain/o/pv/broken", 503, "&lt;b&gt;does not answer"),
        (Method::GET, "/explain/o/job/shop/data", 404, "There is no such page"),
        (Method::GET, "/explain/node/n1", 503, "node n1 is not known"),
        (Method::GET, "/explain/page.css", 200, "prefers-color-scheme"),
        (Method::GET, "/explain/page.js", 200, "countDown"),
        (Method::GET, "/explain/icon.svg", 200, "<svg"),
        (Method::GET, "/explain/reason/HeldByNode", 200, "<h2>Who acts</h2>"),
        (Method::GET, "/explain/reason/Nonsense", 404, "There is no such page"),
        (Method::GET, "/explain/nowhere", 404, "There is no such page"),
        (Method::GET, "/explain/o/pvc/data", 404, "There is no such page"),
        (Method::GET, "/explain/o/pv/shop/data", 404, "There is no such page"),
        (Method::GET, "/explain/o/pv/..", 404, "There is no such page"),
        (Method::GET, "/explain/o/pv/a%2fb", 404, "There is no such page"),
        (Method::GET, "/explain/o/pv/", 404, "There is no such page"),
        (Method::GET, "/explain/o/pv/a/b/c", 404, "There is no such page"),
        (Method::GET, "/explain/node/a%20b", 404, "There is no such page"),
        (Method::POST, "/explain/", 405, "Nothing is changed here"),
        (Method::GET, "/explain/go?kind=pvc&namespace=&name=data", 303, ""),
        (Method::GET, "/explain/go?kind=pvc&name=%22%3E", 400, "That is no name"),
    ];
    for (method, path, status, words) in rows {
        let answer = get(method.clone(), path);
        assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        assert!(answer.body().contains(words), "{method} {path}: {}", answer.body());
        let value =
            |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert!(value(header::CONTENT_SECURITY_POLICY).starts_with("default-src 'self';"), "{path}");
        assert_eq!(value(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(value(header::REFERRER_POLICY), "no-referrer");
        assert_eq!(value(header::SET_COOKIE), "");
    }
    let answer = get(Method::GET, "/explain/go?kind=pvc&namespace=&name=+data+");
    assert_eq!(answer.headers()[header::LOCATION], format!("{base}/explain/o/pvc/default/data"));
}

#[test]
fn a_page_for_one_person_has_its_secret_in_every_path_and_is_answered_for_no_other() {
    let guard = Guard::new("127.0.0.1:7000".parse().unwrap()).unwrap();
    let (base, url) = (guard.base(), guard.url());
    let site = router(double(), guard);
    let path = url.strip_prefix("http://127.0.0.1:7000").unwrap();
    let answer = get(&site, Method::GET, path, "127.0.0.1:7000");
    assert_eq!(answer.status().as_u16(), 200);
    for (name, attributes) in tags(answer.body()) {
        for (key, value) in attributes {
            if ["href", "src", "action"].contains(&key.as_str()) {
                assert!(
                    value.starts_with(&format!("{base}/explain/")) || value.starts_with('#'),
                    "{name} {key}={value}"
                );
            }
        }
    }
    for (path, host) in
        [(path, "evil.example"), ("/explain/", "127.0.0.1:7000"), ("/t/x/explain/", "127.0.0.1:7000")]
    {
        let answer = get(&site, Method::GET, path, host);
        assert_eq!(answer.status().as_u16(), 403, "{path} {host}");
        assert!(!answer.body().contains(&base));
    }
}

/// What comes back over a connection of its own.
async fn exchange(authority: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(authority).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_page_is_served_on_loopback_to_the_one_who_has_the_printed_address() {
    let place = PagePlace::take(0).await.unwrap();
    let url = place.url();
    let (authority, path) = url.strip_prefix("http://").and_then(|url| url.split_once('/')).unwrap();
    let stop = CancellationToken::new();
    let served = tokio::spawn(place.serve(double(), stop.clone()));
    let rows = [
        (format!("GET /{path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"), "200", true),
        (format!("HEAD /{path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"), "200", false),
        (format!("GET /{path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"), "403", false),
        (format!("GET /explain/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"), "403", false),
    ];
    for (request, status, has_page) in rows {
        let answer = exchange(authority, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert_eq!(answer.contains("<h1>Waiting now</h1>"), has_page, "{request}: {answer}");
    }
    stop.cancel();
    served.await.unwrap();
    assert!(TcpStream::connect(authority).await.is_err(), "the port is free again");
}

#[test]
fn a_large_cluster_in_trouble_makes_a_page_that_can_be_read() {
    let row = |index: usize| {
        json!({
            "object": { "kind": "pvc", "namespace": "shop", "name": format!("data-{index}") }, "reason": "Reserved",
            "message": "waits", "verdict": "Waiting", "since": "2026-11-22T12:00:00Z",
        })
    };
    let rows: Vec<Value> = (0..30_000).map(row).collect();
    let value = json!({ "observed": { "at": "2026-11-22T12:03:05Z", "source": "offline" }, "rows": rows });
    let all = page("waiting", value);
    assert!(all.len() < 300_000, "{}", all.len());
    assert!(all.contains("30000 causes") && all.contains("29500 more are not shown"), "{all}");
}
