//! An API server of a cluster that nobody has stored.
//!
//! It stands before the testbed's server, which has what was written. An object that somebody writes for the first time is
//! put there as it was; from then on it is that server's. Lists are what nobody has written, and then what was; watches
//! are that server's. It answers in the encoding that is asked for, over TLS, and in a process of its own: its memory and
//! its CPU time are not the subject's.
//!
//! Beside it, without TLS, is the testbed's server itself, for stand-ins and watches that need not see the whole cluster.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Namespace;
use serde_json::json;
use test_support::cluster::{Cluster, DRIVER, create};
use testbed::{
    Body, Server,
    actors::{Attacher, AttacherBehaviour},
    request::{Place, Query, key},
};
use tokio::sync::watch;

use super::{
    answers::plain,
    encode::Schema,
    objects::{Kind, NAMESPACES, Objects, REVISION, Shape, check, namespace},
    tls,
};

/// Writes of the stand-in for external-attacher at once: enough that nothing waits for it.
const ATTACHER_WORKERS: usize = 64;

/// Path, beside the API, that forgets the history and ends every watch.
pub const EXPIRE: &str = "/simulated/expire";
/// Path, beside the API, of how many requests were answered.
pub const REQUESTS: &str = "/simulated/requests";

/// What it says when it serves, before its ports and its certificate.
pub const SERVES: &str = "serves ";

/// The server.
pub struct Simulated {
    pub(super) objects: Objects,
    pub(super) schema: Schema,
    /// Has what was written.
    pub(super) written: Server,
    /// Numbers of what that server has, or had.
    pub(super) taken: Mutex<HashMap<Kind, HashSet<usize>>>,
    /// Changes when every watch is to end.
    pub(super) expired: watch::Sender<()>,
    requests: Mutex<BTreeMap<String, u64>>,
}

/// Serves for ever.
pub async fn serve(shape: Shape) {
    let schema = Schema::read();
    check(&schema);
    let written = Server::default();
    let cluster = Cluster::new(written.client());
    cluster.driver().await;
    cluster.class("standard", "Immediate").await;
    for number in 0..NAMESPACES {
        let object = json!({ "metadata": { "name": namespace(number) } });
        create::<Namespace>(&cluster.all(), object).await;
    }
    let behaviour = AttacherBehaviour { workers: ATTACHER_WORKERS, ..AttacherBehaviour::default() };
    let _attacher = Attacher::start(written.client(), DRIVER, behaviour);
    let server = Arc::new(Simulated {
        objects: Objects::new(shape, &schema),
        schema,
        written,
        taken: Mutex::default(),
        expired: watch::Sender::new(()),
        requests: Mutex::default(),
    });
    let whole = Arc::clone(&server);
    let (address, certificate) = tls::serve(move |request| {
        let server = Arc::clone(&whole);
        server.answer(request)
    })
    .await;
    let beside = tls::serve_plain(move |request| {
        let server = Arc::clone(&server);
        async move { server.beside(request).await }
    })
    .await;
    println!("{SERVES}{address} {beside} {}", certificate.display());
    std::future::pending::<()>().await;
}

impl Simulated {
    /// What was written, and what is no API.
    async fn beside(&self, request: Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            EXPIRE => {
                // A revision that no watch has been told of.
                let object = json!({ "metadata": { "generateName": "later-" } });
                let body = object.to_string().into();
                let path = "/api/v1/namespaces/default/configmaps".to_owned();
                self.ask(Method::POST, path, Query::default(), body).await;
                self.written.compact();
                self.expired.send_replace(());
                plain("")
            }
            REQUESTS => {
                let requests = self.requests.lock().unwrap();
                let lines: Vec<String> =
                    requests.iter().map(|(what, count)| format!("{what} {count}")).collect();
                plain(&lines.join("\n"))
            }
            _ => {
                let mut server = self.written.clone();
                tower::Service::call(&mut server, request).await.unwrap_or_else(|never| match never {})
            }
        }
    }

    /// Asks that server, in JSON.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: String,
        query: Query,
        body: Bytes,
    ) -> Response<Body> {
        let of_json = || "application/json".to_owned();
        let request = testbed::request::Request {
            method,
            path,
            query,
            accept: of_json(),
            content_type: of_json(),
            user_agent: String::new(),
            body,
        };
        self.written.answer(request).await
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let header =
            |name| parts.headers.get(name).and_then(|it| it.to_str().ok()).unwrap_or_default().to_owned();
        let is_protobuf = header(header::ACCEPT).starts_with("application/vnd.kubernetes.protobuf");
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let place = Place::parse(parts.uri.path());
        let is_watch = query.flag("watch").is_ok_and(|flag| flag == Some(true));
        self.count(&parts.method, place.as_ref(), is_watch);
        let kind = place.as_ref().and_then(|place| Kind::of(place.kind.plural));
        if let (Some(place), Some(kind)) = (&place, kind)
            && !is_watch
        {
            if place.name.is_empty() && parts.method == Method::GET {
                return self.list(place, kind, &query, is_protobuf).await;
            }
            if let Some(number) = self.untaken(kind, &place.name) {
                if parts.method == Method::GET {
                    return self.one(kind, number, is_protobuf);
                }
                self.take(place, kind, number);
            }
        }
        let Ok(body) = body.collect().await else { return plain("the body ended early") };
        let request = testbed::request::Request {
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            query,
            accept: if is_protobuf { "application/json".to_owned() } else { header(header::ACCEPT) },
            content_type: header(header::CONTENT_TYPE),
            user_agent: header(header::USER_AGENT),
            body: body.to_bytes(),
        };
        let answer = self.written.answer(request).await;
        if is_watch && answer.status().is_success() {
            let is_known = place.is_some_and(|place| self.schema.has(place.kind.kind));
            return self.watch(answer, is_protobuf && is_known);
        }
        if is_protobuf { self.encoded(answer).await } else { answer }
    }

    fn count(&self, method: &Method, place: Option<&Place>, is_watch: bool) {
        let verb = match (method, place) {
            (_, _) if is_watch => "WATCH",
            (&Method::GET, Some(place)) if place.name.is_empty() => "LIST",
            _ => method.as_str(),
        };
        let what = place.map_or_else(String::new, |place| {
            let separator = if place.subresource.is_empty() { "" } else { "/" };
            format!("{}{separator}{}", place.kind.plural, place.subresource)
        });
        *self.requests.lock().unwrap().entry(format!("{verb} {what}")).or_default() += 1;
    }

    /// The number of an object that nobody has written.
    fn untaken(&self, kind: Kind, name: &str) -> Option<usize> {
        let number = self.objects.number(kind, name)?;
        let taken = self.taken.lock().unwrap();
        (!taken.get(&kind).is_some_and(|numbers| numbers.contains(&number))).then_some(number)
    }

    /// Hands an object over to who has what was written.
    fn take(&self, place: &Place, kind: Kind, number: usize) {
        let mut taken = self.taken.lock().unwrap();
        if taken.entry(kind).or_default().insert(number) {
            let object = self.objects.value(kind, number);
            let key = key(place.kind, &place.namespace, &place.name);
            self.written.adopt(place.kind, &key, object, REVISION);
        }
    }
}
