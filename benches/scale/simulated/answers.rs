//! Answers of a simulated cluster: pages of lists, made while they are sent; watches and single objects, as the testbed's
//! server gives them, in protobuf.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{HeaderValue, Method, Response, header};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use testbed::{
    Body,
    request::{Place, Query},
};

use super::{
    encode::{ENVELOPE_END, envelope, put_bytes, put_header},
    objects::{Kind, NAMESPACES},
    server::Simulated,
};

/// How much of a list is made at a time, in bytes.
const CHUNK: usize = 1 << 16;

/// The media types of answers.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf");

impl Simulated {
    /// An object that nobody has written.
    pub(super) fn one(&self, kind: Kind, number: usize, is_protobuf: bool) -> Response<Body> {
        let object = self.objects.value(kind, number);
        let body = if is_protobuf { self.schema.answer(&object) } else { object.to_string().into_bytes() };
        answer(is_protobuf, Full::new(body.into()).boxed_unsync())
    }

    /// A page of what nobody has written; the last has all that was written, too.
    pub(super) async fn list(
        self: Arc<Self>,
        place: &Place,
        kind: Kind,
        query: &Query,
        is_protobuf: bool,
    ) -> Response<Body> {
        let token = query.get("continue").split_once('.');
        let token = token.and_then(|(from, revision)| Some((from.parse().ok()?, revision.parse().ok()?)));
        let (from, revision): (usize, u64) = token.unwrap_or_else(|| (0, self.written.revision()));
        let (numbers, next) = self.page(place, kind, query, from);
        let written = if next.is_none() { self.written_of(place, query).await } else { Vec::new() };
        let next = next.map(|next| format!("{next}.{revision}")).unwrap_or_default();
        let metadata = json!({ "resourceVersion": revision.to_string(), "continue": next });
        let (version, name) = (place.kind.api_version(), place.kind.kind);
        let (begin, last) = if is_protobuf {
            let mut begin = Vec::new();
            put_bytes(&mut begin, 1, &self.schema.message("ListMeta", &metadata));
            let mut last = Vec::new();
            for object in &written {
                put_bytes(&mut last, 2, &self.schema.message(name, object));
            }
            let items: usize = numbers.iter().map(|number| self.item_size(kind, *number)).sum();
            let size = begin.len() + items + last.len();
            last.extend_from_slice(ENVELOPE_END);
            ([envelope(&version, &format!("{name}List"), size), begin].concat(), last)
        } else {
            let begin =
                format!(r#"{{"kind":"{name}List","apiVersion":"{version}","metadata":{metadata},"items":["#);
            let separator = if numbers.is_empty() || written.is_empty() { "" } else { "," };
            let written: Vec<String> = written.iter().map(Value::to_string).collect();
            (begin.into_bytes(), format!("{separator}{}]}}", written.join(",")).into_bytes())
        };
        let ends = |bytes: Vec<u8>| stream::once(async { Bytes::from(bytes) });
        let chunks = ends(begin).chain(self.items(kind, numbers, is_protobuf)).chain(ends(last));
        answer(is_protobuf, StreamBody::new(chunks.map(frame)).boxed_unsync())
    }

    /// The numbers of a page from one on, and where the next begins.
    fn page(&self, place: &Place, kind: Kind, query: &Query, from: usize) -> (Vec<usize>, Option<usize>) {
        let limit = query.number("limit").ok().flatten().and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let other = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(NAMESPACES);
        let is_named = !place.namespace.is_empty();
        let namespace = is_named.then(|| other(place.namespace.strip_prefix("team-")));
        let selected = |field: &str, kind| {
            let name = query.get("fieldSelector").strip_prefix(field)?;
            Some(self.objects.number(kind, name).unwrap_or(usize::MAX))
        };
        let (node, named) = (selected("spec.nodeName=", Kind::Node), selected("metadata.name=", kind));
        let mut numbers = Vec::new();
        let taken = self.taken.lock().unwrap();
        for number in from..self.objects.count(kind) {
            if numbers.len() == limit {
                return (numbers, Some(number));
            }
            if named.is_none_or(|named| named == number)
                && self.objects.is_at(kind, number, namespace, node)
                && taken.get(&kind).is_none_or(|taken| !taken.contains(&number))
            {
                numbers.push(number);
            }
        }
        (numbers, None)
    }

    /// All of a place that was written.
    async fn written_of(&self, place: &Place, query: &Query) -> Vec<Value> {
        let namespace = match place.namespace.as_str() {
            "" => String::new(),
            namespace => format!("namespaces/{namespace}/"),
        };
        let root = if place.kind.group.is_empty() { "/api" } else { "/apis/" };
        let path = format!("{root}{}/v1/{namespace}{}", place.kind.group, place.kind.plural);
        let selectors = ["fieldSelector", "labelSelector"].map(|name| (name, query.get(name)));
        let selectors = form_urlencoded::Serializer::new(String::new()).extend_pairs(selectors).finish();
        let list = self.ask(Method::GET, path, Query::parse(&selectors), Bytes::new()).await;
        match value(list).await["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
    }

    /// What an item of a list takes in protobuf, in bytes.
    fn item_size(&self, kind: Kind, number: usize) -> usize {
        let size = self.objects.template(kind, number, true).size();
        let mut header = Vec::new();
        put_header(&mut header, 2, size);
        header.len() + size
    }

    /// The items of a page, some at a time.
    fn items(
        self: Arc<Self>,
        kind: Kind,
        numbers: Vec<usize>,
        is_protobuf: bool,
    ) -> impl Stream<Item = Bytes> + Send {
        let numbers = numbers.into_iter().enumerate().peekable();
        stream::unfold((self, numbers), move |(server, mut numbers)| async move {
            numbers.peek()?;
            let mut bytes = Vec::with_capacity(2 * CHUNK);
            while bytes.len() < CHUNK
                && let Some((index, number)) = numbers.next()
            {
                if is_protobuf {
                    put_header(&mut bytes, 2, server.objects.template(kind, number, true).size());
                } else if index > 0 {
                    bytes.push(b',');
                }
                server.objects.write(kind, number, is_protobuf, &mut bytes);
            }
            Some((Bytes::from(bytes), (server, numbers)))
        })
    }

    /// A watch, event by event, until all watches are to end.
    pub(super) fn watch(self: Arc<Self>, watch: Response<Body>, is_protobuf: bool) -> Response<Body> {
        let mut expired = self.expired.subscribe();
        let events = watch.into_body().into_data_stream().map(move |event| {
            let event = event.unwrap_or_else(|never| match never {});
            if is_protobuf {
                let event = serde_json::from_slice(&event).expect("an event is JSON");
                Bytes::from(self.schema.frame(&event))
            } else {
                event
            }
        });
        let events = events.take_until(async move { drop(expired.changed().await) });
        answer(is_protobuf, StreamBody::new(events.map(frame)).boxed_unsync())
    }

    /// An answer in protobuf, if that can be had.
    pub(super) async fn encoded(&self, response: Response<Body>) -> Response<Body> {
        let (mut parts, body) = response.into_parts();
        let body = body.collect().await.unwrap_or_else(|never| match never {}).to_bytes();
        let object: Value = serde_json::from_slice(&body).unwrap_or_default();
        let is_known = object["kind"].as_str().is_some_and(|kind| self.schema.has(kind));
        let body = if is_known { self.schema.answer(&object).into() } else { body };
        if is_known {
            parts.headers.insert(header::CONTENT_TYPE, PROTOBUF);
        }
        Response::from_parts(parts, Full::new(body).boxed_unsync())
    }
}

/// What the testbed's server says.
async fn value(response: Response<Body>) -> Value {
    let body = response.into_body().collect().await.unwrap_or_else(|never| match never {});
    serde_json::from_slice(&body.to_bytes()).unwrap_or_default()
}

#[expect(clippy::unnecessary_wraps, reason = "of a stream that could fail")]
fn frame(bytes: Bytes) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(bytes))
}

fn answer(is_protobuf: bool, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, if is_protobuf { PROTOBUF } else { JSON });
    response
}

/// An answer that is no object.
pub fn plain(text: &str) -> Response<Body> {
    Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())).boxed_unsync())
}
